"""The states of a subtask itself: list state, and broadcast state with its read-only view.

They are small, so each is plain Arrow data in memory. Batch verbs take and return Arrow arrays; the other verbs
take and return Python values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.descriptors import MapStateDescriptor
from arrowstate.schema.keys import to_type
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.operator_state import (
    BroadcastStateDescriptor,
    OperatorListStateDescriptor,
    operator_state_schema,
)
from arrowstate.schema.plain import plain_values
from arrowstate.schema.types import CONVERSION_ERRORS, first_null, python_array
from arrowstate.state.current_key import KeyContext
from arrowstate.state.kinds.map import MapState
from arrowstate.table import kernels
from arrowstate.table.columns import take
from arrowstate.table.table import FrozenTable, Table
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.key_hash import hash_columns

_ONE_KEY = pa.schema([pa.field("subtask", pa.int32(), nullable=False)])


class OperatorListState:
    """Keeps a list of elements of one subtask, in the order in which they were added; equal elements are kept.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.OperatorStateBackend()
    >>> offsets = backend.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64()))
    >>> offsets.add(17)
    >>> offsets.extend(pa.array([4, 9]))
    >>> offsets.get()
    [17, 4, 9]
    """

    def __init__(self, descriptor: OperatorListStateDescriptor) -> None:
        self.descriptor = descriptor
        self._chunks: list[pa.Array] = []

    def __repr__(self) -> str:
        return f"<OperatorListState {self.descriptor.name!r}: {self.descriptor.type}, {len(self)} elements>"

    def __len__(self) -> int:
        """The number of elements."""
        return sum(len(chunk) for chunk in self._chunks)

    def begin(self) -> Any:
        """Return a mark of what it holds now, for `KeyedStateBackend.transaction`."""
        return list(self._chunks)

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""

    def go_back(self, mark: Any) -> None:
        """Give up the latest mark and hold what it held when it was taken."""
        self._chunks = mark

    def add(self, value: Any) -> None:
        """Append one element, which must not be None."""
        self._chunks.append(self._checked([value]))

    def add_all(self, values: Any) -> None:
        """Append all elements of a sequence; if one of them is None, none is appended."""
        self._append(self._sequence(values))

    def update(self, values: Any) -> None:
        """Replace the list; an empty sequence removes all elements."""
        given = self._sequence(values)
        self.clear()
        self._append(given)

    def extend(self, values: Any) -> None:
        """Append an Arrow array of elements of the state's type, without nulls.

        Raises
        ------
        ValueTypeError, InvalidInputError
            If an element does not fit the type or is null. The state is unchanged then.
        """
        self._append(self._checked(values))

    def get(self) -> list[Any]:
        """Return the elements as Python values; the caller may change the list."""
        return plain_values(self.to_arrow(), f"list state {self.descriptor.name!r}")

    def to_arrow(self) -> pa.Array:
        """Return the elements as one Arrow array of the state's type, without nulls."""
        if len(self._chunks) != 1:
            self._chunks = [pa.concat_arrays([*self._chunks, pa.array([], self.descriptor.type)])]
        return self._chunks[0]

    def clear(self) -> None:
        """Remove all elements."""
        self._chunks = []

    def freeze(self) -> pa.RecordBatch:
        """Return the elements as they are now, as a checkpoint stores them."""
        return pa.RecordBatch.from_arrays([self.to_arrow()], schema=operator_state_schema(self.descriptor))

    def take_up(self, batch: pa.RecordBatch) -> None:
        """Append what a checkpoint stored."""
        self._append(batch.column(0))

    def _append(self, values: pa.Array) -> None:
        if len(values):
            self._chunks.append(values)

    def _sequence(self, values: Any) -> pa.Array:
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise InvalidInputError(f"list state {self.descriptor.name!r} takes a sequence of elements, got {values!r}")
        return self._checked(values if isinstance(values, (pa.Array, pa.ChunkedArray)) else list(values))

    def _checked(self, values: Any) -> pa.Array:
        kind, name = self.descriptor.type, self.descriptor.name
        try:
            given = python_array(values, kind) if isinstance(values, list) else to_type(values, kind)
        except CONVERSION_ERRORS as error:
            what = str(values.type) if isinstance(values, (pa.Array, pa.ChunkedArray)) else repr(values)
            raise ValueTypeError(name, str(kind), f"{what} ({error})") from None
        if given.null_count:
            row = first_null(given)
            raise InvalidInputError(
                f"an element of list state {name!r} must not be null, the one at place {row} of those given is"
            )
        return given


class ReadOnlyBroadcastState:
    """A broadcast state that can only be read.

    A keyed function gets it in this form, because the other subtasks would not see what it writes.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.OperatorStateBackend()
    >>> limits = backend.state(arrowstate.BroadcastStateDescriptor("limits", pa.string(), pa.int64()))
    >>> limits.put_batch(["clicks", "views"], [5, 100])
    >>> limits.read_only().get_batch(["views", "likes"]).to_pylist()
    [100, None]
    """

    def __init__(self, descriptor: BroadcastStateDescriptor, map_state: MapState) -> None:
        self.descriptor = descriptor
        self._map = map_state

    def __repr__(self) -> str:
        name, kinds = self.descriptor.name, f"{self.descriptor.type} by {self.descriptor.key_type}"
        return f"<{type(self).__name__} {name!r}: {kinds}, {len(self)} entries>"

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._map)

    def begin(self) -> Any:
        """Return a mark of what it holds now, for `KeyedStateBackend.transaction`."""
        return self._map.begin()

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""
        self._map.keep()

    def go_back(self, mark: Any) -> None:
        """Give up the latest mark and hold what it held when it was taken."""
        self._map.go_back(mark)

    def get(self, key: Any) -> Any:
        """Return the value of an entry, None if there is no such entry."""
        return self._map.get(key)

    def contains(self, key: Any) -> bool:
        """Whether there is such an entry; its value may be null."""
        return self._map.contains(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries as they are now."""
        return self._map.items()

    def keys(self) -> Iterator[Any]:
        """Iterate over the keys."""
        return self._map.keys()

    def values(self) -> Iterator[Any]:
        """Iterate over the values."""
        return self._map.values()

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not len(self)

    def get_batch(self, keys: Any) -> pa.Array:
        """Return the value of each key of an Arrow array.

        Returns
        -------
        pa.Array
            One value of the state's type per key; null where there is no such entry, or its value is null.
        """
        return self._map.get_batch(_same_key(keys), keys)

    def contains_batch(self, keys: Any) -> pa.BooleanArray:
        """Return for each key of an Arrow array whether the entry exists, without nulls."""
        return self._map.contains_batch(_same_key(keys), keys)

    def to_arrow(self) -> pa.RecordBatch:
        """Return all entries, sorted by the hash of their keys.

        Returns
        -------
        pa.RecordBatch
            `<state>_key` of the key type, not null; `<state>` of the type of the values, which may be null.
        """
        entries = self._map.entries_batch(pa.array([0], pa.int32()))
        # Every subtask that holds the same entries gives the same rows, and so the same file.
        order = kernels.sort_by_hash(hash_columns([entries.keys]))[1]
        columns = [take(entries.keys, order), take(entries.items, order)]
        return pa.RecordBatch.from_arrays(columns, schema=operator_state_schema(self.descriptor))


class BroadcastState(ReadOnlyBroadcastState):
    """Keeps a map that is the same in every subtask. Every subtask must write the same entries.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.OperatorStateBackend()
    >>> limits = backend.state(arrowstate.BroadcastStateDescriptor("limits", pa.string(), pa.int64()))
    >>> limits.put("clicks", 5)
    >>> limits.get("clicks")
    5
    """

    def __init__(self, descriptor: BroadcastStateDescriptor, table: FrozenTable | None = None) -> None:
        inner = MapStateDescriptor(descriptor.name, descriptor.key_type, descriptor.type)
        context = KeyContext(_ONE_KEY, 1, KeyGroupRange(0, 0), lambda: 0)
        context.set_current(0)
        layout = StateLayout.of(context.key, inner)
        runs = () if table is None else tuple(run.as_run() for run in table.runs)
        entries = MapState(inner, layout, Table(layout.schema, 1, runs=runs), context)
        context.transactions.join(entries)
        super().__init__(descriptor, entries)

    def put(self, key: Any, value: Any) -> None:
        """Set one entry; the value may be None."""
        self._map.put(key, value)

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set entries."""
        self._map.put_all(entries)

    def put_batch(self, keys: Any, values: Any) -> None:
        """Set one entry per row. If a key occurs more than once, its last value counts.

        Parameters
        ----------
        keys
            An Array of the key type, without nulls.
        values
            One value of the state's type per key, which may be null.

        Raises
        ------
        KeyTypeError, NullKeyError, ValueTypeError
            If a key or value does not fit. The state is unchanged then.
        """
        self._map.put_batch(_same_key(keys), keys, values)

    def remove(self, key: Any) -> None:
        """Remove an entry, if it exists."""
        self._map.remove(key)

    def clear(self) -> None:
        """Remove all entries."""
        self._map.clear()

    def read_only(self) -> ReadOnlyBroadcastState:
        """Return a view that can only be read; it also shows what is written later."""
        return ReadOnlyBroadcastState(self.descriptor, self._map)

    def freeze(self) -> pa.RecordBatch:
        """Return the entries as they are now, as a checkpoint stores them."""
        return self.to_arrow()

    def frozen_table(self) -> FrozenTable:
        """Return the entries as they are now, for others that begin with the same; no row is copied."""
        return self._map.freeze()

    def take_up(self, batch: pa.RecordBatch) -> None:
        """Set the entries that a checkpoint stored."""
        self.put_batch(batch.column(0), batch.column(1))


def _same_key(keys: Any) -> pa.Array:
    """The map is that of one key; name it once per row."""
    return pa.array(np.zeros(len(keys), dtype=np.int32))


def find_broadcast(broadcasts: Mapping[str, ReadOnlyBroadcastState], name: str) -> ReadOnlyBroadcastState:
    """Return the broadcast state of a name."""
    if name not in broadcasts:
        have = ", ".join(broadcasts) or "none"
        raise InvalidInputError(f"no broadcast state named {name!r}; this operator has {have}")
    return broadcasts[name]
