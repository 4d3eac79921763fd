"""What SQL reads as a pyarrow dataset, the bridge to DuckDB, and states as the first of its sources.

DuckDB asks a dataset for a scanner and hands over the columns and the filter of the query. Where the filter
limits all key columns to some values, only these keys are looked up. Otherwise parts are left out whose hash
range, key groups or column bounds exclude every row that passes, and the rest is read part by part as DuckDB
asks for it. What the filter keeps is decided by Arrow in both cases; pruning only spares work.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arrowstate.clock import now_ms
from arrowstate.errors import ArrowStateError
from arrowstate.query.duckdb.duckdb_internals import Scannable
from arrowstate.query.duckdb.filters import Node, columns_of, evaluate, may_match, read_filter, values_of
from arrowstate.query.duckdb.sql_types import SqlForm
from arrowstate.query.expiry import EXPIRES_COLUMN, Seen
from arrowstate.query.files import Part
from arrowstate.query.state import KEY_GROUP_COLUMN, Condition, StateReader

MOST_KEYS = 65_536
"""A filter that leaves more keys than this is worked through by a scan."""


@dataclass(slots=True)
class ScanStatistics:
    """What one scan read; the last fields change while its rows are being fetched."""

    state: str
    "`<operator uid>.<state>`, or a table of the schema `arrowstate`."
    columns: tuple[str, ...]
    "The columns asked for."
    filter: str | None
    "The filter handed over, None where the engine had none or kept it to itself."
    keys: int | None = None
    "How many keys were looked up, None for a scan."
    batches: int = 0
    "Record batches and row groups of the state."
    rows: int = 0
    "Rows of the state's files, dead ones included."
    batches_read: int = 0
    rows_read: int = 0
    broken_off: ArrowStateError | None = None

    @property
    def failure(self) -> ArrowStateError | None:
        """Why the scan broke off, None if it did not; an engine passes on the text only."""
        # A fresh copy each time: raised, it would hold the stack, that the result, that DuckDB's connection, and that
        # these statistics, a circle through C++ that Python cannot break.
        return copy.copy(self.broken_off)


class Source(Protocol):
    """Rows that SQL reads, made as they are asked for: of a state, of an operator state, of the history."""

    @property
    def name(self) -> str:
        """What it is called in the statistics of its scans."""

    @property
    def schema(self) -> pa.Schema:
        """All its columns, with the types that they have in SQL (`query/sql_types.py`)."""

    @property
    def shown(self) -> Sequence[str]:
        """The columns that its view has."""

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the rows that pass, and count in the statistics what is read."""


class ScannedDataset(Scannable):
    """A source as DuckDB reads it; `on_scan` is given the statistics of each scan as it begins."""

    def __init__(self, source: Source, on_scan: Callable[[ScanStatistics], None]) -> None:
        super().__init__(source.schema)
        self._source = source
        self._on_scan = on_scan

    def scan(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Return these columns of the rows that pass the filter."""
        return scanned(self._source, self._on_scan, columns, filter)


def scanned(
    source: Source, on_scan: Callable[[ScanStatistics], None], columns: list[str], filter: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Return columns of the rows of a source that pass a filter; `on_scan` is given the statistics of the scan."""
    statistics = ScanStatistics(source.name, tuple(columns), None if filter is None else str(filter))
    on_scan(statistics)
    return _watched(lambda: source.rows(columns, filter, statistics), statistics)


class Narrowed:
    """A source with some of its columns alone."""

    def __init__(self, source: Source, columns: Sequence[str]) -> None:
        self.name = source.name
        self.shown = columns
        self.schema = pa.schema([source.schema.field(name) for name in columns])
        self.rows = source.rows


def passing(table: pa.Table, columns: list[str], filter: pc.Expression | None) -> list[pa.RecordBatch]:
    """Return the columns of those rows of a table that pass."""
    return (table if filter is None else table.filter(filter)).select(columns).to_batches()


class StateSource:
    """The rows of a state that a reader sees, by default now, in the form that SQL shows, or as they are stored."""

    def __init__(self, state: StateReader, seen: Seen | None = None, *, as_stored: bool = False) -> None:
        self.name = f"{state.operator.uid}.{state.layout.name}"
        self._state = state
        self._seen = Seen(now_ms()) if seen is None else seen
        self._form = SqlForm.none(state.schema) if as_stored else state.sql_form
        self.schema = self._form.schema

    def at(self, seen: Seen) -> StateSource:
        """Return the state as another reader sees it in SQL."""
        return self if self._state.document.time_to_live is None else StateSource(self._state, seen)

    @property
    def shown(self) -> Sequence[str]:
        """Key and value, the key group, and where rows that have expired are shown too, when they did."""
        state = self._state
        expires = [EXPIRES_COLUMN] if self._seen.expired and EXPIRES_COLUMN in state.schema.names else []
        return [*state.columns, KEY_GROUP_COLUMN, *expires]

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Look the keys up that the filter leaves, or read the parts that it does not exclude."""
        parts = self._state.parts
        statistics.batches, statistics.rows = len(parts.parts), parts.rows
        node = None if filter is None else read_filter(filter)
        keys = None if node is None else _keys(node, self._state.layout.key)
        if filter is None or node is None or keys is None:
            return self._read(node, filter, columns, statistics)
        statistics.keys = keys.num_rows
        return self._look_up(keys, node, filter, columns, statistics)

    def _look_up(
        self, keys: pa.RecordBatch, node: Node, filter: pc.Expression, columns: list[str], statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        state = self._state
        needed = [*columns, *sorted(columns_of(node).difference(columns))]
        hidden = state.expired_up_to(self._seen)
        table, statistics.batches_read, statistics.rows_read = state.lookup(keys, needed, expired_up_to=hidden)
        passes = _test(node, filter)
        for batch in map(self._form, table.to_batches()):
            kept = passes(batch)
            yield (batch if kept.true_count == batch.num_rows else batch.filter(kept)).select(columns)

    def _read(
        self, node: Node | None, filter: pc.Expression | None, columns: list[str], statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        state = self._state
        parts = state.parts.parts
        if node is not None:
            # The filter is about values as SQL shows them.
            bounds = {name: known for name, known in state.bounds.items() if self._form.is_stored(name)}
            keep = may_match(node, bounds, len(parts))
            parts = list(itertools.compress(parts, keep))
        hidden = state.expired_up_to(self._seen)
        parts = state.unexpired(parts, hidden)
        condition = None
        if filter is not None:
            names = state.schema.names if node is None else columns_of(node)
            tested = [name for name in state.schema.names if name in names]
            passes = _test(node, filter)
            condition = Condition(tested, lambda batch: passes(self._form(batch)))
        counted = _counted(parts, statistics)
        for batch in state.batches(counted, columns, condition=condition, expired_up_to=hidden):
            yield self._form(batch)


def _test(node: Node | None, filter: pc.Expression) -> Callable[[pa.RecordBatch], pa.BooleanArray]:
    """Return what tells the rows that pass."""

    def by_arrow(batch: pa.RecordBatch) -> pa.BooleanArray:
        # About 0.3 ms a batch, ten times what the kernels need that `evaluate` calls.
        rows = ds.InMemoryDataset(batch).scanner(columns={"passes": filter}, use_threads=False).to_table()
        return rows.column("passes").combine_chunks()

    def test(batch: pa.RecordBatch) -> pa.BooleanArray:
        passes = None if node is None else evaluate(node, batch)
        return by_arrow(batch) if passes is None else passes

    return test


def _watched(rows: Callable[[], Iterator[pa.RecordBatch]], statistics: ScanStatistics) -> Iterator[pa.RecordBatch]:
    """Pass the rows on and keep the error that ends them."""
    try:
        yield from rows()
    except ArrowStateError as error:
        statistics.broken_off = copy.copy(error)
        raise


def _counted(parts: Sequence[Part], statistics: ScanStatistics) -> Iterator[Part]:
    for part in parts:
        statistics.batches_read += 1
        statistics.rows_read += part.rows
        yield part


def _keys(node: Node, key: pa.Schema) -> pa.RecordBatch | None:
    """Return all keys that can pass the filter, None if it does not limit them to a reasonable number."""
    columns = []
    count = 1
    for field in key:
        values = values_of(node, field.name, field.type)
        if values is None:
            return None
        columns.append(values)
        count *= len(values)
        if count > MOST_KEYS:
            return None
    if len(columns) == 1:
        return pa.RecordBatch.from_arrays(columns, schema=key)
    repeated = []
    before, after = 1, count
    for values in columns:
        # Every combination once: the first column changes slowest.
        after = after // len(values) if len(values) else 0
        places = np.tile(np.repeat(np.arange(len(values)), after), before)
        repeated.append(values.take(pa.array(places)) if count else values.slice(0, 0))
        before *= len(values)
    return pa.RecordBatch.from_arrays(repeated, schema=key)
