"""The canonical format of savepoints: the same bytes, whatever backend wrote them.

Of each key group: the id of a state, then its entries, each a key and a value after their lengths. The first bit of a
key, which the key group leaves free, marks the last entry of a state; an id follows, or -1 at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.entries import Entries
from arrowstate.foreign.flink.places import Stream
from arrowstate.foreign.flink.serializers.machine import big_endian
from arrowstate.foreign.flink.serializers.program import Bytes, Ints
from arrowstate.foreign.flink.snappy import decompressed
from arrowstate_formats.compiled import kernel

_ROWS = 65536
_BYTES = 16 << 20
_AT, _STATE, _WRONG, _LEFT = 0, 1, 2, 3
_NO_STATE, _END = -2, -1
_REASONS = {1: "it is cut off", 2: "a length is longer than what is left", 3: "a key of no bytes"}


def group_bytes(
    stream: Stream, first_key_group: int, offsets: tuple[int, ...], compressed: bool
) -> Iterator[tuple[int, Bytes, int, int, str]]:
    """Yield the key groups of a stream that are not empty, decompressed."""
    size = len(stream.data)
    there = [(offset, first_key_group + place) for place, offset in enumerate(offsets) if offset]
    ends = [offset for offset, _ in there[1:]] + [size] * bool(there)
    for (offset, group), end in zip(there, ends, strict=True):
        if not offset < end <= size:
            raise CorruptDataError(stream.name, f"key group {group} is at bytes {offset} to {end} of {size}")
        if compressed:
            content = decompressed(stream.view, offset, end, stream.name)
            data = np.frombuffer(content, np.uint8)
            yield group, data, 0, len(data), f"{stream.name} (key group {group}, decompressed)"
        else:
            yield group, stream.data, offset, end, stream.name


def canonical_entries(
    stream: Stream, first_key_group: int, offsets: tuple[int, ...], compressed: bool, state: int
) -> Iterator[Entries]:
    """Yield the entries of one state, by its id."""
    found = _Found()
    for group, data, start, end, name in group_bytes(stream, first_key_group, offsets, compressed):
        if found.rows and data is not found.data:
            yield found.taken()
        found.data, found.name = data, name
        registers = np.array([start, _NO_STATE, 0, found.bytes_left], dtype=np.int64)
        while registers[_STATE] != _END:
            found.rows = _walk(data, end, state, found.rows, registers, *found.arrays)
            if registers[_WRONG]:
                raise CorruptDataError(name, f"at byte {registers[_AT]}: {_REASONS[int(registers[_WRONG])]}")
            found.bytes_left = int(registers[_LEFT])
            if found.rows == _ROWS or found.bytes_left <= 0:
                yield found.taken()
                registers[_LEFT] = found.bytes_left
        if registers[_AT] != end:
            raise CorruptDataError(name, f"at byte {registers[_AT]}: key group {group} ends here and not at byte {end}")
    if found.rows:
        yield found.taken()


class _Found:
    """Places of entries, as many as fit into a batch."""

    def __init__(self) -> None:
        self.rows, self.name, self.bytes_left = 0, "", _BYTES
        self.data: Bytes = np.empty(0, np.uint8)
        self.arrays: tuple[Ints, Ints, Ints, Ints] = self._new()

    @staticmethod
    def _new() -> tuple[Ints, Ints, Ints, Ints]:
        one, two, three, four = (np.empty(_ROWS, dtype=np.int64) for _ in range(4))
        return one, two, three, four

    def taken(self) -> Entries:
        key_starts, key_ends, value_starts, value_ends = (each[: self.rows] for each in self.arrays)
        entries = Entries(self.name, self.data, key_starts, key_ends, self.data, value_starts, value_ends)
        self.rows, self.arrays, self.bytes_left = 0, self._new(), _BYTES
        return entries


@kernel("uint8[], int64, int64, int64, out int64[], out int64[], out int64[], out int64[], out int64[]")
def _walk(
    data: Any,
    end: Any,
    wanted: Any,
    rows: Any,
    r: Any,
    key_starts: Any,
    key_ends: Any,
    value_starts: Any,
    value_ends: Any,
) -> Any:
    """Go through a key group, and note where the entries of the wanted state are, until no more fit."""
    position = r[_AT]
    state = r[_STATE]
    while True:
        if state == _NO_STATE:
            if end - position < 2:
                r[_WRONG] = 1
                break
            state = big_endian(data, position, 2)
            position += 2
            if state < 0:
                state = _END
                break
        if state == wanted and (rows == len(key_starts) or r[_LEFT] <= 0):
            break
        if end - position < 4:
            r[_WRONG] = 1
            break
        size = big_endian(data, position, 4)
        key = position + 4
        if size < 1:
            r[_WRONG] = 3
            break
        if size > end - key - 4:
            r[_WRONG] = 2
            break
        value = key + size
        length = big_endian(data, value, 4)
        value += 4
        if length < 0 or length > end - value:
            r[_WRONG] = 2
            break
        if state == wanted:
            key_starts[rows] = key
            key_ends[rows] = value - 4
            value_starts[rows] = value
            value_ends[rows] = value + length
            rows += 1
            r[_LEFT] -= size + length
        position = value + length
        if data[key] & 0x80:
            state = _NO_STATE
    r[_AT] = position
    r[_STATE] = state
    return rows
