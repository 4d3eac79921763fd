"""Run files written: rows, statistics, frames and the checksums of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import Struct

from arrowstate_formats.document_base import Int64, wide
from arrowstate_formats.documents import BatchDocument
from arrowstate_formats.errors import InvalidInputError
from arrowstate_formats.lance_files import written_lance
from arrowstate_formats.parquet_types import check_parquet, leaf_paths, parquet_schema, to_parquet
from arrowstate_formats.schema_documents import FieldDocument
from arrowstate_formats.schema_metadata import DECLARED_SCHEMA_KEY, schema_text
from arrowstate_formats.state_columns import HASH_COLUMN, SEQ_COLUMN, with_field_ids, without_metadata
from arrowstate_formats.statistics import paths_with_nan
from arrowstate_formats.stored_types import same_type

if TYPE_CHECKING:
    # Loaded where it is used: it brings Arrow's clients of object stores, a tenth of what the package takes to import.
    import pyarrow.parquet as pq
from arrowstate_formats.run_files import (
    ARROW_MAGIC_BYTES,
    PARQUET_MAGIC_BYTES,
    RunFile,
    RunFormat,
    check_format,
    check_schema,
    columns,
)

_COPY_BYTES = _PASSED_BYTES = 1 << 20


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
    """
    check_format(format)
    if not batches:
        raise InvalidInputError("a run needs at least one batch")
    schema = check_schema(batches)
    if format == "lance":
        return _write_lance([batch for batch in batches if batch.num_rows], schema, sink, time)
    # The header is written together with the first batch, so its length must be known before.
    header_bytes = ARROW_MAGIC_BYTES + schema.serialize().size if format == "arrow" else PARQUET_MAGIC_BYTES
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
    """Return the lowest and the highest time of a batch, and its highest sequence number, as its document has them."""
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
        min_hash=Int64(hashes[0].as_py()),
        max_hash=Int64(hashes[-1].as_py()),
        min_time=wide(min_time),
        max_time=wide(max_time),
        max_seq=wide(max_seq),
    )


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
        raise InvalidInputError(f"Parquet cannot store the columns {columns(schema)}; use 'arrow' ({error})") from error
    with parquet:
        if not all(same_type(field.type, own.type) for field, own in zip(plain, schema, strict=True)):
            parquet.add_key_value_metadata({DECLARED_SCHEMA_KEY: schema_text(without_metadata(schema))})
        yield _RowGroups(parquet, stored)


class _RowGroups(Struct, frozen=True):
    """Writes each batch as a row group."""

    writer: pq.ParquetWriter
    stored: pa.Schema

    def write(self, batch: pa.RecordBatch) -> None:
        self.writer.write_batch(to_parquet(batch, self.stored), row_group_size=batch.num_rows)
