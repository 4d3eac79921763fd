"""Window assigners: which windows an element belongs to.

An assigner is a description; what assigns a batch are kernels over its timestamps. Windows hold their start and not
their end, so that `max_timestamp`, the last millisecond of a window, is `window_end - 1`. Starts and ends that 64 bits
cannot hold become the lowest or highest they can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from arrowstate.errors import InvalidInputError
from arrowstate.table.pair_kernels import sort_by_pair
from arrowstate_formats.compiled import kernel
from arrowstate_formats.integers import check_integer

Ints = npt.NDArray[np.int64]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def whole_number(name: str, value: Any, lowest: int) -> int:
    """Return an argument that must be a whole number from `lowest` to 2^63 - 1."""
    return check_integer(name, value, lowest)


def _check_offset(offset: Any, below: int) -> None:
    if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)) or abs(int(offset)) >= below:
        raise InvalidInputError(
            f"offset_ms must be a whole number of milliseconds between -{below} and {below}, both exclusive, "
            f"got {offset!r}"
        )


Clock: TypeAlias = Literal["event_time", "processing_time"]


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """What tumbling windows by event time and by processing time are made of."""

    size_ms: int
    offset_ms: int = 0
    clock: ClassVar[Clock]

    def __post_init__(self) -> None:
        _check_offset(self.offset_ms, whole_number("size_ms", self.size_ms, 1))


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """What sliding windows by event time and by processing time are made of."""

    size_ms: int
    slide_ms: int
    offset_ms: int = 0
    clock: ClassVar[Clock]

    def __post_init__(self) -> None:
        whole_number("size_ms", self.size_ms, 1)
        _check_offset(self.offset_ms, whole_number("slide_ms", self.slide_ms, 1))


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """What sessions by event time and by processing time are made of."""

    gap_ms: int
    clock: ClassVar[Clock]

    def __post_init__(self) -> None:
        whole_number("gap_ms", self.gap_ms, 1)


@dataclass(frozen=True, slots=True)
class TumblingEventTimeWindows(TumblingWindows):
    """Windows of one size, each of which begins where the one before ends.

    Parameters
    ----------
    size_ms
        Milliseconds, 1 to 2^63 - 1.
    offset_ms
        Windows start at multiples of the size plus this many milliseconds; between -size_ms and size_ms, both
        exclusive.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = WindowOperator(backend, TumblingEventTimeWindows(10), clicks)
    >>> _ = windows.process(['ann', 'ann'], [1, 12], [1, 2])
    >>> [(row["window_start"], row["window_end"], row["clicks"]) for row in windows.advance_watermark(20).to_pylist()]
    [(0, 10, 1), (10, 20, 2)]
    """

    clock: ClassVar[Clock] = "event_time"


@dataclass(frozen=True, slots=True)
class TumblingProcessingTimeWindows(TumblingWindows):
    """Windows of one size, one after the other, by the time at which a row is processed.

    A window fires when processing time reaches its end. No row is late: each goes into the window of the moment.

    Parameters
    ----------
    size_ms, offset_ms
        As for `TumblingEventTimeWindows`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import TumblingProcessingTimeWindows, WindowFunction
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> process = arrowstate.BatchRunner(backend, WindowFunction(TumblingProcessingTimeWindows(10), clicks))
    >>> _ = process.advance_processing_time(1)
    >>> _ = process.process(pa.record_batch({"user": ["ann", "ann"], "clicks": [1, 2]}))
    >>> process.advance_processing_time(10).to_pylist()
    [{'user': 'ann', 'window_start': 0, 'window_end': 10, 'clicks': 3}]
    """

    clock: ClassVar[Clock] = "processing_time"


@dataclass(frozen=True, slots=True)
class SlidingEventTimeWindows(SlidingWindows):
    """Windows of one size that start every `slide_ms`.

    An element is in size / slide windows. If the slide is larger than the size, elements between two windows are in
    none.

    Parameters
    ----------
    size_ms, slide_ms
        Milliseconds, 1 to 2^63 - 1.
    offset_ms
        Windows start at multiples of the slide plus this many milliseconds; between -slide_ms and slide_ms, both
        exclusive.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import SlidingEventTimeWindows, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = WindowOperator(backend, SlidingEventTimeWindows(10, slide_ms=5), clicks)
    >>> _ = windows.process(['ann', 'ann'], [1, 6], [1, 2])
    >>> [(row["window_start"], row["window_end"], row["clicks"]) for row in windows.advance_watermark(20).to_pylist()]
    [(-5, 5, 1), (0, 10, 3), (5, 15, 2)]
    """

    clock: ClassVar[Clock] = "event_time"


@dataclass(frozen=True, slots=True)
class SlidingProcessingTimeWindows(SlidingWindows):
    """Windows of one size that start every `slide_ms`, by the time at which a row is processed.

    Parameters
    ----------
    size_ms, slide_ms, offset_ms
        As for `SlidingEventTimeWindows`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import SlidingProcessingTimeWindows, WindowFunction
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = SlidingProcessingTimeWindows(10, slide_ms=5)
    >>> process = arrowstate.BatchRunner(backend, WindowFunction(windows, clicks))
    >>> _ = process.advance_processing_time(6)
    >>> _ = process.process(pa.record_batch({"user": ["ann"], "clicks": [2]}))
    >>> [(row["window_start"], row["clicks"]) for row in process.advance_processing_time(15).to_pylist()]
    [(0, 2), (5, 2)]
    """

    clock: ClassVar[Clock] = "processing_time"


@dataclass(frozen=True, slots=True)
class EventTimeSessionWindows(SessionWindows):
    """Windows of a key that end when there has been no element for `gap_ms`.

    An element opens the window from its timestamp to `gap_ms` later; windows of a key that overlap or touch become one.

    Parameters
    ----------
    gap_ms
        Milliseconds, 1 to 2^63 - 1.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import EventTimeSessionWindows, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = WindowOperator(backend, EventTimeSessionWindows(gap_ms=10), clicks)
    >>> _ = windows.process(['ann', 'ann', 'ann'], [1, 6, 30], [1, 2, 4])
    >>> [(row["window_start"], row["window_end"], row["clicks"]) for row in windows.advance_watermark(50).to_pylist()]
    [(1, 16, 3), (30, 40, 4)]
    """

    clock: ClassVar[Clock] = "event_time"


@dataclass(frozen=True, slots=True)
class ProcessingTimeSessionWindows(SessionWindows):
    """Windows of a key that end when no row of the key was processed for `gap_ms`.

    Parameters
    ----------
    gap_ms
        Milliseconds, 1 to 2^63 - 1.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import ProcessingTimeSessionWindows, WindowFunction
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> process = arrowstate.BatchRunner(backend, WindowFunction(ProcessingTimeSessionWindows(10), clicks))
    >>> for now, n in ((1, 1), (6, 2)):
    ...     _ = process.advance_processing_time(now)
    ...     _ = process.process(pa.record_batch({"user": ["ann"], "clicks": [n]}))
    >>> process.advance_processing_time(16).to_pylist()
    [{'user': 'ann', 'window_start': 1, 'window_end': 16, 'clicks': 3}]
    """

    clock: ClassVar[Clock] = "processing_time"


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """One window per key, which never ends; a trigger with a count makes it fire.

    Its start is -2^63 and its end 2^63 - 1.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import GlobalWindows, Trigger, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = WindowOperator(backend, GlobalWindows(), clicks, trigger=Trigger(count=2))
    >>> fired = windows.process(['ann', 'ann'], None, [1, 2]).fired
    >>> [(row["window_start"], row["window_end"], row["clicks"]) for row in fired.to_pylist()]
    [(-9223372036854775808, 9223372036854775807, 3)]
    """


@dataclass(frozen=True, slots=True)
class CountWindows:
    """Windows of `size` elements of a key; a window fires when its last element has come, and is then removed.

    The elements of a key are counted from 0. `window_start` is the number of the first element of a window, and
    `window_end` is one above the number of the last. The count of each key is kept for ever.

    Parameters
    ----------
    size
        Elements per window, 1 to 2^63 - 1.
    slide
        A window fires every `slide` elements, with the last `size` of them; by default `size`, so that every element is
        in one window.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import CountWindows, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = WindowOperator(backend, CountWindows(2), clicks)
    >>> fired = windows.process(['ann', 'ann', 'ann'], None, [1, 2, 4]).fired
    >>> [(row["window_start"], row["window_end"], row["clicks"]) for row in fired.to_pylist()]
    [(0, 2, 3)]
    """

    size: int
    slide: int | None = None

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1)
        if self.slide is not None:
            whole_number("slide", self.slide, 1)


WindowAssigner: TypeAlias = TumblingWindows | SlidingWindows | SessionWindows | GlobalWindows | CountWindows


def clock_of(windows: WindowAssigner) -> Clock | None:
    """Return which time windows end by, None for those that know no time."""
    return None if isinstance(windows, (GlobalWindows, CountWindows)) else windows.clock


def fixed_windows(places: Ints, size: int, slide: int, offset: int) -> tuple[Ints, Ints, Ints]:
    """Return (row, start, end) of each window that each place, a timestamp or a position, is in.

    A row comes once per window, the latest window first.
    """
    # The remainder is that of floor division, so it is right before 1970 too; none of the steps overflows.
    past = places % slide - offset % slide
    past += (past < 0) * np.int64(slide)
    if size == slide:
        rows = np.arange(places.size)
    else:
        counts = np.where(past < size, (size - 1 - past) // slide + 1, 0)
        rows = np.repeat(np.arange(places.size), counts)
        number = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        places, past = places[rows], past[rows] + number * slide
    left = size - past
    starts = np.where(places >= _LOWEST + past, places - past, _LOWEST)
    ends = np.where(places <= _HIGHEST - left, places + left, _HIGHEST)
    return rows, starts, ends


def slices(places: Ints, size: int, slide: int, offset: int) -> Ints:
    """Return for each timestamp where its slice begins: timestamps of a slice are in the same windows.

    Slices end where a window begins or ends (Traub et al., "Scotty", 2018, section 4).
    """
    past = places % slide - offset % slide
    past += (past < 0) * np.int64(slide)
    last = size % slide
    past -= np.where(past >= last, last, 0)
    return np.where(places >= _LOWEST + past, places - past, _LOWEST)


def session_ends(timestamps: Ints, gap: int) -> Ints:
    """Return where the session of an element alone ends."""
    return np.minimum(timestamps, _HIGHEST - gap) + gap


def merged_sessions(keys: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return for each window (start, end) of the session that it is part of, among the windows of its key."""
    merged_starts, merged_ends = np.empty_like(starts), np.empty_like(ends)
    _merge(keys, starts, ends, sort_by_pair(keys, starts), merged_starts, merged_ends)
    return merged_starts, merged_ends


@kernel("int64[], int64[], int64[], int64[], out int64[], out int64[]")
def _merge(keys: Any, starts: Any, ends: Any, order: Any, merged_starts: Any, merged_ends: Any) -> None:
    first = 0
    while first < order.size:
        row = order[first]
        key, start, end = keys[row], starts[row], ends[row]
        last = first + 1
        while last < order.size and keys[order[last]] == key and starts[order[last]] <= end:
            end = max(end, ends[order[last]])
            last += 1
        for i in range(first, last):
            merged_starts[order[i]] = start
            merged_ends[order[i]] = end
        first = last
