"""Filters that Spark pushes down: which of them Arrow answers exactly as Spark would, and which keys they name.

Only comparisons whose result is the same in both are taken: not those on floating-point columns, where Spark
has one NaN that is larger than everything and equal to itself. What is not taken stays with Spark.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

__all__ = ["arrow_filter", "key_lookup"]

_MOST_KEYS = 10_000
"""A filter that names more keys than this is answered by a scan, which then costs less than so many lookups."""

_COMPARISONS: Mapping[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_TEXT_TESTS: Mapping[type[Filter], Callable[..., pc.Expression]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


def arrow_filter(item: Filter, schema: pa.Schema) -> pc.Expression | None:
    """Return the Arrow expression that is true for the rows that a filter of Spark keeps, or None if there is none.

    Parameters
    ----------
    item
        A filter that Spark offers.
    schema
        The columns of the table, by their stored types.

    Examples
    --------
    >>> arrow_filter(GreaterThan(("n",), 3), pa.schema([("n", pa.int64())]))
    <pyarrow.compute.Expression (n > 3)>
    """
    if isinstance(item, Not):
        inner = arrow_filter(item.child, schema)
        if inner is None or not isinstance(item.child, In):
            # The negation of a null is a null in both, and keeps no row.
            return None if inner is None else ~inner
        # Arrow's membership test is false for a null, not null: its negation would keep the row.
        return ~inner & pc.field(_column(item.child)).is_valid()
    name = _column(item)
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    column = pc.field(name)
    if isinstance(item, IsNull):
        return column.is_null()
    if isinstance(item, IsNotNull):
        return column.is_valid()
    values = _scalars(_values(item), kind)
    if values is None:
        return None
    if isinstance(item, In):
        return column.isin(values) if values else None
    if isinstance(item, EqualNullSafe):
        return (column == values[0]) & column.is_valid()
    if type(item) in _COMPARISONS:
        return _COMPARISONS[type(item)](column, values[0])
    if type(item) in _TEXT_TESTS and _is_text(kind):
        return _TEXT_TESTS[type(item)](column, values[0].as_py())
    return None


def key_lookup(items: Iterable[Filter], key: pa.Schema) -> pa.RecordBatch | None:
    """Return the only keys that can pass the filters, or None if these do not name whole keys.

    Parameters
    ----------
    items
        Filters of which all must hold.
    key
        The key schema.

    Returns
    -------
    pyarrow.RecordBatch or None
        Distinct keys with the key schema.

    Examples
    --------
    >>> key_lookup([In(("n",), (3, 5))], pa.schema([("n", pa.int64())])).to_pydict()
    {'n': [3, 5]}
    """
    choices: dict[str, Sequence[pa.Scalar]] = {}
    for item in items:
        name = _column(item)
        if name in key.names and isinstance(item, (EqualTo, EqualNullSafe, In)):
            values = _scalars(_values(item), key.field(name).type)
            if values is not None and (name not in choices or len(values) < len(choices[name])):
                choices[name] = values
    if len(choices) < len(key) or math.prod(map(len, choices.values())) > _MOST_KEYS:
        return None
    rows = {tuple(value.as_py() for value in row) for row in itertools.product(*(choices[name] for name in key.names))}
    columns = list(zip(*sorted(rows), strict=True)) or [()] * len(key)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, key, strict=True)], schema=key
    )


def _column(item: Filter) -> str:
    """The column a filter is on; empty, which no column is named, if it is inside a struct."""
    path: tuple[str, ...] = () if isinstance(item, Not) else item.attribute  # type: ignore[attr-defined]
    return path[0] if len(path) == 1 else ""


def _values(item: Filter) -> tuple[Any, ...]:
    value = item.value  # type: ignore[attr-defined]
    return tuple(value) if isinstance(item, In) else (value,)


def _scalars(values: Sequence[Any], kind: pa.DataType) -> list[pa.Scalar] | None:
    """The values in the column's type; None if one is null or has no exact place in it."""
    types = pa.types
    plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_date32(kind) or types.is_decimal128(kind)
    binary = types.is_binary(kind) or types.is_large_binary(kind)
    timestamp = types.is_timestamp(kind) and kind.unit == "us"
    if not (plain or binary or timestamp or _is_text(kind)):
        return None
    try:
        scalars = [pa.scalar(value, type=kind) for value in values]
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    # A float would be cut to an integer in silence.
    exact = all(scalar.is_valid and scalar.as_py() == value for scalar, value in zip(scalars, values, strict=True))
    return scalars if exact else None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
