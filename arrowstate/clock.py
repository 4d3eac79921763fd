"""The time of day and new ids: where they come from if nobody gives others."""

from __future__ import annotations

import time
import uuid


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """Return a fresh unique name: 32 hexadecimal digits of a random UUID."""
    return uuid.uuid4().hex
