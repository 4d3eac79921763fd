"""Scripts of SQL: the states they name become tables of DuckDB, and what differs afterwards is written.

The database is in memory and goes to the temporary folder of the edit where it is large. Nothing of a script is kept
but the rows of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrowstate.editing.forms import RowsForm
from arrowstate.editing.operator_states import PLACE, SUBTASK, OperatorRows
from arrowstate.editing.plan import Statement
from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import SqlName, quoted, sql_names

if TYPE_CHECKING:
    import duckdb

    from arrowstate.editing.verbs import Verbs

_SHOWN_CHARACTERS = 200
_FETCHED_ROWS = 10_000
_VIEW = "base table"
"""What DuckDB says can be changed, where a script has another name for a state and finds its view."""


def run_script(verbs: Verbs, script: str, tables: Mapping[str, Any]) -> Statement:
    """Run a script, and write what it changed; errors as for `Edit.execute`."""
    import duckdb

    from arrowstate.query.duckdb.preparing import pairs_of_names, prepare, statements_of
    from arrowstate.query.duckdb.relation import Watch

    if not isinstance(script, str):
        raise InvalidInputError(f"a script is a text of statements in SQL, got {script!r}")
    relations = {name.relation.lower() for name in sql_names(verbs.staging.entry)}
    taken = [name for name in tables if name.lower() in relations]
    if taken:
        raise InvalidInputError(f"a table cannot be named {taken[0]!r}, as a state is; give it another name")
    watch = Watch(lambda _: None)
    connection = verbs.snapshot.connected(watch)
    try:
        connection.execute(f"set temp_directory = {_text(str(verbs.staging.overlay.folder))}")
        connection.execute("set python_enable_replacements = false")
        prepared, _ = prepare(script, None, connection, verbs.snapshot.other_tables(connection, watch))
        mentioned = pairs_of_names(prepared)
        names = sql_names(verbs.staging.entry)
        named = [name for name in names if (name.schema.lower(), name.view.lower()) in mentioned]
        copied = [_copied(verbs, connection, name) for name in named]
        for name, table in tables.items():
            connection.register(name, table)
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
        rows = _taken_over(verbs, connection, copied)
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


class _Keyed:
    """A keyed state as a table."""

    def __init__(self, verbs: Verbs, connection: duckdb.DuckDBPyConnection, name: SqlName) -> None:
        self._name = name
        self._form: RowsForm = verbs.form(name.uid, name.state)
        self._before = quoted(name.relation)
        self._table = f"{quoted(name.schema)}.{quoted(name.view)}"
        columns = ", ".join(map(quoted, self._form.columns))
        connection.execute(f"drop view {self._table}")
        connection.execute(f"create table {self._table} as select {columns} from {self._before}")  # noqa: S608
        self._is_unique = not self._form.sequence and _has_primary_key(connection, self._table, self._form.identity)

    def taken_over(self, verbs: Verbs, connection: duckdb.DuckDBPyConnection) -> int:
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
        verbs.staging.exchange(self._name.uid, self._name.state, removed, rows, "upsert")
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


class _OfOperator:
    """An operator state as a table."""

    def __init__(self, verbs: Verbs, connection: duckdb.DuckDBPyConnection, name: SqlName) -> None:
        self._name = name
        self._rows: OperatorRows = verbs.operator_rows(name.uid, name.state)
        self._table = f"{quoted(name.schema)}.{quoted(name.view)}"
        self._columns = [*([] if self._rows.is_map else [SUBTASK, PLACE]), *self._rows.columns]
        self._before = self._rows.table().select(self._columns)
        columns = ", ".join(map(quoted, self._columns))
        connection.execute(f"drop view {self._table}")
        connection.register("_elements", self._before)
        connection.execute(f"create table {self._table} as select {columns} from _elements")  # noqa: S608
        connection.unregister("_elements")
        if self._rows.is_map:
            _has_primary_key(connection, self._table, self._rows.columns[:1])

    def taken_over(self, verbs: Verbs, connection: duckdb.DuckDBPyConnection) -> int:
        """Write the elements if they differ; return how many do."""
        _check_columns(connection, self._table, self._rows.name, self._columns)
        names = ", ".join(map(quoted, self._columns))
        after = connection.sql(f"select {names} from {self._table} order by rowid").to_arrow_table()  # noqa: S608
        connection.register("_elements", self._before)
        count = "select count(*) from (from {} except all from {})"
        made = f"(select {names} from {self._table})"  # noqa: S608
        came, went = (
            connection.sql(count.format(*pair)).fetchall()[0][0] for pair in ((made, "_elements"), ("_elements", made))
        )
        if not came and not went:
            return 0
        if self._rows.is_output and not np.array_equal(_places(after), _places(self._before)):
            raise InvalidInputError(
                f"{self._rows.name} holds rows that were emitted, and readers go on from their numbers: they may be "
                "updated, and none added or deleted"
            )
        stored = self._rows.stored(after)
        for column in (SUBTASK, PLACE):
            if column not in stored.column_names:
                stored = stored.append_column(column, pa.nulls(stored.num_rows, pa.int64()))
        # Other states of the operator may have been written since.
        now = verbs.operator_rows(self._name.uid, self._name.state)
        verbs.staging.replace_operator(now.written(stored, new_id=verbs.staging.new_id))
        return max(came, went)


def _copied(verbs: Verbs, connection: duckdb.DuckDBPyConnection, name: SqlName) -> _Keyed | _OfOperator:
    return (_OfOperator if name.is_operator_state else _Keyed)(verbs, connection, name)


def _taken_over(verbs: Verbs, connection: duckdb.DuckDBPyConnection, copied: list[_Keyed | _OfOperator]) -> int:
    """Write what differs in all tables, or nothing."""
    before = verbs.staging.entry
    try:
        return sum(table.taken_over(verbs, connection) for table in copied)
    except BaseException:
        verbs.staging.entry = before
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


def _places(table: pa.Table) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    columns = [table.column(name).fill_null(-1).to_numpy() for name in (SUBTASK, PLACE)]
    return np.stack([column[np.lexsort(columns)] for column in columns])


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
