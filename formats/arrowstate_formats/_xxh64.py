"""XXH64 kernels over the buffers of Arrow columns.

Every kernel updates `hashes` in place: the hash so far is the seed of the next value, and a null
leaves it alone. `slots` says which hash the i-th value belongs to, in rising order, so that the
elements of a list are chained; an empty `slots` means that value i belongs to hash i.
`valid` is an Arrow validity bitmap whose first bit is bit `valid_offset`; an empty one means no nulls.
All arithmetic is on uint64, which wraps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate_formats.compiled import kernel, load_uint8, load_uint32, load_uint64

__all__ = [
    "canonical_float32_bits",
    "canonical_float64_bits",
    "hash_decimals",
    "hash_fixed_bytes",
    "hash_int32",
    "hash_int64",
    "hash_variable_bytes",
]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_4 = np.uint64(4)
_8 = np.uint64(8)


@kernel
def _rotate(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel
def _finish(h: Any) -> Any:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    return h ^ (h >> np.uint64(32))


@kernel
def _xxh64_4(value: Any, seed: Any) -> Any:
    h = seed + _P5 + _4
    h ^= np.uint64(value) * _P1
    h = _rotate(h, 23) * _P2 + _P3
    return _finish(h)


@kernel
def _xxh64_8(value: Any, seed: Any) -> Any:
    h = seed + _P5 + _8
    h ^= _rotate(value * _P2, 31) * _P1
    h = _rotate(h, 27) * _P1 + _P4
    return _finish(h)


@kernel
def _round(accumulator: Any, value: Any) -> Any:
    return _rotate(accumulator + value * _P2, 31) * _P1


@kernel
def _merge(h: Any, accumulator: Any) -> Any:
    h ^= _rotate(accumulator * _P2, 31) * _P1
    return h * _P1 + _P4


@kernel
def _xxh64_bytes(address: Any, length: Any, seed: Any) -> Any:
    end = address + length
    if length >= 32:
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        while address + 32 <= end:
            a = _round(a, load_uint64(address))
            b = _round(b, load_uint64(address + 8))
            c = _round(c, load_uint64(address + 16))
            d = _round(d, load_uint64(address + 24))
            address += 32
        h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        h = _merge(_merge(_merge(_merge(h, a), b), c), d)
    else:
        h = seed + _P5
    h += np.uint64(length)
    while address + 8 <= end:
        h ^= _rotate(load_uint64(address) * _P2, 31) * _P1
        h = _rotate(h, 27) * _P1 + _P4
        address += 8
    if address + 4 <= end:
        h ^= np.uint64(load_uint32(address)) * _P1
        h = _rotate(h, 23) * _P2 + _P3
        address += 4
    while address < end:
        h ^= np.uint64(load_uint8(address)) * _P5
        h = _rotate(h, 11) * _P1
        address += 1
    return _finish(h)


@kernel
def _is_valid(valid: Any, bit: Any) -> Any:
    return (valid[bit >> 3] >> (bit & 7)) & 1


@kernel
def hash_int32(values: Any, valid: Any, valid_offset: Any, slots: Any, hashes: Any) -> None:
    """Chain uint32 values, as the 4 bytes of each."""
    if valid.size == 0 and slots.size == 0:
        for i in range(values.size):
            hashes[i] = _xxh64_4(values[i], hashes[i])
        return
    for i in range(values.size):
        if valid.size == 0 or _is_valid(valid, valid_offset + i):
            slot = i if slots.size == 0 else slots[i]
            hashes[slot] = _xxh64_4(values[i], hashes[slot])


@kernel
def hash_int64(values: Any, valid: Any, valid_offset: Any, slots: Any, hashes: Any) -> None:
    """Chain uint64 values, as the 8 bytes of each."""
    if valid.size == 0 and slots.size == 0:
        for i in range(values.size):
            hashes[i] = _xxh64_8(values[i], hashes[i])
        return
    for i in range(values.size):
        if valid.size == 0 or _is_valid(valid, valid_offset + i):
            slot = i if slots.size == 0 else slots[i]
            hashes[slot] = _xxh64_8(values[i], hashes[slot])


@kernel
def hash_variable_bytes(address: Any, offsets: Any, valid: Any, valid_offset: Any, slots: Any, hashes: Any) -> None:
    """Chain byte strings: value i is the bytes offsets[i] to offsets[i + 1] behind the address."""
    for i in range(offsets.size - 1):
        if valid.size == 0 or _is_valid(valid, valid_offset + i):
            slot = i if slots.size == 0 else slots[i]
            start = np.int64(offsets[i])
            hashes[slot] = _xxh64_bytes(address + start, np.int64(offsets[i + 1]) - start, hashes[slot])


@kernel
def hash_fixed_bytes(
    address: Any, width: Any, length: Any, valid: Any, valid_offset: Any, slots: Any, hashes: Any
) -> None:
    """Chain `length` byte strings of one width that lie one behind the other."""
    for i in range(length):
        if valid.size == 0 or _is_valid(valid, valid_offset + i):
            slot = i if slots.size == 0 else slots[i]
            hashes[slot] = _xxh64_bytes(address + i * width, width, hashes[slot])


@kernel
def hash_decimals(
    address: Any, width: Any, length: Any, valid: Any, valid_offset: Any, slots: Any, hashes: Any
) -> None:
    """Chain little-endian integers of `width` bytes, as their shortest big-endian two's complement bytes."""
    scratch = np.empty(width, np.uint8)
    scratch_address = np.int64(scratch.ctypes.data)
    for i in range(length):
        if valid.size == 0 or _is_valid(valid, valid_offset + i):
            slot = i if slots.size == 0 else slots[i]
            value = address + i * width
            size = width
            sign = load_uint8(value + width - 1) >> 7
            padding = 255 if sign else 0
            # A leading byte can go while it only repeats the sign and the next byte still carries it.
            while size > 1 and load_uint8(value + size - 1) == padding and load_uint8(value + size - 2) >> 7 == sign:
                size -= 1
            for k in range(size):
                scratch[k] = load_uint8(value + size - 1 - k)
            hashes[slot] = _xxh64_bytes(scratch_address, size, hashes[slot])


@kernel
def canonical_float64_bits(bits: Any) -> Any:
    """Return the bits of doubles with -0.0 as 0.0 and every NaN as the canonical one."""
    canonical = np.empty(bits.size, np.uint64)
    for i in range(bits.size):
        value = bits[i]
        if value << np.uint64(1) == 0:
            value = np.uint64(0)
        elif value & np.uint64(0x7FFFFFFFFFFFFFFF) > np.uint64(0x7FF0000000000000):
            value = np.uint64(0x7FF8000000000000)
        canonical[i] = value
    return canonical


@kernel
def canonical_float32_bits(bits: Any) -> Any:
    """Return the bits of floats with -0.0 as 0.0 and every NaN as the canonical one."""
    canonical = np.empty(bits.size, np.uint32)
    for i in range(bits.size):
        value = bits[i]
        if value & np.uint32(0x7FFFFFFF) == 0:
            value = np.uint32(0)
        elif value & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
            value = np.uint32(0x7FC00000)
        canonical[i] = value
    return canonical
