"""What a column family holds: its tables merged, the newest entry of each key, without what was deleted.

Levels do not matter, for a newer entry has a larger sequence number. Of each table that may have keys in the range that
is merged some blocks are in memory, and the merge goes as far as the first of them that ends. A table takes part when
its first key is reached, so of tables that do not overlap one is open at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.foreign.flink.sst import kernels
from arrowstate.foreign.flink.sst.range_deletions import Fragments
from arrowstate.foreign.flink.sst.streams import SortedStream
from arrowstate.foreign.flink.sst.table import Table

_BUFFER_BYTES, _LEAST_FILL_BYTES, _MOST_FILL_BYTES = 32 << 20, 64 << 10, 1 << 20
_BATCH_ROWS, _BATCH_BYTES = 1 << 16, 4 << 20
_APPENDING = ("StringAppendTESTOperator", "StringAppendOperator", "stringappendtest", "stringappend")

Batch = tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]


def merged(tables: Sequence[Table], *, first: bytes = b"", end: bytes | None = None) -> Iterator[Batch]:
    """Yield the live keys from `first` to before `end` of tables that were opened, and what they hold."""
    return _large_enough(_Merge(tables, first, end).batches())


class _Merge:
    def __init__(self, tables: Sequence[Table], first: bytes, end: bytes | None) -> None:
        self._first, self._end = first, end
        for table in tables:
            self._check_place(table, len(tables))
        self._fragments = Fragments([deletion for table in tables for deletion in table.range_deletions])
        self._state = np.array([-1, 0], np.int64)
        self._active: list[SortedStream] = []
        self._pending = self._in_order(tables)

    def batches(self) -> Iterator[Batch]:
        """Yield what is below the first end of what is in memory, then go on where that was."""
        while self._active or self._pending:
            self._active = [stream for stream in self._active if stream.place < stream.rows or not stream.has_ended]
            bounds: list[tuple[bytes, SortedStream | None]] = [
                (stream.key(stream.rows - 1), stream) for stream in self._active if not stream.has_ended
            ]
            if self._pending:
                bounds.append((self._pending[-1][0], None))
            bound, stream = min(bounds, key=lambda pair: pair[0], default=(None, None))
            if self._end is not None and (bound is None or bound > self._end):
                bound = self._end
            batch = self._below(bound)
            if batch is not None:
                yield batch
            if bound is None or bound == self._end:
                return
            if stream is None:
                self._open(self._pending.pop()[1])
            else:
                stream.fill(self._fill_bytes())

    def _in_order(self, tables: Sequence[Table]) -> list[tuple[bytes, Table]]:
        """Return the tables that have something in the range with their first keys in it, the first one last."""
        if len(tables) == 1:
            return [(self._first, tables[0])]
        found = []
        for table in tables:
            stream = SortedStream(table, self._first, self._end)
            stream.fill(1)
            if stream.place < stream.rows and (self._end is None or stream.key(stream.place) < self._end):
                found.append((stream.key(stream.place), table))
        return sorted(found, key=lambda pair: pair[0], reverse=True)

    def _open(self, table: Table) -> None:
        stream = SortedStream(table, self._first, self._end)
        stream.fill(self._fill_bytes())
        self._active.append(stream)

    def _fill_bytes(self) -> int:
        share = _BUFFER_BYTES // (len(self._active) + 1)
        return min(max(share, _LEAST_FILL_BYTES), _MOST_FILL_BYTES)

    def _below(self, bound: bytes | None) -> Batch | None:
        """Return the live keys before a bound, and take their rows from the streams."""
        streams = self._active
        ends = [stream.rows if bound is None else stream.first_from(bound) for stream in streams]
        rows = sum(end - stream.place for stream, end in zip(streams, ends, strict=True))
        if rows == 0:
            return None
        sizes = [stream.sizes(end) for stream, end in zip(streams, ends, strict=True)]
        keys = np.empty(sum(size for size, _ in sizes) + kernels.SLACK, np.uint8)
        values = np.empty(sum(size for _, size in sizes) + rows + kernels.SLACK, np.uint8)
        key_offsets, value_offsets = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
        places = np.array([stream.place for stream in streams], np.int64)
        joined = int(self._state[1])
        live = kernels.merge_streams(
            *(np.array(part, np.uint64) for part in zip(*(stream.addresses() for stream in streams), strict=True)),
            places,
            np.array(ends, np.int64),
            np.empty(len(streams), np.int64),
            *self._fragments.arrays(),
            self._state,
            np.empty(rows, np.uint64),
            np.empty(rows, np.int64),
            keys.ctypes.data,
            key_offsets,
            values.ctypes.data,
            value_offsets,
        )
        if self._state[1] > joined:
            self._check_operator()
        for stream, end in zip(streams, ends, strict=True):
            stream.place = end
        if live == 0:
            return None
        return _binary(live, key_offsets, keys), _binary(live, value_offsets, values)

    def _check_place(self, table: Table, count: int) -> None:
        """Refuse a table whose place among others nobody knows."""
        deletes = any(
            deletion.end > self._first and (self._end is None or deletion.start < self._end)
            for deletion in table.range_deletions
        )
        if count > 1 and (table.is_unnumbered or (deletes and not table.is_whole)):
            unknown = "how new it is" if table.is_unnumbered else "how far its deletions of ranges of keys go"
            raise InvalidInputError(
                f"{table.file.name} is one of {count} tables, and {unknown} is known to the MANIFEST alone, which "
                "was not given"
            )

    def _check_operator(self) -> None:
        for stream in self._active:
            operator = stream.table.merge_operator
            if operator not in _APPENDING:
                raise InvalidInputError(
                    f"{stream.table.file.name} has operands for {operator!r}; those are joined that "
                    f"{_APPENDING[0]} of Flink's lists joins"
                )


def _binary(rows: int, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    parts = [None, pa.py_buffer(offsets[: rows + 1]), pa.py_buffer(data[: offsets[rows]])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, parts)


def _large_enough(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches joined to at least `_BATCH_ROWS` rows or `_BATCH_BYTES` bytes, but for the last one."""
    held: list[Batch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch[0])
        size += batch[1].nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    keys, values = zip(*batches, strict=True)
    return pa.concat_arrays(keys), pa.concat_arrays(values)
