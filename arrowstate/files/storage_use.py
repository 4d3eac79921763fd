"""How much of what a checkpoint refers to on storage is live: files, bytes, and how many times the live bytes that is.

A file is counted once, however many subtasks own rows of it; a row counts as live where one of them does. So rows that
no subtask owns, and those that are dead, are what a compaction can win.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from arrowstate.files.reading import subtask_runs
from arrowstate.files.references import operator_state_files, run_files
from arrowstate.files.subtasks import list_files, subtasks_of, whole_operators
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, RunDocument, pack

SMALL_FILE_BYTES = 1 << 20
"""A run file below this size costs more to open than to read."""

Item = TypeVar("Item")


class StorageUse(Struct, frozen=True):
    """What a checkpoint refers to, and how much of it is live."""

    files: int
    "Files that it refers to: runs, deletion vectors, directories, manifests, operator state; each counted once."
    bytes: int
    "Bytes of these files, and of manifests and operator state that are inline in the log entry."
    live_bytes: int
    "Bytes of run files times the share of their rows that are live, and of operator state."
    small_files: int
    "Run files below the threshold; those that are inline are no files."

    @property
    def space_amplification(self) -> float | None:
        """Bytes over live bytes; None where nothing is live."""
        return self.bytes / self.live_bytes if self.live_bytes else None


class RunSlice(Struct, Generic[Item], frozen=True):
    """What one subtask has of a run file."""

    subtask: int
    item: Item
    "The run, or its document."
    file: Hashable
    "Tells run files apart."
    inline: bool
    data_bytes: int
    "Of the whole run file."
    directory_bytes: int
    dead_bytes: int
    "Of the deletion vector of this slice, if it is a file."
    document_bytes: int
    "What the slice takes in its manifest, inline rows and an inline deletion vector included."
    rows: int
    "Rows of the whole file."
    live_rows: int
    "Live rows of this slice."


class RunFile(Struct, Generic[Item], frozen=True):
    """A run file with all that subtasks have of it."""

    slices: tuple[RunSlice[Item], ...]

    @property
    def bytes(self) -> int:
        """Bytes on storage: the rows, their directory, which of them are dead, and what manifests say of them."""
        first = self.slices[0]
        of_slices = sum(part.dead_bytes + part.document_bytes for part in self.slices)
        return (0 if first.inline else first.data_bytes) + first.directory_bytes + of_slices

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows that are live, as if all rows were of one length."""
        return self._live_share_of(self.slices[0].data_bytes)

    @property
    def bytes_rewritten(self) -> int:
        """About how many bytes there are after a rewrite: the live rows, and their share of the directory."""
        first = self.slices[0]
        return self._live_share_of(first.data_bytes + first.directory_bytes)

    @property
    def inline(self) -> bool:
        return self.slices[0].inline

    @property
    def data_bytes(self) -> int:
        """Bytes of the run file alone."""
        return self.slices[0].data_bytes

    def _live_share_of(self, size: int) -> int:
        return size * sum(part.live_rows for part in self.slices) // max(1, self.slices[0].rows)


def stored_slice(subtask: int, run: RunDocument, item: Item, *, live_rows: int) -> RunSlice[Item]:
    """Return what a subtask has of a run file that is stored."""
    vector = run.deletion_vector
    return RunSlice(
        subtask=subtask,
        item=item,
        file=(run.id, run.xxh3_128),
        inline=run.inline is not None,
        data_bytes=run.bytes,
        directory_bytes=run.directory.bytes if run.directory is not None else 0,
        dead_bytes=vector.bytes if vector is not None and vector.path is not None else 0,
        document_bytes=len(pack(run)),
        rows=run.rows,
        live_rows=live_rows,
    )


def files_of(slices: Iterable[RunSlice[Item]]) -> list[RunFile[Item]]:
    """Put the slices of one file together."""
    found: dict[Hashable, list[RunSlice[Item]]] = {}
    for part in slices:
        found.setdefault(part.file, []).append(part)
    return [RunFile(tuple(parts)) for parts in found.values()]


def slices_by_state(storage: Storage, operator: OperatorDocument) -> dict[str, list[RunSlice[RunDocument]]]:
    """Return what the subtasks of an operator have of run files, by the name of the state."""
    found: dict[str, list[RunSlice[RunDocument]]] = {state.name: [] for state in operator.states}
    for number, subtask in enumerate(subtasks_of(storage, operator)):
        for name, runs in subtask_runs(storage, operator, subtask).items():
            found.setdefault(name, []).extend(stored_slice(number, run, run, live_rows=run.live_rows) for run in runs)
    return found


def storage_use(storage: Storage, entry: LogEntryDocument, *, small_file_bytes: int = SMALL_FILE_BYTES) -> StorageUse:
    """Return how much of what a checkpoint refers to is live; see `Snapshot.storage_use`."""
    files = {path: size for operator in entry.operators for path, size in list_files(operator).items()}
    inline_bytes = live_bytes = small_files = 0
    for operator in whole_operators(storage, entry.operators):
        files.update(operator_state_files(operator.operator_states))
        parts = [part for state in operator.operator_states for part in state.parts]
        inline_bytes += sum(part.bytes for part in parts if part.path is None)
        live_bytes += sum({part.path or number: part.bytes for number, part in enumerate(parts)}.values())
        for subtask in operator.subtasks:
            if subtask.manifest.path is None:
                inline_bytes += subtask.manifest.bytes
            else:
                files[subtask.manifest.path] = subtask.manifest.bytes
        # What is inline in a manifest is part of its bytes.
        for run_file in _run_files(slices_by_state(storage, operator).values()):
            live_bytes += run_file.live_bytes
            small_files += not run_file.inline and run_file.data_bytes < small_file_bytes
            for part in run_file.slices:
                files.update(run_files([part.item]))
    return StorageUse(len(files), sum(files.values()) + inline_bytes, live_bytes, small_files)


def _run_files(states: Iterable[Sequence[RunSlice[RunDocument]]]) -> Iterator[RunFile[RunDocument]]:
    for slices in states:
        yield from files_of(slices)
