"""One run of a checkpoint as storage has it, for those who restore it and those who query it.

Its document says which rows of a file it has, and which of them are live; what of the file is opened is decided by
who reads it. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from arrowstate.errors import CorruptDataError
from arrowstate.schema.versions import RunSchemas
from arrowstate.snapshot.open_files import OpenFile, open_file, read
from arrowstate.storage.base import Storage
from arrowstate.table.run import Bits, all_live
from arrowstate.table.segment import Segment
from arrowstate_formats.deletion_vectors import clear_dead_rows
from arrowstate_formats.documents import DeletionVectorDocument, RunDocument, decode_inline
from arrowstate_formats.run_files import checksum

__all__ = ["Piece", "StoredRun", "clear_dead"]


@dataclass(frozen=True, slots=True)
class Piece:
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
        """Return the live bits of some rows, and how many of them are set.

        Raises
        ------
        CorruptDataError
            If the deletion vector is missing or altered.
        """
        rows = end_row - first_row
        bits, vector = all_live(rows), self.document.deletion_vector
        return bits, rows if vector is None else rows - clear_dead(self._storage, vector, bits, rows, first_row)

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the run in hash order."""
        end_row = 0
        for number, batch in enumerate(self.document.batches):
            start_row, end_row = end_row, end_row + batch.rows
            first, last = max(start_row, self.document.first_row), min(end_row, self.document.last_row)
            if first < last:
                yield Piece(number, start_row, first, last, (batch.min_hash, batch.max_hash))

    def segments(self, file: OpenFile, pieces: Sequence[Piece]) -> list[Segment]:
        """Return all columns of all rows of some pieces, dead ones included; `file` is that of the run."""
        found = []
        cut = file.segments({piece.number: piece.batch_row for piece in pieces})
        for piece, segment in zip(pieces, cut, strict=True):
            # A segment keeps what it was converted to, so one that is shared has no conversion.
            own = segment if self.conversion is None else replace(segment, convert=self.conversion)
            start, stop = piece.first_row - piece.batch_row, piece.end_row - piece.batch_row
            found.append(own if stop - start == own.hashes.size else own.slice(start, stop))
        return found


def clear_dead(storage: Storage, document: DeletionVectorDocument, live: Bits, rows: int, first_row: int) -> int:
    """Clear the live bits of the rows in a deletion vector; return how many of them were set.

    Bit i of `live`, which has `rows` bits, stands for the row first_row + i of the file; other rows are ignored.

    Raises
    ------
    CorruptDataError
        If the bytes are missing or altered.
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
