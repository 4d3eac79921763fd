"""State descriptors: the name, type and rule of a state, given by the operator that uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.types import CONVERSION_ERRORS, check_type, python_scalar
from arrowstate_formats.names import check_column_name, check_state_name

__all__ = ["REDUCERS", "ReducingStateDescriptor", "StateDescriptor", "ValueStateDescriptor"]

REDUCERS = ("sum", "min", "max", "count", "first", "last")


def _check_type(name: str, kind: pa.DataType) -> None:
    check_type(kind, f"state {name!r}")
    if pa.types.is_struct(kind):
        names = [check_column_name(item.name) for item in kind]
        if len({item.lower() for item in names}) < len(names):
            raise InvalidInputError(
                f"the fields of state {name!r} must differ in more than case, got {', '.join(names)}; rename one"
            )


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor:
    """One value per key.

    Parameters
    ----------
    name
        Unique within the operator.
    type
        The Arrow type of the value; a struct becomes one column per field.
    default
        What a read returns for a key without a value; a plain Python value, copied at each read.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> arrowstate.ValueStateDescriptor("last_seen", pa.timestamp("us", tz="UTC")).name
    'last_seen'
    """

    name: str
    type: pa.DataType
    default: Any = None
    kind: Literal["value"] = field(default="value", init=False)

    def __post_init__(self) -> None:
        check_state_name(self.name)
        _check_type(self.name, self.type)
        if self.default is not None:
            try:
                python_scalar(self.default, self.type)
            except CONVERSION_ERRORS as error:
                raise InvalidInputError(
                    f"the default of state {self.name!r} must be of type {self.type}, got {self.default!r}: {error}"
                ) from None


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor:
    """One value per key, into which each added value is folded.

    Parameters
    ----------
    name
        Unique within the operator.
    type
        The Arrow type of the value; int64 for `count`.
    reduce
        `sum`, `min`, `max`, `count`, `first` or `last`. For a struct type also a mapping of each field to one
        of them: the fields then reduce on their own, and a null field is passed over.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> delays = arrowstate.ReducingStateDescriptor(
    ...     "delays",
    ...     pa.struct([("flights", pa.int64()), ("longest", pa.float64())]),
    ...     reduce={"flights": "count", "longest": "max"},
    ... )
    """

    name: str
    type: pa.DataType
    reduce: str | Mapping[str, str] = field(kw_only=True)
    kind: Literal["reducing"] = field(default="reducing", init=False)

    def __post_init__(self) -> None:
        check_state_name(self.name)
        _check_type(self.name, self.type)
        if isinstance(self.reduce, str):
            self._check(self.reduce, self.type, f"state {self.name!r}")
            return
        if not pa.types.is_struct(self.type):
            raise InvalidInputError(
                f"state {self.name!r} has one reducer per field but its type is {self.type}; declare a struct type"
            )
        fields = {item.name: item.type for item in self.type}
        if set(fields) != set(self.reduce):
            raise InvalidInputError(
                f"the reducers of state {self.name!r} must name each field once: fields {', '.join(fields)}; "
                f"given {', '.join(self.reduce)}"
            )
        object.__setattr__(self, "reduce", {name: self.reduce[name] for name in fields})
        for name, kind in fields.items():
            self._check(self.reduce[name], kind, f"field {name!r} of state {self.name!r}")

    def __hash__(self) -> int:
        return hash((self.name, self.type, str(self.reduce)))

    @staticmethod
    def _check(reduce: str, kind: pa.DataType, where: str) -> None:
        if reduce not in REDUCERS:
            raise InvalidInputError(f"{where}: the reducer must be one of {', '.join(REDUCERS)}; got {reduce!r}")
        if reduce == "count" and kind != pa.int64():
            raise InvalidInputError(f"{where}: count needs the type int64, got {kind}; declare pa.int64()")
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if reduce == "sum" and not (number or pa.types.is_duration(kind)):
            raise InvalidInputError(f"{where}: sum needs a number or a duration, got {kind}; choose another reducer")
        ordered = number or pa.types.is_temporal(kind) or pa.types.is_boolean(kind)
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if reduce in ("min", "max") and (not (ordered or text or binary) or pa.types.is_interval(kind)):
            raise InvalidInputError(f"{where}: {reduce} needs a type with an order, got {kind}; use first or last")


StateDescriptor = ValueStateDescriptor | ReducingStateDescriptor
