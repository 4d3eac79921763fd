"""Key groups against vectors: the definition in whole numbers, and Flink's assignment to subtasks."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowstate_formats import (
    MAX_PARALLELISM,
    InvalidInputError,
    KeyGroupRange,
    default_max_parallelism,
    key_group_range,
    key_groups,
    key_groups_of_hashes,
    key_hash,
)
from arrowstate_formats.key_groups import first_hashes

VECTORS = Path(__file__).parents[2] / "formats/vectors"
GROUPS = json.loads((VECTORS / "key_groups.json").read_text())
FLINK = json.loads((VECTORS / "flink_key_groups.json").read_text())


@pytest.mark.parametrize("case", GROUPS["groups"], ids=lambda case: str(case["max_parallelism"]))
def test_key_groups_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    found = key_groups_of_hashes(np.array(GROUPS["hashes"]), case["max_parallelism"])

    assert found.dtype == np.int32
    assert found.tolist() == case["key_groups"]


@pytest.mark.parametrize(
    "case", GROUPS["ranges"], ids=lambda case: f"{case['key_groups']} of {case['max_parallelism']}"
)
def test_hash_bounds_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    groups = KeyGroupRange(*case["key_groups"])

    assert list(groups.hash_bounds(case["max_parallelism"])) == case["hashes"]


@pytest.mark.parametrize(
    "case", FLINK["ranges"], ids=lambda case: f"{case['max_parallelism']} by {case['parallelism']}"
)
def test_subtasks_own_the_key_groups_that_flink_gives_them(case: dict[str, Any]) -> None:
    parallelism = case["parallelism"]

    ranges = [
        key_group_range(case["max_parallelism"], parallelism=parallelism, subtask=subtask)
        for subtask in range(parallelism)
    ]

    assert [[groups.start, groups.end] for groups in ranges] == case["key_groups"]


@pytest.mark.parametrize(("parallelism", "expected"), FLINK["default_max_parallelism"])
def test_default_max_parallelism_is_that_of_flink(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@given(max_parallelism=st.integers(1, MAX_PARALLELISM), data=st.data())
def test_subtasks_cover_every_key_group_once_and_evenly(max_parallelism: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, min(max_parallelism, 300)))

    ranges = [
        key_group_range(max_parallelism, parallelism=parallelism, subtask=subtask) for subtask in range(parallelism)
    ]

    assert [ranges[0].start, ranges[-1].end] == [0, max_parallelism - 1]
    assert all(left.end + 1 == right.start for left, right in itertools.pairwise(ranges))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(max_parallelism=st.integers(1, MAX_PARALLELISM), data=st.data())
def test_hash_bounds_hold_the_hashes_of_a_key_group_and_no_others(max_parallelism: int, data: st.DataObject) -> None:
    group = data.draw(st.integers(0, max_parallelism - 1))

    low, high = KeyGroupRange(group, group).hash_bounds(max_parallelism)

    inside = key_groups_of_hashes(np.array([low, high]), max_parallelism)
    outside = key_groups_of_hashes(
        np.array([max(low - 1, -(2**63)), min(high + 1, 2**63 - 1)]),
        max_parallelism,
    )
    assert inside.tolist() == [group, group]
    assert outside.tolist() == [max(group - 1, 0), min(group + 1, max_parallelism - 1)]
    assert first_hashes(max_parallelism)[group] == low


@given(hashes=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), max_parallelism=st.integers(1, MAX_PARALLELISM))
def test_rows_sorted_by_hash_are_sorted_by_key_group(hashes: list[int], max_parallelism: int) -> None:
    groups = key_groups_of_hashes(np.array(sorted(hashes), np.int64), max_parallelism)

    assert (np.diff(groups) >= 0).all()


def test_key_groups_of_keys_are_those_of_their_hashes() -> None:
    keys = pa.record_batch({"origin": ["EWR", "JFK"], "dest": ["IAH", "MIA"]})

    found = key_groups(keys, 128)

    assert found.type == pa.int32()
    assert found.to_pylist() == key_groups_of_hashes(key_hash(keys).to_numpy(), 128).tolist()


def test_finding_key_groups_leaves_the_hashes_alone() -> None:
    hashes = np.array([-1, 0, 1])

    key_groups_of_hashes(hashes, 128)

    assert hashes.tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((0, 10), (3, 7), (3, 7)),
        ((3, 7), (0, 10), (3, 7)),
        ((0, 10), (10, 20), (10, 10)),
        ((0, 10), (11, 20), None),
        ((0, 10), (0, 10), (0, 10)),
    ],
)
def test_intersection(left: tuple[int, int], right: tuple[int, int], expected: tuple[int, int] | None) -> None:
    found = KeyGroupRange(*left).intersection(KeyGroupRange(*right))

    assert found == (None if expected is None else KeyGroupRange(*expected))


def test_a_range_is_a_collection_of_key_groups() -> None:
    groups = KeyGroupRange(3, 5)

    assert list(groups) == [3, 4, 5]
    assert len(groups) == 3
    assert 3 in groups
    assert np.int32(5) in groups
    assert 6 not in groups
    assert "3" not in groups


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3), (0, 32768)])
def test_a_range_outside_the_key_groups_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidInputError, match="0 <= start <= end < 32768"):
        KeyGroupRange(start, end)


def test_hash_bounds_beyond_the_max_parallelism_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="do not exist at max parallelism 128"):
        KeyGroupRange(100, 128).hash_bounds(128)


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769])
def test_a_max_parallelism_out_of_range_is_refused(max_parallelism: int) -> None:
    with pytest.raises(InvalidInputError, match="max parallelism must be 1 to 32768"):
        key_groups_of_hashes(np.array([1]), max_parallelism)
    with pytest.raises(InvalidInputError, match="max parallelism must be 1 to 32768"):
        key_group_range(max_parallelism, parallelism=1, subtask=0)
    with pytest.raises(InvalidInputError, match="max parallelism must be 1 to 32768"):
        KeyGroupRange(0, 0).hash_bounds(max_parallelism)


@pytest.mark.parametrize(("parallelism", "subtask"), [(0, 0), (129, 0), (3, 3), (3, -1)])
def test_a_subtask_out_of_range_is_refused(parallelism: int, subtask: int) -> None:
    with pytest.raises(InvalidInputError, match="must be"):
        key_group_range(128, parallelism=parallelism, subtask=subtask)


@pytest.mark.parametrize("parallelism", [0, 32769])
def test_a_parallelism_without_a_default_is_refused(parallelism: int) -> None:
    with pytest.raises(InvalidInputError, match="parallelism must be 1 to 32768"):
        default_max_parallelism(parallelism)
