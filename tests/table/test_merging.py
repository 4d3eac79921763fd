"""Which runs a merge policy picks."""

from __future__ import annotations

import numpy as np
import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.table.merging import MergePolicy
from arrowstate.table.run import Run


def run_of(live_rows, dead_rows=0):
    """A run as far as a policy looks at it."""
    return Run((), 0, live_rows + dead_rows, np.empty(0, np.uint8), live_rows)


def picked(policy, sizes):
    return [(run.live_rows, run.dead_rows) for run in policy.pick([run_of(*size) for size in sizes])]


POLICY = MergePolicy(fan_in=3, max_dead_share=0.5, first_tier_rows=10)


@pytest.mark.parametrize(
    ("live_rows", "tier"), [(1, 0), (10, 0), (11, 1), (30, 1), (31, 2), (90, 2), (91, 3), (10 * 3**20, 20)]
)
def test_tiers_grow_by_the_fan_in(live_rows, tier):
    assert POLICY.tier(live_rows) == tier


def test_nothing_is_merged_while_no_tier_is_full():
    assert picked(POLICY, [(5,), (10,), (11,), (30,), (100,), (80,)]) == []


def test_a_full_tier_is_merged_with_all_smaller_runs():
    assert picked(POLICY, [(5,), (12,), (200,), (30,), (7,), (11,)]) == [(5, 0), (12, 0), (30, 0), (7, 0), (11, 0)]


def test_of_several_full_tiers_the_largest_is_taken_so_that_one_merge_does():
    assert picked(POLICY, [(1,), (2,), (3,), (11,), (12,), (13,)]) == [(n, 0) for n in (1, 2, 3, 11, 12, 13)]


def test_a_run_with_too_many_dead_rows_is_merged_with_the_smaller_ones():
    assert picked(POLICY, [(40, 41), (5,), (50, 50)]) == [(40, 41), (5, 0)]


def test_one_merge_ends_the_picking():
    sizes = [(size % 97 + 1, size % 31) for size in range(200)]
    runs = [run_of(*size) for size in sizes]

    while chosen := POLICY.pick(runs):
        rest = [run for run in runs if not any(run is other for other in chosen)]
        assert len(rest) < len(runs)
        runs = [*rest, run_of(sum(run.live_rows for run in chosen))]

    assert sum(run.live_rows for run in runs) == sum(live for live, _ in sizes)


@pytest.mark.parametrize(
    "arguments",
    [
        {"fan_in": 1},
        {"fan_in": 0},
        {"max_dead_share": 0.0},
        {"max_dead_share": 1.5},
        {"first_tier_rows": 0},
    ],
)
def test_a_policy_that_would_never_end_or_never_merge_is_refused(arguments):
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        MergePolicy(**arguments)
