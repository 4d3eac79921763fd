"""The task of a micro-batch: restore a subtask's state, fold its rows in, write what is new.

A task is a pure function of the newest checkpoint and its rows. Files get fresh names, so any number of attempts
may run, one after another or at once: the commit names the files of one of them, and nothing refers to the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.backend.restoring import restore_backend
from arrowstate.clock import now_ms
from arrowstate.errors import KeyTypeError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import open_store_document
from arrowstate.snapshot.subtasks import read_states, subtask_of, subtasks_of
from arrowstate.snapshot.writing import subtask_bytes, write_subtask
from arrowstate.spark.metrics import TaskMeter, TaskMetrics
from arrowstate.spark.micro_batches import MicroBatch, is_committed, stored_state
from arrowstate.spark.sink.plan import SinkPlan
from arrowstate.spark.sink.state_rows import StateRows, ordered
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import OperatorDocument, SubtaskDocument, SubtaskStatisticsDocument
from arrowstate_formats.key_groups import key_group_range
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

__all__ = ["SubtaskResult", "fold_micro_batch", "same_subtask"]


class SubtaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task hands to the commit."""

    query_id: str
    run_id: str
    batch_id: int
    base: int | None
    """The number of the checkpoint it started from, None if the store had none."""
    key: list[FieldDocument]
    states: list[StateDocument]
    subtask: SubtaskDocument | None
    """None if the store held the micro-batch already."""
    paths: list[str]
    """The files written for it."""
    statistics: SubtaskStatisticsDocument | None
    """What writing took; None if nothing had to be written."""
    metrics: TaskMetrics | None
    """What the task took; None if the store held the micro-batch already."""


def fold_micro_batch(
    plan: SinkPlan, batch: MicroBatch, subtask: int, rows: Iterable[pa.RecordBatch], new_id: Callable[[], str]
) -> SubtaskResult:
    """Fold the rows of one subtask into its state and write the result, which takes effect with the commit.

    Raises
    ------
    QueryConflictError
        If this micro-batch must not be written to the operator.
    NullKeyError, KeyOutOfRangeError, ValueOverflowError, ValueTypeError, InvalidInputError
        If a row does not fit; nothing is left in the store.
    IncompatibleStateError, KeyTypeError
        If the store holds a state or a key of another type.
    StorageFullError, StorageError
        If a file cannot be written; nothing is left in the store.
    """
    meter = TaskMeter(now_ms)
    storage = open_storage(plan.store)
    store_id = open_store_document(storage).store_id
    stored = stored_state(CommitLog(storage).history())
    checkpoint = stored.checkpoint
    base = None if checkpoint is None else checkpoint.number
    if is_committed(plan.uid, batch, stored.record):
        return _result(batch, base, plan.key, (), None)
    key_groups = key_group_range(plan.max_parallelism, parallelism=plan.parallelism, subtask=subtask)
    operator = None
    if checkpoint is not None:
        operator = next((item for item in checkpoint.operators if item.uid == plan.uid), None)
    previous = same_subtask(storage, operator, subtask, (key_groups.start, key_groups.end), plan.max_parallelism)
    table = pa.Table.from_batches(given) if (given := [item for item in rows if item.num_rows]) else None
    if table is None and previous is not None and operator is not None and _has_states(operator, plan):
        size = subtask_bytes(previous.manifest, read_states(storage, previous.manifest, plan.uid))
        metrics = meter.unchanged(previous, size)
        return _result(batch, base, operator.key, operator.states, previous, metrics=metrics)
    clock_ms = _clock(plan, table)
    if operator is None or checkpoint is None:
        backend = KeyedStateBackend(
            key=plan.key_schema, max_parallelism=plan.max_parallelism, key_groups=key_groups, clock_ms=clock_ms
        )
    else:
        kept = msgspec.structs.replace(
            operator, states=[state for state in operator.states if state.name not in plan.dropped]
        )
        backend = restore_backend(
            storage,
            store_id,
            msgspec.structs.replace(checkpoint, operators=[kept]),
            plan.uid,
            parallelism=plan.parallelism,
            subtask=subtask,
            max_parallelism=plan.max_parallelism,
            clock_ms=clock_ms,
        )
        if not backend.key.equals(plan.key_schema):
            raise KeyTypeError(_text(backend.key), _text(plan.key_schema))
    _fold(storage, plan, backend, operator, table)
    began = time.perf_counter_ns()
    frozen = backend.freeze()
    sync_us = (time.perf_counter_ns() - began) // 1000
    began = time.perf_counter_ns()
    written = write_subtask(
        storage, store_id, plan.uid, subtask, frozen, format="arrow", new_id=new_id, previous=previous
    )
    states = [state.document for state in frozen.states]
    statistics = written.statistics(plan.uid, sync_us=sync_us, async_us=(time.perf_counter_ns() - began) // 1000)
    metrics = meter.written(written.document, statistics, rows=0 if table is None else table.num_rows)
    return _result(batch, base, frozen.key, states, written.document, written.paths, statistics, metrics)


def _fold(
    storage: Storage,
    plan: SinkPlan,
    backend: KeyedStateBackend,
    operator: OperatorDocument | None,
    table: pa.Table | None,
) -> None:
    """Fold all rows into all states; a state without rows is declared all the same."""
    if plan.timestamp is not None and operator is not None:
        # Each subtask has noted how far its own rows came, and event time is that of all of them.
        for known in subtasks_of(storage, operator):
            if known.watermark is not None:
                backend.advance_watermark(known.watermark)
    # One batch, unless a column holds more text than one array can address.
    batches = [] if table is None else ordered(plan, table).combine_chunks().to_batches()
    prepared = [StateRows(plan, backend, rows) for rows in batches]
    for given in plan.states:
        backend.migrate(given.state)
        state = backend.state(given.descriptor)
        for rows in prepared:
            rows.fold(state, given)
    for rows in prepared:
        if rows.timestamps is not None:
            backend.advance_watermark(pc.max(rows.timestamps).as_py() - plan.watermark_delay_ms)


def _clock(plan: SinkPlan, table: pa.Table | None) -> Callable[[], int]:
    """The processing time: that of the micro-batch, so that a repetition has the same."""
    if table is None or plan.batch_time is None:
        return now_ms
    batch_time: int = table.column(plan.batch_time)[0].as_py()
    return lambda: batch_time


def same_subtask(
    storage: Storage,
    operator: OperatorDocument | None,
    subtask: int,
    key_groups: tuple[int, int],
    max_parallelism: int,
) -> SubtaskDocument | None:
    """The subtask of the checkpoint that owned exactly these keys, if there is one."""
    if operator is None or operator.max_parallelism != max_parallelism or subtask >= operator.parallelism:
        return None
    found = subtask_of(storage, operator, subtask)
    return found if (found.subtask, found.key_groups) == (subtask, key_groups) else None


def _has_states(operator: OperatorDocument, plan: SinkPlan) -> bool:
    """Whether a subtask without rows can be taken over as it is."""
    stored = {state.name: _columns(state) for state in operator.states}
    declared = {item.state.name: _columns(item.state) for item in plan.states}
    # Every declared state is stored as it is declared, and none is left that is to go.
    return operator.key == plan.key and stored == stored | declared and stored.keys().isdisjoint(plan.dropped)


def _columns(state: StateDocument) -> StateDocument:
    """A state apart from the versions before: the checkpoints of the query drop those that no run has any more."""
    return msgspec.structs.replace(state, earlier_schemas=[], last_field_id=0)


def _result(
    batch: MicroBatch,
    base: int | None,
    key: Sequence[FieldDocument],
    states: Sequence[StateDocument],
    subtask: SubtaskDocument | None,
    paths: Sequence[str] = (),
    statistics: SubtaskStatisticsDocument | None = None,
    metrics: TaskMetrics | None = None,
) -> SubtaskResult:
    return SubtaskResult(
        query_id=batch.query_id,
        run_id=batch.run_id,
        batch_id=batch.batch_id,
        base=base,
        key=list(key),
        states=list(states),
        subtask=subtask,
        paths=list(paths),
        statistics=statistics,
        metrics=metrics,
    )


def _text(key: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in key)
