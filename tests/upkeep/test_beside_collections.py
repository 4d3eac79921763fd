"""Whatever is done beside a collection, at any moment of it: nobody finds damage in a store that is whole."""

import threading
import uuid
import warnings
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.references import ReferenceReader
from arrowstate.log.boundary import boundaries, read_boundary
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.leases import held_while_read
from arrowstate.storage import clear_memory_storage
from arrowstate.testing.faults import VERBS, Fault, FaultyStorage
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.planned import Portions
from storages import Crash, Hooked, refusing
from stores import OFFSETS

ROWS = 3000
"""Enough for a data file; fewer would stand in the manifest."""
URL = "memory://beside-collections"
COUNTS = arrowstate.ReducingStateDescriptor("counts", pa.int64(), reduce="sum")


def step(writer, start, more_states=0):
    """Commit a checkpoint that shares no file with the one before; with many states its manifest is a file."""
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    backend.state(COUNTS).add_batch(range(start, start + ROWS), [1] * ROWS)
    for number in range(more_states):
        backend.state(arrowstate.ReducingStateDescriptor(f"more{number}", pa.int64(), reduce="sum")).add_batch([1], [1])
    operator = arrowstate.OperatorStateBackend()
    operator.state(OFFSETS).update(list(range(start, start + ROWS)))
    return writer.checkpoint({"op": [backend]}, operator_states={"op": [operator]}, properties={"start": start})


def make(count=2, tag=1):
    clear_memory_storage(URL)
    store = arrowstate.open_store(f"{URL}/store", create=True)
    with store.writer() as writer:
        for number in range(count):
            step(writer, number * ROWS)
    if tag is not None:
        store.tag("kept", tag)
    return store


def others(store):
    """What other processes do meanwhile: the job goes on, a tag is removed, a collection is applied."""
    with store.writer() as writer:
        step(writer, 90 * ROWS)
    if "kept" in store.tags():
        store.untag("kept")
    store.collect().apply()


class Beside:
    """A storage where something happens once, before the call of a number; None for never."""

    def __init__(self, storage, at, act):
        self._storage = storage
        self._at = at
        self._act = act
        self._me = threading.current_thread()
        self.calls = 0

    def __getattr__(self, name):
        real = getattr(self._storage, name)
        if name not in VERBS:
            return real

        def call(*arguments, **options):
            # The thread of a lease renews it whenever it likes.
            if threading.current_thread() is self._me:
                self.calls += 1
                if self.calls == self._at:
                    self._act()
            forget_open_files()
            return real(*arguments, **options)

        return call


def imported(store):
    target = arrowstate.open_store(f"{URL}/target", create=True)
    target.import_savepoint(store.latest())


def compacted(store):
    policy = arrowstate.CompactionPolicy(max_space_amplification=1.01, max_small_files=1, min_bytes=1)
    store.compact(policy).apply()


def tagged(store):
    store.tag("mine")
    assert store.snapshot(store.tags()["mine"]).verify(deep=True).ok


def looked(store):
    assert store.verify(deep=True).problems == []


def found_whole(store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.latest_whole().properties


DONE = {
    "collection planned": lambda store: store.collect(),
    "collection applied": lambda store: store.collect().apply(),
    "collection that keeps two": lambda store: store.collect(arrowstate.RetentionPolicy(count=2)).apply(),
    "savepoint": lambda store: store.savepoint(f"{URL}/saved").verify(deep=True),
    "import": imported,
    "compaction": compacted,
    "tag": tagged,
    "verify": looked,
    "latest_whole": found_whole,
    "leased": lambda store: store.lease().release(),
}


def calls_of(name):
    store = make(count=3)
    beside = Beside(store.storage, None, None)
    DONE[name](arrowstate.StateStore(beside, store.store_id))
    return beside.calls


@pytest.mark.parametrize("name", DONE)
def test_nobody_finds_damage_beside_a_collection(name):
    for at in range(1, calls_of(name) + 1):
        store = make(count=3)
        beside = Beside(store.storage, at, lambda store=store: others(store))
        try:
            DONE[name](arrowstate.StateStore(beside, store.store_id))
        except arrowstate.CorruptDataError as error:
            pytest.fail(f"before call {at}: {error}")
        except (arrowstate.CheckpointNotFoundError, arrowstate.StorageError):
            # What was asked for has been collected, and that is what the error says.
            pass
        assert store.verify(deep=True).problems == [], at
        assert store.latest().properties == {"start": 90 * ROWS}, at
        store.collect().apply()


def test_a_savepoint_holds_the_checkpoint_that_it_reads():
    store = make(tag=None)

    def meanwhile(done, _):
        if done == 1:
            others(store)
            forget_open_files()

    saved = store.savepoint(f"{URL}/saved", progress=meanwhile)

    assert saved.properties == {"start": ROWS}
    assert saved.verify(deep=True).problems == []
    assert store.storage.list("leases/") == []


def test_an_import_holds_the_checkpoint_of_another_store_that_it_reads():
    store = make(tag=None)
    target = arrowstate.open_store(f"{URL}/target", create=True)

    imported = target.import_savepoint(store.latest(), progress=lambda done, _: done > 1 or others(store))

    assert imported.properties == {"start": ROWS}
    assert imported.verify(deep=True).problems == []
    assert store.storage.list("leases/") == []


@contextmanager
def reading(storage, entry):
    with held_while_read(storage, entry, holder="a test", clock_ms=lambda: 1000, new_id=lambda: "lease"):
        yield


def test_a_checkpoint_is_held_while_it_is_read_and_a_savepoint_needs_no_lease():
    store = make()
    saved = store.savepoint(f"{URL}/saved")

    with reading(store.storage, store.latest().entry):
        assert store.storage.list("leases/") == ["leases/lease.json"]
    assert store.storage.list("leases/") == []
    with reading(saved.storage, saved.entry):
        assert saved.storage.list("leases/") == []


def test_a_checkpoint_that_was_collected_cannot_be_held():
    store = make(tag=None)
    entry = store.latest().entry
    others(store)

    with pytest.raises(arrowstate.CheckpointNotFoundError), reading(store.storage, entry):
        pytest.fail("it is gone")


def test_a_store_that_cannot_be_written_to_is_read_without_a_lease_and_with_a_warning():
    store = make()
    read_only = refusing(store.storage, "put_if_absent", "delete")
    unwritable = arrowstate.StateStore(read_only, store.store_id)

    with pytest.warns(RuntimeWarning, match="no lease holds checkpoint 2 .*the request was lost"):
        saved = unwritable.savepoint(f"{URL}/saved")

    assert saved.verify(deep=True).ok


def test_a_lease_that_cannot_be_released_hides_no_error():
    store = make()

    with (
        pytest.warns(RuntimeWarning, match="could not be released, and ends by itself: .*the request was lost"),
        pytest.raises(ZeroDivisionError),
        reading(refusing(store.storage, "delete"), store.latest().entry),
    ):
        raise ZeroDivisionError


@pytest.mark.parametrize("grace_ms", [0, 59_999])
def test_a_grace_period_below_a_minute_takes_an_explicit_word(grace_ms):
    store = make()

    with pytest.raises(arrowstate.InvalidInputError, match=r"at least 60000 ms, got .*allow_short_grace=True"):
        store.collect(grace_ms=grace_ms)
    store.collect(grace_ms=grace_ms, allow_short_grace=True)
    store.collect(grace_ms=60_000)
    with pytest.raises(arrowstate.ArrowStateError):
        store.collect(grace_ms=-1, allow_short_grace=True)


READ = {
    "to_arrow": lambda snapshot: snapshot.to_arrow("op.counts"),
    "lookup": lambda snapshot: snapshot.lookup("op.counts", [2 * ROWS]),
    "sql": lambda snapshot: snapshot.sql("select sum(counts) from op.counts").fetchall(),
    "sql of operator state": lambda snapshot: snapshot.sql("select count(*) from op.offsets").fetchall(),
    "restore": lambda snapshot: snapshot.restore("op"),
    "restore_operator_state": lambda snapshot: snapshot.restore_operator_state("op"),
    "operator_state": lambda snapshot: snapshot.operator_state("op", "offsets"),
    "show": lambda snapshot: snapshot.show(),
    "storage_use": lambda snapshot: snapshot.storage_use(),
}


@pytest.mark.parametrize("name", READ)
def test_a_reader_that_nothing_holds_is_told_that_the_checkpoint_was_collected(name):
    store = make()
    snapshot = store.latest()
    others(store)
    forget_open_files()

    try:
        READ[name](snapshot)
    except arrowstate.CollectedError as error:
        assert (error.checkpoint_id, error.acknowledged) == (2, True)
        assert not store.storage.exists(error.paths[0])
        assert "store.lease()" in str(error)
    else:
        # Its manifest stands in the log entry.
        assert name in ("show", "storage_use")
    assert "missing: checkpoint 2 was collected" in "".join(snapshot.verify().problems)


@pytest.mark.parametrize("name", [name for name in READ if name not in ("show", "storage_use")])
def test_what_is_missing_and_was_not_collected_is_damage(name):
    store = make()
    snapshot = store.latest()
    for path in store.storage.list("data/"):
        store.storage.delete(path)
    forget_open_files()

    with pytest.raises(arrowstate.CorruptDataError, match="missing"):
        READ[name](snapshot)
    assert "is damaged" in "".join(store.verify().problems)
    with pytest.raises(arrowstate.CorruptDataError, match="missing"):
        store.collect()


class LateEntry:
    """The storage of a writer whose entry appears while a collection without a grace period is applied."""

    def __init__(self, store, at):
        self._storage = store.storage
        self._store = store
        self._at = at
        self.outcome = None
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_if_absent(self, path, data, commit_id):
        if path.startswith("log/") and self.outcome is None:
            collection = self._store.collect(grace_ms=0, allow_short_grace=True)

            def appear():
                self.outcome = self._storage.put_if_absent(path, data, commit_id)

            beside = Beside(self._storage, self._at, appear)
            apply_collection(beside, collection.plan, now_ms=1000, new_id=lambda: uuid.uuid4().hex)
            self.calls = beside.calls
            if self.outcome is None:
                appear()
            return self.outcome
        return self._storage.put_if_absent(path, data, commit_id)


def commit_late(at, more_states=0):
    """Return a store, what became of a commit whose entry appeared before a call of a collection, and its storage."""
    store = make(tag=None)
    late = LateEntry(store, at)
    writer = CheckpointWriter(late, store.store_id, clock_ms=lambda: 1000, new_id=lambda: uuid.uuid4().hex)
    late.outcome = None
    error = None
    try:
        step(writer, 50 * ROWS, more_states)
    except arrowstate.CommitUnknownError as failed:
        error = failed
    return arrowstate.StateStore(store.storage, store.store_id), error, late


def test_a_commit_whose_files_were_collected_stops_neither_a_restart_nor_a_collection():
    make(tag=None)
    moments = commit_late(None)[2].calls
    seen = set()
    for at in range(1, moments + 2):
        store, error, _ = commit_late(at)
        forget_open_files()
        try:
            store.latest().restore("op")
            whole = store.latest()
            seen.add("whole" if error is None else "not told of, and whole")
        except arrowstate.CollectedError as collected:
            assert error is not None, at
            assert (collected.checkpoint_id, collected.acknowledged) == (store.latest().checkpoint_id, False)
            assert "latest_whole()" in str(collected)
            assert any("never acknowledged" in problem for problem in store.verify().problems)
            assert not any("is damaged" in problem for problem in store.verify(deep=True).problems), at
            with pytest.warns(RuntimeWarning, match="never acknowledged"):
                whole = store.latest_whole()
            assert whole.properties == {"start": ROWS}
            seen.add("collected")
        store.collect().apply()
        store.collect(arrowstate.RetentionPolicy(count=3)).apply()
        backend = whole.restore("op")
        with store.writer() as writer:
            writer.checkpoint({"op": [backend]}, operator_states={"op": [whole.restore_operator_state("op")]})
            assert store.latest().restore("op").state(COUNTS).get_batch([whole.properties["start"]]).to_pylist() == [1]
        store.collect().apply()
        assert store.verify(deep=True).problems == []
        (last,) = boundaries(store.storage)
        assert len(read_boundary(store.storage, last).taken) < 8
    assert seen >= {"whole", "collected"}


def test_what_a_collection_took_is_remembered_for_one_more_entry_and_no_longer():
    store = make(tag=None, count=4)
    store.collect().apply()
    (first,) = boundaries(store.storage)
    assert len(read_boundary(store.storage, first).taken) == 6
    assert set(read_boundary(store.storage, first).taken.values()) == {5}
    store.collect().apply()
    assert boundaries(store.storage) == [first]

    store.writer()

    assert store.collect().plan.taken == {}


def test_a_manifest_that_a_collection_took_stops_no_collection():
    store = in_doubt(more_states=40)
    (last,) = boundaries(store.storage)
    assert [path for path in read_boundary(store.storage, last).taken if path.startswith("manifests/")]
    assert "manifests/" in "".join(store.verify().problems)

    store.collect().apply()

    with pytest.warns(RuntimeWarning, match="never acknowledged"):
        assert store.latest_whole().restore("op").state(COUNTS).get_batch([ROWS]).to_pylist() == [1]


@pytest.mark.parametrize("portions", [None, Portions(entries=1, files=1)], ids=["at once", "in portions"])
def test_a_checkpoint_in_doubt_that_is_leased_before_a_collection_drops_it_stops_no_collection(portions):
    store = in_doubt(more_states=40)
    doubtful = CommitLog(store.storage).latest()
    gone = doubtful.document.operators[0].subtasks[0].manifest.path
    with store.writer() as writer:
        step(writer, 70 * ROWS, 40)
        step(writer, 80 * ROWS, 40)

    def plan():
        policy = arrowstate.RetentionPolicy()
        return plan_collection(store.storage, policy, now_ms=1000, grace_ms=60_000, portions=portions)

    def apply(planned):
        apply_collection(store.storage, planned, now_ms=1000, new_id=new_id, portions=portions)

    older = plan()
    with held_while_read(store.storage, doubtful, holder="a reader", clock_ms=lambda: 1000, new_id=new_id):
        apply(older)
        apply(plan())
        assert "is damaged" not in "".join(store.verify(deep=True).problems)
        assert doubtful.document.number in {item.entry_number for item in plan().kept}

    apply(plan())
    assert [snapshot.properties for snapshot in store.checkpoints()] == [{"start": 80 * ROWS}]
    assert gone not in plan().taken
    assert store.verify(deep=True).problems == []


def new_id():
    return uuid.uuid4().hex


def in_doubt(more_states=0):
    """A store whose newest checkpoint was never acknowledged, since a collection took its files."""
    for at in range(1, 60):
        store, error, _ = commit_late(at, more_states)
        if error is not None and not store.latest().verify().ok:
            return store
    raise AssertionError("there is such a moment")


def late(meanwhile, more_states):
    """Return a store whose newest entry appeared after something had taken its files, so that nobody was told of it."""
    store = make(tag=None)
    storage = Hooked(store.storage).act_before("put_if_absent", "log/00000000000000000005", lambda: meanwhile(store))
    writer = CheckpointWriter(storage, store.store_id, clock_ms=lambda: 1000, new_id=lambda: uuid.uuid4().hex)
    with pytest.raises(arrowstate.CommitUnknownError):
        step(writer, 50 * ROWS, more_states)
    forget_open_files()
    return store


def take(store, storage=None):
    plan = store.collect(grace_ms=0, allow_short_grace=True).plan
    # The next collection takes its document away: where the numbers are the same, the names decide.
    apply_collection(storage or store.storage, plan, now_ms=1000, new_id=lambda: f"{0:016}{uuid.uuid4().hex[:16]}")


def take_before_an_older_plan_is_applied(store):
    older = store.collect()
    take(store)
    older.apply()


def take_and_die(store):
    with suppress(Crash):
        take(store, Hooked(store.storage).act_before("put_if_absent", "gc/boundary", Crash()))


def take_and_die_before_another_collection(store):
    take_and_die(store)
    store.collect().apply()


@pytest.mark.parametrize("more_states", [0, 40], ids=["data", "manifests"])
@pytest.mark.parametrize(
    "meanwhile", [take_before_an_older_plan_is_applied, take_and_die, take_and_die_before_another_collection]
)
def test_what_a_collection_took_is_never_called_damage_whichever_collection_ends_last(meanwhile, more_states):
    store = late(meanwhile, more_states)

    for _ in range(3):
        problems = "".join(store.verify(deep=True).problems)
        assert "never acknowledged" in problems
        assert "is damaged" not in problems
        store.collect().apply()

    with pytest.warns(RuntimeWarning, match="never acknowledged"):
        assert store.latest_whole().properties == {"start": ROWS}


def test_a_reader_beside_the_end_of_the_collection_that_took_its_files_is_told_so():
    store = late(take_and_die, 0)
    storage = Hooked(store.storage).act_before("read", "gc/condemned", lambda: store.collect().apply())

    with pytest.raises(arrowstate.CollectedError, match="never acknowledged"):
        arrowstate.StateStore(storage, store.store_id).latest().restore("op")


def test_the_newest_whole_checkpoint_is_looked_for_again_where_newer_ones_were_collected_meanwhile():
    def tag_and_take(store):
        store.tag("old", 1)
        take(store)

    store = late(tag_and_take, 0)
    with pytest.warns(RuntimeWarning, match="never acknowledged"):
        newest = store.latest_whole().entry
    files = sorted(ReferenceReader(store.storage).files(newest.operators))
    storage = Hooked(store.storage).act_before("open_buffer", files[0], lambda: others(store))
    forget_open_files()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert arrowstate.StateStore(storage, store.store_id).latest_whole().properties == {"start": 90 * ROWS}


def test_a_manifest_that_a_collection_spared_and_that_is_damaged_ends_the_next_one():
    store = make(tag=None)
    plans = []
    storage = Hooked(store.storage).act_before(
        "put_if_absent",
        "log/00000000000000000005",
        lambda: plans.append(store.collect(grace_ms=0, allow_short_grace=True).plan),
    )
    writer = CheckpointWriter(storage, store.store_id, clock_ms=lambda: 1000, new_id=lambda: uuid.uuid4().hex)
    step(writer, 50 * ROWS, more_states=40)

    with suppress(Crash):
        dying = Hooked(store.storage).act_before("put_if_absent", "gc/boundary", Crash())
        apply_collection(dying, plans[0], now_ms=1000, new_id=lambda: uuid.uuid4().hex)
    (manifest,) = store.storage.list("manifests/")
    assert [boundary.condemns for boundary in boundaries(store.storage)] == [True]
    store.storage.delete(manifest)
    store.storage.put_if_absent(manifest, b'{"no": "manifest"}', "manifest")

    with pytest.raises(arrowstate.CorruptDataError, match=manifest):
        store.collect()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.tag("t"),
        lambda store: store.savepoint(f"{URL}/saved"),
        lambda store: store.sql("select sum(counts) from op.counts").fetchall(),
        imported,
    ],
)
def test_whoever_needs_files_that_were_never_acknowledged_is_told_so_and_leaves_nothing(call):
    store = in_doubt()
    listed = store.storage.list("")
    forget_open_files()

    with pytest.raises(arrowstate.CollectedError, match="never acknowledged"):
        call(store)

    assert store.storage.list("") == listed


def test_a_tag_or_lease_that_cannot_be_confirmed_is_taken_away_again():
    store = make(tag=None)

    def slow_down(call):
        is_confirmed = call.path == "gc/" and (store.storage.list("tags/") or store.storage.list("leases/"))
        return Fault.FAIL_BEFORE if call.verb == "list" and is_confirmed else None

    deaf = arrowstate.StateStore(FaultyStorage(store.storage, slow_down), store.store_id)

    with pytest.raises(arrowstate.StorageError, match="the request was lost"):
        deaf.tag("t")
    with pytest.raises(arrowstate.StorageError, match="the request was lost"):
        deaf.lease()

    assert store.storage.list("tags/") + store.storage.list("leases/") == []
    store.tag("t")


def test_a_lease_on_a_checkpoint_that_was_collected_names_those_there_are():
    store = make(tag=None)
    lease = store.lease(ttl_ms=10**9)
    lease.release()
    entry = store.latest().entry
    others(store)

    with (
        pytest.raises(arrowstate.CheckpointNotFoundError, match="no checkpoint 2 in this store; it has 3"),
        reading(store.storage, entry),
    ):
        pytest.fail("it is gone")
