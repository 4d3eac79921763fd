"""A job as it is declared: every mistake is told where it is made, and nothing is created by it."""

import inspect
import re
import threading

import pyarrow as pa
import pytest

import arrowstate
import arrowstate.runtime
from arrowstate.errors import InvalidInputError
from arrowstate.runtime import (
    CoBatchFunction,
    GeneratorSource,
    Job,
    KeyedCoProcessFunction,
    OutputTable,
    Sink,
    TableSource,
    Watermarks,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
PRICES = arrowstate.BroadcastStateDescriptor("prices", pa.string(), pa.int64())
ROWS = pa.table({"user": ["ann"], "amount": pa.array([1], pa.int64()), "at": pa.array([5], pa.int64())})


def endless(first, count):
    return pa.record_batch(
        {"user": ["ann"] * count, "amount": [1] * count, "at": pa.array(range(first, first + count))}
    )


class Batches(arrowstate.BatchFunction):
    def process_batch(self, batch, context):
        return None


class Elements(arrowstate.KeyedProcessFunction):
    def process_element(self, value, context, out):
        pass


class Two(CoBatchFunction):
    pass


class TwoElements(KeyedCoProcessFunction):
    pass


class Shop(Sink):
    def commit(self, rows, token):
        pass


def fails(batch):
    raise KeyError("no")


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "store")


@pytest.fixture
def rows(job):
    return job.source(TableSource(ROWS), uid="rows")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parallelism": 0}, "parallelism must be"),
        ({"parallelism": 40_000}, "parallelism must be"),
        ({"parallelism": 1.5}, "parallelism must be"),
        ({"max_parallelism": 0}, "max parallelism must be"),
        ({"max_parallelism": 32_769}, "max parallelism must be"),
        ({"mode": "twice"}, "mode must be exactly-once or at-least-once, got 'twice'"),
        ({"task_timeout_ms": 0}, "task_timeout_ms must be"),
    ],
    ids=str,
)
def test_an_argument_of_a_job_that_is_out_of_range_is_refused(tmp_path, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        Job(tmp_path / "store", **arguments)

    assert list(tmp_path.iterdir()) == []


MISTAKES = {
    "a uid twice": (
        lambda job, rows: job.source(TableSource(ROWS), uid="rows"),
        "uids must differ in more than case, 'rows' is taken",
    ),
    "a uid in other case": (lambda job, rows: job.source(TableSource(ROWS), uid="ROWS"), "'ROWS' is taken"),
    "a uid of a sink": (lambda job, rows: rows.sink(Shop(), uid="rows"), "'rows' is taken"),
    "a uid of a table": (lambda job, rows: rows.sink(OutputTable("rows")), "'rows' is taken"),
    "a uid of a function": (lambda job, rows: rows.stateful(Batches(), key=["user"], uid="rows"), "'rows' is taken"),
    "no name": (lambda job, rows: job.source(TableSource(ROWS), uid="a/b"), "a/b"),
    "a time that is not there": (
        lambda job, rows: job.source(TableSource(ROWS), uid="more", watermarks=Watermarks("when")),
        "source 'more' has no column 'when'; it has user, amount, at",
    ),
    "a time that is none": (
        lambda job, rows: job.source(TableSource(ROWS), uid="more", watermarks=Watermarks("user")),
        "source 'more' needs a timestamp or milliseconds since 1970 in 'user', got string; cast it first",
    ),
    "a timestamp that is none": (
        lambda job, rows: rows.stateful(Elements(), key=["amount"], uid="f", timestamp="user"),
        "operator 'f' needs a timestamp or milliseconds since 1970 in 'user', got string; cast it first",
    ),
    "no function": (
        lambda job, rows: rows.stateful(len, key=["user"], uid="f"),
        "operator 'f' must be a BatchFunction or a KeyedProcessFunction, got builtin_function_or_method",
    ),
    "a class": (lambda job, rows: rows.stateful(Batches, key=["user"], uid="f"), "operator 'f' must be .* got type"),
    "a key that is not there": (
        lambda job, rows: rows.stateful(Batches(), key=["name"], uid="f"),
        "operator 'f' needs the column 'name', and the stream has user, amount, at",
    ),
    "a key that is a text": (
        lambda job, rows: rows.stateful(Batches(), key="user", uid="f"),
        "key must be the names of the key columns.* got 'user'",
    ),
    "no key": (lambda job, rows: rows.stateful(Batches(), key=[], uid="f"), r"key must be the names .* got \[\]"),
    "a timestamp that is not there": (
        lambda job, rows: rows.stateful(Elements(), key=["user"], uid="f", timestamp="when"),
        "operator 'f' needs the column 'when'",
    ),
    "a timestamp of batches": (
        lambda job, rows: rows.stateful(Batches(), key=["user"], uid="f", timestamp="at"),
        "operator 'f' is a batch function, which reads its timestamps itself; leave it out",
    ),
    "no schema": (
        lambda job, rows: rows.stateful(Batches(), key=["user"], uid="f", output_schema=["user"]),
        "output_schema must be a pyarrow.Schema, got list",
    ),
    "two inputs for one": (
        lambda job, rows: rows.connect(rows).stateful(Batches(), key=["user"], uid="f"),
        "operator 'f' is a Batches and needs one stream, or a CoBatchFunction for two",
    ),
    "one input for two": (
        lambda job, rows: rows.stateful(Two(), key=["user"], uid="f"),
        r"operator 'f' is a Two and needs two streams: a.connect\(b\).stateful",
    ),
    "one input for two elements": (
        lambda job, rows: rows.stateful(TwoElements(), key=["user"], uid="f"),
        "two streams",
    ),
    "keys of two lengths": (
        lambda job, rows: rows.connect(rows).stateful(Two(), key=(["user"], ["user", "at"]), uid="f"),
        "as many of each stream",
    ),
    "a key of the second that is not there": (
        lambda job, rows: rows.connect(rows).stateful(Two(), key=(["user"], ["name"]), uid="f"),
        "needs the column 'name'",
    ),
    "keys of two types": (
        lambda job, rows: rows.connect(rows).stateful(Two(), key=(["user"], ["amount"]), uid="f"),
        "operator 'f' has the key 'user', string, and the second stream has 'amount', int64; cast one of them before",
    ),
    "a key whose name another column has": (
        lambda job, rows: rows.connect(rows).stateful(Two(), key=(["at"], ["amount"]), uid="f"),
        "gives the key of the second stream, 'amount', the name 'at', which another column of it has; rename that",
    ),
    "a table beside of another job": (
        lambda job, rows: rows.stateful(
            Batches(), key=["user"], uid="f", broadcast={PRICES: Job("memory://b").source(TableSource(ROWS), uid="r")}
        ),
        "the streams are of two jobs",
    ),
    "a table beside without a descriptor": (
        lambda job, rows: rows.stateful(Batches(), key=["user"], uid="f", broadcast={"prices": rows}),
        "broadcast must be streams by BroadcastStateDescriptor, got 'prices'",
    ),
    "a table beside of three columns": (
        lambda job, rows: rows.stateful(Batches(), key=["user"], uid="f", broadcast={PRICES: rows}),
        "broadcast state 'prices' needs a stream of two columns, key and value",
    ),
    "no sink": (
        lambda job, rows: rows.sink(print, uid="f"),
        "a sink must be an OutputTable, Sink, PreparingSink or DirectSink",
    ),
    "a sink without a uid": (lambda job, rows: rows.sink(Shop()), "Shop needs uid=, its name in the store"),
    "a table with two names": (
        lambda job, rows: rows.sink(OutputTable("a"), uid="b"),
        "an output table is named 'a' in the store, got uid='b'; leave it out",
    ),
    "a map that fails": (
        lambda job, rows: rows.map_batches(fails),
        "fails on a batch without rows, KeyError: 'no'; give the columns that it returns with schema=",
    ),
    "a map that gives nothing": (
        lambda job, rows: rows.map_batches(lambda batch: None),
        "returns None for no rows; give its columns with schema=",
    ),
    "a union of other columns": (
        lambda job, rows: rows.union(rows.map_batches(lambda batch: batch.select(["user"]))),
        "union needs streams with the same columns",
    ),
    "a union of two jobs": (
        lambda job, rows: rows.union(Job("memory://other").source(TableSource(ROWS), uid="rows")),
        "the streams are of two jobs",
    ),
    "a connection of two jobs": (
        lambda job, rows: rows.connect(Job("memory://other").source(TableSource(ROWS), uid="rows")),
        "the streams are of two jobs",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_where_it_is_made_and_leaves_the_job_and_the_folder_as_they_were(job, rows, tmp_path, name):
    mistake, message = MISTAKES[name]
    before = len(job.graph.tasks), len(job.graph.edges), len(job.graph.sinks)

    with pytest.raises(InvalidInputError, match=message):
        mistake(job, rows)

    after = len(job.graph.tasks), len(job.graph.edges), len(job.graph.sinks)
    assert after == before
    assert list(tmp_path.iterdir()) == []
    # The name that was meant is free.
    rows.stateful(Batches(), key=["user"], uid="f")


@pytest.mark.parametrize("mode", ["processes", "threads", "inline"])
def test_a_job_without_a_source_is_not_started_and_has_no_store(job, tmp_path, mode):
    with pytest.raises(InvalidInputError, match=r"a job needs a source; make one with job.source\(...\)"):
        job.start(mode=mode)

    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_is_none_is_refused_and_there_is_no_store(job, rows, tmp_path):
    with pytest.raises(InvalidInputError, match="mode must be processes, threads or inline, got 'fast'"):
        job.start(mode="fast")

    assert list(tmp_path.iterdir()) == []


def test_a_parallelism_above_the_key_groups_is_refused_at_the_start(tmp_path):
    job = Job(tmp_path / "store", parallelism=9, max_parallelism=8)
    job.source(TableSource(ROWS), uid="rows")

    with pytest.raises(InvalidInputError, match="parallelism must be 1 to 8, the max parallelism, got 9"):
        job.start(mode="inline")


def test_a_group_and_its_drift_belong_together():
    with pytest.raises(InvalidInputError, match="group and max_drift_ms belong together"):
        Watermarks("at", group="all")
    with pytest.raises(InvalidInputError, match="group and max_drift_ms belong together"):
        Watermarks("at", max_drift_ms=5)
    with pytest.raises(InvalidInputError, match="out_of_order_ms"):
        Watermarks("at", out_of_order_ms=-1)
    with pytest.raises(InvalidInputError, match="idle_ms"):
        Watermarks("at", idle_ms=0)


class Holding(Batches):
    def __init__(self):
        self.lock = threading.Lock()


class HoldingTable(TableSource):
    def __init__(self, table):
        super().__init__(table)
        self.lock = threading.Lock()


def test_a_function_that_cannot_be_pickled_is_refused_at_the_start_with_what_to_do(job, rows):
    rows.stateful(Holding(), key=["user"], uid="f")

    with pytest.raises(InvalidInputError, match=r"'f' \(by lock, of type lock\) cannot be: TypeError") as raised:
        job.start(mode="processes")
    assert str(raised.value).endswith("; make it in open(), in reader() or when it is called")


def test_a_source_that_cannot_be_pickled_may_be_read_in_threads(job):
    job.source(HoldingTable(ROWS), uid="held").sink(OutputTable("copy"))

    with pytest.raises(InvalidInputError, match=r"source 'held' \(by lock.* or start with mode='threads'$"):
        job.start(mode="processes")
    assert job.run(mode="threads").sql("select count(*) from copy.rows").fetchall() == [(1,)]


@pytest.mark.parametrize("mode", ["threads", "inline"])
def test_a_function_that_cannot_be_copied_is_refused_before_the_job_that_runs_is_ended(mode, tmp_path):
    def declared(function):
        job = Job(tmp_path / "store")
        job.source(GeneratorSource(endless, ROWS.schema), uid="rows").stateful(function, key=["user"], uid="f")
        return job

    with declared(Batches()).start(mode="threads") as running:
        running.checkpoint()
        with pytest.raises(InvalidInputError, match=r"operator 'f' \(by lock, of type lock\) cannot be copied"):
            declared(Holding()).start(mode=mode)
        running.checkpoint()


def test_a_window_function_says_its_columns_itself(rows):
    function = WindowFunction(TumblingEventTimeWindows(10), SUM, timestamp="at", value="amount")

    assert rows.stateful(function, key=["user"], uid="windows").schema.names == [
        "user",
        "window_start",
        "window_end",
        "total",
    ]


def test_maps_have_the_columns_of_what_they_return_for_no_rows(rows):
    assert rows.map_batches(lambda batch: batch.select(["at"])).schema == pa.schema({"at": pa.int64()})


def test_what_is_declared_shows_itself(job, rows):
    rows.connect(rows).stateful(Two(), key=["user"], uid="two")

    assert repr(rows) == "<Stream: user string, amount int64, at int64>"
    assert repr(job).endswith("store: rows, two>")


PROTOCOLS = {"DirectSink", "PreparingSink", "Reader", "Sink", "SinkWriter", "Source"}
"""What only users have instances of."""


def test_every_public_name_of_the_runtime_says_what_it_is_and_classes_show_themselves():
    for name in sorted(set(arrowstate.runtime.__all__) - PROTOCOLS):
        value = getattr(arrowstate.runtime, name)
        assert value.__doc__, name
        assert re.search(r"^ *>>> ", inspect.getdoc(value) or "", re.MULTILINE) or name.endswith("Status"), name
