"""Operator state under the statements of an edit: a list or a broadcast map as the keyed state with the same columns.

An element of a list is known by its subtask and its place there, `_seq`; an entry of a broadcast map by its key, and
every subtask has the same of them. They are small: all of a state is read, and what changed of it is written whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from arrowstate.editing.applying import put_rows
from arrowstate.editing.forms import RowsForm
from arrowstate.errors import InvalidInputError
from arrowstate.files.operator import FrozenOperatorState, OperatorStateTable, read_part, write_operator_states
from arrowstate.files.output_tables import STATE
from arrowstate.files.subtasks import whole_state
from arrowstate.schema.descriptors import ListStateDescriptor, ValueStateDescriptor
from arrowstate.schema.operator_state import (
    BroadcastStateDescriptor,
    has_column_per_field,
    keyed_layout,
    operator_descriptor_of,
    operator_state_schema,
)
from arrowstate.state.base import KeyedState
from arrowstate.state.current_key import KeyContext
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.value import ValueState
from arrowstate.storage.base import Storage
from arrowstate.table import kernels
from arrowstate.table.table import Table
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.key_groups import KeyGroupRange


class EditedOperatorState:
    """An operator state of a checkpoint, to be changed."""

    def __init__(self, storage: Storage, entry: LogEntryDocument, operator: OperatorDocument, name: str) -> None:
        document = next(state for state in operator.operator_states if state.name == name)
        self._storage = storage
        self._operator = operator
        self._table = OperatorStateTable(storage, entry, whole_state(storage, operator.uid, document))
        self._descriptor = self._table.descriptor
        self._is_map = isinstance(self._descriptor, BroadcastStateDescriptor)
        self._is_flat = has_column_per_field(self._descriptor)
        self._count = len(self._table.document.parts)
        self.form = RowsForm(
            f"{operator.uid}.{name}",
            keyed_layout(self._descriptor),
            may_hold_nulls=self._is_map or self._is_flat,
            subtasks=0 if self._is_map else self._count,
        )

    def rows(self) -> pa.Table:
        """Return the elements in the columns of the form, as they are stored; those of a map once."""
        form = self.form
        tables = []
        for number in range(1 if self._is_map else self._count):
            table = pa.Table.from_batches([self._table.part(number)])
            if not self._is_map:
                table = table.append_column(form.sequence[0], pa.array(np.arange(table.num_rows, dtype=np.int64)))
            tables.append(table.select(form.columns))
        return pa.concat_tables(tables)

    def changed(self, change: Callable[[KeyedState[Any]], None], new_id: Callable[[], str]) -> OperatorDocument:
        """Return the operator with this state as it is after a change."""
        state = self._empty()
        put_rows(state, self.form.rows(self.rows()), "insert", None)
        before = self._in_order(state)
        change(state)
        rows = self._in_order(state)
        name = self._table.document.name
        if not self._operator.key and name == STATE and not before.columns[1:3] == rows.columns[1:3]:
            raise InvalidInputError(
                f"{self.form.name} holds rows that were emitted, and readers go on from their numbers: they may be "
                "updated, and none added or deleted"
            )
        return _written(self._storage, self._operator, {name: self._parts(rows)}, new_id)

    def _empty(self) -> KeyedState[Any]:
        """Return a state of the same columns without rows, whatever their names: users' own begin with no `_`."""
        layout = self.form.layout
        context = KeyContext(
            pa.schema([field.with_name("key") for field in layout.key]), 1, KeyGroupRange(0, 0), lambda: 0
        )
        name, table, value = layout.name, Table(layout.schema, 1), pa.struct([("value", layout.value_type)])
        if self._is_map:
            return ValueState(ValueStateDescriptor(name, value), layout, table, context)
        return ListState(ListStateDescriptor(name, value), layout, table, context)

    def _in_order(self, state: KeyedState[Any]) -> pa.Table:
        """Return all rows: elements by subtask and place, entries of a map by the hash of their keys."""
        rows = pa.Table.from_batches(state.live_batches(), state.layout.schema).combine_chunks()
        if self._is_map:
            return rows.take(pa.array(kernels.sort_by_hash(rows.column(0).to_numpy())[1]))
        return rows.take(pa.array(np.lexsort([rows.column(1).to_numpy(), rows.column(2).to_numpy()])))

    def _parts(self, rows: pa.Table) -> list[FrozenOperatorState]:
        schema = operator_state_schema(self._descriptor)
        columns = [_one(column) for column in rows.columns[1 if self._is_map else 3 :]]
        if self._is_flat:
            columns = [pa.StructArray.from_arrays(columns, fields=list(schema.field(0).type))]
        whole = pa.RecordBatch.from_arrays(columns, schema=schema)
        if self._is_map:
            return [FrozenOperatorState(self._descriptor, whole)] * self._count
        cuts = np.searchsorted(rows.column(2).to_numpy(), np.arange(self._count + 1))
        return [FrozenOperatorState(self._descriptor, whole[low:high]) for low, high in pairwise(cuts)]


def with_other_names(
    storage: Storage,
    operator: OperatorDocument,
    drop: Collection[str],
    rename: Mapping[str, str],
    *,
    new_id: Callable[[], str],
) -> OperatorDocument:
    """Return an operator without some operator states, or with other names for them."""
    kept = [state for state in operator.operator_states if state.name not in drop]
    if not kept and not operator.key:
        raise InvalidInputError(f"operator {operator.uid!r} has no other state; drop_operator drops it")
    changed = {}
    for state in kept:
        if state.name in rename:
            descriptor = operator_descriptor_of(replace(state, name=rename[state.name]))
            schema = operator_state_schema(descriptor)
            parts = [read_part(storage, state, number).columns for number in range(len(state.parts))]
            changed[state.name] = [
                FrozenOperatorState(descriptor, pa.RecordBatch.from_arrays(columns, schema=schema)) for columns in parts
            ]
    return _written(storage, replace(operator, operator_states=kept), changed, new_id)


def _written(
    storage: Storage,
    operator: OperatorDocument,
    changed: Mapping[str, Sequence[FrozenOperatorState]],
    new_id: Callable[[], str],
) -> OperatorDocument:
    """Return an operator some of whose operator states have other parts, which are written."""
    written = {
        name: write_operator_states(
            storage, operator.uid, [[part] for part in parts], new_id=new_id, paths=[], previous=operator
        )
        for name, parts in changed.items()
    }
    states = [document for state in operator.operator_states for document in written.get(state.name, [state])]
    return replace(operator, operator_states=states)


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
