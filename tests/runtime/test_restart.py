"""When a job that failed starts again: each strategy."""

import random

import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.runtime import Restart
from arrowstate.runtime.restart import RestartState


def delays(strategy: Restart, times_ms: list[int]) -> list[int | None]:
    state = RestartState(strategy)
    chance = random.Random(7)
    return [state.failed(time, chance) for time in times_ms]


def test_none_ends_the_job_at_the_first_failure():
    assert delays(Restart.none(), [0]) == [None]


def test_fixed_waits_as_long_each_time_and_for_ever_by_default():
    assert delays(Restart.fixed(delay_ms=500), list(range(1000))) == [500] * 1000


def test_fixed_ends_after_so_many_attempts():
    assert delays(Restart.fixed(attempts=2, delay_ms=5), [0, 10, 20]) == [5, 5, None]
    assert delays(Restart.fixed(attempts=0), [0]) == [None]


def test_failure_rate_ends_when_more_came_within_the_span():
    rule = Restart.failure_rate(failures=2, within_ms=100, delay_ms=5)

    assert delays(rule, [0, 50, 100]) == [5, 5, None]
    assert delays(rule, [0, 50, 101, 200]) == [5, 5, 5, 5]


def test_exponential_waits_half_as_long_again_each_time_up_to_the_longest():
    found = delays(Restart.exponential(initial_ms=1_000, longest_ms=10_000), list(range(12)))

    for number, delay in enumerate(found):
        middle = min(1_000 * 1.5**number, 10_000)
        assert delay is not None
        assert 0.9 * middle - 1 <= delay <= 1.1 * middle + 1


def test_exponential_delays_differ_so_that_jobs_do_not_start_at_once():
    state = RestartState(Restart.exponential(initial_ms=10_000, longest_ms=10_000))
    chance = random.Random(3)

    assert len({state.failed(time, chance) for time in range(20)}) > 10


def test_exponential_begins_anew_after_a_time_without_failure():
    found = delays(Restart.exponential(initial_ms=1_000, reset_ms=100), [0, 100, 200, 301])

    assert [round((delay or 0) / 1_000) for delay in found] == [1, 2 if found[1] > 1_500 else 1, 2, 1]


def test_exponential_ends_after_so_many_failures_in_a_row():
    rule = Restart.exponential(initial_ms=1, attempts=2, reset_ms=100)

    assert [delay is None for delay in delays(rule, [0, 1, 2])] == [False, False, True]
    assert [delay is None for delay in delays(rule, [0, 1, 102, 103, 104])] == [False, False, False, False, True]


def test_exponential_stays_at_the_longest_after_any_number_of_failures():
    found = delays(Restart.exponential(initial_ms=1_000, longest_ms=60_000), list(range(3_000)))

    assert 54_000 <= found[-1] <= 66_000


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Restart.exponential(initial_ms=-1), "initial_ms"),
        (lambda: Restart.exponential(initial_ms=10, longest_ms=9), "longest_ms"),
        (lambda: Restart.exponential(reset_ms=0), "reset_ms"),
        (lambda: Restart.exponential(attempts=-1), "attempts"),
        (lambda: Restart.fixed(delay_ms=-1), "delay_ms"),
        (lambda: Restart.fixed(attempts=1.5), "attempts"),
        (lambda: Restart.failure_rate(failures=-1), "failures"),
        (lambda: Restart.failure_rate(within_ms=0), "within_ms"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(make, what):
    with pytest.raises(InvalidInputError, match=what):
        make()
