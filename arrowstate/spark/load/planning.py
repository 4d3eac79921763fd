"""Planning a fill: which columns of a table are the key and the content of each state, and what the store has.

Everything that can be refused before a job runs is refused here. FrameColumns are found by name, as Spark finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from arrowstate.clock import new_id, now_ms
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
from arrowstate.spark.columns import FrameColumns, check_states, is_counted
from arrowstate.spark.load.filling import FillPlan, StateFill
from arrowstate.spark.memory import TaskMemory
from arrowstate.spark.opening import Asked
from arrowstate.spark.schemas import arrow_type, spark_type, widens
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["plan_fill"]

_KINDS = (
    ValueStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    TimerStateDescriptor,
)


def plan_fill(
    columns: FrameColumns,
    *,
    store: str | Path,
    uid: str,
    key: Sequence[str],
    states: Sequence[StateDescriptor],
    parallelism: int | None,
    max_parallelism: int | None,
    overwrite: bool,
    accumulators: bool = False,
    updated_at: str | Mapping[str, str] | None = None,
    value_columns: Mapping[str, Sequence[str]] | None = None,
    user_keys: Mapping[str, str] | None = None,
    format: RunFormat = "arrow",
    memory_budget_bytes: int | None = None,
    watermark: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FillPlan:
    """Settle how a table fills states of an operator.

    Parameters
    ----------
    columns
        Those of the table.
    parallelism
        The number of subtasks; by default that of the operator in the store, and 1 where there is none.
    updated_at
        One column for all states, or one by state.
    value_columns, user_keys
        By state, the columns to use where the names that `bootstrap` looks for are not those of the table.

    The others are those of `arrowstate.spark.bootstrap`.

    Raises
    ------
    InvalidInputError, KeyTypeError, ValueTypeError, UnsupportedStorageError
        As `bootstrap` says.
    """
    asked = Asked.of(
        columns,
        store=store,
        uid=uid,
        key=key,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        optional=True,
    )
    check_states(states, _KINDS, "a table is made into states")

    def fills(key_schema: pa.Schema) -> tuple[StateFill, ...]:
        return tuple(
            _state_fill(
                descriptor,
                StateLayout.of(key_schema, descriptor),
                columns,
                accumulators=accumulators,
                updated_at=updated_at if isinstance(updated_at, str) else (updated_at or {}).get(descriptor.name),
                value_columns=(value_columns or {}).get(descriptor.name),
                user_key=(user_keys or {}).get(descriptor.name),
            )
            for descriptor in states
        )

    # What does not depend on the store is refused before one is made.
    fills(asked.key)
    opened = asked.open(storage_options)
    operator = opened.operator
    if operator is not None:
        _check_free(operator, states, opened.url, overwrite=overwrite)
    if operator is not None and operator.operator_states:
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
        key_columns=tuple(map(columns.name_of, key)),
        states=fills(opened.key_schema),
        parallelism=opened.parallelism,
        max_parallelism=opened.max_parallelism,
        base=None if opened.checkpoint is None else opened.checkpoint.number,
        adds_to=operator is not None,
        job=new_id()[:12],
        now_ms=now_ms(),
        watermark=watermark,
        format=format,
        memory=TaskMemory(memory_budget_bytes),
        storage_options=storage_options,
    )


def _check_free(operator: OperatorDocument, states: Iterable[StateDescriptor], store: str, *, overwrite: bool) -> None:
    """Refuse states that are there already, unless they are to be replaced."""
    stored = {state.name.lower(): state.name for state in operator.states}
    for descriptor in states:
        have = stored.get(descriptor.name.lower())
        if have is not None and (not overwrite or have != descriptor.name):
            raise InvalidInputError(
                f"operator {operator.uid!r} in {store} has the state {have!r} already, and rows are never added to one "
                "that exists: overwrite it, or choose another name"
            )


def _state_fill(
    descriptor: StateDescriptor,
    layout: StateLayout,
    columns: FrameColumns,
    *,
    accumulators: bool,
    updated_at: str | None,
    value_columns: Sequence[str] | None,
    user_key: str | None,
) -> StateFill:
    """Find the columns of a state, after checking their types."""
    updated = None
    if descriptor.ttl is not None and updated_at is not None:
        updated = _column_of_times(columns, updated_at)
    elif descriptor.ttl is not None and descriptor.ttl.clock == "event_time":
        raise InvalidInputError(
            f"state {descriptor.name!r} expires by event time: name the column with the time of each row as updated_at"
        )
    entry = [_typed(columns, field.name, field.type, descriptor.name) for field in layout.namespace_fields]
    if isinstance(descriptor, TimerStateDescriptor):
        entry.append(_column_of_times(columns, user_key or layout.entry_fields[-1].name))
        return StateFill(descriptor, "stored", (), tuple(entry))
    field = columns.find(value_columns[0] if value_columns else descriptor.name)
    whole = None if field is None else field.name
    kind = None if whole is None or (value_columns and len(value_columns) > 1) else columns.type_of(whole)
    if kind is not None and whole is not None:
        if isinstance(descriptor, ListStateDescriptor) and _fits(kind, pa.list_(descriptor.type)):
            return StateFill(descriptor, "lists", (whole,), tuple(entry), updated)
        if isinstance(descriptor, MapStateDescriptor) and _fits(kind, pa.map_(descriptor.key_type, descriptor.type)):
            return StateFill(descriptor, "maps", (whole,), tuple(entry), updated)
    if isinstance(descriptor, MapStateDescriptor):
        name = user_key or f"{descriptor.name}_key"
        if columns.find(name) is None:
            has = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns.schema)
            raise InvalidInputError(
                f"map state {descriptor.name!r} needs a column {descriptor.name!r} with a map of "
                f"{descriptor.key_type} to {descriptor.type}, or one entry a row with its user key in a column "
                f"{name!r}; the table has {has}"
            )
        entry.append(_typed(columns, name, descriptor.key_type, f"{descriptor.name}_key"))
    stored = accumulators and isinstance(descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor))
    form: Literal["stored", "values"] = "stored" if stored else "values"
    wanted = layout.value_type if stored else descriptor.type
    if kind is not None and whole is not None and pa.types.is_struct(wanted) and kind.typeName() == "struct":
        values = [whole]
        inner = FrameColumns(kind, case_sensitive=True)  # type: ignore[arg-type]
        for field in wanted:
            if field.name not in inner.schema.names:
                raise ValueTypeError(descriptor.name, str(wanted), kind.simpleString())
            _check_value(descriptor, field.name, field.type, inner.type_of(field.name), stored=stored)
    else:
        # The values of an aggregating state are not what its columns hold.
        folded = isinstance(descriptor, AggregatingStateDescriptor) and not stored
        own = StateLayout(layout.key, layout.name, wanted) if folded else layout
        names = list(value_columns) if value_columns else [field.name for field in own.value_fields]
        fields = list(wanted) if pa.types.is_struct(wanted) else [pa.field(descriptor.name, wanted)]
        if len(names) != len(fields):
            raise InvalidInputError(
                f"state {descriptor.name!r} of {wanted} needs {len(fields)} value columns, got {', '.join(names)}"
            )
        values = [columns.name_of(name) for name in names]
        for name, field in zip(values, fields, strict=True):
            _check_value(descriptor, field.name, field.type, columns.type_of(name), stored=stored)
    return StateFill(descriptor, form, tuple(values), tuple(entry), updated)


def _check_value(descriptor: StateDescriptor, name: str, kind: pa.DataType, given: DataType, *, stored: bool) -> None:
    """Refuse a column that cannot hold the values of a field of a state."""
    if not (is_counted(descriptor, name) and not stored) and not _fits(given, kind):
        where = f"{descriptor.name}.{name}" if name != descriptor.name else name
        raise ValueTypeError(where, str(kind), given.simpleString())


def _typed(columns: FrameColumns, name: str, kind: pa.DataType, what: str) -> str:
    """Return the name of a column after checking its type."""
    given = columns.type_of(name)
    if not _fits(given, kind):
        raise ValueTypeError(what, str(kind), given.simpleString())
    return columns.name_of(name)


def _column_of_times(columns: FrameColumns, name: str) -> str:
    given = columns.type_of(name).simpleString()
    if given not in ("timestamp", "timestamp_ntz", "bigint", "int"):
        raise InvalidInputError(f"column {name!r} must be a timestamp, or milliseconds in a bigint; it is {given}")
    return columns.name_of(name)


def _fits(given: DataType, kind: pa.DataType) -> bool:
    """Whether a column can hold the values of a type, and Arrow converts between the two."""
    if not widens(given, spark_type(kind)):
        return False
    try:
        pa.array([], arrow_type(given)).cast(kind)
    except (pa.ArrowException, InvalidInputError):
        return False
    return True
