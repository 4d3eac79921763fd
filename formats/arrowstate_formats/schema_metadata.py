"""The Arrow schema that a Parquet or Lance file carries in its metadata.

Neither format has all types and names of Arrow, so the schema that was written stands beside the data. In Parquet
`ARROW:schema` is what other readers take the columns for, so where a type was stored as another one it names that one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import pyarrow as pa

from arrowstate_formats.errors import InvalidInputError

SCHEMA_KEY = "ARROW:schema"
"""The key of the schema in the metadata of a file."""

DECLARED_SCHEMA_KEY = "arrowstate:schema"
"""The key of the schema that was written in the metadata of a Parquet file, where it is another one."""


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as its IPC message in base64."""
    return base64.b64encode(schema.serialize()).decode()


def read_schema(metadata: Mapping[bytes, bytes] | None, key: str = SCHEMA_KEY) -> pa.Schema:
    """Return the schema in the metadata of a file."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode((metadata or {})[key.encode()])))


def chosen_fields(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the fields of some columns in their order, or the schema itself if `columns` is None."""
    if columns is None:
        return schema
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise InvalidInputError(f"no column {missing[0]!r} in the run; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(column) for column in columns])
