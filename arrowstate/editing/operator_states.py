"""Edits of operator state: lists and broadcast maps, which are small and rewritten whole.

An element of a list is known by its subtask and its place there; an entry of a broadcast map by its key, and every
subtask has the same of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from arrowstate.editing.forms import assigned
from arrowstate.errors import InvalidInputError, NullKeyError
from arrowstate.files.operator import FrozenOperatorState, read_part, write_operator_states
from arrowstate.files.output_tables import STATE
from arrowstate.files.subtasks import whole_operator
from arrowstate.query.duckdb.sql_types import SqlForm
from arrowstate.schema.operator_state import BroadcastStateDescriptor, operator_descriptor_of, operator_state_schema
from arrowstate.schema.types import first_null
from arrowstate.storage.base import Storage
from arrowstate.table import kernels
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.key_hash import hash_columns

SUBTASK = "_subtask"
PLACE = "_place"
"""Where an element is in the list of its subtask."""


class OperatorRows:
    """The elements of an operator state as a table that statements change."""

    def __init__(self, storage: Storage, operator: OperatorDocument, name: str) -> None:
        self._storage = storage
        self._operator = whole_operator(storage, operator)
        self._document = next(state for state in self._operator.operator_states if state.name == name)
        self._descriptor = operator_descriptor_of(self._document)
        stored = operator_state_schema(self._descriptor)
        kind = stored.field(-1).type
        self.is_map = isinstance(self._descriptor, BroadcastStateDescriptor)
        self._is_flat = pa.types.is_struct(kind) and not self.is_map
        self.fields: list[pa.Field] = list(kind) if self._is_flat else list(stored)
        self.name = f"{operator.uid}.{name}"

    @property
    def columns(self) -> list[str]:
        """The columns that a statement may read and write."""
        return [field.name for field in self.fields]

    @property
    def is_output(self) -> bool:
        """Whether it holds the rows that an operator emitted, whose numbers readers go on from."""
        return not self._operator.key and self._document.name == STATE

    def table(self) -> pa.Table:
        """Return the elements as SQL shows them; those of a map once."""
        parts = []
        count = 1 if self.is_map else len(self._document.parts)
        schema = pa.schema([pa.field(SUBTASK, pa.int64()), pa.field(PLACE, pa.int64()), *self.fields])
        for number in range(count):
            part = read_part(self._storage, self._document, number)
            columns = part.column(0).flatten() if self._is_flat else part.columns
            numbers = pa.array(np.full(part.num_rows, number, dtype=np.int64))
            places = pa.array(np.arange(part.num_rows, dtype=np.int64))
            parts.append(pa.RecordBatch.from_arrays([numbers, places, *columns], schema=_nullable(schema)))
        form = SqlForm(_nullable(schema))
        return pa.Table.from_batches([form(part) for part in parts], form.schema)

    def stored(self, table: pa.Table) -> pa.Table:
        """Return columns of `fields` that a statement made, in the stored types."""
        out = {}
        for field in self.fields:
            if field.name not in table.column_names:
                continue
            column = table.column(field.name).combine_chunks()
            column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
            out[field.name] = assigned(column, field.type, f"{self.name}.{field.name}")
            required = not field.nullable or (len(self.fields) == 1 and not self._is_flat)
            if required and out[field.name].null_count:
                row = first_null(out[field.name])
                if self.is_map:
                    raise NullKeyError(field.name, row)
                raise InvalidInputError(f"an element of {self.name} must not be null, that of row {row} is")
        beside = {name: table.column(name).cast(pa.int64()) for name in (SUBTASK, PLACE) if name in table.column_names}
        return pa.table({**beside, **out})

    def written(self, rows: pa.Table, *, new_id: Callable[[], str]) -> OperatorDocument:
        """Return the operator with these rows, in the columns of `table` and the stored types, in this state.

        Rows without a subtask are those of the last one; rows of a subtask are in the order of their place, and those
        without one behind them.
        """
        count = len(self._document.parts)
        subtasks = pc.fill_null(rows.column(SUBTASK), count - 1).to_numpy()
        beyond = subtasks[(subtasks < 0) | (subtasks >= count)]
        if beyond.size:
            raise InvalidInputError(f"{self.name} is of subtasks 0 to {count - 1}, got {int(beyond[0])}")
        places = pc.fill_null(rows.column(PLACE), np.iinfo(np.int64).max).to_numpy()
        parts = []
        for number in range(count):
            chosen = np.arange(rows.num_rows) if self.is_map else np.flatnonzero(subtasks == number)
            chosen = chosen[np.argsort(places[chosen], kind="stable")]
            parts.append(self._part(rows.take(pa.array(chosen))))
        others = [
            [self._untouched(state.name, number) for state in self._operator.operator_states] for number in range(count)
        ]
        frozen = [
            [
                FrozenOperatorState(self._descriptor, part) if item.descriptor.name == self._document.name else item
                for item in of_subtask
            ]
            for part, of_subtask in zip(parts, others, strict=True)
        ]
        states = write_operator_states(
            self._storage, self._operator.uid, frozen, new_id=new_id, paths=[], previous=self._operator
        )
        return replace(self._operator, operator_states=states)

    def _part(self, rows: pa.Table) -> pa.RecordBatch:
        schema = operator_state_schema(self._descriptor)
        columns = [_whole(rows.column(field.name)) for field in self.fields]
        if self._is_flat:
            columns = [pa.StructArray.from_arrays(columns, fields=list(schema.field(0).type))]
        if self.is_map:
            hashes = hash_columns(columns[:1])
            sorted_hashes, order = kernels.sort_by_hash(hashes)
            columns = [column.take(pa.array(order)) for column in columns]
            # Equal keys have equal hashes, so they are neighbours; few others are.
            for place in np.flatnonzero(sorted_hashes[1:] == sorted_hashes[:-1]):
                if columns[0][int(place)] == columns[0][int(place) + 1]:
                    raise InvalidInputError(
                        f"two rows of {self.name} have the key {columns[0][int(place)].as_py()!r}; a map has one"
                    )
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _untouched(self, name: str, number: int) -> FrozenOperatorState:
        document = next(state for state in self._operator.operator_states if state.name == name)
        return FrozenOperatorState(operator_descriptor_of(document), read_part(self._storage, document, number))


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
    named = [operator_descriptor_of(replace(state, name=rename.get(state.name, state.name))) for state in kept]
    subtasks = [
        [
            FrozenOperatorState(
                descriptor,
                pa.RecordBatch.from_arrays(
                    read_part(storage, state, number).columns, schema=operator_state_schema(descriptor)
                ),
            )
            for state, descriptor in zip(kept, named, strict=True)
        ]
        for number in range(max((len(state.parts) for state in kept), default=0))
    ]
    states = []
    if subtasks:
        states = write_operator_states(storage, operator.uid, subtasks, new_id=new_id, paths=[], previous=operator)
    return replace(operator, operator_states=states)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
