"""When a task takes its snapshot: each line of the protocol's table, for aligned barriers and for the tracker."""

import random

import pytest

from arrowstate.runtime.core.barriers import AlignedBarriers, GiveUp, Snapshot, TrackedBarriers

BOTH = pytest.mark.parametrize("kind", [AlignedBarriers, TrackedBarriers])


def blocked(barriers: AlignedBarriers, channels: int = 3) -> set[int]:
    return {channel for channel in range(channels) if barriers.is_blocked(channel)}


@BOTH
def test_the_only_channel_never_waits(kind):
    barriers = kind(1)

    decisions = [barriers.barrier(0, id) for id in (1, 2, 5)]

    assert decisions == [[Snapshot(1)], [Snapshot(2)], [Snapshot(5)]]
    assert not barriers.is_blocked(0)


def test_a_channel_is_blocked_from_its_barrier_on_until_all_have_come():
    barriers = AlignedBarriers(3)
    states = []

    for channel in (2, 0, 1):
        states.append((barriers.barrier(channel, 7), blocked(barriers)))

    assert states == [([], {2}), ([], {0, 2}), ([Snapshot(7)], set())]


def test_checkpoints_follow_each_other_in_any_order_of_channels():
    barriers = AlignedBarriers(3)

    decisions = [barriers.barrier(channel, id) for id in (1, 2, 3) for channel in ((id + n) % 3 for n in range(3))]

    assert [decision for made in decisions for decision in made] == [Snapshot(1), Snapshot(2), Snapshot(3)]


@BOTH
def test_a_barrier_of_a_checkpoint_that_is_done_says_nothing_and_blocks_nothing(kind):
    barriers = kind(2)
    barriers.barrier(0, 5)
    barriers.barrier(1, 5)

    assert [barriers.barrier(0, 5), barriers.barrier(1, 4)] == [[], []]
    assert not barriers.is_blocked(0)
    assert not barriers.is_blocked(1)


def test_a_newer_barrier_ends_the_waiting_for_an_older_one_and_opens_its_channels():
    barriers = AlignedBarriers(3)
    barriers.barrier(0, 1)

    decisions = barriers.barrier(1, 2)

    assert decisions == [GiveUp(1)]
    assert blocked(barriers) == {1}


def test_barriers_of_a_checkpoint_that_a_newer_one_ended_are_obsolete():
    barriers = AlignedBarriers(3)
    barriers.barrier(0, 1)
    barriers.barrier(1, 2)

    assert barriers.barrier(2, 1) == []
    assert blocked(barriers) == {1}
    assert [barriers.barrier(0, 2), barriers.barrier(2, 2)] == [[], [Snapshot(2)]]


@BOTH
def test_a_cancel_barrier_before_any_barrier_is_given_on_once_and_ends_the_checkpoint(kind):
    barriers = kind(3)

    assert [barriers.cancelled(4), barriers.cancelled(4), barriers.barrier(1, 4)] == [[GiveUp(4)], [], []]
    assert blocked(barriers) == set()


@BOTH
def test_a_cancel_barrier_between_barriers_opens_what_was_blocked_and_the_rest_is_obsolete(kind):
    barriers = kind(3)
    barriers.barrier(0, 4)

    assert barriers.cancelled(4) == [GiveUp(4)]
    assert blocked(barriers) == set()
    assert [barriers.barrier(1, 4), barriers.cancelled(4)] == [[], []]
    assert [barriers.barrier(channel, 5) for channel in range(3)] == [[], [], [Snapshot(5)]]


def test_a_cancel_barrier_of_a_newer_checkpoint_ends_the_older_one_too():
    barriers = AlignedBarriers(3)
    barriers.barrier(0, 4)

    assert barriers.cancelled(6) == [GiveUp(4), GiveUp(6)]
    assert blocked(barriers) == set()
    assert barriers.barrier(1, 5) == []


@BOTH
def test_a_cancel_barrier_of_a_checkpoint_that_was_taken_says_nothing(kind):
    barriers = kind(1)
    barriers.barrier(0, 4)

    assert [barriers.cancelled(4), barriers.cancelled(3)] == [[], []]


def test_a_cancel_barrier_of_an_older_checkpoint_leaves_the_one_that_is_waited_for():
    barriers = AlignedBarriers(3)
    barriers.barrier(0, 5)

    assert barriers.cancelled(4) == []
    assert blocked(barriers) == {0}
    assert [barriers.barrier(1, 5), barriers.barrier(2, 5)] == [[], [Snapshot(5)]]


@BOTH
def test_what_the_coordinator_gave_up_before_its_barrier_is_cancelled_when_that_comes(kind):
    barriers = kind(3)

    assert barriers.aborted(4) == []
    assert [barriers.barrier(channel, 4) for channel in range(3)] == [[GiveUp(4)], [], []]
    assert blocked(barriers) == set()


@BOTH
def test_what_the_coordinator_gave_up_among_its_barriers_is_cancelled_at_once(kind):
    barriers = kind(3)
    barriers.barrier(0, 4)

    assert barriers.aborted(4) == [GiveUp(4)]
    assert blocked(barriers) == set()
    assert [barriers.barrier(1, 4), barriers.barrier(2, 4)] == [[], []]


@BOTH
def test_what_the_coordinator_gave_up_after_the_snapshot_says_nothing(kind):
    barriers = kind(1)
    barriers.barrier(0, 4)

    assert [barriers.aborted(4), barriers.barrier(0, 5)] == [[], [Snapshot(5)]]


def test_a_checkpoint_given_up_early_ends_the_one_before_when_its_barrier_comes():
    barriers = AlignedBarriers(3)
    barriers.aborted(5)
    barriers.barrier(0, 4)

    assert barriers.barrier(1, 5) == [GiveUp(4), GiveUp(5)]
    assert blocked(barriers) == set()


@BOTH
def test_a_channel_that_has_ended_is_not_waited_for(kind):
    barriers = kind(3)
    barriers.ended(1)

    assert [barriers.barrier(0, 7), barriers.barrier(2, 7)] == [[], [Snapshot(7)]]


@BOTH
def test_the_end_of_a_channel_counts_as_its_barrier(kind):
    barriers = kind(3)
    barriers.barrier(0, 7)
    barriers.barrier(1, 7)

    assert barriers.ended(2) == [Snapshot(7)]
    assert blocked(barriers) == set()


@BOTH
def test_the_end_of_a_channel_says_nothing_while_no_barrier_or_another_is_missing(kind):
    barriers = kind(3)

    assert barriers.ended(0) == []
    barriers.barrier(1, 7)
    assert [barriers.ended(0), barriers.barrier(2, 7)] == [[], [Snapshot(7)]]


@BOTH
def test_a_channel_may_end_after_its_own_barrier(kind):
    barriers = kind(2)
    barriers.barrier(0, 7)

    assert [barriers.ended(0), barriers.barrier(1, 7)] == [[], [Snapshot(7)]]


def test_a_tracker_blocks_nothing_and_waits_for_several_checkpoints_at_once():
    barriers = TrackedBarriers(3)

    decisions = [barriers.barrier(0, id) for id in (1, 2, 3)] + [barriers.barrier(1, 1), barriers.barrier(2, 1)]

    assert decisions == [[], [], [], [], [Snapshot(1)]]
    assert blocked(barriers) == set()
    assert [barriers.barrier(1, 2), barriers.barrier(2, 2)] == [[], [Snapshot(2)]]


def test_a_tracker_that_took_one_gives_up_those_before_it():
    barriers = TrackedBarriers(2)
    barriers.barrier(0, 1)
    barriers.barrier(0, 2)
    barriers.barrier(0, 3)

    assert barriers.barrier(1, 3) == [GiveUp(1), GiveUp(2), Snapshot(3)]
    assert [barriers.barrier(1, 1), barriers.barrier(1, 2)] == [[], []]


def test_a_tracker_waits_for_fifty_checkpoints_and_gives_the_oldest_up_for_one_more():
    barriers = TrackedBarriers(2)
    first = [barriers.barrier(0, id) for id in range(1, 51)]

    assert first == [[]] * 50
    assert barriers.barrier(0, 51) == [GiveUp(1)]
    assert barriers.barrier(1, 1) == []
    assert barriers.barrier(1, 51)[-1] == Snapshot(51)


def test_a_tracker_takes_the_newest_of_those_that_the_end_of_a_channel_completes():
    barriers = TrackedBarriers(2)
    barriers.barrier(0, 1)
    barriers.barrier(0, 2)

    assert barriers.ended(1) == [GiveUp(1), Snapshot(2)]


def test_a_tracker_that_gave_one_up_still_takes_the_one_before():
    barriers = TrackedBarriers(2)
    barriers.barrier(0, 1)
    barriers.barrier(0, 2)

    assert barriers.cancelled(2) == [GiveUp(2)]
    assert barriers.barrier(1, 1) == [Snapshot(1)]
    assert barriers.barrier(1, 2) == []


@pytest.mark.parametrize("seed", range(200))
@BOTH
def test_in_any_order_of_events_each_checkpoint_is_taken_or_given_up_once_and_ids_of_snapshots_rise(kind, seed):
    chance = random.Random(seed)
    channels = chance.randint(1, 4)
    barriers = kind(channels)
    # What each channel brings, in its order; a channel may end, or cancel a checkpoint instead of its barrier.
    queues = []
    for channel in range(channels):
        last = 9 if channel == 0 else chance.choice([3, 9, 9])
        events = [("cancel" if chance.random() < 0.1 else "barrier", id) for id in range(1, last + 1)]
        queues.append([*events, *([("end", 0)] if last < 9 else [])])
    decisions = []
    while any(queues):
        free = [number for number in range(channels) if queues[number] and not barriers.is_blocked(number)]
        assert free, "somebody can go on"
        number = chance.choice(free)
        what, id = queues[number].pop(0)
        if what == "barrier":
            decisions += barriers.barrier(number, id)
        elif what == "cancel":
            decisions += barriers.cancelled(id)
        else:
            decisions += barriers.ended(number)
        if chance.random() < 0.1:
            decisions += barriers.aborted(chance.randint(1, 9))

    taken = [decision.checkpoint_id for decision in decisions if isinstance(decision, Snapshot)]
    ids = [decision.checkpoint_id for decision in decisions]
    assert taken == sorted(set(taken))
    assert len(ids) == len(set(ids))
    assert not any(barriers.is_blocked(number) for number in range(channels))
