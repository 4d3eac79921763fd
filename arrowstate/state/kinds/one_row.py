"""States with one row per key: what value, reducing and aggregating state share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.state.base import KeyedState
from arrowstate.state.transaction import atomic
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import Found

Ints = npt.NDArray[np.int64]
D = TypeVar("D", bound=ValueStateDescriptor | ReducingStateDescriptor | AggregatingStateDescriptor)

LOWEST = np.iinfo(np.int64).min


class OneRowState(KeyedState[D]):
    """A state with one row per key: value, reducing and aggregating state."""

    _plumbing = frozenset({"stage", "stored_values", "unread", "values_of"})

    @atomic
    def get_batch(self, keys: Any, *, namespace: Any = None) -> pa.Array:
        """Return the value of each key; an aggregating state returns the result.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema. A key may occur more than once.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.

        Returns
        -------
        pa.Array
            One entry per row of `keys`, of the state's type or of the result type of the aggregate. A key without a
            value gives null, or the default of the state.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If a key does not fit the key schema or belongs to another subtask.
        """
        batch, values = self._stored(keys, namespace)
        return of_rows(self._answers(values), batch)

    def _stored(self, keys: Any, namespace: Any) -> tuple[KeyBatch, pa.Array]:
        """Return the distinct keys, and what is stored for each of them."""
        self._flush()
        batch = self._keys(keys, namespace)
        return batch, self._read_found(batch)

    def _answers(self, values: pa.Array) -> pa.Array:
        """Return what is answered for what is stored."""
        return values

    @atomic
    def read_keys(self, keys: KeyBatch) -> pa.Array:
        """Return one value per distinct key of a batch that is grouped already, as `get_batch` returns it."""
        return self._answers(self.stored_values(keys))

    def stored_values(self, keys: KeyBatch) -> pa.Array:
        """Return what is stored for each distinct key of a batch that is grouped already; null where it has nothing."""
        self._flush()
        return self._read_found(self._keys(keys, None))

    def values_of(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return what a read gives for rows with these value columns."""
        return self._answers(self.layout.join(columns, np.empty(0, dtype=np.int64)))

    def unread(self, keys: KeyBatch) -> tuple[pa.Array, pa.Array | None]:
        """Return what is stored for each distinct key, and with a time to live the time of it; this is no read.

        Values that have expired are in it.
        """
        self._flush()
        found = self._table.find(self._keys(keys, None))
        return self._read(found), None if self.descriptor.ttl is None else self._expiry.times_of(found)

    def stage(self, keys: KeyBatch, values: pa.Array, times: pa.Array | None) -> Callable[[], None]:
        """Make ready to set one value per distinct key, null to remove it; the function returned does it.

        `times` are those of the rows where the state has a time to live.
        The function must be called before anything else is written to this state.
        """
        self._flush()
        self._expiry.settle()
        return partial(self._replace, self._table.find(keys), keys, values, [] if times is None else [times])

    @atomic
    def clear_batch(self, keys: Any, *, namespace: Any = None) -> None:
        """Remove the value of each key; a key without one is skipped. Parameters are those of `get_batch`."""
        self._flush()
        batch = self._keys(keys, namespace)
        self._expiry.settle()
        self._table.remove(self._table.find(batch))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._write_current(None)

    def _read(self, found: Found) -> pa.Array:
        first = self.layout.first_value
        columns = [found.column(first + i, field.type) for i, field in enumerate(self.layout.value_fields)]
        return self.layout.join(columns, found.absent)

    def _read_found(self, keys: KeyBatch) -> pa.Array:
        """Read the values of keys for a caller: with a time to live this may renew or remove rows."""
        if self.descriptor.ttl is None:
            return self._read(self._table.find(keys))
        return self._read_timed(keys)

    @atomic
    def _read_timed(self, keys: KeyBatch) -> pa.Array:
        found = self._expiry.find(keys)
        values = self._read(found)
        self._expiry.after_read(keys, found, values)
        return values

    def _youngest(
        self, updated: list[pa.Array], order: Ints, starts: Ints, anew: Mapping[int, int] = MappingProxyType({})
    ) -> list[pa.Array]:
        """Return for each group of rows the latest of their times, for those in `anew` from this place of `order` on.

        A group without rows has the lowest time.
        """
        if not updated:
            return updated
        times = updated[0].to_numpy()[order]
        for group, place in anew.items():
            times[starts[group] : place] = LOWEST
        latest = np.full(starts.size - 1, LOWEST)
        present = np.flatnonzero(np.diff(starts))
        if present.size:
            latest[present] = np.maximum.reduceat(times, starts[present])
        return [pa.array(latest)]

    def _without_expired(
        self, left: Found, order: Ints, starts: Ints, late: npt.NDArray[np.bool_]
    ) -> tuple[Found, Ints, Ints]:
        """Drop the rows that have expired when the next row of their key is added.

        `left` is where the rows are that are added to, and `late` tells of each row of the batch whether it expires as
        it is written. Returns what is left of the rows found, the order and the starts.
        """
        counts = np.diff(starts)
        first_late = np.zeros(counts.size, dtype=np.bool_)
        first_late[counts > 1] = late[order[starts[:-1][counts > 1]]]
        left = self._expiry.without_unknown(left, np.flatnonzero(first_late))
        # Where a group begins anew, its first row counts that does not expire at once. The last one is always kept.
        lasting = np.append(np.flatnonzero(~late[order]), order.size)
        first = np.minimum(lasting[np.searchsorted(lasting, starts[:-1])], starts[1:] - 1)
        first_kept = starts[:-1].copy()
        anew = left.absent[counts[left.absent] > 0]
        first_kept[anew] = first[anew]
        return left, *_kept(order, starts, first_kept)

    def _replace(self, found: Found, keys: KeyBatch, values: pa.Array, updated: list[pa.Array]) -> None:
        """Write one value per key; a null removes the key."""
        keep = None
        if values.null_count:
            keep = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        self._table.put(found, keys, [*self.layout.split(values), *updated], keep=keep)

    def _read_current(self) -> pa.Scalar | None:
        identity, keys = self._current()
        write = self._noted(identity)
        if write is not None:
            return write.values[0]
        scalar = self._read_found(keys)[0]
        return scalar if scalar.is_valid else None

    def _write_current(self, scalar: pa.Scalar | None) -> None:
        self._write_one(scalar, removed=scalar is None)


def of_rows(values: pa.Array, batch: KeyBatch) -> pa.Array:
    """Return the value of each row of a batch, given one for each of its keys."""
    return values.take(pa.array(batch.groups())) if batch.row_count else values


def after_last_null(given: pa.Array, batch: KeyBatch) -> tuple[Ints, Ints, Ints]:
    """Drop, in each group, the rows up to its last null; return (order, starts, the groups that had a null)."""
    null = given.is_null().to_numpy(zero_copy_only=False)[batch.order]
    places = np.flatnonzero(null)
    groups = np.searchsorted(batch.starts, places, side="right") - 1
    first_kept = batch.starts[:-1].copy()
    # Places ascend, so the last null of a group is what stays.
    first_kept[groups] = places + 1
    return *_kept(batch.order, batch.starts, first_kept), np.unique(groups)


def _kept(order: Ints, starts: Ints, first_kept: Ints) -> tuple[Ints, Ints]:
    """Drop, in each group, the rows before a place of `order`; return (order, starts)."""
    keep = np.arange(order.size) >= np.repeat(first_kept, np.diff(starts))
    return order[keep], np.concatenate(([0], np.cumsum(starts[1:] - first_kept))).astype(np.int64)
