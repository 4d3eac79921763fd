"""The rows of a table by time: those that are due are found without a look at the others.

The time is an int64 column without nulls: the timestamp of a timer, the end of a window. Of each run it is known how
early the live rows of each few hundred may be (see `zones`), so those that are due are found by a look at these. A run
of which much was looked at again and again is put into the order of time, once, and from then on read from where the
last call stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.table import kernels
from arrowstate.table.journal import Journal
from arrowstate.table.run import Run
from arrowstate.table.segment import Segment
from arrowstate.table.table import Table
from arrowstate.table.zones import Zones

__all__ = ["Rows", "TimeColumn"]

Ints = npt.NDArray[np.int64]
Rows = list[tuple[Run, Ints, Ints]]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_SKIP_ROWS = 4096
# To put a run in order takes about as long as to look at all of it so often.
_PASSES = 8


@dataclass(slots=True, eq=False)
class _Part:
    """What is known of a run."""

    run: Run
    zones: Zones
    lowest: int
    "No live row that is still asked for has an earlier time."
    highest: int
    "No row has a later one."
    passed: int = _LOWEST
    "Up to which time rows were found last."
    then: int = _LOWEST
    "What `lowest` becomes when these rows are gone or asked for no more."
    looked_at: int = 0
    "How many rows were looked at so far."
    times: Ints | None = None
    "All times, ascending; None until it is in order."
    rows: Ints | None = None
    "The rows they are of."
    place: int = 0
    "All rows before it in the order of time are dead or asked for no more."


class TimeColumn:
    """The rows of a table in the order of one of its columns.

    It takes part in transactions: what it knows of rows that come back to life goes back with them.

    Parameters
    ----------
    table
        The table.
    column
        The number of the column, which is the time column of its run files.
    """

    def __init__(self, table: Table, column: int) -> None:
        self._table = table
        self._column = column
        self._known: dict[int, _Part] = {}
        self._looked_at: list[_Part] = []
        "The parts of what was found last."
        self._changes: Journal[tuple[_Part, tuple[int, int, int, int]]] = Journal()

    def begin(self) -> int:
        """Return a mark, to be given up by `keep` or `go_back`, the latest first."""
        return self._changes.begin()

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""
        self._changes.keep()

    def go_back(self, mark: int) -> None:
        """Give up the latest mark; the table must be, or become, what it was then."""
        for part, was in self._changes.undone(mark):
            part.lowest, part.passed, part.then, part.place = was
        self._looked_at = []

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is in the order of time, and of what is known of the others."""
        arrays = [array for part in self._known.values() for array in (part.times, part.rows) if array is not None]
        return sum(array.nbytes for array in arrays) + sum(part.zones.nbytes for part in self._known.values())

    def find(self, up_to: int, after: int | None = None) -> Rows:
        """Return the live rows with a time up to `up_to`, and above `after`, in the order of the runs.

        `after` may rise from call to call and must not fall.
        """
        first = _LOWEST if after is None else after + 1
        self._looked_at = []
        found: Rows = []
        if first > up_to:
            return found
        for part in self._parts():
            if (part.then if first > part.passed else part.lowest) <= up_to:
                self._note(part)
                rows = self._look(part, first, up_to)
                if rows.size:
                    found.append((part.run, rows, rows))
        return found

    def remove(self, found: Rows) -> None:
        """Drop the rows that `find` has returned last."""
        for run, _, rows in found:
            self._table.kill(run, rows)
        for part in self._looked_at:
            self._note(part)
            part.lowest = part.then
        self._looked_at = []

    def earliest(self) -> int | None:
        """Return the lowest time of a live row, None if there is no row."""
        best: int | None = None
        for part in sorted(self._parts(), key=lambda part: part.lowest):
            if best is not None and part.lowest >= best:
                break
            time = self._earliest_of(part)
            if time is not None and (best is None or time < best):
                best = time
        return best

    def cut(self, up_to: int, rows: int) -> int | None:
        """Return a time up to which there are about so many rows, at most `up_to`; None if none is due by then."""
        due = []
        for part in self._parts():
            if part.lowest > up_to:
                continue
            if self._is_ordered(part):
                first = self._first_of(part)
                if first is not None and first <= up_to:
                    times, _ = self._ordered(part)
                    due.append(times[part.place : part.place + rows])
            else:
                found, above = self._pick(part, _LOWEST, up_to)
                if found.size:
                    due.append(part.run.segments.take(self._column, found, pa.int64()).to_numpy())
                else:
                    self._note(part)
                    part.lowest = above
        if not due:
            return None
        times = np.concatenate(due)
        return min(up_to, int(np.partition(times, rows - 1)[rows - 1])) if times.size > rows else up_to

    def overlapping(self, lowest: int, highest: int) -> list[Run]:
        """Return the runs that may have rows with times within these, both inclusive."""
        return [part.run for part in self._parts() if part.lowest <= highest and part.highest >= lowest]

    def none_after(self, time: int) -> bool:
        """Whether it is certain, without a look at every row, that none has a later time."""
        return all(part.highest <= time for part in self._parts())

    def _parts(self) -> list[_Part]:
        """Return what is known of each run that has live rows."""
        known, self._known = self._known, {}
        for run in self._table.runs:
            if run.live_rows:
                part = known.get(id(run))
                if part is None or part.run is not run:
                    part = self._new_part(run)
                self._known[id(run)] = part
        return list(self._known.values())

    def _new_part(self, run: Run) -> _Part:
        def zones() -> Zones:
            return Zones(run.segments, self._column, [self._ends(segment) for segment in run.segments])

        made: Zones = run.segments.shared(("zones", self._column), zones)
        return _Part(run, made, made.earliest_of_all, made.latest_of_all)

    def _ends(self, segment: Segment) -> tuple[int, int]:
        if segment.times is None:
            ends = pc.min_max(segment.batch.column(self._column)).as_py()
            segment.times = ends["min"], ends["max"]
        return segment.times

    def _note(self, part: _Part) -> None:
        """Remember what is about to change."""
        if self._changes.is_open:
            self._changes.note((part, (part.lowest, part.passed, part.then, part.place)))

    def _look(self, part: _Part, first: int, up_to: int) -> Ints:
        """Return the live rows of a part from one time to another, ascending."""
        self._looked_at.append(part)
        if not self._is_ordered(part):
            rows, above = self._pick(part, first, up_to)
            if not rows.size:
                part.lowest = above
        else:
            times, ordered = self._ordered(part)
            part.place = max(part.place, int(np.searchsorted(times, first)))
            self._skip_dead(part)
            end = int(np.searchsorted(times, up_to, side="right"))
            rows = ordered[part.place : end]
            rows = np.sort(rows[part.run.is_live(rows)])
            above = int(times[end]) if end < times.size else _HIGHEST
        part.passed, part.then = up_to, above
        return rows

    def _is_ordered(self, part: _Part) -> bool:
        """Whether it is in the order of time, or to be put into it."""
        return part.times is not None or part.looked_at >= _PASSES * part.run.rows

    def _pick(self, part: _Part, first: int, up_to: int) -> tuple[Ints, int]:
        """Return the live rows from one time to another, ascending, and a time before which no later one is."""
        rows, above, looked_at = part.zones.pick(part.run.live, first, up_to)
        part.looked_at += looked_at
        return rows + part.run.first_row, above

    def _earliest_of(self, part: _Part) -> int | None:
        if self._is_ordered(part):
            return self._first_of(part)
        # Few of those that may be the earliest are looked at, then more and more.
        count, bound = 1, part.lowest
        while True:
            rows, above = self._pick(part, _LOWEST, bound)
            if rows.size:
                times = part.run.segments.take(self._column, rows, pa.int64()).to_numpy()
                self._note(part)
                part.lowest = int(times.min())
                return part.lowest
            if bound == _HIGHEST:
                self._note(part)
                part.lowest = _HIGHEST
                return None
            count *= 4
            bound = max(above, part.zones.bound(count))

    def _first_of(self, part: _Part) -> int | None:
        self._note(part)
        self._ordered(part)
        return self._skip_dead(part)

    def _skip_dead(self, part: _Part) -> int | None:
        """Go on to the first live row in the order of time, and return its time."""
        times, rows = self._ordered(part)
        while part.place < rows.size:
            live = np.flatnonzero(part.run.is_live(rows[part.place : part.place + _SKIP_ROWS]))
            if live.size:
                part.place += int(live[0])
                part.lowest = int(times[part.place])
                return part.lowest
            part.place = min(part.place + _SKIP_ROWS, rows.size)
        part.lowest = _HIGHEST
        return None

    def _ordered(self, part: _Part) -> tuple[Ints, Ints]:
        if part.times is None or part.rows is None:
            segments = part.run.segments
            values = [segment.batch.column(self._column).to_numpy() for segment in segments]
            part.times, order = kernels.sort_by_hash(np.concatenate(values))
            part.rows = order + part.run.first_row
        return part.times, part.rows
