"""Retention: which entries of a log are kept, as a decision without a store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowstate import InvalidInputError, RetentionPolicy
from arrowstate.upkeep.retention import retain
from arrowstate_formats.documents import LogEntryDocument

HOUR = 3_600_000


def log_of(kinds, first=1, committed=lambda number: number * HOUR):
    """A log of entries: f(ence), c(heckpoint), k for a compaction, s(avepoint); one is committed each hour."""
    names = {"f": "fence", "c": "checkpoint", "k": "compaction", "s": "savepoint"}
    return [
        LogEntryDocument(
            number=number,
            parent=None,
            commit_id="c",
            writer_epoch=1,
            kind=names[kind],
            checkpoint_id=None if kind == "f" else number,
            started_at_ms=0,
            committed_at_ms=committed(number),
            operators=[],
        )
        for number, kind in enumerate(kinds, first)
    ]


def kept(kinds, policy, *, pins=(), now_ms=0, floor=0, committed=lambda number: number * HOUR):
    return sorted(retain(log_of(kinds, committed=committed), pins, policy, now_ms=now_ms, floor=floor).kept)


@pytest.mark.parametrize(
    ("kinds", "count", "expected"),
    [
        ("fccc", 1, [4]),
        ("fccc", 2, [3, 4]),
        ("fccc", 9, [2, 3, 4]),
        ("fcfcf", 1, [4, 5]),
        ("fcfcf", 2, [2, 3, 4, 5]),
        ("fff", 2, [3]),
        ("f", 1, [1]),
        ("sfccc", 1, [1, 5]),
        ("sfccc", 3, [1, 3, 4, 5]),
        ("sff", 1, [1, 3]),
    ],
)
def test_the_newest_checkpoints_are_kept_by_count_and_savepoints_beside_them(kinds, count, expected):
    assert kept(kinds, RetentionPolicy(count=count)) == expected


@pytest.mark.parametrize(
    ("kinds", "count", "expected"),
    [
        ("fck", 1, [3]),
        ("fck", 2, [3]),
        ("fcck", 2, [2, 3, 4]),
        ("fckk", 1, [4]),
        ("fckc", 2, [3, 4]),
        ("fckfkc", 2, [5, 6]),
        ("fckfkck", 2, [5, 6, 7]),
        ("sk", 1, [1, 2]),
    ],
)
def test_a_compaction_counts_in_the_place_of_the_checkpoint_that_it_repeats(kinds, count, expected):
    assert kept(kinds, RetentionPolicy(count=count), now_ms=100 * HOUR) == expected


@pytest.mark.parametrize(
    ("kinds", "grace", "expected"),
    [
        ("fcck", 2, [3, 4]),
        ("fcck", 1, [4]),
        ("fcfkf", 3, [2, 3, 4, 5]),
        ("fckk", 9, [2, 3, 4]),
        ("fckk", 2, [3, 4]),
        ("fckc", 9, [4]),
    ],
)
def test_the_checkpoint_of_a_young_compaction_is_kept_for_its_writer(kinds, grace, expected):
    now_ms = (len(kinds) + 1) * HOUR

    found = retain(log_of(kinds), (), RetentionPolicy(count=1), now_ms=now_ms, floor=0, grace_ms=grace * HOUR)

    assert sorted(found.kept) == expected


def test_a_compaction_in_doubt_does_not_take_the_place_of_its_checkpoint():
    found = retain(log_of("fck"), (), RetentionPolicy(count=1), now_ms=100 * HOUR, floor=0, in_doubt={3})

    assert sorted(found.kept) == [2, 3]


def test_a_checkpoint_is_kept_by_age_until_it_is_as_old_as_the_age():
    policy = RetentionPolicy(count=1, age_ms=2 * HOUR)

    assert kept("cccc", policy, now_ms=5 * HOUR) == [4]
    assert kept("cccc", policy, now_ms=5 * HOUR - 1) == [3, 4]


def test_count_and_age_keep_what_either_keeps():
    assert kept("ccccc", RetentionPolicy(count=3, age_ms=HOUR), now_ms=5 * HOUR) == [3, 4, 5]
    assert kept("ccccc", RetentionPolicy(count=1, age_ms=4 * HOUR), now_ms=5 * HOUR) == [2, 3, 4, 5]


def test_a_clock_that_jumped_keeps_more_and_never_less_than_the_count():
    jumped = {1: 1, 2: 9 * HOUR, 3: 2, 4: 3}

    assert kept("cccc", RetentionPolicy(age_ms=HOUR), now_ms=HOUR * 8, committed=jumped.get) == [2, 3, 4]
    assert kept("cccc", RetentionPolicy(age_ms=HOUR), now_ms=10**15, committed=jumped.get) == [4]


def test_nothing_is_dropped_for_a_checkpoint_in_doubt():
    def kept_with(in_doubt, count=1):
        return sorted(retain(log_of("ccccc"), [], RetentionPolicy(count), now_ms=0, floor=2, in_doubt=in_doubt).kept)

    assert kept_with({5}) == [4, 5]
    assert kept_with({3, 5}, count=2) == [2, 3, 4, 5]
    assert kept_with({2}) == [5]
    assert kept_with({2, 3, 4, 5}) == [2, 3, 4, 5]


def test_pins_keep_single_entries_below_the_boundary():
    found = retain(
        log_of("fccccc"), [(2, "tag 'a'"), (2, "lease x"), (6, "tag 'b'")], RetentionPolicy(), now_ms=0, floor=0
    )

    assert found.boundary == 6
    assert found.dropped == (1, 3, 4, 5)
    assert found.kept == {2: ("tag 'a'", "lease x"), 6: ("one of the newest 1", "the newest entry", "tag 'b'")}


def test_a_boundary_that_was_reached_stays():
    found = retain(log_of("fccccc"), [], RetentionPolicy(count=9), now_ms=0, floor=4)

    assert (found.boundary, found.dropped) == (4, (1, 2, 3))


@pytest.mark.parametrize("arguments", [{"count": 0}, {"count": -1}, {"age_ms": -1}])
def test_a_policy_that_keeps_nothing_is_refused(arguments):
    with pytest.raises(InvalidInputError):
        RetentionPolicy(**arguments)


@given(
    kinds=st.text("fcs", min_size=1, max_size=12),
    count=st.integers(1, 5),
    age_ms=st.none() | st.integers(0, 12 * HOUR),
    now_ms=st.integers(0, 20 * HOUR),
    floor=st.integers(0, 12),
    data=st.data(),
)
def test_what_is_kept_is_the_newest_part_of_the_log_and_what_is_held(kinds, count, age_ms, now_ms, floor, data):
    log = log_of(kinds)
    floor = min(floor, len(log))
    pins = [(number, "tag") for number in data.draw(st.sets(st.integers(1, len(log))))]

    found = retain(log, pins, RetentionPolicy(count, age_ms), now_ms=now_ms, floor=floor)

    numbers = [entry.number for entry in log]
    assert sorted([*found.kept, *found.dropped]) == numbers
    assert numbers[-1] in found.kept
    assert floor <= found.boundary <= numbers[-1]
    assert set(range(max(found.boundary, 1), len(log) + 1)) <= set(found.kept)
    assert {number for number, _ in pins} <= set(found.kept)
    checkpoints = [entry.number for entry in log if entry.kind == "checkpoint" and entry.number >= floor]
    assert set(checkpoints[-count:]) <= set(found.kept)
    assert {entry.number for entry in log if entry.kind == "savepoint"} <= set(found.kept)
