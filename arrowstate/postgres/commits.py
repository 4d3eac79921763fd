"""Rows of a table of PostgreSQL and their token, in one transaction.

The table `arrowstate_commits` has the newest token of each sink and subtask. It is the one way in which rows reach
PostgreSQL, from a job and from Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.postgres.rows import as_copy_text
from arrowstate.postgres.session import checked_conninfo, connect
from arrowstate.query.changes import ADDED, REMOVED
from arrowstate_formats.run_files import checksum

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable, Composed, Identifier

COMMITS = "arrowstate_commits"
"""The table that says which rows are there."""

_UNIQUE = """
select array_agg(a.attname::text) from pg_index i cross join unnest(i.indkey::int[]) with ordinality k (number, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indrelid = to_regclass(%s) and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null
    and i.indexprs is null and k.place <= i.indnkeyatts group by i.indexrelid order by i.indexrelid
"""


_END_OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s and pid <> pg_backend_pid()"
)
_ROW, _REMOVED = "arrowstate_row", "arrowstate_removed"
"""Columns that rows have on their way: their number, and whether they are there no more."""


class PostgresCommits:
    """Adds rows to a table, or has them replace those of their keys, together with a token; see `PostgresSink`."""

    def __init__(
        self,
        feature: str,
        conninfo: str,
        table: str,
        *,
        schema: str | None,
        key: Sequence[str] | None,
        operation: str | None,
    ) -> None:
        for name, value in {"table": table, "schema": schema}.items():
            if value is not None and (not value or "\0" in value):
                raise InvalidInputError(f"the name of a {name} must be a text that is not empty, got {value!r}")
        self.conninfo = checked_conninfo(feature, conninfo)
        self.table = table
        self.schema = schema
        if isinstance(key, str) or (key is not None and (not key or len(set(key)) < len(key))):
            raise InvalidInputError(f"key must be a sequence of names of columns, each once, got {key!r}")
        if operation is not None and (key is None or operation in key):
            raise InvalidInputError(
                "operation= needs key=, the columns that name the row it deletes, and is none of them"
            )
        self.key = None if key is None else list(key)
        self.operation = operation
        self._connection: Connection[Any] | None = None
        self._session: str | None = None
        "By what the database knows the connections of this sink; None where nobody has opened it."

    def __repr__(self) -> str:
        # Without what may have a password.
        return repr(".".join(filter(None, (self.schema, self.table))))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def check_columns(self, about: str, columns: Sequence[str]) -> None:
        """Refuse columns without the key or the operation."""
        for name, column in [("key", it) for it in self.key or ()] + [("operation", self.operation)]:
            if column is not None and column not in columns:
                raise InvalidInputError(f"{about}: {name} is {column!r}, and the rows have only {', '.join(columns)}")

    def open(self, sink: str) -> None:
        """Connect, look for the table, and make that of the tokens where it is missing."""
        from psycopg import errors, sql

        self._session = f"arrowstate {checksum(sink.encode())}"
        if not self._has(self.table):
            where = "on the search path of" if self.schema is None else f"in schema {self.schema!r} of"
            raise InvalidInputError(f"there is no table {self.table!r} {where} the database; make it first")
        self._in_transaction(self._check_key)
        # Who may not make tables can have it made by somebody else.
        if self._has(COMMITS):
            return
        statement = sql.SQL(
            "create table if not exists {} (sink text, subtask int, checkpoint bigint not null, "
            "primary key (sink, subtask))"
        ).format(self._name(COMMITS))
        # Another job may make it in the same moment.
        with suppress(errors.UniqueViolation, errors.DuplicateTable):
            self._in_transaction(lambda connection: connection.execute(statement))

    def end_others(self) -> None:
        """End the sessions of earlier processes: one that is suspended would hold its locks for ever."""
        from psycopg import errors

        # Who may not end a session of another role waits for its locks.
        with suppress(errors.InsufficientPrivilege):
            self._in_transaction(lambda connection: connection.execute(_END_OTHERS, (self._session,)))

    def commit(self, rows: pa.Table, sink: str, subtask: int, number: int) -> None:
        """Add rows, and their token, unless it or a newer one of the sink and subtask is there."""
        from psycopg import sql

        if not rows.num_rows:
            return
        say = sql.SQL(
            "insert into {commits} as had (sink, subtask, checkpoint) values ({values}) "
            "on conflict (sink, subtask) do update set checkpoint = excluded.checkpoint "
            "where had.checkpoint < excluded.checkpoint"
        ).format(commits=self._name(COMMITS), values=sql.SQL(", ").join(map(sql.Literal, (sink, subtask, number))))

        def add(connection: Connection[Any]) -> None:
            # Who comes at the same time waits for the row of this token, and finds that it is not older then.
            # Values that are given besides would have a % in the name of a schema read as a place for one.
            if not connection.execute(say).rowcount:
                return
            # A time without a zone is one of UTC, whatever zone the role or the database has.
            connection.execute("set local time zone 'UTC'")
            if self.key is None:
                self._copy(connection, self._name(self.table), rows)
            else:
                self._replace(connection, self.key, rows)

        self._in_transaction(add)

    def _copy(self, connection: Connection[Any], table: Composable, rows: pa.Table) -> None:
        from psycopg import sql

        copy = sql.SQL("copy {} ({}) from stdin (format csv, encoding 'UTF8')").format(table, _list(rows.column_names))
        with connection.cursor() as cursor, cursor.copy(copy) as target:
            for text in as_copy_text(rows):
                target.write(text)

    def _replace(self, connection: Connection[Any], key: Sequence[str], rows: pa.Table) -> None:
        """Have the last row of each key take the place of what is there, by way of a table of this transaction."""
        from psycopg import sql

        for column in key:
            if rows[column].null_count:
                row = pc.index(rows[column].is_null(), True).as_py()
                raise InvalidInputError(f"a key must not be null: {column!r} is, in row {row} of {rows.num_rows}")
        removed = pa.array(np.zeros(rows.num_rows, bool)) if self.operation is None else _removed(rows[self.operation])
        if self.operation is not None:
            rows = rows.drop_columns([self.operation])
        columns, way = _list(rows.column_names), sql.Identifier("pg_temp", "arrowstate_rows")
        names = {
            "table": self._name(self.table),
            "way": way,
            "columns": columns,
            # A domain may forbid the nulls of a row that is removed: beside a null a value has the type below it.
            "types": sql.SQL(", ").join(
                sql.Identifier(it) if it in key else sql.SQL("coalesce({0}, null) {0}").format(sql.Identifier(it))
                for it in rows.column_names
            ),
            "key": _list(key),
            "row": sql.Identifier(_ROW),
            "removed": sql.Identifier(_REMOVED),
            "same": sql.SQL(" and ").join(
                sql.SQL("had.{0} = last.{0}").format(sql.Identifier(column)) for column in key
            ),
        }
        changed = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(it)) for it in rows.column_names if it not in key
        ]
        names["act"] = sql.SQL("update set {}").format(sql.SQL(", ").join(changed)) if changed else sql.SQL("nothing")
        # Which keys are equal the database says: a collation may have others than their bytes.
        last = (
            "create temporary table arrowstate_last on commit drop as select distinct on ({key}) * from {way} "
            "order by {key}, {row} desc"
        )
        delete = "delete from {table} had using pg_temp.arrowstate_last last where {removed} and {same}"
        insert = (
            "insert into {table} ({columns}) overriding system value select {columns} from pg_temp.arrowstate_last "
            "where not {removed} order by {row} on conflict ({key}) do {act}"
        )
        make = (
            "create temporary table arrowstate_rows on commit drop as "
            "select {types}, 0::bigint {row}, false {removed} from {table} with no data"
        )
        numbers = pa.array(np.arange(rows.num_rows))
        connection.execute(sql.SQL(make).format(**names))
        self._copy(connection, way, rows.append_column(_ROW, numbers).append_column(_REMOVED, removed))
        for statement in (last, delete, insert):
            connection.execute(sql.SQL(statement).format(**names))

    def _check_key(self, connection: Connection[Any]) -> None:
        """Refuse a table in which a key may have several rows."""
        if self.key is None:
            return
        name = self._name(self.table).as_string(connection)
        indexes = [set(row[0]) for row in connection.execute(_UNIQUE, (name,)).fetchall()]
        if set(self.key) not in indexes:
            raise InvalidInputError(
                f"key={self.key} needs a primary key or a unique index of these columns, and table {self.table!r} has "
                f"{', '.join(str(sorted(index)) for index in indexes) or 'none'}"
            )

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _in_transaction(self, act: Callable[[Connection[Any]], Any]) -> Any:
        """Do something in a transaction; once more if a connection of before turns out to be gone."""
        import psycopg

        if self._connection is not None and self._connection.closed:
            self.close()
        while True:
            is_new = self._connection is None
            if self._connection is None:
                named: dict[str, Any] = {} if self._session is None else {"application_name": self._session}
                self._connection = connect(self.conninfo, **named)
            try:
                with self._connection.transaction():
                    return act(self._connection)
            except BaseException as error:
                is_gone = isinstance(error, psycopg.OperationalError) and self._connection.closed
                self.close()
                # Whether or not the transaction was committed: its token tells.
                if is_new or not is_gone:
                    raise

    def _has(self, table: str) -> bool:
        def look(connection: Connection[Any]) -> Any:
            name = self._name(table).as_string(connection)
            return connection.execute("select to_regclass(%s) is not null", (name,)).fetchone()

        return bool(self._in_transaction(look)[0])

    def _name(self, table: str) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier(table) if self.schema is None else Identifier(self.schema, table)


def _list(columns: Sequence[str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(map(Identifier, columns))


def _removed(operations: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which rows are there no more."""
    known = pc.is_in(operations, pa.array([*ADDED, *REMOVED], operations.type))
    if not pc.all(known).as_py():
        row = pc.index(known, False).as_py()
        raise InvalidInputError(
            f"an operation is one of {', '.join((*ADDED, *REMOVED))}; row {row} has {operations[row].as_py()!r}"
        )
    return pc.is_in(operations, pa.array(REMOVED, operations.type))
