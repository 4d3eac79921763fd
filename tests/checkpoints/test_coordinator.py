"""Checkpoints in the background: what is frozen, what is committed, what is left of those given up."""

import os
import random
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.references import ReferenceReader
from arrowstate.files.savepoint import write_frozen_savepoint
from arrowstate.log.entries import create_store, path_of
from arrowstate.storage import open_storage
from arrowstate.storage.base import Outcome
from stores import KEY, TOTAL, sum_of_totals

ROWS = 4000
"""Enough for a run file of its own."""


class Gate:
    """A storage whose data files, or whose commits, can be held back or refused."""

    def __init__(self, storage):
        self._storage = storage
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.failure = None
        self.lost_answers = 0
        self.lost_requests = False
        self.writes = 0

    def __getattr__(self, name):
        return getattr(self._storage, name)

    @contextmanager
    def write_file(self, path):
        self.writes += 1
        with self._storage.write_file(path) as sink:
            yield sink
            self.reached.set()
            assert self.open.wait(60), "the test never opened the gate"
            if self.failure is not None:
                raise self.failure

    def put_if_absent(self, path, data, commit_id):
        if not (self.lost_answers and self.lost_requests and path.startswith("log/")):
            outcome = self._storage.put_if_absent(path, data, commit_id)
        if self.lost_answers and path.startswith("log/"):
            self.lost_answers -= 1
            raise arrowstate.CommitUnknownError(path, commit_id, "the answer was lost")
        return outcome

    def hold(self):
        self.reached.clear()
        self.open.clear()


@pytest.fixture
def gate(tmp_path):
    storage = open_storage(str(tmp_path / "store"), create=True)
    return Gate(storage)


@pytest.fixture
def clock():
    return [1_700_000_000_000]


@pytest.fixture
def store(gate, clock):
    document = create_store(gate, "store", 0)
    return arrowstate.StateStore(gate, document.store_id, clock_ms=lambda: clock[0])


def backend_of(groups=None):
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=groups)
    backend.state(TOTAL)
    return backend


def add(backend, amount=1, rows=ROWS):
    backend.state(TOTAL).add_batch(pa.array(range(rows)), pa.array([amount] * rows))


def data_files(store):
    return {path for path in store.storage.list("") if path.startswith(("data/", "manifests/"))}


def referenced_files(store):
    reader = ReferenceReader(store.storage)
    return {path for snapshot in store.checkpoints() for path in reader.files(snapshot.entry.operators)}


def unfinished(store):
    return [path for path in Path(store.url).rglob("*") if path.is_file() and ".tmp" in path.name]


def test_a_trigger_freezes_and_returns_and_what_comes_later_is_not_in_it(store, gate):
    backend = backend_of()
    add(backend)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        gate.hold()

        pending = checkpoints.trigger(properties={"offset": 1})
        assert gate.reached.wait(60)
        add(backend, 10)

        assert not pending.done
        assert checkpoints.in_flight == (pending.checkpoint_id,)
        gate.open.set()
        assert sum_of_totals(pending.result()) == ROWS
        assert pending.result().properties == {"offset": 1}
        assert sum_of_totals(checkpoints.trigger().result()) == 11 * ROWS


def test_more_checkpoints_than_the_history_keeps_end_together(store, gate):
    backend = backend_of()
    add(backend)
    options = arrowstate.CheckpointOptions(max_concurrent=150)
    with store.writer() as writer, writer.coordinator({"op": [backend]}, options=options) as checkpoints:
        gate.hold()
        pending = [checkpoints.trigger() for _ in range(150)]

        checkpoints.cancel("enough")
        gate.open.set()

        assert all(each.done for each in pending)
        assert [each.progress().status for each in pending] == ["cancelled"] * 150
        assert [record.checkpoint_id for record in checkpoints.history] == list(range(51, 151))
    assert store.checkpoints() == []


def test_a_commit_that_meets_damage_ends_the_checkpoints_with_that_error(store):
    backend = backend_of()
    add(backend)
    writer = store.writer()
    checkpoints = writer.coordinator({"op": [backend]}, retention=None)
    stray = f"gc/condemned-{0:020d}-{9:020d}-x.json"
    store.storage.put_hint(stray, b"{}")

    with pytest.raises(arrowstate.CorruptDataError, match=stray):
        checkpoints.trigger().result()
    with pytest.raises(arrowstate.CorruptDataError, match=stray):
        checkpoints.trigger()
    with pytest.raises(arrowstate.CorruptDataError, match=stray):
        checkpoints.close()


def test_checkpoints_end_where_there_is_no_thread_for_what_is_done_after_them(store, monkeypatch):
    start = threading.Thread.start
    refused = []

    def start_or_not(thread):
        if thread.name == "arrowstate-collection":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    backend = backend_of()
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        for number in (1, 2):
            assert checkpoints.trigger().result(timeout_ms=60_000).checkpoint_id == number

    assert len(refused) == 2


def test_a_checkpoint_that_nobody_can_write_is_over_at_once(store, monkeypatch):
    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    backend = backend_of()
    options = arrowstate.CheckpointOptions(tolerated_failures=1)
    with store.writer() as writer, writer.coordinator({"op": [backend]}, options=options) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                checkpoints.trigger()

        assert checkpoints.in_flight == ()
        assert checkpoints.trigger().result(timeout_ms=60_000).checkpoint_id == 2


def test_only_what_is_new_is_written_and_the_figures_are_in_the_log(store):
    backend = backend_of()
    add(backend)
    operator = arrowstate.OperatorStateBackend()
    operator.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([7, 8])
    writer = store.writer()
    with writer.coordinator({"op": [backend]}, operator_states={"source": [operator]}) as checkpoints:
        first = checkpoints.trigger().result()
        second = checkpoints.trigger().result()

    rows = second.sql(
        "select checkpoint_id, kind, subtasks, rows, bytes_written > 0, bytes_total, files_written "
        "from arrowstate.checkpoints"
    ).fetchall()
    assert [row[:5] for row in rows] == [
        (first.checkpoint_id, "checkpoint", 1, ROWS, True),
        (second.checkpoint_id, "checkpoint", 1, ROWS, False),
    ]
    assert rows[0][5] == rows[1][5] > 0
    assert rows[0][6] >= 1
    assert rows[1][6] == 0
    parts = second.sql(
        "select operator, subtask, first_key_group, last_key_group, sync_us >= 0, async_us >= 0, alignment_us "
        f"from arrowstate.subtasks where checkpoint_id = {second.checkpoint_id} order by operator"
    ).fetchall()
    assert parts == [("op", 0, 0, 127, True, True, None), ("source", None, None, None, True, True, None)]
    assert [record.status.value for record in checkpoints.history] == ["completed", "completed"]


def test_checkpoints_in_flight_hold_each_its_own_moment(store, gate):
    backend = backend_of()
    options = arrowstate.CheckpointOptions(max_concurrent=3, writer_threads=3)
    with store.writer() as writer, writer.coordinator({"op": [backend]}, options=options) as checkpoints:
        gate.hold()
        pending = []
        for _ in range(3):
            add(backend)
            pending.append(checkpoints.trigger())
        gate.open.set()

        done = {}
        for each in pending:
            try:
                done[each.checkpoint_id] = sum_of_totals(each.result())
            except arrowstate.CheckpointAbortedError as error:
                assert error.status == "subsumed"
                assert not isinstance(error, arrowstate.FencedError)

    assert max(done) == pending[-1].checkpoint_id
    moments = {each.checkpoint_id: place * ROWS for place, each in enumerate(pending, 1)}
    assert done.items() <= moments.items()


def test_cancelling_deletes_what_was_written_and_the_next_one_has_it_all(store, gate):
    backend = backend_of()
    add(backend)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        gate.hold()
        pending = checkpoints.trigger()
        assert gate.reached.wait(60)

        pending.cancel("changed my mind")

        with pytest.raises(arrowstate.CheckpointAbortedError, match="changed my mind") as caught:
            pending.result()
        assert caught.value.status == "cancelled"
        gate.open.set()
        assert sum_of_totals(checkpoints.trigger().result()) == ROWS
    assert data_files(store) == referenced_files(store) != set()
    assert unfinished(store) == []


def test_what_is_cancelled_begins_no_further_file(store, gate):
    backends = [backend_of(arrowstate.key_group_range(128, parallelism=2, subtask=number)) for number in range(2)]
    for backend in backends:
        keys = [key for key, group in enumerate(arrowstate.key_groups(pa.array(range(9000)), 128).to_pylist())
                if backend.key_groups.start <= group <= backend.key_groups.end]  # fmt: skip
        for state in (TOTAL, arrowstate.ReducingStateDescriptor("other", pa.int64(), reduce="max")):
            backend.state(state).add_batch(pa.array(keys), pa.array(keys))
    options = arrowstate.CheckpointOptions(writer_threads=1)
    with store.writer() as writer, writer.coordinator({"op": backends}, options=options) as checkpoints:
        gate.hold()
        pending = checkpoints.trigger()
        assert gate.reached.wait(60)
        pending.cancel()
        gate.open.set()

    assert gate.writes == 1
    assert data_files(store) == set()


def test_a_job_that_outruns_its_uploads_waits(store, gate):
    backend = backend_of()
    add(backend)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        gate.hold()
        first = checkpoints.trigger()
        assert gate.reached.wait(60)
        was_done = []
        threading.Timer(0.3, lambda: (was_done.append(first.done), gate.open.set())).start()

        second = checkpoints.trigger()

        assert was_done == [False]
        assert first.done
        assert second.checkpoint_id == first.checkpoint_id + 1
        assert second.result().checkpoint_id == second.checkpoint_id


def test_one_that_takes_too_long_expires_and_its_late_files_are_deleted(store, gate, clock):
    backend = backend_of()
    add(backend)
    options = arrowstate.CheckpointOptions(timeout_ms=1000, tolerated_failures=1)
    with store.writer() as writer, writer.coordinator({"op": [backend]}, options=options) as checkpoints:
        gate.hold()
        pending = checkpoints.trigger()
        assert gate.reached.wait(60)
        clock[0] += 1000

        assert checkpoints.poll() is None

        with pytest.raises(arrowstate.CheckpointAbortedError, match="expired"):
            pending.result()
        gate.open.set()
    assert data_files(store) == set()
    assert unfinished(store) == []


def test_more_failures_than_tolerated_stop_the_checkpoints_and_nothing_is_left(store, gate):
    backend = backend_of()
    add(backend)
    writer = store.writer()
    options = arrowstate.CheckpointOptions(tolerated_failures=1)
    gate.failure = arrowstate.StorageFullError("data/x", "no space left on device")
    with (
        pytest.raises(arrowstate.CheckpointsStoppedError, match="2 checkpoints in a row failed.*no space left"),
        writer.coordinator({"op": [backend]}, options=options) as checkpoints,
    ):
        for _ in range(2):
            with pytest.raises(arrowstate.CheckpointAbortedError, match="no space left") as caught:
                checkpoints.trigger().result()
            assert isinstance(caught.value.__cause__, arrowstate.StorageFullError)
        checkpoints.trigger()
    assert data_files(store) == set()

    gate.failure = None
    with writer.coordinator({"op": [backend]}) as checkpoints:
        assert sum_of_totals(checkpoints.trigger().result()) == ROWS


def test_a_fenced_coordinator_says_so_and_deletes_its_files(store):
    backend = backend_of()
    add(backend)
    writer = store.writer()
    with pytest.raises(arrowstate.FencedError), writer.coordinator({"op": [backend]}) as checkpoints:
        store.writer()
        pending = checkpoints.trigger()
        with pytest.raises(arrowstate.FencedError):
            pending.result()
        checkpoints.trigger()
    assert data_files(store) == set()


def test_a_commit_of_unknown_outcome_keeps_its_files_and_stops(store, gate):
    backend = backend_of()
    add(backend)
    with (
        pytest.raises(arrowstate.CommitUnknownError),
        store.writer() as writer,
        writer.coordinator({"op": [backend]}) as checkpoints,
    ):
        gate.lost_answers = 1
        with pytest.raises(arrowstate.CommitUnknownError):
            checkpoints.trigger().result()

    assert sum_of_totals(store.latest()) == ROWS


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_after_a_commit_of_unknown_outcome_a_new_coordinator_of_the_writer_goes_on_at_once(store, gate, committed):
    backend = backend_of()
    add(backend)
    writer = store.writer()
    writer.checkpoint({"op": [backend]})
    gate.lost_answers = 1
    gate.lost_requests = not committed
    first = writer.coordinator({"op": [backend]})
    with pytest.raises(arrowstate.CommitUnknownError):
        first.trigger().result()
    add(backend)

    with writer.coordinator({"op": [backend]}) as checkpoints:
        snapshot = checkpoints.trigger().result()

    # Nobody knows which of the two has the id 2, so it is not given again.
    assert snapshot.checkpoint_id == 3
    assert [other.checkpoint_id for other in store.checkpoints()] == ([1, 2, 3] if committed else [1, 3])
    assert sum_of_totals(store.latest()) == 2 * ROWS
    assert store.verify(deep=True).problems == []


def test_listeners_are_told_in_the_thread_that_triggers(store, gate):
    backend = backend_of()
    told = []

    def on_complete(checkpoint_id, kind):
        told.append((checkpoint_id, kind, threading.current_thread()))

    def on_abort(checkpoint_id, kind, reason):
        told.append((checkpoint_id, reason, threading.current_thread()))

    me = threading.current_thread()
    with (
        store.writer() as writer,
        writer.coordinator({"op": [backend]}, on_complete=on_complete, on_abort=on_abort) as checkpoints,
    ):
        first = checkpoints.trigger()
        first.result()
        add(backend)
        gate.hold()
        second = checkpoints.trigger()
        assert told == [(first.checkpoint_id, "checkpoint", me)]
        checkpoints.cancel("enough")
        gate.open.set()
    assert told[1:] == [(second.checkpoint_id, "enough", me)]


def test_polling_takes_a_checkpoint_when_one_is_due(store, clock):
    backend = backend_of()
    options = arrowstate.CheckpointOptions(interval_ms=1000, min_pause_ms=700)
    with store.writer() as writer, writer.coordinator({"op": [backend]}, options=options) as checkpoints:
        checkpoints.poll(properties={"offset": 1}).result()
        clock[0] += 999
        assert checkpoints.poll() is None
        clock[0] += 1

        snapshot = checkpoints.poll(properties={"offset": 2}).result()

    assert snapshot.properties == {"offset": 2}
    assert [each.properties["offset"] for each in store.checkpoints()] == [1, 2]


def test_what_cannot_be_frozen_is_refused_at_once_and_does_no_harm(store):
    backend = backend_of()
    half = backend_of(arrowstate.key_group_range(128, parallelism=2, subtask=0))
    with store.writer() as writer:
        with writer.coordinator({"op": [half]}) as checkpoints:
            with pytest.raises(arrowstate.InvalidInputError, match="cover"):
                checkpoints.trigger()
            with pytest.raises(arrowstate.InvalidInputError, match="JSON|finite"):
                checkpoints.trigger(properties={"offset": float("nan")})
        with writer.coordinator({"op": [backend]}) as checkpoints:
            assert checkpoints.trigger().result().checkpoint_id > 0
        with pytest.raises(arrowstate.InvalidInputError):
            writer.coordinator({})


def test_a_backend_alone_is_refused_with_what_is_asked_for(store):
    backend, own = backend_of(), arrowstate.OperatorStateBackend()
    writer = store.writer()
    asked = "operator 'op' needs a list of backends, one per subtask"

    for take in (writer.checkpoint, writer.coordinator):
        with pytest.raises(arrowstate.InvalidInputError, match=f"{asked}, got a KeyedStateBackend"):
            take({"op": backend})
        with pytest.raises(arrowstate.InvalidInputError, match=f"{asked}, got a OperatorStateBackend"):
            take({"op": [backend]}, operator_states={"op": own})
        with pytest.raises(arrowstate.InvalidInputError, match=f"{asked}, got a NoneType"):
            take({"op": None})
    assert store.checkpoints() == []


def test_leaving_after_an_error_gives_up_what_is_in_flight(store, gate):
    backend = backend_of()
    add(backend)
    with (
        pytest.raises(ZeroDivisionError),
        store.writer() as writer,
        writer.coordinator({"op": [backend]}) as checkpoints,
    ):
        gate.hold()
        pending = checkpoints.trigger()
        threading.Timer(0.2, gate.open.set).start()
        raise ZeroDivisionError

    with pytest.raises(arrowstate.CheckpointAbortedError, match="the job failed"):
        pending.result()
    assert data_files(store) == set()
    with pytest.raises(arrowstate.CheckpointsStoppedError, match="closed"):
        checkpoints.trigger()


def test_ids_rise_through_failures_writers_and_coordinators(store, gate):
    backend = backend_of()
    with store.writer() as writer:
        options = arrowstate.CheckpointOptions(tolerated_failures=9)
        with writer.coordinator({"op": [backend]}, options=options) as checkpoints:
            ids = [checkpoints.trigger().result().checkpoint_id]
            add(backend)
            gate.failure = arrowstate.StorageFullError("data/x", "full")
            for _ in range(5):
                with pytest.raises(arrowstate.CheckpointAbortedError):
                    checkpoints.trigger().result()
            gate.failure = None
            ids.append(checkpoints.trigger().result().checkpoint_id)
        ids.append(writer.checkpoint({"op": [backend]}).checkpoint_id)
    with store.writer() as writer:
        ids.append(writer.checkpoint({"op": [backend]}).checkpoint_id)

    assert ids == sorted(set(ids))
    assert ids[1] - ids[0] == 6
    assert [snapshot.checkpoint_id for snapshot in store.checkpoints()] == ids
    assert [store.snapshot(each).checkpoint_id for each in ids] == ids


def test_a_result_that_is_not_there_yet_can_be_waited_for_with_a_limit(store, gate):
    backend = backend_of()
    add(backend)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        gate.hold()
        pending = checkpoints.trigger()
        with pytest.raises(TimeoutError):
            pending.result(timeout_ms=1)
        assert gate.reached.wait(60)
        assert (pending.progress().status, pending.progress().acknowledged, pending.progress().parts) == (
            "in progress",
            0,
            1,
        )
        gate.open.set()
        pending.result()
        assert pending.progress().acknowledged == 1
        assert pending.progress().bytes_written > 0


def test_a_savepoint_stands_beside_the_checkpoints_and_holds_its_own_moment(store, gate, tmp_path):
    backend = backend_of()
    add(backend)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        gate.hold()
        before = checkpoints.trigger()
        add(backend)
        savepoint = checkpoints.trigger_savepoint(tmp_path / "saved", properties={"offset": 2})
        add(backend)

        saved = savepoint.result()

        assert not before.done
        assert (saved.entry.kind, saved.properties, sum_of_totals(saved)) == ("savepoint", {"offset": 2}, 2 * ROWS)
        assert saved.checkpoint_id == savepoint.checkpoint_id == before.checkpoint_id + 1
        gate.open.set()
        assert sum_of_totals(before.result()) == ROWS
        assert checkpoints.trigger().result().checkpoint_id > savepoint.checkpoint_id
    assert [snapshot.entry.kind for snapshot in store.checkpoints()] == ["checkpoint", "checkpoint"]
    assert sum_of_totals(arrowstate.open_store(tmp_path / "saved").latest()) == 2 * ROWS


def test_a_savepoint_where_files_are_fails_alone_and_leaves_them(store, tmp_path):
    backend = backend_of()
    add(backend)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("keep me")
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        with pytest.raises(arrowstate.CheckpointAbortedError, match="holds files") as caught:
            checkpoints.trigger_savepoint(tmp_path / "full").result()
        assert isinstance(caught.value.__cause__, arrowstate.InvalidInputError)
        assert sum_of_totals(checkpoints.trigger().result()) == ROWS
    assert [path.name for path in (tmp_path / "full").rglob("*")] == ["letter.txt"]


def test_a_savepoint_that_cannot_be_read_back_fails_at_once_and_is_disposed_of(store, tmp_path, monkeypatch):
    backend = backend_of()
    add(backend)

    def refuse(storage):
        raise arrowstate.StorageError("arrowstate.json", "Input/output error", storage.url)

    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("arrowstate.store.store.open_store_document", refuse)
            savepoint = checkpoints.trigger_savepoint(tmp_path / "saved")
            with pytest.raises(arrowstate.CheckpointAbortedError, match="Input/output error"):
                savepoint.result(timeout_ms=20_000)
        assert sum_of_totals(checkpoints.trigger().result()) == ROWS

    assert [path for path in (tmp_path / "saved").rglob("*") if path.is_file()] == []


def test_a_savepoint_that_was_whole_when_it_was_given_up_is_disposed_of(store, tmp_path, monkeypatch):
    backend = backend_of()
    add(backend)
    written, go_on = threading.Event(), threading.Event()

    def slow(*arguments, **options):
        entry = write_frozen_savepoint(*arguments, **options)
        written.set()
        assert go_on.wait(60)
        return entry

    monkeypatch.setattr("arrowstate.checkpoints.driver.write_frozen_savepoint", slow)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        savepoint = checkpoints.trigger_savepoint(tmp_path / "saved")
        assert written.wait(60)
        savepoint.cancel()
        go_on.set()
        with pytest.raises(arrowstate.CheckpointAbortedError, match="cancelled"):
            savepoint.result()

    assert [path for path in (tmp_path / "saved").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("policy", [None, arrowstate.CompactionPolicy(max_space_amplification=1.2)])
def test_runs_with_dead_rows_are_merged_beside_the_job(store, gate, policy):
    backend = backend_of()
    add(backend, rows=20_000)
    with store.writer(compaction=policy) as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        checkpoints.trigger().result()
        add(backend, rows=8_000)
        before = checkpoints.trigger().result()
        add(backend, rows=10)
        for _ in range(200):
            # The merge runs in a thread of its own; who triggers takes its result up when it is there.
            after = checkpoints.trigger().result()
            if policy is None or after.storage_use().space_amplification < 1.2:
                break

    assert before.storage_use().space_amplification > 1.2
    assert (after.storage_use().space_amplification < 1.2) is (policy is not None)
    assert sum_of_totals(before) == 28_000
    assert sum_of_totals(after) == 28_010
    assert after.verify(deep=True).ok


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_in_flight_a_committed_checkpoint_is_the_state_at_its_trigger(tmp_path, seed):
    draw = random.Random(seed)
    store = arrowstate.open_store(tmp_path / "store", create=True)
    policy = draw.choice(
        (None, arrowstate.CompactionPolicy(max_space_amplification=1.1, min_bytes=0, max_small_files=1))
    )
    groups = [arrowstate.key_group_range(128, parallelism=2, subtask=number) for number in range(2)]
    backends = [backend_of(each) for each in groups]
    model: dict[int, int] = {}
    expected, pending = {}, []
    options = arrowstate.CheckpointOptions(max_concurrent=draw.randint(1, 3), tolerated_failures=99)
    writer = store.writer(compaction=policy)
    with writer.coordinator({"op": backends}, options=options, retention=None) as checkpoints:
        for _ in range(40):
            keys = [draw.randrange(3000) for _ in range(draw.choice((1, 50, 2000)))]
            numbers = arrowstate.key_groups(pa.array(keys), 128).to_pylist()
            for own, backend in zip(groups, backends, strict=True):
                mine = [key for key, number in zip(keys, numbers, strict=True) if own.start <= number <= own.end]
                backend.state(TOTAL).add_batch(pa.array(mine, pa.int64()), pa.array([1] * len(mine), pa.int64()))
            for key in keys:
                model[key] = model.get(key, 0) + 1
            if draw.random() < 0.4:
                place = tmp_path / f"saved-{len(pending)}"
                each = checkpoints.trigger() if draw.random() < 0.8 else checkpoints.trigger_savepoint(place)
                expected[each.checkpoint_id] = dict(model)
                pending.append(each)
            if pending and draw.random() < 0.1:
                draw.choice(pending).cancel()

    committed = 0
    for each in pending:
        try:
            snapshot = each.result()
        except arrowstate.CheckpointAbortedError:
            continue
        committed += 1
        rows = snapshot.to_arrow("op.total").to_pylist()
        assert {row["k"]: row["total"] for row in rows} == expected[each.checkpoint_id]
        assert snapshot.verify(deep=True).ok
    assert committed
    assert data_files(store) == referenced_files(store)


def test_two_coordinators_of_one_store_never_both_commit_a_number(store):
    first, second = backend_of(), backend_of()
    one = store.writer().coordinator({"op": [first]})
    other = store.writer().coordinator({"op": [second]})
    pending = [one.trigger(), other.trigger()]

    with pytest.raises(arrowstate.FencedError):
        pending[0].result()
    snapshot = pending[1].result()

    assert store.latest().entry == snapshot.entry
    assert store.storage.put_if_absent(path_of(snapshot.entry.number), b"x late", "late") is Outcome.LOST
    other.close()
    with pytest.raises(arrowstate.FencedError):
        one.close()


def in_a_forked_process(*acts):
    """Return what each act raises in a child of this process; one that hangs ends the child."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        told = []
        for act in acts:
            try:
                act()
                told.append("no error")
            except (arrowstate.ArrowStateError, LookupError) as error:
                told.append(f"{type(error).__name__}: {error}")
        os.write(writes, "\n".join(told).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as said:
        told = said.read().split("\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, told
    return told


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_writer_and_its_coordinator_refuse_a_forked_process_and_go_on_in_their_own(store):
    backend = backend_of()
    add(backend)
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        first = checkpoints.trigger()
        first.result()
        handle = store.subtask_writer("op", 0).write(backend)

        def fail_in_a_block():
            with checkpoints:
                raise LookupError("of the block")

        *told, of_the_block = in_a_forked_process(
            lambda: writer.checkpoint({"op": [backend]}),
            lambda: writer.commit([handle]),
            checkpoints.trigger,
            lambda: checkpoints.trigger_savepoint("other"),
            checkpoints.poll,
            checkpoints.cancel,
            checkpoints.close,
            first.result,
            fail_in_a_block,
        )

        refused = f"InvalidInputError: a StoreWriter belongs to the process that opened it, {os.getpid()},"
        assert [error for error in told if not error.startswith(refused)] == []
        assert of_the_block == "LookupError: of the block"
        add(backend)
        assert sum_of_totals(checkpoints.trigger().result()) == 2 * ROWS
    assert [snapshot.checkpoint_id for snapshot in store.checkpoints()] == [1, 2]
