"""Micro-batches of a sink without Spark: its tasks and its commit are plain calls, as the driver makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.clock import new_id, now_ms
from arrowstate.log.commit_log import CommitLog
from arrowstate.spark.collecting import collector_of, publisher_of
from arrowstate.spark.commit import BatchWork, OperatorWork, commit_batch, take_over
from arrowstate.spark.micro_batches import MicroBatch, is_committed, stored_state
from arrowstate.spark.operators.query import uids_of
from arrowstate.spark.places import StorePlace
from arrowstate.spark.sink.plan import SinkPlan
from arrowstate.spark.sink.task import fold_micro_batch
from arrowstate.spark.task import Step, SubtaskResult
from arrowstate_formats.documents import LogEntryDocument


def fold(plan: SinkPlan, batch: MicroBatch, rows: pa.Table, *, time: int | None = None) -> list[SubtaskResult]:
    """Run the tasks of a micro-batch, each with the rows that Spark would send it; none if the store has it."""
    store = arrowstate.open_store(plan.store, create=True)
    log, history = CommitLog(store.storage).opened()
    stored = stored_state(history)
    if is_committed(plan.uid, batch, stored.record):
        return []
    step = Step(batch, log.store_id, stored.checkpoint, None, now_ms() if time is None else time)
    groups = arrowstate.key_groups(rows.column(0).combine_chunks(), plan.max_parallelism).to_numpy()
    subtasks = groups.astype(np.int64) * plan.parallelism // plan.max_parallelism
    return [
        fold_micro_batch(plan, step, number, rows.filter(pa.array(subtasks == number)).to_batches(), new_id)
        for number in range(plan.parallelism)
    ]


def commit(
    plan: SinkPlan,
    batch: MicroBatch,
    results: Sequence[SubtaskResult],
    *,
    on_checkpoint: Callable[[Any], None] | None = None,
) -> LogEntryDocument | None:
    """Commit what the tasks have done; None if the store had the micro-batch."""
    storage = plan.open()
    clock: dict[str, Any] = {"new_id": new_id, "clock_ms": now_ms}
    if not results:
        take_over(storage, batch, **clock)
        return None
    base = max((result.base for result in results if result.base is not None), default=None)
    is_needed = base is not None and plan.dead_letters is not None
    work = BatchWork.of(
        batch,
        [OperatorWork(plan.uid, results, dead_letters=plan.dead_letters)],
        storage=storage,
        before=() if not is_needed else CommitLog(storage).read(base).document.operators,
        paths=[],
        started_at_ms=now_ms(),
        **clock,
    )
    place = StorePlace(plan.store, plan.storage_options)
    collector = None if plan.retention is None else collector_of(place, plan.retention)
    publisher = None if plan.publish is None else publisher_of(place, plan.publish)
    told = {"collector": collector, "publisher": publisher}
    return commit_batch(storage, uids_of([plan]), work, on_checkpoint=on_checkpoint, **told, **clock)


def run(plan: SinkPlan, batch: MicroBatch, rows: pa.Table, *, time: int | None = None) -> LogEntryDocument | None:
    """Run and commit a micro-batch."""
    return commit(plan, batch, fold(plan, batch, rows, time=time))
