"""The task of a subtask: restore its state, let something happen to it, write what is new.

A task is a pure function of a checkpoint and its rows. Files get fresh names, so any number of attempts may run, one
after another or at once: the commit names the files of one of them, and nothing refers to the rest. What happens in
between is a fold in a sink, and a function of the user's in an operator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from arrowstate.errors import ArrowStateError, KeyTypeError
from arrowstate.files.output_tables import OutputTable
from arrowstate.files.subtasks import read_states, subtask_of
from arrowstate.files.writing import FrozenSubtask, subtask_bytes, write_subtask
from arrowstate.log.commit import delete_quietly
from arrowstate.publish.publication import Publish
from arrowstate.schema.layout import key_schema_of
from arrowstate.spark.memory import TaskMemory
from arrowstate.spark.metrics import TaskMeter, TaskMetrics
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.schemas import key_text
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate.table.merging import MergePolicy
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    OperatorPartDocument,
    OperatorStateDocument,
    SubtaskDocument,
    SubtaskStatisticsDocument,
)
from arrowstate_formats.key_groups import KeyGroupRange, key_group_range
from arrowstate_formats.run_files import RunFormat
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

__all__ = ["Emitted", "Step", "Subtask", "SubtaskResult", "TaskPlan", "delete_files_named"]

Emitted: TypeAlias = tuple[OperatorPartDocument | None, OperatorPartDocument | None]
"""What a task gave out, and what it set aside; None where that is not stored."""

# A task ends with its batch, so it cannot leave the next steps of a merge to later ones.
_AT_ONCE = MergePolicy(step_rows=sys.maxsize)


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What is decided once of an operator of a query: every micro-batch, and each of its tasks, follows it."""

    store: str
    """Absolute path or URL of the store, the same for every process."""
    uid: str
    key: Sequence[FieldDocument]
    parallelism: int
    max_parallelism: int
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    output: OutputTable | None = None
    """Where the rows go that it emits; None if it emits none."""
    is_read: bool = True
    """Whether anything takes what it emits: a table, a function or another operator."""
    dead_letters: OutputTable | None = None
    """Where rows go that it cannot take; None if they fail the query."""
    retention: RetentionPolicy | None = DEFAULT_RETENTION
    """How the store is collected beside the query."""
    publish: Publish | None = None
    """Where the store is published beside the query."""
    memory: TaskMemory = TaskMemory()

    @property
    def stored_output(self) -> OutputTable | None:
        """The output, None where it need not be stored."""
        return self.output if self.is_read else None

    @property
    def key_schema(self) -> pa.Schema:
        return key_schema_of(self.key)

    def open(self) -> Storage:
        """Open the storage of the store."""
        return open_storage(self.store, storage_options=self.storage_options)


@dataclass(frozen=True)
class Step:
    """A micro-batch as the tasks of an operator see it."""

    batch: MicroBatch
    store_id: str
    checkpoint: LogEntryDocument | None
    """The checkpoint to start from, with what it has of the operator; None for a store without one."""
    watermark: int | None
    """Spark's watermark in milliseconds, None while there is none."""
    processing_time: int
    """Spark's time of the micro-batch in milliseconds, the same when it is repeated."""
    broadcasts: Sequence[OperatorStateDocument] = ()


class SubtaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task hands to the commit."""

    base: int | None
    """The number of the log entry of the checkpoint it started from, None if the store had none."""
    key: list[FieldDocument]
    max_parallelism: int
    states: list[StateDocument]
    document: SubtaskDocument
    metrics: TaskMetrics
    paths: list[str] = []
    """The files written for it."""
    statistics: SubtaskStatisticsDocument | None = None
    """What writing took; None if nothing had to be written."""
    next_timer: int | None = None
    """The earliest processing time, in milliseconds, at which a timer of the subtask is due; None if there is none."""
    output: OperatorPartDocument | None = None
    """What it emitted, if that is stored."""
    dead: OperatorPartDocument | None = None
    """The rows that it set aside, if it may."""


@dataclass(frozen=True)
class Subtask:
    """A subtask in one attempt of its task."""

    plan: TaskPlan
    number: int
    storage: Storage
    step: Step
    meter: TaskMeter

    @cached_property
    def operator(self) -> OperatorDocument | None:
        """What the checkpoint has of the operator."""
        operators = () if self.step.checkpoint is None else self.step.checkpoint.operators
        return next((item for item in operators if item.uid == self.plan.uid), None)

    @cached_property
    def key_groups(self) -> KeyGroupRange:
        return key_group_range(self.plan.max_parallelism, parallelism=self.plan.parallelism, subtask=self.number)

    @property
    def previous(self) -> SubtaskDocument | None:
        """The subtask of the checkpoint that owned exactly these keys, if there is one."""
        operator, own = self.operator, self.key_groups
        if operator is None or operator.max_parallelism != self.plan.max_parallelism:
            return None
        if self.number >= operator.parallelism:
            return None
        found = subtask_of(self.storage, operator, self.number)
        return found if (found.subtask, found.key_groups) == (self.number, (own.start, own.end)) else None

    def empty(self, clock_ms: Callable[[], int]) -> KeyedStateBackend:
        """Return the state of a subtask that has none yet."""
        return KeyedStateBackend(
            key=self.plan.key_schema,
            max_parallelism=self.plan.max_parallelism,
            key_groups=self.key_groups,
            **self.plan.memory.for_backend(self.storage),
            merge_policy=_AT_ONCE,
            clock_ms=clock_ms,
        )

    def restored(self, clock_ms: Callable[[], int], *, dropped: Sequence[str] = ()) -> KeyedStateBackend:
        """Return the state that the checkpoint has of the subtask, but for states that may go.

        Raises
        ------
        KeyTypeError
            If the store has another key than the plan.
        """
        operator, checkpoint = self.operator, self.step.checkpoint
        if checkpoint is None or operator is None:
            return self.empty(clock_ms)
        kept = [state for state in operator.states if state.name not in dropped]
        backend = restore_backend(
            self.storage,
            self.step.store_id,
            msgspec.structs.replace(checkpoint, operators=[msgspec.structs.replace(operator, states=kept)]),
            self.plan.uid,
            parallelism=self.plan.parallelism,
            subtask=self.number,
            max_parallelism=self.plan.max_parallelism,
            **self.plan.memory.for_backend(self.storage),
            merge_policy=_AT_ONCE,
            clock_ms=clock_ms,
        )
        wanted = self.plan.key_schema
        if not backend.key.equals(wanted):
            raise KeyTypeError(key_text(backend.key), key_text(wanted))
        return backend

    def unchanged(self, operator: OperatorDocument, previous: SubtaskDocument) -> SubtaskResult:
        """Return what a task hands on that leaves the subtask as it was."""
        size = subtask_bytes(previous.manifest, read_states(self.storage, previous.manifest, self.plan.uid))
        metrics = self.meter.unchanged(previous, size)
        return self._result(key=operator.key, states=operator.states, document=previous, metrics=metrics)

    def written(
        self,
        freeze: Callable[[], FrozenSubtask],
        *,
        rows: int,
        new_id: Callable[[], str],
        format: RunFormat = "arrow",
        emit: Callable[[list[str]], Emitted] = lambda _: (None, None),
        output_rows: int = 0,
        next_timer: int | None = None,
    ) -> SubtaskResult:
        """Write what is new of the state, which takes effect with the commit; nothing is left if that fails.

        `rows` and `output_rows` are how many rows the task was given, and how many it emitted; `emit` writes these and
        those that were set aside, adds its files to the list, and returns what they are.
        """
        uid = self.plan.uid
        began = time.perf_counter_ns()
        frozen = freeze()
        sync_us = (time.perf_counter_ns() - began) // 1000
        began = time.perf_counter_ns()
        store, previous = (self.storage, self.step.store_id), self.previous
        written = write_subtask(*store, uid, self.number, frozen, format=format, new_id=new_id, previous=previous)
        paths = list(written.paths)
        try:
            output, dead = emit(paths)
        except BaseException:
            delete_quietly(self.storage, paths)
            raise
        statistics = written.statistics(uid, sync_us=sync_us, async_us=(time.perf_counter_ns() - began) // 1000)
        counts = {"rows": rows, "output_rows": output_rows, "dead_rows": 0 if dead is None else dead.rows}
        return self._result(
            key=list(frozen.key),
            states=[state.document for state in frozen.states],
            document=written.document,
            paths=paths,
            statistics=statistics,
            next_timer=next_timer,
            metrics=self.meter.written(written.document, statistics, **counts),
            output=output,
            dead=dead,
        )

    def _result(self, **done: Any) -> SubtaskResult:
        base = None if self.step.checkpoint is None else self.step.checkpoint.number
        return SubtaskResult(base=base, max_parallelism=self.plan.max_parallelism, **done)


def delete_files_named(storage: Storage, uids: Iterable[str], prefix: str) -> None:
    """Delete the files that tasks wrote for these uids under names that begin with a prefix; nothing refers to them.

    What cannot be deleted, and what a task that is still running writes later, waits for a collection.
    """
    with suppress(ArrowStateError, OSError):
        paths = [path for folder in (*(f"data/{uid}/" for uid in uids), "manifests/") for path in storage.list(folder)]
        delete_quietly(storage, [path for path in paths if path.rsplit("/", 1)[-1].startswith(prefix)])
