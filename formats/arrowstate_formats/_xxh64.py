"""XXH64 kernels over the buffers of Arrow columns.

Every kernel updates `hashes` in place: the hash so far is the seed of the next value, and a value that is left out
leaves it alone. `rows` says which values are hashed, and `slots` which hash each of them belongs to, in rising order,
so that the elements of a list are chained; where both are empty, value i belongs to hash i.
All arithmetic is on uint64, which wraps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate_formats.compiled import kernel, load_offset, load_uint8, load_uint32, load_uint64, rotate, subroutine

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_1, _4, _8, _16, _24, _32 = (np.uint64(number) for number in (1, 4, 8, 16, 24, 32))


@subroutine
def _finish(h: Any) -> Any:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    return h ^ (h >> _32)


@subroutine
def _round(accumulator: Any, value: Any) -> Any:
    return rotate(accumulator + value * _P2, np.uint64(31)) * _P1


@subroutine
def _xxh64(address: Any, length: Any, seed: Any) -> Any:
    end = address + length
    if length >= _32:
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        while address + _32 <= end:
            a = _round(a, load_uint64(address))
            b = _round(b, load_uint64(address + _8))
            c = _round(c, load_uint64(address + _16))
            d = _round(d, load_uint64(address + _24))
            address += _32
        h = rotate(a, _1) + rotate(b, np.uint64(7)) + rotate(c, np.uint64(12)) + rotate(d, np.uint64(18))
        none = np.uint64(0)
        h = (h ^ _round(none, a)) * _P1 + _P4
        h = (h ^ _round(none, b)) * _P1 + _P4
        h = (h ^ _round(none, c)) * _P1 + _P4
        h = (h ^ _round(none, d)) * _P1 + _P4
    else:
        h = seed + _P5
    h += length
    while address + _8 <= end:
        h = rotate(h ^ _round(np.uint64(0), load_uint64(address)), np.uint64(27)) * _P1 + _P4
        address += _8
    if address + _4 <= end:
        h = rotate(h ^ (np.uint64(load_uint32(address)) * _P1), np.uint64(23)) * _P2 + _P3
        address += _4
    while address < end:
        h = rotate(h ^ (np.uint64(load_uint8(address)) * _P5), np.uint64(11)) * _P1
        address += _1
    return _finish(h)


@kernel("uint32[], int64[], int64[], out uint64[]")
def hash_int32(values: Any, rows: Any, slots: Any, hashes: Any) -> None:
    """Chain uint32 values, as the 4 bytes of each."""
    every = rows.size == 0
    for i in range(values.size if every else rows.size):
        value = values[i if every else rows[i]]
        slot = i if every else slots[i]
        h = (hashes[slot] + _P5 + _4) ^ (np.uint64(value) * _P1)
        hashes[slot] = _finish(rotate(h, np.uint64(23)) * _P2 + _P3)


@kernel("uint64[], int64[], int64[], out uint64[]")
def hash_int64(values: Any, rows: Any, slots: Any, hashes: Any) -> None:
    """Chain uint64 values, as the 8 bytes of each."""
    every = rows.size == 0
    for i in range(values.size if every else rows.size):
        value = values[i if every else rows[i]]
        slot = i if every else slots[i]
        h = (hashes[slot] + _P5 + _8) ^ _round(np.uint64(0), value)
        hashes[slot] = _finish(rotate(h, np.uint64(27)) * _P1 + _P4)


@kernel("uint64, uint64, uint64, boolean, int64, int64[], int64[], out uint64[]")
def hash_bytes(
    address: Any, starts: Any, ends: Any, wide: Any, length: Any, rows: Any, slots: Any, hashes: Any
) -> None:
    """Chain `length` byte strings: value i is the bytes starts[i] to ends[i] behind the address.

    Starts and ends are given by their addresses; they have 64 bits if they are wide, else 32.
    """
    every = rows.size == 0
    for i in range(length if every else rows.size):
        row = i if every else rows[i]
        slot = i if every else slots[i]
        start = load_offset(starts, row, wide)
        hashes[slot] = _xxh64(address + start, load_offset(ends, row, wide) - start, hashes[slot])
