"""Which runs a merge policy picks, and what a merge makes of them."""

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.table.merging import MemorySink, MergePolicy, merge_runs
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


WIDTHS = [pa.int8(), pa.uint16(), pa.float32(), pa.int64(), pa.decimal128(30, 2), pa.bool_(), pa.string()]


def filled_runs(second, random):
    """Runs of random rows: columns of every width and of text, with nulls in some runs, some rows dead."""
    runs = []
    for number, rows in enumerate((1, 700, 40, 2500)):
        hashes = random.integers(-5, 5, rows) if random.random() < 0.5 else random.integers(-(2**63), 2**63 - 1, rows)
        seconds = random.integers(-30, 30, rows)
        order = np.lexsort((seconds, hashes)) if second else np.argsort(hashes, kind="stable")
        values = random.integers(0, 100, rows)
        mask = pa.array(random.random(rows) < 0.2) if number % 2 else None
        columns = [pa.array(hashes[order]), *([pa.array(seconds[order])] if second else [])]
        names = ["_key_hash", *([second] if second else [])]
        for kind in WIDTHS:
            column = (pa.array(values > 50) if kind == pa.bool_() else pa.array(values)).cast(kind)
            columns.append(column if mask is None else pa.compute.if_else(mask, None, column))
            names.append(str(kind))
        columns.append(pa.array([number] * rows))
        names.append("run")
        batch = pa.record_batch(columns, names=names)
        cut = int(np.searchsorted(batch.column(0).to_numpy(), batch.column(0)[rows // 2].as_py()))
        run = Run.of([part for part in (batch[:cut], batch[cut:]) if part.num_rows])
        run.kill(np.flatnonzero(random.random(rows) < 0.3))
        runs.append(run)
    return runs


@pytest.mark.parametrize("second", [None, "_entry_hash"])
@pytest.mark.parametrize("segment_bytes", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("seed", range(4))
def test_a_merge_keeps_the_live_rows_of_all_runs_in_order(second, segment_bytes, seed):
    runs = filled_runs(second, np.random.default_rng(seed))
    sort = 2 if second else 1

    merged = merge_runs(runs, MergePolicy(segment_bytes=segment_bytes), MemorySink())

    rows = [tuple(row.values()) for run in runs for batch in run.freeze().live_batches() for row in batch.to_pylist()]
    rows.sort(key=lambda row: row[:sort])
    assert merged.live_rows == merged.rows == len(rows)
    assert [tuple(row.values()) for s in merged.segments for row in s.batch.to_pylist()] == rows


def test_a_merge_of_runs_without_live_rows_is_none():
    runs = filled_runs(None, np.random.default_rng(1))
    for run in runs:
        run.kill(np.arange(run.rows))

    assert merge_runs(runs, MergePolicy(), MemorySink()) is None
