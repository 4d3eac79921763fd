"""Which files a checkpoint needs: every path in its log entry and in its manifests.

Whatever keeps or deletes files asks here. A document with a field that this version does not know is refused
when it is read, and a test compares the fields named here with those of the documents, so no kind of reference is
overlooked. Specification: formats/spec/collection.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from arrowstate.errors import CorruptDataError
from arrowstate.files.subtasks import list_files, parts_in, read_states, subtasks_in
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate_formats.documents import (
    ManifestHandle,
    OperatorDocument,
    OperatorPartDocument,
    OperatorStateDocument,
    PartFileDocument,
    RunDocument,
    StateRunsDocument,
    SubtaskDocument,
    SubtaskFileDocument,
)


def manifest_files(states: Iterable[StateRunsDocument]) -> dict[str, int]:
    """Return the files that a manifest with these states refers to, with their sizes in bytes."""
    return run_files(run for state in states for run in state.runs)


def run_files(runs: Iterable[RunDocument]) -> dict[str, int]:
    """Return the files of runs, with their sizes in bytes."""
    files: dict[str, int] = {}
    for run in runs:
        for item in (run, run.deletion_vector, run.directory):
            if item is not None and item.path is not None:
                files[item.path] = item.bytes
    return files


def operator_state_files(states: Iterable[OperatorStateDocument]) -> dict[str, int]:
    """Return the files of operator states whose parts are all in these documents, with their sizes in bytes."""
    return _part_files(part for state in states for part in state.parts)


def _part_files(parts: Iterable[OperatorPartDocument]) -> dict[str, int]:
    return {part.path: part.bytes for part in parts if part.path is not None}


class ReferenceReader:
    """Reads references; a manifest, or a list of subtasks, that several entries share is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[tuple[str, str], dict[str, int]] = {}
        self._lists: dict[tuple[str, str], list[SubtaskDocument]] = {}
        "Read ahead, until their files are asked for."

    def forget_beyond(self, documents: int) -> None:
        """Forget what was read if it is more than so many manifests and lists; they are read again where needed."""
        if len(self._known) > documents:
            self._known.clear()

    def files(self, operators: Iterable[OperatorDocument], unreadable: list[Exception] | None = None) -> dict[str, int]:
        """Return every file that these operators need, manifests too, with their sizes in bytes."""
        files: dict[str, int] = {}
        operators = [*operators]
        self.read_ahead(operators)
        for operator in operators:
            files.update(list_files(operator))
            files.update(self._of_subtasks(operator.uid, operator.subtasks, unreadable))
            for subtasks in operator.subtask_files:
                read = partial(self._of_subtask_file, operator.uid, subtasks, unreadable)
                files.update(self._once((subtasks.path, subtasks.xxh3_128), read, unreadable))
            for state in operator.operator_states:
                files.update(_part_files(state.parts))
                for parts in state.part_files:
                    read = partial(self._of_part_file, operator.uid, state.name, parts)
                    files.update(self._once((parts.path, parts.xxh3_128), read, unreadable))
        return files

    def read_ahead(self, operators: Iterable[OperatorDocument]) -> None:
        """Read the manifests and lists of operators, of several entries for instance, several at a time.

        What cannot be read is left to `files`, which says so.
        """
        if getattr(self._storage, "requests_at_once", 1) < 2:
            return
        operators = [*operators]
        lists = {
            (file.path, file.xxh3_128): (operator.uid, file)
            for operator in operators
            for file in operator.subtask_files
            if (file.path, file.xxh3_128) not in self._known
        }
        read = in_parallel(self._storage, self._subtasks_ahead, [*lists.values()], name="lists", small=True)
        self._lists.update(zip(lists, read, strict=True))
        of_lists = [
            (uid, subtask) for (uid, _), subtasks in zip(lists.values(), read, strict=True) for subtask in subtasks
        ]
        own = [(operator.uid, subtask) for operator in operators for subtask in operator.subtasks]
        handles = {
            (handle.path, str(handle.xxh3_128)): (uid, handle)
            for uid, handle in ((uid, subtask.manifest) for uid, subtask in (*own, *of_lists))
            if handle.path is not None and (handle.path, str(handle.xxh3_128)) not in self._known
        }
        found = in_parallel(self._storage, self._manifest_ahead, [*handles.values()], name="manifests", small=True)
        self._known.update((key, files) for key, files in zip(handles, found, strict=True) if files is not None)

    def _subtasks_ahead(self, item: tuple[str, SubtaskFileDocument]) -> list[SubtaskDocument]:
        try:
            return subtasks_in(self._storage, *item)
        except CorruptDataError:
            return []

    def _manifest_ahead(self, item: tuple[str, ManifestHandle]) -> dict[str, int] | None:
        try:
            return self._of_manifest(*item)
        except CorruptDataError:
            return None

    def _of_subtasks(
        self, uid: str, subtasks: Iterable[SubtaskDocument], unreadable: list[Exception] | None
    ) -> dict[str, int]:
        files: dict[str, int] = {}
        for subtask in subtasks:
            handle = subtask.manifest
            if handle.inline is not None:
                files.update(manifest_files(handle.inline))
                continue
            assert handle.path is not None
            files[handle.path] = handle.bytes
            files.update(
                self._once((handle.path, str(handle.xxh3_128)), partial(self._of_manifest, uid, handle), unreadable)
            )
        return files

    def _of_manifest(self, uid: str, handle: ManifestHandle) -> dict[str, int]:
        return manifest_files(read_states(self._storage, handle, uid))

    def _of_subtask_file(
        self, uid: str, file: SubtaskFileDocument, unreadable: list[Exception] | None
    ) -> dict[str, int]:
        ahead = self._lists.pop((file.path, file.xxh3_128), None)
        return self._of_subtasks(uid, ahead or subtasks_in(self._storage, uid, file), unreadable)

    def _of_part_file(self, uid: str, state: str, file: PartFileDocument) -> dict[str, int]:
        return _part_files(parts_in(self._storage, uid, state, file))

    def _once(
        self, key: tuple[str, str], read: Callable[[], dict[str, int]], unreadable: list[Exception] | None
    ) -> dict[str, int]:
        """Return what a document refers to, read once; nothing of one that cannot be read, if that is borne."""
        if key not in self._known:
            found = 0 if unreadable is None else len(unreadable)
            try:
                files = read()
            except CorruptDataError as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
                return {}
            if unreadable and len(unreadable) > found:
                # Something in it could not be read; whoever asks again is to hear of it too.
                return files
            self._known[key] = files
        return self._known[key]
