"""A sink of a table in PostgreSQL: rows and token in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.connectors import Sink, Token
from arrowstate.runtime.postgres_session import checked_conninfo, connect
from arrowstate.runtime.sinks.postgres_rows import as_copy_text

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Identifier

COMMITS = "arrowstate_commits"
"""The table that says which rows are there."""


class PostgresSink(Sink):
    """Adds the rows of each checkpoint to a table of PostgreSQL: exactly once.

    Rows are copied in one transaction together with their token. The table `arrowstate_commits` has the token of each
    sink and subtask: the newest checkpoint whose rows were copied. It is made beside the table if it is missing. Rows
    of a token that is not newer are skipped. If a row of `arrowstate_commits` is deleted, rows may be copied twice.

    Parameters
    ----------
    conninfo : str
        The database, in a form of libpq: a URL such as `postgresql://ann@db/shop`, or `host=db dbname=shop`. Missing
        parts come from the environment. The text is sent to the processes of the job, so a password in it reaches them.
    table : str
        The table, which must exist. Rows go to the columns of the same names.
    schema : str, optional
        The schema of the table; that of the search path if it is not given.

    Raises
    ------
    MissingDependencyError
        If psycopg is not installed: `pip install 'arrowstate[postgres]'`.
    InvalidInputError
        From `open`, if there is no such table. If PostgreSQL refuses rows, psycopg's error is raised, and none of
        these rows is in the table.

    Notes
    -----
    Values are given as text, so a column takes what its type can read: lists come as arrays, structs and maps as JSON,
    bytes as `bytea`, a duration as an interval. PostgreSQL has microseconds, and rounds to them.

    Examples
    --------
    >>> from arrowstate.runtime import PostgresSink
    >>> PostgresSink("postgresql://ann:secret@db/shop", "totals", schema="reports")
    PostgresSink('reports.totals')
    """

    def __init__(self, conninfo: str, table: str, *, schema: str | None = None) -> None:
        for name, value in {"table": table, "schema": schema}.items():
            if value is not None and (not value or "\0" in value):
                raise InvalidInputError(f"the name of a {name} must be a text that is not empty, got {value!r}")
        self.conninfo = checked_conninfo("PostgresSink", conninfo)
        self.table = table
        self.schema = schema
        self._connection: Connection[Any] | None = None

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"PostgresSink({'.'.join(filter(None, (self.schema, self.table)))!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def open(self, store_id: str, uid: str) -> None:  # noqa: ARG002
        """Connect, look for the table, and make that of the tokens where it is missing."""
        from psycopg import errors, sql

        if not self._has(self.table):
            where = "on the search path of" if self.schema is None else f"in schema {self.schema!r} of"
            raise InvalidInputError(f"there is no table {self.table!r} {where} the database; make it first")
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

    def commit(self, rows: pa.Table, token: Token) -> None:
        """Add rows, and their token, unless it is there."""
        from psycopg import sql

        if not rows.num_rows:
            return
        say = sql.SQL(
            "insert into {commits} as had (sink, subtask, checkpoint) values (%s, %s, %s) "
            "on conflict (sink, subtask) do update set checkpoint = excluded.checkpoint "
            "where had.checkpoint < excluded.checkpoint"
        ).format(commits=self._name(COMMITS))
        copy = sql.SQL("copy {table} ({columns}) from stdin (format csv, encoding 'UTF8')").format(
            table=self._name(self.table), columns=sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
        )
        values = (f"{token.store_id}/{token.uid}", token.subtask, token.checkpoint_id)

        def add(connection: Connection[Any]) -> None:
            # Who comes at the same time waits for the row of this token, and finds that it is not older then.
            if not connection.execute(say, values).rowcount:
                return
            with connection.cursor() as cursor, cursor.copy(copy) as target:
                for text in as_copy_text(rows):
                    target.write(text)

        self._in_transaction(add)

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
                self._connection = connect(self.conninfo)
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
