"""When a task takes its snapshot: each line of the protocol's table, for aligned barriers and for the tracker."""

import random

import pytest

from arrowstate.runtime.core.barriers import (
    Captured,
    ExactlyOnceBarriers,
    GiveUp,
    Overtake,
    Snapshot,
    TrackedBarriers,
)

BOTH = pytest.mark.parametrize("kind", [ExactlyOnceBarriers, TrackedBarriers])


def blocked(barriers: ExactlyOnceBarriers, channels: int = 3) -> set[int]:
    return {channel for channel in range(channels) if barriers.is_blocked(channel)}


@BOTH
def test_the_only_channel_never_waits(kind):
    barriers = kind(1)

    decisions = [barriers.barrier(0, id) for id in (1, 2, 5)]

    assert decisions == [[Snapshot(1)], [Snapshot(2)], [Snapshot(5)]]
    assert not barriers.is_blocked(0)


def test_a_channel_is_blocked_from_its_barrier_on_until_all_have_come():
    barriers = ExactlyOnceBarriers(3)
    states = []

    for channel in (2, 0, 1):
        states.append((barriers.barrier(channel, 7), blocked(barriers)))

    assert states == [([], {2}), ([], {0, 2}), ([Snapshot(7)], set())]


def test_checkpoints_follow_each_other_in_any_order_of_channels():
    barriers = ExactlyOnceBarriers(3)

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
    barriers = ExactlyOnceBarriers(3)
    barriers.barrier(0, 1)

    decisions = barriers.barrier(1, 2)

    assert decisions == [GiveUp(1)]
    assert blocked(barriers) == {1}


def test_barriers_of_a_checkpoint_that_a_newer_one_ended_are_obsolete():
    barriers = ExactlyOnceBarriers(3)
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
    barriers = ExactlyOnceBarriers(3)
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
    barriers = ExactlyOnceBarriers(3)
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
    barriers = ExactlyOnceBarriers(3)
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


# Barriers that overtake.


def test_the_first_barrier_overtakes_in_all_channels_and_the_last_ends_the_capture():
    barriers = ExactlyOnceBarriers(3)

    decisions = [barriers.arrived(channel, 7, 0, now_ms=5) for channel in (1, 0, 2)]

    assert decisions == [[Overtake(7, frozenset({0, 1, 2}))], [], [Captured(7)]]
    assert blocked(barriers) == set()


def test_the_only_channel_is_captured_at_once():
    barriers = ExactlyOnceBarriers(1)

    assert barriers.arrived(0, 1, 0, 5) == [Overtake(1, frozenset({0})), Captured(1)]
    assert barriers.arrived(0, 2, 0, 6) == [Overtake(2, frozenset({0})), Captured(2)]


def test_a_barrier_that_never_overtakes_is_waited_for_at_the_head():
    barriers = ExactlyOnceBarriers(2)

    assert [barriers.arrived(0, 1, None, 5), barriers.arrived(1, 1, None, 5), barriers.tick(1_000)] == [[], [], []]
    assert [barriers.barrier(1, 1, 6), barriers.barrier(0, 1, 7)] == [[], [Snapshot(1)]]


def test_before_its_time_a_barrier_is_aligned():
    barriers = ExactlyOnceBarriers(2)
    barriers.arrived(0, 1, 100, 5)
    barriers.arrived(1, 1, 100, 6)

    assert [barriers.barrier(0, 1, 7), blocked(barriers, 2), barriers.barrier(1, 1, 99)] == [[], {0}, [Snapshot(1)]]
    assert barriers.tick(100) == []


def test_at_its_time_a_barrier_overtakes_where_it_was_not_taken_from_the_head_and_frees_what_was_blocked():
    barriers = ExactlyOnceBarriers(3)
    barriers.arrived(0, 1, 100, 5)
    barriers.barrier(0, 1, 6)
    barriers.arrived(1, 1, 100, 7)

    assert [barriers.tick(99), blocked(barriers)] == [[], {0}]
    assert [barriers.tick(100), blocked(barriers)] == [[Overtake(1, frozenset({1, 2}))], set()]
    assert [barriers.tick(101), barriers.arrived(2, 1, 100, 120)] == [[], [Captured(1)]]


def test_a_barrier_that_comes_after_its_time_overtakes_though_others_were_taken():
    barriers = ExactlyOnceBarriers(2)
    barriers.arrived(0, 1, 100, 5)
    barriers.barrier(0, 1, 6)

    assert barriers.arrived(1, 1, 100, 200) == [Overtake(1, frozenset({1})), Captured(1)]


def test_a_barrier_overtakes_only_once_it_was_taken_from_the_channels_in_line():
    barriers = ExactlyOnceBarriers(3, in_line=[2])

    assert [barriers.arrived(channel, 1, 0, 5) for channel in (0, 2)] == [[], []]
    assert barriers.barrier(2, 1, 6) == [Overtake(1, frozenset({0, 1}))]
    assert barriers.arrived(1, 1, 0, 7) == [Captured(1)]


def test_where_all_channels_are_in_line_nothing_is_overtaken():
    barriers = ExactlyOnceBarriers(2, in_line=[0, 1])
    barriers.arrived(0, 1, 0, 5)
    barriers.arrived(1, 1, 0, 5)

    assert [barriers.barrier(0, 1, 6), barriers.tick(9), barriers.barrier(1, 1, 9)] == [[], [], [Snapshot(1)]]


def test_a_newer_barrier_ends_a_capture():
    barriers = ExactlyOnceBarriers(2)
    barriers.arrived(0, 1, 0, 5)

    assert barriers.arrived(1, 2, 0, 6) == [GiveUp(1), Overtake(2, frozenset({0, 1}))]
    assert [barriers.arrived(1, 1, 0, 7), barriers.arrived(0, 2, 0, 8)] == [[], [Captured(2)]]


@pytest.mark.parametrize("how", ["cancelled", "aborted"])
def test_a_capture_that_is_given_up_leaves_nothing(how):
    barriers = ExactlyOnceBarriers(2)
    barriers.arrived(0, 1, 0, 5)

    assert getattr(barriers, how)(1) == [GiveUp(1)]
    assert [barriers.arrived(1, 1, 0, 6), barriers.barrier(1, 1, 7)] == [[], []]
    assert barriers.arrived(1, 2, 0, 8) == [Overtake(2, frozenset({0, 1}))]


def test_what_the_coordinator_gave_up_before_its_barrier_overtakes_nothing():
    barriers = ExactlyOnceBarriers(2)
    barriers.aborted(3)

    assert [barriers.arrived(0, 3, 0, 5), barriers.arrived(1, 3, 0, 6)] == [[GiveUp(3)], []]


def test_the_end_of_a_channel_ends_its_capture():
    barriers = ExactlyOnceBarriers(2)
    barriers.arrived(0, 1, 0, 5)

    assert barriers.ended(1) == [Captured(1)]


def test_barriers_at_the_head_of_a_checkpoint_that_has_overtaken_count_as_come():
    barriers = ExactlyOnceBarriers(2)
    barriers.arrived(0, 1, 0, 5)

    assert [barriers.barrier(0, 1, 6), blocked(barriers, 2), barriers.barrier(1, 1, 7)] == [[], set(), [Captured(1)]]


@pytest.mark.parametrize("seed", range(200))
def test_in_any_order_of_arrivals_heads_and_time_each_capture_ends_once_and_nothing_stays_blocked(seed):
    chance = random.Random(seed)
    channels = chance.choice([1, 2, 3, 5])
    in_line = set(chance.sample(range(channels), chance.randrange(channels)))
    barriers = ExactlyOnceBarriers(channels, in_line)
    queues: dict[int, list[int]] = {channel: [] for channel in range(channels)}
    to_come = {channel: list(range(1, 6)) for channel in range(channels)}
    made = []
    now_ms = 0
    while any(queues.values()) or any(to_come.values()):
        now_ms += chance.randrange(3)
        channel = chance.randrange(channels)
        lowest = min(ids[0] for ids in to_come.values() if ids) if any(to_come.values()) else 9
        if to_come[channel] and to_come[channel][0] == lowest and chance.random() < 0.5:
            id = to_come[channel].pop(0)
            queues[channel].append(id)
            decisions = barriers.arrived(channel, id, id * 10, now_ms)
        elif queues[channel] and not barriers.is_blocked(channel) and chance.random() < 0.5:
            decisions = barriers.barrier(channel, queues[channel].pop(0), now_ms)
        else:
            decisions = barriers.tick(now_ms)
        made += decisions

    ended = [item.checkpoint_id for item in made if isinstance(item, (Snapshot, Captured, GiveUp))]
    overtaken = [item for item in made if isinstance(item, Overtake)]
    assert ended == sorted(set(ended))
    assert all(not item.channels & in_line for item in overtaken)
    assert {item.checkpoint_id for item in overtaken} <= set(ended)
    assert blocked(barriers, channels) == set()
