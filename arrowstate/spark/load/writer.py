"""`df.write.format("arrowstate")`: a table becomes a state, whatever partitions Spark has its rows in.

Spark gives a Python data source its rows as they lie, so a task cannot make the state of a subtask: it sorts its
rows by subtask into one file, and the commit, which has them all, fills one subtask after the other from these
files. That is right for any partitioning and any mode of retry, and takes one process: large tables go
through `bootstrap`, where Spark sends the rows to their subtasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.snapshot.writing import delete_quietly
from arrowstate.spark.load.bootstrap import DEFAULT_BUDGET_BYTES, check_savepoint
from arrowstate.spark.load.commit import FilledOperator, commit_fill, delete_files_of
from arrowstate.spark.load.filling import FillPlan, fill_subtask, key_columns_of, pieces_of
from arrowstate.spark.load.planning import Columns, plan_fill
from arrowstate.spark.read.options import split_names
from arrowstate.spark.schemas import arrow_type
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate.store import open_store
from arrowstate_formats.key_groups import key_groups
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    from pyspark.sql.types import ArrayType, MapType, StructType

__all__ = ["WRITE_OPTIONS", "StateWriter", "state_writer"]

WRITE_OPTIONS = (
    "operator",
    "state",
    "key",
    "kind",
    "reduce",
    "aggregate",
    "columns",
    "userKey",
    "accumulators",
    "parallelism",
    "maxParallelism",
    "savepoint",
    "format",
)
"""The options of `df.write`, beside the path."""

_KINDS = ("value", "reducing", "aggregating", "list", "map")


class StagedRows(WriterCommitMessage):
    """What a task hands to the commit: a file of its rows, and which of its record batches are whose."""

    def __init__(self, path: str, batches: Mapping[int, Sequence[int]]) -> None:
        self.path = path
        self.batches = batches


class StateWriter(DataSourceArrowWriter):
    """Writes one state of one operator, as one checkpoint."""

    def __init__(self, plan: FillPlan, savepoint: str | None) -> None:
        self.plan = plan
        self.savepoint = savepoint
        self.started_at_ms = now_ms()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: keep the rows in a file, sorted by subtask."""
        storage = open_storage(self.plan.store)
        return _stage(storage, self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Beside the driver, after all tasks: make the state and commit it."""
        staged = [message for message in messages if isinstance(message, StagedRows)]
        storage = open_storage(self.plan.store)
        plan = self.plan
        try:
            try:
                filled = [
                    fill_subtask(plan, subtask, _staged_rows(storage, staged, subtask), new_id)
                    for subtask in range(plan.parallelism)
                ]
            except BaseException:
                delete_files_of(plan)
                raise
            commit_fill(
                [FilledOperator(plan, filled)],
                properties={},
                started_at_ms=self.started_at_ms,
                new_id=new_id,
                clock_ms=now_ms,
            )
        finally:
            delete_quietly(storage, [message.path for message in staged])
        if self.savepoint is not None:
            open_store(plan.store).savepoint(self.savepoint)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Beside the driver, after a failure: remove the rows that tasks have kept; `commit` removes its own."""
        staged = [message.path for message in messages if isinstance(message, StagedRows)]
        delete_quietly(open_storage(self.plan.store), staged)


def state_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StateWriter:
    """Return the writer that options ask for.

    Raises
    ------
    InvalidInputError, KeyTypeError, ValueTypeError
        If an option is missing, unknown or does not fit the columns; or the state exists and is not to be replaced.
    """
    given = _Options(options)
    columns = Columns(schema)
    key = given.names("key")
    state = given.text("state")
    value_columns = given.names("columns") if "columns" in given else None
    user_keys = {state: given.text("userKey")} if "userKey" in given else None
    descriptor = _descriptor(given, columns, key, value_columns)
    savepoint = given.get("savepoint")
    check_savepoint(savepoint)
    format = given.get("format") or "arrow"
    if format not in get_args(RunFormat):
        raise InvalidInputError(f"the option 'format' must be one of {', '.join(get_args(RunFormat))}, got {format!r}")
    plan = plan_fill(
        columns,
        store=given.text("path"),
        uid=given.text("operator"),
        key=key,
        states=[descriptor],
        parallelism=given.number("parallelism"),
        max_parallelism=given.number("maxParallelism"),
        overwrite=overwrite,
        accumulators=given.flag("accumulators"),
        value_columns=None if value_columns is None else {state: value_columns},
        user_keys=user_keys,
        format=format,  # type: ignore[arg-type]
        memory_budget_bytes=DEFAULT_BUDGET_BYTES,
    )
    return StateWriter(plan, savepoint)


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a write, by names in which case does not count."""

    given: Mapping[str, str]

    def __post_init__(self) -> None:
        known = {name.lower() for name in (*WRITE_OPTIONS, "path")}
        unknown = sorted(name for name in self.given if name.lower() not in known)
        if unknown:
            raise InvalidInputError(
                f"unknown option {', '.join(map(repr, unknown))}; a state is written with {', '.join(WRITE_OPTIONS)}"
            )

    def __contains__(self, name: str) -> bool:
        return bool(self.get(name))

    def get(self, name: str) -> str | None:
        return self.given.get(name)

    def text(self, name: str) -> str:
        """An option that must be there."""
        found = self.get(name)
        if not found:
            example = ".save('/data/store')" if name == "path" else f".option({name!r}, ...)"
            raise InvalidInputError(f"the option {name!r} is missing: df.write.format('arrowstate'){example}")
        return found

    def names(self, name: str) -> list[str]:
        return split_names(self.text(name))

    def number(self, name: str) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not text.isdecimal() or not int(text):
            raise InvalidInputError(f"the option {name!r} must be a whole number from 1, got {text!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        text = (self.get(name) or "false").lower()
        if text not in ("true", "false"):
            raise InvalidInputError(f"the option {name!r} must be true or false, got {text!r}")
        return text == "true"


def _descriptor(
    given: _Options, columns: Columns, key: Sequence[str], value_columns: Sequence[str] | None
) -> StateDescriptor:
    """The descriptor that the options and the types of the columns make."""
    name = given.text("state")
    kind = given.get("kind") or "value"
    if kind not in _KINDS:
        raise InvalidInputError(f"the option 'kind' must be one of {', '.join(_KINDS)}, got {kind!r}")
    for option, needed in (("reduce", "reducing"), ("aggregate", "aggregating"), ("userKey", "map")):
        if (option in given) != (kind == needed) and (option in given or needed != "map"):
            raise InvalidInputError(f"the option {option!r} belongs to the kind {needed!r}, and the kind is {kind!r}")
    if given.flag("accumulators") and kind not in ("reducing", "aggregating"):
        raise InvalidInputError(f"the option 'accumulators' is for reducing and aggregating states, not {kind!r}")
    user_key = given.get("userKey") or f"{name}_key"
    taken = {columns.name_of(item) for item in key}
    if kind == "map" and columns.find(user_key) is not None:
        taken.add(columns.name_of(user_key))
    values = list(value_columns or [field.name for field in columns.schema if field.name not in taken])
    if not values:
        raise InvalidInputError("the table has no column beside the key; a state needs one with values")
    plain = len(values) == 1 and (value_columns is not None or values[0].lower() == name.lower())
    first = columns.type_of(values[0])
    if kind == "list" and plain and first.typeName() == "array":
        array: ArrayType = first  # type: ignore[assignment]
        return ListStateDescriptor(name, arrow_type(array.elementType))
    if kind == "map" and plain and first.typeName() == "map" and columns.find(user_key) is None:
        entries: MapType = first  # type: ignore[assignment]
        return MapStateDescriptor(name, arrow_type(entries.keyType), arrow_type(entries.valueType))
    reduce = _reduce(given)
    types = {
        item: pa.int64()
        if _is_counted(reduce, item, plain) and not given.flag("accumulators")
        else arrow_type(columns.type_of(item))
        for item in values
    }
    value_type = types[values[0]] if plain else pa.struct(list(types.items()))
    if kind == "value":
        return ValueStateDescriptor(name, value_type)
    if kind == "list":
        return ListStateDescriptor(name, value_type)
    if kind == "map":
        return MapStateDescriptor(name, arrow_type(columns.type_of(user_key)), value_type)
    if kind == "reducing":
        assert reduce is not None
        return ReducingStateDescriptor(name, value_type, reduce=reduce)
    if given.flag("accumulators"):
        raise InvalidInputError("accumulators of aggregating states are written with arrowstate.spark.bootstrap")
    return AggregatingStateDescriptor(name, value_type, aggregate=given.text("aggregate"))


def _reduce(given: _Options) -> str | dict[str, str] | None:
    """The option `reduce`: one reducer, or `field=reducer` for each field."""
    text = given.get("reduce")
    if not text or "=" not in text:
        return text or None
    pairs = [item.split("=", 1) for item in text.split(",")]
    return {pair[0].strip(): pair[-1].strip() for pair in pairs}


def _is_counted(reduce: str | Mapping[str, str] | None, column: str, plain: bool) -> bool:
    return (reduce == "count" and plain) or (isinstance(reduce, Mapping) and reduce.get(column) == "count")


def _stage(storage: Storage, plan: FillPlan, rows: Iterable[pa.RecordBatch]) -> StagedRows:
    """Write rows into one file, each record batch of it for one subtask."""
    path = f"data/{plan.uid}/{plan.states[0].descriptor.name}/{plan.id_maker(new_id)()}.arrow"
    batches: dict[int, list[int]] = {}
    with storage.write_file(path) as sink:
        writer: Any = None
        count = 0
        for piece in pieces_of(rows):
            groups = key_groups(key_columns_of(plan, piece), plan.max_parallelism).to_numpy()
            subtasks = groups.astype(np.int64) * plan.parallelism // plan.max_parallelism
            order = np.argsort(subtasks, kind="stable")
            ordered = piece.take(pa.array(order))
            found, starts = np.unique(subtasks[order], return_index=True)
            if writer is None:
                writer = pa.ipc.new_file(sink, piece.schema)
            for subtask, start, stop in zip(
                found.tolist(), starts.tolist(), [*starts[1:].tolist(), piece.num_rows], strict=True
            ):
                writer.write_batch(ordered.slice(start, stop - start))
                batches.setdefault(subtask, []).append(count)
                count += 1
        if writer is None:
            writer = pa.ipc.new_file(sink, pa.schema([]))
        writer.close()
    return StagedRows(path, batches)


def _staged_rows(storage: Storage, staged: Sequence[StagedRows], subtask: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a subtask; files on a local disk are mapped."""
    for message in staged:
        numbers = message.batches.get(subtask, ())
        if numbers:
            reader = pa.ipc.open_file(pa.BufferReader(storage.open_buffer(message.path)))
            for number in numbers:
                yield reader.get_batch(number)
