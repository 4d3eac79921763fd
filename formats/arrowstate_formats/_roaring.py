"""The numba kernels of deletion vectors: rows that are listed one by one, and bitmaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate_formats.compiled import kernel, load_uint64, store_uint64, subroutine

_1, _2, _4, _56 = (np.uint64(number) for number in (1, 2, 4, 56))
_PAIRS, _NIBBLES = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


@subroutine
def _set_bits(word: Any) -> Any:
    word -= (word >> _1) & _PAIRS
    word = (word & _NIBBLES) + ((word >> _2) & _NIBBLES)
    return (((word + (word >> _4)) & _BYTES) * _SUM) >> _56


@kernel("uint8[], out uint8[]")
def clear_bitmap(dead: Any, live: Any) -> Any:
    """Clear the bits that are set in a bitmap of the same length; return how many of them were set."""
    here, there = np.uint64(dead.ctypes.data), np.uint64(live.ctypes.data)
    cleared = np.uint64(0)
    words = live.size >> 3
    for i in range(words):
        at = np.uint64(i) << np.uint64(3)
        before, gone = load_uint64(there + at), load_uint64(here + at)
        cleared += _set_bits(before & gone)
        store_uint64(there + at, before & ~gone)
    for i in range(words << 3, live.size):
        cleared += _set_bits(np.uint64(live[i] & dead[i]))
        live[i] &= ~dead[i]
    return np.int64(cleared)


@kernel("uint8[], int64[], int64[], int64, out uint8[]")
def clear_listed(data: Any, firsts: Any, counts: Any, rows: Any, live: Any) -> Any:
    """Clear the live bits of listed rows, and return how many of them were set.

    `data` are lists of numbers of 16 bits one after the other, list k of counts[k] numbers that count from firsts[k]. A
    row below 0, or from `rows` on, is ignored.
    """
    cleared = 0
    at = 0
    for k in range(counts.size):
        for _ in range(counts[k]):
            row = firsts[k] + np.int64(data[at]) + (np.int64(data[at + 1]) << 8)
            at += 2
            if row < 0 or row >= rows:
                continue
            mask = np.uint8(1 << (row & 7))
            before = live[row >> 3]
            live[row >> 3] = before & ~mask
            cleared += int((before & mask) != 0)
    return cleared
