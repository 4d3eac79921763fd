"""Times in nanoseconds as texts: Python has no values for them, only pandas has, which need not be there."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.schema.conversion import with_children

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")
_DAY, _SECOND = 86_400_000_000_000, 1_000_000_000
_OF_MINUTE = {"s": 60, "ms": 60_000, "us": 60_000_000, "ns": 60_000_000_000}


def nanoseconds_as_text(array: pa.Array, _: int = 0) -> pa.Array:
    """Return values with ISO 8601 in the place of times in nanoseconds, also within others.

    There are as many digits as Python's own times have, or all nine.
    """
    kind = array.type
    if getattr(kind, "unit", None) != "ns":
        return with_children(array, nanoseconds_as_text)
    if pa.types.is_duration(kind):
        counts = array.cast(pa.int64()).to_pylist()
        return pa.array([None if count is None else _duration(count) for count in counts], pa.string())
    array = with_whole_offsets(array)
    local = local_times(array) if getattr(kind, "tz", None) is not None else array
    texts = pc.replace_substring(local.cast(pa.string()), " ", "T")
    texts = pc.replace_substring_regex(texts, r"\.0{9}$", "")
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})000$", r"\1")
    if local is array:
        return texts
    if _OFFSET.fullmatch(array.type.tz):
        zone = pa.scalar(array.type.tz)
    else:
        zone = pc.replace_substring_regex(pc.strftime(array, format="%z"), r"(\d\d)$", r":\1")
    return pc.binary_join_element_wise(texts, pc.replace_substring(zone, "+00:00", "Z"), "")


def local_times(array: pa.Array) -> pa.Array:
    """Return times in a zone as the clocks there show them, without the zone; what leaves the range comes back.

    A zone may be an offset such as "+05:30", which PyArrow before 22 does not know.
    """
    offset = _OFFSET.fullmatch(array.type.tz)
    if offset is None:
        return pc.local_timestamp(array)
    sign, hours, minutes = offset.groups()
    seconds = (int(hours) * 60 + int(minutes)) * (-60 if sign == "-" else 60)
    unit = array.type.unit
    return pc.add(array.cast(pa.timestamp(unit)), pa.scalar(seconds, pa.duration("s")).cast(pa.duration(unit)))


def with_whole_offsets(array: pa.Array, _: int = 0) -> pa.Array:
    """Return times in UTC where they are in a zone whose offset has seconds, also within others.

    ISO 8601 has no seconds in an offset, and zones had them before they had a standard time. Times whose local time is
    out of range are in UTC, too.
    """
    kind = array.type
    if getattr(kind, "tz", None) is None:
        return with_children(array, with_whole_offsets)
    utc = array.cast(pa.timestamp(kind.unit, "UTC"))
    local, given = (of.cast(pa.int64()).drop_null().to_numpy() for of in (local_times(array), utc))
    # What leaves the range comes back at its other end, and so does the difference.
    offsets = local - given
    is_whole = (offsets % _OF_MINUTE[kind.unit] == 0) & (
        np.sign(offsets) == np.sign((local > given) * 1 - (local < given))
    )
    return array if is_whole.all() else utc


def _duration(count: int) -> str:
    days, rest = divmod(abs(count), _DAY)
    seconds = f"{rest // _SECOND}.{rest % _SECOND:09}".rstrip("0").rstrip(".")
    text = "P" + f"{days}D" * (days > 0 or not rest) + f"T{seconds}S" * (rest > 0)
    return f"-{text}" if count < 0 else text
