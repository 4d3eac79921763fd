"""Entries of keyed state, each a key and a value as bytes, to rows: the canonical format, RocksDB and ForSt.

A key is its key group (one byte up to 128 of them, else two), the key, the namespace and, in a map, the key in it. A
list is its elements with commas between them; a value of a map follows a flag of null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.layout import RowColumns, StateLayout, is_always_opaque
from arrowstate.foreign.flink.serializers.base import Opaque, Serializer, bytes_of
from arrowstate.foreign.flink.serializers.columns import as_bytes, masked, named
from arrowstate.foreign.flink.serializers.composites import JoinedList, Optional
from arrowstate.foreign.flink.serializers.operations import FIXED, MARK, REST, SUFFIX
from arrowstate.foreign.flink.serializers.program import Bytes, Code, Column, Ints, Program, Tape
from arrowstate.foreign.flink.serializers.scalars import FlippedLong

_MOST_OF_ONE_BYTE = 128


def prefix_bytes(max_parallelism: int) -> int:
    """Return how many bytes of a key are its key group."""
    return 1 if max_parallelism <= _MOST_OF_ONE_BYTE else 2


@dataclass(slots=True)
class Entries:
    """Keys and values, each between two places of an array of bytes."""

    name: str
    keys: Bytes
    key_starts: Ints
    key_ends: Ints
    values: Bytes
    value_starts: Ints
    value_ends: Ints

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key and value."""
        places = (self.key_starts, self.key_ends, self.value_starts, self.value_ends)
        for key, key_end, value, value_end in zip(*(each.tolist() for each in places), strict=True):
            yield self.keys[key:key_end].tobytes(), self.values[value:value_end].tobytes()

    @staticmethod
    def of_arrays(name: str, keys: pa.LargeBinaryArray, values: pa.LargeBinaryArray) -> Entries:
        """Return what two arrays of Arrow hold."""
        key_data, key_offsets = bytes_and_offsets(keys)
        value_data, value_offsets = bytes_and_offsets(values)
        return Entries(
            name, key_data, key_offsets[:-1], key_offsets[1:], value_data, value_offsets[:-1], value_offsets[1:]
        )


def bytes_and_offsets(array: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of an array of binary, and where each value begins and ends in them."""
    if not len(array):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    wide = pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int64 if wide else np.int32, len(array) + 1 + array.offset)[array.offset :]
    return np.frombuffer(data if data is not None else b"", np.uint8), places.astype(np.int64, copy=False)


class EntryDecoder:
    """What makes rows of the entries of one state."""

    def __init__(self, layout: StateLayout, max_parallelism: int) -> None:
        self.layout, self.prefix = layout, prefix_bytes(max_parallelism)
        self._opaque_key = is_always_opaque(layout.key)
        self._keys = self._key_program()
        self._values = self._value_program()

    def _key_program(self) -> tuple[Code, dict[str, Column]]:
        layout, program = self.layout, Program()
        columns: dict[str, Column] = {}
        group = program.slots()
        program.add(FIXED, self.prefix, slot=group)
        mask = (1 << 8 * self.prefix - 1) - 1
        columns["group"] = lambda slots: slots[group] & mask
        if layout.kind == "timers":
            columns["timestamp"] = FlippedLong().add_to(program)
        mark = program.register()
        # Where both may have any length, each is followed by its own.
        suffixed = layout.kind != "timers" and layout.key.length < 0 and layout.namespace.length < 0
        parts: list[tuple[str, Serializer]] = [("key", layout.key), ("namespace", layout.namespace)]
        if self._opaque_key:
            columns["key"] = _rest(program, 0 if layout.user_key else max(layout.namespace.length, 0))
            parts = [] if layout.user_key or layout.namespace.length < 0 else parts[1:]
        for name, part in parts:
            program.add(MARK, mark)
            columns[name] = part.add_to(program, layout.user_key is None and name == "namespace")
            if suffixed:
                program.add(SUFFIX, mark)
        if layout.user_key is not None and not self._opaque_key:
            columns["user_key"] = layout.user_key.add_to(program, True)
        return program.finish(), columns

    def _value_program(self) -> tuple[Code, Column] | None:
        layout = self.layout
        if layout.value is None:
            return None
        serializer: Serializer = layout.value
        if layout.kind == "list":
            serializer = Opaque("", "") if layout.is_raw else JoinedList(serializer)
        elif layout.is_raw and not isinstance(layout.inner, Opaque):
            serializer = Opaque("", "")
        if layout.kind == "map":
            # Bytes may follow a null.
            serializer = Optional(serializer, 1, padding=-1)
        program = Program()
        column = serializer.add_to(program, True)
        return program.finish(), column

    def batch(self, entries: Entries) -> pa.RecordBatch:
        """Decode entries."""
        with named(entries.name):
            return self._batch(entries)

    def _batch(self, entries: Entries) -> pa.RecordBatch:
        code, columns = self._keys
        rows = len(entries.key_starts)
        tape = Tape(code, entries.keys, entries.name, rows)
        stops, unknown = tape.values(entries.key_starts, entries.key_ends)
        _check_ends(entries.name, "key", stops, entries.key_ends)
        if unknown.any():
            place = int(entries.key_starts[int(unknown.argmax())])
            raise CorruptDataError(entries.name, f"at byte {place}: nothing says how this key was written")
        slots = tape.slots
        parts = RowColumns(columns["group"](slots), columns["key"](slots))
        if "namespace" in columns:
            parts.namespace = columns["namespace"](slots)
        elif self.layout.has_namespace:
            parts.namespace = pa.nulls(rows, self.layout.namespace.arrow)
        if self.layout.user_key is not None:
            found = columns.get("user_key")
            parts.user_key = found(slots) if found else pa.nulls(rows, self.layout.user_key.arrow)
        if "timestamp" in columns:
            parts.timestamp = columns["timestamp"](slots)
        if self._values is not None:
            parts.value, parts.raw = self._decoded(entries)
        return self.layout.batch(parts)

    def _decoded(self, entries: Entries) -> tuple[pa.Array, pa.Array | None]:
        """The values, and the bytes of those that could not be decoded."""
        assert self._values is not None
        code, column = self._values
        tape = Tape(code, entries.values, entries.name, len(entries.value_starts))
        stops, unknown = tape.values(entries.value_starts, entries.value_ends)
        _check_ends(entries.name, "value", stops, entries.value_ends)
        value = column(tape.slots)
        if unknown.any():
            if not self.layout.may_fail:
                place = int(entries.value_starts[int(unknown.argmax())])
                raise CorruptDataError(
                    entries.name, f"at byte {place}: a text has half of a character; a hint of binary keeps its bytes"
                )
            value = masked(value, ~unknown)
        if not self.layout.may_fail:
            return value, None
        return value, bytes_of(entries.values, entries.value_starts, entries.value_ends, unknown)


def _rest(program: Program, behind: int) -> Column:
    slot = program.slots(2)
    program.add(REST, behind, slot=slot)
    return lambda slots: as_bytes(slots.data, slots[slot], slots[slot + 1])


def _check_ends(name: str, what: str, stops: Ints, ends: Ints) -> None:
    wrong = stops != ends
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptDataError(
            name,
            f"at byte {int(stops[row])}: a {what} ends here, and {int(ends[row] - stops[row])} bytes of it are left",
        )
