"""A query over a database of checkpoints: one SELECT, its errors those of this tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import duckdb

from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.query.catalog import SqlName
from arrowstate.query.duckdb.dataset import ScanStatistics
from arrowstate.query.duckdb.engine import Database
from arrowstate.query.duckdb.relation import Relation, Watch

__all__ = ["select"]

_MISSING_TABLE = re.compile(r'Table with name "?(.+?)"? does not exist')


def select(
    database: Database,
    query: str,
    params: Sequence[Any] | Mapping[str, Any] | None,
    *,
    on_scan: Callable[[ScanStatistics], None],
    names: Callable[[], Sequence[SqlName]],
    checkpoint_id: int | None,
) -> duckdb.DuckDBPyRelation:
    """Run a query; errors as for `SnapshotReader.sql`. `names` are those of the tables that there are."""
    watch = Watch(on_scan)
    cursor = database.cursor(watch)
    # Otherwise a misspelt state could be taken for a Python variable of that name.
    cursor.execute("set python_enable_replacements = false")
    try:
        statements = cursor.extract_statements(query)
        kinds = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(statements) != 1 or statements[0].type not in kinds:
            raise InvalidInputError(
                f"sql() takes one SELECT, got {query!r}; for other statements use the connection of duckdb()"
            )
        relation = cursor.sql(query, params=params)
    except duckdb.Error as error:
        raise watch.failure() or _refused(error, names, checkpoint_id) from error
    return cast("duckdb.DuckDBPyRelation", Relation(relation, watch))


def _refused(error: duckdb.Error, names: Callable[[], Sequence[SqlName]], checkpoint_id: int | None) -> Exception:
    """Return the error of the tree that a refused query is."""
    text = str(error)
    missing = _MISSING_TABLE.search(text)
    if missing is not None:
        return StateNotFoundError(missing[1], [name.relation for name in names()], None, checkpoint_id)
    return InvalidInputError(text)
