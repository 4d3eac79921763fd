"""Compaction of a store at rest: the same content in other files, whoever commits, collects or dies meanwhile."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.reading import subtask_runs
from arrowstate.files.references import ReferenceReader
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import create_store
from arrowstate.query.kept_reads import forget_checkpoints
from arrowstate.storage import clear_memory_storage, open_storage
from processes import python
from storages import Crash, Hooked
from stores import NOTE, OFFSETS, TOTAL, backend_of, ids

STATES = [
    TOTAL,
    NOTE,
    arrowstate.ListStateDescriptor("visits", pa.int64()),
    arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64()),
    arrowstate.AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean"),
    arrowstate.ValueStateDescriptor("seen", pa.int64(), ttl=arrowstate.TimeToLive(1000)),
]
PATIENT = arrowstate.MergePolicy(fan_in=10_000, max_dead_share=1.0)
TIGHT = arrowstate.CompactionPolicy(1.05, max_small_files=1, min_bytes=0)
KEYS = 8000


class World:
    """A store, a clock that is set by hand, and a job of several subtasks with its model."""

    def __init__(self, storage, parallelism=2):
        self.storage = storage
        self.now_ms = 1_000_000
        self.ids = itertools.count()
        create_store(storage, "store", 0)
        self.store, _ = self.process()
        self.random = np.random.default_rng(1)
        self.total = np.zeros(KEYS, dtype=np.int64)
        self.backends = [
            backend_of(
                key_groups=arrowstate.key_group_range(128, parallelism=parallelism, subtask=n),
                merge_policy=PATIENT,
                clock_ms=lambda: self.now_ms,
            )
            for n in range(parallelism)
        ]
        self.writer = self.store.writer(compaction=None)

    def new_id(self):
        return f"{id(self):x}-{next(self.ids):06}"

    def process(self):
        hooked = Hooked(self.storage)
        return arrowstate.StateStore(hooked, "store", clock_ms=lambda: self.now_ms, new_id=self.new_id), hooked

    def add(self, keys, value):
        self.total[keys] += value
        for backend in self.backends:
            hashes = backend_hashes(keys)
            low, high = backend.key_groups.hash_bounds(128)
            own = keys[(hashes >= low) & (hashes <= high)]
            backend.state(TOTAL).add_batch(pa.array(own), np.full(own.size, value))

    def clear(self, keys):
        self.total[keys] = 0
        for backend in self.backends:
            hashes = backend_hashes(keys)
            low, high = backend.key_groups.hash_bounds(128)
            backend.state(TOTAL).clear_batch(pa.array(keys[(hashes >= low) & (hashes <= high)]))

    def checkpoint(self, **options):
        return self.writer.checkpoint({"op": self.backends}, **options)

    def churn(self, rounds=3):
        for _ in range(rounds):
            self.add(np.unique(self.random.integers(0, KEYS, KEYS // 2)), int(self.random.integers(1, 9)))
            snapshot = self.checkpoint(properties={"offset": int(self.total.sum())}, watermark=77)
        return snapshot

    def collect(self, count=1):
        self.store.collect(arrowstate.RetentionPolicy(count), grace_ms=0, allow_short_grace=True).apply()

    def entry(self, number):
        """The snapshot of the log entry of a number, of several that repeat a checkpoint."""
        return self.store.snapshot_of(CommitLog(self.storage).read(number).document)

    def check(self, snapshot=None):
        """Compare a checkpoint, the newest by default, with what the job has."""
        forget_open_files()
        forget_checkpoints()
        snapshot = snapshot or self.store.latest()
        assert snapshot.verify(deep=True).problems == []
        table = snapshot.to_arrow("op.total")
        found = np.zeros(KEYS, dtype=np.int64)
        found[table["k"].to_numpy()] = table["total"].to_numpy()
        assert (found == self.total).all()

    def files(self, *folders):
        return {path for path in self.storage.list("") if not folders or path.startswith(folders)}

    def orphans(self):
        reader = ReferenceReader(self.storage)
        entries = [CommitLog(self.storage).read(number).document for number in CommitLog(self.storage).numbers()]
        return self.files("data/", "manifests/") - {path for e in entries for path in reader.files(e.operators)}


def backend_hashes(keys):
    return arrowstate.key_hash(pa.array(keys)).to_numpy()


@pytest.fixture(params=["local", "memory"])
def world(request, tmp_path):
    url = str(tmp_path / "store") if request.param == "local" else "memory://store-compaction"
    yield World(open_storage(url, create=True))
    if request.param == "memory":
        clear_memory_storage(url)


def run_count(snapshot, state="total"):
    (operator,) = snapshot.entry.operators
    return sum(len(subtask_runs(snapshot.storage, operator, item).get(state, [])) for item in operator.subtasks)


def test_a_compaction_is_the_newest_checkpoint_once_more(world):
    before = world.churn()

    compaction = world.store.compact(TIGHT)
    after = compaction.apply()

    assert (after.entry.kind, after.checkpoint_id, after.entry.number) == ("compaction", 3, 5)
    assert after.entry.writer_epoch == before.entry.writer_epoch
    assert (after.properties, after.watermark) == (before.properties, 77)
    assert world.store.latest().checkpoint_id == 3
    world.check()
    world.check(before)
    assert run_count(before) == 6
    assert run_count(after) == 2
    assert after.storage_use().space_amplification < 1.05 < before.storage_use().space_amplification
    assert compaction.plan.use == before.storage_use()
    assert world.store.compact(TIGHT).plan.merges == ()
    assert world.orphans() == set()
    assert not world.files("leases/")


def test_every_kind_of_state_reads_the_same_and_so_does_what_is_restored(world):
    backend = backend_of(max_parallelism=16, merge_policy=PATIENT, clock_ms=lambda: world.now_ms)
    offsets = arrowstate.OperatorStateBackend()
    offsets.state(OFFSETS).add_all([1, 2, 3])
    timers = backend.timers("alarm")
    for turn in range(4):
        keys = list(range(turn * 100, turn * 100 + 300))
        backend.state(STATES[0]).add_batch(keys, [turn] * 300)
        backend.state(STATES[1]).update_batch(keys, [f"{turn} {key}" for key in keys])
        backend.state(STATES[2]).add_batch(keys, keys)
        backend.state(STATES[3]).put_batch(keys, [f"item {key % 3}" for key in keys], keys)
        backend.state(STATES[4]).add_batch(keys, [float(turn)] * 300)
        backend.state(STATES[5]).update_batch(keys, keys)
        timers.register_batch(keys, [turn * 10 + key for key in keys], clock="event_time")
        world.writer.checkpoint({"op": [backend]}, operator_states={"op": [offsets]}, allow_dropped_state=True)
    before = world.store.latest()

    after = world.store.compact(arrowstate.CompactionPolicy(1.001, min_bytes=0)).apply()

    assert after.verify(deep=True).problems == []
    for state in before.states():
        was, now = (run_count(item, state.split(".")[1]) for item in (before, after))
        assert now < was or was == 0
        rows = [sorted(item.to_arrow(state).to_pylist(), key=str) for item in (before, after)]
        assert rows[0] == rows[1]
    assert after.operator_state("op", "offsets").equals(before.operator_state("op", "offsets"))
    restored = [item.restore("op", clock_ms=lambda: world.now_ms) for item in (before, after)]
    everything = list(range(700))
    for state in STATES:
        if state.kind == "map":
            found = [backend.state(state).entries_batch(everything).to_pylist() for backend in restored]
            found = [[sorted(entries) for entries in each] for each in found]
        else:
            found = [backend.state(state).get_batch(everything).to_pylist() for backend in restored]
        assert found[0] == found[1]
    fired = [backend.timers("alarm").pop_due(10**6, clock="event_time").to_pylist() for backend in restored]
    assert fired[0] == fired[1] != []


def test_the_running_writer_goes_on_after_a_compaction(world):
    world.churn()
    world.store.compact(TIGHT).apply()

    for _ in range(2):
        world.add(np.arange(100), 5)
        snapshot = world.checkpoint()

    assert (snapshot.checkpoint_id, snapshot.entry.writer_epoch) == (5, 1)
    world.check()


def test_a_compaction_after_a_fence_belongs_to_the_epoch_of_the_fence(world):
    before = world.churn()
    new = world.store.writer()

    after = world.store.compact(TIGHT).apply()

    assert (after.entry.writer_epoch, after.properties) == (2, before.properties)
    with pytest.raises(arrowstate.FencedError):
        world.checkpoint()
    world.backends = [after.restore("op", parallelism=3, subtask=n) for n in range(3)]
    world.writer = new
    world.add(np.arange(500), 3)
    world.checkpoint()
    world.check()


def commit_in_between(world, *acts):
    """Let the job act before each of the next commits of another process; return that process's store."""
    other, hooked = world.process()
    for act in reversed(acts):
        inner = list(hooked.before)

        def hook(act=act, inner=inner):
            act()
            hooked.before.extend(inner)

        hooked.before = [("put_if_absent", "log/", hook)]
    return other


def test_rows_that_died_before_the_commit_stay_dead(world):
    world.churn()

    def act():
        world.add(np.arange(0, KEYS, 3), 1000)
        world.clear(np.arange(1, KEYS, 30))
        world.checkpoint(properties={"offset": "later"})

    after = commit_in_between(world, act, act).compact(TIGHT).apply()

    assert (after.checkpoint_id, after.properties) == (5, {"offset": "later"})
    assert run_count(after) < run_count(world.entry(6))
    world.check(after)
    assert world.orphans() == set()


def merge_all(backend):
    """Let a subtask merge its runs itself."""
    table = backend.states["total"].table
    merge = table.begin_merge(table.runs)
    merge.run()
    assert table.adopt(merge)


def test_a_merge_whose_runs_are_gone_is_dropped_and_the_others_are_not(world):
    world.churn()

    def act():
        merge_all(world.backends[0])
        world.checkpoint()

    after = commit_in_between(world, act).compact(TIGHT).apply()

    assert (after.checkpoint_id, after.entry.number) == (4, 6)
    assert run_count(world.entry(5)) == 1 + 3
    assert run_count(after) == 1 + 1
    world.check()
    assert world.orphans() == set()


def test_where_nothing_of_the_plan_is_left_nothing_is_committed(world):
    world.churn()
    compaction = world.store.compact(TIGHT)
    world.backends = [world.store.latest().restore("op", parallelism=3, subtask=n) for n in range(3)]
    before = world.checkpoint()

    assert compaction.apply() is None

    assert world.store.latest().entry == before.entry
    assert world.orphans() == set()
    world.check()


def test_a_plan_may_be_older_than_the_newest_checkpoint(world):
    world.churn()
    compaction = world.store.compact(TIGHT)
    world.add(np.arange(500), 7)
    world.checkpoint(properties={"offset": 9})

    after = compaction.apply()

    assert after.properties == {"offset": 9}
    assert run_count(after) < run_count(world.entry(after.entry.number - 1))
    world.check(after)


def test_a_compaction_that_always_loses_gives_up_and_leaves_nothing(world):
    world.churn()

    def act():
        world.add(np.arange(10), 1)
        world.checkpoint()

    with pytest.raises(arrowstate.CompactionConflictError, match="took the next log number 5 times"):
        commit_in_between(world, *[act] * 5).compact(TIGHT).apply()

    assert world.orphans() == set()
    assert not world.files("leases/")
    assert world.store.latest().entry.kind == "checkpoint"
    world.check()


def test_a_crash_at_any_call_leaves_the_store_as_it_was_or_compacted(tmp_path):
    for crash_at in itertools.count():
        url = f"memory://compaction-crash-{crash_at}"
        world = World(open_storage(url, create=True))
        world.churn()
        other, hooked = world.process()
        compaction = other.compact(TIGHT)
        hooked.calls.clear()
        hooked.crash_at = crash_at
        done = False
        try:
            compaction.apply()
            done = True
        except (Crash, arrowstate.CommitUnknownError):
            pass

        newest = CommitLog(world.storage).latest().document
        assert newest.kind == "compaction" or not done
        world.check()
        # What is left over is found, and the lease ends.
        world.now_ms += 24 * 3600 * 1000
        for _ in range(2):
            world.collect()
        assert world.orphans() == set()
        assert not world.files("leases/")
        world.add(np.arange(100), 1)
        try:
            world.checkpoint()
        except arrowstate.CollectedError:
            world.checkpoint()
        world.check()
        clear_memory_storage(url)
        if done:
            assert crash_at >= 18
            break


def test_a_collection_in_the_middle_takes_nothing_that_is_needed(world):
    world.churn()
    other, hooked = world.process()

    def collect():
        world.add(np.arange(50), 1)
        world.checkpoint()
        world.store.collect(arrowstate.RetentionPolicy(1), grace_ms=10_000, allow_short_grace=True).apply()

    compaction = other.compact(TIGHT)
    hooked.act_before("write_file", "data/", collect)
    after = compaction.apply()

    assert after is not None
    world.check(after)
    world.collect()
    world.check()
    assert ids(world.store) == [after.checkpoint_id]


def test_what_is_merged_is_not_collected_meanwhile(world):
    world.churn()
    other, hooked = world.process()

    def let_go_and_collect():
        for backend in world.backends:
            merge_all(backend)
        world.checkpoint()
        world.collect()

    compaction = other.compact(TIGHT)
    # After the first merge was read, and before the second one is.
    hooked.act_before("write_file", "data/", let_go_and_collect)
    assert compaction.apply() is None

    world.check()
    world.collect()
    assert ids(world.store) == [4]


def test_a_compaction_whose_files_were_collected_as_garbage_commits_nothing(world):
    before = world.churn()
    other, hooked = world.process()
    compaction = other.compact(TIGHT)
    # The merged runs are written, and nothing refers to them yet.
    hooked.act_before("read", "_latest", lambda: world.collect(count=9))

    with pytest.raises(arrowstate.CollectedError):
        compaction.apply()

    assert world.store.latest().entry == before.entry
    assert world.orphans() == set()
    world.check()


def test_after_a_collection_the_writer_is_told_once_and_writes_its_runs_anew(world):
    world.churn()
    world.store.compact(TIGHT).apply()
    world.collect()
    assert [snapshot.entry.kind for snapshot in world.store.checkpoints()] == ["compaction"]
    world.add(np.arange(50), 1)

    with pytest.raises(arrowstate.CollectedError):
        world.checkpoint()
    world.checkpoint()

    world.check()


def test_within_the_grace_period_the_writer_is_not_told_anything(world):
    world.churn()
    world.store.compact(TIGHT).apply()
    world.store.collect(arrowstate.RetentionPolicy(1)).apply()
    world.add(np.arange(50), 1)

    world.checkpoint()
    world.store.collect(arrowstate.RetentionPolicy(1)).apply()

    assert ids(world.store) == [4]
    world.check()


def test_a_writer_a_collector_and_a_compactor_in_processes_of_their_own_lose_nothing(tmp_path):
    script = Path(__file__).with_name("compaction_racers.py")

    ran = python(script, tmp_path / "store", "50")

    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert "failed" not in result, ran.stderr
    assert result["batches"] == 50
    assert result["compactions"] > 0
    assert result["deleted"] > 0


def test_a_compaction_that_slept_through_a_collection_does_not_report_success(world):
    """It takes a number that was free again; what others committed since is not undone."""
    world.churn()
    other, hooked = world.process()

    def others_go_on():
        for _ in range(2):
            world.add(np.arange(KEYS), 1)
            world.checkpoint()
        # The lease has ended by then.
        world.now_ms += 24 * 3600 * 1000
        world.collect()

    compaction = other.compact(TIGHT)
    hooked.act_before("put_if_absent", "log/", others_go_on)
    with pytest.raises(arrowstate.CommitUnknownError, match="others have gone on"):
        compaction.apply()

    assert world.store.latest().entry.number == 6
    world.check()


def test_a_storage_that_fails_leaves_nothing(world):
    world.churn()
    before = world.files("data/", "manifests/")
    other, hooked = world.process()
    compaction = other.compact(TIGHT)
    hooked.act_before("put_if_absent", "log/", arrowstate.StorageError("log/5.json", "permission denied"))
    with pytest.raises(arrowstate.StorageError, match="permission denied"):
        compaction.apply()

    assert world.files("data/", "manifests/") == before
    assert not world.files("leases/")


def test_an_unknown_outcome_leaves_the_files(world):
    world.churn()
    other, hooked = world.process()
    compaction = other.compact(TIGHT)
    lost = arrowstate.CommitUnknownError("log/5.json", "id", "the connection was lost")
    hooked.act_before("put_if_absent", "log/", lost)
    with pytest.raises(arrowstate.CommitUnknownError):
        compaction.apply()

    assert len(world.orphans()) > 0


def test_a_store_without_a_checkpoint_has_nothing_to_compact(world):
    with pytest.raises(arrowstate.CheckpointNotFoundError):
        world.store.compact()


def test_a_parquet_checkpoint_is_compacted_into_parquet(world):
    world.add(np.arange(KEYS), 1)
    world.checkpoint(format="parquet")
    world.add(np.arange(0, KEYS, 2), 1)
    world.checkpoint(format="parquet")

    after = world.store.compact(arrowstate.CompactionPolicy(1.01)).apply()

    (operator,) = after.entry.operators
    formats = {r.format for item in operator.subtasks for r in subtask_runs(world.storage, operator, item)["total"]}
    assert formats == {"parquet"}
    world.check()


def test_a_savepoint_folder_can_be_compacted(world, tmp_path):
    world.churn()
    savepoint = world.store.savepoint(str(tmp_path / "copy"))
    store = arrowstate.StateStore(savepoint.storage, savepoint.store_id, clock_ms=lambda: 0, new_id=world.new_id)
    with store.writer(compaction=None) as writer:
        world.backends = [savepoint.restore("op")]
        world.writer = writer
        world.add(np.arange(1000), 4)
        world.checkpoint()

    assert store.compact(arrowstate.CompactionPolicy(1.01)).apply().entry.kind == "compaction"

    world.check(store.latest())
