"""The numba kernels of sorted runs: sort, group, directory, probe, live bits, merge, gather.

Every kernel works on numpy views of Arrow buffers, releases the GIL and is cached on disk. None of them
allocates per row. Hashes are signed 64-bit integers; where a kernel takes their top bits it flips the sign
bit first, so that unsigned order equals signed order. Live bits are Arrow's: least significant bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate_formats.compiled import kernel, load_uint8, load_uint64, prefetch

__all__ = [
    "clear_bits",
    "count_bits",
    "count_buckets",
    "equal_bytes",
    "equal_fixed",
    "fill_from_groups",
    "gather",
    "group_starts",
    "live_hashes",
    "live_rows",
    "merge_two",
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
_BLOCK = 256
_AHEAD = 32


@kernel
def _radix_sort(hashes: Any, first_bit: int, passes: int) -> Any:
    """Sort stably by the bits from `first_bit` on, 11 for each pass; return (unsigned hashes, row numbers)."""
    size = hashes.size
    keys, other_keys = np.empty(size, dtype=np.uint64), np.empty(size, dtype=np.uint64)
    rows, other_rows = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    places = np.zeros((passes, _RADIX), dtype=np.int64)
    mask = np.uint64(_RADIX - 1)
    for i in range(size):
        key = np.uint64(hashes[i]) ^ _SIGN
        keys[i] = key
        rows[i] = i
        for number in range(passes):
            places[number, (key >> np.uint64(first_bit + number * _RADIX_BITS)) & mask] += 1
    for number in range(passes):
        total = 0
        for digit in range(_RADIX):
            count = places[number, digit]
            places[number, digit] = total
            total += count
        shift = np.uint64(first_bit + number * _RADIX_BITS)
        for i in range(size):
            digit = (keys[i] >> shift) & mask
            place = places[number, digit]
            places[number, digit] = place + 1
            other_keys[place] = keys[i]
            other_rows[place] = rows[i]
        keys, other_keys = other_keys, keys
        rows, other_rows = other_rows, rows
    return keys, rows


@kernel
def sort_by_hash(hashes: Any) -> Any:
    """Return (sorted hashes, row numbers): a stable sort, so rows of one hash keep their order."""
    size = hashes.size
    # The top bits order all but a few rows; an insertion sort mends the rest. Hashes that share their top bits
    # would make that quadratic, so the moves are counted and a sort by all bits takes over.
    keys, rows = _radix_sort(hashes, 31, 3) if size < 1_000_000 else _radix_sort(hashes, 20, 4)
    moves = 0
    for i in range(1, size):
        key = keys[i]
        if keys[i - 1] <= key:
            continue
        row = rows[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            rows[j] = rows[j - 1]
            j -= 1
        keys[j] = key
        rows[j] = row
        moves += i - j
        if moves > size:
            break
    if moves > size:
        keys, rows = _radix_sort(hashes, 0, 6)
    out = np.empty(size, dtype=np.int64)
    for i in range(size):
        out[i] = np.int64(keys[i] ^ _SIGN)
    return out, rows


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
    # In blocks of plain loops, each of which asks for the cache lines of the next: so the misses of directory,
    # hashes and live bits overlap instead of adding up.
    directory_address = np.uint64(offsets.ctypes.data)
    hash_address = np.uint64(hashes.ctypes.data)
    starts = np.empty(_BLOCK, dtype=np.int64)
    ends = np.empty(_BLOCK, dtype=np.int64)
    last_bucket = np.uint64(offsets.size - 2)
    end_row = segment_row + hashes.size
    for block in range(0, pending.size, _BLOCK):
        size = min(_BLOCK, pending.size - block)
        for i in range(size):
            unsigned = np.uint64(queries[pending[block + i]]) ^ _SIGN
            prefetch(directory_address + (((unsigned - base) >> shift) << np.uint64(2)))
        for i in range(size):
            unsigned = np.uint64(queries[pending[block + i]]) ^ _SIGN
            bucket = (unsigned - base) >> shift
            inside = unsigned >= base and bucket <= last_bucket
            bucket = bucket if inside else np.uint64(0)
            start = max(np.int64(offsets[bucket]) + directory_row, segment_row)
            end = min(np.int64(offsets[bucket + np.uint64(1)]) + directory_row, end_row)
            starts[i] = start
            ends[i] = end if inside else start
            prefetch(hash_address + (np.uint64(start - segment_row) << np.uint64(3)))
        for i in range(size):
            query = queries[pending[block + i]]
            row = starts[i]
            end = ends[i]
            while row < end and hashes[row - segment_row] < query:
                row += 1
            starts[i] = row if row < end and hashes[row - segment_row] == query else -1
        for i in range(size):
            row = starts[i]
            if row >= 0:
                bit = row - live_row
                if not (live[bit >> 3] >> (bit & 7)) & 1:
                    row = next_candidate(row, hashes, segment_row, live, live_row)
            out[block + i] = row


@kernel
def split_found(pending: Any, rows: Any) -> Any:
    """Split pending queries by whether a row was found: (those found, their rows, the others), in order."""
    count = 0
    for i in range(rows.size):
        count += rows[i] >= 0
    found = np.empty(count, dtype=np.int64)
    found_rows = np.empty(count, dtype=np.int64)
    others = np.empty(rows.size - count, dtype=np.int64)
    hit = 0
    for i in range(rows.size):
        if rows[i] >= 0:
            found[hit] = pending[i]
            found_rows[hit] = rows[i]
            hit += 1
        else:
            others[i - hit] = pending[i]
    return found, found_rows, others


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
def live_hashes(bits: Any, first_bit: Any, hashes: Any, first_row: Any) -> Any:
    """Return (hashes, rows) of the rows whose bit is set; hashes[i] stands for bit first_bit + i, row first_row + i."""
    out = np.empty(hashes.size, dtype=np.int64)
    rows = np.empty(hashes.size, dtype=np.int64)
    count = 0
    for i in range(hashes.size):
        bit = first_bit + i
        out[count] = hashes[i]
        rows[count] = first_row + i
        count += (bits[bit >> 3] >> (bit & 7)) & 1
    return out[:count], rows[:count]


@kernel
def merge_two(left_hashes: Any, left_rows: Any, right_hashes: Any, right_rows: Any) -> Any:
    """Merge two hash-sorted lists; rows with an equal hash come from the left first."""
    size = left_hashes.size + right_hashes.size
    hashes = np.empty(size, dtype=np.int64)
    rows = np.empty(size, dtype=np.int64)
    i = 0
    j = 0
    k = 0
    while i < left_hashes.size and j < right_hashes.size:
        # Written without a branch: which side is next is random, and a wrong guess costs more than the copy.
        take_left = left_hashes[i] <= right_hashes[j]
        hashes[k] = left_hashes[i] if take_left else right_hashes[j]
        rows[k] = left_rows[i] if take_left else right_rows[j]
        i += take_left
        j += not take_left
        k += 1
    while i < left_hashes.size:
        hashes[k] = left_hashes[i]
        rows[k] = left_rows[i]
        i += 1
        k += 1
    while j < right_hashes.size:
        hashes[k] = right_hashes[j]
        rows[k] = right_rows[j]
        j += 1
        k += 1
    return hashes, rows
