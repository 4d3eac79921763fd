"""Aggregating state: an accumulator per key, kept in columns, from which each read computes a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import ValueTypeError
from arrowstate.schema.descriptors import AggregatingStateDescriptor
from arrowstate.schema.keys import value_array
from arrowstate.schema.plain import column_of
from arrowstate.state.folds.aggregates import aggregate_of
from arrowstate.state.folds.aggregates.numbers import MeanAggregate
from arrowstate.state.folds.retraction import check_retractable, row_flags
from arrowstate.state.kinds.merging import MergePlan, MergingState
from arrowstate.state.kinds.one_row import OneRowState, after_last_null, of_rows
from arrowstate.state.transaction import atomic
from arrowstate.table.table import Found

Ints = npt.NDArray[np.int64]


class AggregatingState(MergingState[AggregatingStateDescriptor], OneRowState[AggregatingStateDescriptor]):
    """Keeps an accumulator per key, adds values to it, and computes the result from it at each read.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> delay = backend.state(arrowstate.AggregatingStateDescriptor("delay", pa.int64(), aggregate="mean"))
    >>> delay.add_batch(pa.array(["ann", "bob", "ann"]), pa.array([1, 1, 4]))
    >>> delay.get_batch(pa.array(["bob", "ann", "eve"])).to_pylist()
    [1.0, 2.5, None]
    >>> backend.current_key = "bob"
    >>> delay.add(2)
    >>> delay.get()
    1.5
    """

    _plumbing = frozenset({"accumulators_batch", "added", "merged", "results"})

    @atomic
    def add_batch(
        self,
        keys: Any,
        values: Any,
        *,
        namespace: Any = None,
        timestamps: Any = None,
        retracted: Any = None,
    ) -> None:
        """Add each value to its key's accumulator, in the order of the batch.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        values
            One value of the state's type per row. A null removes the accumulator of its key, and later values of that
            key start anew.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.
        timestamps
            Only for a state that expires by event time: the time of each row, as Arrow timestamps or as integers in
            milliseconds since 1970. By default it is the current timestamp of the backend, else the watermark.
        retracted
            Only for a mean: a boolean per row, without nulls. Where it is true, the value is taken out instead of
            added. A key is removed when all its values are taken out. Sums are float64: whole numbers up to 2^53 are
            taken out exactly, an infinity or NaN cannot be taken out.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError
            If a key or value does not fit. The state is unchanged then, and also if the aggregate raises.
        InvalidInputError
            If the aggregate cannot take values out. The state is unchanged then.
        StorageFullError
            If the disk has no room for spilled runs. The state is unchanged then.
        """
        self._flush()
        batch = self._keys(keys, namespace)
        given = value_array(values, self.descriptor.type, batch.row_count, self.descriptor.name)
        flags = None
        if retracted is not None:
            check_retractable(self.descriptor)
            flags = row_flags(retracted, batch.row_count, self.descriptor.name, "retracted")
        updated = self._expiry.times_of_values(given, timestamps)
        self._expiry.settle()
        found = left = self._expiry.find(batch)
        order, starts = batch.order, batch.starts
        if given.null_count:
            order, starts, cleared = after_last_null(given, batch)
            left = found.without(cleared)
        late = self._expiry.late(updated) if updated else None
        if late is not None:
            left, order, starts = self._without_expired(left, order, starts, late)
        rows = pa.array(order)
        flags = None if flags is None else flags.take(rows)
        accumulators = self.added(self._read(left), given.take(rows), np.diff(starts), flags)
        times = self._latest(left, self._youngest(updated, order, starts))
        self._replace(found, batch, accumulators, times)

    def _answers(self, values: pa.Array) -> pa.Array:
        return self.results(values)

    @atomic
    def accumulators_batch(self, keys: Any, *, namespace: Any = None) -> pa.StructArray:
        """Return what is stored for each key: its accumulator, null where the key has none."""
        batch, accumulators = self._stored(keys, namespace)
        return of_rows(accumulators, batch)

    @atomic
    def add(self, value: Any) -> None:
        """Add one value to the accumulator of the current key; None removes the accumulator."""
        if value is None:
            self._write_current(None)
            return
        kind = self.descriptor.type
        given = column_of([self._scalar(value, kind)], kind)
        stored = column_of([self._read_current()], self.layout.value_type)
        self._write_current(self.added(stored, given, np.ones(1, dtype=np.int64))[0])

    @atomic
    def get(self) -> Any:
        """Return the result of the current key as a plain Python value, None if it has no values."""
        stored = self._read_current()
        if stored is None:
            return None
        return self._plain(self.results(column_of([stored], self.layout.value_type))[0])

    def _merge(self, plan: MergePlan) -> None:
        away, old = self._table.find(plan.sources), self._table.find(plan.targets)
        fresh, into = self._expiry.unexpired(away), self._expiry.unexpired(old)
        present = np.setdiff1d(np.arange(len(plan.sources)), fresh.absent)
        present = present[np.lexsort((plan.first_rows[present], plan.target_of[present]))]
        target_of = plan.target_of[present]
        merged, given = self._read(into), self._read(fresh).take(pa.array(present))
        # The first source of every target, then the second, and so on.
        turn = np.arange(target_of.size) - np.searchsorted(target_of, target_of)
        for number in range(int(turn.max(initial=-1)) + 1):
            rows = np.flatnonzero(turn == number)
            merged = self.merged(merged, target_of[rows], given.take(pa.array(rows)))
        updated = []
        if self.descriptor.ttl is not None:
            lowest = np.iinfo(np.int64).min
            times = self._expiry.times_of(into).fill_null(lowest).to_numpy().copy()
            np.maximum.at(times, plan.target_of, self._expiry.times_of(fresh).fill_null(lowest).to_numpy())
            updated.append(pa.array(times))
        self._replace(old, plan.targets, merged, updated)
        self._table.remove(away)

    def merged(self, accumulators: pa.StructArray, numbers: Ints, others: pa.StructArray) -> pa.StructArray:
        """Return the accumulators with others merged into those with these numbers."""
        aggregate = aggregate_of(self.descriptor.declared, self.descriptor.type)
        have = accumulators.take(pa.array(numbers))
        both = np.flatnonzero(have.is_valid().to_numpy(zero_copy_only=False))
        if both.size:
            rows = pa.array(both)
            merged = self._checked(aggregate.merge(have.take(rows), others.take(rows)), both.size, "merge")
            others = _put(others, both, merged)
        return _put(accumulators, numbers, others)

    def added(
        self, old: pa.StructArray, values: pa.Array, counts: Ints, retracted: pa.BooleanArray | None = None
    ) -> pa.StructArray:
        """Return one accumulator per key with its values added or taken back; where a key gets none, what it had."""
        aggregate = aggregate_of(self.descriptor.declared, self.descriptor.type)
        touched = np.flatnonzero(counts)
        if not touched.size:
            return old
        accumulators = old if touched.size == len(old) else old.take(pa.array(touched))
        fresh = np.flatnonzero(accumulators.is_null().to_numpy(zero_copy_only=False))
        if fresh.size:
            created = self._checked(aggregate.create(fresh.size), fresh.size, "create")
            accumulators = _put(accumulators, fresh, created)
        groups = pa.array(np.repeat(np.arange(touched.size, dtype=np.int64), counts[touched]))
        if retracted is None:
            added = self._checked(aggregate.add(accumulators, groups, values), touched.size, "add")
        else:
            assert isinstance(aggregate, MeanAggregate), "no other takes values back"
            added = aggregate.with_amounts(accumulators, groups, values, retracted)
        return added if touched.size == len(old) else _put(old, touched, added)

    def results(self, accumulators: pa.StructArray) -> pa.Array:
        """Return what a read computes from accumulators, one a row; null where there is none."""
        aggregate = aggregate_of(self.descriptor.declared, self.descriptor.type)
        present = np.flatnonzero(accumulators.is_valid().to_numpy(zero_copy_only=False))
        chosen = accumulators if present.size == len(accumulators) else accumulators.take(pa.array(present))
        results = aggregate.result(chosen)
        kind = self.descriptor.result_type
        if not isinstance(results, pa.Array) or results.type != kind or len(results) != present.size:
            raise self._misfit("result", results, f"{present.size} of {kind}")
        if present.size == len(accumulators):
            return results
        return _put(pa.nulls(len(accumulators), kind), present, results)

    def _checked(self, given: Any, count: int, verb: str) -> pa.StructArray:
        """Return what an aggregate returned as the accumulators to store, after looking at it."""
        kind = self.layout.value_type
        if not isinstance(given, pa.StructArray) or given.type != kind or len(given) != count or given.null_count:
            raise self._misfit(verb, given, f"{count} of {kind} without nulls")
        return given

    def _misfit(self, verb: str, given: Any, expected: str) -> ValueTypeError:
        shown = f"{len(given)} of {given.type}" if isinstance(given, pa.Array) else type(given).__name__
        name = self.descriptor.declared.name
        return ValueTypeError(self.descriptor.name, expected, f"{shown} from {verb} of aggregate {name!r}")

    def _latest(self, found: Found, updated: list[pa.Array]) -> list[pa.Array]:
        return self._expiry.written(found, updated)


def _put(column: pa.Array, numbers: Ints, values: pa.Array) -> pa.Array:
    """Return the column with other values at these numbers."""
    rows = np.arange(len(column), dtype=np.int64)
    rows[numbers] = len(column) + np.arange(numbers.size)
    return pa.concat_arrays([column, values]).take(pa.array(rows))
