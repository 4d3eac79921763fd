"""What a follower has not read is held by a lease: on the checkpoint it goes on from, and on all after it.

Whoever follows a store moves the lease on as it goes on itself. When it stops, or dies, the lease stays until it ends,
so that the follower may be started again in that time.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import CheckpointNotFoundError, CheckpointsCollectedError, StorageError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.leases import CheckpointLease
from arrowstate.storage.base import Storage

_logger = logging.getLogger("arrowstate.upkeep")


class FollowerLease:
    """The lease of one who follows a store."""

    def __init__(self, open_store: Callable[[], Storage], ttl_ms: int | None, holder: str) -> None:
        self._open_store = open_store
        self._ttl_ms = ttl_ms
        self._holder = holder
        self._lease: CheckpointLease | None = None

    def from_checkpoint(self, checkpoint_id: int) -> None:
        """Hold a checkpoint and all after it; see `from_here`."""
        if self._lease is None or self._lease.lost is not None or self._lease.entry.checkpoint_id != checkpoint_id:
            self.from_here(lambda log: log.committed_checkpoint(checkpoint_id))

    def from_here(self, find: Callable[[CommitLog], CommittedEntry | None]) -> None:
        """Hold an entry and all after it, and no more what was held before.

        One that was collected is not held: who reads on from it is told so. A lease that cannot be moved holds what it
        did, and is tried again with the next call.
        """
        if self._ttl_ms is None:
            return
        lease = self._lease
        storage = self._open_store()
        try:
            entry = find(CommitLog(storage))
            if entry is None:
                return
            if lease is not None and lease.lost is None:
                if lease.entry != entry.document:
                    lease.advance(entry)
                return
            self._lease = CheckpointLease(
                storage,
                entry,
                ttl_ms=self._ttl_ms,
                holder=self._holder,
                clock_ms=now_ms,
                new_id=new_id,
                and_later=True,
            )
            # A follower that is forgotten without a word must not hold the store for ever.
            weakref.finalize(self, self._lease.leave).atexit = False
        except (CheckpointNotFoundError, CheckpointsCollectedError):
            return
        except StorageError as error:
            if lease is None:
                raise
            _logger.warning("%s: the lease of %s was not moved on: %s", storage.url, self._holder, error)
            return
        if lease is not None:
            # Its renewal had failed, and what is left of it ends by itself.
            lease.leave()

    def leave(self) -> None:
        """Renew the lease no more; it holds until it ends."""
        if self._lease is not None:
            self._lease.leave()
