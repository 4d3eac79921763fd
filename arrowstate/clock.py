"""The time of day and new ids: where they come from if nobody gives others."""

from __future__ import annotations

import datetime
import time
import uuid


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def has_passed(now_ms: int, since_ms: int, span_ms: int) -> bool:
    """Return whether so much time has passed since then; a clock that was set back counts as if it had."""
    return not 0 <= now_ms - since_ms < span_ms


def date_of(milliseconds: int) -> datetime.datetime | None:
    """Return a time in UTC; None for one outside of the years 1 to 9999, which a clock that tells no time gives."""
    try:
        return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None


def utc_text(milliseconds: int, timespec: str = "seconds") -> str:
    """Return a time as ISO 8601 in UTC; one that has no date as its milliseconds."""
    date = date_of(milliseconds)
    return f"{milliseconds} ms" if date is None else date.isoformat(timespec=timespec)


def new_id() -> str:
    """Return a fresh unique name: 32 hexadecimal digits of a random UUID."""
    return uuid.uuid4().hex
