"""Which files a checkpoint needs: every path in its log entry and in its manifests.

Whatever keeps or deletes files asks here. A document with a field that this version does not know is refused
when it is read, and a test compares the fields named here with those of the documents, so no kind of reference is
overlooked. Specification: formats/spec/collection.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from arrowstate.errors import CorruptDataError
from arrowstate.snapshot.reading import read_manifest
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import ManifestDocument, OperatorDocument, OperatorStateDocument, RunDocument

__all__ = ["ReferenceReader", "manifest_files", "operator_state_files", "run_files"]


def manifest_files(manifest: ManifestDocument) -> dict[str, int]:
    """Return the files that a manifest refers to, with their sizes in bytes."""
    files: dict[str, int] = {}
    for state in manifest.states:
        for run in state.runs:
            files.update(run_files(run))
    return files


def run_files(run: RunDocument) -> dict[str, int]:
    """Return the files of a run, with their sizes in bytes."""
    items = (run, run.deletion_vector, run.directory)
    return {item.path: item.bytes for item in items if item is not None and item.path is not None}


def operator_state_files(states: Iterable[OperatorStateDocument]) -> dict[str, int]:
    """Return the files of operator states, with their sizes in bytes."""
    return {part.path: part.bytes for state in states for part in state.parts if part.path is not None}


class ReferenceReader:
    """Reads references; a manifest that several entries share is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._manifests: dict[tuple[str | None, str], dict[str, int]] = {}

    def files(self, operators: Iterable[OperatorDocument], unreadable: list[Exception] | None = None) -> dict[str, int]:
        """Return every file that these operators need, manifests too, with their sizes in bytes.

        Parameters
        ----------
        operators
            Of one log entry.
        unreadable
            If given, takes the errors of manifests that are missing or damaged; their files are left out. For entries
            that are no roots any more.

        Raises
        ------
        CorruptDataError
            If a manifest is missing or damaged, and `unreadable` is not given.
        FormatVersionError
            If a manifest is of a newer version.
        """
        files: dict[str, int] = {}
        for operator in operators:
            files.update(operator_state_files(operator.operator_states))
            for subtask in operator.subtasks:
                handle = subtask.manifest
                if handle.path is not None:
                    files[handle.path] = handle.bytes
                key = (handle.path, handle.xxh3_128)
                if key not in self._manifests:
                    try:
                        manifest = read_manifest(self._storage, handle, operator.uid)
                    except CorruptDataError as error:
                        if unreadable is None:
                            raise
                        unreadable.append(error)
                        continue
                    self._manifests[key] = manifest_files(manifest)
                files.update(self._manifests[key])
        return files
