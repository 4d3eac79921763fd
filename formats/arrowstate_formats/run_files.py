"""Run files: the sorted rows of a run as Arrow IPC, Parquet or Lance, checksummed while they are written.

A run file is an ordinary file of its format that any reader opens. What makes it safe is outside of it:
the manifest records the byte range and the checksum of each record batch or row group, so that a reader that
maps the file and touches a few batches checks just these, and the checksum of the frame, which is
everything around the batches (header, schema, footer). Arrow batches are handed out without a copy.
Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pyarrow as pa
import xxhash
from msgspec import Struct

from arrowstate_formats.arrow_types import type_to_json
from arrowstate_formats.documents import BatchDocument
from arrowstate_formats.errors import CorruptDataError, InvalidInputError
from arrowstate_formats.splitting import split_at_key_groups
from arrowstate_formats.state_columns import HASH_COLUMN

if TYPE_CHECKING:
    # Loaded where it is used: it brings Arrow's clients of object stores, a tenth of what the package takes to import.
    pass

__all__ = [
    "ARROW_MAGIC_BYTES",
    "HASH_COLUMN",
    "INLINE_BYTES",
    "PARQUET_MAGIC_BYTES",
    "RunFile",
    "RunFormat",
    "batch_bytes",
    "check_format",
    "check_schema",
    "checksum",
    "columns",
    "frame_checksum",
    "split_at_key_groups",
]


INLINE_BYTES = 20480
"""A run file, deletion vector or manifest smaller than this is kept inside the document that refers to it."""

RunFormat: TypeAlias = Literal["arrow", "parquet", "lance"]
"""How a run file is encoded."""

ARROW_MAGIC_BYTES = 8
"""`ARROW1` and two bytes of padding, before the schema message."""

PARQUET_MAGIC_BYTES = 4
"""`PAR1`, before the first column chunk."""


class RunFile(Struct, frozen=True):
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
    """Return the xxh3_128 checksum of bytes, a `pyarrow.Buffer` or another buffer, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def check_format(run_format: RunFormat) -> RunFormat:
    """Return the format of a run if it is one."""
    if run_format not in get_args(RunFormat):
        raise InvalidInputError(f"the format of a run is 'arrow', 'parquet' or 'lance', got {run_format!r}")
    return run_format


def check_schema(batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    schema = batches[0].schema
    if schema.names.count(HASH_COLUMN) != 1 or schema.field(HASH_COLUMN).type != pa.int64():
        raise InvalidInputError(f"a run needs one column {HASH_COLUMN} of type int64, got {schema}")
    for kind in set(schema.types):
        type_to_json(kind)
    for batch in batches:
        if batch.schema != schema:
            raise InvalidInputError(f"the batches of a run must have one schema, got {schema} and {batch.schema}")
        if batch.column(HASH_COLUMN).null_count:
            raise InvalidInputError(f"{HASH_COLUMN} must have no nulls")
    return schema


def columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def frame_checksum(buffer: pa.Buffer, documents: Sequence[BatchDocument]) -> str:
    """Return the checksum of the bytes of a run file that are in none of its batches."""
    frame = xxhash.xxh3_128()
    end = 0
    for document in documents:
        frame.update(buffer.slice(end, document.offset - end))
        end = document.offset + document.bytes
    frame.update(buffer.slice(end))
    return frame.hexdigest()


def batch_bytes(buffer: pa.Buffer, document: BatchDocument, verify: bool, path: str) -> pa.Buffer:
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
