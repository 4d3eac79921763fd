"""Statements of SQL as DuckDB takes them, and conditions and expressions that are to become part of one.

`prepare` is for what DuckDB's catalog does not know: `at (...)` behind a table, and the functions and tables of
`arrowstate`. DuckDB's lexer finds where they may stand, in statements of any kind, and its parser says what each is.
Each becomes a name of its own, which is registered with the connection; the rest of the text stays as it was. What
stands in the parentheses is a constant, a parameter, or an expression of these, which DuckDB evaluates.

`expressions` is for what a caller gives as one condition or value: it is parsed alone, and what becomes part of a query
is the text that DuckDB makes of the tree.
"""

from __future__ import annotations

import copy
import datetime
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import duckdb

from arrowstate.errors import InvalidInputError
from arrowstate.query.duckdb.about import ABOUT_TABLES
from arrowstate.query.duckdb.duckdb_internals import (
    Token,
    Tree,
    aggregate_names,
    arguments_of,
    parser,
    text_of,
    tokens_of,
    tree_of,
)

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

_DESCRIBING = {"describe", "desc", "summarize", "show"}
"""Behind these a query may stand, and no table with an alias."""
_BEFORE_A_TABLE = {"from", "join", "using", "into", "update", "pivot", "unpivot", ",", "(", *_DESCRIBING}
_NOT_CONSTANT = ("SUBQUERY", "COLUMN_REF", "STAR", "WINDOW")
_FROM = "SELECT * FROM "


class Tables(Protocol):
    """Offers the tables that a query asks for, each under a name by which the connection then knows it."""

    def as_of(self, schema: str, table: str, checkpoint: Any) -> str:
        """A table of another checkpoint: a number or a text from `version =>`, a datetime from `timestamp =>`."""

    def about(self, table: str) -> str:
        """One of `ABOUT_TABLES`, of the checkpoint that the query reads."""

    def of_function(self, function: str, arguments: Sequence[Any]) -> str:
        """What a function returns for its arguments."""


def prepare(query: str, params: Params, connection: duckdb.DuckDBPyConnection, tables: Tables) -> tuple[str, Params]:
    """Return statements without what DuckDB's catalog does not know, and the parameters that they still have."""
    written = query.lower()
    # Most queries need no tokens.
    tokens = _tokens(query) if "at" in written or ABOUT_SCHEMA in written else []
    if not any(_may_begin(tokens, place) for place in range(len(tokens))):
        return query, params
    text, _ = _numbered(query, tokens, 0)
    evaluate = _Evaluation(connection, params)
    parts: list[str] = []
    done = 0
    tokens = _tokens(text)
    for found in _tables_of(text, tokens):
        _replace(found.table, _name_of(found.table, evaluate, tables))
        made = text_of(found.tree)
        parts += [text[done : found.start], made if found.before in _DESCRIBING else made.removeprefix(_FROM)]
        done = found.end
    if not parts:
        return query, params
    text = "".join([*parts, text[done:]])
    return text, _left(params, _parameters_of(text))


def statements_of(text: str) -> list[duckdb.Statement]:
    """Return the statements of a text."""
    try:
        return parser().extract_statements(text)
    except duckdb.Error as error:
        raise InvalidInputError(str(error)) from error


def pairs_of_names(text: str) -> set[tuple[str, str]]:
    """Return all names that follow each other with a dot between, such as those of a schema and a table."""
    tokens = _tokens(text)
    pairs = zip(tokens, tokens[1:], tokens[2:], strict=False)
    return {(one.name, other.name) for one, dot, other in pairs if dot.text == "." and one.name and other.name}


def expressions(given: Mapping[str, Any]) -> list[str]:
    """Return texts, each of them one expression over a row, as parts of one query in this order."""
    made, count = [], 0
    for what, text in given.items():
        if not isinstance(text, str):
            raise InvalidInputError(f"{what} is an expression in SQL, such as 'total > 2', got {text!r}")
        tokens = _tokens(text)
        numbered, count = _numbered(text, tokens, count)
        made.append(_expression(what, text, numbered, tokens))
    return made


def _expression(what: str, text: str, numbered: str, tokens: Sequence[Token]) -> str:
    tree = tree_of(f"select\n{numbered}\n")
    one = f"{what} is one expression in SQL, got {text!r}"
    if tree["error"]:
        raise InvalidInputError(f"{one}: {tree['error_message']}")
    node = tree["statements"][0]["node"]
    chosen = node.get("select_list") or [{}]
    has_end = any(token.text == ";" for token in tokens)
    if has_end or len(chosen) != 1 or chosen[0].get("alias") or _beside_list(tree) != _beside_one():
        raise InvalidInputError(f"{one}: leave out what is beside it, such as further columns, names, tables and ';'")
    for part in _nodes(chosen[0], into_queries=False):
        kind, name = part.get("class"), str(part.get("function_name", "")).lower()
        if kind == "STAR":
            raise InvalidInputError(f"{one}: a star stands for several columns; name one")
        if kind == "WINDOW" or (kind == "FUNCTION" and name in _aggregates()):
            raise InvalidInputError(
                f"{one}: it has one value for each row, and an aggregate or a window function is of many rows; write "
                "a subquery of its own instead"
            )
    return text_of(tree).removeprefix("SELECT ")


_aggregates = functools.cache(aggregate_names)


def _tokens(text: str) -> list[Token]:
    try:
        return tokens_of(text)
    except duckdb.Error:
        # No SQL at all: whoever runs it is told by DuckDB what is wrong.
        return []


def _numbered(text: str, tokens: Sequence[Token], count: int) -> tuple[str, int]:
    """Return a text with `$n` for each `?`, from one above `count`, and how many there are by then."""
    parts, done = [], 0
    for token in tokens:
        if token.text == "?":
            count += 1
            parts += [text[done : token.start], f"${count}"]
            done = token.end
    return "".join([*parts, text[done:]]), count


# Where a table may stand


@dataclass(frozen=True, slots=True)
class _Found:
    """A table in a text, from `start` to `end`."""

    start: int
    end: int
    before: str
    "The word in front of it."
    tree: Tree
    "That of `select * from` it."

    @property
    def table(self) -> Tree:
        """The node of the table."""
        return _table_in(self.tree)


def _may_begin(tokens: Sequence[Token], place: int) -> bool:
    """Whether a token may be the `at` of a table, or the schema of what is ours."""
    token, following = tokens[place], _word(tokens, place + 1)
    return (token.text.lower() == "at" and following == "(") or (token.name == ABOUT_SCHEMA and following == ".")


def _tables_of(text: str, tokens: Sequence[Token]) -> Iterator[_Found]:
    """Yield the tables `at` something, the calls of our functions, and our tables, in their order."""
    first = 0
    for place in range(len(tokens)):
        if place < first or not _may_begin(tokens, place):
            continue
        is_at = _word(tokens, place) == "at"
        found = _table_at(text, tokens, first, place) if is_at else _own_table(text, tokens, place)
        if found is not None:
            yield found
            first = next((number for number, token in enumerate(tokens) if token.start >= found.end), len(tokens))


def _table_at(text: str, tokens: Sequence[Token], first: int, place: int) -> _Found | None:
    """Return the table before an `at (...)` with it, and an alias before or behind: the longest text that is one."""
    last = _closing(tokens, place + 1)
    end = tokens[last].end
    found = None
    for number in range(place - 1, first - 1, -1):
        start = tokens[number].start
        if tokens[number].text == ";":
            break
        tree = _as_table(text[start:end], "BASE_TABLE")
        if tree is not None:
            found = _Found(start, end, _word(tokens, number - 1), tree)
    return found if found is None else _with_alias_behind(found, text, tokens, last)


def _with_alias_behind(found: _Found, text: str, tokens: Sequence[Token], last: int) -> _Found:
    """Return a table with the alias behind its `at (...)`: DuckDB wants it before, other dialects behind."""
    if found.table["alias"]:
        return found
    for number in range(last + 1, min(last + 3, len(tokens))):
        if _word(tokens, number) == "set":
            # What an UPDATE sets.
            break
        named = _as_table(f"a {text[found.end : tokens[number].end]}", "BASE_TABLE")
        alias = "" if named is None else _table_in(named)["alias"]
        if alias:
            found.table["alias"] = alias
            return replace(found, end=tokens[number].end)
    return found


def _own_table(text: str, tokens: Sequence[Token], place: int) -> _Found | None:
    """Return a call of a function or a table of `arrowstate`, with the alias that follows it."""
    before = _word(tokens, place - 1)
    if place + 2 >= len(tokens) or before not in _BEFORE_A_TABLE:
        return None
    name, last, kind = tokens[place + 2].name, place + 2, "BASE_TABLE"
    following = _word(tokens, place + 3)
    if following == "(":
        last, kind = _closing(tokens, place + 3), "TABLE_FUNCTION"
        if name not in FUNCTIONS:
            raise InvalidInputError(
                f"there is no function arrowstate.{name}; there are {', '.join(FUNCTIONS.values())}"
            )
    elif name not in ABOUT_TABLES or following == ".":
        return None
    found, start = None, tokens[place].start
    # Behind it: `as`, a name, and names of columns in parentheses.
    for number in (last, last + 1, last + 2, _closing(tokens, last + 2), _closing(tokens, last + 3)):
        if number < len(tokens):
            tree = _as_table(text[start : tokens[number].end], kind)
            found = found if tree is None else _Found(start, tokens[number].end, before, tree)
    if found is not None and kind == "BASE_TABLE" and found.table["at_clause"]:
        return _with_alias_behind(found, text, tokens, _closing(tokens, last + 2))
    return found


def _word(tokens: Sequence[Token], place: int) -> str:
    """Return a token in lower case, nothing where there is none."""
    return tokens[place].text.lower() if 0 <= place < len(tokens) else ""


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """Return the place of the parenthesis that closes one, the last token where none does or none is opened."""
    depth = 0
    for number in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[number].text, 0)
        if depth <= 0:
            return number
    return len(tokens) - 1


def _as_table(text: str, kind: str) -> Tree | None:
    """Return the tree of `select * from` a text, None where it is not one table of a kind and nothing else."""
    tree = tree_of(f"{_FROM}{text}")
    if tree["error"] or len(tree["statements"]) != 1:
        return None
    table = _table_in(tree)
    if table.get("type") != kind:
        return None
    plain = copy.deepcopy(_from_a_table())
    plain["statements"][0]["node"]["from_table"] = table
    return tree if _without_places(plain) == _without_places(tree) else None


def _table_in(tree: Tree) -> Tree:
    """Return what a SELECT reads, nothing where it is none."""
    table: Tree = tree["statements"][0]["node"].get("from_table") or {}
    return table


@functools.cache
def _from_a_table() -> Tree:
    return tree_of("select * from a")


@functools.cache
def _beside_one() -> Tree:
    return _beside_list(tree_of("select 1"))


def _beside_list(tree: Tree) -> Tree:
    """Return a tree without the list of its SELECT, and without places."""
    first, *others = tree["statements"]
    node = {key: value for key, value in first["node"].items() if key != "select_list"}
    found: Tree = _without_places({**tree, "statements": [{**first, "node": node}, *others]})
    return found


def _without_places(tree: Any) -> Any:
    """Return a tree without what says where its parts stand in the text, and how its parameters are counted."""
    if isinstance(tree, list):
        return [_without_places(item) if isinstance(item, (dict, list)) else item for item in tree]
    return {
        key: _without_places(value) if isinstance(value, (dict, list)) else value
        for key, value in tree.items()
        if not key.startswith(("query_location", "named_param_map"))
    }


def _name_of(node: Tree, evaluate: _Evaluation, tables: Tables) -> str:
    """Have a table made; return its name."""
    if node["type"] == "TABLE_FUNCTION":
        function = node["function"]["function_name"].lower()
        return tables.of_function(function, evaluate.arguments(function, arguments_of(node["function"])))
    if not node["at_clause"]:
        return tables.about(node["table_name"].lower())
    return tables.as_of(node["schema_name"], node["table_name"], evaluate.checkpoint(node))


def _replace(node: Tree, name: str) -> None:
    """Make a node of the tree the table of a name; it keeps its alias, by default what it was called."""
    function = node.get("function")
    alias = node["alias"] or (function["function_name"] if function else node["table_name"])
    # The length is missing in a tree of DuckDB 1.4 and 1.5.
    of_any = ("sample", "query_location", "query_location_length", "column_name_alias")
    kept = {key: node[key] for key in of_any if key in node}
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

    def checkpoint(self, table: Tree) -> Any:
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

    def arguments(self, function: str, given: Sequence[tuple[str, Tree]]) -> list[Any]:
        """Return the arguments of a function, those with names in their order behind the others."""
        usage, names = FUNCTIONS[function], _NAMED.get(function, ())
        if any(name and name.lower() not in names for name, _ in given):
            raise InvalidInputError(f"the arguments have no names, give them in order: {usage}")
        in_order = sorted(given, key=lambda argument: [*names].index(argument[0].lower()) if argument[0] else -1)
        return [self._value(expression, usage) for _, expression in in_order]

    def _value(self, expression: Tree, what: str) -> Any:
        return self._run("select {}", expression, what)

    def _time(self, expression: Tree, what: str) -> Any:
        milliseconds = self._run("select epoch_ms(cast({} as timestamptz))", expression, what)
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=milliseconds)

    def _run(self, form: str, expression: Tree, what: str) -> Any:
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
        query = tree_of("select 1")
        query["statements"][0]["node"]["select_list"] = [expression]
        text = text_of(query).removeprefix("SELECT ")
        names = {node["identifier"] for node in _nodes(expression) if node.get("class") == "PARAMETER"}
        try:
            return _first(self._own, form.format(text), _left(self._params, names))
        except duckdb.Error as error:
            raise InvalidInputError(f"{what}: {error}") from error


def _nodes(tree: Any, *, into_queries: bool = True) -> list[Tree]:
    """Return all nodes of a tree, with or without those of the queries inside it, each before those below it."""
    nodes, left = [], [tree]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            nodes.append(item)
            left += reversed([value for key, value in item.items() if into_queries or key != "subquery"])
        elif isinstance(item, list):
            left += reversed(item)
    return nodes


def _parameters_of(text: str) -> set[str]:
    """Return the names of the parameters of a text, in which each has one."""
    return {other.text for sign, other in pairwise(_tokens(text)) if sign.text == "$"}


def _left(params: Params, names: set[str]) -> Params:
    """Return those parameters that have these names; DuckDB refuses more."""
    if not params:
        return None
    given = dict(params) if isinstance(params, Mapping) else {str(n + 1): value for n, value in enumerate(params)}
    return {name: value for name, value in given.items() if name in names} or None


def _first(connection: duckdb.DuckDBPyConnection, query: str, params: Params) -> Any:
    # All of it: a connection with an unfinished result does nothing else.
    return connection.execute(query, params or None).fetchall()[0][0]
