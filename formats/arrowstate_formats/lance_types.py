"""Columns in the types that Lance files hold exactly, and back.

Lance has no 32-bit and 64-bit decimals, no views and no sorted maps, holds fixed-size lists of few types only, and
takes no `.` in the name of a column. What it lacks is stored as the nearest type that loses nothing; the Arrow schema
beside it says what a column was. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import re

import pyarrow as pa

from arrowstate_formats.stored_types import converted, whole

_NOT_IN_NAMES = re.compile(r"[.%\0]")


def lance_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema under which columns of `schema` stand in a Lance file, without metadata."""
    return pa.schema([_stored_field(field) for field in schema])


def to_lance(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in its `lance_schema`; nested columns are copied, others only where their type changes."""
    stored = lance_schema(batch.schema)
    columns = [_to_lance(column, field.type) for column, field in zip(batch.columns, stored, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def from_lance(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return what `to_lance` was given: the batch in `schema`, whose fields are those of the batch in their order."""
    stored = lance_schema(schema)
    if not batch.schema.equals(stored):
        raise ValueError(f"the columns are {batch.schema}, expected {stored}")
    columns = [converted(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _to_lance(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # Lance fails on some slices of nested arrays.
    return converted(whole(column) if pa.types.is_nested(kind) else column, kind)


def _stored_field(field: pa.Field) -> pa.Field:
    # Names go through C, where a NUL ends a text.
    name = _NOT_IN_NAMES.sub(lambda match: f"%{ord(match[0]):02X}", field.name)
    return pa.field(name, _stored_type(field.type), nullable=field.nullable)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([_stored_field(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(_stored_field(kind.key_field), _stored_field(kind.item_field))
    if types.is_list(kind):
        return pa.list_(_stored_field(kind.value_field))
    if types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.large_list(_stored_field(kind.value_field))
    return kind
