"""Scripts of SQL: the states they name become tables of DuckDB, and what differs afterwards is written.

The database is in memory and goes to the temporary folder of the edit where it is large. Nothing of a script is kept
but the rows of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.editing.plan import Statement
from arrowstate.editing.staging import Staging
from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import SqlName, quoted, sql_names
from arrowstate.query.duckdb.sql_types import shown_table
from arrowstate.query.reader import SnapshotReader

if TYPE_CHECKING:
    import duckdb

_SHOWN_CHARACTERS = 200
_FETCHED_ROWS = 10_000
_VIEW = "base table"
"""What DuckDB says can be changed, where a script has another name for a state and finds its view."""


def run_script(staging: Staging, snapshot: SnapshotReader, script: str, tables: Mapping[str, Any]) -> Statement:
    """Run a script, and write what it changed; errors as for `Edit.execute`."""
    import duckdb

    from arrowstate.query.duckdb.preparing import pairs_of_names, prepare, statements_of
    from arrowstate.query.duckdb.relation import Watch
    from arrowstate.query.duckdb.selecting import register

    if not isinstance(script, str):
        raise InvalidInputError(f"a script is a text of statements in SQL, got {script!r}")
    relations = {name.relation.lower() for name in sql_names(staging.entry)}
    taken = [name for name in tables if name.lower() in relations]
    if taken:
        raise InvalidInputError(f"a table cannot be named {taken[0]!r}, as a state is; give it another name")
    watch = Watch(lambda _: None)
    connection = snapshot.connected(watch)
    try:
        connection.execute(f"set temp_directory = {_text(str(staging.overlay.folder))}")
        connection.execute("set python_enable_replacements = false")
        prepared, _ = prepare(script, None, connection, snapshot.other_tables(connection, watch))
        mentioned = pairs_of_names(prepared)
        names = sql_names(staging.entry)
        named = [name for name in names if (name.schema.lower(), name.view.lower()) in mentioned]
        copied = [_Copied(staging, connection, name) for name in named]
        register(connection, tables)
        connection.begin()
        for number, statement in enumerate(_checked(statements_of(prepared)), 1):
            try:
                connection.execute(statement)
                # The rows of a query are nobody's; a connection with an unfinished result does nothing else.
                while connection.fetchmany(_FETCHED_ROWS):
                    pass
            except duckdb.Error as error:
                shown = " ".join(statement.query.split())[:_SHOWN_CHARACTERS]
                hint = "; a state is named by its operator and its name, as in op.state" if _VIEW in str(error) else ""
                said = InvalidInputError(f"statement {number} of the script, {shown!r}: {error}{hint}")
                raise watch.failure() or said from error
        rows = _taken_over(staging, connection, copied)
    except duckdb.Error as error:
        raise watch.failure() or InvalidInputError(f"the script: {error}") from error
    finally:
        connection.close()
    return Statement(script.strip(), rows)


def _checked(statements: list[duckdb.Statement]) -> list[duckdb.Statement]:
    """Return the statements of a script, of which there is one, and none that ends the transaction."""
    import duckdb

    if not statements:
        raise InvalidInputError("the script has no statement; UPDATE, DELETE, INSERT and MERGE change states")
    for statement in statements:
        if statement.type == duckdb.StatementType.TRANSACTION:
            raise InvalidInputError(
                f"a script is one transaction, which commits with the edit; leave out {statement.query.strip()!r}"
            )
    return statements


class _Copied:
    """A state as a table."""

    def __init__(self, staging: Staging, connection: duckdb.DuckDBPyConnection, name: SqlName) -> None:
        self._name = name
        self._form = staging.form(name)
        self._before = quoted(name.relation)
        self._table = f"{quoted(name.schema)}.{quoted(name.view)}"
        if name.is_operator_state:
            connection.register(name.relation, shown_table(staging.operator_state(name).rows()))
        columns = ", ".join(map(quoted, self._form.columns))
        connection.execute(f"drop view {self._table}")
        connection.execute(f"create table {self._table} as select {columns} from {self._before}")  # noqa: S608
        self._is_unique = not self._form.sequence and _has_primary_key(connection, self._table, self._form.identity)

    def taken_over(self, staging: Staging, connection: duckdb.DuckDBPyConnection) -> int:
        """Write the rows that differ; return how many do."""
        form = self._form
        _check_columns(connection, self._table, form.name, form.columns)
        if not self._is_unique:
            self._refuse_twice(connection)
        same = " and ".join(f"n.{quoted(name)} = o.{quoted(name)}" for name in form.identity)
        is_new = f"o.{quoted(form.key[0])} is null"
        compared = [*form.values, *form.updated_at]
        differs = " or ".join([is_new, *(f"n.{quoted(c)} is distinct from o.{quoted(c)}" for c in compared)])
        flags = [
            f"({is_new} is false and n.{quoted(column)} is not distinct from o.{quoted(column)}) as _kept_{number}"
            for number, column in enumerate(form.values)
        ]
        given = [f"n.{quoted(column)} as {quoted(f'_n_{n}')}" for n, column in enumerate(form.columns)]
        changed = connection.sql(
            f"select {', '.join([*given, *flags])} from {self._table} n left join {self._before} o on {same} "  # noqa: S608
            f"where {differs} {self._in_order()}"
        ).to_arrow_table()
        gone = connection.sql(
            f"select {', '.join(f'o.{quoted(name)}' for name in form.identity)} from {self._before} o "  # noqa: S608
            f"anti join {self._table} n on {same}"
        ).to_arrow_table()
        if not changed.num_rows and not gone.num_rows:
            return 0
        rows = form.rows(
            pa.table({column: changed.column(f"_n_{n}") for n, column in enumerate(form.columns)}),
            kept={
                column: pa.concat_arrays(changed.column(f"_kept_{n}").chunks or [pa.array([], pa.bool_())])
                for n, column in enumerate(form.values)
            },
        )
        removed = form.rows(gone, identity_only=True)
        staging.change_rows(self._name, removed, rows, "upsert")
        return len(rows) + len(removed)

    def _in_order(self) -> str:
        """Return what has new elements of a list follow as they were made."""
        hidden = any(column.lower() == "rowid" for column in self._form.columns)
        return "order by n.rowid" if self._form.sequence and not hidden else ""

    def _refuse_twice(self, connection: duckdb.DuckDBPyConnection) -> None:
        names = ", ".join(map(quoted, self._form.identity))
        where = f"where {quoted(self._form.sequence[0])} is not null" if self._form.sequence else ""
        twice = connection.sql(
            f"select {names} from {self._table} {where} group by all having count(*) > 1 limit 1"  # noqa: S608
        ).fetchall()
        if twice:
            said = ", ".join(f"{name}={value!r}" for name, value in zip(self._form.identity, twice[0], strict=True))
            more = "; an element without _seq is appended" if self._form.sequence else ""
            raise InvalidInputError(f"after the script {self._form.name} has two rows of {said}{more}")


def _taken_over(staging: Staging, connection: duckdb.DuckDBPyConnection, copied: list[_Copied]) -> int:
    """Write what differs in all tables, or nothing."""
    before = staging.entry
    try:
        return sum(table.taken_over(staging, connection) for table in copied)
    except BaseException:
        staging.entry = before
        raise


def _has_primary_key(connection: duckdb.DuckDBPyConnection, table: str, columns: list[str]) -> bool:
    """Give a table a primary key; False where DuckDB has none for these types."""
    import duckdb

    try:
        connection.execute(f"alter table {table} add primary key ({', '.join(map(quoted, columns))})")
    except duckdb.Error:
        return False
    return True


def _check_columns(connection: duckdb.DuckDBPyConnection, table: str, name: str, columns: list[str]) -> None:
    import duckdb

    try:
        have = connection.sql(f"from {table} limit 0").columns
    except duckdb.Error as error:
        raise InvalidInputError(f"the script leaves no table {name}; edit.drop_state drops a state: {error}") from None
    if list(have) != columns:
        raise InvalidInputError(
            f"the script gives {name} the columns {', '.join(have)}; it has {', '.join(columns)}, which an edit "
            "does not change: a restore with another descriptor does"
        )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
