"""Filling a state: what a piece of the rows has for it, in the types and by the verbs of its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.bootstrap.columns import is_counted, milliseconds, struct_values
from arrowstate.bootstrap.plan import FillPlan, StateFill
from arrowstate.errors import InvalidInputError
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.types import cast_by_names, shown_scalar
from arrowstate.state.base import KeyedState
from arrowstate.state.kinds.aggregating import AggregatingState
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.map import MapState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.state.kinds.timers import TimerState
from arrowstate.state.kinds.value import ValueState
from arrowstate.table import kernels


def key_columns_of(plan: FillPlan, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the key columns of rows, in the types of the key."""
    return _columns(rows, plan.key_columns, plan.key_schema)


def fill_state(
    plan: FillPlan, fill: StateFill, state: KeyedState[Any], keys: pa.RecordBatch, rows: pa.RecordBatch
) -> None:
    """Write what a piece of the rows has for one state; a row with a null has nothing for it."""
    layout = state.layout
    has_entry = layout.user_key_type is not None and fill.form != "maps"
    if has_entry:
        keys, rows = _only(rows.column(fill.entry[-1]).is_valid(), keys, rows)
    if isinstance(state, TimerState):
        state.register_batch(keys, milliseconds(rows.column(fill.entry[-1])), **_beside(plan, fill, state, rows))
        return
    values = _values(fill, layout, rows)
    # An entry of a map may have a null for its value.
    if values.null_count and not has_entry:
        kept = values.is_valid()
        values = values.filter(kept)
        keys, rows = _only(kept, keys, rows)
    common = _beside(plan, fill, state, rows)
    if isinstance(state, MapState):
        entries, user_keys, values, numbers = _map_entries(fill, layout, keys, values, rows)
        common = {name: column if numbers is None else column.take(numbers) for name, column in common.items()}
        _once(state, fill, entries, user_keys, lambda: state.put_batch(entries, user_keys, values, **common))
    elif isinstance(state, ListState):
        add = state.add_all_batch if fill.form == "lists" else state.add_batch
        add(keys, values, **common)
    elif isinstance(state, (ReducingState, AggregatingState)):
        state.add_batch(keys, values, **common)
    else:
        assert isinstance(state, ValueState)
        _once(state, fill, keys, common.get("namespace"), lambda: state.update_batch(keys, values, **common))


def _only(kept: pa.Array, keys: pa.RecordBatch, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return keys.filter(kept), rows.filter(kept)


def _beside(plan: FillPlan, fill: StateFill, state: KeyedState[Any], rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the namespaces and the times of update of rows, as the batch verbs of a state take them."""
    common: dict[str, Any] = {}
    if state.descriptor.namespace is not None:
        spaces = fill.entry[: len(state.layout.namespace_fields)]
        common["namespace"] = _columns(rows, spaces, state.descriptor.namespace)
    if state.descriptor.ttl is not None:
        common["timestamps"] = _update_times(plan, fill, rows)
    return common


def _map_entries(
    fill: StateFill, layout: StateLayout, keys: pa.RecordBatch, values: pa.Array, rows: pa.RecordBatch
) -> tuple[pa.RecordBatch, pa.Array, pa.Array, pa.Array | None]:
    """Return the key, user key and value of each entry, and the row each is from unless it is one a row."""
    assert layout.user_key_type is not None
    if fill.form != "maps":
        return keys, _converted(rows.column(fill.entry[-1]), layout.user_key_type, fill.entry[-1]), values, None
    lengths = np.diff(values.offsets.to_numpy())
    numbers = pa.array(np.repeat(np.arange(len(values), dtype=np.int64), lengths))
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    inside = slice(first, last)
    return keys.take(numbers), values.keys[inside], values.items[inside], numbers


def _once(
    state: KeyedState[Any],
    fill: StateFill,
    keys: pa.RecordBatch,
    entry: pa.Array | pa.RecordBatch | None,
    write: Callable[[], None],
) -> None:
    """Write rows of which none may replace another, or one that was there before."""
    before = len(state)
    write()
    missing = before + keys.num_rows - len(state)
    if not missing:
        return
    what = "a key and user key" if isinstance(state, MapState) else "a key"
    example = _example_twice(state, keys, entry)
    raise InvalidInputError(
        f"state {fill.descriptor.name!r} takes one row for each {what.removeprefix('a ')}, and {missing} of "
        f"{keys.num_rows} rows have {what} that came before{example}; make one row of them first, or fill a list or "
        "reducing state"
    )


def _example_twice(state: KeyedState[Any], keys: pa.RecordBatch, entry: pa.Array | pa.RecordBatch | None) -> str:
    """Return ": " and a key that came twice, in these rows or in these and earlier ones."""
    columns = [*keys.columns, *([entry] if isinstance(entry, pa.Array) else entry.columns if entry else [])]
    names = [str(number) for number in range(len(columns))]
    # Arrow does not group by nested columns; then the message has to do without.
    with suppress(pa.ArrowException):
        counted = pa.Table.from_arrays(columns, names=names).group_by(names).aggregate([([], "count_all")])
        twice = counted.filter(pc.greater(counted["count_all"], 1))
        if twice.num_rows:
            return (
                f": {_key_text(twice.slice(0, 1).select(names[: keys.num_columns]).rename_columns(keys.schema.names))}"
            )
    for run in state.table.runs:
        if run.dead_rows:
            row = kernels.live_rows(~run.freeze().live, 0, run.rows)[:1]
            for segment in run.segments:
                if segment.first_row <= run.first_row + int(row[0]) < segment.end_row:
                    place = run.first_row + int(row[0]) - segment.first_row
                    return f": {_key_text(segment.batch.slice(place, 1).select(keys.schema.names))}"
    return ""


def _key_text(row: pa.RecordBatch | pa.Table) -> str:
    return ", ".join(f"{name}={shown_scalar(row.column(name)[0])}" for name in row.schema.names)


def _values(fill: StateFill, layout: StateLayout, rows: pa.RecordBatch) -> pa.Array:
    """Return the values of a state, one a row; null where the row has none."""
    if fill.form == "maps":
        assert layout.user_key_type is not None
        kind: pa.DataType = pa.map_(layout.user_key_type, layout.value_type)
    elif fill.form == "lists":
        kind = pa.list_(layout.value_type)
    else:
        kind = layout.value_type if fill.form == "stored" else fill.descriptor.type
    twin = fill.twin
    if len(fill.values) == 1 and (fill.form in ("lists", "maps") or not pa.types.is_struct(kind)):
        column = rows.column(fill.values[0])
        return column if is_counted(twin, None) else _converted(column, kind, fill.values[0])
    if len(fill.values) == 1 and pa.types.is_struct(rows.schema.field(fill.values[0]).type):
        whole = rows.column(fill.values[0])
        if not any(is_counted(twin, field.name) for field in kind):
            return _converted(whole, kind, fill.values[0])
        given = {field.name: column for field, column in zip(whole.type, whole.flatten(), strict=True)}
        columns = [given[field.name] for field in kind]
    else:
        columns = [rows.column(name) for name in fill.values]
    columns = [
        column if is_counted(twin, field.name) else _converted(column, field.type, field.name)
        for field, column in zip(kind, columns, strict=True)
    ]
    return struct_values(twin, columns, [field.name for field in kind])


def _update_times(plan: FillPlan, fill: StateFill, rows: pa.RecordBatch) -> pa.Array:
    if fill.updated is None:
        return pa.array(np.full(rows.num_rows, plan.now_ms, dtype=np.int64))
    return milliseconds(rows.column(fill.updated)).fill_null(plan.now_ms)


def _columns(rows: pa.RecordBatch, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_converted(rows.column(name), field.type, name) for name, field in zip(names, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _converted(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return a column as a type that can hold all its values, as the plan has found."""
    try:
        return column if column.type == kind else cast_by_names(column, kind)
    except pa.ArrowException as error:
        raise InvalidInputError(f"column {name!r} cannot be read as {kind}: {error}; cast it first") from None
