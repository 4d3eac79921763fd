"""Run files: the sorted rows of a run as Arrow IPC, Parquet or Lance, checksummed while they are written.

A run file is an ordinary file of its format that any reader opens. What makes it safe is outside of it:
the manifest records the byte range and the checksum of each record batch or row group, so that a reader that
maps the file and touches a few batches checks just these, and the checksum of the frame, which is
everything around the batches (header, schema, footer). Arrow batches are handed out without a copy.
Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from arrowstate_formats.arrow_types import type_to_json
from arrowstate_formats.documents import BatchDocument, FieldDocument
from arrowstate_formats.errors import ArrowStateError, CorruptDataError, InvalidInputError
from arrowstate_formats.lance_files import LocalCopy, read_lance_rows, written_lance
from arrowstate_formats.parquet_types import check_parquet, from_parquet, leaf_paths, parquet_schema, to_parquet
from arrowstate_formats.schema_metadata import DECLARED_SCHEMA_KEY, SCHEMA_KEY, chosen_fields, read_schema, schema_text
from arrowstate_formats.splitting import split_at_key_groups
from arrowstate_formats.state_columns import HASH_COLUMN, SEQ_COLUMN, with_field_ids, without_metadata
from arrowstate_formats.statistics import paths_with_nan
from arrowstate_formats.stored_types import same_type

if TYPE_CHECKING:
    # Loaded where it is used: it brings Arrow's clients of object stores, a tenth of what the package takes to import.
    import pyarrow.parquet as pq

__all__ = [
    "HASH_COLUMN",
    "INLINE_BYTES",
    "RunFile",
    "RunFormat",
    "checksum",
    "frame_checksum",
    "read_arrow_batches",
    "read_parquet_row_groups",
    "read_run",
    "split_at_key_groups",
    "times_and_seq",
    "write_run",
]

INLINE_BYTES = 20480
"""A run file, deletion vector or manifest smaller than this is kept inside the document that refers to it."""

RunFormat: TypeAlias = Literal["arrow", "parquet", "lance"]
"""How a run file is encoded."""

_COPY_BYTES = _PASSED_BYTES = 1 << 20

_ARROW_MAGIC_BYTES = 8
"""`ARROW1` and two bytes of padding, before the schema message."""

_PARQUET_MAGIC_BYTES = 4
"""`PAR1`, before the first column chunk."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a manifest records about a run file that was just written."""

    bytes: int
    """Size of the file."""
    xxh3_128: str
    """Checksum of the whole file."""
    frame_xxh3_128: str
    """Checksum of the bytes outside of every batch, in the order of the file."""
    batches: list[BatchDocument]
    """One per batch that has rows, in the order of the file."""


def checksum(data: Any) -> str:
    """Return the xxh3_128 checksum of bytes, a `pyarrow.Buffer` or another buffer, as 32 hexadecimal digits.

    Examples
    --------
    >>> checksum(b"")
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(data)


class _Sink:
    """A binary file that counts and checksums what passes through, and leaves closing to the caller."""

    closed = False

    def __init__(self, sink: BinaryIO, header_bytes: int) -> None:
        self._sink = sink
        self._header_bytes = header_bytes
        self._file = xxhash.xxh3_128()
        self._frame = xxhash.xxh3_128()
        self._batch: Any = None
        self.position = 0

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        self._file.update(rest)
        header = size if self._batch is None else min(max(self._header_bytes - self.position, 0), size)
        self._frame.update(rest[:header])
        if self._batch is not None:
            self._batch.update(rest[header:])
        self.position += size
        while len(rest):
            # A raw file may take only a part, at the latest past 2 GiB.
            rest = rest[self._sink.write(rest) :]
        return size

    @contextmanager
    def batch(self) -> Iterator[Any]:
        """Give the checksum of what is written inside the block, without the header of the file."""
        self._batch = xxhash.xxh3_128()
        yield self._batch
        self._batch = None

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """The file belongs to the caller."""

    def finish(self, batches: list[BatchDocument]) -> RunFile:
        return RunFile(self.position, self._file.hexdigest(), self._frame.hexdigest(), batches)


def write_run(
    batches: Sequence[pa.RecordBatch],
    format: RunFormat,
    sink: BinaryIO,
    *,
    fields: Sequence[FieldDocument] = (),
    time: str | None = None,
) -> RunFile:
    """Write the rows of a run as one file and return its size, checksums and batches.

    Arrow: IPC file format, uncompressed, one record batch per batch. Parquet: one row group per batch, zstd, page
    checksums, `_key_hash` as DELTA_BINARY_PACKED, no dictionaries, the ids of fields, and no statistics of columns
    that hold a NaN, which minimum and maximum leave out while engines order it. Lance: through a
    temporary file of the same size; a batch is a range of rows, and the byte ranges of the batches share the file out
    without saying where rows are. Batches without rows are left out of the file.

    Parameters
    ----------
    batches
        At least one, of one schema, sorted over all by `_key_hash`; for where to cut see `split_at_key_groups`.
    format
        "arrow", "parquet" or "lance".
    sink
        An open binary file; it is neither flushed nor closed.
    fields
        The columns as documents know them, by name, for the ids that fields have in a Parquet file.
    time
        The int64 column whose lowest and highest value each batch document gets; None for none.

    Raises
    ------
    InvalidInputError
        If there is no batch, the schemas differ, there is no `_key_hash` column of int64 without nulls, or a type or
        a value cannot be stored in the format; nothing was written.
    MissingDependencyError
        If the format is "lance" and the package pylance is not installed; nothing was written.
    OSError
        Whatever the sink raises, unchanged; or there is no room for the temporary file.

    Examples
    --------
    >>> import io
    >>> batch = pa.record_batch({"_key_hash": pa.array([1, 2]), "clicks": pa.array([10, 20])})
    >>> write_run([batch], "arrow", io.BytesIO()).batches[0].max_hash
    2
    """
    _check_format(format)
    if not batches:
        raise InvalidInputError("a run needs at least one batch")
    schema = _check_schema(batches)
    if format == "lance":
        return _write_lance([batch for batch in batches if batch.num_rows], schema, sink, time)
    # The header is written together with the first batch, so its length must be known before.
    header_bytes = _ARROW_MAGIC_BYTES + schema.serialize().size if format == "arrow" else _PARQUET_MAGIC_BYTES
    tee = _Sink(sink, header_bytes)
    documents = []
    # Arrow writes each buffer and its padding by a call of its own.
    with (
        pa.PythonFile(tee, mode="w") as passed,
        pa.BufferedOutputStream(passed, _PASSED_BYTES) as file,
        _open_writer(file, schema, format, batches, fields) as writer,
    ):
        for batch in batches:
            if not batch.num_rows:
                continue
            offset = max(tee.position, header_bytes)
            with tee.batch() as digest:
                writer.write(batch)
                file.flush()
            documents.append(_batch_document(batch, offset, tee.position, digest, time))
    return tee.finish(documents)


def _write_lance(batches: Sequence[pa.RecordBatch], schema: pa.Schema, sink: BinaryIO, time: str | None) -> RunFile:
    tee = _Sink(sink, 0)
    documents = []
    with written_lance(batches, schema) as path, path.open("rb") as file:
        size = path.stat().st_size
        if size < len(batches):
            raise InvalidInputError(
                f"a run of {len(batches)} batches is a Lance file of {size} bytes; use larger batches"
            )
        for number, batch in enumerate(batches):
            offset, end = (size * border // len(batches) for border in (number, number + 1))
            with tee.batch() as digest:
                _copy(file, tee, end - offset)
            documents.append(_batch_document(batch, offset, end, digest, time))
        _copy(file, tee, size - tee.position)
        if tee.position != size:
            raise OSError(f"the temporary file {path} had {size} bytes, {tee.position} could be read")
    return tee.finish(documents)


def _copy(source: BinaryIO, sink: _Sink, size: int) -> None:
    while size and (piece := source.read(min(size, _COPY_BYTES))):
        size -= sink.write(piece)


def times_and_seq(batch: pa.RecordBatch, time: str | None) -> tuple[int | None, int | None, int | None]:
    """Return the lowest and the highest time of a batch, and its highest sequence number, as its document has them.

    Examples
    --------
    >>> times_and_seq(pa.record_batch({"timestamp": [30, 10], "_seq": [4, 7]}), "timestamp")
    (10, 30, 7)
    """
    times = {"min": None, "max": None} if time is None else pc.min_max(batch.column(time)).as_py()
    highest = pc.max(batch.column(SEQ_COLUMN)).as_py() if SEQ_COLUMN in batch.schema.names else None
    return times["min"], times["max"], highest


def _batch_document(batch: pa.RecordBatch, offset: int, end: int, digest: Any, time: str | None) -> BatchDocument:
    hashes = batch.column(HASH_COLUMN)
    min_time, max_time, max_seq = times_and_seq(batch, time)
    return BatchDocument(
        offset=offset,
        bytes=end - offset,
        rows=batch.num_rows,
        xxh3_128=digest.hexdigest(),
        min_hash=hashes[0].as_py(),
        max_hash=hashes[-1].as_py(),
        min_time=min_time,
        max_time=max_time,
        max_seq=max_seq,
    )


def _check_format(run_format: str) -> None:
    if run_format not in get_args(RunFormat):
        raise InvalidInputError(f"the format of a run is 'arrow', 'parquet' or 'lance', got {run_format!r}")


def _check_schema(batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    schema = batches[0].schema
    if schema.names.count(HASH_COLUMN) != 1 or schema.field(HASH_COLUMN).type != pa.int64():
        raise InvalidInputError(f"a run needs one column {HASH_COLUMN} of type int64, got {schema}")
    for field in schema:
        type_to_json(field.type)
    for batch in batches:
        if batch.schema != schema:
            raise InvalidInputError(f"the batches of a run must have one schema, got {schema} and {batch.schema}")
        if batch.column(HASH_COLUMN).null_count:
            raise InvalidInputError(f"{HASH_COLUMN} must have no nulls")
    return schema


@contextmanager
def _open_writer(
    file: pa.NativeFile,
    schema: pa.Schema,
    run_format: RunFormat,
    batches: Sequence[pa.RecordBatch],
    fields: Sequence[FieldDocument],
) -> Iterator[Any]:
    """Give what has a method `write` for a batch, and finish the file."""
    if run_format == "arrow":
        with pa.ipc.new_file(file, schema) as writer:
            yield writer
        return
    import pyarrow.parquet as pq

    plain = parquet_schema(schema)
    check_parquet(batches, plain)
    stored = with_field_ids(plain, fields)
    unordered = paths_with_nan(batches)
    try:
        parquet = pq.ParquetWriter(
            file,
            stored,
            compression="zstd",
            use_dictionary=False,
            column_encoding={HASH_COLUMN: "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
            write_statistics=[path for path, _ in leaf_paths(stored) if path not in unordered] if unordered else True,
            store_schema=True,
        )
    except (pa.ArrowException, OSError) as error:
        # What Parquet has no type for it calls an OSError, without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidInputError(
            f"Parquet cannot store the columns {_columns(schema)}; use 'arrow' ({error})"
        ) from error
    with parquet:
        if not all(same_type(field.type, own.type) for field, own in zip(plain, schema, strict=True)):
            parquet.add_key_value_metadata({DECLARED_SCHEMA_KEY: schema_text(without_metadata(schema))})
        yield _RowGroups(parquet, stored)


@dataclass(frozen=True, slots=True)
class _RowGroups:
    """Writes each batch as a row group."""

    writer: pq.ParquetWriter
    stored: pa.Schema

    def write(self, batch: pa.RecordBatch) -> None:
        self.writer.write_batch(to_parquet(batch, self.stored), row_group_size=batch.num_rows)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def frame_checksum(buffer: pa.Buffer, documents: Sequence[BatchDocument]) -> str:
    """Return the checksum of the bytes of a run file that are in none of its batches.

    Parameters
    ----------
    buffer
        The whole file.
    documents
        All batches of the file, in its order.

    Examples
    --------
    >>> frame_checksum(pa.py_buffer(b"headfoot"), []) == checksum(b"headfoot")
    True
    """
    frame = xxhash.xxh3_128()
    end = 0
    for document in documents:
        frame.update(buffer.slice(end, document.offset - end))
        end = document.offset + document.bytes
    frame.update(buffer.slice(end))
    return frame.hexdigest()


def read_arrow_batches(
    buffer: pa.Buffer,
    documents: Sequence[BatchDocument],
    schema: pa.Schema | None = None,
    *,
    verify: bool = True,
    full: bool = False,
    path: str = "",
) -> list[pa.RecordBatch]:
    """Return the given record batches of an Arrow run file; their columns are views into `buffer`.

    Parameters
    ----------
    buffer
        The whole file, for instance a memory map.
    documents
        The batches to read, as the manifest lists them.
    schema
        The schema that the file must have; None takes what the file says.
    verify
        Whether to compare each batch with its checksum, which reads all of its bytes once.
    full
        Whether to look at every offset and text too, see `read_run`.
    path
        For messages.

    Raises
    ------
    CorruptDataError
        If a checksum, the schema or a number of rows differs, or the bytes cannot be parsed.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> run = write_run([pa.record_batch({"_key_hash": pa.array([1, 2])})], "arrow", file)
    >>> read_arrow_batches(pa.py_buffer(file.getvalue()), run.batches)[0].num_rows
    2
    """
    with _parsing(path):
        stored = _arrow_schema(buffer)
        if schema is not None and not stored.equals(schema):
            raise CorruptDataError(path, f"the columns are {stored}, expected {schema}")
        batches = []
        for document in documents:
            batch = pa.ipc.read_record_batch(_batch_bytes(buffer, document, verify, path), stored)
            _check_batch(batch, document, path, full)
            batches.append(batch)
        return batches


def _arrow_schema(buffer: pa.Buffer) -> pa.Schema:
    """Read the schema from the head of the file and compare it with the copy in the footer."""
    head = pa.ipc.read_schema(buffer.slice(_ARROW_MAGIC_BYTES))
    foot = pa.ipc.open_file(buffer).schema
    if not head.equals(foot, check_metadata=True):
        raise ValueError(f"the schemas at the begin and at the end differ: {head} and {foot}")
    return head


def read_parquet_row_groups(
    buffer: pa.Buffer,
    documents: Sequence[BatchDocument],
    indexes: Sequence[int],
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    full: bool = False,
    path: str = "",
) -> list[pa.RecordBatch]:
    """Return the given row groups of a Parquet run file, one record batch each.

    Parameters
    ----------
    buffer
        The whole file.
    documents
        All row groups of the file, as the manifest lists them.
    indexes
        Which of them to read, 0 to len(documents) - 1.
    columns
        Which columns to read, in this order; None reads all.
    verify
        Whether to compare each row group with its checksum, which reads the bytes of all of its columns. The
        checksums of the pages that are decoded are compared in any case.
    full
        Whether to look at every offset and text too, see `read_run`.
    path
        For messages.

    Raises
    ------
    CorruptDataError
        If a checksum or a number of rows differs, or the bytes cannot be parsed.
    InvalidInputError
        If a column does not exist.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> run = write_run([pa.record_batch({"_key_hash": pa.array([1, 2])})], "parquet", file)
    >>> read_parquet_row_groups(pa.py_buffer(file.getvalue()), run.batches, [0])[0].num_rows
    2
    """
    import pyarrow.parquet as pq

    for index in indexes:
        _batch_bytes(buffer, documents[index], verify, path)
    with _parsing(path):
        reader = pq.ParquetFile(pa.BufferReader(buffer), page_checksum_verification=True)
        if reader.num_row_groups != len(documents):
            raise CorruptDataError(path, f"{reader.num_row_groups} row groups, expected {len(documents)}")
        schema = chosen_fields(_parquet_schema(reader.metadata.metadata), columns)
        batches = []
        for index in indexes:
            table = reader.read_row_group(index, columns=schema.names, use_threads=False)
            batch = _one_batch(table.select(schema.names), schema)
            _check_batch(batch, documents[index], path, full)
            batches.append(batch)
        return batches


def _parquet_schema(metadata: Mapping[bytes, bytes] | None) -> pa.Schema:
    """Return the schema that was written: files have it under a key of its own where Parquet lacks a type of it."""
    key = DECLARED_SCHEMA_KEY if DECLARED_SCHEMA_KEY.encode() in (metadata or {}) else SCHEMA_KEY
    return without_metadata(read_schema(metadata, key))


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    if not schema.names:
        return _no_columns(table.num_rows)
    columns = [column.combine_chunks() for column in table.columns]
    if any(isinstance(column, pa.ChunkedArray) for column in columns):
        raise ValueError("a row group became several batches")
    return from_parquet(columns, schema)


def _no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def _read_lance(
    buffer: pa.Buffer,
    documents: Sequence[BatchDocument],
    indexes: Sequence[int],
    columns: Sequence[str] | None,
    location: Path | None,
    full: bool,
    path: str,
) -> list[pa.RecordBatch]:
    ends = list(accumulate(document.rows for document in documents))
    ranges = [(ends[index] - documents[index].rows, documents[index].rows) for index in indexes]
    with _parsing(path):
        if columns is not None and not columns:
            return [_no_columns(rows) for _, rows in ranges]
        if location is None:
            copy = LocalCopy(buffer)
            location = copy.path
        batches = read_lance_rows(location, ends[-1] if ends else 0, ranges, columns)
        for index, batch in zip(indexes, batches, strict=True):
            _check_batch(batch, documents[index], path, full)
            _check_hashes(batch, documents[index], path)
        return batches


def _check_hashes(batch: pa.RecordBatch, document: BatchDocument, path: str) -> None:
    """Compare the ends of a batch that was found by row numbers alone."""
    if HASH_COLUMN not in batch.schema.names:
        return
    hashes = batch.column(HASH_COLUMN)
    found = (hashes[0].as_py(), hashes[-1].as_py())
    if found != (document.min_hash, document.max_hash):
        raise CorruptDataError(path, f"hashes {found}, expected {(document.min_hash, document.max_hash)}")


def read_run(
    buffer: pa.Buffer,
    format: RunFormat,
    documents: Sequence[BatchDocument],
    indexes: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    full: bool = False,
    frame_xxh3_128: str | None = None,
    location: Path | None = None,
    path: str = "",
) -> list[pa.RecordBatch]:
    """Return record batches of a run file of any format.

    Parameters
    ----------
    buffer
        The whole file, for instance a memory map.
    format
        "arrow" (the result is a view into the buffer), "parquet" or "lance".
    documents
        All batches of the file, as the manifest lists them.
    indexes
        Which of them to read; None reads all.
    columns
        Which columns to return, in this order; None returns all.
    verify
        Whether to compare the bytes of each batch that is read with its checksum; of a Lance file those of all batches,
        because rows lie anywhere in it.
    full
        Whether to take nothing on trust, which checksums cannot tell of bytes that somebody forged: every offset lies
        within what it points into, texts are UTF-8, no field that is declared without nulls has one, and hashes are in
        order and within what the document says. A program that follows a forged offset may die. It takes a pass over
        the offsets and texts of what is read.
    frame_xxh3_128
        The frame checksum of the manifest, compared when `verify` is true and it is given. Without it, damage to
        header or footer is found only if it makes the file unreadable.
    location
        A local file with the bytes of `buffer`, which Lance reads; None makes a temporary one. Not used otherwise.
    path
        For messages.

    Raises
    ------
    CorruptDataError
        If a checksum or a number of rows differs, or the bytes cannot be parsed.
    InvalidInputError
        If a column does not exist.
    MissingDependencyError
        If the format is "lance" and the package pylance is not installed.
    OSError
        If the operating system cannot read a Lance file, or has no room for a temporary one.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> run = write_run([pa.record_batch({"_key_hash": pa.array([1]), "n": pa.array([7])})], "parquet", file)
    >>> read_run(pa.py_buffer(file.getvalue()), "parquet", run.batches, columns=["n"])[0].to_pylist()
    [{'n': 7}]
    """
    _check_format(format)
    end = documents[-1].offset + documents[-1].bytes if documents else 0
    if end > buffer.size:
        raise CorruptDataError(path, f"{buffer.size} bytes, the last batch ends at {end}")
    if verify and frame_xxh3_128 is not None and frame_checksum(buffer, documents) != frame_xxh3_128:
        raise CorruptDataError(path, "the header or the footer does not match its checksum")
    chosen = range(len(documents)) if indexes is None else indexes
    if format == "parquet":
        return read_parquet_row_groups(buffer, documents, chosen, columns, verify=verify, full=full, path=path)
    if format == "lance":
        for document in documents if verify else []:
            _batch_bytes(buffer, document, verify, path)
        return _read_lance(buffer, documents, chosen, columns, location, full, path)
    batches = read_arrow_batches(buffer, [documents[index] for index in chosen], verify=verify, full=full, path=path)
    if columns is None:
        return batches
    for batch in batches[:1]:
        chosen_fields(batch.schema, columns)
    return [batch.select(list(columns)) for batch in batches]


@contextmanager
def _parsing(path: str) -> Iterator[None]:
    """Report every failure of a parser as damage of the file it parses."""
    try:
        yield
    except ArrowStateError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            # What the operating system says of a local file is nothing about its bytes.
            raise
        # The parsers raise whatever the damaged bytes lead to: ArrowInvalid, OSError, KeyError, MemoryError, ...
        raise CorruptDataError(path, f"{type(error).__name__}: {error}") from error


def _batch_bytes(buffer: pa.Buffer, document: BatchDocument, verify: bool, path: str) -> pa.Buffer:
    if document.offset + document.bytes > buffer.size:
        raise CorruptDataError(path, f"{buffer.size} bytes, a batch ends at {document.offset + document.bytes}")
    data = buffer.slice(document.offset, document.bytes)
    if verify:
        found = checksum(data)
        if found != document.xxh3_128:
            raise CorruptDataError(
                path, f"the batch at byte {document.offset} has checksum {found}, expected {document.xxh3_128}"
            )
    return data


def _check_batch(batch: pa.RecordBatch, document: BatchDocument, path: str, full: bool) -> None:
    batch.validate(full=full)
    if batch.num_rows != document.rows:
        raise CorruptDataError(
            path, f"the batch at byte {document.offset} has {batch.num_rows} rows, expected {document.rows}"
        )
    if not full:
        return
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise CorruptDataError(path, f"column {field.name!r} has nulls and is declared without")
    if HASH_COLUMN in batch.schema.names:
        _check_hashes(batch, document, path)
        hashes = batch.column(HASH_COLUMN).to_numpy()
        if (hashes[1:] < hashes[:-1]).any():
            raise CorruptDataError(path, f"the rows of the batch at byte {document.offset} are not in order")
