"""One state of a checkpoint as a table that other libraries take: Arrow, Polars, pandas, DuckDB, Ray and Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.query.expiry import Seen
from arrowstate.query.polars_scan import check_columns, lazy_frame, readable
from arrowstate.query.state import StateReader
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import KeyGroupRange, key_groups_of_hashes

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow.dataset as ds

    from arrowstate.query.duckdb.dataset import ScanStatistics

_SHOWN_ROWS = 10
"""In a notebook."""


def imported_polars(method: str) -> Any:
    """Return the package Polars for a method that needs it."""
    try:
        import polars
    except ImportError as error:
        raise MissingDependencyError(f"{method}()", "polars", "polars") from error
    return polars


def polars_frame(rows: pa.Table) -> polars.DataFrame:
    """Return rows as a data frame of Polars, for the methods `to_polars`."""
    frames = imported_polars("to_polars")
    check_columns(rows.schema)
    frame: polars.DataFrame = frames.from_arrow(readable(rows))
    return frame


class _Snapshot(Protocol):
    """What a table needs of the checkpoint it is of."""

    entry: LogEntryDocument

    def __getitem__(self, state: tuple[str, str]) -> StateTable: ...

    def changes(self, state: tuple[str, str], since: Any = None, *, columns: Any = None) -> pa.Table: ...

    def history(self, state: tuple[str, str], keys: Any) -> pa.Table: ...


class StateTable:
    """One state of a checkpoint, or the rows of some of its key groups; made by `snapshot["operator.state"]`.

    It has Arrow's PyCapsule protocol, so `pyarrow.table(table)`, `polars.DataFrame(table)` and DuckDB's
    `from_arrow(table)` accept it. It can be pickled if other processes can reach its storage. Rows of a state with a
    time to live that had expired when it was made are left out; `with_expired()` has them.
    """

    def __init__(
        self,
        snapshot: _Snapshot,
        reader: StateReader,
        on_scan: Callable[[ScanStatistics], None],
        seen: Seen,
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._reader = reader
        self._on_scan = on_scan
        self._name = (reader.operator.uid, reader.document.name)
        self._seen = seen
        self.key_groups = key_groups

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._snapshot, self._name, self._seen, self.key_groups)

    @property
    def operator(self) -> str:
        """The uid of the operator."""
        return self._name[0]

    @property
    def state(self) -> str:
        """The name of the state."""
        return self._name[1]

    @property
    def schema(self) -> pa.Schema:
        """The columns of `to_arrow`: those of key, namespace, user key and value."""
        reader = self._reader
        return pa.schema([reader.schema.field(name) for name in reader.shown_columns(expired=self._seen.expired)])

    @property
    def num_rows(self) -> int:
        """How many rows there are: from the checkpoint's documents, or where these do not tell, by a count.

        They do not tell it of some key groups, nor how many rows have expired.
        """
        reader = self._reader
        if self.key_groups is None and reader.expired_up_to(self._seen) is None:
            return reader.operator.live_rows(self.state)
        return sum(batch.num_rows for batch in self.to_batches(columns=["_checkpoint_id"]))

    def to_batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are read, so that only a few batches are in memory."""
        reader = self._reader
        names = reader.check_columns(columns, expired=self._seen.expired)
        parts, hidden = reader.in_key_groups(self.key_groups), reader.expired_up_to(self._seen)
        yield from reader.batches(parts, names, key_groups=self.key_groups, expired_up_to=hidden)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as an Arrow table; see `Snapshot.to_arrow`."""
        reader = self._reader
        names = reader.check_columns(columns, expired=self._seen.expired)
        return reader.table(names, self.key_groups, reader.expired_up_to(self._seen))

    def to_polars(self, *, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """Return the rows as a Polars data frame."""
        return polars_frame(self.to_arrow(columns=columns))

    def to_pandas(self, *, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Return the rows as a pandas data frame."""
        return self.to_arrow(columns=columns).to_pandas()

    def dataset(self) -> ds.Dataset:
        """Return the rows as a pyarrow dataset, as far as one is read: scanner, to_table, to_batches, head, count_rows.

        A filter that limits all key columns to some values looks these keys up; others leave out what they exclude.
        """
        from arrowstate.query.duckdb.dataset import Narrowed, ScannedDataset, StateSource

        if self.key_groups is not None:
            raise InvalidInputError("a dataset is of all key groups; filter it by _key_group, or use to_batches()")
        reader = self._reader
        source = StateSource(reader, self._seen, as_stored=True)
        return ScannedDataset(Narrowed(source, source.shown), self._on_scan)

    def lazy(self) -> polars.LazyFrame:
        """Return the rows as a lazy frame of Polars; filters and columns are pushed down as for `dataset`.

        Polars itself decides which rows pass. Comparisons of columns with values, joined by `&`, are pushed down.
        """
        imported_polars("lazy")
        return lazy_frame(self.dataset())

    def with_expired(self) -> StateTable:
        """Return a table that also has the expired rows, and `_expires_at`, the time at which each row expires."""
        return self.read_as(Seen(self._seen.now_ms, expired=True), self.key_groups)

    def partitions(self, count: int) -> list[StateTable]:
        """Divide it by key groups into about `count` tables with about as many rows each, for as many processes.

        Each is pickled with the log entry of the checkpoint and reads its files itself: Ray, Dask and
        `multiprocessing` need nothing else. All of them leave out the rows that had expired when this table was made.
        """
        check_integer("count", count, 1)
        reader = self._reader
        maximum = reader.max_parallelism
        own = self.key_groups or KeyGroupRange(0, maximum - 1)
        rows = np.zeros(maximum)
        for part in reader.in_key_groups(own):
            ends = key_groups_of_hashes(np.array([part.min_hash, part.max_hash]), maximum)
            first, last = int(ends[0]), int(ends[1])
            # Hashes are spread evenly.
            rows[first : last + 1] += part.live_rows / (last - first + 1)
        before = np.concatenate(([0.0], np.cumsum(rows[own.start : own.end + 1])))
        cuts = np.searchsorted(before, before[-1] * np.arange(1, count) / count, side="left")
        ends = np.unique(np.concatenate(([0], cuts, [len(own)])))
        return [
            self.in_key_groups(KeyGroupRange(own.start + int(low), own.start + int(high) - 1))
            for low, high in pairwise(ends)
        ]

    def changes(self, since: Any = None, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that changed since another checkpoint; see `Snapshot.changes`."""
        return self._snapshot.changes(self._name, since, columns=columns)

    def history(self, keys: Any) -> pa.Table:
        """Return the rows of some keys in each checkpoint that changed them; see `Snapshot.history`."""
        return self._snapshot.history(self._name, keys)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        groups = "" if self.key_groups is None else f", key groups {self.key_groups.start} to {self.key_groups.end}"
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"<StateTable {self.operator}.{self.state} of checkpoint {self._checkpoint}{groups}: {columns}>"

    def _repr_html_(self) -> str:
        from arrowstate.html import table_html

        first = next(self.to_batches(), None)
        rows = [] if first is None else first.slice(0, _SHOWN_ROWS).to_pylist()
        return table_html(
            f"{self.operator}.{self.state} of checkpoint {self._checkpoint}: {self.num_rows:,} rows",
            [f"{field.name} {field.type}" for field in self.schema],
            [list(row.values()) for row in rows],
        )

    @property
    def _checkpoint(self) -> int | None:
        return self._snapshot.entry.checkpoint_id

    def in_key_groups(self, key_groups: KeyGroupRange | None) -> StateTable:
        """Return a table of the rows of some key groups, None for all."""
        return self.read_as(self._seen, key_groups)

    def read_as(self, seen: Seen, key_groups: KeyGroupRange | None) -> StateTable:
        """Return a table of the rows that a reader at this time sees, of some key groups or of all (None)."""
        return StateTable(self._snapshot, self._reader, self._on_scan, seen, key_groups)


def _unpickled(snapshot: _Snapshot, state: tuple[str, str], seen: Seen, key_groups: KeyGroupRange | None) -> StateTable:
    return snapshot[state].read_as(seen, key_groups)
