"""Rows of a run in the order of time, a part of the run after the other.

A run that is asked for what is due again and again is put into the order of time. To do that at once would have one
batch wait for all of it, so it is done in parts of some thousand rows, of which each is in order by itself: what is due
lies at the beginning of each of them, where the last call stopped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate.table import kernels
from arrowstate.table.kernels import is_live
from arrowstate.table.segments import Segments
from arrowstate_formats.compiled import kernel

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
OrderMark = tuple[Ints, Ints]
"By part: the place of the first row that may be live and asked for, and its time, or one before it."

_HIGHEST = np.iinfo(np.int64).max
_ROWS = 16_384
_ROOM = 1024


class TimeOrder:
    """The first rows of some segments, all of them in the end, in the order of time."""

    def __init__(self, segments: Segments, column: int, rows: int | None = None) -> None:
        self._segments = segments
        self._column = column
        self._part_rows = _ROWS if rows is None else rows
        self._ends = np.append(segments.first_rows, segments[-1].end_row) - segments[0].first_row
        self.rows = int(self._ends[-1])
        # Memory that is not touched yet costs nothing.
        self._times = np.empty(self.rows, dtype=np.int64)
        self._order = np.empty(self.rows, dtype=np.uint32)
        parts = -(-self.rows // self._part_rows)
        self._starts = np.arange(parts) * self._part_rows
        self._places = self._starts.copy()
        self._heads = np.empty(parts, dtype=np.int64)
        self._room = _ROOM
        self._parts = 0

    @property
    def done(self) -> int:
        """How many rows are in order: those before this one."""
        return min(self.rows, self._parts * self._part_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of what is in order."""
        return self.done * (self._times.itemsize + self._order.itemsize)

    def follow(self, segments: Segments) -> None:
        """Read what is not in order yet where the same rows lie now."""
        self._segments = segments

    def go_on(self, rows: int) -> None:
        """Put so many rows more into order, and one part at least."""
        end = min(self.rows, self.done + max(rows, 1))
        while (start := self.done) < end:
            stop = min(self.rows, start + self._part_rows)
            times, order = kernels.sort_by_hash(self._column_of(start, stop))
            self._times[start:stop] = times
            self._order[start:stop] = order + start
            self._heads[self._parts] = times[0]
            self._parts += 1

    def mark(self) -> OrderMark:
        """Return what changes as rows are found."""
        return self._places[: self._parts].copy(), self._heads[: self._parts].copy()

    def go_back(self, mark: OrderMark | None) -> None:
        """Be as at a mark, None if there was none, but for the parts that were put into order since."""
        places, heads = mark or (self._places[:0], self._heads[:0])
        known = slice(0, places.size)
        since = slice(places.size, self._parts)
        self._places[known], self._heads[known] = places, heads
        self._places[since] = self._starts[since]
        self._heads[since] = self._times[self._starts[since]]

    def pick(self, live: Bits, first: int, up_to: int) -> tuple[Ints, int]:
        """Return the rows, from 0, that are live and have a time from `first` to `up_to`, both inclusive.

        `first` may rise from call to call and must not fall. Rows are ascending; beside them stands a time which every
        live row after `up_to` has at least.
        """
        above = np.empty(1, dtype=np.int64)
        while True:
            out = np.empty(self._room, dtype=np.int64)
            count = _pick(*self._where(live), first, up_to, above, out)
            self._room = max(_ROOM, 2 * count)
            if count <= out.size:
                return np.sort(out[:count]), int(above[0])

    def earliest(self, live: Bits) -> int | None:
        """Return the lowest time of a live row that is in order, None if there is none."""
        found = np.empty(1, dtype=np.int64)
        return int(found[0]) if _earliest(*self._where(live), found) else None

    def sample(self, live: Bits, up_to: int, rows: int) -> tuple[Ints, int]:
        """Return some of the lowest times up to one, that of a live row among them if it is the lowest.

        From each part come about as many as make `rows` in all. Beside them stands a time up to which none is left out.
        """
        each = max(8, 4 * rows // max(1, self._parts))
        out, above = np.empty(each * self._parts, dtype=np.int64), np.empty(1, dtype=np.int64)
        count = _sample(*self._where(live), up_to, each, above, out)
        return out[:count], int(above[0])

    def _where(self, live: Bits) -> tuple[Any, ...]:
        known = slice(0, self._parts)
        return self._times, self._order, self.done, self._part_rows, self._places[known], self._heads[known], live

    def _column_of(self, start: int, stop: int) -> Ints:
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right") - 1
        values = []
        for number in range(int(first), int(last) + 1):
            ahead = int(self._ends[number])
            values.append(
                self._segments[number].batch.column(self._column).to_numpy()[max(0, start - ahead) : stop - ahead]
            )
        return values[0] if len(values) == 1 else np.concatenate(values)


@kernel("int64[], uint32[], int64, int64, out int64[], out int64[], uint8[], int64, int64, out int64[], out int64[]")
def _pick(
    times: Any,
    rows: Any,
    done: Any,
    part_rows: Any,
    places: Any,
    heads: Any,
    live: Any,
    first: Any,
    up_to: Any,
    above: Any,
    out: Any,
) -> Any:
    """Write the rows that are due, as far as there is room; return how many there are."""
    count = 0
    later: Any = _HIGHEST
    for part in range(heads.size):
        if heads[part] > up_to:
            later = min(later, heads[part])
            continue
        end = min((part + 1) * part_rows, done)
        place = places[part]
        while place < end and (times[place] < first or not is_live(live, rows[place])):
            place += 1
        places[part] = place
        heads[part] = times[place] if place < end else _HIGHEST
        while place < end and times[place] <= up_to:
            if is_live(live, rows[place]):
                if count < out.size:
                    out[count] = rows[place]
                count += 1
            place += 1
        if place < end:
            later = min(later, times[place])
    above[0] = later
    return count


@kernel("int64[], uint32[], int64, int64, out int64[], out int64[], uint8[], out int64[]")
def _earliest(times: Any, rows: Any, done: Any, part_rows: Any, places: Any, heads: Any, live: Any, found: Any) -> Any:
    """Write the lowest time of a live row; return whether there is one."""
    best: Any = _HIGHEST
    is_any = False
    for part in range(heads.size):
        if is_any and heads[part] >= best:
            continue
        end = min((part + 1) * part_rows, done)
        place = places[part]
        while place < end and not is_live(live, rows[place]):
            place += 1
        places[part] = place
        heads[part] = times[place] if place < end else _HIGHEST
        if place < end:
            best = min(best, times[place])
            is_any = True
    found[0] = best
    return is_any


@kernel("int64[], uint32[], int64, int64, out int64[], out int64[], uint8[], int64, int64, out int64[], out int64[]")
def _sample(
    times: Any,
    rows: Any,
    done: Any,
    part_rows: Any,
    places: Any,
    heads: Any,
    live: Any,
    up_to: Any,
    each: Any,
    above: Any,
    out: Any,
) -> Any:
    """Write up to `each` times of each part, the first of them that of a live row; return how many there are."""
    count = 0
    limit: Any = _HIGHEST
    for part in range(heads.size):
        if heads[part] > up_to:
            continue
        end = min((part + 1) * part_rows, done)
        place = places[part]
        while place < end and not is_live(live, rows[place]):
            place += 1
        places[part] = place
        heads[part] = times[place] if place < end else _HIGHEST
        stop = min(end, place + each)
        while place < stop and times[place] <= up_to:
            out[count] = times[place]
            count += 1
            place += 1
        if place == stop and place < end:
            limit = min(limit, times[place - 1])
    above[0] = limit
    return count
