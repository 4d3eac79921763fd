"""Kernels of tables: entries of blocks taken apart, sorted streams merged, the newest entry of each key found.

All take data by its address. Whoever calls them leaves `SLACK` bytes behind each buffer, for bytes are moved and
compared by eight. What a file says of lengths and places is compared with what is there before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate_formats.compiled import (
    kernel,
    load_uint8,
    load_uint32,
    load_uint64,
    store_uint8,
    store_uint64,
    subroutine,
)

Ints = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]

SLACK = 16
"""Bytes behind a buffer that may be read and written."""

DONE, KEYS_FULL, ROWS_FULL, OUT_OF_BLOCK, SHARES_TOO_MUCH, UNSORTED, UNKNOWN_KIND, NO_ROOM_FOR_RESTARTS = range(8)
"""How `decode_blocks` ended. After the two that say what is full it is called again, with more room."""

DELETION, VALUE, MERGE, SINGLE_DELETION = 0, 1, 2, 7
NO_NUMBER = (1 << 64) - 1
"""For the sequence number of all entries, where each has its own."""

_0, _1, _7, _8, _56 = (np.uint64(number) for number in (0, 1, 7, 8, 56))
_NO_NUMBER, _BYTE = np.uint64(NO_NUMBER), np.uint64(255)
_LIMIT = 1 << 32
_HASH_INDEX = 1 << 31
_COMMA = np.uint8(ord(","))


@subroutine
def _varint(raw: Any, place: Any, end: Any) -> Any:
    """Return a number of at most 32 bits and the place behind it, -1 for both where there is none."""
    number, shift = np.int64(0), np.int64(0)
    while place < end and shift < 35:
        byte = np.int64(load_uint8(raw + np.uint64(place)))
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number, place) if number < _LIMIT else (np.int64(-1), np.int64(-1))
    return np.int64(-1), np.int64(-1)


@subroutine
def _copy(source: Any, target: Any, size: Any) -> Any:
    place = _0
    end = np.uint64(size)
    while place < end:
        store_uint64(target + place, load_uint64(source + place))
        place += _8


@subroutine
def swapped(word: Any) -> Any:
    """Return a word with its first byte as the most significant one."""
    word = (word >> np.uint64(32)) | (word << np.uint64(32))
    word = (word & np.uint64(0xFFFF0000FFFF0000)) >> np.uint64(16) | (
        word & np.uint64(0x0000FFFF0000FFFF)
    ) << np.uint64(16)
    return (word & np.uint64(0xFF00FF00FF00FF00)) >> _8 | (word & np.uint64(0x00FF00FF00FF00FF)) << _8


@subroutine
def _compare(one: Any, one_size: Any, other: Any, other_size: Any) -> Any:
    """Return -1, 0 or 1: the order of two byte strings."""
    size = one_size if one_size < other_size else other_size
    place = np.int64(0)
    while place < size:
        mine, theirs = load_uint64(one + np.uint64(place)), load_uint64(other + np.uint64(place))
        if mine != theirs:
            mine, theirs = swapped(mine), swapped(theirs)
            if size - place < 8:
                # Behind the end of one of them lies anything.
                beyond = np.uint64(8 * (8 - (size - place)))
                mine, theirs = mine >> beyond, theirs >> beyond
            if mine != theirs:
                return np.int64(-1) if mine < theirs else np.int64(1)
        place += 8
    if one_size == other_size:
        return np.int64(0)
    return np.int64(-1) if one_size < other_size else np.int64(1)


@kernel(
    "uint64, int64[], int64[], uint64, uint64, int64, out int64[], out uint64[], out int64[], out int64[], out int64[]"
)
def decode_blocks(
    raw: Any,
    block_starts: Ints,
    block_ends: Ints,
    number_of_all: Any,
    keys: Any,
    key_room: int,
    key_offsets: Ints,
    tags: Addresses,
    value_starts: Ints,
    value_sizes: Ints,
    progress: Ints,
) -> int:
    """Append the entries of blocks to keys, tags, and places of values; return how that ended.

    A tag is the sequence number and, in its last byte, the kind. `progress` is block, place in it (-1 at its start),
    rows, the row the block began with, the tag of the last row as it is stored. It is where the next call goes on; of
    what is wrong it says the block and the place.
    """
    block, place, rows, block_row, stored = progress[0], progress[1], progress[2], progress[3], np.uint64(progress[4])
    status = DONE
    while block < block_starts.size and status == DONE:
        start, end = block_starts[block], block_ends[block]
        if end - start < 4:
            status, place = NO_ROOM_FOR_RESTARTS, start
            break
        end -= 4
        restarts = np.int64(load_uint32(raw + np.uint64(end)))
        if restarts >= _HASH_INDEX:
            restarts -= _HASH_INDEX
            end -= 2
            if end < start:
                status, place = NO_ROOM_FOR_RESTARTS, start
                break
            buckets = raw + np.uint64(end)
            end -= np.int64(load_uint8(buckets)) + 256 * np.int64(load_uint8(buckets + _1))
        end -= 4 * restarts
        if end < start:
            status, place = NO_ROOM_FOR_RESTARTS, start
            break
        if place < 0:
            place, block_row = start, rows
        while place < end:
            shared, after = _varint(raw, place, end)
            added, after = _varint(raw, after, end) if after >= 0 else (np.int64(-1), np.int64(-1))
            value_size, after = _varint(raw, after, end) if after >= 0 else (np.int64(-1), np.int64(-1))
            if after < 0 or added + value_size > end - after or shared + added < 8:
                status = OUT_OF_BLOCK
                break
            key_start = key_offsets[rows]
            key_size = shared + added - 8
            before_start = key_offsets[rows - 1] if rows > 0 else np.int64(0)
            before_size = key_start - before_start if rows > 0 else np.int64(0)
            if shared > 0 and (rows == block_row or shared > before_size + 8):
                status = SHARES_TOO_MUCH
                break
            if key_start + key_size + 16 > key_room:
                status = KEYS_FULL
                break
            if rows + 1 >= key_offsets.size:
                status = ROWS_FULL
                break
            key = keys + np.uint64(key_start)
            before = keys + np.uint64(before_start)
            from_key = shared if shared < before_size else before_size
            _copy(before, key, from_key)
            # What is shared may reach into the tag, which is not kept behind the key.
            for each in range(from_key, shared):
                byte = stored >> np.uint64(8 * (each - before_size)) & _BYTE
                store_uint8(key + np.uint64(each), np.uint8(byte))
            _copy(raw + np.uint64(after), key + np.uint64(shared), added)
            stored = load_uint64(key + np.uint64(key_size))
            kind = stored & _BYTE
            if kind != VALUE and kind != MERGE and kind != DELETION and kind != SINGLE_DELETION:
                progress[5] = np.int64(kind)
                status = UNKNOWN_KIND
                break
            tag = stored if number_of_all == _NO_NUMBER else number_of_all << _8 | kind
            if rows > 0:
                order = _compare(before, before_size, key, key_size)
                if order > 0 or (order == 0 and tags[rows - 1] <= tag):
                    status = UNSORTED
                    break
            tags[rows] = tag
            value_starts[rows] = after + added
            value_sizes[rows] = value_size
            rows += 1
            key_offsets[rows] = key_start + key_size
            place = after + added + value_size
        if status == DONE:
            block += 1
            place = np.int64(-1)
    progress[0], progress[1], progress[2], progress[3], progress[4] = block, place, rows, block_row, np.int64(stored)
    return status


@kernel("uint64, int64[], int64, int64, uint64, int64")
def first_from(keys: Any, offsets: Ints, low: int, high: int, key: Any, key_size: int) -> int:
    """Return the first of sorted rows from `low` to before `high` whose key is not before a key, `high` if none is."""
    while low < high:
        middle = (low + high) // 2
        start = offsets[middle]
        if _compare(keys + np.uint64(start), offsets[middle + 1] - start, key, key_size) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@subroutine
def _is_before(one: Any, other: Any, keys: Any, offsets: Any, tags: Any, places: Any) -> Any:
    """Whether the next row of one stream comes before that of another: by key, the newer one first."""
    mine, theirs = np.uint64(places[one]) * _8, np.uint64(places[other]) * _8
    my_start, their_start = load_uint64(offsets[one] + mine), load_uint64(offsets[other] + theirs)
    my_size = np.int64(load_uint64(offsets[one] + mine + _8) - my_start)
    their_size = np.int64(load_uint64(offsets[other] + theirs + _8) - their_start)
    order = _compare(keys[one] + my_start, my_size, keys[other] + their_start, their_size)
    if order != 0:
        return order < 0
    return load_uint64(tags[one] + mine) > load_uint64(tags[other] + theirs)


@subroutine
def _sink(heap: Any, size: Any, place: Any, keys: Any, offsets: Any, tags: Any, places: Any) -> Any:
    """Move a stream down a heap until those below it come later."""
    moved = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _is_before(heap[child + 1], heap[child], keys, offsets, tags, places):
            child += 1
        if not _is_before(heap[child], moved, keys, offsets, tags, places):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = moved


@subroutine
def _put(count: Any, base: Any, base_size: Any, pieces: Any, piece_sizes: Any, values: Any, end: Any) -> Any:
    """Write a value, made of a base (none if its size is -1) and of operands, the newest first; return its end."""
    if base_size >= 0:
        _copy(base, values + np.uint64(end), base_size)
        end += base_size
    for each in range(count - 1, -1, -1):
        if base_size >= 0 or each < count - 1:
            store_uint8(values + np.uint64(end), _COMMA)
            end += 1
        _copy(pieces[each], values + np.uint64(end), piece_sizes[each])
        end += piece_sizes[each]
    return end


@kernel(
    "uint64[], uint64[], uint64[], uint64[], uint64[], uint64[], out int64[], int64[], out int64[], "
    "uint64, int64[], uint64[], out int64[], out uint64[], out int64[], "
    "uint64, out int64[], uint64, out int64[]"
)
def merge_streams(
    keys: Addresses,
    offsets: Addresses,
    tags: Addresses,
    starts: Addresses,
    sizes: Addresses,
    raws: Addresses,
    places: Ints,
    ends: Ints,
    heap: Ints,
    bounds: Any,
    bound_offsets: Ints,
    numbers: Addresses,
    state: Ints,
    pieces: Addresses,
    piece_sizes: Ints,
    out_keys: Any,
    out_key_offsets: Ints,
    out_values: Any,
    out_value_offsets: Ints,
) -> int:
    """Write the live keys of sorted streams and what they hold, in the order of the keys; return their number.

    Of each stream there are the addresses of what `decode_blocks` wrote, its next row in `places`, which is moved, and
    in `ends` the row it stops at. All rows of a key are there. Between two of the `bounds` entries older than a number
    are deleted. `state` is the bound before the last key, or -1, which the next call takes up, and the number of
    operands that were joined.
    """
    streams = 0
    for stream in range(keys.size):
        if places[stream] < ends[stream]:
            heap[streams] = stream
            streams += 1
    for place in range(streams // 2 - 1, -1, -1):
        _sink(heap, streams, place, keys, offsets, tags, places)
    rows, key_end, value_end, bound, joined = 0, np.int64(0), np.int64(0), state[0], state[1]
    last, last_size, last_number = _0, np.int64(-1), _0
    is_open, count = False, 0
    while streams > 0:
        stream = heap[0]
        row = np.uint64(places[stream]) * _8
        start = load_uint64(offsets[stream] + row)
        key, key_size = keys[stream] + start, np.int64(load_uint64(offsets[stream] + row + _8) - start)
        tag = load_uint64(tags[stream] + row)
        number = tag >> _8
        if last_size != key_size or _compare(last, last_size, key, key_size) != 0:
            if is_open and count > 0:
                value_end = _put(count, _0, np.int64(-1), pieces, piece_sizes, out_values, value_end)
                _copy(last, out_keys + np.uint64(key_end), last_size)
                key_end += last_size
                rows += 1
                out_key_offsets[rows], out_value_offsets[rows] = key_end, value_end
            last, last_size, is_open, count = key, key_size, True, 0
            while bound + 1 < numbers.size:
                first = bound_offsets[bound + 1]
                size = bound_offsets[bound + 2] - first
                if _compare(bounds + np.uint64(first), size, key, key_size) > 0:
                    break
                bound += 1
        elif number == last_number:
            # The same entry from a file that is named twice.
            tag = _0
            number = _NO_NUMBER
        if is_open and number != _NO_NUMBER:
            last_number = number
            kind = tag & _BYTE
            value = raws[stream] + load_uint64(starts[stream] + row)
            value_size = np.int64(load_uint64(sizes[stream] + row))
            if bound >= 0 and number < numbers[bound]:
                kind = _0
            if kind == MERGE:
                pieces[count], piece_sizes[count] = value, value_size
                count += 1
                joined += 1
            else:
                if kind == VALUE or count > 0:
                    base_size = value_size if kind == VALUE else np.int64(-1)
                    value_end = _put(count, value, base_size, pieces, piece_sizes, out_values, value_end)
                    _copy(key, out_keys + np.uint64(key_end), key_size)
                    key_end += key_size
                    rows += 1
                    out_key_offsets[rows], out_value_offsets[rows] = key_end, value_end
                is_open = False
        places[stream] += 1
        if places[stream] == ends[stream]:
            streams -= 1
            heap[0] = heap[streams]
        if streams > 1:
            _sink(heap, streams, 0, keys, offsets, tags, places)
    if is_open and count > 0:
        value_end = _put(count, _0, np.int64(-1), pieces, piece_sizes, out_values, value_end)
        _copy(last, out_keys + np.uint64(key_end), last_size)
        key_end += last_size
        rows += 1
        out_key_offsets[rows], out_value_offsets[rows] = key_end, value_end
    state[0], state[1] = bound, joined
    return rows
