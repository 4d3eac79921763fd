"""The commit of a micro-batch: one log entry with the state of all subtasks and the id of the batch.

All that a commit knows is the log. A run of a query takes the fence at its first commit, so a driver that is still
alive somewhere, with the same query, finds its successor's fence above its own entries and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from arrowstate.checkpoints.committing import Needs, append_checkpoint
from arrowstate.errors import CorruptDataError, FencedError, InvalidInputError
from arrowstate.files.output_tables import BATCH_SUFFIX, OutputTable, appended
from arrowstate.files.subtasks import operator_of
from arrowstate.functions.dead_letters import is_dead_letters
from arrowstate.log.commit import Commit, append_fence
from arrowstate.log.commit_log import CommitLog, History, refuse_loss
from arrowstate.log.entries import CommittedEntry, next_checkpoint
from arrowstate.publish.beside import PublisherBeside
from arrowstate.spark.metrics import BatchMetrics
from arrowstate.spark.micro_batches import BatchRecord, MicroBatch, is_committed, stored_state
from arrowstate.spark.task import SubtaskResult
from arrowstate.storage.base import Storage
from arrowstate.telemetry.records import Listener, PartRecord, Recording, recorded
from arrowstate.upkeep.beside import Collector
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    OperatorStateDocument,
    SubtaskStatisticsDocument,
)

__all__ = [
    "BatchWork",
    "OperatorWork",
    "check_alone",
    "check_no_operator_state",
    "commit_batch",
    "take_over",
]


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """What the tasks of one operator have done in a micro-batch."""

    uid: str
    results: Sequence[SubtaskResult]
    """In the order of the subtasks."""
    output: OutputTable | None = None
    dead_letters: OutputTable | None = None
    operator_states: Sequence[OperatorStateDocument] = ()


@dataclass(frozen=True, slots=True)
class BatchWork:
    """What the tasks of a micro-batch have done, ready to be committed."""

    batch: MicroBatch
    started_at_ms: int
    results: Sequence[SubtaskResult]
    operators: Sequence[OperatorDocument]
    outputs: Mapping[str, int]
    paths: frozenset[str]
    "The files written for it."
    metrics: Mapping[str, int]
    watermark: int | None
    "The event time, in milliseconds, up to which everything had come; None to keep that of the store."

    @classmethod
    def of(
        cls,
        batch: MicroBatch,
        works: Sequence[OperatorWork],
        *,
        storage: Storage,
        before: Sequence[OperatorDocument],
        paths: list[str],
        new_id: Callable[[], str],
        clock_ms: Callable[[], int],
        started_at_ms: int,
        watermark: int | None = None,
    ) -> BatchWork:
        """Return the work of all tasks, after what was emitted and set aside was put to that of the operators `before`.

        Files that are written for it are added to `paths`, which the caller deletes if this fails.

        Raises
        ------
        InvalidInputError
            If the results of an operator are not those of all its subtasks.
        """
        results = [result for work in works for result in work.results]
        operators = [operator_of(work.uid, work.results, work.operator_states) for work in works]
        outputs: dict[str, int] = {}
        for work in works:
            emitted, aside = [item.output for item in work.results], [item.dead for item in work.results]
            for table, parts in ((work.output, emitted), (work.dead_letters, aside)):
                if table is not None:
                    new = [part for part in parts if part is not None]
                    operators.append(appended(storage, table, before, new, new_id=new_id, firsts=outputs, paths=paths))
        return cls(
            batch,
            started_at_ms,
            results,
            operators,
            outputs,
            frozenset(path for result in results for path in result.paths).union(paths),
            BatchMetrics.of([result.metrics for result in results], clock_ms() - started_at_ms).to_properties(),
            watermark,
        )

    @property
    def statistics(self) -> list[SubtaskStatisticsDocument]:
        return [result.statistics for result in self.results if result.statistics is not None]


def commit_batch(
    storage: Storage,
    uids: Sequence[str],
    work: BatchWork,
    *,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    on_checkpoint: Listener | None = None,
    collector: Collector | None = None,
    publisher: PublisherBeside | None = None,
    history: History | None = None,
) -> LogEntryDocument | None:
    """Commit a micro-batch of a query: one entry for all of its operators; None if the store held the batch already.

    The first commit of a run also takes the fence.

    Parameters
    ----------
    uids
        The operators of the query, the first of which error messages name.
    on_checkpoint
        Called with the record of the checkpoint when that was committed or could not be; not where the store held it.
    collector
        Is told of the commit, and says what it did since the last one.
    publisher
        Is told of the commit.
    history
        The log as it was before the tasks; it is read again only if another writer has taken the next number since.

    Raises
    ------
    QueryConflictError
        If another query owns the store, or batches between the committed one and this one are missing.
    FencedError
        If another run of the query, or another writer, has taken over the store.
    InvalidInputError
        If the store holds the state of other operators.
    CollectedError
        If files of the checkpoint were collected before it was committed.
    CommitUnknownError
        If it is unknown whether it was committed; the next start of the query finds out.
    """
    if collector is not None:
        work = replace(work, metrics={**work.metrics, **collector.take_figures()})
    before_us = max(clock_ms() - work.started_at_ms, 0) * 1000
    with recorded(
        "checkpoint", storage.url, work.started_at_ms, listener=on_checkpoint, before_us=before_us
    ) as recording:
        _describe(recording, work)
        with recording.committing():
            entry = _commit(storage, uids, work, new_id, clock_ms, history)
        recording.is_void = entry is None
        recording.checkpoint_id = None if entry is None else entry.checkpoint_id
    for told in (publisher, collector):
        if told is not None:
            told.wake()
    return entry


def _describe(recording: Recording, work: BatchWork) -> None:
    """Note what the tasks did; a subtask without rows was not written again."""
    measured = {(item.operator, item.subtask): item for item in work.statistics}
    for operator in work.operators:
        for subtask in operator.subtasks:
            rows = sum(subtask.live_rows.values())
            statistics = measured.get((operator.uid, subtask.subtask))
            recording.parts.append(
                PartRecord(operator=operator.uid, subtask=subtask.subtask, rows=rows, bytes_written=0, files_written=0)
                if statistics is None
                else PartRecord.of(statistics, rows=rows)
            )
    size = sum(item.bytes_total for item in work.statistics)
    recording.bytes_total = max(work.metrics.get("state_bytes", 0) - size, 0)


def _commit(
    storage: Storage,
    uids: Sequence[str],
    work: BatchWork,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    before: History | None,
) -> LogEntryDocument | None:
    batch = work.batch
    # The entries of the checkpoints that tasks started from; None for a store without one.
    bases = {result.base for result in work.results}
    log = CommitLog(storage, on_loss=refuse_loss) if before is None else before.log
    while True:
        history, is_new = (log.history(), True) if before is None else (before, False)
        newest, before = history.newest, None
        stored = stored_state(history)
        committed = is_committed(uids[0], batch, stored.record)
        check_alone(uids, stored.checkpoint, storage.url)
        epoch = _epoch_of_run(history, batch)
        if not committed and not bases <= _same_content(history, stored.checkpoint):
            # Another writer committed after the tasks had begun: what they wrote lacks that.
            raise FencedError(epoch, None if newest is None else newest.document.writer_epoch)
        if epoch is None:
            _take_fence(log, newest, batch, new_id, clock_ms)
            continue
        if committed:
            return None
        assert newest is not None, "the fence of this run is in the log"
        timer = min((item.next_timer for item in work.results if item.next_timer is not None), default=None)
        record = BatchRecord(batch.query_id, batch.run_id, batch.batch_id, work.outputs, work.metrics, timer)
        make = partial(
            next_checkpoint,
            started_at_ms=work.started_at_ms,
            watermark=newest.document.watermark if work.watermark is None else work.watermark,
            properties=record.to_properties(),
            statistics=work.statistics,
        )
        # The files stay whatever happens: whoever runs the query deletes them, where the batch fails for good.
        entry = append_checkpoint(
            Commit(storage),
            log,
            newest,
            make,
            [*work.operators, *_dead_letters_before(stored.checkpoint, work.operators)],
            Needs(work.paths, min((number or 0 for number in bases), default=0)),
            before=() if stored.checkpoint is None else stored.checkpoint.operators,
            # What collections said before the tasks is too old.
            said=history.said if is_new else None,
            new_id=new_id,
            clock_ms=clock_ms,
        )
        if entry is not None:
            return entry.document
        # A compaction took the number, and this goes on after it; or a newer run did, which the log tells.


def take_over(storage: Storage, batch: MicroBatch, *, new_id: Callable[[], str], clock_ms: Callable[[], int]) -> None:
    """Take the fence for a run that begins with a micro-batch which the store has, unless it has it.

    Raises
    ------
    FencedError
        If a newer run of the query, or another writer, has taken over the store.
    """
    log = CommitLog(storage, on_loss=refuse_loss)
    while _epoch_of_run(history := log.history(), batch) is None:
        _take_fence(log, history.newest, batch, new_id, clock_ms)


def _take_fence(
    log: CommitLog,
    newest: CommittedEntry | None,
    batch: MicroBatch,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> None:
    """Try to take the fence for a run; another writer may take the number first, then look again."""
    properties = BatchRecord(batch.query_id, batch.run_id, None).to_properties()
    append_fence(log, newest, new_id=new_id, clock_ms=clock_ms, properties=properties)


def check_alone(uids: Sequence[str], checkpoint: LogEntryDocument | None, store: str) -> None:
    """Refuse a store with the state of other operators, which the next checkpoint of a query would drop."""
    operators = checkpoint.operators if checkpoint else ()
    # What was emitted in the last micro-batch alone may go.
    known = {*uids, *(f"{uid}{BATCH_SUFFIX}" for uid in uids)}
    others = [operator.uid for operator in operators if operator.uid not in known and not is_dead_letters(operator)]
    if others:
        theirs, own = (
            ", ".join(repr(uid) for uid in names if not uid.endswith(BATCH_SUFFIX)) for names in (others, uids)
        )
        raise InvalidInputError(
            f"the store {store} holds the state of {theirs}; a query needs a store of its own: write {own} to another "
            "store"
        )


def check_no_operator_state(operator: OperatorDocument | None, store: str) -> None:
    """Refuse an operator with operator state, which a sink would drop."""
    if operator is not None and operator.operator_states:
        raise InvalidInputError(
            f"the store {store} holds the operator state {', '.join(state.name for state in operator.operator_states)} "
            f"of {operator.uid!r}, which a sink cannot keep; write to another store"
        )


def _dead_letters_before(
    checkpoint: LogEntryDocument | None, operators: Sequence[OperatorDocument]
) -> list[OperatorDocument]:
    """Return the dead letters of the checkpoint before that no operator adds to: what was set aside stays."""
    written = {operator.uid for operator in operators}
    before = () if checkpoint is None else checkpoint.operators
    return [operator for operator in before if operator.uid not in written and is_dead_letters(operator)]


def _epoch_of_run(history: History, batch: MicroBatch) -> int | None:
    """The epoch of the run if it may commit, None if it has not taken the fence yet."""
    newest = history.newest
    # Older entries may have been collected or lost, and with them nothing that this run has not had.
    with suppress(CorruptDataError):
        for entry in history.entries():
            # A compaction repeats the record of a run, which need not be the run whose epoch it is of.
            record = None if entry.document.kind == "compaction" else BatchRecord.of(entry.document)
            if record is not None and record.run_id == batch.run_id:
                assert newest is not None
                if entry.document.writer_epoch == newest.document.writer_epoch:
                    return entry.document.writer_epoch
                raise FencedError(entry.document.writer_epoch, newest.document.writer_epoch)
            if record is not None and record.batch_id is not None and record.batch_id < batch.batch_id - 1:
                # A run that has had a micro-batch had the one before this, so its own entries are not further back.
                return None
    return None


def _same_content(history: History, checkpoint: LogEntryDocument | None) -> set[int | None]:
    """The numbers of the entries that hold what the newest checkpoint does: it, and what it is the compaction of."""
    numbers = {None if checkpoint is None else checkpoint.number}
    for entry in history.entries() if checkpoint is not None else ():
        document = entry.document
        if document.number in numbers:
            if document.kind not in ("compaction", "fence") or document.parent is None:
                break
            numbers.add(document.parent.number)
    return numbers
