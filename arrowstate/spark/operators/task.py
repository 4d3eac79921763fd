"""The task of a stateful operator: let time pass, process the rows of a subtask.

Time is part of the micro-batch, so a repetition gives the same state and the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.files.output_tables import write_output
from arrowstate.functions.batch_function import BatchFunction, BatchRunner
from arrowstate.functions.dead_letters import DeadLetters
from arrowstate.functions.failing import explained
from arrowstate.functions.keyed_process import KeyedProcessRunner
from arrowstate.functions.process_function import KeyedProcessFunction
from arrowstate.functions.runner import key_columns_of
from arrowstate.functions.setting_aside import process_apart
from arrowstate.spark.metrics import TaskMeter
from arrowstate.spark.task import Emitted, Step, Subtask, SubtaskResult, TaskPlan
from arrowstate.state.backend.broadcast import restored_broadcast
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.operator_list import ReadOnlyBroadcastState
from arrowstate.storage.base import Storage

__all__ = ["Operator", "OperatorPlan", "run_subtask"]

Operator = BatchFunction | KeyedProcessFunction


@dataclass(frozen=True, kw_only=True)
class OperatorPlan(TaskPlan):
    """What one stateful operator does with each micro-batch."""

    operator: Operator
    columns: pa.Schema
    """The columns of its rows, the key columns among them."""
    order_by: tuple[str, ...] = ()
    timestamp: str | None = None


def run_subtask(
    plan: OperatorPlan, step: Step, subtask: int, rows: Iterable[pa.RecordBatch], new_id: Callable[[], str]
) -> SubtaskResult:
    """Process the rows of a subtask and write the result, which takes effect with the commit.

    First the watermark of the micro-batch is set and what is due by it fires, then what is due by processing time,
    then the rows are processed. Nothing is left in the store if it fails.
    """
    meter = TaskMeter()
    storage = plan.open()
    task = Subtask(plan, subtask, storage, step, meter)
    backend = task.restored(lambda: step.processing_time)
    table = _rows(plan, rows)
    dead = None if plan.dead_letters is None else DeadLetters(plan.dead_letters, step.batch.batch_id)
    emitted, next_timer = _process(plan, step, backend, table, _broadcasts(storage, step), dead)

    def emit(paths: list[str]) -> Emitted:
        outputs = (plan.stored_output, emitted), (plan.dead_letters, None if dead is None else dead.take())
        output, aside = (
            None if to is None or given is None else write_output(storage, to, given, new_id=new_id, paths=paths)
            for to, given in outputs
        )
        return output, aside

    return task.written(
        backend.freeze,
        rows=table.num_rows,
        new_id=new_id,
        emit=emit,
        output_rows=emitted.num_rows,
        next_timer=next_timer,
    )


def _process(
    plan: OperatorPlan,
    step: Step,
    backend: KeyedStateBackend,
    table: pa.Table,
    broadcasts: Mapping[str, ReadOnlyBroadcastState],
    dead: DeadLetters | None = None,
) -> tuple[pa.Table, int | None]:
    """Let time pass and process the rows; rows that fail go to `dead` if they may.

    Return what was emitted, and the processing time at which something is due next.
    """
    output = None if plan.output is None else plan.output.columns
    process: BatchRunner | KeyedProcessRunner
    with explained(plan.uid, "open"):
        if isinstance(plan.operator, BatchFunction):
            process = BatchRunner(
                backend,
                plan.operator,
                output=output,
                broadcasts=broadcasts,
                now_ms=lambda: step.processing_time,
            )
        else:
            kind = None if output is None else pa.struct(list(output)) if len(output) > 1 else output.field(0).type
            process = KeyedProcessRunner(
                backend, plan.operator, output=kind, timestamp=plan.timestamp, broadcasts=broadcasts
            )
    emitted: list[Any] = []
    names = [item.name for item in plan.key]
    # A batch function may call its states with rows of its own making, so their numbers say nothing of these; and where
    # rows are set aside they are counted from the first of a part.
    rows = None if isinstance(plan.operator, BatchFunction) or dead is not None else table
    with explained(plan.uid, "close"), process:
        with explained(plan.uid, f"watermark {step.watermark}"):
            if step.watermark is not None:
                emitted.append(process.advance_watermark(step.watermark))
        with explained(plan.uid, f"processing time {step.processing_time}"):
            emitted.append(process.advance_processing_time(step.processing_time))
        with explained(plan.uid, f"micro-batch {step.batch.batch_id}", key=names, rows=rows):
            if dead is not None:
                is_batches = isinstance(plan.operator, BatchFunction)
                process_apart(
                    lambda rows: emitted.append(process.process(rows)),
                    table,
                    dead,
                    key=names,
                    timestamp=plan.timestamp,
                    names_rows=not is_batches,
                    # A batch function sees the rows of a key together, and raises for a batch.
                    group_keys=(lambda rows: backend.group_keys(key_columns_of(backend.key, rows)))
                    if is_batches
                    else None,
                )
            elif table.num_rows:
                emitted.append(process.process(table))
        next_timer = process.next_processing_time()
    if output is None:
        return pa.table({}), next_timer
    return pa.concat_tables([_as_table(item, output) for item in emitted]), next_timer


def _as_table(emitted: pa.Table | pa.Array, output: pa.Schema) -> pa.Table:
    if isinstance(emitted, pa.Table):
        return emitted
    columns = emitted.flatten() if len(output) > 1 else [emitted]
    return pa.Table.from_arrays(columns, schema=output)


def _rows(plan: OperatorPlan, rows: Iterable[pa.RecordBatch]) -> pa.Table:
    """The rows of the subtask with the names and types of the plan, in the order asked for."""
    given = [batch for batch in rows if batch.num_rows]
    if not given:
        return plan.columns.empty_table()
    # Timestamps come in the session's time zone.
    table = pa.Table.from_batches(given).rename_columns(plan.columns.names).cast(plan.columns)
    if not plan.order_by:
        return table
    # By numbers: Arrow takes a name that begins with a dot or a bracket for a path.
    by = table.select(list(plan.order_by)).rename_columns([str(number) for number in range(len(plan.order_by))])
    return table.take(pc.sort_indices(by, [(name, "ascending") for name in by.column_names]))


def _broadcasts(storage: Storage, step: Step) -> dict[str, ReadOnlyBroadcastState]:
    return {document.name: restored_broadcast(storage, document).read_only() for document in step.broadcasts}
