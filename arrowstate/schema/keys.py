"""Keys as given by a caller, checked and brought to the operator's key schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, KeyTypeError, NullKeyError, ValueTypeError
from arrowstate.schema.conversion import rows_of
from arrowstate.schema.row_streams import read_rows
from arrowstate.schema.types import (
    CONVERSION_ERRORS,
    as_arrow,
    check_type,
    check_values,
    first_null,
    numpy_array,
    python_array,
    safe_cast,
    scalar_text,
    shown_misfit,
)
from arrowstate_formats.key_hash import check_key_type
from arrowstate_formats.names import check_column_name

_WITH_A_LENGTH = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, np.ndarray, list, tuple)


def check_key_schema(key: pa.Schema) -> pa.Schema:
    """Return the key schema with all columns not null, after checking names and types."""
    if not isinstance(key, pa.Schema) or not len(key):
        raise InvalidInputError(f"the key must be a pyarrow schema with at least one column, got {key!r}")
    _check_key(tuple(key))
    return pa.schema([pa.field(field.name, field.type, nullable=False) for field in key])


@lru_cache(512)
def _check_key(key: tuple[pa.Field, ...]) -> None:
    names = [check_column_name(field.name) for field in key]
    if len({name.lower() for name in names}) < len(names):
        raise InvalidInputError(f"key columns must differ in more than case, got {', '.join(names)}; rename one")
    for field in key:
        check_type(field.type, f"key column {field.name!r}")
        if pa.types.is_null(field.type):
            raise InvalidInputError(f"key column {field.name!r} has the type null, so it can have no value")
        check_key_type(field.type)


def key_columns(keys: Any, key: pa.Schema) -> list[pa.Array]:
    """Return the key columns of a batch, each of the type the key schema asks for and without nulls."""
    columns = _columns(keys, key)
    out = []
    for field, column in zip(key, columns, strict=True):
        try:
            column = _converted(column, field.type, ("string", "binary"))
        except CONVERSION_ERRORS as error:
            given = _misfit(column, partial(to_type, kind=field.type, families=("string", "binary")), error, field.type)
            raise KeyTypeError(f"{field.name}: {field.type}", given) from None
        if column.null_count:
            row = first_null(column)
            raise NullKeyError(field.name, row)
        out.append(column)
    lengths = {len(column) for column in out}
    if len(lengths) > 1:
        raise InvalidInputError(f"key columns must have one length, got {sorted(lengths)}")
    return out


def _columns(keys: Any, key: pa.Schema) -> list[Any]:
    keys = as_arrow(keys)
    if not isinstance(keys, _WITH_A_LENGTH) and (isinstance(keys, Iterator) or hasattr(keys, "collect_batches")):
        keys = read_rows(keys, "the keys")
    if isinstance(keys, pa.StructArray) and not (len(key) == 1 and pa.types.is_struct(key.field(0).type)):
        if keys.null_count:
            row = first_null(keys)
            raise NullKeyError(", ".join(key.names), row)
        keys = rows_of(keys)
    if isinstance(keys, (pa.RecordBatch, pa.Table)):
        if set(keys.schema.names) != set(key.names) or keys.num_columns != len(key):
            raise KeyTypeError(described(key), described(keys.schema))
        return [keys.column(name) for name in key.names]
    if len(key) > 1:
        raise KeyTypeError(described(key), str(keys.type) if hasattr(keys, "type") else type(keys).__name__)
    return [keys]


def described(schema: pa.Schema) -> str:
    """Return names and types of columns for a message."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _misfit(values: Any, convert: Callable[[Any], object], error: Exception, kind: pa.DataType) -> str:
    """Say what was given that does not convert: one value and its row, or where none would the type of all."""
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray, pa.Array, pa.ChunkedArray)):
        return f"{type(values).__name__} ({error})"
    fits, fails = -1, len(values)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            convert(values[:middle])
            fits = middle
        except CONVERSION_ERRORS:
            fails = middle
    if not fails:
        return str(values.dtype if isinstance(values, np.ndarray) else getattr(values, "type", type(values).__name__))
    if "UTF8" in str(error):
        return f"a text that is not UTF-8 in row {fits}"
    value = values[fits]
    if pa.types.is_nested(kind):
        return shown_misfit(value, kind, f" in row {fits}")
    if isinstance(value, pa.Scalar):
        shown = scalar_text(value)
    else:
        shown = str(value) if isinstance(value, np.generic) else repr(value)
    return f"{shown} in row {fits}"


def to_type(values: Any, kind: pa.DataType, families: Sequence[str] | None = None) -> pa.Array:
    """Return the values as an Arrow array of a type, converting only within a family of types and without loss.

    Only floats may lose digits. `families` names those that may be converted; all by default.
    """
    return _converted(as_arrow(values), kind, families)


def _converted(values: Any, kind: pa.DataType, families: Sequence[str] | None = None) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
            raise TypeError(f"expected an Arrow array or a sequence, got {type(values).__name__}")
        if isinstance(values, np.ndarray):
            return to_type(numpy_array(values), kind, families)
        return python_array(values, kind)
    if values.type == kind:
        return check_values(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    family = _family(kind)
    same = family is not None and family == _family(values.type) and (families is None or family in families)
    if values.type == kind or pa.types.is_null(values.type) or same:
        return check_values(safe_cast(values, kind))
    raise TypeError(f"got {values.type}; cast it first, or declare the type you have")


def _family(kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    if pa.types.is_timestamp(kind):
        return f"timestamp {kind.tz is not None}"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        # Arrow's own safe cast decides field by field.
        return "struct" if pa.types.is_struct(kind) else "map" if pa.types.is_map(kind) else "list"
    return None


def value_array(values: Any, kind: pa.DataType, rows: int, name: str) -> pa.Array:
    """Return the values of a batch verb as an array of the state's type, one entry a row."""
    values = as_arrow(values)
    if isinstance(values, (pa.RecordBatch, pa.Table)):
        values = values.to_struct_array()
    try:
        values = _converted(values, kind)
    except CONVERSION_ERRORS as error:
        raise ValueTypeError(name, str(kind), _misfit(values, partial(to_type, kind=kind), error, kind)) from None
    if len(values) != rows:
        raise InvalidInputError(f"state {name!r}: {rows} keys need {rows} values, got {len(values)}")
    return values
