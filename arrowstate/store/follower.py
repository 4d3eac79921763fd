"""A reader that stays on the newest checkpoint of a store while others write there."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import (
    CheckpointNotFoundError,
    CheckpointsCollectedError,
    CollectedError,
    CommitUnknownError,
    InvalidInputError,
    StorageError,
    StorageFullError,
)
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.leases import LONGEST_LEASE_MS, CheckpointLease
from arrowstate.process import OwnProcess
from arrowstate.query.catalog import resolve
from arrowstate.storage.base import Storage
from arrowstate.store.snapshot import Snapshot
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    import duckdb

_LONGEST_POLL_MS = int(threading.TIMEOUT_MAX) * 1000
_logger = logging.getLogger("arrowstate.store")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Answer(Generic[Found]):
    """What a follower has found, and how old the checkpoint is that it comes from."""

    value: Found
    "A table, or for SQL a relation of DuckDB."
    checkpoint_id: int
    "The checkpoint that was read."
    committed_at_ms: int
    "When it was committed, in milliseconds since 1970."
    age_ms: int
    "How long ago that was at the time of the answer."


class _Held(Struct, frozen=True):
    """A checkpoint that the lease keeps as long as somebody has its snapshot."""

    committed: CommittedEntry
    snapshot: weakref.ref[Snapshot]


class Follower:
    """Reads the newest checkpoint of a store, always; see `StateStore.follow`. Safe to use from several threads.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://follower-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    >>> with store.writer() as writer, store.follow() as follower:
    ...     for _ in range(2):
    ...         clicks.add_batch(["ann"], [3])
    ...         checkpoint = writer.checkpoint({"counter": [backend]})
    ...         _ = follower.wait_for(checkpoint.checkpoint_id)
    ...         answer = follower.lookup("counter.clicks", ["ann"])
    ...         print(answer.checkpoint_id, answer.value.to_pylist())
    1 [{'user': 'ann', 'clicks': 3}]
    2 [{'user': 'ann', 'clicks': 6}]
    """

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        snapshot_of: Callable[[LogEntryDocument], Snapshot],
        *,
        poll_ms: int,
        ttl_ms: int,
        holder: str,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        poll_ms = check_integer("poll_ms", poll_ms, 1, _LONGEST_POLL_MS, unit="milliseconds")
        ttl_ms = check_integer("ttl_ms", ttl_ms, 1, LONGEST_LEASE_MS, unit="milliseconds")
        self._storage = storage
        self._snapshot_of = snapshot_of
        self._log = CommitLog(storage, store_id=store_id)
        self._ttl_ms = ttl_ms
        self._holder = holder
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._current: Snapshot | None = None
        self._held: list[_Held] = []
        self._lease: CheckpointLease | None = None
        self._used: dict[str | tuple[str, str], tuple[str, str]] = {}
        "By how they were asked for, the states that are opened before a checkpoint is shown."
        self._opens_all = False
        self._refreshing = threading.Lock()
        self._swapped = threading.Condition()
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._was_warned = False
        self._process = OwnProcess()
        # The thread of one that is forgotten ends.
        weakref.finalize(self, self._closed.set).atexit = False
        self.refresh()
        # The thread must not hold the follower, which is closed when nobody has it any more.
        self._thread = threading.Thread(
            target=_follow,
            args=[weakref.ref(self), self._closed, poll_ms / 1000],
            name="arrowstate-follow",
            daemon=True,
        )
        self._thread.start()

    def __repr__(self) -> str:
        at = "no checkpoint" if self._current is None else f"checkpoint {self._current.checkpoint_id}"
        return f"<Follower of {self._storage.url} at {at}>"

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def snapshot(self) -> Snapshot:
        """The newest checkpoint that is known; it is kept from collection as long as somebody has this object.

        Raises
        ------
        CheckpointNotFoundError
            If the store has no checkpoint yet.
        InvalidInputError
            If the follower was closed, or is of another process, from which this one was forked.
        """
        self._check_follows()
        current = self._current
        if current is None:
            # Another thread may have closed it since.
            self._check_follows()
            raise CheckpointNotFoundError(None, [])
        return current

    @property
    def failure(self) -> Exception | None:
        """Why the last look for a newer checkpoint failed; None if it did not. The next look may succeed."""
        return self._failure

    def lookup(self, state: str | tuple[str, str], keys: Any, *, expired: bool = False) -> Answer[pa.Table]:
        """Return the rows of some keys in the newest checkpoint; arguments and errors as for `Snapshot.lookup`."""
        return self._ask(lambda snapshot: self._looked_up(snapshot, state, keys, expired))

    def sql(
        self,
        query: str,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
        expired: bool = False,
    ) -> Answer[duckdb.DuckDBPyRelation]:
        """Run a query over the newest checkpoint; arguments and errors as for `Snapshot.sql`.

        The checkpoint is kept from collection until the relation is gone.
        """
        return self._ask(lambda snapshot: snapshot.sql(query, params=params, tables=tables, expired=expired))

    def wait_for(self, checkpoint_id: int, *, timeout_s: float | None = None) -> Snapshot:
        """Wait until a checkpoint, or a later one, is the newest that is known, and return it.

        Parameters
        ----------
        checkpoint_id
            The id; `follower.snapshot.checkpoint_id + 1` waits for the next.
        timeout_s
            How long to wait at most, in seconds; by default without end.

        Raises
        ------
        TimeoutError
            If it does not come in this time.
        InvalidInputError
            If the follower is closed, or is of another process.
        """
        self._check_follows()
        with self._swapped:
            has_come = self._swapped.wait_for(
                lambda: self._closed.is_set() or (self._current or _NONE).checkpoint_id >= checkpoint_id, timeout_s
            )
        if not has_come:
            raise TimeoutError(f"checkpoint {checkpoint_id} of {self._storage.url} has not come within {timeout_s:g} s")
        return self.snapshot

    def keep_open(self) -> None:
        """Keep the files of all states open, of this checkpoint and of each that comes, so that no lookup opens one."""
        self._opens_all = True
        if self._current is not None:
            _open(self._current, _states_of(self._current))

    def refresh(self) -> bool:
        """Look for a newer checkpoint now, instead of at the next interval; return whether there was one.

        Raises
        ------
        StorageError
            If the store cannot be read. The checkpoint that was the newest stays.
        StoreNotFoundError
            If the store was deleted, or another one was made at its place: open that one anew.
        """
        with self._refreshing:
            while not self._closed.is_set():
                committed = next(self._log.history().checkpoints(), None)
                current = self._current
                if committed is None:
                    return False
                if not self._has_lost_its_lease() and current is not None and _are_same(current, committed):
                    self._let_older_go()
                    return False
                try:
                    return self._take(committed)
                except (CollectedError, CheckpointNotFoundError, CheckpointsCollectedError):
                    # Where no lease held it yet, it may be collected as soon as there is a newer one.
                    newest = next(self._log.history().checkpoints(), None)
                    if newest is None or newest.document.commit_id == committed.document.commit_id:
                        raise
            return False

    def look(self) -> None:
        """Look for a newer checkpoint as the thread does: a failure is logged once, and kept in `failure`."""
        try:
            self.refresh()
        except Exception as error:
            if self._failure is None:
                _logger.warning("%s cannot be followed for now", self._storage.url, exc_info=True)
            self._failure = error
        else:
            self._failure = None

    def close(self) -> None:
        """Follow no more, and let go of all checkpoints."""
        self._closed.set()
        with self._swapped:
            self._swapped.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._refreshing:
            lease, self._lease = self._lease, None
            self._current, self._held = None, []
        if lease is not None:
            lease.release()

    def _check_follows(self) -> None:
        if self._closed.is_set():
            raise InvalidInputError("the follower was closed; make another with store.follow()")
        self._process.check("the follower", "make another with store.follow()")

    def _take(self, committed: CommittedEntry) -> bool:
        """Go over to a checkpoint; what those before it hold stays until nobody has them."""
        if self._lease is None or self._has_lost_its_lease():
            ended, self._lease, self._held = self._lease, self._new_lease(committed), []
            if ended is not None:
                ended.leave()
        snapshot = self._snapshot_of(committed.document)
        # Who asks for a row does not wait until its files are open.
        _open(snapshot, _states_of(snapshot) if self._opens_all else set(self._used.copy().values()), self._current)
        is_new = self._current is None or not _are_same(self._current, committed)
        self._held.append(_Held(committed, weakref.ref(snapshot)))
        with self._swapped:
            self._current = snapshot
            self._swapped.notify_all()
        self._let_older_go()
        return is_new

    def _has_lost_its_lease(self) -> bool:
        """Say whether what the lease held may be gone; a renewal that failed for another reason is tried again."""
        lost = None if self._lease is None else self._lease.lost
        return isinstance(lost, (CheckpointNotFoundError, CheckpointsCollectedError))

    def _new_lease(self, committed: CommittedEntry) -> CheckpointLease | None:
        """Return a lease on a checkpoint and all after it; None for a savepoint, which nothing collects."""
        if committed.document.kind == "savepoint":
            return None
        try:
            lease = CheckpointLease(
                self._storage,
                committed,
                ttl_ms=self._ttl_ms,
                holder=self._holder,
                clock_ms=self._clock_ms,
                new_id=self._new_id,
                and_later=True,
            )
        except (StorageError, StorageFullError, CommitUnknownError) as error:
            # Who may read a store and not write to it follows it without; a collection may be faster than an answer.
            if not self._was_warned:
                self._was_warned = True
                _logger.warning("no lease holds what is read of %s: %s", self._storage.url, error)
            return None
        # One that is forgotten without a word must not hold the store for ever.
        weakref.finalize(self, lease.leave).atexit = False
        return lease

    def _let_older_go(self) -> None:
        """Hold the oldest checkpoint that somebody has, and all after it."""
        self._held = [held for held in self._held if held.snapshot() is not None]
        if self._lease is not None and self._held and self._lease.entry != self._held[0].committed.document:
            self._lease.advance(self._held[0].committed)

    def _looked_up(self, snapshot: Snapshot, state: str | tuple[str, str], keys: Any, expired: bool) -> pa.Table:
        if state not in self._used:
            # Of this checkpoint each file is opened when a key may be in it, of later ones those that are new.
            self._used[state] = resolve(snapshot.entry, state)
        return snapshot.lookup(state, keys, expired=expired)

    def _ask(self, ask: Callable[[Snapshot], Found]) -> Answer[Found]:
        snapshot = self.snapshot
        try:
            found = ask(snapshot)
        except (CollectedError, CheckpointNotFoundError):
            # Only where the lease has ended, as after the process was suspended for longer.
            if not self.refresh():
                raise
            snapshot = self.snapshot
            found = ask(snapshot)
        committed_at_ms = snapshot.entry.committed_at_ms
        age_ms = max(0, self._clock_ms() - committed_at_ms)
        return Answer(found, snapshot.checkpoint_id, committed_at_ms, age_ms)


def _are_same(snapshot: Snapshot, committed: CommittedEntry) -> bool:
    return snapshot.entry.commit_id == committed.document.commit_id


def _states_of(snapshot: Snapshot) -> set[tuple[str, str]]:
    return {(uid, state) for uid, states in snapshot.operators.items() for state in states}


def _open(snapshot: Snapshot, states: set[tuple[str, str]], before: Snapshot | None = None) -> None:
    for uid, state in states:
        if state in snapshot.operators.get(uid, ()):
            snapshot.open_state((uid, state), unlike=before)


class _Nothing:
    checkpoint_id = 0


_NONE = _Nothing()


def _follow(follower: weakref.ref[Follower], closed: threading.Event, seconds: float) -> None:
    """Look for new checkpoints until the follower is closed, or gone."""
    while not closed.wait(seconds):
        own = follower()
        if own is None:
            return
        own.look()
        # While it waits nobody else may have it.
        del own
