"""Collection beside a writer: no commit waits for it, it fails nothing, and it stops when the writer is fenced."""

import logging
import threading

import pyarrow as pa
import pytest

import arrowstate
from arrowstate import CheckpointOptions, RetentionPolicy
from arrowstate.errors import CheckpointsCollectedError, InvalidInputError, StorageError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.timeline import steps_between
from arrowstate.runtime import GeneratorSource, Job, OutputTable
from arrowstate.storage import clear_memory_storage
from arrowstate.store import StateStore
from arrowstate.upkeep.beside import Collector, collector_of_writer
from arrowstate.upkeep.retention import DEFAULT_RETENTION
from benchmarks import retention
from stores import ids

SCHEMA = pa.schema([("n", pa.int64())])
HOUR = 3_600_000


@pytest.fixture
def store(request):
    url = f"memory://beside-{request.node.name}"
    clear_memory_storage(url)
    made = arrowstate.open_store(url, create=True)
    # All of a test is in one hour.
    return StateStore(made.storage, made.store_id, clock_ms=lambda: 500_000 * HOUR)


@pytest.fixture
def backend():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")).add_batch([1], [1])
    return backend


def test_a_coordinator_keeps_the_newest_ten_and_says_once_how_to_keep_more(store, backend, caplog):
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        for _ in range(40):
            checkpoints.trigger().result()

    assert ids(store) == list(range(31, 41))
    told = [record.getMessage() for record in caplog.records if "for the first time" in record.getMessage()]
    assert len(told) == 1
    assert "the newest 10 and the newest of each of the last 24 hours are kept" in told[0]
    assert "retention=None" in told[0]


def test_a_coordinator_without_a_retention_keeps_all(store, backend):
    with store.writer() as writer, writer.coordinator({"op": [backend]}, retention=None) as checkpoints:
        for _ in range(20):
            checkpoints.trigger().result()

    assert ids(store) == list(range(1, 21))
    assert store.storage.list("gc/") == []


def test_tags_leases_and_savepoints_stay_and_a_follower_without_a_lease_is_told(store, backend):
    with store.writer() as writer:
        for _ in range(3):
            writer.checkpoint({"op": [backend]})
        store.tag("gold", 1)
        with store.lease(3):
            with writer.coordinator({"op": [backend]}, retention=RetentionPolicy(count=2)) as checkpoints:
                for _ in range(5):
                    checkpoints.trigger().result()
                saved = checkpoints.trigger_savepoint("saved").result()
            kept = ids(store)
            with pytest.raises(
                CheckpointsCollectedError, match="after checkpoint 3 need it and every checkpoint since"
            ):
                steps_between(CommitLog(store.storage), 3, None)

    assert kept == [1, 3, 7, 8]
    assert saved.to_arrow("op.total").num_rows == 1
    assert store.snapshot(1).to_arrow("op.total").num_rows == 1


def test_a_lease_with_all_after_it_keeps_what_a_follower_has_not_read(store, backend):
    with store.writer() as writer:
        for _ in range(3):
            writer.checkpoint({"op": [backend]})
        with store.lease(2, and_later=True):
            with writer.coordinator({"op": [backend]}, retention=RetentionPolicy(count=1)) as checkpoints:
                for _ in range(4):
                    checkpoints.trigger().result()
            kept = ids(store)

    assert kept == [2, 3, 4, 5, 6, 7]


def test_no_commit_waits_for_a_collection(store, backend):
    began, may_end = threading.Event(), threading.Event()

    def slow():
        began.set()
        assert may_end.wait(60)
        return 0, 0

    collector = Collector(store.url, RetentionPolicy(), slow, rest=lambda _: None)
    collector.wake()
    assert began.wait(60)

    for _ in range(100):
        collector.wake()

    assert not may_end.is_set()
    assert sum(thread.name == "arrowstate-collection" for thread in threading.enumerate()) == 1
    may_end.set()
    collector.join()


def test_a_collection_that_fails_is_logged_and_the_job_goes_on(store, backend, monkeypatch, caplog):
    def broken(*_, **__):
        raise StorageError("gc", "Permission denied", "bucket")

    monkeypatch.setattr("arrowstate.upkeep.beside.collect_store", broken)

    with store.writer() as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        for _ in range(12):
            checkpoints.trigger().result()

    assert ids(store) == list(range(1, 13))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings
    assert all("a collection failed, the next goes on: gc: Permission denied" in each for each in warnings)


def test_a_writer_that_was_fenced_removes_nothing_more(store, backend):
    with store.writer() as writer:
        for _ in range(5):
            writer.checkpoint({"op": [backend]})
    collector = collector_of_writer(
        store.storage, RetentionPolicy(), epoch=writer.epoch, clock_ms=store.clock_ms, new_id=store.new_id
    )
    newer = store.writer()

    collector.wake()
    collector.join()
    before = ids(store)
    own = collector_of_writer(
        store.storage, RetentionPolicy(), epoch=newer.epoch, clock_ms=store.clock_ms, new_id=store.new_id
    )
    own.wake()
    own.join()

    assert (before, ids(store)) == ([1, 2, 3, 4, 5], [5])


def test_the_end_of_a_writer_does_not_wait_for_a_rest_and_collects_what_is_due(store):
    collected = threading.Semaphore(0)

    def collect():
        collected.release()
        return 0, 0

    # The rest after a collection of no time is none, so it is long by itself.
    collector = Collector(store.url, RetentionPolicy(), collect)
    rest, collector._rest = collector._rest, lambda _: rest(600)
    collector.wake()
    assert collected.acquire(timeout=60)
    collector.wake()

    collector.close(is_last_due=True)

    assert collected.acquire(blocking=False)
    assert not collected.acquire(blocking=False)


@pytest.mark.parametrize("given", [3, "all", 0, {"count": 1}])
def test_a_retention_that_is_none_is_refused(store, backend, given, tmp_path):
    with pytest.raises(InvalidInputError, match="retention must be a RetentionPolicy, .* or None, .* got"):
        Job(tmp_path / "store", retention=given)
    with store.writer() as writer, pytest.raises(InvalidInputError, match="retention must be a RetentionPolicy"):
        writer.coordinator({"op": [backend]}, retention=given)
    assert not (tmp_path / "store").exists()


def numbered(first, count):
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=SCHEMA)


@pytest.mark.parametrize("mode", ["inline", "threads"])
@pytest.mark.parametrize(
    ("options", "most"), [({}, 10 + 1), ({"retention": RetentionPolicy(count=2)}, 2), ({"retention": None}, None)]
)
def test_a_job_keeps_what_it_is_told(tmp_path, mode, options, most):
    job = Job(tmp_path / "store", options=CheckpointOptions(interval_ms=5), **options)
    source = job.source(GeneratorSource(numbered, SCHEMA, rows_per_second=1_000), uid="numbers")
    source.sink(OutputTable("copy"))

    with job.start(mode=mode) as running:
        for _ in range(15):
            running.checkpoint(timeout_ms=60_000)
        running.stop()

    kept = ids(arrowstate.open_store(tmp_path / "store"))
    assert len(kept) >= 15 if most is None else len(kept) <= most


@pytest.mark.parametrize(
    ("interval_ms", "most"), [(1_000, 10), (30 * 60_000, 10 + 24)], ids=["a second", "half an hour"]
)
def test_entries_and_files_of_a_job_are_bounded_however_long_it_runs(tmp_path, interval_ms, most):
    figures = retention.run(tmp_path, 70, interval_ms=interval_ms)

    assert figures.checkpoints <= figures.most_checkpoints <= most
    # The fence with which the job began goes too. A checkpoint of this job has at most five files of its own.
    assert figures.most_entries == figures.most_checkpoints
    assert figures.most_files <= 5 * most + 10


def test_the_default_is_ten_and_each_hour_of_a_day():
    assert Job("memory://default-retention").retention == DEFAULT_RETENTION == RetentionPolicy(count=10, hours=24)


def test_a_checkpoint_and_the_compactions_of_it_are_named_once(store):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    with store.writer(compaction=None) as writer:
        for keys in (range(10_000), range(8_000)):
            total.add_batch(keys, [1] * len(keys))
            writer.checkpoint({"op": [backend]})

    compacted = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1)).apply()

    assert compacted is not None
    assert ids(store) == [1, 2]
    assert store.checkpoints()[-1].entry.number == compacted.entry.number
