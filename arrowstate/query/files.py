"""Run files as a query sees them: parts that are opened only when their rows are needed.

A part is what one subtask owns of one record batch or row group. Its hash range and its number of rows come
from the manifest, so parts are chosen without opening a file. Opening an Arrow part gives views of the mapped
file; of a Parquet or Lance part only the columns asked for are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.files.open_files import OpenFile
from arrowstate.files.stored_run import Piece, StoredRun
from arrowstate.query.expiry import UPDATED_COLUMN
from arrowstate.query.picking import Picked, count_rows
from arrowstate.table.run import Run
from arrowstate.table.segment import HASH_COLUMN, Segment, hashes_of
from arrowstate.table.segments import Directory, Segments
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.documents import ColumnStatistics

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

_ANY_TIME = ((1 << 63) - 1, -(1 << 63))
_NO_COLUMNS = pa.RecordBatch.from_arrays([], schema=pa.schema([]))


class QueriedRun(StoredRun):
    """A run whose parts are read one by one."""

    @property
    def statistics(self) -> dict[str, ColumnStatistics]:
        """What is known of the columns; of one that is converted nothing."""
        stored = {item.column: item for item in self.document.statistics}
        if self.conversion is None:
            return stored
        same = {column: self.conversion.same_as(column) for column in self.conversion.current.names}
        return {column: stored[source] for column, source in same.items() if source in stored}

    @cached_property
    def times_of_update(self) -> tuple[int, int]:
        """The latest and the earliest time of update that its rows can have."""
        known = self.statistics.get(UPDATED_COLUMN)
        if known is None or known.min is None or known.max is None:
            return _ANY_TIME
        return int(known.max), int(known.min)

    @cached_property
    def _directory(self) -> Directory | None:
        return None if self.document.directory is None else self.file.directory(self._storage)

    def open(self) -> None:
        """Open the file, and what says where a key is in it and which rows are dead."""
        _ = self.file, self._directory
        if self.has_dead_rows:
            _ = self.live

    def parts(self) -> list[Part]:
        """Return the parts of the run in hash order."""
        return [Part(self, piece) for piece in self.pieces()]

    def read(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return columns of one batch of a file that is decoded; the others are not."""
        if self.conversion is None:
            return self.file.read([number], columns)[0]
        return self.conversion.pick(self.file.read([number], self.conversion.sources_of(columns))[0], columns)

    def run(self, parts: Sequence[Part]) -> Run:
        """Return the given parts, in hash order, as a run to look keys up in."""
        document = self.document
        if sum(part.rows for part in parts) == self.rows:
            # Those of the whole run are shared, and what is made of them, by all who look in it.
            segments, _ = self.segments_within(self.file, None)
        else:
            segments = Segments(part.segment() for part in parts)
        return Run(
            segments,
            document.first_row,
            document.last_row,
            self.live,
            document.live_rows,
            mapped=True,
            built=self._directory,
        )


class Part:
    """A piece of a run, of which columns are read."""

    __slots__ = ("_live_rows", "_mapped", "_piece", "max_hash", "min_hash", "number", "rows", "run")

    def __init__(self, run: QueriedRun, piece: Piece) -> None:
        self.run = run
        self.number = piece.number
        self.rows = piece.end_row - piece.first_row
        self.min_hash, self.max_hash = piece.hash_bounds
        self._piece = piece
        self._mapped: tuple[OpenFile, Segment] | None = None
        self._live_rows: int | None = None

    @property
    def live_rows(self) -> int:
        if self._live_rows is None:
            has_dead = self.run.has_dead_rows
            self._live_rows = count_rows(self.run.live, self._first_bit, self.rows) if has_dead else self.rows
        return self._live_rows

    def read(self, columns: Sequence[str]) -> Picked:
        """Return columns of the live rows."""
        return Picked(self._columns(columns), self.run.live, self._first_bit, self.live_rows)

    def count(self) -> Picked:
        """Return the live rows without a column, and without opening the file."""
        return Picked(_NO_COLUMNS, self.run.live, self._first_bit, self.live_rows)

    def read_range(self, columns: Sequence[str], hash_bounds: tuple[int, int]) -> Picked:
        """Return columns of the live rows whose hash is in a range, both ends inclusive."""
        hashes = hashes_of(self._columns([HASH_COLUMN]))
        start = int(np.searchsorted(hashes, hash_bounds[0], side="left"))
        stop = int(np.searchsorted(hashes, hash_bounds[1], side="right"))
        rows = max(0, stop - start)
        # A batch without columns does not tell its rows.
        batch = self._columns(columns).slice(start, rows) if columns else _NO_COLUMNS
        first = self._first_bit + start
        return Picked(batch, self.run.live, first, count_rows(self.run.live, first, rows))

    def segment(self) -> Segment:
        """Return all columns of all rows, dead ones included."""
        # Another file where the one that was mapped has been altered or replaced since.
        file = self.run.file
        if self._mapped is not None and self._mapped[0] is file:
            return self._mapped[1]
        (segment,) = self.run.segments(file, [self._piece])
        if self.run.document.format == "arrow":
            # Views of the mapped file, so keeping them costs next to nothing.
            self._mapped = file, segment
        return segment

    @property
    def _first_bit(self) -> int:
        return self._piece.first_row - self.run.document.first_row

    def _columns(self, columns: Sequence[str]) -> pa.RecordBatch:
        if self.run.document.format != "arrow":
            return self._cut(self.run.read(self.number, columns))
        segment = self.segment()
        if self.run.conversion is None:
            return segment.stored.select(columns)
        return self.run.conversion.pick(segment.stored, columns)

    def _cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.rows == batch.num_rows:
            return batch
        return batch.slice(self._piece.first_row - self._piece.batch_row, self.rows)


def live_bits_in_file(runs: Sequence[QueriedRun], rows: int) -> Bits:
    """Return for each row of a file whether it is live in one of the runs, which are pieces of it.

    The first row of eight is the lowest bit of a byte; the bits after the last row are 0.
    """
    live = np.zeros(-(-rows // 8), dtype=np.uint8)
    for run in runs:
        first, after = run.document.first_row % 8, run.rows % 8
        bits = run.live[: -(-run.rows // 8)]
        if after:
            bits = bits.copy()
            bits[-1] &= (1 << after) - 1
        if first:
            bits = np.packbits(
                np.concatenate((np.zeros(first, np.uint8), np.unpackbits(bits, count=run.rows, bitorder="little"))),
                bitorder="little",
            )
        start = run.document.first_row // 8
        live[start : start + bits.size] |= bits
    return live
