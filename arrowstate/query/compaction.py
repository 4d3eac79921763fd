"""The live rows of a record batch.

Where all rows live the batch is handed out as it is, a view of the file. Where some are dead, columns of
numbers are copied by a kernel that takes about a nanosecond a row, a third of Arrow's own filter; that is
what keeps a scan of a state with dead rows as fast as one of a plain file.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.table import kernels

__all__ = ["live_count", "live_mask", "take_live"]

_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@numba.njit(cache=True, nogil=True, boundscheck=False)
def _copy_live(source: Any, bits: Any, first: Any, out: Any) -> None:
    # Every row is written, a dead one is overwritten by the next: no branch to guess wrong. Hence out has
    # room for one row more than live.
    count = 0
    for i in range(source.size):
        row = first + i
        out[count] = source[i]
        count += (bits[row >> 3] >> (row & 7)) & 1


def live_count(bits: npt.NDArray[np.uint8], first: int, rows: int) -> int:
    """Return how many of `rows` rows from row `first` on live."""
    return int(kernels.count_bits(bits, first, first + rows))


def live_mask(bits: npt.NDArray[np.uint8], first: int, rows: int) -> pa.BooleanArray:
    """View the live bits of `rows` rows from row `first` on as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bits)], 0, first)


def take_live(batch: pa.RecordBatch, bits: npt.NDArray[np.uint8], first: int, live: int) -> pa.RecordBatch:
    """Return the rows of a batch whose bit is set.

    Parameters
    ----------
    batch
        The rows.
    bits
        Live bits; bit `first` stands for the first row of the batch.
    first
        See above.
    live
        How many rows live.
    """
    if live == batch.num_rows:
        return batch
    mask = None
    columns = []
    for column in batch.columns:
        word = None if column.null_count else _WORDS.get(_width(column.type))
        if word is None:
            mask = live_mask(bits, first, batch.num_rows) if mask is None else mask
            columns.append(column.filter(mask))
            continue
        source = np.frombuffer(column.buffers()[1], dtype=word, count=column.offset + len(column))[column.offset :]
        # Arrow's allocator keeps its pages; a fresh numpy array of this size would fault in each of them.
        buffer = pa.allocate_buffer((live + 1) * source.itemsize)
        _copy_live(source, bits, first, np.frombuffer(buffer, dtype=word))
        columns.append(pa.Array.from_buffers(column.type, live, [None, buffer], 0))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _width(kind: pa.DataType) -> int:
    """Return the bits of a value of a number, date or time; 0 for other types."""
    simple = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return int(kind.bit_width) if simple else 0
