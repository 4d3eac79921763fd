"""Built-in reducers, vectorised over the groups of a batch.

A group is the rows of one key; its old value, if there is one, comes before them. Nulls are passed over
here: what a null means for a whole value is decided by the state. Integers are added and multiplied exactly
or refused, floats in float64; for `min` and `max` NaN is larger than every other number, as in Spark and DuckDB.
"""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import ProcessElementError, ValueOverflowError, ValueTypeError
from arrowstate.schema.plain import plain_values
from arrowstate.schema.types import CONVERSION_ERRORS, python_array, shown_misfit
from arrowstate.shown import error_text
from arrowstate.state.folds.decimals import by_group, fold_decimals
from arrowstate.table.columns import sort_order, take
from arrowstate_formats.compiled import Kernel, kernel, subroutine
from arrowstate_formats.key_hash import fixed_dtype

Ints = npt.NDArray[np.int64]

_SUM, _PRODUCT, _MIN, _MAX, _FIRST, _LAST = range(6)
# False is less than true: whether all are true is the least of them, whether any is the greatest.
_CODES = {
    "sum": _SUM,
    "product": _PRODUCT,
    "min": _MIN,
    "all": _MIN,
    "max": _MAX,
    "any": _MAX,
    "first": _FIRST,
    "last": _LAST,
}
_IN_PARTS = frozenset(["min", "max", "all", "any", "bit_and", "bit_or"])


def _add(
    _code: Any, values: Any, valid: Any, order: Any, starts: Any, result: Any, filled: Any, lowest: Any, highest: Any
) -> Any:
    # result and filled hold the old values on entry and the new ones on return.
    # Returns the first group whose sum leaves the range lowest to highest, or -1; an empty range means no check.
    check = lowest < highest
    all_valid = valid.size == 0
    for group in range(starts.size - 1):
        current = result[group]
        have = filled[group]
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            if not (all_valid or valid[row]):
                continue
            value = values[row]
            if have:
                # Compared before the addition: the compiler takes for granted that no addition overflows.
                if check and (current > highest - value if value > 0 else current < lowest - value):
                    return group
                current += value
            else:
                current = value
                have = True
        result[group] = current
        filled[group] = have
    return -1


def _choose(
    code: Any, values: Any, valid: Any, order: Any, starts: Any, result: Any, filled: Any, _lowest: Any, _highest: Any
) -> Any:
    # As _add, for the reducers that keep one of the values.
    all_valid = valid.size == 0
    for group in range(starts.size - 1):
        current = result[group]
        have = filled[group]
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            if not (all_valid or valid[row]):
                continue
            value = values[row]
            if not have:
                current = value
                have = True
            elif code == _MIN:
                if value < current or current != current:
                    current = value
            elif code == _MAX:
                if value > current or value != value:
                    current = value
            elif code == _LAST:
                current = value
        result[group] = current
        filled[group] = have
    return -1


@subroutine
def _magnitude(value: Any) -> Any:
    # The lowest int64 has one that only uint64 holds.
    return np.uint64(value) if value >= 0 else np.uint64(-(value + 1)) + np.uint64(1)


@subroutine
def _leaves(left: Any, right: Any, highest: Any) -> Any:
    # Whether a product of integers leaves the range of a type: a negative one may be one further from zero.
    if left == 0 or right == 0:
        return False
    furthest = np.uint64(highest)
    if (left < 0) != (right < 0):
        furthest += np.uint64(1)
    return _magnitude(left) > furthest // _magnitude(right)


def _multiply(
    _code: Any, values: Any, valid: Any, order: Any, starts: Any, result: Any, filled: Any, lowest: Any, highest: Any
) -> Any:
    # As _add, for products.
    check = lowest < highest
    all_valid = valid.size == 0
    for group in range(starts.size - 1):
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            if not (all_valid or valid[row]):
                continue
            value = values[row]
            if filled[group]:
                if check and _leaves(result[group], value, highest):
                    return group
                value *= result[group]
            result[group] = value
            filled[group] = True
    return -1


def _for_numbers(function: Callable[..., Any]) -> dict[np.dtype[Any], Kernel]:
    return {
        np.dtype(name): kernel(
            f"int64, {name}[], boolean[], int64[], int64[], out {name}[], out boolean[], {name}, {name}"
        )(function)
        for name in ("int64", "uint64", "float64")
    }


# Apart, for a script that adds need not compile how others are folded.
_ADD = _for_numbers(_add)
_CHOOSE = _for_numbers(_choose)
_MULTIPLY = _for_numbers(_multiply)


def _reduce_bits(
    is_and: bool, values: Any, valid: npt.NDArray[np.bool_], order: Ints, starts: Ints, result: Any, filled: Any
) -> None:
    # result and filled as in _add. What is not there is replaced by what changes nothing.
    combine = np.bitwise_and if is_and else np.bitwise_or
    nothing = ~values.dtype.type(0) if is_and else values.dtype.type(0)
    if valid.size:
        values = np.where(valid, values, nothing)
    result[~filled] = nothing
    combine(result, by_group(combine, values[order], starts, nothing), out=result)
    filled |= _counts(valid, order, starts) > 0


def _counts(valid: npt.NDArray[np.bool_], order: Ints, starts: Ints) -> Ints:
    """Return how many values of each group are valid."""
    return np.diff(starts) if not valid.size else by_group(np.add, valid[order].astype(np.int64), starts, 0)


def reduce_column(
    reduce: str, values: pa.Array, order: Ints, starts: Ints, old: pa.Array, kind: pa.DataType, where: str
) -> pa.Array:
    """Fold the values of each group into its old value."""
    valid = _validity(values)
    if reduce == "count":
        return pa.array(pc.fill_null(old, 0).to_numpy(zero_copy_only=False) + _counts(valid, order, starts))
    if pa.types.is_decimal(kind) and reduce in ("sum", "product"):
        return fold_decimals(reduce, values, valid, order, starts, old, where)
    numbers = None if reduce in ("first", "last") else _as_numbers(values)
    if numbers is None:
        return _reduce_by_rank(reduce, values, valid, order, starts, old)
    before = _as_numbers(old)
    assert before is not None, "it is of the type of the values"
    result = before.copy()
    filled = _filled(old)
    if reduce in ("bit_and", "bit_or"):
        _reduce_bits(reduce == "bit_and", numbers, valid, order, starts, result, filled)
        return _from_numbers(result, filled, kind)
    lowest, highest = _range(kind) if reduce in ("sum", "product") else (0, 0)
    number = result.dtype.type
    folds = {"sum": _ADD, "product": _MULTIPLY}.get(reduce, _CHOOSE)
    group = folds[result.dtype](
        _CODES[reduce], numbers, valid, order, starts, result, filled, number(lowest), number(highest)
    )
    if group >= 0:
        raise ValueOverflowError(where, reduce, str(kind))
    return _from_numbers(result, filled, kind)


def may_fold_in_parts(reduce: str, values: pa.Array) -> bool:
    """Return whether values may be folded in parts, and these in any order, with the result and the errors of one fold.

    Floats are not: a sum is rounded at each step, and zeros of both signs are equal.
    """
    if reduce == "count":
        return True
    if reduce == "sum" and pa.types.is_integer(values.type):
        # Sums of both signs may leave the type on the way and come back.
        bounds = pc.min_max(values).as_py()
        return bounds["min"] is None or bounds["min"] >= 0 or bounds["max"] <= 0
    return reduce in _IN_PARTS and not pa.types.is_floating(values.type) and not pa.types.is_nested(values.type)


def reduce_by_callable(
    reduce: Callable[[Any, Any], Any],
    values: pa.Array,
    order: Ints,
    starts: Ints,
    old: pa.Array,
    where: str,
    late: npt.NDArray[np.bool_] | None = None,
) -> tuple[pa.Array, dict[int, int]]:
    """Fold the values of each group into its old value by a Python callable, one after the other.

    Arguments are those of `reduce_column`, and so is the first result. What comes after a None that the callable
    returns starts anew, and so does what comes after rows that are `late`: they expire as they are written, unless an
    earlier row lasts. The second result says for such groups from which place of `order` on values are in the result.
    """
    what = f"state {where!r}"
    plain, results = plain_values(values, what), plain_values(old, what)
    rows, borders = order.tolist(), starts.tolist()
    row = 0
    anew: dict[int, int] = {}
    try:
        for group, current in enumerate(results):
            lasts = current is not None
            for place, row in enumerate(rows[borders[group] : borders[group + 1]], borders[group]):
                value = plain[row]
                if value is not None:
                    if not lasts and current is not None:
                        current, anew[group] = None, place
                    current = value if current is None else reduce(current, value)
                    lasts = current is not None and (lasts or late is None or not late[row])
                    if current is None:
                        anew[group] = place + 1
            results[group] = current
    except Exception as error:
        raise ProcessElementError(row, error_text(error)) from error
    try:
        return python_array(results, old.type), anew
    except CONVERSION_ERRORS:
        for group, value in enumerate(results):
            try:
                python_array([value], old.type)
            except CONVERSION_ERRORS as error:
                row = rows[borders[group + 1] - 1]
                raise ProcessElementError(
                    row, str(ValueTypeError(where, str(old.type), shown_misfit(value, old.type)))
                ) from error
        raise


def _range(kind: pa.DataType) -> tuple[int, int]:
    """Return the bounds that a sum or product must keep; none for others than integers: floats go to infinity."""
    if not (pa.types.is_integer(kind) or pa.types.is_duration(kind)):
        return 0, 0
    bounds = np.iinfo(fixed_dtype(kind))
    return int(bounds.min), int(bounds.max)


def _validity(values: pa.Array) -> npt.NDArray[np.bool_]:
    if not values.null_count:
        return np.empty(0, dtype=np.bool_)
    return _filled(values)


def _filled(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.array(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _as_numbers(values: pa.Array) -> npt.NDArray[Any] | None:
    """View a numeric, temporal or boolean column as int64, uint64 or float64; None for other types."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    kind = values.type
    target = (
        np.float64
        if pa.types.is_floating(kind)
        else np.uint64
        if pa.types.is_unsigned_integer(kind)
        else np.int64
    )  # fmt: skip
    # The bytes under a null are never used, so the buffer serves as it is.
    data = values.buffers()[1]
    raw: npt.NDArray[Any] = np.frombuffer(data, dtype=fixed_dtype(kind), count=values.offset + len(values))
    return raw[values.offset :].astype(target, copy=False)


def _from_numbers(result: npt.NDArray[Any], filled: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    mask = None if filled.all() else ~filled
    array = pa.array(result, mask=mask)
    if pa.types.is_boolean(kind):
        return array.cast(pa.bool_())
    if pa.types.is_temporal(kind):
        return array.cast(pa.int32()).view(kind) if kind.bit_width == 32 else array.view(kind)
    return array.cast(kind, safe=not pa.types.is_floating(kind))


def _reduce_by_rank(
    reduce: str, values: pa.Array, valid: npt.NDArray[np.bool_], order: Ints, starts: Ints, old: pa.Array
) -> pa.Array:
    """Pick one row per group: by position for first and last, by rank for min and max."""
    both = pa.concat_arrays([old, values])
    by_rank = sort_order(both) if reduce in ("min", "max") else np.arange(len(both), dtype=np.int64)
    ranks = np.empty(len(both), dtype=np.int64)
    ranks[by_rank] = np.arange(len(both), dtype=np.int64)
    result, filled = ranks[: len(old)].copy(), _filled(old)
    _CHOOSE[result.dtype](_CODES[reduce], ranks[len(old) :], valid, order, starts, result, filled, 0, 0)
    picked = by_rank[result]
    if not filled.all():
        return both.take(pa.array(picked, mask=~filled))
    return take(both, picked)


def _less(left: Any, right: Any) -> bool:
    # NaN is the one value that differs from itself, and it is the largest.
    return bool(left < right or (right != right and left == left))


def reduce_scalar(reduce: str, old: pa.Scalar | None, new: pa.Scalar, where: str) -> pa.Scalar:
    """Fold one value into the old one, if there is one; for every reducer but `count`."""
    if old is None or reduce == "last":
        return new
    if reduce == "first":
        return old
    before, value = _plain(old), _plain(new)
    folded = PLAIN_FOLDS[reduce](before, value)
    if folded is before or folded is value:
        return old if folded is before else new
    if not fits_in(new.type)(folded):
        raise ValueOverflowError(where, reduce, str(new.type))
    return pa.scalar(folded, new.type)


def fits_in(kind: pa.DataType) -> Callable[[Any], bool]:
    """Return what tells whether a sum or product of plain values of a type is one of the type too."""
    if pa.types.is_decimal(kind):
        # Arrow itself lets some decimals with a digit too many pass, as another number.
        digits, scale = kind.precision - kind.scale, kind.scale
        return lambda given: not given or (-given.as_tuple().exponent <= scale and given.adjusted() < digits)
    lowest, highest = _range(kind)
    return (lambda given: lowest <= given <= highest) if lowest < highest else lambda _: True


def _sum(before: Any, value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        with decimal.localcontext(prec=80):
            return before + value
    return before + value


def _product(before: Any, value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        with decimal.localcontext(prec=160):
            # Zeros at its end would count as digits.
            return (before * value).normalize()
    return before * value


def _lower(before: Any, value: Any) -> Any:
    return value if _less(value, before) else before


def _higher(before: Any, value: Any) -> Any:
    return value if _less(before, value) else before


PLAIN_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": _sum,
    "product": _product,
    "min": _lower,
    "all": _lower,
    "max": _higher,
    "any": _higher,
    "first": lambda before, _: before,
    "last": lambda _, value: value,
    "bit_and": operator.and_,
    "bit_or": operator.or_,
}
"""What folds one plain Python value into another, for each reducer but `count`; the result need not fit the type."""


def _plain(scalar: pa.Scalar) -> Any:
    # Python's times have no nanoseconds and end in the year 9999; the integers behind them have the same order.
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
