"""What a pushed-down filter says: the columns it reads, the values a column is limited to, what it rules out.

An engine hands its filter over as a pyarrow expression, which has no public way to look inside; `pyarrow_internals`
lists its parts. That reading is never trusted: the expression is built anew from what was read, and only if Arrow says
that both are equal is it used. A filter that cannot be read this way prunes nothing; the rows are filtered by Arrow in
any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.query.duckdb.pyarrow_internals import parts_of
from arrowstate.schema.types import exactly
from arrowstate_formats.statistics import has_nan

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


class Column(Struct, frozen=True):
    """A column, or a field inside a struct column."""

    path: tuple[str, ...]


class Literal(Struct, frozen=True):
    """A constant."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other parts."""

    function: str
    arguments: tuple[Node, ...]
    value_set: pa.Array | None = None
    "The values of `is_in`."


Node: TypeAlias = Column | Literal | Call


Values: TypeAlias = npt.NDArray[Any]


class Bounds(Struct, frozen=True):
    """What is known of one column in each of a number of batches; both ends are inclusive."""

    kind: pa.DataType
    known: npt.NDArray[np.bool_]
    low: Values
    high: Values
    "Dates, times and durations as the integers they are stored as."


def read_filter(expression: pc.Expression) -> Node | None:
    """Return the parts of a filter, or None if it has parts that are not understood."""
    try:
        node = _Reader(expression).node()
        return node if _build(node).equals(expression) else None
    except (pa.ArrowException, LookupError, StopIteration, TypeError, ValueError):
        return None


class _Reader:
    """Reads the parts of an expression, which are listed in order."""

    def __init__(self, expression: pc.Expression) -> None:
        self._literals, parts = parts_of(expression)
        self._parts = iter(parts)

    def node(self) -> Node:
        return self._after(*next(self._parts))

    def _after(self, kind: str, text: str) -> Node:
        if kind == "field_ref":
            return Column((text,))
        if kind == "nested_field_ref":
            return Column(tuple(next(self._parts)[1] for _ in range(int(text))))
        if kind == "literal":
            return Literal(self._scalar(text))
        if kind != "call":
            raise ValueError(f"unexpected {kind}")
        arguments: list[Node] = []
        value_set = None
        for inner, inner_text in self._parts:
            if inner == "end":
                return Call(text, tuple(arguments), value_set)
            if inner == "options":
                options = self._scalar(inner_text)
                value_set = options["value_set"].values if "value_set" in options else None
            else:
                arguments.append(self._after(inner, inner_text))
        raise ValueError("the end is missing")

    def _scalar(self, text: str) -> Any:
        return self._literals.column(int(text))[0]


def _build(node: Node) -> pc.Expression:
    """Build the expression that the parts describe."""
    if isinstance(node, Column):
        return pc.field(*node.path)
    if isinstance(node, Literal):
        return pc.scalar(node.value)
    arguments = [_build(argument) for argument in node.arguments]
    if node.function == "is_in":
        return pc.is_in(*arguments, value_set=node.value_set, skip_nulls=False)
    return {
        "and_kleene": lambda left, right: left & right,
        "or_kleene": lambda left, right: left | right,
        "equal": lambda left, right: left == right,
        "not_equal": lambda left, right: left != right,
        "less": lambda left, right: left < right,
        "less_equal": lambda left, right: left <= right,
        "greater": lambda left, right: left > right,
        "greater_equal": lambda left, right: left >= right,
        "invert": lambda inner: ~inner,
        "is_nan": lambda inner: inner.is_nan(),
        "is_valid": lambda inner: inner.is_valid(),
        "is_null": lambda inner: inner.is_null(nan_is_null=False),
        "if_else": pc.if_else,
    }[node.function](*arguments)


def as_sql(expression: pc.Expression) -> pc.Expression:
    """Return a filter that passes NaN too where a number is to be greater than another, as SQL has it.

    To Arrow NaN is not greater than anything. DuckDB before 2.0 hands such comparisons over as if it were.
    """
    node = read_filter(expression)
    return expression if node is None else _build(_with_nan(node))


def _with_nan(node: Node) -> Node:
    if not isinstance(node, Call):
        return node
    compared = _compared(node)
    if compared is None:
        return Call(node.function, tuple(map(_with_nan, node.arguments)), node.value_set)
    column, function, literal = compared
    if not function.startswith("greater") or not pa.types.is_floating(literal.value.type):
        return node
    return Call("or_kleene", (node, Call("is_nan", (column,))))


def evaluate(node: Node, batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """Return for each row whether it passes, null where that is unknown; None if Arrow has no kernel for it.

    It calls the kernels that Arrow's own evaluation of the expression calls.
    """
    try:
        passes = _value(node, batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):  # Arrow has no kernel for these types
        return None
    if isinstance(passes, pa.Scalar):
        return pa.repeat(passes, batch.num_rows)
    return passes


def _value(node: Node, batch: pa.RecordBatch) -> Any:
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Column):
        value = batch.column(node.path[0])
        for name in node.path[1:]:
            value = pc.struct_field(value, name)
        return value
    arguments = [_value(argument, batch) for argument in node.arguments]
    if node.function == "is_in":
        return pc.is_in(*arguments, value_set=node.value_set, skip_nulls=False)
    if node.function == "is_null":
        return pc.is_null(*arguments, nan_is_null=False)
    return pc.call_function(node.function, arguments)


def columns_of(node: Node) -> set[str]:
    """Return the names of the columns that a filter reads."""
    if isinstance(node, Column):
        return {node.path[0]}
    if isinstance(node, Literal):
        return set()
    return set().union(*map(columns_of, node.arguments))


def values_of(node: Node, column: str, kind: pa.DataType) -> pa.Array | None:
    """Return all values that a column without nulls can have in rows that pass, or None if they are not limited.

    The values are distinct and of the given type; some of them may still not pass.
    """
    if isinstance(node, Literal):
        return None if node.value.is_valid and node.value.as_py() else pa.array([], kind)
    if isinstance(node, Column):
        return None
    if node.function in ("and_kleene", "or_kleene"):
        left, right = (values_of(argument, column, kind) for argument in node.arguments)
        if left is None or right is None:
            return (right if left is None else left) if node.function == "and_kleene" else None
        if node.function == "or_kleene":
            return pc.unique(pa.concat_arrays([left, right]))
        return left.filter(pc.is_in(left, value_set=right))
    if node.function == "if_else":
        condition, inner, otherwise = node.arguments
        is_guard = isinstance(condition, Call) and condition.function == "is_valid"
        fails = isinstance(otherwise, Literal) and not otherwise.value.is_valid
        return values_of(inner, column, kind) if is_guard and fails else None
    given = None
    if node.function == "is_in" and node.arguments == (Column((column,)),):
        given = node.value_set
    elif node.function == "equal":
        compared = _compared(node)
        if compared is not None and compared[0].path == (column,):
            given = pa.array([compared[2].value.as_py()], compared[2].value.type)
    if given is None:
        return None
    try:
        values = pc.cast(pc.drop_null(given), kind, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # no cast of Arrow's: the values stay unknown, so it scans
        return None
    return pc.unique(values)


def _compared(node: Call) -> tuple[Column, str, Literal] | None:
    """Return (column, function, literal) of a comparison between the two, whichever stands first."""
    if node.function not in _COMPARISONS:
        return None
    left, right = node.arguments
    if isinstance(left, Column) and isinstance(right, Literal):
        return left, node.function, right
    if isinstance(left, Literal) and isinstance(right, Column):
        return right, _MIRRORED.get(node.function, node.function), left
    return None


def may_match(node: Node, bounds: Mapping[str, Bounds], batches: int) -> npt.NDArray[np.bool_]:
    """Return for each batch whether it may hold a row that passes; false only where it certainly does not."""
    try:
        return _may_match(node, bounds, batches)
    except (TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):  # of a type that does not compare: no pruning
        return np.ones(batches, dtype=np.bool_)


def _may_match(node: Node, bounds: Mapping[str, Bounds], batches: int) -> npt.NDArray[np.bool_]:
    everything = np.ones(batches, dtype=np.bool_)
    if isinstance(node, Literal):
        return everything if node.value.is_valid and node.value.as_py() else ~everything
    if isinstance(node, Column):
        return everything
    if node.function in ("and_kleene", "or_kleene"):
        left, right = (_may_match(argument, bounds, batches) for argument in node.arguments)
        return left & right if node.function == "and_kleene" else left | right
    if node.function == "if_else":
        condition, inner, otherwise = node.arguments
        if isinstance(otherwise, Literal) and not otherwise.value.is_valid:
            return _may_match(condition, bounds, batches) & _may_match(inner, bounds, batches)
        return everything
    tested = _tested_column(node)
    known = bounds.get(tested) if tested is not None else None
    if known is not None and node.function == "is_nan":
        # A column that has NaN has no bounds.
        everything[known.known] = False
        return everything
    test = _test(node, known.kind) if known is not None else None
    if known is None or test is None:
        return everything
    everything[known.known] = test(known.low[known.known], known.high[known.known])
    return everything


def _tested_column(node: Call) -> str | None:
    """Return the column that a comparison with constants, or a test for NaN, is about."""
    compared = _compared(node)
    column = (
        node.arguments[0] if node.function in ("is_in", "is_nan") else compared[0] if compared is not None else None
    )
    return column.path[0] if isinstance(column, Column) and len(column.path) == 1 else None


def _test(node: Call, kind: pa.DataType) -> Callable[[Values, Values], npt.NDArray[np.bool_]] | None:
    """Return what tells from the lowest and the highest values of batches whether a row may pass."""
    if node.value_set is not None:
        # Arrow makes them values of the column's type, and compares then.
        given = pc.cast(node.value_set, kind)
        if given.null_count or (pa.types.is_floating(kind) and has_nan(given)):
            # There a null is equal to a null and NaN to NaN, and bounds say nothing of these.
            return None
        values = np.sort(np.array(_plain(given, kind), dtype=object))
        return lambda low, high: np.searchsorted(values, low, "left") < np.searchsorted(values, high, "right")
    compared = _compared(node)
    if compared is None:
        return None
    literal = compared[2].value
    if not literal.is_valid:
        return lambda low, _: np.zeros(low.size, dtype=np.bool_)
    given = pa.array([literal.as_py()], literal.type)
    value = _plain(exactly(given, kind) if pa.types.is_temporal(kind) else given, kind)[0]
    return {
        "equal": lambda low, high: (low <= value) & (value <= high),
        "less": lambda low, _: low < value,
        "less_equal": lambda low, _: low <= value,
        "greater": lambda _, high: high > value,
        "greater_equal": lambda _, high: high >= value,
    }.get(compared[1])


def _plain(values: pa.Array, kind: pa.DataType) -> list[Any]:
    """Return constants in the form that bounds have."""
    if pa.types.is_temporal(kind):
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pc.cast(values, kind, safe=True).view(whole).to_pylist()
    return values.to_pylist()
