"""Stores, savepoints, and snapshots of Flink below a folder, found by their names and queried as one database.

Flink's State Catalog (FLIP-599) makes a database of each snapshot that it finds; here each is a database of DuckDB,
with a schema per operator and a view per state. Each folder is listed once. A snapshot is opened when a query names it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
import pyarrow as pa

from arrowstate.errors import ArrowStateError, InvalidInputError, StoreNotFoundError
from arrowstate.log.entries import STORE_PATH
from arrowstate.query.catalog import SqlName, quoted
from arrowstate.storage.base import Storage, listed_level
from arrowstate.storage.registry import open_storage
from arrowstate.store import Snapshot, StateStore, open_store

if TYPE_CHECKING:
    import duckdb

    from arrowstate.foreign.flink import FlinkSavepoint
    from arrowstate.query.duckdb.dataset import ScanStatistics
    from arrowstate.query.duckdb.engine import Database, Held, Session
    from arrowstate.query.expiry import Seen

_FLINK_METADATA = "_metadata"
DEPTH = 8
"""So many folders below each other are looked into."""
_MOST_FOLDERS = 10_000
_OF_FLINK = frozenset({"shared", "taskowned"})
"""Folders of a job of Flink that hold the files of its checkpoints."""
SNAPSHOTS = "arrowstate.snapshots"
"""The table of what was found."""
_ASKS_FOR_NAMES = re.compile(r"^\s*(show|desc|describe)\b|information_schema|duckdb_", re.IGNORECASE)
"""Says that a query may be about the names that there are."""
_DATABASES_OF_DUCKDB = frozenset({"arrowstate", "information_schema", "main", "memory", "pg_catalog", "system", "temp"})
"""Databases and schemas that a connection has already; `arrowstate` holds the table of what was found."""
_MISSING_CATALOG = re.compile(r'Catalog "(.+?)" does not exist')
_SNAPSHOTS = pa.schema(
    [pa.field("name", pa.string(), False), pa.field("kind", pa.string(), False), pa.field("url", pa.string(), False)]
)


def attach(
    connection: duckdb.DuckDBPyConnection,
    place: StateStore | Snapshot | FlinkSavepoint | str | os.PathLike[str],
    name: str | None = None,
    *,
    expired: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Add a checkpoint to a DuckDB connection, as a database with a view for each state.

    `select * from <name>.<operator>.<state>` reads a state, also in joins with other tables of the connection. The
    views stay at the checkpoint that was the newest at the call; `detach` the database and attach it again to go on to
    the newest. Cursors of the connection do not have the views. Hold a lease if collections run meanwhile.

    Parameters
    ----------
    connection
        The connection, of this process.
    place
        A store (its newest checkpoint), a checkpoint, a savepoint of Flink, or the path or URL of one of these.
    name
        The name of the database; by default the last part of the path.
    expired
        Whether states with a time to live also show expired rows.
    storage_options
        For the storage, see `open_store`.

    Returns
    -------
    str
        The name of the database.

    Raises
    ------
    InvalidInputError
        If the connection has a database of this name.
    StoreNotFoundError
        If there is neither a store nor a savepoint.

    Examples
    --------
    >>> import arrowstate, duckdb, pyarrow as pa
    >>> store = arrowstate.open_store("memory://attached/clicks", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    >>> clicks.add_batch(["ann", "bob"], [4, 7])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"counter": [backend]})
    >>> connection = duckdb.connect()
    >>> _ = connection.execute("create table cities as select 'ann' as user, 'Rome' as city")
    >>> arrowstate.attach(connection, store)
    'clicks'
    >>> connection.sql("select city, clicks from clicks.counter.clicks join cities using (user)").fetchall()
    [('Rome', 4)]
    """
    opened = _opened(place, storage_options) if isinstance(place, (str, os.PathLike)) else place
    snapshot = opened.latest() if isinstance(opened, StateStore) else opened
    url = snapshot.storage.url if isinstance(snapshot, Snapshot) else snapshot.url
    catalog = url.rstrip("/").rpartition("/")[2] if name is None else name
    known = [row[0] for row in connection.execute("select database_name from duckdb_databases()").fetchall()]
    if not catalog or catalog.lower() in map(str.lower, known):
        raise InvalidInputError(
            f"the name of an attached database must be a text that the connection has no database of, got {catalog!r}; "
            f"give name=..., or run detach {quoted(catalog)} first"
        )
    _attach(connection, snapshot, catalog, None, expired=expired)
    return catalog


def _attach(
    connection: duckdb.DuckDBPyConnection,
    snapshot: Snapshot | FlinkSavepoint,
    catalog: str,
    on_scan: Callable[[ScanStatistics], None] | None,
    *,
    expired: bool,
) -> list[SqlName]:
    if isinstance(snapshot, Snapshot):
        return snapshot.attach(connection, catalog, on_scan, expired=expired)
    return snapshot.attach(connection, catalog, on_scan)


def _opened(place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> StateStore | FlinkSavepoint:
    try:
        return open_store(os.fspath(place), storage_options=storage_options)
    except StoreNotFoundError:
        with suppress(StoreNotFoundError):
            return _flink_savepoint(place, storage_options)
        raise


def _flink_savepoint(place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> FlinkSavepoint:
    # Its decoders take as long to load as all of arrowstate.
    from arrowstate.foreign.flink import open_flink_savepoint

    return open_flink_savepoint(place, storage_options=storage_options)


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A store or a snapshot of Flink that was found."""

    name: str
    """Its path below the folder that was searched. DuckDB has names of its own, such as `main`, and does not tell
    `Clicks` from `clicks`; a number is added to a path that would be one of those: `main_2`."""
    kind: Literal["store", "flink"]
    "`store` for stores and savepoints of arrowstate."
    url: str
    "Where it lies."


def discover(
    url: str | os.PathLike[str], *, depth: int = DEPTH, storage_options: Mapping[str, Any] | None = None
) -> StateCatalog:
    """Find all stores, savepoints, and checkpoints of Flink in a folder and below it.

    Each folder is listed once. A store or snapshot is opened when a query names it.

    Parameters
    ----------
    url
        A folder, or a prefix of a bucket.
    depth
        How many levels of folders are searched, 0 or more.
    storage_options
        For the storage, see `open_store`.

    Raises
    ------
    StoreNotFoundError
        If there is no such folder.
    InvalidInputError
        If there are more than 10,000 folders; name one of them.

    Examples
    --------
    >>> import arrowstate
    >>> for job in ("clicks", "payments"):
    ...     _ = arrowstate.open_store(f"memory://jobs/{job}", create=True)
    >>> catalog = arrowstate.discover("memory://jobs")
    >>> [(found.name, found.kind) for found in catalog.found]
    [('clicks', 'store'), ('payments', 'store')]
    """
    storage = open_storage(url, storage_options=storage_options)
    return StateCatalog(storage.url, tuple(_named_apart(_found_in(storage, depth))), storage_options)


def _named_apart(found: Iterable[FoundSnapshot]) -> Iterator[FoundSnapshot]:
    """Add numbers to names that DuckDB could not tell apart."""
    taken = set(_DATABASES_OF_DUCKDB)
    for each in found:
        name = each.name
        for number in count(2):
            if name.lower() not in taken:
                break
            name = f"{each.name}_{number}"
        taken.add(name.lower())
        yield replace(each, name=name)


def _found_in(storage: Storage, depth: int) -> Iterator[FoundSnapshot]:
    """Yield what is found, by name."""
    left, looked_into = [("", depth)], 0
    while left:
        folder, below = left.pop()
        looked_into += 1
        if looked_into > _MOST_FOLDERS:
            raise InvalidInputError(f"{storage.url} has more than {_MOST_FOLDERS} folders; search one of them")
        folders, files = listed_level(storage, folder)
        url = f"{storage.url.rstrip('/')}/{folder}".rstrip("/")
        name = folder or url.rpartition("/")[2]
        if STORE_PATH in files:
            yield FoundSnapshot(name, "store", url)
            folders = [each for each in folders if each == "savepoints"]
        elif _FLINK_METADATA in files:
            yield FoundSnapshot(name, "flink", url)
            folders = []
        if below:
            further = [each for each in folders if each not in _OF_FLINK]
            left += [(f"{folder}/{each}" if folder else each, below - 1) for each in reversed(further)]


class StateCatalog:
    """All that `discover` found in a folder, as databases for SQL."""

    def __init__(
        self, url: str, found: Sequence[FoundSnapshot], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.url = url
        "The folder that was searched."
        self.found = tuple(found)
        "What was found, by name."
        self._options = storage_options
        self._opened: dict[str, Snapshot | FlinkSavepoint] = {}

    def __repr__(self) -> str:
        return f"<StateCatalog {self.url}: {len(self.found)} found>"

    def open(self, name: str) -> StateStore | FlinkSavepoint:
        """Open what was found under a name.

        Raises
        ------
        InvalidInputError
            If nothing was found under it.
        """
        for found in self.found:
            if found.name == name:
                if found.kind == "store":
                    return open_store(found.url, storage_options=self._options)
                return _flink_savepoint(found.url, self._options)
        raise self._not_found(name)

    def sql(
        self,
        query: str,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
        expired: bool = False,
    ) -> duckdb.DuckDBPyRelation:
        """Run a query with DuckDB over the newest checkpoints of all that was found.

        A state is `"<name>".<operator>.<state>`. The name of a store or snapshot is its path below the folder, see
        `FoundSnapshot`, in double quotes if it has other characters than letters, digits and `_`. Only stores and
        snapshots that the query names are opened. `arrowstate.snapshots` lists all of them with `name`, `kind` and
        `url`; `show schemas` opens all and lists their operators. A store that was read once is read at the same
        checkpoint from then on.

        Parameters
        ----------
        query
            One SELECT, or another statement with a result.
        params, tables, expired
            As for `Snapshot.sql`, and so are what is returned and the errors.

        Returns
        -------
        duckdb.DuckDBPyRelation
            The result, which is computed when it is fetched.

        Examples
        --------
        >>> import arrowstate
        >>> _ = arrowstate.open_store("memory://catalog/clicks", create=True)
        >>> catalog = arrowstate.discover("memory://catalog")
        >>> catalog.sql("select name, kind from arrowstate.snapshots").fetchall()
        [('clicks', 'store')]
        """
        from arrowstate.query.duckdb.selecting import select
        from arrowstate.query.expiry import Seen

        databases = _Databases(self, expired)
        try:
            return select(
                cast("Database", databases),
                query,
                params,
                seen=Seen(0, expired),
                on_scan=lambda _: None,
                names=databases.names,
                checkpoint_id=None,
                tables=tables,
            )
        except InvalidInputError as error:
            missing = _MISSING_CATALOG.search(str(error))
            if missing is None:
                raise
            raise self._not_found(missing[1]) from None

    def newest(self, found: FoundSnapshot) -> Snapshot | FlinkSavepoint:
        """Return the newest checkpoint of what was found, from then on the same."""
        snapshot = self._opened.get(found.name)
        if snapshot is None:
            opened = self.open(found.name)
            snapshot = opened.latest() if isinstance(opened, StateStore) else opened
            # Of several threads the first decides.
            snapshot = self._opened.setdefault(found.name, snapshot)
        return snapshot

    def _not_found(self, name: str) -> InvalidInputError:
        there = ", ".join(repr(found.name) for found in self.found) or "nothing"
        return InvalidInputError(f"nothing named {name!r} was found in {self.url}; there is {there}")


class _Databases:
    """What was found, as the databases of a connection that each query has for itself."""

    def __init__(self, catalog: StateCatalog, expired: bool) -> None:
        self._catalog = catalog
        self._expired = expired
        self._known: dict[str, list[SqlName]] = {}
        "By name what the connection knows, and its states."
        self._named: set[str] = set()
        "The names in the query."

    def hold(self, on_scan: Callable[[ScanStatistics], None], seen: Seen, query: str) -> Held:
        """Return a connection that knows what a query names."""
        import duckdb

        from arrowstate.query.duckdb.engine import Held, ServedQuery, Session
        from arrowstate.query.duckdb.preparing import pairs_of_names

        connection = duckdb.connect()
        # Otherwise a misspelt name could be taken for a Python variable of that name.
        connection.execute("set global python_enable_replacements = false")
        found = [{"name": each.name, "kind": each.kind, "url": each.url} for each in self._catalog.found]
        connection.register(SNAPSHOTS, pa.Table.from_pylist(found, _SNAPSHOTS))
        connection.execute(f"create schema {SNAPSHOTS.partition('.')[0]}")
        connection.execute(f"create view {SNAPSHOTS} as from {quoted(SNAPSHOTS)}")
        session = Session(connection, ServedQuery(seen, on_scan), deque(maxlen=0))
        self._named = {one.lower() for one, _ in pairs_of_names(query)}
        for each in self._catalog.found:
            if each.name.lower() in self._named:
                self._attach(session, each)
        if _ASKS_FOR_NAMES.search(query):
            self.tell(session)
        return Held(session)

    def tell(self, session: Session) -> None:
        """Have the connection know all that was found; what cannot be opened is told of in a warning."""
        for each in self._catalog.found:
            if each.name not in self._known:
                try:
                    self._attach(session, each)
                except ArrowStateError as error:
                    warnings.warn(f"{each.name} is left out: {error}", RuntimeWarning, stacklevel=2)

    def names(self) -> list[SqlName]:
        """Return the names of what may be read, of each state where the query names its database."""
        some_state = SqlName("", "", "", "", "OPERATOR.STATE")
        return [
            msgspec.structs.replace(name, relation=f"{quoted(each.name)}.{name.relation}")
            for each in self._catalog.found
            for name in (self._known.get(each.name, []) if each.name.lower() in self._named else [some_state])
        ]

    def _attach(self, session: Session, found: FoundSnapshot) -> None:
        snapshot, on_scan = self._catalog.newest(found), session.serves.on_scan
        self._known[found.name] = _attach(session.connection, snapshot, found.name, on_scan, expired=self._expired)
