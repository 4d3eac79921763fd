"""Merges that the batches written after them pay for, step by step, over random histories."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest

from arrowstate import StorageFullError
from arrowstate.errors import InvalidInputError
from arrowstate.table.merging import MemorySink, MergePolicy, Merging
from arrowstate.table.spill import Budget, SpillSink
from arrowstate.table.table import Table
from tables import HASHES, SCHEMA, Model

STEPS = MergePolicy(fan_in=2, max_dead_share=0.5, first_tier_rows=16, segment_bytes=1 << 12, step_rows=2)


def grown(rows=2000):
    """A model with a merge under way: one large run, half dead, and writes of single rows after it."""
    model = Model(STEPS)
    model.put([(key, 0) for key in range(rows)])
    model.remove(range(0, rows, 2))
    model.put([(key, 1) for key in range(1, 400, 6)])
    # The large batch pays for much, so it takes another dead row until the next merge begins.
    for key in range(1, 40, 2):
        model.put([(key, 2)])
        if model.table._merging:
            return model
    raise AssertionError("no merge is under way")


def write(model, number, keys):
    """Remove keys, or give them a number."""
    if number % 7 == 3:
        model.remove(keys)
    else:
        model.put([(key, number) for key in keys])


@pytest.mark.parametrize("hashing", HASHES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.turns(6)
def test_a_history_with_merges_under_way_is_that_of_a_dict(seed, hashing):
    random = np.random.default_rng(seed)
    model, seen = Model(STEPS, HASHES[hashing]), {"under way": 0, "given up": 0}
    give_up = Table._give_up

    def count(table, merges):
        seen["given up"] += len(merges)
        give_up(table, merges)

    with patch.object(Table, "_give_up", count):
        for number in range(400):
            keys = random.integers(0, 400, int(random.choice([1, 3, 10, 120], p=[0.5, 0.3, 0.17, 0.03]))).tolist()
            mark, before = model.table.begin(), dict(model.rows)
            verb = (
                model.remove if number % 7 == 3 else lambda keys, number=number: model.put([(k, number) for k in keys])
            )
            verb(keys)
            if number % 11 == 5:
                frozen, held = model.table.freeze(), dict(model.rows)
                write(model, number, keys[:1])
                assert frozen.live_rows == len(held)
            if number % 13 == 4:
                model.table.go_back(mark)
                model.rows = before
            else:
                model.table.keep()
            seen["under way"] += len(model.table._merging)
            if number % 5 == 0:
                model.check(range(400))
    model.check(range(400))

    assert all(seen.values()), seen


def test_a_row_that_dies_while_its_run_is_merged_stays_dead():
    model = grown()
    [merging] = model.table._merging
    for key in range(1, 2000, 26):
        model.remove([key])
        model.put([(key + 2, 7)])
        if not model.table._merging:
            break

    assert merging.done
    assert merging.merged in model.table.runs
    assert merging.merged.dead_rows > 0
    model.check(range(2000))


def test_the_directory_made_in_steps_says_where_each_bucket_starts():
    """One that says less is right too, and as slow as a scan."""
    model = grown()
    [merging] = model.table._merging
    while model.table._merging:
        model.put([(9000 + len(model.rows), 1)])

    directory = merging.merged.directory
    hashes = np.concatenate([segment.hashes for segment in merging.merged.segments])
    buckets = [directory.bucket(int(each)) for each in hashes]
    assert len(buckets) > 500
    assert directory.offsets.tolist() == np.searchsorted(buckets, np.arange(directory.offsets.size)).tolist()


def test_each_call_looks_at_as_many_rows_as_what_was_written_pays_for():
    model = grown()
    [merging] = model.table._merging
    piece = merging.rows // len(merging._pieces)
    looked, paid = [], [2 * 8]
    step = Merging.step

    def count(merging, rows):
        looked.append(step(merging, rows))
        return looked[-1]

    with patch.object(Merging, "step", count):
        for number in range(30):
            model.put([(key, number) for key in range(5000, 5003)])
            # What a call looks at beyond its share the next ones do not look at.
            assert sum(paid) <= sum(looked) < sum(paid) + piece
            paid.append(2 * 8 * 3)

    assert len(looked) > 1


def test_a_freeze_in_the_middle_of_a_merge_is_the_table_as_it_is():
    model = grown()
    frozen = model.table.freeze()
    held = dict(model.rows)
    while model.table._merging:
        model.put([(9000 + len(model.rows), 1)])

    rows = [row for run in frozen.runs for batch in run.live_batches() for row in batch.to_pylist()]
    assert {int(row["key"]): row["n"] for row in rows} == held


def test_a_step_for_which_the_disk_has_no_room_leaves_the_table_as_it_was():
    model = grown()
    [merging] = model.table._merging
    before = model.table.runs
    model.put([(key, 1) for key in range(3000, 5000)])
    with (
        patch.object(MemorySink, "append", side_effect=StorageFullError("a run", "no room")),
        pytest.raises(StorageFullError),
    ):
        model.table.settle()

    assert merging not in model.table._merging
    assert set(map(id, before)) <= set(map(id, model.table.runs))
    model.check(range(5000))


def test_a_budget_is_kept_at_once(tmp_path):
    model = grown()
    model.table._budget = Budget(0, tmp_path)
    model.table.settle()

    assert model.table._merging == []
    assert all(run.mapped for run in model.table.runs)
    model.check(range(2000))


def test_what_was_merged_is_let_go_of_bit_by_bit():
    model = grown()
    while model.table._merging:
        model.put([(9000 + len(model.rows), 1)])
    lengths = [len(model.table._replaced)]
    while model.table._replaced:
        model.table.settle()
        lengths.append(len(model.table._replaced))

    assert lengths[0] > 1
    assert all(0 < before - after <= 3 for before, after in pairwise(lengths))


def test_a_merge_that_is_closed_leaves_no_file(tmp_path):
    model = grown()
    merging = Merging(model.table.runs, STEPS, SpillSink(tmp_path, SCHEMA), piece_rows=10, in_steps=True)
    merging.step(10)
    assert len(list(tmp_path.iterdir())) == 1

    merging.close()

    assert list(tmp_path.iterdir()) == []
    assert merging.merged is None


@pytest.mark.parametrize("pace", [2, 8])
def test_merges_keep_up_with_what_is_appended_at_any_pace(pace):
    model = Model(MergePolicy(first_tier_rows=16, segment_bytes=1 << 12, step_rows=2, pace=pace))
    most = 0

    for first in range(0, 6000, 6):
        model.put([(key, key) for key in range(first, first + 6)])
        most = max(most, len(model.table.runs))

    # At most seven a tier, and the eight that are merged; there are four tiers.
    assert most <= 4 * (7 + 8)
    assert model.table.live_rows == 6000
    model.check(range(0, 6000, 7))


def test_a_pace_that_cannot_keep_up_is_refused():
    with pytest.raises(InvalidInputError, match="2 rows at least"):
        MergePolicy(pace=1)

    assert (MergePolicy().for_appends().pace, MergePolicy(pace=5).for_appends().pace) == (2, 2)
