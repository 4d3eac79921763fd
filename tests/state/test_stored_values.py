"""Whatever way a value takes into a state, it is what the type can hold, whole, and is refused where it is not."""

import datetime
import decimal
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, ProcessElementError, UserFunctionError, ValueTypeError
from arrowstate.functions.failing import explained

NESTED = [
    (pa.list_(pa.list_(pa.int64())), [None, [1]]),
    (pa.map_(pa.string(), pa.list_(pa.int64())), [("a", None)]),
    (pa.list_(pa.map_(pa.string(), pa.int64())), [None, []]),
    (pa.list_(pa.list_(pa.int64(), 2)), [None, [1, 2]]),
]
NANOSECONDS = [pa.time64("ns"), pa.timestamp("ns"), pa.duration("ns")]
EVENT_TIME = arrowstate.TimeToLive(10, clock="event_time")


def backend_of(key=pa.string()):
    return arrowstate.KeyedStateBackend(key=pa.schema([("k", key)]), max_parallelism=128)


def nanoseconds(kind, *values):
    return pa.array(values, pa.int64()).cast(kind)


@pytest.mark.parametrize(("kind", "value"), NESTED, ids=str)
def test_scalar_verbs_take_nested_values_with_nested_nulls_and_later_verbs_go_on(kind, value):
    backend = backend_of()
    one = backend.state(arrowstate.ValueStateDescriptor("one", kind))
    last = backend.state(arrowstate.ReducingStateDescriptor("last", kind, reduce="last"))
    some = backend.state(arrowstate.ListStateDescriptor("some", kind))
    entries = backend.state(arrowstate.MapStateDescriptor("entries", pa.string(), kind))
    backend.current_key = "a"

    one.update(value)
    last.add(value)
    some.add(value)
    entries.put("x", value)
    entries.put("y", None)

    assert one.get_batch(["a"]).to_pylist() == last.get_batch(["a"]).to_pylist() == [value]
    assert some.get() == [value]
    assert dict(entries.items()) == {"x": value, "y": None}
    assert len(backend.freeze().states) == 4


@pytest.mark.parametrize("retracting", [False, True])
def test_what_follows_a_null_has_its_own_event_time(retracting):
    descriptors = [
        arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum", ttl=EVENT_TIME),
        arrowstate.AggregatingStateDescriptor("s", pa.int64(), aggregate="mean", ttl=EVENT_TIME),
    ]
    for descriptor in descriptors[: 1 if retracting else 2]:
        state = (backend := backend_of()).state(descriptor)
        more = {"retracted": [False] * 5} if retracting else {}

        state.add_batch(list("aaabb"), [1, None, 5, 1, None], timestamps=[100, 100, 50, 90, 95], **more)
        backend.advance_watermark(59)
        before = state.get_batch(["a"]).to_pylist()
        backend.advance_watermark(60)

        assert before == [5]
        assert state.get_batch(["a"]).to_pylist() == [None]


def test_what_follows_a_none_of_a_callable_has_its_own_event_time():
    def add(old, new):
        return None if old + new == 0 else old + new

    for values, times in ([[3, -3, 5]], [[100, 100, 50]]), ([[3], [-3, 5]], [[100], [100, 50]]):
        backend = backend_of()
        state = backend.state(arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce=add, ttl=EVENT_TIME))

        for some, at in zip(values, times, strict=True):
            state.add_batch(["a"] * len(some), some, timestamps=at)
        backend.advance_watermark(60)

        assert state.get_batch(["a"]).to_pylist() == [None]


def test_a_merge_that_gives_none_leaves_no_row():
    spaces = pa.schema([("n", pa.int64())])
    descriptor = arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce=lambda *_: None, namespace=spaces)
    backend = backend_of()
    state = backend.state(descriptor)
    state.add_batch(["a", "a", "b"], [1, 2, 3], namespace=pa.array([1, 2, 2]))

    state.merge_namespaces_batch(["a", "b"], 1, 2)

    assert len(state) == 1
    assert backend.keys(descriptor).to_pylist() == [{"k": "b"}]
    assert state.get_batch(["a", "b"], namespace=1).to_pylist() == [None, 3]


def test_a_merge_is_as_old_as_what_follows_the_last_none():
    def add(old, new):
        return None if old + new == 0 else old + new

    spaces = pa.schema([("n", pa.int64())])
    backend = backend_of()
    state = backend.state(
        arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce=add, namespace=spaces, ttl=EVENT_TIME)
    )
    state.add_batch(["a"] * 3, [1, -1, 7], namespace=pa.array([0, 1, 2]), timestamps=[100, 100, 50])

    state.merge_namespaces_batch(["a", "a"], 0, pa.array([1, 2]))
    before = state.get_batch(["a"], namespace=0).to_pylist()
    backend.advance_watermark(60)

    assert before == [7]
    assert state.get_batch(["a"], namespace=0).to_pylist() == [None]


@pytest.mark.parametrize("kind", NANOSECONDS, ids=str)
def test_a_scalar_add_keeps_every_nanosecond_of_an_accumulator(kind):
    backend = backend_of()
    state = backend.state(arrowstate.AggregatingStateDescriptor("t", kind, aggregate=arrowstate.TopK(3)))
    state.add_batch(["a", "a"], nanoseconds(kind, 1_234_567_891, 5))
    backend.current_key = "a"

    state.add(nanoseconds(kind, 7)[0])

    assert state.get_batch(["a"]).flatten().cast(pa.int64()).to_pylist() == [1_234_567_891, 7, 5]


def test_a_read_that_would_lose_nanoseconds_is_refused_in_every_kind():
    kind = pa.time64("ns")
    backend = backend_of()
    given = nanoseconds(kind, 7)
    one = backend.state(arrowstate.ValueStateDescriptor("one", pa.struct([("t", kind)])))
    first = backend.state(arrowstate.ReducingStateDescriptor("first", kind, reduce="first"))
    top = backend.state(arrowstate.AggregatingStateDescriptor("top", kind, aggregate="top_k"))
    some = backend.state(arrowstate.ListStateDescriptor("some", pa.list_(kind)))
    entries = backend.state(arrowstate.MapStateDescriptor("entries", kind, kind))
    called = backend.state(arrowstate.ReducingStateDescriptor("called", kind, reduce=max))
    one.update_batch(["a"], pa.StructArray.from_arrays([given], names=["t"]))
    first.add_batch(["a"], given)
    top.add_batch(["a"], given)
    some.add_batch(["a"], pa.ListArray.from_arrays([0, 1], given))
    entries.put_batch(["a"], given, given)
    backend.current_key = "a"
    called.add(given[0])
    reads = [one.value, first.get, top.get, some.get, entries.items, lambda: entries.get(given[0])]

    for read in [*reads, lambda: called.add_batch(["a"], given), lambda: called.add(given[0])]:
        with pytest.raises(InvalidInputError, match="no counterpart in Python"):
            read()

    assert entries.contains(given[0])


@pytest.mark.parametrize("kind", NANOSECONDS, ids=str)
def test_keys_that_differ_in_nanoseconds_are_different_keys_of_scalar_verbs(kind):
    for key, of in ((kind, lambda n: nanoseconds(kind, n)[0]), (pa.struct([("t", kind)]), lambda n: nested(kind, n))):
        backend = backend_of(key)
        state = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))

        for number in (1, 2):
            backend.current_key = of(number)
            state.update(number)

        assert len(state) == 2


def nested(kind, number):
    return pa.StructArray.from_arrays([nanoseconds(kind, number)], names=["t"])[0]


def test_without_pandas_times_are_exact_or_refused_clearly():
    """pandas is no dependency, and Arrow returns nanoseconds by it alone."""
    script = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pandas", "pytz"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
import pyarrow as pa, arrowstate
for kind in (pa.timestamp("ns"), pa.duration("ns"), pa.time64("ns")):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=128)
    given = pa.array([1_234_567_891], pa.int64()).cast(kind)
    whole = pa.array([1_234_567_000], pa.int64()).cast(kind)
    value = backend.state(arrowstate.ValueStateDescriptor("v", kind))
    top = backend.state(arrowstate.AggregatingStateDescriptor("t", kind, aggregate="top_k"))
    backend.current_key = "a"
    top.add(given[0])
    assert top.get_batch(["a"]).flatten().cast(pa.int64()).to_pylist() == [1_234_567_891]
    value.update(whole[0])
    assert pa.scalar(value.value(), kind) == whole[0]
    value.update(given[0])
    for read in (value.value, top.get):
        try:
            read()
        except arrowstate.InvalidInputError as error:
            assert "no counterpart in Python" in str(error)
        else:
            raise AssertionError(kind)
    assert value.get_batch(["a"]).equals(given)
zoned = backend.state(arrowstate.ValueStateDescriptor("z", pa.timestamp("us", "Europe/Berlin")))
zoned.update_batch(["a"], pa.array([0], pa.timestamp("us", "Europe/Berlin")))
assert zoned.value().isoformat() == "1970-01-01T01:00:00+01:00"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("smallest", [False, True])
def test_top_k_takes_float16(smallest):
    state = backend_of().state(
        arrowstate.AggregatingStateDescriptor("t", pa.float16(), aggregate=arrowstate.TopK(2, smallest))
    )

    state.add_batch(list("aaa"), pa.array(np.array([1, 3, 2], np.float16)))

    assert state.get_batch(["a"]).to_pylist() == [[1.0, 2.0] if smallest else [3.0, 2.0]]


@pytest.mark.parametrize("times", [pa.array([5, 5, 7]), pa.array([5, 5, 7], pa.timestamp("ms")), None], ids=str)
def test_dictionary_encoded_timestamps_are_taken_wherever_timestamps_are(times):
    from arrowstate.windows import TumblingEventTimeWindows, WindowOperator

    class Times(arrowstate.KeyedProcessFunction):
        def process_element(self, value, context, out):
            out.collect(context.timestamp)

    if times is None:
        times = pa.chunked_array([pa.array([5, 5, 7], pa.timestamp("ms"))])
    encoded, keys = times.dictionary_encode(), list("aab")
    backend = backend_of()
    total = arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="sum")
    windows = WindowOperator(backend, TumblingEventTimeWindows(6), total)
    state = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64(), ttl=EVENT_TIME))
    timers = backend.timers()

    windows.process(keys, encoded, [1, 2, 4])
    timers.register_batch(keys, encoded)
    state.update_batch(keys, [1, 2, 3], timestamps=encoded)
    rows = pa.table({"k": keys, "at": encoded})
    seen = arrowstate.KeyedProcessRunner(backend, Times(), output=pa.int64(), timestamp="at").process(rows)

    assert [row["n"] for row in windows.advance_watermark(11).to_pylist()] == [3, 4]
    assert timers.pop_due(9)["timestamp"].to_pylist() == [5, 7]
    assert state.get_batch(["b"]).to_pylist() == [3]
    assert seen.to_pylist() == [5, 5, 7]


def test_the_time_of_a_row_before_1970_is_rounded_down():
    class Times(arrowstate.KeyedProcessFunction):
        def process_element(self, value, context, out):
            out.collect(context.timestamp)

    process = arrowstate.KeyedProcessRunner(backend_of(), Times(), output=pa.int64(), timestamp="at")
    times = pa.array([-1, -1000, -1001], pa.timestamp("us"))

    assert process.process(pa.record_batch({"k": list("aaa"), "at": times})).to_pylist() == [-1, -1, -2]


UTC = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
MISFITS = [
    (pa.float32(), 1e300),
    (pa.float32(), -3.5e38),
    (pa.float16(), 1e10),
    (pa.list_(pa.float32()), [1.0, 1e300]),
    (pa.struct([("x", pa.float32())]), {"x": 1e300}),
    (pa.struct([("x", pa.int64()), ("y", pa.timestamp("us"))]), (1, UTC)),
    (pa.map_(pa.string(), pa.float32()), {"a": 1e300}),
    (pa.timestamp("us"), UTC),
    (pa.list_(pa.timestamp("us")), [UTC]),
    (pa.timestamp("us", "UTC"), UTC.replace(tzinfo=None)),
    (pa.timestamp("us"), pd.Timestamp(1, unit="ns")),
    (pa.duration("us"), pd.Timedelta(1, unit="ns")),
    (pa.duration("ms"), datetime.timedelta(microseconds=1)),
    (pa.time64("us"), datetime.time(1, tzinfo=datetime.UTC)),
    (pa.date32(), datetime.datetime(2024, 1, 1, 5)),
    (pa.int32(), 1 << 31),
    (pa.uint8(), -1),
    (pa.int64(), True),
    (pa.int64(), np.True_),
    (pa.float64(), True),
    (pa.int64(), 1.5),
    (pa.decimal128(5, 2), decimal.Decimal("1.234")),
    (pa.decimal128(5, 2), decimal.Decimal("12345")),
    (pa.string(), b"bytes"),
    (pa.binary(), "text"),
    (pa.binary(2), b"abc"),
    (pa.string(), "\ud800"),
]


@pytest.mark.parametrize(("kind", "value"), MISFITS, ids=lambda given: str(given).encode("ascii", "replace").decode())
def test_every_verb_refuses_a_value_that_does_not_fit_and_leaves_the_state(kind, value):
    backend = backend_of()
    one = backend.state(arrowstate.ValueStateDescriptor("one", kind))
    last = backend.state(arrowstate.ReducingStateDescriptor("last", kind, reduce="last"))
    some = backend.state(arrowstate.ListStateDescriptor("some", kind))
    entries = backend.state(arrowstate.MapStateDescriptor("entries", pa.string(), kind))
    backend.current_key = "a"
    verbs = [
        lambda: one.update(value),
        lambda: one.update_batch(["a"], [value]),
        lambda: last.add(value),
        lambda: last.add_batch(["a"], [value]),
        lambda: some.add(value),
        lambda: some.add_all([value]),
        lambda: some.add_batch(["a"], [value]),
        lambda: entries.put("x", value),
        lambda: entries.put_all({"x": value}),
        lambda: entries.put_batch(["a"], ["x"], [value]),
    ]

    for verb in verbs:
        with pytest.raises(ValueTypeError):
            verb()

    assert [len(state) for state in backend.states.values()] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (pa.float32(), pa.array([1.0, 1e300])),
        (pa.float16(), pa.array([1.0, 1e10])),
        (pa.list_(pa.float32()), pa.array([[1.0], [1e300]])),
        (pa.struct([("x", pa.float32())]), pa.array([{"x": 1.0}, {"x": 1e300}])),
        (pa.map_(pa.string(), pa.float32()), pa.array([[("a", 1e300)]] * 2, pa.map_(pa.string(), pa.float64()))),
    ],
    ids=str,
)
def test_an_arrow_column_of_numbers_beyond_a_smaller_float_is_refused(stored, given):
    state = backend_of().state(arrowstate.ValueStateDescriptor("v", stored))

    with pytest.raises(ValueTypeError):
        state.update_batch(["a", "b"], given)

    assert len(state) == 0


def test_infinities_and_what_is_under_a_null_go_into_a_smaller_float():
    state = backend_of().state(arrowstate.ValueStateDescriptor("v", pa.float32()))
    under_null = pa.Array.from_buffers(
        pa.float64(), 3, [pa.py_buffer(b"\x05"), pa.array([np.inf, 1e300, 1.0]).buffers()[1]]
    )

    state.update_batch(list("abc"), under_null)

    assert state.get_batch(list("abc")).to_pylist() == [np.inf, None, 1.0]


def test_integers_of_numpy_are_taken_for_every_type_that_takes_integers():
    for kind in (pa.int8(), pa.float64(), pa.decimal128(5, 2), pa.timestamp("us"), pa.list_(pa.date32())):
        backend = backend_of()
        state = backend.state(arrowstate.ValueStateDescriptor("v", kind))
        number = [np.int64(5)] if pa.types.is_list(kind) else np.int64(5)
        plain = [5] if pa.types.is_list(kind) else 5
        backend.current_key = "a"

        state.update(number)
        state.update_batch(["b"], [number])

        assert state.get_batch(["a", "b"]).to_pylist() == pa.array([plain, plain], kind).to_pylist()


def test_lists_that_hold_a_null_list_go_in_by_the_verbs_for_one_record():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=8)
    times, numbers = pa.list_(pa.list_(pa.time32("s"))), pa.list_(pa.list_(pa.int8()))
    value = backend.state(arrowstate.ValueStateDescriptor("value", times))
    fields = pa.struct([("first", numbers), ("n", pa.int64())])
    reduced = backend.state(
        arrowstate.ReducingStateDescriptor("reduced", fields, reduce={"first": "first", "n": "count"})
    )
    backend.current_key = "ann"

    value.update([None, [datetime.time(1, 2, 3)]])
    reduced.add({"first": [None, [1]], "n": 1})
    reduced.add({"first": [[2]], "n": 1})

    assert value.value() == [None, [datetime.time(1, 2, 3)]]
    assert reduced.get() == {"first": [None, [1]], "n": 2}


FAR = pa.array([1 << 62], pa.timestamp("us"))


@pytest.mark.parametrize("values", [FAR, pa.StructArray.from_arrays([FAR], names=["x"])], ids=["flat", "nested"])
def test_a_time_that_neither_the_type_nor_python_has_is_a_misfit_as_any_other(values):
    kind = pa.timestamp("ns") if values is FAR else pa.struct([("x", pa.timestamp("ns"))])
    state = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=8).state(
        arrowstate.ValueStateDescriptor("value", kind)
    )

    with pytest.raises(ValueTypeError, match="state 'value' must be .* in row 0"):
        state.update_batch(["ann"], values)


@pytest.mark.parametrize("values", [FAR, pa.array([5]).view(pa.time64("ns"))], ids=lambda values: str(values.type))
def test_elements_of_operator_state_that_python_has_no_values_for_are_neither_cut_nor_an_error_of_python(values):
    descriptor = arrowstate.OperatorListStateDescriptor("elements", values.type)
    elements = arrowstate.OperatorStateBackend().state(descriptor)
    elements.extend(values)

    with pytest.raises(InvalidInputError, match="list state 'elements'.* no counterpart in Python"):
        elements.get()
    assert elements.to_arrow().equals(values)


def test_a_row_with_a_time_that_python_has_no_value_for_is_shown_in_the_error_of_a_function():
    rows = pa.table({"user": ["ann"], "at": FAR})

    with (
        pytest.raises(UserFunctionError, match="'user': 'ann', 'at': .*out of range"),
        explained("op", "micro-batch 3", rows=rows),
    ):
        raise ProcessElementError(0, "no good")
