"""Planning a fill: which columns of a table are the key and the content of each state, and what the store has.

Everything that can be refused before a row is read is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct, field

from arrowstate.bootstrap.columns import TableColumns, check_states, is_counted
from arrowstate.bootstrap.opening import Opening
from arrowstate.bootstrap.plan import FillMemory, FillPlan, StateFill
from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.layout import StateLayout
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.run_files import RunFormat

_KINDS = (
    ValueStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    TimerStateDescriptor,
)


class AskedStates(Struct, frozen=True):
    """The states that a table is to be made into, and which of its columns they are made of."""

    states: Sequence[StateDescriptor]
    overwrite: bool = False
    """Whether states of these names that the operator has are replaced."""
    accumulators: bool = False
    """Whether rows have what reducing and aggregating states store, in place of values to fold."""
    updated_at: str | Mapping[str, str] | None = None
    """The column with the time of the last update: one for all states, or one by state."""
    value_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By state, the columns with its value where they have not the names that are looked for."""
    user_keys: Mapping[str, str] = field(default_factory=dict)
    """By map or timer state, the column with the user key or the timestamp where it has another name."""

    def __post_init__(self) -> None:
        check_states(self.states, _KINDS, "a table is made into states")

    def fills(self, columns: TableColumns, key: pa.Schema) -> tuple[StateFill, ...]:
        """Find the columns of the states."""
        names = {descriptor.name for descriptor in self.states}
        by_state = {} if self.updated_at is None or isinstance(self.updated_at, str) else self.updated_at
        for name in {*by_state, *self.value_columns, *self.user_keys} - names:
            raise InvalidInputError(f"there is no state {name!r} to name columns for; there is {', '.join(names)}")
        for column in [self.updated_at] if isinstance(self.updated_at, str) else by_state.values():
            columns.name_of(column)
        return tuple(self._fill(descriptor, StateLayout.of(key, descriptor), columns) for descriptor in self.states)

    def check_free(self, operator: OperatorDocument, store: str) -> None:
        """Refuse states that are there already, unless they are to be replaced."""
        stored = {state.name.lower(): state.name for state in operator.states}
        for descriptor in self.states:
            have = stored.get(descriptor.name.lower())
            if have is not None and (not self.overwrite or have != descriptor.name):
                raise InvalidInputError(
                    f"operator {operator.uid!r} in {store} has the state {have!r} already, and rows are never added to "
                    "one that exists: overwrite it, or choose another name"
                )

    def _fill(self, descriptor: StateDescriptor, layout: StateLayout, columns: TableColumns) -> StateFill:
        """Find the columns of a state, after checking their types."""
        name = descriptor.name
        value_columns, user_key = self.value_columns.get(name), self.user_keys.get(name)
        updated = self._updated(descriptor, columns)
        entry = [_typed(columns, field.name, field.type, name) for field in layout.namespace_fields]
        if isinstance(descriptor, TimerStateDescriptor):
            entry.append(_column_of_times(columns, user_key or layout.entry_fields[-1].name))
            return StateFill(descriptor, "stored", (), tuple(entry))
        wanted = value_columns[0] if value_columns else name
        is_one = columns.has(wanted) and (not value_columns or len(value_columns) == 1)
        whole = columns.name_of(wanted) if is_one else None
        if whole is not None:
            if isinstance(descriptor, ListStateDescriptor) and columns.fits(whole, pa.list_(descriptor.type)):
                return StateFill(descriptor, "lists", (whole,), tuple(entry), updated)
            if isinstance(descriptor, MapStateDescriptor):
                kind = pa.map_(descriptor.key_type, descriptor.type)
                if columns.fits(whole, kind):
                    return StateFill(descriptor, "maps", (whole,), tuple(entry), updated)
        if isinstance(descriptor, MapStateDescriptor):
            entry.append(_user_key(descriptor, columns, user_key or f"{name}_key"))
        stored = self.accumulators and isinstance(descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor))
        form: Literal["stored", "values"] = "stored" if stored else "values"
        values = _values(descriptor, layout, columns, whole, value_columns, stored=stored)
        return StateFill(descriptor, form, values, tuple(entry), updated)

    def _updated(self, descriptor: StateDescriptor, columns: TableColumns) -> str | None:
        """Return the column with the time of the last update; None where there is none, or nothing expires."""
        given = self.updated_at
        named = given if isinstance(given, str) else (given or {}).get(descriptor.name)
        if descriptor.ttl is not None and named is not None:
            return _column_of_times(columns, named)
        if descriptor.ttl is not None and descriptor.ttl.clock == "event_time":
            raise InvalidInputError(
                f"state {descriptor.name!r} expires by event time: name the column with the time of each row as "
                "updated_at"
            )
        return None


def plan_of(
    opened: Opening,
    asked: AskedStates,
    columns: TableColumns,
    *,
    uid: str,
    key_columns: Sequence[str],
    new_id: Callable[[], str],
    now_ms: int,
    watermark: int | None = None,
    format: RunFormat = "arrow",
    memory: FillMemory,
    storage_options: Mapping[str, Any] | None = None,
) -> FillPlan:
    """Settle how a table fills states of an operator."""
    operator = opened.operator
    if operator is not None:
        asked.check_free(operator, opened.url)
        if operator.operator_states:
            count = operator.operator_states[0].part_count
            if opened.parallelism != count:
                raise InvalidInputError(
                    f"operator {uid!r} in {opened.url} has operator state of {count} subtasks, so its parallelism must "
                    f"stay, got {opened.parallelism}"
                )
    return FillPlan(
        store=opened.url,
        uid=uid,
        key=tuple(opened.key),
        key_columns=tuple(map(columns.name_of, key_columns)),
        states=asked.fills(columns, opened.key_schema),
        parallelism=opened.parallelism,
        max_parallelism=opened.max_parallelism,
        base=None if opened.checkpoint is None else opened.checkpoint.number,
        adds_to=operator is not None,
        job=new_id()[:12],
        now_ms=now_ms,
        watermark=watermark,
        format=format,
        memory=memory,
        storage_options=storage_options,
    )


def _user_key(descriptor: MapStateDescriptor, columns: TableColumns, name: str) -> str:
    if not columns.has(name):
        raise InvalidInputError(
            f"map state {descriptor.name!r} needs a column {descriptor.name!r} with a map of "
            f"{descriptor.key_type} to {descriptor.type}, or one entry a row with its user key in a column "
            f"{name!r}; the table has {columns.described()}"
        )
    return _typed(columns, name, descriptor.key_type, f"{descriptor.name}_key")


def _values(
    descriptor: StateDescriptor,
    layout: StateLayout,
    columns: TableColumns,
    whole: str | None,
    value_columns: Sequence[str] | None,
    *,
    stored: bool,
) -> tuple[str, ...]:
    """Return the columns with the values: one for each value column of the state, or one struct with all of it."""
    wanted = layout.value_type if stored else descriptor.type
    inner = columns.fields_of(whole) if whole is not None and pa.types.is_struct(wanted) else None
    if inner is not None and whole is not None:
        for item in wanted:
            if not inner.has(item.name):
                raise ValueTypeError(descriptor.name, str(wanted), columns.type_text(whole))
            _check_value(descriptor, item.name, item.type, inner, item.name, stored=stored)
        return (whole,)
    # The values of an aggregating state are not what its columns hold.
    folded = isinstance(descriptor, AggregatingStateDescriptor) and not stored
    own = StateLayout(layout.key, layout.name, wanted) if folded else layout
    names = list(value_columns) if value_columns else [item.name for item in own.value_fields]
    fields = list(wanted) if pa.types.is_struct(wanted) else [pa.field(descriptor.name, wanted)]
    if len(names) != len(fields):
        raise InvalidInputError(
            f"state {descriptor.name!r} of {wanted} needs {len(fields)} value columns, got {', '.join(names)}"
        )
    found = [columns.name_of(name) for name in names]
    for name, item in zip(found, fields, strict=True):
        _check_value(descriptor, item.name, item.type, columns, name, stored=stored)
    return tuple(found)


def _check_value(
    descriptor: StateDescriptor, name: str, kind: pa.DataType, columns: TableColumns, column: str, *, stored: bool
) -> None:
    """Refuse a column that cannot hold the values of a field of a state."""
    if not (is_counted(descriptor, name) and not stored) and not columns.fits(column, kind):
        where = f"{descriptor.name}.{name}" if name != descriptor.name else name
        raise ValueTypeError(where, str(kind), columns.type_text(column))


def _typed(columns: TableColumns, name: str, kind: pa.DataType, what: str) -> str:
    """Return the name of a column after checking its type."""
    found = columns.name_of(name)
    if not columns.fits(name, kind):
        raise ValueTypeError(what, str(kind), columns.type_text(name))
    return found


def _column_of_times(columns: TableColumns, name: str) -> str:
    found = columns.name_of(name)
    if not columns.is_time(name):
        raise InvalidInputError(
            f"column {name!r} must be a timestamp, or milliseconds in a {columns.int64_name}; it is "
            f"{columns.type_text(name)}"
        )
    return found
