"""DuckDB over a checkpoint: connections whose views are its states.

Making a DuckDB database takes about 20 ms, so the process keeps one for each of the checkpoints it queried
last. A query runs on a connection of its own to it, which holds its own datasets; so queries of several
threads do not meet, and what a result needs lives as long as the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from arrowstate.query.catalog import SqlName, quoted
from arrowstate.query.duckdb.dataset import ScannedDataset, ScanStatistics, Source
from arrowstate.query.kept_reads import Recent

if TYPE_CHECKING:
    import duckdb

__all__ = ["Database", "databases"]


class Database:
    """What SQL reads of one checkpoint, and the history of its store, as a DuckDB database."""

    def __init__(self, sources: Mapping[SqlName, Source]) -> None:
        self.sources = sources
        self._lock = threading.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None

    def cursor(self, on_scan: Callable[[ScanStatistics], None]) -> duckdb.DuckDBPyConnection:
        """Return a new connection to the database."""
        with self._lock:
            if self._root is None:
                self._root = self.connect(on_scan)
                for name in self.sources:
                    self._root.unregister(name.relation)
            cursor = self._root.cursor()
        self._register(cursor, on_scan)
        return cursor

    def connect(self, on_scan: Callable[[ScanStatistics], None]) -> duckdb.DuckDBPyConnection:
        """Return a connection to a new database with the same views."""
        import duckdb

        connection = duckdb.connect()
        self._register(connection, on_scan)
        for name, source in self.sources.items():
            connection.execute(f"create schema if not exists {quoted(name.schema)}")
            columns = ", ".join(quoted(column) for column in source.shown)
            view = f"{quoted(name.schema)}.{quoted(name.view)}"
            query = f"select {columns} from {quoted(name.relation)}"  # noqa: S608 (names are quoted)
            connection.execute(f"create view {view} as {query}")
        return connection

    def _register(self, connection: duckdb.DuckDBPyConnection, on_scan: Callable[[ScanStatistics], None]) -> None:
        for name, source in self.sources.items():
            connection.register(name.relation, ScannedDataset(source, on_scan))


databases: Recent[Database] = Recent(4)
