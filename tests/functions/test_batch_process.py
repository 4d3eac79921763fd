"""`BatchRunner`: what a batch function sees, in which order, and that a failure leaves nothing behind."""

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.windows import Trigger, TumblingEventTimeWindows, WindowFunction
from stores import KEY, TOTAL


class Traced(arrowstate.BatchFunction):
    """Sums, sets a timer per row, and writes down what is called."""

    def __init__(self):
        self.calls = []

    def open(self, context):
        self.total = context.state(TOTAL)
        self.timers = context.timers()
        self.closed = 0

    def process_batch(self, batch, context):
        self.calls.append(("batch", batch.num_rows, context.watermark))
        self.total.add_batch(batch["k"], batch["v"])
        self.timers.register_batch(batch["k"], batch["at"])
        return batch.select(["k"])

    def on_watermark(self, watermark, context):
        self.calls.append(("watermark", watermark, context.watermark))

    def on_timers(self, timers, context):
        self.calls.append((context.timers_name, context.clock, timers["timestamp"].to_pylist(), context.watermark))
        again = timers.filter(pa.compute.less(timers["timestamp"], 20))
        self.timers.register_batch(again["k"], pa.compute.add(again["timestamp"], 10), clock=context.clock)
        return timers.select(["k"])

    def close(self):
        self.closed += 1


@pytest.fixture
def backend():
    return arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)


def rows(keys, at):
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64()), "at": at})


def test_time_passes_in_order_and_timers_that_timers_register_fire_in_the_same_step(backend):
    function = Traced()
    process = arrowstate.BatchRunner(backend, function)

    process.process(rows([1, 2, 3], [5, 15, 30]))
    fired = process.advance_watermark(25)
    process.advance_watermark(25)

    assert function.calls == [
        ("batch", 3, None),
        ("watermark", 25, None),
        ("timers", "event_time", [5, 15], 25),
        ("timers", "event_time", [15, 25], 25),
        ("timers", "event_time", [25], 25),
    ]
    assert fired["k"].to_pylist() == [1, 2, 1, 2, 1]
    assert len(function.timers) == 1


def test_a_lower_watermark_is_passed_over(backend):
    function = Traced()
    process = arrowstate.BatchRunner(backend, function)
    process.advance_watermark(25)

    process.advance_watermark(20)

    assert function.calls == [("watermark", 25, None)]
    assert backend.watermark == 25


def test_processing_time_timers_fire_by_their_own_clock(backend):
    function = Traced()
    process = arrowstate.BatchRunner(backend, function)
    function.timers.register_batch([1, 2], [40, 60], clock="processing_time")

    process.advance_processing_time(50)

    assert function.calls == [("timers", "processing_time", [40], None)]


def test_a_batch_without_rows_is_not_processed(backend):
    function = Traced()

    emitted = arrowstate.BatchRunner(backend, function).process(rows([], pa.array([], pa.int64())))

    assert (emitted.num_rows, function.calls) == (0, [])


def test_a_failure_leaves_the_states_as_they_were(backend):
    class Failing(Traced):
        def process_batch(self, batch, context):
            super().process_batch(batch, context)
            if batch["v"][0].as_py() == 9:
                raise RuntimeError("no nines")

    process = arrowstate.BatchRunner(backend, Failing())
    process.process(rows([1, 2], [5, 6]))

    with pytest.raises(RuntimeError, match="no nines"):
        process.process(rows([9, 1], [7, 8]))

    assert backend.state(TOTAL).get_batch([1, 2, 9]).to_pylist() == [1, 2, None]
    assert backend.timers().pop_due(100)["timestamp"].to_pylist() == [5, 6]


def test_what_is_emitted_must_fit_the_output_and_is_cast_where_no_value_changes(backend):
    class Emitting(arrowstate.BatchFunction):
        def process_batch(self, batch, context):
            return pa.record_batch({"v": batch["v"].cast(pa.int32()), "k": batch["k"]})

    output = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    emitted = arrowstate.BatchRunner(backend, Emitting(), output=output).process(rows([1], [5]))
    assert emitted.schema.equals(output)
    assert emitted.to_pylist() == [{"k": 1, "v": 1}]

    with pytest.raises(arrowstate.InvalidInputError, match="emitted the columns v, k; the output has k"):
        arrowstate.BatchRunner(backend, Emitting(), output=output.remove(1)).process(rows([1], [5]))
    with pytest.raises(arrowstate.InvalidInputError, match=r"emitted int32 for the output column 'v', which is date64"):
        arrowstate.BatchRunner(backend, Emitting(), output=output.set(1, pa.field("v", pa.date64()))).process(
            rows([1], [5])
        )


def test_a_closed_runner_is_refused_and_close_is_called_once(backend):
    function = Traced()
    with arrowstate.BatchRunner(backend, function) as process:
        process.close()

    with pytest.raises(arrowstate.InvalidInputError, match="closed"):
        process.process(rows([1], [5]))
    assert function.closed == 1


def test_a_broadcast_state_that_is_not_there_is_named(backend):
    class Asking(arrowstate.BatchFunction):
        def open(self, context):
            context.broadcast("rules")

    with pytest.raises(arrowstate.InvalidInputError, match="no broadcast state named 'rules'; this operator has none"):
        arrowstate.BatchRunner(backend, Asking())


def test_a_function_without_process_batch_or_on_timers_says_so(backend):
    class Nothing(arrowstate.BatchFunction):
        def open(self, context):
            context.timers().register_batch([1], [5])

    process = arrowstate.BatchRunner(backend, Nothing())

    with pytest.raises(TypeError, match="Nothing has no process_batch"):
        process.process(rows([1], [5]))
    with pytest.raises(TypeError, match="Nothing has timers and no on_timers"):
        process.advance_watermark(10)
    assert backend.timers().count() == 1


def test_windows_as_a_batch_function_give_what_the_operator_gives(backend):
    clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    function = WindowFunction(TumblingEventTimeWindows(10), clicks, timestamp="at", value="v")
    process = arrowstate.BatchRunner(backend, function)

    early = process.process(rows([1, 1, 2], [1, 2, 11]))
    fired = process.advance_watermark(10)
    process.process(rows([5], [3]))

    assert early.num_rows == 0
    assert fired.to_pylist() == [{"k": 1, "window_start": 0, "window_end": 10, "clicks": 2}]
    assert function.late_rows == 1


def test_windows_of_a_struct_take_the_columns_of_its_fields(backend):
    both = arrowstate.ReducingStateDescriptor(
        "both", pa.struct([("v", pa.int64()), ("at", pa.int64())]), reduce={"v": "sum", "at": "max"}
    )
    process = arrowstate.BatchRunner(backend, WindowFunction(TumblingEventTimeWindows(10), both, timestamp="at"))
    process.process(rows([1, 1], [1, 2]))

    assert process.advance_watermark(10)["both"].to_pylist() == [{"v": 2, "at": 2}]


def test_windows_by_time_need_a_timestamp_and_others_take_none():
    with pytest.raises(arrowstate.InvalidInputError, match="needs the name of a timestamp column, got None"):
        WindowFunction(TumblingEventTimeWindows(10), TOTAL)
    with pytest.raises(arrowstate.InvalidInputError, match="needs timestamp=None, got 'at'"):
        WindowFunction(arrowstate.windows.GlobalWindows(), TOTAL, timestamp="at", trigger=Trigger(count=1))


class Grouped(arrowstate.BatchFunction):
    """Groups the keys once for two states and reads one of them."""

    def open(self, context):
        self.total = context.state(TOTAL)
        self.count = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count"))

    def process_batch(self, batch, context):
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["v"])
        self.count.add_batch(keys, batch["v"])
        return pa.record_batch(
            [*keys.columns, self.total.read_keys(keys), self.count.read_keys(keys)], names=["k", "total", "n"]
        )


def test_keys_are_grouped_once_for_several_states(backend):
    process = arrowstate.BatchRunner(backend, Grouped())
    random = np.random.default_rng(3)
    keys = random.integers(-40, 40, 500)

    for _ in range(2):
        emitted = process.process(rows(keys, np.zeros(500, dtype=np.int64)))

    assert sorted(emitted["k"].to_pylist()) == sorted(set(keys.tolist()))
    truth = {key: 2 * key * int((keys == key).sum()) for key in set(keys.tolist())}
    assert dict(zip(emitted["k"].to_pylist(), emitted["total"].to_pylist(), strict=True)) == truth
    counts = {key: 2 * int((keys == key).sum()) for key in set(keys.tolist())}
    assert dict(zip(emitted["k"].to_pylist(), emitted["n"].to_pylist(), strict=True)) == counts


SPACED = pa.schema([("w", pa.int64())])
GROUPED_KEYS = {
    "list": (
        arrowstate.ListStateDescriptor("s", pa.int64()),
        lambda state, keys, rows: (
            state.add_batch(keys, rows["v"]),
            state.add_all_batch(keys, [[n, n] for n in rows["v"].to_pylist()]),
            state.get_batch(keys),
        ),
    ),
    "map": (
        arrowstate.MapStateDescriptor("s", pa.int64(), pa.int64()),
        lambda state, keys, rows: (
            state.put_batch(keys, rows["v"], rows["k"]),
            state.remove_batch(keys, pa.repeat(3, rows.num_rows)),
            state.get_batch(keys, rows["v"]),
            state.entries_batch(keys),
        ),
    ),
    "namespaces": (
        arrowstate.ValueStateDescriptor("s", pa.int64(), namespace=SPACED),
        lambda state, keys, rows: (
            state.update_batch(keys, rows["v"], namespace=rows.select(["w"])),
            state.clear_batch(keys, namespace=3),
            state.get_batch(keys, namespace=rows.select(["w"])),
        ),
    ),
    "merged namespaces": (
        arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum", namespace=SPACED),
        lambda state, keys, rows: (
            state.add_batch(keys, rows["v"], namespace=rows.select(["w"])),
            state.merge_namespaces_batch(keys, pa.repeat(7, rows.num_rows), rows["w"]),
            state.get_batch(keys, namespace=7),
        ),
    ),
}


@pytest.mark.parametrize("case", GROUPED_KEYS)
def test_a_state_whose_rows_are_told_apart_by_more_than_the_key_takes_grouped_keys_as_those_of_each_row(case):
    descriptor, use = GROUPED_KEYS[case]
    random = np.random.default_rng(7)
    given = pa.record_batch({name: random.integers(0, 9, 60) for name in ("k", "v", "w")})
    plain, grouped = (arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128) for _ in range(2))

    for batch in (given, given.slice(5, 1), given.slice(0, 0), given.slice(20)):
        expected = use(plain.state(descriptor), batch["k"], batch)
        found = use(grouped.state(descriptor), grouped.group_keys(batch["k"]), batch)

        for ours, theirs in zip(found, expected, strict=True):
            assert ours is theirs is None or ours.equals(theirs)


def test_timers_take_grouped_keys_as_those_of_each_row(backend):
    timers = backend.timers()
    timers.register_batch(backend.group_keys([1, 2, 1]), [10, 20, 30])
    timers.delete_batch(backend.group_keys([1, 2]), [10, 25])

    assert timers.pop_due(40).select(["k", "timestamp"]).to_pylist() == [
        {"k": 2, "timestamp": 20},
        {"k": 1, "timestamp": 30},
    ]


def test_keys_that_are_grouped_have_the_values_that_get_batch_returns(backend):
    mean = backend.state(arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean"))
    level = backend.state(arrowstate.ValueStateDescriptor("level", pa.int64(), default=7))
    keys = backend.group_keys([1, 2, 1])
    mean.add_batch(keys, [1, 5, 2])
    level.update_batch([2], [9])

    for state in (mean, level):
        assert state.read_keys(keys).equals(state.get_batch(keys.columns[0]))
