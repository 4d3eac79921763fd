"""One run of a checkpoint as storage has it, for those who restore it and those who query it.

Its document says which rows of a file it has, and which of them are live; what of the file is opened is decided by
who reads it. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from msgspec import Struct

from arrowstate.errors import CorruptDataError
from arrowstate.files.open_files import OpenFile, open_file, read
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.table.run import Bits, all_live
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Segments
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.deletion_vectors import clear_dead_rows
from arrowstate_formats.documents import DeletionVectorDocument, RunDocument, decode_inline
from arrowstate_formats.run_files import checksum


class Piece(Struct, frozen=True):
    """Consecutive rows of a run that lie in one batch of its file."""

    number: int
    "Of the batch."
    batch_row: int
    "The row of the file that the batch begins with."
    first_row: int
    end_row: int
    hash_bounds: tuple[int, int]
    "The lowest and the highest hash of the batch."


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
        live: Bits | None = None,
    ) -> None:
        self.document = document
        self.has_dead_rows = document.deletion_vector is not None or live is not None
        self._storage = storage
        self._given_live = live
        self._time = schemas.time
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

    @cached_property
    def live(self) -> Bits:
        """The live bits; bit i stands for row document.first_row + i of the file."""
        if self._given_live is not None:
            return self._given_live
        return self.live_rows(self.document.first_row, self.document.last_row)[0]

    def live_rows(self, first_row: int, end_row: int) -> tuple[Bits, int]:
        """Return the live bits of some rows, and how many of them are set."""
        rows = end_row - first_row
        bits, vector = all_live(rows), self.document.deletion_vector
        return bits, rows if vector is None else rows - clear_dead(self._storage, vector, bits, rows, first_row)

    def pieces(self) -> list[Piece]:
        """Return the pieces of the run in hash order."""
        found, end_row = [], 0
        for number, batch in enumerate(self.document.batches):
            start_row, end_row = end_row, end_row + batch.rows
            first, last = max(start_row, self.document.first_row), min(end_row, self.document.last_row)
            if first < last:
                found.append(Piece(number, start_row, first, last, (batch.min_hash, batch.max_hash)))
        return found

    def segments(self, file: OpenFile, pieces: Sequence[Piece]) -> list[Segment]:
        """Return all columns of all rows of some pieces, dead ones included; `file` is that of the run."""
        found = []
        cut = file.segments({piece.number: piece.batch_row for piece in pieces}, self._time)
        if not file.is_lazy:
            file.load([piece.number for piece in pieces])
            for segment in cut:
                segment.look()
        for piece, segment in zip(pieces, cut, strict=True):
            # A segment keeps what it was converted to, so one that is shared has no conversion.
            own = segment if self.conversion is None else segment.with_conversion(self.conversion)
            found.append(own.slice(piece.first_row - piece.batch_row, piece.end_row - piece.batch_row))
        return found

    def segments_within(self, file: OpenFile, hash_bounds: tuple[int, int] | None) -> tuple[Segments, int]:
        """Return all rows whose hash is in a range, both ends inclusive, and the bytes of the batches they are in.

        `file` is that of the run. Who asks for the same rows again gets the same object, unless they are converted.
        """
        batches = self.document.batches
        if hash_bounds is not None and batches:
            low, high = hash_bounds
            if low <= batches[0].min_hash and batches[-1].max_hash <= high:
                hash_bounds = None
        if self.conversion is not None:
            return self._segments_within(file, hash_bounds)
        key = (self.document.first_row, self.document.last_row, hash_bounds)
        if key not in file.runs:
            file.runs[key] = self._segments_within(file, hash_bounds)
        return file.runs[key]

    def _segments_within(self, file: OpenFile, hash_bounds: tuple[int, int] | None) -> tuple[Segments, int]:
        pieces = self.pieces()
        if hash_bounds is not None:
            low, high = hash_bounds
            pieces = [piece for piece in pieces if piece.hash_bounds[0] <= high and low <= piece.hash_bounds[1]]
        segments = self.segments(file, pieces)
        numbers = [piece.number for piece in pieces]
        if hash_bounds is not None:
            cut = [segment.within(*hash_bounds) for segment in segments]
            segments = [part for part in cut if part.rows]
            numbers = [number for number, part in zip(numbers, cut, strict=True) if part.rows]
        # Segments that are not read yet hold the file; once all are, it must go.
        own = weakref.ref(file)

        def read(places: Sequence[int]) -> None:
            held = own()
            if held is not None:
                held.load([numbers[place] for place in places])

        found = Segments(segments, read)
        return found, sum(self.document.batches[piece.number].bytes for piece in pieces)


def clear_dead(storage: Storage, document: DeletionVectorDocument, live: Bits, rows: int, first_row: int) -> int:
    """Clear the live bits of the rows in a deletion vector; return how many of them were set.

    Bit i of `live`, which has `rows` bits, stands for the row first_row + i of the file; other rows are ignored.
    """
    if document.inline is not None:
        path, data = "an inline deletion vector", decode_inline(document.inline)
    else:
        assert document.path is not None
        path = document.path
        data = read(storage, path)
    if checksum(data) != document.xxh3_128:
        raise CorruptDataError(path, "the deletion vector does not match its checksum")
    return clear_dead_rows(data, live, rows, first_row, path=path)
