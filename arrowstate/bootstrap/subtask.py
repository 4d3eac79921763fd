"""Filling a subtask: rows of a table become the keyed state of one range of key groups, whatever their number.

Rows are taken in pieces, so whoever fills holds a few of them at a time and the state within a budget of memory. The
result is files under fresh names and a handle: any number of attempts may run, and the commit names the files of one
of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from arrowstate.bootstrap.plan import FillPlan, StateFill
from arrowstate.bootstrap.states import fill_state, key_columns_of
from arrowstate.checkpoints.handles import SubtaskHandle, write_handle
from arrowstate.files.writing import FrozenState, FrozenSubtask
from arrowstate.schema.layout import StateLayout, state_document
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.state.base import KeyedState
from arrowstate.storage.base import Storage
from arrowstate.table.merging import MergePolicy
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.key_groups import key_group_range

PIECE_BYTES = 32 << 20
_PIECE_ROWS = 1 << 20

# A fill ends with its rows, so it cannot leave the next steps of a merge to later ones.
_AT_ONCE = MergePolicy(step_rows=sys.maxsize)


class SubtaskFill:
    """The state of one subtask in the making."""

    def __init__(
        self,
        plans: Sequence[FillPlan],
        number: int,
        storage: Storage,
        store_id: str,
        checkpoint: LogEntryDocument | None,
        memory: Mapping[str, Any],
    ) -> None:
        self._plan = plan = plans[0]
        self._number = number
        self._storage = storage
        self._store_id = store_id
        self._checkpoint = checkpoint
        self._memory = memory
        self._backend = KeyedStateBackend(
            key=plan.key_schema,
            max_parallelism=plan.max_parallelism,
            key_groups=key_group_range(plan.max_parallelism, parallelism=plan.parallelism, subtask=number),
            merge_policy=_AT_ONCE,
            clock_ms=lambda: plan.now_ms,
            **memory,
        )
        self._fills = [fill for item in plans for fill in item.states]
        self._states: dict[str, KeyedState[Any]] = {
            fill.descriptor.name: self._backend.state(fill.twin) for fill in self._fills
        }
        self._watermark = min((item.watermark for item in plans if item.watermark is not None), default=None)

    def add(self, plan: FillPlan, piece: pa.RecordBatch) -> None:
        """Write what rows have for the states of a plan; their keys are those of the subtask."""
        keys = key_columns_of(plan, piece)
        for fill in plan.states:
            fill_state(plan, fill, self._states[fill.descriptor.name], keys, piece)

    def written(self, new_id: Callable[[], str], clock_ms: Callable[[], int]) -> SubtaskHandle:
        """Write the state to the store, where it takes effect with the commit."""
        plan = self._plan
        handle, _ = write_handle(
            self._storage,
            self._store_id,
            plan.uid,
            self._number,
            lambda: self._frozen(clock_ms),
            format=plan.format,
            new_id=plan.id_maker(new_id),
            based_on=plan.base or 0,
        )
        return handle

    def _frozen(self, clock_ms: Callable[[], int]) -> FrozenSubtask:
        """Return the filled states, under their own descriptors, beside the other states of the operator."""
        plan = self._plan
        documents = {fill.descriptor.name: _document(plan, fill) for fill in self._fills}
        filled = self._backend.freeze()
        states = [FrozenState(documents[state.document.name], state.table) for state in filled.states]
        watermark = self._watermark
        operator = self._operator()
        if self._checkpoint is not None and operator is not None:
            kept = restore_backend(
                self._storage,
                self._store_id,
                self._checkpoint,
                plan.uid,
                parallelism=plan.parallelism,
                subtask=self._number,
                max_parallelism=plan.max_parallelism,
                drop=[state.name for state in operator.states if state.name in documents],
                merge_policy=_AT_ONCE,
                clock_ms=clock_ms,
                **self._memory,
            ).freeze()
            states = [*kept.states, *states]
            watermark = kept.watermark if watermark is None else watermark
        return replace(filled, key=plan.key, states=tuple(states), watermark=watermark)

    def _operator(self) -> OperatorDocument | None:
        """Return what the checkpoint has of the operator."""
        operators = () if self._checkpoint is None else self._checkpoint.operators
        return next((item for item in operators if item.uid == self._plan.uid), None)


def _document(plan: FillPlan, fill: StateFill) -> Any:
    layout = StateLayout.of(plan.key_schema, fill.descriptor)
    return state_document(fill.descriptor, layout, list(plan.key))


def pieces_of(rows: Iterable[pa.RecordBatch], piece_bytes: int = PIECE_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about this size, none of them empty; few enough to be held several times."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in rows:
        for part in _parts(batch, piece_bytes):
            waiting.append(part)
            count += part.num_rows
            size += _bytes_of(part)
            if count >= _PIECE_ROWS or size >= piece_bytes:
                yield from _one(waiting)
                waiting.clear()
                count = size = 0
    if waiting:
        yield from _one(waiting)


def _bytes_of(batch: pa.RecordBatch) -> int:
    try:
        return int(batch.nbytes)
    except pa.ArrowTypeError:
        # PyArrow before 23 does not say how much of its buffers an array of views needs.
        return int(batch.get_total_buffer_size())


def _parts(batch: pa.RecordBatch, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts, each small enough for a piece."""
    if not batch.num_rows:
        return
    parts = max(-(-batch.num_rows // _PIECE_ROWS), -(-_bytes_of(batch) // piece_bytes))
    rows = -(-batch.num_rows // parts)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _one(batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    if len(batches) == 1:
        return [batches[0]]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()
