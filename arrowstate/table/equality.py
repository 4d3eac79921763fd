"""The numba kernels that compare rows of two columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate_formats.compiled import kernel, load_offset, load_uint8, load_uint64, subroutine

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BLOCK = 256
_1, _3, _8 = (np.uint64(number) for number in (1, 3, 8))


@subroutine
def _same_bytes(left: Any, right: Any, length: Any) -> Any:
    while length >= 8:
        if load_uint64(left) != load_uint64(right):
            return False
        left += _8
        right += _8
        length -= 8
    while length > 0:
        if load_uint8(left) != load_uint8(right):
            return False
        left += _1
        right += _1
        length -= 1
    return True


def equal_fixed(left: int, left_rows: Ints, right: int, right_rows: Ints, width: int) -> Bools:
    """Compare rows of two columns of `width` bytes a value, which are given by the addresses of their first rows."""
    out = np.empty(left_rows.size, dtype=np.bool_)
    _equal_fixed(np.uint64(left), left_rows, np.uint64(right), right_rows, np.uint64(width), out)
    return out


@kernel("uint64, int64[], uint64, int64[], uint64, out boolean[]")
def _equal_fixed(left: Any, left_rows: Any, right: Any, right_rows: Any, width: Any, out: Any) -> None:
    if width == _8:
        for i in range(left_rows.size):
            here, there = left + (np.uint64(left_rows[i]) << _3), right + (np.uint64(right_rows[i]) << _3)
            out[i] = load_uint64(here) == load_uint64(there)
        return
    for i in range(left_rows.size):
        here, there = left + np.uint64(left_rows[i]) * width, right + np.uint64(right_rows[i]) * width
        out[i] = _same_bytes(here, there, np.int64(width))


def equal_bytes(
    left_offsets: int,
    left: int,
    left_rows: Ints,
    right_offsets: int,
    right: int,
    right_rows: Ints,
    *,
    wide: bool,
) -> Bools:
    """Compare rows of two string or binary columns; return a boolean array.

    The columns are given by the addresses of their offsets, of 64 bits if they are wide and of 32 if not, and of their
    bytes.
    """
    out = np.empty(left_rows.size, dtype=np.bool_)
    starts, lengths = np.empty(_BLOCK, dtype=np.uint64), np.empty(_BLOCK, dtype=np.uint64)
    addresses = (np.uint64(address) for address in (left_offsets, left, right_offsets, right))
    _equal_bytes(*addresses, left_rows, right_rows, wide, starts, lengths, out)
    return out


@kernel("uint64, uint64, uint64, uint64, int64[], int64[], boolean, out uint64[], out uint64[], out boolean[]")
def _equal_bytes(
    left_offsets: Any,
    left: Any,
    right_offsets: Any,
    right: Any,
    left_rows: Any,
    right_rows: Any,
    wide: Any,
    starts: Any,
    lengths: Any,
    out: Any,
) -> None:
    for block in range(0, left_rows.size, _BLOCK):
        size = min(_BLOCK, left_rows.size - block)
        # As in probe: all offsets of a block first, so that their misses overlap.
        for i in range(size):
            row = right_rows[block + i]
            starts[i] = load_offset(right_offsets, row, wide)
            lengths[i] = load_offset(right_offsets, row + 1, wide) - starts[i]
        for i in range(size):
            row = left_rows[block + i]
            start = load_offset(left_offsets, row, wide)
            length = load_offset(left_offsets, row + 1, wide) - start
            same = length == lengths[i]
            if same:
                same = _same_bytes(left + start, right + starts[i], np.int64(length))
            out[block + i] = same
