"""DuckDB over a checkpoint: connections whose views are its states.

Making a DuckDB database takes about 20 ms, so the process keeps one for each of the checkpoints it queried
last. A query runs on a connection of its own to it, which holds its own datasets; so queries of several
threads do not meet, and what a result needs lives as long as the result. A connection whose result is gone serves the
next query: to tell it of a dataset takes as long as a query that looks a key up.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.query.catalog import SqlName, quoted
from arrowstate.query.duckdb.dataset import ScannedDataset, ScanStatistics, Source, StateSource, scanned
from arrowstate.query.duckdb.duckdb_internals import Scannable
from arrowstate.query.expiry import Seen
from arrowstate.query.kept_reads import Recent

if TYPE_CHECKING:
    import duckdb

_IDLE_SESSIONS = 4
_ASKS_FOR_NAMES = re.compile(r"\b(show|describe|desc|information_schema|sqlite_|pragma|pg_|duckdb_)", re.IGNORECASE)
"""Says that a query may be about the tables that there are."""


@dataclass(slots=True)
class ServedQuery:
    """Whose scans those of a connection are; it must not hold the connection, a circle through C++ is never let go."""

    seen: Seen
    on_scan: Callable[[ScanStatistics], None]


class _OfQuery(Scannable):
    """A source as the query sees it that a connection serves."""

    def __init__(self, source: Source, query: ServedQuery) -> None:
        super().__init__(source.schema)
        self._source = source
        self._query = query

    def scan(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Return these columns of the rows that pass the filter."""
        return scanned(_seen(self._source, self._query.seen), self._query.on_scan, columns, filter)


@dataclass(slots=True)
class Session:
    """A connection that serves one query at a time; whoever has a result of the query holds it."""

    connection: duckdb.DuckDBPyConnection
    serves: ServedQuery
    idle: deque[Session]
    "Where it goes when nobody holds it any more."
    known: set[SqlName] = field(default_factory=set)
    may_serve_again: bool = False


class Held:
    """Holds a session; gives it back when it is let go, for another query."""

    __slots__ = ("session",)
    is_of_use = True

    def __init__(self, session: Session) -> None:
        self.session = session

    def __del__(self) -> None:
        if self.session.may_serve_again and self.is_of_use:
            self.session.serves.on_scan = _nobody
            self.session.idle.append(self.session)


class Database:
    """What SQL reads of one checkpoint, and the history of its store, as a DuckDB database."""

    def __init__(self, sources: Mapping[SqlName, Source]) -> None:
        self.sources = sources
        self._lock = threading.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None
        # Appended to by whatever thread lets a result go, so there is no lock.
        self._idle: deque[Session] = deque(maxlen=_IDLE_SESSIONS)

    def hold(self, on_scan: Callable[[ScanStatistics], None], seen: Seen, query: str) -> Held:
        """Return a connection to the database, which knows what a query mentions."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = Session(self._cursor(on_scan, seen), ServedQuery(seen, on_scan), self._idle)
        else:
            session.serves.seen, session.serves.on_scan = seen, on_scan
        session.may_serve_again = False
        self.tell(session, query)
        return Held(session)

    def tell(self, session: Session, query: str | None = None) -> None:
        """Have a connection know the sources that a query mentions, or all."""
        text = None if query is None or _ASKS_FOR_NAMES.search(query) else query.lower()
        for name, source in self.sources.items():
            if name not in session.known and (text is None or quoted(name.view.lower())[1:-1] in text):
                session.connection.register(name.relation, _OfQuery(source, session.serves))
                session.known.add(name)

    def _cursor(self, on_scan: Callable[[ScanStatistics], None], seen: Seen) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._root is None:
                self._root = self.connect(on_scan, seen)
                for name in self.sources:
                    self._root.unregister(name.relation)
                # Otherwise a misspelt state could be taken for a Python variable of that name.
                self._root.execute("set global python_enable_replacements = false")
            return self._root.cursor()

    def connect(self, on_scan: Callable[[ScanStatistics], None], seen: Seen) -> duckdb.DuckDBPyConnection:
        """Return a connection to a new database with the same views."""
        import duckdb

        connection = duckdb.connect()
        self._make_views(connection, on_scan, seen)
        return connection

    def attach(
        self,
        connection: duckdb.DuckDBPyConnection,
        catalog: str,
        on_scan: Callable[[ScanStatistics], None],
        seen: Seen,
    ) -> list[SqlName]:
        """Give a connection a database of this name, in memory, with the same views, and return their names."""
        connection.execute(f"attach ':memory:' as {quoted(catalog)}")
        try:
            self._make_views(connection, on_scan, seen, catalog)
        except BaseException:
            connection.execute(f"detach {quoted(catalog)}")
            raise
        return list(self.sources)

    def _make_views(
        self,
        connection: duckdb.DuckDBPyConnection,
        on_scan: Callable[[ScanStatistics], None],
        seen: Seen,
        catalog: str | None = None,
    ) -> None:
        before, of_catalog = ("", "") if catalog is None else (f"{catalog}.", f"{quoted(catalog)}.")
        for name, source in self.sources.items():
            relation = before + name.relation
            connection.register(relation, ScannedDataset(_seen(source, seen), on_scan))
            schema = of_catalog + quoted(name.schema)
            connection.execute(f"create schema if not exists {schema}")
            columns = ", ".join(quoted(column) for column in source.shown)
            query = f"select {columns} from {quoted(relation)}"  # noqa: S608 (names are quoted)
            connection.execute(f"create view {schema}.{quoted(name.view)} as {query}")


def _seen(source: Source, seen: Seen) -> Source:
    return source.at(seen) if isinstance(source, StateSource) else source


def _nobody(_: ScanStatistics) -> None:
    """Nobody asks for a scan that nothing is read of."""


databases: Recent[Database] = Recent(4)


@atexit.register
def _end() -> None:
    """Let go of all connections while the interpreter is whole: what they know of Python must go before it."""
    Held.is_of_use = False
    databases.clear()
