"""The rows of a table by time: those that are due are found without a look at the others.

The time is an int64 column without nulls: the timestamp of a timer, the end of a window. Each segment of a run is known
by its lowest and highest time, which for a restored one the manifest says, and is passed over until it is due. One that
is due is gone through; one that was gone through often is put into the order of time, once, and from then on read from
where the last call stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from arrowstate.table import kernels
from arrowstate.table.journal import Journal
from arrowstate.table.kernels import is_live
from arrowstate.table.run import Run
from arrowstate.table.table import Table
from arrowstate_formats.compiled import kernel

__all__ = ["Rows", "TimeColumn"]

Ints = npt.NDArray[np.int64]
Rows = list[tuple[Run, Ints, Ints]]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_SKIP_ROWS = 4096
# To put a segment in order takes about as long as this many passes over it.
_PASSES = 8


@dataclass(slots=True, eq=False)
class _Part:
    """A segment of a run."""

    run: Run
    number: int
    "Of the segment; spilling puts another in its place."
    lowest: int
    "No live row that is still asked for has an earlier time."
    highest: int
    "No row has a later one."
    passed: int = _LOWEST
    "Up to which time rows were found last."
    then: int = _LOWEST
    "What `lowest` becomes when these rows are gone or asked for no more."
    passes: int = 0
    "How often it was gone through."
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
        self._known: dict[int, list[_Part]] = {}
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
        """Bytes of what is in the order of time."""
        arrays = [(part.times, part.rows) for parts in self._known.values() for part in parts]
        return sum(array.nbytes for pair in arrays for array in pair if array is not None)

    def find(self, up_to: int, after: int | None = None) -> Rows:
        """Return the live rows with a time up to `up_to`, and above `after`, in the order of the runs.

        `after` may rise from call to call and must not fall.
        """
        first = _LOWEST if after is None else after + 1
        self._looked_at = []
        found: Rows = []
        if first > up_to:
            return found
        for parts in self._parts():
            picked = []
            for part in parts:
                if (part.then if first > part.passed else part.lowest) <= up_to:
                    self._note(part)
                    rows = self._look(part, first, up_to)
                    if rows.size:
                        picked.append(rows)
            if picked:
                rows = picked[0] if len(picked) == 1 else np.concatenate(picked)
                found.append((parts[0].run, rows, rows))
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
        for part in sorted(self._each(), key=lambda part: part.lowest):
            if best is not None and part.lowest >= best:
                break
            time = self._earliest_of(part)
            if time is not None and (best is None or time < best):
                best = time
        return best

    def cut(self, up_to: int, rows: int) -> int | None:
        """Return a time up to which there are about so many rows, at most `up_to`; None if none is due by then."""
        due = [part for part in self._each() if part.lowest <= up_to]
        due = [part for part in due if (time := self._first_of(part)) is not None and time <= up_to]
        ends = [up_to]
        for part in due:
            times, _ = self._ordered(part)
            ends.append(int(times[min(part.place - (-rows // len(due)), times.size) - 1]))
        return min(ends) if due else None

    def overlapping(self, lowest: int, highest: int) -> list[Run]:
        """Return the runs that may have rows with times within these, both inclusive."""
        return [
            parts[0].run
            for parts in self._parts()
            if any(part.lowest <= highest and part.highest >= lowest for part in parts)
        ]

    def none_after(self, time: int) -> bool:
        """Whether it is certain, without a look at every row, that none has a later time."""
        return all(part.highest <= time for part in self._each())

    def _parts(self) -> list[list[_Part]]:
        """Return what is known of each run that has live rows."""
        known, self._known = self._known, {}
        for run in self._table.runs:
            if run.live_rows:
                parts = known.get(id(run))
                if parts is None or parts[0].run is not run:
                    parts = [_Part(run, number, *self._ends(run, number)) for number in range(len(run.segments))]
                self._known[id(run)] = parts
        return list(self._known.values())

    def _each(self) -> Iterator[_Part]:
        return (part for parts in self._parts() for part in parts)

    def _ends(self, run: Run, number: int) -> tuple[int, int]:
        segment = run.segments[number]
        if segment.times is None:
            ends = pc.min_max(segment.batch.column(self._column)).as_py()
            segment.times = ends["min"], ends["max"]
        return segment.times

    def _values(self, part: _Part) -> Ints:
        return np.asarray(part.run.segments[part.number].batch.column(self._column).to_numpy())

    def _note(self, part: _Part) -> None:
        """Remember what is about to change."""
        if self._changes.is_open:
            self._changes.note((part, (part.lowest, part.passed, part.then, part.place)))

    def _look(self, part: _Part, first: int, up_to: int) -> Ints:
        """Return the live rows of a part from one time to another, ascending."""
        self._looked_at.append(part)
        if part.times is None and part.passes < _PASSES:
            rows, above = self._pass(part, first, up_to)
            if not rows.size:
                part.lowest = above
        else:
            times, ordered = self._ordered(part)
            part.place = max(part.place, int(np.searchsorted(times, first)))
            self._skip_dead(part)
            end = int(np.searchsorted(times, up_to, side="right"))
            rows = ordered[part.place : end]
            rows = np.sort(rows[_live(part.run, rows)])
            above = int(times[end]) if end < times.size else _HIGHEST
        part.passed, part.then = up_to, above
        return rows

    def _pass(self, part: _Part, first: int, up_to: int) -> tuple[Ints, int]:
        """Go through a part; return the live rows from one time to another, and the lowest live time after that."""
        part.passes += 1
        run, values = part.run, self._values(part)
        first_row = run.segments[part.number].first_row
        out, above = np.empty(values.size, dtype=np.int64), np.empty(1, dtype=np.int64)
        count = _pick(values, run.live, first_row - run.first_row, first_row, first, up_to, out, above)
        return out[:count].copy(), int(above[0])

    def _earliest_of(self, part: _Part) -> int | None:
        # What a pass cannot tell is whether the highest time is one of a row.
        if part.times is None and part.passes < _PASSES and part.lowest > _LOWEST:
            _, lowest = self._pass(part, _HIGHEST, part.lowest - 1)
            if lowest < _HIGHEST:
                self._note(part)
                part.lowest = lowest
                return lowest
        return self._first_of(part)

    def _first_of(self, part: _Part) -> int | None:
        self._note(part)
        self._ordered(part)
        return self._skip_dead(part)

    def _skip_dead(self, part: _Part) -> int | None:
        """Go on to the first live row in the order of time, and return its time."""
        times, rows = self._ordered(part)
        while part.place < rows.size:
            live = np.flatnonzero(_live(part.run, rows[part.place : part.place + _SKIP_ROWS]))
            if live.size:
                part.place += int(live[0])
                part.lowest = int(times[part.place])
                return part.lowest
            part.place = min(part.place + _SKIP_ROWS, rows.size)
        part.lowest = _HIGHEST
        return None

    def _ordered(self, part: _Part) -> tuple[Ints, Ints]:
        if part.times is None or part.rows is None:
            part.times, order = kernels.sort_by_hash(self._values(part))
            part.rows = order + part.run.segments[part.number].first_row
        return part.times, part.rows


def _live(run: Run, rows: Ints) -> npt.NDArray[np.bool_]:
    bits = rows - run.first_row
    return (run.live[bits >> 3] >> (bits & 7).astype(np.uint8)) & 1 != 0


@kernel("int64[], uint8[], int64, int64, int64, int64, out int64[], out int64[]")
def _pick(values: Any, live: Any, first_bit: Any, first_row: Any, first: Any, up_to: Any, out: Any, above: Any) -> Any:
    count = 0
    lowest = _HIGHEST
    for i in range(values.size):
        value = values[i]
        if not is_live(live, first_bit + i):
            continue
        if value > up_to:
            lowest = min(lowest, value)
        elif value >= first:
            out[count] = first_row + i
            count += 1
    above[0] = lowest
    return count
