"""Reducing state: one value per key, into which each added value is folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import ProcessElementError, ValueOverflowError, ValueTypeError
from arrowstate.schema.descriptors import (
    ReducingStateDescriptor,
    StateDescriptor,
    StoredCallable,
)
from arrowstate.schema.keys import value_array
from arrowstate.schema.plain import column_of
from arrowstate.schema.types import CONVERSION_ERRORS, as_arrow, numpy_array
from arrowstate.state.folds.reducers import may_fold_in_parts, reduce_by_callable, reduce_column, reduce_scalar
from arrowstate.state.folds.retraction import amounts, check_retractable, row_flags, without_empty
from arrowstate.state.kinds.merging import MergePlan, MergingState
from arrowstate.state.kinds.one_row import LOWEST, OneRowState, after_last_null
from arrowstate.state.transaction import atomic
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import Found

Ints = npt.NDArray[np.int64]


class ReducingState(MergingState[ReducingStateDescriptor], OneRowState[ReducingStateDescriptor]):
    """Keeps one value per key, and folds each added value into it.

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

    _plumbing = frozenset({"add_partials_batch", "partials_of"})

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
        """Fold each value into the value of its key, in the order of the batch.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        values
            One value of the state's type per row; `count` takes values of any type. A null removes the value of its
            key, and later values of that key start anew. A state with a reducer per field skips a null field.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.
        timestamps
            Only for a state that expires by event time: the time of each row, as Arrow timestamps or as integers in
            milliseconds since 1970. By default it is the current timestamp of the backend, else the watermark.
        retracted
            Only for sums and counts: a boolean per row, without nulls. Where it is true, the value is subtracted
            instead of added. If the state has a count, a key is removed when all its counts and sums are back at zero.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError
            If a key or value does not fit. The state is unchanged then.
        InvalidInputError
            If a reducer cannot subtract values. The state is unchanged then.
        ValueOverflowError
            If a sum does not fit the type. The state is unchanged then.
        ProcessElementError
            If a reducer that is a Python callable raises. The state is unchanged then.
        StorageFullError
            If the disk has no room for spilled runs. The state is unchanged then.
        """
        self._flush()
        batch = self._keys(keys, namespace)
        rows = batch.row_count
        given = self._given(values, rows)
        if retracted is not None:
            check_retractable(self.descriptor)
            flags = row_flags(retracted, rows, self.descriptor.name, "retracted")
            given = amounts(self.descriptor, given, flags)
        updated = self._expiry.times_of_values(given, timestamps)
        self._expiry.settle()
        found = left = self._expiry.find(batch)
        order, starts, cleared = batch.order, batch.starts, None
        if given.null_count:
            order, starts, cleared = after_last_null(given, batch)
            left = found.without(cleared)
        late = self._expiry.late(updated) if updated else None
        if late is not None:
            left, order, starts = self._without_expired(left, order, starts, late)
        # What a count is given with retractions are amounts, as it is in a plan.
        values, anew = self._reduce(
            self._read(left), given, order, starts, cleared, merging=retracted is not None, late=late
        )
        if retracted is not None:
            values = without_empty(self.descriptor, values)
        if updated:
            updated = self._latest(_without(left, anew), self._youngest(updated, order, starts, anew))
        self._replace(found, batch, values, updated)

    def partials_of(self, values: Any, batch: KeyBatch) -> pa.Array | None:
        """Return what the values of each group of rows fold into, for `add_partials_batch`.

        Returns None where adding that may differ from adding each value: where the order of values counts, and where
        a sum leaves its type, which together with what a key has, or without rows that come too late, it may not.
        """
        given, descriptor = self._given(values, batch.row_count), self.descriptor
        if isinstance(descriptor.reduce, str):
            folds = [(descriptor.reduce, given)]
        elif isinstance(descriptor.reduce, Mapping):
            names = [field.name for field in descriptor.type]
            folds = [(descriptor.reduce[name], column) for name, column in zip(names, given.flatten(), strict=True)]
        else:
            return None
        if not all(may_fold_in_parts(reduce, column) for reduce, column in folds):
            return None
        old = pa.nulls(len(batch), descriptor.type)
        try:
            return self._reduce(old, given, batch.order, batch.starts, None)[0]
        except ValueOverflowError:
            return None

    @atomic
    def add_partials_batch(self, keys: Any, partials: pa.Array, *, namespace: Any) -> None:
        """Add what `partials_of` returned for rows of these keys."""
        self._flush()
        batch = self._keys(keys, namespace)
        self._expiry.settle()
        found = self._expiry.find(batch)
        values, _ = self._reduce(self._read(found), partials, batch.order, batch.starts, None, merging=True)
        self._replace(found, batch, values, [])

    def _merge(self, plan: MergePlan) -> None:
        away, old = self._table.find(plan.sources), self._table.find(plan.targets)
        fresh, into = self._expiry.unexpired(away), self._expiry.unexpired(old)
        order = np.lexsort((plan.first_rows, plan.target_of))
        starts = np.searchsorted(plan.target_of[order], np.arange(len(plan.targets) + 1))
        try:
            values, anew = self._reduce(self._read(into), self._read(fresh), order, starts, None, merging=True)
        except ProcessElementError as error:
            # What was folded were the sources, and the caller knows them by the row where each came first.
            raise ProcessElementError(int(plan.first_rows[error.row]), error.detail) from error.__cause__
        # A callable may return None; a target that neither had nor got a value has none either.
        written = values.is_valid().to_numpy(zero_copy_only=False)
        nothing = np.zeros(len(plan.targets), dtype=np.bool_)
        nothing[into.absent] = True
        present = np.ones(len(plan.sources), dtype=np.bool_)
        present[fresh.absent] = False
        nothing[plan.target_of[present]] = False
        updated = []
        if self.descriptor.ttl is not None:
            youngest = self._youngest([self._expiry.times_of(fresh).fill_null(LOWEST)], order, starts, anew)
            updated = self._expiry.youngest(_without(into, anew), youngest)
        columns = [*self.layout.split(values), *updated]
        self._table.put(old, plan.targets, columns, keep=np.flatnonzero(written & ~nothing))
        self._table.remove(away)

    def _latest(self, found: Found, updated: list[pa.Array]) -> list[pa.Array]:
        return self._expiry.written(found, updated)

    def _given(self, values: Any, rows: int) -> pa.Array:
        descriptor, values = self.descriptor, countable(self.descriptor, values)
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

    def _reduce(
        self,
        old: pa.Array,
        given: pa.Array,
        order: Ints,
        starts: Ints,
        cleared: Ints | None,
        *,
        merging: bool = False,
        late: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[pa.Array, dict[int, int]]:
        """Fold values, or where `merging` results of the same reducers, into the old values.

        `cleared` are the groups that a null has removed. The second result says from where on groups started anew, and
        `late` of which rows that may be, as in `reduce_by_callable`.
        """
        descriptor = self.descriptor
        where = descriptor.name
        if not isinstance(descriptor.reduce, (str, Mapping)):
            if isinstance(descriptor.reduce, StoredCallable):
                descriptor.reduce(None, None)
            return reduce_by_callable(descriptor.reduce, given, order, starts, old, where, late)
        if isinstance(descriptor.reduce, str):
            # A struct reduces as a whole only by first and last.
            reduce = _merged(descriptor.reduce) if merging else descriptor.reduce
            new = reduce_column(reduce, given, order, starts, old, descriptor.type, where)
            if cleared is not None and descriptor.reduce == "count":
                empty = np.diff(starts) == 0
                gone = empty & np.isin(np.arange(len(new)), cleared)
                return new.take(pa.array(np.arange(len(new)), mask=gone)), {}
            return new, {}
        given_fields, old_fields = given.flatten(), old.flatten()
        fields = [
            reduce_column(
                _merged(descriptor.reduce[field.name]) if merging else descriptor.reduce[field.name],
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
        mask = pa.array(gone) if gone.any() else None
        return pa.StructArray.from_arrays(fields, fields=list(descriptor.type), mask=mask), {}

    @atomic
    def add(self, value: Any) -> None:
        """Fold one value into the current key's; None clears it."""
        if value is None:
            self._write_current(None)
            return
        descriptor = self.descriptor
        old = self._read_current()
        if isinstance(descriptor.reduce, str):
            new = self._add_one(descriptor.reduce, old, value, descriptor.type, descriptor.name)
        elif not isinstance(descriptor.reduce, Mapping):
            given = self._scalar(value, descriptor.type)
            called = given if old is None else descriptor.reduce(self._plain(old), self._plain(given))
            new = called if called is given or called is None else self._scalar(called, descriptor.type)
        else:
            if not isinstance(value, Mapping) or not set(value) <= set(descriptor.reduce):
                raise ValueTypeError(descriptor.name, f"a mapping of {', '.join(descriptor.reduce)}", repr(value))
            parts = [
                self._add_one(
                    descriptor.reduce[field.name],
                    None if old is None or not old[field.name].is_valid else old[field.name],
                    value.get(field.name),
                    field.type,
                    f"{descriptor.name}.{field.name}",
                )
                for field in descriptor.type
            ]
            columns = [column_of([part], field.type) for part, field in zip(parts, descriptor.type, strict=True)]
            new = pa.StructArray.from_arrays(columns, fields=list(descriptor.type))[0]
        self._write_current(new)

    def _add_one(
        self, reduce: str, old: pa.Scalar | None, value: Any, kind: pa.DataType, where: str
    ) -> pa.Scalar | None:
        """Fold one plain value into an old one; None is passed over."""
        if reduce == "count":
            return pa.scalar((0 if old is None else old.as_py()) + (value is not None), kind)
        return old if value is None else reduce_scalar(reduce, old, self._scalar(value, kind), where)

    @atomic
    def get(self) -> Any:
        """Return the value of the current key as a plain Python value, None if it has none."""
        return self._plain(self._read_current())


def countable(descriptor: StateDescriptor, values: Any) -> Any:
    """Return values as a state takes them that counts values of any type: those of Python's own of Arrow or as ones."""
    reduce = descriptor.reduce if isinstance(descriptor, ReducingStateDescriptor) else None
    if reduce != "count" and not isinstance(reduce, Mapping):
        return values
    values = as_arrow(values)
    if isinstance(values, np.ndarray) and values.dtype != np.dtype(object):
        return numpy_array(values) if reduce == "count" else values
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, (str, bytes)):
        return values
    if isinstance(reduce, str):
        try:
            return pa.array(values)
        except CONVERSION_ERRORS:  # Values of several types.
            return [None if value is None else 1 for value in values]
    counted = [name for name, one in reduce.items() if one == "count"]
    return [_with_ones(value, counted) if isinstance(value, Mapping) else value for value in values]


def _with_ones(value: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {**value, **{name: 1 for name in names if value.get(name) is not None}}


def _without(found: Found, groups: Mapping[int, int]) -> Found:
    return found.without(np.array(list(groups), dtype=np.int64)) if groups else found


def _merged(reduce: str) -> str:
    """Return the reducer that folds results of a reducer."""
    return "sum" if reduce == "count" else reduce


def _fields(values: pa.RecordBatch | pa.StructArray) -> list[pa.Field]:
    return list(values.schema) if isinstance(values, pa.RecordBatch) else list(values.type)
