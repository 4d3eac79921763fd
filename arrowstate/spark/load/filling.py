"""The task of a fill: rows of a table become the keyed state of one subtask, in whatever process of Spark's that is.

A task is a pure function of a checkpoint and its rows, and its files have fresh names: any number of attempts may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from arrowstate.bootstrap.plan import FillPlan
from arrowstate.bootstrap.subtask import SubtaskFill, pieces_of
from arrowstate.checkpoints.handles import SubtaskHandle
from arrowstate.clock import now_ms
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import open_store_document

__all__ = ["fill_subtask"]


def fill_subtask(
    plan: FillPlan, subtask: int, rows: Iterable[pa.RecordBatch], new_id: Callable[[], str]
) -> SubtaskHandle:
    """Write the state that rows of one subtask make, which takes effect with the commit.

    Raises
    ------
    NullKeyError, KeyOutOfRangeError, ValueTypeError, ValueOverflowError
        If a row does not fit; nothing is left in the store.
    InvalidInputError
        If a key, or an entry of a map, has two rows where each may have one.
    StorageFullError, StorageError
        If a file cannot be written; nothing is left in the store.
    """
    storage = plan.open()
    store_id = open_store_document(storage).store_id
    checkpoint = CommitLog(storage).read(plan.base).document if plan.adds_to and plan.base is not None else None
    filling = SubtaskFill([plan], subtask, storage, store_id, checkpoint, plan.memory.for_backend(storage))
    for piece in pieces_of(rows):
        filling.add(plan, piece)
    return filling.written(new_id, now_ms)
