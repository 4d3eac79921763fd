"""Rows as Python's values, and as CSV: for the command line and the page.

In CSV a null is an empty cell and an empty text is `""`. SQL gives durations back as intervals of months, days and
nanoseconds: one without months is a duration again, of days with 24 hours.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.query.duckdb.sql_types import recast
from arrowstate.schema.types import is_bytes, is_text
from arrowstate.shown import shown

_Convert = Callable[[pa.Array], pa.Array]

_SPAN = re.compile(r"(?:(-?[0-9]+) days?, )?([0-9]+):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_DAY_US = 86_400_000_000
_MOST_DAYS = 106_000_000
"""What a duration in microseconds holds, with room for the time of day."""


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as tuples of Python's values."""
    for batch in batches:
        yield from zip(*(values_of(column) for column in batch.columns), strict=True)


def values_of(column: pa.Array) -> list[Any]:
    """Return Python's values; times that Python has no type for are text, durations with nanoseconds numbers.

    Intervals are the text of their duration, and with months what DuckDB writes.
    """
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
    if pa.types.is_interval(kind):
        return pa.string(), lambda array: pa.array(map(_interval_text, array.to_pylist()), pa.string())
    return None


def _interval_text(value: pa.MonthDayNano | None) -> str | None:
    if value is None:
        return None
    microseconds = value.nanoseconds // 1000
    if value.months == 0:
        try:
            return str(datetime.timedelta(days=value.days, microseconds=microseconds))
        except OverflowError:
            # It is written as one with months is.
            pass
    sign = -1 if value.months < 0 else 1
    years, months = divmod(abs(value.months), 12)
    counts = ((sign * years, "year"), (sign * months, "month"), (value.days, "day"))
    parts = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in counts if count]
    if microseconds or not parts:
        seconds, fraction = divmod(abs(microseconds), 1_000_000)
        time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(f"{'-' if microseconds < 0 else ''}{time}" + (f".{fraction:06}".rstrip("0") if fraction else ""))
    return " ".join(parts)


def with_durations(batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the rows of a query with a duration in microseconds for each interval, at any depth.

    A batch with an interval that has months raises InvalidInputError: a month has no length.
    """
    forms = [recast(field.type, _as_duration) for field in batches.schema]
    if all(convert is None for _, convert in forms):
        return batches
    schema = pa.schema([field.with_type(kind) for field, (kind, _) in zip(batches.schema, forms, strict=True)])

    def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if convert is None else convert(column)
            for column, (_, convert) in zip(batch.columns, forms, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, map(converted, batches))


def _as_duration(kind: pa.DataType, is_map_key: bool) -> tuple[pa.DataType, _Convert] | None:
    del is_map_key
    return (pa.duration("us"), _durations) if pa.types.is_interval(kind) else None


def _durations(array: pa.Array) -> pa.Array:
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.duration("us"))
    given = np.frombuffer(array.buffers()[1], _INTERVAL, len(array), array.offset * _INTERVAL.itemsize)
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    has_none = (given["months"] != 0) | (np.abs(given["days"].astype(np.int64)) > _MOST_DAYS)
    wrong = np.flatnonzero(has_none & ~is_null)
    if len(wrong):
        raise InvalidInputError(
            "an interval must have no months and at most 106000000 days to be written as a duration, got "
            f"{_interval_text(array[int(wrong[0])].as_py())!r}; make it text in the query: cast(... as varchar)"
        )
    numbers = given["days"].astype(np.int64) * _DAY_US + given["nanoseconds"] // 1000
    return pa.array(numbers, pa.int64(), mask=is_null).cast(pa.duration("us"))


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


def parsed(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """Return a column of texts as `values_of` and `shown` write them; not of bytes and of nested types.

    Digits of a second that the type does not have may stand there if they are zeros. A duration may be its number.
    """
    given = pc.utf8_trim_whitespace(pa.array(texts, pa.string()))
    if pa.types.is_duration(kind):
        return pa.array([_span(text, _PER_SECOND[kind.unit]) for text in given.to_pylist()], kind)
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        for pattern, rest in ((r"(\.[0-9]*?)0+($|[Z+-])", r"\1\2"), (r"\.($|[Z+-])", r"\1")):
            given = pc.replace_substring_regex(given, pattern, rest)
    if pa.types.is_time(kind):
        # Arrow reads a time of day as a part of a timestamp only.
        given = pc.binary_join_element_wise("1970-01-01T", given, "").cast(pa.timestamp(kind.unit))
    return given.cast(kind)


def of_json(given: Any, kind: pa.DataType) -> Any:
    """Return Python's value of a type, of what JSON holds as `values_of` and `shown` write it; not of a map.

    What does not fit raises ValueError, TypeError, AttributeError, ArithmeticError or an exception of Arrow, or is
    returned as it is.
    """
    if given is None:
        return None
    if pa.types.is_struct(kind):
        if set(given) != {field.name for field in kind}:
            raise ValueError(given)
        return {field.name: of_json(given[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        if not isinstance(given, list):
            raise TypeError(given)
        return [of_json(item, kind.value_type) for item in given]
    if not isinstance(given, str) or is_text(kind):
        return given
    return bytes.fromhex(given) if is_bytes(kind) else parsed([given], kind)[0].as_py()


def _span(text: str, per_second: int) -> int:
    """Return the number of a duration, as `datetime.timedelta` writes it or as a number already."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return int(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    billionths = int((match[5] or "").ljust(9, "0"))
    number, rest = divmod(billionths * per_second, 10**9)
    if rest:
        raise ValueError(text)
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * per_second + number


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
