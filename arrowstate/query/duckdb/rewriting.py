"""What a query may say that DuckDB's catalog does not know: `at (...)` behind a table, and functions of `arrowstate`.

DuckDB parses the query and hands out the tree as JSON. In it each table that is read as of another checkpoint, and each
call of a function, becomes a name of its own, which is registered with the connection; DuckDB makes text of the tree
again. What stands in the parentheses is a constant, a parameter, or an expression of these, which DuckDB evaluates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from arrowstate.errors import InvalidInputError
from arrowstate.query.duckdb.about import ABOUT_TABLES

if TYPE_CHECKING:
    import duckdb

__all__ = ["FUNCTIONS", "Params", "Tables", "rewrite"]

Params = Sequence[Any] | Mapping[str, Any] | None

FUNCTIONS = {
    "changes": "arrowstate.changes('OPERATOR.STATE', FROM [, TO])",
    "change_counts": "arrowstate.change_counts(FROM [, TO])",
    "history": "arrowstate.history('OPERATOR.STATE', KEY)",
    "state": "arrowstate.state('OPERATOR.STATE' [, expired => true])",
}
"""The table functions of the schema `arrowstate`, and how each is called."""
_NAMED = {"state": ("expired",)}
"""Arguments that have names, which come after those that have none."""
ABOUT_SCHEMA = "arrowstate"

_MENTIONED = re.compile(rf'\bat\b|\b{ABOUT_SCHEMA}"?\s*\.', re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+|\(\s*analyze[^)]*\)\s*)?", re.IGNORECASE)
_COPY = re.compile(r"\s*copy\s*\(", re.IGNORECASE)
_QUOTED_OR_PARENTHESIS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[()]")
_NOT_CONSTANT = ("SUBQUERY", "COLUMN_REF", "STAR", "WINDOW")


class _Name(NamedTuple):
    """A table as the query names it."""

    catalog: str
    schema: str
    table: str


class Tables(Protocol):
    """Offers the tables that a query asks for, each under a name by which the connection then knows it."""

    def as_of(self, schema: str, table: str, checkpoint: Any) -> str:
        """A table of another checkpoint: a number or a text from `version =>`, a datetime from `timestamp =>`."""

    def about(self, table: str) -> str:
        """One of `ABOUT_TABLES`, of the checkpoint that the query reads."""

    def of_function(self, function: str, arguments: Sequence[Any]) -> str:
        """What a function returns for its arguments."""


def rewrite(query: str, params: Params, connection: duckdb.DuckDBPyConnection, tables: Tables) -> tuple[str, Params]:
    """Return the query without what DuckDB's catalog does not know, and the parameters that it still has.

    Raises
    ------
    InvalidInputError
        If a checkpoint or an argument is no constant, or a function is called with too few or too many.
    """
    if _MENTIONED.search(query) is None:
        return query, params
    start, end = _query_in(query)
    tree = json.loads(_first(connection, "select json_serialize_sql(?)", [query[start:end]]))
    if tree["error"]:
        # Not a query: DuckDB says what it makes of it.
        return query, params
    evaluate = _Evaluation(connection, params)
    found = 0
    for node in _tables_of(tree):
        if node["type"] == "BASE_TABLE" and not node["at_clause"]:
            name = tables.about(node["table_name"].lower())
        elif node["type"] == "BASE_TABLE":
            name = tables.as_of(node["schema_name"], node["table_name"], evaluate.checkpoint(node))
        else:
            function = node["function"]["function_name"].lower()
            name = tables.of_function(function, evaluate.arguments(function, node["function"]["arguments"]))
        _replace(node, name)
        found += 1
    if not found:
        return query, params
    text = _first(connection, "select json_deserialize_sql(?::json)", [json.dumps(tree)])
    return query[:start] + text + query[end:], _left(params, tree)


def _query_in(statement: str) -> tuple[int, int]:
    """Return where the query begins and ends in what explains or copies one; else all of it."""
    explained, copied = _EXPLAIN.match(statement), _COPY.match(statement)
    if explained is not None:
        return explained.end(), len(statement)
    depth = 1
    for found in () if copied is None else _QUOTED_OR_PARENTHESIS.finditer(statement, copied.end()):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if copied is not None and not depth:
            return copied.end(), found.start()
    return 0, len(statement)


def _tables_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the tables `at` something, and the calls of our functions; each may be replaced meanwhile."""
    if isinstance(tree, list):
        for item in tree:
            yield from _tables_of(item)
        return
    if not isinstance(tree, dict):
        return
    for value in list(tree.values()):
        yield from _tables_of(value)
    kind = tree.get("type")
    if kind == "BASE_TABLE" and (tree.get("at_clause") or _is_about(tree)):
        yield tree
    elif kind == "TABLE_FUNCTION":
        function = tree["function"]
        if function.get("schema", "").lower() == ABOUT_SCHEMA:
            if function["function_name"].lower() not in FUNCTIONS:
                raise InvalidInputError(
                    f"there is no function arrowstate.{function['function_name']}; there are "
                    f"{', '.join(FUNCTIONS.values())}"
                )
            yield tree


def _is_about(table: dict[str, Any]) -> bool:
    return table["schema_name"].lower() == ABOUT_SCHEMA and table["table_name"].lower() in ABOUT_TABLES


def _replace(node: dict[str, Any], name: str) -> None:
    """Make a node of the tree the table of a name; it keeps its alias, by default what it was called."""
    function = node.get("function")
    alias = node["alias"] or (function["function_name"] if function else node["table_name"])
    kept = {key: node[key] for key in ("sample", "query_location", "query_location_length", "column_name_alias")}
    node.clear()
    node.update(
        type="BASE_TABLE",
        alias=alias,
        schema_name="",
        table_name=name,
        catalog_name="",
        at_clause=None,
        qualified_name={"path": [name]},
        **kept,
    )


class _Evaluation:
    """Evaluates what stands in parentheses, on a connection of its own, whose times are in UTC."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, params: Params) -> None:
        self._parent = connection
        self._params = params
        self._own: duckdb.DuckDBPyConnection | None = None

    def checkpoint(self, table: dict[str, Any]) -> Any:
        """Return what an `at (...)` names."""
        clause = table["at_clause"]
        is_version = clause["unit"].upper() == "VERSION"
        what = f"{table['table_name']} at ({clause['unit'].lower()} => ...)"
        value = self._value(clause["expr"], what)
        if value is None:
            raise InvalidInputError(f"{what} needs a checkpoint, got null")
        if is_version:
            if isinstance(value, (int, str)) and not isinstance(value, bool):
                return value
            raise InvalidInputError(f"{what} takes an id, -1 for the one before, or a tag, got {value!r}")
        if isinstance(value, (int, float)):
            raise InvalidInputError(f"{what} takes a timestamp, got {value!r}; give make_timestamp_ms({value!r})")
        return self._time(clause["expr"], what)

    def arguments(self, function: str, given: Sequence[dict[str, Any]]) -> list[Any]:
        """Return the arguments of a function, those with names in their order behind the others."""
        usage, names = FUNCTIONS[function], _NAMED.get(function, ())
        named = [argument["name"].lower() for argument in given if argument["name"]]
        if any(name not in names for name in named):
            raise InvalidInputError(f"the arguments have no names, give them in order: {usage}")
        in_order = sorted(
            given, key=lambda argument: [*names].index(argument["name"].lower()) if argument["name"] else -1
        )
        return [self._value(argument["expression"], usage) for argument in in_order]

    def _value(self, expression: dict[str, Any], what: str) -> Any:
        return self._run("select {}", expression, what)

    def _time(self, expression: dict[str, Any], what: str) -> Any:
        import datetime

        milliseconds = self._run("select epoch_ms(cast({} as timestamptz))", expression, what)
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=milliseconds)

    def _run(self, form: str, expression: dict[str, Any], what: str) -> Any:
        import duckdb

        if any(node.get("class") in _NOT_CONSTANT for node in _nodes(expression)):
            raise InvalidInputError(
                f"{what} takes constants, parameters and expressions of these, no column and no subquery; run the "
                "subquery first and give its result as a parameter, such as $1"
            )
        if self._own is None:
            self._own = self._parent.cursor()
            # One whose configuration is locked says UTC already.
            if _first(self._own, "select current_setting('timezone')", []) != "UTC":
                self._own.execute("set timezone = 'UTC'")
        query = json.loads(_first(self._own, "select json_serialize_sql('select 1')", []))
        query["statements"][0]["node"]["select_list"] = [expression]
        text = _first(self._own, "select json_deserialize_sql(?::json)", [json.dumps(query)])
        try:
            return _first(self._own, form.format(text.removeprefix("SELECT ")), _left(self._params, expression))
        except duckdb.Error as error:
            raise InvalidInputError(f"{what}: {error}") from error


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, list):
        for item in tree:
            yield from _nodes(item)
    elif isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _nodes(value)


def _left(params: Params, tree: Any) -> Params:
    """Return those parameters that a tree still has; DuckDB refuses more."""
    if not params:
        return None
    names = {node["identifier"] for node in _nodes(tree) if node.get("class") == "PARAMETER"}
    given = dict(params) if isinstance(params, Mapping) else {str(n + 1): value for n, value in enumerate(params)}
    return {name: value for name, value in given.items() if name in names} or None


def _first(connection: duckdb.DuckDBPyConnection, query: str, params: Params) -> Any:
    # All of it: a connection with an unfinished result does nothing else.
    return connection.execute(query, params or None).fetchall()[0][0]
