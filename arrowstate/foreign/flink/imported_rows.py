"""Rows of a keyed state of Flink, as they fill one of ours: key and namespace columns, entries, values, times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.foreign.flink.states import FlinkState
from arrowstate.schema.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.keys import check_key_schema
from arrowstate.windows.assigning import WINDOW
from arrowstate_formats.names import check_state_name

__all__ = ["TIMERS", "KeyedRows", "free_name", "name_of"]

TIMERS = re.compile(r"_timer_state/(event|processing)_(.+)")
"""What Flink calls the timers of a service, by their clock."""
_UNNAMED = re.compile(r"[^A-Za-z0-9_.-]+")
_ROW_KIND = "_row_kind"
"""What a Row says of a change; that of a key is always the same."""


class KeyedRows:
    """The rows of a keyed state, as they fill one of ours."""

    def __init__(self, state: FlinkState, key_names: Sequence[str] | None, *, raw: bool = False) -> None:
        self._state = state
        self._raw = raw
        self._given = key_names
        schema = state.schema
        key = schema.field("key").type
        fields = [item for item in key if item.name != _ROW_KIND] if pa.types.is_struct(key) else [pa.field("key", key)]
        names = [item.name for item in fields] if key_names is None else list(key_names)
        if len(names) != len(fields):
            raise InvalidInputError(
                f"the key of {state.operator!r} has {len(fields)} columns ({key}), got {len(names)} names"
            )
        self._key = check_key_schema(
            pa.schema([pa.field(name, item.type, nullable=False) for name, item in zip(names, fields, strict=True)])
        )
        self.key_names = names
        self._null_keys = self._null_values = 0
        self.has_raw = "_raw" in schema.names and not raw
        self.has_times = "_last_access" in schema.names and not raw
        self._namespace: pa.Schema | None = None
        if "window_start" in schema.names:
            self._namespace = WINDOW
        elif "namespace" in schema.names:
            self._namespace = pa.schema([pa.field("namespace", schema.field("namespace").type)])
            check_key_schema(self._namespace)

    def raw(self) -> KeyedRows:
        """Return the rows whose values could not be decoded."""
        return KeyedRows(self._state, self._given, raw=True)

    @property
    def left_out(self) -> str:
        """What was left out so far, and why."""
        told = []
        if self._null_keys:
            told.append(
                f"{self._null_keys} rows with a null in their key are left out: a key has a value in each column"
            )
        if self._null_values:
            told.append(f"{self._null_values} rows without a value are left out")
        return "; ".join(told)

    @property
    def _value_type(self) -> pa.DataType:
        return pa.binary() if self._raw else _plain_names(self._state.schema.field("value").type)

    def descriptor(self, name: str, ttl: TimeToLive | None) -> StateDescriptor:
        """Return the state that it becomes by default."""
        check_state_name(name)
        state, spaces = self._state, self._namespace
        if state.kind == "timers":
            timers = TIMERS.fullmatch(state.name)
            if timers is not None and timers[1] == "processing":
                return TimerStateDescriptor(name, "processing_time", namespace=spaces)
            return TimerStateDescriptor(name, "event_time", namespace=spaces)
        if state.kind == "map":
            user_key = state.schema.field("user_key").type
            return MapStateDescriptor(name, user_key, self._value_type, namespace=spaces, ttl=ttl)
        if state.kind == "list" and not self._raw and pa.types.is_list(self._value_type):
            return ListStateDescriptor(name, self._value_type.value_type, namespace=spaces, ttl=ttl)
        return ValueStateDescriptor(name, self._value_type, namespace=spaces, ttl=ttl)

    def with_namespace(self, given: StateDescriptor) -> StateDescriptor:
        """Return a descriptor that was asked for, in the namespaces that the rows have."""
        return replace(given, namespace=self._namespace) if given.namespace is None else given

    @property
    def schema(self) -> pa.Schema:
        """The columns of `batches`."""
        fields = [*self._key, *(self._namespace or ())]
        if self._state.kind == "map":
            fields.append(pa.field("_entry", self._state.schema.field("user_key").type))
        if self._state.kind == "timers":
            return pa.schema([*fields, pa.field("_entry", pa.int64())])
        fields.append(pa.field("_value", self._stored_type))
        if self.has_times:
            fields.append(pa.field("_updated_at", pa.int64()))
        return pa.schema(fields)

    @property
    def _stored_type(self) -> pa.DataType:
        return self._value_type.value_type if self._is_exploded else self._value_type

    @property
    def _is_exploded(self) -> bool:
        """Whether each element of a list is a row, for it has a time of its own."""
        return self.has_times and self._state.kind == "list" and pa.types.is_list(self._value_type)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Decode the rows."""
        for batch in self._state.to_batches():
            made = self._made(batch)
            if made.num_rows:
                yield made

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        key = batch.column("key")
        if not pa.types.is_struct(key.type):
            return [key]
        names = [item.name for item in key.type]
        return [column for name, column in zip(names, key.flatten(), strict=True) if name != _ROW_KIND]

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        state = self._state
        if "_raw" in batch.schema.names:
            is_raw = batch.column("_raw").is_valid()
            batch = batch.filter(is_raw if self._raw else pc.invert(is_raw))
        columns = self._key_columns(batch)
        if any(column.null_count for column in columns):
            whole = pa.array(np.logical_and.reduce([_valid(column) for column in columns]))
            self._null_keys += batch.num_rows - int(pc.sum(whole).as_py() or 0)
            batch = batch.filter(whole)
            columns = self._key_columns(batch)
        if self._namespace is not None:
            columns += [batch.column(name) for name in self._namespace.names]
        if state.kind == "map":
            columns.append(batch.column("user_key"))
        if state.kind == "timers":
            columns.append(batch.column("timestamp"))
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        value = batch.column("_raw" if self._raw else "value")
        if value.null_count and state.kind != "map":
            self._null_values += value.null_count
            return self._made(batch.filter(value.is_valid()))
        times = batch.column("_last_access") if self.has_times else None
        if self._is_exploded:
            assert times is not None
            lengths = pc.fill_null(pc.list_value_length(value), 0).to_numpy()
            rows = pa.array(np.repeat(np.arange(batch.num_rows), lengths))
            columns = [column.take(rows) for column in columns]
            value, times = value.flatten(), times.flatten()
        # Fields are told by their place; those of a column must not begin with "_".
        columns.append(value if value.type == self._stored_type else _renamed(value, self._stored_type))
        if times is not None:
            columns.append(times)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _plain_names(kind: pa.DataType) -> pa.DataType:
    """Return a struct whose fields may name columns."""
    if not pa.types.is_struct(kind):
        return kind
    names = [item.name.lstrip("_") or "field" for item in kind]
    taken: dict[str, str] = {}
    return pa.struct([item.with_name(free_name(name, taken)) for item, name in zip(kind, names, strict=True)])


def _renamed(value: pa.Array, kind: pa.DataType) -> pa.Array:
    children = [value.field(number) for number in range(kind.num_fields)]
    mask = value.is_null() if value.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def name_of(name: str) -> str:
    """Return a name as ours may be."""
    made = _UNNAMED.sub("_", name).lstrip("_.-")[:100]
    return made or "state"


def free_name(name: str, taken: dict[str, str]) -> str:
    """Return a name that differs from all before in more than case, and note it."""
    found, number = name, 2
    while found.lower() in taken:
        found, number = f"{name}_{number}", number + 1
    taken[found.lower()] = found
    return found
