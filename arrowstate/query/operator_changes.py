"""What changed in an operator state from one checkpoint to another: elements that came and went.

Operator state has no key, so its elements are compared as a multiset: neither their order counts, nor which subtask has
them, as after another parallelism. A broadcast map is the same in every subtask, and each entry of it counts once.
Parts that both checkpoints have are not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.files.operator import OperatorStateTable
from arrowstate.files.subtasks import whole_state
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.changes import CHANGE_TYPE_COLUMN
from arrowstate.storage.base import Storage
from arrowstate.table.columns import row_numbers, take
from arrowstate_formats.documents import LogEntryDocument, OperatorStateDocument

Ints = npt.NDArray[np.int64]


class _Side(Struct, frozen=True):
    """An operator state in one of the checkpoints."""

    table: OperatorStateTable
    parts: Mapping[tuple[int, str], Sequence[int]]
    "The numbers of its parts, by what tells their content; of a broadcast map, which are all the same, the first."

    @classmethod
    def of(cls, storage: Storage, entry: LogEntryDocument | None, uid: str, name: str) -> _Side | None:
        state = _document(entry, uid, name)
        if entry is None or state is None:
            return None
        with reading_checkpoint(storage, entry):
            state = whole_state(storage, uid, state)
        parts: dict[tuple[int, str], list[int]] = defaultdict(list)
        for number, part in enumerate(state.parts):
            if part.rows:
                parts[part.bytes, part.xxh3_128].append(number)
        if state.kind == "broadcast":
            parts = {content: numbers[:1] for content, numbers in parts.items()}
        return cls(OperatorStateTable(storage, entry, state), parts)

    @property
    def schema(self) -> pa.Schema:
        """The columns of an element."""
        return self.table.schema.remove(0)

    def beside(self, other: _Side | None) -> list[int]:
        """Return the parts that the other checkpoint has not."""
        have = {} if other is None else other.parts
        return [number for content, numbers in self.parts.items() for number in numbers[len(have.get(content, ())) :]]

    def count(self, numbers: Sequence[int]) -> int:
        return sum(self.table.document.parts[number].rows for number in numbers)

    def read(self, numbers: Sequence[int]) -> pa.RecordBatch:
        batches = [self.table.part(number).select(self.schema.names) for number in numbers]
        return pa.concat_batches([pa.RecordBatch.from_pylist([], schema=self.schema), *batches])


def _document(entry: LogEntryDocument | None, uid: str, name: str) -> OperatorStateDocument | None:
    for operator in () if entry is None else entry.operators:
        for state in operator.operator_states:
            if (operator.uid, state.name) == (uid, name):
                return state
    return None


class _Elements(NamedTuple):
    gone: pa.RecordBatch
    come: pa.RecordBatch


class OperatorStateChanges:
    """The changes of an operator state that at least one of two checkpoints has."""

    def __init__(
        self, storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument, uid: str, name: str
    ) -> None:
        self._name = f"{uid}.{name}"
        self._before = _Side.of(storage, before, uid, name)
        self._after = _Side.of(storage, after, uid, name)

    @property
    def columns(self) -> tuple[list[str] | None, list[str] | None]:
        """The columns of both with their types, None where a checkpoint has no such state."""
        before, after = (
            None if side is None else [f"{field.name} {field.type}" for field in side.schema]
            for side in (self._before, self._after)
        )
        return before, after

    @property
    def kinds(self) -> tuple[str, str] | None:
        """The kinds that the state has in both, where they are different."""
        if self._before is None or self._after is None:
            return None
        kinds = (self._before.table.document.kind, self._after.table.document.kind)
        return None if kinds[0] == kinds[1] else kinds

    def counts(self) -> tuple[int, int] | None:
        """Return how many elements came and how many went; None where they have other columns."""
        if not self._is_comparable:
            return None
        gone, come = self._parts()
        if not gone or not come:
            # The documents tell it, as of what was appended.
            return _count(self._after, come), _count(self._before, gone)
        elements = self._elements()
        return elements.come.num_rows, elements.gone.num_rows

    def rows(self, columns: Sequence[str] | None = None, limit: int | None = None) -> pa.Table:
        """Return the elements that went, as `delete`, and those that came, as `insert`, of at most so many rows."""
        if not self._is_comparable:
            stored, now = (", ".join(names or ()) for names in self.columns)
            raise IncompatibleStateError(self._name, stored, now, "compare checkpoints on one side of the change")
        elements = self._elements()
        have = elements.come.schema.names
        names = have if columns is None else list(columns)
        if not names or not set(names) <= set(have):
            raise InvalidInputError(f"state {self._name} has the columns {', '.join(have)}, got {columns!r}")
        kinds = pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False)
        batches = []
        for kind, batch in (("delete", elements.gone), ("insert", elements.come)):
            chosen = batch.select(names)
            fields = [*chosen.schema, kinds]
            arrays = [*chosen.columns, pa.repeat(kind, batch.num_rows)]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        return pa.Table.from_batches(batches).slice(0, limit)

    @property
    def _is_comparable(self) -> bool:
        return self._before is None or self._after is None or self._before.schema == self._after.schema

    def _parts(self) -> tuple[list[int], list[int]]:
        """Return the parts that only the earlier checkpoint has, and those that only the later one has."""
        return (
            [] if self._before is None else self._before.beside(self._after),
            [] if self._after is None else self._after.beside(self._before),
        )

    def _elements(self) -> _Elements:
        either = self._after or self._before
        assert either is not None, "one of them has the state"
        gone, come = (
            either.read(()) if side is None else side.read(numbers)
            for side, numbers in zip((self._before, self._after), self._parts(), strict=True)
        )
        both = pa.concat_batches([gone, come])
        numbers = row_numbers(both.columns)
        times = [np.bincount(part, minlength=both.num_rows) for part in np.split(numbers, [gone.num_rows])]
        return _Elements(
            _first_of_each(gone, numbers[: gone.num_rows], times[0] - times[1]),
            _first_of_each(come, numbers[gone.num_rows :], times[1] - times[0]),
        )


def _first_of_each(rows: pa.RecordBatch, numbers: Ints, counts: Ints) -> pa.RecordBatch:
    """Return, of the rows with each number, as many as `counts` says."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    places = np.arange(ordered.size) - np.searchsorted(ordered, ordered)
    chosen = np.sort(order[places < counts[ordered]])
    return pa.RecordBatch.from_arrays([take(column, chosen) for column in rows.columns], schema=rows.schema)


def _count(side: _Side | None, numbers: Sequence[int]) -> int:
    return 0 if side is None else side.count(numbers)
