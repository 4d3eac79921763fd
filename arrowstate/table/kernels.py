"""The numba kernels of sorted runs: sort, group, directory, probe, live bits, gather.

Every kernel works on numpy views of Arrow buffers, releases the GIL and is cached on disk. None of them
allocates per row. Hashes are signed 64-bit integers; where a kernel takes their top bits it flips the sign
bit first, so that unsigned order equals signed order. Live bits are Arrow's: least significant bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate_formats.compiled import kernel, load_uint8, load_uint16, load_uint32, load_uint64, prefetch

__all__ = [
    "bucket_of",
    "clear_bits",
    "count_bits",
    "count_buckets",
    "equal_bytes",
    "equal_fixed",
    "fill_from_groups",
    "gather",
    "gather_places",
    "group_starts",
    "live_places",
    "live_rows",
    "next_candidate",
    "next_candidates",
    "probe",
    "sort_by_hash",
    "split_found",
]

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

_SIGN = np.uint64(1 << 63)
_RADIX_BITS = 11
_RADIX = 1 << _RADIX_BITS
_MOVES = 4
_BLOCK = 256
_AHEAD = 16
_NEAR = 4


@kernel
def _place(hashes: Any, lowest: Any, shift: Any, buckets: Any) -> Any:
    """Put the rows in the order of their buckets, (hash - lowest) >> shift; within one they keep their order."""
    ends = np.zeros(buckets, dtype=np.uint32)
    for i in range(hashes.size):
        ends[(np.uint64(hashes[i]) - lowest) >> shift] += np.uint32(1)
    total = np.uint32(0)
    for bucket in range(buckets):
        count = ends[bucket]
        ends[bucket] = total
        total += count
    placed = np.empty(hashes.size, dtype=np.int64)
    rows = np.empty(hashes.size, dtype=np.int64)
    for i in range(hashes.size):
        bucket = (np.uint64(hashes[i]) - lowest) >> shift
        place = ends[bucket]
        ends[bucket] = place + np.uint32(1)
        placed[place] = hashes[i]
        rows[place] = i
    return placed, rows


@kernel
def _radix_sort(hashes: Any, lowest: Any, bits: Any) -> Any:
    """Sort stably by the lowest `bits` of (hash - lowest), 11 at a time."""
    keys, rows = hashes.copy(), np.arange(hashes.size)
    other_keys, other_rows = np.empty_like(keys), np.empty_like(rows)
    places = np.empty(_RADIX, dtype=np.int64)
    for first_bit in range(0, bits, _RADIX_BITS):
        shift, mask = np.uint64(first_bit), np.uint64(_RADIX - 1)
        places[:] = 0
        for i in range(keys.size):
            places[((np.uint64(keys[i]) - lowest) >> shift) & mask] += 1
        total = 0
        for digit in range(_RADIX):
            count = places[digit]
            places[digit] = total
            total += count
        for i in range(keys.size):
            digit = ((np.uint64(keys[i]) - lowest) >> shift) & mask
            place = places[digit]
            places[digit] = place + 1
            other_keys[place] = keys[i]
            other_rows[place] = rows[i]
        keys, other_keys = other_keys, keys
        rows, other_rows = other_rows, rows
    return keys, rows


@kernel
def sort_by_hash(hashes: Any) -> Any:
    """Return (sorted hashes, row numbers): a stable sort, so rows of one hash keep their order.

    Hashes are spread evenly over their range, so one pass that puts each row in its bucket, with about as many
    buckets as rows, leaves little to do. Where the rows come as a few sorted lists, as in a merge, that pass reads
    and writes in order, whatever their number.
    """
    size = hashes.size
    if size == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    lowest, highest = hashes[0], hashes[0]
    for i in range(size):
        lowest, highest = min(lowest, hashes[i]), max(highest, hashes[i])
    base = np.uint64(lowest)
    span = np.uint64(highest) - base
    bits = _bit_length(span)
    shift = np.uint64(max(0, bits - _bit_length(np.uint64(size))))
    placed, rows = _place(hashes, base, shift, np.int64(span >> shift) + 1)
    # An insertion sort mends the buckets. Values that are not spread evenly would make that quadratic, so the moves
    # are counted and a sort by all bits takes over.
    moves = 0
    for i in range(1, size):
        value = placed[i]
        if placed[i - 1] <= value:
            continue
        row = rows[i]
        j = i
        while j > 0 and placed[j - 1] > value:
            placed[j] = placed[j - 1]
            rows[j] = rows[j - 1]
            j -= 1
            moves += 1
            if moves > _MOVES * size:
                return _radix_sort(hashes, base, bits)
        placed[j] = value
        rows[j] = row
    return placed, rows


@kernel
def _bit_length(value: Any) -> Any:
    bits = 0
    while bits < 64 and value >> np.uint64(bits):
        bits += 1
    return bits


@kernel
def group_starts(sorted_hashes: Any) -> Any:
    """Return where each run of equal hashes starts, with the number of rows as the last entry."""
    size = sorted_hashes.size
    starts = np.empty(size + 1, dtype=np.int64)
    count = 0
    for i in range(size):
        if i == 0 or sorted_hashes[i] != sorted_hashes[i - 1]:
            starts[count] = i
            count += 1
    starts[count] = size
    return starts[: count + 1].copy()


@kernel
def fill_from_groups(order: Any, starts: Any) -> Any:
    """Return, for each row of the batch, the number of the group it belongs to."""
    groups = np.empty(order.size, dtype=np.int64)
    for group in range(starts.size - 1):
        for i in range(starts[group], starts[group + 1]):
            groups[order[i]] = group
    return groups


@kernel
def count_buckets(hashes: Any, base: Any, shift: Any, offsets: Any) -> None:
    """Count the rows of one segment by bucket: those of bucket b are added to offsets[b + 1].

    The running sum over all segments then says where each bucket starts.
    """
    for i in range(hashes.size):
        offsets[np.int64(((np.uint64(hashes[i]) ^ _SIGN) - base) >> shift) + 1] += np.uint32(1)


@kernel
def bucket_of(query: Any, base: Any, shift: Any, offsets: Any) -> Any:
    """Return a bucket that has all rows of a hash, if there are any: one past the last where that is sure."""
    return min(((np.uint64(query) ^ _SIGN) - base) >> shift, np.uint64(offsets.size - 1))


@kernel
def first_near(hashes: Any, place: Any, query: Any) -> Any:
    """Return the first place from `place` on whose hash is not below the query; it is near, most of the time."""
    if place + _NEAR <= hashes.size:
        below = np.int64(0)
        for step in range(_NEAR):
            below += np.int64(hashes[np.uint64(place + step)] < query)
        place += below
    while place < hashes.size and hashes[place] < query:
        place += 1
    return place


@kernel
def next_candidate(row: Any, hashes: Any, segment_row: Any, live: Any, live_row: Any) -> Any:
    """Return the next live row after `row` that has the same hash, or -1."""
    hash_value = hashes[row - segment_row]
    row += 1
    while row < segment_row + hashes.size and hashes[row - segment_row] == hash_value:
        bit = row - live_row
        if (live[bit >> 3] >> (bit & 7)) & 1:
            return row
        row += 1
    return -1


@kernel
def next_candidates(found: Any, which: Any, hashes: Any, segment_row: Any, live: Any, live_row: Any) -> None:
    """Move each of the rows found[which] on to the next live row that has the same hash, or to -1."""
    for i in which:
        found[i] = next_candidate(found[i], hashes, segment_row, live, live_row)


@kernel
def probe(
    queries: Any,
    pending: Any,
    hashes: Any,
    base: Any,
    shift: Any,
    offsets: Any,
    directory_row: Any,
    segment_row: Any,
    live: Any,
    live_row: Any,
    out: Any,
) -> None:
    """Find for each pending query the first live row of this segment with its hash.

    Row numbers are those of the run's file: `directory_row`, `segment_row` and `live_row` say which row
    the first directory offset, the first hash and the first live bit stand for. out[i] is the row of
    queries[pending[i]], or -1.
    """
    # Plain loops over blocks, and no branch that depends on a hash but rare ones: so the misses of many queries
    # overlap, and a wrong guess, which costs more than all the rest, is rare.
    asked = np.empty(_BLOCK, dtype=np.int64)
    places = np.zeros(_BLOCK + _AHEAD, dtype=np.int64)
    hash_address = np.uint64(hashes.ctypes.data)
    size = hashes.size
    if size == 0:
        out[:] = -1
        return
    for block in range(0, pending.size, _BLOCK):
        count = min(_BLOCK, pending.size - block)
        for i in range(count):
            asked[i] = queries[pending[block + i]]
            bucket = bucket_of(asked[i], base, shift, offsets)
            places[i] = min(max(np.int64(offsets[bucket]) + directory_row - segment_row, 0), size)
        for i in range(count):
            prefetch(hash_address + (np.uint64(places[i + _AHEAD]) << np.uint64(3)))
            query = asked[i]
            place = min(first_near(hashes, places[i], query), size - 1)
            same = np.int64(hashes[np.uint64(place)] == query)
            row = place + segment_row
            bit = np.uint64(row - live_row)
            on = np.int64(live[bit >> np.uint64(3)] >> np.uint8(bit & np.uint64(7))) & same
            out[block + i] = (row + 1) * on - 1
            after = np.uint64(min(place + 1, size - 1))
            if np.int64(hashes[after] == query) & (same - on):
                out[block + i] = next_candidate(row, hashes, segment_row, live, live_row)


@kernel
def split_found(pending: Any, rows: Any) -> Any:
    """Split pending queries by whether a row was found: (those found, their rows, the others), in order."""
    found = np.empty(rows.size, dtype=np.int64)
    found_rows = np.empty(rows.size, dtype=np.int64)
    others = np.empty(rows.size, dtype=np.int64)
    hit = 0
    for i in range(rows.size):
        # Written to both sides without a branch, the wrong one is overwritten.
        found[hit] = pending[i]
        found_rows[hit] = rows[i]
        others[i - hit] = pending[i]
        hit += rows[i] >= 0
    return found[:hit], found_rows[:hit], others[: rows.size - hit]


@kernel
def equal_fixed(left: Any, left_rows: Any, right: Any, right_rows: Any) -> Any:
    """Compare rows of two (rows, words) views of fixed-width columns; return a boolean array."""
    out = np.empty(left_rows.size, dtype=np.bool_)
    words = left.shape[1]
    for i in range(left_rows.size):
        same = True
        for word in range(words):
            same = same and left[left_rows[i], word] == right[right_rows[i], word]
        out[i] = same
    return out


@kernel
def _same_bytes(left: Any, right: Any, length: Any) -> Any:
    eight = np.uint64(8)
    while length >= 8:
        if load_uint64(left) != load_uint64(right):
            return False
        left += eight
        right += eight
        length -= 8
    one = np.uint64(1)
    while length > 0:
        if load_uint8(left) != load_uint8(right):
            return False
        left += one
        right += one
        length -= 1
    return True


@kernel
def equal_bytes(
    left_offsets: Any, left_address: Any, left_rows: Any, right_offsets: Any, right_address: Any, right_rows: Any
) -> Any:
    """Compare rows of two string or binary columns; return a boolean array.

    The columns are given as offsets and the uint64 address of their bytes.
    """
    out = np.empty(left_rows.size, dtype=np.bool_)
    starts = np.empty(_BLOCK, dtype=np.uint64)
    lengths = np.empty(_BLOCK, dtype=np.int64)
    for block in range(0, left_rows.size, _BLOCK):
        size = min(_BLOCK, left_rows.size - block)
        # As in probe: all offsets of a block first, so that their misses overlap.
        for i in range(size):
            row = right_rows[block + i]
            starts[i] = right_address + np.uint64(right_offsets[row])
            lengths[i] = right_offsets[row + 1] - right_offsets[row]
        for i in range(size):
            row = left_rows[block + i]
            length = np.int64(left_offsets[row + 1] - left_offsets[row])
            start = left_address + np.uint64(left_offsets[row])
            out[block + i] = length == lengths[i] and _same_bytes(start, starts[i], length)
    return out


@kernel
def gather(source: Any, rows: Any, places: Any, out: Any) -> None:
    """Copy source[rows[i]] to out[places[i]]; both are (rows, words) views."""
    words = source.shape[1]
    address = np.uint64(source.ctypes.data)
    width = np.uint64(source.itemsize * words)
    for i in range(rows.size):
        prefetch(address + np.uint64(rows[min(i + _AHEAD, rows.size - 1)]) * width)
        for word in range(words):
            out[places[i], word] = source[rows[i], word]


@kernel
def clear_bits(bits: Any, rows: Any) -> Any:
    """Clear the bit of each row; return how many were set before."""
    cleared = 0
    for i in range(rows.size):
        row = rows[i]
        mask = np.uint8(1 << (row & 7))
        if bits[row >> 3] & mask:
            bits[row >> 3] &= ~mask
            cleared += 1
    return cleared


@kernel
def count_bits(bits: Any, start: Any, stop: Any) -> Any:
    """Return how many bits of rows start (inclusive) to stop (exclusive) are set."""
    count = 0
    row = start
    while row < stop and row & 7:
        count += (bits[row >> 3] >> (row & 7)) & 1
        row += 1
    while row + 8 <= stop:
        byte = bits[row >> 3]
        byte = byte - ((byte >> 1) & 0x55)
        byte = (byte & 0x33) + ((byte >> 2) & 0x33)
        count += (byte + (byte >> 4)) & 0x0F
        row += 8
    while row < stop:
        count += (bits[row >> 3] >> (row & 7)) & 1
        row += 1
    return count


@kernel
def live_rows(bits: Any, start: Any, stop: Any) -> Any:
    """Return the rows from start (inclusive) to stop (exclusive) whose bit is set, ascending."""
    out = np.empty(stop - start, dtype=np.int64)
    count = 0
    for row in range(start, stop):
        out[count] = row
        count += (bits[row >> 3] >> (row & 7)) & 1
    return out[:count].copy()


@kernel
def live_places(bits: Any, first_bit: Any, hashes: Any, source: Any, out_hashes: Any, out_places: Any) -> Any:
    """Write the hash and the place of each live row; return how many there are.

    hashes[i] stands for bit first_bit + i; its place is source << 32 | i.
    """
    count = 0
    for i in range(hashes.size):
        bit = first_bit + i
        out_hashes[count] = hashes[i]
        out_places[count] = (source << 32) | i
        count += (bits[bit >> 3] >> (bit & 7)) & 1
    return count


@kernel
def gather_places(addresses: Any, places: Any, out: Any) -> None:
    """Copy the rows at some places to `out`, a (rows, words) array; addresses[source] is that of a source's row 0."""
    words = out.shape[1]
    width = np.uint64(words * out.itemsize)
    for i in range(places.size):
        place = np.uint64(places[i])
        address = addresses[place >> np.uint64(32)] + (place & np.uint64(0xFFFFFFFF)) * width
        for word in range(words):
            if out.itemsize == 8:
                out[i, word] = load_uint64(address + np.uint64(8 * word))
            elif out.itemsize == 4:
                out[i, word] = load_uint32(address)
            elif out.itemsize == 2:
                out[i, word] = load_uint16(address)
            else:
                out[i, word] = load_uint8(address)
