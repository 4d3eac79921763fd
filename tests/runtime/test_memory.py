"""A sink that stands still: what was read waits in channels of a fixed size, and no more is read."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from arrowstate.runtime import DirectSink, GeneratorSource, Job
from arrowstate.runtime.core.barriers import ExactlyOnceBarriers
from arrowstate.runtime.core.exchange import CREDIT_BYTES, FRAME_ROWS
from arrowstate.runtime.core.pacing import FIRST_WINDOW_BYTES
from arrowstate.runtime.core.task import OperatorTask, TaskHooks
from stores import until

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
TEXT = "0123456789" * 10
_LOOKS, _BETWEEN_S = 8, 0.25


class StandsStill(DirectSink):
    """Takes nothing for as long as a file is there, in the slot that gets the rows."""

    def __init__(self, barrier: Path) -> None:
        self.barrier = barrier

    def write(self, rows, subtask):
        (self.barrier.parent / "reached").touch()
        while self.barrier.exists():
            time.sleep(0.01)


def numbered(first, count):
    return pa.record_batch([pa.array(range(first, first + count), pa.int64()), pa.array([TEXT] * count)], schema=SCHEMA)


def endless(folder: Path) -> Job:
    """A source that is as fast as it can be in two slots, and a sink in one of them."""
    (folder / "barrier").touch()
    job = Job(folder / "store", parallelism=2)
    rows = job.source(GeneratorSource(numbered, SCHEMA, splits=2), uid="rows")
    rows.to_one().sink(StandsStill(folder / "barrier"), uid="still")
    return job


def is_blocked(running) -> bool:
    return any(task.slot == 1 and task.task == "rows" and task.blocked > 0 for task in running.status().tasks)


def test_channels_hold_no_more_than_their_window_and_one_step(tmp_path):
    with endless(tmp_path).start(mode="threads") as running:
        until(lambda: is_blocked(running))
        sender = running.driver._slots._mailboxes[1].slot._attempt
        held = [size for exchange in sender.exchanges.values() for size in exchange.in_flight]
        (tmp_path / "barrier").unlink()

    # The receiver has taken nothing up that would say how fast it is.
    step = numbered(0, FRAME_ROWS).nbytes
    assert FIRST_WINDOW_BYTES <= max(held) <= FIRST_WINDOW_BYTES + step


@pytest.mark.turns(2)
def test_processes_do_not_grow_while_a_sink_stands_still(tmp_path):
    with endless(tmp_path).start() as running:
        until(lambda: (tmp_path / "reached").exists() and is_blocked(running))
        slots = [process.popen.pid for process in running.driver._slots._processes.values()]
        sizes = []
        for _ in range(_LOOKS):
            sizes.append([resident_bytes(slot) for slot in slots])
            time.sleep(_BETWEEN_S)
        rows = [task.rows for task in running.status().tasks if task.task == "rows"]
        (tmp_path / "barrier").unlink()

    # A source of this speed would have brought some hundred megabytes.
    assert sum(rows) * len(TEXT) < 4 * (CREDIT_BYTES + FRAME_ROWS * len(TEXT))
    assert all(size - first < CREDIT_BYTES for look in sizes for size, first in zip(look, sizes[0], strict=True))


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096


class _Room:
    """A chain of which it can be said whether it has room."""

    has_room = False
    exchanges: dict = {}  # noqa: RUF012
    sinks: dict = {}  # noqa: RUF012

    def event(self, element):
        pass


class _Timers:
    """A body with a timer that is always due."""

    fired = 0

    def next_timer_ms(self):
        return 0

    def tick(self, now_ms):
        self.fired += 1


def test_timers_of_processing_time_wait_for_room():
    # One that registers the next one gives out rows for ever.
    room, body = _Room(), _Timers()
    hooks = TaskHooks(*[lambda *_: None] * 4, lambda: 0, lambda: 0)
    task = OperatorTask("timed", 0, room, hooks, body, [], {}, ExactlyOnceBarriers(0), None)

    task.tick(10)
    before = body.fired
    room.has_room = True
    task.tick(10)

    assert (before, body.fired) == (0, 1)
