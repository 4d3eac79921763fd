"""Zones: how early the live rows of each few hundred rows of a run may be, so that the others are not looked at.

A zone knows the lowest time of the rows that were live when it was last looked at, and which these were. Whoever asks
has live bits of his own: where no other row is live than then, nothing is earlier than that; else the zone is looked at
again. So what is known of a file serves everybody in the process who restores it, from any checkpoint, and what a task
has learned the next one knows, though each micro-batch has new dead rows.

Before the first look a zone knows of all its rows what the document of the run says.

Of each block of zones it is known too how early its rows may be: what many restored rows cost a batch of which none is
due is a look at their live bits, a block at a time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate.table.kernels import is_live
from arrowstate.table.segments import Segments
from arrowstate_formats.compiled import kernel, load_uint64

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_ROWS = 128
_BLOCK = 64
"Zones of a block."
_1, _2, _3, _4, _8 = (np.uint64(number) for number in (1, 2, 3, 4, 8))


class MergedTimes:
    """The lowest times by zone of a merged run, noted as its rows are written."""

    def __init__(self, rows: int) -> None:
        self.zone_rows = _ROWS
        self.lowest: Ints = np.full(-(-rows // _ROWS), _HIGHEST, dtype=np.int64)
        self.highest = _LOWEST

    def add(self, row: int, times: Ints) -> None:
        """Note the times of the next rows, the first of which is a row of the merged run."""
        borders = np.arange(-row % self.zone_rows, times.size, self.zone_rows)
        if row % self.zone_rows:
            borders = np.concatenate(([0], borders))
        lowest = self.lowest[row // self.zone_rows :][: borders.size]
        np.minimum(lowest, np.minimum.reduceat(times, borders), out=lowest)
        self.highest = max(self.highest, int(times.max()))


class Zones:
    """The zones of the rows of some segments."""

    def __init__(
        self, segments: Segments, column: int, ends: Sequence[tuple[int, int]] | MergedTimes, rows: int | None = None
    ) -> None:
        self.segments = segments
        "Those whose rows it knows."
        self._column = column
        self._zone_rows = _ROWS if rows is None else rows
        self._ends = np.concatenate((segments.first_rows, segments.first_rows[-1:] + segments.rows[-1:]))
        self._ends -= self._ends[0]
        count = int(self._ends[-1])
        # Two threads may have restored one file.
        self._lock = threading.Lock()
        self._live: Bits = np.full((count + 7) // 8, 0xFF, dtype=np.uint8)
        self._lowest: Ints
        if isinstance(ends, MergedTimes):
            self._zone_rows = ends.zone_rows
            self._lowest = ends.lowest[: -(-count // self._zone_rows)]
            self.earliest_of_all, self.latest_of_all = int(self._lowest.min()), ends.highest
        else:
            self._lowest = self._lowest_of(ends, count)
            self.earliest_of_all, self.latest_of_all = min(low for low, _ in ends), max(high for _, high in ends)
        self._block_lowest: Ints = np.minimum.reduceat(self._lowest, np.arange(0, self._lowest.size, _BLOCK))

    def _lowest_of(self, ends: Sequence[tuple[int, int]], count: int) -> Ints:
        """Return for each zone the lowest time of the segments it has rows of."""
        starts = np.arange(0, count, self._zone_rows)
        first = self._numbers(starts)
        last = self._numbers(np.minimum(starts + self._zone_rows, count) - 1)
        lows = np.array([low for low, _ in ends], dtype=np.int64)
        lowest: Ints = lows[first]
        while (first < last).any():
            first = np.minimum(first + 1, last)
            np.minimum(lowest, lows[first], out=lowest)
        return lowest

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self._live.nbytes + self._lowest.nbytes + self._block_lowest.nbytes

    def with_segments(self, segments: Segments) -> Zones:
        """Return what is known of the same rows where they lie now."""
        moved = copy.copy(self)
        moved.segments = segments
        return moved

    def bound(self, count: int) -> int:
        """Return a time that the lowest times of so many zones, as far as they are known, are not above."""
        if count >= self._lowest.size:
            return _HIGHEST
        return int(np.partition(self._lowest, count - 1)[count - 1])

    def pick(self, live: Bits, first: int, up_to: int, start: int = 0) -> tuple[Ints, int, int]:
        """Return the rows, from 0, that are live and have a time from `first` to `up_to`, both inclusive."""
        with self._lock:
            look = np.empty(self._lowest.size, dtype=np.int64)
            result = np.empty(2, dtype=np.int64)
            words = live.size // 8 * 8
            bits = (live, self._live, live[:words].view(np.uint64), self._live[:words].view(np.uint64))
            zone = -(-start // self._zone_rows)
            count = _choose(*bits, self._lowest, self._block_lowest, self._zone_rows, zone, up_to, look, result)
            look = look[:count]
            if not count:
                return np.empty(0, dtype=np.int64), int(result[0]), 0
            starts = look * self._zone_rows
            last = np.minimum(starts + self._zone_rows, self._ends[-1]) - 1
            needed = np.unique(np.concatenate((self._numbers(starts), self._numbers(last))))
            # A zone of small segments may have some between its first and its last one.
            if needed.size < len(self.segments):
                between = self._numbers(last) - self._numbers(starts) > 1
                if between.any():
                    needed = np.arange(len(self.segments))
            addresses = self.segments.addresses(self._column, needed)
            out = np.empty(count * self._zone_rows, dtype=np.int64)
            where = (look, self._zone_rows, self._ends, addresses, live, self._live, self._lowest)
            found = _look(*where, self._block_lowest, first, up_to, result, out)
            return out[:found].copy(), int(result[0]), int(result[1])

    def _numbers(self, rows: Ints) -> Ints:
        """Return the number of the segment of each row, counted from 0."""
        return np.searchsorted(self._ends, rows, side="right") - 1


@kernel("uint8[], uint8[], uint64[], uint64[], int64[], int64[], int64, int64, int64, out int64[], out int64[]")
def _choose(
    live: Any,
    known: Any,
    live_words: Any,
    known_words: Any,
    lowest: Any,
    block_lowest: Any,
    zone_rows: Any,
    start: Any,
    up_to: Any,
    out: Any,
    above: Any,
) -> Any:
    """Write the zones, from one on, that may have rows up to a time, and count them.

    above[0] becomes the lowest of the others.
    """
    count = 0
    later: Any = _HIGHEST
    zone_bytes = zone_rows >> 3
    block_words = zone_bytes * _BLOCK >> 3
    here, there = np.uint64(live.ctypes.data), np.uint64(known.ctypes.data)
    for block in range(start // _BLOCK, block_lowest.size):
        if block_lowest[block] > up_to and (block + 1) * block_words <= live_words.size:
            # Four at a time, by numbers without a sign: so the processor compares many at once.
            first, second, third, fourth = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
            word, stop = np.uint64(block * block_words), np.uint64((block + 1) * block_words)
            while word < stop:
                first |= live_words[word] & ~known_words[word]
                second |= live_words[word + _1] & ~known_words[word + _1]
                third |= live_words[word + _2] & ~known_words[word + _2]
                fourth |= live_words[word + _3] & ~known_words[word + _3]
                word += _4
            if (first | second | third | fourth) == 0:
                later = min(later, block_lowest[block])
                continue
        for zone in range(max(start, block * _BLOCK), min(lowest.size, (block + 1) * _BLOCK)):
            due = lowest[zone] <= up_to
            if not due:
                place = zone * zone_bytes
                end = min(place + zone_bytes, live.size)
                others = np.uint64(0)
                while place + 8 <= end:
                    others |= load_uint64(here + np.uint64(place)) & ~load_uint64(there + np.uint64(place))
                    place += 8
                while place < end:
                    others |= np.uint64(live[place] & ~known[place])
                    place += 1
                due = others != 0
            if due:
                out[count] = zone
                count += 1
            else:
                later = min(later, lowest[zone])
    above[0] = later
    return count


@kernel(
    "int64[], int64, int64[], uint64[], uint8[], out uint8[], out int64[], out int64[], int64, int64, out int64[], "
    "out int64[]"
)
def _look(
    zones: Any,
    zone_rows: Any,
    ends: Any,
    addresses: Any,
    live: Any,
    known: Any,
    lowest: Any,
    block_lowest: Any,
    first: Any,
    up_to: Any,
    result: Any,
    out: Any,
) -> Any:
    """Look at zones: write the rows that are due, note what is known now; return how many rows were written.

    result[0] becomes the lowest time after `up_to`, if it is not lower; result[1] how many rows were looked at.
    """
    count = 0
    later = result[0]
    looked_at = 0
    total = ends[ends.size - 1]
    segment = 0
    for k in range(zones.size):
        start = zones[k] * zone_rows
        end = min(start + zone_rows, total)
        best: Any = _HIGHEST
        row = start
        while row < end:
            while ends[segment + 1] <= row:
                segment += 1
            stop = min(end, ends[segment + 1])
            address = addresses[segment] + (np.uint64(row - ends[segment]) << _3)
            # A dead row counts as the latest of all, so that which rows are dead is no branch.
            while row < stop:
                time = np.int64(load_uint64(address)) if is_live(live, row) else _HIGHEST
                best = min(best, time)
                if time > up_to:
                    later = min(later, time)
                elif time >= first and is_live(live, row):
                    out[count] = row
                    count += 1
                row += 1
                address += _8
        looked_at += end - start
        lowest[zones[k]] = best
        for i in range(start >> 3, (end + 7) >> 3):
            known[i] = live[i]
        block = zones[k] // _BLOCK
        if k + 1 == zones.size or zones[k + 1] // _BLOCK != block:
            earliest: Any = _HIGHEST
            for zone in range(block * _BLOCK, min(lowest.size, (block + 1) * _BLOCK)):
                earliest = min(earliest, lowest[zone])
            block_lowest[block] = earliest
    result[0], result[1] = later, looked_at
    return count
