"""A checkpoint or savepoint as tables: Arrow, Polars, SQL by DuckDB, and lookups of keys.

Nothing here needs the job that wrote the state: the columns come from the checkpoint itself. An engine is
imported when it is first used.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.files.storage_use import SMALL_FILE_BYTES, StorageUse, storage_use
from arrowstate.files.validation import Validated
from arrowstate.html import table_html
from arrowstate.log.choosing import CheckpointReference, choose_checkpoint
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.catalog import SqlName, history_names, resolve, sql_names
from arrowstate.query.describe import overview
from arrowstate.query.difference import Difference, difference, rows_between
from arrowstate.query.expiry import Seen
from arrowstate.query.kept_reads import Recent
from arrowstate.query.key_history import KeyHistory, history_reader
from arrowstate.query.state import StateReader
from arrowstate.query.state_table import StateTable
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, pack, unpack
from arrowstate_formats.key_groups import KeyGroupRange

if TYPE_CHECKING:
    import polars
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from arrowstate.query.duckdb.dataset import ScanStatistics, Source
    from arrowstate.query.duckdb.engine import Database
    from arrowstate.query.duckdb.travel import OtherTables

_KEPT_SCANS = 64
_STATES: Recent[StateReader] = Recent(64)


class SnapshotReader:
    """Reads one checkpoint or savepoint, and compares it with others of its store; safe to use from several threads.

    Parameters
    ----------
    storage
        Where the store is.
    store_id
        Its identity.
    entry
        The log entry of the checkpoint.
    clock_ms
        Returns the time in milliseconds since 1970, by which rows with a time to live expire. A snapshot that was
        pickled goes by the time of day.
    """

    def __init__(
        self, storage: Storage, store_id: str, entry: LogEntryDocument, *, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self.storage = storage
        self.store_id = store_id
        self.entry = entry
        self.clock_ms = clock_ms
        self._lock = threading.Lock()
        self._states: dict[tuple[str, str], StateReader] = {}
        self._scans: deque[ScanStatistics] = deque(maxlen=_KEPT_SCANS)

    def __reduce__(self) -> tuple[Any, ...]:
        # The document as its text: it has exact numbers, and structs of several classes.
        return _unpickled, (type(self), self.storage, self.store_id, pack(self.entry))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.checkpoint_id} of {self.storage.url}: {', '.join(self.states())}>"

    def _repr_html_(self) -> str:
        states = [
            (f"{operator['uid']}.{state['name']}", state["kind"], state["type"], state["rows"], state["bytes"])
            for operator in self.show()["operators"]
            for state in operator["states"]
        ]
        title = f"{self.entry.kind} {self.checkpoint_id} of {self.storage.url}"
        return table_html(title, ["state", "kind", "type", "rows", "bytes"], states)

    @property
    def checkpoint_id(self) -> int:
        """The id to ask the store for this checkpoint; the first of a store has 1."""
        assert self.entry.checkpoint_id is not None, "a fence is no checkpoint"
        return self.entry.checkpoint_id

    @property
    def properties(self) -> dict[str, Any]:
        """What the writer noted with the checkpoint, for instance source offsets."""
        return copy.deepcopy(self.entry.properties)

    @property
    def watermark(self) -> int | None:
        """The watermark at the checkpoint, in milliseconds since 1970."""
        return self.entry.watermark

    @property
    def operators(self) -> dict[str, list[str]]:
        """The names of the states by operator uid."""
        return {operator.uid: [state.name for state in operator.states] for operator in self.entry.operators}

    def states(self) -> list[str]:
        """Return `<operator uid>.<state>` of each state."""
        return [f"{uid}.{name}" for uid, names in self.operators.items() for name in names]

    def show(self) -> dict[str, Any]:
        """Return what it holds as plain values, as `arrowstate show --json` prints them; see `StateStore.show`.

        Returns
        -------
        dict[str, Any]
            Times, properties, operators and states.
        """
        with reading_checkpoint(self.storage, self.entry):
            return overview(self.storage, self.entry)

    def storage_use(self, *, small_file_bytes: int = SMALL_FILE_BYTES) -> StorageUse:
        """Return how many files and bytes it refers to, how many of them are live, and how many files are small.

        The manifests are read, nothing else.

        Parameters
        ----------
        small_file_bytes
            A run file with fewer bytes is small.

        Returns
        -------
        StorageUse
            `files`, `bytes`, `live_bytes`, `small_files`; and `space_amplification`, bytes over live bytes.

        Raises
        ------
        CorruptDataError
            If a manifest is missing or damaged.
        """
        with reading_checkpoint(self.storage, self.entry):
            return storage_use(self.storage, self.entry, small_file_bytes=small_file_bytes)

    def to_arrow(
        self,
        state: str | tuple[str, str],
        *,
        columns: Sequence[str] | None = None,
        key_groups: KeyGroupRange | None = None,
        expired: bool = False,
    ) -> pa.Table:
        """Return the rows of a state, in no particular order.

        A value or reducing state has one row per key and namespace, a map one per entry, a list one per element, and
        within a list `_seq` rises in the order of the elements. Rows that have expired are left out: by processing time
        now, by event time at the watermark with which a restore would begin. A state whose visibility is
        `return_until_cleaned_up` shows them.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        columns
            Which columns, in this order; by default those of key, namespace, user key and value, and in a list `_seq`
            (int64). You can also name `_key_hash` (int64), `_key_group` (int32, at the max parallelism of the
            checkpoint), and with a time to live `_updated_at` (int64, milliseconds) and `_expires_at`
            (timestamp("ms"), null after the year 9999).
        key_groups
            Only the keys of these key groups; record batches without such keys are not read.
        expired
            Whether to return rows that have expired, too; without `columns`, `_expires_at` comes with them.

        Returns
        -------
        pa.Table
            The key columns, the namespace columns and the user key of a map, named `<state>_key`, all without nulls;
            then one column named after the state, or for a struct value one column per field.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state; the message lists what there is.
        InvalidInputError
            If there is no such column or key group; the message lists the columns there are.
        CorruptDataError, CollectedError
            If a file is missing, truncated or altered; or a collection deleted it.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://to-arrow-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> clicks.add_batch(pa.array(["ann"]), pa.array([3]))
        >>> with store.writer() as writer:
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> snapshot.to_arrow("counter.clicks", columns=["clicks", "_key_group"]).to_pylist()
        [{'clicks': 3, '_key_group': 113}]
        """
        return self._table(state, key_groups, expired=expired).to_arrow(columns=columns)

    def to_polars(
        self,
        state: str | tuple[str, str],
        *,
        columns: Sequence[str] | None = None,
        key_groups: KeyGroupRange | None = None,
        expired: bool = False,
    ) -> polars.DataFrame:
        """Return the rows of a state as a Polars data frame; arguments, columns and errors as for `to_arrow`.

        Returns
        -------
        polars.DataFrame
            The columns of `to_arrow`.
        """
        return self._table(state, key_groups, expired=expired).to_polars(columns=columns)

    def lookup(self, state: str | tuple[str, str], keys: Any, *, expired: bool = False) -> pa.Table:
        """Return the rows of some keys.

        Only the record batches that can hold one of the keys are read.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        keys
            An Arrow array or a sequence of the key's type; for a key of several columns a RecordBatch, Table or
            StructArray with them.
        expired
            Whether to return rows that have expired, too, with `_expires_at`.

        Returns
        -------
        pa.Table
            Columns as `to_arrow`; the rows of each of the given keys, in the order given, and the elements of a list
            in theirs.

        Raises
        ------
        KeyTypeError, NullKeyError
            If the keys do not fit the key schema; other errors are those of `to_arrow`.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://lookup-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> clicks.add_batch(pa.array(["ann", "bob"]), pa.array([3, 4]))
        >>> with store.writer() as writer:
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> snapshot.lookup("counter.clicks", ["bob", "eve", "ann"]).to_pylist()
        [{'user': 'bob', 'clicks': 4}, {'user': 'ann', 'clicks': 3}]
        """
        reader = self._state(state)
        hidden = reader.expired_up_to(self._seen(expired=expired))
        return reader.lookup(keys, reader.shown_columns(expired=expired), expired_up_to=hidden)[0]

    def _scanned(self, scan: ScanStatistics) -> None:
        # Not the method of the deque: a result has the snapshot by this one, so that a follower holds its files.
        self._scans.append(scan)

    def open_state(self, state: str | tuple[str, str], *, unlike: SnapshotReader | None = None) -> tuple[str, str]:
        """Open the files of a state now, so that the first lookup does not wait for it.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        unlike
            Another checkpoint, such as the one before. Files that it has too stay as they are, open or not.

        Returns
        -------
        tuple[str, str]
            The uid of the operator and the name of the state.
        """
        reader = self._state(state)
        uid, name = reader.operator.uid, reader.document.name
        has_it = unlike is not None and name in unlike.operators.get(uid, ())
        reader.open_files(SnapshotReader._reader(unlike, uid, name) if unlike is not None and has_it else None)
        return uid, name

    def __getitem__(self, state: str | tuple[str, str]) -> StateTable:
        """Return one state as a table: of which rows are read, or which is handed to another library."""
        return self._table(state)

    def _table(
        self, state: str | tuple[str, str], key_groups: KeyGroupRange | None = None, *, expired: bool = False
    ) -> StateTable:
        return StateTable(self, self._state(state), self._scans.append, self._seen(expired=expired), key_groups)

    def sql(
        self,
        query: str,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
        expired: bool = False,
    ) -> DuckDBPyRelation:
        """Run a query with DuckDB over the states of the checkpoint.

        Each state is a view `<operator uid>.<state>` with the key columns, the value columns and `_key_group`. A
        name with other characters than letters, digits and `_` is written in double quotes, as in
        `"page-views".clicks`. If a filter limits all key columns to values (`=`, `in`), only these keys are looked
        up; filters on `_key_group` and other columns skip files and batches. Operator state is also a view, with a row
        per element. Its columns are `<state>`, or for a list of structs one per field, as in an output table
        `<output>.rows`; for a broadcast state they are `<state>_key` and `<state>`.

        Arrow's types become DuckDB's, with exactly the values of the state: a float16 is a FLOAT; a decimal256 is a
        DECIMAL, or a VARCHAR of its digits if it is wider than 38; a duration in nanoseconds is a BIGINT, because
        DuckDB's INTERVAL ends at microseconds. SQL does not tell names apart by case. Two uids that differ only in
        case are `op~1` and `OP~2`, in the order of the checkpoint, and so are fields of nested structs. A uid with the
        name of a schema or database of DuckDB, as `main` and `memory` are, or of the store's history gets `~2` at its
        end, as in `"temp~2".clicks`.

        `arrowstate.checkpoints` has the checkpoints of the store, with times, sizes and properties, and
        `arrowstate.subtasks` has the same for each subtask: `triggered_at` and `committed_at` in UTC; `sync_us`,
        `async_us` and `alignment_us` in microseconds (in `checkpoints` of the slowest subtask); `bytes_written` and
        `files_written` of the checkpoint, and `bytes_total` of all files that it refers to; null if not measured.

        `counter.clicks at (version => 41)` reads a state at another checkpoint. The version is an id, -1 for the
        checkpoint before this one, or the name of a tag; `at (timestamp => now() - interval 1 hour)` names a time.
        `arrowstate.changes('counter.clicks', 41, 44)` returns the rows that changed from one checkpoint to another,
        with `_change_type`, and `arrowstate.change_counts(41, 44)` their number in each state; the second checkpoint is
        this one by default. `arrowstate.history('counter.clicks', 'ann')` returns the value of a key in each checkpoint
        that changed it; a key of several columns is written `{'user': 'ann', 'device': 'pc'}`. Arguments are constants,
        parameters, and expressions of these.

        States have the rows that `to_arrow` returns, without those that have expired: by the time of the call, also at
        an older checkpoint, or by event time at the watermark of the checkpoint. `arrowstate.state('counter.clicks',
        expired => true)` returns expired rows too, and `_expires_at`. Changes and histories are of all rows: expiry is
        no change.

        Parameters
        ----------
        query
            One statement in DuckDB's SQL that has a result: a SELECT, an EXPLAIN, a PIVOT; or a COPY of a query to a
            file, which is done at once.
        params
            Values for `?` or `$name` in the query.
        tables
            Other tables for the query, by name: of Arrow, pandas or Polars, datasets, readers, relations of DuckDB, and
            iterators of record batches. Readers and iterators are read into memory first.
        expired
            Whether states have rows that have expired, too, and the column `_expires_at`.

        Returns
        -------
        duckdb.DuckDBPyRelation
            The result, which is computed when it is fetched. If a file is missing or damaged then, the error is that of
            `to_arrow`; other errors are DuckDB's.

        Raises
        ------
        StateNotFoundError
            If the query names a table that does not exist; the message lists the existing ones.
        InvalidInputError
            If DuckDB refuses the query for another reason, or it is not one that has a result.
        CorruptDataError
            If a file is missing, truncated or altered: here or when the result is fetched.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://sql-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> clicks.add_batch(pa.array(["ann", "bob"]), pa.array([3, 4]))
        >>> with store.writer() as writer:
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> snapshot.sql("select sum(clicks) from counter.clicks").fetchall()
        [(7,)]
        """
        from arrowstate.query.duckdb.selecting import select

        seen = self._seen(expired=expired)
        return select(
            self._database(expired=expired),
            query,
            params,
            seen=seen,
            on_scan=self._scanned,
            names=lambda: [*sql_names(self.entry), *history_names()],
            checkpoint_id=self.checkpoint_id,
            tables=tables,
            others=partial(self.other_tables, seen=seen),
        )

    def other_tables(
        self, connection: DuckDBPyConnection, on_scan: Callable[[ScanStatistics], None], *, seen: Seen | None = None
    ) -> OtherTables:
        """Return what registers tables of other checkpoints, and of functions, with a connection.

        Returns
        -------
        OtherTables
            Asked for each table that a query names with `at` or by a function.
        """
        from arrowstate.query.duckdb.travel import OtherTables

        seen = self._seen(expired=False) if seen is None else seen
        return OtherTables(self.storage, self.entry, self._sources_of, seen, connection, on_scan)

    def changes(
        self,
        state: str | tuple[str, str],
        since: CheckpointReference | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows of a state that changed since another checkpoint.

        Only files that the two checkpoints do not share are read.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        since
            The earlier checkpoint: its id, -1 for the one before this one, a tag or a time; None for nothing, so that
            all rows are inserted.
        columns
            Which columns, those of `to_arrow` by default.

        Returns
        -------
        pa.Table
            The columns, and `_change_type` string: `insert`, `delete`, or `update_preimage` with the old row, followed
            by `update_postimage` with the new row.

        Raises
        ------
        NotFoundError
            If there is no such state or checkpoint.
        IncompatibleStateError
            If neither schema can hold the values of the other, or keys became equal in between.
        CorruptDataError, CollectedError
            If a file is missing, truncated or altered; or a collection deleted it.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://snapshot-changes-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> with store.writer() as writer:
        ...     clicks.add_batch(["ann", "bob"], [1, 2])
        ...     _ = writer.checkpoint({"counter": [backend]})
        ...     clicks.add_batch(["ann"], [4])
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> snapshot.changes("counter.clicks", since=1).to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'user': 'ann', 'clicks': 1, '_change_type': 'update_preimage'},
         {'user': 'ann', 'clicks': 5, '_change_type': 'update_postimage'}]
        """
        before = None if since is None else self._other(since)
        return rows_between(self.storage, before, self.entry, state, columns)

    def diff(self, since: CheckpointReference | None) -> Difference:
        """Return how it differs from an earlier checkpoint; see `StateStore.diff`.

        Parameters
        ----------
        since
            As for `changes`.

        Returns
        -------
        Difference
            The counts by state in `states`, the `properties` that differ; `rows` has the rows.
        """
        return difference(self.storage, None if since is None else self._other(since), self.entry)

    def history(self, state: str | tuple[str, str], keys: Any) -> pa.Table:
        """Return the rows of some keys in each checkpoint of the store that changed them, oldest first.

        It reads the manifests of every checkpoint, and rows only of runs that are new and may hold one of the keys.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        keys
            As for `lookup`.

        Returns
        -------
        pa.Table
            `_checkpoint_id` int64, `_committed_at` timestamp("ms") in UTC, `_change_type` as for `changes`, and the
            columns of `to_arrow`, in the schema of this checkpoint, or in wider types if other checkpoints have these,
            as after a rollback. What the oldest checkpoint has is inserted by it.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If this checkpoint has no such state.
        KeyTypeError, NullKeyError
            If the keys do not fit the key schema; other errors are those of `changes`.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://snapshot-history-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
        >>> with store.writer() as writer:
        ...     for name in ("Rome", "Rome", "Oslo"):
        ...         city.update_batch(["ann"], [name])
        ...         snapshot = writer.checkpoint({"people": [backend]})
        >>> [(row["_checkpoint_id"], row["city"]) for row in snapshot.history("people.city", ["ann"]).to_pylist()]
        [(1, 'Rome'), (3, 'Rome'), (3, 'Oslo')]
        """
        reader = self._state(state)
        entries = [*CommitLog(self.storage).backwards()][::-1]
        history = KeyHistory(self.storage, history_reader(self.storage, reader, entries), keys)
        return pa.Table.from_batches(list(history.batches(entries)), history.schema)

    def _other(self, reference: CheckpointReference) -> LogEntryDocument:
        found = choose_checkpoint(self.storage, reference, seen_from=self.checkpoint_id)
        if (found.checkpoint_id or 0) > self.checkpoint_id:
            raise InvalidInputError(
                f"checkpoint {self.checkpoint_id} is older than checkpoint {found.checkpoint_id}; give the older one "
                "first"
            )
        return found

    def duckdb(self, *, expired: bool = False) -> DuckDBPyConnection:
        """Return a new DuckDB connection, in memory, with a schema per operator and a view per state.

        The views are those of `sql`; states have the rows that have not expired when the connection is made. A second
        view of each state, with its whole name in quotes as in `"counter.clicks"`, has all columns, also `_key_hash`.
        `show tables` lists these views, and the two tables of the schema `arrowstate`. If a scan finds a file missing
        or damaged, the error is DuckDB's, with the message of arrowstate in its text; `scans` has the error itself.

        Parameters
        ----------
        expired
            As for `sql`.

        Returns
        -------
        duckdb.DuckDBPyConnection
            To be closed by the caller.
        """
        return self.connected(self._scans.append, expired=expired)

    def connected(self, on_scan: Callable[[ScanStatistics], None], *, expired: bool = False) -> DuckDBPyConnection:
        """Return what `duckdb` returns; `on_scan` is told of each scan.

        Returns
        -------
        duckdb.DuckDBPyConnection
            To be closed by the caller.
        """
        return self._database(expired=expired).connect(on_scan, self._seen(expired=expired))

    def attach(
        self,
        connection: DuckDBPyConnection,
        catalog: str,
        on_scan: Callable[[ScanStatistics], None] | None = None,
        *,
        expired: bool = False,
    ) -> list[SqlName]:
        """Give a DuckDB connection a database of this name with the views of `duckdb`; see `arrowstate.attach`.

        Returns
        -------
        list[SqlName]
            The names of the states, without that of the database.
        """
        told = self._scans.append if on_scan is None else on_scan
        return self._database(expired=expired).attach(connection, catalog, told, self._seen(expired=expired))

    @property
    def scans(self) -> tuple[ScanStatistics, ...]:
        """What the last scans by `sql` and `duckdb` read, oldest first: for finding out what a filter spares."""
        return tuple(self._scans)

    def _database(self, *, expired: bool) -> Database:
        # Asked for each time: one that was made before a fork is of no use after it.
        from arrowstate.query.duckdb.engine import Database, databases

        seen = self._seen(expired=expired)
        return databases.get((self._identity, expired), lambda: Database(self._sources_of(self.entry, seen)))

    def _sources_of(self, entry: LogEntryDocument, seen: Seen) -> Mapping[SqlName, Source]:
        from arrowstate.query.duckdb.sources import sources_of

        other: SnapshotReader = self if entry is self.entry else type(self)(self.storage, self.store_id, entry)
        return sources_of(self.storage, entry, other._reader, seen)

    def _seen(self, *, expired: bool) -> Seen:
        return Seen(self.clock_ms(), expired)

    def _state(self, reference: str | tuple[str, str]) -> StateReader:
        return self._reader(*resolve(self.entry, reference))

    def _reader(self, uid: str, name: str) -> StateReader:
        with self._lock:
            reader = self._states.get((uid, name))
            if reader is None:
                key = (*self._identity, uid, name)
                reader = _STATES.get(key, lambda: StateReader(self.storage, self.entry, uid, name))
                self._states[uid, name] = reader
            return reader

    @property
    def _identity(self) -> tuple[str, str, str]:
        return self.storage.url, self.store_id, f"{self.entry.commit_id} {isinstance(self.storage, Validated)}"


def _unpickled(kind: type[SnapshotReader], storage: Storage, store_id: str, entry: bytes) -> SnapshotReader:
    return kind(storage, store_id, unpack(entry, LogEntryDocument))
