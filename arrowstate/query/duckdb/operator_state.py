"""Operator state as a source of rows, so that SQL sees it beside keyed state: lists, broadcast maps, outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.files.operator import read_part
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.duckdb.dataset import ScanStatistics, passing
from arrowstate.query.duckdb.sql_types import SqlForm
from arrowstate.schema.operator_state import operator_descriptor_of, operator_state_schema
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorStateDocument

SUBTASK_COLUMN = "_subtask"
"""The number of the part that an element is in: of the subtask that had it, where each subtask has a part."""


class OperatorStateRows:
    """The elements of an operator state, part by part.

    Columns: `_subtask` int32; for a broadcast state `<state>_key`; and `<state>`, or for a list of structs one column
    per field.
    """

    def __init__(self, storage: Storage, entry: LogEntryDocument, document: OperatorStateDocument) -> None:
        self._storage = storage
        self._entry = entry
        self.document = document
        stored = operator_state_schema(operator_descriptor_of(document))
        kind = stored.field(-1).type
        names = [field.name for field in kind] if pa.types.is_struct(kind) else []
        self._is_flat = bool(names) and len(stored) == 1 and SUBTASK_COLUMN not in names
        fields = list(kind) if self._is_flat else list(stored)
        self.schema = pa.schema(
            [pa.field(SUBTASK_COLUMN, pa.int32()), *(field.with_nullable(True) for field in fields)]
        )

    def part(self, number: int) -> pa.Table:
        """Return the elements of one part, with all columns."""
        with reading_checkpoint(self._storage, self._entry):
            part = read_part(self._storage, self.document, number)
        values = part.column(0).flatten() if self._is_flat else part.columns
        numbers = pa.repeat(pa.scalar(number, pa.int32()), part.num_rows)
        return pa.Table.from_arrays([numbers, *values], schema=self.schema)


class OperatorStateSource:
    """The elements of an operator state of `uid` for SQL."""

    def __init__(self, uid: str, state: OperatorStateRows) -> None:
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
            batches = self._state.part(number).to_batches()
            table = pa.Table.from_batches([self._form(batch) for batch in batches], self.schema)
            statistics.batches_read += 1
            statistics.rows_read += part.rows
            yield from passing(table, columns, filter)
