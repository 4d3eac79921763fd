"""A table: the sorted runs of one state of one subtask, with batch reads and writes.

Writing a key marks its old row dead where it stands and adds the new row to a new run, so a key has at most
one live row, a scan needs no merge and there are no tombstones. Freezing copies the live bits and nothing
else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.table import kernels
from arrowstate.table.background_merge import BackgroundMerge
from arrowstate.table.columns import take
from arrowstate.table.journal import Journal
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.merging import MemorySink, MergePolicy, Merging
from arrowstate.table.run import FrozenRun, Run
from arrowstate.table.segment import Segment
from arrowstate.table.sparse import is_sparse
from arrowstate.table.spill import Budget

Ints = npt.NDArray[np.int64]


_logger = logging.getLogger("arrowstate.table")

_PIECE_ROWS = 131_072
"Pieces of more rows than this are no faster to merge, and take more memory."
_LET_GO = 1
"How many record batches that were merged are let go of at a time, at least."


class Found(Struct, frozen=True):
    """Where the keys of a batch are; valid until the table is next written to."""

    key_count: int
    hits: tuple[tuple[Run, Ints, Ints], ...]
    "Per run: the numbers of the keys it holds, and their rows."
    absent: Ints
    "The numbers of the keys that have no row."

    def column(self, number: int, kind: pa.DataType) -> pa.Array:
        """Return column `number` of the rows found, one entry a key, null where the key is absent."""
        fixed = self._fixed_column(number, kind)
        if fixed is not None:
            return fixed
        parts, places = [], []
        for run, keys, rows in self.hits:
            for segment, low, high in _by_segment(run, rows):
                parts.append(take(segment.batch.column(number), rows[low:high] - segment.first_row))
                places.append(keys[low:high])
        parts.append(pa.nulls(self.absent.size, kind))
        places.append(self.absent)
        back = np.empty(self.key_count, dtype=np.int64)
        back[np.concatenate(places)] = np.arange(self.key_count)
        return take(pa.concat_arrays(parts), back)

    def only(self, keys: Ints) -> Found:
        """Return where some of the keys are, given by ascending numbers; the numbers stay the same."""
        return self._chosen(keys, keep=True)

    def without(self, keys: Ints) -> Found:
        """Return where the keys are as if some of them, given by ascending numbers, were absent."""
        return self._chosen(keys, keep=False)

    def _chosen(self, keys: Ints, *, keep: bool) -> Found:
        chosen = np.zeros(self.key_count, dtype=np.bool_)
        chosen[keys] = True
        masks = [(hit, chosen[hit[1]] if keep else ~chosen[hit[1]]) for hit in self.hits]
        hits = tuple((run, numbers[mask], rows[mask]) for (run, numbers, rows), mask in masks if mask.any())
        present = np.zeros(self.key_count, dtype=np.bool_)
        for _, numbers, _ in hits:
            present[numbers] = True
        return Found(self.key_count, hits, np.flatnonzero(~present))

    def _fixed_column(self, number: int, kind: pa.DataType) -> pa.Array | None:
        out = None
        for run, keys, rows in self.hits:
            sparse = is_sparse(rows.size, run.segments)
            for segment, low, high in [(run.segments[0], 0, rows.size)] if sparse else _by_segment(run, rows):
                words = run.segments.words(number, rows) if sparse else segment.words(number)
                if words is None:
                    return None
                if out is None:
                    out = np.zeros((self.key_count, words.shape[1]), dtype=words.dtype)
                if sparse:
                    out[keys] = words
                else:
                    kernels.gather(words, rows[low:high] - segment.first_row, keys[low:high], out)
        if out is None:
            return pa.nulls(self.key_count, kind)
        validity = None
        if self.absent.size:
            present = np.ones(self.key_count, dtype=np.bool_)
            present[self.absent] = False
            validity = pa.py_buffer(np.packbits(present, bitorder="little"))
        return pa.Array.from_buffers(kind, self.key_count, [validity, pa.py_buffer(out)], self.absent.size)


def _by_segment(run: Run, rows: Ints) -> list[tuple[Segment, int, int]]:
    """Return the segments that have some of the rows, with where those begin and end."""
    if len(run.segments) == 1:
        return [(run.segments[0], 0, rows.size)]
    borders = np.searchsorted(rows, [*run.segments.first_rows, run.last_row])
    parts = zip(run.segments, borders[:-1], borders[1:], strict=True)
    return [(segment, int(low), int(high)) for segment, low, high in parts if low < high]


def gather(found: Sequence[tuple[Run, Ints, Ints]], number: int, kind: pa.DataType) -> pa.Array:
    """Return a column of the rows that `Run.find_all` found, in the order of `found`."""
    # Rows ascend with the hash; only within equal hashes, which never leave a segment, they need not.
    parts = []
    for run, _, rows in found:
        if is_sparse(rows.size, run.segments):
            parts.append(run.segments.take(number, rows, kind))
            continue
        for segment, low, high in _by_segment(run, rows):
            parts.append(take(segment.batch.column(number), rows[low:high] - segment.first_row))
    return pa.concat_arrays(parts) if parts else pa.array([], type=kind)


def find_keys(runs: Sequence[Run], keys: KeyBatch) -> Found:
    """Find the live row of each key in the runs."""
    hits = []
    count = keys.hashes.size
    pending = np.arange(count, dtype=np.int64)
    # A key is live in one run at most, so the order is free: the largest first settles most keys at once.
    for run in sorted(runs, key=lambda run: run.live_rows, reverse=True):
        if not pending.size:
            break
        if not run.live_rows:
            continue
        rows = run.find(keys, pending)
        found, found_rows, pending = kernels.split_found(pending, rows)
        if found.size:
            hits.append((run, found, found_rows))
    return Found(count, tuple(hits), pending)


class FrozenTable(Struct, frozen=True):
    """A table at one moment: its runs and their live bits then."""

    schema: pa.Schema
    key_columns: int
    runs: tuple[FrozenRun, ...]

    @property
    def live_rows(self) -> int:
        return sum(run.live_rows for run in self.runs)


class TableMark(Struct, frozen=True):
    """A table at one moment, to which it can go back."""

    runs: tuple[Run, ...]
    live_rows: tuple[int, ...]
    "Of each run."
    killed: int
    "How many changes were in the journal of rows that were dropped."


class Table:
    """Sorted runs under writes; not safe for use by several threads at once."""

    def __init__(
        self,
        schema: pa.Schema,
        key_columns: int,
        *,
        runs: Sequence[Run] = (),
        policy: MergePolicy | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.schema = schema
        self.key_columns = key_columns
        self._runs = list(runs)
        self._policy = policy or MergePolicy()
        self._budget = budget or Budget()
        self._killed: Journal[tuple[Run, Ints]] = Journal()
        self._merging: list[Merging] = []
        self._written = self._dropped = self._owed = 0
        self._replaced: list[Segment] = []
        self._time_column: int | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(self._runs)

    @property
    def live_rows(self) -> int:
        return sum(run.live_rows for run in self._runs)

    @property
    def memory_bytes(self) -> int:
        return sum(run.memory_bytes for run in self._runs)

    def asked_by_time(self, column: int) -> None:
        """Have merges from now on note the times of a column, an int64 without nulls, by which rows are asked for."""
        self._time_column = column

    def find(self, keys: KeyBatch) -> Found:
        """Find the live row of each key."""
        return find_keys(self._runs, keys)

    def put(self, found: Found, keys: KeyBatch, values: Sequence[pa.Array], *, keep: Ints | None = None) -> None:
        """Write one row per key and drop the rows the keys had."""
        seconds = [] if keys.seconds is None else [pa.array(keys.seconds)]
        arrays = [pa.array(keys.hashes), *seconds, *keys.columns, *values]
        if keep is not None and keep.size < len(keys):
            arrays = [take(array, keep) for array in arrays]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        added = [Run.of([batch])] if batch.num_rows else []
        self.remove(found)
        self._runs += added
        self._written += batch.num_rows

    def remove(self, found: Found) -> None:
        """Drop the rows found."""
        for run, _, rows in found.hits:
            self.kill(run, rows)

    def kill(self, run: Run, rows: Ints) -> None:
        """Drop rows of one of the runs."""
        # Noted before: after an interrupt at whatever instruction, what was dropped can be taken back.
        room = np.full(rows.size, -1, dtype=np.int64)
        self._killed.note((run, room))
        killed = run.kill(rows, room)
        if killed.size:
            self._dropped += killed.size
            for merging in self._merging:
                for number, source in enumerate(merging.runs):
                    if source is run:
                        merging.drop(number, killed)

    def begin(self) -> TableMark:
        """Return a mark of the table as it is, to be given up by `keep` or `go_back`, the latest first.

        It costs nothing that grows with the rows held: from now on the rows that are dropped are remembered.
        """
        runs = tuple(self._runs)
        return TableMark(runs, tuple(run.live_rows for run in runs), self._killed.begin())

    def keep(self) -> None:
        """Give up the latest mark; the table stays as it is."""
        self._killed.keep()

    def go_back(self, mark: TableMark) -> None:
        """Give up the latest mark; make the table what it was when it was taken."""
        revived = set()
        for run, room in self._killed.undone(mark.killed):
            ends = np.flatnonzero(room < 0)
            rows = room[: ends[0]] if ends.size else room
            if rows.size:
                run.revive(rows)
                revived.add(id(run))
        for run, live_rows in zip(mark.runs, mark.live_rows, strict=True):
            run.live_rows = live_rows
        self._runs = list(mark.runs)
        # What was dropped from a merge does not come back to it.
        self._give_up([each for each in self._merging if any(id(run) in revived for run in each.runs)])

    def freeze(self) -> FrozenTable:
        """Return a consistent view that later writes do not change. No row is copied."""
        runs = tuple(run.freeze() for run in self._runs if run.live_rows)
        return FrozenTable(self.schema, self.key_columns, runs)

    def find_all(self, keys: KeyBatch) -> list[tuple[Run, Ints, Ints]]:
        """Find all live rows of each key: per run the numbers of the keys, ascending, and their rows."""
        found = [(run, *run.find_all(keys)) for run in self._runs if run.live_rows]
        return [(run, numbers, rows) for run, numbers, rows in found if rows.size]

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a run of rows sorted as the schema asks for, next to what is there."""
        if batch.num_rows:
            self._runs.append(Run.of([batch]))
            self._written += batch.num_rows

    def begin_merge(self, runs: Sequence[Run], *, expired_up_to: int | None = None) -> BackgroundMerge:
        """Freeze some of the runs for a merge that another thread may carry out, while this one goes on writing."""
        expected = sum(run.live_bytes for run in runs)
        # Rows of mapped files are not in memory, and a merge must not bring many of them there.
        spills = self._budget.is_exceeded(self, expected) or (
            any(run.mapped for run in runs) and expected > self._policy.segment_bytes
        )
        make_sink = partial(self._budget.spill_sink, self.schema) if spills else MemorySink
        return BackgroundMerge(
            [run.freeze() for run in runs],
            self._policy,
            make_sink,
            expired_up_to=expired_up_to,
            time_column=self._time_column,
        )

    def adopt(self, merge: BackgroundMerge) -> bool:
        """Put the result of a merge in the place of its runs; False, and nothing changes, if one of them is gone.

        The content of the table stays the same. The runs may have gone into another merge meanwhile, or the table may
        have gone back to a moment before.
        """
        sources = {id(source.run) for source in merge.sources}
        if not merge.done or len(sources.intersection(map(id, self._runs))) < len(sources):
            return False
        died = merge.died()
        if died is None:
            return False
        runs = [run for run in self._runs if id(run) not in sources]
        if merge.merged is not None:
            # A copy: after an interrupt the merge is what it was, and can be adopted again.
            merged = replace(merge.merged, live=merge.merged.live.copy())
            merged.kill(died)
            runs.append(merged)
        self._runs = runs
        return True

    def settle(self, *, expired_up_to: int | None = None) -> None:
        """Merge what the policy asks for, or the next steps of it, then spill until the budget holds.

        A merge of many rows is made in steps that grow with the rows written since the call before: it is done when
        an eighth of its rows were written at the latest, so no call waits for it. Until then the table is read as it
        was.

        To be called before `find`, so that a disk without room fails a write before it has changed anything.
        """
        written = max(self._written, self._dropped)
        self._written = self._dropped = 0
        if self._merging:
            held = {id(run) for run in self._runs}
            self._give_up([each for each in self._merging if any(id(run) not in held for run in each.runs)])
        work = self._policy.work(written, len(self._merging))
        if self._replaced:
            self._let_go(work)
        # What the last call looked at beyond its share, for pieces are not cut, is taken off this one.
        left = work - self._owed
        # The smallest first: so there are the fewest runs to read beside them.
        for merging in sorted(self._merging, key=lambda merging: merging.rows):
            if left > 0:
                left -= self._step(merging, left)
        merged = {id(run) for merging in self._merging for run in merging.runs}
        self._runs = [run for run in self._runs if run.live_rows or id(run) in merged]
        while picked := self._policy.pick([run for run in self._runs if id(run) not in merged]):
            most = max(self._policy.step_rows, left)
            if sum(run.rows for run in picked) > most:
                picked = self._policy.without_small(picked)
            at_once = sum(run.rows for run in picked) <= most
            merging = Merging(
                picked,
                self._policy,
                self._budget.sink(self, sum(run.live_bytes for run in picked)),
                # A batch that is much smaller than the one that made it due is not to wait for a piece of its size.
                piece_rows=None if at_once else min(max(self._policy.step_rows // 2, work // 4), _PIECE_ROWS),
                in_steps=not at_once,
                expired_up_to=expired_up_to,
                time_column=self._time_column,
            )
            self._merging.append(merging)
            if at_once:
                left -= self._step(merging)
            else:
                merged.update(map(id, picked))
        self._owed = max(0, -left)
        if self._budget.is_exceeded(self):
            for merging in tuple(self._merging):
                self._step(merging)
            self._replaced.clear()
            self._budget.hold(self)

    def _step(self, merging: Merging, rows: int | None = None) -> int:
        """Go on with a merge for so many rows, or to its end; when it is done, its result replaces its runs.

        Returns how many rows were looked at.
        """
        try:
            looked_at = merging.rows if rows is None else merging.step(rows)
            if rows is None:
                merging.finish()
        except BaseException:
            self._merging.remove(merging)
            raise
        if not merging.done:
            return looked_at
        self._merging.remove(merging)
        sources = set(map(id, merging.runs))
        runs = [run for run in self._runs if id(run) not in sources]
        self._runs = runs if merging.merged is None else [*runs, merging.merged]
        if merging.in_steps:
            # Letting go of much memory at once takes long, too.
            self._replaced += [segment for run in merging.runs for segment in run.segments]
        made = {"runs": len(merging.runs), "rows": merging.merged.rows if merging.merged is not None else 0}
        _logger.debug("%(runs)d runs merged into one of %(rows)d rows", made, extra=made)
        return looked_at

    def _let_go(self, rows: int) -> None:
        """Let go of record batches that were merged, with so many rows, and of one at least."""
        count = 0
        while count < len(self._replaced) and (rows > 0 or count < _LET_GO + len(self._replaced) // 32):
            rows -= self._replaced[count].rows
            count += 1
        del self._replaced[:count]

    def _give_up(self, merges: Sequence[Merging]) -> None:
        for merging in merges:
            self._merging.remove(merging)
            merging.close()
