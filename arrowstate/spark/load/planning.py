"""Planning a fill: which columns of a table are the key and the content of each state, and what the store has.

Everything that can be refused before a job runs is refused here. Columns are found by name, as Spark finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError, KeyTypeError, UnsupportedStorageError, ValueTypeError
from arrowstate.log.commit_log import CommitLog
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.layout import StateLayout, key_documents, key_schema_of
from arrowstate.spark.load.filling import FillPlan, StateFill
from arrowstate.spark.schemas import arrow_type, spark_type, widens
from arrowstate.storage.registry import SUPPORTED
from arrowstate.store import open_store
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import default_max_parallelism, key_group_range
from arrowstate_formats.names import check_operator_uid
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["Columns", "plan_fill"]

_KINDS = (
    ValueStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    TimerStateDescriptor,
)


class Columns:
    """The columns of a table, found as Spark would."""

    def __init__(self, schema: StructType, *, case_sensitive: bool = False) -> None:
        self.schema = schema
        self._case_sensitive = case_sensitive

    def find(self, name: str) -> str | None:
        """Return the name of a column as the table has it, None if there is none."""
        same = [
            field.name
            for field in self.schema
            if field.name == name or (not self._case_sensitive and field.name.lower() == name.lower())
        ]
        if len(same) > 1:
            raise InvalidInputError(f"the table has {len(same)} columns {name!r}; rename all but one")
        return same[0] if same else None

    def name_of(self, name: str) -> str:
        """Return the name of a column that must be there."""
        found = self.find(name)
        if found is None:
            raise InvalidInputError(f"the table has no column {name!r}; it has {', '.join(self.schema.names)}")
        return found

    def type_of(self, name: str) -> DataType:
        """Return the type of a column that must be there."""
        return self.schema[self.name_of(name)].dataType


def plan_fill(
    columns: Columns,
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
    check_operator_uid(uid)
    if isinstance(key, str) or not key:
        raise InvalidInputError(f"key must be a list of at least one column, got {key!r}")
    given_key = check_key_schema(pa.schema([(name, arrow_type(columns.type_of(name))) for name in key]))
    _check_states(states)
    if str(store).lower().startswith("memory:"):
        reason = "its files are in the memory of this process, and Spark's tasks run in others"
        raise UnsupportedStorageError(str(store), "memory", SUPPORTED[:-1], reason)
    parallelism = check_integer("parallelism", parallelism, optional=True)
    max_parallelism = check_integer("max_parallelism", max_parallelism, optional=True)
    if parallelism is not None:
        key_group_range(max_parallelism or default_max_parallelism(parallelism), parallelism=parallelism, subtask=0)

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
    fills(given_key)
    opened = open_store(store, create=True)
    checkpoint = CommitLog(opened.storage).latest_checkpoint()
    operator = next((item for item in checkpoint.operators if item.uid == uid), None) if checkpoint else None
    if operator is not None:
        _check_free(operator, states, opened.url, overwrite=overwrite)
    key_schema = given_key if operator is None else key_schema_of(operator.key)
    if list(key) != key_schema.names or not all(
        widens(columns.type_of(field.name), spark_type(field.type)) for field in key_schema
    ):
        raise KeyTypeError(_text(key_schema), _text(given_key))
    if parallelism is None:
        parallelism = 1 if operator is None else operator.parallelism
    if max_parallelism is None:
        max_parallelism = default_max_parallelism(parallelism) if operator is None else operator.max_parallelism
    key_group_range(max_parallelism, parallelism=parallelism, subtask=0)
    if operator is not None and operator.operator_states and parallelism != operator.operator_states[0].part_count:
        raise InvalidInputError(
            f"operator {uid!r} in {opened.url} has operator state of {operator.operator_states[0].part_count} "
            f"subtasks, so its parallelism must stay, got {parallelism}"
        )
    return FillPlan(
        store=opened.url,
        uid=uid,
        key=tuple(key_documents(key_schema) if operator is None else operator.key),
        key_columns=tuple(map(columns.name_of, key)),
        states=fills(key_schema),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        base=None if checkpoint is None else checkpoint.number,
        adds_to=operator is not None,
        job=new_id()[:12],
        now_ms=now_ms(),
        watermark=watermark,
        format=format,
        memory_budget_bytes=memory_budget_bytes,
    )


def _check_states(states: Sequence[StateDescriptor]) -> None:
    if isinstance(states, _KINDS) or not states:
        raise InvalidInputError("states must be a list of at least one descriptor")
    names: set[str] = set()
    for descriptor in states:
        if not isinstance(descriptor, _KINDS):
            raise InvalidInputError(f"expected a state descriptor, got {type(descriptor).__name__}")
        if descriptor.name.lower() in names:
            raise InvalidInputError(f"state names must differ in more than case, got {descriptor.name!r} twice")
        names.add(descriptor.name.lower())


def _check_free(operator: OperatorDocument, states: Iterable[StateDescriptor], store: str, *, overwrite: bool) -> None:
    """Refuse an operator without keys, and states that are there already unless they are to be replaced."""
    if not operator.key:
        raise InvalidInputError(
            f"operator {operator.uid!r} in {store} has operator state only, or is an output table; use another uid"
        )
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
    columns: Columns,
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
    whole = columns.find(value_columns[0] if value_columns else descriptor.name)
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
        inner = Columns(kind, case_sensitive=True)  # type: ignore[arg-type]
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
    if isinstance(descriptor, ReducingStateDescriptor) and not stored:
        reduce = descriptor.reduce[name] if isinstance(descriptor.reduce, Mapping) else descriptor.reduce
        if reduce == "count":
            return
    if not _fits(given, kind):
        where = f"{descriptor.name}.{name}" if name != descriptor.name else name
        raise ValueTypeError(where, str(kind), given.simpleString())


def _typed(columns: Columns, name: str, kind: pa.DataType, what: str) -> str:
    """Return the name of a column after checking its type."""
    given = columns.type_of(name)
    if not _fits(given, kind):
        raise ValueTypeError(what, str(kind), given.simpleString())
    return columns.name_of(name)


def _column_of_times(columns: Columns, name: str) -> str:
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


def _text(key: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in key)
