"""Run files that are open: mapped or read once, kept for the next who reads them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from arrowstate.errors import (
    CorruptDataError,
    MissingFileError,
    StorageError,
)
from arrowstate.files.validation import Validated
from arrowstate.storage.base import Storage
from arrowstate.storage.posix import storage_errors
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Directory, Segments
from arrowstate_formats import system
from arrowstate_formats.directory import read_directory
from arrowstate_formats.documents import (
    BatchDocument,
    RunDocument,
    decode_inline,
)
from arrowstate_formats.lance_files import LocalCopy
from arrowstate_formats.run_files import frame_checksum
from arrowstate_formats.run_reading import read_arrow_schema, read_run
from arrowstate_formats.run_writing import times_and_seq
from arrowstate_formats.state_columns import HASH_COLUMN

Identity: TypeAlias = tuple[int, int, int, int]

_CACHED_FILES = 4096
_CACHED_BYTES = 256 << 20


def read(storage: Storage, path: str) -> bytes:
    try:
        return storage.read(path)
    except MissingFileError:
        raise CorruptDataError(path, "the file is missing") from None


def check_bounds(batch: pa.RecordBatch, document: BatchDocument, time: str | None, path: str) -> None:
    """Compare a batch with what its document says of its hashes, times and sequence numbers.

    Rows are found by these bounds.
    """
    hashes = batch.column(HASH_COLUMN)
    ends = hashes[0].as_py(), hashes[-1].as_py()
    if ends != (document.min_hash, document.max_hash):
        raise CorruptDataError(
            path, f"the hashes of a batch are {ends}, its document says {(document.min_hash, document.max_hash)}"
        )
    stated = (document.min_time, document.max_time, document.max_seq)
    # Early writers did not note them, and an earlier version may have the column under another name.
    if stated == (None, None, None) or (time is not None and time not in batch.schema.names):
        return
    found = times_and_seq(batch, time)
    if found != stated:
        raise CorruptDataError(
            path, f"times and highest sequence number of a batch are {found}, its document says {stated}"
        )


@dataclass(slots=True, weakref_slot=True)
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
    runs: dict[Any, tuple[Segments, int]] = field(default_factory=dict)
    "By what subtasks own of the file: the segments, and the bytes of the batches they are of."
    identity: Identity | None = None
    heap_bytes: int = 0
    loaded: tuple[Identity | None, Directory] | None = None
    copy: LocalCopy | None = None
    arrow_schema: pa.Schema | None = None
    "What an Arrow file says its columns are, once it was read."
    full: bool = False
    "Whether to validate in full what is read."
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_lazy(self) -> bool:
        """Whether a batch is better read when a row of it is looked at: what is decoded is decoded in one call."""
        return self.document.format == "arrow" and not self.full

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

    def segments(self, starts: Mapping[int, int], time: str | None) -> list[Segment]:
        """Return record batches as segments, which are read when their rows are looked at.

        `starts` says by number of the batch with which row it begins; `time` is the time column of the state.
        """
        for number in starts:
            if number not in self.cut:
                self.cut[number] = self._segment(number, starts[number], time)
        return [self.cut[number] for number in starts]

    def _segment(self, number: int, first_row: int, time: str | None) -> Segment:
        document = self.document.batches[number]

        def load() -> pa.RecordBatch:
            batch = self.batch(number)
            check_bounds(batch, document, time, self.path)
            return batch

        times = None
        if document.min_time is not None and document.max_time is not None:
            times = document.min_time, document.max_time
        return Segment(
            first_row,
            document.rows,
            document.min_hash,
            document.max_hash,
            document.bytes,
            load,
            times=times,
            max_seq=document.max_seq,
        )

    def read(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        """Return record batches with some of their columns; a checksum is compared at the first use of its batch."""
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
        if run_format == "arrow" and self.arrow_schema is None:
            self.arrow_schema = read_arrow_schema(self.buffer, path=self.path)
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
                    arrow_schema=self.arrow_schema,
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
    """What changes where a local file is altered or replaced; None if there is no such file: opening it tells why."""
    identity = getattr(storage, "identity", None)
    return None if identity is None else identity(path)


class _Files:
    """The open files of this process, the least recently used one closed first."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, str, bool], OpenFile] = OrderedDict()
        self._unlock()
        system.after_fork(self._unlock)

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def get(self, storage: Storage, document: RunDocument, schema: pa.Schema) -> OpenFile:
        """Open a run file, or return it if this process has it open."""
        full = isinstance(storage, Validated)
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
        """Close the files this process keeps open, so that the next use reads and checks them anew."""
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
open_file = _FILES.get
forget_open_files = _FILES.clear
