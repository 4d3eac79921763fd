"""When the rows of a state with a time to live expire, as those see it who read a checkpoint.

A reader shows the rows that the state itself would return. By processing time that depends on when it reads; by event
time on the watermark that a restore of the operator begins with, which lies fast.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from msgspec import Struct

UPDATED_COLUMN = "_updated_at"
EXPIRES_COLUMN = "_expires_at"
EXPIRES_FIELD = pa.field(EXPIRES_COLUMN, pa.timestamp("ms"))

# Python and DuckDB have no dates before the year 1, nor after 9999.
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999


class Seen(Struct, frozen=True):
    """Which rows of states with a time to live a reader sees."""

    now_ms: int
    "The time of its read, in milliseconds since 1970."
    expired: bool = False
    "Whether it sees those that have expired, too, and when they did."


def expiry_times(updated: pa.Array, ttl_ms: int) -> pa.Array:
    """Return when rows expire, by the times of their last update; null for what outlives the year 9999."""
    times = updated.to_numpy()
    never = times > _LAST - ttl_ms
    expires = np.maximum(np.where(never, 0, times + np.where(never, 0, ttl_ms)), _FIRST)
    return pa.array(expires.view("datetime64[ms]"), mask=never)


def time_or_null(milliseconds: int | None) -> int | None:
    """Return a time that a timestamp can hold and Python can show; None for one before the year 1 or after 9999."""
    return milliseconds if milliseconds is not None and _FIRST <= milliseconds <= _LAST else None
