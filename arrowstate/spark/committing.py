"""The commit of a micro-batch: one log entry with the state of all subtasks and the id of the batch.

The commit runs in a process of its own beside the driver, which may be another one each time: all it knows is
the log. A run of a query takes the fence at its first commit, so a driver that is still alive somewhere, with
the same query, finds its successor's fence above its own entries and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from arrowstate.errors import FencedError, InvalidInputError
from arrowstate.snapshot.boundary import NewReferences
from arrowstate.snapshot.log import CommitLog, CommittedEntry, next_checkpoint, next_fence
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.snapshot.writing import delete_quietly
from arrowstate.spark.batches import BatchRecord, MicroBatch, is_committed, stored_state
from arrowstate.spark.fold import SubtaskResult
from arrowstate.spark.plan import SinkPlan
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, SubtaskDocument

__all__ = ["abort_micro_batch", "check_alone", "commit_micro_batch"]


def commit_micro_batch(
    plan: SinkPlan, results: Sequence[SubtaskResult], *, new_id: Callable[[], str], clock_ms: Callable[[], int]
) -> LogEntryDocument | None:
    """Commit what the tasks of a micro-batch wrote; return the entry, None if the store held the batch already.

    The first commit of a run also takes the fence.

    Raises
    ------
    QueryConflictError
        If another query owns the operator, or batches between the committed one and this one are missing.
    FencedError
        If another run of the query, or another writer, has taken over the store.
    InvalidInputError
        If the store holds the state of other operators, or the results are not those of all subtasks.
    CollectedError
        If files of the checkpoint were collected before it was committed.
    CommitUnknownError
        If it cannot be told whether it was committed; the next start of the query finds out.
    """
    first = results[0]
    batch = MicroBatch(first.query_id, first.run_id, first.batch_id)
    started_at_ms = clock_ms()
    storage = open_storage(plan.store)
    log = CommitLog(storage)
    while True:
        newest = log.latest()
        stored = stored_state(log, plan.uid)
        committed = is_committed(plan.uid, batch, stored.record)
        check_alone(plan.uid, stored.checkpoint, plan.store)
        epoch = _epoch_of_run(log, newest, batch)
        bases = _same_content(log, stored.checkpoint)
        if not committed and any(result.base not in bases or result.subtask is None for result in results):
            # Another writer committed after the tasks had begun: what they wrote lacks that.
            raise FencedError(epoch, None if newest is None else newest.document.writer_epoch)
        if epoch is None:
            # Another writer may take the number first: then look again.
            taken_by = BatchRecord(plan.uid, batch.query_id, batch.run_id, None)
            log.append(
                next_fence(newest, commit_id=new_id(), now_ms=clock_ms(), properties=taken_by.to_properties())
            )  # fmt: skip
            continue
        if committed:
            return None
        assert newest is not None, "the fence of this run is in the log"
        record = BatchRecord(plan.uid, batch.query_id, batch.run_id, batch.batch_id)
        entry = next_checkpoint(
            newest,
            [_operator(plan, results)],
            commit_id=new_id(),
            started_at_ms=started_at_ms,
            now_ms=clock_ms(),
            watermark=newest.document.watermark,
            properties=record.to_properties(),
            statistics=[result.statistics for result in results if result.statistics is not None],
        )
        written = {path for result in results for path in result.paths}
        everything = partial(ReferenceReader(storage).files, entry.operators)
        # Within a run the checkpoint before is known to be acknowledged. The fence of the run says nothing of what it
        # repeats, and what a compaction refers to no more may be gone.
        reused = set(everything()) - written if newest.document.kind != "checkpoint" else ()
        if log.append(entry, NewReferences(written, first.base or 0, reused, everything)) is not None:
            return entry
        # A compaction took the number, and this goes on after it; or a newer run did, which the log tells.


def abort_micro_batch(plan: SinkPlan, results: Sequence[SubtaskResult | None]) -> None:
    """Delete what the tasks of a failed micro-batch wrote, unless the commit may have been tried."""
    if None not in results:
        # All tasks were done, so the commit failed, and perhaps only its answer was lost.
        return
    storage = open_storage(plan.store)
    for result in results:
        if result is not None:
            delete_quietly(storage, result.paths)


def check_alone(uid: str, checkpoint: LogEntryDocument | None, store: str) -> None:
    """Refuse a store with the state of other operators, or operator state, which a sink would drop.

    Raises
    ------
    InvalidInputError
        If there are any.
    """
    others = [operator.uid for operator in checkpoint.operators if operator.uid != uid] if checkpoint else []
    if others:
        raise InvalidInputError(
            f"the store {store} holds the state of {', '.join(map(repr, others))}; a sink needs a store of its own: "
            f"write operator {uid!r} to another store"
        )
    own = [state.name for item in (checkpoint.operators if checkpoint else ()) for state in item.operator_states]
    if own:
        raise InvalidInputError(
            f"the store {store} holds the operator state {', '.join(own)} of {uid!r}, which a sink cannot keep; "
            "write to another store"
        )


def _epoch_of_run(log: CommitLog, newest: CommittedEntry | None, batch: MicroBatch) -> int | None:
    """The epoch of the run if it may commit, None if it has not taken the fence yet."""
    entry = newest
    while entry is not None:
        # A compaction repeats the record of a run, which need not be the run whose epoch it is of.
        record = None if entry.document.kind == "compaction" else BatchRecord.of(entry.document)
        if record is not None and record.run_id == batch.run_id:
            assert newest is not None
            if entry.document.writer_epoch == newest.document.writer_epoch:
                return entry.document.writer_epoch
            raise FencedError(entry.document.writer_epoch, newest.document.writer_epoch)
        if record is not None and record.batch_id is not None and record.batch_id < batch.batch_id - 1:
            # A run that has had a micro-batch had the one before this, so an entry of its own is not further back.
            return None
        parent = entry.document.parent
        # Older entries may have been collected, and with them nothing that this run has not had.
        entry = None if parent is None else log.get(parent.number)
    return None


def _same_content(log: CommitLog, checkpoint: LogEntryDocument | None) -> set[int | None]:
    """The numbers of the entries that hold what the newest checkpoint does: it, and what it is the compaction of."""
    numbers = {None if checkpoint is None else checkpoint.number}
    entry = checkpoint
    while entry is not None and entry.kind in ("compaction", "fence") and entry.parent is not None:
        numbers.add(entry.parent.number)
        before = log.get(entry.parent.number)
        entry = None if before is None else before.document
    return numbers


def _operator(plan: SinkPlan, results: Sequence[SubtaskResult]) -> OperatorDocument:
    """The operator's document, after checking that the results are those of each subtask once."""
    subtasks: list[SubtaskDocument] = []
    following = 0
    for result in results:
        subtask = result.subtask
        if (
            subtask is None
            or subtask.subtask != len(subtasks)
            or subtask.key_groups[0] != following
            or (result.key, result.states) != (results[0].key, results[0].states)
            or (result.query_id, result.run_id, result.batch_id)
            != (results[0].query_id, results[0].run_id, results[0].batch_id)
        ):
            raise InvalidInputError(
                f"the tasks of operator {plan.uid!r} do not fit together: expected subtask {len(subtasks)} of "
                f"{plan.parallelism} from key group {following}, got {subtask}; write with keyed_sink only"
            )
        subtasks.append(subtask)
        following = subtask.key_groups[1] + 1
    if following != plan.max_parallelism:
        raise InvalidInputError(
            f"the tasks of operator {plan.uid!r} cover the key groups 0 to {following - 1} of {plan.max_parallelism}; "
            "write with keyed_sink only"
        )
    return OperatorDocument(
        uid=plan.uid,
        key=results[0].key,
        max_parallelism=plan.max_parallelism,
        states=results[0].states,
        subtasks=subtasks,
    )
