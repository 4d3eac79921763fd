"""From storage to runs: manifests, run files, deletion vectors, directories, cut to a range of hashes.

A file is opened once per process and stays mapped while it is used, and each record batch is compared with
its checksum at its first use; a Lance file, whose rows lie anywhere in it, is compared as a whole. Files are immutable,
so what is kept is stale only where a file was damaged: a local file whose size, time or inode has changed is opened and
compared again. Live bits are made anew for each caller. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from arrowstate.errors import (
    OperatorNotFoundError,
    StateNotFoundError,
)
from arrowstate.files.stored_run import StoredRun
from arrowstate.files.subtasks import read_states
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.table.run import Run
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    RunDocument,
    SubtaskDocument,
)
from arrowstate_formats.schema_documents import StateDocument


def find_operator(entry: LogEntryDocument, uid: str) -> OperatorDocument:
    """Return an operator of a checkpoint, or raise OperatorNotFoundError with the uids there are."""
    for operator in entry.operators:
        if operator.uid == uid:
            return operator
    raise OperatorNotFoundError(uid, [operator.uid for operator in entry.operators], entry.checkpoint_id)


def find_state(entry: LogEntryDocument, operator: OperatorDocument, name: str) -> StateDocument:
    """Return a state of an operator, or raise StateNotFoundError with the names there are."""
    for state in operator.states:
        if state.name == name:
            return state
    raise StateNotFoundError(name, [state.name for state in operator.states], operator.uid, entry.checkpoint_id)


def runs_by_state(
    storage: Storage, operator: OperatorDocument, subtasks: Sequence[SubtaskDocument]
) -> dict[str, list[RunDocument]]:
    """Return the run documents of subtasks by the name of their state."""
    found: dict[str, list[RunDocument]] = {}
    for manifest in in_parallel(storage, partial(subtask_runs, storage, operator), subtasks, name="manifests"):
        for state, runs in manifest.items():
            found.setdefault(state, []).extend(runs)
    return found


def open_runs(
    storage: Storage,
    store_id: str,
    documents: Sequence[RunDocument],
    schemas: RunSchemas,
    *,
    hash_bounds: tuple[int, int] | None = None,
) -> list[tuple[Run, int]]:
    """Open runs of a state, all of them or those rows whose hash is in a range; see `open_run`."""
    opened = in_parallel(
        storage, lambda run: open_run(storage, store_id, run, schemas, hash_bounds=hash_bounds), documents, name="runs"
    )
    return [run for run in opened if run is not None]


def subtask_runs(
    storage: Storage, operator: OperatorDocument, subtask: SubtaskDocument
) -> dict[str, list[RunDocument]]:
    """Return the run documents of a subtask by the name of their state."""
    return {state.name: state.runs for state in read_states(storage, subtask.manifest, operator.uid)}


def open_run(
    storage: Storage,
    store_id: str,
    document: RunDocument,
    schemas: RunSchemas,
    *,
    hash_bounds: tuple[int, int] | None = None,
) -> tuple[Run, int] | None:
    """Open a run, or the part of it whose hashes are in a range; None if no row is.

    Beside it are the bytes of the record batches that were opened, whether or not they were in a cache.
    """
    stored = StoredRun(storage, document, schemas)
    file = stored.file
    segments, size = stored.segments_within(file, hash_bounds)
    if not segments:
        return None
    first_row, end_row = segments[0].first_row, segments[-1].end_row
    live, live_rows = stored.live_rows(first_row, end_row)
    known = {store_key(storage, store_id): (document, 0)}
    run = Run(segments, first_row, end_row, live, live_rows, mapped=True, stored=known)
    if document.directory is not None:
        run.built = file.directory(storage)
    return run, size


def store_key(storage: Storage, store_id: str) -> str:
    """Return what `Run.stored` knows a store by: its place too, because a copy of a store keeps the id."""
    return f"{store_id} {storage.url}"


def whole_state_rows(entry: LogEntryDocument, uid: str, state: str) -> int:
    """Return the live rows of a state, as the log entry counts them."""
    return find_operator(entry, uid).live_rows(state)


def states_of(entry: LogEntryDocument) -> Sequence[tuple[str, str]]:
    """Return (operator uid, state name) of every state in a checkpoint."""
    return [(operator.uid, state.name) for operator in entry.operators for state in operator.states]
