"""Compaction of a store at rest: the newest checkpoint once more, in fewer and fuller files.

It needs no fence and stops nobody. The runs of the checkpoint are merged first. The commit then takes the number after
the newest entry, in the epoch of that entry, so that the writer of the epoch goes on after it. If others were first,
the newest entry is read again: a merge whose runs it still refers to is carried over to it, with the rows that have
died since in a deletion vector; the others are dropped. A lease holds the checkpoint that is read, so no collection
takes its files meanwhile. A process that dies leaves the lease, which ends by itself, and files that nothing refers to.

A job that runs compacts its own state (`arrowstate.checkpoints.compaction`); its next checkpoint refers to the runs
that it knows, not to those of a compaction that it has no part in. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.checkpoints.committing import Needs, append_checkpoint
from arrowstate.checkpoints.compaction import CompactionPolicy, choose
from arrowstate.errors import (
    CheckpointNotFoundError,
    CompactionConflictError,
    CorruptDataError,
    StorageError,
)
from arrowstate.files.reading import find_operator, find_state, open_run, subtask_runs
from arrowstate.files.storage_use import StorageUse, files_of, slices_by_state, storage_use
from arrowstate.files.stored_run import clear_dead
from arrowstate.files.subtasks import subtask_of, whole_operators
from arrowstate.files.writing import RunWriter, schema_versions, write_manifest
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit import Commit
from arrowstate.log.commit_log import CommitLog, refuse_loss
from arrowstate.log.entries import next_compaction
from arrowstate.log.leases import DEFAULT_LEASE_MS, CheckpointLease
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.table import kernels
from arrowstate.table.background_merge import BackgroundMerge
from arrowstate.table.merging import MergePolicy
from arrowstate.table.run import Run, all_live
from arrowstate.table.spill import sink_of
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    RunDocument,
    StateRunsDocument,
    SubtaskDocument,
)
from arrowstate_formats.schema_documents import StateDocument
from arrowstate_formats.state_columns import fields_of_run, time_column

_ATTEMPTS = 5

Ints = npt.NDArray[np.int64]


class PlannedMerge(Struct, frozen=True):
    """Runs of one state of one subtask that are to become one."""

    uid: str
    state: str
    subtask: int
    runs: tuple[RunDocument, ...]

    @property
    def rows(self) -> int:
        """The rows of the merged run, if none dies before."""
        return sum(run.live_rows for run in self.runs)


class StoreCompactionPlan(Struct, frozen=True):
    """What a compaction would do; nothing is changed until it is applied."""

    checkpoint_id: int
    "The checkpoint that it was made for, the newest at that time."
    use: StorageUse
    "What that checkpoint takes."
    merges: tuple[PlannedMerge, ...]
    "Nothing where the checkpoint is within the limits."
    bytes_read: int
    "Bytes of the run files that are to be read."
    bytes_written: int
    "About how many bytes the merged runs will take."


class StoreCompactionReport(Struct, frozen=True):
    """What applying a plan did."""

    entry: LogEntryDocument | None
    "The compaction; None where nothing was to be done, or nothing of the plan was left to do."
    merged: int
    "How many merges are part of it."
    dropped: int
    "How many were not, because later checkpoints had let their runs go."
    bytes_written: int = 0
    "Of the merged runs."
    rows: int = 0
    "Of the merged runs."


def plan_store_compaction(storage: Storage, policy: CompactionPolicy) -> StoreCompactionPlan:
    """Find out what a compaction of the newest checkpoint would merge. Nothing is written."""
    entry = CommitLog(storage, on_loss=refuse_loss).latest_checkpoint()
    if entry is None or entry.checkpoint_id is None:
        raise CheckpointNotFoundError(None, [])
    with reading_checkpoint(storage, entry):
        return _plan(storage, entry, entry.checkpoint_id, policy)


def _plan(
    storage: Storage, entry: LogEntryDocument, checkpoint_id: int, policy: CompactionPolicy
) -> StoreCompactionPlan:
    merges: list[PlannedMerge] = []
    bytes_read = bytes_written = 0
    for operator in entry.operators:
        for name, found in slices_by_state(storage, operator).items():
            slices = [part for part in found if part.item.first_row < part.item.last_row]
            chosen = choose(slices, operator.parallelism, policy)
            for subtask, parts in chosen.items():
                merges.append(PlannedMerge(operator.uid, name, subtask, tuple(part.item for part in parts)))
            for file in files_of(part for parts in chosen.values() for part in parts):
                bytes_read += file.data_bytes
                bytes_written += file.bytes_rewritten
    use = storage_use(storage, entry, small_file_bytes=policy.small_file_bytes)
    return StoreCompactionPlan(checkpoint_id, use, tuple(merges), bytes_read, bytes_written)


def apply_store_compaction(
    storage: Storage,
    store_id: str,
    plan: StoreCompactionPlan,
    *,
    clock_ms: Callable[[], int],
    new_id: Callable[[], str],
    attempts: int = _ATTEMPTS,
) -> StoreCompactionReport:
    """Merge what a plan says and commit the result as a checkpoint of kind `compaction`.

    Nobody is fenced or waited for. What the newest checkpoint holds stays the same, its properties and watermark too.
    """
    if not plan.merges:
        return StoreCompactionReport(None, 0, 0)
    log = CommitLog(storage, on_loss=refuse_loss)
    base = log.committed_checkpoint(plan.checkpoint_id)
    lease = CheckpointLease(
        storage, base, ttl_ms=DEFAULT_LEASE_MS, holder="a compaction", clock_ms=clock_ms, new_id=new_id
    )
    try:
        with reading_checkpoint(storage, base.document):
            return _Compaction(storage, store_id, log, base.document, plan.merges, clock_ms, new_id).apply(attempts)
    finally:
        # What was committed is not to be reported as a failure because of it; it ends by itself.
        with suppress(StorageError):
            lease.release()


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """A merge that was carried out, and its file."""

    planned: PlannedMerge
    operator: OperatorDocument
    subtask: SubtaskDocument
    "As it was when it was planned."
    state: StateDocument
    merge: BackgroundMerge
    file: tuple[RunDocument, int] | None
    "The document of the merged run with all its rows live, and run row minus file row; None if no row was live."
    paths: tuple[str, ...]
    "The files written for it."

    @property
    def key_groups(self) -> tuple[int, int]:
        """Those of its subtask."""
        return self.subtask.key_groups

    def fits(self, operator: OperatorDocument, subtask: SubtaskDocument) -> bool:
        """Whether a subtask of another entry has its rows in the same columns and key groups."""
        return (
            operator.uid == self.operator.uid
            and operator.key == self.operator.key
            and operator.max_parallelism == self.operator.max_parallelism
            and subtask.key_groups == self.key_groups
            and _columns(self.state) in map(_columns, operator.states)
        )


def _columns(state: StateDocument) -> StateDocument:
    """Return what a state is apart from the versions before: which of them runs have changes with every checkpoint."""
    return replace(state, earlier_schemas=[], last_field_id=0)


_logger = logging.getLogger("arrowstate.upkeep")


class _Compaction:
    """One compaction under way: the files it wrote, and the entry it tries to commit."""

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        log: CommitLog,
        base: LogEntryDocument,
        planned: Sequence[PlannedMerge],
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._storage = storage
        self._store_id = store_id
        self._log = log
        self._base = base
        self._planned = planned
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._started_at_ms = clock_ms()
        self._files = Commit(storage)

    def apply(self, attempts: int) -> StoreCompactionReport:
        with self._files:
            merged = [self._merge(planned) for planned in self._planned]
            for _ in range(attempts):
                first = len(self._files.paths)
                report = self._commit(merged)
                if report is not None:
                    return report
                self._files.discard(self._files.paths[first:])
            raise CompactionConflictError(self._storage.url, attempts)

    def _commit(self, merged: Sequence[_Merged]) -> StoreCompactionReport | None:
        """Append an entry with the merged runs to the newest one; None if another writer took its number."""
        newest, checkpoint = self._log.latest_with_checkpoint()
        operators, used = self._operators(checkpoint, merged)
        unused = [path for item in merged if item not in used for path in item.paths]
        if not used:
            self._files.discard(unused)
            return StoreCompactionReport(None, 0, len(merged))
        committed = append_checkpoint(
            self._files,
            self._log,
            newest,
            partial(next_compaction, checkpoint=checkpoint, started_at_ms=self._started_at_ms),
            operators,
            Needs(set(self._files.paths).difference(unused), self._base.number),
            before=checkpoint.operators,
            # Whether the newest entry was acknowledged is for its writer to know, so everything is looked up.
            held=(),
            new_id=self._new_id,
            clock_ms=self._clock_ms,
            again=checkpoint,
        )
        if committed is None:
            return None
        self._files.discard(unused)
        fields = {"store": self._storage.url, "merged": len(used), "dropped": len(merged) - len(used)}
        _logger.info("%(store)s: %(merged)d merges of a compaction committed", fields, extra=fields)
        runs = [item.file[0] for item in used if item.file is not None]
        return StoreCompactionReport(
            committed.document,
            len(used),
            len(merged) - len(used),
            sum(run.bytes for run in runs),
            sum(run.live_rows for run in runs),
        )

    def _merge(self, planned: PlannedMerge) -> _Merged:
        """Merge runs as they are in the checkpoint that was planned for, and write the result."""
        operator = find_operator(self._base, planned.uid)
        subtask = subtask_of(self._storage, operator, planned.subtask)
        state = find_state(self._base, operator, planned.state)
        schemas = RunSchemas(operator.key, state)
        opened = (open_run(self._storage, self._store_id, run, schemas) for run in planned.runs)
        runs = [found[0] for found in opened if found is not None]
        assert len(runs) == len(planned.runs), "each has rows"
        merge = BackgroundMerge([run.freeze() for run in runs], MergePolicy(), partial(sink_of, runs, schemas.schema))
        merge.run()
        file = None
        before = len(self._files.paths)
        if merge.merged is not None:
            writer = self._writer(planned, operator, state)
            file = writer.write(merge.merged.freeze(), schemas.schema, state.schema_version)
        # What is kept until the commit must not grow with the rows of all states.
        merge.let_go()
        return _Merged(planned, operator, subtask, state, merge, file, tuple(self._files.paths[before:]))

    def _writer(self, planned: PlannedMerge, operator: OperatorDocument, state: StateDocument) -> RunWriter:
        largest = max(planned.runs, key=lambda run: run.bytes)
        return RunWriter(
            self._storage,
            f"data/{planned.uid}/{planned.state}",
            operator.max_parallelism,
            largest.format,
            self._new_id,
            fields_of_run(operator.key, state),
            time_column(state),
            paths=self._files.paths,
        )

    def _operators(
        self, checkpoint: LogEntryDocument, merged: Sequence[_Merged]
    ) -> tuple[list[OperatorDocument], list[_Merged]]:
        """Return the operators of the newest checkpoint with the merged runs, and which of these there are."""
        operators = []
        used: list[_Merged] = []
        for operator in whole_operators(self._storage, checkpoint.operators):
            subtasks = []
            for number, subtask in enumerate(operator.subtasks):
                fitting = [item for item in merged if item.planned.subtask == number and item.fits(operator, subtask)]
                runs = subtask_runs(self._storage, operator, subtask) if fitting else {}
                before = len(used)
                for item in fitting:
                    carried = self._carried(item, runs.get(item.planned.state, []))
                    if carried is not None:
                        runs[item.planned.state] = carried
                        used.append(item)
                if len(used) > before:
                    states = [StateRunsDocument(name=name, runs=own) for name, own in runs.items()]
                    handle = write_manifest(
                        self._storage, operator.uid, subtask.key_groups, states, self._new_id, self._files.paths
                    )
                    subtask = replace(subtask, manifest=handle, schema_versions=schema_versions(states))
                subtasks.append(subtask)
            operators.append(replace(operator, subtasks=subtasks))
        return operators, used

    def _carried(self, item: _Merged, have: list[RunDocument]) -> list[RunDocument] | None:
        """Return the runs of a state with the merged one in the place of its sources; None if one of them is gone."""
        by_slice = {_slice(run): run for run in have}
        sources = [by_slice.get(_slice(run)) for run in item.planned.runs]
        died = []
        for number, (before, now) in enumerate(zip(item.planned.runs, sources, strict=True)):
            if now is None:
                return None
            if now.deletion_vector != before.deletion_vector:
                was_dead, is_dead = self._dead(before), self._dead(now)
                if not np.isin(was_dead, is_dead, assume_unique=True).all():
                    return None
                died.append(item.merge.places(number, np.setdiff1d(is_dead, was_dead, assume_unique=True)))
        gone = {_slice(run) for run in item.planned.runs}
        rest = [run for run in have if _slice(run) not in gone]
        expected = sum(run.live_rows for run in sources if run is not None)
        if item.file is None or item.merge.merged is None:
            merged, live_rows = None, 0
        else:
            document, shift = item.file
            run = _with_dead(item.merge.merged, died)
            live_rows = run.live_rows
            merged = self._writer(item.planned, item.operator, item.state).refer(run.freeze(), document, shift)
        if live_rows != expected:
            raise CorruptDataError(
                f"state {item.planned.uid}.{item.planned.state}",
                f"{live_rows} live rows after a merge of runs with {expected}",
            )
        return [*rest, merged] if merged is not None and live_rows else rest

    def _dead(self, run: RunDocument) -> Ints:
        if run.deletion_vector is None:
            return np.empty(0, dtype=np.int64)
        rows = run.last_row - run.first_row
        live = all_live(rows)
        clear_dead(self._storage, run.deletion_vector, live, rows, run.first_row)
        return kernels.live_rows(~live, 0, rows) + run.first_row


def _slice(run: RunDocument) -> tuple[str, str, int, int]:
    """What tells apart the rows that manifests own."""
    return run.id, run.xxh3_128, run.first_row, run.last_row


def _with_dead(run: Run, died: Sequence[Ints]) -> Run:
    """Return a run of the same rows in which some are dead."""
    copy = run.freeze().as_run()
    for rows in died:
        copy.kill(rows)
    return copy
