"""A source of the rows of a table of PostgreSQL and of all that changes in it, by logical replication."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from typing import Literal

from arrowstate.errors import InvalidInputError, UnavailableError
from arrowstate.postgres.session import checked_conninfo, connect
from arrowstate.runtime.connectors import Reader, Source, Split
from arrowstate.runtime.sources.postgres_feed import CHANGES, POSITION, PostgresTable, check_split
from arrowstate.runtime.sources.postgres_reader import PostgresReader


class PostgresCDCSource(Source):
    """The rows of a table of PostgreSQL, and then its changes in the order of their commits (change data capture).

    The rows of the table come first, as `insert`, from one consistent snapshot. The changes after it follow, read by
    logical replication from a slot with the plugin `pgoutput`. The columns are those of the table, and `_change_type`,
    one of `insert`, `update_preimage`, `update_postimage` and `delete`; `_commit_lsn` int64, the place of the commit in
    the write-ahead log; and `_committed_at` timestamp[us, UTC], the time of the commit, 1970-01-01 for the rows of the
    snapshot. The changes of a transaction come together; those of transactions that were taken back do not come.

    Parameters
    ----------
    conninfo : str
        The database, as for `PostgresSink`. The server needs `wal_level = logical`, and the user the right to read the
        table and the attribute REPLICATION.
    table : str
        The table, an ordinary or a partitioned one. PostgreSQL does not tell when a partition is truncated, dropped,
        attached or detached, so its rows are neither deleted nor inserted by that.
    slot : str
        The replication slot of this source, made at its first start: lower-case letters, digits and `_`. No two sources
        share one. It keeps the write-ahead log for this source: if the job is given up, drop it.
    schema : str, default "public"
        The schema of the table.
    publication : str, optional
        The publication, by default of the name of the slot. If it is missing it is made at the first start, for which
        the user must own the table and be allowed to create in the database.
    columns : sequence of str, optional
        The columns to read; by default all but those that are generated.
    text_columns : sequence of str, optional
        Columns to give as PostgreSQL's text, for values that their Arrow type cannot hold, such as the date `infinity`.
    changelog : {"all", "upsert"}, default "all"
        `all` has two rows for an update, and needs `alter table ... replica identity full`. `upsert` has only
        `update_postimage`, and of a deleted row only the key has to be there: columns that PostgreSQL does not send are
        null. It needs a primary key or a replica identity. An update that changes the key is a `delete` and an
        `update_postimage`.
    snapshot : bool, default True
        Whether the rows of the table come first. Otherwise changes come from where the slot is, which is the first
        start for a slot that is made then.
    on_truncate : {"error", "ignore"}, default "error"
        What happens if the table is truncated, which does not say which rows were deleted.
    reconnect_ms : int, default 60_000
        For how long a server that cannot be reached, or a slot that is in use, is tried again, in milliseconds. Then
        reading fails.
    discovery_ms : int, default 10_000
        How often slot and publication are checked, in milliseconds.
    clock : callable, default time.monotonic
        Where the time in seconds comes from.

    Raises
    ------
    MissingDependencyError
        If psycopg is not installed: `pip install 'arrowstate[postgres]'`.
    UnavailableError
        If the server cannot be reached.
    InvalidInputError
        If an argument is wrong, there is no such table or column, or the server or the table is not set up for this.
        Reading raises a `SourceError` if slot or publication are gone or do not fit, if the slot was moved beyond the
        position, if the table was altered, emptied, made again or has another key or replica identity, and if a value
        does not fit.

    Notes
    -----
    There is one split. A position is a struct: `lsn` int64, after the last transaction that was read to its end;
    `transaction` int64, the place of the commit of the one that is being read, 0 for none, and `row` int64, how many of
    its rows were read; `key` list<string>, the last row that was read of the snapshot, null if all were; `snapshots`,
    the snapshots that were read, after an element that says of which table they are, with its oid and its key. After a
    restart the rest of the table is read from another snapshot, by the primary key, which must be the one of before;
    for each row the changes count that its own snapshot had not. A table without a primary key must be read in one go.

    The slot is moved when a checkpoint is committed. A job can go on from its newest checkpoint, and not from older
    ones.

    Types are bool, int16 to int64, uint32 for `oid`, float32 and float64, decimals for `numeric(p, s)`, binary, date32,
    time64, timestamp and lists of these for arrays. A domain is its base type. All others, among them `numeric` without
    digits, `json`, `uuid`, `interval` and enums, are text as PostgreSQL writes it.

    Examples
    --------
    >>> from arrowstate.runtime import PostgresCDCSource
    >>> PostgresCDCSource("postgresql://ann:secret@db/shop", "orders", slot="orders_to_totals")  # doctest: +SKIP
    PostgresCDCSource('public.orders', slot='orders_to_totals')
    """

    is_bounded = False
    position_type = POSITION

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        slot: str,
        schema: str = "public",
        publication: str | None = None,
        columns: Sequence[str] | None = None,
        text_columns: Sequence[str] = (),
        changelog: Literal["all", "upsert"] = "all",
        snapshot: bool = True,
        on_truncate: Literal["error", "ignore"] = "error",
        reconnect_ms: int = 60_000,
        discovery_ms: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not re.fullmatch("[a-z0-9_]{1,63}", slot):
            raise InvalidInputError(f"slot must be 1 to 63 lower-case letters, digits and '_', got {slot!r}")
        for name, value, words in (
            ("changelog", changelog, ("all", "upsert")),
            ("on_truncate", on_truncate, ("error", "ignore")),
        ):
            if value not in words:
                raise InvalidInputError(f"{name} must be {' or '.join(map(repr, words))}, got {value!r}")
        for name, number in (("reconnect_ms", reconnect_ms), ("discovery_ms", discovery_ms)):
            if number < 0:
                raise InvalidInputError(f"{name} must be at least 0, got {number}")
        self.discovery_ms, self.snapshot = discovery_ms, snapshot
        self.feed = PostgresTable(
            checked_conninfo("PostgresCDCSource", conninfo),
            namespace=schema,
            table=table,
            slot=slot,
            publication=publication or slot,
            is_changelog=changelog == "all",
            ignores_truncation=on_truncate == "ignore",
            reconnect_ms=reconnect_ms,
            clock=clock,
        )
        with closing(connect(conninfo)) as connection:
            self.schema = self.feed.look(connection, columns, text_columns)

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"PostgresCDCSource({f'{self.feed.namespace}.{self.feed.table}'!r}, slot={self.feed.slot!r})"

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:
        """Refuse a checkpoint after which the slot was moved on."""
        import psycopg

        for split in [*begun, *finished]:
            check_split(split)
            # Who cannot be reached now is tried again by the reader.
            with (
                suppress(psycopg.OperationalError, UnavailableError),
                closing(connect(self.feed.conninfo)) as connection,
            ):
                self.feed.check(connection, split.position)

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the one split there is; make publication and slot at the first start, and check them later."""
        import psycopg

        if CHANGES in known:
            with (
                suppress(psycopg.OperationalError, UnavailableError),
                closing(connect(self.feed.conninfo)) as connection,
            ):
                self.feed.check(connection, None)
            return []
        with closing(connect(self.feed.conninfo)) as connection:
            self.feed.make(connection)
            place = self.feed.check(connection, None)
        return [Split(CHANGES, None if self.snapshot else self.feed.position(place))]

    def reader(self) -> Reader:
        """Return a reader."""
        return PostgresReader(self.feed)
