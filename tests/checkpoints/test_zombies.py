"""Processes that were stopped, cut off or deceived by their clocks can not commit, nor have a live file collected."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arrowstate import (
    CheckpointNotFoundError,
    CollectedError,
    CommitUnknownError,
    FencedError,
    RetentionPolicy,
    StorageError,
)
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.references import ReferenceReader
from arrowstate.log.entries import create_store
from arrowstate.query.kept_reads import forget_checkpoints
from arrowstate.storage import open_storage
from arrowstate.store import StateStore
from every_kind import UID, Job, small_files

sys.path.insert(0, str(Path(__file__).parent))
from zombie import GRACE_MS, KEYS, NOW_MS

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
YEAR_MS = 365 * 24 * 3600 * 1000
NEWEST = RetentionPolicy(count=1)


class World:
    """A store with three checkpoints, those who go on in it, and what they were told is safe."""

    def __init__(self, folder):
        self.storage = open_storage(folder, create=True)
        self.now_ms = NOW_MS
        identity = create_store(self.storage, "store", NOW_MS)
        self.store = StateStore(self.storage, identity.store_id, clock_ms=lambda: self.now_ms)
        self.acknowledged = {}
        self.refused = 0
        job = Job.new(2, KEYS)
        with self.store.writer() as writer:
            for _ in range(3):
                self.commit(writer, job)

    def commit(self, writer, job, steps=None):
        number = len(self.acknowledged) if steps is None else steps
        job.step(number)
        return self.checkpoint(writer, job, number)

    def checkpoint(self, writer, job, number):
        """Commit the state as it is; files that the store has are referred to, or written anew if they may be going."""
        states = {UID: job.operator}
        try:
            snapshot = writer.checkpoint({UID: job.keyed}, operator_states=states, properties={"steps": number + 1})
        except CollectedError:
            self.refused += 1
            snapshot = writer.checkpoint({UID: job.keyed}, operator_states=states, properties={"steps": number + 1})
        self.acknowledged[snapshot.checkpoint_id] = job.checksum()
        return snapshot

    def process(self, storage=None, clock_ms=None):
        """A store as another process has it."""
        return StateStore(storage or self.storage, self.store.store_id, clock_ms=clock_ms or (lambda: self.now_ms))

    def take_over(self, checkpoints=2):
        """A new writer restores the newest checkpoint and goes on from it."""
        with self.store.writer() as writer:
            latest = self.store.latest()
            job = Job.restored(latest, 1, KEYS)
            for number in range(checkpoints):
                self.commit(writer, job, latest.properties["steps"] + number)

    def collect(self):
        """Collect, with the grace period of everything passed, all but the newest checkpoint."""
        self.store.collect(NEWEST, grace_ms=GRACE_MS, allow_short_grace=True).apply()
        self.now_ms += GRACE_MS
        self.store.collect(NEWEST, grace_ms=GRACE_MS, allow_short_grace=True).apply()

    def content(self, snapshot):
        forget_open_files()
        forget_checkpoints()
        return Job.restored(snapshot, 1, KEYS).checksum()

    def check(self):
        """What was acknowledged last is there and unchanged, all others that are there too, and one can go on."""
        kept = {snapshot.checkpoint_id: snapshot for snapshot in self.store.checkpoints()}
        assert max(self.acknowledged) in kept, "the newest acknowledged checkpoint is gone"
        for checkpoint_id in kept.keys() & self.acknowledged.keys():
            assert self.content(kept[checkpoint_id]) == self.acknowledged[checkpoint_id]
        assert self.store.verify(deep=True).problems == []
        self.take_over(1)
        assert self.content(self.store.latest()) == self.acknowledged[max(self.acknowledged)]
        self.collect()
        self.collect()
        reader = ReferenceReader(self.storage)
        referenced = {path for snapshot in self.store.checkpoints() for path in reader.files(snapshot.entry.operators)}
        there = {path for folder in ("data/", "manifests/") for path in self.storage.list(folder)}
        assert there == referenced, "something is left that nothing refers to, or gone that is needed"


@pytest.fixture
def world(tmp_path):
    with small_files():
        yield World(tmp_path / "store")


class Zombie:
    """A process that has stopped at the first of some places, see zombie.py."""

    def __init__(self, world, role, *places):
        command = [sys.executable, str(Path(__file__).with_name("zombie.py")), world.storage.url, role, *places]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self._wait(places[0])

    def wake(self, until=None):
        """Let it go on, to its end or until it stops again at a place."""
        os.kill(self._process.pid, signal.SIGCONT)
        if until is not None:
            self._wait(until)

    def said(self):
        """What it printed, when it is done."""
        output, _ = self._process.communicate()
        return [json.loads(line) for line in output.splitlines()]

    def _wait(self, place):
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it never came to {place}: {self._process.stdout.read()}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


# The store has a fence and checkpoints 1 to 3; the zombie's fence is entry 5, its checkpoint would be entry 6, id 4.
COMMIT = "log/00000000000000000006.json"


@pytest.mark.parametrize(
    ("place", "outcomes"),
    [
        # Several files are written at a time: another one may be unfinished then, and is collected as such.
        ("write_file data/ before", {"FencedError", "StorageError"}),
        ("write_file manifests/ before", {"FencedError"}),
        (f"put_if_absent {COMMIT} before", {"CommitUnknownError"}),
        (f"put_if_absent {COMMIT} after", {"CommitUnknownError"}),
    ],
    ids=["before its files", "before its manifests", "before its commit", "before its acknowledgement"],
)
@pytest.mark.turns(3)
def test_a_writer_that_was_stopped_while_others_took_over_and_collected_is_not_acknowledged(world, place, outcomes):
    with Zombie(world, "write", place) as zombie:
        world.take_over()
        world.collect()
        zombie.wake()
        said = zombie.said()

    assert said[-1]["outcome"] in outcomes, said
    world.check()


def test_a_writer_that_was_stopped_before_its_commit_finds_the_number_taken(world):
    with Zombie(world, "write", f"put_if_absent {COMMIT} before") as zombie:
        world.take_over()
        zombie.wake()
        said = zombie.said()

    assert said[-1]["outcome"] == "FencedError"
    world.check()


def test_a_writer_that_lost_and_stopped_before_it_deletes_its_files_deletes_nothing_that_is_needed(world):
    places = [f"put_if_absent {COMMIT} before", "delete data/ before"]
    with Zombie(world, "write", *places) as zombie:
        world.take_over(1)
        zombie.wake(until=places[1])
        world.take_over(1)
        world.collect()
        zombie.wake()
        said = zombie.said()

    assert said[-1]["outcome"] == "FencedError"
    world.check()


def test_a_writer_that_was_stopped_while_it_opened_takes_its_fence_above_those_it_had_not_seen(world):
    with Zombie(world, "open", "put_if_absent log/ before") as zombie:
        world.take_over()
        world.collect()
        zombie.wake()
        said = zombie.said()

    assert said == [{"outcome": "done", "epoch": 3}]
    world.check()


@pytest.mark.parametrize(
    "place",
    ["put_if_absent gc/ before", "put_if_absent gc/ after", "delete data/ before"],
    ids=["before its statement", "after its statement", "before its first deletion"],
)
@pytest.mark.turns(3)
def test_a_collector_that_was_stopped_takes_no_file_of_a_checkpoint_that_was_acknowledged_meanwhile(world, place):
    old = Job.restored(world.store.checkpoints()[0], 2, KEYS)

    with Zombie(world, "collect", place) as zombie:
        # The state of the oldest checkpoint, which the plan drops, is committed again: by reference where it may be.
        with world.store.writer() as writer:
            world.checkpoint(writer, old, 0)
        zombie.wake()
        said = zombie.said()

    assert world.refused == (place != "put_if_absent gc/ before")
    assert said[-1]["outcome"] == "done"
    assert said[-1]["deleted"] > 0
    world.check()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.turns(3)
def test_a_tag_that_was_stopped_while_its_checkpoint_was_collected_is_refused_or_holds(world, moment):
    with Zombie(world, "tag", f"put_if_absent tags/ {moment}") as zombie:
        world.take_over()
        world.collect()
        zombie.wake()
        said = zombie.said()

    if moment == "before":
        assert said[-1]["outcome"] == "CheckpointNotFoundError"
        assert world.store.tags() == {}
    else:
        # It was there when the roots were read, and kept the checkpoint.
        assert said[-1] == {"outcome": "done", "checkpoint": 2}
        assert world.content(world.store.snapshot(2)) == world.acknowledged[2]
        world.store.untag("zombie")
    world.check()


def test_a_lease_that_is_renewed_after_it_ended_and_its_checkpoint_was_collected_is_refused(world):
    with Zombie(world, "renew", "put_if_absent leases/ before") as zombie:
        world.now_ms += 2
        world.take_over()
        world.collect()
        assert world.storage.list("leases/") == []
        zombie.wake()
        said = zombie.said()

    assert said[-1]["outcome"] == "CheckpointNotFoundError"
    assert world.storage.list("leases/") == []
    world.check()


def test_of_drivers_that_start_at_once_one_is_left_and_every_acknowledged_checkpoint_is_there(world):
    with Zombie(world, "drive", "read _latest before") as one, Zombie(world, "drive", "read _latest before") as two:
        for zombie in (one, two):
            zombie.wake()
        said = [zombie.said() for zombie in (one, two)]

    outcomes = [lines.pop()["outcome"] for lines in said]
    assert outcomes.count("done") >= 1
    assert set(outcomes) <= {"done", "FencedError"}
    lines = [line for lines in said for line in lines]
    assert len({line["checkpoint"] for line in lines}) == len(lines) >= 5
    snapshots = {snapshot.checkpoint_id: snapshot for snapshot in world.store.checkpoints()}
    for line in lines:
        assert world.content(snapshots[line["checkpoint"]]) == line["checksum"]
    world.acknowledged.update({line["checkpoint"]: line["checksum"] for line in lines})
    epochs = [world.store._log.read(number).document.writer_epoch for number in world.store._log.numbers()]
    assert epochs == sorted(epochs)
    assert epochs[-1] == 3
    world.check()


class Partitioned:
    """A storage that can be cut off: calls fail, either before the other side sees them, or after it did them."""

    def __init__(self, storage):
        self._storage = storage
        self.cut_at = None
        self.cut = False

    def __getattr__(self, name):
        value = getattr(self._storage, name)
        if not callable(value):
            return value

        def call(*arguments, **options):
            path = arguments[0] if arguments else ""
            verb, prefix, done = self.cut_at or ("", "", False)
            if name == verb and path.startswith(prefix) and not self.cut:
                self.cut = True
                if done:
                    value(*arguments, **options)
            if not self.cut:
                return value(*arguments, **options)
            if name == "put_if_absent":
                raise CommitUnknownError(path, arguments[2], "the network is down")
            raise StorageError(path, "the network is down")

        return call


@pytest.mark.parametrize(
    ("cut_at", "error", "committed"),
    [
        (("write_file", "data/", False), StorageError, False),
        (("write_file", "manifests/", False), StorageError, False),
        (("put_if_absent", "log/", False), CommitUnknownError, False),
        (("put_if_absent", "log/", True), CommitUnknownError, True),
        (("put_hint", "_latest", False), None, True),
    ],
    ids=["data", "manifest", "commit", "answer to the commit", "hint"],
)
@pytest.mark.parametrize("collected", [False, True], ids=["", "collected"])
@pytest.mark.turns(3)
def test_a_driver_that_was_cut_off_and_comes_back_can_not_commit(world, cut_at, error, committed, collected):
    storage = Partitioned(world.storage)
    with world.process(storage).writer() as driver:
        job = Job.restored(world.store.latest(), 2, KEYS)
        storage.cut_at = cut_at
        if error is None:
            world.commit(driver, job, 3)
        else:
            with pytest.raises(error):
                world.commit(driver, job, 3)
        assert (world.store.latest().checkpoint_id == 4) == committed
        world.take_over()
        if collected:
            world.collect()
        storage.cut_at, storage.cut = None, False
        before = dict(world.acknowledged)

        refused = (FencedError, CommitUnknownError, CollectedError) if collected else FencedError
        with pytest.raises(refused):
            world.commit(driver, job, 4)
        with pytest.raises(refused):
            world.commit(driver, job, 4)
        with pytest.raises(FencedError):
            world.commit(driver, job, 4)

    assert world.acknowledged == before
    world.check()


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "back"])
@pytest.mark.turns(3)
def test_a_writer_whose_clock_jumps_by_a_year_keeps_what_it_was_told(world, jump_ms):
    clock = [NOW_MS]
    policy = RetentionPolicy(count=1, age_ms=1000)
    with world.process(clock_ms=lambda: clock[0]).writer() as writer:
        job = Job.restored(world.store.latest(), 2, KEYS)
        world.commit(writer, job)
        clock[0] += jump_ms
        for _ in range(2):
            world.commit(writer, job)
            world.store.collect(policy, grace_ms=GRACE_MS, allow_short_grace=True).apply()

            assert world.content(world.store.latest()) == world.acknowledged[max(world.acknowledged)]

    world.check()


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "back"])
@pytest.mark.turns(3)
def test_a_collector_whose_clock_jumps_by_a_year_takes_no_file_of_an_acknowledged_checkpoint(world, jump_ms):
    collector = world.process()

    def collect():
        collector.collect(NEWEST, grace_ms=GRACE_MS, allow_short_grace=True).apply()

    with Zombie(world, "write", f"put_if_absent {COMMIT} before") as zombie:
        # Its files are all there. The clock says that a year has gone, or that they are of the next year.
        collect()
        world.now_ms += jump_ms
        collect()
        zombie.wake()
        said = zombie.said()

    if jump_ms > 0:
        assert said[-1]["outcome"] == "CommitUnknownError"
    else:
        assert said[-1]["outcome"] == "done"
        world.acknowledged[said[-1]["checkpoint"]] = said[-1]["checksum"]
    if jump_ms > 0:
        # What is damaged is in the log, and nobody was told that it is safe: it is replaced by the next checkpoint.
        with world.store.writer() as writer:
            world.commit(writer, Job.restored(world.store.snapshot(3), 1, KEYS), 3)
        collect()
    world.check()


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "back"])
@pytest.mark.turns(3)
def test_a_lease_by_a_clock_that_is_wrong_holds_or_the_reader_is_told(world, jump_ms):
    clock = [NOW_MS]
    with world.process(clock_ms=lambda: clock[0]).lease(2, ttl_ms=10**8) as lease:
        clock[0] += jump_ms
        lease.renew()
        world.collect()

        if jump_ms > 0:
            assert world.content(lease.snapshot) == world.acknowledged[2]
        else:
            with pytest.raises(CollectedError):
                world.content(lease.snapshot)
            with pytest.raises(CheckpointNotFoundError):
                lease.renew()

    world.check()


def test_a_collector_that_planned_long_ago_applies_its_plan_without_harm(world):
    collection = world.store.collect(NEWEST, grace_ms=0, allow_short_grace=True)
    planned = {deletion.path for deletion in collection.plan.deletions}
    old = Job.restored(world.store.checkpoints()[0], 2, KEYS)
    with world.store.writer() as writer:
        reused = world.checkpoint(writer, old, 0)
    assert planned & set(ReferenceReader(world.storage).files(reused.entry.operators))
    world.take_over()
    world.now_ms += YEAR_MS

    report = collection.apply()

    assert set(report.spared) & planned
    world.check()
