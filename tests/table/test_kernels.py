"""The kernels of sorted runs, each against numpy."""

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrowstate.table import kernels, pair_kernels, place_kernels
from arrowstate.table.run import all_live
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Directory

INT64 = st.integers(-(2**63), 2**63 - 1)
FEW = st.integers(-3, 3)
HASHES = st.lists(INT64 | FEW, max_size=60).map(lambda values: np.array(values, np.int64))
SORTED = HASHES.map(np.sort)
RNG = np.random.default_rng(7)


def segment_of(hashes, first_row):
    return Segment.of(pa.record_batch({"_key_hash": hashes}), first_row)


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


def test_hashes_that_share_their_top_44_bits_but_for_one_are_sorted_in_linear_time():
    kernels.sort_by_hash(np.zeros(1, np.int64))
    shared = (np.int64(123) << 20) | np.arange(400_000, dtype=np.int64)[::-1]
    hashes = np.append(shared, np.int64(-(2**63)))

    start = time.perf_counter()
    sorted_hashes, rows = kernels.sort_by_hash(hashes)
    seconds = time.perf_counter() - start

    np.testing.assert_array_equal(sorted_hashes, hashes[::-1])
    np.testing.assert_array_equal(rows, np.arange(400_001)[::-1])
    # An insertion sort alone moves 8e10 entries here, which takes more than a minute.
    assert seconds < 5


def test_rows_of_one_hash_are_sorted_by_the_second_column_in_linear_time():
    hashes, seconds = np.zeros(400_000, np.int64), np.arange(400_000)[::-1].copy()
    pair_kernels.sort_by_pair(hashes[:1], seconds[:1])

    start = time.perf_counter()
    rows = pair_kernels.sort_by_pair(hashes, seconds)

    assert time.perf_counter() - start < 5
    np.testing.assert_array_equal(rows, seconds)


PAIRS = {
    "random": (RNG.integers(-(2**63), 2**63 - 1, 20_000), RNG.integers(-(2**63), 2**63 - 1, 20_000)),
    "one_hash": (np.full(20_000, 7), RNG.integers(-(2**63), 2**63 - 1, 20_000)),
    "groups_of_all_sizes": (RNG.geometric(0.01, 20_000), RNG.integers(-50, 50, 20_000)),
    "equal_pairs": (RNG.integers(0, 3, 20_000), RNG.integers(0, 2, 20_000)),
    "empty": (np.empty(0, np.int64), np.empty(0, np.int64)),
}


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_sort_by_pair_is_the_stable_sort_by_both(pairs):
    hashes, seconds = pairs

    rows = pair_kernels.sort_by_pair(hashes, seconds)

    np.testing.assert_array_equal(rows, np.lexsort((seconds, hashes)))


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

    cleared = kernels.clear_bits(bits, rows + 100, 100, np.empty(rows.size, np.int64))

    assert bits.tolist() == bits_of(expected).tolist()
    assert sorted(cleared) == (np.flatnonzero(np.array(flags) & ~expected) + 100).tolist()
    assert kernels.count_bits(bits, start, stop) == expected[start:stop].sum()
    assert kernels.live_rows(bits, start, stop).tolist() == (np.flatnonzero(expected[start:stop]) + start).tolist()


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 1001])
def test_all_live_sets_one_bit_per_row_and_none_past_the_end(rows):
    bits = all_live(rows)

    assert np.unpackbits(bits, bitorder="little").tolist() == [1] * rows + [0] * (-rows % 8)


@settings(deadline=None)
@given(flags=st.lists(st.booleans(), min_size=1, max_size=40), data=st.data())
def test_live_places_are_those_of_the_set_bits(flags, data):
    first = data.draw(st.integers(0, len(flags) - 1))
    hashes = RNG.integers(-9, 9, len(flags) - first)
    out_hashes, out_places = np.empty(hashes.size, np.int64), np.empty(hashes.size, np.int64)

    count = kernels.live_places(bits_of(flags), first, hashes, 3, out_hashes, out_places)

    live = np.flatnonzero(flags[first:])
    assert out_hashes[:count].tolist() == hashes[live].tolist()
    assert out_places[:count].tolist() == ((3 << 32) + live).tolist()


@pytest.mark.parametrize(("word", "words"), [("u1", 1), ("u2", 1), ("u4", 1), ("u8", 1), ("u8", 2), ("u8", 4)])
def test_gather_places_copies_rows_of_several_sources(word, words):
    sources = [RNG.integers(0, 200, (rows, words)).astype(word) for rows in (7, 1, 30)]
    number = RNG.integers(0, 3, 50)
    rows = np.array([RNG.integers(0, len(sources[source])) for source in number])
    out = np.zeros((50, words), word)

    kernels.gather_places(np.array([source.ctypes.data for source in sources], np.uint64), number << 32 | rows, out)

    np.testing.assert_array_equal(out, [sources[source][row] for source, row in zip(number, rows, strict=True)])


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
        segment_of(hashes[low:high], first_row + low) for low, high in ((0, cut), (cut, hashes.size)) if low < high
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
@given(
    rows=st.lists(
        st.tuples(INT64 | FEW, FEW, st.booleans())
        | st.tuples(st.just(5), st.integers(0, 99), st.booleans())
        | st.tuples(st.just(5), st.just(7), st.booleans()),
        min_size=1,
        max_size=80,
    ),
    queries=st.lists(st.tuples(INT64 | FEW | st.just(5), FEW | st.integers(0, 99)), max_size=30),
    data=st.data(),
)
def test_probe_pair_finds_the_first_live_row_of_each_pair(rows, queries, data):
    rows.sort(key=lambda row: row[:2])
    hashes, seconds, flags = (np.array(column) for column in zip(*rows, strict=True))
    directory = Directory.build([segment_of(hashes, 0)])
    # The segment is a slice of the file, cut where the hash changes as every segment is.
    borders = [0, *(np.flatnonzero(np.diff(hashes)) + 1).tolist(), hashes.size]
    low, high = sorted(data.draw(st.lists(st.sampled_from(borders), min_size=2, max_size=2, unique=True)))
    asked = np.array(sorted({*queries, *(row[:2] for row in rows)}), np.int64).reshape(-1, 2)
    out = np.full(len(asked), -7, np.int64)

    pair_kernels.probe_pair(
        asked[:, 0].copy(),
        asked[:, 1].copy(),
        np.arange(len(asked)),
        hashes[low:high],
        seconds[low:high],
        np.uint64(directory.base),
        np.uint64(directory.shift),
        directory.offsets,
        0,
        low,
        bits_of(flags[low:]),
        low,
        out,
    )

    expected = []
    for query, second in asked:
        live = np.flatnonzero((hashes == query) & (seconds == second) & flags)
        live = live[(live >= low) & (live < high)]
        expected.append(int(live[0]) if live.size else -1)
    assert out.tolist() == expected


@settings(deadline=None)
@given(hashes=st.lists(INT64 | FEW, min_size=1, max_size=40), data=st.data())
def test_a_slice_is_probed_through_the_directory_of_the_whole_file(hashes, data):
    hashes = np.sort(np.array(hashes, np.int64))
    whole = Directory.build([segment_of(hashes, 0)])
    low = data.draw(st.integers(0, hashes.size - 1))
    high = data.draw(st.integers(low + 1, hashes.size))
    segment = segment_of(hashes[low:high], low)
    queries = np.unique(hashes)

    found = probe_all([segment], all_live(high - low), low, queries, np.arange(queries.size), whole)

    expected = [
        max(low, np.searchsorted(hashes, query)) if query in hashes[low:high] else -1 for query in queries.tolist()
    ]
    assert found.tolist() == expected


@settings(deadline=None)
@given(hashes=st.lists(INT64 | FEW, min_size=1, max_size=60))
def test_a_directory_has_no_more_buckets_than_rows_and_borders_each_bucket(hashes):
    hashes = np.sort(np.array(hashes, np.int64))

    directory = Directory.build([segment_of(hashes, 5)])

    buckets = [(int(value) + 2**63 - directory.base) >> directory.shift for value in hashes]
    assert directory.offsets.size - 2 == buckets[-1]
    assert directory.offsets.size <= hashes.size + 2
    assert 0 <= directory.shift <= 63
    expected = np.searchsorted(buckets, np.arange(directory.offsets.size))
    assert directory.offsets.tolist() == expected.tolist()
    assert directory.first_row == 5


def test_next_candidate_walks_the_live_rows_of_one_hash():
    hashes = np.array([3, 5, 5, 5, 5, 9], np.int64)
    live = bits_of([1, 1, 0, 1, 1, 1])

    rows = [11]
    while rows[-1] >= 0:
        found = np.array([-7, rows[-1]])
        kernels.next_candidates(found, np.array([1]), hashes, 10, live, 10)
        rows.append(int(found[1]))

    assert rows == [11, 13, 14, -1]
    assert found[0] == -7


def test_what_went_somewhere_is_cleared_there_once_and_what_went_nowhere_is_not():
    went = np.array([0, 3, 1, 0, 9], np.uint32)
    bits = bits_of([1, 1, 1, 0, 1, 1, 1, 1, 1])

    given = [([10, 11], 20), ([11, 13, 14], 20), ([12], 12), ([12], 13)]
    counts = [place_kernels.clear_places(np.array(rows), end, -10, went, bits) for rows, end in given]

    assert counts == [1, 1, 0, 1]
    assert bits.tolist() == bits_of([0, 1, 0, 0, 1, 1, 1, 1, 0]).tolist()
