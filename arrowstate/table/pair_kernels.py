"""Kernels of runs that are sorted by a second column within equal hashes.

The second column is `_entry_hash`, the hash of what tells the rows of one key apart (namespace, user key of a
map), or `_seq`, the position of a list's element. So one entry of a key is found by a search in two levels,
and all rows of a key are one slice of a run. As in `kernels`, row numbers are those of the run's file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate.table.kernels import (
    Bits,
    Ints,
    bucket_of,
    bucket_start,
    first_near,
    is_live,
    sort_by_hash,
    starts_where,
    unsettled,
)
from arrowstate_formats.compiled import kernel, prefetch, subroutine

_BLOCK = 256
_AHEAD = 16
_FEW = 16
_1, _3 = np.uint64(1), np.uint64(3)


def sort_by_pair(hashes: Ints, seconds: Ints) -> Ints:
    """Return row numbers sorted by (hash, second); rows with an equal pair keep their order."""
    sorted_hashes, rows = sort_by_hash(hashes)
    if rows.size and sorted_hashes[0] == sorted_hashes[-1]:
        return sort_by_hash(seconds)[1]
    # Rows of one hash are few, or in order already as those of lists in a merge; if neither, both columns are sorted.
    if _sort_groups(sorted_hashes, seconds, rows):
        return rows
    by_second = sort_by_hash(seconds)[1]
    return by_second[sort_by_hash(hashes[by_second])[1]]


@kernel("int64[], int64[], out int64[]")
def _sort_groups(sorted_hashes: Any, seconds: Any, rows: Any) -> Any:
    """Sort the rows of each hash by their seconds; return whether that was little to do."""
    start = 0
    moves = 0
    for i in range(1, rows.size):
        if sorted_hashes[i] != sorted_hashes[i - 1]:
            start = i
            continue
        row = rows[i]
        second = seconds[row]
        j = i
        while j > start and seconds[rows[j - 1]] > second:
            rows[j] = rows[j - 1]
            j -= 1
        rows[j] = row
        moves += i - j
        if moves > _FEW * rows.size:
            return False
    return True


def pair_starts(sorted_hashes: Ints, sorted_seconds: Ints) -> Ints:
    """Return where each run of equal pairs starts, with the number of rows as the last entry."""
    differs = sorted_hashes[1:] != sorted_hashes[:-1]
    differs |= sorted_seconds[1:] != sorted_seconds[:-1]
    return starts_where(differs, sorted_hashes.size)


@subroutine
def _first_at_least(values: Any, start: Any, end: Any, wanted: Any) -> Any:
    """Return the first place in values[start:end], which ascend, that is at least `wanted`."""
    while start < end:
        middle = (start + end) >> _1
        if values[middle] < wanted:
            start = middle + _1
        else:
            end = middle
    return start


@subroutine
def _end_of_hash(hashes: Any, place: Any, end: Any, query: Any) -> Any:
    """Return the end of the rows with a hash, the first of which is at `place`."""
    while place < end:
        middle = (place + end) >> _1
        if hashes[middle] == query:
            place = middle + _1
        else:
            end = middle
    return place


def probe_pair(
    queries: Ints,
    query_seconds: Ints,
    pending: Ints,
    hashes: Ints,
    seconds: Ints,
    base: np.uint64,
    shift: np.uint64,
    offsets: npt.NDArray[np.uint32],
    directory_row: int,
    segment_row: int,
    live: Bits,
    live_row: int,
    out: Ints,
) -> None:
    """As `probe`, in a run that is sorted by (hash, second): find the first live row with the query's pair."""
    if not hashes.size:
        out[:] = -1
        return
    numbers, places = np.empty(_BLOCK, dtype=np.int64), np.zeros(_BLOCK + _AHEAD, dtype=np.uint64)
    asked = (queries, query_seconds, pending)
    where = (base, shift, offsets, directory_row - segment_row, segment_row, live, segment_row - live_row)
    if _probe_pair(*asked, hashes, seconds, *where, numbers, places, out):
        next_pair_candidates(out, unsettled(out), hashes, seconds, segment_row, live, live_row)


@kernel(
    "int64[], int64[], int64[], int64[], int64[], uint64, uint64, uint32[], int64, int64, uint8[], int64, out int64[], "
    "out uint64[], out int64[]"
)
def _probe_pair(
    queries: Any,
    query_seconds: Any,
    pending: Any,
    hashes: Any,
    seconds: Any,
    base: Any,
    shift: Any,
    offsets: Any,
    ahead: Any,
    segment_row: Any,
    live: Any,
    first_bit: Any,
    numbers: Any,
    places: Any,
    out: Any,
) -> Any:
    """As `kernels._probe`, for pairs."""
    hash_address, second_address = np.uint64(hashes.ctypes.data), np.uint64(seconds.ctypes.data)
    size, last = hashes.size, np.uint64(hashes.size - 1)
    open_ends = 0
    for block in range(0, pending.size, _BLOCK):
        count = min(_BLOCK, pending.size - block)
        # As in `probe`: plain loops, and no branch that depends on a hash but rare ones.
        for i in range(count):
            number = pending[block + i]
            numbers[i] = number
            places[i] = bucket_start(bucket_of(queries[number], base, shift), offsets, ahead, size)
        for i in range(count):
            prefetch(hash_address + (places[i + _AHEAD] << _3))
            place = min(first_near(hashes, places[i], queries[numbers[i]]), last)
            places[i] = place
            prefetch(second_address + (place << _3))
        for i in range(count):
            query, second = queries[numbers[i]], query_seconds[numbers[i]]
            place = places[i]
            if hashes[min(place + _1, last)] == query:
                # Several rows of one hash, which is rare, or else usual.
                end = bucket_start(bucket_of(query, base, shift) + _1, offsets, ahead, size)
                end = _end_of_hash(hashes, place, end, query)
                place = min(_first_at_least(seconds, place, end, second), last)
            same = np.int64(hashes[place] == query) & np.int64(seconds[place] == second)
            row = np.int64(place)
            on = is_live(live, row + first_bit) & same
            row += segment_row
            out[block + i] = (row + 1) * on - 1
            near = min(place + _1, last)
            if np.int64(hashes[near] == query) & np.int64(seconds[near] == second) & (same - on):
                out[block + i] = -2 - row
                open_ends += 1
    return open_ends


@kernel("out int64[], int64[], int64[], int64[], int64, uint8[], int64")
def next_pair_candidates(
    found: Any, which: Any, hashes: Any, seconds: Any, segment_row: Any, live: Any, live_row: Any
) -> None:
    """Move each of the rows found[which] on to the next live row that has the same pair, or to -1."""
    for k in range(which.size):
        place = found[which[k]] - segment_row
        query, second = hashes[place], seconds[place]
        found[which[k]] = -1
        place += 1
        while place < hashes.size and hashes[place] == query and seconds[place] == second:
            if is_live(live, place + segment_row - live_row):
                found[which[k]] = place + segment_row
                break
            place += 1


def hash_ranges(
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
) -> tuple[Ints, Ints]:
    """Find all live rows of this segment that have the hash of a pending query: (query numbers, rows)."""
    starts, none = np.empty(pending.size, dtype=np.uint64), np.empty(0, dtype=np.int64)
    rows_of = (directory_row - segment_row, segment_row, live, segment_row - live_row)
    where = (queries, pending, hashes, base, shift, offsets, *rows_of)
    total = _hash_ranges(*where, starts, none, none)
    numbers, rows = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    if total:
        _hash_ranges(*where, starts, numbers, rows)
    return numbers, rows


@kernel(
    "int64[], int64[], int64[], uint64, uint64, uint32[], int64, int64, uint8[], int64, out uint64[], out int64[], "
    "out int64[]"
)
def _hash_ranges(
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
    starts: Any,
    numbers: Any,
    rows: Any,
) -> Any:
    """Count the rows and note where they start, where there is no room for them; else write them."""
    is_count = rows.size == 0
    size = np.uint64(hashes.size)
    count = 0
    for i in range(pending.size):
        query = queries[pending[i]]
        if is_count:
            bucket = bucket_of(query, base, shift)
            start = bucket_start(bucket, offsets, ahead, hashes.size)
            end = bucket_start(bucket + _1, offsets, ahead, hashes.size)
            starts[i] = _first_at_least(hashes, start, end, query)
        place = starts[i]
        while place < size and hashes[place] == query:
            row = np.int64(place)
            on = is_live(live, row + first_bit)
            if on and not is_count:
                numbers[count] = pending[i]
                rows[count] = row + segment_row
            count += on
            place += _1
    return count
