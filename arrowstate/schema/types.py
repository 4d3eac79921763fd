"""Which Arrow types keys and values may have, and plain Python values as Arrow data of such a type.

Arrow takes Python values more freely than it casts: 1.5 would become the integer 1, a datetime would lose its
microseconds, a misspelt field of a struct would be dropped. Here all of these are refused, as the casts are.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate_formats.arrow_types import type_to_json

__all__ = ["CONVERSION_ERRORS", "check_type", "python_array", "python_scalar"]

CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What a conversion raises that does not go."""

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000}


def check_type(kind: Any, what: str) -> None:
    """Refuse a type that no run can hold, at any depth; `what` begins the message.

    Raises
    ------
    InvalidInputError
        If it is no Arrow type, or one that is a matter of layout only (dictionary, views) or cannot be stored.
    """
    if not isinstance(kind, pa.DataType):
        raise InvalidInputError(f"{what} needs an Arrow type, got {kind!r}; pass for example pa.int64()")
    try:
        type_to_json(kind)
    except InvalidInputError as error:
        raise InvalidInputError(f"{what}: {error}") from None
    if _has_view(kind):
        raise InvalidInputError(f"{what}: {kind} is not stored; declare string or binary in the place of its view")


def _has_view(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_view(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def python_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values as an array of a type; raises one of `CONVERSION_ERRORS` where a value does not fit."""
    array = pa.array(values, type=kind)
    _check_exact(values, kind)
    return array


def python_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return one Python value as a scalar of a type; raises one of `CONVERSION_ERRORS` if it does not fit."""
    scalar = pa.scalar(value, kind)
    _check_exact((value,), kind)
    return scalar


def _check_exact(values: Iterable[Any], kind: pa.DataType) -> None:
    """Raise TypeError where Arrow took a value but lost a part of it."""
    if pa.types.is_struct(kind):
        rows = [value for value in values if isinstance(value, Mapping)]
        names = {field.name for field in kind}
        for row in rows:
            if not names >= row.keys():
                raise TypeError(f"no field {', '.join(map(repr, row.keys() - names))} in {kind}")
        for field in kind:
            _check_exact([row.get(field.name) for row in rows], field.type)
    elif pa.types.is_map(kind):
        entries = [
            entry
            for value in values
            if value is not None
            for entry in (value.items() if isinstance(value, Mapping) else value)
        ]
        _check_exact([key for key, _ in entries], kind.key_type)
        _check_exact([item for _, item in entries], kind.item_type)
    elif pa.types.is_nested(kind):
        _check_exact([item for value in values if value is not None for item in value], kind.value_type)
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        for value in values:
            if isinstance(value, (float, np.floating, decimal.Decimal)):
                raise TypeError(f"{value!r} is no {kind}")
            if pa.types.is_temporal(kind) and _loses_time(value, kind):
                raise TypeError(f"{value!r} does not fit {kind}")


def _loses_time(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_date(kind):
        return isinstance(value, datetime.datetime)
    step = _MICROSECONDS.get(kind.unit, 1)
    part = value.microseconds if isinstance(value, datetime.timedelta) else getattr(value, "microsecond", 0)
    return bool(part % step)
