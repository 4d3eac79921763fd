"""Columns in the types that Parquet files hold exactly, and back.

Parquet has no fixed-size lists, no views, no seconds, and days instead of `date64`. What it lacks is stored as the
nearest type that loses nothing, so that every reader of Parquet understands it and none has to guess; the Arrow
schema beside it says what a column was. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from arrowstate_formats.errors import InvalidInputError
from arrowstate_formats.state_columns import inner_fields, with_inner_fields
from arrowstate_formats.stored_types import converted, same_type

__all__ = [
    "check_parquet",
    "from_parquet",
    "leaf_paths",
    "parquet_schema",
    "to_parquet",
]


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema under which columns of `schema` stand in a Parquet file, without metadata.

    Examples
    --------
    >>> parquet_schema(pa.schema([("pair", pa.list_(pa.timestamp("s"), 2))]))
    pair: large_list<item: timestamp[ms]>
      child 0, item: timestamp[ms]
    """
    return pa.schema([field.with_type(_stored_type(field.type)).remove_metadata() for field in schema])


def to_parquet(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return the batch in `stored`, which is its `parquet_schema`, with or without field ids.

    Raises
    ------
    pa.ArrowInvalid, ValueError
        If a value does not fit; `check_parquet` says so before anything is written.
    """
    pairs = zip(batch.columns, stored, strict=True)
    columns = [
        column if column.type == field.type and not _hides_nulls(column) else converted(column, field.type)
        for column, field in pairs
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def check_parquet(batches: Sequence[pa.RecordBatch], stored: pa.Schema) -> None:
    """Refuse values that Parquet cannot hold: seconds that are no 64-bit milliseconds, days outside of 32 bits.

    Raises
    ------
    InvalidInputError
        If there is one; the message names the column.

    Examples
    --------
    >>> far = pa.record_batch({"t": pa.array([10**17], pa.timestamp("s"))})
    >>> check_parquet([far], parquet_schema(far.schema))
    Traceback (most recent call last):
    ...
    arrowstate_formats.errors.InvalidInputError: column 't' of type timestamp[s] holds a value that Parquet cannot: \
Casting from timestamp[s] to timestamp[ms] would result in out of bounds timestamp: 100000000000000000; \
timestamp[s] must fit 64 bits of milliseconds and date64 must be a whole day of 32 bits; use the format 'arrow'
    """
    for number, field in enumerate(batches[0].schema):
        limited = _is_limited(field.type)
        for batch in batches:
            column = batch.column(number)
            if column.null_count and not field.nullable:
                raise InvalidInputError(f"column {field.name!r} is declared without nulls and has {column.null_count}")
            if not limited and not _hides_nulls(column):
                continue
            try:
                converted(column, stored.field(number).type)
            except (pa.ArrowInvalid, ValueError) as error:
                raise InvalidInputError(
                    f"column {field.name!r} of type {field.type} holds a value that Parquet cannot: {error}; "
                    "timestamp[s] must fit 64 bits of milliseconds and date64 must be a whole day of 32 bits; "
                    "use the format 'arrow'"
                ) from error


def from_parquet(columns: Iterable[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns that were read from a file in the types that they were written from.

    Raises
    ------
    ValueError, pa.ArrowException
        If they are not in the `parquet_schema` of `schema`.

    Examples
    --------
    >>> batch = pa.record_batch({"a": pa.array([[1, 2], None], pa.list_(pa.int8(), 2))})
    >>> stored = to_parquet(batch, parquet_schema(batch.schema))
    >>> from_parquet(stored.columns, batch.schema) == batch
    True
    """
    arrays = [
        column if same_type(column.type, field.type) else converted(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def leaf_paths(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Return the columns of a Parquet file with this schema: their paths, as Parquet writes them, and their types.

    Examples
    --------
    >>> leaf_paths(pa.schema([("a", pa.list_(pa.int8())), ("m", pa.map_(pa.string(), pa.int8()))]))
    [('a.list.element', DataType(int8)), ('m.key_value.key', DataType(string)), ('m.key_value.value', DataType(int8))]
    """
    return [leaf for field in schema for leaf in _leaves(field.name, field.type)]


def _leaves(path: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    return [leaf for name, field in inner_fields(kind) for leaf in _leaves(f"{path}.{name}", field.type)] or [
        (path, kind)
    ]


def _hides_nulls(array: pa.Array) -> bool:
    """Whether a field inside that is declared without nulls has some, which may stand below nulls only."""
    inner = inner_fields(array.type)
    if not inner or not _has_required(array.type):
        return False
    if pa.types.is_struct(array.type):
        parts = [array.field(number) for number in range(len(inner))]
    else:
        parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    return any(
        (part.null_count and not field.nullable) or _hides_nulls(part)
        for (_, field), part in zip(inner, parts, strict=True)
    )


def _has_required(kind: pa.DataType) -> bool:
    return any(not field.nullable or _has_required(field.type) for _, field in inner_fields(kind))


def _is_limited(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_nested(kind):
        return any(_is_limited(field.type) for _, field in inner_fields(kind))
    return types.is_date64(kind) or (types.is_timestamp(kind) and kind.unit == "s")


def _stored_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_nested(kind):
        fields = [field.with_type(_stored_type(field.type)) for _, field in inner_fields(kind)]
        return pa.large_list(fields[0]) if types.is_fixed_size_list(kind) else with_inner_fields(kind, fields)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_date64(kind):
        return pa.date32()
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return kind
