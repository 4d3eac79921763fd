"""What DuckDB does not promise to keep: how it reads a pyarrow dataset, and so what it takes for one.

It asks the dataset for a scanner, with the columns and the filter of the query, and the scanner for its stream; of both
it uses no more than is here. `tests/test_internals.py` fails by the name of what an upgrade has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

__all__ = ["Scannable"]


class _Scan:
    """What DuckDB takes for a scanner: the rows as a stream."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream; to be called once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


class Scannable(ds.InMemoryDataset):  # type: ignore[misc]
    """What DuckDB takes for a dataset, by its class: rows with these columns, made as they are asked for."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema.empty_table())

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> _Scan:
        """Return a scan of these columns in the rows that pass the filter."""
        wanted = list(self.schema.names if columns is None else columns)
        return _Scan(pa.schema([self.schema.field(name) for name in wanted]), self.scan(wanted, filter))

    def scan(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Return these columns of the rows that pass the filter."""
        raise NotImplementedError  # Abstract: who offers rows knows where they come from.
