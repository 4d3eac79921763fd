"""Side outputs: what functions hand to another stream, and what comes too late for its windows, is there once."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
import runtime_jobs as jobs
from arrowstate import OutputTag
from arrowstate.errors import InvalidInputError, JobFailedError
from arrowstate.runtime import (
    CoBatchFunction,
    DirectSink,
    Job,
    KeyedCoProcessFunction,
    OutputTable,
    Restart,
    TableSource,
    Watermarks,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

ODD = OutputTag("odd", pa.schema([("user", pa.string()), ("amount", pa.int64())]))
NAMES = OutputTag("names", pa.schema([("user", pa.string())]))
ROWS = pa.table({"user": ["ann", "bob", "ann", "eve"], "amount": pa.array([1, 2, 3, 4], pa.int64())})
ODD_ROWS = [("ann", 1), ("ann", 3)]


class Batches(arrowstate.BatchFunction):
    side_outputs = (ODD, NAMES)

    def process_batch(self, batch, context):
        odd = pc.equal(pc.bit_wise_and(batch["amount"], 1), 1)
        context.output(ODD, batch.filter(odd))
        context.output(NAMES, pa.table({"user": batch["user"]}))
        return batch.filter(pc.invert(odd))


class Elements(arrowstate.KeyedProcessFunction):
    side_outputs = (ODD, NAMES)

    def process_element(self, value, context, out):
        context.output(NAMES, value.user)
        if value.amount % 2:
            context.output(ODD, {"amount": value.amount, "user": value.user})
        else:
            out.collect((value.user, value.amount))


class TwoBatches(CoBatchFunction):
    side_outputs = (ODD, NAMES)

    def process_batch1(self, batch, context):
        return Batches.process_batch(self, batch, context)

    process_batch2 = process_batch1


class TwoElements(KeyedCoProcessFunction):
    side_outputs = (ODD, NAMES)

    def process_element1(self, value, context, out):
        Elements.process_element(self, value, context, out)

    process_element2 = process_element1


class Timed(arrowstate.KeyedProcessFunction):
    """Hands over nothing before its timers fire."""

    side_outputs = [NAMES, ODD]  # noqa: RUF012

    def open(self, context):
        self.rows = context.state(arrowstate.ListStateDescriptor("rows", pa.int64()))

    def process_element(self, value, context, out):
        self.rows.add(value.amount)
        context.timers.register_event_time_timer(value.amount)

    def on_timer(self, timestamp, context, out):
        context.output(NAMES, context.current_key)
        if timestamp % 2:
            context.output(ODD, (context.current_key, timestamp))
        else:
            out.collect((context.current_key, timestamp))


def declared(function, rows=ROWS, **options) -> tuple[Job, object]:
    job = Job("memory://" + type(function).__name__ + str(id(function)), restart=Restart.none(), **options)
    given = job.source(TableSource(rows), uid="given")
    if isinstance(function, (CoBatchFunction, KeyedCoProcessFunction)):
        given = given.connect(job.source(TableSource(rows.slice(0, 0)), uid="nothing"))
    return job, given.stateful(function, key=["user"], uid="function", output_schema=ODD.schema)


def rows_of(snapshot, table) -> list:
    return sorted(tuple(row["rows"].values()) for row in snapshot.operator_state(table, "rows").to_pylist())


@pytest.mark.parametrize("function", [Batches(), Elements(), TwoBatches(), TwoElements(), Timed()], ids=repr)
def test_what_a_function_hands_to_a_side_output_is_a_stream_that_is_keyed_and_sunk(function):
    job, stream = declared(function, parallelism=2)
    stream.sink(OutputTable("even"))
    odd = stream.side_output(ODD)
    odd.sink(OutputTable("odd_rows"))
    odd.stateful(jobs.Running(), key=["user"], uid="running", output_schema=jobs.RUNNING).sink(OutputTable("sums"))
    stream.side_output(NAMES).map_batches(lambda batch: batch.filter(pc.equal(batch["user"], "bob"))).sink(
        OutputTable("bobs")
    )

    snapshot = job.run(mode="inline")

    assert rows_of(snapshot, "even") == [("bob", 2), ("eve", 4)]
    assert rows_of(snapshot, "odd_rows") == ODD_ROWS
    assert rows_of(snapshot, "sums") == [("ann", 1), ("ann", 4)]
    assert rows_of(snapshot, "bobs") == [("bob",)]


def test_what_is_handed_to_a_side_output_that_nobody_reads_is_left_out():
    job, stream = declared(Batches())
    stream.sink(OutputTable("even"))

    snapshot = job.run(mode="inline")

    assert rows_of(snapshot, "even") == [("bob", 2), ("eve", 4)]
    assert {operator.uid for operator in snapshot.entry.operators} == {"given", "function", "even"}


def test_side_outputs_with_the_same_tag_of_two_functions_are_put_together():
    job, stream = declared(Elements())
    other = job.source(TableSource(ROWS), uid="more").stateful(
        Batches(), key=["user"], uid="other", output_schema=ODD.schema
    )
    stream.union(other).side_output(ODD).sink(OutputTable("odd_rows"))

    assert rows_of(job.run(mode="inline"), "odd_rows") == sorted(ODD_ROWS * 2)


class Opened(DirectSink):
    """Counts how often it is opened and closed."""

    def __init__(self):
        self.calls = []

    def open(self, store_id, uid):
        self.calls.append("open")

    def write(self, rows, subtask):
        self.calls.append(rows.num_rows)

    def close(self):
        self.calls.append("close")


def test_a_sink_that_two_tasks_of_a_slot_write_to_is_opened_and_closed_once():
    sink = Opened()
    job = Job("memory://opened-once", restart=Restart.none())
    streams = [job.source(TableSource(ROWS), uid=uid) for uid in ("first", "second")]
    streams[0].union(streams[1].rebalance()).sink(sink, uid="both")

    job.run(mode="inline")

    assert sink.calls == ["open", 4, 4, "close"]


class Undeclared(arrowstate.BatchFunction):
    def process_batch(self, batch, context):
        context.output(ODD, batch)


class OtherColumns(Undeclared):
    side_outputs = (ODD,)

    def process_batch(self, batch, context):
        context.output(ODD, batch.select(["user"]))


class OtherType(arrowstate.KeyedProcessFunction):
    side_outputs = (ODD,)

    def process_element(self, value, context, out):
        context.output(ODD, (value.user, "x" if value.amount == 3 else 1))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Undeclared(), "Undeclared has no side output <OutputTag 'odd': user string, amount int64>; it has none: name"),
        (OtherColumns(), "emitted the columns user; the side output 'odd' has user, amount"),
        (
            OtherType(),
            r"row 2 with key \{'user': 'ann'\}.*handed \('ann', 'x'\) to side output 'odd', which is no struct",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_fit_a_side_output_fails_the_job_and_says_why(function, message):
    job, _ = declared(function)

    with pytest.raises(JobFailedError, match=message):
        job.run(mode="inline")


MISTAKES = {
    "no tag": (lambda stream: stream.side_output("odd"), "a side output is named by its OutputTag, got 'odd'"),
    "another name": (
        lambda stream: stream.side_output(OutputTag("even", ODD.schema)),
        "has no side output <OutputTag 'even': .*>; it has odd, names: ask what stateful",
    ),
    "other columns": (lambda stream: stream.side_output(OutputTag("odd", NAMES.schema)), "has no side output"),
    "after a map": (lambda stream: stream.map_batches(lambda batch: batch).side_output(ODD), "it has none: ask what"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_side_output_that_is_not_there_is_told_where_it_is_asked_for(name):
    mistake, message = MISTAKES[name]
    _, stream = declared(Batches())

    with pytest.raises(InvalidInputError, match=message):
        mistake(stream)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["odd"], "side_outputs of Batches must be OutputTags, got 'odd'"),
        ([ODD, OutputTag("odd", NAMES.schema)], "side_outputs of Batches must have different names"),
    ],
)
def test_tags_that_are_none_are_refused_where_the_function_is_declared(tags, message):
    function = Batches()
    function.side_outputs = tags

    with pytest.raises(InvalidInputError, match=message):
        declared(function)


def test_a_tag_needs_a_name_and_columns():
    with pytest.raises(InvalidInputError, match="a/b"):
        OutputTag("a/b", ODD.schema)
    with pytest.raises(InvalidInputError, match="side output 'a' needs a pyarrow.Schema with columns"):
        OutputTag("a", pa.schema([]))


LATE = OutputTag("late", pa.schema([("at", pa.int64()), ("user", pa.string())]))
TIMED = pa.table(
    {
        "user": ["ann", "bob", "ann", "bob"],
        "amount": pa.array([1, 2, 3, 4], pa.int64()),
        "at": pa.array([5, 100, 7, 101], pa.int64()),
    }
)


class OneByOne(TableSource):
    """Rows one at a time, so that the second makes the third late."""

    def reader(self):
        return jobs.Few(super().reader(), 1)


def windows(late) -> tuple[Job, object]:
    job = Job(f"memory://late-{late is not None}", restart=Restart.none())
    given = job.source(OneByOne(TIMED), uid="given", watermarks=Watermarks("at"))
    function = WindowFunction(TumblingEventTimeWindows(10), jobs.SUM, timestamp="at", value="amount", late=late)
    return job, given.stateful(function, key=["user"], uid="windows")


@pytest.mark.parametrize(("late", "counted"), [(LATE, 0), (None, 1)], ids=["with a side output", "without"])
def test_rows_that_come_too_late_go_to_the_side_output_with_the_columns_that_it_names_or_are_counted(late, counted):
    job, stream = windows(late)
    stream.sink(OutputTable("fired"))
    if late is not None:
        stream.side_output(late).sink(OutputTable("too_late"))

    with job.start(mode="inline") as running:
        snapshot = running.wait()
        (figures,) = [task for task in running.status().tasks if task.task == "windows"]

    assert late is None or rows_of(snapshot, "too_late") == [(7, "ann")]
    assert rows_of(snapshot, "fired") == [("ann", 0, 10, 1), ("bob", 100, 110, 6)]
    assert figures.late_rows == counted


def test_late_rows_have_columns_of_the_stream():
    with pytest.raises(InvalidInputError, match="operator 'windows' has late rows in .* no column 'at' of string"):
        windows(OutputTag("late", pa.schema([("at", pa.string())])))
