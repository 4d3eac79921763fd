"""A checkpoint or savepoint as tables: Arrow, Polars, SQL by DuckDB, and lookups of keys.

Nothing here needs the job that wrote the state: the columns come from the checkpoint itself. An engine is
imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.log.choosing import CheckpointReference, choose_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.catalog import SqlName, history_names, sql_names
from arrowstate.query.difference import Difference, difference, rows_between
from arrowstate.query.expiry import Seen
from arrowstate.query.key_history import KeyHistory
from arrowstate.query.state_table import StateTable
from arrowstate.query.tables import TableReader
from arrowstate_formats.documents import LogEntryDocument

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from arrowstate.query.duckdb.dataset import ScanStatistics, Source
    from arrowstate.query.duckdb.engine import Database
    from arrowstate.query.duckdb.travel import OtherTables


class SnapshotReader(TableReader):
    """Reads one checkpoint or savepoint, and compares it with others of its store; safe to use from several threads."""

    def __getitem__(self, state: str | tuple[str, str]) -> StateTable:
        """Return one state as a table: of which rows are read, or which is handed to another library."""
        return StateTable(self, self._state(state), self._scans.append, self._seen(expired=False))

    def sql(
        self,
        query: str,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
        expired: bool = False,
    ) -> DuckDBPyRelation:
        """Run a query with DuckDB over the states of the checkpoint.

        Each state is a view `<operator uid>.<state>` with the key columns, the value columns and `_key_group`; a
        name with other characters than letters, digits and `_` is written in double quotes, as in
        `"page-views".clicks`. Where a filter limits all key columns to values (`=`, `in`), only these keys are
        looked up; filters on `_key_group` and on columns leave out what they exclude. Operator state is a view of the
        same form with a row per element: `<state>`, for a list of structs a column per field, as an output table of
        Spark has it in `<output>.rows`; for a broadcast state `<state>_key` and `<state>`.

        Types are DuckDB's own for those of Arrow, with exactly the values of the state: a float16 is a FLOAT, a
        decimal256 a DECIMAL, or VARCHAR with its digits where it is wider than 38, a duration in nanoseconds a BIGINT
        with their number (DuckDB's INTERVAL ends at microseconds). SQL does not tell names apart by case: two uids
        that differ in nothing else are `op~1` and `OP~2` in the order of the checkpoint, so are fields of nested
        structs, and a uid that names a schema of DuckDB's or of the store's history has `~2` at its end, as in
        `"temp~2".clicks`.

        `arrowstate.checkpoints` holds the checkpoints of the store, with times, sizes and properties, and
        `arrowstate.subtasks` the same of each subtask: `triggered_at` and `committed_at` in UTC, `sync_us`, `async_us`
        and `alignment_us` in microseconds (in `checkpoints` those of the slowest subtask), `bytes_written` and
        `files_written` for the checkpoint, and `bytes_total` of all that it refers to; null where nobody measured.

        A state is read as it was at another checkpoint by `counter.clicks at (version => 41)`, where the version is an
        id, -1 for the checkpoint before this one, or the name of a tag, or by `at (timestamp => now() - interval 1
        hour)`. `arrowstate.changes('counter.clicks', 41, 44)` has the rows that changed from one checkpoint to another,
        with `_change_type`; `arrowstate.change_counts(41, 44)` how many of each state did; the second checkpoint is
        this one by default. `arrowstate.history('counter.clicks', 'ann')` has what a key was, in each checkpoint that
        changed it; a key of several columns is given as `{'user': 'ann', 'device': 'pc'}`. Arguments are constants,
        parameters, and expressions of these.

        States have the rows that `to_arrow` returns: at whichever checkpoint, those that have not expired by the time
        of the call, or by event time at the watermark of the checkpoint. `arrowstate.state('counter.clicks', expired =>
        true)` has the others too, and `_expires_at`. Changes and histories are of all rows: none changes by expiring.

        Parameters
        ----------
        query
            One statement in DuckDB's SQL that has a result: a SELECT, an EXPLAIN, a PIVOT; or a COPY of a query to a
            file, which is done at once.
        params
            Values for `?` or `$name` in the query.
        tables
            Other tables for the query, by name: of Arrow, pandas or Polars, datasets, readers, relations of DuckDB, and
            iterators of record batches. What can be read once only is read into memory first.
        expired
            Whether states have rows that have expired, too, and the column `_expires_at`.

        Returns
        -------
        duckdb.DuckDBPyRelation
            The result, which is computed when it is fetched. A file that is found missing or damaged then is raised
            as it is by `to_arrow`; what else fails is raised by DuckDB.

        Raises
        ------
        StateNotFoundError
            If the query names a table that does not exist; the message lists those there are.
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
            on_scan=self._scans.append,
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

        Only what the two checkpoints do not share is read.

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
            The columns, and `_change_type` string: `insert`, `delete`, or `update_preimage` with the row as it was,
            followed by `update_postimage` with what it is.

        Raises
        ------
        NotFoundError
            If there is no such state or checkpoint.
        IncompatibleStateError
            If the values of neither can be values of the other's schema, or keys became equal in between.
        CorruptDataError, CollectedError
            If a file is missing, truncated or altered; or a collection took it.

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
            The counts by state in `states`; `rows` has the rows.
        """
        return difference(self.storage, None if since is None else self._other(since), self.entry)

    def history(self, state: str | tuple[str, str], keys: Any) -> pa.Table:
        """Return what some keys were, in each checkpoint of the store that changed them, oldest first.

        Every checkpoint's manifests are read, and rows where a run that may hold a key is another one than before.

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
            columns of `to_arrow`, in the schema of this checkpoint. What the oldest checkpoint has is inserted by it.

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
        history = KeyHistory(self.storage, reader, keys)
        entries = [*CommitLog(self.storage).backwards()][::-1]
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

        The views are those of `sql`, and states have the rows that have not expired when it is made. Besides, the name
        of operator and state together, in quotes as in `"counter.clicks"`, holds all columns, `_key_hash` too; `show
        tables` lists these names, and the two tables of the schema `arrowstate`. Where a scan finds a file missing or
        damaged, the error is DuckDB's, with our message in its text, and `scans` has ours.

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
