"""States with many rows per key: what list and map state share.

All rows of a key are one slice of each run. They are found through the hash of the key, and compared by key and
namespace.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.schema.descriptors import ListStateDescriptor, MapStateDescriptor
from arrowstate.schema.layout import StateLayout
from arrowstate.state.base import KeyedState
from arrowstate.state.transaction import atomic
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate.table.table import gather

Ints = npt.NDArray[np.int64]
Found = list[tuple[Run, Ints, Ints]]
D = TypeVar("D", ListStateDescriptor, MapStateDescriptor)


class Rows(Struct, frozen=True):
    """All rows of some keys."""

    numbers: Ints
    "The number of the key each row belongs to."
    seconds: Ints
    "The second sort column."
    user_keys: pa.Array | None
    values: pa.Array


class ManyRowsState(KeyedState[D]):
    """A state with any number of rows per key."""

    @atomic
    def clear_batch(self, keys: Any, *, namespace: Any = None) -> None:
        """Remove all elements or entries of each key; a key without any is skipped."""
        self._flush()
        batch = self._keys(keys, namespace)
        self._expiry.settle()
        self._remove_all(batch)

    @atomic
    def clear(self) -> None:
        """Remove all elements or entries of the current key."""
        self._flush()
        _, keys = self._current()
        self._remove_all(keys)

    def _remove_all(self, keys: KeyBatch) -> None:
        for run, _, rows in self._table.find_all(keys):
            self._table.kill(run, rows)

    def _rows(self, keys: KeyBatch) -> Rows:
        """Return the rows of the keys for a caller; with a time to live this may renew or remove some."""
        return self._rows_of(self._expiry.seen(self._table.find_all(keys)))

    def _rows_of(self, found: Found) -> Rows:
        layout: StateLayout = self.layout
        first: int = layout.first_value
        fields = [layout.schema.field(1), *layout.value_fields]
        columns = [1, *range(first, first + len(layout.value_fields))]
        if layout.user_key_type is not None:
            fields.append(layout.entry_fields[-1])
            columns.append(first - 1)
        taken = [gather(found, number, field.type) for number, field in zip(columns, fields, strict=True)]
        numbers = [numbers for _, numbers, _ in found]
        values = layout.join(taken[1 : 1 + len(layout.value_fields)], np.empty(0, dtype=np.int64))
        return Rows(
            np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64),
            taken[0].to_numpy(),
            taken[-1] if layout.user_key_type is not None else None,
            values,
        )

    def _live(self, keys: KeyBatch) -> Found:
        """Find the rows of the keys that have not expired; they are not renewed."""
        return self._expiry.live(self._table.find_all(keys))


def as_lists(numbers: Ints, values: pa.Array, count: int) -> pa.ListArray:
    """Return one list per key; `values` are in the order of the keys, key by key."""
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(numbers, minlength=count), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)
