"""Value and reducing state over a table of sorted runs.

Batch verbs work on Arrow columns. Scalar verbs work on the current key: what they write is collected in a
small dict and becomes rows of a run before the next batch verb or snapshot, or when the dict is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from arrowstate.schema.keys import value_array
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.types import CONVERSION_ERRORS, python_scalar
from arrowstate.state.context import KeyContext
from arrowstate.state.reducers import reduce_column, reduce_scalar
from arrowstate.table.batch import KeyBatch
from arrowstate.table.table import Found, FrozenTable, Table

__all__ = ["KeyedState", "ReducingState", "ValueState"]

Ints = npt.NDArray[np.int64]
D = TypeVar("D", bound=StateDescriptor)

_PENDING_KEYS = 16_384


class KeyedState(Generic[D]):
    """What value and reducing state share: reading, clearing, and the scalar writes not yet in a run."""

    def __init__(self, descriptor: D, layout: StateLayout, table: Table, context: KeyContext) -> None:
        self.descriptor = descriptor
        self.layout = layout
        self._table = table
        self._context = context
        self._pending: dict[Any, tuple[tuple[pa.Array, ...], pa.Scalar | None]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.descriptor.name!r}: {self.descriptor.type}, {len(self)} keys>"

    def __len__(self) -> int:
        """The number of keys that have a value."""
        self.flush()
        return self._table.live_rows

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, directories and live bits in memory; mapped rows do not count."""
        return self._table.memory_bytes

    def get_batch(self, keys: Any) -> pa.Array:
        """Return the value of each key.

        Parameters
        ----------
        keys
            An Array for one key column, else a RecordBatch or StructArray with the key schema. A key may
            occur more than once.

        Returns
        -------
        pa.Array
            One entry a row of `keys`, of the state's type; null, or the default, where the key has no value.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If a key does not fit the key schema or belongs to another subtask.
        """
        self.flush()
        batch = self._context.batch(keys)
        values = self._read(self._table.find(batch))
        if batch.row_count == 0:
            return values
        return values.take(pa.array(batch.groups()))

    def clear_batch(self, keys: Any) -> None:
        """Remove the value of each key; a key without one is passed over."""
        self.flush()
        batch = self._context.batch(keys)
        self._table.settle()
        self._table.remove(self._table.find(batch))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._write_current(None)

    def flush(self) -> None:
        """Move the scalar writes collected so far into the table."""
        if not self._pending:
            return
        entries = list(self._pending.values())
        columns = [pa.concat_arrays(column) for column in zip(*(entry[0] for entry in entries), strict=True)]
        keys = self._context.batch(pa.RecordBatch.from_arrays(columns, schema=self._context.key))
        values = pa.array([entry[1] for entry in entries], type=self.descriptor.type)
        self._table.settle()
        self._replace(self._table.find(keys), keys, values.take(pa.array(keys.last_rows())))
        self._pending.clear()

    def freeze(self) -> FrozenTable:
        """Return the state as it is now; later writes do not change it."""
        self.flush()
        return self._table.freeze()

    def _read(self, found: Found) -> pa.Array:
        first = 1 + len(self.layout.key)
        columns = [found.column(first + i, field.type) for i, field in enumerate(self.layout.value_fields)]
        return self.layout.join(columns, found.absent)

    def _replace(self, found: Found, keys: KeyBatch, values: pa.Array) -> None:
        """Write one value per key; a null removes the key."""
        keep = None
        if values.null_count:
            keep = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        self._table.put(found, keys, self.layout.split(values), keep=keep)

    def _read_current(self) -> pa.Scalar | None:
        current = self._context.current
        if current.identity in self._pending:
            return self._pending[current.identity][1]
        keys = self._context.batch(pa.RecordBatch.from_arrays(list(current.columns), schema=self._context.key))
        scalar = self._read(self._table.find(keys))[0]
        return scalar if scalar.is_valid else None

    def _write_current(self, scalar: pa.Scalar | None) -> None:
        current = self._context.current
        if len(self._pending) >= _PENDING_KEYS:
            self.flush()
        self._pending[current.identity] = (current.columns, scalar)

    def _scalar(self, value: Any, kind: pa.DataType) -> pa.Scalar:
        """Return a plain Python value that is not None as one of the type, or refuse it."""
        try:
            return python_scalar(value, kind)
        except CONVERSION_ERRORS as error:
            raise ValueTypeError(self.descriptor.name, str(kind), repr(value)) from error

    def _plain(self, scalar: pa.Scalar | None) -> Any:
        if scalar is None:
            return None
        try:
            return scalar.as_py()
        except (OverflowError, ValueError) as error:
            raise InvalidInputError(
                f"state {self.descriptor.name!r}: the {scalar.type} has no counterpart in Python ({error}); "
                "read it with get_batch"
            ) from error


class ValueState(KeyedState[ValueStateDescriptor]):
    """One value per key.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
    >>> city.update_batch(pa.array(["ann", "bob", "ann"]), pa.array(["Rome", "Oslo", "Bonn"]))
    >>> city.get_batch(pa.array(["ann", "eve"])).to_pylist()
    ['Bonn', None]
    >>> backend.current_key = "eve"
    >>> city.update("Lima")
    >>> city.value()
    'Lima'
    """

    def update_batch(self, keys: Any, values: Any) -> None:
        """Set the value of each key; the last one wins where a key occurs more than once.

        Parameters
        ----------
        keys
            An Array for one key column, else a RecordBatch or StructArray with the key schema.
        values
            As many values of the state's type; a null clears its key.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError
            If a key or value does not fit; the state is unchanged then.
        StorageFullError
            If the disk has no room for spilled runs; the state is unchanged then.
        """
        self.flush()
        batch = self._context.batch(keys)
        given = value_array(values, self.descriptor.type, batch.row_count, self.descriptor.name)
        self._table.settle()
        self._replace(self._table.find(batch), batch, given.take(pa.array(batch.last_rows())))

    def get_batch(self, keys: Any) -> pa.Array:
        values = super().get_batch(keys)
        if self.descriptor.default is None or not values.null_count:
            return values
        default = pa.array([self.descriptor.default], type=self.descriptor.type)
        rows = np.arange(len(values), dtype=np.int64)
        rows[values.is_null().to_numpy(zero_copy_only=False)] = len(values)
        return pa.concat_arrays([values, default]).take(pa.array(rows))

    get_batch.__doc__ = KeyedState.get_batch.__doc__

    def update(self, value: Any) -> None:
        """Set the value of the current key; None clears it."""
        self._write_current(None if value is None else self._scalar(value, self.descriptor.type))

    def value(self) -> Any:
        """Return the value of the current key as a plain Python value, or the default."""
        value = self._plain(self._read_current())
        if value is None and self.descriptor.default is not None:
            return pa.scalar(self.descriptor.default, self.descriptor.type).as_py()
        return value


class ReducingState(KeyedState[ReducingStateDescriptor]):
    """One value per key, into which each added value is folded.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    >>> clicks.add_batch(pa.array(["ann", "bob", "ann"]), pa.array([1, 1, 5]))
    >>> clicks.get_batch(pa.array(["bob", "ann"])).to_pylist()
    [1, 6]
    >>> backend.current_key = "bob"
    >>> clicks.add(2)
    >>> clicks.get()
    3
    """

    def add_batch(self, keys: Any, values: Any) -> None:
        """Fold each value into its key's, in the order of the batch.

        Parameters
        ----------
        keys
            An Array for one key column, else a RecordBatch or StructArray with the key schema.
        values
            As many values of the state's type; for `count`, of any type. A null clears its key, and values
            after it start anew. In a state with a reducer per field, a null field is passed over.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError
            If a key or value does not fit; the state is unchanged then.
        ValueOverflowError
            If a sum does not fit the type; the state is unchanged then.
        StorageFullError
            If the disk has no room for spilled runs; the state is unchanged then.
        """
        self.flush()
        batch = self._context.batch(keys)
        given = self._given(values, batch.row_count)
        self._table.settle()
        found = self._table.find(batch)
        if given.null_count:
            order, starts, cleared = _after_last_null(given, batch)
        else:
            order, starts, cleared = batch.order, batch.starts, None
        self._replace(found, batch, self._reduce(found, given, order, starts, cleared))

    def _given(self, values: Any, rows: int) -> pa.Array:
        descriptor = self.descriptor
        if descriptor.reduce == "count" and isinstance(values, (pa.Array, pa.ChunkedArray)):
            return value_array(values, values.type, rows, descriptor.name)
        if isinstance(descriptor.reduce, Mapping) and isinstance(values, (pa.RecordBatch, pa.StructArray)):
            # A counted field may come in any type.
            names = [field.name for field in descriptor.type]
            have = {field.name: field.type for field in _fields(values)}
            if set(have) != set(names):
                raise ValueTypeError(
                    descriptor.name, f"a struct of {', '.join(names)}", f"a struct of {', '.join(have)}"
                )
            kinds = [
                have[field.name] if descriptor.reduce[field.name] == "count" else field.type
                for field in descriptor.type
            ]
            fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
            return value_array(values, pa.struct(fields), rows, descriptor.name)
        return value_array(values, descriptor.type, rows, descriptor.name)

    def _reduce(self, found: Found, given: pa.Array, order: Ints, starts: Ints, cleared: Ints | None) -> pa.Array:
        descriptor = self.descriptor
        old = self._read(found)
        if cleared is not None:
            keep = np.arange(len(old), dtype=np.int64)
            old = old.take(pa.array(keep, mask=np.isin(keep, cleared)))
        where = descriptor.name
        if isinstance(descriptor.reduce, str):
            # A struct reduces as a whole only by first and last.
            new = reduce_column(descriptor.reduce, given, order, starts, old, descriptor.type, where)
            if cleared is not None and descriptor.reduce == "count":
                empty = np.diff(starts) == 0
                return new.take(pa.array(np.arange(len(new)), mask=empty & np.isin(np.arange(len(new)), cleared)))
            return new
        given_fields, old_fields = given.flatten(), old.flatten()
        fields = [
            reduce_column(
                descriptor.reduce[field.name],
                given_fields[number],
                order,
                starts,
                old_fields[number],
                field.type,
                f"{where}.{field.name}",
            )
            for number, field in enumerate(descriptor.type)
        ]
        gone = (np.diff(starts) == 0) & (
            np.zeros(len(old), dtype=np.bool_) if cleared is None else np.isin(np.arange(len(old)), cleared)
        )
        return pa.StructArray.from_arrays(
            fields, fields=list(descriptor.type), mask=pa.array(gone) if gone.any() else None
        )

    def add(self, value: Any) -> None:
        """Fold one value into the current key's; None clears it."""
        if value is None:
            self._write_current(None)
            return
        descriptor = self.descriptor
        old = self._read_current()
        if isinstance(descriptor.reduce, str):
            new = self._add_one(descriptor.reduce, old, value, descriptor.type, descriptor.name)
        else:
            if not isinstance(value, Mapping) or not set(value) <= set(descriptor.reduce):
                raise ValueTypeError(descriptor.name, f"a mapping of {', '.join(descriptor.reduce)}", repr(value))
            parts = {
                field.name: self._add_one(
                    descriptor.reduce[field.name],
                    None if old is None or not old[field.name].is_valid else old[field.name],
                    value.get(field.name),
                    field.type,
                    f"{descriptor.name}.{field.name}",
                )
                for field in descriptor.type
            }
            new = pa.scalar(parts, descriptor.type)
        self._write_current(new)

    def _add_one(
        self, reduce: str, old: pa.Scalar | None, value: Any, kind: pa.DataType, where: str
    ) -> pa.Scalar | None:
        """Fold one plain value into an old one; None is passed over."""
        if reduce == "count":
            return pa.scalar((0 if old is None else old.as_py()) + (value is not None), kind)
        return old if value is None else reduce_scalar(reduce, old, self._scalar(value, kind), where)

    def get(self) -> Any:
        """Return the value of the current key as a plain Python value, None if it has none."""
        return self._plain(self._read_current())


def _fields(values: pa.RecordBatch | pa.StructArray) -> list[pa.Field]:
    return list(values.schema) if isinstance(values, pa.RecordBatch) else list(values.type)


def _after_last_null(given: pa.Array, batch: KeyBatch) -> tuple[Ints, Ints, Ints]:
    """Drop, in each group, the rows up to its last null; return (order, starts, the groups that had a null)."""
    null = given.is_null().to_numpy(zero_copy_only=False)[batch.order]
    places = np.flatnonzero(null)
    groups = np.searchsorted(batch.starts, places, side="right") - 1
    first_kept = batch.starts[:-1].copy()
    # Places ascend, so the last null of a group is what stays.
    first_kept[groups] = places + 1
    keep = np.arange(batch.order.size) >= np.repeat(first_kept, np.diff(batch.starts))
    starts = np.concatenate(([0], np.cumsum(batch.starts[1:] - first_kept))).astype(np.int64)
    return batch.order[keep], starts, np.unique(groups)
