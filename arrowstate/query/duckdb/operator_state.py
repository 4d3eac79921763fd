"""Operator state as a source of rows, so that SQL sees it beside keyed state: lists, broadcast maps, outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.files.operator import OperatorStateTable
from arrowstate.query.duckdb.dataset import ScanStatistics, passing
from arrowstate.query.duckdb.sql_types import SqlForm
from arrowstate.schema.operator_state import SUBTASK_COLUMN


class OperatorStateSource:
    """The elements of an operator state of `uid` for SQL."""

    def __init__(self, uid: str, state: OperatorStateTable) -> None:
        self.name = f"{uid}.{state.document.name}"
        self._state = state
        self._form = SqlForm(state.schema)
        self.schema = self._form.schema
        self.shown = [column for column in self.schema.names if column != SUBTASK_COLUMN]

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Read part by part, in their order."""
        parts = self._state.document.parts
        statistics.batches = len(parts)
        statistics.rows = sum(part.rows for part in parts)
        for number, part in enumerate(parts):
            table = pa.Table.from_batches([self._form(self._state.part(number))], self.schema)
            statistics.batches_read += 1
            statistics.rows_read += part.rows
            yield from passing(table, columns, filter)
