"""What a stream has not read is held by a lease: on the checkpoint it goes on from, and on all after it.

The process beside the driver that plans micro-batches renews the lease, and moves it on as Spark goes on. When the
query is stopped, or dies, the lease stays until it ends, so that the query may be started again in that time.
"""

from __future__ import annotations

import logging
from typing import Any

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import CheckpointNotFoundError, CheckpointsCollectedError, InvalidInputError, StorageError
from arrowstate.log.commit_log import CommitLog
from arrowstate.maintenance.leases import CheckpointLease
from arrowstate.spark.places import StorePlace

__all__ = ["Held", "check_no_lease"]

_logger = logging.getLogger("arrowstate.spark")


def check_no_lease(seconds: int | None) -> None:
    """Refuse a lease for what is read as a table."""
    if seconds is not None:
        raise InvalidInputError(
            "the option 'leaseSeconds' is for spark.readStream; a table is read at once: hold its checkpoint with "
            "store.lease() or a tag, if collections may come in between"
        )


class Held:
    """The lease of a stream; a copy that is pickled, for tasks, has none.

    Parameters
    ----------
    place
        Where the store is.
    seconds
        How long the lease lasts without renewal; None for no lease.
    holder
        What reads, for those who look at the store.
    """

    def __init__(self, place: StorePlace, seconds: int | None, holder: str) -> None:
        self._place = place
        self._seconds = seconds
        self._holder = holder
        self._lease: CheckpointLease | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (self._place, self._seconds, self._holder)

    def from_here(self, checkpoint_id: int) -> None:
        """Hold a checkpoint and all after it, and no more what was held before.

        One that was collected is not held: who reads on from it is told so. A lease that cannot be moved holds what it
        did, and is tried again with the next micro-batch.

        Raises
        ------
        StorageError
            If there can be no lease at all, for instance without the permission to write.
        """
        lease = self._lease
        if self._seconds is None or (
            lease is not None and lease.lost is None and lease.entry.checkpoint_id == checkpoint_id
        ):
            return
        storage = self._place.open()
        try:
            entry = CommitLog(storage).committed_checkpoint(checkpoint_id)
            if lease is not None and lease.lost is None:
                lease.advance(entry)
                return
            self._lease = CheckpointLease(
                storage,
                entry,
                ttl_ms=self._seconds * 1000,
                holder=self._holder,
                clock_ms=now_ms,
                new_id=new_id,
                and_later=True,
            )
        except (CheckpointNotFoundError, CheckpointsCollectedError):
            return
        except StorageError as error:
            if lease is None:
                raise
            _logger.warning("%s: the lease of %s was not moved on: %s", self._place.url, self._holder, error)
            return
        if lease is not None:
            # Its renewal had failed, and what is left of it ends by itself.
            lease.leave()

    def leave(self) -> None:
        """Renew the lease no more; it holds until it ends."""
        if self._lease is not None:
            self._lease.leave()
