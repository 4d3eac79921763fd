"""Stored values as plain Python ones, and plain values as a type stores them.

What scalar verbs and process functions return is of Python's own types. Where a stored value has no such counterpart
(a time with nanoseconds, a date after the year 9999) the read is refused: a value is never cut.
"""

from __future__ import annotations

import copy
import ctypes
import datetime
import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.types import CONVERSION_ERRORS, is_text, leaves, python_scalar, shown_misfit, type_parts


def plain_values(values: pa.Array, what: str) -> list[Any]:
    """Return all values of an array as plain ones; `what` begins the message of an error."""
    try:
        if _has_nanosecond_times(values.type):
            _check_times(values)
        return values.to_pylist()
    except (OverflowError, ValueError) as error:
        raise _no_counterpart(values.type, error, what) from error


def plain_value(scalar: pa.Scalar, what: str) -> Any:
    """Return a scalar as a plain value; arguments and errors are those of `plain_values`."""
    try:
        if _has_nanosecond_times(scalar.type):
            _check_times(column_of([scalar], scalar.type))
        return scalar.as_py()
    except (OverflowError, ValueError) as error:
        raise _no_counterpart(scalar.type, error, what) from error


def _no_counterpart(kind: pa.DataType, error: Exception, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what}: the {kind} has no counterpart in Python ({error}); read it with get_batch or to_arrow, or cast it "
        "before"
    )


@functools.cache
def _has_nanosecond_times(kind: pa.DataType) -> bool:
    return any(part == pa.time64("ns") for part in type_parts(kind))


def _check_times(values: pa.Array) -> None:
    """Raise ValueError where Python's time would lose nanoseconds, which Arrow lets pass."""
    for leaf in leaves(values):
        if leaf.type == pa.time64("ns"):
            numbers = leaf.drop_null().view(pa.int64()).to_numpy()
            cut = numbers[numbers % 1000 != 0]
            if cut.size:
                raise ValueError(f"{cut[0]} ns are between two microseconds")


def column_of(scalars: list[pa.Scalar | None], kind: pa.DataType) -> pa.Array:
    """Return scalars of a type, None for a null, as an array of this type."""
    if not pa.types.is_nested(kind):
        return pa.array(scalars, kind)
    # Of the scalar of a list that holds a null list, and of other nested ones, pa.array makes no array.
    one = [pa.nulls(1, kind) if scalar is None else pa.repeat(scalar, 1) for scalar in scalars]
    return pa.concat_arrays([pa.array([], kind), *one])


def fitting(kind: pa.DataType, name: str) -> Callable[[Any], Any]:
    """Return what gives a value, which is not None, as a state of a type stores it: what a read returns afterwards.

    The function raises ValueTypeError at a value that does not fit; `name` is that of the state.
    """

    def converted(value: Any) -> Any:
        try:
            scalar = python_scalar(value, kind)
        except CONVERSION_ERRORS as error:
            raise ValueTypeError(name, str(kind), shown_misfit(value, kind)) from error
        return plain_value(scalar, f"state {name!r}")

    if pa.types.is_struct(kind):
        return _struct(kind, name, converted)
    if pa.types.is_integer(kind):
        lowest, highest = integer_bounds(kind)
        return lambda value: value if type(value) is int and lowest <= value <= highest else converted(value)
    if is_text(kind):
        return _text(converted)
    if kind == pa.timestamp("us"):
        moment = datetime.datetime
        return lambda value: value if type(value) is moment and value.tzinfo is None else converted(value)
    plain = _PLAIN.get(kind)
    return converted if plain is None else lambda value: value if type(value) is plain else converted(value)


def integer_bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the lowest and the highest integer of a type, in which no integer is if it has none."""
    if not pa.types.is_integer(kind):
        return 1, 0
    if pa.types.is_signed_integer(kind):
        return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
    return 0, (1 << kind.bit_width) - 1


def _text(converted: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def encoded(value: Any) -> Any:
        if type(value) is not str:
            return converted(value)
        try:
            value.encode()
        except UnicodeEncodeError:
            return converted(value)
        return value

    return lambda value: value if type(value) is str and value.isascii() else encoded(value)


def _struct(kind: pa.StructType, name: str, converted: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what gives a dict with all fields, each by itself, and any other struct as a whole."""
    fits = {field.name: fitting(field.type, name) for field in kind}
    if len(fits) < kind.num_fields or not all(field.nullable for field in kind):
        return converted

    def fitted(value: Any) -> Any:
        if type(value) is not dict or len(value) != len(fits):
            return converted(value)
        try:
            return {field: None if (item := value[field]) is None else fit(item) for field, fit in fits.items()}
        except (InvalidInputError, KeyError, ValueTypeError):
            # The error of the whole says where in it the fault is.
            return converted(value)

    return fitted


def copying(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what copies a plain value of a type, so that whoever changes the copy leaves the value as it was."""
    if not pa.types.is_nested(kind):
        return same
    nested = any(pa.types.is_nested(kind.field(number).type) for number in range(kind.num_fields))
    # What stands in a list or a dict of plain values cannot be changed.
    return copy.deepcopy if nested else copy.copy


def keeping(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what keeps a value of a type as it was given: a copy, unless it is a tuple of what cannot be changed."""
    copied = copying(kind)
    return (lambda value: value if isinstance(value, tuple) else copied(value)) if copied is copy.copy else copied


def same(value: Any) -> Any:
    """Return what was given."""
    return value


# What is of these types in Python is a value of the type in Arrow as it stands.
_PLAIN: dict[pa.DataType, type] = {
    pa.float64(): float,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.large_binary(): bytes,
    pa.date32(): datetime.date,
}


def rounding(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what rounds a sum of floats to a type, with infinity beyond its range; None for other types."""
    if kind == pa.float32():
        return lambda value: ctypes.c_float(value).value
    if kind == pa.float16():
        return lambda value: pa.scalar(value, kind).as_py()
    return None
