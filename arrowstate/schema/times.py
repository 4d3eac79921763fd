"""Times as a caller gives them, as milliseconds since 1970."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.types import CONVERSION_ERRORS, as_arrow, first_null, numpy_array

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def expired_up_to(ttl_ms: int, now_ms: int | None) -> int | None:
    """Return the last time of update that has expired by now, None if nothing can have."""
    return None if now_ms is None or now_ms - ttl_ms < _LOWEST else now_ms - ttl_ms


def saturated(timestamp: Any) -> int:
    """Return a timestamp in milliseconds; one that 64 bits cannot hold becomes the lowest or highest they can."""
    if isinstance(timestamp, (bool, np.bool_)) or not isinstance(timestamp, (int, np.integer)):
        raise InvalidInputError(f"a timestamp is a whole number of milliseconds, got {timestamp!r}")
    return min(max(int(timestamp), _LOWEST), _HIGHEST)


def whole_milliseconds(column: pa.Array) -> pa.Array:
    """Return timestamps of any unit as int64 milliseconds, rounded down; what does not fit becomes lowest or highest.

    Nulls stay. What is before and after a millisecond is the same in every time zone.
    """
    unit, numbers = column.type.unit, column.view(pa.int64())
    if unit == "ms":
        return numbers
    if unit != "s":
        return rounded_down(column, "ms").view(pa.int64())
    values, most = numbers.fill_null(0).to_numpy(), _HIGHEST // 1000
    times = np.clip(values, -most, most) * 1000
    times[values > most], times[values < -most] = _HIGHEST, _LOWEST
    return _with_nulls_of(numbers, times)


_COUNTS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
"""By unit how many there are in a second."""


def rounded_down(column: pa.Array, unit: str) -> pa.Array:
    """Return timestamps or times of day in a coarser unit: `s`, `ms`, `us`, or `day` for `date32` of timestamps in UTC.

    Nulls and time zones stay.
    """
    # Arrow's floor_temporal leaves the range of 64 bits near its lowest time, such as pandas.Timestamp.min.
    of_second = _COUNTS[column.type.unit]
    width = of_second * 86_400 if unit == "day" else of_second // _COUNTS[unit]
    numbers = column.view(pa.int32()).cast(pa.int64()) if pa.types.is_time32(column.type) else column.view(pa.int64())
    counts = _with_nulls_of(numbers, numbers.fill_null(0).to_numpy() // width)
    if unit == "day":
        return counts.cast(pa.int32()).view(pa.date32())
    if pa.types.is_timestamp(column.type):
        return counts.view(pa.timestamp(unit, column.type.tz))
    return counts.view(pa.time64(unit)) if unit in ("us", "ns") else counts.cast(pa.int32()).view(pa.time32(unit))


def times_of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as timestamps as Arrow reads them; raise `pa.ArrowInvalid` where one is none of the type.

    Before 26 PyArrow makes another time of one whose nanoseconds have no room in 64 bits.
    """
    times = pc.cast(texts, kind)
    if kind.unit == "ns" and wraps_times():
        seconds = pc.cast(pc.replace_substring_regex(texts, r"\.\d+", ""), pa.timestamp("s", kind.tz))
        others = pc.not_equal(rounded_down(times, "s"), seconds)
        if pc.any(others).as_py():
            raise pa.ArrowInvalid(f"there is no {kind} for {texts.filter(others)[0].as_py()!r}")
    return times


@cache
def wraps_times() -> bool:
    """Whether PyArrow reads a time that `timestamp[ns]` has no room for as another one."""
    try:
        pc.cast(pa.array(["9999-12-31"]), pa.timestamp("ns"))
    except pa.ArrowInvalid:
        return False
    return True


def _with_nulls_of(column: pa.Array, values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(values, mask=column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None)


def timestamp_array(name: str, timestamps: Any, *, round_down: bool = False, saturate: bool = True) -> pa.Array:
    """Return timestamps as int64 milliseconds; what does not fit becomes the lowest or highest that does.

    Arrow timestamps between two milliseconds are refused, or rounded down. Without `saturate`, what does not fit is
    refused.
    """
    try:
        timestamps = as_arrow(timestamps)
        if isinstance(timestamps, pa.ChunkedArray):
            timestamps = timestamps.combine_chunks()
        if not isinstance(timestamps, (pa.Array, np.ndarray)):
            try:
                given = pa.array(timestamps)
            except (OverflowError, pa.ArrowInvalid):
                if not saturate:
                    raise
                given = pa.array([None if value is None else saturated(value) for value in timestamps], pa.int64())
            timestamps = given
        column = timestamps if isinstance(timestamps, pa.Array) else numpy_array(timestamps)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type):
            unit = column.type.unit
            if saturate if unit == "s" else round_down:
                column = whole_milliseconds(column)
            else:
                # Arrow refuses what does not fit.
                column = column.view(pa.timestamp(unit)).cast(pa.timestamp("ms")).view(pa.int64())
        elif pa.types.is_uint64(column.type) and saturate:
            column = pc.min_element_wise(column, pa.scalar(_HIGHEST, pa.uint64()), skip_nulls=False).cast(pa.int64())
        elif pa.types.is_integer(column.type) or pa.types.is_null(column.type):
            column = column.cast(pa.int64())
        else:
            raise TypeError(str(column.type))
    except CONVERSION_ERRORS as error:
        raise ValueTypeError(name, "timestamps in milliseconds", str(error)) from None
    if column.null_count:
        row = first_null(column)
        raise InvalidInputError(f"a timestamp must not be null, the one in row {row} is")
    return column
