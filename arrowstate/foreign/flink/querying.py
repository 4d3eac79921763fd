"""SQL over a savepoint of Flink: a schema per operator and a view per state, decoded as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.foreign.flink.states import FlinkState
from arrowstate.query.catalog import SqlName, named
from arrowstate.query.expiry import Seen

if TYPE_CHECKING:
    import duckdb

    from arrowstate.query.duckdb.dataset import ScanStatistics


_SEEN = Seen(0, expired=True)
"""A savepoint does not say how long rows live."""


class Queried(Protocol):
    """What has states."""

    @property
    def states(self) -> Mapping[str, FlinkState]:
        """The states, by operator and name."""
        ...

    @property
    def checkpoint_id(self) -> int:
        """The number that Flink gave it."""
        ...


class Query:
    """A database of the states of a savepoint."""

    def __init__(self, savepoint: Queried) -> None:
        from arrowstate.query.duckdb.engine import Database

        self._savepoint = savepoint
        self.names = sql_names_of(savepoint.states.values())
        states = {(state.operator, state.name): state for state in savepoint.states.values()}
        self._database = Database({name: _Source(states[name.uid, name.state]) for name in self.names})

    def run(
        self,
        query: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
        on_scan: Callable[[ScanStatistics], None] = lambda _: None,
    ) -> duckdb.DuckDBPyRelation:
        """Run a query; arguments and errors as for `SnapshotReader.sql`."""
        from arrowstate.query.duckdb.selecting import select

        return select(
            self._database,
            query,
            params,
            on_scan=on_scan,
            seen=_SEEN,
            names=lambda: self.names,
            checkpoint_id=self._savepoint.checkpoint_id,
            tables=tables,
        )

    def attach(
        self, connection: duckdb.DuckDBPyConnection, catalog: str, on_scan: Callable[[ScanStatistics], None]
    ) -> list[SqlName]:
        """Give a connection a database of this name with a view per state, and return the names of these."""
        return self._database.attach(connection, catalog, on_scan, _SEEN)


def sql_names_of(states: Iterator[FlinkState] | Sequence[FlinkState] | Any) -> list[SqlName]:
    """Return the SQL name of each state."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for state in states:
        found.setdefault(state.operator, []).append((state.name, state.kind in ("split", "union", "broadcast")))
    return named(found)


class _Source:
    """A state as a source of rows."""

    def __init__(self, state: FlinkState) -> None:
        from arrowstate.query.duckdb.sql_types import SqlForm

        self.name = f"{state.operator}.{state.name}"
        self._state = state
        self._form = SqlForm(pa.schema([field.remove_metadata() for field in state.schema]))
        self.schema = self._form.schema
        self.shown = list(self.schema.names)

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Decode batch by batch; what the filter leaves out is decoded too."""
        from arrowstate.query.duckdb.dataset import passing

        for batch in self._state.to_batches():
            statistics.batches += 1
            statistics.batches_read += 1
            statistics.rows += batch.num_rows
            statistics.rows_read += batch.num_rows
            yield from passing(pa.Table.from_batches([self._form(batch)], self.schema), columns, filter)


def look_up(state: FlinkState, keys: pa.Array) -> pa.Table:
    """Return the rows of some keys, in the order of the keys; every row of the state is looked at."""
    found, places = [], []
    for batch in state.to_batches():
        place = _places(batch.column("key"), keys)
        chosen = place.is_valid()
        if chosen.true_count:
            found.append(batch.filter(chosen))
            places.append(place.filter(chosen))
    table = pa.Table.from_batches(found, state.schema)
    order = pc.sort_indices(pa.chunked_array(places, pa.int32()).combine_chunks())
    return table.take(order) if found else table


def _places(column: pa.Array, keys: pa.Array) -> pa.Array:
    """Return for each value which of the keys it is, null for none of them."""
    if not pa.types.is_nested(keys.type):
        return pc.index_in(column, value_set=keys)
    known: dict[str, int] = {}
    for place, key in enumerate(keys):
        known.setdefault(repr(key.as_py()), place)
    return pa.array([known.get(repr(key.as_py())) for key in column], pa.int32())
