"""Rows as the CSV that `COPY` of PostgreSQL reads."""

from __future__ import annotations

import datetime
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from arrowstate.errors import InvalidInputError
from arrowstate.schema.conversion import with_children
from arrowstate.schema.nanoseconds import nanoseconds_as_text
from arrowstate.schema.types import python_values

_BATCH_ROWS = 65_536


def as_copy_text(rows: pa.Table) -> Iterator[bytes]:
    """Yield the rows as CSV without a header: a text is always quoted, a null is empty and not."""
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
        columns = [_plain(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
        text = io.BytesIO()
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), text, options)
        yield text.getvalue()


def _plain(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column of a type that is written as PostgreSQL reads it."""
    type = column.type
    if pa.types.is_dictionary(type):
        return _plain(column.cast(type.value_type), field)
    if pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        return _texts(column, _hex, field)
    if pa.types.is_binary_view(type):
        return _plain(column.cast(pa.binary()), field)
    if pa.types.is_string_view(type) or pa.types.is_null(type):
        return column.cast(pa.large_string())
    if pa.types.is_float16(type):
        return column.cast(pa.float32())
    if pa.types.is_duration(type):
        unit = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[type.unit]
        if type.unit == "ns":
            column, unit = pc.divide(column.cast(pa.int64()), 1000), "microseconds"
        return pc.binary_join_element_wise(column.cast(pa.int64()).cast(pa.string()), unit, " ")
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return _texts(column, _array, field)
    if pa.types.is_struct(type) or pa.types.is_map(type):
        return _texts(column, _json, field)
    if pa.types.is_nested(type) or pa.types.is_interval(type):
        raise InvalidInputError(f"column {field.name!r} is {type}, for which PostgreSQL has no text; cast it first")
    return column


def _texts(column: pa.Array, text: Callable[[Any], str], field: pa.Field) -> pa.Array:
    try:
        values = python_values(nanoseconds_as_text(_in_microseconds(column)))
        return pa.array([None if value is None else text(value) for value in values], pa.large_string())
    except (LookupError, OverflowError) as error:
        raise InvalidInputError(
            f"column {field.name!r} has a value for which PostgreSQL has no text: {error}"
        ) from error


def _in_microseconds(column: pa.Array, _: int = 0) -> pa.Array:
    """Return a column with the digits of durations that PostgreSQL has."""
    if column.type != pa.duration("ns"):
        return with_children(column, _in_microseconds)
    return pc.divide(column.cast(pa.int64()), 1000).cast(pa.duration("us"))


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


def _json(value: Any) -> str:
    return json.dumps(_named(value), default=str, ensure_ascii=False)


def _named(value: Any) -> Any:
    """Return a value with texts as names, and in the place of what JSON has not: bytes, NaN and infinities.

    They are the texts that `to_jsonb` of PostgreSQL gives.
    """
    if isinstance(value, bytes):
        return _hex(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return list(map(_named, value))
    if isinstance(value, dict):
        return {_name(name): _named(item) for name, item in value.items()}
    return value


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _hex(value) if isinstance(value, bytes) else str(value)


def _array(values: list[Any]) -> str:
    """Return an array as PostgreSQL writes it."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        value = _hex(value)
    elif isinstance(value, dict):
        value = _json(value)
    elif isinstance(value, datetime.timedelta):
        # Python's own text has two signs, which the setting intervalstyle gives a meaning.
        value = f"{value // datetime.timedelta(microseconds=1)} microseconds"
    elif isinstance(value, (int, float)):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
