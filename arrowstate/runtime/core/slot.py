"""A slot: one subtask of every task of a job, run by one thread, and what it hears from the coordinator.

Whoever drives a slot gives it messages and elements, has it step while there is something to do, and does what it asks
of its `Outside`. It does no input or output of its own but what readers, functions and sinks do. Whatever they raise,
`SystemExit` too, ends the attempt and is told to the coordinator; nothing raises out of a slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arrowstate.clock import has_passed
from arrowstate.runtime.core.attempt import Attempt, Outside, Setting
from arrowstate.runtime.core.deploying import deploy
from arrowstate.runtime.core.elements import Barrier, Element
from arrowstate.runtime.core.measuring import Meter
from arrowstate.runtime.core.messages import (
    AbortCheckpoint,
    AssignSplits,
    Cancel,
    CompleteCheckpoint,
    Deploy,
    Failed,
    Limit,
    NotClosed,
    Ready,
    Run,
    SourceTime,
    StopSources,
    ToSlot,
    TriggerCheckpoint,
)
from arrowstate.runtime.core.snapshots import SlotSnapshots
from arrowstate.runtime.core.task import OperatorTask, SourceTask, Task
from arrowstate.runtime.core.turns import Turns
from arrowstate.runtime.graph import Graph, SourceNode
from arrowstate.runtime.restart import is_unrecoverable
from arrowstate.storage.base import Storage

_TELL_MS = 250
"""How often the coordinator is told how the tasks are."""

_LOOK_AGAIN_MS = 10
"""How long a reader that had no rows is left alone, and how often timers are looked at."""


class Slot:
    """One subtask of every task."""

    def __init__(self, graph: Graph, subtask: int, setting: Setting, storage: Storage, outside: Outside) -> None:
        self._graph = graph
        self._subtask = subtask
        self._setting = setting
        self._storage = storage
        self._outside = outside
        self._attempt: Attempt | None = None
        self._meter: Meter | None = None
        self._turns: Turns | None = None
        self._number = 0
        "The attempt that was deployed last."
        self._looked_ms = self._told_ms = 0
        self.steps_in: memoryview[int] | list[int] = [0]
        "The place in `tasks` of the one whose step runs, or ran last; whoever drives the slot may give it another."

    @property
    def tasks(self) -> list[Task]:
        """The tasks of this attempt, none between two."""
        return [] if self._attempt is None else self._attempt.tasks

    def hear(self, message: ToSlot) -> None:
        """Take note of what the coordinator says."""
        if isinstance(message, Deploy):
            self._drop()
            self._number = message.attempt
            self.supervise(lambda: self._deploy(message))
            return
        attempt = self._attempt
        if attempt is None or message.attempt != attempt.number:
            return
        match message:
            case Run():
                self.supervise(lambda: self._begin(attempt))
            case Cancel():
                self._drop()
            case _:
                self.supervise(lambda: self._told(attempt, message))

    def take(self, attempt: int, edge: int, sender: int, element: Element) -> None:
        """Take an element that another subtask sent; one of another attempt is void."""
        own = self._attempt
        if own is not None and own.number == attempt:
            self.supervise(lambda: own.operators[edge].deliver((edge, sender), element))

    def granted(self, attempt: int, edge: int, by: int, size: int, window: int) -> None:
        """Take note that another subtask has taken rows up, and of what its channel may hold."""
        own = self._attempt
        if own is not None and own.number == attempt:
            self.supervise(lambda: own.exchanges[edge].granted(by, size, window))

    def step(self) -> bool:
        """Do one step of one task, and return whether there was anything to do."""
        attempt, turns = self._attempt, self._turns
        if attempt is None or turns is None:
            return False
        now_ms = self._outside.now_ms()
        done = False

        def run() -> None:
            nonlocal done
            if has_passed(now_ms, self._looked_ms, _LOOK_AGAIN_MS):
                self._looked_ms = now_ms
                self._measure(now_ms)
                self._look_again(attempt)
            done = turns.step(self._begins)
            if done and not attempt.has_rows and attempt.rows:
                # How a job goes on that fails now depends on whether it has had any.
                attempt.has_rows = True
                self._measure(now_ms, tell=True)

        self.supervise(run)
        return done

    def until_next_look_ms(self, now_ms: int) -> int:
        """In how many milliseconds to step again though nothing came, 1 or more."""
        return min(max(self._looked_ms + _LOOK_AGAIN_MS - now_ms, 1), _LOOK_AGAIN_MS)

    def close(self) -> None:
        """End whatever runs."""
        self._drop()

    def supervise(self, do: Callable[[], Any]) -> None:
        """Do something of the attempt; whatever it raises ends the attempt here, and the coordinator hears of it."""
        try:
            do()
        except BaseException as error:  # noqa: BLE001 (the coordinator decides what becomes of the job)
            rows = 0 if self._attempt is None else self._attempt.rows
            self._drop()
            self._outside.tell(Failed(self._number, self._subtask, error, rows, is_unrecoverable(error)))

    def _begins(self, number: int) -> None:
        self.steps_in[0] = number

    def _begin(self, attempt: Attempt) -> None:
        self._meter = Meter(attempt, self._outside.now_us())
        self._turns = Turns(attempt.tasks, self._outside.now_us)
        for task in attempt.tasks:
            if isinstance(task, OperatorTask):
                task.begin()
            elif isinstance(task, SourceTask):
                task.may_read = True
        self._look_again(attempt)

    def _deploy(self, message: Deploy) -> None:
        snapshots = SlotSnapshots(
            message.attempt,
            self._subtask,
            self._storage,
            self._setting.store_id,
            self._setting.format,
            self._outside,
            is_over=lambda: self._attempt is not attempt,
        )
        attempt = Attempt(message.attempt, self._subtask, snapshots, self._outside)
        # Known from here on, so that what was made is closed if the rest cannot be.
        self._attempt = attempt
        deploy(attempt, message, self._graph, self._setting, self._storage)
        self._outside.tell(Ready(attempt.number, self._subtask))

    def _look_again(self, attempt: Attempt) -> None:
        now_ms = self._outside.now_ms()
        for task in attempt.tasks:
            if isinstance(task, OperatorTask):
                began_us = self._outside.now_us()
                task.tick(now_ms)
                task.busy_us += self._outside.now_us() - began_us
            elif isinstance(task, SourceTask):
                task.look_again(now_ms)
                self._tell_time(attempt, task)

    def _measure(self, now_ms: int, *, tell: bool = False) -> None:
        """Measure the tasks, and tell the coordinator from time to time."""
        if self._meter is None:
            return
        self._meter.look(self._outside.now_us())
        if tell or has_passed(now_ms, self._told_ms, _TELL_MS):
            self._told_ms = now_ms
            self._outside.tell(self._meter.figures(now_ms))

    def _tell_time(self, attempt: Attempt, task: SourceTask) -> None:
        node = self._graph.task(task.uid)
        assert isinstance(node, SourceNode)
        if node.watermarks is None or node.watermarks.group is None:
            return
        known = task.splits.watermark, task.splits.is_idle or task.has_ended
        if attempt.told_time.get(task.uid) != known:
            attempt.told_time[task.uid] = known
            self._outside.tell(SourceTime(attempt.number, task.uid, self._subtask, *known))

    def _told(self, attempt: Attempt, message: ToSlot) -> None:
        sources = attempt.sources
        match message:
            case TriggerCheckpoint(_, checkpoint_id, is_full, overtakes_at_ms):
                # Before the parts of a checkpoint: when a job is over it has heard of all its rows.
                self._measure(self._outside.now_ms(), tell=True)
                for source in sources.values():
                    source.coming[checkpoint_id] = Barrier(checkpoint_id, is_full, overtakes_at_ms)
                    source.take_snapshot(checkpoint_id)
            case CompleteCheckpoint(_, checkpoint_id):
                attempt.snapshots.completed(checkpoint_id)
                for task in attempt.tasks:
                    for sink in task.chain.sinks.values():
                        sink.completed(checkpoint_id)
                    for function in task.checkpointed:
                        function.completed(checkpoint_id)
            case AbortCheckpoint(_, checkpoint_id, gone):
                is_new = attempt.snapshots.abort(checkpoint_id, gone)
                for task in attempt.tasks:
                    if isinstance(task, OperatorTask):
                        task.aborted(checkpoint_id)
                    for function in task.checkpointed if is_new else ():
                        function.aborted(checkpoint_id)
            case AssignSplits(_, uid, splits, no_more):
                sources[uid].splits.add(splits, self._outside.now_ms())
                sources[uid].splits.no_more = no_more
                sources[uid].has_nothing_now = False
            case StopSources(_, drain):
                for source in sources.values():
                    if drain and not source.has_ended:
                        source.end_of_input()
                    source.may_read = False
            case Limit(_, limits):
                for uid, watermark in limits.items():
                    sources[uid].splits.limit(watermark)
                    sources[uid].has_nothing_now = False

    def _drop(self) -> None:
        attempt, self._attempt, self._meter, self._turns = self._attempt, None, None, None
        for uid, error in [] if attempt is None else attempt.close():
            self._outside.tell(NotClosed(self._number, self._subtask, uid, error))
