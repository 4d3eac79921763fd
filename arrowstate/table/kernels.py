"""The numba kernels of sorted runs: sort, group, directory, probe, live bits, gather.

Hashes are signed 64-bit integers; where a kernel takes their top bits it flips the sign bit first, so that unsigned
order equals signed order. Live bits are Arrow's: least significant bit first. What numpy does as fast is done by numpy.
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
    prefetch,
    store_uint8,
    store_uint32,
    store_uint64,
    subroutine,
)
from arrowstate_formats.integers import bit_counts

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_SIGN = np.uint64(1 << 63)
_LOW = (1 << 64) - 1
_RADIX_BITS = 11
_RADIX = 1 << _RADIX_BITS
_MOVES = 4
_BLOCK = 256
_AHEAD = 16
_0, _1, _2, _3, _4, _7, _8, _32 = (np.uint64(number) for number in (0, 1, 2, 3, 4, 7, 8, 32))


def sort_by_hash(hashes: Ints) -> tuple[Ints, Ints]:
    """Return (sorted hashes, row numbers): a stable sort, so rows of one hash keep their order.

    Hashes are spread evenly over their range, so one pass that puts each row in its bucket, with about as many
    buckets as rows, leaves little to do. Where the rows come as a few sorted lists, as in a merge, that pass reads
    and writes in order, whatever their number.
    """
    size = hashes.size
    placed, rows = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    if not size:
        return placed, rows
    lowest = int(hashes.min())
    span = int(hashes.max()) - lowest
    base, shift = np.uint64(lowest & _LOW), max(0, span.bit_length() - size.bit_length())
    if _sort(hashes, base, np.uint64(shift), np.zeros((span >> shift) + 1, dtype=np.uint32), placed, rows):
        return placed, rows
    # Values that are not spread evenly are sorted by all their bits, 11 at a time.
    keys, order = hashes, np.arange(size)
    digits = np.empty(_RADIX, dtype=np.int64)
    buffers = (placed, rows), (np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64))
    for number, first_bit in enumerate(range(0, span.bit_length(), _RADIX_BITS)):
        placed, rows = buffers[number % 2]
        _radix_pass(keys, order, base, np.uint64(first_bit), digits, placed, rows)
        keys, order = placed, rows
    return keys, order


@kernel("int64[], uint64, uint64, out uint32[], out int64[], out int64[]")
def _sort(hashes: Any, lowest: Any, shift: Any, ends: Any, placed: Any, rows: Any) -> Any:
    """Sort by (hash - lowest) >> shift, then mend the buckets; return whether that was little to do.

    `ends` has a zero for each bucket.
    """
    for i in range(hashes.size):
        ends[(np.uint64(hashes[i]) - lowest) >> shift] += np.uint32(1)
    total = np.uint32(0)
    for bucket in range(ends.size):
        count = ends[bucket]
        ends[bucket] = total
        total += count
    for i in range(hashes.size):
        bucket = (np.uint64(hashes[i]) - lowest) >> shift
        place = ends[bucket]
        ends[bucket] = place + np.uint32(1)
        placed[place] = hashes[i]
        rows[place] = i
    # An insertion sort mends the buckets. Values that are not spread evenly would make that quadratic, so the moves
    # are counted.
    moves = 0
    for i in range(1, hashes.size):
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
            if moves > _MOVES * hashes.size:
                return False
        placed[j] = value
        rows[j] = row
    return True


@kernel("int64[], int64[], uint64, uint64, out int64[], out int64[], out int64[]")
def _radix_pass(keys: Any, rows: Any, lowest: Any, shift: Any, places: Any, out_keys: Any, out_rows: Any) -> None:
    """Sort stably by 11 bits of (key - lowest)."""
    mask = np.uint64(_RADIX - 1)
    for digit in range(_RADIX):
        places[digit] = 0
    for i in range(keys.size):
        places[((np.uint64(keys[i]) - lowest) >> shift) & mask] += 1
    total = 0
    for digit in range(_RADIX):
        count = places[digit]
        places[digit] = total
        total += count
    for i in range(keys.size):
        bits = ((np.uint64(keys[i]) - lowest) >> shift) & mask
        place = places[bits]
        places[bits] = place + 1
        out_keys[place] = keys[i]
        out_rows[place] = rows[i]


def group_starts(sorted_hashes: Ints) -> Ints:
    """Return where each run of equal hashes starts, with the number of rows as the last entry."""
    return starts_where(sorted_hashes[1:] != sorted_hashes[:-1], sorted_hashes.size)


def starts_where(differs: Bools, size: int) -> Ints:
    """Return where groups of `size` sorted rows start, with `size` at the end; differs[i] compares rows i and i + 1."""
    if not size:
        return np.zeros(1, dtype=np.int64)
    borders = np.flatnonzero(differs)
    starts = np.empty(borders.size + 2, dtype=np.int64)
    starts[0], starts[-1] = 0, size
    np.add(borders, 1, out=starts[1:-1])
    return starts


def fill_from_groups(order: Ints, starts: Ints) -> Ints:
    """Return, for each row of the batch, the number of the group it belongs to."""
    groups = np.empty(order.size, dtype=np.int64)
    groups[order] = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    return groups


@kernel("int64[], uint64, uint64, out uint32[]")
def count_buckets(hashes: Any, base: Any, shift: Any, offsets: Any) -> None:
    """Count the rows of one segment by bucket: those of bucket b are added to offsets[b + 1].

    The running sum over all segments then says where each bucket starts.
    """
    last = np.uint64(offsets.size - 2)
    for i in range(hashes.size):
        bucket = ((np.uint64(hashes[i]) ^ _SIGN) - base) >> shift
        # A hash of a forged file may lie outside of its bounds, and must not be counted outside of the array.
        offsets[(bucket if bucket < last else last) + _1] += np.uint32(1)


@subroutine
def bucket_start(bucket: Any, offsets: Any, ahead: Any, size: Any) -> Any:
    """Return the first place of a segment of `size` rows that may be in a bucket; the last bucket has none."""
    last = np.uint64(offsets.size - 1)
    place = np.int64(offsets[bucket if bucket < last else last]) + ahead
    if place < 0:
        return _0
    return np.uint64(place) if place < size else np.uint64(size)


@subroutine
def bucket_of(query: Any, base: Any, shift: Any) -> Any:
    """Return the bucket that has all rows of a hash, if there are any; it may be behind the last."""
    return ((np.uint64(query) ^ _SIGN) - base) >> shift


@subroutine
def first_near(hashes: Any, place: Any, query: Any) -> Any:
    """Return the first place from `place` on whose hash is not below the query; it is near, most of the time."""
    size = np.uint64(hashes.size)
    if place + _4 <= size:
        first, second = np.uint64(hashes[place] < query), np.uint64(hashes[place + _1] < query)
        third, fourth = np.uint64(hashes[place + _2] < query), np.uint64(hashes[place + _3] < query)
        place += first + second + third + fourth
    while place < size and hashes[place] < query:
        place += _1
    return place


@subroutine
def is_live(live: Any, bit: Any) -> Any:
    """Return 1 if the bit is set, else 0."""
    at = np.uint64(bit)
    return np.int64(live[at >> _3] >> np.uint8(at & _7)) & 1


@kernel("out int64[], int64[], int64[], int64, uint8[], int64")
def next_candidates(found: Any, which: Any, hashes: Any, segment_row: Any, live: Any, live_row: Any) -> None:
    """Move each of the rows found[which] on to the next live row that has the same hash, or to -1."""
    for k in range(which.size):
        place = found[which[k]] - segment_row
        query = hashes[place]
        found[which[k]] = -1
        place += 1
        while place < hashes.size and hashes[place] == query:
            if is_live(live, place + segment_row - live_row):
                found[which[k]] = place + segment_row
                break
            place += 1


def probe(
    queries: Ints,
    pending: Ints,
    hashes: Ints,
    base: np.uint64,
    shift: np.uint64,
    offsets: npt.NDArray[np.uint32],
    directory_row: int,
    segment_row: int,
    live: Bits,
    live_row: int,
    out: Ints,
) -> None:
    """Find for each pending query the first live row of this segment with its hash.

    Row numbers are those of the run's file: `directory_row`, `segment_row` and `live_row` say which row
    the first directory offset, the first hash and the first live bit stand for. out[i] is the row of
    queries[pending[i]], or -1.
    """
    if not hashes.size:
        out[:] = -1
        return
    asked, places = np.empty(_BLOCK, dtype=np.int64), np.zeros(_BLOCK + _AHEAD, dtype=np.uint64)
    rows = (directory_row - segment_row, segment_row, live, segment_row - live_row)
    if _probe(queries, pending, hashes, base, shift, offsets, *rows, asked, places, out):
        next_candidates(out, unsettled(out), hashes, segment_row, live, live_row)


def unsettled(out: Ints) -> Ints:
    """Return which answers of a probe are dead rows, whose next ones have the same hash; they are made rows again."""
    which = np.flatnonzero(out < -1)
    out[which] = -2 - out[which]
    return which


@kernel(
    "int64[], int64[], int64[], uint64, uint64, uint32[], int64, int64, uint8[], int64, out int64[], out uint64[], "
    "out int64[]"
)
def _probe(
    queries: Any,
    pending: Any,
    hashes: Any,
    base: Any,
    shift: Any,
    offsets: Any,
    ahead: Any,
    segment_row: Any,
    live: Any,
    first_bit: Any,
    asked: Any,
    places: Any,
    out: Any,
) -> Any:
    """Write the first row with each hash, -1 where it is dead, and -2 - row where the next one has that hash too.

    Returns how many of the latter there are, which is none but for keys that share a hash.
    """
    # Plain loops over blocks, and no branch that depends on a hash but rare ones: so the misses of many queries
    # overlap, and a wrong guess, which costs more than all the rest, is rare.
    address = np.uint64(hashes.ctypes.data)
    last = np.uint64(hashes.size - 1)
    open_ends = 0
    for block in range(0, pending.size, _BLOCK):
        count = min(_BLOCK, pending.size - block)
        for i in range(count):
            query = queries[pending[block + i]]
            asked[i] = query
            places[i] = bucket_start(bucket_of(query, base, shift), offsets, ahead, hashes.size)
        for i in range(count):
            prefetch(address + (places[i + _AHEAD] << _3))
            query = asked[i]
            place = min(first_near(hashes, places[i], query), last)
            same = np.int64(hashes[place] == query)
            row = np.int64(place)
            on = is_live(live, row + first_bit) & same
            row += segment_row
            out[block + i] = (row + 1) * on - 1
            if np.int64(hashes[min(place + _1, last)] == query) & (same - on):
                out[block + i] = -2 - row
                open_ends += 1
    return open_ends


def split_found(pending: Ints, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Split pending queries by whether a row was found: (those found, their rows, the others), in order."""
    found, found_rows, others = (np.empty(rows.size, dtype=np.int64) for _ in range(3))
    hits = _split_found(pending, rows, found, found_rows, others)
    return found[:hits], found_rows[:hits], others[: rows.size - hits]


@kernel("int64[], int64[], out int64[], out int64[], out int64[]")
def _split_found(pending: Any, rows: Any, found: Any, found_rows: Any, others: Any) -> Any:
    hit = 0
    for i in range(rows.size):
        # Written to both sides without a branch, the wrong one is overwritten.
        found[hit] = pending[i]
        found_rows[hit] = rows[i]
        others[i - hit] = pending[i]
        hit += int(rows[i] >= 0)
    return hit


@subroutine
def _copy(source: Any, target: Any, width: Any) -> None:
    if width == _8:
        store_uint64(target, load_uint64(source))
    elif width == _4:
        store_uint32(target, load_uint32(source))
    elif width > _8:
        for word in range(width >> _3):
            store_uint64(target + (np.uint64(word) << _3), load_uint64(source + (np.uint64(word) << _3)))
    else:
        for byte in range(width):
            store_uint8(target + np.uint64(byte), load_uint8(source + np.uint64(byte)))


@kernel("uint64, int64[], int64[], uint64, uint64")
def _gather(source: Any, rows: Any, places: Any, target: Any, width: Any) -> None:
    last = rows.size - 1
    for i in range(rows.size):
        prefetch(source + np.uint64(rows[min(i + _AHEAD, last)]) * width)
        _copy(source + np.uint64(rows[i]) * width, target + np.uint64(places[i]) * width, width)


def gather(source: npt.NDArray[Any], rows: Ints, places: Ints, out: npt.NDArray[Any]) -> None:
    """Copy source[rows[i]] to out[places[i]]; both are contiguous (rows, words) views of one type."""
    width = np.uint64(out.itemsize * out.shape[1])
    _gather(np.uint64(source.ctypes.data), rows, places, np.uint64(out.ctypes.data), width)


@kernel("uint64[], int64[], uint64, uint64")
def _gather_places(addresses: Any, places: Any, target: Any, width: Any) -> None:
    for i in range(places.size):
        place = np.uint64(places[i])
        _copy(addresses[place >> _32] + (place & np.uint64(0xFFFFFFFF)) * width, target + np.uint64(i) * width, width)


def gather_places(addresses: npt.NDArray[np.uint64], places: Ints, out: npt.NDArray[Any]) -> None:
    """Copy the rows at some places to `out`, a (rows, words) array; addresses[source] is that of a source's row 0."""
    _gather_places(addresses, places, np.uint64(out.ctypes.data), np.uint64(out.itemsize * out.shape[1]))


@kernel("out uint8[], int64[], int64, out int64[]")
def _clear_bits(bits: Any, rows: Any, first_row: Any, cleared: Any) -> Any:
    count = 0
    for i in range(rows.size):
        row = np.uint64(rows[i] - first_row)
        mask = np.uint8(_1 << (row & _7))
        before = bits[row >> _3]
        bits[row >> _3] = before & ~mask
        cleared[count] = rows[i]
        count += int((before & mask) != 0)
    if count < rows.size:
        cleared[count] = -1
    return count


def clear_bits(bits: Bits, rows: Ints, first_row: int, cleared: Ints) -> Ints:
    """Clear the bit of each row, counted from `first_row`; return the rows whose bits were set before.

    They are the beginning of `cleared`, which has room for all rows; if there are fewer, -1 follows them.
    """
    return cleared[: _clear_bits(bits, rows, first_row, cleared)]


def count_bits(bits: Bits, start: int, stop: int) -> int:
    """Return how many bits of rows start (inclusive) to stop (exclusive) are set."""
    if start >= stop:
        return 0
    first, last = start >> 3, (stop - 1) >> 3
    count = int(bit_counts(bits[first : last + 1]).sum(dtype=np.int64))
    before = int(bits[first]) & ((1 << (start & 7)) - 1)
    after = int(bits[last]) >> (((stop - 1) & 7) + 1)
    return count - before.bit_count() - after.bit_count()


def live_rows(bits: Bits, start: int, stop: int) -> Ints:
    """Return the rows from start (inclusive) to stop (exclusive) whose bit is set, ascending."""
    flags = np.unpackbits(bits[start >> 3 : (stop + 7) >> 3], bitorder="little")
    return np.flatnonzero(flags[start & 7 : (start & 7) + stop - start]) + start


@kernel("uint8[], int64, int64[], int64, out int64[], out int64[]")
def live_places(bits: Any, first_bit: Any, hashes: Any, source: Any, out_hashes: Any, out_places: Any) -> Any:
    """Write the hash and the place of each live row; return how many there are.

    hashes[i] stands for bit first_bit + i; its place is source << 32 | i.
    """
    count = 0
    for i in range(hashes.size):
        out_hashes[count] = hashes[i]
        out_places[count] = (source << 32) | i
        count += is_live(bits, first_bit + i)
    return count
