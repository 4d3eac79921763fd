"""The reader of a table of PostgreSQL and its changes: snapshots of the table, and then the stream of replication.

What was committed before a snapshot is in it, and comes again with the stream, because the slot is older. A snapshot
says which transactions it has, so exactly these are passed over. Where a snapshot was left off, another one, of a later
moment, has the rest of the keys; transactions that only one of the two has count for the keys of the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from arrowstate.errors import SourceError, UnavailableError
from arrowstate.postgres.session import connect
from arrowstate.runtime.connectors import Split
from arrowstate.runtime.sources import pgoutput
from arrowstate.runtime.sources.postgres_copying import WAIT_MS, Copying
from arrowstate.runtime.sources.postgres_feed import PostgresTable, check_split, lsn_text, snapshots_of
from arrowstate.runtime.sources.postgres_types import SETTINGS, from_text
from arrowstate.runtime.sources.reading import OpenSplit, SplitsReader

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable

Mask = npt.NDArray[np.bool_]

_MOST_MESSAGES = 16_384
_RETRY_S = 0.2
_KINDS = pa.array(["insert", "update_preimage", "update_postimage", "delete"])
_HALF = 1 << 31
_FILES = """
with recursive part (id) as (
    select %s::oid union select i.inhrelid from pg_inherits i join part on part.id = i.inhparent
)
select array_agg(c.oid || ' ' || c.relfilenode order by c.oid) from pg_class c join part on part.id = c.oid
"""
"""The files of a table and its partitions: others when they were emptied or written anew."""


class PostgresReader(SplitsReader):
    """Reads the one split there is, and tells the server what a checkpoint has."""

    def __init__(self, feed: PostgresTable) -> None:
        super().__init__(lambda split: _TableSplit(feed, split), in_turn=False)

    def committed(self, positions: Mapping[str, Any]) -> None:
        """Let the server throw away the log of what is in a checkpoint."""
        for name, opened in self._open.items():
            if isinstance(opened, _TableSplit) and positions.get(name) is not None:
                opened.confirm(positions[name]["lsn"])


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that were read together, and the positions after each of them and after all."""

    rows: pa.RecordBatch
    after: Callable[[int], dict[str, Any]]
    end: dict[str, Any]


class _TableSplit(OpenSplit):
    """The table and its changes; what fails because the server is away is tried again from the position."""

    def __init__(self, feed: PostgresTable, split: Split) -> None:
        check_split(split)
        self._feed = feed
        self._name = split.id
        self._position: dict[str, Any] | None = split.position
        self._piece: _Piece | None = None
        self._given = 0
        self._reading: _Snapshot | _Stream | None = None
        self._confirmed = 0
        self._failing_since: float | None = None
        self._next_try = 0.0

    @property
    def position(self) -> dict[str, Any] | None:
        return self._position

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        if self._piece is None:
            self._piece, self._given = self._next(), 0
            if self._piece is None:
                return None
        rows = self._piece.rows.slice(self._given, max_rows)
        self._given += rows.num_rows
        if self._given < self._piece.rows.num_rows:
            self._position = self._piece.after(self._given - 1)
        else:
            self._position, self._piece = self._piece.end, None
        return rows

    def confirm(self, lsn: int) -> None:
        """Take note of what a checkpoint has."""
        import psycopg

        self._confirmed = max(lsn, self._confirmed)
        if isinstance(self._reading, _Stream):
            # If the connection is gone, the next one tells it.
            with suppress(psycopg.Error):
                self._reading.confirm(self._confirmed)

    def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def _next(self) -> _Piece | None:
        """Return what comes next, None if it has not come; everything was given out before."""
        import psycopg

        if self._feed.clock() < self._next_try:
            time.sleep(WAIT_MS / 1000)
            return None
        try:
            if self._reading is None:
                self._reading = self._opened()
            piece = self._reading.next()
        except (psycopg.OperationalError, UnavailableError) as error:
            self.close()
            now = self._feed.clock()
            self._failing_since = now if self._failing_since is None else self._failing_since
            if (now - self._failing_since) * 1000 < self._feed.reconnect_ms:
                self._next_try = now + _RETRY_S
                return None
            doing = f"reading table {self._feed.namespace}.{self._feed.table} by the slot {self._feed.slot!r}"
            raise UnavailableError("PostgreSQL", doing, f"{error}; tried for {self._feed.reconnect_ms} ms") from error
        except psycopg.Error as error:
            self.close()
            raise SourceError(self._name, self._position, f"{type(error).__name__}: {error}") from error
        if self._reading.is_open:
            self._failing_since = None
        if piece is not None and piece.end["key"] is None and isinstance(self._reading, _Snapshot):
            self.close()
        return piece

    def _opened(self) -> _Snapshot | _Stream:
        if self._position is None or self._position["key"] is not None:
            return _Snapshot(self._feed, self._name, self._position)
        return _Stream(self._feed, self._name, self._position, self._confirmed)


class _Snapshot:
    """The rows of the table as they are at one moment, those after a key, in the order of keys."""

    def __init__(self, feed: PostgresTable, name: str, start: dict[str, Any] | None) -> None:
        self._feed, self._name, self._start = feed, name, start
        if start is not None and not start["key"]:
            raise SourceError(
                name,
                start,
                "the table has no primary key, so it cannot be read on here; begin anew under another uid and slot",
            )
        self._copying: Copying | None = None
        self.is_open = False
        """Whether rows have come: what fails before would fail again and again."""
        self._connection = connect(feed.conninfo, settings=SETTINGS, client_encoding="UTF8")
        try:
            place = feed.check(self._connection, start)
            self._lsn = place if start is None else start["lsn"]
            self._connection.execute("begin isolation level repeatable read read only")
            moment = "select pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint"
            snapshot, self._until = self._row(moment)
            self._files: Any = self._connection.execute(_FILES, (feed.id,)).fetchone()
            before = [] if start is None else snapshots_of(start)
            if start is not None:
                before[-1] = {**before[-1], "upto": start["key"]}
            self._snapshots = [*before, {"snapshot": snapshot, "until": self._until, "upto": None}]
        except BaseException:
            self._connection.close()
            raise

    def next(self) -> _Piece | None:
        """Return rows; none of them, and the position after the snapshot, in the end."""
        if self._copying is None:
            # What is visible and not yet in the log could be lost with the server.
            if self._row("select (pg_current_wal_flush_lsn() - '0/0')::bigint")[0] < self._until:
                time.sleep(WAIT_MS / 1000)
                return None
            self._copying = Copying(self._connection, self._command())
        lines = self._copying.take(_MOST_MESSAGES)
        if self._files is not None and self._copying.began:
            self._check_files()
        end = self._feed.position(self._lsn, snapshots=self._snapshots)
        if not lines:
            return _Piece(_no_rows(self._feed.schema), lambda _: end, end) if self._copying.ended else None
        columns = self._feed.columns
        texts = _texts(b"".join(lines), [column.name for column in columns])
        keys = [texts[column] for column in self._feed.key]

        def after(row: int) -> dict[str, Any]:
            key = [column[row].as_py() for column in keys]
            return self._feed.position(self._lsn, key=key, snapshots=self._snapshots)

        self.is_open = True
        count = len(lines)
        rows = _rows(
            self._feed,
            [texts[column.name] for column in columns],
            np.full(count, pgoutput.INSERT),
            np.full(count, self._lsn),
            np.zeros(count, np.int64),
            (self._name, self._start),
        )
        return _Piece(rows, after, after(count - 1))

    def close(self) -> None:
        self._connection.close()

    def _check_files(self) -> None:
        """Begin anew if the table was emptied or written anew before the copy held it: no snapshot has its rows."""
        import psycopg

        with closing(connect(self._feed.conninfo)) as connection:
            now = connection.execute(_FILES, (self._feed.id,)).fetchone()
        if now != self._files:
            raise psycopg.OperationalError("the table was truncated or written anew while its snapshot was begun")
        self._files = None

    def _command(self) -> str:
        from psycopg.sql import SQL, Identifier, Literal

        feed = self._feed
        columns: list[Composable] = [Identifier(column.name) for column in feed.columns]
        keys = SQL(", ").join(map(Identifier, feed.key))
        where: Composable = SQL("")
        if self._start is not None:
            types = {column.name: column.type_name for column in feed.columns}
            left = [
                SQL("{}::{}").format(Literal(value), SQL(types[name]))
                for name, value in zip(feed.key, self._start["key"], strict=True)
            ]
            where = SQL(" where ({}) > ({})").format(keys, SQL(", ").join(left))
        order = SQL(" order by {}").format(keys) if feed.key else SQL("")
        command = SQL("copy (select {} from {}{}{}) to stdout (format csv, force_quote *)").format(
            SQL(", ").join(columns), feed.name(), where, order
        )
        return command.as_string(self._connection)

    def _row(self, query: str) -> Any:
        return self._connection.execute(query.encode()).fetchone()


class _Stream:
    """The changes after a position, as the server sends them."""

    def __init__(self, feed: PostgresTable, name: str, start: dict[str, Any], confirmed: int) -> None:
        from psycopg import ClientCursor

        self._feed, self._name, self._start = feed, name, start
        self._snapshots: list[dict[str, Any]] = snapshots_of(start)
        self._confirmed = confirmed
        self._waiting: list[bytes] = []
        self._relation: pgoutput.Relation | None = None
        self._decoder = pgoutput.Decoder(feed.id, pgoutput.Place(start["lsn"], start["transaction"], start["row"]))
        self._position = start
        # Such a connection has no parameters but those that are written into the statement.
        connection = connect(
            feed.conninfo,
            settings=SETTINGS,
            client_encoding="UTF8",
            replication="database",
            cursor_factory=ClientCursor,
        )
        # A publication is named by an identifier in a text.
        publication = '"' + feed.publication.replace('"', '""') + '"'
        command = (
            f"START_REPLICATION SLOT {feed.slot} LOGICAL {lsn_text(start['lsn'])} "
            f"(proto_version '1', publication_names '{publication.replace(chr(39), chr(39) * 2)}')"
        )
        try:
            feed.check(connection, start)
            self._copying = Copying(connection, command)
        except BaseException:
            connection.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the server has begun to send."""
        return self._copying.began

    def next(self) -> _Piece | None:
        """Return changes; none of them if there is only a position to tell."""
        messages = self._waiting or self._copying.take(_MOST_MESSAGES)
        if self._copying.ended:
            import psycopg

            raise psycopg.OperationalError("the server has ended the replication")
        if any(message[0] == pgoutput.KEEPALIVE and message[17] for message in messages):
            self._reply()
        told = [message for message in messages if message[0] == pgoutput.DATA]
        relations = [number for number, message in enumerate(told) if message[25] == pgoutput.RELATION]
        if relations and relations[0] == 0:
            self._take_relation(told[0])
            told, relations = told[1:], [number - 1 for number in relations[1:]]
        # What the columns are changes there.
        end = relations[0] if relations else len(told)
        self._waiting = (
            told[end:] + messages[-1:] if relations and messages[-1][0] == pgoutput.KEEPALIVE else told[end:]
        )
        changes = self._decoded(told[:end])
        if messages and messages[-1][0] == pgoutput.KEEPALIVE and not self._waiting:
            self._decoder.passed(int.from_bytes(messages[-1][1:9], "big"))
        place = self._decoder.place
        reached = self._feed.position(place.done, place.transaction, place.rows, snapshots=self._snapshots)
        if changes is None:
            if reached == self._position:
                return None
            self._position = reached
            return _Piece(_no_rows(self._feed.schema), lambda _: reached, reached)
        self._position = reached
        rows, places = changes

        def after(row: int) -> dict[str, Any]:
            return self._feed.position(*places[row].tolist(), snapshots=self._snapshots)

        return _Piece(rows, after, reached)

    def confirm(self, lsn: int) -> None:
        """Tell the server what a checkpoint has."""
        self._confirmed = lsn
        self._reply()

    def close(self) -> None:
        self._copying.close()

    def _reply(self) -> None:
        written = max(self._decoder.place.done, self._confirmed)
        places = b"".join(lsn.to_bytes(8, "big") for lsn in (written, self._confirmed, self._confirmed))
        self._copying.send(b"r" + places + bytes(8) + b"\0")

    def _take_relation(self, message: bytes) -> None:
        """Take note of the columns of the table, and refuse those that are others now."""
        found = pgoutput.relation(message)
        if found.id != self._feed.id:
            if found.name == (self._feed.namespace, self._feed.table):
                raise self._error(
                    f"changes of another table {'.'.join(found.name)} come: it was dropped and made again; begin anew "
                    "under another uid and slot"
                )
            return
        for column in self._feed.columns:
            has = found.columns.get(column.name)
            is_exact = pa.types.is_decimal(column.type)
            if has is None or has[0] != column.type_id or (is_exact and has[1] != column.modifier):
                raise self._error(
                    f"the table was altered: its column {column.name!r} "
                    f"{'is gone or has another name' if has is None else 'has another type'} than {column.type_name}, "
                    "as which it is read"
                )
        without = [name for name in self._feed.key if name not in found.key]
        if without and not self._feed.is_changelog:
            raise self._error(
                f"the table was altered: its key is another one than {', '.join(self._feed.key)}, by which it is read, "
                f"and updates and deletes come without {', '.join(without)}; begin anew under another uid and slot"
            )
        self._relation = found

    def _decoded(self, messages: Sequence[bytes]) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]] | None:
        """Return the changes in messages, and the place after each; None if there are none."""
        if not messages:
            return None
        names = [] if self._relation is None else list(self._relation.columns)
        rows = self._decoder.decode(messages, len(names))
        emptied = self._decoder.truncated
        if emptied is not None and not self._feed.ignores_truncation and not self._has(emptied):
            raise self._error(
                f"the table was truncated by the transaction at {lsn_text(emptied.commit)}, which does not say which "
                "rows were deleted; begin anew under another uid and slot, or pass over it with on_truncate='ignore'"
            )
        if not len(rows.kinds):
            return None
        return self._chosen(rows, [names.index(column.name) for column in self._feed.columns])

    def _chosen(
        self, rows: pgoutput.Rows, places: Sequence[int]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]] | None:
        """Return the rows that were not read before, as the source gives them."""
        names = [column.name for column in self._feed.columns]
        keys = [rows.text(places[names.index(name)]) for name in self._feed.key]
        read = self._read_before(rows, keys)
        kinds = self._kinds(rows, keys, read)
        is_new = (rows.commits != self._start["transaction"]) | (rows.numbers >= self._start["row"])
        is_new &= ~read & (kinds >= 0)
        if not is_new.any():
            return None
        # An old row that is not whole has the key.
        has_old_key = np.roll(rows.kinds == pgoutput.PREIMAGE, 1)
        for column, place in zip(self._feed.columns, places, strict=True):
            has_old = has_old_key if column.name in self._feed.key else rows.has_whole_old
            if (is_new & (rows.lengths[place] == pgoutput.UNCHANGED) & ~has_old).any():
                raise self._error(
                    f"column {column.name!r} has a long value that an update left as it was, and PostgreSQL does "
                    f"not send it; `alter table {self._feed.namespace}.{self._feed.table} replica identity full` and "
                    "begin anew under another uid and slot, or leave the column out with columns="
                )
        chosen = pa.array(is_new)
        texts = [rows.text(place).filter(chosen) for place in places]
        made = _rows(
            self._feed,
            texts,
            kinds[is_new],
            rows.commits[is_new],
            rows.committed_us[is_new],
            (self._name, self._position),
        )
        return made, np.stack([rows.done, rows.commits, rows.numbers + 1], axis=1)[is_new]

    def _kinds(self, rows: pgoutput.Rows, keys: Sequence[pa.StringArray], read: Mask) -> npt.NDArray[np.int64]:
        """Return what the rows are, -1 for those that are not given."""
        kinds = rows.kinds.copy()
        before, after = kinds == pgoutput.PREIMAGE, kinds == pgoutput.POSTIMAGE
        if self._feed.is_changelog:
            if (~read & (kinds != pgoutput.INSERT) & ~rows.has_whole_old).any():
                raise self._error(
                    "an update or a delete came without its old row: the table has another replica identity; `alter "
                    f"table {self._feed.namespace}.{self._feed.table} replica identity full`, and begin anew under "
                    "another uid and slot"
                )
            # Of an update that moved a row between two snapshots one side is new.
            kinds[before & np.roll(read, -1)] = pgoutput.DELETE
            kinds[after & np.roll(read, 1)] = pgoutput.INSERT
            return kinds
        is_same = np.ones(len(kinds), bool)
        for name, key in zip(self._feed.key, keys, strict=True):
            is_absent = key.is_null().to_numpy(zero_copy_only=False)
            if (~read & (before | (kinds == pgoutput.DELETE)) & is_absent).any():
                raise self._error(
                    f"an update or a delete came without the key {name}: the table, or a partition of it, has another "
                    "replica identity; begin anew under another uid and slot"
                )
            following = pa.concat_arrays([key.slice(1), key.slice(0, 1)])
            is_same &= pc.fill_null(pc.equal(key, following), False).to_numpy(zero_copy_only=False)
        kinds[before] = np.where(is_same[before], -1, pgoutput.DELETE)
        return kinds

    def _read_before(self, rows: pgoutput.Rows, keys: Sequence[pa.StringArray]) -> Mask:
        """Return which rows are changes that the snapshot of their key has already."""
        has = [_visible(it["snapshot"], rows.xids) & (rows.commits < it["until"]) for it in self._snapshots]
        if not has:
            return np.zeros(len(rows.kinds), bool)
        read = has[-1].copy()
        open_to = np.flatnonzero(np.any(has, axis=0) & ~np.all(has, axis=0))
        if not len(open_to):
            return read
        own = [key.take(pa.array(open_to)) for key in keys]
        is_placed = np.zeros(len(open_to), bool)
        with closing(connect(self._feed.conninfo)) as connection:
            for number, snapshot in enumerate(self._snapshots[:-1]):
                is_within = self._is_upto(connection, own, snapshot["upto"]) & ~is_placed
                read[open_to[is_within]] = has[number][open_to[is_within]]
                is_placed |= is_within
        return read

    def _is_upto(self, connection: Connection[Any], keys: Sequence[pa.StringArray], upto: Sequence[str]) -> Mask:
        """Return which keys are not after another one, as the server compares them."""
        from psycopg.sql import SQL, Identifier, Literal

        columns = {column.name: column for column in self._feed.columns}
        ours, theirs = [], []
        for number, (name, value) in enumerate(zip(self._feed.key, upto, strict=True)):
            column = columns[name]
            collation = SQL(f" collate {column.collation}" if column.collation else "")
            kind = SQL(column.type_name)
            ours.append(SQL("{}::{}{}").format(Identifier(f"k{number}"), kind, collation))
            theirs.append(SQL("{}::{}{}").format(Literal(value), kind, collation))
        query = SQL("select row({}) <= row({}) from unnest({}) with ordinality as t({}) order by n").format(
            SQL(", ").join(ours),
            SQL(", ").join(theirs),
            # Values that are given besides would have each % of a key or a type read as a place for one.
            SQL(", ").join([SQL("{}::text[]").format(Literal(key.to_pylist())) for key in keys]),
            SQL(", ").join([Identifier(f"k{number}") for number in range(len(ours))] + [Identifier("n")]),
        )
        found = connection.execute(query).fetchall()
        return np.array([row[0] for row in found], bool)

    def _has(self, transaction: pgoutput.Transaction) -> bool:
        """Whether all snapshots have a transaction."""
        xid = np.array([transaction.xid], np.int64)
        has = [_visible(it["snapshot"], xid)[0] and transaction.commit < it["until"] for it in self._snapshots]
        return bool(has) and all(has)

    def _error(self, detail: str) -> SourceError:
        return SourceError(self._name, self._position, detail)


def _visible(snapshot: str, xids: npt.NDArray[np.int64]) -> Mask:
    """Return which transactions a snapshot has; of their numbers the lower 32 bits are known."""
    low, high, running = snapshot.split(":")
    least, most = int(low), int(high)
    whole = (most & ~0xFFFF_FFFF) | xids
    whole = np.where(whole > most + _HALF, whole - 2 * _HALF, np.where(whole < most - _HALF, whole + 2 * _HALF, whole))
    others = np.array([int(xid) for xid in running.split(",") if xid], np.int64)
    return (whole < least) | ((whole < most) & ~np.isin(whole, others))


def _texts(lines: bytes, names: Sequence[str]) -> dict[str, pa.StringArray]:
    """Return the columns of CSV that PostgreSQL wrote, in which a null is nothing and a text is quoted."""
    table = pyarrow.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pyarrow.csv.ReadOptions(column_names=list(names), block_size=len(lines) + 1, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return {name: table[name].combine_chunks() for name in names}


def _rows(
    feed: PostgresTable,
    texts: Sequence[pa.StringArray],
    kinds: npt.NDArray[np.int64],
    commits: npt.NDArray[np.int64],
    committed_us: npt.NDArray[np.int64],
    place: tuple[str, Any],
) -> pa.RecordBatch:
    """Return rows as the source gives them."""
    made: list[pa.Array] = []
    for column, text in zip(feed.columns, texts, strict=False):
        if len(made) == len(feed.schema) - 3:
            break
        try:
            made.append(from_text(text, column.type))
        except pa.ArrowInvalid as error:
            raise SourceError(
                *place,
                f"column {column.name!r} of type {column.type_name} has a value that {column.type} cannot hold: {error}"
                "; name it in text_columns, which gives it as text",
            ) from None
    times = pa.array(committed_us).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [*made, _KINDS.take(pa.array(kinds)), pa.array(commits), times], schema=feed.schema
    )


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
