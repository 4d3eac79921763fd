"""Value state: one value per key, the last that was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.schema.descriptors import (
    ValueStateDescriptor,
)
from arrowstate.schema.keys import value_array
from arrowstate.schema.types import python_array, python_scalar
from arrowstate.state.kinds.one_row import OneRowState
from arrowstate.state.transaction import atomic


class ValueState(OneRowState[ValueStateDescriptor]):
    """Keeps one value per key, the last that was written.

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

    _plumbing = frozenset({"merge_namespaces_batch"})

    @atomic
    def update_batch(self, keys: Any, values: Any, *, namespace: Any = None, timestamps: Any = None) -> None:
        """Set the value of each key. If a key occurs more than once, its last value counts.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        values
            One value of the state's type per row. A null removes the value of its key.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.
        timestamps
            Only for a state that expires by event time: the time of each row, as Arrow timestamps or as integers in
            milliseconds since 1970. By default it is the current timestamp of the backend, else the watermark.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError
            If a key or value does not fit. The state is unchanged then.
        StorageFullError
            If the disk has no room for spilled runs. The state is unchanged then.
        """
        self._flush()
        batch = self._keys(keys, namespace)
        given = value_array(values, self.descriptor.type, batch.row_count, self.descriptor.name)
        last = pa.array(batch.last_rows())
        updated = [column.take(last) for column in self._expiry.times_of_values(given, timestamps)]
        self._expiry.settle()
        self._replace(self._table.find(batch), batch, given.take(last), updated)

    def _answers(self, values: pa.Array) -> pa.Array:
        if self.descriptor.default is None or not values.null_count:
            return values
        default = python_array([self.descriptor.default], self.descriptor.type)
        rows = np.arange(len(values), dtype=np.int64)
        rows[values.is_null().to_numpy(zero_copy_only=False)] = len(values)
        return pa.concat_arrays([values, default]).take(pa.array(rows))

    def update(self, value: Any) -> None:
        """Set the value of the current key; None removes it."""
        self._write_current(None if value is None else self._scalar(value, self.descriptor.type))

    @atomic
    def value(self) -> Any:
        """Return the value of the current key as a plain Python value, or the default."""
        value = self._plain(self._read_current())
        if value is None and self.descriptor.default is not None:
            return self._plain(python_scalar(self.descriptor.default, self.descriptor.type))
        return value
