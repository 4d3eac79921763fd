"""Runs: immutable, hash-sorted Arrow record batches with a directory and live bits.

A run is one or more segments (record batches) in hash order. Row numbers are those of the file the run was
written to or read from; a subtask that owns a slice of a file holds a run whose first row is not 0. Only the
live bits of a run ever change; a frozen run has its own copy of them.
Formats: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.table import kernels, pair_kernels
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Directory, Segments
from arrowstate.table.sparse import first_places, is_sparse

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


def all_live(rows: int) -> Bits:
    """Return live bits for `rows` rows, all of them set; bits past the end are 0."""
    bits = np.full((rows + 7) // 8, 0xFF, dtype=np.uint8)
    if rows % 8:
        bits[-1] = (1 << rows % 8) - 1
    return bits


@dataclass(slots=True, eq=False)
class Run:
    """Sorted rows of one state; every key occurs at most once."""

    segments: Segments
    first_row: int
    last_row: int
    "One past the last row of the file that belongs to this run."
    live: Bits
    "Bit i stands for row first_row + i."
    live_rows: int
    mapped: bool = False
    "Whether the rows live in a mapped file, not in memory."
    stored: dict[str, Any] = field(default_factory=dict)
    "By store: (the run's entry in that store's committed manifests, run row minus file row)."
    built: Directory | None = None
    "The directory, once it was needed."

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], *, mapped: bool = False) -> Run:
        """Make a run of sorted batches in memory, all rows live."""
        segments = []
        row = 0
        for batch in batches:
            segments.append(Segment.of(batch, row))
            row += batch.num_rows
        return cls(Segments(segments), 0, row, all_live(row), row, mapped)

    @property
    def rows(self) -> int:
        return self.last_row - self.first_row

    @property
    def dead_rows(self) -> int:
        return self.rows - self.live_rows

    @property
    def directory(self) -> Directory:
        if self.built is None:
            self.built = self.segments.directory
        return self.built

    @property
    def memory_bytes(self) -> int:
        """Bytes this run keeps in memory: its rows unless they are mapped, its directory, its live bits."""
        size = int(self.live.nbytes) + self.row_bytes
        if self.built is not None:
            size += int(self.built.offsets.nbytes)
        return size

    @property
    def live_bytes(self) -> int:
        """About how many bytes the live rows take."""
        return self.segments.stored_bytes * self.live_rows // max(1, self.rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of rows in memory: those that are in no mapped file, and what was made of those that are."""
        size = sum(segment.converted_bytes for segment in self.segments) if self.segments.converts else 0
        return size if self.mapped else size + self.segments.stored_bytes

    def find(self, keys: KeyBatch, pending: Ints) -> Ints:
        """Return the live row of each pending key, or -1.

        `pending` are the numbers of the keys to look for, ascending. The real keys are compared: a hash is trusted
        alone only where it is one-to-one.
        """
        out = np.full(pending.size, -1, dtype=np.int64)
        if is_sparse(pending.size, self.segments):
            self._find_sparse(keys, pending, out)
            return out
        for segment, low, high in self._parts(keys.hashes, pending):
            found = out[low:high]
            asked = pending[low:high]
            rows = segment.look()
            if keys.seconds is None or rows.seconds is None:
                kernels.probe(keys.hashes, asked, rows.hashes, *(*self._where(segment), found))
            else:
                pair_kernels.probe_pair(
                    keys.hashes, keys.seconds, asked, rows.hashes, rows.seconds, *(*self._where(segment), found)
                )
            hits = np.empty(0, dtype=np.int64) if keys.one_to_one else np.flatnonzero(found >= 0)
            while hits.size:
                places = found[hits] - segment.first_row
                hits = hits[~keys.equal(asked[hits], segment, places)]
                if not hits.size:
                    break
                # Another key with the same hash: go on to the next live row with that hash.
                where = (segment.first_row, self.live, self.first_row)
                if rows.seconds is None:
                    kernels.next_candidates(found, hits, rows.hashes, *where)
                else:
                    pair_kernels.next_pair_candidates(found, hits, rows.hashes, rows.seconds, *where)
                hits = hits[found[hits] >= 0]
        return out

    def _find_sparse(self, keys: KeyBatch, pending: Ints, out: Ints) -> None:
        hashes = keys.hashes[pending]
        # Of lists only all rows of a key are asked for, which have no second hash.
        seconds = None if keys.seconds is None or not self.segments.has_seconds else keys.seconds[pending]
        numbers = self.segments.of_hashes(hashes)
        found = first_places(self.segments, self.directory.starts(hashes), hashes, seconds, numbers)
        left, step = np.arange(found.rows.size), 0
        # One step but for keys that share a hash, or of which a run holds dead rows beside a live one.
        while left.size:
            rows = found.rows[left] + step
            right = self.is_live(rows)
            if not keys.one_to_one:
                asked = np.flatnonzero(right)
                right[asked] = keys.equal_rows(pending[found.queries[left[asked]]], self.segments, rows[asked])
            out[found.queries[left[right]]] = rows[right]
            step += 1
            left = left[~right & (found.counts[left] > step)]

    def _find_all_sparse(self, keys: KeyBatch) -> tuple[Ints, Ints]:
        hashes = keys.hashes
        numbers = self.segments.of_hashes(hashes)
        found = first_places(self.segments, self.directory.starts(hashes), hashes, None, numbers)
        before = np.cumsum(found.counts) - found.counts
        rows = np.repeat(found.rows - before, found.counts) + np.arange(int(found.counts.sum()))
        numbers = np.repeat(found.queries, found.counts)
        live = self.is_live(rows)
        numbers, rows = numbers[live], rows[live]
        if rows.size and not (keys.one_to_one and keys.seconds is None):
            same = keys.equal_rows(numbers, self.segments, rows)
            numbers, rows = numbers[same], rows[same]
        return numbers, rows

    def is_live(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is live."""
        bits = rows - self.first_row
        return (self.live[bits >> 3] >> (bits & 7).astype(np.uint8)) & 1 != 0

    def find_all(self, keys: KeyBatch) -> tuple[Ints, Ints]:
        """Return (numbers of the keys, rows) of all live rows of the keys, in the order of the run."""
        if is_sparse(len(keys), self.segments):
            return self._find_all_sparse(keys)
        numbers, rows = [], []
        for segment, low, high in self._parts(keys.hashes, np.arange(len(keys), dtype=np.int64)):
            asked = np.arange(low, high, dtype=np.int64)
            number, row = pair_kernels.hash_ranges(keys.hashes, asked, segment.hashes, *self._where(segment))
            # One-to-one hashes speak for the key; a namespace is told apart by the second hash, not looked at here.
            if row.size and not (keys.one_to_one and keys.seconds is None):
                same = keys.equal(number, segment, row - segment.first_row)
                number, row = number[same], row[same]
            numbers.append(number)
            rows.append(row)
        if not numbers:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        return np.concatenate(numbers), np.concatenate(rows)

    def _where(self, segment: Segment) -> tuple[Any, ...]:
        """What a kernel needs to find rows of a segment through the directory and to see which are live."""
        directory = self.directory
        return (
            np.uint64(directory.base),
            np.uint64(directory.shift),
            directory.offsets,
            directory.first_row,
            segment.first_row,
            self.live,
            self.first_row,
        )

    def _parts(self, hashes: Ints, pending: Ints) -> list[tuple[Segment, int, int]]:
        """Return the segments that may have pending keys, with where those keys begin and end."""
        if len(self.segments) == 1:
            return [(self.segments[0], 0, pending.size)] if pending.size else []
        starts = np.searchsorted(hashes, self.segments.lowest, side="left")
        ends = np.searchsorted(hashes, self.segments.highest, side="right")
        lows, highs = np.searchsorted(pending, starts), np.searchsorted(pending, ends)
        parts = zip(self.segments, lows, highs, strict=True)
        return [(segment, int(low), int(high)) for segment, low, high in parts if low < high]

    def kill(self, rows: Ints, killed: Ints | None = None) -> Ints:
        """Mark rows dead; return those that were live before.

        They are in `killed` too, before its first -1, when an interrupt comes before this returns.
        """
        room = np.empty(rows.size, np.int64) if killed is None else killed
        found: Ints = kernels.clear_bits(self.live, rows, self.first_row, room)
        self.live_rows -= found.size
        return found

    def updated_up_to(self, time: int) -> Ints:
        """Return the rows, live or dead, whose last column, the time of their last update, is up to a time."""
        parts = [
            np.flatnonzero(segment.batch.column(segment.batch.num_columns - 1).to_numpy() <= time) + segment.first_row
            for segment in self.segments
        ]
        return np.concatenate(parts)

    def revive(self, rows: Ints) -> None:
        """Mark rows live that `kill` has returned; how many rows are live is set by the caller."""
        bits = rows - self.first_row
        np.bitwise_or.at(self.live, bits >> 3, np.left_shift(1, bits & 7).astype(np.uint8))

    def with_conversion(self, convert: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Run:
        """Return the run in the columns that `convert` makes of its batches; it takes the place of this one."""
        return replace(self, segments=Segments(segment.with_conversion(convert) for segment in self.segments))

    def freeze(self) -> FrozenRun:
        """Return the run as it is now: the same rows, a copy of the live bits."""
        return FrozenRun(self, self.live.copy(), self.live_rows)


class FrozenRun(Struct, frozen=True):
    """A run at one moment."""

    run: Run
    live: Bits
    live_rows: int

    def as_run(self) -> Run:
        """Return the same rows as a run of its own, with the live bits of this moment."""
        return replace(self.run, live=self.live.copy(), live_rows=self.live_rows, stored={}, built=None)

    def live_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the live rows, segment by segment, in hash order."""
        for segment in self.run.segments:
            start = segment.first_row - self.run.first_row
            rows = kernels.live_rows(self.live, start, start + segment.rows)
            if rows.size == segment.rows:
                yield segment.batch
            elif rows.size:
                yield segment.batch.take(pa.array(rows - start))
