"""From runs to storage: only the runs that the store does not have, and changed deletion vectors.

What is written has fresh names, so an attempt that is repeated or abandoned never touches what is referenced;
it leaves files that no log entry names. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import BinaryIO

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from arrowstate.errors import CheckpointCancelledError
from arrowstate.files.reading import store_key
from arrowstate.files.references import manifest_files
from arrowstate.files.streams import CheckpointStreamFactory, StreamStateHandle, never
from arrowstate.files.subtasks import PartOfOperator
from arrowstate.log.commit import delete_quietly
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.storage.posix import storage_errors
from arrowstate.table.run import FrozenRun, Run
from arrowstate.table.segments import Directory
from arrowstate.table.table import FrozenTable
from arrowstate_formats.deletion_vectors import write_deletion_vector
from arrowstate_formats.directory import write_directory
from arrowstate_formats.document_base import wide
from arrowstate_formats.documents import (
    DeletionVectorDocument,
    DirectoryDocument,
    ManifestDocument,
    ManifestHandle,
    RunDocument,
    StateRunsDocument,
    SubtaskDocument,
    SubtaskStatisticsDocument,
    encode,
    pack,
)
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.run_files import INLINE_BYTES, RunFile, RunFormat, checksum
from arrowstate_formats.run_writing import write_run
from arrowstate_formats.schema_documents import FieldDocument, StateDocument
from arrowstate_formats.splitting import TARGET_ROWS, split_at_key_groups
from arrowstate_formats.state_columns import fields_of_run, time_column
from arrowstate_formats.statistics import column_statistics

_DIRECTORY_ROWS = 65_536
"""A run with fewer rows is faster to pass over once than its directory is to open."""

_SMALLEST_BATCH_ROWS = 16_384
"""Smaller record batches would cost more in the manifest than they save in reading."""


class FrozenState(Struct, frozen=True):
    """One state of a subtask at one moment."""

    document: StateDocument
    table: FrozenTable


class FrozenSubtask(Struct, frozen=True):
    """The keyed state of one subtask at one moment."""

    key: tuple[FieldDocument, ...]
    max_parallelism: int
    key_groups: KeyGroupRange
    states: tuple[FrozenState, ...]
    watermark: int | None = None
    "The event time, in milliseconds, up to which everything has come."
    dropped: frozenset[str] = frozenset()
    "States that were given up or renamed when it was restored."

    def as_part(self, number: int) -> PartOfOperator:
        """Return what of it must fit to the other subtasks of its operator."""
        key_groups = (self.key_groups.start, self.key_groups.end)
        states = [state.document for state in self.states]
        return PartOfOperator(number, key_groups, self.key, self.max_parallelism, states)


class WrittenSubtask(Struct, frozen=True):
    """A subtask whose files are written, ready to be named in a log entry."""

    key: tuple[FieldDocument, ...]
    max_parallelism: int
    states: tuple[StateDocument, ...]
    document: SubtaskDocument
    changed_runs: tuple[tuple[Run, RunDocument, int], ...]
    "Runs the store did not have, or not with these rows dead: the run, its document, and run row minus file row."
    paths: tuple[str, ...]
    "The files written for it."
    bytes_written: int
    references: frozenset[str] = frozenset()
    "All files that it refers to, the manifest too."
    bytes_total: int = 0
    "The size of all that it refers to, whether in files or inline, the manifest too; at least `bytes_written`."

    @property
    def files_written(self) -> int:
        """How many files were written for it; what is small is inline and has none."""
        return len(self.paths)

    def statistics(self, operator: str, *, sync_us: int | None, async_us: int) -> SubtaskStatisticsDocument:
        """Return what a log entry says of it; times in microseconds."""
        return SubtaskStatisticsDocument(
            operator=operator,
            subtask=self.document.subtask,
            sync_us=sync_us,
            async_us=async_us,
            bytes_written=self.bytes_written,
            bytes_total=self.bytes_total,
            files_written=self.files_written,
        )

    def committed(self, storage: Storage, store_id: str) -> None:
        """Note that the store has these runs now, so that the next checkpoint need not write them."""
        store = store_key(storage, store_id)
        for run, document, shift in self.changed_runs:
            run.stored[store] = (document, shift)


class RunWriter(Struct):
    """Writes the files of one state of a subtask."""

    storage: Storage
    folder: str
    max_parallelism: int
    format: RunFormat
    new_id: Callable[[], str]
    fields: Sequence[FieldDocument] = ()
    "The columns as the log entry knows them, for the ids that fields have in a Parquet file."
    time: str | None = None
    "The column whose lowest and highest value the document of each batch gets."
    inline_bytes: int = INLINE_BYTES
    paths: list[str] = field(default_factory=list)
    bytes_written: int = 0
    cancelled: Callable[[], bool] = never

    def write(self, frozen: FrozenRun, schema: pa.Schema, schema_version: int) -> tuple[RunDocument, int]:
        """Write a run with all its rows in the current schema; return its document, and run row minus file row."""
        run = frozen.run
        batches = list(self._batches(run)) or _no_rows(schema)
        id = self.new_id()
        # The run is checksummed while it is encoded, each batch and the whole.
        with self._streams().create(self.folder, self.format, id=id, hashing=False) as stream:
            written = self._encoded(batches, stream)
            handle = stream.close_and_get_handle(written.xxh3_128)
        assert handle is not None, "a file of any format has a header"
        self.bytes_written += handle.size_bytes
        document = RunDocument(
            id=id,
            format=self.format,
            path=handle.path,
            inline=handle.inline,
            bytes=handle.size_bytes,
            rows=run.rows,
            first_row=0,
            last_row=run.rows,
            live_rows=frozen.live_rows,
            xxh3_128=written.xxh3_128,
            frame_xxh3_128=written.frame_xxh3_128,
            batches=written.batches,
            statistics=column_statistics(batches),
            schema_version=schema_version,
            deletion_vector=self._deletion_vector(frozen, run.first_row),
            directory=self._directory(run, id),
        )
        return document, run.first_row

    def _encoded(self, batches: Sequence[pa.RecordBatch], sink: BinaryIO) -> RunFile:
        # A Lance file is written to a temporary folder first, whose disk may be full.
        with storage_errors(f"a temporary file for {self.folder}"):
            return write_run(batches, self.format, sink, fields=self.fields, time=self.time)

    def refer(self, frozen: FrozenRun, stored: RunDocument, shift: int) -> RunDocument:
        """Return the document of a run the store has, with what changed since: its slice and its dead rows."""
        first_row, last_row = frozen.run.first_row - shift, frozen.run.last_row - shift
        same_slice = (first_row, last_row) == (stored.first_row, stored.last_row)
        # Rows only ever die, so an equal count means the same rows.
        if same_slice and frozen.live_rows == stored.live_rows:
            return stored
        return replace(
            stored,
            first_row=first_row,
            last_row=last_row,
            live_rows=frozen.live_rows,
            deletion_vector=self._deletion_vector(frozen, shift),
        )

    def _batches(self, run: Run) -> Iterator[pa.RecordBatch]:
        # About a batch per key group, so that a subtask of any parallelism reads little that is not its own.
        target_rows = min(max(run.rows // 128, _SMALLEST_BATCH_ROWS), TARGET_ROWS)
        for segment in run.segments:
            borders = split_at_key_groups(segment.hashes, self.max_parallelism, target_rows=target_rows)
            for start, stop in pairwise(borders):
                yield segment.batch.slice(start, stop - start)

    def _deletion_vector(self, frozen: FrozenRun, shift: int) -> DeletionVectorDocument | None:
        rows = frozen.run.rows
        if frozen.live_rows == rows:
            return None
        data = write_deletion_vector(frozen.live, rows, frozen.run.first_row - shift)
        handle = self._put("roaring", data)
        return DeletionVectorDocument(
            path=handle.path,
            inline=handle.inline,
            bytes=handle.size_bytes,
            dead_rows=rows - frozen.live_rows,
            xxh3_128=handle.xxh3_128,
        )

    def _directory(self, run: Run, id: str) -> DirectoryDocument | None:
        if run.rows < _DIRECTORY_ROWS or self.format != "arrow":
            return None
        directory = run.directory
        if directory.first_row != run.first_row or int(directory.offsets[-1]) != run.rows:
            # It covers the file that this run is a slice of.
            directory = Directory.build(run.segments)
        data = write_directory(directory.base - (1 << 63), directory.shift, directory.offsets)
        # Only a file can be mapped.
        handle = self._put("directory", data, id=id, inline_bytes=0)
        assert handle.path is not None
        return DirectoryDocument(path=handle.path, bytes=handle.size_bytes, xxh3_128=handle.xxh3_128)

    def _put(
        self, suffix: str, data: bytes, *, id: str | None = None, inline_bytes: int | None = None
    ) -> StreamStateHandle:
        handle = self._streams(inline_bytes).put(self.folder, suffix, data, id=id)
        self.bytes_written += handle.size_bytes
        return handle

    def _streams(self, inline_bytes: int | None = None) -> CheckpointStreamFactory:
        return CheckpointStreamFactory(
            self.storage,
            inline_bytes=self.inline_bytes if inline_bytes is None else inline_bytes,
            new_id=self.new_id,
            cancelled=self.cancelled,
            paths=self.paths,
        )


def _no_rows(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)]


class _WrittenRun(Struct, frozen=True):
    document: RunDocument
    changed: tuple[Run, RunDocument, int] | None
    """Where the store did not have it, or not with these rows dead."""
    bytes_written: int


def _write_run(make: Callable[[], RunWriter], state: FrozenState, store: str | None, frozen: FrozenRun) -> _WrittenRun:
    """Write what the store lacks of a run, all of it where there is no store.

    Runs are written by several threads, each with a writer of its own.
    """
    writer = make()
    stored = None if store is None else frozen.run.stored.get(store)
    if stored is None:
        document, shift = writer.write(frozen, state.table.schema, state.document.schema_version)
    else:
        shift = stored[1]
        document = writer.refer(frozen, *stored)
    same = stored is not None and document is stored[0]
    return _WrittenRun(document, None if same else (frozen.run, document, shift), writer.bytes_written)


def write_subtask(
    storage: Storage,
    store_id: str,
    uid: str,
    subtask: int,
    frozen: FrozenSubtask,
    *,
    format: RunFormat,
    new_id: Callable[[], str],
    previous: SubtaskDocument | None = None,
    cancelled: Callable[[], bool] = never,
    is_full: bool = False,
) -> WrittenSubtask:
    """Write what the store lacks of a subtask's state, or all of it, and its manifest."""
    paths: list[str] = []
    states = []
    changed_runs: list[tuple[Run, RunDocument, int]] = []
    bytes_written = 0
    try:
        for state in frozen.states:
            folder = f"data/{uid}/{state.document.name}"
            make = partial(
                RunWriter,
                storage,
                folder,
                frozen.max_parallelism,
                format,
                new_id,
                fields_of_run(frozen.key, state.document),
                time_column(state.document),
                paths=paths,
                cancelled=cancelled,
            )
            written = in_parallel(
                storage,
                partial(_write_run, make, state, None if is_full else store_key(storage, store_id)),
                state.table.runs,
                name="uploads",
                writes=True,
            )
            changed_runs += [item.changed for item in written if item.changed is not None]
            states.append(StateRunsDocument(name=state.document.name, runs=[item.document for item in written]))
            bytes_written += sum(item.bytes_written for item in written)
        key_groups = (frozen.key_groups.start, frozen.key_groups.end)
        handle = write_manifest(
            storage,
            uid,
            key_groups,
            states,
            new_id,
            paths,
            previous.manifest if previous else None,
            cancelled=cancelled,
        )
        if previous is None or handle is not previous.manifest:
            bytes_written += handle.bytes
    except BaseException:
        delete_quietly(storage, paths)
        raise
    document_of_subtask = SubtaskDocument(
        subtask=subtask,
        key_groups=key_groups,
        manifest=handle,
        live_rows={state.document.name: state.table.live_rows for state in frozen.states},
        watermark=wide(frozen.watermark),
        schema_versions=schema_versions(states),
    )
    references = frozenset(manifest_files(states)) | ({handle.path} if handle.path is not None else frozenset())
    bytes_total = subtask_bytes(handle, states)
    return WrittenSubtask(
        frozen.key,
        frozen.max_parallelism,
        tuple(state.document for state in frozen.states),
        document_of_subtask,
        tuple(changed_runs),
        tuple(paths),
        bytes_written,
        references,
        bytes_total,
    )


def subtask_bytes(handle: ManifestHandle, states: Iterable[StateRunsDocument]) -> int:
    """Return the size of all that a subtask with these states refers to, the manifest too, in bytes."""
    size: int = handle.bytes
    for state in states:
        for run in state.runs:
            size += sum([item.bytes for item in (run, run.deletion_vector, run.directory) if item is not None])
    return size


def schema_versions(states: Iterable[StateRunsDocument]) -> dict[str, list[int]]:
    """Return the schema versions that runs have, by state; one without runs is left out."""
    return {state.name: sorted({run.schema_version for run in state.runs}) for state in states if state.runs}


def write_manifest(
    storage: Storage,
    uid: str,
    key_groups: tuple[int, int],
    states: list[StateRunsDocument],
    new_id: Callable[[], str],
    paths: list[str],
    previous: ManifestHandle | None = None,
    *,
    cancelled: Callable[[], bool] = never,
) -> ManifestHandle:
    """Write a manifest, inline if it is small, and add its path to `paths`; an equal previous one is used again."""
    if previous is not None and previous.inline == states:
        return previous
    if cancelled():
        raise CheckpointCancelledError
    size = len(pack(states))
    if size < INLINE_BYTES:
        return ManifestHandle(inline=states, bytes=size)
    data = encode(ManifestDocument(operator=uid, key_groups=key_groups, states=states))
    digest = checksum(data)
    if previous is not None and (previous.bytes, previous.xxh3_128) == (len(data), digest):
        return previous
    streams = CheckpointStreamFactory(storage, inline_bytes=0, new_id=new_id, cancelled=cancelled, paths=paths)
    written = streams.put("manifests", "json", data, xxh3_128=digest)
    return ManifestHandle(path=written.path, bytes=written.size_bytes, xxh3_128=digest)
