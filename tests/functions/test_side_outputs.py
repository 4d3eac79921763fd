"""`context.output` and `side_output` of the runners: what was handed over in a call that went well, and no other."""

import cloudpickle
import pyarrow as pa
import pytest

import arrowstate
from arrowstate import BatchRunner, KeyedProcessRunner, KeyedStateBackend, OutputTag
from arrowstate.errors import InvalidInputError, ProcessElementError
from arrowstate.windows import CountWindows, TumblingEventTimeWindows, WindowFunction, WindowOperator

KEY = pa.schema([("k", pa.int64())])
ASIDE = OutputTag("aside", pa.schema([("k", pa.int64())]))
SUM = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")


class Batches(arrowstate.BatchFunction):
    side_outputs = (ASIDE,)

    def open(self, context):
        self.context = context

    def process_batch(self, batch, context):
        context.output(ASIDE, batch.select(["k"]))
        if batch["v"][0].as_py() < 0:
            raise ValueError("negative")


class Elements(arrowstate.KeyedProcessFunction):
    side_outputs = (ASIDE,)

    def open(self, context):
        self.context = context

    def process_element(self, value, context, out):
        context.output(ASIDE, value.k)
        if value.v < 0:
            raise ValueError("negative")


def rows(*values):
    return pa.record_batch({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, pa.int64())})


def runner(function):
    kind = BatchRunner if isinstance(function, arrowstate.BatchFunction) else KeyedProcessRunner
    return kind(KeyedStateBackend(key=KEY, max_parallelism=8), function)


@pytest.mark.parametrize("function", [Batches(), Elements()], ids=repr)
def test_a_side_output_has_the_rows_of_the_last_call(function):
    process = runner(function)

    process.process(rows(1, 2))
    first = process.side_output(ASIDE)
    process.process(rows(1))
    second = process.side_output(ASIDE)
    process.advance_watermark(5)
    after = process.side_output(ASIDE)
    # One that is passed over is a call too.
    process.process(rows(1))
    process.advance_watermark(3)

    assert (first["k"].to_pylist(), second["k"].to_pylist(), after.num_rows) == ([0, 1], [0], 0)
    assert process.side_output(ASIDE).num_rows == 0
    assert first.schema == ASIDE.schema


@pytest.mark.parametrize("function", [Batches(), Elements()], ids=repr)
def test_a_function_that_came_from_another_process_knows_its_side_outputs(function):
    process = runner(cloudpickle.loads(cloudpickle.dumps(function)))

    process.process(rows(1, 2))

    assert process.side_output(ASIDE)["k"].to_pylist() == [0, 1]


@pytest.mark.parametrize("function", [Batches(), Elements()], ids=repr)
def test_a_call_that_fails_has_handed_over_nothing(function):
    process = runner(function)
    process.process(rows(1, 2))

    with pytest.raises((ValueError, ProcessElementError)):
        process.process(rows(-1))

    assert process.side_output(ASIDE).num_rows == 0


@pytest.mark.parametrize("function", [Batches(), Elements()], ids=repr)
def test_rows_are_handed_over_while_rows_are_processed_and_at_no_other_time(function):
    process = runner(function)

    with pytest.raises(InvalidInputError, match="side output 'aside' takes rows while rows are processed or timers"):
        function.context.output(ASIDE, rows(1) if isinstance(function, Batches) else 1)
    with pytest.raises(InvalidInputError, match="has no side output <OutputTag 'other': k int64>; it has <OutputTag"):
        process.side_output(OutputTag("other", KEY))


def test_windows_hand_late_rows_over_and_count_them():
    tag = OutputTag("late", pa.schema([("v", pa.int64()), ("at", pa.int64())]))
    function = WindowFunction(TumblingEventTimeWindows(10), SUM, timestamp="at", late=tag)
    process = runner(function)
    given = pa.record_batch({"k": [1, 2, 3], "v": [5, 6, 7], "at": [25, 3, 19]})

    process.advance_watermark(20)
    process.process(given)

    assert process.side_output(tag).to_pylist() == [{"v": 6, "at": 3}, {"v": 7, "at": 19}]
    assert function.late_rows == 2


def test_a_value_that_comes_in_two_columns_is_refused_by_name():
    process = runner(WindowFunction(TumblingEventTimeWindows(10), SUM, timestamp="at"))
    rows = pa.RecordBatch.from_arrays([pa.array([1])] * 4, names=["k", "at", "v", "v"])

    with pytest.raises(InvalidInputError, match="must have one column v, and this one has 2"):
        process.process(rows)


def test_late_rows_may_have_views_of_text():
    tag = OutputTag("late", pa.schema([("v", pa.int64()), ("name", pa.string())]))
    process = runner(WindowFunction(TumblingEventTimeWindows(10), SUM, timestamp="at", late=tag))
    process.advance_watermark(20)

    names = pa.array(["a", "b"], pa.string_view())
    process.process(pa.record_batch({"k": [1, 2], "v": [5, 6], "at": [25, 3], "name": names}))

    assert process.side_output(tag).to_pylist() == [{"v": 6, "name": "b"}]


def test_late_rows_are_named_by_their_numbers_in_the_batch():
    backend = KeyedStateBackend(key=KEY, max_parallelism=8)
    windows = WindowOperator(backend, TumblingEventTimeWindows(10), SUM)
    windows.advance_watermark(20)

    late = windows.process(pa.array([1, 2, 3]), pa.array([25, 3, 19]), pa.array([5, 6, 7]))
    counted = WindowOperator(KeyedStateBackend(key=KEY, max_parallelism=8), CountWindows(2), SUM)

    assert late.late_row_numbers.to_pylist() == [1, 2]
    assert counted.process(pa.array([1]), None, pa.array([5])).late_row_numbers.to_pylist() == []


def test_what_has_the_methods_of_a_function_needs_no_side_outputs():
    class Duck:
        open = close = on_watermark = lambda self, *_: None

        def process_batch(self, batch, context):
            return batch.select(["k"])

    process = BatchRunner(KeyedStateBackend(key=KEY, max_parallelism=8), Duck())

    assert process.process(rows(1, 2)).num_rows == 2
