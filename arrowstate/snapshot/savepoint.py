"""Savepoints: a checkpoint as a store of its own, in plain Parquet without dead rows.

Specification: formats/spec/savepoints.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from arrowstate.errors import InvalidInputError
from arrowstate.schema.versions import RunSchemas
from arrowstate.snapshot.log import HINT_PATH, CommitLog, path_of, put_store_document
from arrowstate.snapshot.operator import copy_operator_states
from arrowstate.snapshot.reading import open_run, subtask_runs
from arrowstate.snapshot.writing import RunWriter, delete_quietly, write_manifest
from arrowstate.storage.base import Storage
from arrowstate.table.merging import MemorySink, MergePolicy, SpillSink, merge_runs
from arrowstate.table.run import Run
from arrowstate_formats.documents import LogEntryDocument, ManifestDocument, StateRunsDocument, TimeToLiveDocument

__all__ = ["write_savepoint"]

_IN_MEMORY_BYTES = 256 << 20


def write_savepoint(
    storage: Storage,
    store_id: str,
    entry: LogEntryDocument,
    target: Storage,
    *,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], None] | None = None,
) -> LogEntryDocument:
    """Write a checkpoint as a self-contained store of Parquet files.

    Each state of a subtask becomes one Parquet file of its live rows, sorted by `_key_hash`; a state without
    rows has one file without rows. Rows that have expired by the clock, or by the watermark of the checkpoint, are
    left out. The folder may be moved or copied as a whole.

    Parameters
    ----------
    storage, store_id, entry
        The store and the checkpoint to write.
    target
        An empty place.
    new_id, clock_ms
        Where names and times come from.
    progress
        Called with (files written, files to write) after each file.

    Returns
    -------
    LogEntryDocument
        The only entry of the savepoint; its checkpoint id is that of the checkpoint.

    Raises
    ------
    InvalidInputError
        If the target holds files.
    CorruptDataError
        If the checkpoint cannot be read; nothing is left at the target.
    StorageFullError, StorageError
        If the target cannot be written; nothing is left there.
    """
    if target.list(""):
        raise InvalidInputError(f"a savepoint needs an empty place, {target.url} holds files; choose another name")
    started_at_ms = clock_ms()
    paths: list[str] = []
    done, total = 0, sum(len(operator.subtasks) * len(operator.states) for operator in entry.operators)
    try:
        operators = []
        for operator in entry.operators:
            schemas = {state.name: RunSchemas(operator.key, state) for state in operator.states}
            written: set[str] = set()
            subtasks = []
            for subtask in operator.subtasks:
                have = subtask_runs(storage, operator, subtask)
                states = []
                live_rows: dict[str, int] = {}
                watermark = entry.watermark if subtask.watermark is None else subtask.watermark
                cutoffs = {
                    state.name: _cutoff(state.time_to_live, started_at_ms, watermark) for state in operator.states
                }
                for name, own in schemas.items():
                    writer = RunWriter(
                        target, f"data/{operator.uid}/{name}", operator.max_parallelism, "parquet", new_id, 0, paths
                    )
                    opened = [open_run(storage, store_id, run, own) for run in have.get(name, [])]
                    runs = [run for run, _ in filter(None, opened)]
                    _drop_expired(runs, cutoffs[name])
                    live_rows[name] = sum(run.live_rows for run in runs)
                    merged = _merged(runs, own.schema)
                    if merged is None and name not in written and subtask is operator.subtasks[-1]:
                        merged = Run.of([])
                    if merged is not None:
                        written.add(name)
                    documents = []
                    if merged is not None:
                        version = own.document.schema_version
                        documents.append(writer.write(merged.freeze(), own.schema, version)[0])
                    states.append(StateRunsDocument(name=name, runs=documents))
                    done += 1
                    if progress is not None:
                        progress(done, total)
                manifest = ManifestDocument(operator=operator.uid, key_groups=subtask.key_groups, states=states)
                handle = write_manifest(target, manifest, new_id, paths)
                subtasks.append(replace(subtask, manifest=handle, live_rows=live_rows))
            parts = copy_operator_states(storage, operator, target, new_id=new_id, paths=paths)
            operators.append(replace(operator, subtasks=subtasks, operator_states=parts))
        savepoint = LogEntryDocument(
            # As in every store the number of a checkpoint is its id, so ids go on rising from here.
            number=entry.number,
            parent=None,
            commit_id=new_id(),
            writer_epoch=1,
            kind="savepoint",
            checkpoint_id=entry.checkpoint_id,
            started_at_ms=started_at_ms,
            committed_at_ms=clock_ms(),
            watermark=entry.watermark,
            properties=entry.properties,
            operators=operators,
        )
        # The entry first: until the folder is a store, a reader finds none there.
        if CommitLog(target).append(savepoint) is None:
            raise InvalidInputError(f"another savepoint was written to {target.url} meanwhile; choose another name")
        paths += [path_of(savepoint.number), HINT_PATH]
        put_store_document(target, new_id(), clock_ms())
    except BaseException:
        delete_quietly(target, paths)
        raise
    return savepoint


def _cutoff(ttl: TimeToLiveDocument | None, now_ms: int, watermark: int | None) -> int | None:
    """Return the last time of update that has expired, None if nothing can have."""
    now = None if ttl is None else now_ms if ttl.clock == "processing_time" else watermark
    if ttl is None or now is None or now - ttl.ttl_ms < -(1 << 63):
        return None
    return now - ttl.ttl_ms


def _drop_expired(runs: list[Run], cutoff: int | None) -> None:
    if cutoff is None:
        return
    for run in runs:
        for segment in run.segments:
            updated = segment.batch.column(segment.batch.num_columns - 1).to_numpy()
            run.kill(np.flatnonzero(updated <= cutoff) + segment.first_row)


def _merged(runs: list[Run], schema: pa.Schema) -> Run | None:
    size = sum(segment.stored.nbytes for run in runs for segment in run.segments)
    if size <= _IN_MEMORY_BYTES:
        return merge_runs(runs, MergePolicy(), MemorySink())
    return merge_runs(runs, MergePolicy(), SpillSink(Path(tempfile.gettempdir()), schema))
