"""Nulls and bounds of the columns of a run, as the manifest records them.

A reader skips a run when the bounds prove that no row can match. A bound that cannot be stated exactly is
left out rather than widened. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate_formats.documents import ColumnStatistics, Statistic
from arrowstate_formats.errors import CorruptDataError, InvalidInputError
from arrowstate_formats.state_columns import HASH_COLUMN, inner_fields
from arrowstate_formats.stored_types import elements_of

MAX_STATISTIC_CHARACTERS = 64
"""A text longer than this is no bound; the column then has none."""


def column_statistics(batches: Sequence[pa.RecordBatch]) -> list[ColumnStatistics]:
    """Return nulls, minimum and maximum of each key and value column over all batches, in the order of the columns.

    `_key_hash` is left out: its bounds are recorded per batch.

    Booleans, floats and texts of at most 64 characters are given as they are; integers, and dates, times, timestamps
    and durations as the integer they are stored as, in decimal digits: `bound_of` turns them back. Both bounds are None
    where a type has no such form, there is no value, a text is longer, or a float is NaN or infinite.
    """
    if not batches:
        raise InvalidInputError("statistics need at least one batch")
    table = pa.Table.from_batches(batches)
    nan = paths_with_nan(batches)
    return [
        _statistics(name, column, nan)
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name != HASH_COLUMN
    ]


def paths_with_nan(batches: Sequence[pa.RecordBatch]) -> set[str]:
    """Return the columns, and by their paths in Parquet the fields inside columns, in which a float is NaN."""
    found: set[str] = set()
    for number, field in enumerate(batches[0].schema):
        if has_floats(field.type):
            for batch in batches:
                _add_nan_paths(field.name, batch.column(number), found)
    return found


def has_nan(floats: pa.Array | pa.ChunkedArray) -> bool:
    """Say whether one of some floats is NaN."""
    # PyArrow before 21 does not ask a float16.
    wide = floats.cast(pa.float32()) if pa.types.is_float16(floats.type) else floats
    return bool(pc.any(pc.is_nan(wide)).as_py())


@functools.cache
def has_floats(kind: pa.DataType) -> bool:
    """Whether a type is a float or has one inside, at any depth."""
    return pa.types.is_floating(kind) or any(has_floats(field.type) for _, field in inner_fields(kind))


def _add_nan_paths(path: str, array: pa.Array, found: set[str]) -> None:
    kind = array.type
    if pa.types.is_floating(kind):
        if has_nan(array):
            found.add(path)
        return
    inner = inner_fields(kind)
    if pa.types.is_struct(kind):
        parts = array.flatten()
    else:
        elements = elements_of(array)[1] if inner else array
        parts = [elements.field(number) for number in range(2)] if pa.types.is_map(kind) else [elements]
    for (name, field), part in zip(inner, parts, strict=False):
        if has_floats(field.type):
            _add_nan_paths(f"{path}.{name}", part, found)


def _statistics(name: str, column: pa.ChunkedArray, nan: set[str]) -> ColumnStatistics:
    storage = _storage_type(column.type)
    minimum: Any = None
    maximum: Any = None
    has_nan = any(path == name or path.startswith(f"{name}.") for path in nan) if has_floats(column.type) else None
    if storage is not None and column.null_count < len(column) and not has_nan:
        # The view keeps the bits: a timestamp becomes the integer that it is stored as.
        chunks = [chunk.view(storage) if storage != chunk.type else chunk for chunk in column.chunks]
        bounds = pc.min_max(pa.chunked_array(chunks, storage))
        # min_max ignores NaN, so bounds would promise that there is none.
        minimum, maximum = bounds["min"].as_py(), bounds["max"].as_py()
        if not (_is_exact(minimum) and _is_exact(maximum)):
            minimum = maximum = None
    low, high = (str(bound) if type(bound) is int else bound for bound in (minimum, maximum))
    return ColumnStatistics(column=name, null_count=column.null_count, min=low, max=high, has_nan=has_nan)


def _storage_type(arrow_type: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_temporal(arrow_type) and not types.is_interval(arrow_type):
        return pa.int32() if arrow_type.bit_width == 32 else pa.int64()
    if types.is_integer(arrow_type) or types.is_boolean(arrow_type):
        return arrow_type
    if types.is_float32(arrow_type) or types.is_float64(arrow_type):
        return arrow_type
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return arrow_type
    return None


def _is_exact(bound: Any) -> bool:
    if isinstance(bound, str):
        return len(bound) <= MAX_STATISTIC_CHARACTERS
    return not isinstance(bound, float) or math.isfinite(bound)


def bound_of(bound: Statistic, kind: pa.DataType) -> Any:
    """Return a bound of a column of this type as Python has it: an integer that a document has as text as an `int`."""
    if not isinstance(bound, str) or _is_text(kind):
        return bound
    try:
        return int(bound)
    except ValueError:
        raise CorruptDataError("", f"a bound of a column of type {kind} is no integer: {bound!r}") from None


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
