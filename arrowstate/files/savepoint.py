"""Savepoints: a state as a store of its own, without dead rows, in files of one format, Parquet by default.

A savepoint is written in one way, whether the state comes from a committed checkpoint or from backends that were
frozen a moment ago and go on being written to: operator by operator, each state of a subtask when its turn comes, so
that no more than one of them is held. The log entry and then `arrowstate.json` come last; until then the folder
is no store. Specification: formats/spec/savepoints.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, field

from arrowstate.errors import ArrowStateError, CheckpointCancelledError, InvalidInputError, StoreNotFoundError
from arrowstate.files.notes import of_other_store
from arrowstate.files.operator import FrozenOperatorState, read_part, write_operator_states
from arrowstate.files.reading import open_run, subtask_runs
from arrowstate.files.savepoint_rows import cutoff_of, drop_expired, merged_rows
from arrowstate.files.subtasks import fitted, subtask_of, whole_operator
from arrowstate.files.validation import validated_savepoint
from arrowstate.files.writing import (
    FrozenSubtask,
    RunWriter,
    schema_versions,
    subtask_bytes,
    write_manifest,
)
from arrowstate.log.commit import Commit, delete_quietly
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import HINT_PATH, STORE_PATH, open_store_document, path_of, put_store_document
from arrowstate.schema.operator_state import operator_descriptor_of
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate.table.run import Run
from arrowstate.telemetry.records import PartRecord, recorded
from arrowstate_formats.document_base import wide
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, StateRunsDocument, SubtaskDocument
from arrowstate_formats.names import check_savepoint_name
from arrowstate_formats.run_files import RunFormat
from arrowstate_formats.schema_documents import FieldDocument, StateDocument
from arrowstate_formats.state_columns import fields_of_run, time_column


class _Subtask(Struct, frozen=True):
    """The keyed state of one subtask."""

    key_groups: tuple[int, int]
    watermark: int | None
    runs: Callable[[RunSchemas], list[Run]]
    "Returns the runs of a state, with live bits that nobody else has."


class _Operator(Struct, frozen=True):
    """The state of one operator, read or taken over piece by piece."""

    uid: str
    key: Sequence[FieldDocument]
    max_parallelism: int
    states: Sequence[StateDocument]
    parallelism: int
    "How many subtasks have keyed state."
    subtask: Callable[[int], _Subtask]
    operator_states: Callable[[], Sequence[Sequence[FrozenOperatorState]]]
    "Returns the operator states of each subtask."


_OWN_FOLDERS = ("data", "gc", "jobs", "leases", "log", "manifests", "tags")
"""What a store has in its folder beside savepoints."""


def savepoint_place(store: Storage, name_or_path: str | Path) -> str:
    """Return the path or URL of a savepoint: of the folder `savepoints/<name>` of a store, or what was given."""
    place = str(name_or_path)
    return place if "/" in place else f"{store.url.rstrip('/')}/savepoints/{check_savepoint_name(place)}"


def open_savepoint_place(
    store: Storage, name_or_path: str | Path, options: Mapping[str, Any] | None = None, *, create: bool = False
) -> Storage:
    """Open the place of a savepoint; by default with the options of the store, for one in the same object storage.

    A new one is refused in the folders that the store has for itself: a collection would stop at its files.
    """
    place = savepoint_place(store, name_or_path)
    target = open_storage(
        place, create=create, storage_options=options_beside(store, place) if options is None else options
    )
    inside = target.url.removeprefix(f"{store.url.rstrip('/')}/")
    folder = inside.partition("/")[0]
    if create and inside != target.url and folder in _OWN_FOLDERS:
        raise InvalidInputError(
            f"{target.url} is inside of {folder}/, where the store keeps files of its own; give a savepoint a name, or "
            "another folder"
        )
    return target


def check_savepoint(target: Storage, format: RunFormat) -> None:
    """Refuse a format that is none, and a place with files."""
    if format not in get_args(RunFormat):
        raise InvalidInputError(f"the format of a savepoint is one of {get_args(RunFormat)}, got {format!r}")
    if target.list(""):
        raise InvalidInputError(f"a savepoint needs an empty place, {target.url} holds files; choose another name")


def recorded_savepoint(
    storage: Storage,
    store_id: str,
    entry: LogEntryDocument,
    target: Storage,
    *,
    format: RunFormat,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, LogEntryDocument]:
    """Write a checkpoint as a savepoint, and tell listeners of it; return the identity of that store and its entry."""
    with recorded("savepoint", storage.url, clock_ms(), checkpoint_id=entry.checkpoint_id) as recording:
        written = write_savepoint(
            storage,
            store_id,
            entry,
            target,
            format=format,
            new_id=new_id,
            clock_ms=clock_ms,
            progress=progress,
            wrote=recording.parts.append,
        )
    return open_store_document(target).store_id, written


def write_savepoint(
    storage: Storage,
    store_id: str,
    entry: LogEntryDocument,
    target: Storage,
    *,
    format: RunFormat = "parquet",
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
    wrote: Callable[[PartRecord], object] = lambda _: None,
) -> LogEntryDocument:
    """Write a checkpoint as a self-contained store."""
    assert entry.checkpoint_id is not None, "a fence is no checkpoint"
    storage = validated_savepoint(storage, entry)
    return _write(
        target,
        [_committed(storage, store_id, operator) for operator in entry.operators],
        checkpoint_id=entry.checkpoint_id,
        properties=of_other_store(entry.properties, store_id),
        watermark=entry.watermark,
        format=format,
        new_id=new_id,
        clock_ms=clock_ms,
        cancelled=cancelled,
        progress=progress,
        wrote=wrote,
    )


def write_frozen_savepoint(
    target: Storage,
    operators: Mapping[str, Sequence[FrozenSubtask]],
    operator_states: Mapping[str, Sequence[Sequence[FrozenOperatorState]]],
    *,
    checkpoint_id: int,
    properties: Mapping[str, Any],
    watermark: int | None,
    format: RunFormat = "parquet",
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
    wrote: Callable[[PartRecord], object] = lambda _: None,
) -> LogEntryDocument:
    """Write frozen state as a self-contained store, while the backends that it was frozen from may be written to.

    Each state of a subtask becomes one file of its live rows, sorted by `_key_hash`; a state without rows has one file
    without rows. Rows that have expired by the clock, or by the watermark, are left out. The folder may be moved or
    copied as a whole.
    """
    return _write(
        target,
        [
            _frozen(uid, operators.get(uid, ()), operator_states.get(uid, ()))
            for uid in dict.fromkeys([*operators, *operator_states])
        ],
        checkpoint_id=checkpoint_id,
        properties=properties,
        watermark=watermark,
        format=format,
        new_id=new_id,
        clock_ms=clock_ms,
        cancelled=cancelled,
        progress=progress,
        wrote=wrote,
    )


def _committed(storage: Storage, store_id: str, operator: OperatorDocument) -> _Operator:
    def subtask(number: int) -> _Subtask:
        document = subtask_of(storage, operator, number)
        stored = subtask_runs(storage, operator, document)

        def runs(schemas: RunSchemas) -> list[Run]:
            opened = [open_run(storage, store_id, run, schemas) for run in stored.get(schemas.document.name, [])]
            return [run for run, _ in filter(None, opened)]

        return _Subtask(document.key_groups, document.watermark, runs)

    def operator_states() -> list[list[FrozenOperatorState]]:
        states = whole_operator(storage, operator).operator_states
        return [
            [FrozenOperatorState(operator_descriptor_of(state), read_part(storage, state, part)) for state in states]
            for part in range(states[0].part_count if states else 0)
        ]

    return _Operator(
        operator.uid,
        operator.key,
        operator.max_parallelism,
        operator.states,
        operator.parallelism,
        subtask,
        operator_states,
    )


def _frozen(
    uid: str, subtasks: Sequence[FrozenSubtask], operator_states: Sequence[Sequence[FrozenOperatorState]]
) -> _Operator:
    def subtask(number: int) -> _Subtask:
        frozen = subtasks[number]
        tables = {state.document.name: state.table for state in frozen.states}

        def runs(schemas: RunSchemas) -> list[Run]:
            # The live bits of the backend's runs change while this is read, and those that were frozen with it may
            # be shared with a checkpoint that is written at the same time.
            return [
                dataclasses.replace(run.run, live=run.live.copy(), live_rows=run.live_rows)
                for run in tables[schemas.document.name].runs
            ]

        return _Subtask((frozen.key_groups.start, frozen.key_groups.end), frozen.watermark, runs)

    first = subtasks[0] if subtasks else None
    return _Operator(
        uid,
        first.key if first else (),
        first.max_parallelism if first else 1,
        [state.document for state in first.states] if first else [],
        len(subtasks),
        subtask,
        lambda: operator_states,
    )


def _write(
    target: Storage,
    operators: Sequence[_Operator],
    *,
    checkpoint_id: int,
    properties: Mapping[str, Any],
    watermark: int | None,
    format: RunFormat,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    cancelled: Callable[[], bool],
    progress: Callable[[int, int], None] | None,
    wrote: Callable[[PartRecord], object],
) -> LogEntryDocument:
    check_savepoint(target, format)
    started_at_ms = clock_ms()
    writing = _Writing(
        target,
        format,
        new_id,
        started_at_ms,
        watermark,
        cancelled,
        progress,
        wrote,
        total=sum(operator.parallelism * len(operator.states) for operator in operators),
    )
    commit_id, store_id = new_id(), new_id()
    try:
        documents = [document for operator in operators if (document := writing.operator(operator)) is not None]
        documents = fitted(target, documents, new_id=new_id, paths=writing.paths)
        savepoint = LogEntryDocument(
            # In a store of its own the number is the id, so that ids go on rising from here.
            number=checkpoint_id,
            parent=None,
            commit_id=commit_id,
            writer_epoch=1,
            kind="savepoint",
            checkpoint_id=checkpoint_id,
            started_at_ms=started_at_ms,
            committed_at_ms=clock_ms(),
            watermark=wide(watermark),
            properties=dict(properties),
            operators=documents,
        )
        writing.ask()
        # The entry first: until the folder is a store, a reader finds none there.
        another = f"another savepoint was written to {target.url} meanwhile; choose another name"
        if Commit(target).append(CommitLog(target), savepoint) is None:
            raise InvalidInputError(another)
        put_store_document(target, store_id, clock_ms())
        if open_store_document(target).store_id != store_id:
            raise InvalidInputError(another)
    except BaseException:
        _withdraw(target, store_id, checkpoint_id, commit_id, writing.paths)
        raise
    return savepoint


class _Writing(Struct):
    """A savepoint that is being written."""

    target: Storage
    format: RunFormat
    new_id: Callable[[], str]
    now_ms: int
    watermark: int | None
    cancelled: Callable[[], bool]
    progress: Callable[[int, int], None] | None
    wrote: Callable[[PartRecord], object]
    total: int
    done: int = 0
    paths: list[str] = field(default_factory=list)

    def ask(self) -> None:
        """Give up if the savepoint was cancelled."""
        if self.cancelled():
            raise CheckpointCancelledError()

    def operator(self, operator: _Operator) -> OperatorDocument | None:
        """Write the files of an operator; None if it has no state at all."""
        schemas = [RunSchemas(operator.key, state) for state in operator.states]
        live_rows = dict.fromkeys((state.name for state in operator.states), 0)
        subtasks = []
        for number in range(operator.parallelism):
            before = len(self.paths)
            subtask = operator.subtask(number)
            states, own_rows = [], {}
            for state in schemas:
                name = state.document.name
                last_chance = number == operator.parallelism - 1 and not live_rows[name]
                runs, own_rows[name] = self._state(operator, subtask, state, or_no_rows=last_chance)
                live_rows[name] += own_rows[name]
                states.append(runs)
            self.ask()
            manifest = write_manifest(self.target, operator.uid, subtask.key_groups, states, self.new_id, self.paths)
            subtasks.append(
                SubtaskDocument(
                    subtask=number,
                    key_groups=subtask.key_groups,
                    manifest=manifest,
                    live_rows=own_rows,
                    watermark=subtask.watermark,
                    schema_versions=schema_versions(states),
                )
            )
            self._tell(operator.uid, number, subtask_bytes(manifest, states), before, sum(own_rows.values()))
        self.ask()
        before = len(self.paths)
        parts = operator.operator_states()
        operator_states = (
            write_operator_states(self.target, operator.uid, parts, new_id=self.new_id, paths=self.paths)
            if parts
            else []
        )
        if operator_states:
            pieces = {piece.xxh3_128: piece.bytes for state in operator_states for piece in state.parts}
            self._tell(operator.uid, None, sum(pieces.values()), before)
        if not subtasks and not operator_states:
            return None
        return OperatorDocument(
            uid=operator.uid,
            key=list(operator.key),
            max_parallelism=operator.max_parallelism,
            states=list(operator.states),
            subtasks=subtasks,
            operator_states=operator_states,
        )

    def _tell(self, uid: str, subtask: int | None, size: int, paths_before: int, rows: int | None = None) -> None:
        files = len(self.paths) - paths_before
        self.wrote(
            PartRecord(
                operator=uid, subtask=subtask, bytes_written=size, bytes_total=size, files_written=files, rows=rows
            )
        )

    def _state(
        self, operator: _Operator, subtask: _Subtask, schemas: RunSchemas, *, or_no_rows: bool
    ) -> tuple[StateRunsDocument, int]:
        """Write a state of a subtask as one file, or none if it has no rows; return its runs and its rows."""
        self.ask()
        state = schemas.document
        runs = subtask.runs(schemas)
        watermark = self.watermark if subtask.watermark is None else subtask.watermark
        drop_expired(runs, cutoff_of(state.time_to_live, self.now_ms, watermark))
        rows = sum(run.live_rows for run in runs)
        merged = merged_rows(runs, schemas.schema)
        if merged is None and or_no_rows:
            merged = Run.of([])
        documents = []
        if merged is not None:
            writer = RunWriter(
                self.target,
                f"data/{operator.uid}/{state.name}",
                operator.max_parallelism,
                self.format,
                self.new_id,
                fields_of_run(operator.key, state),
                time_column(state),
                inline_bytes=0,
                paths=self.paths,
            )
            documents.append(writer.write(merged.freeze(), schemas.schema, state.schema_version)[0])
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)
        return StateRunsDocument(name=state.name, runs=documents), rows


def _withdraw(target: Storage, store_id: str, number: int, commit_id: str, paths: Sequence[str]) -> None:
    """Take away what was written, and nothing of another savepoint that was written to the same place."""
    try:
        if open_store_document(target).store_id == store_id:
            target.delete(STORE_PATH)
    except StoreNotFoundError:
        pass
    except (ArrowStateError, OSError):
        # It may be there. A savepoint that is whole does less harm than one without its files.
        return
    with suppress(ArrowStateError, OSError):
        entry = CommitLog(target).get(number)
        if entry is not None and entry.document.commit_id == commit_id:
            target.delete(HINT_PATH)
            target.delete(path_of(number))
    delete_quietly(target, paths)
