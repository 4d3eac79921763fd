"""Map state: one row per entry, found by key and user key in a search of two levels.

An entry costs one row, whatever the size of the map. Values may be null: such an entry exists. A struct value that
is null as a whole reads back as a struct of nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import NullKeyError
from arrowstate.schema.descriptors import MapStateDescriptor
from arrowstate.schema.keys import key_columns, value_array
from arrowstate.schema.layout import StateLayout
from arrowstate.state.current_key import KeyContext
from arrowstate.state.folds.retraction import row_flags
from arrowstate.state.kinds.many_rows import ManyRowsState, Rows, as_lists
from arrowstate.state.transaction import atomic
from arrowstate.table.columns import canonical_floats
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import Found, Table


class MapState(ManyRowsState[MapStateDescriptor]):
    """Keeps a map per key: any number of entries, each a value under a user key.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> cart = backend.state(arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64()))
    >>> cart.put_batch(["ann", "ann", "bob"], ["apple", "pear", "fig"], [3, 1, 9])
    >>> cart.get_batch(["ann", "bob"], ["pear", "pear"]).to_pylist()
    [1, None]
    >>> backend.current_key = "ann"
    >>> cart.remove("apple")
    >>> dict(cart.items())
    {'pear': 1}
    """

    _plumbing = frozenset({"merge_namespaces_batch", "unread"})

    def __init__(self, descriptor: MapStateDescriptor, layout: StateLayout, table: Table, context: KeyContext) -> None:
        super().__init__(descriptor, layout, table, context)
        self._user_key = pa.schema([(f"{descriptor.name}_key", descriptor.key_type)])

    @atomic
    def put_batch(
        self,
        keys: Any,
        user_keys: Any,
        values: Any,
        *,
        namespace: Any = None,
        timestamps: Any = None,
        removed: Any = None,
    ) -> None:
        """Set one entry per row. If a key and user key occur more than once, the last row counts.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        user_keys
            One user key per row, without nulls.
        values
            One value of the state's type per row. A null is a value: the entry exists.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.
        timestamps
            Only for a state that expires by event time: the time of each row, as Arrow timestamps or as integers in
            milliseconds since 1970. By default it is the current timestamp of the backend, else the watermark.
        removed
            A boolean per row, without nulls. Where it is true, the entry is removed instead of set. By default every
            row sets its entry.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError
            If a key, user key or value does not fit. The state is unchanged then.
        """
        self._flush()
        batch = self._entries(keys, user_keys, namespace)
        given = value_array(values, self.descriptor.type, batch.row_count, self.descriptor.name)
        last = pa.array(batch.last_rows())
        keep = None
        if removed is not None:
            flags = row_flags(removed, batch.row_count, self.descriptor.name, "removed").take(last)
            keep = np.flatnonzero(~flags.to_numpy(zero_copy_only=False))
        # To remove needs no time.
        timed = timestamps is not None or keep is None or keep.size
        rows = batch.row_count
        times = self._expiry.times(rows, timestamps) if timed else self._expiry.no_times(rows)
        updated = [column.take(last) for column in times]
        self._expiry.settle()
        self._table.put(self._table.find(batch), batch, [*self.layout.split(given.take(last)), *updated], keep=keep)

    @atomic
    def get_batch(self, keys: Any, user_keys: Any, *, namespace: Any = None) -> pa.Array:
        """Return the value of one entry per row; parameters and errors are those of `put_batch`.

        Returns
        -------
        pa.Array
            One value of the state's type per row of `keys`; null where there is no such entry, or its value is null.
        """
        self._flush()
        batch = self._entries(keys, user_keys, namespace)
        return self._read_entries(batch)[0].take(pa.array(batch.groups()))

    @atomic
    def contains_batch(self, keys: Any, user_keys: Any, *, namespace: Any = None) -> pa.BooleanArray:
        """Return for each row whether the entry exists; parameters and errors are those of `put_batch`.

        Returns
        -------
        pa.BooleanArray
            One boolean per row of `keys`, not null. An entry whose value is null exists.
        """
        self._flush()
        batch = self._entries(keys, user_keys, namespace)
        return pa.array(self._read_entries(batch)[1][batch.groups()])

    @atomic
    def remove_batch(self, keys: Any, user_keys: Any, *, namespace: Any = None) -> None:
        """Remove one entry per row; an entry that does not exist is skipped. Parameters are those of `put_batch`."""
        self._flush()
        batch = self._entries(keys, user_keys, namespace)
        self._expiry.settle()
        self._table.remove(self._table.find(batch))

    @atomic
    def entries_batch(self, keys: Any, *, namespace: Any = None) -> pa.MapArray:
        """Return all entries of each key, in no particular order.

        Returns
        -------
        pa.MapArray
            One map per row of `keys`, not null: from user keys, not null, to values of the state's type. It is empty
            where the key has no entry.
        """
        self._flush()
        batch = self._keys(keys, namespace)
        return _as_maps(self._rows(batch), len(batch))[0].take(pa.array(batch.groups()))

    def unread(self, keys: KeyBatch) -> tuple[pa.MapArray, pa.ListArray | None]:
        """Return the entries of each distinct key, and with a time to live the times of them; this is no read.

        Entries that have expired are in it.
        """
        self._flush()
        found = self._table.find_all(self._keys(keys, None))
        rows = self._rows_of(found)
        maps, order = _as_maps(rows, len(keys))
        times = self._expiry.times_of_rows(found)
        return maps, None if times is None else as_lists(rows.numbers, times.take(order), len(keys))

    def put(self, user_key: Any, value: Any) -> None:
        """Set one entry of the current key; the value may be None."""
        self._write_one(self._value(value), self._one(user_key), removed=False)

    @atomic
    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set entries of the current key."""
        given = dict(entries)
        for user_key, value in given.items():
            self.put(user_key, value)

    @atomic
    def get(self, user_key: Any) -> Any:
        """Return the value of an entry of the current key, None if there is no such entry."""
        return self._plain(self._look(user_key)[0])

    @atomic
    def contains(self, user_key: Any) -> bool:
        """Whether the current key has such an entry."""
        return self._look(user_key)[1]

    def remove(self, user_key: Any) -> None:
        """Remove an entry of the current key, if it exists."""
        self._write_one(None, self._one(user_key), removed=True)

    @atomic
    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries of the current key as they are now; entries may be set and removed meanwhile."""
        self._flush()
        _, keys = self._current()
        rows = self._rows(keys)
        assert rows.user_keys is not None
        return iter([(self._plain(k), self._plain(v)) for k, v in zip(rows.user_keys, rows.values, strict=True)])

    def keys(self) -> Iterator[Any]:
        """Iterate over the user keys of the current key."""
        return (user_key for user_key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """Iterate over the values of the current key."""
        return (value for _, value in self.items())

    @atomic
    def is_empty(self) -> bool:
        """Whether the current key has no entry."""
        self._flush()
        _, keys = self._current()
        return not any(rows.size for _, _, rows in self._live(keys))

    def _value(self, value: Any) -> pa.Scalar | None:
        """Return a plain value as it is stored."""
        if value is not None:
            return self._scalar(value, self.descriptor.type)
        # Fields are all that is stored of a struct.
        return pa.scalar({}, self.descriptor.type) if pa.types.is_struct(self.descriptor.type) else None

    def _entries(self, keys: Any, user_keys: Any, namespace: Any) -> KeyBatch:
        return self._keys(keys, namespace, self._user_keys(user_keys))

    def _user_keys(self, user_keys: Any) -> pa.Array:
        return canonical_floats(key_columns(user_keys, self._user_key)[0])

    def _one(self, user_key: Any) -> pa.Array:
        if user_key is None:
            raise NullKeyError(f"{self.descriptor.name}_key", 0)
        return self._user_keys([user_key])

    def _look(self, user_key: Any) -> tuple[pa.Scalar | None, bool]:
        """Return the value of an entry of the current key and whether it exists."""
        identity, keys = self._current(self._one(user_key))
        write = self._noted(identity)
        if write is not None:
            return write.values[0], not write.removed
        values, exists = self._read_entries(keys)
        return (values[0] if exists[0] else None), bool(exists[0])

    def _read_entries(self, batch: KeyBatch) -> tuple[pa.Array, Any]:
        """Return (values, whether they exist) of entries for a caller, by number of the batch."""
        ttl = self.descriptor.ttl
        found = self._expiry.find(batch)
        values = self._values(found)
        exists = np.ones(len(batch), dtype=np.bool_)
        exists[found.absent] = False
        if ttl is not None:
            self._expiry.after_read(batch, found, values)
        return values, exists

    def _values(self, found: Found) -> pa.Array:
        first = self.layout.first_value
        columns = [found.column(first + i, field.type) for i, field in enumerate(self.layout.value_fields)]
        return self.layout.join(columns, found.absent)


def _as_maps(rows: Rows, count: int) -> tuple[pa.MapArray, pa.Array]:
    """Return one map per key, and the order of the rows in them."""
    order = pa.array(np.argsort(rows.numbers, kind="stable"))
    assert rows.user_keys is not None
    lists = as_lists(rows.numbers, rows.values.take(order), count)
    return pa.MapArray.from_arrays(lists.offsets, rows.user_keys.take(order), lists.values), order
