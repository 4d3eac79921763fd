"""Rows that a sink cannot take, told apart from those that it can.

What can be seen in the columns is seen for all rows at once: a key that is null, an operation that is none. What only
shows when a row is folded, a sum that overflows or a number too large for its state, is found by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, KeyOutOfRangeError, KeyTypeError
from arrowstate.functions.dead_letters import DeadLetters, tried
from arrowstate.schema.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from arrowstate.spark.sink.changelog import ADDED, REMOVED, WITHOUT_OLD_VALUE
from arrowstate.spark.sink.plan import SinkPlan
from arrowstate.state.backend.keyed import KeyedStateBackend

__all__ = ["fold_apart", "rows_that_fit"]


def rows_that_fit(plan: SinkPlan, table: pa.Table, dead: DeadLetters) -> pa.Table:
    """Return the rows in which nothing is missing; the others go to `dead`."""
    fit = np.ones(table.num_rows, dtype=np.bool_)
    for wrong, error, reason in _faults(plan, table):
        found = wrong & fit
        if found.any():
            rows = table.filter(pa.array(found))
            _set_aside(plan, dead, rows, [error] * len(rows), [reason(rows, row) for row in range(len(rows))])
            fit &= ~found
    return table if fit.all() else table.filter(pa.array(fit))


def fold_apart(
    plan: SinkPlan,
    backend: KeyedStateBackend,
    rows: pa.RecordBatch,
    fold: Callable[[pa.RecordBatch], None],
    dead: DeadLetters,
) -> None:
    """Fold the rows in their order into all states; one that fits not all of them is in none, and goes to `dead`."""

    def attempt(start: int, end: int) -> None:
        with backend.transaction():
            fold(rows.slice(start, end - start))

    failed = tried(rows.num_rows, attempt, _is_of_rows)
    if failed:
        aside = pa.Table.from_batches([rows]).take(pa.array(list(failed)))
        errors = failed.values()
        # A row that is tried alone is row 0, which says nothing of where it was.
        reasons = [str(error).replace(" in row 0", "") for error in errors]
        _set_aside(plan, dead, aside, [type(error).__name__ for error in errors], reasons)


def _is_of_rows(error: Exception) -> bool:
    # All rows have the same type, so where it is wrong each of them would be set aside.
    is_of_all = isinstance(error, (KeyOutOfRangeError, KeyTypeError))
    return isinstance(error, (InvalidInputError, pa.ArrowInvalid)) and not is_of_all


_Fault = tuple[npt.NDArray[np.bool_], str, Callable[[pa.Table, int], str]]
"""Which rows are wrong, the name of the error, and what is wrong with one of them."""


def _faults(plan: SinkPlan, table: pa.Table) -> Iterator[_Fault]:
    """Yield what may be wrong with rows."""
    for number, field in enumerate(plan.key):
        yield _absent(table, number, "NullKeyError", f"key column {field.name!r}")
    for number in plan.sequence:
        yield _absent(table, number, "InvalidInputError", f"sequence column {table.column_names[number]!r}")
    if plan.timestamp is not None:
        name = table.column_names[plan.timestamp]
        yield _absent(table, plan.timestamp, "InvalidInputError", f"timestamp column {name!r}")
    for given in plan.states:
        state = given.descriptor
        for number in given.namespace:
            what = f"namespace column {table.column_names[number]!r} of state {state.name!r}"
            yield _absent(table, number, "NullKeyError", what)
        if given.user_key is not None:
            name = table.column_names[given.user_key]
            yield _absent(table, given.user_key, "NullKeyError", f"user key {name!r} of state {state.name!r}")
    if plan.operation is not None:
        yield from _wrong_operations(plan, table, plan.operation)


def _absent(table: pa.Table, number: int, error: str, what: str) -> _Fault:
    return table.column(number).is_null().to_numpy(), error, lambda _, __: f"{what} is null"


def _wrong_operations(plan: SinkPlan, table: pa.Table, number: int) -> Iterator[_Fault]:
    column, name = table.column(number), table.column_names[number]
    known = pc.is_in(column, value_set=pa.array((*ADDED, *REMOVED), column.type)).to_numpy()

    def unknown(rows: pa.Table, row: int) -> str:
        return f"column {name!r} holds {rows.column(number)[row].as_py()!r}, which is no operation"

    yield ~known, "InvalidInputError", unknown
    folded = (ReducingStateDescriptor, AggregatingStateDescriptor)
    summed = [item.state.name for item in plan.states if isinstance(item.descriptor, folded)]
    if summed:
        alone = pc.fill_null(pc.equal(column, WITHOUT_OLD_VALUE), False).to_numpy()
        reason = f"state {summed[0]!r} takes old values back, and the operation {WITHOUT_OLD_VALUE!r} brings none"
        yield alone, "InvalidInputError", lambda _, __: reason


def _set_aside(plan: SinkPlan, dead: DeadLetters, rows: pa.Table, errors: list[str], reasons: list[str]) -> None:
    keys = rows.columns[: len(plan.key)]
    dead.add(keys, [rows.column(number) for number in plan.row], errors, reasons)
