"""The entries of one table in their order, some blocks at a time, as the kernel of a merge takes them.

Keys are written out behind each other; values stay where they are, in the blocks. What was not taken when a stream is
filled again is moved to the front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.foreign.flink.sst import kernels
from arrowstate.foreign.flink.sst.files import read_exactly
from arrowstate.foreign.flink.sst.footer import TRAILER_BYTES, Handle
from arrowstate.foreign.flink.sst.table import Table

Ints = npt.NDArray[np.int64]

_GAP_BYTES = 1 << 16
"""What lies between two blocks and is not asked for is read with them, up to so many bytes."""
_READ_AHEAD = 4
"""So many times as much is read at a time as is decoded at a time: each read of a bucket waits for its answer."""
_MAX_KEY_BYTES = 1 << 28
"""Of the blocks that are taken at a time: what keys share with those before them takes no room in a file."""
_KINDS = {0x11: "a value in a blob file", 0x16: "a wide column", 0x18: "a value with a time"}
_WRONG = {
    kernels.OUT_OF_BLOCK: "an entry that does not fit the block",
    kernels.SHARES_TOO_MUCH: "a key that shares more than the one before it has",
    kernels.UNSORTED: "a key that does not come after the one before it",
    kernels.NO_ROOM_FOR_RESTARTS: "more places for a search than it has room for",
}


class SortedStream:
    """Entries of a table, from the key `first` on.

    Blocks all of whose keys lie behind `end` may be left out.
    """

    def __init__(self, table: Table, first: bytes = b"", end: bytes | None = None) -> None:
        self.table = table
        self.place, self.rows = 0, 0
        self._first = first
        self._number = kernels.NO_NUMBER if table.global_number is None else table.global_number
        self._content = self._contents(table.data_blocks(first, end))
        self._window_bytes = 0
        self._ended = False
        self._seen = 0 if not first and end is None else None
        self._raw = np.empty(kernels.SLACK, np.uint8)
        self._raw_size = 0
        self._keys = np.empty(kernels.SLACK, np.uint8)
        self._offsets = np.zeros(1, np.int64)
        self._tags = np.empty(0, np.uint64)
        self._starts, self._sizes = np.empty(0, np.int64), np.empty(0, np.int64)

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left of the table but the rows that are here."""
        return self._ended

    def key(self, row: int) -> bytes:
        """Return the key of a row."""
        return self._keys[self._offsets[row] : self._offsets[row + 1]].tobytes()

    def first_from(self, key: bytes) -> int:
        """Return the first row, of those not yet taken, whose key is not before a key."""
        padded = np.frombuffer(key + bytes(kernels.SLACK), np.uint8)
        return int(
            kernels.first_from(_address(self._keys), self._offsets, self.place, self.rows, _address(padded), len(key))
        )

    def addresses(self) -> tuple[int, ...]:
        """Return where keys, their offsets, tags, starts and sizes of values, and the blocks are in memory."""
        parts = (self._keys, self._offsets, self._tags, self._starts, self._sizes, self._raw)
        return tuple(_address(part) for part in parts)

    def sizes(self, end: int) -> tuple[int, int]:
        """Return the bytes of keys and of values of the rows from the next one to before `end`."""
        keys = int(self._offsets[end] - self._offsets[self.place])
        return keys, int(self._sizes[self.place : end].sum())

    def fill(self, size_bytes: int) -> None:
        """Take more blocks, of at least so many bytes in all unless the table ends, behind the rows that are left."""
        carried = self._keep_rest()
        before = self.rows
        while self.rows == before and not self._ended:
            # One key may have operands without end: rows that cannot be given yet are not moved time and again.
            self._append(max(size_bytes, carried))
            if before == 0:
                self.place = self.first_from(self._first)
                if self.place == self.rows:
                    self._keep_rest()

    def _keep_rest(self) -> int:
        """Move the rows that were not taken to the front; return how many bytes they have."""
        first, self.place = self.place, 0
        key_start, rest = int(self._offsets[first]), self.rows - first
        keys = int(self._offsets[self.rows]) - key_start
        raw_start = int(self._starts[first]) if rest else self._raw_size
        self._keys[:keys] = self._keys[key_start : key_start + keys]
        self._offsets[: rest + 1] = self._offsets[first : self.rows + 1] - key_start
        self._tags[:rest] = self._tags[first : self.rows]
        self._starts[:rest] = self._starts[first : self.rows] - raw_start
        self._sizes[:rest] = self._sizes[first : self.rows]
        self._raw_size -= raw_start
        self._raw[: self._raw_size] = self._raw[raw_start : raw_start + self._raw_size]
        self.rows = rest
        return keys + self._raw_size

    def _append(self, size_bytes: int) -> None:
        self._window_bytes = _READ_AHEAD * size_bytes
        contents: list[memoryview] = []
        offsets: list[int] = []
        total = 0
        while total < size_bytes and not self._ended:
            taken = next(self._content, None)
            if taken is None:
                self._ended = True
            else:
                handle, content = taken
                contents.append(content)
                offsets.append(handle.offset)
                total += len(content)
        bounds = self._raw_size + np.cumsum([0, *map(len, contents)])
        self._raw = _grown(self._raw, self._raw_size, int(bounds[-1]) + kernels.SLACK)
        for content, start, end in zip(contents, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            self._raw[start:end] = np.frombuffer(content, np.uint8)
        self._raw_size = int(bounds[-1])
        before = self.rows
        self._decode(bounds[:-1], bounds[1:], offsets)
        if self._seen is not None:
            self._seen += self.rows - before
            if self._ended:
                self._check_count(self._seen)

    def _decode(self, starts: Ints, ends: Ints, offsets: list[int]) -> None:
        progress = np.array([0, -1, self.rows, self.rows, 0, 0], np.int64)
        most = int(self._offsets[self.rows]) + _MAX_KEY_BYTES
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        while True:
            status = kernels.decode_blocks(
                _address(self._raw),
                starts,
                ends,
                self._number,
                _address(self._keys),
                self._keys.size,
                self._offsets,
                self._tags,
                self._starts,
                self._sizes,
                progress,
            )
            self.rows = int(progress[2])
            if status == kernels.DONE:
                return
            if status == kernels.KEYS_FULL:
                if self._offsets[self.rows] > most:
                    self.table.blocks.fail(offsets[int(progress[0])], f"has keys of more than {_MAX_KEY_BYTES} bytes")
                self._more_keys(int(ends[-1] - starts[0]))
            elif status == kernels.ROWS_FULL:
                self._more_rows()
            else:
                block = int(progress[0])
                self._wrong(status, offsets[block], int(progress[1] - starts[block]), int(progress[5]))

    def _more_keys(self, content_bytes: int) -> None:
        used = int(self._offsets[self.rows])
        self._keys = _grown(self._keys, used, max(2 * self._keys.size, content_bytes) + (1 << 12))

    def _more_rows(self) -> None:
        room = max(2 * self._offsets.size, 1 << 10)
        self._offsets = _grown(self._offsets, self.rows + 1, room + 1)
        self._tags = _grown(self._tags, self.rows, room)
        self._starts, self._sizes = _grown(self._starts, self.rows, room), _grown(self._sizes, self.rows, room)

    def _wrong(self, status: int, offset: int, place: int, kind: int) -> None:
        if status == kernels.UNKNOWN_KIND:
            named = _KINDS.get(kind)
            if named is not None:
                raise InvalidInputError(
                    f"{self.table.file.name} has {named} in the block at byte {offset}, which is not read; take a "
                    "canonical savepoint"
                )
            self.table.blocks.fail(offset, f"has an entry of the unknown kind {kind} at byte {place} of its content")
        self.table.blocks.fail(offset, f"has {_WRONG[status]}, at byte {place} of its content")

    def _check_count(self, rows: int) -> None:
        expected = self.table.entry_count
        if expected and rows != expected:
            raise CorruptDataError(
                self.table.file.name, f"its index leads to {rows} entries, and it has {expected} by its properties"
            )

    def _contents(self, handles: Iterator[Handle]) -> Iterator[tuple[Handle, memoryview]]:
        """Yield blocks, read several at a time."""
        file, blocks = self.table.file, self.table.blocks
        following = next(handles, None)
        while following is not None:
            group = [following]
            start, end = following.offset, following.offset + following.size + TRAILER_BYTES
            for following in handles:
                is_apart = following.offset > end + _GAP_BYTES
                if is_apart or following.offset + following.size > start + self._window_bytes:
                    break
                group.append(following)
                end = following.offset + following.size + TRAILER_BYTES
            else:
                following = None
            data = read_exactly(file, start, end - start)
            for handle in group:
                yield handle, blocks.content(data, handle.offset - start, handle)
            del data


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _grown(array: npt.NDArray[Any], used: int, size: int) -> npt.NDArray[Any]:
    """Return an array with room for `size` elements and the first `used` of another; that one, if it has the room."""
    if array.size >= size:
        return array
    grown = np.empty(size, array.dtype)
    grown[:used] = array[:used]
    return grown
