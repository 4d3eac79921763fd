"""What a task takes from its channels at once, and when it lets others go before it."""

from math import inf
from types import SimpleNamespace

import pyarrow as pa
import pytest

from arrowstate.runtime.core.barriers import ExactlyOnceBarriers
from arrowstate.runtime.core.elements import Barrier, EndOfData, Rows, Watermark
from arrowstate.runtime.core.exchange import FRAME_ROWS
from arrowstate.runtime.core.pacing import FIRST_ROWS
from arrowstate.runtime.core.task import Flight, OperatorTask, TaskHooks

LEFT, RIGHT, OTHER = (0, 0), (0, 1), (1, 0)
"""Two channels of one edge, and one of another."""


class Recorded:
    """A task, and what became of its rows."""

    def __init__(self, recovered=()):
        self.batches = []
        self.watermarks = []
        self.consumed = []
        self.snapshots = []
        self.captures = []
        body = SimpleNamespace(
            rows=lambda port, rows: self.batches.append((port, rows["n"].to_pylist())), watermark=self.watermarks.append
        )
        chain = SimpleNamespace(
            has_room=True, event=lambda _: None, exchanges={}, sinks={}, step_bytes=inf, bytes_given=0
        )
        hooks = TaskHooks(
            consumed=lambda channel, size, window: self.consumed.append((channel, size)),
            snapshot=self.snapshot,
            captured=lambda task, checkpoint_id, reason: None,
            ended=lambda task: None,
            now_ms=lambda: 0,
            now_us=lambda: 0,
        )
        channels = [LEFT, RIGHT, OTHER]
        flight = Flight(origins={0: "one", 1: "other"}, most_bytes=1 << 30, recovered=recovered)
        self.task = OperatorTask(
            "task", 0, chain, hooks, body, channels, {0: 0, 1: 1}, ExactlyOnceBarriers(len(channels)), None, flight
        )

    def snapshot(self, task, checkpoint_id, waited, is_full):
        self.snapshots.append(checkpoint_id)
        self.captures.append(task.capture)

    def deliver(self, channel, *elements):
        for element in elements:
            self.task.deliver(channel, element)

    def step_all(self):
        while self.task.step():
            pass


@pytest.fixture
def recorded():
    return Recorded()


def rows(*numbers, size=10):
    return Rows(pa.record_batch({"n": pa.array(numbers, pa.int64())}), size)


def many(count):
    return Rows(pa.record_batch({"n": pa.array(range(count), pa.int64())}), count)


def test_rows_at_the_head_of_all_channels_of_an_edge_are_processed_at_once(recorded):
    recorded.deliver(LEFT, rows(1), rows(2))
    recorded.deliver(RIGHT, rows(3), Watermark(5), rows(4))
    recorded.deliver(OTHER, rows(5))

    recorded.step_all()

    assert recorded.batches == [(0, [1, 2, 3]), (1, [5]), (0, [4])]
    assert recorded.consumed == [(LEFT, 20), (RIGHT, 10), (OTHER, 10), (RIGHT, 10)]


def test_rows_after_a_barrier_are_not_processed_with_those_before_the_barriers_of_others(recorded):
    recorded.deliver(LEFT, Barrier(1), rows(2))
    recorded.deliver(RIGHT, rows(1), Barrier(1), rows(3))
    recorded.deliver(OTHER, Barrier(1))

    recorded.step_all()

    assert recorded.snapshots == [1]
    assert recorded.batches[0] == (0, [1])
    assert sorted(number for _, numbers in recorded.batches[1:] for number in numbers) == [2, 3]


def test_steps_grow_from_few_rows_to_those_of_a_frame_where_they_take_no_time(recorded):
    recorded.deliver(LEFT, many(FRAME_ROWS), many(FRAME_ROWS), many(FRAME_ROWS))
    recorded.deliver(RIGHT, rows(3))

    recorded.step_all()

    sizes = [len(numbers) for _, numbers in recorded.batches]
    assert sizes[:6] == [FIRST_ROWS * 4**step for step in range(5)] + [FRAME_ROWS]
    assert sum(sizes) == 3 * FRAME_ROWS + 1


def test_a_step_takes_part_of_a_frame_and_the_rest_stays_at_the_head_of_its_channel(recorded):
    recorded.deliver(LEFT, many(3 * FIRST_ROWS), Watermark(1))
    recorded.deliver(RIGHT, rows(-1, size=7))

    recorded.step_all()

    numbers = [number for port, taken in recorded.batches for number in taken]
    assert [number for number in numbers if number >= 0] == list(range(3 * FIRST_ROWS))
    assert len(recorded.batches[0][1]) == FIRST_ROWS
    assert sum(size for channel, size in recorded.consumed if channel == LEFT) == 3 * FIRST_ROWS
    assert [size for channel, size in recorded.consumed if channel == RIGHT] == [7]


def test_what_is_left_of_a_frame_is_captured_when_a_barrier_overtakes_it(recorded):
    recorded.deliver(LEFT, many(3 * FIRST_ROWS))
    recorded.task.step()

    for channel in (LEFT, RIGHT, OTHER):
        recorded.deliver(channel, Barrier(1, overtakes_at_ms=0))

    (capture,) = recorded.captures
    (left,) = [channel for channel in capture.all_channels if channel.elements]
    (kept,) = left.elements
    assert kept.batch["n"].to_pylist() == list(range(FIRST_ROWS, 3 * FIRST_ROWS))
    assert capture.bytes == 2 * FIRST_ROWS


def test_a_channel_without_rows_in_flight_holds_event_time_back_after_a_restore_too(recorded):
    for channel, time_ms in ((LEFT, 10), (RIGHT, 5), (OTHER, 20)):
        recorded.deliver(channel, Watermark(time_ms))
    recorded.step_all()
    recorded.deliver(LEFT, rows(1), Watermark(100))
    recorded.deliver(OTHER, rows(2), Watermark(200))
    for channel in (LEFT, RIGHT, OTHER):
        recorded.deliver(channel, Barrier(1, overtakes_at_ms=0))

    again = Recorded(recovered=recorded.captures[0].all_channels)
    again.step_all()

    assert sorted(again.batches) == [(0, [1]), (1, [2])]
    # The right channel is at 5: rows of that time may still come through it.
    assert max(again.watermarks, default=5) <= 5


def test_a_task_with_few_rows_waits_for_two_steps_of_others_and_no_longer(recorded):
    recorded.deliver(LEFT, rows(1))

    waited = [recorded.task.may_wait() for _ in range(4)]
    recorded.step_all()
    recorded.deliver(LEFT, rows(2))

    assert waited == [True, True, False, False]
    assert recorded.task.may_wait(), "these are others"


@pytest.mark.parametrize(
    "elements", [[], [rows(1), Watermark(5)], [rows(1), Barrier(1)], [EndOfData()], [many(FRAME_ROWS)]]
)
def test_a_task_with_nothing_with_many_rows_or_with_more_than_rows_does_not_wait(recorded, elements):
    recorded.deliver(LEFT, *elements)

    assert not recorded.task.may_wait()


def test_a_task_one_of_whose_channels_waits_for_a_barrier_does_not_wait(recorded):
    recorded.deliver(LEFT, Barrier(1), rows(1))
    recorded.step_all()
    recorded.deliver(RIGHT, rows(2))

    assert not recorded.task.may_wait()
