"""How the tasks and channels of a slot are measured: counters that a batch adds to, looked at some times a second.

A slot has one thread, so of each moment its tasks are of one of four kinds: one is busy; some are blocked, for they
have something to do and no room for what they give out; while no task is busy the others are idle; and while one is,
they wait for their turn.
"""

from __future__ import annotations

from arrowstate.runtime.core.attempt import Attempt
from arrowstate.runtime.core.messages import SentFigures, SlotFigures, TaskFigures


class Meter:
    """Measures the tasks of an attempt in one slot."""

    def __init__(self, attempt: Attempt, now_us: int) -> None:
        self._attempt = attempt
        self._looked_us = now_us
        self._busy_us = [task.busy_us for task in attempt.tasks]

    def look(self, now_us: int) -> None:
        """Say of the time since the last look what each task did with it."""
        passed_us, self._looked_us = now_us - self._looked_us, now_us
        tasks = self._attempt.tasks
        busy = [task.busy_us - before for task, before in zip(tasks, self._busy_us, strict=True)]
        self._busy_us = [task.busy_us for task in tasks]
        unused_us = max(passed_us - sum(busy), 0)
        for task, own_us in zip(tasks, busy, strict=True):
            if task.is_blocked:
                task.blocked_us += max(passed_us - own_us, 0)
            else:
                task.idle_us += unused_us
        for exchange in self._attempt.exchanges.values():
            exchange.look(passed_us)

    def figures(self, now_ms: int) -> SlotFigures:
        """Return what was counted."""
        attempt = self._attempt
        tasks = tuple(
            TaskFigures(
                task.uid,
                attempt.subtask,
                task.rows_in,
                task.bytes_in,
                task.chain.rows_out,
                task.chain.bytes_out,
                task.busy_us,
                task.blocked_us,
                task.idle_us,
                task.watermark,
                task.has_ended,
                task.late_rows,
                task.chain.dead_rows,
                task.behind_rows,
            )
            for task in attempt.tasks
        )
        sent = tuple(
            SentFigures(
                number,
                tuple(exchange.rows_sent),
                tuple(exchange.bytes_sent),
                exchange.in_flight,
                exchange.windows,
                tuple(exchange.blocked_us),
            )
            for number, exchange in attempt.exchanges.items()
        )
        taken = tuple(figures for task in attempt.tasks for figures in task.taken())
        return SlotFigures(attempt.number, attempt.subtask, now_ms, tasks, sent, taken)
