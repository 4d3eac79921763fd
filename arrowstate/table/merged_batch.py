"""A record batch of a merged run, filled piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.table import kernels
from arrowstate.table.columns import fresh_words
from arrowstate.table.merge_sources import Chosen, Piece

Ints = npt.NDArray[np.int64]


class BatchInTheMaking:
    """A record batch of a merged run, filled piece by piece."""

    def __init__(self, schema: pa.Schema, capacity: int, *, small_pages: bool) -> None:
        self.capacity = capacity
        self.rows = 0
        self._schema = schema
        self._columns = [_ColumnInTheMaking(field.type, capacity, small_pages=small_pages) for field in schema]

    def add(self, piece: Piece, chosen: Chosen) -> None:
        sorted_columns = [chosen.hashes] if chosen.seconds is None else [chosen.hashes, chosen.seconds]
        for number, column in enumerate(self._columns):
            if number < len(sorted_columns):
                column.add(sorted_columns[number])
            else:
                column.gather(piece, number, chosen.places)
        self.rows += chosen.places.size

    def latest(self, number: int, rows: int) -> Ints:
        """Return the last rows that were added of an int64 column without nulls."""
        return self._columns[number].latest(rows)

    def finish(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([column.finish() for column in self._columns], schema=self._schema)


class _ColumnInTheMaking:
    """A column of it: where there are no nulls and the width is fixed, values go straight to where they stay."""

    def __init__(self, kind: pa.DataType, capacity: int, *, small_pages: bool) -> None:
        self._small_pages = small_pages
        self._kind = kind
        self._room = capacity
        self._parts: list[pa.Array] = []
        self._words: npt.NDArray[Any] | None = None
        self._filled = 0

    def add(self, values: Ints) -> None:
        """Add numbers of 64 bits."""
        self._next(values.size, np.dtype(np.uint64), 1)[:, 0] = values.view(np.uint64)

    def gather(self, piece: Piece, number: int, places: Ints) -> None:
        """Add the rows of a piece's column at some places."""
        words = piece.words(number)
        if words is None:
            self._cut()
            self._parts.append(piece.column(number, places))
            self._room -= places.size
        else:
            addresses, dtype, count = words
            kernels.gather_places(addresses, places, self._next(places.size, dtype, count))

    def _next(self, rows: int, dtype: Any, words: int) -> npt.NDArray[Any]:
        """Return room for so many rows."""
        if self._words is None:
            shape = self._room, words
            self._words = fresh_words(*shape, dtype) if self._small_pages else np.empty(shape, dtype=dtype)
        self._room -= rows
        self._filled += rows
        return self._words[self._filled - rows : self._filled]

    def latest(self, rows: int) -> Ints:
        assert self._words is not None, "it has a fixed width and no nulls"
        return self._words[self._filled - rows : self._filled, 0].view(np.int64)

    def finish(self) -> pa.Array:
        self._cut()
        return self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)

    def _cut(self) -> None:
        if self._words is not None:
            values = pa.py_buffer(self._words[: self._filled])
            self._parts.append(pa.Array.from_buffers(self._kind, self._filled, [None, values], 0))
            self._words, self._filled = None, 0
