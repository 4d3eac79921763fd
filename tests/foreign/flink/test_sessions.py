"""Session windows whose first half Flink ran: they fire as in Flink's whole run, whatever had merged by then.

The job is in `generator/SessionJob.java`: 50 sessions are open in the savepoint, 25 of them of several windows; the
events of the second half are (i * 7) % 10, i % 10 + 1 and 100000 + 300 * i.
"""

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink import import_flink_savepoint, open_flink_savepoint
from arrowstate.foreign.flink import sessions as module
from arrowstate.foreign.flink.sessions import Sessions
from arrowstate.foreign.flink.states import FlinkState
from arrowstate.runtime import GeneratorSource, Job, OutputTable, Watermarks
from arrowstate.windows import EventTimeSessionWindows, WindowFunction

EVENTS = 200
EVENT = pa.struct([("f0", pa.int64()), ("f1", pa.int64()), ("f2", pa.int64())])
SUMS = arrowstate.ReducingStateDescriptor("sums", EVENT, reduce={"f0": "first", "f1": "sum", "f2": "max"})
TIMERS = {f"sessions._timer_state/{clock}_window-timers": None for clock in ("event", "processing")}


@pytest.fixture
def savepoint(savepoint_folder):
    return open_flink_savepoint(savepoint_folder("sessions") / "savepoint")


def events(first, count):
    numbers = range(first, first + count)
    keys = pa.array([number * 7 % 10 for number in numbers], pa.int64())
    amounts = pa.array([number % 10 + 1 for number in numbers], pa.int64())
    times = pa.array([100_000 + 300 * number for number in numbers], pa.int64())
    return pa.record_batch({"key": keys, "f0": keys, "f1": amounts, "f2": times})


def fired_by_the_second_half(place):
    job = Job(place, parallelism=2)
    # Ten at a time, so that the watermark rises as it does in the job of Flink.
    source = GeneratorSource(events, events(0, 1).schema, rows=EVENTS, batch_rows=10)
    rows = job.source(source, uid="events", watermarks=Watermarks("f2", out_of_order_ms=5_000))
    function = WindowFunction(EventTimeSessionWindows(2_500), SUMS, timestamp="f2")
    fired = pa.schema([("key", pa.int64()), ("window_start", pa.int64()), ("window_end", pa.int64()), ("sums", EVENT)])
    rows.stateful(function, key=["key"], uid="sessions", output_schema=fired).sink(OutputTable("fired"))
    found = job.run(mode="threads").sql("select key, window_start, window_end, sums.f1, sums.f2 from fired.rows")
    return [",".join(map(str, row)) for row in found.fetchall()]


def test_sessions_fire_as_in_the_whole_run_of_flink(savepoint, store, savepoint_folder):
    whole = (savepoint_folder("sessions") / "whole.csv").read_text().split()

    made = import_flink_savepoint(savepoint, store, states={"sessions.window-contents": SUMS, **TIMERS})
    fired = fired_by_the_second_half(store.url)

    assert {item.state: item.rows for item in made.states}["window-contents"] == 50
    assert sorted(fired) == sorted(whole)


def test_contents_have_their_sessions_also_where_the_state_that_knows_them_is_left_out(savepoint, store):
    known = savepoint.to_arrow("sessions.merging-window-set").to_pylist()
    sessions = {(row["key"], *pair["f0"].values()) for row in known for pair in row["value"]}
    stored = {(row["key"], *pair["f1"].values()) for row in known for pair in row["value"]}

    made = import_flink_savepoint(savepoint, store, states={"sessions.merging-window-set": None})

    rows = made.snapshot.sql('select key, window_start, window_end from sessions."window-contents"').fetchall()
    assert len(sessions - stored) == 25
    assert set(rows) == sessions
    assert "sessions of 'merging-window-set'" in {item.state: item.note for item in made.states}["window-contents"]


def test_sessions_without_their_contents_are_told(savepoint, store):
    made = import_flink_savepoint(savepoint, store, states={"sessions.window-contents": None})

    notes = {item.state: item.note for item in made.states}
    assert "'window-contents', whose sessions it has, is left out" in notes["merging-window-set"]
    assert notes["window-contents"] == "not asked for"


class Part:
    """A handle with rows that were made here."""

    def __init__(self, batch):
        self.schema = batch.schema
        self._batch = batch

    def batches(self):
        yield self._batch


def mapping(*rows, kind="list"):
    """What knows the sessions of (key, start, end, stored start, stored end)."""
    keys, pairs = [row[0] for row in rows], [(row[1:3], row[3:5]) for row in rows]
    window = pa.struct([("start", pa.int64()), ("end", pa.int64())])
    session, stored = (
        pa.array([dict(zip(("start", "end"), pair[place], strict=True)) for pair in pairs], window) for place in (0, 1)
    )
    columns = {"key": pa.array(keys, pa.float64())}
    if kind == "map":
        columns |= {"user_key": session, "value": stored}
    else:
        both = pa.StructArray.from_arrays([session, stored], ["f0", "f1"])
        columns["value"] = pa.ListArray.from_arrays(pa.array(range(len(rows) + 1), pa.int32()), both)
    name = "merging-window-set" if kind == "list" else "session-window-mapping"
    return Sessions(FlinkState("op", name, kind, [Part(pa.record_batch(columns))]), lambda batch: [batch.column("key")])


@pytest.mark.parametrize("kind", ["list", "map"])
def test_a_stored_window_has_the_session_of_its_own_key(kind):
    sessions = mapping((1.0, 0, 9, 3, 5), (2.0, 1, 7, 3, 5), (float("nan"), 2, 8, 3, 5), kind=kind)
    keys = pa.array([2.0, 1.0, float("nan"), 4.0])

    starts, ends = sessions.of([keys], pa.array([3] * 4, pa.int64()), pa.array([5] * 4, pa.int64()))

    assert starts.to_pylist() == [1, 0, 2, None]
    assert ends.to_pylist() == [7, 9, 8, None]


def test_keys_of_one_hash_have_their_own_sessions(monkeypatch):
    hashes = module.hash_columns
    # The first of the two hashes is the same for all; the second begins with the window.
    monkeypatch.setattr(
        module,
        "hash_columns",
        lambda columns: hashes(columns) if columns[0].type == pa.int64() else np.zeros(len(columns[0]), np.int64),
    )
    sessions = mapping(*((float(key), key, key + 9, 3, 5) for key in range(50)))

    starts, _ = sessions.of([pa.array([49.0, 0.0, 7.0, 50.0])], *(pa.array([each] * 4, pa.int64()) for each in (3, 5)))

    assert starts.to_pylist() == [49, 0, 7, None]


def test_a_window_of_two_sessions_is_damage():
    with pytest.raises(CorruptDataError, match=r"op\.merging-window-set.*two sessions"):
        mapping((1.0, 0, 9, 3, 5), (1.0, 20, 29, 3, 5))
