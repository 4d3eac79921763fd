"""What a callback is told of operations on a store, and that none of them can change how one ends."""

import contextvars
import logging
import sys
import threading

import pyarrow as pa
import pytest

import arrowstate
from arrowstate import CommitUnknownError, FencedError, InvalidInputError, StorageError
from arrowstate.log.entries import create_store
from arrowstate.storage import open_storage
from arrowstate.telemetry import OperationRecord, listen
from arrowstate.telemetry import records as telemetry_records
from arrowstate.testing import Fault, FaultyStorage
from processes import at_once
from stores import KEY, OFFSETS, TOTAL, commit

START_MS = 1_700_000_000_000


class Faults:
    """Fails the first call of a method on a path that begins so; a slow one waits for `may_go`."""

    def __init__(self):
        self.planned = {}
        self.may_go = threading.Event()

    def wait(self):
        assert self.may_go.wait(60), "the test never let it go"

    def __call__(self, call):
        for (verb, prefix), fault in self.planned.items():
            if call.verb == verb and call.path.startswith(prefix):
                del self.planned[verb, prefix]
                return fault
        return None


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def store(tmp_path, faults):
    storage = FaultyStorage(open_storage(str(tmp_path / "store"), create=True), faults, sleep=faults.wait)
    document = create_store(storage, "store", START_MS)
    return arrowstate.StateStore(storage, document.store_id, clock_ms=lambda: START_MS)


def subtasks(rows: int = 5000) -> list[arrowstate.KeyedStateBackend]:
    """Two subtasks of one operator, with that many rows together."""
    groups = arrowstate.key_groups(pa.array(range(rows)), 128).to_numpy()
    made = []
    for subtask in range(2):
        own = arrowstate.key_group_range(128, parallelism=2, subtask=subtask)
        backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=own)
        keys = pa.array([key for key in range(rows) if own.start <= groups[key] <= own.end])
        backend.state(TOTAL).add_batch(keys, pa.array([1] * len(keys)))
        made.append(backend)
    return made


def one() -> arrowstate.KeyedStateBackend:
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch(pa.array(range(4000)), pa.array([1] * 4000))
    return backend


@pytest.fixture
def told():
    """What is told to listeners of the process."""
    records: list[OperationRecord] = []
    stop = listen(records.append)
    yield records
    stop()


def test_listeners_that_come_and_go_in_several_threads_take_no_other_along(monkeypatch):
    monkeypatch.setattr(telemetry_records, "_listeners", ())
    kept = []

    def come_and_go(_):
        for _ in range(100):
            kept.append(listen(lambda _: None))
            listen(lambda _: None)()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        at_once(come_and_go, range(8))
    finally:
        sys.setswitchinterval(interval)

    assert len(telemetry_records._listeners) == len(kept) == 800


def test_a_checkpoint_is_told_once_with_its_times_bytes_rows_and_subtasks(store):
    records = []
    operator_state = arrowstate.OperatorStateBackend()
    operator_state.state(OFFSETS).add_all([7, 8])
    backends = subtasks()

    with store.writer(on_checkpoint=records.append) as writer:
        first = writer.checkpoint({"op": backends}, operator_states={"source": [operator_state]})
        writer.checkpoint({"op": backends}, operator_states={"source": [operator_state]})

    fresh, again = records
    assert (fresh.kind, fresh.outcome, fresh.error) == ("checkpoint", "completed", None)
    assert (fresh.checkpoint_id, fresh.store, fresh.started_at_ms) == (first.checkpoint_id, store.url, START_MS)
    assert [(part.operator, part.subtask) for part in fresh.parts] == [("op", 0), ("op", 1), ("source", None)]
    assert [part.rows is None for part in fresh.parts] == [False, False, True]
    assert fresh.rows == sum(part.rows or 0 for part in fresh.parts) == 5000
    assert fresh.bytes_written == sum(part.bytes_written for part in fresh.parts) == fresh.bytes_total > 5000
    assert fresh.files_written == sum(part.files_written for part in fresh.parts) >= 2
    assert (again.bytes_written, again.files_written) == (0, 0)
    assert again.bytes_total == fresh.bytes_total
    for record in records:
        assert record.freeze_us == sum(part.freeze_us for part in record.parts)
        assert record.write_us <= record.duration_us
        assert record.freeze_us + record.write_us + record.commit_us <= record.duration_us
        after = [part.write_after_us for part in record.parts]
        assert after == sorted(after)
        assert record.alignment_us is None


def test_a_checkpoint_that_cannot_be_written_is_told_with_its_error_and_what_was_written(store, faults):
    records = []
    with store.writer(on_checkpoint=records.append) as writer:
        faults.planned["put_if_absent", "log/"] = Fault.FAIL_BEFORE

        with pytest.raises(StorageError) as raised:
            writer.checkpoint({"op": [one()]})

    (record,) = records
    assert (record.outcome, record.error, record.checkpoint_id) == ("failed", raised.value, None)
    assert record.rows == 4000


def test_a_checkpoint_that_cannot_be_frozen_is_told(store):
    records = []
    first, _ = subtasks()

    with store.writer(on_checkpoint=records.append) as writer, pytest.raises(InvalidInputError):
        writer.checkpoint({"op": [first]})

    (record,) = records
    assert (record.outcome, record.parts, record.rows, record.freeze_us) == ("failed", (), None, None)


def test_a_checkpoint_of_which_nobody_knows_whether_it_was_committed_is_told_so(store, faults):
    records = []
    with store.writer(on_checkpoint=records.append) as writer:
        faults.planned["put_if_absent", "log/"] = Fault.FAIL_AFTER

        with pytest.raises(CommitUnknownError):
            writer.checkpoint({"op": [one()]})

    assert [record.outcome for record in records] == ["unknown"]


def test_a_callback_that_raises_is_logged_and_the_checkpoint_stands(store, caplog):
    backend = one()

    def fails(record):
        raise ValueError("no such dashboard")

    with store.writer(on_checkpoint=fails) as writer:
        snapshot = writer.checkpoint({"op": [backend]})
        with writer.coordinator({"op": [backend]}) as checkpoints:
            later = checkpoints.trigger().result()

    assert store.latest().checkpoint_id == later.checkpoint_id > snapshot.checkpoint_id
    logged = [record for record in caplog.records if record.name == "arrowstate.telemetry"]
    assert [record.levelno for record in logged] == [logging.ERROR] * 2
    assert all("no such dashboard" in record.exc_text for record in logged)


def test_a_callback_that_raises_hides_no_error_of_the_checkpoint(store, faults):
    def fails(record):
        raise ValueError("no such dashboard")

    with store.writer(on_checkpoint=fails) as writer:
        faults.planned["put_if_absent", "log/"] = Fault.FAIL_BEFORE

        with pytest.raises(StorageError):
            writer.checkpoint({"op": [one()]})


def test_a_coordinator_tells_of_checkpoints_and_savepoints_in_the_thread_of_the_job(store):
    records = []
    threads = []

    def note(record):
        records.append(record)
        threads.append(threading.current_thread())

    with store.writer(on_checkpoint=note) as writer, writer.coordinator({"op": subtasks()}) as checkpoints:
        first = checkpoints.trigger().result()
        savepoint = checkpoints.trigger_savepoint("named")
        savepoint.result()

    checkpoint, saved = records
    assert (checkpoint.kind, checkpoint.outcome, checkpoint.checkpoint_id) == (
        "checkpoint",
        "completed",
        first.checkpoint_id,
    )
    assert sorted(part.subtask for part in checkpoint.parts) == [0, 1]
    assert checkpoint.rows == 5000
    assert 0 < checkpoint.commit_us <= checkpoint.duration_us
    assert 0 < checkpoint.write_us <= checkpoint.duration_us
    assert (saved.kind, saved.outcome, saved.checkpoint_id) == ("savepoint", "completed", savepoint.checkpoint_id)
    assert [(part.operator, part.subtask, part.rows is None) for part in saved.parts] == [
        ("op", 0, False),
        ("op", 1, False),
    ]
    assert (saved.rows, saved.files_written) == (5000, 2)
    assert saved.bytes_written == savepoint_bytes(savepoint.result())
    assert set(threads) == {threading.current_thread()}


def savepoint_bytes(savepoint: arrowstate.Snapshot) -> int:
    """The size of its files, and of what is small and stands in its log entry."""
    return savepoint.storage_use().bytes


def test_a_savepoint_and_restores_tell_the_bytes_of_operator_state(store, told):
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).add_all(range(10_000))
    snapshot = commit(store, {}, operator_states={"source": [backend]})

    saved = store.savepoint("kept")
    whole = snapshot.restore_operator_state("source")
    snapshot.restore_operator_state("source", parallelism=2)

    checkpoint, savepoint, restore, half = told
    assert [(part.operator, part.subtask, part.files_written) for part in savepoint.parts] == [("source", None, 1)]
    assert savepoint.bytes_written == savepoint_bytes(saved) == checkpoint.bytes_total > 80_000
    assert restore.bytes_total == half.bytes_total == checkpoint.bytes_total
    assert restore.rows is None
    assert len(whole.state(OFFSETS).get()) == 10_000


def test_a_savepoint_that_fails_tells_what_was_written_before(store, told):
    commit(store, {"first": [one()], "second": [one()]})

    def fail(done, _):
        if done == 2:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        store.savepoint("kept", progress=fail)

    assert [(record.kind, record.outcome) for record in told] == [("checkpoint", "completed"), ("savepoint", "failed")]
    assert [part.operator for part in told[1].parts] == ["first"]


def test_a_coordinator_tells_apart_what_failed_and_what_was_given_up(store, faults):
    records = []
    options = arrowstate.CheckpointOptions(tolerated_failures=5)
    backend = one()
    with (
        store.writer(on_checkpoint=records.append) as writer,
        writer.coordinator({"op": [backend]}, options=options) as checkpoints,
    ):
        faults.planned["write_file", "data/"] = Fault.FAIL_BEFORE
        with pytest.raises(arrowstate.CheckpointAbortedError) as failed:
            checkpoints.trigger().result()
        backend.state(TOTAL).add_batch(pa.array(range(4000)), pa.array([1] * 4000))
        faults.planned["write_file", "data/"] = Fault.SLOW
        pending = checkpoints.trigger()
        pending.cancel("enough")
        faults.may_go.set()
        checkpoints.trigger().result()

    assert [record.outcome for record in records] == ["failed", "aborted", "completed"]
    assert records[0].error is failed.value
    assert isinstance(records[0].error.__cause__, StorageError)


def test_a_coordinator_whose_store_was_taken_over_tells_that(store):
    records = []
    with (
        pytest.raises(FencedError),
        store.writer(on_checkpoint=records.append) as writer,
        writer.coordinator({"op": [one()]}) as checkpoints,
    ):
        store.writer()
        checkpoints.trigger().result()

    (record,) = records
    assert record.outcome == "failed"
    assert isinstance(record.error, FencedError)


def test_a_coordinator_whose_backends_cannot_be_frozen_tells_that(store):
    records = []
    first, _ = subtasks()
    with (
        pytest.raises(InvalidInputError) as raised,
        store.writer(on_checkpoint=records.append) as writer,
        writer.coordinator({"op": [first]}) as checkpoints,
    ):
        checkpoints.trigger()

    (record,) = records
    assert (record.outcome, record.error) == ("failed", raised.value)


def test_a_callback_finds_the_context_in_which_its_checkpoint_began(store):
    of_batch = contextvars.ContextVar("of_batch", default=0)
    seen = []
    with (
        store.writer(on_checkpoint=lambda record: seen.append(of_batch.get())) as writer,
        writer.coordinator({"op": [one()]}) as checkpoints,
    ):
        of_batch.set(1)
        pending = checkpoints.trigger()
        of_batch.set(2)
        pending.result()
        checkpoints.poll()

    assert seen == [1]


def test_listeners_are_told_of_restores_savepoints_imports_compactions_and_collections(store, told, tmp_path):
    backend = one()
    with store.writer(compaction=None) as writer:
        writer.checkpoint({"op": [backend]})
        backend.state(TOTAL).clear_batch(pa.array(range(3500)))
        newest = writer.checkpoint({"op": [backend]})
    newest.restore("op", parallelism=2, subtask=1)
    saved = store.savepoint("kept")
    other = arrowstate.open_store(tmp_path / "other", create=True)
    imported = other.import_savepoint(f"{store.url}/savepoints/kept")
    compacted = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1, min_bytes=0)).apply()
    store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1, min_bytes=0)).apply()
    store.collect(arrowstate.RetentionPolicy(count=1)).apply()

    kinds = [record.kind for record in told]
    assert kinds == ["checkpoint", "checkpoint", "restore", "savepoint", "import", "compaction", "collection"]
    assert {record.outcome for record in told} == {"completed"}
    _, _, restore, savepoint, brought, compaction, collection = told
    assert (restore.parts[0].operator, restore.parts[0].subtask) == ("op", 1)
    assert 0 < restore.rows < 500
    assert 0 < restore.bytes_total < told[0].bytes_total
    assert restore.bytes_written is None
    assert savepoint.rows == 500
    assert savepoint.bytes_written == savepoint.bytes_total == savepoint_bytes(saved) > 500
    assert restore.checkpoint_id == savepoint.checkpoint_id == newest.checkpoint_id
    assert (brought.store, brought.checkpoint_id) == (other.url, imported.checkpoint_id)
    assert (compaction.checkpoint_id, compaction.rows) == (compacted.checkpoint_id, 500)
    assert compaction.bytes_written > 500
    assert collection.files_deleted > 0
    assert collection.bytes_deleted > 0


def test_a_restore_that_fails_is_told(store, told):
    snapshot = commit(store, {"op": [one()]})

    with pytest.raises(arrowstate.OperatorNotFoundError):
        snapshot.restore("no such operator")

    assert [(record.kind, record.outcome) for record in told] == [("checkpoint", "completed"), ("restore", "failed")]


def test_nobody_is_told_after_the_end(store):
    records = []
    stop = listen(records.append)
    again = listen(records.append)
    stop()

    with store.writer() as writer:
        writer.checkpoint({"op": [one()]})
        again()
        writer.checkpoint({"op": [one()]})

    assert [record.kind for record in records] == ["checkpoint"]


def test_a_compaction_that_fails_is_told(store, faults, told):
    backend = one()
    with store.writer(compaction=None) as writer:
        writer.checkpoint({"op": [backend]})
        backend.state(TOTAL).clear_batch(pa.array(range(3500)))
        writer.checkpoint({"op": [backend]})
    plan = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1, min_bytes=0))
    faults.planned["put_if_absent", "log/"] = Fault.FAIL_BEFORE

    with pytest.raises(StorageError):
        plan.apply()

    assert [(record.kind, record.outcome) for record in told][-1] == ("compaction", "failed")
