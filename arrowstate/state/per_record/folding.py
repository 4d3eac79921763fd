"""How a process function's values are folded, one after another, as plain values of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from arrowstate.errors import ValueOverflowError, ValueTypeError
from arrowstate.schema.descriptors import ReducingStateDescriptor
from arrowstate.schema.plain import copying, fitting, rounding, same
from arrowstate.state.current_key import instant
from arrowstate.state.folds.reducers import PLAIN_FOLDS, fits_in


def given_of(descriptor: ReducingStateDescriptor) -> Callable[[Any], Any]:
    """Return what gives a value to be added as the type has it; what is counted may be anything."""
    reduce, name = descriptor.reduce, descriptor.name
    if not isinstance(reduce, Mapping):
        return same if reduce == "count" else fitting(descriptor.type, name)
    fields = {
        field.name: same if reduce[field.name] == "count" else fitting(field.type, name) for field in descriptor.type
    }

    def given(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not set(value) <= set(fields):
            raise ValueTypeError(name, f"a mapping of {', '.join(fields)}", repr(value))
        return {field: fields[field](item) for field, item in value.items() if item is not None}

    return given


def fold_of(descriptor: ReducingStateDescriptor, *, merging: bool = False) -> Callable[[Any, Any], Any]:
    """Return what folds a value as the type has it, or where `merging` a result, into an old one or None."""
    reduce = descriptor.reduce
    if isinstance(reduce, str):
        return _fold_of_column(reduce, descriptor.type, descriptor.name, merging)
    if not isinstance(reduce, Mapping):
        return _fold_of_callable(reduce, descriptor.type, descriptor.name)
    folds = {
        field.name: _fold_of_column(reduce[field.name], field.type, f"{descriptor.name}.{field.name}", merging)
        for field in descriptor.type
    }
    empty = {name: 0 if reduce[name] == "count" else None for name in folds}

    def fold(old: Any, new: Any) -> Any:
        out = dict(empty if old is None else old)
        for name, value in new.items():
            if value is not None:
                out[name] = folds[name](out[name], value)
        return out

    return fold


def _fold_of_callable(reduce: Callable[[Any, Any], Any], kind: pa.DataType, name: str) -> Callable[[Any, Any], Any]:
    fit = fitting(kind, name)
    kept = copying(kind)

    def fold(old: Any, new: Any) -> Any:
        if old is None:
            return new
        # A callable that changes what it was given, and raises, must not have changed the state.
        folded = reduce(kept(old), new)
        return None if folded is None else fit(folded)

    return fold


def _fold_of_column(reduce: str, kind: pa.DataType, where: str, merging: bool) -> Callable[[Any, Any], Any]:
    if reduce == "count" and not merging:
        return lambda old, _: 1 if old is None else old + 1
    fold = PLAIN_FOLDS["sum" if reduce == "count" else reduce]
    if reduce in ("min", "max") and pa.types.is_timestamp(kind) and kind.tz is not None:
        return _by_instant(fold)
    if reduce not in ("count", "sum", "product") or kind == pa.float64():
        return lambda old, new: new if old is None else fold(old, new)
    exact = _stored_of(reduce, kind, where)
    return lambda old, new: new if old is None else exact(fold, old, new)


def _by_instant(fold: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return what chooses the moment of two that a fold chooses of them in UTC."""

    def chosen(old: Any, new: Any) -> Any:
        if old is None:
            return new
        before = instant(old)
        return old if fold(before, instant(new)) is before else new

    return chosen


def _stored_of(reduce: str, kind: pa.DataType, where: str) -> Callable[..., Any]:
    """Return what folds two values by a sum or product, and gives the result as the type has it."""
    rounded = rounding(kind)
    if rounded is not None:
        return lambda fold, old, new: rounded(fold(old, new))
    if pa.types.is_duration(kind):
        # Python's and pandas' durations end elsewhere than those of the type.
        fit = fitting(kind, where)

        def duration(fold: Callable[[Any, Any], Any], old: Any, new: Any) -> Any:
            try:
                return fit(fold(old, new))
            except (OverflowError, ValueError) as error:
                raise ValueOverflowError(where, reduce, str(kind)) from error

        return duration
    is_one = fits_in(kind)
    # A product of decimals comes without the zeros at its end.
    fit = fitting(kind, where) if pa.types.is_decimal(kind) else same

    def checked(fold: Callable[[Any, Any], Any], old: Any, new: Any) -> Any:
        total = fold(old, new)
        if not is_one(total):
            raise ValueOverflowError(where, reduce, str(kind))
        return fit(total)

    return checked
