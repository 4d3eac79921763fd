"""Rows as Python's values, and as CSV: for the command line and the page.

In CSV a null is an empty cell and an empty text is `""`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.query.duckdb.sql_types import recast
from arrowstate.shown import shown

_Convert = Callable[[pa.Array], pa.Array]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as tuples of Python's values."""
    for batch in batches:
        yield from zip(*(values_of(column) for column in batch.columns), strict=True)


def values_of(column: pa.Array) -> list[Any]:
    """Return Python's values; times that Python has no type for are text, durations with nanoseconds numbers."""
    _, convert = recast(column.type, _without_nanoseconds)
    try:
        return (column if convert is None else convert(column)).to_pylist()
    except (ValueError, OverflowError):
        # A time before the year 1 or after 9999.
        _, convert = recast(column.type, _without_times)
        return (column if convert is None else convert(column)).to_pylist()


def _without_nanoseconds(kind: pa.DataType, is_map_key: bool) -> tuple[pa.DataType, _Convert] | None:
    """Turn nanoseconds into text, those of durations into their number: Python's own types end at microseconds."""
    del is_map_key
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.int64(), lambda array: pc.cast(array, pa.int64())
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns":
        return pa.string(), lambda array: pc.cast(array, pa.string())
    return None


def _without_times(kind: pa.DataType, is_map_key: bool) -> tuple[pa.DataType, _Convert] | None:
    """Turn all dates and times into text, and durations into their number."""
    if pa.types.is_duration(kind):
        return pa.int64(), lambda array: pc.cast(array, pa.int64())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string(), _as_dates
    return _without_nanoseconds(kind, is_map_key)


def _as_dates(array: pa.Array) -> pa.Array:
    """Return dates and timestamps of any year as text, as ISO 8601 has them."""
    texts = np.datetime_as_string(array.to_numpy(zero_copy_only=False))
    return pc.if_else(array.is_valid(), pa.array(texts, pa.string()), None)


def write_csv(names: Sequence[str], rows: Iterable[Sequence[Any]], file: IO[str]) -> None:
    """Write a head and rows as CSV; a null is an empty cell, an empty text `""`."""
    file.write(_line(names))
    file.writelines(_line(row) for row in rows)


def _line(row: Sequence[Any]) -> str:
    return ",".join(map(_quoted, row)) + "\n"


def _quoted(value: Any) -> str:
    cell = csv_cell(value)
    if cell is None:
        return ""
    text = str(cell)
    # An unquoted blank at an end is taken away by many readers.
    if text and text == text.strip() and not any(sign in text for sign in ',"\n\r'):
        return text
    return '"' + text.replace('"', '""') + '"'


def csv_cell(value: Any) -> Any:
    """Return a value as a cell holds it: None, a number, or a text; lists, mappings and booleans as their JSON."""
    value = shown(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value
