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

_IS_EARLY = int(pa.__version__.partition(".")[0]) < 26
"""Whether this PyArrow may refuse to write lists that have elements and are null, or below a null; 22 does."""


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema under which columns of `schema` stand in a Parquet file, without metadata."""
    return pa.schema([field.with_type(_stored_type(field.type)).remove_metadata() for field in schema])


def to_parquet(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return the batch in `stored`, which is its `parquet_schema`, with or without field ids."""
    pairs = zip(batch.columns, stored, strict=True)
    columns = [
        converted(column, field.type)
        if column.type != field.type or _hides_nulls(column) or (_IS_EARLY and _hides_elements(column))
        else column
        for column, field in pairs
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def check_parquet(batches: Sequence[pa.RecordBatch], stored: pa.Schema) -> None:
    """Refuse values that Parquet cannot hold: seconds that are no 64-bit milliseconds, days outside of 32 bits."""
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
    """Return columns that were read from a file in the types that they were written from."""
    arrays = [
        column if same_type(column.type, field.type) else converted(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def leaf_paths(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Return the columns of a Parquet file with this schema: their paths, as Parquet writes them, and their types."""
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


def _hides_elements(array: pa.Array) -> bool:
    """Whether a list or a map is null, or stands below a struct that is, where it may have elements."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [array.field(number) for number in range(kind.num_fields)]
        return any((array.null_count and _has_lists(part.type)) or _hides_elements(part) for part in parts)
    if not pa.types.is_nested(kind):
        return False
    parts = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
    return bool(array.null_count) or any(map(_hides_elements, parts))


def _has_lists(kind: pa.DataType) -> bool:
    inner = inner_fields(kind)
    return bool(inner) and (not pa.types.is_struct(kind) or any(_has_lists(field.type) for _, field in inner))


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
