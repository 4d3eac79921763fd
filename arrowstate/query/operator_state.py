"""Operator state as a pyarrow dataset, so that DuckDB sees it beside keyed state: lists, broadcast maps, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arrowstate.query.dataset import Scan
from arrowstate.schema.operator_state import operator_descriptor_of, operator_state_schema
from arrowstate.snapshot.operator import read_part
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import OperatorStateDocument

__all__ = ["SUBTASK_COLUMN", "OperatorStateDataset"]

SUBTASK_COLUMN = "_subtask"
"""The number of the part that an element is in: of the subtask that had it, where each subtask has a part."""


class OperatorStateDataset(ds.InMemoryDataset):  # type: ignore[misc]
    """The elements of an operator state, in the order of the parts and read part by part.

    Columns: `_subtask` int32; for a broadcast state `<state>_key`; and `<state>`, or for a list of structs one column
    per field.
    """

    def __init__(self, storage: Storage, document: OperatorStateDocument) -> None:
        self._storage = storage
        self._document = document
        self._stored = operator_state_schema(operator_descriptor_of(document))
        kind = self._stored.field(-1).type
        names = [field.name for field in kind] if pa.types.is_struct(kind) else []
        self._is_flat = bool(names) and len(self._stored) == 1 and SUBTASK_COLUMN not in names
        fields = list(kind) if self._is_flat else list(self._stored)
        self._columns = pa.schema(
            [pa.field(SUBTASK_COLUMN, pa.int32()), *(field.with_nullable(True) for field in fields)]
        )
        super().__init__(self._columns.empty_table())

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Scan:
        """Return a scan of these columns in the rows that pass the filter."""
        wanted = list(self._columns.names if columns is None else columns)
        schema = pa.schema([self._columns.field(name) for name in wanted])
        return Scan(schema, self._batches(wanted, filter))

    def part(self, number: int) -> pa.Table:
        """Return the elements of one part, with all columns."""
        part = read_part(self._storage, self._document, number)
        values = part.column(0).flatten() if self._is_flat else part.columns
        numbers = pa.repeat(pa.scalar(number, pa.int32()), part.num_rows)
        return pa.Table.from_arrays([numbers, *values], schema=self._columns)

    def _batches(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        for number in range(len(self._document.parts)):
            table = self.part(number)
            if filter is not None:
                table = table.filter(filter)
            yield from table.select(columns).to_batches()
