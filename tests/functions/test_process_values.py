"""What a process function reads is the value as its state stores it, wherever batches begin and end."""

import datetime
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import ProcessElementError, ValueTypeError

KEY = pa.schema([("k", pa.string())])
UTC = datetime.datetime(2024, 1, 1, 3, tzinfo=datetime.UTC)
POINT = pa.struct([("x", pa.int64()), ("y", pa.float32())])
GIVEN = [
    (pa.int8(), [np.int64(3), 7]),
    (pa.float64(), [1, np.float32(0.1), math.nan]),
    (pa.float32(), [0.1, 1e-50, math.inf]),
    (pa.float16(), [0.1, 2049]),
    (pa.bool_(), [np.True_, False]),
    (pa.string(), [np.str_("a"), "ü"]),
    (pa.binary(), [bytearray(b"a"), b"b"]),
    (pa.decimal128(9, 3), [1, decimal.Decimal("1.5")]),
    (pa.timestamp("us", "Europe/Berlin"), [UTC]),
    (pa.timestamp("ns"), [np.int64(7000), datetime.datetime(2024, 1, 1)]),
    (pa.duration("ms"), [datetime.timedelta(milliseconds=5), 7]),
    (pa.date32(), [5, datetime.date(2024, 1, 1)]),
    (pa.list_(pa.float32()), [(0.1, None), {2}, np.array([1, 2])]),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1}, [("b", None)]]),
    (POINT, [{"x": 1}, {"y": 0.1}, (5, 0.2)]),
    (pa.struct([("some", pa.list_(POINT))]), [{"some": [{"x": 1}, None]}, {}]),
]


def read_back(descriptor, write, values, cut):
    """What is read after each write, in batches of `cut` elements."""

    class Each(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.state = context.state(descriptor)

        def process_element(self, row, context, out):
            if row.n < len(values):
                write(self.state, values[row.n])
            out.collect(repr(read(self.state)))

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    out = []
    with arrowstate.KeyedProcessRunner(backend, Each(), output=pa.string()) as process:
        # One element more than values: the last read is of what is stored already, or is not.
        numbers = list(range(len(values) + 1))
        for start in range(0, len(numbers), cut):
            rows = numbers[start : start + cut]
            out += process.process(pa.record_batch({"k": ["a"] * len(rows), "n": rows})).to_pylist()
    return out


def read(state):
    if hasattr(state, "items"):
        return sorted(map(repr, state.items()))
    return state.value() if hasattr(state, "value") else state.get()


def check_cuts(descriptor, write, values):
    whole = read_back(descriptor, write, values, 100)
    for cut in (1, 2):
        assert read_back(descriptor, write, values, cut) == whole


@pytest.mark.parametrize(
    ("kind", "values"), GIVEN, ids=lambda given: str(given) if isinstance(given, pa.DataType) else ""
)
def test_a_read_is_the_same_before_and_after_the_end_of_a_batch(kind, values):
    check_cuts(arrowstate.ValueStateDescriptor("s", kind), lambda state, value: state.update(value), values)
    check_cuts(arrowstate.ListStateDescriptor("s", kind), lambda state, value: state.add(value), values)
    put = arrowstate.MapStateDescriptor("s", pa.string(), kind)
    check_cuts(put, lambda state, value: state.put("x", value), [*values, None])
    for reduce in ("first", "last", lambda old, new: new):
        descriptor = arrowstate.ReducingStateDescriptor("s", kind, reduce=reduce)
        check_cuts(descriptor, lambda state, value: state.add(value), values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [item for item in GIVEN if not pa.types.is_map(item[0])],
    ids=lambda given: str(given) if isinstance(given, pa.DataType) else "",
)
def test_a_user_key_is_the_same_before_and_after_the_end_of_a_batch(kind, values):
    more = [*values, values[0], -0.0, 0.0] if kind == pa.float64() else [*values, values[0]]
    descriptor = arrowstate.MapStateDescriptor("s", kind, pa.int64())

    def write(state, value):
        state.put(value, 1)
        assert state.contains(value)

    check_cuts(descriptor, write, more)
    read_again = read_back(descriptor, write, values, 1)[-1]
    assert read_back(descriptor, write, more, 1)[-1].count("', '") == read_again.count("', '") + (kind == pa.float64())


@pytest.mark.parametrize(
    ("kind", "reduce", "values"),
    [
        (pa.float32(), "sum", [0.1, 0.2, 3e38, 3e38]),
        (pa.float16(), "product", [0.1, 0.3]),
        (pa.float64(), "sum", [1, 0.1, 0.2]),
        (pa.decimal128(9, 3), "product", [decimal.Decimal("1.5"), 2]),
        (pa.duration("ms"), "sum", [datetime.timedelta(milliseconds=5), 7]),
        (POINT, {"x": "count", "y": "sum"}, [{"x": "any", "y": 0.1}, {"y": 0.2}, {"x": 1}]),
        (pa.float32(), lambda old, new: old + new, [0.1, 0.2]),
        (pa.int64(), lambda old, new: None if new == 2 else old + new, [1, 2, 4, 8]),
    ],
    ids=lambda value: "callable" if callable(value) else str(value),
)
def test_a_fold_is_the_same_before_and_after_the_end_of_a_batch(kind, reduce, values):
    descriptor = arrowstate.ReducingStateDescriptor("s", kind, reduce=reduce)

    check_cuts(descriptor, lambda state, value: state.add(value), values)


@pytest.mark.parametrize("aggregate", ["mean", "variance", "top_k"])
def test_an_aggregate_is_the_same_to_the_last_bit_wherever_batches_end(aggregate):
    values = np.random.default_rng(1).normal(size=40).tolist()
    descriptor = arrowstate.AggregatingStateDescriptor("s", pa.float32(), aggregate=aggregate)
    results = set()

    for cut in (1, 7, 40):
        backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
        state = backend.state(descriptor)
        for start in range(0, 40, cut):
            state.add_batch(["a"] * len(values[start : start + cut]), values[start : start + cut])
        results.add(str(state.get_batch(["a"]).to_pylist()))

    assert len(results) == 1


@pytest.mark.parametrize(
    ("descriptor", "write"),
    [
        (arrowstate.ValueStateDescriptor("s", pa.int64()), lambda state, value: state.update(value)),
        (arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="max"), lambda state, value: state.add(value)),
        (arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce=max), lambda state, value: state.add(value)),
        (arrowstate.AggregatingStateDescriptor("s", pa.int64(), aggregate="mean"), lambda state, v: state.add(v)),
        (arrowstate.ListStateDescriptor("s", pa.int64()), lambda state, value: state.add(value)),
        (arrowstate.ListStateDescriptor("s", pa.int64()), lambda state, value: state.update([1, value])),
        (arrowstate.MapStateDescriptor("s", pa.string(), pa.int64()), lambda state, value: state.put("x", value)),
        (arrowstate.MapStateDescriptor("s", pa.int64(), pa.int64()), lambda state, value: state.put(value, 1)),
        (arrowstate.MapStateDescriptor("s", pa.int64(), pa.int64()), lambda state, value: state.remove(value)),
    ],
)
@pytest.mark.parametrize("misfit", ["no number", 1.5, 1 << 63, True], ids=repr)
def test_a_value_that_does_not_fit_is_refused_at_the_write_and_names_its_row(descriptor, write, misfit):
    class Overwritten(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.state = context.state(descriptor)

        def process_element(self, row, context, out):
            write(self.state, misfit if row.n == 1 else 5)
            self.state.clear()

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    process = arrowstate.KeyedProcessRunner(backend, Overwritten())

    with pytest.raises(ProcessElementError, match="row 1"):
        process.process(pa.record_batch({"k": ["a"] * 3, "n": [0, 1, 2]}))

    assert len(backend.states["s"]) == 0


def test_a_function_that_handles_a_refused_write_goes_on_with_what_was_there():
    class Careful(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.some = context.state(arrowstate.ListStateDescriptor("some", pa.int64()))
            self.called = context.state(
                arrowstate.ReducingStateDescriptor("called", pa.list_(pa.int64()), reduce=self.extend)
            )

        @staticmethod
        def extend(old, new):
            old.extend(new)
            if len(old) > 2:
                old.append("no number")
            return old

        def process_element(self, row, context, out):
            for verb, value in ((self.some.add_all, [row.n, "x"]), (self.some.add, row.n), (self.called.add, [row.n])):
                try:
                    verb(value)
                except ValueTypeError as error:
                    out.collect(str(error))
            out.collect(repr((self.some.get(), self.called.get())))

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    process = arrowstate.KeyedProcessRunner(backend, Careful(), output=pa.string())

    out = process.process(pa.record_batch({"k": ["a"] * 3, "n": [1, 2, 3]})).to_pylist()

    assert out[-1] == "([1, 2, 3], [1, 2])"
    assert sum("must be" in each for each in out) == 4
    assert backend.states["some"].get_batch(["a"]).to_pylist() == [[1, 2, 3]]


def test_a_sum_of_durations_that_leaves_the_type_is_refused_at_the_write():
    class Total(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.total = context.state(arrowstate.ReducingStateDescriptor("s", pa.duration("us"), reduce="sum"))

        def process_element(self, row, context, out):
            self.total.add(row.d)

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    process = arrowstate.KeyedProcessRunner(backend, Total())
    most = pa.array([(1 << 63) - 1, 0, 1], pa.int64()).cast(pa.duration("us"))

    with pytest.raises(ProcessElementError, match="row 2: ValueOverflowError"):
        process.process(pa.record_batch({"k": ["a"] * 3, "d": most}))

    assert len(backend.states["s"]) == 0


def test_moments_of_an_hour_that_comes_twice_stay_apart():
    kind = pa.timestamp("us", "Europe/Berlin")
    # A clock in Berlin shows 02:30, 02:10 and 02:30.
    given = [datetime.datetime(2026, 10, 25, *time, tzinfo=datetime.UTC) for time in ((0, 30), (1, 10), (1, 30))]
    moments = pa.array(given, kind)
    at = pa.struct([("at", kind)])
    states = {
        "keys": arrowstate.MapStateDescriptor("keys", kind, pa.int64()),
        "nested": arrowstate.MapStateDescriptor("nested", at, pa.int64()),
        "spaces": arrowstate.ValueStateDescriptor("spaces", pa.int64(), namespace=pa.schema([("at", kind)])),
        "min": arrowstate.ReducingStateDescriptor("min", kind, reduce="min"),
        "max": arrowstate.ReducingStateDescriptor("max", kind, reduce="max"),
        "fields": arrowstate.ReducingStateDescriptor("fields", at, reduce={"at": "max"}),
    }

    class Each(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.states = {name: context.state(descriptor) for name, descriptor in states.items()}

        def process_element(self, row, context, out):
            self.states["keys"].put(row.at, row.n)
            self.states["nested"].put({"at": row.at}, row.n)
            self.states["spaces"].current_namespace = row.at
            self.states["spaces"].update(row.n)
            self.states["fields"].add({"at": row.at})
            for name in ("min", "max"):
                self.states[name].add(row.at)

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    process = arrowstate.KeyedProcessRunner(backend, Each())
    for rows in ([0, 1, 2], [0, 1, 2]):
        process.process(pa.record_batch({"k": ["a"] * 3, "n": rows, "at": moments.take(pa.array(rows))}))

    held = {name: backend.state(descriptor) for name, descriptor in states.items()}
    assert held["keys"].get_batch(["a"] * 3, moments).to_pylist() == [0, 1, 2]
    structs = pa.StructArray.from_arrays([moments], fields=list(at))
    assert held["nested"].get_batch(["a"] * 3, structs).to_pylist() == [0, 1, 2]
    assert held["spaces"].get_batch(["a"] * 3, namespace=moments).to_pylist() == [0, 1, 2]
    assert held["min"].get_batch(["a"])[0] == moments[0]
    assert held["max"].get_batch(["a"])[0] == moments[2]
    assert held["fields"].get_batch(["a"])[0]["at"] == moments[2]


def test_a_namespace_that_is_no_text_is_refused_where_it_is_set():
    class Spaced(arrowstate.KeyedProcessFunction):
        def open(self, context):
            spaces = pa.schema([("n", pa.string())])
            self.state = context.state(arrowstate.ValueStateDescriptor("s", pa.int64(), namespace=spaces))

        def process_element(self, row, context, out):
            self.state.current_namespace = "ü" if row.n else "\ud800"
            self.state.update(1)

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    process = arrowstate.KeyedProcessRunner(backend, Spaced())

    process.process(pa.record_batch({"k": ["a"], "n": [1]}))
    with pytest.raises(ProcessElementError, match="row 1.*KeyTypeError"):
        process.process(pa.record_batch({"k": ["a", "a"], "n": [1, 0]}))

    assert len(backend.states["s"]) == 1


def test_what_was_emitted_does_not_change_with_the_value_that_the_function_goes_on_with():
    aside = arrowstate.OutputTag("aside", pa.schema([("seen", pa.list_(pa.string()))]))

    class Grows(arrowstate.KeyedProcessFunction):
        side_outputs = (aside,)

        def __init__(self):
            self.seen, self.row = [], {"last": []}

        def process_element(self, value, context, out):
            self.seen.append(value.k)
            self.row["last"].append(value.k)
            context.output(aside, self.seen)
            out.collect(self.row)

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    output = pa.struct([("last", pa.list_(pa.string()))])
    with arrowstate.KeyedProcessRunner(backend, Grows(), output=output) as process:
        emitted = process.process(pa.record_batch({"k": ["a", "b"]}))
        handed_over = process.side_output(aside)

    assert emitted.to_pylist() == [{"last": ["a"]}, {"last": ["a", "b"]}]
    assert handed_over["seen"].to_pylist() == [["a"], ["a", "b"]]


def test_a_function_that_handles_a_refused_merge_or_refused_entries_goes_on_with_what_was_there():
    space = pa.schema([("n", pa.int64())])
    descriptor = arrowstate.ReducingStateDescriptor("total", pa.int8(), reduce="sum", namespace=space)

    class Handles(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.total = context.state(descriptor)
            self.failing = context.state(
                arrowstate.AggregatingStateDescriptor("failing", pa.int64(), aggregate=NoMerge(), namespace=space)
            )
            self.entries = context.state(arrowstate.MapStateDescriptor("entries", pa.string(), pa.int64()))

        def process_element(self, value, context, out):
            for namespace, amount in ((1, 100), (2, 100), (3, 5)):
                for state in (self.total, self.failing):
                    state.current_namespace = namespace
                    state.add(amount)
            with pytest.raises(arrowstate.ValueOverflowError):
                self.total.merge_namespaces(1, [3, 2])
            with pytest.raises(RuntimeError, match="no merge"):
                self.failing.merge_namespaces(1, [3, 2])
            with pytest.raises(ValueTypeError):
                self.entries.put_all({"a": 1, "b": "x"})

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    with arrowstate.KeyedProcessRunner(backend, Handles()) as process:
        process.process(pa.record_batch({"k": ["a"]}))

    for name in ("total", "failing"):
        kept = backend.states[name].get_batch(["a"] * 3, namespace=pa.array([1, 2, 3])).to_pylist()
        assert kept == [100, 100, 5]
    assert backend.states["entries"].entries_batch(["a"]).to_pylist() == [[]]


class NoMerge:
    """A sum that cannot be merged."""

    name = "no_merge"
    accumulator_type = pa.struct([("sum", pa.int64())])
    result_type = pa.int64()

    def create(self, count):
        return pa.array([{"sum": 0}] * count, self.accumulator_type)

    def add(self, accumulators, groups, values):
        sums = [row["sum"] for row in accumulators.to_pylist()]
        for group, value in zip(groups.to_pylist(), values.to_pylist(), strict=True):
            sums[group] += value
        return pa.array([{"sum": each} for each in sums], self.accumulator_type)

    def merge(self, left, right):
        raise RuntimeError("no merge")

    def result(self, accumulators):
        return accumulators.field(0)
