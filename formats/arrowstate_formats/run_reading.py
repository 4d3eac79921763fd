"""Run files read: whole, or some of their record batches, compared with what their document says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from arrowstate_formats.documents import BatchDocument
from arrowstate_formats.errors import ArrowStateError, CorruptDataError
from arrowstate_formats.lance_files import LocalCopy, read_lance_rows
from arrowstate_formats.parquet_types import from_parquet
from arrowstate_formats.run_files import ARROW_MAGIC_BYTES, RunFormat, batch_bytes, check_format, frame_checksum
from arrowstate_formats.schema_metadata import DECLARED_SCHEMA_KEY, SCHEMA_KEY, chosen_fields, read_schema
from arrowstate_formats.state_columns import HASH_COLUMN, without_metadata


def read_arrow_batches(
    buffer: pa.Buffer,
    documents: Sequence[BatchDocument],
    schema: pa.Schema | None = None,
    *,
    verify: bool = True,
    full: bool = False,
    stored: pa.Schema | None = None,
    path: str = "",
) -> list[pa.RecordBatch]:
    """Return the given record batches of an Arrow run file; their columns are views into `buffer`."""
    with _parsing(path):
        stored = _arrow_schema(buffer) if stored is None else stored
        if schema is not None and not stored.equals(schema):
            raise CorruptDataError(path, f"the columns are {stored}, expected {schema}")
        batches = []
        for document in documents:
            batch = pa.ipc.read_record_batch(batch_bytes(buffer, document, verify, path), stored)
            _check_batch(batch, document, path, full)
            batches.append(batch)
        return batches


def read_arrow_schema(buffer: pa.Buffer, *, path: str = "") -> pa.Schema:
    """Return the schema of an Arrow run file, which stands at its begin and at its end."""
    with _parsing(path):
        return _arrow_schema(buffer)


def _arrow_schema(buffer: pa.Buffer) -> pa.Schema:
    """Read the schema from the head of the file and compare it with the copy in the footer."""
    head = pa.ipc.read_schema(buffer.slice(ARROW_MAGIC_BYTES))
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
    """Return the given row groups of a Parquet run file, one record batch each."""
    # Loaded where it is used: it brings Arrow's clients of object stores, a tenth of what the package takes to import.
    import pyarrow.parquet as pq

    for index in indexes:
        batch_bytes(buffer, documents[index], verify, path)
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
    arrow_schema: pa.Schema | None = None,
    path: str = "",
) -> list[pa.RecordBatch]:
    """Return record batches of a run file of any format."""
    check_format(format)
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
            batch_bytes(buffer, document, verify, path)
        return _read_lance(buffer, documents, chosen, columns, location, full, path)
    wanted = [documents[index] for index in chosen]
    batches = read_arrow_batches(buffer, wanted, verify=verify, full=full, stored=arrow_schema, path=path)
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
