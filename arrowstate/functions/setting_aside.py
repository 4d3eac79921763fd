"""The rows of an operator processed so that those which fail are set aside: by row, or all rows of a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from arrowstate.errors import ProcessElementError
from arrowstate.functions.dead_letters import DeadLetters, cause_of, is_of_function, tried
from arrowstate.functions.runner import batches_of
from arrowstate.shown import error_text
from arrowstate.table.key_batch import KeyBatch


def process_apart(
    process: Callable[[pa.RecordBatch], None],
    table: pa.Table,
    dead: DeadLetters,
    *,
    key: Sequence[str],
    timestamp: str | None,
    names_rows: bool,
    group_keys: Callable[[pa.RecordBatch], KeyBatch] | None = None,
) -> None:
    """Process the rows that do not fail, in their order; the others go to `dead`."""
    fit = np.ones(table.num_rows, dtype=np.bool_)
    for name in [*key, *([] if timestamp is None else [timestamp])]:
        absent = table.column(name).is_null().to_numpy() & fit
        what = "key" if name in key else "timestamp"
        _set_aside(dead, key, table.filter(pa.array(absent)), "NullKeyError", f"{what} column {name!r} is null")
        fit &= ~absent
    # One batch, unless a column holds more text than one array can address.
    for batch in batches_of(table if fit.all() else table.filter(pa.array(fit))):
        if batch.num_rows:
            _process(process, batch, dead, key, names_rows, group_keys)


def _process(
    process: Callable[[pa.RecordBatch], None],
    batch: pa.RecordBatch,
    dead: DeadLetters,
    key: Sequence[str],
    names_rows: bool,
    group_keys: Callable[[pa.RecordBatch], KeyBatch] | None,
) -> None:
    count, keys = batch.num_rows, np.empty(0, dtype=np.int64)
    if group_keys is not None:
        try:
            process(batch)
            return
        except Exception as error:
            if not is_of_function(error):
                raise
        grouped = group_keys(batch)
        count, keys = len(grouped), grouped.groups()

    def rows_of(start: int, end: int) -> pa.RecordBatch:
        if group_keys is None:
            return batch.slice(start, end - start)
        return batch.filter(pa.array((keys >= start) & (keys < end)))

    def attempt(start: int, end: int) -> None:
        process(rows_of(start, end))

    for number, failure in tried(count, attempt, is_of_function, by_row=names_rows).items():
        _set_aside(dead, key, rows_of(number, number + 1), *reason_of(failure))


def reason_of(failure: Exception) -> tuple[str, str]:
    """Return the class of what was raised for a row, and what it says."""
    cause = cause_of(failure)
    reason = failure.detail if isinstance(failure, ProcessElementError) else error_text(cause)
    return type(cause).__name__, reason


def _set_aside(dead: DeadLetters, key: Sequence[str], rows: pa.RecordBatch | pa.Table, error: str, reason: str) -> None:
    count = rows.num_rows
    row = [rows.column(name) if name in rows.schema.names else None for name in dead.row_names]
    dead.add([rows.column(name) for name in key], row, [error] * count, [reason] * count)
