"""The commit of filled states: one checkpoint with all of them, made from the one that the tasks started from.

Other operators of that checkpoint stay as they are. The fence before it stops whoever writes to the store. A query
of Spark that had written goes on after its last batch when it is started again, and its offsets stay known: the
properties of the checkpoint are taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from arrowstate.errors import CommitUnknownError, FencedError, InvalidInputError
from arrowstate.log.boundary import NewReferences
from arrowstate.log.commit_log import CommitLog, refuse_loss
from arrowstate.log.entries import next_checkpoint, next_fence
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.snapshot.subtasks import fitted, whole_operators
from arrowstate.snapshot.writing import delete_quietly
from arrowstate.spark.load.filling import FilledSubtask, FillPlan
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument

__all__ = ["FilledOperator", "commit_fill", "delete_files_of"]

_RECORD = "spark"


@dataclass(frozen=True, slots=True)
class FilledOperator:
    """An operator whose subtasks are written."""

    plan: FillPlan
    subtasks: Sequence[FilledSubtask]


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
    storage = open_storage(operators[0].plan.store)
    try:
        return _commit(storage, operators, properties, started_at_ms, new_id, clock_ms)
    except CommitUnknownError:
        raise
    except BaseException:
        delete_quietly(storage, [path for operator in operators for item in operator.subtasks for path in item.paths])
        raise


def delete_files_of(plan: FillPlan) -> None:
    """Delete what the tasks of a fill have written so far, which nothing refers to."""
    storage = open_storage(plan.store)
    paths = [*storage.list(f"data/{plan.uid}/"), *storage.list("manifests/")]
    delete_quietly(storage, [path for path in paths if path.rsplit("/", 1)[-1].startswith(plan.job)])


def _commit(
    storage: Storage,
    operators: Sequence[FilledOperator],
    properties: Mapping[str, Any],
    started_at_ms: int,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> LogEntryDocument:
    log = CommitLog(storage, on_loss=refuse_loss)
    history = log.history()
    newest = history.newest
    checkpoint = history.checkpoint
    base = operators[0].plan.base
    if (None if checkpoint is None else checkpoint.number) != base:
        raise FencedError(None, None if newest is None else newest.document.writer_epoch)
    fence = log.append(next_fence(newest, commit_id=new_id(), now_ms=clock_ms(), properties=dict(properties)))
    if fence is None:
        raise FencedError(None, None if newest is None else newest.document.writer_epoch + 1)
    kept = {} if checkpoint is None else {operator.uid: operator for operator in checkpoint.operators}
    for operator in operators:
        kept[operator.plan.uid] = _operator(operator, kept.get(operator.plan.uid))
    watermarks = [operator.plan.watermark for operator in operators if operator.plan.watermark is not None]
    # Under the names of the fill, so that they are found where it fails.
    lists: list[str] = []
    id_of_fill = operators[0].plan.id_maker(new_id)
    whole = whole_operators(storage, kept.values())
    before = () if checkpoint is None else checkpoint.operators
    entry = next_checkpoint(
        fence,
        fitted(storage, whole, before=before, new_id=id_of_fill, paths=lists),
        commit_id=new_id(),
        started_at_ms=started_at_ms,
        now_ms=clock_ms(),
        watermark=min(watermarks, default=fence.document.watermark),
        properties={**_of_stopped_query(checkpoint, new_id), **properties},
        statistics=[item.statistics for operator in operators for item in operator.subtasks],
    )
    written = {path for operator in operators for item in operator.subtasks for path in item.paths}.union(lists)
    everything = partial(ReferenceReader(storage).files, entry.operators)
    # After a fence nobody knows whether the entry before it was acknowledged.
    references = NewReferences(written, base or 0, set(everything()) - written, everything)
    if log.append(entry, references) is None:
        delete_quietly(storage, lists)
        raise FencedError(fence.document.writer_epoch, fence.document.writer_epoch + 1)
    return entry


def _of_stopped_query(checkpoint: LogEntryDocument | None, new_id: Callable[[], str]) -> dict[str, Any]:
    """The properties of a checkpoint; a run of a query that is still alive does not find itself in them."""
    properties = {} if checkpoint is None else dict(checkpoint.properties)
    record = properties.get(_RECORD)
    if isinstance(record, dict) and "run_id" in record:
        properties[_RECORD] = {**record, "run_id": new_id()}
    return properties


def _operator(filled: FilledOperator, before: OperatorDocument | None) -> OperatorDocument:
    """The operator's document, after checking that the subtasks are all there."""
    plan, results = filled.plan, filled.subtasks
    numbers = [item.subtask.subtask for item in results]
    if numbers != list(range(plan.parallelism)) or any(
        (item.key, item.states) != (results[0].key, results[0].states) for item in results
    ):
        raise InvalidInputError(
            f"the tasks for operator {plan.uid!r} do not fit together: expected those of {plan.parallelism} subtasks, "
            f"got {numbers}"
        )
    document = OperatorDocument(
        uid=plan.uid,
        key=results[0].key,
        max_parallelism=plan.max_parallelism,
        states=results[0].states,
        subtasks=[item.subtask for item in results],
    )
    return document if before is None else replace(document, operator_states=before.operator_states)
