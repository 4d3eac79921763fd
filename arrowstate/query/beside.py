"""SQL over a checkpoint with tables beside it that no store has, such as those of how a running job is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.clock import now_ms
from arrowstate.query.catalog import SqlName
from arrowstate.query.duckdb.dataset import ScanStatistics, passing
from arrowstate.query.duckdb.sources import history_sources, sources_of
from arrowstate.query.duckdb.sql_types import distinct_names
from arrowstate.query.expiry import Seen
from arrowstate.query.reader import SnapshotReader
from arrowstate.query.state import StateReader
from arrowstate.storage.base import Storage

if TYPE_CHECKING:
    import duckdb


class _TableSource:
    """A table for SQL."""

    def __init__(self, name: str, table: pa.Table) -> None:
        self.name = name
        self.schema = table.schema
        self.shown = table.schema.names
        self._table = table

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass."""
        statistics.rows = statistics.rows_read = self._table.num_rows
        yield from passing(self._table, columns, filter)


def select_beside(
    storage: Storage,
    snapshot: SnapshotReader | None,
    tables: Mapping[str, pa.Table],
    query: str,
    params: Sequence[Any] | Mapping[str, Any] | None,
    *,
    schema: str,
) -> duckdb.DuckDBPyRelation:
    """Run a query over a checkpoint, if there is one, the history of its store, and tables in a schema of their own.

    Where an operator is called as the schema, that has a number at its end. Errors as for `SnapshotReader.sql`.
    """
    from arrowstate.query.duckdb.engine import Database
    from arrowstate.query.duckdb.selecting import select

    seen = Seen((now_ms if snapshot is None else snapshot.clock_ms)())
    if snapshot is None:
        sources = history_sources(storage)
    else:
        reader = partial(StateReader, snapshot.storage, snapshot.entry)
        sources = sources_of(snapshot.storage, snapshot.entry, reader, seen)
    own = distinct_names([schema], {name.schema for name in sources})[0]
    for view, table in tables.items():
        relation = distinct_names([f"{own}.{view}"], {name.relation for name in sources})[0]
        sources[SqlName("", view, own, view, relation)] = _TableSource(f"{own}.{view}", table)
    return select(
        Database(sources),
        query,
        params,
        seen=seen,
        on_scan=lambda _: None,
        names=lambda: list(sources),
        checkpoint_id=None if snapshot is None else snapshot.checkpoint_id,
    )
