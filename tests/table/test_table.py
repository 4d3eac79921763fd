"""A table against a dict, over random writes, with real and with colliding hashes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowstate.table.merging import MemorySink, MergePolicy, merge_runs
from arrowstate.table.run import Run
from arrowstate.table.segments import Segments
from arrowstate_formats.key_hash import hash_columns
from tables import HASHES, Model, check_run, contents

SMALL = MergePolicy(fan_in=2, max_dead_share=0.5, first_tier_rows=4, segment_bytes=1)
POLICIES = [
    SMALL,
    MergePolicy(fan_in=3, max_dead_share=0.2, first_tier_rows=8, segment_bytes=1 << 10),
    MergePolicy(fan_in=8, max_dead_share=1.0, first_tier_rows=16),
    MergePolicy(),
]


def tier_bound(policy, rows):
    tiers = 1
    size = policy.first_tier_rows
    while size < rows:
        size *= policy.fan_in
        tiers += 1
    return tiers * (policy.fan_in - 1)


KEYS = st.integers(0, 24)
WRITES = st.lists(
    st.tuples(st.just("put"), st.lists(st.tuples(KEYS, st.integers(-9, 9) | st.none()), max_size=30))
    | st.tuples(st.just("remove"), st.lists(KEYS, max_size=12)),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(writes=WRITES, policy=st.sampled_from(POLICIES), hashing=st.sampled_from(sorted(HASHES)))
def test_a_table_answers_like_a_dict_whatever_the_hashes(writes, policy, hashing):
    model = Model(policy, HASHES[hashing])

    for verb, argument in writes:
        getattr(model, verb)(argument)

        model.check(range(25))


@pytest.mark.parametrize("policy", POLICIES[:3], ids=["fan_in_2", "fan_in_3", "fan_in_8"])
def test_runs_and_dead_share_stay_bounded_over_a_long_random_history(policy):
    random = np.random.default_rng(1)
    model = Model(policy)

    for number in range(300):
        size = int(random.choice([1, 3, 20, 200]))
        keys = random.integers(0, random.choice([50, 2000]), size).tolist()
        if number % 7 == 3:
            model.remove(keys)
        else:
            model.put([(key, number) for key in keys])
        model.table.settle()

        live = model.table.live_rows
        rows = sum(run.rows for run in model.table.runs)
        assert len(model.table.runs) <= tier_bound(policy, live), number
        assert all(run.dead_rows <= policy.max_dead_share * run.rows for run in model.table.runs), number
        assert rows - live <= policy.max_dead_share * rows
    model.check(range(2000))


def test_merging_moves_a_row_only_a_few_times():
    policy = MergePolicy(fan_in=4, first_tier_rows=64)
    model = Model(policy)
    written = 0

    for number in range(400):
        before = {id(run) for run in model.table.runs}
        model.put([(number * 16 + i, i) for i in range(16)])
        written += sum(run.rows for run in model.table.runs if id(run) not in before)

    # Each row is written once and then once per tier it rises: 6400 rows make at most 5 tiers.
    assert written <= 6400 * 8


def test_a_frozen_view_does_not_change_when_the_table_does():
    model = Model(SMALL)
    model.put([(key, key) for key in range(20)])
    frozen = model.table.freeze()
    before = dict(model.rows)

    model.put([(key, -1) for key in range(10)])
    model.remove([11, 12])
    for key in range(40, 60):
        model.put([(key, key)])

    assert contents(frozen) == before
    model.check(range(60))


@settings(max_examples=60, deadline=None)
@given(writes=WRITES, policy=st.sampled_from(POLICIES[:2]))
def test_every_one_of_several_frozen_views_keeps_its_moment(writes, policy):
    model = Model(policy)
    views = []

    for verb, argument in writes:
        views.append((model.table.freeze(), dict(model.rows)))
        getattr(model, verb)(argument)

    for frozen, rows in views:
        assert contents(frozen) == rows
    model.check(range(25))


def test_freezing_copies_no_row():
    model = Model()
    model.put([(key, key) for key in range(1000)])

    frozen = model.table.freeze()

    (run,), (live,) = frozen.runs, model.table.runs
    assert run.run is live
    assert run.live is not live.live
    assert frozen.live_rows == 1000


def test_a_lookup_among_colliding_keys_passes_over_dead_rows():
    model = Model(MergePolicy(max_dead_share=1.0), HASHES["one_hash"])
    model.put([(key, key) for key in range(10)])

    model.remove([0, 4, 9])
    model.put([(4, 44)])

    assert model.read(range(11)) == {**{k: k for k in range(10)}, 0: None, 4: 44, 9: None, 10: None}


def test_merged_runs_keep_rows_of_one_hash_in_one_segment():
    model = Model(MergePolicy(fan_in=100, max_dead_share=1.0), lambda column: hash_columns([column]) >> 54)
    for start in range(0, 6000, 1500):
        model.put([(key, key) for key in range(start, start + 1500)])

    merged = merge_runs(model.table.runs, MergePolicy(segment_bytes=1), MemorySink())

    assert len(merged.segments) > 1
    check_run(merged)
    assert model.read(range(6001), [merged]) == {**{key: key for key in range(6000)}, 6000: None}


def test_merging_runs_without_live_rows_gives_nothing():
    model = Model(MergePolicy(max_dead_share=1.0))
    model.put([(1, 1)])
    model.remove([1])

    assert merge_runs(model.table.runs, SMALL, MemorySink()) is None
    model.check([1])


def test_an_empty_batch_changes_nothing():
    model = Model(SMALL)
    model.put([(1, 1)])

    model.put([])
    model.remove([])

    model.check([1, 2])
    assert model.read([]) == {}


def test_a_run_that_is_a_slice_of_a_file_numbers_its_rows_as_the_file_does():
    model = Model()
    model.put([(key, key) for key in range(100)])
    (run,) = model.table.runs
    (segment,) = run.segments
    low, high = 37, 81
    sliced = Run.of([segment.batch.slice(low, high - low)])
    part = segment.slice(low, high)
    of_file = Run(Segments([part]), low, high, sliced.live, high - low, built=run.directory)
    keys = [int(key) for key in part.batch.column("key").to_pylist()]

    of_file.kill(np.array([low, high - 1]))

    dead = {keys[0], keys[-1]}
    expected = {key: key if key in keys and key not in dead else None for key in range(100)}
    assert model.read(range(100), [of_file]) == expected
    assert of_file.live_rows == high - low - 2
