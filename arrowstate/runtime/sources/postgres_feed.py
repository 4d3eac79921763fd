"""A table of PostgreSQL whose changes are read: what it is, and the slot and the publication that they are read by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.query.changes import CHANGE_TYPE_COLUMN
from arrowstate.runtime.connectors import Split
from arrowstate.runtime.sources.postgres_types import arrow_type

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

COMMIT_COLUMN, TIME_COLUMN = "_commit_lsn", "_committed_at"

CHANGES = "changes"
"""The split: changes come in one order."""

_PLACE = ("lsn", "transaction", "row")
_SNAPSHOT = pa.struct([("snapshot", pa.string()), ("until", pa.int64()), ("upto", pa.list_(pa.string()))])
POSITION = pa.struct(
    [*((name, pa.int64()) for name in _PLACE), ("key", pa.list_(pa.string())), ("snapshots", pa.list_(_SNAPSHOT))]
)
"""The type of positions.

The first of the snapshots is none: it has the oid of the table as `until`, and the columns of its key with their types
as `upto`. The type has no room for these elsewhere, and a store takes no other one. Older positions do not have it.
"""

_TABLE = """
select c.oid, c.relkind::text, c.relpersistence::text,
    (select min(i.oid::regclass::text) from pg_partition_tree(c.oid) p join pg_class i on i.oid = p.relid
        where p.isleaf and (i.relkind <> 'r' or i.relpersistence <> 'p')),
    (select min(i.relreplident::text) || max(i.relreplident::text) from pg_class i where i.oid = c.oid
        or i.oid in (select relid from pg_partition_tree(c.oid) where isleaf)),
    current_setting('wal_level'), current_setting('server_encoding')
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s
"""
_COLUMNS = """
select a.attname, a.atttypid, a.atttypmod, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
    (select quote_ident(n.nspname) || '.' || quote_ident(l.collname) from pg_collation l
        join pg_namespace n on n.oid = l.collnamespace where l.oid = a.attcollation)
from pg_attribute a where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_KEY = """
with identity (kind) as (
    select min(relreplident::text) from pg_class
    where oid = %(table)s or oid in (select relid from pg_partition_tree(%(table)s::oid) where isleaf)
)
select a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated <> ''
from identity, pg_index i cross join unnest(i.indkey::int[]) with ordinality k (number, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indrelid = %(table)s and k.place <= i.indnkeyatts and case kind
    when 'i' then i.indisreplident when 'f' then i.indisprimary else i.indisprimary and i.indimmediate end
order by k.place
"""
_SLOT = """
select slot_type, plugin, database, current_database(), (confirmed_flush_lsn - '0/0')::bigint, wal_status,
    (pg_current_wal_flush_lsn() - '0/0')::bigint, coalesce((to_jsonb(s) ->> 'two_phase')::bool, false)
from pg_replication_slots s where slot_name = %s
"""
_PUBLICATION = """
select p.pubinsert and p.pubupdate and p.pubdelete, p.pubtruncate,
    (select to_jsonb(t) from pg_publication_tables t
        where t.pubname = p.pubname and t.schemaname = n.nspname and t.tablename = c.relname), c.oid
from pg_publication p left join (pg_class c join pg_namespace n on n.oid = c.relnamespace)
    on n.nspname = %s and c.relname = %s
where p.pubname = %s
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    name: str
    type: pa.DataType
    type_id: int
    modifier: int
    type_name: str
    collation: str | None


@dataclass(slots=True)
class PostgresTable:
    """A table, and how its changes are read."""

    conninfo: str = field(repr=False)
    namespace: str
    table: str
    slot: str
    publication: str
    is_changelog: bool
    """Whether updates come with their old rows."""
    ignores_truncation: bool
    reconnect_ms: int
    clock: Callable[[], float]
    id: int = 0
    is_partitioned: bool = False
    columns: Sequence[Column] = ()
    """Those of the rows, and then those of the key that are not among them."""
    key: Sequence[str] = ()
    key_columns: Sequence[str] = ()
    """Those of the key with their types."""
    schema: pa.Schema = pa.schema([])
    """That of the rows."""

    def look(
        self, connection: Connection[Any], columns: Sequence[str] | None, text_columns: Sequence[str]
    ) -> pa.Schema:
        """Find out what the table is, and whether its changes can be read; return the columns of the rows."""
        found = connection.execute(_TABLE, (self.namespace, self.table)).fetchone()
        name = f"table {self.namespace}.{self.table}"
        if found is None:
            raise InvalidInputError(f"there is no {name} in the database; make it first, or name its schema")
        self.id, kind, persistence, silent, identity, wal_level, encoding = found
        self.is_partitioned = kind == "p"
        if kind not in ("r", "p") or persistence != "p":
            raise InvalidInputError(f"{name} must be an ordinary or a partitioned table that is logged; it is not")
        if self.is_partitioned and silent is not None:
            raise InvalidInputError(f"{name} has the partition {silent}, which is not an ordinary table that is logged")
        if wal_level != "logical":
            raise InvalidInputError(
                f"logical replication needs wal_level = logical, and the server has {wal_level}: "
                "`alter system set wal_level = logical`, and restart it"
            )
        if encoding == "SQL_ASCII":
            raise InvalidInputError("the database has the encoding SQL_ASCII, in which bytes are no text for certain")
        if self.is_changelog and identity != "ff":
            raise InvalidInputError(
                f"changelog='all' needs the old rows of updates: `alter table {self.namespace}.{self.table} replica "
                "identity full`, for each partition too; or take changelog='upsert', which has only the new ones"
            )
        rows = connection.execute(_COLUMNS, (self.id,)).fetchall()
        there = {row[0]: row for row in rows if not row[4]}
        key = self._key_now(connection)
        self.key, self.key_columns = list(key), list(key.values())
        if not self.is_changelog and not (self.key and identity[0] == identity[1] and identity[0] != "n"):
            raise InvalidInputError(
                f"changelog='upsert' needs a primary key or a replica identity, and {name} has none that is neither "
                "generated nor deferrable"
            )
        wanted = list(there) if columns is None else list(columns)
        for column in [*wanted, *text_columns]:
            if column not in there:
                raise InvalidInputError(
                    f"{name} has no column {column!r} that is not generated; it has {', '.join(there)}"
                )
        own = (CHANGE_TYPE_COLUMN, COMMIT_COLUMN, TIME_COLUMN)
        if not wanted or len(set(wanted)) < len(wanted) or set(wanted) & set(own):
            raise InvalidInputError(f"columns must be some, each once, and none of {', '.join(own)}; got {wanted}")
        self.columns = [
            Column(
                column,
                pa.string() if column in text_columns else arrow_type(connection, *there[column][1:3]),
                type_id=there[column][1],
                modifier=there[column][2],
                type_name=there[column][3],
                collation=there[column][5],
            )
            # Those of the key that are not wanted are needed to go on.
            for column in dict.fromkeys([*wanted, *self.key])
        ]
        self.schema = pa.schema(
            [
                *((column.name, column.type) for column in self.columns[: len(wanted)]),
                pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False),
                pa.field(COMMIT_COLUMN, pa.int64(), nullable=False),
                pa.field(TIME_COLUMN, pa.timestamp("us", "UTC"), nullable=False),
            ]
        )
        return self.schema

    def _key_now(self, connection: Connection[Any]) -> dict[str, str]:
        """Return the columns of the key by their names, each with its type."""
        found = connection.execute(_KEY, {"table": self.id}).fetchall()
        # What is generated is not sent, so nobody could say which row was changed.
        return {} if any(row[2] for row in found) else {row[0]: f"{row[0]} {row[1]}" for row in found}

    def name(self) -> Composed:
        """Return the table for a statement."""
        from psycopg.sql import SQL, Identifier

        return SQL("{}{}").format(SQL("" if self.is_partitioned else "only "), Identifier(self.namespace, self.table))

    def make(self, connection: Connection[Any]) -> None:
        """Make publication and slot, in this order: the log before a publication cannot be read with it.

        A slot keeps the log of the server for ever, so none is made with which the source could not go on.
        """
        from psycopg import errors, sql

        publish = sql.SQL("create publication {} for table {} with (publish_via_partition_root = true)").format(
            sql.Identifier(self.publication), self.name()
        )
        slots = "select count(*) from pg_replication_slots where slot_name = %s"
        publications = "select count(*) from pg_publication where pubname = %s"
        # Somebody else may make them in the same moment.
        with suppress(errors.DuplicateObject, errors.UniqueViolation):
            if connection.execute(publications, (self.publication,)).fetchone() == (0,):
                try:
                    connection.execute(publish)
                except errors.InsufficientPrivilege as error:
                    raise InvalidInputError(
                        f"the user may not make the publication {self.publication!r}: {error.diag.message_primary}; "
                        f"have it made: {publish.as_string(connection)}"
                    ) from error
        problem = self._problem_of_publication(connection)
        if problem is not None:
            raise _refusal(problem, None)
        with suppress(errors.DuplicateObject):
            if connection.execute(slots, (self.slot,)).fetchone() == (0,):
                try:
                    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (self.slot,))
                except errors.InsufficientPrivilege as error:
                    raise InvalidInputError(
                        f"the user may not make the slot {self.slot!r}: {error.diag.message_primary}; it needs the "
                        "attribute REPLICATION"
                    ) from error

    def check(self, connection: Connection[Any], given: dict[str, Any] | None) -> int:
        """Refuse a slot, a publication or a table with which it cannot go on; return the place of the slot."""
        found = connection.execute(_SLOT, (self.slot,)).fetchone()
        problem = None
        if found is None:
            problem = f"the slot {self.slot!r} is gone, and with it the changes that were not read"
        else:
            kind, plugin, database, own, place, status, flushed, has_prepared = found
            if kind != "logical" or plugin != "pgoutput":
                problem = f"the slot {self.slot!r} is {kind} with the plugin {plugin}, not logical with pgoutput"
            elif has_prepared:
                problem = (
                    f"the slot {self.slot!r} was made with two_phase, so transactions come that are only prepared and "
                    "may be taken back; drop it, and have it made without"
                )
            elif database != own:
                problem = f"the slot {self.slot!r} is of the database {database!r}, and the source of {own!r}"
            elif status == "lost":
                problem = f"the slot {self.slot!r} was invalidated: the log that was not read is no longer there"
            elif given is not None and place > given["lsn"]:
                problem = (
                    f"the slot {self.slot!r} was moved on to {lsn_text(place)}, beyond {lsn_text(given['lsn'])} of "
                    "this checkpoint, so changes between them are gone: a later checkpoint was committed, or somebody "
                    "else has used the slot"
                )
            elif given is not None and flushed < given["lsn"]:
                problem = (
                    f"the log of the server ends at {lsn_text(flushed)}, before {lsn_text(given['lsn'])}, up to which "
                    "it was read: it has gone back, or is another one"
                )
        problem = problem or self._problem_of_publication(connection)
        if given is not None:
            problem = problem or self._problem_of_table(connection, given)
        if problem is not None:
            raise _refusal(problem, given)
        assert found is not None
        return int(found[4])

    def _problem_of_publication(self, connection: Connection[Any]) -> str | None:
        found = connection.execute(_PUBLICATION, (self.namespace, self.table, self.publication)).fetchone()
        name = f"the publication {self.publication!r}"
        if found is None:
            return f"{name} is gone"
        changes, truncations, table, number = found
        if table is None:
            return f"{name} does not have the table {self.namespace}.{self.table}, or has its partitions one by one"
        if number != self.id:
            return f"the table {self.namespace}.{self.table} is another one than before: it was dropped and made again"
        if not changes or not (truncations or self.ignores_truncation):
            return f"{name} must publish insert, update, delete and truncate"
        if table.get("rowfilter") is not None:
            return f"{name} has only some rows of the table"
        missing = {column.name for column in self.columns} - set(table.get("attnames") or self.schema.names + self.key)
        return f"{name} does not have the columns {', '.join(sorted(missing))}" if missing else None

    def _problem_of_table(self, connection: Connection[Any], given: dict[str, Any]) -> str | None:
        """Say if a position is of another table, or its snapshots are in the order of another key."""
        whose = next((it for it in given["snapshots"] if it["snapshot"] is None), None)
        if whose is not None and whose["until"] != self.id:
            return (
                f"the table {self.namespace}.{self.table} is another one than before: it was dropped and made again, "
                f"or the source had another one; it has the oid {self.id}, and what was read the oid {whose['until']}"
            )
        ends = [given["key"], *(it["upto"] for it in snapshots_of(given))]
        counts = {len(end) for end in ends if end is not None}
        if not counts:
            return None
        # The table may have been altered since the source was declared, by whose key the rows are read.
        for now in (self.key_columns, list(self._key_now(connection).values())):
            if (counts == {len(now)}) if whose is None else (now == whose["upto"]):
                continue
            before = f"{max(counts)} columns" if whose is None else ", ".join(whose["upto"])
            return (
                f"the key was ({before or 'none'}) when the snapshot was begun and is ({', '.join(now) or 'none'}) "
                "now, so nobody can say which rows were read"
            )
        return None

    def position(
        self,
        lsn: int,
        transaction: int = 0,
        row: int = 0,
        *,
        key: list[str] | None = None,
        snapshots: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """Return a position; snapshots before which nothing can be committed any more are not needed."""
        needed = key is not None or any(snapshot["until"] > lsn for snapshot in snapshots)
        whose = {"snapshot": None, "until": self.id, "upto": list(self.key_columns)}
        return {
            "lsn": lsn,
            "transaction": transaction,
            "row": row,
            "key": key,
            "snapshots": [whose, *(snapshots if needed else ())],
        }


def snapshots_of(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the snapshots of a position, without what says whose they are."""
    return [it for it in given["snapshots"] if it["snapshot"] is not None]


def _refusal(problem: str, given: dict[str, Any] | None) -> SourceError:
    return SourceError(CHANGES, given, f"{problem}; begin anew under another uid and slot, which reads the table again")


def check_split(split: Split) -> None:
    """Refuse a split that the source has not."""
    if split.id != CHANGES:
        raise SourceError(split.id, split.position, f"the source has no such split; it has {CHANGES!r}")
    names = POSITION.names
    if split.position is not None and (not isinstance(split.position, dict) or split.position.keys() != set(names)):
        raise SourceError(split.id, split.position, f"a position must have {', '.join(names)}")


def lsn_text(place: int) -> str:
    """Return a place in the log as PostgreSQL writes it."""
    return f"{place >> 32:X}/{place & 0xFFFF_FFFF:X}"
