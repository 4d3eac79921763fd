"""Deletion vectors: the dead rows of a run as a Roaring bitmap, made from live bits and taken from them.

The portable serialization of Roaring cuts the row numbers into containers of 65,536. Each is a list of numbers, a
bitmap, or a list of ranges, whichever is the shortest. Live bits are bitmaps too, so whole words go from one form to
the other, and the time grows with the size of the bitmaps and not with the number of dead rows.
Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate_formats.compiled import kernel, load_uint16, load_uint32, load_uint64
from arrowstate_formats.errors import CorruptDataError, InvalidInputError

__all__ = ["clear_dead_rows", "write_deletion_vector"]

Bits = npt.NDArray[np.uint8]

_ROWS = 1 << 16
"""Row numbers of a container."""

_WORDS = _ROWS // 64
_BITMAP_BYTES = _ROWS // 8
_LIST_ROWS = 4096
"""A list with more numbers would be longer than a bitmap."""

_COOKIE, _COOKIE_WITH_RANGES = 12346, 12347
_FEW = 4
"""Where there are ranges, fewer containers than this have no offsets."""

_LIST, _BITMAP, _RANGES = range(3)

_DAMAGE = {
    -1: "the bytes end too early",
    -2: "the first number is no cookie of the portable serialization",
    -3: "the containers do not ascend",
    -4: "a container has more rows than there are",
    -5: "there are bytes after the last container",
}


def write_deletion_vector(live: Bits, rows: int, first_row: int) -> bytes:
    """Return the rows whose live bit is 0.

    Parameters
    ----------
    live
        Bit i, least significant bit first, stands for the row number first_row + i.
    rows
        How many bits of `live` count.
    first_row
        The row number of the first bit; at least 0.

    Raises
    ------
    InvalidInputError
        If a row number does not fit into 32 bits, or there are fewer bits than rows.

    Examples
    --------
    >>> live = np.array([0b11110110], np.uint8)
    >>> data = write_deletion_vector(live, 8, 100)
    >>> other = np.full(1, 255, np.uint8)
    >>> clear_dead_rows(data, other, 8, 99), format(int(other[0]), "b")
    (2, '11101101')
    """
    if first_row < 0 or first_row + rows > 1 << 32 or live.size * 8 < rows:
        raise InvalidInputError(
            f"a deletion vector numbers rows from 0 to 2^32 - 1, got {first_row} and {rows} more in {live.size} bytes"
        )
    first_container = first_row // _ROWS
    containers = (first_row + rows - 1) // _ROWS - first_container + 1 if rows else 0
    words = np.zeros(containers * _WORDS + 1, dtype="<u8")
    _copy_dead(np.ascontiguousarray(live), rows, first_row - first_container * _ROWS, words)
    counts, ranges = np.zeros(containers, dtype=np.int64), np.zeros(containers, dtype=np.int64)
    _count(words, counts, ranges)

    numbers = np.flatnonzero(counts)
    counts, ranges = counts[numbers], ranges[numbers]
    kinds = np.where(counts > _LIST_ROWS, _BITMAP, _LIST)
    sizes = np.where(kinds == _BITMAP, _BITMAP_BYTES, 2 * counts)
    shorter = 2 + 4 * ranges < sizes
    kinds, sizes = np.where(shorter, _RANGES, kinds), np.where(shorter, 2 + 4 * ranges, sizes)
    header = _header(numbers + first_container, counts, kinds == _RANGES, sizes)
    out = np.empty(len(header) + int(sizes.sum()), dtype=np.uint8)
    out[: len(header)] = np.frombuffer(header, dtype=np.uint8)
    starts = len(header) + np.cumsum(sizes) - sizes
    _fill(words, words.view(np.uint8), numbers, kinds, starts, ranges, out)
    return out.tobytes()


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
    """Clear the live bits of the rows in a deletion vector; return how many of them were set.

    Parameters
    ----------
    data
        The deletion vector, whose checksum was compared. It is not trusted for that.
    live
        Bit i, least significant bit first, stands for the row number first_row + i.
    rows
        How many bits of `live` count. Row numbers outside of them are ignored.
    first_row
        The row number of the first bit.
    path
        For messages.

    Raises
    ------
    CorruptDataError
        If the bytes are no Roaring bitmap; some bits may be cleared then.
    InvalidInputError
        If there are fewer bits than rows.
    """
    if live.size * 8 < rows or rows < 0:
        raise InvalidInputError(f"{rows} rows need as many live bits, got {live.size * 8}")
    cleared = int(_clear(np.frombuffer(data, dtype=np.uint8), live, rows, first_row))
    if cleared < 0:
        raise CorruptDataError(path, f"no Roaring bitmap: {_DAMAGE[cleared]}")
    return cleared


@kernel
def _set_bits(word: Any) -> Any:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _copy_dead(live: Any, rows: Any, shift: Any, words: Any) -> None:
    """Set bit shift + i of the words for each of the rows whose live bit i is 0."""
    address = np.uint64(live.ctypes.data)
    left = np.uint64(shift & 63)
    for place in range(rows >> 6):
        dead = ~load_uint64(address + np.uint64(8 * place))
        at = (shift >> 6) + place
        words[at] |= dead << left
        if left:
            words[at + 1] |= dead >> (np.uint64(64) - left)
    for row in range(rows & ~63, rows):
        if not (live[row >> 3] >> (row & 7)) & 1:
            words[(shift + row) >> 6] |= np.uint64(1) << np.uint64((shift + row) & 63)


@kernel
def _count(words: Any, counts: Any, ranges: Any) -> None:
    """Count the set bits of each container, and the ranges that they make."""
    for container in range(counts.size):
        before = np.uint64(0)
        for place in range(container * _WORDS, (container + 1) * _WORDS):
            word = words[place]
            counts[container] += _set_bits(word)
            ranges[container] += _set_bits(word & ~((word << np.uint64(1)) | before))
            before = word >> np.uint64(63)


@kernel
def _put_uint16(out: Any, place: Any, value: Any) -> None:
    out[place] = value & 0xFF
    out[place + 1] = (value >> 8) & 0xFF


@kernel
def _fill(words: Any, word_bytes: Any, numbers: Any, kinds: Any, starts: Any, ranges: Any, out: Any) -> None:
    """Write the containers, each at its start."""
    for i in range(numbers.size):
        container, place = numbers[i], starts[i]
        if kinds[i] == _BITMAP:
            for byte in range(_BITMAP_BYTES):
                out[place + byte] = word_bytes[container * _BITMAP_BYTES + byte]
            continue
        if kinds[i] == _RANGES:
            _put_uint16(out, place, ranges[i])
            place += 2
        start = -1
        for number in range(_WORDS):
            word = words[container * _WORDS + number]
            if kinds[i] == _LIST:
                while word:
                    low = word & (~word + np.uint64(1))
                    _put_uint16(out, place, 64 * number + _set_bits(low - np.uint64(1)))
                    place += 2
                    word ^= low
            elif word != (np.uint64(0) if start < 0 else ~np.uint64(0)):
                for bit in range(64):
                    is_set = (word >> np.uint64(bit)) & np.uint64(1)
                    if is_set and start < 0:
                        start = 64 * number + bit
                    elif not is_set and start >= 0:
                        _put_uint16(out, place, start)
                        _put_uint16(out, place + 2, 64 * number + bit - 1 - start)
                        place += 4
                        start = -1
        if start >= 0:
            _put_uint16(out, place, start)
            _put_uint16(out, place + 2, _ROWS - 1 - start)


@kernel
def _clear_word(live: Any, rows: Any, at: Any, word: Any) -> Any:
    """Clear the live bits at to at + 63 that are set in the word and lie within the rows; return how many were set."""
    if at <= -64 or at >= rows:
        return 0
    if at < 0:
        word >>= np.uint64(-at)
        at = 0
    if rows - at < 64:
        word &= (np.uint64(1) << np.uint64(rows - at)) - np.uint64(1)
    cleared = 0
    byte, left = at >> 3, np.uint64(at & 7)
    rest = np.uint64(0) if left == 0 else word >> (np.uint64(64) - left)
    word <<= left
    while word:
        dead = np.uint8(word & np.uint64(0xFF)) & live[byte]
        cleared += _set_bits(np.uint64(dead))
        live[byte] ^= dead
        word >>= np.uint64(8)
        byte += 1
    if rest:
        byte = (at >> 3) + 8
        dead = np.uint8(rest) & live[byte]
        cleared += _set_bits(np.uint64(dead))
        live[byte] ^= dead
    return cleared


@kernel
def _clear_range(live: Any, rows: Any, start: Any, stop: Any) -> Any:
    """Clear the live bits from start (inclusive) to stop (exclusive) that lie within the rows."""
    start, stop = max(start, 0), min(stop, rows)
    cleared = 0
    while start < stop:
        count = min(stop - start, 64)
        cleared += _clear_word(live, rows, start, ~np.uint64(0) >> np.uint64(64 - count))
        start += count
    return cleared


@kernel
def _clear_ranges(address: Any, count: Any, live: Any, rows: Any, at: Any) -> Any:
    """Clear the live bits of a container of ranges, whose first number is the bit `at`; -1 if one leaves it."""
    cleared = 0
    for item in range(count):
        start = np.int64(load_uint16(address + np.uint64(4 * item)))
        stop = start + np.int64(load_uint16(address + np.uint64(4 * item + 2))) + 1
        if stop > _ROWS:
            return -1
        cleared += _clear_range(live, rows, at + start, at + stop)
    return cleared


@kernel
def _clear_bitmap(address: Any, live: Any, rows: Any, at: Any) -> Any:
    """Clear the live bits of a container that is a bitmap, whose first number is the bit `at`."""
    cleared = 0
    for number in range(_WORDS):
        word = load_uint64(address + np.uint64(8 * number))
        if word:
            cleared += _clear_word(live, rows, at + 64 * number, word)
    return cleared


@kernel
def _clear_list(address: Any, count: Any, live: Any, rows: Any, at: Any) -> Any:
    """Clear the live bits of a container that is a list, whose first number is the bit `at`."""
    cleared = np.int64(0)
    for item in range(count):
        bit = at + np.int64(load_uint16(address + np.uint64(2 * item)))
        if 0 <= bit < rows:
            dead = np.uint8(1 << (bit & 7)) & live[bit >> 3]
            cleared += np.int64(dead != 0)
            live[bit >> 3] ^= dead
    return cleared


@kernel
def _clear(data: Any, live: Any, rows: Any, first_row: Any) -> Any:
    """Clear the live bits of all containers; return how many were set, or one of the numbers of `_DAMAGE`."""
    address, size = np.uint64(data.ctypes.data), data.size
    if size < 8:
        return -1
    cookie = np.int64(load_uint32(address))
    has_ranges = cookie & 0xFFFF == _COOKIE_WITH_RANGES
    if cookie != _COOKIE and not has_ranges:
        return -2
    containers = (cookie >> 16) + 1 if has_ranges else np.int64(load_uint32(address + np.uint64(4)))
    if containers > _ROWS:
        return -4
    header = 4 + (containers + 7) // 8 if has_ranges else 8
    # Containers follow one another, so the offsets say nothing new.
    place = header + (4 if has_ranges and containers < _FEW else 8) * containers
    if place > size:
        return -1
    cleared = np.int64(0)
    before = np.int64(-1)
    for container in range(containers):
        described = address + np.uint64(header + 4 * container)
        key, count = np.int64(load_uint16(described)), np.int64(load_uint16(described + np.uint64(2))) + 1
        if key <= before:
            return -3
        before = key
        is_ranges = has_ranges and (data[4 + container // 8] >> (container & 7)) & 1
        if is_ranges:
            if place + 2 > size:
                return -1
            count = np.int64(load_uint16(address + np.uint64(place)))
            place += 2
        length = 4 * count if is_ranges else _BITMAP_BYTES if count > _LIST_ROWS else 2 * count
        if place + length > size:
            return -1
        start, at = address + np.uint64(place), key * _ROWS - first_row
        if is_ranges:
            found = _clear_ranges(start, count, live, rows, at)
            if found < 0:
                return -4
        elif count > _LIST_ROWS:
            found = _clear_bitmap(start, live, rows, at)
        else:
            found = _clear_list(start, count, live, rows, at)
        cleared += found
        place += length
    return cleared if place == size else -5
