"""What a stream has not read is held by a lease of the process beside the driver that plans micro-batches."""

from __future__ import annotations

from typing import Any

from arrowstate.errors import InvalidInputError
from arrowstate.spark.places import StorePlace
from arrowstate.upkeep.following import FollowerLease

__all__ = ["Held", "check_no_lease"]


def check_no_lease(seconds: int | None) -> None:
    """Refuse a lease for what is read as a table."""
    if seconds is not None:
        raise InvalidInputError(
            "the option 'leaseSeconds' is for spark.readStream; a table is read at once: hold its checkpoint with "
            "store.lease() or a tag, if collections may come in between"
        )


class Held(FollowerLease):
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
        super().__init__(place.open, None if seconds is None else seconds * 1000, holder)
        self._arguments = place, seconds, holder

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, self._arguments
