"""Collections in portions: what they have in memory, which requests overlap, and what nobody may do beside them."""

import gc
import threading
import tracemalloc

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError
from arrowstate.log import commit_log
from arrowstate.log.boundary import boundaries, highest_boundary, put_boundary, read_boundary
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import path_of
from arrowstate.log.pins import put_lease, put_tag
from arrowstate.storage import open_storage
from arrowstate.store import StateStore
from arrowstate.testing.faults import Call, Crashed, Fault, FaultyStorage
from arrowstate.upkeep import collection, collection_plan, roots
from arrowstate.upkeep.planned import Portions
from arrowstate_formats.documents import BoundaryDocument
from benchmarks.collect import NEWEST, fill
from benchmarks.slow_storage import SlowStorage
from stores import commit, ids


@pytest.fixture(autouse=True)
def portions(monkeypatch):
    """Portions of 50 checkpoints, whose files are more than half of 50."""
    for module in (collection, collection_plan):
        monkeypatch.setattr(module, "DEFAULT_PORTIONS", Portions(entries=50, files=60))
    monkeypatch.setattr(roots, "_HELD_ENTRIES", 50)
    monkeypatch.setattr(commit_log, "_WINDOW", 50)
    monkeypatch.setattr(roots, "_MOST_KNOWN", 50)
    monkeypatch.setattr(roots, "_READ_AHEAD", 50)
    monkeypatch.setattr(collection, "_FEW_TAKEN", 100)


@pytest.fixture
def filled(tmp_path):
    return fill(tmp_path, 200)


def hooked(store, act, verb, prefix, nth=1):
    """The store of a process for which something happens before the n-th of such calls."""
    calls = []

    def choose(call: Call) -> None:
        if (call.verb, call.path.startswith(prefix)) == (verb, True):
            calls.append(call)
            if len(calls) == nth:
                act()

    return StateStore(FaultyStorage(store.storage, choose), store.store_id)


def test_what_goes_is_deleted_in_portions_and_counted(filled):
    collected = filled.collect(NEWEST)
    report = collected.apply()

    assert (collected.plan.dropped, collected.plan.further) == (tuple(range(1, 32)), 159)
    assert "and 159 checkpoints besides" in repr(collected)
    # Of the first portion: the entry of the fence, and of each checkpoint that and two files; the first has one.
    assert len(report.deleted) == len(collected.plan.deletions) == 1 + 3 * 31 - 1
    assert report.deleted_count == 191 + 189 + 190
    assert ids(filled) == list(range(191, 201))
    assert filled.verify(deep=True).problems == []
    assert filled.collect(NEWEST).plan.deletions == ()


def test_what_a_collection_has_in_memory_does_not_grow_with_the_checkpoints_that_go(tmp_path):
    peaks = {200: [], 600: []}
    # Threads read ahead, and how far differs from time to time: the lowest of three counts.
    for turn in range(3):
        for checkpoints, found in peaks.items():
            place = tmp_path / f"{checkpoints}-{turn}"
            place.mkdir()
            store = fill(place, checkpoints)
            # What other tests have left in memory has no say in when garbage goes.
            gc.collect()
            gc.freeze()
            tracemalloc.start()
            store.collect(NEWEST).apply()
            found.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            gc.unfreeze()
            assert ids(store) == list(range(checkpoints - 9, checkpoints + 1))
        if min(peaks[600]) < 1.3 * min(peaks[200]):
            break

    assert min(peaks[600]) < 1.3 * min(peaks[200])


class Overlapping(SlowStorage):
    """Counts how many calls of a method were under way at the same time."""

    def __init__(self, storage):
        super().__init__(storage)
        self.most = {}
        self._running = 0
        self._counting = threading.Lock()
        for verb in ("read", "exists", "delete"):
            setattr(self, verb, self._counted(verb, getattr(storage, verb)))

    def _counted(self, verb, real):
        others = threading.Semaphore(0)

        def call(*arguments):
            with self._counting:
                self._running += 1
                self.most[verb] = max(self.most.get(verb, 0), self._running)
            # Long enough for the others to begin.
            others.acquire(timeout=0.02)
            with self._counting:
                self._running -= 1
            return real(*arguments)

        return call


def test_requests_of_a_collection_overlap(filled):
    storage = Overlapping(filled.storage)

    StateStore(storage, filled.store_id).collect(NEWEST).apply()

    assert storage.most["read"] > 16
    assert storage.most["delete"] > 16


def test_requests_of_a_verification_overlap(tmp_path, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)
    store = arrowstate.open_store(tmp_path / "wide", create=True)
    backends = []
    for number in range(40):
        groups = arrowstate.key_group_range(40, parallelism=40, subtask=number)
        key = pa.schema([("key", pa.int64())])
        backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=40, key_groups=groups)
        keys = pa.array(range(2000), pa.int64())
        own = keys.filter(pa.array(arrowstate.key_groups(keys, 40).to_numpy() == number))
        backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(own, own)
        backends.append(backend)
    commit(store, {"job": backends})
    manifests = store.storage.list("manifests/")
    store.storage.delete(manifests[20])
    storage = Overlapping(store.storage)

    found = StateStore(storage, store.store_id).verify()

    assert len(manifests) == 40
    assert storage.most["read"] > 16
    (problem,) = found.problems
    assert manifests[20] in problem
    assert found.checkpoints[0].verification.runs == 39


def test_a_checkpoint_that_goes_with_a_later_portion_cannot_be_held_once_the_first_one_goes(filled):
    entry = CommitLog(filled.storage).committed_checkpoint(150)
    held = []

    def hold():
        held.append(put_lease(filled.storage, "late", 150, entry.as_parent, expires_at_ms=1 << 50))
        held.append(put_tag(filled.storage, "late", 150, entry.as_parent, files=(), tag_id="late", now_ms=0))
        with pytest.raises(CheckpointNotFoundError):
            filled.lease(150)

    hooked(filled, hold, "delete", "data/").collect(NEWEST).apply()

    assert held == [None, False]
    assert filled.storage.list("leases/") == filled.storage.list("tags/") == []
    assert filled.verify().problems == []


def test_a_checkpoint_that_is_held_before_its_entry_is_condemned_is_spared_and_may_be_held_anew(filled):
    held = []

    def hold():
        held.append(filled.lease(150))

    def renew():
        held[0].renew()

    store = hooked(filled, hold, "put_if_absent", "gc/")
    renewing = hooked(store, renew, "delete", "data/")
    report = renewing.collect(NEWEST).apply()

    with held[0]:
        assert path_of(151) in report.spared
        assert ids(filled) == [150, *range(191, 201)]
        assert filled.snapshot(150).verify(deep=True).ok
    assert filled.verify().problems == []


@pytest.mark.parametrize(
    ("verb", "nth"),
    [
        pytest.param("put_if_absent", 1, id="before anything is condemned"),
        pytest.param("delete", 1, id="when the first portion goes"),
        # Four documents condemn the entries, and each portion has two.
        pytest.param("put_if_absent", 4 + 2 * 3 + 1, id="right before its files are condemned"),
    ],
)
def test_a_commit_that_refers_to_files_that_go_saves_them(filled, verb, nth):
    # Of a job that goes back: the newest checkpoint shares no file with it.
    backend = filled.snapshot(120).restore("job")
    writer = filled.writer()
    committed = []

    def go_back():
        committed.append(writer.checkpoint({"job": [backend]}).checkpoint_id)

    prefix = "data/" if verb == "delete" else "gc/"
    hooked(filled, go_back, verb, prefix, nth).collect(NEWEST).apply()

    assert committed == [201]
    assert filled.latest().checkpoint_id == 201
    assert filled.latest().verify(deep=True).ok
    assert filled.verify().problems == []


def test_the_boundary_stands_where_nothing_but_log_entries_goes(tmp_path):
    store = arrowstate.open_store(tmp_path / "small", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("key", pa.int64())]), max_parallelism=8)
    with store.writer() as writer:
        for _ in range(120):
            writer.checkpoint({"job": [backend]})

    seen = []

    def look(_: Call) -> None:
        seen.append(highest_boundary(boundaries(store.storage)))

    StateStore(FaultyStorage(store.storage, look), store.store_id).collect(NEWEST).apply()

    assert store.storage.list("data/") == []
    assert seen == sorted(seen)
    assert set(seen) == {0, 112}
    assert [boundary.boundary for boundary in boundaries(store.storage)] == [112]
    assert ids(store) == list(range(111, 121))
    assert store.verify().problems == []


def test_the_boundary_stands_while_portions_go_and_after_a_death_at_any_of_them(tmp_path):
    boundary = 0
    for at in (1, 3, 60, 200, 400):
        (tmp_path / str(at)).mkdir()
        store = fill(tmp_path / str(at), 150)
        deletions = 0

        def die(call, at=at):
            nonlocal deletions
            deletions += call.verb == "delete"
            return Fault.CRASH_AFTER if deletions == at else None

        dying = StateStore(FaultyStorage(store.storage, die), store.store_id)
        with pytest.raises(Crashed):
            dying.collect(NEWEST).apply()

        boundary = highest_boundary(boundaries(store.storage))
        assert boundary == 142
        assert ids(store) == list(range(141, 151))
        store.collect(NEWEST).apply()
        assert highest_boundary(boundaries(store.storage)) == boundary
        assert len(store.storage.list("log/")) == 10
        store.collect(arrowstate.RetentionPolicy(count=5)).apply()
        assert not any(statement.condemns for statement in boundaries(store.storage))
        assert store.verify(deep=True).problems == []


def test_a_damaged_entry_among_those_that_go_ends_the_collection_before_anything_does(filled):
    there = filled.storage.list("")
    path = path_of(120)
    data = bytearray(filled.storage.read(path))
    data[len(data) // 2] ^= 1
    filled.storage.delete(path)
    with filled.storage.write_file(path) as file:
        file.write(bytes(data))

    with pytest.raises(CorruptDataError, match=path):
        filled.collect(NEWEST)

    assert filled.storage.list("") == there


def test_what_was_taken_is_said_until_the_log_has_gone_on(filled):
    filled.collect(NEWEST).apply()

    said = [read_boundary(filled.storage, boundary) for boundary in boundaries(filled.storage)]
    taken = [path for document in said for path in document.taken]
    assert (len(taken), len(set(taken))) == (189 + 190, 189 + 190)
    assert all(number == 201 for document in said for number in document.taken.values())

    filled.writer()
    filled.collect(arrowstate.RetentionPolicy(count=3)).apply()
    (last,) = boundaries(filled.storage)
    assert len(read_boundary(filled.storage, last).taken) == 2 * 7


def test_collections_in_portions_at_the_same_time_leave_what_one_would(filled):
    def other():
        filled.collect(NEWEST).apply()

    hooked(filled, other, "delete", "manifests/").collect(NEWEST).apply()

    assert ids(filled) == list(range(191, 201))
    assert filled.verify(deep=True).problems == []
    assert open_storage(filled.url).list("data/") == sorted(
        path
        for snapshot in filled.checkpoints()
        for path in [snapshot.entry.operators[0].subtasks[0].manifest.path]
        for path in [run_of(filled, path)]
    )


def take_the_newest(store):
    """What a collection does that looked at the log right before a commit which had looked at `gc/` before that."""
    backend = store.latest().restore("job")
    backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")).add_batch([1], [1])
    with store.writer() as writer:
        entry = writer.checkpoint({"job": [backend]}).entry
    manifest = entry.operators[0].subtasks[0].manifest.path
    said = {"boundary": 0, "swept": entry.number, "condemned": [], "waiting": {}, "taken": {manifest: entry.number}}
    put_boundary(store.storage, BoundaryDocument(collection_id="another", written_at_ms=0, **said))
    store.storage.delete(manifest)


@pytest.mark.parametrize(
    "nth",
    [
        pytest.param(1, id="before its look at what is kept"),
        # Four documents condemn the entries.
        pytest.param(4 + 1, id="before its look at what has come since"),
    ],
)
def test_an_entry_whose_files_another_collection_has_taken_meanwhile_is_no_damage(filled, nth, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)

    hooked(filled, lambda: take_the_newest(filled), "put_if_absent", "gc/", nth).collect(NEWEST).apply()

    # The newest is in doubt, so that it does not count.
    assert ids(filled) == [*range(191, 201), 201]
    with pytest.warns(RuntimeWarning, match="which was never acknowledged"):
        assert filled.latest_whole().checkpoint_id == 200


def run_of(store, manifest):
    data = store.storage.read(manifest).decode()
    return next(part for part in data.split('"') if part.startswith("data/"))
