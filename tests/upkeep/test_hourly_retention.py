"""The newest checkpoint of each hour: collections hold it by a lease of their own, as long as their policy says so."""

import itertools
import random
import uuid

import pytest

import arrowstate
from arrowstate.errors import CommitUnknownError, InvalidInputError, StorageError
from arrowstate.log.pins import read_pins
from arrowstate.storage import clear_memory_storage
from arrowstate.storage.registry import open_storage
from arrowstate.store import StateStore
from arrowstate.testing.faults import Crashed, Fault, FaultyStorage, PlannedFaults
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.planned import Portions
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy
from stores import TOTAL, backend_of

HOUR = 3_600_000
MINUTE = 60_000
DAY = 24 * HOUR
START = 1_767_225_600_000
ROWS = 3000
"""Enough for a data file."""


class Kept:
    """A store with a clock of its own, whose checkpoints share no file."""

    def __init__(self, name):
        url = f"memory://hourly-{name}"
        clear_memory_storage(url)
        self.now_ms = START
        made = arrowstate.open_store(url, create=True)
        self.store = StateStore(open_storage(url), made.store_id, clock_ms=lambda: self.now_ms)
        self.writer = self.store.writer()
        self.committed = {}

    def checkpoint(self):
        backend = backend_of(max_parallelism=8)
        number = len(self.committed) + 1
        backend.state(TOTAL).add_batch(range(ROWS), [number] * ROWS)
        self.committed[self.writer.checkpoint({"op": [backend]}).checkpoint_id] = self.now_ms

    def checkpoints(self, count, every_ms):
        for _ in range(count):
            self.now_ms += every_ms
            self.checkpoint()

    def collect(self, policy, portions=None):
        plan = plan_collection(
            self.store.storage, policy, now_ms=self.now_ms, grace_ms=0, portions=portions, clock_ms=lambda: self.now_ms
        )
        new_id = lambda: uuid.uuid4().hex  # noqa: E731
        return apply_collection(self.store.storage, plan, now_ms=self.now_ms, new_id=new_id, portions=portions)

    def ids(self):
        return [found.checkpoint_id for found in self.store.checkpoints()]

    def expected(self, policy):
        """What a policy keeps of all that was ever committed."""
        ids = sorted(self.committed)
        present = self.now_ms // HOUR
        newest = {self.committed[each] // HOUR: each for each in ids}
        hourly = {each for hour, each in newest.items() if present - policy.hours < hour <= present}
        return sorted({*ids[-policy.count :], *hourly})


@pytest.fixture
def kept(request):
    return Kept(request.node.name)


@pytest.mark.parametrize("portions", [None, Portions(entries=3, files=5)], ids=["at once", "in portions"])
@pytest.mark.parametrize("seed", range(4))
def test_every_collection_leaves_the_newest_of_each_of_the_last_hours_that_were_ever_committed(kept, seed, portions):
    chance = random.Random(seed)
    policy = RetentionPolicy(count=chance.randint(1, 4), hours=chance.randint(1, 6))

    for _ in range(60):
        kept.now_ms += chance.choice([MINUTE, 20 * MINUTE, 70 * MINUTE, 3 * HOUR])
        kept.checkpoint()
        if chance.random() < 0.4:
            kept.now_ms += chance.choice([0, 0, 90 * MINUTE])
            kept.collect(policy, portions)
            assert kept.ids() == kept.expected(policy)

    kept.collect(policy, portions)
    assert kept.ids() == kept.expected(policy)
    totals = [found.to_arrow("op.total")["total"][0].as_py() for found in kept.store.checkpoints()]
    assert totals == kept.ids()
    assert kept.store.verify(deep=True).problems == []


def test_the_default_keeps_ten_and_a_checkpoint_of_each_hour_of_a_day(kept):
    for _ in range(26 * 6):
        kept.now_ms += 10 * MINUTE
        kept.checkpoint()
        if len(kept.committed) % 7 == 0:
            kept.collect(DEFAULT_RETENTION)
    kept.collect(DEFAULT_RETENTION)

    assert kept.ids() == kept.expected(DEFAULT_RETENTION)
    assert len(kept.ids()) == 10 + 24 - 3
    assert len(read_pins(kept.store.storage)) == 24 - 3
    data = [path for path in kept.store.storage.list("") if path.startswith(("data/", "log/"))]
    assert len(data) == 2 * len(kept.ids())


def test_a_day_without_checkpoints_leaves_the_newest_by_count(kept):
    kept.checkpoints(5, every_ms=HOUR)
    kept.collect(RetentionPolicy(count=2, hours=3))
    kept.now_ms += DAY

    kept.collect(RetentionPolicy(count=2, hours=3))

    assert kept.ids() == [4, 5]
    assert read_pins(kept.store.storage) == []


@pytest.mark.parametrize("portions", [None, Portions(entries=2, files=2)], ids=["at once", "in portions"])
def test_a_policy_without_hours_drops_what_another_one_kept_by_the_hour(kept, portions):
    kept.checkpoints(6, every_ms=HOUR)
    kept.collect(RetentionPolicy(count=1, hours=6))
    before = kept.ids()
    kept.store.tag("mine", 2)

    kept.collect(RetentionPolicy(count=1), portions)

    assert (before, kept.ids()) == ([1, 2, 3, 4, 5, 6], [2, 6])
    assert [pin.tag for pin in read_pins(kept.store.storage)] == ["mine"]


def test_a_policy_of_more_hours_keeps_what_is_there_for_longer(kept):
    kept.checkpoints(6, every_ms=HOUR)
    kept.collect(RetentionPolicy(count=1, hours=3))
    kept.collect(RetentionPolicy(count=1, hours=10))
    kept.now_ms += 5 * HOUR

    kept.collect(RetentionPolicy(count=1, hours=10))

    assert kept.ids() == [4, 5, 6]


def test_a_plan_says_why_and_changes_nothing(kept):
    kept.checkpoints(3, every_ms=HOUR)

    plan = plan_collection(kept.store.storage, RetentionPolicy(count=1, hours=2), now_ms=kept.now_ms, grace_ms=0)

    assert [item.reasons for item in plan.kept] == [
        ("the newest of its hour, 2026-01-01 02:00 UTC",),
        ("one of the newest 1", "the newest entry", "the newest of its hour, 2026-01-01 03:00 UTC"),
    ]
    assert [item.checkpoint_id for item in plan.hourly] == [2]
    assert plan.hourly[0].until_ms == START + 4 * HOUR
    assert read_pins(kept.store.storage) == []


def test_a_checkpoint_that_is_kept_by_its_hour_is_read_tagged_and_travelled_to(kept):
    kept.checkpoints(20, every_ms=30 * MINUTE)
    kept.collect(RetentionPolicy(count=1, hours=24))

    kept.store.tag("gold", 3)
    found = kept.store.snapshot(3).to_arrow("op.total")["total"][0].as_py()
    with kept.store.lease(5):
        kept.collect(RetentionPolicy(count=1))
        left = kept.ids()

    assert (found, left) == (3, [3, 5, 20])


def test_two_collections_at_once_with_other_policies_leave_a_whole_store(kept):
    kept.checkpoints(8, every_ms=HOUR)
    storage = kept.store.storage
    hourly, newest = (
        plan_collection(storage, policy, now_ms=kept.now_ms, grace_ms=0)
        for policy in (RetentionPolicy(count=1, hours=5), RetentionPolicy(count=1))
    )
    new_id = lambda: uuid.uuid4().hex  # noqa: E731

    for plan in itertools.chain((newest, hourly)):
        apply_collection(storage, plan, now_ms=kept.now_ms, new_id=new_id)

    assert kept.ids() == [8]
    assert read_pins(storage) == []
    assert kept.store.verify(deep=True).problems == []


@pytest.mark.parametrize("portions", [None, Portions(entries=2, files=2)], ids=["at once", "in portions"])
@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.FAIL_AFTER])
def test_a_collection_that_dies_at_any_call_keeps_the_newest_of_each_hour(kept, fault, portions):
    policy = RetentionPolicy(count=2, hours=4)
    kept.checkpoints(5, every_ms=40 * MINUTE)
    whole = kept.store.storage
    done, number = False, 0

    while not done:
        number += 19
        kept.now_ms += 40 * MINUTE
        kept.checkpoint()
        faulty = FaultyStorage(whole, PlannedFaults({number: fault}))
        kept.store.storage = faulty
        try:
            kept.collect(policy, portions)
            done = faulty.calls < number
        except (Crashed, StorageError, CommitUnknownError):
            pass
        finally:
            kept.store.storage = whole
        assert set(kept.ids()) >= set(kept.expected(policy))

    assert kept.store.verify(deep=True).problems == []
    assert kept.ids() == kept.expected(policy)


@pytest.mark.parametrize("hours", [-1, 745, 1.5])
def test_hours_that_no_policy_can_have_are_refused(hours):
    with pytest.raises(InvalidInputError, match="hours, of which a retention keeps the newest checkpoint,"):
        RetentionPolicy(hours=hours)
