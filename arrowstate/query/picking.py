"""Picking rows out of record batches by a bitmap: the live rows, or those that pass a filter.

Where every row is picked a batch is handed out as it is, a view of the file. Otherwise columns of numbers are
copied by a kernel that takes less than a nanosecond a row, a quarter of Arrow's own filter, and small batches are put
together; that is what keeps a scan of a state with dead rows as fast as one of a plain file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.table import kernels
from arrowstate_formats.compiled import kernel

_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_GATHERED_ROWS = 65_536
_FEW = 16
"""One row in so many is found by its number."""


def _copy_picked(source: Any, bits: Any, first: Any, out: Any, place: Any) -> None:
    # Every row is written, one that is not picked is overwritten by the next: no branch to guess wrong.
    # Hence out has room for one row more than picked. Eight rows to a byte of the bits, which halves the time.
    size = source.size
    i = 0
    while i < size and (first + i) & 7:
        out[place] = source[i]
        place += (bits[(first + i) >> 3] >> ((first + i) & 7)) & 1
        i += 1
    while i + 8 <= size:
        byte = np.int64(bits[(first + i) >> 3])
        out[place] = source[i]
        place += byte & 1
        out[place] = source[i + 1]
        place += (byte >> 1) & 1
        out[place] = source[i + 2]
        place += (byte >> 2) & 1
        out[place] = source[i + 3]
        place += (byte >> 3) & 1
        out[place] = source[i + 4]
        place += (byte >> 4) & 1
        out[place] = source[i + 5]
        place += (byte >> 5) & 1
        out[place] = source[i + 6]
        place += (byte >> 6) & 1
        out[place] = source[i + 7]
        place += byte >> 7
        i += 8
    while i < size:
        out[place] = source[i]
        place += (bits[(first + i) >> 3] >> ((first + i) & 7)) & 1
        i += 1


_COPY = {
    np.dtype(word): kernel(f"{np.dtype(word).name}[], uint8[], int64, out {np.dtype(word).name}[], int64")(_copy_picked)
    for word in _WORDS.values()
}


def count_rows(bits: npt.NDArray[np.uint8], first: int, rows: int) -> int:
    """Return how many of `rows` bits from bit `first` on are set."""
    return int(kernels.count_bits(bits, first, first + rows))


class Picked(Struct, frozen=True):
    """A batch and which of its rows are picked."""

    batch: pa.RecordBatch
    bits: npt.NDArray[np.uint8]
    first: int
    "The bit that stands for the first row of the batch."
    count: int
    "How many bits are set."

    @property
    def is_whole(self) -> bool:
        return self.count == self.batch.num_rows

    @property
    def rows(self) -> npt.NDArray[np.int64] | None:
        """The numbers of the rows, where they are so few that this is faster than to look at each bit."""
        if self.count * _FEW > self.batch.num_rows:
            return None
        return pc.indices_nonzero(self.mask).to_numpy().view(np.int64)

    @property
    def mask(self) -> pa.BooleanArray:
        """The bits of the batch as an Arrow array, without a copy."""
        return pa.Array.from_buffers(pa.bool_(), self.batch.num_rows, [None, pa.py_buffer(self.bits)], 0, self.first)

    def narrowed(self, passes: pa.BooleanArray) -> Picked:
        """Return the rows that are picked and for which `passes` is true."""
        if passes.null_count:
            passes = pc.fill_null(passes, False)
        both = passes if self.is_whole else pc.and_(passes, self.mask)
        bits = np.frombuffer(both.buffers()[1], dtype=np.uint8)
        return Picked(self.batch, bits, both.offset, count_rows(bits, both.offset, len(both)))

    def select(self, columns: Sequence[str]) -> Picked:
        """Return the same rows of some columns."""
        return Picked(self.batch.select(list(columns)), self.bits, self.first, self.count)


def gather(pieces: Iterable[Picked]) -> Iterator[pa.RecordBatch]:
    """Yield the picked rows in order, without empty batches.

    A batch that is picked whole comes as it is; others are put together to batches of about 65,536 rows.
    """
    waiting: list[Picked] = []
    rows = 0
    for piece in pieces:
        if not piece.count:
            continue
        if piece.is_whole or rows + piece.count > _GATHERED_ROWS:
            if waiting:
                yield _put_together(waiting, rows)
            waiting, rows = [], 0
        if piece.is_whole:
            yield piece.batch
        else:
            waiting.append(piece)
            rows += piece.count
    if waiting:
        yield _put_together(waiting, rows)


def _put_together(pieces: list[Picked], rows: int) -> pa.RecordBatch:
    schema = pieces[0].batch.schema
    columns = []
    numbers = [piece.rows for piece in pieces]
    for number, field in enumerate(schema):
        word = _WORDS.get(_width(field.type))
        arrays = [piece.batch.column(number) for piece in pieces]
        if word is None or any(array.null_count for array in arrays):
            picked = [
                array.filter(piece.mask) if few is None else array.take(pa.array(few))
                for array, piece, few in zip(arrays, pieces, numbers, strict=True)
            ]
            columns.append(picked[0] if len(picked) == 1 else pa.concat_arrays(picked))
            continue
        # Arrow's allocator keeps its pages; a fresh numpy array of this size would fault in each of them.
        buffer = pa.allocate_buffer((rows + 1) * np.dtype(word).itemsize)
        out = np.frombuffer(buffer, dtype=word)
        place = 0
        for array, piece, few in zip(arrays, pieces, numbers, strict=True):
            source = np.frombuffer(array.buffers()[1], dtype=word, count=array.offset + len(array))[array.offset :]
            if few is None:
                _COPY[out.dtype](source, piece.bits, piece.first, out, place)
            else:
                out[place : place + piece.count] = source[few]
            place += piece.count
        columns.append(pa.Array.from_buffers(field.type, rows, [None, buffer], 0))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _width(kind: pa.DataType) -> int:
    """Return the bits of a value of a number, date or time; 0 for other types."""
    simple = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return int(kind.bit_width) if simple else 0
