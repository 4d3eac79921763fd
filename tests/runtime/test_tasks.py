"""What a task takes from its channels at once, and when it lets others go before it."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from arrowstate.runtime.core.barriers import ExactlyOnceBarriers
from arrowstate.runtime.core.elements import Barrier, EndOfData, Rows, Watermark
from arrowstate.runtime.core.exchange import FRAME_ROWS
from arrowstate.runtime.core.task import OperatorTask, TaskHooks

LEFT, RIGHT, OTHER = (0, 0), (0, 1), (1, 0)
"""Two channels of one edge, and one of another."""


class Recorded:
    """A task, and what became of its rows."""

    def __init__(self):
        self.batches = []
        self.consumed = []
        self.snapshots = []
        body = SimpleNamespace(
            rows=lambda port, rows: self.batches.append((port, rows["n"].to_pylist())), watermark=lambda _: None
        )
        chain = SimpleNamespace(has_room=True, event=lambda _: None, exchanges={}, sinks={})
        hooks = TaskHooks(
            consumed=lambda channel, size: self.consumed.append((channel, size)),
            snapshot=lambda task, checkpoint_id, waited, is_full: self.snapshots.append(checkpoint_id),
            captured=lambda task, checkpoint_id, reason: None,
            ended=lambda task: None,
            now_ms=lambda: 0,
            now_us=lambda: 0,
        )
        channels = [LEFT, RIGHT, OTHER]
        self.task = OperatorTask(
            "task", 0, chain, hooks, body, channels, {0: 0, 1: 1}, ExactlyOnceBarriers(len(channels)), None
        )

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


def test_no_more_is_taken_once_there_are_as_many_rows_as_a_frame_may_have(recorded):
    recorded.deliver(LEFT, many(FRAME_ROWS - 1), rows(1), rows(2))
    recorded.deliver(RIGHT, rows(3))

    recorded.task.step()

    assert [len(numbers) for _, numbers in recorded.batches] == [FRAME_ROWS]


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
