"""Dead letters: rows that an operator cannot take, set aside in an output table with the reason.

The table is committed in the same log entry as the state, so each dead row is in it exactly once, and the state is as
if the row had never come. Which rows are dead is found by trying: a batch that fails is rolled back by its
transaction and tried again in parts, down to the one row, or the one key, that fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from arrowstate.errors import (
    ArrowStateError,
    InvalidInputError,
    KeyOutOfRangeError,
    ProcessElementError,
)
from arrowstate.files.output_tables import STATE, OutputTable
from arrowstate.functions.failing import storable_text
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.names import check_operator_uid

_FIRST = (pa.field("reason", pa.string()), pa.field("error", pa.string()), pa.field("batch_id", pa.int64()))
_NAMES = [*(field.name for field in _FIRST), "key", "row"]


def dead_letters_name(uid: str, on_error: str, name: str | None) -> str | None:
    """Return the name of the output table for dead letters, None if a row that does not fit fails the query."""
    if on_error not in ("fail", "dead_letter"):
        raise InvalidInputError(f"on_error must be 'fail' or 'dead_letter', got {on_error!r}")
    if on_error == "fail":
        if name is not None:
            raise InvalidInputError(f"dead_letters={name!r} needs on_error='dead_letter'")
        return None
    name = check_operator_uid(f"{uid}_dead_letters" if name is None else name)
    if name.lower() == uid.lower():
        raise InvalidInputError(f"the output table for dead letters needs another name than operator {uid!r}")
    return name


def dead_letter_table(name: str, key: pa.Schema, row: pa.Schema) -> OutputTable:
    """Return the output table for the dead letters of an operator, whose rows have these columns."""
    kinds = [pa.struct([field.with_nullable(True).remove_metadata() for field in schema]) for schema in (key, row)]
    columns = [*_FIRST, *(pa.field(name, kind) for name, kind in zip(("key", "row"), kinds, strict=True))]
    return OutputTable(uid=name, columns=pa.schema(columns), is_kept=True)


def is_dead_letters(operator: OperatorDocument) -> bool:
    """Whether an operator of a log entry is a table of dead letters: they stay in a store, whatever query runs."""
    if operator.key or [state.name for state in operator.operator_states] != [STATE]:
        return False
    kind = type_from_json(operator.operator_states[0].value_type)
    return pa.types.is_struct(kind) and [field.name for field in kind] == _NAMES


class DeadLetters:
    """The rows that a task has set aside."""

    def __init__(self, table: OutputTable, batch_id: int) -> None:
        self._table = table
        self.batch_id = batch_id
        "That of the rows which are added next."
        self._found: list[pa.Table] = []

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._table.uid

    @property
    def row_names(self) -> list[str]:
        """The columns of the rows."""
        return [field.name for field in self._table.columns.field("row").type]

    def add(
        self,
        keys: Sequence[pa.Array | pa.ChunkedArray],
        row: Sequence[pa.Array | pa.ChunkedArray | None],
        errors: Sequence[str],
        reasons: Sequence[str],
    ) -> None:
        """Set rows aside: their key columns and all their columns, and for each of them what was wrong.

        A column that rows have not is None.
        """
        if not reasons:
            return
        count = len(reasons)
        columns: list[pa.Array] = [
            pa.array([storable_text(reason) for reason in reasons], pa.string()),
            pa.array(errors, pa.string()),
            pa.array(np.full(count, self.batch_id, dtype=np.int64)),
        ]
        for field, given in zip(list(self._table.columns)[len(columns) :], (keys, row), strict=True):
            # Timestamps come in the session's time zone.
            parts = [
                pa.nulls(count, inner.type) if column is None else _whole(column).cast(inner.type)
                for inner, column in zip(field.type, given, strict=True)
            ]
            columns.append(pa.StructArray.from_arrays(parts, fields=list(field.type)))
        self._found.append(pa.Table.from_arrays(columns, schema=self._table.columns))

    def take(self) -> pa.Table:
        """Return the rows of the output table that were not returned before."""
        found, self._found = self._found, []
        return pa.concat_tables([self._table.columns.empty_table(), *found])


def tried(
    count: int, attempt: Callable[[int, int], None], is_of_rows: Callable[[Exception], bool], *, by_row: bool = False
) -> dict[int, Exception]:
    """Attempt all of so many things, in their order and in as large parts as go; return those that fail alone."""
    failed: dict[int, Exception] = {}
    waiting: list[tuple[int, int, int | None]] = [(0, count, None)] if count else []
    "The third is how many had failed when a part failed that this one is the second half of."
    while waiting:
        start, end, before = waiting.pop()
        if before == len(failed) and end - start > 1:
            # The first half went well, so it is this one that made both fail.
            middle = start + (end - start) // 2
            waiting += [(middle, end, before), (start, middle, None)]
            continue
        try:
            attempt(start, end)
        except Exception as error:
            if not is_of_rows(error):
                raise
            if end - start == 1:
                failed[start] = error
                continue
            low = high = start + (end - start) // 2
            if by_row and isinstance(error, ProcessElementError) and start + error.row < end:
                low = start + error.row
                failed[low] = error
                # What is known to fail is left out; the rest may hold more of its kind, so not all of it is tried.
                high = low + 1
                middle = high + (end - high) // 2
                waiting += [(first, last, None) for first, last in ((middle, end), (high, middle)) if first < last]
            else:
                waiting.append((high, end, len(failed)))
            if start < low:
                waiting.append((start, low, None))
    return failed


def is_of_function(error: Exception) -> bool:
    """Whether what a function of the user's raised is its own, and not what storage or a wrong declaration raise."""
    cause = cause_of(error)
    if isinstance(cause, (MemoryError, KeyOutOfRangeError)):
        return False
    return not isinstance(cause, ArrowStateError) or isinstance(cause, (InvalidInputError, ProcessElementError))


def cause_of(error: Exception) -> BaseException:
    """What a function raised, for the error that a runner made of it."""
    return error.__cause__ if isinstance(error, ProcessElementError) and error.__cause__ is not None else error


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
