"""Tables of other checkpoints, and what changed between them, for one query of a checkpoint."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.log.choosing import choose_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.catalog import SqlName, resolve
from arrowstate.query.changes import ALL_HASHES, CHANGE_TYPE_COLUMN, StateChanges, change_columns, reader_between
from arrowstate.query.difference import difference
from arrowstate.query.duckdb.about import ABOUT_TABLES, about
from arrowstate.query.duckdb.dataset import Narrowed, ScannedDataset, ScanStatistics, Source, StateSource, passing
from arrowstate.query.duckdb.filters import Node, columns_of, read_filter
from arrowstate.query.duckdb.preparing import ABOUT_SCHEMA, FUNCTIONS
from arrowstate.query.duckdb.sql_types import SqlForm
from arrowstate.query.expiry import Seen
from arrowstate.query.key_history import KeyHistory, history_reader
from arrowstate.query.state import KEY_GROUP_COLUMN, StateReader
from arrowstate.schema.keys import key_columns
from arrowstate.schema.types import is_list
from arrowstate.storage.base import Storage
from arrowstate.table.segment import HASH_COLUMN
from arrowstate_formats.documents import LogEntryDocument

if TYPE_CHECKING:
    import duckdb

Batches = Callable[[list[str], Node | None], Iterator[pa.RecordBatch]]
"""Rows with some columns; those that a filter excludes may be left out."""


class OtherTables:
    """Makes what `preparing` asks for, and registers it with the connection of the query."""

    def __init__(
        self,
        storage: Storage,
        entry: LogEntryDocument,
        sources_of: Callable[[LogEntryDocument, Seen], Mapping[SqlName, Source]],
        seen: Seen,
        connection: duckdb.DuckDBPyConnection,
        on_scan: Callable[[ScanStatistics], None],
    ) -> None:
        self._storage = storage
        self._entry = entry
        self._sources_of = sources_of
        self._seen = seen
        self._connection = connection
        self._on_scan = on_scan
        self._log = CommitLog(storage)
        self._known: dict[str, str] = {}

    def as_of(self, schema: str, table: str, checkpoint: Any) -> str:
        """Register a table of another checkpoint."""
        entry = self._checkpoint(checkpoint)
        if schema.lower() == ABOUT_SCHEMA and table.lower() in ABOUT_TABLES:
            return self._about(table.lower(), entry)
        sources = self._sources_of(entry, self._seen)
        wanted = (schema or "main").lower(), table.lower()
        for name, source in sources.items():
            is_whole = wanted == ("main", name.relation.lower())
            if not is_whole and wanted != (name.schema.lower(), name.view.lower()):
                continue
            if not name.uid:
                raise InvalidInputError(f"{name.relation} is of the whole store, at any checkpoint; leave out at (...)")
            shown = source if is_whole else Narrowed(source, source.shown)
            return self._register(f"{name.relation} at {entry.checkpoint_id}{' whole' * is_whole}", shown)
        asked = f"{schema}.{table}" if schema else table
        there = [name.relation for name in sources if name.uid]
        raise StateNotFoundError(asked, there, None, entry.checkpoint_id)

    def about(self, table: str) -> str:
        """Register what the checkpoint of the query consists of."""
        return self._about(table, self._entry)

    def _about(self, table: str, entry: LogEntryDocument) -> str:
        name, storage = f"{ABOUT_SCHEMA}.{table}", self._storage

        def batches(columns: list[str], passes: Node | None) -> Iterator[pa.RecordBatch]:
            yield from about(storage, entry, table, passes).select(columns).to_batches()

        return self._register(f"{name} at {entry.checkpoint_id}", _Made(name, ABOUT_TABLES[table][0], batches))

    def of_function(self, function: str, arguments: Sequence[Any]) -> str:
        """Register what a function returns."""
        text = f"{function}({', '.join(map(repr, arguments))})"
        needed = {"changes": (2, 3), "change_counts": (1, 2), "history": (2, 2), "state": (1, 2)}[function]
        if not needed[0] <= len(arguments) <= needed[1]:
            raise InvalidInputError(f"{text} has {len(arguments)} arguments; it is {FUNCTIONS[function]}")
        made: Source
        if function == "changes":
            made = self._changes(text, *arguments)
        elif function == "change_counts":
            made = self._counts(text, *arguments)
        elif function == "state":
            made = self._state(text, *arguments)
        else:
            made = self._history(text, *arguments)
        return self._register(f"arrowstate.{text}", made)

    def _state(self, text: str, state: Any, expired: Any = None) -> Source:
        uid, name = resolve(self._entry, _reference(text, state))
        if not (expired is None or isinstance(expired, bool)):
            raise InvalidInputError(f"{text}: expired is true or false, got {expired!r}")
        seen = self._seen if expired is None else Seen(self._seen.now_ms, expired)
        source = StateSource(StateReader(self._storage, self._entry, uid, name), seen)
        return Narrowed(source, source.shown)

    def _changes(self, text: str, state: Any, start: Any, end: Any = None) -> Source:
        before, after = self._span(text, start, end)
        reader = reader_between(self._storage, before, after, _reference(text, state))
        changes = StateChanges(self._storage, reader, before, after)
        available = [name for name in change_columns(reader) if name != HASH_COLUMN]
        names = [*reader.columns, *(name for name in (KEY_GROUP_COLUMN,) if name in available)]
        fields = [*(reader.schema.field(name) for name in names), pa.field(CHANGE_TYPE_COLUMN, pa.string())]

        def batches(columns: list[str], _: Node | None) -> Iterator[pa.RecordBatch]:
            # What is compared is always all of the value: a query that leaves a column out sees the same changes.
            asked = [name for name in columns if name != CHANGE_TYPE_COLUMN]
            for batch in changes.batches(asked, ALL_HASHES):
                yield batch.select(columns)

        return _Made(f"arrowstate.{text}", pa.schema(fields), batches)

    def _counts(self, text: str, start: Any, end: Any = None) -> Source:
        before, after = self._span(text, start, end)
        found = difference(self._storage, before, after)
        table = found.to_arrow()
        return _Made(f"arrowstate.{text}", table.schema, lambda columns, _: iter(table.select(columns).to_batches()))

    def _history(self, text: str, state: Any, key: Any) -> Source:
        reader = StateReader(self._storage, self._entry, *resolve(self._entry, _reference(text, state)))
        # What is registered must not hold the connection: a circle through C++ is never let go.
        entries = [*self._log.backwards()][::-1]
        keys = _keys(text, key, reader.layout.key)
        history = KeyHistory(self._storage, history_reader(self._storage, reader, entries), keys)

        def batches(columns: list[str], _: Node | None) -> Iterator[pa.RecordBatch]:
            for batch in history.batches(entries):
                yield batch.select(columns)

        return _Made(f"arrowstate.{text}", history.schema, batches)

    def _span(self, text: str, start: Any, end: Any) -> tuple[LogEntryDocument | None, LogEntryDocument]:
        """Return the two checkpoints that a function is about; what it goes on to is by default that of the query."""
        before = None if start is None else self._checkpoint(start)
        after = self._entry if end is None else self._checkpoint(end)
        if before is not None and (before.checkpoint_id or 0) > (after.checkpoint_id or 0):
            raise InvalidInputError(
                f"{text} goes from checkpoint {before.checkpoint_id} back to {after.checkpoint_id}; "
                "give the older one first"
            )
        return before, after

    def _checkpoint(self, reference: Any) -> LogEntryDocument:
        if not isinstance(reference, (int, str, datetime.datetime)) or isinstance(reference, bool):
            raise InvalidInputError(f"a checkpoint is an id, -1 for the one before, a tag or a time, got {reference!r}")
        return choose_checkpoint(self._storage, reference, log=self._log, seen_from=self._entry.checkpoint_id)

    def _register(self, name: str, source: Source) -> str:
        if name not in self._known:
            # No state can have this name: the number of a table comes first.
            self._known[name] = f"{len(self._known)} {name}"
            self._connection.register(self._known[name], ScannedDataset(source, self._on_scan))
        return self._known[name]


@dataclass(frozen=True, slots=True)
class _Stored:
    schema: pa.Schema
    batches: Batches


class _Made:
    """Rows that are made when they are asked for, with all columns that the filter needs."""

    def __init__(self, name: str, schema: pa.Schema, batches: Batches) -> None:
        self.name = name
        self._stored = _Stored(schema, batches)
        self._form = SqlForm(schema)
        self.schema = self._form.schema
        self.shown = self.schema.names

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Make the rows, and leave out those that do not pass."""
        node = None if filter is None else read_filter(filter)
        tested: Collection[str] = self.schema.names if node is None else columns_of(node)
        names = columns if filter is None else [name for name in self.schema.names if name in {*columns, *tested}]
        for batch in self._stored.batches(names, node):
            statistics.rows += batch.num_rows
            statistics.rows_read += batch.num_rows
            yield from passing(pa.Table.from_batches([self._form(batch)]), columns, filter)


def _reference(text: str, state: Any) -> str:
    if not isinstance(state, str):
        raise InvalidInputError(f"{text} needs a state, as 'OPERATOR.STATE', got {state!r}")
    return state


def _keys(text: str, key: Any, schema: pa.Schema) -> Any:
    """Return the key, or the list of keys, that a query gives, as a lookup takes them."""
    kind = schema.field(0).type
    is_one = not isinstance(key, list) or (len(schema) == 1 and is_list(kind) and _fits([key], kind))
    keys = [key] if is_one else key
    if len(schema) == 1:
        fields = kind.names if pa.types.is_struct(kind) else []
        named = [name for name in schema.names if name not in fields]
        return _column([item[named[0]] if isinstance(item, dict) and [*item] == named else item for item in keys], kind)
    if not all(isinstance(item, dict) and set(item) == set(schema.names) for item in keys):
        example = ", ".join(f"'{name}': ..." for name in schema.names)
        raise InvalidInputError(f"{text} needs a key with all columns, as {{{example}}}, got {key!r}")
    columns = [
        key_columns(_column([item[field.name] for item in keys], field.type), pa.schema([field])) for field in schema
    ]
    return pa.RecordBatch.from_arrays([column for (column,) in columns], schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> Any:
    """Return values of a column of the key; a number is the key that it equals, whatever it is written as.

    `1.5` is a decimal in SQL. What Arrow would round is left as it is, for a lookup to refuse.
    """
    if pa.types.is_floating(kind):
        values = [float(value) if isinstance(value, Decimal) else value for value in values]
    if pa.types.is_integer(kind):
        return [int(value) if _is_whole(value) else value for value in values]
    if pa.types.is_nested(kind) or not _fits(values, kind):
        return values
    made = pa.array(values, kind)
    if values and pa.types.is_temporal(kind) and not made.null_count:
        given = pa.array(values)
        return made if made.cast(given.type).equals(given) else values
    return made


def _is_whole(value: Any) -> bool:
    return isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value)


def _fits(values: Sequence[Any], kind: pa.DataType) -> bool:
    try:
        pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True
