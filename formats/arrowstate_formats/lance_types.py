"""Columns in the types that Lance files hold exactly, and back.

Lance has no 32-bit and 64-bit decimals, no views and no sorted maps, holds fixed-size lists of few types only, and
takes no `.` in the name of a column. What it lacks is stored as the nearest type that loses nothing; the Arrow schema
beside it says what a column was. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

__all__ = ["from_lance", "lance_schema", "to_lance"]

_NOT_IN_NAMES = re.compile(r"[.%\0]")


def lance_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema under which columns of `schema` stand in a Lance file, without metadata.

    Examples
    --------
    >>> lance_schema(pa.schema([("price.eur", pa.decimal64(12, 2))]))
    price%2Eeur: decimal128(12, 2)
    """
    return pa.schema([_stored_field(field) for field in schema])


def to_lance(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in its `lance_schema`; nested columns are copied, others only where their type changes."""
    stored = lance_schema(batch.schema)
    columns = [_converted(column, field.type) for column, field in zip(batch.columns, stored, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def from_lance(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return what `to_lance` was given: the batch in `schema`, whose fields are those of the batch in their order.

    Raises
    ------
    ValueError, pa.ArrowException
        If the batch is not in the `lance_schema` of `schema`.

    Examples
    --------
    >>> batch = pa.record_batch({"a.b": pa.array([[1, 2], None], pa.list_(pa.int8(), 2))})
    >>> from_lance(to_lance(batch), batch.schema) == batch
    True
    """
    stored = lance_schema(schema)
    if not batch.schema.equals(stored):
        raise ValueError(f"the columns are {batch.schema}, expected {stored}")
    columns = [_converted(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as the type that stands for its own, in either direction."""
    if not pa.types.is_nested(kind):
        return array if array.type == kind else array.cast(kind)
    # Lance fails on some slices of nested arrays, and the buffers of a slice are not those of its rows.
    return _rebuilt(_whole(array), kind)


def _rebuilt(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array that is no slice with other children; casts of structs go by names, which differ here."""
    types = pa.types
    if not types.is_nested(kind):
        return array if array.type == kind else array.cast(kind)
    if types.is_fixed_size_list(kind):
        return _fixed_from_list(array, kind)
    if types.is_fixed_size_list(array.type):
        return _list_from_fixed(array, kind)
    buffers = array.buffers()
    if types.is_struct(kind):
        children = [_rebuilt(array.field(number), field.type) for number, field in enumerate(kind)]
        return pa.Array.from_buffers(kind, len(array), buffers[:1], children=children)
    if types.is_map(kind):
        pairs = [_rebuilt(array.keys, kind.key_type), _rebuilt(array.items, kind.item_type)]
        children = [pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])]
    else:
        children = [_rebuilt(array.values, kind.value_type)]
    return pa.Array.from_buffers(kind, len(array), buffers[:2], children=children)


def _list_from_fixed(array: pa.FixedSizeListArray, kind: pa.LargeListType) -> pa.Array:
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    ends = np.cumsum(valid * np.int64(array.type.list_size), dtype=np.int64)
    offsets = pa.py_buffer(np.concatenate([np.zeros(1, dtype=np.int64), ends]))
    # The elements of nulls, which may be anything, are left out.
    children = [_rebuilt(_whole(array.flatten()), kind.value_type)]
    return pa.Array.from_buffers(kind, len(array), [array.buffers()[0], offsets], children=children)


def _fixed_from_list(array: pa.LargeListArray, kind: pa.FixedSizeListType) -> pa.Array:
    offsets = np.frombuffer(array.buffers()[1] or b"\0" * 8, dtype=np.int64, count=len(array) + 1)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if (np.diff(offsets)[~missing] != kind.list_size).any():
        raise ValueError(f"a list is not of the size of {kind}")
    rows = offsets[:-1, np.newaxis] + np.arange(kind.list_size)
    elements = array.values.take(pa.array(rows.ravel(), mask=np.repeat(missing, kind.list_size)))
    children = [_rebuilt(elements, kind.value_type)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=children)


def _whole(array: pa.Array) -> pa.Array:
    """Return the array without the rest of what it is a slice of."""
    batch = pa.record_batch([array], ["column"])
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema).column(0)
