"""Collection: what is needed is never deleted, whoever commits, tags, reads or collects at the same time.

The other side acts at a chosen call of the storage, so each dangerous interleaving is one test.
"""

import functools
import io
import itertools
import json
import os
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.references import ReferenceReader
from arrowstate.files.writing import RunWriter
from arrowstate.log.boundary import boundaries, put_boundary, read_boundary
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import create_store, path_of
from arrowstate.log.leases import LONGEST_LEASE_MS, CheckpointLease
from arrowstate.log.pins import put_tag, read_pins
from arrowstate.log.timeline import steps_between
from arrowstate.storage import clear_memory_storage, local, open_storage
from arrowstate.upkeep import collection, collection_plan
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.planned import Portions
from arrowstate_formats import documents
from arrowstate_formats.documents import TagDocument, encode
from storages import Crash, Hooked
from stores import OFFSETS, TOTAL, backend_of, ids, sum_of_totals, totals_from, write

NEWEST = arrowstate.RetentionPolicy(count=1)
GRACE = 1000


class World:
    """One store, a clock that is set by hand, and as many processes as a test needs."""

    def __init__(self, storage):
        self.storage = storage
        self.now_ms = 1_000_000
        self._ids = itertools.count()
        # What this process keeps of checkpoints it knows by their commit ids.
        self._prefix = uuid.uuid4().hex
        # A savepoint was a store before.
        self.store_id = create_store(storage, "store", 0).store_id
        self.store = self.process()[0]

    def new_id(self):
        return f"{self._prefix}-{next(self._ids):06}"

    def process(self):
        """A store as another process has it, and the storage in which to hook."""
        hooked = Hooked(self.storage)
        return arrowstate.StateStore(hooked, self.store_id, clock_ms=lambda: self.now_ms, new_id=self.new_id), hooked

    def collect(self, policy=NEWEST, grace_ms=GRACE, storage=None):
        storage = storage or self.storage
        plan = plan_collection(storage, policy, now_ms=self.now_ms, grace_ms=grace_ms)
        return apply_collection(storage, plan, now_ms=self.now_ms, new_id=self.new_id)

    def collect_orphans(self):
        """Two collections, with the grace period between them."""
        self.collect()
        self.now_ms += GRACE
        return self.collect()

    def files(self, *folders):
        return {path for path in self.storage.list("") if not folders or path.startswith(folders)}

    def referenced(self):
        """Every file that the log and what is kept below the boundary needs, found by what the log says alone."""
        reader = ReferenceReader(self.storage)
        return {
            path for snapshot in self.store.checkpoints() for path in reader.files(snapshot.entry.operators)
        }  # fmt: skip

    def checkpoint(self, writer, start):
        return writer.checkpoint({"op": [totals_from(start)]})


def expected(start, count=3000):
    return sum(range(start, start + count))


@pytest.fixture(params=["local", "memory"])
def world(request, tmp_path):
    url = str(tmp_path / "store") if request.param == "local" else "memory://collection-tests"
    yield World(open_storage(url, create=True))
    if request.param == "memory":
        clear_memory_storage(url)


WHOLE = "whole"
PORTIONS = "portions"


@pytest.fixture(params=[WHOLE, PORTIONS], autouse=True)
def size(request, monkeypatch):
    """Collections go on in one step, and in portions of two checkpoints or three files.

    A test that is about the steps of one of them, or what a plan says of all files, says so by `at_once`.
    """
    if request.param == PORTIONS:
        if request.function in AT_ONCE:
            pytest.skip("of a collection in one step")  # The same steps do not exist in portions.
        for module in (collection, collection_plan):
            monkeypatch.setattr(module, "DEFAULT_PORTIONS", Portions(entries=2, files=3))


AT_ONCE = []


def at_once(test):
    """Say that a test is of a collection in one step."""
    AT_ONCE.append(test)
    return test


@pytest.fixture
def filled(world):
    """Checkpoints 2, 3 and 4, each with files of its own."""
    writer = world.store.writer()
    for start in (200, 300, 400):
        world.checkpoint(writer, start)
    world.writer = writer
    return world


def test_what_only_dropped_checkpoints_need_is_deleted_and_nothing_else(filled):
    before = filled.files("data/", "manifests/")

    report = filled.collect(arrowstate.RetentionPolicy(count=2))

    assert ids(filled.store) == [2, 3]
    assert [sum_of_totals(snapshot) for snapshot in filled.store.checkpoints()] == [expected(300), expected(400)]
    assert filled.files("data/", "manifests/") == filled.referenced() < before
    assert filled.files("log/") == {path_of(3), path_of(4)}
    assert report.spared == ()
    with pytest.raises(arrowstate.CheckpointNotFoundError, match="it has 2, 3"):
        filled.store.snapshot(1)


@at_once
def test_a_plan_changes_nothing_and_says_why_and_how_much(filled):
    before = {path: filled.storage.read(path) for path in filled.files()}

    plan = filled.store.collect(NEWEST, grace_ms=GRACE, allow_short_grace=True).plan

    assert {path: filled.storage.read(path) for path in filled.files()} == before
    assert plan.dropped == (1, 2)
    assert [(item.checkpoint_id, item.reasons) for item in plan.kept] == [
        (3, ("one of the newest 1", "the newest entry"))
    ]
    assert [deletion.kind for deletion in plan.deletions] == ["data", "data", "log entry", "log entry", "log entry"]
    assert [deletion.reason for deletion in plan.deletions[:2]] == [
        "of checkpoint 1, which is dropped",
        "of checkpoint 2, which is dropped",
    ]
    assert plan.bytes == sum(len(before[deletion.path]) for deletion in plan.deletions)
    assert plan.unknown_sizes == 0


def test_files_that_a_kept_checkpoint_shares_with_a_dropped_one_stay(world):
    backend = totals_from()
    with world.store.writer() as writer:
        for _ in range(3):
            backend.state(TOTAL).add_batch(pa.array([1]), pa.array([7]))
            writer.checkpoint({"op": [backend]})

    world.collect()

    assert sum_of_totals(world.store.latest()) == expected(0) + 21


def test_collecting_again_changes_nothing(filled):
    filled.collect()
    before = {path: filled.storage.read(path) for path in filled.files()}

    for _ in range(2):
        filled.now_ms += 10 * GRACE
        report = filled.collect()
        assert report.deleted == report.spared == ()

    assert {path: filled.storage.read(path) for path in filled.files()} == before


def test_collecting_again_changes_nothing_where_two_collections_left_the_same_document(filled):
    # Both came to the same end at the same time: each left its document, and neither took the other's away.
    filled.collect()
    (left,) = boundaries(filled.storage)
    document = read_boundary(filled.storage, left)
    for other in ("0-lower", "zz-higher"):
        put_boundary(filled.storage, msgspec.structs.replace(document, collection_id=other))

    filled.collect()
    once = filled.files()
    filled.collect()

    assert filled.files() == once
    assert [boundary.collection_id for boundary in boundaries(filled.storage)] == ["zz-higher"]


def test_a_plan_that_is_applied_twice_does_no_harm(filled):
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)

    for _ in range(2):
        apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id)

    assert sum_of_totals(filled.store.latest()) == expected(400)
    assert len(filled.files("gc/")) == 1


def test_a_collection_that_was_applied_is_refused_and_one_that_failed_is_not(filled):
    store, hooked = filled.process()
    collection = store.collect(NEWEST)
    hooked.act_before("list", "gc/", lambda: (_ for _ in ()).throw(arrowstate.StorageError("gc/", "it is down")))
    with pytest.raises(arrowstate.StorageError):
        collection.apply()

    assert len(collection.apply().deleted) > 0

    with pytest.raises(arrowstate.InvalidInputError, match="was applied; plan another"):
        collection.apply()
    assert store.collect(NEWEST).apply().deleted == ()


@at_once
def test_data_goes_before_manifests_and_these_before_log_entries_oldest_first(world, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)
    writer = world.store.writer()
    for start in (1, 2, 3):
        world.checkpoint(writer, start)

    deleted = world.collect().deleted

    kinds = [path.split("/")[0] for path in deleted]
    assert kinds == sorted(kinds, key=["data", "manifests", "log"].index)
    assert {"data", "manifests", "log"} == set(kinds)
    logs = [path for path in deleted if path.startswith("log/")]
    assert logs == sorted(logs) == [path_of(1), path_of(2), path_of(3)]


def test_directories_and_deletion_vectors_go_with_their_run_and_not_before(world, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.RunWriter", functools.partial(RunWriter, inline_bytes=100))
    monkeypatch.setattr("arrowstate.files.writing._DIRECTORY_ROWS", 100)
    backend = backend_of(merge_policy=arrowstate.MergePolicy(max_dead_share=1.0))
    backend.state(TOTAL).add_batch(pa.array(range(3000)), pa.array(range(3000)))
    writer = world.store.writer()
    for _ in range(2):
        backend.state(TOTAL).clear_batch(pa.array(range(0, 900, 3)))
        backend.state(TOTAL).add_batch(pa.array(range(0, 900, 9)), pa.array([1] * 100))
        writer.checkpoint({"op": [backend]})
    kinds = {path.rpartition(".")[2] for path in world.files("data/")}
    assert kinds == {"arrow", "directory", "roaring"}

    world.collect_orphans()

    assert world.store.verify(deep=True).problems == []
    assert world.files("data/") == world.referenced()
    world.checkpoint(writer, 1)
    world.collect()
    assert {path.rpartition(".")[2] for path in world.files("data/")} == {"arrow", "directory"}


def test_operator_state_files_are_roots(world):
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).update(list(range(5000)))
    with world.store.writer() as writer:
        for _ in range(2):
            writer.checkpoint({"op": [totals_from(1)]}, operator_states={"op": [backend]})

    world.collect_orphans()

    assert world.files("data/op/offsets/")
    assert world.store.latest().operator_state("op", "offsets").num_rows == 5000


def test_a_tag_keeps_its_checkpoint_until_it_is_removed(filled):
    filled.store.tag("gold", 1)
    filled.collect()
    assert ids(filled.store) == [1, 3]
    assert sum_of_totals(filled.store.snapshot(1)) == expected(200)
    assert filled.store.tags() == {"gold": 1}

    filled.store.untag("gold")
    filled.collect()

    assert ids(filled.store) == [3]
    assert filled.files("data/") == filled.referenced()


def test_a_tag_name_is_taken_once_and_an_unknown_one_lists_those_there_are(filled):
    filled.store.tag("gold")

    with pytest.raises(arrowstate.InvalidInputError, match="untag"):
        filled.store.tag("gold", 1)
    with pytest.raises(arrowstate.NotFoundError, match="no tag 'silver'.*'gold'"):
        filled.store.untag("silver")
    with pytest.raises(arrowstate.InvalidInputError, match="tag name"):
        filled.store.tag("../x")

    assert filled.store.tags() == {"gold": 3}


def test_a_damaged_checkpoint_is_not_tagged(filled):
    (path,) = ReferenceReader(filled.storage).files(filled.store.snapshot(1).entry.operators)
    filled.storage.delete(path)

    with pytest.raises(arrowstate.CorruptDataError, match="tag one that is whole"):
        filled.store.tag("gold", 1)

    assert filled.store.tags() == {}


@contextmanager
def leased(world, checkpoint, ttl_ms=500):
    """A lease whose thread does not renew it: the test does."""
    with world.store.lease(checkpoint, ttl_ms=10**9) as lease:
        lease._ttl_ms = ttl_ms
        lease.renew()
        yield lease


def test_a_lease_keeps_its_checkpoint_while_it_is_renewed(filled):
    with leased(filled, 1) as lease:
        for _ in range(3):
            filled.now_ms += 499
            filled.collect()
            assert sum_of_totals(lease.snapshot) == expected(200)
            lease.renew()
            assert len(filled.files("leases/")) == 1

    assert filled.files("leases/") == set()
    filled.collect()
    assert filled.files("data/") == filled.referenced()


def test_the_block_of_a_lease_that_was_released_is_refused(filled):
    lease = filled.store.lease(1)
    with lease, lease:
        assert len(filled.files("leases/")) == 1

    with pytest.raises(arrowstate.InvalidInputError, match="the lease was released; take a new one"), lease:
        pass

    assert filled.files("leases/") == set()


def test_a_lease_that_nobody_renews_ends_and_is_deleted(filled):
    with leased(filled, 1) as lease:
        filled.now_ms += 500

        filled.collect()

        assert filled.files("leases/") == set()
        with pytest.raises(arrowstate.CheckpointNotFoundError):
            lease.renew()
        with pytest.raises(arrowstate.CollectedError, match="missing: checkpoint 1 was collected"):
            sum_of_totals(lease.snapshot)
        assert filled.files("leases/") == set()


def test_a_renewal_is_never_without_a_file(filled):
    store, hooked = filled.process()
    with store.lease(1, ttl_ms=10**9) as lease:
        seen = []
        hooked.act_before("delete", "leases/", lambda: seen.append(len(filled.files("leases/"))))

        lease.renew()

        assert seen == [2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_that_leaves_the_block_of_a_lease_does_not_end_it(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    with store.writer() as writer:
        writer.checkpoint({"op": [backend_of()]})
    child = None
    try:
        with store.lease() as lease:
            child = os.fork()
            if child:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                held = store.storage.list("leases/")
    finally:
        if child == 0:
            os._exit(7)

    assert code == 7
    assert len(held) == 1
    assert lease.lost is None
    assert store.storage.list("leases/") == []


def test_the_longest_lease_is_waited_for_no_longer_than_a_thread_can(filled):
    waits = []
    lease = CheckpointLease(
        filled.storage,
        CommitLog(filled.storage).committed_checkpoint(2),
        ttl_ms=LONGEST_LEASE_MS,
        holder="a test",
        clock_ms=lambda: filled.now_ms,
        new_id=filled.new_id,
        wait=lambda seconds: waits.append(seconds) or True,
    )

    lease.release()

    assert waits == [threading.TIMEOUT_MAX]


def test_the_thread_of_a_lease_renews_it_and_goes_on_after_a_failure(filled):
    log = CommitLog(filled.storage)
    turns = iter(range(4))
    waits, renewed = [], []

    class Failing(Hooked):
        def __getattr__(self, name):
            if name == "put_if_absent" and len(waits) == 2:
                raise arrowstate.StorageError("leases", "down")
            return super().__getattr__(name)

    def wait(seconds):
        renewed.append(lease.expires_at_ms if waits else None)
        waits.append(seconds)
        filled.now_ms += 100
        return next(turns, None) is None

    lease = None
    held = CheckpointLease.__new__(CheckpointLease)
    lease = held
    CheckpointLease.__init__(
        held,
        Failing(filled.storage),
        log.committed_checkpoint(2),
        ttl_ms=900,
        holder="a test",
        clock_ms=lambda: filled.now_ms,
        new_id=filled.new_id,
        wait=wait,
    )
    held._thread.join()
    held.release()

    assert waits == [0.3] * 5
    assert renewed[1:] == [1_001_000, 1_001_000, 1_001_200, 1_001_300]
    assert held.lost is None
    assert filled.files("leases/") == set()


@at_once
def test_a_file_waits_from_when_it_was_seen_though_the_collection_slept_before_it_looked(filled):
    path = "data/op/total/0123456789abcdef0123456789abcdef.arrow"
    store, hooked = filled.process()

    def sleep():
        filled.now_ms += 59_000
        write(filled.storage, path)

    hooked.act_before("list", "", sleep)
    store.collect(NEWEST, grace_ms=60_000).apply()
    filled.now_ms += 2_000
    store.collect(NEWEST, grace_ms=60_000).apply()
    kept = path in filled.files()
    filled.now_ms += 58_000
    store.collect(NEWEST, grace_ms=60_000).apply()

    assert kept
    assert path not in filled.files()


@contextmanager
def following(world, checkpoint, ttl_ms=500):
    """A lease on a checkpoint and all after it; the test renews it."""
    with world.store.lease(checkpoint, ttl_ms=10**9, and_later=True) as lease:
        lease._ttl_ms = ttl_ms
        lease.renew()
        yield lease


def test_a_lease_may_hold_all_that_comes_after_its_checkpoint(filled):
    with following(filled, 2) as lease:
        filled.checkpoint(filled.writer, 500)
        for _ in range(2):
            filled.now_ms += 499
            filled.collect()
            lease.renew()
        assert filled.store.collect(NEWEST).plan.boundary == lease.entry.number
        kept = ids(filled.store), [sum_of_totals(snapshot) for snapshot in filled.store.checkpoints()]
        lease.advance(CommitLog(filled.storage).committed_checkpoint(3))
        filled.collect()
        moved = ids(filled.store)
        assert len(filled.files("leases/")) == 1

    assert kept == ([2, 3, 4], [expected(300), expected(400), expected(500)])
    assert moved == [3, 4]
    filled.collect()
    assert ids(filled.store) == [4]
    assert filled.files("data/") == filled.referenced()


def test_a_lease_of_what_comes_after_ends_as_any_other(filled):
    with following(filled, 1) as lease:
        filled.now_ms += 500

        filled.collect()

        assert ids(filled.store) == [3]
        with pytest.raises(arrowstate.CheckpointNotFoundError):
            lease.renew()
        assert filled.files("leases/") == set()


def test_what_comes_after_a_lease_is_held_though_a_collection_had_planned_without_it(filled):
    filled.checkpoint(filled.store.writer(), 500)
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    before = [path for path in filled.files("data/", "log/") if "0001.json" not in path]
    with following(filled, 2) as lease:
        report = apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id)

        # The boundary is above them by now, and they are part of the store for the lease alone.
        assert report.boundary == path_number(filled, 4)
        assert ids(filled.store) == [2, 3, 4]
        assert [sum_of_totals(snapshot) for snapshot in filled.store.checkpoints()] == list(
            map(expected, (300, 400, 500))
        )
        assert sum_of_totals(filled.store.snapshot(3)) == expected(400)
        assert [step.checkpoint_id for step in steps_between(CommitLog(filled.storage), 2, None)] == [3, 4]
        assert filled.store.verify(deep=True).problems == []
        held = filled.store.snapshot(3)
        assert CommitLog(filled.storage).holds(held.entry)
        lease.renew()
        filled.collect()
        assert ids(filled.store) == [2, 3, 4]
        lease.advance(CommitLog(filled.storage).committed_checkpoint(3))
        filled.collect()
        assert ids(filled.store) == [3, 4]
        assert set(before) > filled.files("data/", "log/")

    filled.collect()
    assert ids(filled.store) == [4]
    assert not CommitLog(filled.storage).holds(held.entry)
    assert filled.files("data/") == filled.referenced()


def path_number(world, checkpoint_id):
    return CommitLog(world.storage).committed_checkpoint(checkpoint_id).document.number


def test_what_is_made_anew_under_a_number_that_a_lease_held_is_no_checkpoint(filled):
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    with following(filled, 1):
        apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id)
        entry = CommitLog(filled.storage).read(3).document
        filled.storage.delete(path_of(3))
        late = msgspec.structs.replace(entry, commit_id="late")
        filled.storage.put_if_absent(path_of(3), documents.encode(late), "late")

        # The one before it is found by its checksum, which the lease has.
        assert ids(filled.store) == [1, 3]
        assert not CommitLog(filled.storage).holds(late)
        with pytest.raises(arrowstate.CheckpointNotFoundError):
            filled.store.snapshot(2)


def test_a_lease_of_what_comes_after_is_refused_where_some_of_it_is_gone(filled):
    filled.store.tag("old", 1)
    filled.collect()
    store, hooked = filled.process()

    with store.lease(1):
        pass
    with pytest.raises(
        arrowstate.CheckpointsCollectedError, match="every checkpoint since, and some were collected; it has 1, 3"
    ):
        store.lease(1, and_later=True)
    filled.checkpoint(filled.writer, 500)
    hooked.act_before("put_if_absent", "leases/", filled.collect)
    with pytest.raises(arrowstate.CheckpointNotFoundError):
        store.lease(3, and_later=True)

    assert filled.files("leases/") == set()
    filled.collect()
    assert ids(filled.store) == [1, 4]


def test_a_lease_of_one_checkpoint_is_written_as_ever_and_one_of_what_comes_after_needs_a_feature(filled):
    with filled.store.lease(1), filled.store.lease(1, and_later=True):
        found = [json.loads(filled.storage.read(path)) for path in filled.files("leases/")]

    assert sorted(lease["features"] for lease in found) == [[], ["lease.later"]]
    members = "format_version document_xxh3_128 features extensions lease_id checkpoint_id entry expires_at_ms holder"
    assert [" ".join(lease) for lease in found] == [members, members]


def test_a_lease_that_is_renewed_while_pins_are_read_is_found(filled):
    with filled.store.lease(1) as lease:
        _store, hooked = filled.process()
        hooked.act_after("list", "leases/", lease.renew)

        [pin] = read_pins(hooked)

        assert pin.expires_at_ms == lease.expires_at_ms


class Late:
    """A checkpoint that has looked for collections, and then waits with the creation of its entry."""

    def __init__(self, writer, backend, hooked):
        self.writer, self.backend, self.hooked = writer, backend, hooked

    def start(self):
        self.ready, self.go, self.result = threading.Event(), threading.Event(), None

        def pause():
            self.ready.set()
            assert self.go.wait(30)

        def run():
            try:
                self.result = self.writer.checkpoint({"op": [self.backend]})
            except arrowstate.ArrowStateError as error:
                self.result = error

        self.hooked.act_before("put_if_absent", "log/", pause)
        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert self.ready.wait(30)

    def go_on(self):
        """Let it go on, and raise what it met."""
        self.go.set()
        self.thread.join()
        if isinstance(self.result, BaseException):
            raise self.result


def orphan(world, name="orphan"):
    path = f"data/op/total/{name}.arrow"
    write(world.storage, path, b"x" * 100)
    return path


def test_a_file_that_nobody_refers_to_waits_for_the_grace_period(filled):
    path = orphan(filled)
    filled.collect()
    filled.now_ms += GRACE - 1
    assert path not in filled.collect().deleted

    filled.now_ms += 1
    plan = filled.store.collect(NEWEST, grace_ms=GRACE, allow_short_grace=True).plan
    report = filled.collect()

    assert [deletion.path for deletion in plan.deletions] == [path]
    assert report.deleted == (path,)
    assert not filled.storage.exists(path)


@pytest.fixture
def on_disk(tmp_path):
    return World(open_storage(tmp_path / "store", create=True))


def leave_unfinished(world):
    """A file of a process that died while it wrote, and its name."""
    unfinished = Path(world.storage.url) / "data" / "op" / "total" / f".{uuid.uuid4().hex}.tmp"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.write_bytes(b"half a run")
    (name,) = world.storage.list_unfinished()
    return name


def test_an_unfinished_file_waits_for_the_grace_period_and_is_deleted_then(on_disk):
    on_disk.checkpoint(on_disk.store.writer(), 200)
    name = leave_unfinished(on_disk)

    on_disk.collect()
    assert on_disk.storage.list_unfinished() == [name]
    on_disk.now_ms += GRACE - 1
    plan = plan_collection(on_disk.storage, NEWEST, now_ms=on_disk.now_ms, grace_ms=GRACE)
    assert [item.path for item in plan.waiting] == [name]
    on_disk.now_ms += 1
    plan = plan_collection(on_disk.storage, NEWEST, now_ms=on_disk.now_ms, grace_ms=GRACE)
    assert [(item.path, item.kind) for item in plan.deletions] == [(name, "unfinished")]
    report = on_disk.collect()

    assert report.deleted == (name,)
    assert on_disk.storage.list_unfinished() == []
    assert on_disk.collect().deleted == ()
    assert sum_of_totals(on_disk.store.latest()) == expected(200)


def test_unfinished_files_of_a_store_without_entries_are_deleted_too(on_disk):
    name = leave_unfinished(on_disk)
    on_disk.collect()
    on_disk.now_ms += GRACE

    assert on_disk.collect().deleted == (name,)


def test_a_checkpoint_whose_unfinished_file_a_collection_deletes_fails_and_the_next_one_is_whole(on_disk):
    on_disk.checkpoint(on_disk.store.writer(), 200)
    writer = on_disk.store.writer()
    backend = totals_from(300)

    with pytest.MonkeyPatch.context() as patch:
        deleted = []

        class Slow(io.BufferedWriter):
            def write(self, data):
                if not deleted:
                    patch.undo()
                    deleted.extend(on_disk.storage.list_unfinished())
                    assert on_disk.collect_orphans().deleted == tuple(deleted)
                return super().write(data)

        patch.setattr(local.io, "BufferedWriter", Slow)
        with pytest.raises(arrowstate.StorageError, match="unfinished file is gone"):
            writer.checkpoint({"op": [backend]})

    assert sum_of_totals(on_disk.store.latest()) == expected(200)
    assert sum_of_totals(writer.checkpoint({"op": [backend]})) == expected(300)
    assert on_disk.store.verify(deep=True).problems == []
    assert on_disk.storage.list_unfinished() == []


@at_once
def test_a_plan_alone_does_not_begin_the_grace_period(filled):
    path = orphan(filled)
    filled.store.collect(NEWEST, grace_ms=GRACE, allow_short_grace=True)
    filled.now_ms += 10 * GRACE

    plan = filled.store.collect(NEWEST, grace_ms=GRACE, allow_short_grace=True).plan

    assert [(item.path, item.first_seen_ms) for item in plan.waiting] == [(path, filled.now_ms)]


def test_a_clock_that_was_ahead_does_not_keep_garbage_for_ever(filled):
    path = orphan(filled)
    filled.now_ms += 10**12
    filled.collect()
    filled.now_ms -= 10**12
    filled.collect()

    filled.now_ms += GRACE

    assert path in filled.collect().deleted


def test_a_store_without_entries_is_collected_too(world):
    path = orphan(world)

    world.collect_orphans()

    assert not world.storage.exists(path)


def test_what_is_written_while_a_plan_is_made_is_not_considered(filled):
    _, hooked = filled.process()
    hooked.act_before("read", "log/", lambda: filled.checkpoint(filled.writer, 500))
    hooked.act_after("list", "log/", lambda: orphan(filled))

    plan = plan_collection(hooked, NEWEST, now_ms=filled.now_ms, grace_ms=0)

    new = ReferenceReader(filled.storage).files(filled.store.latest().entry.operators)
    assert new
    assert {deletion.path for deletion in plan.deletions}.isdisjoint({*new, "data/op/total/orphan.arrow"})


# A writer commits while a collection goes on.


def test_a_checkpoint_that_refers_again_to_files_of_a_plan_saves_them(filled):
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    backend = filled.store.snapshot(1).restore("op")
    again = filled.writer.checkpoint({"op": [backend]})

    report = apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id)

    assert len(report.spared) == 1
    assert sum_of_totals(again) == sum_of_totals(filled.store.latest()) == expected(200)
    assert filled.store.verify(deep=True).problems == []


def test_a_commit_whose_entry_is_there_when_the_roots_are_read_again_is_acknowledged(filled):
    backend = filled.store.snapshot(1).restore("op")
    store, hooked = filled.process()
    writer = store.writer()
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    reports = []

    def collect():
        reports.append(apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id))

    hooked.act_after("put_if_absent", "log/", collect)
    again = writer.checkpoint({"op": [backend]})

    assert len(reports[0].spared) == 1
    assert sum_of_totals(again) == expected(200)


@at_once
def test_a_commit_that_finds_its_files_condemned_is_not_acknowledged_though_they_may_be_spared(filled):
    store, hooked = filled.process()
    late = Late(store.writer(), filled.store.snapshot(1).restore("op"), hooked)
    _, collector = filled.process()
    plan = plan_collection(collector, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)

    def commit():
        with pytest.raises(arrowstate.CommitUnknownError, match="being collected"):
            late.go_on()

    late.start()
    collector.act_after("put_if_absent", "gc/", commit)
    report = apply_collection(collector, plan, now_ms=filled.now_ms, new_id=filled.new_id)

    assert len(report.spared) == 1
    assert sum_of_totals(filled.store.latest()) == expected(200)
    assert filled.store.verify(deep=True).problems == []


def test_a_commit_whose_files_were_collected_before_its_entry_is_made_commits_nothing(filled):
    store, hooked = filled.process()
    writer = store.writer()
    backend = totals_from(500)
    # Uploaded and not committed for longer than the grace period.
    hooked.act_before("list", "gc/", filled.collect_orphans)

    with pytest.raises(arrowstate.CollectedError) as caught:
        writer.checkpoint({"op": [backend]})

    assert all(path.startswith("data/op/total/") for path in caught.value.paths)
    assert sum_of_totals(store.latest()) == expected(400)
    assert sum_of_totals(writer.checkpoint({"op": [backend]})) == expected(500)
    assert filled.store.verify(deep=True).problems == []


def test_a_commit_whose_files_are_collected_while_its_entry_is_made_is_not_acknowledged(filled):
    store, hooked = filled.process()
    writer = store.writer()
    hooked.act_before("put_if_absent", "log/", filled.collect_orphans)

    with pytest.raises(arrowstate.CommitUnknownError, match="being collected"):
        writer.checkpoint({"op": [totals_from(500)]})

    with pytest.warns(RuntimeWarning, match=r"checkpoint 4: data/op/total/.* missing"):
        whole = filled.store.latest_whole()
    assert sum_of_totals(whole) == expected(400)


def bootstrapped(store, _):
    rows = pa.table({"user": range(3000), "city": [f"city {number}" for number in range(3000)]})
    store.bootstrap("people", ["user"], [arrowstate.ValueStateDescriptor("city", pa.string())], rows)


def edited(store, _):
    with store.edit() as changes:
        changes.upsert("op.total", pa.table({"k": range(9000), "total": range(9000)}))
        changes.commit()


def imported(store, savepoint):
    store.import_savepoint(savepoint)


def compacted(store, _):
    store.compact(arrowstate.CompactionPolicy(max_small_files=1, min_bytes=0)).apply()


ONCE = {"bootstrap": (bootstrapped, 8), "edit": (edited, 8), "import": (imported, 8), "compaction": (compacted, 7)}


@pytest.fixture(params=ONCE)
def doubtful(request, filled):
    """A store, and how to commit once to it, with files that go while the entry is made; and the number of that."""
    act, number = ONCE[request.param]
    backend = totals_from(400, 1500)
    filled.writer.checkpoint({"op": [backend]}, allow_dropped_state=True)
    backend.state(TOTAL).add_batch(pa.array(range(1500, 3000)), pa.array(range(1900, 3400)))
    filled.writer.checkpoint({"op": [backend]}, properties={"offset": 7}, watermark=9)
    savepoint = filled.store.savepoint("saved").storage.url
    store, hooked = filled.process()

    def commit():
        act(store, savepoint)

    hooked.act_before("put_if_absent", path_of(number), filled.collect_orphans)
    return filled, commit, hooked, number


def test_where_nobody_goes_on_after_an_entry_in_doubt_the_checkpoint_before_is_committed_again(doubtful):
    filled, commit, _, number = doubtful
    before = filled.store.latest().entry

    with pytest.raises(arrowstate.CollectedError, match="nothing was committed, try again"):
        commit()

    repeated = filled.store.latest().entry
    kind = "compaction" if number == 7 else "checkpoint"
    assert (repeated.number, repeated.kind, repeated.checkpoint_id) == (number + 1, kind, 5 if number == 7 else 7)
    assert repeated.operators == before.operators
    assert (repeated.properties, repeated.watermark) == (before.properties, before.watermark)
    assert filled.store.latest().verify(deep=True).ok
    # What the entry in doubt refers to stays as long as it does, so a collection does not take it for damage.
    assert CommitLog(filled.storage).read(number).document.checkpoint_id == (5 if number == 7 else 6)
    filled.collect_orphans()
    assert sum_of_totals(filled.store.latest()) == expected(400)
    commit()
    filled.collect_orphans()
    assert filled.store.verify(deep=True).problems == []
    assert filled.files("data/") == filled.referenced()


def test_an_entry_in_doubt_that_others_go_on_from_is_not_taken_back(doubtful):
    filled, commit, hooked, number = doubtful
    hooked.act_after("put_if_absent", path_of(number), filled.store.writer)

    with pytest.raises(arrowstate.CommitUnknownError, match="being collected"):
        commit()

    assert CommitLog(filled.storage).latest().document.kind == "fence"
    assert CommitLog(filled.storage).latest().document.number == number + 1


def test_an_entry_in_doubt_stays_so_if_the_checkpoint_before_cannot_be_committed_again(doubtful):
    filled, commit, hooked, number = doubtful

    def fails():
        raise arrowstate.StorageError(path_of(number + 1), "no answer")

    hooked.act_before("put_if_absent", path_of(number + 1), fails)

    with pytest.raises(arrowstate.CommitUnknownError, match="being collected"):
        commit()

    assert CommitLog(filled.storage).latest().document.number == number
    filled.collect_orphans()
    with pytest.warns(RuntimeWarning, match="missing"):
        whole = filled.store.latest_whole()
    assert (whole.checkpoint_id, sum_of_totals(whole)) == (5, expected(400))


def test_checkpoints_that_may_be_needed_instead_of_one_that_lost_its_files_are_not_collected(filled):
    store, hooked = filled.process()
    hooked.act_before("put_if_absent", "log/00000000000000000006", filled.collect_orphans)
    with pytest.raises(arrowstate.CommitUnknownError):
        store.writer().checkpoint({"op": [totals_from(500)]})

    with pytest.raises(arrowstate.CollectedError, match="never acknowledged"):
        sum_of_totals(filled.store.latest())
    filled.collect()
    assert sum_of_totals(filled.store.snapshot(3)) == expected(400)

    with filled.store.writer() as writer:
        filled.checkpoint(writer, 600)
    filled.collect()
    assert ids(filled.store) == [5]
    assert filled.files("data/") == filled.referenced()


def test_state_restored_from_a_checkpoint_that_was_collected_since_is_written_anew(filled):
    backend = filled.store.snapshot(1).restore("op")
    backend.state(TOTAL).add_batch(pa.array([1]), pa.array([1]))
    filled.collect()

    with pytest.raises(arrowstate.CollectedError, match="nothing was committed"):
        filled.writer.checkpoint({"op": [backend]})
    assert filled.store.latest().checkpoint_id == 3

    assert sum_of_totals(filled.writer.checkpoint({"op": [backend]})) == expected(200) + 1
    assert filled.store.verify(deep=True).problems == []


def test_a_writer_that_keeps_up_is_never_refused(filled):
    backend = totals_from()
    for _ in range(6):
        backend.state(TOTAL).add_batch(pa.array(range(3000)), pa.array([1] * 3000))
        filled.writer.checkpoint({"op": [backend]})
        filled.now_ms += GRACE
        filled.collect()

    assert sum_of_totals(filled.store.latest()) == expected(0) + 6 * 3000
    assert filled.files("data/") == filled.referenced()


# Zombies.


def others_go_on(world):
    with world.store.writer() as writer:
        for start in (600, 700):
            world.checkpoint(writer, start)
    world.collect()


def test_a_writer_whose_number_is_collected_is_fenced_and_leaves_nothing(filled):
    zombie = filled.store.writer()
    others_go_on(filled)
    before = filled.files("")

    with pytest.raises(arrowstate.FencedError) as caught:
        zombie.checkpoint({"op": [totals_from(500)]})

    assert (caught.value.writer_epoch, caught.value.current_epoch) == (2, 3)
    assert filled.files("") == before


def test_a_writer_that_slept_through_a_collection_of_its_number_is_not_acknowledged(filled):
    store, hooked = filled.process()
    zombie = store.writer()
    # All its looks are behind it; the number that it creates was taken and is free again.
    hooked.act_before("put_if_absent", path_of(6), lambda: others_go_on(filled))

    with pytest.raises(arrowstate.CommitUnknownError, match="collected past it"):
        zombie.checkpoint({"op": [totals_from(500)]})

    assert filled.storage.read("_latest") == b"8"
    assert sum_of_totals(filled.store.latest()) == expected(700)
    assert ids(filled.store) == [5]
    with pytest.raises(arrowstate.FencedError) as caught:
        zombie.checkpoint({"op": [totals_from(500)]})
    assert (caught.value.writer_epoch, caught.value.current_epoch) == (2, 3)
    filled.collect()
    assert filled.files("log/") == {path_of(8)}
    assert filled.files("data/") == filled.referenced()


def test_a_writer_that_slept_after_its_commit_deletes_nothing_that_others_went_on_from(filled):
    store, hooked = filled.process()
    writer = store.writer()

    def others_go_on_from_it():
        filled.store.tag("slow", 4)
        backend = filled.store.latest().restore("op")
        with filled.store.writer() as following:
            for _ in range(2):
                following.checkpoint({"op": [backend]})
        filled.collect()

    hooked.act_after("put_if_absent", path_of(6), others_go_on_from_it)
    with pytest.raises(arrowstate.CommitUnknownError, match="collected past it"):
        writer.checkpoint({"op": [totals_from(500)]})

    assert [sum_of_totals(snapshot) for snapshot in filled.store.checkpoints()] == [expected(500)] * 2
    assert filled.store.verify(deep=True).problems == []


def test_a_writer_that_slept_while_it_opened_takes_a_fence_above_the_others(filled):
    store, hooked = filled.process()
    hooked.act_before("put_if_absent", path_of(5), lambda: others_go_on(filled))

    writer = store.writer()

    assert writer.epoch == 3
    assert sum_of_totals(filled.checkpoint(writer, 800)) == expected(800)


def test_the_files_of_a_slow_collection_cannot_be_committed_until_they_are_gone(filled):
    """A collection that sleeps before it deletes, and a checkpoint that was made meanwhile and not acknowledged."""
    _, sleeper = filled.process()
    plan = plan_collection(sleeper, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    backend = filled.store.snapshot(1).restore("op")
    store, hooked = filled.process()
    writer = store.writer()
    sleeping = []

    def while_it_sleeps():
        sleeping.append(True)
        with pytest.raises(arrowstate.CommitUnknownError):
            late.go_on()
        # Another collection finds the entry that was not acknowledged, spares its files, and keeps the statement.
        filled.collect()
        assert sum_of_totals(filled.store.latest()) == expected(200)
        # The next writer restores from it; what it commits would lose its files when the sleeper goes on.
        with filled.store.writer() as following:
            restored = filled.store.latest().restore("op")
            with pytest.raises(arrowstate.CollectedError):
                following.checkpoint({"op": [restored]})
            acknowledged.append(following.checkpoint({"op": [restored]}))

    acknowledged = []
    late = Late(writer, backend, hooked)
    late.start()
    sleeper.act_before("delete", "data/", while_it_sleeps)
    apply_collection(sleeper, plan, now_ms=filled.now_ms, new_id=filled.new_id)

    assert sleeping
    assert sum_of_totals(acknowledged[0]) == expected(200)
    assert filled.store.snapshot(acknowledged[0].checkpoint_id).verify(deep=True).ok
    filled.collect()
    filled.collect()
    assert len(filled.files("gc/")) == 1
    assert filled.files("data/") == filled.referenced()


def unacknowledged(world, sleeper, then):
    """Have a collection sleep before it deletes; meanwhile a checkpoint comes to refer to its files, then act."""
    plan = plan_collection(sleeper, NEWEST, now_ms=world.now_ms, grace_ms=GRACE)
    store, hooked = world.process()
    late = Late(store.writer(), world.store.snapshot(1).restore("op"), hooked)

    def while_it_sleeps():
        with pytest.raises(arrowstate.CommitUnknownError):
            late.go_on()
        then()

    def go_on():
        apply_collection(sleeper, plan, now_ms=world.now_ms, new_id=world.new_id)
        assert late.go.is_set()

    late.start()
    sleeper.act_before("delete", "data/", while_it_sleeps)
    return go_on


def test_an_acknowledged_checkpoint_does_not_go_for_one_that_may_lose_its_files(filled):
    go_on = unacknowledged(filled, filled.process()[1], filled.collect)

    go_on()

    with pytest.warns(RuntimeWarning, match="checkpoint 4: .*missing"):
        assert filled.store.latest_whole().checkpoint_id == 3
    assert sum_of_totals(filled.store.snapshot(3)) == expected(400)


@at_once
def test_an_acknowledged_checkpoint_does_not_go_for_one_that_loses_its_files_while_a_plan_is_made(filled):
    go_on = unacknowledged(filled, filled.process()[1], lambda: None)
    _, collector = filled.process()
    # After its listing of all files, where those of the checkpoint were there still.
    collector.act_after("list", "log/", go_on)

    filled.collect(storage=collector)

    assert sum_of_totals(filled.store.snapshot(3)) == expected(400)


def test_what_is_restored_from_a_checkpoint_that_loses_its_files_is_not_committed_without_them(filled):
    restored = []

    def open_and_restore():
        restored.append(filled.store.latest().restore("op"))
        restored.append(filled.store.writer())

    unacknowledged(filled, filled.process()[1], open_and_restore)()
    backend, writer = restored

    with pytest.raises(arrowstate.CollectedError):
        writer.checkpoint({"op": [backend]})
    assert sum_of_totals(writer.checkpoint({"op": [backend]})) == expected(200)


@at_once
def test_what_a_dead_collection_spared_is_written_anew_and_its_statement_goes(filled):
    """It died after it had read the roots again, and what it condemned is referred to by an acknowledged checkpoint."""
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    backend = filled.store.snapshot(1).restore("op")
    filled.writer.checkpoint({"op": [backend]})
    _, dying = filled.process()

    dying.act_before("delete", "data/", Crash())
    with suppress(Crash):
        apply_collection(dying, plan, now_ms=filled.now_ms, new_id=filled.new_id)
    filled.collect()
    assert filled.store.latest().checkpoint_id == 4

    with pytest.raises(arrowstate.CollectedError):
        filled.writer.checkpoint({"op": [backend]})
    again = filled.writer.checkpoint({"op": [backend]})
    for _ in range(2):
        filled.collect()

    assert sum_of_totals(again) == expected(200)
    assert ids(filled.store) == [5]
    assert [boundary.condemns for boundary in boundaries(filled.storage)] == [False]
    assert filled.files("data/") == filled.referenced()


def test_files_that_a_dead_collection_took_for_orphans_are_all_written_anew(world, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)
    offsets = arrowstate.OperatorStateBackend()
    offsets.state(OFFSETS).update(list(range(5000)))
    store, hooked = world.process()
    writer = store.writer()
    backend = totals_from()
    plans = []

    def plan():
        plans.append(plan_collection(world.storage, NEWEST, now_ms=world.now_ms, grace_ms=0))

    # Its files are there and its entry is not: orphans, without a grace period. It is acknowledged before they go.
    hooked.act_before("put_if_absent", "log/", plan)
    writer.checkpoint({"op": [backend]}, operator_states={"op": [offsets]})
    _, dying = world.process()
    dying.act_before("put_if_absent", "gc/boundary", Crash())
    with suppress(Crash):
        apply_collection(dying, plans[0], now_ms=world.now_ms, new_id=world.new_id)
    assert [boundary.condemns for boundary in boundaries(world.storage)] == [True]
    condemned = {deletion.path for deletion in plans[0].deletions}
    assert {path.split("/")[0] for path in condemned} == {"data", "manifests"}
    assert len(condemned) == 3

    with pytest.raises(arrowstate.CollectedError):
        writer.checkpoint({"op": [backend]}, operator_states={"op": [offsets]})
    again = writer.checkpoint({"op": [backend]}, operator_states={"op": [offsets]})

    assert condemned.isdisjoint(ReferenceReader(world.storage).files(again.entry.operators))
    assert sum_of_totals(again) == expected(0)


def test_a_condemned_manifest_is_not_referred_to_again_though_nothing_in_it_changed(world, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)
    writer = world.store.writer()
    backend = totals_from()
    writer.checkpoint({"op": [backend]})
    (manifest,) = world.files("manifests/")
    statement = documents.BoundaryDocument(
        boundary=0, swept=0, collection_id="dead", written_at_ms=0, condemned=[manifest], waiting={}
    )
    put_boundary(world.storage, statement)

    with pytest.raises(arrowstate.CollectedError):
        writer.checkpoint({"op": [backend]})
    again = writer.checkpoint({"op": [backend]})

    assert manifest not in ReferenceReader(world.storage).files(again.entry.operators)


def test_a_commit_after_which_collections_cannot_be_looked_up_is_unknown_and_keeps_its_files(filled):
    store, hooked = filled.process()
    writer = store.writer()
    timeout = arrowstate.StorageError("gc/", "timeout")
    hooked.act_after("put_if_absent", "log/", lambda: hooked.act_before("list", "gc/", timeout))
    with pytest.raises(arrowstate.CommitUnknownError, match="timeout"):
        writer.checkpoint({"op": [totals_from(500)]})

    assert sum_of_totals(filled.store.latest()) == expected(500)


def test_two_collections_at_once_delete_what_one_would_and_leave_one_boundary(filled):
    _, first = filled.process()
    first.act_before("delete", "data/", lambda: filled.collect(arrowstate.RetentionPolicy(count=1)))

    filled.collect(arrowstate.RetentionPolicy(count=2), storage=first)

    assert ids(filled.store) == [3]
    filled.collect()
    assert len(filled.files("gc/")) == 1
    assert CommitLog(filled.storage).boundary() == 4
    assert filled.files("data/") == filled.referenced()


def test_a_plan_that_is_applied_after_a_newer_collection_leaves_its_boundary(filled):
    plan = plan_collection(filled.storage, arrowstate.RetentionPolicy(count=2), now_ms=filled.now_ms, grace_ms=GRACE)
    filled.collect()

    report = apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id)

    assert report.boundary == CommitLog(filled.storage).boundary() == 4
    assert len(filled.files("gc/")) == 1


# Pins are made while a collection goes on.


def test_a_tag_between_plan_and_application_saves_its_checkpoint(filled):
    plan = plan_collection(filled.storage, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)
    filled.store.tag("gold", 1)

    report = apply_collection(filled.storage, plan, now_ms=filled.now_ms, new_id=filled.new_id)

    assert path_of(2) in report.spared
    assert sum_of_totals(filled.store.snapshot(1)) == expected(200)
    assert path_of(3) in report.deleted


def test_a_tag_after_the_roots_were_read_again_is_refused(filled):
    # It was looked up before the collection said anything.
    entry = CommitLog(filled.storage).committed_checkpoint(1)
    _, collector = filled.process()
    made = []

    def tag():
        made.append(put_tag(filled.storage, "late", 1, entry.as_parent, files=(), tag_id=filled.new_id(), now_ms=0))
        filled.store.tag("newest", 3)

    collector.act_before("delete", "data/", tag)
    filled.collect(storage=collector)

    assert made == [False]
    assert filled.store.tags() == {"newest": 3}
    filled.collect()
    assert filled.files("data/") == filled.referenced()


@pytest.mark.parametrize("pin", ["tag", "lease"])
def test_a_pin_on_a_checkpoint_that_is_collected_before_it_is_made_is_refused(filled, pin):
    store, hooked = filled.process()
    hooked.act_before("put_if_absent", "tags/" if pin == "tag" else "leases/", filled.collect)

    with pytest.raises(arrowstate.CheckpointNotFoundError):
        store.tag("late", 1) if pin == "tag" else store.lease(1)

    assert filled.files("tags/", "leases/") == set()
    assert filled.store.collect(NEWEST).plan.deletions == ()


@pytest.mark.parametrize("pin", ["tag", "lease"])
@pytest.mark.parametrize("look", ["collect", "verify"])
def test_who_meets_a_pin_that_came_too_late_waits_until_it_is_taken_away(filled, pin, look):
    folder = "tags/" if pin == "tag" else "leases/"
    store, hooked = filled.process()
    looking, looked_at = filled.process()
    pins_read = threading.Event()
    pool = ThreadPoolExecutor(1)
    found = []

    def meet():
        looked_at.act_after("read", folder, pins_read.set)
        what = looking.verify if look == "verify" else functools.partial(filled.collect, storage=looked_at)
        found.append(pool.submit(what))
        assert pins_read.wait(30)

    hooked.act_before("put_if_absent", folder, filled.collect)
    hooked.act_before("delete", folder, meet)
    with pool, pytest.raises(arrowstate.CheckpointNotFoundError):
        store.tag("late", 1) if pin == "tag" else store.lease(1)

    [result] = [done.result() for done in found]
    assert look == "collect" or result.problems == []


def test_a_pin_that_stays_on_a_checkpoint_that_is_gone_ends_a_collection(filled):
    entry = CommitLog(filled.storage).committed_checkpoint(1)
    filled.collect()
    tag = TagDocument(name="t", tag_id="1", checkpoint_id=1, entry=entry.as_parent, created_at_ms=0)
    filled.storage.put_if_absent("tags/t.json", encode(tag), "1")

    with pytest.raises(arrowstate.CorruptDataError, match="checkpoint 1, which is not in the log; remove the tag"):
        filled.collect()


# Interruptions and damage.


def test_a_collection_that_dies_at_any_call_harms_nothing_and_the_next_one_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)
    died = True
    crash_at = 0
    while died:
        url = f"memory://collection-tests-{crash_at}"
        world = World(open_storage(url, create=True))
        writer = world.store.writer()
        for start in (100, 200, 300):
            world.checkpoint(writer, start)
        world.store.tag("gold", 1)
        orphan(world)
        world.collect(arrowstate.RetentionPolicy(count=2))
        world.checkpoint(writer, 400)
        world.now_ms += GRACE
        plan = plan_collection(world.storage, NEWEST, now_ms=world.now_ms, grace_ms=GRACE)
        _, hooked = world.process()
        hooked.crash_at = crash_at

        died = False
        try:
            apply_collection(hooked, plan, now_ms=world.now_ms, new_id=world.new_id)
        except Crash:
            died = True

        assert ids(world.store) in ([1, 2, 3, 4], [1, 3, 4], [1, 4])
        assert sum_of_totals(world.store.snapshot(1)) == expected(100)
        assert sum_of_totals(world.store.latest()) == expected(400)
        world.collect()
        assert ids(world.store) == [1, 4]
        assert world.store.verify().problems == []
        assert world.files("data/", "manifests/") == world.referenced()
        assert len(world.files("gc/")) == 1
        clear_memory_storage(url)
        crash_at += 1
    assert crash_at > 20


def flipped(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def newer(data):
    return data.replace(b'"format_version": 1', b'"format_version": 3')


def changed(world, path, change):
    """Another process makes a file anew, with what `change` makes of its bytes."""

    def act():
        data = change(world.storage.read(path))
        world.storage.delete(path)
        write(world.storage, path, data)

    return act


def put(world, path):
    return lambda: write(world.storage, path, b"{}")


BOTH = ("plan", "application")


@pytest.mark.parametrize(
    ("what", "error", "moment"),
    [
        (what, error, moment)
        for what, error, moments in [
            # An application reads the roots again, not the files; what the rest could keep it does not delete.
            ("a data file of a root is gone", arrowstate.CorruptDataError, ("plan",)),
            ("a manifest of a root is gone", arrowstate.CorruptDataError, BOTH),
            ("a manifest of a root is damaged", arrowstate.CorruptDataError, BOTH),
            ("a log entry is damaged", arrowstate.CorruptDataError, BOTH),
            ("a log entry is of a newer version", arrowstate.FormatVersionError, BOTH),
            ("a log entry is gone", arrowstate.CorruptDataError, BOTH),
            ("the first entry of the log is gone", arrowstate.CorruptDataError, ("plan",)),
            ("a tag is damaged", arrowstate.CorruptDataError, BOTH),
            ("a tag is of a newer version", arrowstate.FormatVersionError, BOTH),
            ("a tagged checkpoint is gone", arrowstate.CorruptDataError, BOTH),
            ("a file among the tags is no tag", arrowstate.CorruptDataError, BOTH),
            ("a file among the leases is no lease", arrowstate.CorruptDataError, BOTH),
            ("a boundary is damaged", arrowstate.CorruptDataError, BOTH),
            ("an unknown file in gc", arrowstate.CorruptDataError, ("plan",)),
            ("an unknown folder", arrowstate.CorruptDataError, ("plan",)),
            ("the store is of a newer version", arrowstate.FormatVersionError, ("plan",)),
        ]
        for moment in moments
    ],
)
def test_what_cannot_be_read_or_is_unknown_ends_the_collection(world, monkeypatch, what, error, moment):
    monkeypatch.setattr("arrowstate.files.writing.INLINE_BYTES", 100)
    writer = world.store.writer()
    for start in (1, 2, 3):
        world.checkpoint(writer, start)
    world.store.tag("gold", 1)
    world.collect()
    for start in (4, 5):
        newest = world.checkpoint(writer, start)
    files = ReferenceReader(world.storage).files(newest.entry.operators)
    (manifest,) = (path for path in files if path.startswith("manifests/"))
    (data,) = (path for path in files if path.startswith("data/") and path.endswith(".arrow"))
    (boundary,) = world.files("gc/")
    act = {
        "a data file of a root is gone": lambda: world.storage.delete(data),
        "a manifest of a root is gone": lambda: world.storage.delete(manifest),
        "a manifest of a root is damaged": changed(world, manifest, flipped),
        "a log entry is damaged": changed(world, path_of(5), flipped),
        "a log entry is of a newer version": changed(world, path_of(4), newer),
        "a log entry is gone": lambda: world.storage.delete(path_of(5 if plan is None else 6)),
        "the first entry of the log is gone": lambda: world.storage.delete(path_of(4)),
        "a tag is damaged": changed(world, "tags/gold.json", flipped),
        "a tag is of a newer version": changed(world, "tags/gold.json", newer),
        "a tagged checkpoint is gone": lambda: world.storage.delete(path_of(2)),
        "a file among the tags is no tag": put(world, "tags/notes.txt"),
        "a file among the leases is no lease": put(world, "leases/x.json"),
        "a boundary is damaged": changed(world, boundary, flipped),
        "an unknown file in gc": put(world, "gc/rules.json"),
        "an unknown folder": put(world, "branches/main.json"),
        "the store is of a newer version": changed(world, "arrowstate.json", newer),
    }[what]
    policy = arrowstate.RetentionPolicy(count=2)
    plan = None
    if moment == "application":
        plan = plan_collection(world.storage, NEWEST, now_ms=world.now_ms, grace_ms=GRACE)
        assert plan.deletions
    act()
    before = world.files()

    with pytest.raises(error):
        if plan is None:
            plan_collection(world.storage, policy, now_ms=world.now_ms, grace_ms=GRACE)
        else:
            apply_collection(world.storage, plan, now_ms=world.now_ms, new_id=world.new_id)

    assert before <= world.files()


def test_what_nobody_knows_is_named_and_never_deleted(filled, caplog):
    caplog.set_level("INFO", "arrowstate.upkeep")
    strange = [
        "README.md",
        "_SUCCESS",
        "data/notes.txt",
        "data/op/total/x.orc",
        "data/op/total/deep/x.arrow",
        "manifests/x.txt",
        "log/notes.txt",
    ]
    strange += ["savepoints/half/data/op/total/x.parquet"]
    for path in strange:
        put(filled, path)()
    filled.store.savepoint("kept", checkpoint=1)
    savepoint = filled.files("savepoints/kept/")
    assert savepoint

    plan = filled.store.collect(NEWEST).plan
    filled.collect_orphans()
    filled.collect_orphans()

    assert plan.foreign == tuple(sorted(strange))
    assert "8 files are of no kind that is known, and are left alone; README.md is one" in caplog.text
    assert {*strange, *savepoint} <= filled.files()
    place = f"{filled.storage.url}/savepoints/kept"
    assert sum_of_totals(arrowstate.open_store(place).latest()) == expected(200)


def test_a_store_that_began_as_a_savepoint_keeps_it(filled):
    savepoint = filled.store.savepoint("begin", checkpoint=1)
    world = World.__new__(World)
    World.__init__(world, savepoint.storage)
    backend = world.store.latest().restore("op")
    with world.store.writer() as writer:
        for start in (1, 2):
            writer.checkpoint({"op": [backend]})
            world.checkpoint(writer, start)

    world.collect()

    assert [snapshot.entry.kind for snapshot in world.store.checkpoints()] == ["savepoint", "checkpoint"]
    assert sum_of_totals(world.store.snapshot(1)) == expected(200)
    assert world.files("data/") == world.referenced()


def test_readers_with_a_stale_hint_find_the_newest_entry_after_a_collection(filled):
    filled.store.tag("old", 1)
    filled.collect()
    filled.storage.put_hint("_latest", b"2")

    assert filled.store.latest().checkpoint_id == 3


def test_a_reader_that_is_overtaken_by_a_collection_looks_again(filled):
    filled.store.writer()
    store, hooked = filled.process()

    # It has the fence 5 and goes back to checkpoint 4, which is gone by then.
    hooked.act_before("read", path_of(4), lambda: others_go_on(filled))

    assert store.latest().checkpoint_id == 5


@at_once
def test_a_statement_that_is_out_stays_until_none_of_its_files_is_there(filled):
    _, hooked = filled.process()
    plan = plan_collection(hooked, NEWEST, now_ms=filled.now_ms, grace_ms=GRACE)

    hooked.act_before("delete", "data/", Crash())
    with suppress(Crash):
        apply_collection(hooked, plan, now_ms=filled.now_ms, new_id=filled.new_id)
    (statement,) = boundaries(filled.storage)
    assert len(read_boundary(filled.storage, statement).condemned) == 5

    filled.collect()

    (last,) = boundaries(filled.storage)
    assert last.boundary == statement.boundary
    assert read_boundary(filled.storage, last).condemned == []


def test_every_field_of_a_document_that_names_a_file_is_followed():
    """Whoever adds a field with a path must make `ReferenceReader` follow it, and this list longer."""
    parts = {name: part for name, part in vars(documents).items() if isinstance(part, type)}
    seen, waiting, found = (
        set(),
        {"LogEntryDocument", "ManifestDocument", "SubtasksDocument", "OperatorPartsDocument"},
        set(),
    )
    while waiting - seen:
        name = (waiting - seen).pop()
        seen.add(name)
        for field in msgspec.structs.fields(parts[name]):
            if "path" in field.name:
                found.add((name, field.name))
            waiting |= {part for part in re.findall(r"documents\.(\w+)", str(field.type)) if part in parts}

    names = ("DeletionVectorDocument", "DirectoryDocument", "ManifestHandle", "OperatorPartDocument", "RunDocument")
    names += ("PartFileDocument", "SubtaskFileDocument")
    assert found == {(name, "path") for name in names}
