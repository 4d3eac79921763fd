"""Taking values back from a reducing state: which reducers can, and values as the amounts they add.

A sum and a count are groups: what was added is taken back by adding its opposite, in any order. So values that are
added and values that are taken back become one column of amounts, which is summed. A mean is a count and a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, ValueOverflowError
from arrowstate.schema.aggregates import Mean
from arrowstate.schema.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from arrowstate.schema.keys import value_array

_RETRACTABLE = ("sum", "count")


def check_retractable(descriptor: ReducingStateDescriptor | AggregatingStateDescriptor) -> None:
    """Refuse a state that cannot take a value back."""
    if isinstance(descriptor, AggregatingStateDescriptor):
        if not isinstance(descriptor.declared, Mean):
            raise InvalidInputError(
                f"state {descriptor.name!r}: {descriptor.declared.name} cannot take back a value; of the aggregates "
                "mean can, and a map state that holds the rows by their own key can drop one"
            )
        return
    for path, reduce, kind in _fields(descriptor):
        if reduce not in _RETRACTABLE:
            raise InvalidInputError(
                f"state {path!r}: {reduce} cannot take back a value, because what it was before is not kept; sum and "
                "count can, and a map state that holds the rows by their own key can drop one"
            )
        if pa.types.is_unsigned_integer(kind):
            raise InvalidInputError(
                f"state {path!r}: a sum of {kind} cannot take back a value, because it has no negative numbers; "
                "declare a signed type"
            )


def row_flags(given: Any, rows: int, state: str, what: str) -> pa.BooleanArray:
    """Return which rows of a batch are meant, one a row."""
    flags = value_array(given, pa.bool_(), rows, state)
    if flags.null_count:
        raise InvalidInputError(f"state {state!r}: {what} must say true or false for each row, got a null")
    return flags


def amounts(descriptor: ReducingStateDescriptor, given: pa.Array, retracted: pa.BooleanArray) -> pa.Array:
    """Return what each value adds to sums and counts: its opposite where it is taken back, ones for what is counted."""
    fields = _fields(descriptor)
    if not isinstance(descriptor.reduce, Mapping):
        return _amounts(*fields[0], given, retracted)
    columns = [
        _amounts(*field, column, retracted) for field, column in zip(fields, given.flatten(), strict=True)
    ]  # fmt: skip
    return pa.StructArray.from_arrays(
        columns, fields=list(descriptor.type), mask=given.is_null() if given.null_count else None
    )


def without_empty(descriptor: ReducingStateDescriptor, values: pa.Array) -> pa.Array:
    """Return the values with null, which removes the key, where counts and sums have all come back to zero.

    A state that only sums keeps its zeros: nothing tells the sum of no values from one that happens to be zero.
    """
    if not any(reduce == "count" for _, reduce, _ in _fields(descriptor)):
        return values
    empty = np.ones(len(values), dtype=np.bool_)
    for column in values.flatten() if isinstance(descriptor.reduce, Mapping) else [values]:
        numbers = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
        zero = pc.equal(numbers, pa.scalar(0, numbers.type))
        empty &= pc.fill_null(zero, True).to_numpy(zero_copy_only=False)
    if not empty.any():
        return values
    return values.take(pa.array(np.arange(len(values)), mask=empty))


def _fields(descriptor: ReducingStateDescriptor) -> list[tuple[str, str, pa.DataType]]:
    """What has a reducer of its own: (path, reducer, type)."""
    name, reduce = descriptor.name, descriptor.reduce
    if isinstance(reduce, Mapping):
        return [(f"{name}.{field.name}", reduce[field.name], field.type) for field in descriptor.type]
    return [(name, reduce if isinstance(reduce, str) else "a Python callable", descriptor.type)]


def _amounts(path: str, reduce: str, kind: pa.DataType, given: pa.Array, retracted: pa.BooleanArray) -> pa.Array:
    if reduce == "count":
        ones = np.where(retracted.to_numpy(zero_copy_only=False), -1, 1)
        return pa.array(ones, mask=given.is_null().to_numpy(zero_copy_only=False))
    # Arrow negates decimals of 128 and 256 bits only.
    narrow = pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind)
    values = given.cast(pa.decimal128(kind.precision, kind.scale)) if narrow else given
    try:
        opposite = pc.negate_checked(pc.if_else(retracted, values, pa.nulls(len(values), values.type)))
    except pa.ArrowInvalid:
        raise ValueOverflowError(path, reduce, str(kind)) from None
    return pc.if_else(retracted, opposite, values).cast(kind)
