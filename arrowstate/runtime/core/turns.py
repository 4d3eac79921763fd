"""Which task of a slot has the next step: consumers first, and nobody is passed over for long.

What is under way is done before more is read, so queues stay short and barriers come through soon. A slot may get rows
from others for ever, and would never read again. So a task that was passed over for long has a turn of its own, as long
as the others had since, and at most the rows of one large step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from arrowstate.runtime.core import task as tasks_of
from arrowstate.runtime.core.task import SourceTask, Task

PASSED_STEPS = 64
"""After so many steps of others a task goes before its consumers."""

_PASSED_US = 50_000
"""After so much time of others too."""


@dataclass(slots=True)
class _Turn:
    """What a task that was passed over may do before the consumers go first again."""

    number: int
    until_us: int
    until_rows: int


class Turns:
    """Has the tasks of an attempt step, one at a time; they come in the order of consumers before producers."""

    def __init__(self, tasks: Sequence[Task], now_us: Callable[[], int]) -> None:
        self._tasks = tasks
        self._now_us = now_us
        self._sources = [number for number, task in enumerate(tasks) if isinstance(task, SourceTask)]
        self._operators = [number for number in range(len(tasks)) if number not in self._sources]
        self._count = 0
        self._seen = [(0, now_us())] * len(tasks)
        "The step, and the time, at which each task stepped last or had nothing to do."
        self._turn: _Turn | None = None

    def step(self, begins: Callable[[int], None]) -> bool:
        """Do one step of one task; `begins` is told the task that is tried, by its place. False if none had any."""
        turn, self._turn = self._turn, None
        if turn is not None and self._goes_on(turn) and self._do(turn.number, begins):
            self._turn = turn
            return True
        for number in self._passed_over():
            now_us = self._now_us()
            own_us = now_us - self._seen[number][1]
            rows = self._tasks[number].rows_in + tasks_of.STEP_ROWS
            if self._do(number, begins):
                self._turn = _Turn(number, now_us + own_us, rows)
                return True
            self._seen[number] = self._count, now_us
        return any(self._do(number, begins) for number in self._consumers_first())

    def _goes_on(self, turn: _Turn) -> bool:
        return self._now_us() < turn.until_us and self._tasks[turn.number].rows_in < turn.until_rows

    def _passed_over(self) -> list[int]:
        """Return the tasks that others stepped before for long, the longest first."""
        now_us = self._now_us()
        found = [
            number
            for number, (step, at_us) in enumerate(self._seen)
            if self._count - step >= PASSED_STEPS or (self._count > step and now_us - at_us >= _PASSED_US)
        ]
        return sorted(found, key=self._seen.__getitem__)

    def _consumers_first(self) -> Iterator[int]:
        """Yield tasks: operators, then the source that stepped longest ago, then those that may wait for more rows."""
        later = []
        for number in (*self._operators, *sorted(self._sources, key=self._seen.__getitem__)):
            if self._tasks[number].may_wait():
                later.append(number)
            else:
                yield number
        yield from later

    def _do(self, number: int, begins: Callable[[int], None]) -> bool:
        begins(number)
        task = self._tasks[number]
        began_us = self._now_us()
        if not task.step():
            return False
        now_us = self._now_us()
        task.busy_us += now_us - began_us
        self._count += 1
        self._seen[number] = self._count, now_us
        return True
