"""A slot: one subtask of every task of a job, run by one thread, and what it hears from the coordinator.

Whoever drives a slot gives it messages and elements, has it step while there is something to do, and does what it asks
of its `Outside`. It does no input or output of its own but what readers, functions and sinks do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from arrowstate.backend.broadcast import restored_broadcast
from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.backend.restoring import restore_backend
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime.connectors import PreparingSink, Sink
from arrowstate.runtime.core.barriers import AlignedBarriers, TrackedBarriers
from arrowstate.runtime.core.bodies import Body, FunctionBody, RelayBody
from arrowstate.runtime.core.chain import Chain
from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.exchange import Exchange
from arrowstate.runtime.core.messages import (
    AbortCheckpoint,
    Acknowledged,
    AssignSplits,
    Cancel,
    CompleteCheckpoint,
    Declined,
    Deploy,
    Ended,
    Failed,
    FromSlot,
    Limit,
    Ready,
    Run,
    SlotFigures,
    SourceTime,
    StopSources,
    TaskFigures,
    TaskHandle,
    ToSlot,
    TriggerCheckpoint,
)
from arrowstate.runtime.core.reading import SourceSplits
from arrowstate.runtime.core.sinking import DirectTask, KeptRows, PreparedTask, SinkTask
from arrowstate.runtime.core.snapshots import SnapshotWork, Written
from arrowstate.runtime.core.task import Channel, OperatorTask, SourceTask, Task, TaskHooks
from arrowstate.runtime.graph import Graph, RelayNode, SinkNode, SourceNode, StatefulNode
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.snapshot.reading import store_key
from arrowstate.snapshot.references import run_files
from arrowstate.snapshot.subtasks import whole_state
from arrowstate.state.operator_list import BroadcastState
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.key_groups import key_group_range
from arrowstate_formats.run_files import RunFormat

__all__ = ["Outside", "Setting", "Slot"]

_TELL_MS = 250
"""How often the coordinator is told how the tasks are."""

T = TypeVar("T")

_LOOK_AGAIN_MS = 10
"""How long a reader that had no rows is left alone, and how often timers are looked at."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What slots and coordinator know of the job besides its plan."""

    store_id: str
    parallelism: int
    max_parallelism: int
    exactly_once: bool = True
    format: RunFormat = "arrow"


class Outside(Protocol):
    """What a slot asks of whoever drives it."""

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        """Bring an element to the subtask `to` of an edge, after all that was sent there before."""

    def grant(self, attempt: int, to: int, edge: int, size: int) -> None:
        """Tell the subtask `to`, which sent rows of this size, that they were taken up."""

    def tell(self, message: FromSlot) -> None:
        """Tell the coordinator."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Have work done beside the steps, then call `done` between two of them."""

    def now_ms(self) -> int: ...
    def now_us(self) -> int: ...
    def new_id(self) -> str: ...


@dataclass(slots=True)
class _Attempt:
    """All that is made anew for each start of the job."""

    number: int
    tasks: list[Task] = field(default_factory=list)
    "Each after those that it feeds, so that what is under way is done before more is read."
    operators: dict[int, OperatorTask] = field(default_factory=dict)
    "By the number of an edge that leads to it."
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    backends: dict[str, KeyedStateBackend] = field(default_factory=dict)
    written: dict[int, list[Written]] = field(default_factory=lambda: defaultdict(list))
    "What was written for checkpoints that are not committed."
    previous: dict[str, TaskHandle] = field(default_factory=dict)
    "What the last committed checkpoint has of each task."
    aborted: set[int] = field(default_factory=set)
    direct: dict[str, DirectTask] = field(default_factory=dict)
    "Sinks that keep nothing, each of which all tasks of a slot share."
    runs: bool = False
    told_time: dict[str, tuple[int | None, bool]] = field(default_factory=dict)


class Slot:
    """One subtask of every task."""

    def __init__(self, graph: Graph, subtask: int, setting: Setting, storage: Storage, outside: Outside) -> None:
        self._graph = graph
        self._subtask = subtask
        self._setting = setting
        self._storage = storage
        self._outside = outside
        self._attempt: _Attempt | None = None
        self._looked_ms = self._told_ms = 0
        self.busy_in: str | None = None
        "The task whose step runs, or ran last."

    @property
    def tasks(self) -> list[Task]:
        """The tasks of this attempt, none between two."""
        return [] if self._attempt is None else self._attempt.tasks

    def hear(self, message: ToSlot) -> None:
        """Take note of what the coordinator says."""
        if isinstance(message, Deploy):
            self._drop()
            self._guarded(message.attempt, lambda: self._deploy(message))
            return
        attempt = self._attempt
        if attempt is None or message.attempt != attempt.number:
            return
        match message:
            case Run():
                attempt.runs = True
                for task in attempt.tasks:
                    if isinstance(task, SourceTask):
                        task.may_read = True
                self._look_again(attempt)
            case Cancel():
                self._drop()
            case _:
                self._guarded(attempt.number, lambda: self._told(attempt, message))

    def take(self, attempt: int, edge: int, sender: int, element: Element) -> None:
        """Take an element that another subtask sent; one of another attempt is void."""
        if self._attempt is not None and self._attempt.number == attempt:
            self._attempt.operators[edge].deliver((edge, sender), element)

    def granted(self, attempt: int, edge: int, by: int, size: int) -> None:
        """Take note that another subtask has taken rows up."""
        if self._attempt is not None and self._attempt.number == attempt:
            self._attempt.exchanges[edge].granted(by, size)

    def step(self) -> bool:
        """Do one step of one task, and return whether there was anything to do."""
        attempt = self._attempt
        if attempt is None or not attempt.runs:
            return False
        now_ms = self._outside.now_ms()
        done = False

        def run() -> None:
            nonlocal done
            passed_ms = now_ms - self._looked_ms
            if passed_ms >= _LOOK_AGAIN_MS:
                self._looked_ms = now_ms
                self._look_again(attempt)
                for task in attempt.tasks:
                    task.blocked_us += passed_ms * 1000 if task.is_blocked else 0
                self._tell_figures(attempt, now_ms)
            began_us = self._outside.now_us()
            for task in attempt.tasks:
                self.busy_in = task.uid
                if task.step():
                    task.busy_us += self._outside.now_us() - began_us
                    done = True
                    return

        self._guarded(attempt.number, run)
        return done

    def next_look_ms(self) -> int:
        """When to step again though nothing came."""
        return self._looked_ms + _LOOK_AGAIN_MS

    def close(self) -> None:
        """End whatever runs."""
        self._drop()

    def _look_again(self, attempt: _Attempt) -> None:
        now_ms = self._outside.now_ms()
        for task in attempt.tasks:
            if isinstance(task, OperatorTask):
                task.tick(now_ms)
            elif isinstance(task, SourceTask):
                task.look_again(now_ms)
                self._tell_time(attempt, task)

    def _tell_figures(self, attempt: _Attempt, now_ms: int) -> None:
        if now_ms - self._told_ms < _TELL_MS:
            return
        self._told_ms = now_ms
        figures = tuple(
            TaskFigures(
                task.uid,
                self._subtask,
                task.rows_in,
                task.busy_us,
                task.blocked_us,
                task.queued_rows,
                task.watermark,
                task.has_ended,
            )
            for task in attempt.tasks
        )
        self._outside.tell(SlotFigures(attempt.number, self._subtask, now_ms, figures))

    def _tell_time(self, attempt: _Attempt, task: SourceTask) -> None:
        node = self._graph.task(task.uid)
        assert isinstance(node, SourceNode)
        if node.watermarks is None or node.watermarks.group is None:
            return
        known = task.splits.watermark, task.splits.is_idle or task.has_ended
        if attempt.told_time.get(task.uid) != known:
            attempt.told_time[task.uid] = known
            self._outside.tell(SourceTime(attempt.number, task.uid, self._subtask, *known))

    def _told(self, attempt: _Attempt, message: ToSlot) -> None:
        sources = {task.uid: task for task in attempt.tasks if isinstance(task, SourceTask)}
        match message:
            case TriggerCheckpoint(_, checkpoint_id):
                for source in sources.values():
                    source.take_snapshot(checkpoint_id)
            case CompleteCheckpoint(_, checkpoint_id):
                self._completed(attempt, checkpoint_id)
            case AbortCheckpoint(_, checkpoint_id, gone):
                attempt.aborted.add(checkpoint_id)
                attempt.written.pop(checkpoint_id, None)
                self._forget(attempt, gone)
                for task in attempt.tasks:
                    if isinstance(task, OperatorTask):
                        task.aborted(checkpoint_id)
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

    def _guarded(self, number: int, do: Callable[[], Any]) -> None:
        """Do something of an attempt; whatever it raises ends the attempt here."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 (the coordinator decides what becomes of the job)
            self._drop(quietly=True)
            self._outside.tell(Failed(number, self._subtask, error))

    def _drop(self, *, quietly: bool = False) -> None:
        attempt, self._attempt = self._attempt, None
        for task in [] if attempt is None else attempt.tasks:
            try:
                if isinstance(task, OperatorTask):
                    task.body.close()
                elif isinstance(task, SourceTask):
                    task.splits.close()
                for sink in task.chain.sinks.values():
                    sink.close()
            except Exception:
                # What has failed already may not be able to close.
                if not quietly:
                    raise

    def _completed(self, attempt: _Attempt, checkpoint_id: int) -> None:
        for written in attempt.written.pop(checkpoint_id, []):
            if written.keyed is not None:
                written.keyed.committed(self._storage, self._setting.store_id)
            attempt.previous[written.handle.task] = written.handle
            if written.splits is not None:
                written.splits.committed(written.states)
        attempt.written = defaultdict(list, {id: made for id, made in attempt.written.items() if id > checkpoint_id})
        attempt.aborted = {id for id in attempt.aborted if id > checkpoint_id}
        for task in attempt.tasks:
            for sink in task.chain.sinks.values():
                sink.completed(checkpoint_id)

    def _forget(self, attempt: _Attempt, gone: frozenset[str]) -> None:
        """Let the next checkpoint write anew what is in files that were collected."""
        store = store_key(self._storage, self._setting.store_id)
        for backend in attempt.backends.values() if gone else ():
            for state in backend.freeze().states:
                for frozen in state.table.runs:
                    stored = frozen.run.stored.get(store)
                    if stored is not None and not gone.isdisjoint(run_files(stored[0])):
                        del frozen.run.stored[store]
        if gone:
            attempt.previous.clear()

    def _snapshot(self, attempt: _Attempt, task: Task, checkpoint_id: int, alignment_us: int) -> None:
        if checkpoint_id in attempt.aborted:
            return
        work = SnapshotWork.of(
            task,
            checkpoint_id,
            self._storage,
            self._setting.store_id,
            format=self._setting.format,
            new_id=self._outside.new_id,
            previous=attempt.previous.get(task.uid),
            cancelled=lambda: checkpoint_id in attempt.aborted or self._attempt is not attempt,
            alignment_us=alignment_us,
        )
        self._outside.submit(work.write, partial(self._wrote, attempt, task, checkpoint_id))

    def _wrote(
        self, attempt: _Attempt, task: Task, checkpoint_id: int, written: Written | None, error: BaseException | None
    ) -> None:
        if self._attempt is attempt and written is not None:
            attempt.written[checkpoint_id].append(written)
        if written is not None:
            # Whoever is told of an attempt that has ended deletes what was written.
            self._outside.tell(Acknowledged(attempt.number, checkpoint_id, written.handle))
        else:
            reason = f"{type(error).__name__}: {error}"
            self._outside.tell(Declined(attempt.number, checkpoint_id, task.uid, self._subtask, reason))

    def _deploy(self, message: Deploy) -> None:
        attempt = _Attempt(message.attempt)
        base = None if message.base is None else CommitLog(self._storage).read(message.base).document
        setting = self._setting
        hooks = TaskHooks(
            partial(self._consumed, attempt),
            partial(self._snapshot, attempt),
            lambda task: self._outside.tell(Ended(attempt.number, task.uid, self._subtask)),
            self._outside.now_ms,
            self._outside.now_us,
        )
        for edge in self._graph.edges:
            attempt.exchanges[edge.number] = Exchange(
                edge, self._subtask, setting.parallelism, setting.max_parallelism, partial(self._send, attempt)
            )
        # Known from here on, so that what was made is closed if the rest cannot be.
        self._attempt = attempt
        for node in reversed(self._graph.in_order()):
            chain = Chain(self._graph, node, node.uid, attempt.exchanges, partial(self._sink, attempt))
            if isinstance(node, SourceNode):
                splits = SourceSplits(node)
                attempt.tasks.append(SourceTask(node.uid, self._subtask, chain, hooks, splits))
                splits.add(message.splits.get(node.uid, ()), self._outside.now_ms())
                splits.no_more = node.uid in message.no_more_splits
            else:
                attempt.tasks.append(self._operator(attempt, node, chain, hooks, base))
        self._outside.tell(Ready(attempt.number, self._subtask))

    def _operator(
        self,
        attempt: _Attempt,
        node: StatefulNode | RelayNode,
        chain: Chain,
        hooks: TaskHooks,
        base: LogEntryDocument | None,
    ) -> OperatorTask:
        watermark = None if base is None else base.watermark
        body: Body
        if isinstance(node, StatefulNode):
            stored = None if base is None else next((item for item in base.operators if item.uid == node.uid), None)
            backend = self._backend(node, base, stored)
            attempt.backends[node.uid] = backend
            watermark = backend.watermark
            body = FunctionBody(node, backend, self._broadcasts(node, stored), chain.rows, self._outside.now_ms)
        else:
            body = RelayBody(chain.rows)
        channels = [(edge.number, sender) for edge in node.inputs for sender in range(self._setting.parallelism)]
        handler = AlignedBarriers if self._setting.exactly_once else TrackedBarriers
        task = OperatorTask(
            node.uid,
            self._subtask,
            chain,
            hooks,
            body,
            channels,
            {edge.number: edge.port for edge in node.inputs},
            handler(len(channels)),
            watermark,
        )
        for edge in node.inputs:
            attempt.operators[edge.number] = task
        return task

    def _backend(
        self, node: StatefulNode, base: LogEntryDocument | None, stored: OperatorDocument | None
    ) -> KeyedStateBackend:
        setting = self._setting
        if base is None or stored is None or not stored.key:
            groups = key_group_range(setting.max_parallelism, parallelism=setting.parallelism, subtask=self._subtask)
            return KeyedStateBackend(
                key=node.key,
                max_parallelism=setting.max_parallelism,
                key_groups=groups,
                clock_ms=self._outside.now_ms,
            )
        return restore_backend(
            self._storage,
            setting.store_id,
            base,
            node.uid,
            parallelism=setting.parallelism,
            subtask=self._subtask,
            max_parallelism=setting.max_parallelism,
            clock_ms=self._outside.now_ms,
        )

    def _broadcasts(self, node: StatefulNode, stored: OperatorDocument | None) -> dict[str, BroadcastState]:
        documents = {} if stored is None else {state.name: state for state in stored.operator_states}
        made = {}
        for descriptor in node.broadcasts:
            document = documents.get(descriptor.name)
            if document is None:
                made[descriptor.name] = BroadcastState(descriptor)
            else:
                whole = whole_state(self._storage, node.uid, document)
                # All subtasks had the same.
                made[descriptor.name] = restored_broadcast(
                    self._storage, whole, min(self._subtask, len(whole.parts) - 1)
                )
        return made

    def _sink(self, attempt: _Attempt, node: SinkNode) -> SinkTask:
        """Return what a task writes to: one of its own, for each task ends its epochs by its own barriers."""
        sink = node.sink
        kept = partial(KeptRows, self._storage, self._outside.new_id)
        if isinstance(sink, OutputTable):
            return kept(sink.name, "rows", node.schema, is_table=True)
        if isinstance(sink, Sink):
            return kept(node.uid, "pending", node.schema, is_table=False)
        if isinstance(sink, PreparingSink):
            pending = kept(node.uid, "pending", sink.committable_schema, is_table=False)
            name = f"{self._setting.store_id}-{attempt.number}-{self._outside.new_id()}"
            return PreparedTask(sink, self._setting.store_id, node.uid, self._subtask, name, pending)
        if node.uid not in attempt.direct:
            attempt.direct[node.uid] = DirectTask(sink, self._setting.store_id, node.uid, self._subtask)
        return attempt.direct[node.uid]

    def _send(self, attempt: _Attempt, edge: int, to: int, element: Element) -> None:
        if to == self._subtask:
            attempt.operators[edge].deliver((edge, to), element)
        else:
            self._outside.send(attempt.number, to, edge, element)

    def _consumed(self, attempt: _Attempt, channel: Channel, size: int) -> None:
        edge, sender = channel
        if sender == self._subtask:
            attempt.exchanges[edge].granted(sender, size)
        else:
            self._outside.grant(attempt.number, sender, edge, size)
