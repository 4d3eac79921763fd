"""The task of a sink: fold the rows of a micro-batch into the states of a subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.files.output_tables import write_output
from arrowstate.files.subtasks import subtasks_of
from arrowstate.functions.dead_letters import DeadLetters
from arrowstate.schema.layout import descriptor_of
from arrowstate.spark.metrics import TaskMeter
from arrowstate.spark.sink.ordering import Order
from arrowstate.spark.sink.plan import SinkPlan
from arrowstate.spark.sink.setting_aside import fold_apart, rows_that_fit
from arrowstate.spark.sink.state_rows import StateRows, ordered
from arrowstate.spark.task import Emitted, Step, Subtask, SubtaskResult
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.schema_documents import StateDocument

__all__ = ["fold_micro_batch"]


def fold_micro_batch(
    plan: SinkPlan, step: Step, subtask: int, rows: Iterable[pa.RecordBatch], new_id: Callable[[], str]
) -> SubtaskResult:
    """Fold the rows of one subtask into its state and write the result, which takes effect with the commit.

    Raises
    ------
    NullKeyError, KeyOutOfRangeError, ValueOverflowError, ValueTypeError, InvalidInputError
        If a row does not fit and is not to be set aside; nothing is left in the store.
    IncompatibleStateError, KeyTypeError
        If the store holds a state or a key of another type.
    StorageFullError, StorageError
        If a file cannot be written; nothing is left in the store.
    """
    meter = TaskMeter()
    storage = plan.open()
    task = Subtask(plan, subtask, storage, step, meter)
    given = [item for item in rows if item.num_rows]
    table = pa.Table.from_batches(given).rename_columns(plan.names) if given else None
    operator = task.operator
    if table is None and operator is not None and _has_states(operator, plan) and (previous := task.previous):
        return task.unchanged(operator, previous)
    backend = task.restored(lambda: step.processing_time, dropped=plan.dropped)
    if plan.timestamp is not None and operator is not None:
        # Each subtask has noted how far its own rows came, and event time is that of all of them.
        for known in subtasks_of(storage, operator):
            if known.watermark is not None:
                backend.advance_watermark(known.watermark)
    dead = None if plan.dead_letters is None else DeadLetters(plan.dead_letters, step.batch.batch_id)
    _fold(plan, backend, table, dead)

    def emit(paths: list[str]) -> Emitted:
        if plan.dead_letters is None or dead is None:
            return None, None
        return None, write_output(storage, plan.dead_letters, dead.take(), new_id=new_id, paths=paths)

    return task.written(backend.freeze, rows=0 if table is None else table.num_rows, new_id=new_id, emit=emit)


def _fold(plan: SinkPlan, backend: KeyedStateBackend, table: pa.Table | None, dead: DeadLetters | None) -> None:
    """Fold all rows into all states, but for those that go to `dead`; a state without rows is declared all the same."""
    states = []
    for given in plan.states:
        state, *order = (_declared(backend, document) for document in (given.state, *given.order))
        states.append((state, given, Order(*order) if order else None))
    reached: list[int] = []

    def fold(rows: pa.RecordBatch) -> None:
        prepared = StateRows(plan, backend, rows)
        for state, given, order in states:
            prepared.fold(state, given, order)
        if prepared.timestamps is not None:
            reached.append(pc.max(prepared.timestamps).as_py())

    if table is not None and dead is not None:
        table = rows_that_fit(plan, table, dead)
    # One batch, unless a column holds more text than one array can address.
    for rows in [] if table is None else ordered(plan, table).combine_chunks().to_batches():
        if dead is None:
            fold(rows)
        else:
            fold_apart(plan, backend, rows, fold, dead)
    if reached:
        backend.advance_watermark(max(reached) - plan.watermark_delay_ms)


def _declared(backend: KeyedStateBackend, document: StateDocument) -> Any:
    backend.migrate(document)
    return backend.state(descriptor_of(document))


def _has_states(operator: OperatorDocument, plan: SinkPlan) -> bool:
    """Whether a subtask without rows can be taken over as it is."""
    stored = {state.name: _columns(state) for state in operator.states}
    declared = {state.name: _columns(state) for item in plan.states for state in (item.state, *item.order)}
    # Every declared state is stored as it is declared, and none is left that is to go.
    return operator.key == plan.key and stored == stored | declared and stored.keys().isdisjoint(plan.dropped)


def _columns(state: StateDocument) -> StateDocument:
    """A state apart from the versions before: the checkpoints of the query drop those that no run has any more."""
    return msgspec.structs.replace(state, earlier_schemas=[], last_field_id=0)
