"""From storage to runs: manifests, run files, deletion vectors, directories, cut to a range of hashes.

A file is opened once per process and stays mapped while it is used, and each record batch is compared with
its checksum at its first use; a Lance file, whose rows lie anywhere in it, is compared as a whole. Files are immutable,
so what is kept is stale only where a file was damaged: a local file whose size, time or inode has changed is opened and
compared again. Live bits are made anew for each caller. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import pyarrow as pa

from arrowstate.errors import (
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    OperatorNotFoundError,
    StateNotFoundError,
    StorageError,
)
from arrowstate.schema.versions import RunSchemas
from arrowstate.snapshot.subtasks import read_states, subtasks_of
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.storage.posix import storage_errors
from arrowstate.table.run import Bits, Directory, Run, Segment, all_live
from arrowstate_formats.deletion_vectors import clear_dead_rows
from arrowstate_formats.directory import read_directory
from arrowstate_formats.documents import (
    DeletionVectorDocument,
    LogEntryDocument,
    OperatorDocument,
    RunDocument,
    StateDocument,
    SubtaskDocument,
    decode_inline,
)
from arrowstate_formats.lance_files import LocalCopy
from arrowstate_formats.run_files import checksum, frame_checksum, read_run

__all__ = [
    "OpenFile",
    "OpenState",
    "Validation",
    "check_validation",
    "clear_dead",
    "find_operator",
    "find_state",
    "forget_open_files",
    "is_validated",
    "open_file",
    "open_run",
    "open_state",
    "readable",
    "states_of",
    "store_key",
    "subtask_runs",
    "validated",
    "validated_savepoint",
    "whole_state_rows",
]

Identity: TypeAlias = tuple[int, int, int, int]

_CACHED_FILES = 4096
_CACHED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class OpenState:
    """The runs of one state, or of a part of it."""

    schemas: RunSchemas
    runs: tuple[Run, ...]
    bytes_read: int
    "Bytes of the record batches that were opened, whether or not they were in a cache."


class _Validated:
    """A storage whose files somebody else may have written: what is read from them is validated in full."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


Validation: TypeAlias = Literal["checksums", "full"]
"""What is compared when rows are read."""


def check_validation(validate: str) -> None:
    """Refuse what is no `Validation`."""
    if validate not in get_args(Validation):
        raise InvalidInputError(f"validate is 'checksums' or 'full', got {validate!r}")


def readable(storage: Storage, validate: Validation) -> Storage:
    """Return the storage to read from at this degree of trust.

    Raises
    ------
    InvalidInputError
        If the degree is none.
    """
    check_validation(validate)
    return validated(storage) if validate == "full" else storage


def validated(storage: Storage) -> Storage:
    """Return the storage, from which the functions of this module take nothing on trust; see `read_run`.

    Examples
    --------
    >>> from arrowstate.storage import open_storage
    >>> validated(open_storage("memory://validated-example", create=True)).url
    'memory://validated-example'
    """
    return storage if isinstance(storage, _Validated) else cast("Storage", _Validated(storage))


def is_validated(storage: Storage) -> bool:
    """Whether nothing that is read from a storage is taken on trust."""
    return isinstance(storage, _Validated)


def validated_savepoint(storage: Storage, entry: LogEntryDocument) -> Storage:
    """Return the storage to read a checkpoint from: `validated` for a savepoint, which goes from hand to hand."""
    return validated(storage) if entry.kind == "savepoint" else storage


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


def open_state(
    storage: Storage,
    store_id: str,
    operator: OperatorDocument,
    schemas: RunSchemas,
    *,
    hash_bounds: tuple[int, int] | None = None,
) -> OpenState:
    """Open the runs of a state, all of them or those rows whose hash is in a range.

    Parameters
    ----------
    storage, store_id
        Where the store is, and its identity.
    operator
        The operator in a checkpoint.
    schemas
        The state, in the schema that the rows are to have.
    hash_bounds
        Lowest and highest hash, both inclusive.

    Raises
    ------
    CorruptDataError
        If a file is missing, truncated or altered.
    """
    subtasks = subtasks_of(storage, operator, hash_bounds)
    manifests = in_parallel(storage, partial(subtask_runs, storage, operator), subtasks, name="manifests")
    documents = [run for manifest in manifests for run in manifest.get(schemas.document.name, [])]
    opened = in_parallel(
        storage, lambda run: open_run(storage, store_id, run, schemas, hash_bounds=hash_bounds), documents, name="runs"
    )
    found = [run for run in opened if run is not None]
    return OpenState(schemas, tuple(run for run, _ in found), sum(size for _, size in found))


def _overlap(left: tuple[int, int], right: tuple[int, int]) -> bool:
    return left[0] <= right[1] and right[0] <= left[1]


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

    Returns
    -------
    tuple of Run and int
        The run, and how many bytes of record batches were opened for it.

    Raises
    ------
    CorruptDataError
        If a file is missing, truncated or altered.
    """
    segments: list[Segment] = []
    schema, convert = schemas.of_version(document.schema_version)
    file = open_file(storage, document, schema)
    size = 0
    starts: dict[int, int] = {}
    end_row = 0
    for number, batch_document in enumerate(document.batches):
        start_row, end_row = end_row, end_row + batch_document.rows
        if end_row <= document.first_row or start_row >= document.last_row:
            continue
        if hash_bounds and not _overlap((batch_document.min_hash, batch_document.max_hash), hash_bounds):
            continue
        starts[number] = start_row
        size += batch_document.bytes
    for segment in file.segments(starts):
        rows = segment.hashes.size
        start, stop = max(0, document.first_row - segment.first_row), min(rows, document.last_row - segment.first_row)
        if hash_bounds and (segment.hashes[0] < hash_bounds[0] or segment.hashes[-1] > hash_bounds[1]):
            start = max(start, int(np.searchsorted(segment.hashes, hash_bounds[0], side="left")))
            stop = min(stop, int(np.searchsorted(segment.hashes, hash_bounds[1], side="right")))
        if start < stop:
            # A segment keeps what it was converted to, so one that is shared has no conversion.
            own = segment if convert is None else replace(segment, convert=convert)
            segments.append(own if stop - start == rows else own.slice(start, stop))
    if not segments:
        return None
    first_row, last_row = segments[0].first_row, segments[-1].end_row
    live = all_live(last_row - first_row)
    live_rows = last_row - first_row
    if document.deletion_vector is not None:
        live_rows -= clear_dead(storage, document.deletion_vector, live, last_row - first_row, first_row)
    stored = {store_key(storage, store_id): (document, 0)}
    run = Run(tuple(segments), first_row, last_row, live, live_rows, mapped=True, stored=stored)
    if document.directory is not None:
        run.built = file.directory(storage)
    return run, size


def store_key(storage: Storage, store_id: str) -> str:
    """Return what `Run.stored` knows a store by: its place too, because a copy of a store keeps the id."""
    return f"{store_id} {storage.url}"


def open_file(storage: Storage, document: RunDocument, schema: pa.Schema) -> OpenFile:
    """Open a run file, or return it if this process has it open.

    Raises
    ------
    CorruptDataError
        If the file is missing, truncated, or altered outside of its batches.
    """
    return _FILES.get(storage, document, schema)


def clear_dead(storage: Storage, document: DeletionVectorDocument, live: Bits, rows: int, first_row: int) -> int:
    """Clear the live bits of the rows in a deletion vector; return how many of them were set.

    Bit i of `live`, which has `rows` bits, stands for the row first_row + i of the file; other rows are ignored.

    Raises
    ------
    CorruptDataError
        If the bytes are missing or altered.
    """
    if document.inline is not None:
        path, data = "an inline deletion vector", decode_inline(document.inline)
    else:
        assert document.path is not None
        path = document.path
        data = _read(storage, path)
    if checksum(data) != document.xxh3_128:
        raise CorruptDataError(path, "the deletion vector does not match its checksum")
    return clear_dead_rows(data, live, rows, first_row, path=path)


def _read(storage: Storage, path: str) -> bytes:
    try:
        return storage.read(path)
    except MissingFileError:
        raise CorruptDataError(path, "the file is missing") from None


@dataclass(slots=True)
class OpenFile:
    """An open run file: its buffer, and the batches read so far."""

    document: RunDocument
    path: str
    buffer: pa.Buffer
    schema: pa.Schema
    local_path: Path | None = None
    "Where the file lies on the local file system, if it does."
    batches: dict[int, pa.RecordBatch] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)
    "Batches whose checksums were compared."
    cut: dict[int, Segment] = field(default_factory=dict)
    "The batches as segments, in their own schema."
    identity: Identity | None = None
    heap_bytes: int = 0
    loaded: tuple[Identity | None, Directory] | None = None
    copy: LocalCopy | None = None
    full: bool = False
    "Whether to validate in full what is read."
    lock: threading.Lock = field(default_factory=threading.Lock)

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one record batch; see `load`."""
        return self.load([number])[0]

    def load(self, numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Return record batches with all their columns, and keep them."""
        missing = [number for number in numbers if number not in self.batches]
        if missing:
            for number, batch in zip(missing, self.read(missing), strict=True):
                self.batches[number] = batch
                if self.document.format != "arrow":
                    self.heap_bytes += batch.nbytes
        return [self.batches[number] for number in numbers]

    def segments(self, starts: Mapping[int, int]) -> list[Segment]:
        """Return record batches as segments; `starts` says by number of the batch with which row it begins."""
        missing = [number for number in starts if number not in self.cut]
        for number, batch in zip(missing, self.load(missing), strict=True):
            self.cut[number] = Segment.of(batch, starts[number])
        return [self.cut[number] for number in starts]

    def read(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        """Return record batches with some of their columns; a checksum is compared at the first use of its batch.

        Raises
        ------
        CorruptDataError
            If the bytes are damaged, or the columns are not those of the schema.
        MissingDependencyError
            If it is a Lance file and the package pylance is not installed.
        StorageFullError, StorageError
            If a local file that a Lance file is read from cannot be written or read.
        """
        if self.document.format != "lance":
            return self._decoded(numbers, columns, None)
        with self.lock:
            location = self._location()
            if not self.checked:
                # The whole file is compared before its first row is read; others wait for it.
                return self._decoded(numbers, columns, location)
        return self._decoded(numbers, columns, location)

    def _decoded(
        self, numbers: Sequence[int], columns: Sequence[str] | None, location: Path | None
    ) -> list[pa.RecordBatch]:
        documents, run_format = self.document.batches, self.document.format
        verify = not self.checked.issuperset(numbers)
        try:
            with storage_errors(str(location)):
                batches = read_run(
                    self.buffer,
                    run_format,
                    documents,
                    numbers,
                    columns,
                    verify=verify,
                    full=self.full,
                    location=location,
                    path=self.path,
                )
        except StorageError:
            if location is not None and not location.exists():
                raise CorruptDataError(self.path, "the file is missing") from None
            raise
        expected = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        for batch in batches:
            if not batch.schema.equals(expected):
                raise CorruptDataError(self.path, f"the columns are {batch.schema}, expected {expected}")
        self.checked.update(range(len(documents)) if run_format == "lance" else numbers)
        return batches

    def _location(self) -> Path:
        """Return where the file, or a copy of it, lies on the local file system."""
        if self.local_path is not None:
            return self.local_path
        if self.copy is None:
            with storage_errors(f"a temporary copy of {self.path}"):
                self.copy = LocalCopy(self.buffer)
            self.heap_bytes += self.buffer.size
        return self.copy.path

    def directory(self, storage: Storage) -> Directory:
        """Return the directory that is stored beside the file."""
        document = self.document.directory
        assert document is not None
        identity = _identity(storage, document.path)
        if self.loaded is None or self.loaded[0] != identity:
            try:
                buffer = storage.open_buffer(document.path)
            except MissingFileError:
                raise CorruptDataError(document.path, "the file is missing") from None
            base, shift, offsets = read_directory(buffer, xxh3_128=document.xxh3_128, path=document.path)
            if int(offsets[-1]) > self.document.rows or int(offsets[0]) != 0:
                raise CorruptDataError(document.path, f"the rows end at {offsets[-1]}, expected {self.document.rows}")
            self.loaded = (identity, Directory(base + (1 << 63), shift, offsets, 0))
        return self.loaded[1]


def _identity(storage: Storage, path: str) -> Identity | None:
    """What changes where a local file is altered or replaced; None if there is no such file."""
    locate = getattr(storage, "local_path", None)
    if locate is None:
        return None
    try:
        status = locate(path).stat()
    except OSError:
        # Opening it tells what is wrong.
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Files:
    """The open files of this process, the least recently used one closed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, str, bool], OpenFile] = OrderedDict()

    def get(self, storage: Storage, document: RunDocument, schema: pa.Schema) -> OpenFile:
        full = is_validated(storage)
        if document.path is None:
            assert document.inline is not None
            data = pa.py_buffer(decode_inline(document.inline, path=f"run {document.id}"))
            return self._open(f"run {document.id} (inline)", document, data, schema, full=full)
        # The checksum is in the key, so another store at the same path is never taken for this one.
        key = (storage.url + document.path, document.xxh3_128, full)
        # Before it is mapped: where it is altered after this, the next use opens it again.
        identity = _identity(storage, document.path)
        with self._lock:
            file = self._files.get(key)
            if file is not None and file.identity == identity:
                self._files.move_to_end(key)
                return file
        try:
            buffer = storage.open_buffer(document.path)
        except MissingFileError:
            raise CorruptDataError(document.path, "the file is missing") from None
        # Only a storage whose files lie on the local file system as they are has this.
        locate = getattr(storage, "local_path", None)
        place = locate(document.path) if locate else None
        file = self._open(document.path, document, buffer, schema, place, full=full)
        file.identity = identity
        with self._lock:
            self._files[key] = file
            self._files.move_to_end(key)
            heap_bytes = sum(other.heap_bytes for other in self._files.values())
            while len(self._files) > _CACHED_FILES or (heap_bytes > _CACHED_BYTES and len(self._files) > 1):
                heap_bytes -= self._files.popitem(last=False)[1].heap_bytes
        return file

    def clear(self) -> None:
        with self._lock:
            self._files.clear()

    @staticmethod
    def _open(
        path: str,
        document: RunDocument,
        buffer: pa.Buffer,
        schema: pa.Schema,
        local_path: Path | None = None,
        *,
        full: bool,
    ) -> OpenFile:
        if buffer.size != document.bytes:
            raise CorruptDataError(path, f"the file has {buffer.size} bytes, expected {document.bytes}")
        if frame_checksum(buffer, document.batches) != document.frame_xxh3_128:
            raise CorruptDataError(path, "the header or the footer does not match its checksum")
        return OpenFile(document, path, buffer, schema, local_path, full=full)


_FILES = _Files()


def forget_open_files() -> None:
    """Close the files this process keeps open, so that the next use reads and checks them anew."""
    _FILES.clear()


def whole_state_rows(entry: LogEntryDocument, uid: str, state: str) -> int:
    """Return the live rows of a state, as the log entry counts them."""
    return find_operator(entry, uid).live_rows(state)


def states_of(entry: LogEntryDocument) -> Sequence[tuple[str, str]]:
    """Return (operator uid, state name) of every state in a checkpoint."""
    return [(operator.uid, state.name) for operator in entry.operators for state in operator.states]
