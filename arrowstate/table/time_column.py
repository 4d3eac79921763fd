"""The rows of a table by time: those that are due are found without a look at the others.

The time is an int64 column without nulls: the timestamp of a timer, the end of a window. Of each run it is known how
early the live rows of each few hundred may be (see `zones`), so those that are due are found by a look at these. A run
of which much was looked at again and again is put into the order of time, a part of it with each call (see
`time_order`), and from then on read from where the last call stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.table.journal import Journal
from arrowstate.table.run import Run
from arrowstate.table.segment import Segment
from arrowstate.table.table import Table
from arrowstate.table.time_order import OrderMark, TimeOrder
from arrowstate.table.zones import Zones

Ints = npt.NDArray[np.int64]
Rows = list[tuple[Run, Ints, Ints]]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
# To put a run in order takes about as long as to look at all of it so often; it goes on with a row for so many that
# were looked at.
_PASSES = 8
_PAID = 8


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
    owed: int = 0
    "How many of its rows are to be put into order next."
    order: TimeOrder | None = None
    "Its first rows in the order of time, once it was looked at again and again."


class _Mark(Struct, frozen=True):
    """What is known of a run changes to this when a transaction goes back."""

    lowest: int
    passed: int
    then: int
    order: OrderMark | None


class TimeColumn:
    """The rows of a table in the order of one of its columns.

    It takes part in transactions: what it knows of rows that come back to life goes back with them.
    """

    def __init__(self, table: Table, column: int) -> None:
        self._table = table
        self._column = column
        table.asked_by_time(column)
        self._known: dict[int, _Part] = {}
        self._looked_at: list[_Part] = []
        "The parts of what was found last."
        self._changes: Journal[tuple[_Part, _Mark]] = Journal()

    def begin(self) -> int:
        """Return a mark, to be given up by `keep` or `go_back`, the latest first."""
        return self._changes.begin()

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""
        self._changes.keep()

    def go_back(self, mark: int) -> None:
        """Give up the latest mark; the table must be, or become, what it was then."""
        for part, was in self._changes.undone(mark):
            part.lowest, part.passed, part.then = was.lowest, was.passed, was.then
            if part.order is not None:
                part.order.go_back(was.order)
        self._looked_at = []

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is in the order of time, and of what is known of the others."""
        ordered = sum(part.order.nbytes for part in self._known.values() if part.order is not None)
        return ordered + sum(part.zones.nbytes for part in self._known.values())

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
        limit = up_to
        for part in self._parts():
            if part.lowest > up_to:
                continue
            self._note(part)
            if part.order is not None:
                times, above = part.order.sample(part.run.live, up_to, rows)
                due.append(times)
                limit = min(limit, above)
            found, above = self._look_at_zones(part, _LOWEST, up_to)
            if found.size:
                due.append(self._times_of(part, found))
            elif part.order is None:
                part.lowest = above
            self._go_on(part)
        times = np.concatenate(due) if due else np.empty(0, dtype=np.int64)
        if times.size > rows:
            limit = min(limit, int(np.partition(times, rows - 1)[rows - 1]))
        return limit if times.size else None

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
                elif part.zones.segments is not run.segments:
                    self._follow(part)
                self._known[id(run)] = part
        return list(self._known.values())

    def _new_part(self, run: Run) -> _Part:
        def zones() -> Zones:
            return Zones(run.segments, self._column, [self._ends(segment) for segment in run.segments])

        made: Zones = run.segments.shared(("zones", self._column), zones)
        return _Part(run, made, made.earliest_of_all, made.latest_of_all)

    def _follow(self, part: _Part) -> None:
        """Let go of the memory of a run that was spilled."""
        segments = part.run.segments
        part.zones = segments.shared(("zones", self._column), lambda: part.zones.with_segments(segments))
        if part.order is not None:
            part.order.follow(segments)

    def _ends(self, segment: Segment) -> tuple[int, int]:
        if segment.times is None:
            ends = pc.min_max(segment.batch.column(self._column)).as_py()
            segment.times = ends["min"], ends["max"]
        return segment.times

    def _note(self, part: _Part) -> None:
        """Remember what is about to change."""
        if self._changes.is_open:
            order = None if part.order is None else part.order.mark()
            self._changes.note((part, _Mark(part.lowest, part.passed, part.then, order)))

    def _look(self, part: _Part, first: int, up_to: int) -> Ints:
        """Return the live rows of a part from one time to another, ascending."""
        self._looked_at.append(part)
        rows, above = self._look_at_zones(part, first, up_to)
        if part.order is not None:
            ordered, earlier = part.order.pick(part.run.live, first, up_to)
            rows, above = np.concatenate((ordered + part.run.first_row, rows)), min(above, earlier)
        if not rows.size:
            part.lowest = above
        part.passed, part.then = up_to, above
        self._go_on(part)
        return rows

    def _look_at_zones(self, part: _Part, first: int, up_to: int) -> tuple[Ints, int]:
        """Return the live rows from one time to another that are in no order yet, and a time no later one is before."""
        done = 0 if part.order is None else part.order.done
        rows, above, looked_at = part.zones.pick(part.run.live, first, up_to, done)
        part.looked_at += looked_at
        part.owed += looked_at // _PAID
        return rows + part.run.first_row, above

    def _go_on(self, part: _Part) -> None:
        """Put more of a run into the order of time, as much as was looked at pays for."""
        if part.order is None and part.looked_at >= _PASSES * part.run.rows:
            part.order, part.owed = TimeOrder(part.run.segments, self._column), 0
        elif part.order is not None and part.order.done < part.order.rows and part.owed:
            part.order.go_on(part.owed)
            part.owed = 0

    def _earliest_of(self, part: _Part) -> int | None:
        self._note(part)
        best = None if part.order is None else part.order.earliest(part.run.live)
        # Few of those that may be the earliest are looked at, then more and more.
        count, bound = 1, part.lowest
        while True:
            bound = bound if best is None else min(bound, best)
            rows, above = self._look_at_zones(part, _LOWEST, bound)
            if rows.size:
                best = int(self._times_of(part, rows).min())
                break
            if bound == (_HIGHEST if best is None else best):
                break
            count *= 4
            bound = max(above, part.zones.bound(count))
        part.lowest = _HIGHEST if best is None else best
        self._go_on(part)
        return best

    def _times_of(self, part: _Part, rows: Ints) -> Ints:
        times: Ints = part.run.segments.take(self._column, rows, pa.int64()).to_numpy()
        return times
