"""Kernels of runs that are sorted by a second column within equal hashes.

The second column is `_entry_hash`, the hash of what tells the rows of one key apart (namespace, user key of a
map), or `_seq`, the position of a list's element. So one entry of a key is found by a search in two levels,
and all rows of a key are one slice of a run. As in `kernels`, row numbers are those of the run's file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate.table.kernels import sort_by_hash
from arrowstate_formats.compiled import kernel, prefetch

__all__ = [
    "hash_ranges",
    "merge_two_pairs",
    "next_pair_candidates",
    "pair_starts",
    "probe_pair",
    "sort_by_pair",
]

_SIGN = np.uint64(1 << 63)
_BLOCK = 256


@kernel
def sort_by_pair(hashes: Any, seconds: Any) -> Any:
    """Return row numbers sorted by (hash, second); rows with an equal pair keep their order."""
    _, by_second = sort_by_hash(seconds)
    _, by_hash = sort_by_hash(hashes[by_second])
    return by_second[by_hash]


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
def _bucket(query: Any, base: Any, shift: Any, offsets: Any, directory_row: Any, segment_row: Any, end_row: Any) -> Any:
    """Return the rows of the segment that may have this hash: (first, end)."""
    unsigned = np.uint64(query) ^ _SIGN
    if unsigned < base:
        return segment_row, segment_row
    bucket = (unsigned - base) >> shift
    if bucket > np.uint64(offsets.size - 2):
        return segment_row, segment_row
    start = max(np.int64(offsets[bucket]) + directory_row, segment_row)
    return start, min(np.int64(offsets[bucket + np.uint64(1)]) + directory_row, end_row)


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
    end_row = segment_row + hashes.size
    starts = np.empty(_BLOCK, dtype=np.int64)
    ends = np.empty(_BLOCK, dtype=np.int64)
    directory_address = np.uint64(offsets.ctypes.data)
    hash_address, second_address = np.uint64(hashes.ctypes.data), np.uint64(seconds.ctypes.data)
    for block in range(0, pending.size, _BLOCK):
        size = min(_BLOCK, pending.size - block)
        # As in `probe`, each loop asks for the cache lines of the next.
        for i in range(size):
            unsigned = np.uint64(queries[pending[block + i]]) ^ _SIGN
            prefetch(directory_address + (((unsigned - base) >> shift) << np.uint64(2)))
        for i in range(size):
            query = queries[pending[block + i]]
            start, end = _bucket(query, base, shift, offsets, directory_row, segment_row, end_row)
            starts[i] = start - segment_row
            ends[i] = end - segment_row
            prefetch(hash_address + (np.uint64(starts[i]) << np.uint64(3)))
            prefetch(second_address + (np.uint64(starts[i]) << np.uint64(3)))
        for i in range(size):
            query = queries[pending[block + i]]
            first = _first_at_least(hashes, starts[i], ends[i], query)
            last = _first_above(hashes, first, ends[i], query)
            second = query_seconds[pending[block + i]]
            place = _first_at_least(seconds, first, last, second)
            found = np.int64(-1)
            while place < last and seconds[place] == second:
                bit = place + segment_row - live_row
                if (live[bit >> 3] >> (bit & 7)) & 1:
                    found = place + segment_row
                    break
                place += 1
            out[block + i] = found


@kernel
def next_pair_candidates(
    found: Any, which: Any, hashes: Any, seconds: Any, segment_row: Any, live: Any, live_row: Any
) -> None:
    """Move each of the rows found[which] on to the next live row that has the same pair, or to -1."""
    for i in which:
        first = found[i] - segment_row
        place = first + 1
        found[i] = -1
        while place < hashes.size and hashes[place] == hashes[first] and seconds[place] == seconds[first]:
            bit = place + segment_row - live_row
            if (live[bit >> 3] >> (bit & 7)) & 1:
                found[i] = place + segment_row
                break
            place += 1


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
    end_row = segment_row + hashes.size
    starts = np.empty(pending.size, dtype=np.int64)
    total = 0
    for i in range(pending.size):
        query = queries[pending[i]]
        start, end = _bucket(query, base, shift, offsets, directory_row, segment_row, end_row)
        place = _first_at_least(hashes, start - segment_row, end - segment_row, query)
        starts[i] = place
        while place < end - segment_row and hashes[place] == query:
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


@kernel
def merge_two_pairs(
    left_hashes: Any, left_seconds: Any, left_rows: Any, right_hashes: Any, right_seconds: Any, right_rows: Any
) -> Any:
    """Merge two lists sorted by (hash, second); rows with an equal pair come from the left first."""
    size = left_hashes.size + right_hashes.size
    hashes = np.empty(size, dtype=np.int64)
    seconds = np.empty(size, dtype=np.int64)
    rows = np.empty(size, dtype=np.int64)
    i = 0
    j = 0
    for k in range(size):
        take_left = i < left_hashes.size
        if take_left and j < right_hashes.size:
            equal = left_hashes[i] == right_hashes[j]
            take_left = left_hashes[i] < right_hashes[j] or (equal and left_seconds[i] <= right_seconds[j])
        if take_left:
            hashes[k] = left_hashes[i]
            seconds[k] = left_seconds[i]
            rows[k] = left_rows[i]
            i += 1
        else:
            hashes[k] = right_hashes[j]
            seconds[k] = right_seconds[j]
            rows[k] = right_rows[j]
            j += 1
    return hashes, seconds, rows
