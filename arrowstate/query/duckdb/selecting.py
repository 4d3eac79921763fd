"""A query over a database of checkpoints: one SELECT, its errors those of this tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, cast

import duckdb

from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.query.catalog import SqlName
from arrowstate.query.duckdb.dataset import ScanStatistics
from arrowstate.query.duckdb.duckdb_internals import IS_BEFORE_2, relation_of, statement_type
from arrowstate.query.duckdb.engine import Database
from arrowstate.query.duckdb.preparing import Tables, prepare
from arrowstate.query.duckdb.relation import Relation, Watch
from arrowstate.query.expiry import Seen
from arrowstate.schema.row_streams import lasting_tables, unreadable

told_of_connection: ContextVar[Callable[[duckdb.DuckDBPyConnection], None] | None] = ContextVar(
    "told_of_connection", default=None
)
"""Called with the connection of each query of this context before it runs: whoever may want to interrupt it sets it."""

_WITH_A_RESULT = (
    duckdb.StatementType.SELECT,
    duckdb.StatementType.EXPLAIN,
    duckdb.StatementType.COPY,
    duckdb.StatementType.MULTI,
)
"""A pivot is of several statements."""
_MISSING_TABLE = re.compile(r'Table with name "?(.+?)"? does not exist')


def register(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Any]) -> None:
    """Give a connection the tables that a caller has named for a query, each as `lasting_tables` returns it."""
    for name, table in tables.items():
        try:
            connection.register(name, table)
        except duckdb.Error:
            raise
        except Exception as error:
            # DuckDB 1.4 collects a lazy frame of Polars here.
            raise unreadable(f"the rows of the table {name!r}", error) from error


def select(
    database: Database,
    query: str,
    params: Sequence[Any] | Mapping[str, Any] | None,
    *,
    seen: Seen,
    on_scan: Callable[[ScanStatistics], None],
    names: Callable[[], Sequence[SqlName]],
    checkpoint_id: int | None,
    tables: Mapping[str, Any] = MappingProxyType({}),
    others: Callable[[duckdb.DuckDBPyConnection, Watch], Tables] | None = None,
) -> duckdb.DuckDBPyRelation:
    """Run a query."""
    watch = Watch(on_scan)
    held = database.hold(watch, seen, query)
    cursor = held.session.connection
    asked = query
    told = told_of_connection.get()
    if told is not None:
        told(cursor)
    try:
        register(cursor, lasting_tables(tables))
        if others is not None:
            query, params = prepare(query, params, cursor, others(cursor, watch))
        kind = statement_type(query, cursor)
        if kind not in _WITH_A_RESULT:
            raise InvalidInputError(
                f"sql() takes one SELECT, got {query!r}; for other statements use the connection of duckdb()"
            )
        try:
            relation = relation_of(cursor, query, params)
        except duckdb.CatalogException:
            # A name may be made by the query, as `query_table` has it.
            database.tell(held.session)
            relation = relation_of(cursor, query, params)
    except duckdb.Error as error:
        raise watch.failure() or _refused(error, names, checkpoint_id) from error
    # Frames, other checkpoints' tables and the answer for some parameters are made for this query alone.
    is_alone = query is not asked or tables or (params and IS_BEFORE_2)
    held.session.may_serve_again = not is_alone and kind is duckdb.StatementType.SELECT
    return cast("duckdb.DuckDBPyRelation", Relation(relation, watch, held))


def _refused(error: duckdb.Error, names: Callable[[], Sequence[SqlName]], checkpoint_id: int | None) -> Exception:
    """Return the error of the tree that a refused query is."""
    text = str(error)
    missing = _MISSING_TABLE.search(text)
    if missing is not None:
        return StateNotFoundError(missing[1], [name.relation for name in names()], None, checkpoint_id)
    return InvalidInputError(text)
