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
from arrowstate.foreign.flink.sessions import Sessions, sessions_of
from arrowstate.foreign.flink.states import FlinkState
from arrowstate.functions.windows.assigning import WINDOW
from arrowstate.schema.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.keys import check_key_schema
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.names import check_state_name

TIMERS = re.compile(r"_timer_state/(event|processing)_(.+)")
"""What Flink calls the timers of a service, by their clock."""
_UNNAMED = re.compile(r"[^A-Za-z0-9_.-]+")
_ROW_KIND = "_row_kind"
"""What a Row says of a change; that of a key is always the same."""


class KeyedRows:
    """The rows of a keyed state, as they fill one of ours."""

    def __init__(
        self,
        state: FlinkState,
        key_names: Sequence[str] | None,
        beside: Sequence[FlinkState] = (),
        *,
        raw: bool = False,
    ) -> None:
        self._state = state
        self._raw = raw
        self._wrapped = ""
        self._given = key_names
        self._beside = beside
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
        self._unknown_keys = self._null_keys = self._null_values = self._ended = 0
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
        return KeyedRows(self._state, self._given, self._beside, raw=True)

    @property
    def has_windows(self) -> bool:
        """Whether it holds something of windows of time; timers have the windows that they fire."""
        return self._namespace is WINDOW and self._state.kind != "timers"

    @cached_property
    def sessions(self) -> Sessions | None:
        """What the windows have become, if they merge."""
        if not self.has_windows:
            return None
        return sessions_of(self._beside, self._state.name, self._key_columns)

    @property
    def left_out(self) -> str:
        """What was left out so far, and why."""
        told = []
        if self._unknown_keys:
            classes = f" of {', '.join(self._state.opaque)}" if self._state.opaque else ""
            told.append(
                f"{self._unknown_keys} rows are left out: each is the bytes of entries{classes} that cannot be told "
                "apart, so their keys are not known; take a canonical savepoint, which has lengths"
            )
        if self._null_keys:
            told.append(
                f"{self._null_keys} rows with a null in their key are left out: a key has a value in each column"
            )
        if self._null_values:
            told.append(f"{self._null_values} rows without a value are left out")
        if self._ended and self.sessions is not None:
            told.append(f"{self._ended} rows are left out: their windows are of no session in {self.sessions.name!r}")
        return "; ".join(told)

    @property
    def _value_type(self) -> pa.DataType:
        kind = pa.binary() if self._raw else _plain_names(self._state.schema.field("value").type)
        return pa.struct([(self._wrapped, kind)]) if self._wrapped else kind

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
            if pa.types.is_struct(self._value_type) and self._has_null_values():
                self._wrapped = name
            return MapStateDescriptor(name, user_key, self._value_type, namespace=spaces, ttl=ttl)
        if state.kind == "list" and not self._raw and pa.types.is_list(self._value_type):
            return ListStateDescriptor(name, self._value_type.value_type, namespace=spaces, ttl=ttl)
        return ValueStateDescriptor(name, self._value_type, namespace=spaces, ttl=ttl)

    @property
    def is_wrapped(self) -> bool:
        """Whether a struct is one column, which can be null; of others its fields are columns."""
        return bool(self._wrapped)

    def _has_null_values(self) -> bool:
        return any(
            batch.column("value").filter(batch.column("key").is_valid()).null_count
            for batch in map(self._asked_for, self._state.to_batches())
        )

    def with_namespace(self, given: StateDescriptor) -> StateDescriptor:
        """Return a descriptor that was asked for, in the namespaces that the rows have."""
        kind = given.type if isinstance(given, MapStateDescriptor) and self._state.kind == "map" else None
        if kind is not None and kind.num_fields == 1 and pa.types.is_struct(kind) and not self._raw:
            inner = kind.field(0)
            self._wrapped = inner.name if inner.type == self._value_type else ""
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
        batch = self._with_keys(batch)
        value = None if state.kind == "timers" else batch.column("_raw" if self._raw else "value")
        if value is not None and value.null_count and state.kind != "map":
            self._null_values += value.null_count
            batch = batch.filter(value.is_valid())
            value = value.drop_null()
        columns = self._key_columns(batch)
        if self._namespace is not None:
            spaces = [batch.column(name) for name in self._namespace.names]
            if self.sessions is not None:
                spaces = list(self.sessions.of(columns, *spaces))
                if spaces[0].null_count:
                    # Flink finds contents by their session alone, so nothing would ever come of these.
                    self._ended += spaces[0].null_count
                    return self._made(batch.filter(spaces[0].is_valid()))
            columns += spaces
        if state.kind == "map":
            columns.append(batch.column("user_key"))
        if value is None:
            columns.append(batch.column("timestamp"))
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        times = batch.column("_last_access") if self.has_times else None
        if self._is_exploded:
            assert times is not None
            lengths = pc.fill_null(pc.list_value_length(value), 0).to_numpy()
            rows = pa.array(np.repeat(np.arange(batch.num_rows), lengths))
            columns = [column.take(rows) for column in columns]
            value, times = value.flatten(), times.flatten()
        if state.kind == "map" and value.null_count and pa.types.is_struct(value.type) and not self._wrapped:
            raise InvalidInputError(
                f"{value.null_count} values of the map {state.name!r} are null, and a struct whose fields are columns "
                f"cannot be; declare its values as a struct with this struct as its one field: "
                f"pa.struct([({state.name!r}, {value.type})])"
            )
        # Fields are told by their place; those of a column must not begin with "_".
        if self._wrapped:
            inner = self._stored_type.field(0)
            value = value if value.type == inner.type else _renamed(value, inner.type)
            value = pa.StructArray.from_arrays([value], fields=[inner])
        columns.append(value if value.type == self._stored_type else _renamed(value, self._stored_type))
        if times is not None:
            columns.append(times)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _asked_for(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose values were decoded, or those whose values were not."""
        if "_raw" not in batch.schema.names:
            return batch
        is_raw = batch.column("_raw").is_valid()
        return batch.filter(is_raw if self._raw else pc.invert(is_raw))

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are asked for and have a key; the others are counted."""
        batch = self._asked_for(batch)
        key = batch.column("key")
        if key.null_count:
            # A key of Flink is never null: these are the entries of a heap that nothing tells apart.
            self._unknown_keys += key.null_count
            batch = batch.filter(key.is_valid())
        columns = self._key_columns(batch)
        if any(column.null_count for column in columns):
            whole = pa.array(np.logical_and.reduce([_valid(column) for column in columns]))
            self._null_keys += batch.num_rows - int(pc.sum(whole).as_py() or 0)
            batch = batch.filter(whole)
        return batch


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
