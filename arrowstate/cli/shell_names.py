"""The names that a query over a checkpoint may use, as they are written in SQL."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

from arrowstate.discovery import SNAPSHOTS, StateCatalog
from arrowstate.errors import ArrowStateError
from arrowstate.log.choosing import tags_of
from arrowstate.query.catalog import HISTORY_NAMES, quoted, sql_names
from arrowstate.query.describe import live_rows
from arrowstate.query.duckdb.about import ABOUT_TABLES
from arrowstate.query.duckdb.preparing import ABOUT_SCHEMA, FUNCTIONS
from arrowstate.store import Snapshot
from arrowstate_formats.cached_properties import cached_property

_OF_STORE = "of the store"
_OPERATOR_STATE = ("operator state", None)
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


class Names(ABC):
    """The names that a query may use; those of columns are asked for when they are needed."""

    queried: Snapshot | StateCatalog
    "What queries are put to."
    title: str
    "What it is."
    functions: Sequence[str] = ()
    "The functions of `arrowstate`, as a query begins to call them."

    def __init__(self) -> None:
        self._columns: dict[str, list[tuple[str, str]]] = {}

    @property
    @abstractmethod
    def tables(self) -> list[tuple[str, str, int | None]]:
        """The name of each table, what it is, and how many rows it has where that is known."""

    @cached_property
    def states(self) -> list[str]:
        """The states, those of operators included."""
        return [name for name, kind, _ in self.tables if kind != _OF_STORE]

    @property
    def of_store(self) -> list[str]:
        """The tables about the store and the checkpoint."""
        return [name for name, kind, _ in self.tables if kind == _OF_STORE]

    @property
    def tags(self) -> list[str]:
        """The tags of checkpoints."""
        return []

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Return the columns of a table with their types in SQL."""
        if table not in self._columns:
            relation = self.queried.sql(f"select * from {table} limit 0")  # noqa: S608 (what the user asks for)
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


class CheckpointNames(Names):
    """The names of one checkpoint."""

    functions = tuple(f"{ABOUT_SCHEMA}.{name}(" for name in FUNCTIONS)

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.queried = self._snapshot = snapshot
        self.title = f"checkpoint {snapshot.checkpoint_id}"

    @cached_property
    def tables(self) -> list[tuple[str, str, int | None]]:
        entry = self._snapshot.entry
        known = {
            (operator.uid, state.name): (state.kind, live_rows(operator, state))
            for operator in entry.operators
            for state in operator.states
        }
        of_store = [*HISTORY_NAMES, *(f"{ABOUT_SCHEMA}.{name}" for name in ABOUT_TABLES)]
        return [
            *(
                (f"{written(name.schema)}.{written(name.view)}", *known.get((name.uid, name.state), _OPERATOR_STATE))
                for name in sql_names(entry)
            ),
            *((name, _OF_STORE, None) for name in of_store),
        ]

    @property
    def tags(self) -> list[str]:
        return sorted(tags_of(self._snapshot.storage))


class CatalogNames(Names):
    """The names of all that was found below a folder, which is opened for them."""

    def __init__(self, catalog: StateCatalog) -> None:
        super().__init__()
        self.queried = catalog
        self.title = f"{len(catalog.found)} stores and snapshots"

    @cached_property
    def tables(self) -> list[tuple[str, str, int | None]]:
        found = self.queried.sql(
            "select table_catalog, table_schema, table_name from information_schema.tables "
            "where table_catalog not in ('memory', 'temp') order by all"
        ).fetchall()
        return [
            *(
                (".".join(map(written, name)), _OF_STORE if name[1] == ABOUT_SCHEMA else "state", None)
                for name in found
            ),
            (SNAPSHOTS, _OF_STORE, None),
        ]
