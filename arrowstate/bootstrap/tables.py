"""Tables of Arrow become states of a store, in this process: planned, filled in one pass, committed as one checkpoint.

`plan_table` says what a table fills, `fill_operators` does it for any number of tables and operators at once. Nothing
takes effect, and nothing is left, before the commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from msgspec import Struct

from arrowstate.bootstrap.arrow_columns import ArrowColumns, plain_batch, smaller_type
from arrowstate.bootstrap.commit import FilledOperator, FilledStates, commit_filled
from arrowstate.bootstrap.opening import AskedOperator
from arrowstate.bootstrap.plan import FillPlan, LocalMemory
from arrowstate.bootstrap.planning import AskedStates, plan_of
from arrowstate.bootstrap.routing import Routing, sorted_by
from arrowstate.bootstrap.subtask import PIECE_BYTES, SubtaskFill, pieces_of
from arrowstate.checkpoints.handles import SubtaskHandle
from arrowstate.errors import InvalidInputError, KeyTypeError
from arrowstate.files.operator import FrozenOperatorState, write_operator_states
from arrowstate.log.commit import delete_quietly
from arrowstate.log.commit_log import CommitLog
from arrowstate.schema.keys import described
from arrowstate.storage.base import Storage
from arrowstate_formats.document_base import plain_json
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import RunFormat, check_format

DEFAULT_BUDGET_BYTES = 256 << 20
"""What all subtasks together hold of the state they make in memory; the rest is in mapped local files."""

_SMALLEST_PIECE_BYTES = 1 << 20


class TableFill(Struct, frozen=True):
    """A table, and what it fills."""

    plan: FillPlan
    rows: Iterable[pa.RecordBatch]
    """Read once; the columns that the plan and the order name, and perhaps others."""
    order_by: Sequence[str] = ()
    """The columns that the rows of each key are sorted by before they are written."""


def plan_table(
    storage: Storage,
    schema: pa.Schema,
    *,
    uid: str,
    key: Sequence[str] | pa.Schema,
    states: AskedStates,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    order_by: Sequence[str] = (),
    watermark: int | None = None,
    format: RunFormat = "arrow",
    memory_budget_bytes: int | None = DEFAULT_BUDGET_BYTES,
    spill_dir: str | Path | None = None,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> FillPlan:
    """Settle how a table fills states of an operator; nothing is written."""
    columns = ArrowColumns(schema)
    if isinstance(key, str) or not isinstance(key, (Sequence, pa.Schema)) or not len(key):
        raise InvalidInputError(f"key must be a list of at least one column, got {key!r}")
    names = key.names if isinstance(key, pa.Schema) else list(key)
    given = _key_of(columns, names)
    asked = AskedOperator.of(
        uid, key if isinstance(key, pa.Schema) else given, parallelism, max_parallelism, optional=True
    )
    if not all(columns.fits(field.name, field.type) for field in asked.key):
        raise KeyTypeError(described(asked.key), described(given))
    if isinstance(order_by, str):
        raise InvalidInputError(f"order_by must be a list of columns, got {order_by!r}")
    for name in order_by:
        if not columns.is_sortable(columns.name_of(name)):
            raise InvalidInputError(f"rows cannot be sorted by {name!r}, which is {columns.type_text(name)}")
    states.fills(columns, asked.key)
    check_format(format)
    budget = check_integer("memory_budget_bytes", memory_budget_bytes, 0, optional=True)
    watermark = check_integer("watermark", watermark, optional=True)
    opened = asked.settled(storage, columns.fits)
    if isinstance(key, pa.Schema) and opened.key_schema.types != key.types:
        raise KeyTypeError(described(opened.key_schema), described(key))
    return plan_of(
        opened,
        states,
        columns,
        uid=uid,
        key_columns=names,
        new_id=new_id,
        now_ms=clock_ms(),
        watermark=watermark,
        format=format,
        memory=LocalMemory(budget, None if spill_dir is None else str(spill_dir)),
    )


def _key_of(columns: ArrowColumns, names: Sequence[str]) -> pa.Schema:
    """Return the key columns as a new operator has them, as small as they come from anywhere."""
    return pa.schema([(name, smaller_type(columns.type_of(name))) for name in names])


def fill_operators(
    storage: Storage,
    store_id: str,
    fills: Sequence[TableFill],
    *,
    operator_states: Mapping[str, Sequence[Sequence[FrozenOperatorState]]] = MappingProxyType({}),
    properties: Mapping[str, Any],
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> LogEntryDocument:
    """Fill states of one or more operators and commit them as one checkpoint.

    Several tables may fill one operator, each with states of its own; then all plans have the same key, parallelism and
    max parallelism, and what one holds in memory is that of the first. Tables are read one after the other, once.
    `operator_states` has the operator states of the subtasks of operators, as many as the operator has, by uid.
    """
    kept = plain_json("properties", dict(properties))
    if not fills and not operator_states:
        raise InvalidInputError("a fill needs at least one table, got none")
    operators: dict[str, list[TableFill]] = {}
    for item in fills:
        operators.setdefault(item.plan.uid, []).append(item)
    for group in operators.values():
        _check_together([item.plan for item in group])
    written: list[str] = []

    def fill() -> list[FilledOperator]:
        return [_filled(storage, store_id, group, written, new_id, clock_ms) for group in operators.values()]

    def fill_states() -> list[FilledStates]:
        found = []
        for uid, subtasks in operator_states.items():
            paths: list[str] = []
            states = write_operator_states(storage, uid, subtasks, new_id=new_id, paths=paths)
            written.extend(paths)
            found.append(FilledStates(uid, states, paths))
        return found

    entry, _ = commit_filled(
        storage,
        fill,
        lambda _: kept,
        operator_states=fill_states,
        abandon=lambda: delete_quietly(storage, written),
        new_id=new_id,
        clock_ms=clock_ms,
    )
    return entry


def _check_together(plans: Sequence[FillPlan]) -> None:
    """Refuse plans of one operator that do not fit each other."""
    first = plans[0]
    names = [fill.descriptor.name.lower() for plan in plans for fill in plan.states]
    twice = sorted({name for name in names if names.count(name) > 1})
    differ = any(
        (plan.key, plan.parallelism, plan.max_parallelism, plan.base)
        != (first.key, first.parallelism, first.max_parallelism, first.base)
        for plan in plans
    )
    if twice or differ:
        what = f"fill {', '.join(map(repr, twice))} twice" if twice else "differ in key, parallelism or base"
        raise InvalidInputError(
            f"the tables of operator {first.uid!r} {what}; give each its own states of one operator"
        )


def _filled(
    storage: Storage,
    store_id: str,
    group: Sequence[TableFill],
    written: list[str],
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> FilledOperator:
    """Fill all subtasks of an operator; the paths of their files are added to `written`."""
    plans = [item.plan for item in group]
    plan = plans[0]
    checkpoint = CommitLog(storage).read(plan.base).document if plan.adds_to and plan.base is not None else None
    memory = plan.memory.for_backend(storage)
    limit = memory["memory_budget_bytes"]
    share = {**memory, "memory_budget_bytes": None if limit is None else limit // plan.parallelism}
    subtasks: list[SubtaskFill | None] = [
        SubtaskFill(plans, number, storage, store_id, checkpoint, share) for number in range(plan.parallelism)
    ]
    for item in group:
        for number, rows in _routed(item, limit, Path(memory["spill_dir"] or tempfile.gettempdir())):
            subtask = subtasks[number]
            assert subtask is not None, "subtasks are written when all tables were read"
            subtask.add(item.plan, rows)
    handles: list[SubtaskHandle] = []
    for number, subtask in enumerate(subtasks):
        assert subtask is not None, "each is written once"
        handles.append(subtask.written(new_id, clock_ms))
        written += handles[-1].paths
        # What it held is free for the next.
        subtasks[number] = None
        del subtask
    watermark = min((item.watermark for item in plans if item.watermark is not None), default=None)
    return FilledOperator(replace(plan, watermark=watermark), handles)


def _routed(item: TableFill, limit: int | None, folder: Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a table piece by piece, each with the subtask that it belongs to."""
    names = list(dict.fromkeys([*item.plan.columns, *item.order_by]))
    # Pieces are held several times on their way.
    size = PIECE_BYTES if limit is None else min(PIECE_BYTES, max(_SMALLEST_PIECE_BYTES, limit // 8))
    pieces = (plain_batch(piece) for piece in pieces_of((batch.select(names) for batch in item.rows), size))
    routing = Routing(item.plan)
    if item.order_by:
        yield from sorted_by(routing, pieces, item.order_by, None if limit is None else max(size, limit // 4), folder)
        return
    for piece in pieces:
        yield from routing.routed(piece)
