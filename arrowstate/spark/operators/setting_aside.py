"""The rows of an operator processed so that those which fail are set aside: by row, or by key for a batch function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.errors import ProcessElementError
from arrowstate.processing.batch_function import BatchRunner
from arrowstate.processing.keyed_process import KeyedProcessRunner
from arrowstate.processing.runner import batches_of, key_columns_of
from arrowstate.spark.dead_letters import DeadLetters, cause_of, is_of_function, tried

__all__ = ["process_apart"]


def process_apart(
    key: Sequence[str],
    timestamp: str | None,
    backend: KeyedStateBackend,
    process: BatchRunner | KeyedProcessRunner,
    table: pa.Table,
    dead: DeadLetters,
) -> list[Any]:
    """Process the rows that do not fail, in their order; return what was emitted for them.

    `key` are the key columns, and `timestamp` is the column with the event time, if there is one.
    """
    fit = np.ones(table.num_rows, dtype=np.bool_)
    for name in [*key, *([] if timestamp is None else [timestamp])]:
        absent = table.column(name).is_null().to_numpy() & fit
        what = "key" if name in key else "timestamp"
        _set_aside(dead, key, table.filter(pa.array(absent)), "NullKeyError", f"{what} column {name!r} is null")
        fit &= ~absent
    # One batch, unless a column holds more text than one array can address.
    batches = batches_of(table if fit.all() else table.filter(pa.array(fit)))
    emitted: list[Any] = []
    for batch in batches:
        if batch.num_rows:
            emitted += _processed(key, backend, process, batch, dead)
    return emitted


def _processed(
    key: Sequence[str],
    backend: KeyedStateBackend,
    process: BatchRunner | KeyedProcessRunner,
    batch: pa.RecordBatch,
    dead: DeadLetters,
) -> list[Any]:
    emitted: list[Any] = []
    by_row = isinstance(process, KeyedProcessRunner)
    count, keys = batch.num_rows, np.empty(0, dtype=np.int64)
    if not by_row:
        try:
            return [process.process(batch)]
        except Exception as error:
            if not is_of_function(error):
                raise
        # A batch function sees the rows of a key together, and raises for a batch; so a key is what is left out.
        grouped = backend.group_keys(key_columns_of(backend.key, batch))
        count, keys = len(grouped), grouped.groups()

    def rows_of(start: int, end: int) -> pa.RecordBatch:
        if by_row:
            return batch.slice(start, end - start)
        return batch.filter(pa.array((keys >= start) & (keys < end)))

    def attempt(start: int, end: int) -> None:
        emitted.append(process.process(rows_of(start, end)))

    for number, failure in tried(count, attempt, is_of_function, by_row=by_row).items():
        cause = cause_of(failure)
        reason = failure.detail if isinstance(failure, ProcessElementError) else f"{type(cause).__name__}: {cause}"
        _set_aside(dead, key, rows_of(number, number + 1), type(cause).__name__, reason)
    return emitted


def _set_aside(dead: DeadLetters, key: Sequence[str], rows: pa.RecordBatch | pa.Table, error: str, reason: str) -> None:
    count = rows.num_rows
    dead.add([rows.column(name) for name in key], rows.columns, [error] * count, [reason] * count)
