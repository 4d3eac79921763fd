"""Kernels of runs that are sorted by a second column within equal hashes.

The second column is `_entry_hash`, the hash of what tells the rows of one key apart (namespace, user key of a
map), or `_seq`, the position of a list's element. So one entry of a key is found by a search in two levels,
and all rows of a key are one slice of a run. As in `kernels`, row numbers are those of the run's file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate.table.kernels import bucket_of, first_near, sort_by_hash
from arrowstate_formats.compiled import kernel, prefetch

__all__ = [
    "hash_ranges",
    "next_pair_candidates",
    "pair_starts",
    "probe_pair",
    "sort_by_pair",
]

_BLOCK = 256
_AHEAD = 16
_FEW = 16


@kernel
def sort_by_pair(hashes: Any, seconds: Any) -> Any:
    """Return row numbers sorted by (hash, second); rows with an equal pair keep their order."""
    sorted_hashes, rows = sort_by_hash(hashes)
    # Rows of one hash are few, or in order already as those of lists in a merge; if neither, they are sorted as hashes.
    end = 0
    while end < rows.size:
        start = end
        end += 1
        while end < rows.size and sorted_hashes[end] == sorted_hashes[start]:
            end += 1
        moves = 0
        for i in range(start + 1, end):
            row = rows[i]
            j = i
            while j > start and seconds[rows[j - 1]] > seconds[row]:
                rows[j] = rows[j - 1]
                j -= 1
            rows[j] = row
            moves += i - j
            if moves > _FEW * (end - start):
                group = rows[start:end]
                _, order = sort_by_hash(seconds[group])
                rows[start:end] = group[order]
                break
    return rows


@kernel
def pair_starts(sorted_hashes: Any, sorted_seconds: Any) -> Any:
    """Return where each run of equal pairs starts, with the number of rows as the last entry."""
    size = sorted_hashes.size
    starts = np.empty(size + 1, dtype=np.int64)
    count = 0
    for i in range(size):
        same_hash = i > 0 and sorted_hashes[i] == sorted_hashes[i - 1]
        if not (same_hash and sorted_seconds[i] == sorted_seconds[i - 1]):
            starts[count] = i
            count += 1
    starts[count] = size
    return starts[: count + 1].copy()


@kernel
def _bucket(query: Any, base: Any, shift: Any, offsets: Any, directory_row: Any, segment_row: Any, size: Any) -> Any:
    """Return the places of the segment that may have this hash: (first, end)."""
    bucket = bucket_of(query, base, shift, offsets)
    start = np.int64(offsets[bucket]) + directory_row - segment_row
    end = np.int64(offsets[min(bucket + np.uint64(1), np.uint64(offsets.size - 1))]) + directory_row - segment_row
    return min(max(start, 0), size), min(max(end, 0), size)


@kernel
def _first_at_least(values: Any, start: Any, end: Any, wanted: Any) -> Any:
    """Return the first place in values[start:end], which ascend, that is at least `wanted`."""
    while end - start > 16:
        middle = (start + end) >> 1
        if values[middle] < wanted:
            start = middle + 1
        else:
            end = middle
    while start < end and values[start] < wanted:
        start += 1
    return start


@kernel
def _first_above(values: Any, start: Any, end: Any, wanted: Any) -> Any:
    """Return the first place in values[start:end], which ascend, that is above `wanted`."""
    while end - start > 16:
        middle = (start + end) >> 1
        if values[middle] <= wanted:
            start = middle + 1
        else:
            end = middle
    while start < end and values[start] <= wanted:
        start += 1
    return start


@kernel
def probe_pair(
    queries: Any,
    query_seconds: Any,
    pending: Any,
    hashes: Any,
    seconds: Any,
    base: Any,
    shift: Any,
    offsets: Any,
    directory_row: Any,
    segment_row: Any,
    live: Any,
    live_row: Any,
    out: Any,
) -> None:
    """As `probe`, in a run that is sorted by (hash, second): find the first live row with the query's pair."""
    numbers = np.empty(_BLOCK, dtype=np.int64)
    places = np.zeros(_BLOCK + _AHEAD, dtype=np.int64)
    hash_address, second_address = np.uint64(hashes.ctypes.data), np.uint64(seconds.ctypes.data)
    size = hashes.size
    if size == 0:
        out[:] = -1
        return
    for block in range(0, pending.size, _BLOCK):
        count = min(_BLOCK, pending.size - block)
        # As in `probe`: plain loops, and no branch that depends on a hash but rare ones.
        for i in range(count):
            numbers[i] = pending[block + i]
            places[i], _ = _bucket(queries[numbers[i]], base, shift, offsets, directory_row, segment_row, size)
        for i in range(count):
            prefetch(hash_address + (np.uint64(places[i + _AHEAD]) << np.uint64(3)))
            places[i] = min(first_near(hashes, places[i], queries[numbers[i]]), size - 1)
            prefetch(second_address + (np.uint64(places[i]) << np.uint64(3)))
        for i in range(count):
            query, second = queries[numbers[i]], query_seconds[numbers[i]]
            place = places[i]
            if hashes[np.uint64(min(place + 1, size - 1))] == query:
                # Several rows of one hash, which is rare, or else usual.
                _, end = _bucket(query, base, shift, offsets, directory_row, segment_row, size)
                end = _first_above(hashes, place, end, query)
                place = min(_first_at_least(seconds, place, end, second), size - 1)
            near = np.uint64(place)
            same = np.int64(hashes[near] == query) & np.int64(seconds[near] == second)
            row = place + segment_row
            bit = np.uint64(row - live_row)
            on = np.int64(live[bit >> np.uint64(3)] >> np.uint8(bit & np.uint64(7))) & same
            out[block + i] = (row + 1) * on - 1
            near = np.uint64(min(place + 1, size - 1))
            if np.int64(hashes[near] == query) & np.int64(seconds[near] == second) & (same - on):
                out[block + i] = next_pair_candidate(place, hashes, seconds, segment_row, live, live_row)


@kernel
def next_pair_candidate(place: Any, hashes: Any, seconds: Any, segment_row: Any, live: Any, live_row: Any) -> Any:
    """Return the next live row after a place of the segment that has the same pair, or -1."""
    query, second = hashes[place], seconds[place]
    place += 1
    while place < hashes.size and hashes[place] == query and seconds[place] == second:
        bit = place + segment_row - live_row
        if (live[bit >> 3] >> (bit & 7)) & 1:
            return place + segment_row
        place += 1
    return -1


@kernel
def next_pair_candidates(
    found: Any, which: Any, hashes: Any, seconds: Any, segment_row: Any, live: Any, live_row: Any
) -> None:
    """Move each of the rows found[which] on to the next live row that has the same pair, or to -1."""
    for i in which:
        found[i] = next_pair_candidate(found[i] - segment_row, hashes, seconds, segment_row, live, live_row)


@kernel
def hash_ranges(
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
) -> Any:
    """Find all live rows of this segment that have the hash of a pending query: (query numbers, rows)."""
    starts = np.empty(pending.size, dtype=np.int64)
    total = 0
    for i in range(pending.size):
        query = queries[pending[i]]
        start, end = _bucket(query, base, shift, offsets, directory_row, segment_row, hashes.size)
        place = first_near(hashes, start, query) if end - start <= _FEW else _first_at_least(hashes, start, end, query)
        starts[i] = place
        while place < end and hashes[place] == query:
            bit = place + segment_row - live_row
            total += (live[bit >> 3] >> (bit & 7)) & 1
            place += 1
    numbers = np.empty(total, dtype=np.int64)
    rows = np.empty(total, dtype=np.int64)
    count = 0
    for i in range(pending.size):
        query = queries[pending[i]]
        place = starts[i]
        while place < hashes.size and hashes[place] == query:
            bit = place + segment_row - live_row
            if (live[bit >> 3] >> (bit & 7)) & 1:
                numbers[count] = pending[i]
                rows[count] = place + segment_row
                count += 1
            place += 1
    return numbers, rows
