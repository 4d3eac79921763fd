"""Which subtask gets which rows, and in which order.

Rows that are to be sorted need not fit in memory: those past the budget are parted by their keys into local files,
small enough for one of them to be sorted at a time. That is order enough, for no state has rows of several keys in one
value.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.bootstrap.plan import FillPlan
from arrowstate.bootstrap.states import key_columns_of
from arrowstate.errors import NullKeyError
from arrowstate.schema.types import first_null
from arrowstate.storage.posix import storage_errors
from arrowstate.table.columns import canonical_floats
from arrowstate_formats.key_groups import key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns

_PARTS = 256
"""Into how many parts rows are put that do not fit in memory: as many fit as have this many times the budget."""


class Routing:
    """Sends the rows of a stream to the subtasks of their keys."""

    def __init__(self, plan: FillPlan) -> None:
        self._plan = plan
        self._rows = 0
        groups = np.arange(plan.max_parallelism)
        # The range of subtask s begins at the ceiling of s times max parallelism over parallelism.
        self._subtasks = groups * plan.parallelism // plan.max_parallelism
        self.parts = max(1, _PARTS // plan.parallelism)
        """Into how many parts each subtask's rows are put, by `split`."""

    def routed(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each subtask that has any, in the order in which they came."""
        hashes = self._hashes(rows)
        if self._plan.parallelism == 1:
            yield 0, rows
            return
        yield from _grouped(rows, self._subtasks_of(hashes))

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each part, numbered from the first part of the first subtask; errors as for `routed`."""
        hashes = self._hashes(rows)
        yield from _grouped(rows, self._subtasks_of(hashes) * self.parts + hashes % self.parts)

    def _hashes(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        keys = key_columns_of(self._plan, rows)
        for name, column in zip(keys.schema.names, keys.columns, strict=True):
            if column.null_count:
                row = first_null(column)
                raise NullKeyError(name, self._rows + row)
        self._rows += rows.num_rows
        return hash_columns([canonical_floats(column) for column in keys.columns])

    def _subtasks_of(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._subtasks[key_groups_of_hashes(hashes, self._plan.max_parallelism)]


def _grouped(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each number, lowest first, in the order in which they came."""
    # numpy sorts small integers by radix.
    numbers = numbers.astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    present, starts = np.unique(numbers[order], return_index=True)
    if present.size == 1:
        yield int(present[0]), rows
        return
    taken = pc.take(rows, pa.array(order), boundscheck=False)
    for number, start, end in zip(present.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
        yield number, taken.slice(int(start), int(end - start))


def sorted_by(
    routing: Routing, pieces: Iterable[pa.RecordBatch], names: Sequence[str], limit_bytes: int | None, folder: Path
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the subtask of rows and rows that are sorted by columns, ascending, null first and NaN last.

    Rows of one key come sorted, and those that are equal in the columns as they came. Of rows that take more than the
    limit, a part of a subtask is sorted at a time.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    pieces = iter(pieces)
    for piece in pieces:
        waiting.append(piece)
        size += piece.nbytes
        if limit_bytes is not None and size > limit_bytes:
            break
    else:
        for batch in _in_order(waiting, names):
            yield from routing.routed(batch)
        return
    with _Parts(folder) as parts:
        while waiting:
            parts.add(routing.split(waiting.pop(0)))
        for piece in pieces:
            parts.add(routing.split(piece))
        for number in sorted(parts.places):
            for batch in _in_order(parts.read(number), names):
                yield number // routing.parts, batch


def _in_order(batches: Sequence[pa.RecordBatch], names: Sequence[str]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    rows = pa.Table.from_batches(batches)
    columns: dict[str, pa.ChunkedArray] = {}
    for number, name in enumerate(names):
        column = rows[name]
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        if pa.types.is_floating(column.type):
            # Where nulls come first, Arrow has NaN right after them.
            columns[f"{number} is nan"] = pc.fill_null(pc.is_nan(column), False)
        columns[str(number)] = column
    order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns], null_placement="at_start")
    return list(rows.combine_chunks().take(order).to_batches())


class _Parts:
    """Parts of rows in a local file without a name, which is gone when this is closed or the process dies."""

    def __init__(self, folder: Path) -> None:
        self.places: dict[int, list[tuple[int, int]]] = {}
        """By part, where its batches begin in the file, and how many bytes they have."""
        self._folder = folder
        self._end = 0
        with storage_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix="arrowstate-", suffix=".spill", dir=folder)
            self._file = os.fdopen(descriptor, "w+b", buffering=0)
        with suppress(OSError):
            Path(path).unlink()

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Write the rows of parts."""
        for number, batch in rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            data = sink.getvalue()
            with storage_errors(str(self._folder)):
                self._file.seek(self._end)
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) :]
            self.places.setdefault(number, []).append((self._end, data.size))
            self._end += data.size

    def read(self, number: int) -> list[pa.RecordBatch]:
        """Return the rows of a part, in the order in which they came."""
        batches: list[pa.RecordBatch] = []
        for start, size in self.places[number]:
            with storage_errors(str(self._folder)):
                self._file.seek(start)
                data = self._file.read(size)
            batches += pa.ipc.open_stream(data)
        return batches
