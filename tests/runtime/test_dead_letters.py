"""Dead letters of a job: a row that nothing can take is set aside once, and all else is as if it had never come."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
import runtime_jobs as jobs
from arrowstate.errors import IncompatibleStateError, InvalidInputError, JobFailedError
from arrowstate.runtime import (
    Batch,
    CoBatchFunction,
    EndOfSplit,
    Job,
    KeyedCoProcessFunction,
    OutputTable,
    Reader,
    Restart,
    Source,
    Split,
    TableSource,
    UnreadRows,
    Watermarks,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

HIGHEST = 2**63 - 1
ROWS = pa.table(
    {
        "user": ["ann", None, "bob", "ann", "bob", "ann", "eve"],
        "amount": pa.array([1, 2, -3, 4, 5, HIGHEST, 6], pa.int64()),
        "at": pa.array([1, 2, 3, 4, 5, 6, None], pa.int64()),
    }
)
OVERFLOW = "ValueOverflowError: sum of state 'total' does not fit int64; declare the state with a wider type"
DEAD = [
    ("NullKeyError", "key column 'user' is null", None, 2),
    ("ValueError", "ValueError: -3 is negative", "bob", -3),
    ("ValueOverflowError", OVERFLOW, "ann", HIGHEST),
]
"""Error, reason, key and amount of what each function below cannot take."""
TOTALS = {"ann": 5, "bob": 5, "eve": 6}


class Batches(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(jobs.SUM)

    def process_batch(self, batch, context):
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["amount"])
        wrong = batch.filter(pc.less(batch["amount"], 0))
        if wrong.num_rows:
            raise ValueError(f"{wrong['amount'][0]} is negative")
        return pa.record_batch([*keys.columns, self.total.read_keys(keys)], names=["user", "total"])


class Elements(jobs.Running):
    def process_element(self, value, context, out):
        super().process_element(value, context, out)
        if value.amount < 0:
            raise ValueError(f"{value.amount} is negative")


class Torn(jobs.Running):
    def process_element(self, value, context, out):
        raise ValueError(json.loads('"half a pair: \\ud83d"'))


class TwoBatches(CoBatchFunction):
    open = Batches.open
    process_batch1 = Batches.process_batch

    def process_batch2(self, batch, context):
        raise KeyError("nothing fits")


class TwoElements(KeyedCoProcessFunction):
    open = Elements.open

    def process_element1(self, value, context, out):
        self.total.add(value.amount)
        if value.amount < 0:
            raise ValueError(f"{value.amount} is negative")

    def process_element2(self, value, context, out):
        raise KeyError("nothing fits")


def letters(snapshot, name="function_dead_letters") -> list[dict]:
    rows = [row["rows"] for row in snapshot.operator_state(name, "rows").to_pylist()]
    return sorted(rows, key=lambda row: (row["error"], str(row["row"]), str(row["key"])))


def told(snapshot, name="function_dead_letters") -> list[tuple]:
    return [(row["error"], row["reason"], row["key"]["user"], row["row"]["amount"]) for row in letters(snapshot, name)]


def totals(snapshot) -> dict:
    return {row["user"]: row["total"] for row in snapshot.to_arrow("function.total").to_pylist()}


def declared(function, store="memory://dead-letters", rows=ROWS, **options):
    job = Job(f"{store}-{id(function)}", parallelism=2, restart=Restart.none())
    given = job.source(TableSource(rows), uid="given")
    if isinstance(function, (CoBatchFunction, KeyedCoProcessFunction)):
        other = pa.table({"name": ["bob", "cid"], "why": ["x", "y"]})
        given = given.connect(job.source(TableSource(other), uid="other"))
        options["key"] = ["user"], ["name"]
    arguments = {"key": ["user"], "uid": "function", "output_schema": jobs.RUNNING, "on_error": "dead_letter"}
    return job, given.stateful(function, **(arguments | options))


@pytest.mark.parametrize("function", [Batches(), Elements()], ids=repr)
def test_what_a_function_cannot_take_is_set_aside_row_by_row_with_the_reason(function):
    job, stream = declared(function)
    stream.sink(OutputTable("changes"))

    with job.start(mode="inline") as running:
        snapshot = running.wait()
        dead = sum(task.dead_rows for task in running.status().tasks)

    assert told(snapshot) == DEAD
    assert [row["row"]["at"] for row in letters(snapshot)] == [2, 3, 6]
    for row in letters(snapshot):
        number = row["batch_id"]
        assert row in letters(running.store.snapshot(number))
        assert number == 1 or row not in letters(running.store.snapshot(number - 1))
    assert dead == 3
    assert totals(snapshot) == TOTALS
    last = {}
    for row in snapshot.operator_state("changes", "rows").to_pylist():
        last[row["rows"]["user"]] = row["rows"]["total"]
    assert last == TOTALS


def test_a_reason_that_utf_8_cannot_hold_is_told_with_an_escape():
    job, _ = declared(Torn(), rows=ROWS.slice(0, 1))

    snapshot = job.run(mode="inline")

    assert [row["reason"] for row in letters(snapshot)] == ["ValueError: half a pair: \\ud83d"]


@pytest.mark.parametrize("function", [TwoBatches(), TwoElements()], ids=repr)
def test_dead_letters_of_two_streams_have_the_columns_of_both(function):
    job, _ = declared(function)

    snapshot = job.run(mode="inline")

    assert [row for row in told(snapshot) if row[0] != "KeyError"] == DEAD
    others = [(row["key"], row["row"]) for row in letters(snapshot) if row["error"] == "KeyError"]
    nothing = {"amount": None, "at": None}
    assert others == [
        ({"user": "bob"}, {"user": "bob", **nothing, "why": "x"}),
        ({"user": "cid"}, {"user": "cid", **nothing, "why": "y"}),
    ]
    assert totals(snapshot) == TOTALS


def test_a_row_without_the_timestamp_of_a_process_function_is_set_aside():
    job, _ = declared(jobs.Running(), rows=ROWS.slice(3), timestamp="at", dead_letters="aside")

    snapshot = job.run(mode="inline")

    assert told(snapshot, "aside") == [
        ("NullKeyError", "timestamp column 'at' is null", "eve", 6),
        ("ValueOverflowError", OVERFLOW, "ann", HIGHEST),
    ]
    assert totals(snapshot) == {"ann": 4, "bob": 5}


def test_windows_set_aside_what_has_no_time_or_does_not_fit():
    function = WindowFunction(TumblingEventTimeWindows(10), jobs.SUM, timestamp="at", value="amount")
    job, stream = declared(function, output_schema=None)
    stream.sink(OutputTable("fired"))

    snapshot = job.run(mode="inline")

    assert [(row[0], row[2], row[3]) for row in told(snapshot)] == [
        ("InvalidInputError", "eve", 6),
        ("NullKeyError", None, 2),
        ("ValueOverflowError", "ann", HIGHEST),
    ]
    fired = {row["rows"]["user"]: row["rows"]["total"] for row in snapshot.operator_state("fired", "rows").to_pylist()}
    assert fired == {"ann": 5, "bob": 2}


def positive(batch):
    """Wants positive amounts, and gives other columns for 4."""
    if batch.num_rows and pc.min(batch["amount"]).as_py() < 0:
        raise ValueError("negative")
    return batch.select(["amount"]) if batch["amount"].to_pylist() == [4] else batch.select(["user", "amount"])


def test_a_function_of_map_batches_sets_rows_aside_wherever_it_runs():
    job = Job("memory://dead-maps", restart=Restart.none(), parallelism=2)
    rows = pa.table({"user": ["ann", "bob", "eve"], "amount": pa.array([1, -3, 4], pa.int64())})
    given = job.source(jobs.SlowTable(rows, splits=3), uid="given")
    both = given.union(job.source(TableSource(rows.slice(1, 1)), uid="more").rebalance())
    both.map_batches(positive, on_error="dead_letter", dead_letters="aside").sink(OutputTable("good"))

    snapshot = job.run(mode="inline")

    assert [(row["error"], row["key"]["task"], row["row"]) for row in letters(snapshot, "aside")] == [
        ("InvalidInputError", "given", {"user": "eve", "amount": 4}),
        ("ValueError", "exchange-0", {"user": "bob", "amount": -3}),
        ("ValueError", "given", {"user": "bob", "amount": -3}),
    ]
    assert "must give out the columns" in letters(snapshot, "aside")[0]["reason"]
    assert [row["rows"]["user"] for row in snapshot.operator_state("good", "rows").to_pylist()] == ["ann"]


def test_a_source_sets_aside_rows_without_an_event_time_and_says_where_they_were():
    job = Job("memory://dead-sources", restart=Restart.none())
    rows = pa.table({"n": [1, 2, 3, 4], "at": pa.array([10, None, 30, None], pa.int64())})
    given = job.source(TableSource(rows), uid="given", watermarks=Watermarks("at"), on_error="dead_letter")
    given.sink(OutputTable("good"))

    with job.start(mode="inline") as running:
        snapshot = running.wait()
        (figures,) = running.status().tasks

    reason = "event time 'at' is null in row {} from the position".format
    assert [(row["key"], row["row"]["n"], row["reason"]) for row in letters(snapshot, "given_dead_letters")] == [
        ({"split": "0", "position": None}, 2, reason(1)),
        ({"split": "0", "position": None}, 4, reason(3)),
    ]
    assert [row["rows"]["n"] for row in snapshot.operator_state("good", "rows").to_pylist()] == [1, 3]
    assert figures.dead_rows == 2


def test_what_fails_after_the_function_is_no_fault_of_its_rows():
    def fails(batch):
        if batch.num_rows:
            return batch.select([])
        return batch

    job, stream = declared(jobs.Running())
    stream.map_batches(fails).sink(OutputTable("changes"))

    with pytest.raises(JobFailedError, match="a function of map_batches after 'function' must give out the columns"):
        job.run(mode="inline")


class BadTimer(jobs.Running):
    def process_element(self, value, context, out):
        context.timers.register_event_time_timer(5)

    def on_timer(self, timestamp, context, out):
        raise ValueError("no timers today")


def test_a_timer_that_raises_fails_the_job():
    job, _ = declared(BadTimer(), rows=ROWS.slice(3))

    with pytest.raises(JobFailedError, match="no timers today"):
        job.run(mode="inline")


def again(store, *tables, **options) -> Job:
    """A job with a source for each table: what an earlier run has read it does not read again."""
    job = Job(store, restart=Restart.none())
    first, *others = [job.source(TableSource(table), uid=f"given-{n}") for n, table in enumerate(tables)]
    given = first.union(*others)
    given.stateful(Elements(), key=["user"], uid="function", output_schema=jobs.RUNNING, **options)
    return job


def test_dead_letters_go_on_after_a_restart_and_stay_where_nothing_is_set_aside(tmp_path):
    store = tmp_path / "store"
    tables = ROWS.slice(0, 3), ROWS.slice(3, 3), ROWS.slice(3, 1)
    first = again(store, *tables[:1], on_error="dead_letter").run(mode="inline").checkpoint_id
    more = again(store, *tables[:2], on_error="dead_letter").run(mode="inline")
    last = again(store, *tables).run(mode="inline")

    assert told(more) == DEAD
    assert [row["batch_id"] > first for row in letters(more)] == [False, False, True]
    assert letters(last) == letters(more)
    assert totals(last) == {"ann": 9, "bob": 5}


def test_dead_letters_of_other_columns_need_another_table_and_the_start_says_so(tmp_path):
    store = tmp_path / "store"
    again(store, ROWS.slice(0, 3), on_error="dead_letter").run(mode="inline")
    narrow = [table.select(["user", "amount"]) for table in (ROWS.slice(0, 3), ROWS.slice(2, 1))]

    with pytest.raises(IncompatibleStateError, match="name another output"):
        again(store, *narrow, on_error="dead_letter").start(mode="inline")
    snapshot = again(store, *narrow, on_error="dead_letter", dead_letters="narrow").run(mode="inline")

    assert len(letters(snapshot)) == 2
    assert told(snapshot, "narrow") == DEAD[1:2]


class Handing(jobs.Running):
    side_outputs = (arrowstate.OutputTag("aside", jobs.RUNNING),)


MISTAKES = {
    "another policy": ({"on_error": "skip"}, "on_error must be 'fail' or 'dead_letter', got 'skip'"),
    "a table for nothing": ({"on_error": "fail", "dead_letters": "x"}, "dead_letters='x' needs on_error="),
    "the name of the operator": ({"dead_letters": "Function"}, "needs another name than operator 'function'"),
    "a name that is taken": ({"dead_letters": "given"}, "uids must differ in more than case, 'given' is taken"),
    "no name": ({"dead_letters": "a b"}, "a b"),
    "the name of a side output": ({"operator": Handing(), "dead_letters": "aside"}, "'aside' is a side output of"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_dead_letters_that_have_no_place_are_refused_where_they_are_declared(name):
    options, message = MISTAKES[name]
    job = Job("memory://dead-mistakes")
    given = job.source(TableSource(ROWS), uid="given")
    arguments = {"operator": jobs.Running(), "key": ["user"], "uid": "function", "on_error": "dead_letter"}

    with pytest.raises(InvalidInputError, match=message):
        given.stateful(**(arguments | options))

    assert [task.uid for task in job.graph.tasks] == ["given"]
    assert job.graph.sinks == []
    given.stateful(**arguments)


def test_a_map_needs_a_name_for_its_dead_letters_and_two_streams_need_columns_that_agree():
    job = Job("memory://dead-mistakes")
    given = job.source(TableSource(ROWS), uid="given")
    other = job.source(TableSource(pa.table({"user": ["ann"], "amount": ["x"]})), uid="other")

    with pytest.raises(InvalidInputError, match="map_batches has no uid: say with dead_letters="):
        given.map_batches(positive, on_error="dead_letter")
    with pytest.raises(InvalidInputError, match="'amount' is int64 in one of them and string in the other"):
        given.connect(other).stateful(TwoBatches(), key=["user"], uid="function", on_error="dead_letter")


class Lines(Source):
    """Lines of text, the whole numbers of which are rows."""

    schema = pa.schema({"n": pa.int64()})
    unread_schema = pa.schema({"line": pa.string()})

    def __init__(self, *lines):
        self.lines = lines

    def discover(self, known):
        return [Split(name) for name in ("all",) if name not in known]

    def reader(self):
        return LinesReader(self.lines)


class LinesReader(Reader):
    def __init__(self, lines):
        self.lines = lines
        self.row = None

    def add(self, splits):
        (split,) = splits
        self.row = split.position or 0

    def read(self, max_rows):
        if self.row is None or self.row == len(self.lines):
            return None if self.row is None else EndOfSplit("all")
        given = self.lines[self.row : self.row + min(max_rows, 3)]
        wrong = [place for place, line in enumerate(given) if not line.isdigit()]
        unread = UnreadRows(
            [self.row + place for place in wrong],
            pa.record_batch([pa.array([given[place] for place in wrong], pa.string())], schema=Lines.unread_schema),
            ["ValueError"] * len(wrong),
            [f"{given[place]!r} is no number" for place in wrong],
        )
        self.row += len(given)
        rows = pa.record_batch([pa.array([int(line) for line in given if line.isdigit()])], schema=Lines.schema)
        return Batch(rows, "all", self.row, unread=unread if wrong else None)


def test_rows_that_a_source_cannot_read_are_set_aside_as_they_came():
    job = Job("memory://dead-unread")
    rows = job.source(Lines("1", "x", "3", "4", "five", "y", "7"), uid="lines", on_error="dead_letter")
    rows.sink(OutputTable("numbers"))

    snapshot = job.run(mode="inline")

    assert snapshot.sql("select rows.n from numbers.rows order by all").fetchall() == [(1,), (3,), (4,), (7,)]
    found = snapshot.sql(
        "select rows.key.split, rows.key.position, rows.key.line, rows.row.n, rows.error, rows.reason "
        "from lines_dead_letters.rows order by 2"
    ).fetchall()
    assert found == [
        ("all", 1, "x", None, "ValueError", "'x' is no number"),
        ("all", 4, "five", None, "ValueError", "'five' is no number"),
        ("all", 5, "y", None, "ValueError", "'y' is no number"),
    ]


def test_a_row_that_a_source_cannot_read_fails_the_job_if_nothing_else_is_said():
    job = Job("memory://unread")
    job.source(Lines("1", "2", "3", "4", "x"), uid="lines").sink(OutputTable("numbers"))

    with pytest.raises(
        JobFailedError, match=r"source 'lines', split 'all' from position 3: the row at position 4 .*'x' is no number"
    ):
        job.run(mode="inline")


def test_a_batch_of_nothing_but_rows_that_cannot_be_read_moves_the_position():
    job = Job("memory://all-unread")
    rows = job.source(Lines("x", "y"), uid="lines", on_error="dead_letter", dead_letters="odd")
    rows.sink(OutputTable("numbers"))

    snapshot = job.run(mode="inline")

    assert snapshot.sql("select position, finished from lines.splits").fetchall() == [(2, True)]
    assert snapshot.sql("select count(*) from odd.rows").fetchall() == [(2,)]
