"""The commit of filled states: one checkpoint with all of them, made from the one that the tasks started from.

Other operators of that checkpoint stay as they are. The fence before it stops whoever writes to the store. A query
of Spark that had written goes on after its last batch when it is started again, and its offsets stay known: the
properties of the checkpoint are taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arrowstate.errors import CommitUnknownError, FencedError
from arrowstate.log.commit_log import CommitLog, refuse_loss
from arrowstate.log.entries import next_fence
from arrowstate.snapshot.subtasks import whole_operators
from arrowstate.snapshot.writing import delete_quietly
from arrowstate.spark.commit import append_checkpoint, operator_of
from arrowstate.spark.load.filling import FillPlan
from arrowstate.spark.task import SubtaskResult
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["FilledOperator", "commit_fill", "delete_files_of"]

_RECORD = "spark"


@dataclass(frozen=True, slots=True)
class FilledOperator:
    """An operator whose subtasks are written."""

    plan: FillPlan
    subtasks: Sequence[SubtaskResult]


def commit_fill(
    operators: Sequence[FilledOperator],
    *,
    properties: Mapping[str, Any],
    started_at_ms: int,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> LogEntryDocument:
    """Commit what tasks wrote as the newest checkpoint.

    Raises
    ------
    FencedError
        If another writer has committed since the plan was made; nothing is left of what the tasks wrote.
    CollectedError, StorageFullError, StorageError
        If it was not committed; nothing is left.
    CommitUnknownError
        If it cannot be told whether it was committed; what the tasks wrote stays.
    """
    storage = operators[0].plan.open()
    paths = [path for operator in operators for item in operator.subtasks for path in item.paths]
    try:
        log = CommitLog(storage, on_loss=refuse_loss)
        history = log.history()
        newest, checkpoint = history.newest, history.checkpoint
        base = operators[0].plan.base
        if (None if checkpoint is None else checkpoint.number) != base:
            raise FencedError(None, None if newest is None else newest.document.writer_epoch)
        fence = log.append(next_fence(newest, commit_id=new_id(), now_ms=clock_ms(), properties=dict(properties)))
        if fence is None:
            raise FencedError(None, None if newest is None else newest.document.writer_epoch + 1)
        kept = {} if checkpoint is None else {operator.uid: operator for operator in checkpoint.operators}
        for operator in operators:
            plan, was = operator.plan, kept.get(operator.plan.uid)
            kept[plan.uid] = operator_of(
                plan.uid, plan.max_parallelism, operator.subtasks, () if was is None else was.operator_states
            )
        watermarks = [operator.plan.watermark for operator in operators if operator.plan.watermark is not None]
        entry = append_checkpoint(
            storage,
            log,
            fence,
            whole_operators(storage, kept.values()),
            before=() if checkpoint is None else checkpoint.operators,
            base=base or 0,
            paths=paths,
            # Under the names of the fill, so that they are found where it fails.
            new_id=operators[0].plan.id_maker(new_id),
            started_at_ms=started_at_ms,
            now_ms=clock_ms(),
            watermark=min(watermarks, default=fence.document.watermark),
            properties={**_of_stopped_query(checkpoint, new_id), **properties},
            statistics=[item.statistics for operator in operators for item in operator.subtasks],
        )
        if entry is None:
            raise FencedError(fence.document.writer_epoch, fence.document.writer_epoch + 1)
        return entry
    except CommitUnknownError:
        raise
    except BaseException:
        delete_quietly(storage, paths)
        raise


def delete_files_of(plan: FillPlan) -> None:
    """Delete what the tasks of a fill have written so far, which nothing refers to."""
    storage = plan.open()
    paths = [*storage.list(f"data/{plan.uid}/"), *storage.list("manifests/")]
    delete_quietly(storage, [path for path in paths if path.rsplit("/", 1)[-1].startswith(plan.job)])


def _of_stopped_query(checkpoint: LogEntryDocument | None, new_id: Callable[[], str]) -> dict[str, Any]:
    """The properties of a checkpoint; a run of a query that is still alive does not find itself in them."""
    properties = {} if checkpoint is None else dict(checkpoint.properties)
    record = properties.get(_RECORD)
    if isinstance(record, dict) and "run_id" in record:
        properties[_RECORD] = {**record, "run_id": new_id()}
    return properties
