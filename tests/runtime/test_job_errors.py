"""What goes wrong in a job is told with the operator, the source, the position and the row, as far as there are any."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
import runtime_jobs as jobs
from arrowstate.errors import InvalidInputError, JobFailedError, SourceError, UserFunctionError
from arrowstate.runtime import (
    Batch,
    DirectSink,
    FileSource,
    IteratorSource,
    Job,
    OutputTable,
    PreparingSink,
    Reader,
    Restart,
    Sink,
    SinkWriter,
    Source,
    Split,
    TableSource,
)

ROWS = pa.table({"user": ["ann", "bob", None, "eve"], "amount": pa.array([1, 2, 3, -4], pa.int64())})
GOOD = ROWS.slice(0, 2)


class Given(Source):
    """Gives what it is told to, with the positions that it is told."""

    def __init__(self, *batches, position_type=None):
        self.batches = batches
        self.schema = ROWS.schema
        self.position_type = position_type or pa.int64()

    def discover(self, known):
        return [] if known else [Split("a")]

    def reader(self):
        return _GivenReader(list(self.batches))


class _GivenReader(Reader):
    def __init__(self, batches):
        self.batches = batches

    def add(self, splits):
        pass

    def read(self, max_rows):
        return Batch(self.batches[0][0], "a", self.batches.pop(0)[1]) if self.batches else None


def rows_at(position, table=GOOD):
    return table.combine_chunks().to_batches()[0], position


class Whole(arrowstate.BatchFunction):
    """Sums, and wants no negative amount in a batch."""

    def open(self, context):
        self.total = context.state(jobs.SUM)

    def process_batch(self, batch, context):
        self.total.add_batch(batch["user"], batch["amount"])
        if min(batch["amount"].to_pylist()) < 0:
            raise ValueError("negative")


def wants_positive(batch):
    if batch.num_rows and min(batch["amount"].to_pylist()) < 0:
        raise ValueError("negative")
    return batch


class Refuses(Sink):
    def commit(self, rows, token):
        raise ConnectionError("the shop is closed")


class RefusesAtOnce(DirectSink):
    def write(self, rows, subtask):
        raise ConnectionError("the shop is closed")


class RefusesToPrepare(PreparingSink):
    committable_schema = pa.schema({"name": pa.string()})

    def __init__(self, at):
        self.at = at

    def writer(self, store_id, uid, subtask, attempt):
        return _Refusing(self.at)

    def commit(self, committables):
        raise ConnectionError("the shop is closed")


class _Refusing(SinkWriter):
    def __init__(self, at):
        self.at = at

    def write(self, rows):
        if self.at == "write":
            raise ConnectionError("the shop is closed")

    def prepare(self, checkpoint_id):
        if self.at == "prepare":
            raise ConnectionError("the shop is closed")
        return pa.record_batch([["x"]], schema=RefusesToPrepare.committable_schema)

    def abort(self):
        pass


def failure(job) -> BaseException:
    with pytest.raises(JobFailedError) as caught:
        job.run(mode="inline")
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in str(caught.value)
    return caught.value.__cause__


def job_of(source, store="memory://job-errors") -> tuple[Job, object]:
    job = Job(f"{store}-{id(source)}", restart=Restart.none())
    return job, job.source(source, uid="given")


@pytest.mark.parametrize(
    ("function", "place"),
    [(jobs.Running(), "the row {'user': None, 'amount': 3}"), (Whole(), "a batch")],
    ids=lambda value: type(value).__name__,
)
def test_a_null_key_is_told_with_the_operator_and_the_row(function, place):
    job, given = job_of(TableSource(ROWS.slice(0, 3)))
    given.stateful(function, key=["user"], uid="sums", output_schema=jobs.RUNNING)

    error = failure(job)

    assert isinstance(error, UserFunctionError)
    assert f"operator 'sums' failed at {place}: NullKeyError: key column 'user' is null in row " in str(error)
    assert "the states are as before the step" in str(error)
    assert "micro-batch" not in str(error)


def test_a_batch_function_that_raises_is_told_with_its_traceback_():
    job, given = job_of(TableSource(pa.concat_tables([GOOD, ROWS.slice(3), GOOD])))
    given.stateful(Whole(), key=["user"], uid="sums")

    error = failure(job)

    assert "operator 'sums' failed at a batch: ValueError: negative" in str(error)
    assert "test_job_errors.py" in error.trace


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_key_of_the_second_stream_is_cast_to_the_type_of_the_first_or_told(parallelism):
    def balances(last):
        job = Job(f"memory://keys-{parallelism}-{last}", parallelism=parallelism, restart=Restart.none())
        paid = pa.table({"user": pa.array([1, 2], pa.int32()), "amount": pa.array([5, 6], pa.int64())})
        asked = pa.table({"name": pa.array([1, last], pa.int64())})
        streams = [job.source(TableSource(rows), uid=uid) for rows, uid in ((paid, "paid"), (asked, "asked"))]
        streams[0].connect(streams[1]).stateful(jobs.Balance(), key=(["user"], ["name"]), uid="balances")
        return job

    fits = balances(2).run(mode="inline").to_arrow("balances.total").to_pylist()

    assert sorted((row["user"], row["total"]) for row in fits) == [(1, 4), (2, 5)]
    message = "operator 'balances' has the key 'user', int32, and a value of 'name' of the second stream does not fit"
    assert f"{message}: Integer value {2**40} not in range" in str(failure(balances(2**40)))


def test_a_function_of_map_batches_that_raises_is_told_with_the_step_and_its_traceback():
    job, given = job_of(TableSource(ROWS))
    given.map_batches(wants_positive).sink(OutputTable("copy"))

    error = failure(job)

    assert "operator 'given' failed at a function of map_batches: ValueError: negative" in str(error)
    assert "test_job_errors.py" in error.trace


class WithoutTextError(Exception):
    def __str__(self):
        raise RuntimeError("there is no text")


def without_text(*given):
    raise WithoutTextError


class BatchWithoutText(arrowstate.BatchFunction):
    process_batch = without_text


class ElementWithoutText(arrowstate.KeyedProcessFunction):
    process_element = without_text


class SinkWithoutText(Sink):
    commit = without_text


class DirectSinkWithoutText(DirectSink):
    write = without_text


def declared_with(given, what):
    if isinstance(what, (Sink, DirectSink)):
        given.sink(what, uid="shop")
    elif what is without_text:
        given.map_batches(what, schema=GOOD.schema).sink(OutputTable("copy"))
    else:
        given.stateful(what, key=["user"], uid="sums", output_schema=jobs.RUNNING).sink(OutputTable("copy"))


@pytest.mark.parametrize(
    ("what", "place"),
    [
        (without_text, "operator 'given' failed at a function of map_batches: "),
        (BatchWithoutText(), "operator 'sums' failed at a batch: "),
        (ElementWithoutText(), "operator 'sums' failed at a batch, row 0 with key {'user': 'ann'}"),
        (SinkWithoutText(), "operator 'shop' failed at the commit of rows of checkpoint 1: "),
        (DirectSinkWithoutText(), "operator 'shop' failed at rows for the sink: "),
    ],
    ids=lambda value: None if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_an_error_whose_text_cannot_be_had_is_told_by_its_class_with_the_operator(what, place):
    job, given = job_of(TableSource(GOOD))
    declared_with(given, what)

    error = failure(job)

    assert isinstance(error, UserFunctionError)
    assert place in str(error)
    assert "WithoutTextError: <its text cannot be had, for its __str__ raises>" in str(error)


def test_an_error_of_an_iterator_whose_text_cannot_be_had_is_told_with_the_split():
    job, given = job_of(IteratorSource(without_text, GOOD.schema))
    given.sink(OutputTable("copy"))

    error = failure(job)

    assert isinstance(error, SourceError)
    assert "source 'given', split '0' from the start: WithoutTextError: <its text cannot be had" in str(error)


def test_a_job_whose_block_is_left_by_an_error_without_a_text_has_failed_by_it():
    job, given = job_of(TableSource(GOOD))
    given.sink(OutputTable("copy"))

    with pytest.raises(WithoutTextError), job.start(mode="inline") as running:
        without_text()

    with pytest.raises(JobFailedError, match="was left by WithoutTextError: <its text cannot be had"):
        running.wait()


def test_a_row_of_another_schema_is_told_with_the_source_and_the_position():
    job, given = job_of(Given(rows_at(7, GOOD.select(["user"]))))
    given.sink(OutputTable("copy"))

    message = "source 'given' must give the columns of its schema, .* at position 7 of split 'a' it gave user string"
    assert re.search(message, str(failure(job)))


BACK = [
    (pa.int64(), 9, 4),
    (pa.struct({"row": pa.int64(), "size": pa.int64()}), {"row": 9, "size": 5}, {"row": 4, "size": 5}),
    (pa.struct({"file": pa.string(), "row": pa.int64()}), {"file": "x", "row": 9}, {"file": "x", "row": 4}),
    (
        pa.struct({"at": pa.struct({"page": pa.int64(), "row": pa.int64()})}),
        {"at": {"page": 2, "row": 0}},
        {"at": {"page": 1, "row": 5}},
    ),
]


@pytest.mark.parametrize(("kind", "first", "second"), BACK, ids=str)
def test_a_source_that_goes_back_is_told_with_both_positions(kind, first, second):
    job, given = job_of(Given(rows_at(first), rows_at(second), position_type=kind))
    given.sink(OutputTable("copy"))

    error = failure(job)

    assert isinstance(error, InvalidInputError)
    told = f"source 'given' went back: split 'a' was at position {first}, and its reader gave rows up to {second}"
    assert told in str(error)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"page": 1, "row": 9}, {"page": 2, "row": 0}),
        ({"page": 1, "row": None}, {"page": 1, "row": 0}),
        ({"page": 1, "row": 9}, {"page": 1, "row": 9}),
    ],
    ids=str,
)
def test_a_source_that_goes_on_is_read(first, second):
    kind = pa.struct({"page": pa.int64(), "row": pa.int64()})
    job, given = job_of(Given(rows_at(first), rows_at(second), position_type=kind))
    given.sink(OutputTable("copy"))

    with job.start(mode="inline") as running:
        snapshot = running.checkpoint()
        while snapshot.sql("select count(*) from copy.rows").fetchall() != [(4,)]:
            snapshot = running.checkpoint()


def test_a_file_that_is_cut_is_told_with_the_source_and_the_split(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(GOOD, path)
    source = FileSource(tmp_path / "*.parquet", "parquet", schema=GOOD.schema)
    path.write_bytes(path.read_bytes()[:-20])
    job, given = job_of(source)
    given.sink(OutputTable("copy"))

    error = failure(job)

    assert isinstance(error, SourceError)
    assert (error.source, error.split) == ("given", "rows.parquet")
    assert str(error).startswith("source 'given', split 'rows.parquet' from ")


def test_a_row_of_a_file_that_does_not_fit_is_told_with_its_number(tmp_path):
    (tmp_path / "rows.csv").write_text("user,amount\nann,1\nbob,x\n")
    job, given = job_of(FileSource(tmp_path / "*.csv", "csv", schema=GOOD.schema))
    given.sink(OutputTable("copy"))

    error = failure(job)

    assert isinstance(error, SourceError)
    assert (error.source, error.split, error.row) == ("given", "rows.csv", 1)
    assert re.match(r"source 'given', split 'rows.csv' from position {'row': 0, .*}, row 1: ", str(error))


@pytest.mark.parametrize(
    ("sink", "place"),
    [
        (Refuses(), r"the commit of rows of checkpoint \d+"),
        (RefusesAtOnce(), "rows for the sink"),
        (RefusesToPrepare("write"), "rows for the sink"),
        (RefusesToPrepare("prepare"), r"prepare of checkpoint \d+"),
        (RefusesToPrepare("commit"), r"the commit of rows of checkpoint \d+"),
    ],
    ids=lambda value: str(getattr(value, "at", type(value).__name__)),
)
def test_a_sink_that_refuses_is_told_by_its_uid(sink, place):
    job, given = job_of(TableSource(GOOD))
    given.sink(sink, uid="shop")

    error = failure(job)

    assert isinstance(error, UserFunctionError)
    assert error.uid == "shop"
    assert re.search(f"operator 'shop' failed at {place}: ConnectionError: the shop is closed", str(error))


class LosesOnce(PreparingSink):
    """Shows rows, and lets go of those for which the first `prepare` failed."""

    committable_schema = pa.schema({"amount": pa.int64()})

    def __init__(self):
        self.is_failing = True
        self.shown = []

    def writer(self, store_id, uid, subtask, attempt):
        return _LosesOnce(self)

    def commit(self, committables):
        self.shown += committables["amount"].to_pylist()


class _LosesOnce(SinkWriter):
    def __init__(self, sink):
        self.sink, self.rows = sink, []

    def write(self, rows):
        self.rows += rows["amount"].to_pylist()

    def prepare(self, checkpoint_id):
        rows, self.rows = self.rows, []
        if rows and self.sink.is_failing:
            self.sink.is_failing = False
            raise OSError("no room")
        return pa.record_batch([rows], schema=self.sink.committable_schema)

    def abort(self):
        self.rows = []


def test_rows_of_a_prepare_that_failed_come_again_though_failed_checkpoints_are_tolerated():
    sink = LosesOnce()
    options = arrowstate.CheckpointOptions(interval_ms=1, tolerated_failures=5)
    job = Job("memory://prepare-once", options=options, restart=Restart.fixed(delay_ms=1))
    rows = pa.table({"amount": pa.array(range(1000), pa.int64())})
    job.source(TableSource(rows), uid="given").sink(sink, uid="shop")

    job.run(mode="inline")

    assert not sink.is_failing
    assert sorted(sink.shown) == list(range(1000))


def test_a_job_that_was_closed_before_its_first_checkpoint_has_no_snapshot_to_wait_for():
    job, given = job_of(Given(rows_at(2)))
    given.sink(OutputTable("copy"))
    running = job.start(mode="inline")
    running.close()

    with pytest.raises(
        InvalidInputError, match="closed before its first checkpoint, so there is no snapshot to return"
    ):
        running.wait()


def test_a_job_that_was_closed_after_a_checkpoint_ended_with_it():
    job, given = job_of(Given(rows_at(2)))
    given.sink(OutputTable("copy"))
    with job.start(mode="inline") as running:
        snapshot = running.checkpoint()

    assert running.wait().checkpoint_id == snapshot.checkpoint_id
