"""Segments: consecutive rows of a run that lie in one record batch, sorted by the hash of their key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.table.columns import fixed_words

HASH_COLUMN = "_key_hash"
SECOND_COLUMNS = ("_entry_hash", "_seq")
_ROWS = -1

Ints = npt.NDArray[np.int64]


def hashes_of(batch: pa.RecordBatch) -> Ints:
    """View the `_key_hash` column of a run's batch as numpy, without a copy."""
    return np.asarray(batch.column(0).to_numpy(), dtype=np.int64)


def has_second(schema: pa.Schema) -> bool:
    """Whether the runs of a schema are sorted by a second column within equal hashes."""
    return len(schema) > 1 and schema.field(1).name in SECOND_COLUMNS


@dataclass(slots=True, eq=False)
class _Rows:
    """The rows of a segment, once they were looked at."""

    batch: pa.RecordBatch
    hashes: Ints
    seconds: Ints | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Rows:
        seconds = np.asarray(batch.column(1).to_numpy(), dtype=np.int64) if has_second(batch.schema) else None
        return cls(batch, hashes_of(batch), seconds)


@dataclass(slots=True, eq=False)
class Segment:
    """One record batch of a run.

    A stored one is read, and compared with its checksum, when its rows are first looked at; what is known of it without
    that, the document of its run says. Rows that were stored with an earlier schema are converted then too.
    """

    first_row: int
    "The row of the run's file that the batch starts with."
    rows: int
    lowest_hash: int
    highest_hash: int
    stored_bytes: int
    "About how many bytes the rows take, before they are converted."
    load: Callable[[], pa.RecordBatch] | None
    "Returns the rows; None once they were looked at, so that what they were read from is not held."
    convert: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    "Makes a batch of the current schema of the stored one; the sort columns stay."
    times: tuple[int, int] | None = None
    "The lowest and the highest time of its rows, or beyond them, where they are known."
    max_seq: int | None = None
    "At least the highest `_seq`, where it is known."
    converted: pa.RecordBatch | None = None
    loaded: _Rows | None = None
    first: dict[int, Any] = field(default_factory=dict, init=False)
    "The rows as they were read first, and views of columns as they were made first."

    @classmethod
    def of(
        cls, batch: pa.RecordBatch, first_row: int, convert: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> Segment:
        """View a run's batch; its schema tells whether it has a second sort column."""
        rows = _Rows.of(batch)
        size = batch.num_rows
        bounds = (int(rows.hashes[0]), int(rows.hashes[-1])) if size else (0, -1)
        return cls(first_row, size, *bounds, batch.nbytes, None, convert, loaded=rows)

    def look(self) -> _Rows:
        """Return the rows; they are read, and checked, when they are first looked at."""
        load = self.load
        if load is not None:
            # Addresses of rows are kept elsewhere, so two threads that read them at once go on with the same ones.
            # In this order: another thread that finds no `load` finds the rows.
            self.loaded = self.first.setdefault(_ROWS, _Rows.of(load()))
            self.load = None
        assert self.loaded is not None, "there is either one"
        return self.loaded

    @property
    def stored(self) -> pa.RecordBatch:
        """The rows, in the columns they were stored with."""
        return self.look().batch

    @property
    def hashes(self) -> Ints:
        return self.look().hashes

    @property
    def seconds(self) -> Ints | None:
        """The column by which rows of one hash are sorted, where there is one."""
        return self.look().seconds

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
        if number not in self.first:
            column = self.batch.column(number)
            self.first.setdefault(number, None if column.null_count else fixed_words(column))
        view: npt.NDArray[Any] | None = self.first[number]
        return view

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
        if not self.rows or (start, stop) == (0, self.rows):
            return self
        part = Segment.of(self.stored.slice(start, stop - start), self.first_row + start, self.convert)
        part.times, part.max_seq = self.times, self.max_seq
        return part

    def within(self, low: int, high: int) -> Segment:
        """Return the rows whose hash is in a range, both ends inclusive."""
        if low <= self.lowest_hash and self.highest_hash <= high:
            return self
        start, stop = np.searchsorted(self.hashes, low, side="left"), np.searchsorted(self.hashes, high, side="right")
        return self.slice(int(start), int(stop))

    @property
    def end_row(self) -> int:
        return self.first_row + self.rows


def _address(column: pa.Array) -> int:
    # The last buffer holds the values of the innermost column; a column without rows or values has none.
    last = next((buffer for buffer in reversed(column.buffers()) if buffer is not None), None)
    return 0 if last is None else int(last.address)
