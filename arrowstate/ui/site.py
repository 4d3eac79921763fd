"""What the page is about: stores, and jobs that run in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.log.choosing import CheckpointReference
from arrowstate.log.pins import Pin, read_pins
from arrowstate.query.health import Health, health_of
from arrowstate.query.reader import SnapshotReader
from arrowstate.storage.base import Storage
from arrowstate.ui.log_view import LogView
from arrowstate.ui.work import Calls, Progress, Queries, Work

_FRESH_SECONDS = 0.5
"""The log is asked for anew after this time."""


class Answer(Protocol):
    """What a follower has found."""

    @property
    def value(self) -> Any:
        """The rows, as a table."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that was read."""

    @property
    def age_ms(self) -> int:
        """How old it is."""


class Follower(Protocol):
    """What stays on the newest checkpoint of a store."""

    @property
    def snapshot(self) -> SnapshotReader:
        """The newest checkpoint."""

    def lookup(self, state: tuple[str, str], keys: Any) -> Answer:
        """Return the rows of some keys."""

    def close(self) -> None:
        """Let go of it."""


class Store(Protocol):
    """What the page needs of a store, which stands above it."""

    storage: Storage
    clock_ms: Callable[[], int]

    @property
    def url(self) -> str:
        """Where it is."""

    def latest(self) -> SnapshotReader:
        """Return the newest checkpoint."""

    def snapshot(self, checkpoint_id: CheckpointReference) -> SnapshotReader:
        """Return a checkpoint."""

    def follow(self, *, holder: str) -> Follower:
        """Return what stays on the newest checkpoint."""


class Job(Protocol):
    """A job of the runtime that runs in this process."""

    @property
    def store(self) -> Store:
        """Where its checkpoints are."""

    def status(self) -> Any:
        """Return an `arrowstate.runtime.JobStatus`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the page takes at most."""

    page_seconds: float = 5.0
    part_seconds: float = 0.1
    "After it a part of a page says how far it is, and is asked for again."
    "For what a page or a part of it reads; after that it says so and goes on without."
    sql_seconds: float = 20.0
    sql_memory: str = "256MB"
    "For what a query computes, and for its result."
    sql_rows: int = 200
    "Rows of a result that are shown."
    download_rows: int = 1_000_000
    download_bytes: int = 256_000_000
    lookup_keys: int = 10_000
    "Keys of a request."
    lookup_bytes: int = 16_000_000
    "For a request, and for the rows of its answer."
    growth_rows: int = 2_000_000
    "Changed rows that are looked through for the keys that grew."


class Kept:
    """What was made last, by what it was made of."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, made now if there is nothing; others are not kept waiting meanwhile."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make()
        with self._lock:
            self._found[key] = made
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return made


class Place:
    """A store and what is known of it."""

    def __init__(self, number: int, store: Store, job: Job | None = None) -> None:
        self.number = number
        self.store = store
        self.job = job
        self.log = LogView(store.storage)
        self.work = Work()
        self.queries = Queries()
        self.calls = Calls()
        self.uses = Kept(1024)
        "What checkpoints take, by commit id."
        self.kept = Kept(64)
        "What was read of checkpoints, by names that begin with the commit id."
        self.histories = Kept(4)
        "What keys were."
        self.verifications: dict[str, Verifying] = {}
        self._snapshots = Kept(32)
        self._fresh_until = 0.0
        self._lock = threading.Lock()
        self._follower: Follower | None = None

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.store.url

    def follower(self) -> Follower:
        """Return what stays on the newest checkpoint, made when it is asked for first."""
        with self._lock:
            if self._follower is None:
                self._follower = self.store.follow(holder="page")
            return self._follower

    def close(self) -> None:
        """Let go of what is held."""
        with self._lock:
            follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    @property
    def has_batches(self) -> bool:
        """Whether a Spark query wrote what is known of the log."""
        return any(line.batch for line in self.log.lines()[-20:])

    def refresh(self) -> None:
        """Take up what is new in the log, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() < self._fresh_until:
                return
            self.log.refresh()
            self._fresh_until = time.monotonic() + _FRESH_SECONDS

    def health(self) -> Health:
        """Return how the job of the store is."""
        return health_of(self.store.storage, now_ms=self.store.clock_ms())

    def snapshot(self, reference: str | None) -> SnapshotReader:
        """Return a checkpoint by what names it, the newest by default."""
        found = self.store.snapshot(reference) if reference else self.store.latest()
        same: SnapshotReader = self._snapshots.get(found.entry.commit_id, lambda: found)
        return same

    def pins(self) -> tuple[list[Pin], list[str]]:
        """Return tags and leases, and which cannot be read."""
        damages: list[str] = []
        try:
            return read_pins(self.store.storage, on_damage=lambda error: damages.append(str(error))), damages
        except (ArrowStateError, OSError) as error:
            return [], [f"tags and leases cannot be read: {error}"]


@dataclass
class Verifying:
    """A look at every byte of a checkpoint that was asked for."""

    progress: Progress
    runs: int
    problems: list[str] | None = None
    "None while it goes on."
    checked: dict[str, int] = field(default_factory=dict)


class Site:
    """All that the page shows."""

    def __init__(
        self,
        stores: Sequence[Store],
        jobs: Sequence[Job] = (),
        limits: Limits | None = None,
        tables: Sequence[Storage] = (),
    ) -> None:
        by_url = {job.store.url: job for job in jobs}
        every = [*stores, *(job.store for job in jobs if job.store.url not in {store.url for store in stores})]
        if not every:
            raise InvalidInputError("the page needs a store to show; name one at least")
        self.places = [Place(number, store, by_url.get(store.url)) for number, store in enumerate(every)]
        self.limits = Limits() if limits is None else limits
        self.tables = tables
        "Places to which stores are published."


@dataclass(frozen=True, slots=True)
class Ask:
    """What a page is asked for."""

    site: Site
    place: Place
    query: Mapping[str, str]
    progress: Progress

    def text(self, name: str) -> str | None:
        """Return a parameter, None if it is missing or empty."""
        return self.query.get(name) or None

    def number(self, name: str, default: int, *, most: int = 1 << 53) -> int:
        """Return a parameter that is a whole number from 0 on."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdecimal() or int(text[:20]) > most:
            raise InvalidInputError(f"{name} must be a whole number from 0 to {most}, got {text[:50]!r}")
        return int(text)

    def snapshot(self, name: str = "checkpoint") -> SnapshotReader:
        """Return the checkpoint that a parameter names, the newest by default."""
        return self.place.snapshot(self.text(name))

    def state(self) -> tuple[str, str]:
        """Return the operator and the state that are asked for."""
        operator, state = self.text("operator"), self.text("state")
        if operator is None or state is None:
            raise InvalidInputError("say which state: operator and state")
        return operator, state
