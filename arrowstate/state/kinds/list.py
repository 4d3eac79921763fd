"""List state: one row per element, sorted by key and by the order in which elements were added.

An append writes rows and reads none. `_seq` counts the elements that a backend has ever added, so that within a
key it rises with time; after a rescale the backends go on from the highest they were given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import ListStateDescriptor
from arrowstate.schema.keys import value_array
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.plain import column_of
from arrowstate.schema.types import first_null
from arrowstate.state.current_key import KeyContext
from arrowstate.state.kinds.many_rows import ManyRowsState, as_lists
from arrowstate.state.kinds.merging import MergePlan, MergingState
from arrowstate.state.pending import Pending, Write, together
from arrowstate.state.transaction import atomic
from arrowstate.table import kernels
from arrowstate.table.columns import take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import Table, gather

Ints = npt.NDArray[np.int64]


class ListState(MergingState[ListStateDescriptor], ManyRowsState[ListStateDescriptor]):
    """Keeps a list of elements per key, in the order in which they were added; equal elements are kept.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> pages = backend.state(arrowstate.ListStateDescriptor("pages", pa.string()))
    >>> pages.add_batch(["ann", "bob", "ann"], ["/", "/", "/cart"])
    >>> pages.get_batch(["ann", "eve"]).to_pylist()
    [['/', '/cart'], []]
    >>> backend.current_key = "bob"
    >>> pages.add("/help")
    >>> pages.get()
    ['/', '/help']
    """

    _plumbing = frozenset({"sequence", "unread"})

    def __init__(self, descriptor: ListStateDescriptor, layout: StateLayout, table: Table, context: KeyContext) -> None:
        super().__init__(descriptor, layout, table, context)
        self._pending = Pending(lambda write: len(write.values))
        self._next_seq = max((run.segments.highest_seq for run in table.runs), default=-1) + 1

    def begin(self) -> Any:
        return super().begin(), self._next_seq

    def go_back(self, mark: Any) -> None:
        rows, self._next_seq = mark
        super().go_back(rows)

    @atomic
    def add_batch(self, keys: Any, values: Any, *, namespace: Any = None, timestamps: Any = None) -> None:
        """Append one element per row to the list of its key, in the order of the batch.

        No stored element is read, so the cost does not grow with the lists.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        values
            One element of the state's type per row, without nulls.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.
        timestamps
            Only for a state that expires by event time: the time of each row, as Arrow timestamps or as integers in
            milliseconds since 1970. By default it is the current timestamp of the backend, else the watermark.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError, InvalidInputError
            If a key or element does not fit, or an element is null. The state is unchanged then.
        """
        self._flush()
        columns = self._context.columns(keys)
        rows = len(columns[0])
        entry = self._namespace_columns(namespace, rows)
        given = value_array(values, self.descriptor.type, rows, self.descriptor.name)
        self._refuse_nulls(given)
        updated = self._expiry.times(rows, timestamps)
        self._expiry.settle()
        self._append([*columns, *entry], given, updated)

    @atomic
    def add_all_batch(self, keys: Any, lists: Any, *, namespace: Any = None, timestamps: Any = None) -> None:
        """Append the elements of the list in each row to the list of its key; an empty list appends nothing.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        lists
            One list per row, of elements of the state's type. Neither a list nor an element may be null.
        namespace
            Only for a state with namespaces: the namespace of each row as columns, or one plain value for all rows.
        timestamps
            Only for a state that expires by event time: the time of each row of `keys`, as for `add_batch`.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError, InvalidInputError
            If a key or element does not fit, or a list or element is null. The state is unchanged then.
        """
        self._flush()
        columns = self._context.columns(keys)
        entry = self._namespace_columns(namespace, len(columns[0]))
        self._context.hashes(columns)
        rows, given = self._elements(lists, len(columns[0]))
        updated = [take(column, rows) for column in self._expiry.times(len(columns[0]), timestamps)]
        self._expiry.settle()
        self._append([take(column, rows) for column in [*columns, *entry]], given, updated)

    @atomic
    def update_batch(self, keys: Any, lists: Any, *, namespace: Any = None, timestamps: Any = None) -> None:
        """Replace the list of each key; an empty list removes all its elements.

        If a key occurs more than once, its last list counts.

        Parameters and errors are those of `add_all_batch`.
        """
        self._flush()
        batch = self._keys(keys, namespace)
        rows, given = self._elements(lists, batch.row_count)
        last = batch.last_rows()
        number_of_row = np.full(batch.row_count, -1, dtype=np.int64)
        number_of_row[last] = np.arange(len(batch))
        numbers = number_of_row[rows]
        kept = np.flatnonzero(numbers >= 0)
        timed = kept.size or timestamps is not None
        times = self._expiry.times(batch.row_count, timestamps) if timed else self._expiry.no_times(batch.row_count)
        updated = [take(column, rows[kept]) for column in times]
        self._expiry.settle()
        self._remove_all(batch)
        self._append([take(column, numbers[kept]) for column in batch.columns], take(given, kept), updated)

    @atomic
    def get_batch(self, keys: Any, *, namespace: Any = None) -> pa.ListArray:
        """Return the list of each key; empty where the key has none.

        Returns
        -------
        pa.ListArray
            One list per row of `keys`, of elements of the state's type. Neither a list nor an element is null.
        """
        self._flush()
        batch = self._keys(keys, namespace)
        rows = self._rows(batch)
        order = np.lexsort((rows.seconds, rows.numbers))
        lists = as_lists(rows.numbers, rows.values.take(pa.array(order)), len(batch))
        return lists.take(pa.array(batch.groups()))

    def unread(self, keys: KeyBatch) -> tuple[pa.ListArray, pa.ListArray | None]:
        """Return the list of each distinct key, and with a time to live the times of its elements; this is no read.

        Elements that have expired are in it.
        """
        self._flush()
        found = self._table.find_all(self._keys(keys, None))
        rows = self._rows_of(found)
        order = pa.array(np.lexsort((rows.seconds, rows.numbers)))
        lists = as_lists(rows.numbers, rows.values.take(order), len(keys))
        times = self._expiry.times_of_rows(found)
        return lists, None if times is None else as_lists(rows.numbers, times.take(order), len(keys))

    def add(self, value: Any) -> None:
        """Append one element to the list of the current key."""
        self._add([value])

    def add_all(self, values: Sequence[Any]) -> None:
        """Append all elements to the list of the current key; if one of them is null, none is appended."""
        self._add(self.sequence(values))

    @atomic
    def update(self, values: Sequence[Any]) -> None:
        """Replace the list of the current key; an empty list removes all its elements."""
        self._add(self.sequence(values), replace=True)

    @atomic
    def get(self) -> list[Any]:
        """Return the list of the current key as plain Python values; empty if it has none."""
        self._flush()
        _, keys = self._current()
        rows = self._rows(keys)
        order = np.argsort(rows.seconds, kind="stable")
        return [self._plain(value) for value in rows.values.take(pa.array(order))]

    def _apply(self, writes: Sequence[Write]) -> None:
        given = column_of([value for write in writes for value in write.values], self.descriptor.type)
        columns, updated = (together(part) for part in zip(*((w.columns, w.updated) for w in writes), strict=True))
        self._append(columns, given, updated)

    def _add(self, values: Sequence[Any], *, replace: bool = False) -> None:
        """Append elements to the list of the current key, or put them in its place, after checking all of them."""
        _, keys = self._current()
        scalars = [self._element(value) for value in values]
        rows = np.zeros(len(scalars), dtype=np.int64)
        updated = self._expiry.times(len(scalars), None)
        if replace:
            self._flush()
            self._remove_all(keys)
        if scalars:
            self._note(object(), Write([take(column, rows) for column in keys.columns], scalars, updated))

    def _element(self, value: Any) -> pa.Scalar:
        scalar = None if value is None else self._scalar(value, self.descriptor.type)
        if scalar is None or not scalar.is_valid:
            raise InvalidInputError(f"an element of list state {self.descriptor.name!r} must not be null")
        return scalar

    def sequence(self, values: Any) -> list[Any]:
        """Return the elements that a caller gave, refusing what is one value."""
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise InvalidInputError(f"list state {self.descriptor.name!r} takes a sequence of elements, got {values!r}")
        return list(values)

    def _merge(self, plan: MergePlan) -> None:
        found = self._live(plan.sources)
        schema = self.layout.schema
        numbers = np.concatenate([numbers for _, numbers, _ in found]) if found else np.empty(0, dtype=np.int64)
        columns = [gather(found, number, field.type) for number, field in enumerate(schema)]
        order = np.lexsort((columns[1].to_numpy(), plan.first_rows[numbers]))
        columns = [take(column, order) for column in columns]
        # Key and namespace of the targets take the places of those of the sources.
        moved = [take(column, plan.target_of[numbers[order]]) for column in plan.targets.columns]
        self._remove_all(plan.sources)
        hashes, order = kernels.sort_by_hash(columns[0].to_numpy())
        columns[2 : 2 + len(moved)] = moved
        rest = [take(column, order) for column in columns[2:]]
        batch = [pa.array(hashes), pa.array(order + self._next_seq), *rest]
        self._table.append(pa.RecordBatch.from_arrays(batch, schema=schema))
        self._next_seq += order.size

    def _append(self, columns: Sequence[pa.Array], values: pa.Array, updated: Sequence[pa.Array]) -> None:
        hashes = self._context.hashes(columns[: len(self.layout.key)])
        sorted_hashes, order = kernels.sort_by_hash(hashes)
        rows = [take(column, order) for column in [*columns, *self.layout.split(values), *updated]]
        arrays = [pa.array(sorted_hashes), pa.array(order + self._next_seq), *rows]
        self._table.append(pa.RecordBatch.from_arrays(arrays, schema=self.layout.schema))
        self._next_seq += order.size

    def _elements(self, lists: Any, rows: int) -> tuple[Any, pa.Array]:
        """Return (row of `keys`, element) for all elements of the lists, after checking them."""
        kind = pa.list_(self.descriptor.type)
        given = value_array(lists, kind, rows, self.descriptor.name)
        if given.null_count:
            raise InvalidInputError(
                f"a list of list state {self.descriptor.name!r} must not be null; pass an empty one"
            )
        values = given.flatten()
        lengths = pc.list_value_length(given).to_numpy(zero_copy_only=False)
        row_of = np.repeat(np.arange(rows, dtype=np.int64), lengths)
        self._refuse_nulls(values, row_of)
        return row_of, values

    def _refuse_nulls(self, values: pa.Array, row_of: Ints | None = None) -> None:
        if values.null_count:
            row = first_null(values) if row_of is None else row_of[first_null(values)]
            raise InvalidInputError(
                f"an element of list state {self.descriptor.name!r} must not be null, the one in row {row} is"
            )
