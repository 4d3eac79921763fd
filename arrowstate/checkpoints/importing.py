"""Importing: a savepoint, or a checkpoint of another store, becomes the newest checkpoint of this one.

The files are copied as they are, under fresh names, and compared with their checksums on the way; only manifests are
written anew, because they name files. Until all of it is there the store is not touched: a damaged source fences
nobody. Then the fence is taken and the checkpoint committed, as by every writer. Whose the source is afterwards is what
the claim mode says. Specification: formats/spec/savepoints.md.
"""

from __future__ import annotations

import enum
import threading
import warnings
from collections.abc import Callable, Collection, Iterable
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from arrowstate.checkpoints.committing import Committer
from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.files.contents import checked_pieces
from arrowstate.files.disposal import dispose, files_to_dispose
from arrowstate.files.notes import begun_with, of_other_store, of_stopped_query
from arrowstate.files.open_files import open_file
from arrowstate.files.operator import read_part
from arrowstate.files.reading import find_operator, subtask_runs
from arrowstate.files.stored_run import clear_dead
from arrowstate.files.subtasks import read_states, whole_operators
from arrowstate.files.validation import validated
from arrowstate.files.writing import write_manifest
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit import Commit
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.leases import held_while_read
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.table.run import all_live
from arrowstate_formats.documents import (
    DeletionVectorDocument,
    DirectoryDocument,
    LogEntryDocument,
    OperatorDocument,
    OperatorPartDocument,
    RunDocument,
    StateRunsDocument,
)

IMPORTED_FROM = "imported_from"
"""The property of the fence that says where the checkpoint after it comes from."""


class ClaimMode(enum.Enum):
    """Whose a savepoint is after it was imported.

    Examples
    --------
    >>> ClaimMode("claim")
    <ClaimMode.CLAIM: 'claim'>
    """

    NO_CLAIM = "no_claim"
    """It stays with whoever owns it: it is only read, and not needed afterwards."""

    CLAIM = "claim"
    """The store takes it over: it is disposed of as soon as the import is committed."""


class _Copy(Struct, frozen=True):
    """A file to copy."""

    path: str
    bytes: int
    xxh3_128: str
    to: str


def import_checkpoint(
    storage: Storage,
    store_id: str,
    source: Storage,
    source_store_id: str,
    entry: LogEntryDocument,
    *,
    operators: Collection[str] | None = None,
    claim_mode: ClaimMode,
    clock_ms: Callable[[], int],
    new_id: Callable[[], str],
    progress: Callable[[int, int], None] | None = None,
    place: str | None = None,
    check: Callable[[CommittedEntry | None], None] | None = None,
) -> LogEntryDocument:
    """Copy a checkpoint of another store and commit it as the newest of this one.

    `place` is what a job notes that begins with it, and `check` as for `Committer`.
    """
    if not isinstance(claim_mode, ClaimMode):
        raise InvalidInputError(f"claim_mode must be a ClaimMode, got {claim_mode!r}")
    if (source.url, source_store_id) == (storage.url, store_id):
        raise InvalidInputError(
            f"checkpoint {entry.checkpoint_id} is of {storage.url} already; restore it and take a checkpoint"
        )
    if claim_mode is ClaimMode.CLAIM:
        _check_claimable(source, clock_ms())
    if isinstance(operators, str):
        raise InvalidInputError(f"operators is a collection of uids, got the text {operators!r}")
    if operators is not None:
        chosen = [find_operator(entry, uid) for uid in dict.fromkeys(operators)]
        if not chosen:
            raise InvalidInputError("operators must name at least one, got none; leave it out for all of them")
        lost = [operator.uid for operator in entry.operators if operator not in chosen]
        if claim_mode is ClaimMode.CLAIM and lost:
            raise InvalidInputError(
                f"a claim disposes of the whole savepoint, and the state of {', '.join(map(repr, lost))} would be "
                "lost; import with ClaimMode.NO_CLAIM, and dispose of it when nobody needs it"
            )
        entry = replace(entry, operators=chosen)
    started_at_ms = clock_ms()
    with Commit(storage) as files:
        with (
            held_while_read(source, entry, holder="an import", clock_ms=clock_ms, new_id=new_id),
            reading_checkpoint(source, entry),
        ):
            copied = _copied(source, storage, entry.operators, new_id, files.paths, progress)
        # What somebody else wrote becomes this store's own, from which later reads take it on trust.
        _validate(storage, copied)
        committer = Committer(
            storage,
            clock_ms=clock_ms,
            new_id=new_id,
            once=True,
            check=check,
            properties={
                IMPORTED_FROM: {
                    "url": source.url,
                    "store_id": source_store_id,
                    "checkpoint_id": entry.checkpoint_id,
                    "claim_mode": claim_mode.value,
                }
            },
        )
        noted = of_stopped_query(of_other_store(entry.properties, source_store_id), new_id)
        committed = committer.commit(
            copied,
            properties=noted if place is None else begun_with(noted, place),
            watermark=entry.watermark,
            started_at_ms=started_at_ms,
            files=files,
        )
    if claim_mode is ClaimMode.CLAIM:
        try:
            dispose(source, now_ms=clock_ms())
        except (ArrowStateError, OSError) as error:
            warnings.warn(
                f"checkpoint {committed.checkpoint_id} was imported, but the savepoint that it claims could not be "
                f"disposed of; do so with dispose_savepoint({source.url!r}): {error}",
                RuntimeWarning,
                stacklevel=3,
            )
    return committed


def _validate(storage: Storage, operators: Iterable[OperatorDocument]) -> None:
    """Read all that was copied in full, batch by batch, and keep nothing of it."""
    checked = validated(storage)

    def read(task: tuple[RunSchemas, RunDocument]) -> None:
        schemas, run = task
        file = open_file(checked, run, schemas.of_version(run.schema_version)[0])
        for number in range(len(run.batches)):
            file.read([number])
        if run.directory is not None:
            file.directory(checked)
        if run.deletion_vector is not None:
            rows = run.last_row - run.first_row
            clear_dead(checked, run.deletion_vector, all_live(rows), rows, run.first_row)

    for operator in operators:
        by_state = {state.name: RunSchemas(operator.key, state) for state in operator.states}
        for subtask in operator.subtasks:
            runs = subtask_runs(checked, operator, subtask)
            in_parallel(checked, read, [(by_state[name], run) for name, own in runs.items() for run in own])
        for state in operator.operator_states:
            for number in range(len(state.parts)):
                read_part(checked, state, number)


def _check_claimable(source: Storage, now_ms: int) -> None:
    try:
        files_to_dispose(source, now_ms=now_ms)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}; import it with ClaimMode.NO_CLAIM, which leaves it alone") from None


def _copied(
    source: Storage,
    target: Storage,
    operators: Iterable[OperatorDocument],
    new_id: Callable[[], str],
    paths: list[str],
    progress: Callable[[int, int], None] | None,
) -> list[OperatorDocument]:
    """Copy all files of operators; return the operators with the names of the copies, and add these to `paths`."""
    # Planned in full before the first file is copied, so that a damaged manifest is found first.
    plan = _Plan(new_id)
    planned = [
        (
            operator,
            [plan.states(operator, read_states(source, task.manifest, operator.uid)) for task in operator.subtasks],
        )
        for operator in whole_operators(source, operators)
    ]
    parts = [plan.operator_parts(operator) for operator, _ in planned]
    copies = list(plan.copies.values())
    lock, done = threading.Lock(), 0

    def copy(item: _Copy) -> None:
        nonlocal done
        # The file appears when the block ends, so what does not match its checksum never does.
        with target.write_file(item.to) as sink:
            for piece in checked_pieces(source, item.path, item.bytes, item.xxh3_128):
                sink.write(piece)
        with lock:
            paths.append(item.to)
            done += 1
            if progress is not None:
                progress(done, len(copies))

    # As many at a time as the one of the two takes that is reached over a network.
    in_parallel(max(target, source, key=lambda storage: getattr(storage, "files_at_once", 1)), copy, copies)
    return [
        replace(
            operator,
            subtasks=[
                replace(task, manifest=write_manifest(target, operator.uid, task.key_groups, states, new_id, paths))
                for task, states in zip(operator.subtasks, manifests, strict=True)
            ],
            operator_states=[
                replace(state, parts=own) for state, own in zip(operator.operator_states, of_states, strict=True)
            ],
        )
        for (operator, manifests), of_states in zip(planned, parts, strict=True)
    ]


class _Plan:
    """Which files are copied, and what they are called then; a file that several runs refer to is copied once."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.copies: dict[tuple[str, int, str], _Copy] = {}

    def states(self, operator: OperatorDocument, states: Iterable[StateRunsDocument]) -> list[StateRunsDocument]:
        """Return the states of a manifest that are the operator's, with the names of the copies."""
        names = {state.name for state in operator.states}
        return [
            replace(state, runs=[self._run(run, f"data/{operator.uid}/{state.name}") for run in state.runs])
            for state in states
            if state.name in names
        ]

    def operator_parts(self, operator: OperatorDocument) -> list[list[OperatorPartDocument]]:
        """Return the parts of each operator state with the names of the copies."""
        return [
            [
                part
                if part.path is None
                else replace(part, path=self._copy(part.path, part, f"data/{operator.uid}/{state.name}", "arrow"))
                for part in state.parts
            ]
            for state in operator.operator_states
        ]

    def _run(self, run: RunDocument, folder: str) -> RunDocument:
        vector, directory = run.deletion_vector, run.directory
        if vector is not None and vector.path is not None:
            vector = replace(vector, path=self._copy(vector.path, vector, folder, "roaring"))
        if directory is not None:
            directory = replace(directory, path=self._copy(directory.path, directory, folder, "directory"))
        if run.path is None:
            return replace(run, deletion_vector=vector, directory=directory)
        path = self._copy(run.path, run, folder, run.format)
        return replace(run, id=PurePosixPath(path).stem, path=path, deletion_vector=vector, directory=directory)

    def _copy(
        self,
        path: str,
        file: RunDocument | DeletionVectorDocument | DirectoryDocument | OperatorPartDocument,
        folder: str,
        extension: str,
    ) -> str:
        # With the checksum, so that all that documents say of one path is compared with it.
        key = (path, file.bytes, file.xxh3_128)
        if key not in self.copies:
            self.copies[key] = _Copy(*key, f"{folder}/{self._new_id()}.{extension}")
        return self.copies[key].to
