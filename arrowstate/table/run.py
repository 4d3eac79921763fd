"""Runs: immutable, hash-sorted Arrow record batches with a directory and live bits.

A run is one or more segments (record batches) in hash order. Row numbers are those of the file the run was
written to or read from; a subtask that owns a slice of a file holds a run whose first row is not 0. Only the
live bits of a run ever change; a frozen run has its own copy of them.
Formats: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.table import kernels, pair_kernels
from arrowstate.table.columns import fixed_words

if TYPE_CHECKING:
    from arrowstate.table.key_batch import KeyBatch

__all__ = ["Directory", "FrozenRun", "Run", "Segment", "all_live", "hashes_of"]

HASH_COLUMN = "_key_hash"
SECOND_COLUMNS = ("_entry_hash", "_seq")

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


def hashes_of(batch: pa.RecordBatch) -> Ints:
    """View the `_key_hash` column of a run's batch as numpy, without a copy."""
    return np.asarray(batch.column(0).to_numpy(), dtype=np.int64)


def has_second(schema: pa.Schema) -> bool:
    """Whether the runs of a schema are sorted by a second column within equal hashes."""
    return len(schema) > 1 and schema.field(1).name in SECOND_COLUMNS


def all_live(rows: int) -> Bits:
    """Return live bits for `rows` rows, all of them set; bits past the end are 0."""
    bits = np.full((rows + 7) // 8, 0xFF, dtype=np.uint8)
    if rows % 8:
        bits[-1] = (1 << rows % 8) - 1
    return bits


@dataclass(slots=True, eq=False)
class Segment:
    """One record batch of a run.

    Rows that were stored with an earlier schema are converted when they are first looked at.
    """

    stored: pa.RecordBatch
    hashes: Ints
    first_row: int
    "The row of the run's file that the batch starts with."
    seconds: Ints | None = None
    "The column by which rows of one hash are sorted, where there is one."
    convert: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    "Makes a batch of the current schema of the stored one; the sort columns stay."
    converted: pa.RecordBatch | None = None
    times: tuple[int, int] | None = None
    "The lowest and the highest time of its rows, or beyond them, where they are known."
    max_seq: int | None = None
    "At least the highest `_seq`, where it is known."
    views: dict[int, npt.NDArray[Any] | None] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls, batch: pa.RecordBatch, first_row: int, convert: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> Segment:
        """View a run's batch; its schema tells whether it has a second sort column."""
        seconds = np.asarray(batch.column(1).to_numpy(), dtype=np.int64) if has_second(batch.schema) else None
        return cls(batch, hashes_of(batch), first_row, seconds, convert)

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows, in the columns of the current schema."""
        if self.convert is None:
            return self.stored
        if self.converted is None:
            self.converted = self.convert(self.stored)
        return self.converted

    def words(self, number: int) -> npt.NDArray[Any] | None:
        """View a column as `fixed_words` does, and keep the view; None where it has nulls too."""
        if number not in self.views:
            column = self.batch.column(number)
            self.views[number] = None if column.null_count else fixed_words(column)
        return self.views[number]

    @property
    def highest_seq(self) -> int:
        """At least the highest `_seq` of a segment of a list; rows are looked at only where it is not known."""
        if self.max_seq is None:
            assert self.seconds is not None
            self.max_seq = int(self.seconds.max())
        return self.max_seq

    @property
    def converted_bytes(self) -> int:
        """Bytes of the columns that were made by converting."""
        if self.converted is None:
            return 0
        shared = {_address(column) for column in self.stored.columns}
        return sum(column.nbytes for column in self.converted.columns if _address(column) not in shared)

    def with_conversion(self, convert: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Segment:
        """Return the same rows in the columns that `convert` makes of `batch`."""
        earlier = self.convert
        both = convert if earlier is None else lambda batch: convert(earlier(batch))
        return replace(self, convert=both, converted=None)

    def slice(self, start: int, stop: int) -> Segment:
        """Return the rows from start (inclusive) to stop (exclusive) of the batch, without a copy."""
        seconds = None if self.seconds is None else self.seconds[start:stop]
        batch = self.stored.slice(start, stop - start)
        hashes, first_row = self.hashes[start:stop], self.first_row + start
        return replace(self, stored=batch, hashes=hashes, first_row=first_row, seconds=seconds, converted=None)

    @property
    def end_row(self) -> int:
        return self.first_row + int(self.hashes.size)


def _address(column: pa.Array) -> int:
    # The last buffer holds the values of the innermost column; a column without rows or values has none.
    last = next((buffer for buffer in reversed(column.buffers()) if buffer is not None), None)
    return 0 if last is None else int(last.address)


@dataclass(frozen=True, slots=True)
class Directory:
    """Offsets by the top bits of the hash, one for every two to eight rows.

    Fewer rows a bucket are found no faster: the offsets then miss the cache as often as the hashes do.

    Bucket b holds the rows whose (unsigned hash - base) >> shift is b; they start at offsets[b] + first_row
    and end before offsets[b + 1] + first_row.
    """

    base: int
    shift: int
    offsets: npt.NDArray[np.uint32]
    first_row: int

    @classmethod
    def build(cls, segments: Sequence[Segment]) -> Directory:
        """Build the directory of a run's segments in one pass over their hashes."""
        first_row = segments[0].first_row
        rows = segments[-1].end_row - first_row
        base = int(segments[0].hashes[0]) + (1 << 63)
        span = int(segments[-1].hashes[-1]) + (1 << 63) - base
        shift = min(max(0, span.bit_length() - max(1, (rows - 1).bit_length()) + 2), 63)
        offsets = np.zeros((span >> shift) + 2, dtype=np.uint32)
        end_row = first_row
        last_bucket = 0
        for segment in segments:
            # A reader may open some batches of a file only: the rows between them are counted to the bucket before.
            offsets[last_bucket + 1] += np.uint32(segment.first_row - end_row)
            kernels.count_buckets(segment.hashes, np.uint64(base), np.uint64(shift), offsets)
            end_row = segment.end_row
            last_bucket = (int(segment.hashes[-1]) + (1 << 63) - base) >> shift
        np.cumsum(offsets, out=offsets)
        return cls(base, shift, offsets, first_row)


@dataclass(slots=True, eq=False)
class Run:
    """Sorted rows of one state; every key occurs at most once."""

    segments: tuple[Segment, ...]
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
        return cls(tuple(segments), 0, row, all_live(row), row, mapped)

    @property
    def rows(self) -> int:
        return self.last_row - self.first_row

    @property
    def dead_rows(self) -> int:
        return self.rows - self.live_rows

    @property
    def directory(self) -> Directory:
        if self.built is None:
            self.built = Directory.build(self.segments)
        return self.built

    @property
    def memory_bytes(self) -> int:
        """Bytes this run keeps in memory: its rows unless they are mapped, its directory, its live bits."""
        size = int(self.live.nbytes) + self.row_bytes
        if self.built is not None:
            size += int(self.built.offsets.nbytes)
        return size

    @property
    def row_bytes(self) -> int:
        """Bytes of rows in memory: those that are in no mapped file, and what was made of those that are."""
        size = sum(segment.converted_bytes for segment in self.segments)
        return size if self.mapped else size + sum(segment.stored.nbytes for segment in self.segments)

    def find(self, keys: KeyBatch, pending: Ints) -> Ints:
        """Return the live row of each pending key, or -1.

        `pending` are the numbers of the keys to look for, ascending. The real keys are compared: a hash is trusted
        alone only where it is one-to-one.
        """
        out = np.full(pending.size, -1, dtype=np.int64)
        for segment, low, high in self._parts(keys.hashes, pending):
            found = out[low:high]
            asked = pending[low:high]
            if keys.seconds is None or segment.seconds is None:
                kernels.probe(keys.hashes, asked, segment.hashes, *(*self._where(segment), found))
            else:
                pair_kernels.probe_pair(
                    keys.hashes, keys.seconds, asked, segment.hashes, segment.seconds, *(*self._where(segment), found)
                )
            hits = np.empty(0, dtype=np.int64) if keys.one_to_one else np.flatnonzero(found >= 0)
            while hits.size:
                places = found[hits] - segment.first_row
                hits = hits[~keys.equal(asked[hits], segment, places)]
                if not hits.size:
                    break
                # Another key with the same hash: go on to the next live row with that hash.
                where = (segment.first_row, self.live, self.first_row)
                if segment.seconds is None:
                    kernels.next_candidates(found, hits, segment.hashes, *where)
                else:
                    pair_kernels.next_pair_candidates(found, hits, segment.hashes, segment.seconds, *where)
                hits = hits[found[hits] >= 0]
        return out

    def find_all(self, keys: KeyBatch) -> tuple[Ints, Ints]:
        """Return (numbers of the keys, rows) of all live rows of the keys, in the order of the run."""
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

    def _parts(self, hashes: Ints, pending: Ints) -> Iterator[tuple[Segment, int, int]]:
        if len(self.segments) == 1:
            if pending.size:
                yield self.segments[0], 0, pending.size
            return
        starts = np.searchsorted(hashes, [segment.hashes[0] for segment in self.segments], side="left")
        ends = np.searchsorted(hashes, [segment.hashes[-1] for segment in self.segments], side="right")
        lows, highs = np.searchsorted(pending, starts), np.searchsorted(pending, ends)
        for segment, low, high in zip(self.segments, lows, highs, strict=True):
            if low < high:
                yield segment, int(low), int(high)

    def kill(self, rows: Ints) -> Ints:
        """Mark rows dead; return those that were live before."""
        killed: Ints = kernels.clear_bits(self.live, rows, self.first_row)
        self.live_rows -= killed.size
        return killed

    def revive(self, rows: Ints) -> None:
        """Mark rows live that `kill` has returned."""
        bits = rows - self.first_row
        np.bitwise_or.at(self.live, bits >> 3, np.left_shift(1, bits & 7).astype(np.uint8))
        self.live_rows += rows.size

    def with_conversion(self, convert: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Run:
        """Return the run in the columns that `convert` makes of its batches; it takes the place of this one."""
        return replace(self, segments=tuple(segment.with_conversion(convert) for segment in self.segments))

    def freeze(self) -> FrozenRun:
        """Return the run as it is now: the same rows, a copy of the live bits."""
        return FrozenRun(self, self.live.copy(), self.live_rows)


@dataclass(frozen=True, slots=True)
class FrozenRun:
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
            rows = kernels.live_rows(self.live, start, start + segment.hashes.size)
            if rows.size == segment.hashes.size:
                yield segment.batch
            elif rows.size:
                yield segment.batch.take(pa.array(rows - start))
