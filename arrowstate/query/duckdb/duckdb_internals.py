"""What DuckDB does not promise to keep: how it reads a pyarrow dataset, its tokens, and the tree of a query.

DuckDB asks a dataset for a scanner, with the columns and the filter of the query, and the scanner for its stream; of
both it uses no more than is here, and Polars takes the same for a dataset. The tokens of a text and the tree of a
SELECT come from DuckDB's own parser. `tests/test_internals.py` fails by the name of what an upgrade has changed.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arrowstate.query.duckdb.filters import as_sql
from arrowstate_formats import system

Tree = dict[str, Any]
"""A node of a parsed statement."""


class Token(NamedTuple):
    """A word, a literal or a sign of a text in SQL, which stands there from `start` to `end`."""

    text: str
    start: int
    end: int

    @property
    def name(self) -> str | None:
        """What it names, in lower case, None where it is no identifier."""
        if self.text.startswith('"'):
            return self.text[1:-1].replace('""', '"').lower()
        return self.text.lower() if self.text[0].isalpha() or self.text[0] == "_" else None


_BEFORE_COMMENT = re.compile(
    r"""(?>e'(?:[^'\\]|''|\\.)*'|(?:u&|[bnx])?'(?:[^']|'')*'|(?:u&)?"(?:[^"]|"")*"|(\$\w*\$).*?\1|(?:(?!--|/\*)\S)+)"""
    r"(?=\s*(?:--|/\*))",
    re.DOTALL | re.IGNORECASE,
)
"""A token behind which a comment stands: DuckDB 1.4 makes one of both."""


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text in the order of DuckDB's lexer, without comments."""
    data = text.encode()
    found = duckdb.tokenize(text)
    ends = [*(start for start, _ in found), len(data)][1:]
    tokens, offset, place = [], 0, 0
    for (start, kind), end in zip(found, ends, strict=True):
        # DuckDB counts bytes, Python characters.
        place += len(data[offset:start].decode())
        offset = start
        token = data[start:end].decode().strip()
        if kind != duckdb.token_type.comment and (before_comment := _BEFORE_COMMENT.match(token)):
            token = before_comment[0]
        if kind == duckdb.token_type.operator and token[:1] == "$" and token[1:].isdigit():
            # DuckDB 1.4 has the number of a parameter in one token with its sign.
            tokens.append(Token("$", place, place + 1))
            token, shift = token[1:], 1
        else:
            shift = 0
        if kind != duckdb.token_type.comment and token:
            tokens.append(Token(token, place + shift, place + shift + len(token)))
    return tokens


_lock = system.forks_wait_for(threading.RLock())
_parsers: list[duckdb.DuckDBPyConnection] = []


def parser() -> duckdb.DuckDBPyConnection:
    """Return a connection without tables, of a database that the process makes once."""
    with _lock:
        if not _parsers:
            _parsers.append(duckdb.connect())
        return _parsers[0].cursor()


IS_BEFORE_2 = int(duckdb.__version__.split(".")[0]) < 2
"""Then `relation_of` leaves a table in the connection of a query with parameters, and filters need `as_sql`."""
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_numbers = itertools.count(1)


def relation_of(
    connection: duckdb.DuckDBPyConnection, query: str, params: Sequence[Any] | Mapping[str, Any] | None
) -> duckdb.DuckDBPyRelation:
    """Return the answer of a query; one with parameters is run at once.

    Before 2.0 DuckDB lets no other thread of Python run while it collects such an answer, and waits for its own
    threads, which may need Python to read rows: the process would hang. So the answer is a temporary table there.
    """
    if not (params and IS_BEFORE_2):
        return connection.sql(query, params=params)
    name = f"arrowstate_answer_{next(_numbers)}"
    try:
        connection.execute(f"create temp table {name} as\n{query}", params)
    except (duckdb.ParserException, duckdb.InvalidInputException):
        # Of what describes and of structs without names there is no table; `execute` too lets other threads run.
        return connection.from_arrow(connection.execute(query, params).fetch_arrow_table())  # type: ignore[attr-defined]
    except duckdb.Error as error:
        raise type(error)(_LINE.sub(lambda found: f"LINE {int(found[1]) - 1}:", str(error))) from None
    return connection.table(name)


def statement_type(text: str, connection: duckdb.DuckDBPyConnection) -> duckdb.StatementType | None:
    """Return the type of the statement that a text is, None where it is none or several."""
    statements = connection.extract_statements(text)
    if len(statements) == 1:
        return statements[0].type
    try:
        has_texts = not statements or any(statement.query for statement in statements)
    except IndexError:
        # DuckDB 1.4 cannot find the texts of several statements of which one is a pivot.
        has_texts = True
    # A pivot is several statements; DuckDB 1.4 returns each, without a text, and the last is what was asked for.
    ends = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.COPY}
    return None if has_texts or statements[-1].type not in ends else duckdb.StatementType.MULTI


def tree_of(query: str) -> Tree:
    """Return the parsed SELECT statements of a text: `statements`, or `error_message` where it is something else."""
    found = parser().execute("select json_serialize_sql(?)", [query]).fetchall()
    tree: Tree = json.loads(found[0][0])
    return tree


def text_of(tree: Tree) -> str:
    """Return a tree of `tree_of` as a text in SQL."""
    found = parser().execute("select json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()
    return str(found[0][0])


def arguments_of(function: Tree) -> list[tuple[str, Tree]]:
    """Return (name, expression) of the arguments of a function; the name is empty where none is given."""
    if "arguments" in function:
        return [(argument["name"], argument["expression"]) for argument in function["arguments"]]
    # DuckDB 1.4 and 1.5 have the name as an alias.
    return [(expression["alias"], {**expression, "alias": ""}) for expression in function["children"]]


def aggregate_names() -> frozenset[str]:
    """Return the names of DuckDB's aggregate functions that are no functions of single rows too."""
    query = "select function_name, bool_and(function_type = 'aggregate') from duckdb_functions() group by 1"
    return frozenset(name for name, is_aggregate in parser().execute(query).fetchall() if is_aggregate)


class _Scan:
    """What DuckDB takes for a scanner: the rows as a stream."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream; to be called once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


class Scannable(ds.InMemoryDataset):  # type: ignore[misc]
    """What DuckDB takes for a dataset, by its class: rows with these columns, made as they are asked for."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema.empty_table())

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> _Scan:
        """Return a scan of these columns in the rows that pass the filter, which is what DuckDB asks for."""
        return self._scan(columns, as_sql(filter) if IS_BEFORE_2 and filter is not None else filter)

    def _scan(self, columns: Sequence[str] | None, filter: pc.Expression | None) -> _Scan:
        wanted = list(self.schema.names if columns is None else columns)
        return _Scan(pa.schema([self.schema.field(name) for name in wanted]), self.scan(wanted, filter))

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that pass, which is what Polars asks for; they come as they are read."""
        return self.scan(list(self.schema.names if columns is None else columns), filter)

    def to_table(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> pa.Table:
        """Return the same as a table."""
        scan = self._scan(columns, filter)
        return pa.Table.from_batches(scan.to_reader(), scan.projected_schema)

    def head(
        self, num_rows: int, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> pa.Table:
        """Return the first rows; no more is read than they need."""
        scan = self._scan(columns, filter)
        found, left = [], num_rows
        reader = scan.to_reader()
        while left > 0 and (batch := next(reader, None)) is not None:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        return pa.Table.from_batches(found, scan.projected_schema)

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:
        """Return how many rows pass."""
        return sum(batch.num_rows for batch in self.scan(self.schema.names[:1], filter))

    def scan(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Return these columns of the rows that pass the filter."""
        raise NotImplementedError  # Abstract: who offers rows knows where they come from.
