"""One run of the simulation: a store, the processes around it, and what goes wrong, all from one seed."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.log import commit as log_commit
from arrowstate.log import commit_log
from arrowstate.log.boundary import NewReferences
from arrowstate.log.entries import create_store
from arrowstate.log.leases import CheckpointLease
from arrowstate.storage.base import Outcome, Storage
from arrowstate.storage.memory import MemoryStorage, clear_memory_storage
from arrowstate.testing.faults import VERBS, Call, Fault, FaultyStorage, SeededFaults
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.planned import Portions
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.run_files import checksum
from simulation.actors import SCRIPTS
from simulation.oracle import Oracle
from simulation.process import Process
from simulation.published import FORMATS
from simulation.scheduler import Actor, Scheduler
from simulation.watched import WatchedStorage

__all__ = ["CONTROLS", "Profile", "Result", "simulate"]

CONTROLS = ("atomic-create", "boundary-check", "grace", "fresh-listings")
"""Guarantees that a run can be made without, to see that it notices."""

_MOST_STEPS = 6_000
_GRACE_MS = (0, 600, 6_000)
"""A commit takes less than the longest even if it is paused for a while, and often more than the one before that."""

_CAST = {
    "writer": (1, 3),
    "reader": (0, 2),
    "compactor": (0, 1),
    "savepoint": (0, 1),
    "tagger": (0, 1),
    "collector": (0, 2),
}
"""How many processes of each kind there are, at least and at most."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What kind of run it is: a seed takes some kinds of trouble and leaves out others, so each is met alone too."""

    cast: tuple[str, ...]
    "The kinds of its processes, out of `SCRIPTS`."
    retained: int
    "How many checkpoints the collectors keep."
    grace_ms: int
    rates: dict[Fault, float]
    "Probability of each fault, per call."
    pause_rate: float
    "Probability per step that an actor is left alone for a while."
    zombie_rate: float
    "Probability that a writer falls asleep at the moment of its commit."
    jump_rate: float
    "Probability per step that the clock of an actor jumps."
    restart: bool
    "Whether a new process takes the place of one that crashed."
    portions: bool
    "Whether collectors go on in portions of few files."

    @classmethod
    def draw(cls, draw: random.Random) -> Profile:
        """Return a profile by chance."""
        cast = tuple(kind for kind, (least, most) in _CAST.items() for _ in range(draw.randint(least, most)))
        chosen = [fault for fault in Fault if draw.random() < 0.35] if draw.random() < 0.8 else []
        if "collector" in cast and Fault.STALE in chosen:
            # Collections and commits see each other through listings: these must be fresh.
            chosen.remove(Fault.STALE)
        weight = draw.choice((0.002, 0.01, 0.04))
        profile = cls(
            cast=cast,
            retained=draw.randint(1, 3),
            grace_ms=draw.choice(_GRACE_MS),
            rates={fault: weight * (0.3 if fault in _CRASHES else 1) for fault in chosen},
            pause_rate=draw.choice((0.0, 0.02, 0.06)),
            zombie_rate=draw.choice((0.0, 0.1, 0.3)),
            jump_rate=draw.choice((0.0, 0.02)),
            restart=draw.random() < 0.8,
            portions=draw.random() < 0.4,
        )
        # Drawn last: a seed without one is the run that it was before there were any.
        if 0.45 < draw.random() < 0.8:
            profile = replace(profile, cast=(*cast, "follower"))
        if 0.6 < draw.random() < 0.9:
            profile = replace(profile, cast=(*profile.cast, "loader"))
        chance = draw.random()
        publishers = 2 if chance < 0.14 else 1 if chance < 0.28 else 0
        return replace(profile, cast=(*profile.cast, *["publisher"] * publishers))


_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


@dataclass(slots=True)
class Result:
    """How a run ended."""

    seed: int
    violation: str | None
    "The first thing that must not have happened; None if nothing did."
    steps: int
    checkpoints: int
    "Checkpoints that were acknowledged."
    faults: int
    crashes: int
    digest: str
    "Checksum of the trace: two runs that did the same have the same."
    trace: list[str] = field(default_factory=list)


class _NonAtomic:
    """A storage whose commits look first and then overwrite, which is what `put_if_absent` must never be."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """Overwrite a file unless it was seen a moment before."""
        if self._storage.exists(path):
            return Outcome.WON if commit_id.encode() in self._storage.read(path) else Outcome.LOST
        self._storage.put_hint(path, data)
        return Outcome.WON


def _commits(call: Call | None) -> bool:
    """Whether a call is to put an entry into the log."""
    return call is not None and call.verb == "put_if_absent" and call.path.startswith("log/")


@contextmanager
def _doing_without(guarantee: str | None) -> Iterator[None]:
    """Let commits overlook what collections have said, or what they have taken."""
    if guarantee == "boundary-check":
        with (
            mock.patch.object(log_commit, "boundaries", lambda _: []),
            mock.patch.object(commit_log, "boundaries", lambda _: []),
        ):
            yield
    elif guarantee == "grace":
        # No grace period alone costs attempts, and no checkpoint: commits look whether their files are there.
        with mock.patch.object(NewReferences, "lost", lambda *_: []):
            yield
    else:
        yield


class _Run:
    def __init__(self, seed: int, without: str | None) -> None:
        self.without = without
        draw = random.Random(f"{seed}/profile")
        self.profile = Profile.draw(draw)
        self.scheduler = Scheduler(seed)
        self.url = f"memory://simulation-{seed}"
        clear_memory_storage(self.url)
        self.storage = MemoryStorage(self.url, create=True)
        rates = {Fault.STALE: 0.2} if without == "fresh-listings" else self.profile.rates
        self.faults = SeededFaults(f"{seed}/faults", rates)
        store = create_store(self.storage, f"store-{seed}", self.scheduler.now_ms)
        self.oracle = Oracle(
            self.storage,
            store.store_id,
            retained=self.profile.retained if "collector" in self.profile.cast else None,
            now_ms=lambda: self.scheduler.now_ms,
            trust_clocks=not self.profile.jump_rate,
        )
        for format in FORMATS:
            clear_memory_storage(f"{self.url}-{format}")
            self.oracle.places[format] = MemoryStorage(f"{self.url}-{format}", create=True)
        self.connections: list[tuple[Actor, FaultyStorage]] = []
        self.crashes = 0

    def start(self, kind: str, number: int) -> Actor:
        skew_ms = self.scheduler.random.choice((0, 0, -3_600_000, 3_600_000)) if self.profile.jump_rate else 0
        name = f"{kind} {number}"
        return self.scheduler.start(name, lambda actor: SCRIPTS[kind](self._process(actor)), skew_ms=skew_ms)

    def _process(self, actor: Actor) -> Process:
        made: list[str] = []

        def connect(storage: Storage, folder: str = "") -> Storage:
            watched = WatchedStorage(storage, self.oracle, folder, made)
            faulty = FaultyStorage(watched, actor.choose, sleep=lambda: self._oversleep(actor))
            self.connections.append((actor, faulty))
            return _NonAtomic(faulty) if self.without == "atomic-create" else faulty  # type: ignore[return-value]

        def folder(path: str) -> Storage:
            return connect(MemoryStorage(f"{self.url}/{path}", create=True), f"{path}/")

        def place(format: str) -> Storage:
            faulty = FaultyStorage(self.oracle.places[format], actor.choose, sleep=lambda: self._oversleep(actor))
            self.connections.append((actor, faulty))
            return faulty

        return Process(
            actor,
            self.oracle,
            connect(self.storage),
            folder,
            place,
            made,
            now_ms=lambda: self.scheduler.now_ms,
            grace_ms=0 if self.without == "grace" else self.profile.grace_ms,
            nominal_grace_ms=self.profile.grace_ms if self.oracle.trust_clocks else None,
            portions=Portions(entries=2, files=3) if self.profile.portions else None,
        )

    def _oversleep(self, actor: Actor) -> None:
        """Let others go first: a slow call is one that is done later than it was asked for."""
        actor.wait(self.scheduler.random.randrange(2, 12))

    def go(self) -> Result:
        scheduler, oracle = self.scheduler, self.oracle
        for number, kind in enumerate(self.profile.cast):
            self.start(kind, number)
        try:
            scheduler.run(self._before, self._after)
            self._epilogue()
        finally:
            scheduler.stop()
            for url in (self.url, *(f"{self.url}-{format}" for format in FORMATS)):
                clear_memory_storage(url)
        trace = [str(step) for step in scheduler.steps]
        return Result(
            seed=scheduler.seed,
            violation=oracle.violation,
            steps=len(trace),
            checkpoints=sum(commit.acknowledged for commit in oracle.checkpoints()),
            faults=sum(step.fault is not None for step in scheduler.steps),
            crashes=self.crashes,
            digest=checksum("\n".join(trace).encode()),
            trace=trace,
        )

    def _disturb(self) -> None:
        """Let something happen beside the calls: a pause, a jump of a clock, an old request that arrives."""
        profile, draw = self.profile, self.scheduler.random
        number = len(self.scheduler.steps)
        if draw.random() < profile.pause_rate:
            draw.choice(self.scheduler.running).paused_until = number + draw.choice((5, 30, 120))
        if draw.random() < profile.jump_rate:
            draw.choice(self.scheduler.running).skew_ms += draw.choice((-86_400_000, -60_000, 60_000, 86_400_000))
        if draw.random() < 0.05 and self.connections:
            self._deliver(*draw.choice(self.connections))

    def _deliver(self, actor: Actor, connection: FaultyStorage) -> bool:
        # What arrives late is not of the attempt that is under way, and may stay behind.
        actor.faults += 1
        statements = self.oracle.statements
        delivered = connection.deliver()
        self.oracle.late_statement |= self.oracle.statements > statements
        self.oracle.check_newest()
        return delivered

    def _before(self) -> tuple[Actor, Fault | None] | None:
        scheduler, oracle = self.scheduler, self.oracle
        if not scheduler.running or oracle.violation is not None:
            return None
        self._disturb()
        actor = scheduler.pick()
        call = actor.pending
        fault = None
        if call is not None and call.verb in VERBS:
            fault = self.faults(call)
            if _commits(call) or (call.verb == "put_hint" and call.path.startswith("log/")):
                oracle.check_acknowledged()
        return actor, fault

    def _after(self, actor: Actor, fault: Fault | None) -> None:
        scheduler, oracle = self.scheduler, self.oracle
        oracle.check_newest()
        if _commits(actor.pending) and scheduler.random.random() < self.profile.zombie_rate:
            actor.paused_until = len(scheduler.steps) + scheduler.random.choice((100, 250, 500))
        if fault in _CRASHES:
            self.crashes += 1
            if self.profile.restart and self.crashes < 10:
                self.start(actor.name.split()[0], len(scheduler.actors))
        if actor.error is not None:
            oracle.violated(f"{actor.name} failed: {type(actor.error).__name__}: {actor.error}")
        if len(scheduler.steps) > _MOST_STEPS:
            oracle.violated(f"the run did not end within {_MOST_STEPS} steps")

    def _epilogue(self) -> None:
        """When all is quiet: what is kept is there, a new writer goes on from it, and a collection leaves nothing."""
        oracle = self.oracle
        for actor, connection in self.connections:
            while self._deliver(actor, connection):
                pass
        for commit in oracle.held():
            oracle.check_content(commit, "was acknowledged", parallelism=2)
        for folder in oracle.savepoints:
            oracle.check_savepoint(folder)
        before = len(oracle.chain)
        for number in range(self.profile.retained):
            if oracle.violation is None:
                self._alone("successor", f"successor {number}")
        if oracle.violation is None and len(oracle.chain) < before + 2 * self.profile.retained:
            oracle.violated("new writers cannot go on")
        if oracle.violation is None and "publisher" in self.profile.cast:
            self._alone("last", "last publisher")
            oracle.check_published("when all was quiet", is_newest=True)
        if oracle.violation is None and oracle.retained is not None:
            self._collect_all()

    def _alone(self, kind: str, name: str) -> None:
        actor = self.scheduler.start(name, lambda actor: SCRIPTS[kind](self._process(actor)))
        self.scheduler.run(
            lambda: None if actor.done or self.oracle.violation is not None else (actor, None),
            lambda _, __: self.oracle.check_newest(),
        )
        if actor.error is not None:
            self.oracle.violated(f"{name} failed: {type(actor.error).__name__}: {actor.error}")

    def _collect_all(self) -> None:
        """Collect until nothing waits; then all that is there is kept or known, and a collection changes nothing."""
        oracle, scheduler = self.oracle, self.scheduler
        policy, grace_ms = RetentionPolicy(count=self.profile.retained), self.profile.grace_ms
        new_id = scheduler.start("last", lambda _: None).new_id
        # Past every grace period and lease, whatever a wrong clock has put into a document.
        scheduler.now_ms += 400 * 86_400_000
        storage = WatchedStorage(self.storage, oracle, "", [])
        # As the message of a collection that one of them stops asks for.
        for path in oracle.strange_tags():
            storage.delete(path)
        try:
            for _ in range(3):
                scheduler.now_ms += 10 * grace_ms
                plan = plan_collection(storage, policy, now_ms=scheduler.now_ms, grace_ms=grace_ms)
                apply_collection(storage, plan, now_ms=scheduler.now_ms, new_id=new_id)
            there = oracle.written.copy()
            apply_collection(storage, plan, now_ms=scheduler.now_ms, new_id=new_id)
            plan = plan_collection(storage, policy, now_ms=scheduler.now_ms, grace_ms=grace_ms)
        except ArrowStateError as error:
            oracle.violated(f"what is left cannot be collected: {error}")
            return
        if plan.deletions or plan.waiting or oracle.written != there:
            changed = sorted(oracle.written.keys() ^ there.keys())
            oracle.violated(
                f"a collection of a collected store finds {[*plan.deletions, *plan.waiting][:3]} and changes {changed}"
            )
        oracle.check_newest()
        oracle.check_published("after the last collection", is_newest="publisher" in self.profile.cast)
        for commit in oracle.held():
            oracle.check_content(commit, "was kept by the last collection", parallelism=1)
        kept = {path for commit in oracle.chain if commit.number >= plan.boundary for path in commit.files}
        kept.update(path for item in plan.kept for path in oracle.chain[item.entry_number - 1].files)
        leaked = oracle.written.keys() - kept - oracle.live() - {"arrowstate.json"} - set(plan.foreign)
        # A savepoint that is complete belongs to who asked for it, even if nobody was told.
        leaked = {path for path in leaked if not path.startswith(("gc/", "tags/", "savepoints/"))}
        # Documents that say the same take each other's place by the order of their names, which is a matter of chance.
        documents = sorted(path for path in oracle.written if path.startswith("gc/"))
        done = [path for path in documents if "condemned" in path and not self._condemns(path)]
        if leaked or len(documents) > 8 + self.crashes or done:
            oracle.violated(f"collections leave {sorted(leaked)[:3]}, and of their own {documents}")

    def _condemns(self, path: str) -> bool:
        """Whether a collection that died condemned a file that is there: a slow one would still delete it."""
        return not self.oracle.written.keys().isdisjoint(json.loads(self.storage.read(path))["condemned"])


def simulate(seed: int, *, without: str | None = None) -> Result:
    """Run the simulation of a seed.

    Parameters
    ----------
    seed
        Decides everything: the same seed gives the same run, call by call.
    without
        One of `CONTROLS`: a guarantee to do without, which the run should notice for some seeds.

    Raises
    ------
    InvalidInputError
        If there is no such guarantee.

    Examples
    --------
    >>> result = simulate(1)
    >>> result.violation is None, result.digest == simulate(1).digest
    (True, True)
    """
    if without is not None and without not in CONTROLS:
        raise InvalidInputError(f"a run can be made without one of {', '.join(CONTROLS)}; got {without!r}")
    # Leases are renewed by their holders here, not by threads that nobody schedules.
    unrenewed = mock.patch.object(CheckpointLease, "_keep_renewing", lambda _: None)
    with warnings.catch_warnings(), unrenewed, _doing_without(without):
        # What `latest_whole` says of checkpoints that nobody was told of.
        warnings.simplefilter("ignore", RuntimeWarning)
        return _Run(seed, without).go()
