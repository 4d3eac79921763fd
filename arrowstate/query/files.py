"""Run files as a query sees them: parts that are opened only when their rows are needed.

A part is what one subtask owns of one record batch or row group. Its hash range and its number of rows come
from the manifest, so parts are chosen without opening a file. Opening an Arrow part gives views of the mapped
file; of a Parquet or Lance part only the columns asked for are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.query.picking import Picked, count_rows
from arrowstate.schema.versions import RunSchemas
from arrowstate.snapshot.open_files import OpenFile, open_file
from arrowstate.snapshot.reading import clear_dead
from arrowstate.storage.base import Storage
from arrowstate.table.run import Directory, Run, all_live
from arrowstate.table.segment import HASH_COLUMN, Segment, hashes_of
from arrowstate_formats.documents import ColumnStatistics, RunDocument

__all__ = ["Part", "StoredRun", "live_in_file"]

Ints = npt.NDArray[np.int64]

_NO_COLUMNS = pa.RecordBatch.from_arrays([], schema=pa.schema([]))


class StoredRun:
    """One run of a checkpoint, as far as one subtask owns it; nothing is read before it is needed.

    `live` are live bits to go by in the place of those of the checkpoint.
    """

    def __init__(
        self,
        storage: Storage,
        document: RunDocument,
        schemas: RunSchemas,
        *,
        live: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self.document = document
        self.has_dead_rows = document.deletion_vector is not None or live is not None
        self._storage = storage
        self._given_live = live
        self._schema, self.conversion = schemas.of_version(document.schema_version)

    @property
    def rows(self) -> int:
        return self.document.last_row - self.document.first_row

    @property
    def file(self) -> OpenFile:
        # Asked for each time, so that a file the process closed for want of room is not kept open from here.
        if self.document.path is None:
            return self._inline_file
        return open_file(self._storage, self.document, self._schema)

    @cached_property
    def _inline_file(self) -> OpenFile:
        return open_file(self._storage, self.document, self._schema)

    @property
    def statistics(self) -> dict[str, ColumnStatistics]:
        """What is known of the columns; of one that is converted nothing."""
        stored = {item.column: item for item in self.document.statistics}
        if self.conversion is None:
            return stored
        same = {column: self.conversion.same_as(column) for column in self.conversion.current.names}
        return {column: stored[source] for column, source in same.items() if source in stored}

    @cached_property
    def live(self) -> npt.NDArray[np.uint8]:
        """The live bits; bit i stands for row document.first_row + i of the file."""
        if self._given_live is not None:
            return self._given_live
        bits = all_live(self.rows)
        if self.document.deletion_vector is not None:
            clear_dead(self._storage, self.document.deletion_vector, bits, self.rows, self.document.first_row)
        return bits

    @cached_property
    def _directory(self) -> Directory | None:
        return None if self.document.directory is None else self.file.directory(self._storage)

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the run in hash order."""
        end_row = 0
        for number, batch in enumerate(self.document.batches):
            start_row, end_row = end_row, end_row + batch.rows
            first, last = max(start_row, self.document.first_row), min(end_row, self.document.last_row)
            if first < last:
                yield Part(self, number, start_row, first, last, batch.min_hash, batch.max_hash)

    def read(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return columns of one batch of a file that is decoded; the others are not."""
        if self.conversion is None:
            return self.file.read([number], columns)[0]
        return self.conversion.pick(self.file.read([number], self.conversion.sources_of(columns))[0], columns)

    def run(self, parts: Sequence[Part]) -> Run:
        """Return the given parts, in hash order, as a run to look keys up in."""
        document = self.document
        segments = tuple(part.segment() for part in parts)
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
    """Consecutive rows of a run that lie in one batch of its file."""

    __slots__ = ("_batch_row", "_first", "_live_rows", "_mapped", "max_hash", "min_hash", "number", "rows", "run")

    def __init__(
        self, run: StoredRun, number: int, batch_row: int, first: int, last: int, min_hash: int, max_hash: int
    ) -> None:
        self.run = run
        self.number = number
        self.rows = last - first
        self.min_hash = min_hash
        self.max_hash = max_hash
        self._batch_row = batch_row
        self._first = first
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
        segment = Segment.of(self._cut(file.batch(self.number)), self._first, self.run.conversion)
        if self.run.document.format == "arrow":
            # Views of the mapped file, so keeping them costs next to nothing.
            self._mapped = file, segment
        return segment

    @property
    def _first_bit(self) -> int:
        return self._first - self.run.document.first_row

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
        return batch.slice(self._first - self._batch_row, self.rows)


def live_in_file(runs: Sequence[StoredRun], rows: int) -> npt.NDArray[np.bool_]:
    """Return for each row of a file whether it is live in one of the runs, which are pieces of it."""
    live = np.zeros(rows, dtype=np.bool_)
    for run in runs:
        bits = np.unpackbits(run.live, count=run.rows, bitorder="little").astype(np.bool_)
        live[run.document.first_row : run.document.last_row] |= bits
    return live
