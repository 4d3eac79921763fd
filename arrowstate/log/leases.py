"""A lease on a checkpoint: as long as it is renewed no collection takes the files.

Whoever reads for longer than a checkpoint is kept takes one, for instance for an open SQL session. A thread renews
it. If that fails for longer than the lease lasts, the checkpoint may be collected; then the reader finds files missing,
which is an error and never another answer. Specification: formats/spec/collection.md.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    CheckpointsCollectedError,
    CommitUnknownError,
    InvalidInputError,
    StorageError,
    StorageFullError,
)
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.pins import put_lease
from arrowstate.process import OwnProcess
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import LARGEST_EXACT, check_integer

LONGEST_LEASE_MS = 1 << 52
"""So that its end, which is a date for people, is exact in every reader of JSON."""

DEFAULT_LEASE_MS = 10 * 60 * 1000
_RENEWALS = 3
"""A lease is renewed so many times in the time that it lasts."""


@contextmanager
def held_while_read(
    storage: Storage,
    checkpoint: LogEntryDocument | CommittedEntry,
    *,
    holder: str,
    clock_ms: Callable[[], int],
    new_id: Callable[[], str],
) -> Iterator[None]:
    """Hold a checkpoint in a block that reads its files, so that no collection takes them meanwhile.

    A savepoint needs no lease: it is kept until it is disposed of. A store that can be read and not written to is read
    without one, and warned about.
    """
    entry = checkpoint.document if isinstance(checkpoint, CommittedEntry) else checkpoint
    if entry.kind == "savepoint":
        yield
        return
    found = checkpoint if isinstance(checkpoint, CommittedEntry) else CommitLog(storage).get(entry.number)
    if found is None or found.document.commit_id != entry.commit_id:
        raise _not_found(storage, entry)
    try:
        lease = CheckpointLease(
            storage, found, ttl_ms=DEFAULT_LEASE_MS, holder=holder, clock_ms=clock_ms, new_id=new_id
        )
    except (StorageError, StorageFullError, CommitUnknownError) as error:
        warnings.warn(
            f"no lease holds checkpoint {entry.checkpoint_id} of {storage.url} while it is read, and a collection may "
            f"take it: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        yield
        return
    with lease:
        yield


def _not_found(
    storage: Storage, entry: LogEntryDocument, *, and_later: bool = False
) -> CheckpointNotFoundError | CheckpointsCollectedError:
    """Return the error for a checkpoint that was collected, or with `and_later` one after it."""
    ids: list[int] = []
    with suppress(ArrowStateError):
        found = (other.checkpoint_id for other in CommitLog(storage).backwards())
        ids = sorted({number for number in found if number is not None})
    if and_later and entry.checkpoint_id in ids:
        return CheckpointsCollectedError(entry.checkpoint_id, ids)
    return CheckpointNotFoundError(entry.checkpoint_id, ids)


class CheckpointLease:
    """Holds one checkpoint, in a `with` block or until `release`.

    Parameters
    ----------
    storage
        The store.
    entry
        The checkpoint.
    ttl_ms
        How long the lease lasts without a renewal, in milliseconds, at least 1.
    holder
        Who holds it, for those who look at the store.
    clock_ms, new_id
        Where times and names come from.
    wait
        Waits for so many seconds, and returns whether the lease was released meanwhile; by default on a
        `threading.Event`.
    and_later
        Whether all entries after it are held too.

    Raises
    ------
    CheckpointNotFoundError
        If the checkpoint has been collected, or is being.
    CheckpointsCollectedError
        If it is there and one after it is not, with `and_later`.
    InvalidInputError
        If ttl_ms is below 1.
    """

    def __init__(
        self,
        storage: Storage,
        entry: CommittedEntry,
        *,
        ttl_ms: int,
        holder: str,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
        wait: Callable[[float], bool] | None = None,
        and_later: bool = False,
    ) -> None:
        ttl_ms = check_integer("ttl_ms, how long a lease lasts,", ttl_ms, 1, LONGEST_LEASE_MS, unit="milliseconds")
        self._storage = storage
        self._entry = entry
        self._ttl_ms = ttl_ms
        self._holder = holder
        self._and_later = and_later
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._process = OwnProcess()
        self._released = threading.Event()
        self._wait = wait or self._released.wait
        self._lock = threading.Lock()
        self._path: str | None = None
        self._expires_at_ms = 0
        self._lost: ArrowStateError | OSError | None = None
        self.renew()
        self._thread = threading.Thread(target=self._keep_renewing, name="arrowstate-lease", daemon=True)
        self._thread.start()

    @property
    def entry(self) -> LogEntryDocument:
        """The log entry of the checkpoint."""
        return self._entry.document

    @property
    def expires_at_ms(self) -> int:
        """Until when it holds without another renewal, in milliseconds since 1970."""
        return self._expires_at_ms

    @property
    def lost(self) -> Exception | None:
        """Why the last renewal failed, None if it did not; the lease still holds until `expires_at_ms`."""
        return self._lost

    def renew(self) -> None:
        """Make the lease last from now on; the thread of the lease does so by itself; errors as for `advance`."""
        self._take(None)

    def advance(self, entry: CommittedEntry) -> None:
        """Hold a later checkpoint from now on, in the place of the one held before.

        Raises
        ------
        CheckpointNotFoundError
            If the lease had ended and the checkpoint has been collected, or is being.
        CheckpointsCollectedError
            If so was one after it, of a lease with `and_later`.
        StorageError
            If the new lease cannot be written; what was held is, as long as before.
        """
        self._take(entry)

    def _take(self, entry: CommittedEntry | None) -> None:
        with self._lock:
            self._check_not_released()
            expires_at_ms = min(self._clock_ms() + self._ttl_ms, LARGEST_EXACT)
            entry = entry or self._entry
            document = entry.document
            assert document.checkpoint_id is not None, "a fence is no checkpoint"
            path = put_lease(
                self._storage,
                self._new_id(),
                document.checkpoint_id,
                entry.as_parent,
                expires_at_ms=expires_at_ms,
                holder=self._holder,
                and_later=self._and_later,
            )
            if path is None:
                raise _not_found(self._storage, document, and_later=self._and_later)
            # Only after the new file is there: at each moment one of them holds the checkpoint.
            before, self._path, self._expires_at_ms, self._lost = self._path, path, expires_at_ms, None
            self._entry = entry
            if before is not None:
                self._storage.delete(before)

    def release(self) -> None:
        """End the lease; a second call does nothing."""
        if self.leave() and self._path is not None:
            self._storage.delete(self._path)

    def leave(self) -> bool:
        """Renew the lease no more: it holds until it ends. Returns whether it was renewed up to now.

        In a process that was forked from the one that took it, nothing happens.
        """
        if not self._process.is_here:
            return False
        with self._lock:
            if self._released.is_set():
                return False
            self._released.set()
        self._thread.join()
        return True

    def __enter__(self) -> Self:
        """Return it; it is an InvalidInputError if it was released, for then the block would hold nothing."""
        self._check_not_released()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        what = "renewed" if self._lost is not None else "released, and ends by itself"
        try:
            self.release()
        except StorageError as failed:
            # An error of the block is the one to report.
            self._lost = self._lost or failed
        if self._lost is not None:
            warnings.warn(
                f"the lease on checkpoint {self.entry.checkpoint_id} could not be {what}: {self._lost}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _check_not_released(self) -> None:
        if self._released.is_set():
            raise InvalidInputError("the lease was released; take a new one")

    def _keep_renewing(self) -> None:
        # No thread can wait for longer than that at once.
        while not self._wait(min(self._ttl_ms / 1000 / _RENEWALS, threading.TIMEOUT_MAX)):
            try:
                self.renew()
            except (CheckpointNotFoundError, CheckpointsCollectedError) as error:
                self._lost = error
                return
            except InvalidInputError:
                # Released between the wait and the renewal.
                return
            except (ArrowStateError, OSError) as error:
                # Another renewal follows before the lease ends.
                self._lost = error
