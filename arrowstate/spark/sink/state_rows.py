"""The rows of a subtask as its states take them: ordered, with their operations, and grouped by key once for all.

States that tell rows apart by the same columns share one grouping, which hashes and sorts; a state that passes rows
over takes the rest of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.bootstrap.columns import milliseconds, struct_values
from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.types import is_but_for_zones
from arrowstate.spark.columns import columns_as, typed
from arrowstate.spark.sink.changelog import Changes
from arrowstate.spark.sink.ordering import Order
from arrowstate.spark.sink.plan import SinkPlan, StateInput
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.base import KeyedState
from arrowstate.state.kinds.aggregating import AggregatingState
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.map import MapState
from arrowstate.state.kinds.one_row import OneRowState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.state.kinds.value import ValueState
from arrowstate.table.key_batch import KeyBatch

__all__ = ["StateRows", "ordered"]


def ordered(plan: SinkPlan, table: pa.Table) -> pa.Table:
    """Return the rows in the order of the sequence; where it is equal, rows that are removed come first."""
    if not plan.sequence:
        return table
    columns = {}
    for number in plan.sequence:
        column = table.column(number)
        if column.null_count:
            raise InvalidInputError(
                f"sequence column {table.column_names[number]!r} is null in {column.null_count} rows, so they have no "
                "place in the order; fill it in the stream, or filter such rows out"
            )
        columns[f"sequence {number}"] = column
    if plan.operation is not None:
        rows = table.combine_chunks()
        # Of rows with one place in the order, those that were there before come before those that come.
        columns["added"] = pa.chunked_array(
            [pc.invert(_changes(plan, batch).removed).cast(pa.uint8()) for batch in rows.to_batches()], pa.uint8()
        )
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return table.take(order)


class StateRows:
    """Rows of a subtask, to be folded into its states one after the other.

    Parameters
    ----------
    plan
        Says which columns are for what.
    backend
        The state of the subtask.
    rows
        In the order in which they count.

    Raises
    ------
    InvalidInputError
        If an operation is not known, or an event time is null.
    """

    def __init__(self, plan: SinkPlan, backend: KeyedStateBackend, rows: pa.RecordBatch) -> None:
        self._backend = backend
        self._rows = rows
        self._keys = _keys(plan, rows)
        self._sequence = [rows.column(number) for number in plan.sequence]
        self._changes = None if plan.operation is None else _changes(plan, rows)
        self._grouped: dict[Any, KeyBatch] = {}
        self.timestamps: pa.Array | None = None
        """The event times in milliseconds, None where no state needs them."""
        if plan.timestamp is not None:
            self.timestamps = _times(rows.column(plan.timestamp), rows.schema.names[plan.timestamp])

    def fold(self, state: KeyedState[Any], given: StateInput, order: Order | None = None) -> None:
        """Fold the rows into a state, but for those that come late by its order."""
        descriptor = state.descriptor
        values = _values(descriptor, [self._rows.column(number) for number in given.columns])
        by_event_time = descriptor.ttl is not None and descriptor.ttl.clock == "event_time"
        timestamps = self.timestamps if by_event_time else None
        removed = None if self._changes is None else self._changes.removed
        if isinstance(state, (ValueState, MapState)):
            self._set(state, given, values, order)
            return
        # In a table a null is no value; what clears a state when it is added one by one is passed over.
        kept = values.is_valid() if values.null_count else None
        if kept is not None:
            values = values.filter(kept)
            timestamps = None if timestamps is None else timestamps.filter(kept)
        if isinstance(state, ListState):
            keys, namespace = self._keys, self._namespace(descriptor, given)
            if kept is not None:
                keys, namespace = keys.filter(kept), None if namespace is None else namespace.filter(kept)
            state.add_batch(keys, values, namespace=namespace, timestamps=timestamps)
            return
        assert isinstance(state, (ReducingState, AggregatingState))
        grouped = self._group(state, given)
        if kept is not None:
            grouped = grouped.of_rows(kept.to_numpy(zero_copy_only=False))
        if self._changes is not None:
            self._changes.check_old_values(descriptor.name, self._keys)
        retracted = removed if kept is None or removed is None else removed.filter(kept)
        state.add_batch(grouped, values, timestamps=timestamps, retracted=retracted)

    def _set(self, state: ValueState | MapState, given: StateInput, values: pa.Array, order: Order | None) -> None:
        """Let the last row of each key, or of each entry, say what is there."""
        descriptor = state.descriptor
        removed = None if self._changes is None else self._changes.removed
        namespace, timestamps, sequence = None, self.timestamps, self._sequence
        where: tuple[Any, ...]
        if isinstance(state, MapState):
            assert given.user_key is not None
            user_keys = typed(self._rows.column(given.user_key), state.descriptor.key_type, f"{descriptor.name}_key")
            where, namespace = (self._keys, user_keys), self._namespace(descriptor, given)
        else:
            where = (self._group(state, given),)
        if order is not None:
            kept = order.in_time(sequence, removed, where, namespace)
            if not kept.any():
                return
            if not kept.all():
                rows = pa.array(kept)
                where = tuple(each.of_rows(kept) if isinstance(each, KeyBatch) else each.filter(rows) for each in where)
                values, sequence = values.filter(rows), [column.filter(rows) for column in sequence]
                namespace, timestamps, removed = (
                    None if each is None else each.filter(rows) for each in (namespace, timestamps, removed)
                )
        by_event_time = descriptor.ttl is not None and descriptor.ttl.clock == "event_time"
        cleared = np.zeros(len(values), np.bool_) if removed is None else removed.to_numpy(zero_copy_only=False)
        at = timestamps if by_event_time else None
        into: Any = state
        if isinstance(state, MapState):
            into.put_batch(*where, values, namespace=namespace, timestamps=at, removed=removed)
        else:
            if cleared.any():
                values = values.take(pa.array(np.arange(len(values)), mask=cleared))
            cleared = values.is_null().to_numpy(zero_copy_only=False)
            into.update_batch(*where, values, timestamps=at)
        if order is not None:
            order.note(sequence, cleared, where, namespace, timestamps)

    def _group(self, state: OneRowState[Any], given: StateInput) -> KeyBatch:
        namespace = self._namespace(state.descriptor, given)
        types = [] if namespace is None else [str(field.type) for field in namespace.schema]
        by = (*given.namespace, *types)
        if by not in self._grouped:
            self._grouped[by] = state.key_batch(self._keys, namespace)
        return self._grouped[by]

    def _namespace(self, descriptor: StateDescriptor, given: StateInput) -> pa.RecordBatch | None:
        if descriptor.namespace is None:
            return None
        columns = [self._rows.column(number) for number in given.namespace]
        return columns_as(columns, descriptor.namespace, descriptor.name)


def _keys(plan: SinkPlan, rows: pa.RecordBatch) -> pa.RecordBatch:
    key = plan.key_schema
    columns = [
        # Timestamps come in the session's time zone; the instant, and with it the hash, is the same.
        column.cast(field.type) if column.type != field.type and is_but_for_zones(column.type, field.type) else column
        for field, column in zip(key, rows.columns, strict=False)
    ]
    return pa.RecordBatch.from_arrays(columns, names=key.names)


def _changes(plan: SinkPlan, rows: pa.RecordBatch) -> Changes:
    assert plan.operation is not None
    return Changes.of(rows.column(plan.operation), rows.schema.names[plan.operation], _keys(plan, rows))


def _times(column: pa.Array, name: str) -> pa.Array:
    if column.null_count:
        raise InvalidInputError(
            f"timestamp column {name!r} is null in {column.null_count} rows; fill it in the stream, or filter such "
            "rows out"
        )
    return milliseconds(column)


def _values(descriptor: StateDescriptor, columns: Sequence[pa.Array]) -> pa.Array:
    """The values of a state, put together from the columns that stand for them."""
    if not pa.types.is_struct(descriptor.type):
        return columns[0]
    # Timestamps come in the session's time zone; what is counted comes in a type of its own.
    columns = [
        column if pa.types.is_int8(column.type) else typed(column, field.type, f"{descriptor.name}.{field.name}")
        for field, column in zip(descriptor.type, columns, strict=True)
    ]
    return struct_values(descriptor, columns, [field.name for field in descriptor.type])
