"""Deletion vectors: the dead rows of a run as a Roaring bitmap, made from live bits and taken from them.

The portable serialization of Roaring cuts the row numbers into containers of 65,536. Each is a list of numbers, a
bitmap, or a list of ranges, whichever is the shortest. Live bits are bitmaps too, so a container is a slice of them,
which numpy makes or applies as a whole.
Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate_formats._roaring import clear_bitmap, clear_listed
from arrowstate_formats.errors import CorruptDataError, InvalidInputError
from arrowstate_formats.integers import bit_counts

Bits = npt.NDArray[np.uint8]

_ROWS = 1 << 16
"""Row numbers of a container."""

_WORDS = _ROWS // 64
_BITMAP_BYTES = _ROWS // 8
_LIST_ROWS = 4096
"""A list with more numbers would be longer than a bitmap."""

_TOO_SHORT = "the bytes end too early"
_TOO_MANY = "a container has more rows than there are"
_COOKIE, _COOKIE_WITH_RANGES = 12346, 12347
_FEW = 4
"""Where there are ranges, fewer containers than this have no offsets."""


def write_deletion_vector(live: Bits, rows: int, first_row: int) -> bytes:
    """Return the rows whose live bit is 0."""
    if first_row < 0 or first_row + rows > 1 << 32 or live.size * 8 < rows:
        raise InvalidInputError(
            f"a deletion vector numbers rows from 0 to 2^32 - 1, got {first_row} and {rows} more in {live.size} bytes"
        )
    first_container, shift = divmod(first_row, _ROWS)
    containers = -(-(shift + rows) // _ROWS) if rows else 0
    words = _dead_bits(live, rows, shift, containers).view("<u8").reshape(containers, _WORDS)
    before = np.zeros_like(words)
    before[:, 1:] = words[:, :-1] >> np.uint64(63)
    first_bits = words & ~((words << np.uint64(1)) | before)
    counts, ranges = (bit_counts(bits).sum(axis=1, dtype=np.int64) for bits in (words, first_bits))

    numbers = np.flatnonzero(counts)
    counts, ranges = counts[numbers], ranges[numbers]
    is_bitmap = counts > _LIST_ROWS
    sizes = np.where(is_bitmap, _BITMAP_BYTES, 2 * counts)
    is_ranges = 2 + 4 * ranges < sizes
    sizes = np.where(is_ranges, 2 + 4 * ranges, sizes)
    parts = [_header(numbers + first_container, counts, is_ranges, sizes)]
    for number, as_ranges, as_bitmap in zip(numbers.tolist(), is_ranges.tolist(), is_bitmap.tolist(), strict=True):
        bits = words[number].view(np.uint8)
        if as_ranges:
            parts.append(_ranges_of(bits))
        else:
            parts.append((bits if as_bitmap else np.flatnonzero(_flags_of(bits)).astype("<u2")).tobytes())
    return b"".join(parts)


def _dead_bits(live: Bits, rows: int, shift: int, containers: int) -> Bits:
    """Return the bits of the containers, in which bit shift + i is set for each row whose live bit i is 0."""
    out = np.zeros(containers * _BITMAP_BYTES, dtype=np.uint8)
    dead = ~live[: -(-rows // 8)]
    if rows % 8:
        dead[-1] &= np.uint8((1 << rows % 8) - 1)
    first, left = divmod(shift, 8)
    out[first : first + dead.size] = dead << np.uint8(left)
    # What a byte has no room for goes into the next, which may be missing where nothing goes into it.
    after = (dead >> np.uint8(8 - left))[: out.size - first - 1] if left else dead[:0]
    out[first + 1 : first + 1 + after.size] |= after
    return out


def _flags_of(bits: Bits) -> npt.NDArray[np.bool_]:
    return np.unpackbits(bits, bitorder="little").view(np.bool_)


def _ranges_of(bits: Bits) -> bytes:
    """Return the number of ranges of set bits, and the first number and the length less one of each."""
    flags = np.zeros(_ROWS + 2, dtype=np.bool_)
    flags[1:-1] = _flags_of(bits)
    borders = np.flatnonzero(flags[1:] != flags[:-1])
    starts, stops = borders[::2], borders[1::2]
    return (
        np.concatenate(([starts.size], np.stack([starts, stops - 1 - starts], axis=1).ravel())).astype("<u2").tobytes()
    )


def _header(keys: Any, counts: Any, is_ranges: Any, sizes: Any) -> bytes:
    parts: list[Any] = [np.array([_COOKIE, keys.size], dtype="<u4")]
    if is_ranges.any():
        cookie = np.array([_COOKIE_WITH_RANGES | (keys.size - 1) << 16], dtype="<u4")
        parts = [cookie, np.packbits(is_ranges, bitorder="little")]
    parts.append(np.stack([keys, counts - 1], axis=1).astype("<u2"))
    if not is_ranges.any() or keys.size >= _FEW:
        header_bytes = sum(part.nbytes for part in parts) + 4 * keys.size
        parts.append((header_bytes + np.cumsum(sizes) - sizes).astype("<u4"))
    return b"".join(part.tobytes() for part in parts)


def clear_dead_rows(data: bytes, live: Bits, rows: int, first_row: int, *, path: str = "") -> int:
    """Clear the live bits of the rows in a deletion vector; return how many of them were set."""
    if live.size * 8 < rows or rows < 0:
        raise InvalidInputError(f"{rows} rows need as many live bits, got {live.size * 8}")
    cleared = _clear_plain(data, live, rows, first_row, path)
    if cleared is not None:
        return cleared
    cleared = 0
    before = -1
    for key, dead in _containers(memoryview(data), path):
        if key <= before:
            raise _damaged(path, "the containers do not ascend")
        before = key
        cleared += _clear(dead, live, rows, key * _ROWS - first_row)
    return cleared


def _clear_plain(data: bytes, live: Bits, rows: int, first_row: int, path: str) -> int | None:
    """Do what `clear_dead_rows` does where no container is of ranges; None, and nothing is done, where one is.

    There is a container for each 65,536 rows, so that a run has many; here neighbours of one kind are one step.
    """
    if len(data) < 8:
        raise _damaged(path, _TOO_SHORT)
    cookie, containers = np.frombuffer(data, "<u4", 2).tolist()
    if cookie != _COOKIE or first_row % 8:
        return None
    if containers > _ROWS:
        raise _damaged(path, _TOO_MANY)
    place = 8 + 8 * containers
    if place > len(data):
        raise _damaged(path, _TOO_SHORT)
    described = np.frombuffer(data, "<u2", 2 * containers, 8).reshape(-1, 2).astype(np.int64)
    keys, counts = described[:, 0], described[:, 1] + 1
    if (keys[1:] <= keys[:-1]).any():
        raise _damaged(path, "the containers do not ascend")
    is_bitmap = counts > _LIST_ROWS
    ends = place + np.cumsum(np.where(is_bitmap, _BITMAP_BYTES, 2 * counts))
    end = int(ends[-1]) if containers else place
    if end != len(data):
        raise _damaged(path, _TOO_SHORT if end > len(data) else "there are bytes after the last container")
    whole = np.frombuffer(data, np.uint8)
    cleared = 0
    # A step is of lists, or of bitmaps whose rows follow one another.
    follows = (is_bitmap[1:] == is_bitmap[:-1]) & (~is_bitmap[1:] | (keys[1:] == keys[:-1] + 1))
    borders = [0, *(np.flatnonzero(~follows) + 1).tolist(), containers] if containers else [0]
    for first, last in pairwise(borders):
        start, stop = place if not first else int(ends[first - 1]), int(ends[last - 1])
        if is_bitmap[first]:
            cleared += _clear_bitmaps(whole[start:stop], live, rows, int(keys[first]) * _ROWS - first_row)
        else:
            of = slice(first, last)
            cleared += clear_listed(whole[start:stop], keys[of] * _ROWS - first_row, counts[of], rows, live)
    return cleared


def _clear_bitmaps(bits: Bits, live: Bits, rows: int, first: int) -> int:
    """Clear the live bits first + i where bit i is set, as far as they lie within the rows; `first` is a whole byte."""
    low, high = max(first, 0) >> 3, (rows + 7) >> 3
    dead = bits[low - (first >> 3) : high - (first >> 3)]
    part = live[low : low + dead.size]
    if rows % 8 and low + dead.size == high:
        dead = dead.copy()
        dead[-1:] &= np.uint8((1 << rows % 8) - 1)
    return int(clear_bitmap(dead, part))


def _containers(data: memoryview, path: str) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yield the key of each container, and for each of its rows whether it is one of the bitmap."""
    if len(data) < 8:
        raise _damaged(path, _TOO_SHORT)
    cookie, count = np.frombuffer(data, "<u4", 2).tolist()
    has_ranges = cookie & 0xFFFF == _COOKIE_WITH_RANGES
    if cookie != _COOKIE and not has_ranges:
        raise _damaged(path, "the first number is no cookie of the portable serialization")
    containers = (cookie >> 16) + 1 if has_ranges else count
    if containers > _ROWS:
        raise _damaged(path, _TOO_MANY)
    header = 4 + (containers + 7) // 8 if has_ranges else 8
    # Containers follow one another, so the offsets say nothing new.
    place = header + (4 if has_ranges and containers < _FEW else 8) * containers
    if place > len(data):
        raise _damaged(path, _TOO_SHORT)
    is_ranges = np.zeros(containers, dtype=np.uint8)
    if has_ranges:
        is_ranges = np.unpackbits(np.frombuffer(data, np.uint8, header - 4, 4), count=containers, bitorder="little")
    described = np.frombuffer(data, "<u2", 2 * containers, header).reshape(-1, 2).tolist()
    for (key, rows_less_one), as_ranges in zip(described, is_ranges.tolist(), strict=True):
        numbers = rows_less_one + 1
        if as_ranges:
            if place + 2 > len(data):
                raise _damaged(path, _TOO_SHORT)
            numbers = 2 * int(np.frombuffer(data, "<u2", 1, place)[0])
            place += 2
        is_bitmap = not as_ranges and numbers > _LIST_ROWS
        length = _BITMAP_BYTES if is_bitmap else 2 * numbers
        if place + length > len(data):
            raise _damaged(path, _TOO_SHORT)
        if is_bitmap:
            yield key, _flags_of(np.frombuffer(data, np.uint8, length, place))
        else:
            yield key, _flags_at(np.frombuffer(data, "<u2", numbers, place), as_ranges, path)
        place += length
    if place != len(data):
        raise _damaged(path, "there are bytes after the last container")


def _flags_at(numbers: npt.NDArray[np.uint16], are_ranges: int, path: str) -> npt.NDArray[np.bool_]:
    """Return the flags of a container that is a list of rows, or of ranges: first row and length less one in turns."""
    if not are_ranges:
        flags = np.zeros(_ROWS, dtype=np.bool_)
        flags[numbers] = True
        return flags
    starts = numbers[::2].astype(np.int64)
    stops = starts + numbers[1::2] + 1
    if stops.size and stops.max() > _ROWS:
        raise _damaged(path, _TOO_MANY)
    depths = np.bincount(starts, minlength=_ROWS + 1) - np.bincount(stops, minlength=_ROWS + 1)
    return np.cumsum(depths)[:_ROWS] > 0


def _clear(dead: npt.NDArray[np.bool_], live: Bits, rows: int, first: int) -> int:
    """Clear the live bits first + i, as far as they lie within the rows, where dead[i]; return how many were set."""
    low, high = max(first, 0), min(first + _ROWS, rows)
    if low >= high:
        return 0
    start = low >> 3
    flags = np.zeros(8 * (((high + 7) >> 3) - start), dtype=np.bool_)
    flags[low - 8 * start : high - 8 * start] = dead[low - first : high - first]
    bits = np.packbits(flags, bitorder="little")
    part = live[start : start + bits.size]
    cleared = int(bit_counts(part & bits).sum(dtype=np.int64))
    part &= ~bits
    return cleared


def _damaged(path: str, problem: str) -> CorruptDataError:
    return CorruptDataError(path, f"no Roaring bitmap: {problem}")
