"""The writer of a store: takes the fence, then commits checkpoints one after another.

A writer opens by committing a fence entry with an epoch one above the newest. Each commit takes the next
number of the log. Whoever finds that number taken was fenced by a newer writer and stops; nothing that it
wrote is referenced. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from msgspec.structs import replace

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.backend.operator import OperatorStateBackend
from arrowstate.errors import CollectedError, FencedError, InvalidInputError, StorageError, StorageFullError
from arrowstate.snapshot.boundary import NewReferences
from arrowstate.snapshot.log import CommitLog, CommittedEntry, next_checkpoint, next_fence
from arrowstate.snapshot.operator import FrozenOperatorState, write_operator_states
from arrowstate.snapshot.reading import store_key
from arrowstate.snapshot.references import ReferenceReader, operator_state_files, run_files
from arrowstate.snapshot.writing import (
    FrozenSubtask,
    WrittenSubtask,
    delete_quietly,
    operator_document,
    write_subtask,
)
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.names import check_operator_uid
from arrowstate_formats.run_files import RunFormat

__all__ = ["CheckpointWriter"]


@dataclass(frozen=True, slots=True)
class _Needs:
    """The files that a checkpoint refers to."""

    all: set[str]
    written: set[str]
    "Those written for it."
    based_on: int
    "An entry committed before the first of them was written."


class CheckpointWriter:
    """Commits checkpoints to a store; only the newest writer of a store may.

    Parameters
    ----------
    storage, store_id
        Where to, and the identity of the store there.
    clock_ms
        Returns the time in milliseconds since 1970; it is recorded, nothing is decided by it.
    new_id
        Returns a fresh, unique name at each call.
    properties
        Kept in the fence entry.
    """

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        *,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage = storage
        self._store_id = store_id
        self._log = CommitLog(storage)
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._fenced_by: int | None = None
        # The files of its last checkpoint, which no collection takes while that is the newest entry.
        self._held: set[str] = set()
        # Files that a collection took or may take: nothing refers to them again.
        self._condemned: set[str] = set()
        self._newest = self._take_fence(dict(properties or {}))

    @property
    def epoch(self) -> int:
        """The writer's epoch; a newer writer has a higher one."""
        return self._newest.document.writer_epoch

    def checkpoint(
        self,
        operators: Mapping[str, Sequence[KeyedStateBackend]],
        *,
        operator_states: Mapping[str, Sequence[OperatorStateBackend]] | None = None,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        format: RunFormat = "arrow",
        allow_dropped_state: bool = False,
    ) -> LogEntryDocument:
        """Freeze the backends, write what the store lacks, and commit.

        Parameters
        ----------
        operators
            By operator uid the backends of its subtasks, in the order of their key groups.
        operator_states
            By operator uid the operator state of its subtasks. An operator may have keyed state, operator state, or
            both for equally many subtasks.
        properties
            JSON values of the caller, such as source offsets.
        watermark
            Milliseconds since 1970; by default the lowest watermark of the backends, if all have one.
        format
            The format of new run files: `arrow` (mapped by readers) or `parquet`.
        allow_dropped_state
            Whether operators and states of the checkpoint before may be left out.

        Returns
        -------
        LogEntryDocument
            The committed entry.

        Raises
        ------
        FencedError
            If a newer writer has opened the store; nothing was committed.
        InvalidInputError
            If subtasks do not cover each key group once, differ in key, states or max parallelism, an operator
            or its operator state is missing, or a keyed state and an operator state share a name.
        StorageFullError, StorageError
            If a file cannot be written; nothing was committed, and what was written is deleted.
        CollectedError
            If files that it would refer to were collected; nothing was committed, and the next attempt writes them.
        CommitUnknownError
            If it cannot be told whether the checkpoint was committed. The next one takes its place, or where it was
            committed the number after it.
        """
        self._check_not_fenced()
        started_at_ms = self._clock_ms()
        frozen = {
            check_operator_uid(uid): [backend.freeze() for backend in backends] for uid, backends in operators.items()
        }
        for uid, subtasks in frozen.items():
            _check_subtasks(uid, subtasks)
        frozen_operators = {
            check_operator_uid(uid): [backend.freeze() for backend in backends]
            for uid, backends in (operator_states or {}).items()
        }
        for uid, parts in frozen_operators.items():
            _check_operator_states(uid, parts, frozen.get(uid))
        before = {operator.uid: operator for operator in self._newest.document.operators}
        if not allow_dropped_state:
            _check_nothing_dropped(before, frozen, frozen_operators)
        if watermark is None:
            marks = [subtask.watermark for subtasks in frozen.values() for subtask in subtasks]
            known = [mark for mark in marks if mark is not None]
            watermark = min(known) if known and len(known) == len(marks) else None
        written: list[WrittenSubtask] = []
        paths: list[str] = []
        needed: set[str] = set()
        based_on = self._newest.document.number
        try:
            documents: dict[str, OperatorDocument] = {}
            for uid, subtasks in frozen.items():
                previous = before[uid].subtasks if uid in before else []
                reusable = [item if item.manifest.path not in self._condemned else None for item in previous]
                of_operator = []
                for number, subtask in enumerate(subtasks):
                    result = write_subtask(
                        self._storage,
                        self._store_id,
                        uid,
                        number,
                        subtask,
                        format=format,
                        new_id=self._new_id,
                        previous=reusable[number] if number < len(reusable) else None,
                    )
                    needed.update(result.references)
                    written.append(result)
                    of_operator.append(result.document)
                states = [state.document for state in subtasks[0].states]
                documents[uid] = operator_document(
                    uid, subtasks[0].key, subtasks[0].max_parallelism, states, of_operator
                )
            for uid, parts in frozen_operators.items():
                operator = before.get(uid)
                if operator and not self._condemned.isdisjoint(operator_state_files(operator.operator_states)):
                    operator = None
                of_subtasks = write_operator_states(
                    self._storage, uid, parts, new_id=self._new_id, paths=paths, previous=operator
                )
                needed.update(operator_state_files(of_subtasks))
                document = documents.get(uid)
                if document is not None:
                    documents[uid] = replace(document, operator_states=of_subtasks)
                elif of_subtasks:
                    documents[uid] = OperatorDocument(
                        uid=uid, key=[], max_parallelism=1, states=[], subtasks=[], operator_states=of_subtasks
                    )
        except BaseException:
            _delete(self._storage, written, paths)
            raise
        try:
            fresh = {path for result in written for path in result.paths}.union(paths)
            entry = self._commit(
                list(documents.values()),
                _Needs(needed, fresh, based_on),
                properties=properties,
                watermark=watermark,
                started_at_ms=started_at_ms,
            )
        except (FencedError, InvalidInputError, StorageFullError, StorageError) as error:
            if isinstance(error, CollectedError):
                self._forget(frozen, set(error.paths))
            # After anything else, an interrupt for one, the entry may be there and refer to the files.
            _delete(self._storage, written, paths)
            raise
        for result in written:
            result.committed(self._storage, self._store_id)
        return entry

    def commit(
        self,
        operators: Sequence[OperatorDocument],
        *,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        started_at_ms: int,
    ) -> LogEntryDocument:
        """Commit a checkpoint whose files are written, for instance by the tasks of a cluster.

        The manifests are read, and every file that the checkpoint before does not have is looked for.

        Raises
        ------
        FencedError
            If a newer writer has opened the store; nothing was committed.
        InvalidInputError
            If the properties are not JSON; nothing was committed.
        CollectedError
            If files that it refers to were collected; nothing was committed.
        CommitUnknownError
            If it cannot be told whether it was committed.
        """
        needed = ReferenceReader(self._storage).files(operators)
        return self._commit(
            operators,
            _Needs(set(needed), set(), self._newest.document.number),
            properties=properties,
            watermark=watermark,
            started_at_ms=started_at_ms,
        )

    def _commit(
        self,
        operators: Sequence[OperatorDocument],
        needs: _Needs,
        *,
        properties: Mapping[str, Any] | None,
        watermark: int | None,
        started_at_ms: int,
    ) -> LogEntryDocument:
        while True:
            self._check_not_fenced()
            entry = next_checkpoint(
                self._newest,
                operators,
                commit_id=self._new_id(),
                started_at_ms=started_at_ms,
                now_ms=self._clock_ms(),
                watermark=watermark,
                properties=properties or {},
            )
            references = NewReferences(
                needs.written, needs.based_on, needs.all - needs.written - self._held, lambda: needs.all
            )
            committed = self._log.append(entry, references)
            if committed is not None:
                self._newest, self._held = committed, needs.all
                return committed.document
            newest = self._log.latest()
            assert newest is not None, "the entry that took the number, or one after it"
            if newest.document.writer_epoch == self.epoch:
                # An earlier commit of this writer, whose outcome nobody could tell, was made: go on after it. What is
                # older is no longer held by being the newest.
                self._newest, self._held = newest, set()
            else:
                self._fenced_by = newest.document.writer_epoch

    def _forget(self, frozen: Mapping[str, Sequence[FrozenSubtask]], paths: set[str]) -> None:
        """Let the next attempt write anew what is in files that are gone."""
        self._condemned |= paths
        store = store_key(self._storage, self._store_id)
        for subtask in chain.from_iterable(frozen.values()):
            for run in chain.from_iterable(state.table.runs for state in subtask.states):
                stored = run.run.stored.get(store)
                if stored is not None and not paths.isdisjoint(run_files(stored[0])):
                    del run.run.stored[store]

    def _check_not_fenced(self) -> None:
        if self._fenced_by is not None:
            raise FencedError(self.epoch, self._fenced_by)

    def _take_fence(self, properties: dict[str, Any]) -> CommittedEntry:
        while True:
            fence = next_fence(
                self._log.latest(), commit_id=self._new_id(), now_ms=self._clock_ms(), properties=properties
            )
            # Losing means that another writer took the number: look again and go above it.
            committed = self._log.append(fence)
            if committed is not None:
                return committed


def _delete(storage: Storage, written: Sequence[WrittenSubtask], paths: Sequence[str]) -> None:
    delete_quietly(storage, [*(path for result in written for path in result.paths), *paths])


def _check_operator_states(
    uid: str, parts: Sequence[Sequence[FrozenOperatorState]], keyed: Sequence[FrozenSubtask] | None
) -> None:
    if not parts:
        raise InvalidInputError(f"operator {uid!r} has no operator state backend; pass one per subtask")
    if keyed is None:
        return
    if len(keyed) != len(parts):
        raise InvalidInputError(
            f"operator {uid!r} has {len(keyed)} backends of keyed state and {len(parts)} of operator state; "
            "pass one of each per subtask"
        )
    names = {state.document.name.lower() for state in keyed[0].states}
    for state in parts[0]:
        if state.descriptor.name.lower() in names:
            raise InvalidInputError(
                f"operator {uid!r} has a keyed state and an operator state named {state.descriptor.name!r}; rename one"
            )


def _check_nothing_dropped(
    before: Mapping[str, OperatorDocument],
    keyed: Mapping[str, Sequence[FrozenSubtask]],
    operators: Mapping[str, Sequence[Sequence[FrozenOperatorState]]],
) -> None:
    gone = {uid for uid, operator in before.items() if operator.subtasks and uid not in keyed}
    gone |= {uid for uid in before if uid not in keyed and uid not in operators}
    if gone:
        raise InvalidInputError(
            f"the checkpoint would drop the state of {', '.join(sorted(gone))}; "
            "pass these operators too, or allow_dropped_state=True"
        )
    for uid, operator in before.items():
        if uid in keyed:
            states = {state.document.name for state in keyed[uid][0].states}
            lost = [state.name for state in operator.states if state.name not in states]
            if lost:
                raise InvalidInputError(
                    f"the checkpoint would drop the state {', '.join(lost)} of {uid}; restore the backends from the "
                    "checkpoint before, or pass allow_dropped_state=True"
                )
        had = [state.name for state in operator.operator_states]
        have = {state.descriptor.name for part in operators.get(uid, ()) for state in part}
        lost = [name for name in had if name not in have]
        if lost:
            raise InvalidInputError(
                f"the checkpoint would drop the operator state {', '.join(lost)} of {uid}; pass its restored "
                "OperatorStateBackends as operator_states, or allow_dropped_state=True"
            )


def _check_subtasks(uid: str, subtasks: Sequence[FrozenSubtask]) -> None:
    if not subtasks:
        raise InvalidInputError(f"operator {uid!r} has no backend; pass one per subtask")
    first = subtasks[0]
    following = 0
    for number, subtask in enumerate(subtasks):
        if subtask.key != first.key or subtask.max_parallelism != first.max_parallelism:
            names = [[field.name for field in item.key] for item in (subtask, first)]
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must have one key and one max parallelism; subtask {number} has "
                f"{names[0]} and {subtask.max_parallelism}, subtask 0 has {names[1]} and {first.max_parallelism}"
            )
        if [state.document for state in subtask.states] != [state.document for state in first.states]:
            names = [
                [f"{state.document.name} (version {state.document.schema_version})" for state in item.states]
                for item in (first, subtask)
            ]
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must have the same states, declared alike, in the same order; "
                f"subtask 0 has {', '.join(names[0])}, subtask {number} has {', '.join(names[1])}"
            )
        if subtask.key_groups.start != following:
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must cover each key group once, in order: subtask {number} starts "
                f"at key group {subtask.key_groups.start}, expected {following}"
            )
        following = subtask.key_groups.end + 1
    if following != first.max_parallelism:
        raise InvalidInputError(
            f"the subtasks of operator {uid!r} must cover the key groups 0 to {first.max_parallelism - 1}; "
            f"they end at {following - 1}"
        )
