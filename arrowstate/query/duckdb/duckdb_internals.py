"""How DuckDB reads a pyarrow dataset, which it does not promise to keep, and what it and Polars take for one.

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

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that pass, which is what Polars asks for; they come as they are read."""
        return self.scan(list(self.schema.names if columns is None else columns), filter)

    def to_table(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> pa.Table:
        """Return the same as a table."""
        scan = self.scanner(columns, filter)
        return pa.Table.from_batches(scan.to_reader(), scan.projected_schema)

    def head(
        self, num_rows: int, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> pa.Table:
        """Return the first rows; no more is read than they need."""
        scan = self.scanner(columns, filter)
        found, left = [], num_rows
        reader = scan.to_reader()
        while left > 0 and (batch := next(reader, None)) is not None:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        return pa.Table.from_batches(found, scan.projected_schema)

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:
        """Return how many rows pass."""
        return sum(batch.num_rows for batch in self.scan(self.schema.names[:1], filter))

    def scan(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Return these columns of the rows that pass the filter."""
        raise NotImplementedError  # Abstract: who offers rows knows where they come from.
