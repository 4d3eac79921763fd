"""Whatever a process does to a store, it may die or lose an answer at every one of its storage calls.

Each operation is repeated with a fault at its first call, at its second, and so on, to its last. In the short form
operations of many calls have one kind of fault at each of them, and another in the next run. After each fault the
store is opened as a new process does: what was acknowledged is there bit for bit, a new writer
goes on, and a collection leaves nothing that no checkpoint needs.
"""

import random
import uuid

import pyarrow as pa
import pytest

from arrowstate import CommitUnknownError, RetentionPolicy, StateStore, StorageError, ValueStateDescriptor
from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.files.references import ReferenceReader
from arrowstate.files.savepoint import write_savepoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import create_store, open_store_document, path_of
from arrowstate.log.leases import DEFAULT_LEASE_MS, CheckpointLease
from arrowstate.log.pins import read_pins
from arrowstate.publish.held import OWN_TAGS
from arrowstate.publish.publication import Publish, Publisher
from arrowstate.storage import clear_memory_storage, open_storage
from arrowstate.testing import Crashed, Fault, FaultyStorage
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.compaction import apply_store_compaction, plan_store_compaction
from arrowstate.upkeep.planned import Portions
from long_form import every_nth, short_or_long
from simulation.content import OPERATOR, change, content_of, new_backends, restored_backends

FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL_BEFORE, Fault.FAIL_AFTER]
GRACE_MS = 1000
LEASE_MS = 100


class World:
    """A store, what its checkpoints hold, and a clock that is set by hand."""

    def __init__(self, storage, now_ms=1_000_000):
        self.storage = storage
        self.now_ms = now_ms
        self.contents = {}
        "What each acknowledged checkpoint holds, by its number."
        self.promised = []
        "What every checkpoint holds, by its property `promise`."
        self.tagged = {2}
        "Numbers that a tag keeps."
        self.leased = set()
        self.savepoints = {}
        "What each acknowledged savepoint holds, by its URL."
        self.published = {}
        "By the URL of a place how it is published to, and its files after an undisturbed publication."

    def clock_ms(self):
        return self.now_ms

    @staticmethod
    def new_id():
        return uuid.uuid4().hex

    def store(self, storage=None):
        return StateStore(storage or self.storage, "store", clock_ms=self.clock_ms, new_id=self.new_id)

    def writer(self, storage=None):
        return CheckpointWriter(storage or self.storage, "store", clock_ms=self.clock_ms, new_id=self.new_id)

    def commit(self, writer, backends, format="arrow"):
        self.promised.append(backends.content)
        entry = writer.checkpoint(
            {OPERATOR: backends.keyed},
            operator_states={OPERATOR: backends.operator},
            properties={"promise": len(self.promised) - 1},
            format=format,
        )
        self.contents[entry.number] = backends.content

    def restored(self, storage=None):
        """The backends of the newest checkpoint, of two subtasks."""
        storage = storage or self.storage
        entry = CommitLog(storage).latest_checkpoint()
        return restored_backends(storage, "store", entry, 2, self.promised[entry.properties["promise"]])

    def lease(self, storage, number):
        entry = CommitLog(storage).committed_checkpoint(number)
        times = {"ttl_ms": LEASE_MS, "clock_ms": self.clock_ms, "new_id": self.new_id}
        # Renewed by hand: its thread ends at once.
        return CheckpointLease(storage, entry, holder="a reader", wait=lambda _: True, **times)

    def publish(self, storage, target, publish):
        made = {"clock_ms": self.clock_ms, "new_id": self.new_id}
        return Publisher(storage, "store", target, publish, **made).publish()

    def collect(self, storage, count=2, portions=None):
        policy = RetentionPolicy(count=count)
        plan = plan_collection(storage, policy, now_ms=self.now_ms, grace_ms=GRACE_MS, portions=portions)
        return apply_collection(storage, plan, now_ms=self.now_ms, new_id=self.new_id, portions=portions)


def fill(world):
    """Make a store with something of everything."""
    storage = world.storage
    create_store(storage, "store", 0)
    draw = random.Random(7)
    writer, backends = world.writer(), new_backends(2)
    for number in range(2, 6):
        backends = change(backends, draw)
        world.commit(writer, backends, "parquet" if number == 3 else "arrow")
    world.store().tag("first", 1)
    world.lease(storage, 2)
    there = set(storage.list("data/"))
    dying = FaultyStorage(storage, lambda call: Fault.CRASH_BEFORE if call.path == path_of(7) else None)
    with pytest.raises(Crashed):
        world.commit(world.writer(dying), change(world.restored(), draw))
    assert set(storage.list("data/")) - there, "an attempt that died must leave files"
    # A collection sees them; the next one finds that they have waited long enough, and that the lease has ended.
    assert world.collect(storage, count=9).deleted == (path_of(1),)
    world.now_ms += GRACE_MS


@pytest.fixture(scope="module")
def template():
    url = f"memory://{uuid.uuid4().hex}"
    world = World(open_storage(url, create=True))
    fill(world)
    yield world
    clear_memory_storage(url)


@pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.slow)])
def copies(request, template, tmp_path):
    """Makes copies of the full store, each at a place of its own."""
    files = {path: template.storage.read(path) for path in template.storage.list("")}
    url = f"memory://{uuid.uuid4().hex}"

    def copy(number):
        place = f"{url}/{number}" if request.param == "memory" else tmp_path / str(number)
        world = World(open_storage(place, create=True), template.now_ms)
        for path, data in files.items():
            if request.param == "memory":
                world.storage.put_hint(path, data)
            else:
                # A storage would make each of them durable.
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_bytes(data)
        world.contents, world.promised = dict(template.contents), [*template.promised]
        return world

    copy.in_memory = request.param == "memory"
    yield copy
    clear_memory_storage(url)


class Process:
    """What an operation is done with: connections of one process, of whose calls one goes wrong."""

    def __init__(self, world, at, fault):
        self.world = world
        self.armed = False
        self._at = at
        self._fault = fault
        self.calls = 0
        self._dead = False
        self.storage = self.connect(world.storage)
        self.store = world.store(self.storage)

    def connect(self, storage):
        return FaultyStorage(storage, self._choose)

    def _choose(self, call):
        # All connections of a process die together.
        if self._dead:
            return Fault.CRASH_BEFORE
        if not self.armed:
            return None
        self.calls += 1
        if self.calls != self._at:
            return None
        self._dead = self._fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
        return self._fault

    @property
    def went_wrong(self):
        return self.calls >= self._at


# Operations: each is prepared without a fault, and returns what is done with one, and again after an error.


def commit_of(format):
    def prepare(world, process):
        writer, backends = world.writer(process.storage), change(world.restored(), random.Random(8))
        return lambda: world.commit(writer, backends, format)

    return prepare


def opening(world, process):
    return lambda: world.writer(process.storage)


def restoring(world, process):
    def restore():
        store_id = open_store_document(process.storage).store_id
        entry = CommitLog(process.storage).latest_checkpoint()
        assert entry.number == 5
        assert content_of(process.storage, store_id, entry, 3) == world.contents[5]
        # What cannot be looked at is not taken for damaged.
        assert process.store.latest_whole().entry.number == 5

    return restore


def collecting(world, process):
    return lambda: world.collect(process.storage)


def collecting_in_portions(world, process):
    return lambda: world.collect(process.storage, portions=Portions(entries=1, files=2))


def saving(world, process, folder="savepoints/one"):
    url = f"{world.storage.url}/{folder}"
    target = process.connect(open_storage(url, create=True))

    def save():
        entry = process.store.latest().entry
        write_savepoint(process.storage, "store", entry, target, new_id=world.new_id, clock_ms=world.clock_ms)
        world.savepoints[url] = world.contents[entry.number]

    return save


def tagging(world, process):
    def tag():
        if "second" not in process.store.tags():
            process.store.tag("second", 3)
        world.tagged.add(4)

    return tag


def untagging(world, process):
    def untag():
        world.tagged.discard(2)
        if "first" in process.store.tags():
            process.store.untag("first")

    return untag


def leasing(world, process):
    lease = None

    def take():
        nonlocal lease
        lease = lease or world.lease(process.storage, 3)
        lease.renew()
        world.leased = {4}

    return take


def releasing(world, process):
    lease = world.lease(process.storage, 3)

    return lease.release


def compacting(world, process):
    policy = CompactionPolicy(max_space_amplification=1.01, max_small_files=1, min_bytes=0)

    def compact():
        plan = plan_store_compaction(process.storage, policy)
        assert plan.merges or CommitLog(world.storage).latest().document.kind == "compaction"
        report = apply_store_compaction(process.storage, "store", plan, clock_ms=world.clock_ms, new_id=world.new_id)
        if report.entry is not None:
            world.contents[report.entry.number] = world.contents[5]

    return compact


def bootstrapping(world, process):
    notes = world.contents[5].notes
    rows = pa.table({"k": range(len(notes)), "note": pa.array(notes, pa.string())})
    state = ValueStateDescriptor("note", pa.string())

    def load():
        made = process.store.bootstrap(OPERATOR, ["k"], [state], rows, overwrite=True)
        world.contents[made.entry.number] = world.contents[5]

    return load


def publishing(format, version, earlier=1):
    """The publication after some earlier ones; the undisturbed one is made first, and undone."""

    def prepare(world, process):
        url = f"{world.storage.url}-tables"
        publish, target = Publish(to=url, format=format, version=version, history=1), open_storage(url, create=True)
        draw = random.Random(8)
        for _ in range(earlier):
            world.publish(world.storage, target, publish)
            world.commit(world.writer(), change(world.restored(), draw), "parquet")
        before, tags = files_of(target), files_of(world.storage, "tags/")
        for _ in range(2):
            # The second finds nothing new, and deletes what only the version before had.
            world.publish(world.storage, target, publish)
        world.published[url] = publish, files_of(target)
        put_back(target, before)
        put_back(world.storage, tags, "tags/")
        connection = process.connect(target)
        return lambda: world.publish(process.storage, connection, publish)

    return prepare


def files_of(storage, prefix=""):
    return {path: storage.read(path) for path in storage.list(prefix)}


def put_back(storage, files, prefix=""):
    for path in storage.list(prefix):
        storage.delete(path)
    for path, data in files.items():
        storage.put_hint(path, data)


OPERATIONS = {
    "commit": commit_of("arrow"),
    "commit-parquet": commit_of("parquet"),
    "bootstrap": bootstrapping,
    "fence": opening,
    "restore": restoring,
    "collect": collecting,
    "collect-portions": collecting_in_portions,
    "compact": compacting,
    "savepoint": saving,
    "tag": tagging,
    "untag": untagging,
    "lease": leasing,
    "release": releasing,
    "publish-iceberg": publishing("iceberg", 3),
    "publish-iceberg-2": publishing("iceberg", 2),
    "publish-delta": publishing("delta", 3),
    "publish-delta-2": publishing("delta", 2),
    # The twentieth version has a checkpoint of Delta; versions before it go, and what those before the tenth had.
    "publish-delta-trims": publishing("delta", 3, earlier=20),
}
TIDY = ("bootstrap", "commit", "commit-parquet", "compact", "savepoint")
"""What leaves no file behind where it fails."""
FEW_CALLS = 8
"""So many calls get every kind of fault in the short form too, in memory."""


CALLS = {}
"""How many calls an operation makes when nothing goes wrong, at each kind of place."""


def calls_of(operation, copies):
    place = operation, copies.in_memory
    if place not in CALLS:
        world = copies(0)
        process = Process(world, None, None)
        act = OPERATIONS[operation](world, process)
        process.armed = True
        act()
        check(world)
        CALLS[place] = process.calls
    return CALLS[place]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value.replace(" ", "-"))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_at_any_call_of(operation, fault, copies):
    calls = calls_of(operation, copies)
    # Each call has its fault of this turn: by another n-th for each kind of fault.
    n = (1 if calls <= FEW_CALLS else 8) if copies.in_memory else 16
    if operation.startswith("publish"):
        n *= short_or_long(3, 1)
    for at in range(1, calls + 1):
        if not every_nth(n, at + FAULTS.index(fault)):
            continue
        world = copies(at)
        process = Process(world, at, fault)
        act = OPERATIONS[operation](world, process)

        before = leftovers(world)
        process.armed = True
        survives = fault in (Fault.FAIL_BEFORE, Fault.FAIL_AFTER)
        try:
            act()
        except Crashed:
            assert not survives
        except (StorageError, CommitUnknownError) as error:
            assert survives
            check(world)
            if isinstance(error, StorageError) and operation in TIDY:
                assert leftovers(world) == before
            again = act
            if operation == "savepoint" and isinstance(error, CommitUnknownError):
                # It may be there, so it is in the way.
                again = saving(world, process, "savepoints/another")
            # The same process tries again.
            again()

        assert process.went_wrong
        check(world)
        go_on(world)
        leave_nothing(world, unfinished=operation == "savepoint")


def leftovers(world):
    """Files that a commit or a savepoint would delete again."""
    return [path for path in world.storage.list("") if path.startswith(("data/", "manifests/", "savepoints/"))]


def check(world):
    """Whoever opens the store finds all that was acknowledged, bit for bit."""
    entries = {entry.number: entry for entry in CommitLog(world.storage).backwards()}
    assert {snapshot.entry.number for snapshot in world.store().checkpoints()} <= entries.keys()
    committed = entries.keys() | world.contents.keys()
    # Of two checkpoints that are kept, one may never have been acknowledged.
    kept = {*sorted(committed)[-2:], *world.tagged, *world.leased} & world.contents.keys()
    assert kept <= entries.keys()
    for number, entry in entries.items():
        promised = world.promised[entry.properties["promise"]]
        assert content_of(world.storage, "store", entry) == world.contents.get(number, promised) == promised
    for url, content in world.savepoints.items():
        target = open_storage(url)
        entry = CommitLog(target).latest_checkpoint()
        assert content_of(target, open_store_document(target).store_id, entry) == content


def go_on(world):
    """A new process takes over from the newest checkpoint, and is not hindered by what the one before it left."""
    assert world.store().verify(deep=True).problems == []
    for url, (publish, files) in world.published.items():
        # What another publisher makes of what is there is what an undisturbed one has made.
        target = open_storage(url)
        for _ in range(2):
            world.publish(world.storage, target, publish)
        found = files_of(target)
        assert sorted(found) == sorted(files)
        assert [path for path in files if found[path] != files[path]] == []
        assert any(tag.startswith(OWN_TAGS) for tag in world.store().tags())
    world.commit(world.writer(), change(world.restored(), random.Random(9)))


def leave_nothing(world, *, unfinished):
    """When every grace period and lease has ended, collections leave what checkpoints need, and nothing else."""
    world.leased = set()
    for _ in range(2):
        world.now_ms += DEFAULT_LEASE_MS
        world.collect(world.storage)
    check(world)
    assert world.store().verify().problems == []
    log = CommitLog(world.storage)
    boundary = log.boundary()
    entries = [log.read(number) for number in log.numbers()]
    pinned = {pin.entry.number for pin in read_pins(world.storage)}
    assert all(entry.document.number >= boundary or entry.document.number in pinned for entry in entries)
    reader = ReferenceReader(world.storage)
    needed = {path_of(entry.document.number) for entry in entries}
    needed.update(path for entry in entries for path in reader.files(entry.document.operators))
    others = {path for path in world.storage.list("") if path not in needed}
    if unfinished:
        others = {path for path in others if not path.startswith("savepoints/")}
    statements = {path for path in others if path.startswith("gc/boundary-")}
    assert others - statements == {
        "arrowstate.json",
        "_latest",
        *(f"tags/{name}.json" for name in world.store().tags()),
    }
    assert len(statements) <= 2
