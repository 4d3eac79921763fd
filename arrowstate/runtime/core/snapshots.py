"""The snapshots of a slot: what of each task is frozen between two steps, written beside them, and then committed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from arrowstate.errors import UserFunctionError
from arrowstate.files.operator import FrozenOperatorState, write_part
from arrowstate.files.reading import store_key
from arrowstate.files.references import run_files
from arrowstate.files.streams import CheckpointStreamFactory
from arrowstate.files.writing import FrozenSubtask, WrittenSubtask, write_subtask
from arrowstate.log.commit import delete_quietly
from arrowstate.runtime.core.in_flight import Capture, InFlightStates
from arrowstate.runtime.core.messages import Acknowledged, Declined, FromSlot, SplitState, StatePart, TaskHandle
from arrowstate.runtime.core.reading import SourceSplits
from arrowstate.runtime.core.sinking import WriteParts
from arrowstate.runtime.core.task import OperatorTask, SourceTask, Task
from arrowstate.schema.operator_state import BroadcastStateDescriptor, OperatorListStateDescriptor
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_to_json
from arrowstate_formats.documents import OperatorPartDocument, SubtaskStatisticsDocument
from arrowstate_formats.run_files import INLINE_BYTES, RunFormat


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that is written, and what its slot needs to know of it when it is committed."""

    handle: TaskHandle
    keyed: WrittenSubtask | None
    splits: SourceSplits | None = None
    states: tuple[SplitState, ...] = ()


@dataclass(slots=True)
class SnapshotWork:
    """What was frozen of a task."""

    task: str
    subtask: int
    storage: Storage
    store_id: str
    format: RunFormat
    new_id: Callable[[], str]
    previous: TaskHandle | None
    cancelled: Callable[[], bool]
    alignment_us: int
    is_full: bool = False
    sync_us: int = 0
    keyed: FrozenSubtask | None = None
    states: list[tuple[str, FrozenOperatorState]] = field(default_factory=list)
    "Operator states, each with the uid under which the store has it."
    splits: SourceSplits | None = None
    split_states: tuple[SplitState, ...] = ()
    split_rows: pa.Array | None = None
    sinks: list[WriteParts] = field(default_factory=list)
    in_flight: InFlightStates | None = None
    "How rows in flight are kept; None if no barrier of the job overtakes."
    capture: Capture | None = None
    "What is in flight; None where the barriers waited for all rows."

    @classmethod
    def of(
        cls,
        task: Task,
        checkpoint_id: int,
        storage: Storage,
        store_id: str,
        *,
        format: RunFormat,
        new_id: Callable[[], str],
        previous: TaskHandle | None,
        cancelled: Callable[[], bool],
        alignment_us: int,
        is_full: bool = False,
    ) -> SnapshotWork:
        """Freeze a task, between two of its steps."""
        began = time.perf_counter_ns()
        work = cls(
            task.uid, task.subtask, storage, store_id, format, new_id, previous, cancelled, alignment_us, is_full
        )
        for function in task.checkpointed:
            function.snapshot_state(checkpoint_id)
            if function.uid is not None and function.operator_states is not None:
                work.states += [(function.uid, frozen) for frozen in function.operator_states.freeze()]
        if isinstance(task, OperatorTask):
            work.keyed = task.body.freeze()
            work.in_flight, work.capture = task.flight.states, task.capture
            broadcasts = task.body.broadcasts.values()
            work.states += [(task.uid, FrozenOperatorState(each.descriptor, each.freeze())) for each in broadcasts]
        elif isinstance(task, SourceTask):
            work.splits = task.splits
            work.split_states = tuple(task.splits.states)
            work.split_rows = task.splits.to_arrow()
        work.sinks = [made for sink in task.chain.sinks.values() if (made := sink.freeze(checkpoint_id)) is not None]
        work.sync_us = (time.perf_counter_ns() - began) // 1000
        return work

    def write(self) -> Written:
        """Write what the store lacks; nothing is left if that fails."""
        began = time.perf_counter_ns()
        paths: list[str] = []
        try:
            parts = [part for write in self.sinks for part in write(paths)]
            if self.in_flight is not None and self.keyed is not None:
                self.keyed, in_flight = self.in_flight.frozen(self.subtask, self.keyed, self.capture)
                self.states += [(self.task, frozen) for frozen in in_flight]
                self.capture = None
            parts += self._operator_parts(paths)
            keyed = None if self.keyed is None else self._keyed(self.keyed)
        except BaseException:
            delete_quietly(self.storage, paths)
            raise
        written = keyed.paths if keyed is not None else ()
        handle = TaskHandle(
            self.task,
            self.subtask,
            key=[] if keyed is None else list(keyed.key),
            max_parallelism=1 if keyed is None else keyed.max_parallelism,
            states=[] if keyed is None else list(keyed.states),
            document=None if keyed is None else keyed.document,
            parts=tuple(parts),
            paths=(*paths, *written),
            references=frozenset(part.part.path for part in parts if part.part.path is not None)
            | (frozenset() if keyed is None else keyed.references),
            statistics=self._statistics(keyed, parts, len(paths), (time.perf_counter_ns() - began) // 1000),
            alignment_us=self.alignment_us,
            finished=tuple(state for state in self.split_states if state.finished),
        )
        return Written(handle, keyed, self.splits, self.split_states)

    def _keyed(self, frozen: FrozenSubtask) -> WrittenSubtask:
        return write_subtask(
            self.storage,
            self.store_id,
            self.task,
            self.subtask,
            frozen,
            format=self.format,
            new_id=self.new_id,
            previous=None if self.previous is None else self.previous.document,
            cancelled=self.cancelled,
            is_full=self.is_full,
        )

    def _operator_parts(self, paths: list[str]) -> list[StatePart]:
        """Write the operator states: what is the whole of a state in this subtask."""
        known: dict[tuple[str, str], dict[tuple[int, str], OperatorPartDocument]] = defaultdict(dict)
        for before in () if self.previous is None else self.previous.parts:
            if before.epoch is None:
                known[before.uid, before.name][before.part.bytes, before.part.xxh3_128] = before.part
        streams = CheckpointStreamFactory(
            self.storage, inline_bytes=INLINE_BYTES, new_id=self.new_id, cancelled=self.cancelled, paths=paths
        )
        states = self.states
        if self.split_rows is not None:
            schema = pa.schema([pa.field("splits", self.split_rows.type, nullable=False)])
            splits = pa.RecordBatch.from_arrays([self.split_rows], schema=schema)
            descriptor = OperatorListStateDescriptor("splits", self.split_rows.type)
            states = [(self.task, FrozenOperatorState(descriptor, splits)), *states]
        made = []
        for uid, frozen in states:
            of = frozen.descriptor
            part = write_part(streams, f"data/{uid}/{of.name}", frozen.batch, known[uid, of.name])
            key = type_to_json(of.key_type) if isinstance(of, BroadcastStateDescriptor) else None
            made.append(StatePart(uid, of.name, of.kind, type_to_json(of.type), part, key_type=key))
        return made

    def _statistics(
        self, keyed: WrittenSubtask | None, parts: list[StatePart], files: int, async_us: int
    ) -> SubtaskStatisticsDocument | None:
        if keyed is not None:
            statistics = keyed.statistics(self.task, sync_us=self.sync_us, async_us=async_us)
            return replace(statistics, alignment_us=self.alignment_us)
        if self.splits is None:
            return None
        size = sum(part.part.bytes for part in parts)
        return SubtaskStatisticsDocument(
            operator=self.task,
            subtask=None,
            sync_us=self.sync_us,
            async_us=async_us,
            alignment_us=self.alignment_us,
            bytes_written=size,
            bytes_total=size,
            files_written=files,
        )


T = TypeVar("T")
Ended: TypeAlias = Callable[[T | None, BaseException | None], None]
"""Gets what some work returned, or what it raised."""


class SnapshotsOutside(Protocol):
    """What the snapshots of a slot ask of whoever drives it."""

    def tell(self, message: FromSlot) -> None:
        """Tell the coordinator."""

    def submit(self, work: Callable[[], T], done: Ended[T], tell: Ended[T]) -> None:
        """Have work done beside the steps, and then call `done` between two of them and `tell` at once."""

    def new_id(self) -> str: ...


class SlotSnapshots:
    """The snapshots that a slot takes in one attempt, and what it knows of those that are committed."""

    def __init__(
        self,
        attempt: int,
        subtask: int,
        storage: Storage,
        store_id: str,
        format: RunFormat,
        outside: SnapshotsOutside,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self._attempt = attempt
        self._subtask = subtask
        self._storage = storage
        self._store_id = store_id
        self._format: RunFormat = format
        self._outside = outside
        self._is_over = is_over
        self.backends: list[KeyedStateBackend] = []
        "Those whose state is in them."
        self._written: dict[int, list[Written]] = defaultdict(list)
        "What was written for checkpoints that are not committed."
        self._previous: dict[str, TaskHandle] = {}
        "What the last committed checkpoint has of each task."
        self._aborted: set[int] = set()
        self._held: dict[tuple[str, int], SnapshotWork] = {}
        "What was frozen of tasks, by checkpoint, while what is in flight to them is captured."

    def take(self, task: Task, checkpoint_id: int, alignment_us: int, is_full: bool = False) -> None:
        """Freeze a task, and have it written; all of it if the checkpoint is full."""
        if checkpoint_id in self._aborted:
            return
        try:
            work = self._frozen(task, checkpoint_id, alignment_us, is_full)
        except UserFunctionError as error:
            if error.uid in task.chain.sinks:
                # Of `prepare`: nobody knows whether the sink still has the rows since the checkpoint before.
                raise
            # Of its `snapshot_state`: the state is as it was, and the job may go on.
            self._outside.tell(Declined(self._attempt, checkpoint_id, task.uid, self._subtask, str(error)))
            return
        if work.capture is not None:
            self._held[task.uid, checkpoint_id] = work
        else:
            self._submit(work, checkpoint_id)

    def captured(self, task: Task, checkpoint_id: int, reason: str | None) -> None:
        """Have a task written whose capture is complete, or decline the checkpoint for the reason why it is none."""
        work = self._held.pop((task.uid, checkpoint_id), None)
        if work is None or checkpoint_id in self._aborted:
            return
        if reason is None:
            self._submit(work, checkpoint_id)
        else:
            self._outside.tell(Declined(self._attempt, checkpoint_id, task.uid, self._subtask, reason))

    def _submit(self, work: SnapshotWork, checkpoint_id: int) -> None:
        # The coordinator is told at once: the step that runs now may last long.
        told = partial(self._tell, work.task, checkpoint_id)
        self._outside.submit(work.write, partial(self._wrote, checkpoint_id), told)

    def _frozen(self, task: Task, checkpoint_id: int, alignment_us: int, is_full: bool) -> SnapshotWork:
        return SnapshotWork.of(
            task,
            checkpoint_id,
            self._storage,
            self._store_id,
            format=self._format,
            new_id=self._outside.new_id,
            previous=None if is_full else self._previous.get(task.uid),
            cancelled=lambda: checkpoint_id in self._aborted or self._is_over(),
            alignment_us=alignment_us,
            is_full=is_full,
        )

    def completed(self, checkpoint_id: int) -> None:
        """Take note that a checkpoint is committed: the next one builds on it."""
        for written in self._written.pop(checkpoint_id, []):
            if written.keyed is not None:
                written.keyed.committed(self._storage, self._store_id)
            self._previous[written.handle.task] = written.handle
            if written.splits is not None:
                written.splits.committed(written.states)
        self._written = defaultdict(list, {id: made for id, made in self._written.items() if id > checkpoint_id})
        self._aborted = {id for id in self._aborted if id > checkpoint_id}

    def abort(self, checkpoint_id: int, gone: frozenset[str]) -> bool:
        """Take note that a checkpoint was given up; what is in files that are gone is written anew by the next.

        Return whether this is new: the coordinator tells of it again and again, as a message may be lost.
        """
        if checkpoint_id in self._aborted:
            return False
        self._aborted.add(checkpoint_id)
        self._held = {place: work for place, work in self._held.items() if place[1] != checkpoint_id}
        self._written.pop(checkpoint_id, None)
        if gone:
            self._forget(gone)
        return True

    def _forget(self, gone: frozenset[str]) -> None:
        """Have the next checkpoint write what is in files that are gone."""
        store = store_key(self._storage, self._store_id)
        for backend in self.backends:
            for state in backend.freeze().states:
                for frozen in state.table.runs:
                    stored = frozen.run.stored.get(store)
                    if stored is not None and not gone.isdisjoint(run_files([stored[0]])):
                        del frozen.run.stored[store]
        self._previous.clear()

    def _wrote(self, checkpoint_id: int, written: Written | None, error: BaseException | None) -> None:  # noqa: ARG002
        if written is not None and not self._is_over():
            self._written[checkpoint_id].append(written)

    def _tell(self, task: str, checkpoint_id: int, written: Written | None, error: BaseException | None) -> None:
        if written is None:
            reason = f"{type(error).__name__}: {error}"
            self._outside.tell(Declined(self._attempt, checkpoint_id, task, self._subtask, reason))
        else:
            # Whoever is told of an attempt that has ended deletes what was written.
            self._outside.tell(Acknowledged(self._attempt, checkpoint_id, written.handle))
