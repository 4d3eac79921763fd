"""The watermark of several channels: the rules of the status and watermark valve, one by one."""

import random

import pytest

from arrowstate.runtime.core.valve import MAX_WATERMARK, WatermarkValve


def test_one_channel_gives_out_what_it_brings_and_only_what_grows():
    valve = WatermarkValve(1)

    assert [valve.advance(0, time) for time in (0, 25, 25, 18, 42)] == [0, 25, None, None, 42]
    assert valve.watermark == 42


def test_one_channel_that_turns_idle_gives_nothing_out_until_it_is_active_again():
    valve = WatermarkValve(1)
    valve.advance(0, 25)

    assert (valve.set_idle(0, True), valve.is_idle) == (None, True)
    assert valve.advance(0, 50) is None
    assert (valve.set_idle(0, False), valve.is_idle) == (50, False)


def test_nothing_is_given_out_before_every_channel_has_shown_a_watermark():
    valve = WatermarkValve(3)

    assert [valve.advance(0, 0), valve.advance(1, 0), valve.advance(2, 0)] == [None, None, 0]


def test_the_watermark_is_the_lowest_of_the_channels():
    valve = WatermarkValve(3)
    for channel, time in ((0, 12), (1, 8), (2, 10)):
        valve.advance(channel, time)

    assert valve.watermark == 8
    assert [valve.advance(1, 15), valve.advance(2, 17), valve.advance(0, 20)] == [10, 12, 15]


def test_a_lower_watermark_of_a_channel_is_passed_over():
    valve = WatermarkValve(2)
    valve.advance(0, 25)
    valve.advance(1, 10)

    assert [valve.advance(0, 18), valve.advance(1, 30)] == [None, 25]


def test_a_channel_that_turns_idle_holds_nothing_back():
    valve = WatermarkValve(3)
    for channel, time in ((0, 15), (1, 10), (2, 13)):
        valve.advance(channel, time)

    assert valve.set_idle(1, True) == 13
    assert not valve.is_idle


def test_a_channel_without_a_watermark_that_turns_idle_holds_nothing_back():
    valve = WatermarkValve(2)
    valve.advance(0, 15)

    assert valve.set_idle(1, True) == 15


def test_channels_that_turn_idle_one_after_another_give_out_the_lowest_of_the_rest_and_at_last_the_highest():
    valve = WatermarkValve(3)
    for channel, time in ((0, 5), (1, 10), (2, 20)):
        valve.advance(channel, time)

    assert [valve.set_idle(channel, True) for channel in (0, 1)] == [10, 20]
    assert (valve.set_idle(2, True), valve.is_idle) == (None, True)


def test_when_all_are_idle_the_highest_watermark_is_given_out():
    valve = WatermarkValve(2)
    valve.advance(0, 30)
    valve.advance(1, 10)

    # The lowest of those that count was 10 until now; nobody is waited for any more.
    assert valve.set_idle(1, True) == 30

    other = WatermarkValve(2)
    other.advance(0, 10)
    other.advance(1, 30)
    assert [other.set_idle(1, True), other.set_idle(0, True)] == [None, 30]


def test_a_channel_that_is_active_again_counts_once_it_has_caught_up():
    valve = WatermarkValve(2)
    valve.advance(0, 10)
    valve.advance(1, 10)
    valve.set_idle(1, True)
    valve.advance(0, 20)

    assert valve.set_idle(1, False) is None
    # Behind: it does not hold back the others.
    assert [valve.advance(1, 15), valve.advance(0, 22)] == [None, 22]
    # Level: from here on it counts.
    assert [valve.advance(1, 22), valve.advance(0, 30), valve.advance(1, 25)] == [None, None, 25]


def test_a_watermark_of_an_idle_channel_counts_when_it_is_active_again():
    valve = WatermarkValve(2)
    valve.advance(0, 10)
    valve.set_idle(1, True)
    valve.advance(1, 40)

    assert valve.set_idle(1, False) is None
    assert valve.advance(0, 50) == 40


def test_a_status_that_is_none_new_changes_nothing():
    valve = WatermarkValve(2)
    valve.advance(0, 10)

    assert valve.set_idle(0, False) is None
    assert valve.set_idle(1, True) == 10
    assert valve.set_idle(1, True) is None


def test_a_channel_that_goes_no_longer_holds_back_the_others():
    valve = WatermarkValve(2)
    valve.advance(0, 40)
    valve.advance(1, 10)

    assert valve.remove(1) == 40
    assert valve.remove(1) is None
    assert valve.advance(0, 50) == 50


def test_the_last_channel_that_goes_leaves_the_watermark_where_it_is():
    valve = WatermarkValve(1)
    valve.advance(0, 10)

    assert valve.remove(0) is None
    assert (valve.watermark, valve.is_idle) == (10, False)


def test_a_restored_watermark_is_never_given_out_again_and_never_falls():
    valve = WatermarkValve(2, watermark=100)

    assert [valve.advance(0, 90), valve.advance(1, 95)] == [None, None]
    assert valve.watermark == 100


def test_after_a_restore_a_channel_that_is_ahead_waits_for_one_that_has_said_nothing_yet():
    valve = WatermarkValve(2, watermark=100)

    assert [valve.advance(1, 500), valve.advance(0, 100), valve.advance(0, 130)] == [None, None, 130]


def test_a_split_that_is_found_late_holds_the_others_back():
    valve = WatermarkValve(waits_for_late=True)
    valve.add(0)
    valve.advance(0, 10)
    valve.add(1)

    assert [valve.advance(0, 50), valve.advance(1, 5), valve.advance(1, 30)] == [None, None, 30]


def test_a_split_that_is_added_with_its_watermark_lets_time_pass():
    valve = WatermarkValve(waits_for_late=True)
    valve.add(0, watermark=20)
    valve.add(1, watermark=30)

    assert [valve.look(), valve.look()] == [20, None]


@pytest.mark.parametrize("seed", range(100))
def test_the_watermark_never_falls_and_is_never_above_the_lowest_of_those_that_count(seed):
    chance = random.Random(seed)
    count = chance.randint(1, 4)
    valve = WatermarkValve(count)
    times = [0] * count
    given = []

    for _ in range(60):
        channel = chance.randrange(count)
        if chance.random() < 0.7:
            times[channel] += chance.randint(0, 20)
            got = valve.advance(channel, times[channel])
        else:
            got = valve.set_idle(channel, chance.random() < 0.5)
        if got is not None:
            given.append(got)
            assert got == valve.watermark
            assert got <= max(times)

    assert given == sorted(set(given))


def test_event_time_does_not_end_while_a_channel_is_idle_that_has_not_ended():
    valve = WatermarkValve(2)
    valve.advance(0, 5)
    valve.advance(1, 13)

    assert (valve.set_idle(1, True), valve.advance(0, MAX_WATERMARK)) == (None, 13)
    assert valve.is_idle
    assert (valve.set_idle(1, False), valve.is_idle, valve.advance(1, 23)) == (None, False, 23)
    assert valve.set_idle(1, True) is None
    assert (valve.set_idle(1, False), valve.advance(1, MAX_WATERMARK), valve.is_idle) == (None, MAX_WATERMARK, False)


def test_event_time_does_not_end_while_a_channel_catches_up_that_was_idle():
    valve = WatermarkValve(2)
    valve.advance(0, 50)
    valve.advance(1, 13)

    assert (valve.set_idle(1, True), valve.set_idle(1, False)) == (50, None)
    assert (valve.advance(0, MAX_WATERMARK), valve.advance(1, 20), valve.advance(1, 60)) == (None, None, 60)
