"""DuckDB over a checkpoint: connections whose views are its states.

Making a DuckDB database takes about 20 ms, so the process keeps one for each of the checkpoints it queried
last. A query runs on a connection of its own to it, which holds its own datasets; so queries of several
threads do not meet, and what a result needs lives as long as the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from arrowstate.query.catalog import HISTORY_NAMES, HISTORY_SCHEMA, SqlName, quoted
from arrowstate.query.duckdb.dataset import ScanStatistics, StateDataset
from arrowstate.query.duckdb.history import HistoryDataset
from arrowstate.query.duckdb.operator_state import SUBTASK_COLUMN, OperatorStateDataset, OperatorStateRows
from arrowstate.query.kept_reads import Recent
from arrowstate.query.state import KEY_GROUP_COLUMN, StateReader
from arrowstate.storage.base import Storage

if TYPE_CHECKING:
    import duckdb

__all__ = ["Database", "databases"]


class Database:
    """The states of one checkpoint, and the history of its store, as a DuckDB database.

    Each of `names` is in `readers` or, where it is operator state, in `operator_states`.
    """

    def __init__(
        self,
        storage: Storage,
        names: Sequence[SqlName],
        readers: Mapping[SqlName, StateReader],
        operator_states: Mapping[SqlName, OperatorStateRows],
    ) -> None:
        self.storage = storage
        self.names = names
        self.readers = readers
        self.operator_states = operator_states
        self._lock = threading.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None

    def cursor(self, on_scan: Callable[[ScanStatistics], None]) -> duckdb.DuckDBPyConnection:
        """Return a new connection to the database."""
        with self._lock:
            if self._root is None:
                self._root = self.connect(on_scan)
                for relation in (*(name.relation for name in self.names), *HISTORY_NAMES):
                    self._root.unregister(relation)
            cursor = self._root.cursor()
        self._register(cursor, on_scan)
        return cursor

    def connect(self, on_scan: Callable[[ScanStatistics], None]) -> duckdb.DuckDBPyConnection:
        """Return a connection to a new database with the same views."""
        import duckdb

        connection = duckdb.connect()
        self._register(connection, on_scan)
        for name in self.names:
            connection.execute(f"create schema if not exists {quoted(name.schema)}")
            columns = [quoted(column) for column in self._columns(name)]
            view = f"{quoted(name.schema)}.{quoted(name.view)}"
            query = f"select {', '.join(columns)} from {quoted(name.relation)}"  # noqa: S608 (names are quoted)
            connection.execute(f"create view {view} as {query}")
        connection.execute(f"create schema {HISTORY_SCHEMA}")
        for relation in HISTORY_NAMES:
            query = f"select * from {quoted(relation)}"  # noqa: S608 (the names are ours)
            connection.execute(f"create view {relation} as {query}")
        return connection

    def _columns(self, name: SqlName) -> list[str]:
        """What a view shows: all but `_key_hash`, or `_subtask`."""
        if name in self.readers:
            return [*self.readers[name].columns, KEY_GROUP_COLUMN]
        return [column for column in self.operator_states[name].schema.names if column != SUBTASK_COLUMN]

    def _register(self, connection: duckdb.DuckDBPyConnection, on_scan: Callable[[ScanStatistics], None]) -> None:
        for name in self.names:
            if name in self.readers:
                connection.register(name.relation, StateDataset(self.readers[name], on_scan))
            else:
                dataset = OperatorStateDataset(name.uid, self.operator_states[name], on_scan)
                connection.register(name.relation, dataset)
        for relation in HISTORY_NAMES:
            connection.register(relation, HistoryDataset(self.storage, relation, on_scan))


databases: Recent[Database] = Recent(4)
