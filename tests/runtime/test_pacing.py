"""How many rows a step takes, and how much a channel holds, where functions are as slow as they are."""

import pyarrow as pa
import pytest

from arrowstate.runtime import FunctionSink, GeneratorSource, Job
from arrowstate.runtime.core.pacing import (
    FIRST_ROWS,
    FIRST_WINDOW_BYTES,
    LEAST_WINDOW_BYTES,
    STEP_US,
    WINDOW_US,
    ChannelWindow,
    StepPace,
)

MOST = 65_536


def paced(pace: StepPace, cost_us, steps: int = 60, most: int = MOST) -> list[tuple[int, float]]:
    """Have a function of this cost take steps of full channels: the rows and the time of each."""
    done = []
    for _ in range(steps):
        rows = pace.rows(most)
        pace.took(rows, int(cost_us(rows)), 0)
        done.append((rows, cost_us(rows)))
    return done


@pytest.mark.parametrize("row_us", [0.01, 0.5])
def test_a_quick_function_has_the_largest_steps_after_five(row_us):
    done = paced(StepPace(), lambda rows: row_us * rows)

    assert [rows for rows, _ in done[:6]] == [FIRST_ROWS * 4**step for step in range(5)] + [MOST]
    assert {rows for rows, _ in done[6:]} == {MOST}


@pytest.mark.parametrize("row_us", [2.5, 100, 10_000])
@pytest.mark.parametrize("fixed_us", [0, 500])
def test_steps_of_a_slow_function_last_as_long_as_they_are_to(row_us, fixed_us):
    done = paced(StepPace(), lambda rows: fixed_us + row_us * rows)

    assert all(STEP_US * 0.7 <= time_us <= STEP_US * 1.3 for _, time_us in done[10:])


def test_a_function_slower_than_a_step_for_one_row_has_one_row():
    done = paced(StepPace(), lambda rows: 2 * STEP_US * rows)

    assert [rows for rows, _ in done[:4]] == [FIRST_ROWS, 16, 4, 1]
    assert {rows for rows, _ in done[4:]} == {1}


@pytest.mark.parametrize(("fixed_us", "row_us"), [(100_000, 0.1), (200_000, 0), (60_000, 2)])
def test_a_function_that_costs_much_for_any_batch_does_not_get_small_ones(fixed_us, row_us):
    done = paced(StepPace(), lambda rows: fixed_us + row_us * rows, steps=200)

    rows = sum(rows for rows, _ in done[10:])
    time_us = sum(time_us for _, time_us in done[10:])
    best = MOST / (fixed_us + row_us * MOST)
    assert rows / time_us > 0.7 * best


def test_a_change_of_speed_by_ten_is_followed_within_a_few_steps():
    pace = StepPace()
    paced(pace, lambda rows: 2 * rows)

    slower = paced(pace, lambda rows: 20 * rows)
    quicker = paced(pace, lambda rows: 2 * rows)

    for done in (slower, quicker):
        assert all(STEP_US * 0.7 <= time_us <= STEP_US * 1.3 for _, time_us in done[8:])


def test_noise_does_not_leave_steps_long_for_ever():
    # A short step took long once, as if every step cost so much whatever its rows are.
    pace = StepPace()
    paced(pace, lambda rows: 2.5 * rows)
    pace.took(5_000, 60_000, 0)

    done = paced(pace, lambda rows: 2.5 * rows, steps=100)

    assert all(time_us <= STEP_US * 1.3 for _, time_us in done[40:])


def test_a_processor_that_others_have_now_and_then_does_not_make_steps_small():
    # Each third step takes long whatever its rows are.
    pace, done = StepPace(), []
    for step in range(300):
        rows = pace.rows(MOST)
        pace.took(rows, int(0.5 * rows + (2 * STEP_US if step % 3 == 0 else 0)), 0)
        done.append(rows)

    assert min(done[20:]) > 1_000
    assert sum(done[20:]) / len(done[20:]) > MOST / 8


@pytest.mark.parametrize("time_us", [200, 4 * STEP_US])
def test_small_steps_for_want_of_rows_change_nothing_of_large_ones(time_us):
    pace = StepPace()
    paced(pace, lambda rows: 0.01 * rows)

    for _ in range(100):
        # Others may have had the processor.
        pace.took(3, time_us, 0)

    assert pace.rows(MOST) == MOST


def test_a_step_gives_out_no_more_than_its_channels_hold():
    pace = StepPace()
    paced(pace, lambda rows: 0.01 * rows)
    pace.took(1_000, 10, 100_000)

    assert pace.rows(MOST, 5_000) == 50
    assert pace.rows(MOST, 10) == 1


def windows(rates: list[float], window: ChannelWindow | None = None, idle: float = 0.0) -> list[int]:
    """Have a task take rows of so many bytes a microsecond in steps of 50 ms: its window after each."""
    window = window or ChannelWindow(2)
    found, now_us = [], 0
    for rate in rates:
        window.took(int(rate * STEP_US), now_us, int(now_us * idle))
        now_us += int(STEP_US / (1 - idle))
        found.append(window.bytes)
    return found


def test_channels_together_hold_what_their_task_takes_in_half_a_second():
    found = windows([10.0] * 40)

    assert found[0] == FIRST_WINDOW_BYTES
    assert found[-1] == pytest.approx(10 * WINDOW_US / 2, rel=0.05)


def test_a_window_follows_a_change_of_speed_by_ten_within_two_seconds():
    steps = int(2_000_000 / STEP_US)
    found = windows([10.0] * 40 + [1.0] * steps + [10.0] * steps)

    assert found[40 + steps - 1] == pytest.approx(WINDOW_US / 2, rel=0.2)
    assert found[-1] == pytest.approx(10 * WINDOW_US / 2, rel=0.2)


def test_time_without_anything_to_do_does_not_make_a_task_look_slow():
    found = windows([10.0] * 100, idle=0.75)

    assert found[-1] == pytest.approx(10 * WINDOW_US / 2, rel=0.1)


def test_the_window_of_the_slowest_task_still_has_room():
    assert windows([0.0001] * 100)[-1] == LEAST_WINDOW_BYTES


NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def numbers_from(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=NUMBERS)


@pytest.mark.parametrize("row_ms", [1, 5, 50])
def test_few_seconds_of_rows_wait_before_a_slow_function(tmp_path, row_ms):
    def takes_time(rows: pa.RecordBatch) -> None:
        running.driver.inline.clock_ms += row_ms * len(rows)

    job = Job(tmp_path / "store")
    job.source(GeneratorSource(numbers_from, NUMBERS, splits=1), uid="numbers").rebalance().sink(
        FunctionSink(takes_time), uid="slow"
    )
    running = job.start(mode="inline")

    began_ms = running.driver.inline.clock_ms
    while running.driver.inline.clock_ms - began_ms < 60_000:
        running.driver.go_on(1)

    for _ in range(5):
        asked_ms = running.driver.inline.clock_ms
        running.checkpoint()
        # Half a second of rows wait, or the least window, and the last step of the sender on top of them.
        assert running.driver.inline.clock_ms - asked_ms < 5_000
        running.driver.go_on(500)
    running.driver.close()
