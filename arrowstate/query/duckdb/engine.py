"""DuckDB over a checkpoint: connections whose views are its states.

Making a DuckDB database takes about 20 ms, so the process keeps one for each of the checkpoints it queried
last. A query runs on a connection of its own to it, which holds its own datasets; so queries of several
threads do not meet, and what a result needs lives as long as the result.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from arrowstate.query.catalog import SqlName, quoted
from arrowstate.query.duckdb.dataset import ScannedDataset, ScanStatistics, Source, StateSource
from arrowstate.query.expiry import Seen
from arrowstate.query.kept_reads import Recent

if TYPE_CHECKING:
    import duckdb

__all__ = ["Database", "databases"]


_ASKS_FOR_NAMES = re.compile(r"\b(show|describe|desc|information_schema|sqlite_|pragma|pg_|duckdb_)", re.IGNORECASE)
"""Says that a query may be about the tables that there are."""


class Database:
    """What SQL reads of one checkpoint, and the history of its store, as a DuckDB database."""

    def __init__(self, sources: Mapping[SqlName, Source]) -> None:
        self.sources = sources
        self._lock = threading.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None

    def cursor(
        self, on_scan: Callable[[ScanStatistics], None], seen: Seen, query: str | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Return a new connection to the database, with what a query mentions, or with all."""
        with self._lock:
            if self._root is None:
                self._root = self.connect(on_scan, seen)
                for name in self.sources:
                    self._root.unregister(name.relation)
                # Otherwise a misspelt state could be taken for a Python variable of that name.
                self._root.execute("set global python_enable_replacements = false")
            cursor = self._root.cursor()
        self.register(cursor, on_scan, seen, query)
        return cursor

    def connect(self, on_scan: Callable[[ScanStatistics], None], seen: Seen) -> duckdb.DuckDBPyConnection:
        """Return a connection to a new database with the same views."""
        import duckdb

        connection = duckdb.connect()
        self.register(connection, on_scan, seen)
        for name, source in self.sources.items():
            connection.execute(f"create schema if not exists {quoted(name.schema)}")
            columns = ", ".join(quoted(column) for column in source.shown)
            view = f"{quoted(name.schema)}.{quoted(name.view)}"
            query = f"select {columns} from {quoted(name.relation)}"  # noqa: S608 (names are quoted)
            connection.execute(f"create view {view} as {query}")
        return connection

    def register(
        self,
        connection: duckdb.DuckDBPyConnection,
        on_scan: Callable[[ScanStatistics], None],
        seen: Seen,
        query: str | None = None,
    ) -> None:
        """Have a connection know the sources that a query mentions, or all."""
        # Each takes about 0.3 ms, and a query is of few.
        text = None if query is None or _ASKS_FOR_NAMES.search(query) else query.lower()
        for name, source in self.sources.items():
            if text is None or quoted(name.view.lower())[1:-1] in text:
                own = source.at(seen) if isinstance(source, StateSource) else source
                connection.register(name.relation, ScannedDataset(own, on_scan))


databases: Recent[Database] = Recent(4)
