"""The names that a query over a checkpoint may use, as they are written in SQL."""

from __future__ import annotations

import re
from functools import cache, cached_property

from arrowstate.errors import ArrowStateError
from arrowstate.query.catalog import HISTORY_NAMES, SqlName, quoted, sql_names
from arrowstate.query.duckdb.about import ABOUT_TABLES
from arrowstate.query.duckdb.preparing import ABOUT_SCHEMA, FUNCTIONS
from arrowstate.store import Snapshot

FUNCTION_NAMES = tuple(f"{ABOUT_SCHEMA}.{name}(" for name in FUNCTIONS)
"""The functions, as a query begins to call them."""
_MOST_ASKED = 50
"""So many states tell their columns at once; each takes a millisecond or so."""
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)


@cache
def keywords() -> dict[str, bool]:
    """Return the words of SQL, and whether a name must be in quotes that is the same."""
    import duckdb

    found = duckdb.connect().execute("select keyword_name, keyword_category from duckdb_keywords()").fetchall()
    return {name: category == "reserved" for name, category in found}


def written(name: str) -> str:
    """Return a name as it is written in SQL: in quotes where it needs them."""
    return name if _PLAIN.fullmatch(name) and not keywords().get(name.lower(), False) else quoted(name)


class Names:
    """The names of one checkpoint; those of columns are asked for when they are needed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._columns: dict[str, list[tuple[str, str]]] = {}

    @staticmethod
    def of(name: SqlName) -> str:
        """Return the name of a state."""
        return f"{written(name.schema)}.{written(name.view)}"

    @cached_property
    def states(self) -> list[str]:
        """The states, those of operators included."""
        return [self.of(name) for name in sql_names(self.snapshot.entry)]

    @property
    def of_store(self) -> list[str]:
        """The tables about the store and the checkpoint."""
        return [*HISTORY_NAMES, *(f"{ABOUT_SCHEMA}.{name}" for name in ABOUT_TABLES)]

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Return the columns of a table with their types in SQL."""
        if table not in self._columns:
            relation = self.snapshot.sql(f"select * from {table} limit 0")  # noqa: S608 (what the user asks for)
            self._columns[table] = [
                (str(name), str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)
            ]
        return self._columns[table]

    def column_names(self, text: str) -> list[str]:
        """Return the columns of the tables that a query mentions, or of the first states if it mentions none."""
        lowered = text.lower()
        mentioned = [table for table in [*self.states, *self.of_store] if table.lower() in lowered]
        found: dict[str, None] = {}
        for table in mentioned or self.states[:_MOST_ASKED]:
            try:
                found.update((written(name), None) for name, _ in self.columns(table))
            except ArrowStateError:
                continue
        return list(found)
