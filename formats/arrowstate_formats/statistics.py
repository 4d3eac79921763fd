"""Nulls and bounds of the columns of a run, as the manifest records them.

A reader skips a run when the bounds prove that no row can match. A bound that cannot be stated exactly is
left out rather than widened. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate_formats.documents import ColumnStatistics, Statistic
from arrowstate_formats.errors import InvalidInputError
from arrowstate_formats.run_files import HASH_COLUMN

__all__ = ["MAX_STATISTIC_CHARACTERS", "column_statistics"]

MAX_STATISTIC_CHARACTERS = 64
"""A text longer than this is no bound; the column then has none."""


def column_statistics(batches: Sequence[pa.RecordBatch]) -> list[ColumnStatistics]:
    """Return nulls, minimum and maximum of each key and value column over all batches, in the order of the columns.

    `_key_hash` is left out: its bounds are recorded per batch.

    Integers, booleans, floats and texts of at most 64 characters are given as they are; dates, times, timestamps
    and durations as the integer they are stored as. Both bounds are None where a type has no such form, where there
    is no value, where a text is longer, and where a float is NaN or infinite.

    Parameters
    ----------
    batches
        At least one, of one schema.

    Raises
    ------
    InvalidInputError
        If there is no batch.

    Examples
    --------
    >>> statistics = column_statistics([pa.record_batch({"n": pa.array([3, None, 1])})])[0]
    >>> statistics.null_count, statistics.min, statistics.max
    (1, 1, 3)
    """
    if not batches:
        raise InvalidInputError("statistics need at least one batch")
    table = pa.Table.from_batches(batches)
    return [
        _statistics(name, column)
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name != HASH_COLUMN
    ]


def _statistics(name: str, column: pa.ChunkedArray) -> ColumnStatistics:
    storage = _storage_type(column.type)
    minimum: Statistic = None
    maximum: Statistic = None
    if storage is not None and column.null_count < len(column):
        # The view keeps the bits: a timestamp becomes the integer that it is stored as.
        chunks = [chunk.view(storage) if storage != chunk.type else chunk for chunk in column.chunks]
        bounds = pc.min_max(pa.chunked_array(chunks, storage))
        minimum, maximum = bounds["min"].as_py(), bounds["max"].as_py()
        if not (_is_exact(minimum) and _is_exact(maximum)) or _has_nan(column):
            minimum = maximum = None
    return ColumnStatistics(column=name, null_count=column.null_count, min=minimum, max=maximum)


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


def _is_exact(bound: Statistic) -> bool:
    if isinstance(bound, str):
        return len(bound) <= MAX_STATISTIC_CHARACTERS
    return not isinstance(bound, float) or math.isfinite(bound)


def _has_nan(column: pa.ChunkedArray) -> bool:
    # min_max ignores NaN, so bounds would promise that there is none.
    return bool(pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
