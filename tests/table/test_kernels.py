"""The kernels of sorted runs, each against numpy."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrowstate.table import kernels
from arrowstate.table.run import Directory, Segment, all_live

INT64 = st.integers(-(2**63), 2**63 - 1)
FEW = st.integers(-3, 3)
HASHES = st.lists(INT64 | FEW, max_size=60).map(lambda values: np.array(values, np.int64))
SORTED = HASHES.map(np.sort)
RNG = np.random.default_rng(7)


def bits_of(flags):
    return np.packbits(np.asarray(flags, np.uint8), bitorder="little")


@settings(deadline=None)
@given(hashes=HASHES)
def test_sort_by_hash_is_the_stable_argsort(hashes):
    sorted_hashes, rows = kernels.sort_by_hash(hashes)

    expected = np.argsort(hashes, kind="stable")
    assert rows.tolist() == expected.tolist()
    assert sorted_hashes.tolist() == hashes[expected].tolist()


@pytest.mark.parametrize(
    "hashes",
    {
        "random": RNG.integers(-(2**63), 2**63 - 1, 50_000),
        "equal": np.full(50_000, -5),
        "sorted": np.sort(RNG.integers(-(2**63), 2**63 - 1, 50_000)),
        "reversed": np.sort(RNG.integers(-(2**63), 2**63 - 1, 50_000))[::-1].copy(),
        "many_equal": RNG.integers(-4, 4, 50_000),
        "two_top_bits": (RNG.integers(0, 2, 50_000) << 62) | RNG.integers(0, 2**20, 50_000),
    }.items(),
    ids=lambda item: item[0],
)
def test_sort_by_hash_sorts_every_shape_of_large_batches(hashes):
    values = hashes[1]

    sorted_hashes, rows = kernels.sort_by_hash(values)

    expected = np.argsort(values, kind="stable")
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(sorted_hashes, values[expected])


def test_hashes_that_share_their_top_44_bits_are_sorted_in_linear_time():
    kernels.sort_by_hash(np.zeros(1, np.int64))
    shared = (np.int64(123) << 20) | np.arange(400_000, dtype=np.int64)[::-1]

    start = time.perf_counter()
    sorted_hashes, rows = kernels.sort_by_hash(shared)
    seconds = time.perf_counter() - start

    np.testing.assert_array_equal(sorted_hashes, shared[::-1])
    np.testing.assert_array_equal(rows, np.arange(400_000)[::-1])
    # An insertion sort alone moves 8e10 entries here, which takes more than a minute.
    assert seconds < 5


@settings(deadline=None)
@given(hashes=SORTED)
def test_group_starts_are_the_borders_of_equal_hashes(hashes):
    starts = kernels.group_starts(hashes)

    _, first = np.unique(hashes, return_index=True)
    assert starts.tolist() == [*first.tolist(), hashes.size]


@settings(deadline=None)
@given(hashes=HASHES)
def test_fill_from_groups_gives_each_row_its_group(hashes):
    sorted_hashes, order = kernels.sort_by_hash(hashes)
    starts = kernels.group_starts(sorted_hashes)

    groups = kernels.fill_from_groups(order, starts)

    assert groups.tolist() == np.unique(hashes, return_inverse=True)[1].tolist()


@settings(deadline=None)
@given(flags=st.lists(st.booleans(), min_size=1, max_size=70), data=st.data())
def test_bits_are_cleared_and_counted_as_numpy_does(flags, data):
    bits = bits_of(flags)
    rows = np.array(data.draw(st.lists(st.integers(0, len(flags) - 1), max_size=20)), np.int64)
    start = data.draw(st.integers(0, len(flags)))
    stop = data.draw(st.integers(start, len(flags)))
    expected = np.array(flags)
    expected[rows] = False

    cleared = kernels.clear_bits(bits, rows)

    assert bits.tolist() == bits_of(expected).tolist()
    assert cleared == sum(flags) - expected.sum()
    assert kernels.count_bits(bits, start, stop) == expected[start:stop].sum()
    assert kernels.live_rows(bits, start, stop).tolist() == (np.flatnonzero(expected[start:stop]) + start).tolist()


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 1001])
def test_all_live_sets_one_bit_per_row_and_none_past_the_end(rows):
    bits = all_live(rows)

    assert np.unpackbits(bits, bitorder="little").tolist() == [1] * rows + [0] * (-rows % 8)


@settings(deadline=None)
@given(left=SORTED, right=SORTED)
def test_merge_two_is_the_stable_merge(left, right):
    left_rows, right_rows = np.arange(left.size), np.arange(right.size) + 1000

    hashes, rows = kernels.merge_two(left, left_rows, right, right_rows)

    both = np.concatenate((left, right))
    order = np.argsort(both, kind="stable")
    assert hashes.tolist() == both[order].tolist()
    assert rows.tolist() == np.concatenate((left_rows, right_rows))[order].tolist()


@pytest.mark.parametrize("words", [1, 2, 4])
def test_gather_copies_rows_to_places(words):
    source = RNG.integers(0, 2**60, (50, words)).astype(np.uint64)
    rows, places = RNG.integers(0, 50, 20), RNG.permutation(30)[:20]
    out = np.zeros((30, words), np.uint64)

    kernels.gather(source, rows, places, out)

    expected = np.zeros((30, words), np.uint64)
    expected[places] = source[rows]
    np.testing.assert_array_equal(out, expected)


def probe_all(segments, live, first_row, queries, pending, directory):
    out = np.full(pending.size, -7, np.int64)
    for segment in segments:
        part = np.full(pending.size, -7, np.int64)
        kernels.probe(
            queries,
            pending,
            segment.hashes,
            np.uint64(directory.base),
            np.uint64(directory.shift),
            directory.offsets,
            directory.first_row,
            segment.first_row,
            live,
            first_row,
            part,
        )
        out = np.maximum(out, part)
    return out


@settings(deadline=None)
@given(
    hashes=st.lists(INT64 | FEW | st.sampled_from([-(2**63), 2**63 - 1, 0, -1]), min_size=1, max_size=40),
    queries=st.lists(INT64 | FEW, max_size=30),
    data=st.data(),
)
@example(hashes=[2**63 - 1], queries=[-(2**63), 2**63 - 1], data=None)
@example(hashes=[-(2**63), 2**63 - 1], queries=[-(2**63), 0, 2**63 - 1], data=None)
def test_probe_finds_the_first_live_row_of_each_hash(hashes, queries, data):
    hashes = np.sort(np.array(hashes, np.int64))
    draw = data.draw if data is not None else lambda _: 0
    flags = (
        np.array([draw(st.booleans()) for _ in hashes], np.bool_) if data is not None else np.ones(hashes.size, bool)
    )
    first_row = draw(st.integers(0, 3))
    # Segments end where the hash changes, as they do in every run.
    borders = [0, *(np.flatnonzero(np.diff(hashes)) + 1).tolist(), hashes.size]
    cut = borders[draw(st.integers(0, len(borders) - 1))] if data is not None else 0
    segments = [
        Segment(None, hashes[low:high], first_row + low) for low, high in ((0, cut), (cut, hashes.size)) if low < high
    ]
    directory = Directory.build(segments)
    queries = np.sort(np.concatenate((np.array(queries, np.int64), hashes)))
    pending = np.flatnonzero(np.arange(queries.size) % 3 != 1)

    found = probe_all(segments, bits_of(flags), first_row, queries, pending, directory)

    expected = []
    for query in queries[pending]:
        live = np.flatnonzero((hashes == query) & flags)
        expected.append(int(live[0]) + first_row if live.size else -1)
    assert found.tolist() == expected


@settings(deadline=None)
@given(hashes=st.lists(INT64 | FEW, min_size=1, max_size=40), data=st.data())
def test_a_slice_is_probed_through_the_directory_of_the_whole_file(hashes, data):
    hashes = np.sort(np.array(hashes, np.int64))
    whole = Directory.build([Segment(None, hashes, 0)])
    low = data.draw(st.integers(0, hashes.size - 1))
    high = data.draw(st.integers(low + 1, hashes.size))
    segment = Segment(None, hashes[low:high], low)
    queries = np.unique(hashes)

    found = probe_all([segment], all_live(high - low), low, queries, np.arange(queries.size), whole)

    expected = [
        max(low, np.searchsorted(hashes, query)) if query in hashes[low:high] else -1 for query in queries.tolist()
    ]
    assert found.tolist() == expected


@settings(deadline=None)
@given(hashes=st.lists(INT64 | FEW, min_size=1, max_size=60))
def test_a_directory_has_about_one_bucket_per_row_and_borders_each_bucket(hashes):
    hashes = np.sort(np.array(hashes, np.int64))

    directory = Directory.build([Segment(None, hashes, 5)])

    buckets = [(int(value) + 2**63 - directory.base) >> directory.shift for value in hashes]
    assert directory.offsets.size - 2 == buckets[-1]
    assert directory.offsets.size <= 2 * hashes.size + 2
    expected = np.searchsorted(buckets, np.arange(directory.offsets.size))
    assert directory.offsets.tolist() == expected.tolist()
    assert directory.first_row == 5


def test_next_candidate_walks_the_live_rows_of_one_hash():
    hashes = np.array([3, 5, 5, 5, 5, 9], np.int64)
    live = bits_of([1, 1, 0, 1, 1, 1])

    rows = [11]
    while rows[-1] >= 0:
        rows.append(kernels.next_candidate(rows[-1], hashes, 10, live, 10))

    assert rows == [11, 13, 14, -1]
