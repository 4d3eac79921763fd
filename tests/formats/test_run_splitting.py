"""Where a run is cut into batches: along key groups, of even size, never between rows of equal hash."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arrowstate_formats import InvalidInputError, key_groups_of_hashes
from arrowstate_formats.run_files import split_at_key_groups

HASHES = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20), max_size=200).map(
    lambda values: np.array(sorted(values), np.int64)
)


@given(hashes=HASHES, max_parallelism=st.sampled_from([1, 2, 3, 16, 128, 32768]), target_rows=st.integers(1, 40))
@example(hashes=np.zeros(50, np.int64), max_parallelism=2, target_rows=3)
@example(hashes=np.arange(100), max_parallelism=128, target_rows=10)
def test_cuts_keep_their_promises(hashes: np.ndarray, max_parallelism: int, target_rows: int) -> None:
    cuts = split_at_key_groups(hashes, max_parallelism, target_rows=target_rows)

    groups = key_groups_of_hashes(hashes, max_parallelism)
    assert (cuts[0], cuts[-1]) == (0, len(hashes))
    for start, end in itertools.pairwise(cuts):
        assert start < end
        if end < len(hashes):
            assert hashes[end - 1] != hashes[end], "rows of equal hash stay together"
        if groups[start] != groups[end - 1]:
            assert end - start <= target_rows, "small key groups share a batch up to the target"
        if end - start > 4 * target_rows:
            # Only a crowd of equal hashes makes a batch this large.
            assert np.unique(hashes[start:end], return_counts=True)[1].max() > target_rows
    for cut in cuts[1:-1]:
        if groups[cut - 1] == groups[cut]:
            assert np.count_nonzero(groups == groups[cut]) > 4 * target_rows, "only a large key group is cut inside"
    for left, middle, right in zip(cuts, cuts[1:], cuts[2:], strict=False):
        if len(set(groups[[left, right - 1]])) > 1 and groups[middle - 1] != groups[middle]:
            following = middle + np.count_nonzero(groups[middle:] == groups[middle])
            assert following - left > target_rows, "no batch ends while the next key group would still fit"


def test_a_large_key_group_is_cut_into_even_pieces() -> None:
    cuts = split_at_key_groups(np.arange(1000), 1, target_rows=100)

    assert cuts == list(range(0, 1001, 100))


def test_a_key_group_a_little_over_the_target_stays_whole() -> None:
    cuts = split_at_key_groups(np.arange(400), 1, target_rows=100)

    assert cuts == [0, 400]


def test_no_rows_give_no_batches() -> None:
    assert split_at_key_groups(np.empty(0, np.int64), 128) == [0]


@pytest.mark.parametrize(("max_parallelism", "target_rows"), [(0, 10), (32769, 10), (128, 0)])
def test_arguments_out_of_range_are_refused(max_parallelism: int, target_rows: int) -> None:
    with pytest.raises(InvalidInputError, match="must be"):
        split_at_key_groups(np.arange(3), max_parallelism, target_rows=target_rows)
