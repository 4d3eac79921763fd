"""Few keys looked up in a run of many segments: by the addresses of their columns, without a call for each of them.

Most of a segment lies between two keys that are looked up, so the loops that suit many keys of one segment do not suit
this: here a segment is found for each key, then its row there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from arrowstate.table.segments import Segments
from arrowstate_formats.compiled import kernel, load_uint64, prefetch

Ints = npt.NDArray[np.int64]

_FEW = 256
_AHEAD = 16
_3 = np.uint64(3)


def is_sparse(rows: int, segments: Segments) -> bool:
    """Whether so many rows of a run lie so far apart that they are better not gone through segment by segment."""
    return len(segments) > 1 and rows < _FEW * len(segments)


class Places(Struct, frozen=True):
    """Where the rows of some queries are in a run, those of each query one after the other."""

    queries: Ints
    "The places, among the queries given, of those that have rows; ascending."
    rows: Ints
    "The first row of each."
    counts: Ints
    "How many rows each has, dead ones included."


def first_places(segments: Segments, starts: Ints, hashes: Ints, seconds: Ints | None, numbers: Ints) -> Places:
    """Find the rows of queries by hash, and where `seconds` are given by the second sort column too."""
    asked = np.flatnonzero(numbers >= 0)
    of = numbers[asked]
    local, sizes = starts[asked] - segments.first_rows[of], segments.rows[of]
    places, counts = np.clip(local, 0, sizes), np.empty(asked.size, dtype=np.int64)
    addresses = segments.hash_addresses(of)
    queries = hashes[asked]
    if seconds is None:
        _find(queries, addresses, sizes, places, counts)
    else:
        _find_pairs(queries, seconds[asked], addresses, segments.second_addresses(of), sizes, places, counts)
    found = np.flatnonzero(counts)
    return Places(asked[found], places[found] + segments.first_rows[of[found]], counts[found])


@kernel("int64[], uint64[], int64[], out int64[], out int64[]")
def _find(queries: Any, addresses: Any, sizes: Any, places: Any, counts: Any) -> None:
    """Move each place on to the first row with the hash, and count the rows that have it."""
    last = queries.size - 1
    for i in range(queries.size):
        ahead = min(i + _AHEAD, last)
        prefetch(addresses[ahead] + (np.uint64(places[ahead]) << _3))
        query, address, size = queries[i], addresses[i], sizes[i]
        place = places[i]
        while place < size and np.int64(load_uint64(address + (np.uint64(place) << _3))) < query:
            place += 1
        places[i] = place
        count = 0
        while place < size and np.int64(load_uint64(address + (np.uint64(place) << _3))) == query:
            place += 1
            count += 1
        counts[i] = count


@kernel("int64[], int64[], uint64[], uint64[], int64[], out int64[], out int64[]")
def _find_pairs(
    queries: Any, query_seconds: Any, addresses: Any, second_addresses: Any, sizes: Any, places: Any, counts: Any
) -> None:
    """The same by hash and second column, by which the rows of a hash are sorted."""
    last = queries.size - 1
    for i in range(queries.size):
        ahead = min(i + _AHEAD, last)
        prefetch(addresses[ahead] + (np.uint64(places[ahead]) << _3))
        prefetch(second_addresses[ahead] + (np.uint64(places[ahead]) << _3))
        query, second, address, size = queries[i], query_seconds[i], addresses[i], sizes[i]
        place = places[i]
        while place < size and np.int64(load_uint64(address + (np.uint64(place) << _3))) < query:
            place += 1
        # The end of the hash is near for most; a key with many entries is gone through in longer and longer steps.
        step = 1
        end = place
        while end < size and np.int64(load_uint64(address + (np.uint64(end) << _3))) == query:
            end = min(size, end + step)
            step += step
        low, high = place, end
        while low < high:
            middle = (low + high) >> 1
            at = np.uint64(middle) << _3
            if np.int64(load_uint64(address + at)) == query and (
                np.int64(load_uint64(second_addresses[i] + at)) < second
            ):
                low = middle + 1
            else:
                high = middle
        places[i] = low
        count = 0
        while low < size:
            at = np.uint64(low) << _3
            if np.int64(load_uint64(address + at)) != query:
                break
            if np.int64(load_uint64(second_addresses[i] + at)) != second:
                break
            low += 1
            count += 1
        counts[i] = count
