"""The driver of a query: for each micro-batch a job per operator, one log entry for all, then the outputs.

Spark calls it from `foreachBatch`. Between micro-batches it remembers nothing that the store does not say, so it goes
on after a restart as it would have without one. The entry is committed before the functions of the user see the rows,
and they see the same rows again if Spark repeats the micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as sf

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError, StoreNotFoundError
from arrowstate.files.operator import FrozenOperatorState, write_operator_states
from arrowstate.files.output_tables import rows_state
from arrowstate.log.commit import NOT_COMMITTED, delete_quietly
from arrowstate.log.commit_log import CommitLog, History, refuse_loss
from arrowstate.log.entries import CommittedEntry, create_store
from arrowstate.publish.beside import PublisherBeside
from arrowstate.publish.publication import Publish
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.spark.collecting import collector_of, publisher_of
from arrowstate.spark.commit import BatchWork, OperatorWork, commit_batch, take_over
from arrowstate.spark.micro_batches import BatchRecord, StoredState, is_committed, stored_state
from arrowstate.spark.operators.clocks import BatchClock
from arrowstate.spark.outputs import arrow_table, frame_of
from arrowstate.spark.places import StorePlace
from arrowstate.spark.routing import quoted, run_tasks
from arrowstate.spark.task import Step, SubtaskResult, TaskPlan, delete_files_named
from arrowstate.state.operator_list import BroadcastState
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate.telemetry.records import Listener
from arrowstate.upkeep.beside import Collector
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorStateDocument,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "BatchFrames",
    "QueryOperator",
    "StatefulQuery",
    "ids_of",
    "publish_of",
    "retention_of",
    "stream_of",
    "uids_of",
]


@dataclass
class BatchFrames:
    """The DataFrames of one micro-batch: that of the stream, and those that operators have emitted."""

    stream: DataFrame
    emitted: dict[str, Callable[[], DataFrame]] = field(default_factory=dict)
    """By uid what makes them, for none may be asked for."""


@dataclass(frozen=True)
class QueryOperator:
    """An operator of a query, and where its rows come from."""

    plan: TaskPlan
    run: Callable[[Any, Step, int, Iterable[pa.RecordBatch], Callable[[], str]], SubtaskResult]
    """What its tasks do, given the plan, the micro-batch, the number of the subtask, its rows and what makes names."""
    rows: Callable[[BatchFrames], DataFrame]
    """Returns its rows in a micro-batch, of which it takes the columns `taken`."""
    taken: Sequence[tuple[str, str | None]]
    """By name, each with the type to cast it to, None if it has that."""
    broadcasts: Mapping[BroadcastStateDescriptor, DataFrame] = field(default_factory=dict)
    after: frozenset[str] = frozenset()
    """The uids of the operators whose rows it may take."""


class StatefulQuery:
    """What `foreachBatch` calls for each micro-batch.

    On Spark Connect it is pickled and called in a process of the server, so apart from the clock of a classic session
    it holds no session, no DataFrame and no column.

    Parameters
    ----------
    clock
        Tells which micro-batch it is called for.
    operators
        Each after those whose rows it takes; all of one store.
    functions
        By uid, what is called with the rows that an operator emitted.
    dropped
        The uids of operators in the store that the query has no more, whose state may go.
    on_checkpoint
        Called with the record of each checkpoint.
    tasks
        Runs the tasks of an operator, given its frames, the micro-batch and what the names of files begin with, and
        returns what they have done in the order of the subtasks.
    """

    def __init__(
        self,
        clock: BatchClock,
        operators: Sequence[QueryOperator],
        functions: Mapping[str, Callable[[DataFrame, int], object]],
        dropped: Sequence[str] = (),
        on_checkpoint: Listener | None = None,
        *,
        tasks: Callable[[QueryOperator, BatchFrames, Step, str], list[SubtaskResult]] | None = None,
    ) -> None:
        self._clock = clock
        self._tasks = _run if tasks is None else tasks
        self._on_checkpoint = on_checkpoint
        # A DataFrame belongs to the session in which it was made, so it is read here.
        self._broadcast_states = {
            item.plan.uid: [_broadcast_state(descriptor, frame) for descriptor, frame in item.broadcasts.items()]
            for item in operators
            if item.broadcasts
        }
        self._operators = [replace(item, broadcasts={}) for item in operators]
        self._functions = functions
        self._dropped = dropped
        self._uids = uids_of([item.plan for item in self._operators])
        plan = operators[0].plan
        self._store, self._options = plan.store, plan.storage_options
        # The id of the store, and its newest entry after the last micro-batch.
        self._known: tuple[str, CommittedEntry | None] | None = None
        self._broadcasts: dict[str, list[OperatorStateDocument]] | None = None
        self._broadcast_paths: list[str] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process a micro-batch, commit it, and hand its output on."""
        started_at_ms = now_ms()
        storage = open_storage(self._store, storage_options=self._options)
        store_id, history = self._opened(storage, started_at_ms)
        stored = stored_state(history)
        now = self._clock.at(frame, batch_id)
        batch, watermark = now.batch, now.watermark
        if is_committed(self._uids[0], batch, stored.record):
            take_over(storage, batch, new_id=new_id, clock_ms=now_ms)
            # Spark learns the event times of a micro-batch by running it, and the next watermark depends on them.
            frame.count()
            self._hand_on(frame, batch_id, stored.recorded, stored.record)
            return
        # What several operators take is read from its source once.
        is_shared = sum(not item.after for item in self._operators) > 1
        frames = BatchFrames(frame.persist() if is_shared else frame)
        works: list[OperatorWork] = []
        # Spark tells nothing of the tasks of a job that fails, so the names of their files say whose they are.
        job = new_id()[:12]
        try:
            broadcasts = self._broadcast_documents(storage, stored)
            for item in self._operators:
                plan = item.plan
                checkpoint = _only(plan.uid, stored.checkpoint)
                known = broadcasts.get(plan.uid, ())
                step = Step(batch, store_id, checkpoint, watermark, now.processing_time, known)
                found = self._tasks(item, frames, step, job)
                # A checkpoint has the same part of a broadcast state for every subtask.
                same = [msgspec.structs.replace(state, parts=state.parts[:1] * plan.parallelism) for state in known]
                works.append(OperatorWork(plan.uid, found, plan.stored_output, plan.dead_letters, same))
                if plan.stored_output is not None:
                    parts = [result.output for result in found if result.output is not None]
                    frames.emitted[plan.uid] = cache(
                        partial(frame_of, frame.sparkSession, plan.stored_output, parts, 0, self._store, self._options)
                    )
            work = BatchWork.of(
                batch,
                works,
                storage=storage,
                before=[] if stored.checkpoint is None else stored.checkpoint.operators,
                paths=[*self._broadcast_paths],
                new_id=ids_of(job),
                clock_ms=now_ms,
                started_at_ms=started_at_ms,
                watermark=watermark,
            )
        except BaseException:
            # The commit has not been tried.
            self._discard(storage, job)
            raise
        finally:
            if is_shared:
                frame.unpersist()
        try:
            entry = commit_batch(
                storage,
                [*self._uids, *self._dropped],
                work,
                new_id=new_id,
                clock_ms=now_ms,
                on_checkpoint=self._on_checkpoint,
                collector=self._collector(),
                publisher=self._publisher(),
                history=history,
            )
        except NOT_COMMITTED:
            self._discard(storage, job)
            raise
        if entry is None:
            # An earlier run, whose driver is lost and which is not done yet, has committed the same micro-batch.
            stored = stored_state(CommitLog(storage).history())
            self._hand_on(frame, batch_id, stored.recorded, stored.record)
            return
        self._known = store_id, history.log.known
        # What broadcast states were written is part of the store now.
        self._broadcast_paths = []
        self._hand_on(frame, batch_id, entry, BatchRecord.of(entry))

    def _discard(self, storage: Storage, job: str) -> None:
        """Delete the files of a micro-batch that is not committed."""
        delete_files_named(storage, self._uids, job)
        delete_quietly(storage, self._broadcast_paths)
        self._broadcasts = None

    def _collector(self) -> Collector | None:
        retention = retention_of([item.plan for item in self._operators])
        return None if retention is None else collector_of(StorePlace(self._store, self._options), retention)

    def _publisher(self) -> PublisherBeside | None:
        publish = publish_of([item.plan for item in self._operators])
        return None if publish is None else publisher_of(StorePlace(self._store, self._options), publish)

    def _opened(self, storage: Storage, now_ms: int) -> tuple[str, History]:
        """Return the id of the store, which is made if there is none, and its log."""
        known_id, known = self._known or (None, None)
        log = CommitLog(storage, on_loss=refuse_loss, known=known)
        try:
            store, history = log.opened()
        except StoreNotFoundError:
            store = create_store(storage, new_id(), now_ms)
            known_id = None
        if store.store_id != known_id:
            # What is known is of a store that was here before.
            history = CommitLog(storage, on_loss=refuse_loss).history()
        return store.store_id, history

    def _hand_on(
        self, frame: DataFrame, batch_id: int, entry: LogEntryDocument | None, record: BatchRecord | None
    ) -> None:
        """Call the user's functions with the rows of a committed micro-batch."""
        for item in self._operators:
            function, output = self._functions.get(item.plan.uid), item.plan.stored_output
            if function is None or output is None:
                continue
            if entry is None or record is None or record.batch_id != batch_id:
                raise InvalidInputError(
                    f"the output of operator {item.plan.uid!r} in micro-batch {batch_id} is not in the store any more, "
                    "which has a later one; start the query with the checkpoint folder that it was stopped with"
                )
            if output.uid not in record.outputs:
                raise InvalidInputError(
                    f"micro-batch {batch_id} was committed without the output of operator {item.plan.uid!r}, which the "
                    "query did not have then, and Spark repeats it; start the query once as it was, and then with the "
                    "output"
                )
            state = rows_state(open_storage(self._store, storage_options=self._options), entry.operators, output.uid)
            parts = [] if state is None else state.parts
            first = record.outputs[output.uid]
            function(frame_of(frame.sparkSession, output, parts, first, self._store, self._options), batch_id)

    def _broadcast_documents(self, storage: Storage, stored: StoredState) -> dict[str, list[OperatorStateDocument]]:
        """Return the broadcast states by operator; they are written once in a run."""
        if self._broadcasts is not None:
            return self._broadcasts
        found = {}
        self._broadcast_paths = []
        before = [] if stored.checkpoint is None else stored.checkpoint.operators
        for uid, states in self._broadcast_states.items():
            found[uid] = write_operator_states(
                storage,
                uid,
                [states],
                new_id=new_id,
                paths=self._broadcast_paths,
                previous=next((known for known in before if known.uid == uid), None),
            )
        self._broadcasts = found
        return found


def stream_of(frames: BatchFrames) -> DataFrame:
    """Return the rows of the stream."""
    return frames.stream


def uids_of(plans: Sequence[TaskPlan]) -> list[str]:
    """Return the uids that a query has in its store, those of its operators first."""
    tables = [table.uid for plan in plans for table in (plan.stored_output, plan.dead_letters) if table is not None]
    return [plan.uid for plan in plans] + tables


def retention_of(plans: Sequence[TaskPlan]) -> RetentionPolicy | None:
    """Return the retention of the store of a query; one that an operator names counts before the default."""
    named = {plan.retention for plan in plans} - {DEFAULT_RETENTION}
    if len(named) > 1:
        raise InvalidInputError(
            "the operators of a query share one store, which has one retention; got "
            f"{' and '.join(sorted(map(repr, named)))}"
        )
    return named.pop() if named else DEFAULT_RETENTION


def publish_of(plans: Sequence[TaskPlan]) -> Publish | None:
    """Return where the store of a query is published, None for nowhere."""
    named = [plan.publish for plan in plans if plan.publish is not None]
    if any(other != named[0] for other in named):
        raise InvalidInputError(
            f"the operators of a query share one store, which is published once; got {' and '.join(map(repr, named))}"
        )
    return named[0] if named else None


def _only(uid: str, checkpoint: LogEntryDocument | None) -> LogEntryDocument | None:
    """Return what the tasks of an operator need of a checkpoint, which they are handed and need not read."""
    if checkpoint is None:
        return None
    operators = [operator for operator in checkpoint.operators if operator.uid == uid]
    return msgspec.structs.replace(checkpoint, operators=operators, properties={}, statistics=[])


def ids_of(job: str) -> Callable[[], str]:
    """Return what makes fresh names that begin with that of a job."""
    return lambda: job + new_id()[len(job) :]


def _run(item: QueryOperator, frames: BatchFrames, step: Step, job: str) -> list[SubtaskResult]:
    """Run the tasks of an operator, and return what they have done in the order of the subtasks."""
    plan, run = item.plan, item.run

    def task(subtask: int, batches: Iterator[pa.RecordBatch]) -> SubtaskResult:
        return run(plan, step, subtask, batches, ids_of(job))

    columns = {name: _column(name, wanted) for name, wanted in item.taken}
    results = run_tasks(item.rows(frames), columns, [document.name for document in plan.key], plan, task)
    return sorted(results, key=lambda result: result.document.subtask)


def _column(name: str, wanted: str | None) -> Column:
    column = sf.col(quoted(name))
    return column if wanted is None else column.cast(wanted)


def _broadcast_state(descriptor: BroadcastStateDescriptor, frame: DataFrame) -> FrozenOperatorState:
    table = arrow_table(frame)
    if table.num_columns != 2:
        raise InvalidInputError(
            f"broadcast state {descriptor.name!r} needs a DataFrame of two columns, key and value, got "
            f"{', '.join(table.column_names)}"
        )
    state = BroadcastState(descriptor)
    columns = table.combine_chunks().columns
    state.put_batch(*(column.combine_chunks() for column in columns))
    return FrozenOperatorState(descriptor, state.freeze())
