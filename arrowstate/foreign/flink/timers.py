"""Timers that an operator keeps on the heap beside a state in RocksDB or ForSt: they lie in its raw keyed state.

Of each key group: a mark, a version, and of each service its serializers, its timers of event time and those of
processing time. A timer is a key, a namespace and a time, other than where timers are a state of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.canonical import group_bytes
from arrowstate.foreign.flink.handles import KeyGroupsHandle
from arrowstate.foreign.flink.layout import RowColumns, StateLayout
from arrowstate.foreign.flink.places import Places, Stream
from arrowstate.foreign.flink.serializers.base import Serializer, compiled
from arrowstate.foreign.flink.serializers.composites import StructOf
from arrowstate.foreign.flink.serializers.program import Tape, UndecodableError
from arrowstate.foreign.flink.serializers.rewriting import without_kinds
from arrowstate.foreign.flink.serializers.scalars import Number
from arrowstate.foreign.flink.serializers.snapshots import UnknownSnapshotError, read_snapshot
from arrowstate_formats.cached_properties import cached_property

_MARK = 0xF1CD859F - (1 << 32)
_KINDS = ("event", "processing")


class RawTimersSource:
    """The timers in the raw keyed state of a subtask."""

    def __init__(self, places: Places, handle: KeyGroupsHandle) -> None:
        self._places, self._handle = places, handle
        self.unknown = ""

    @cached_property
    def _stream(self) -> Stream:
        assert self._handle.stream is not None
        return self._places.open(self._handle.stream)

    @cached_property
    def layouts(self) -> dict[str, StateLayout]:
        """The timers of each service and kind, by the names that they have as states."""
        return {layout.name: layout for layout, _ in self._found}

    @cached_property
    def _found(self) -> list[tuple[StateLayout, tuple[int, int, pa.Array]]]:
        """Of each key group and service its timers."""
        found: list[tuple[StateLayout, tuple[int, int, pa.Array]]] = []
        handle = self._handle
        for group, _, start, end, _ in group_bytes(self._stream, handle.first_key_group, handle.offsets, False):
            reader = ByteReader(self._stream.view, self._stream.name, start, end)
            try:
                found += self._services(reader, group)
            except UnknownSnapshotError as error:
                self.unknown = error.class_name
            except UndecodableError:
                self.unknown = "a key or a namespace of a timer"
        return found

    def _services(self, reader: ByteReader, group: int) -> Iterator[tuple[StateLayout, tuple[int, int, pa.Array]]]:
        if reader.integer() != _MARK:
            # A user function wrote this.
            self.unknown = "raw keyed state"
            return
        version = reader.integer()
        if version != 2:
            raise reader.wrong(f"timers of version {version}; those of Flink 1.8 and later are of version 2")
        for _ in range(reader.count(10)):
            service = reader.utf()
            key, namespace = without_kinds(read_snapshot(reader)), read_snapshot(reader)
            for kind in _KINDS:
                name = f"_timer_state/{kind}_{service}"
                layout = StateLayout(name, "timers", key, namespace, None, None)
                count = reader.count(key.least + namespace.least + 8)
                yield layout, (group, count, self._timers(reader, key, namespace, count))
        if reader.left:
            raise CorruptDataError(reader.name, f"at byte {reader.position}: the timers of key group {group} end here")

    def _timers(self, reader: ByteReader, key: Serializer, namespace: Serializer, count: int) -> pa.Array:
        timer = StructOf(("key", "namespace", "timestamp"), (key, namespace, Number(pa.int64())))
        code, column = compiled(timer)
        tape = Tape(code, self._stream.data, self._stream.name, count)
        if count:
            reader.position = int(tape.chain(reader.position, reader.end, count)[-1])
        return column(tape.slots)

    def batches(self, layout: StateLayout) -> Iterator[pa.RecordBatch]:
        """Yield the timers of a service and kind."""
        for each, (group, count, timers) in self._found:
            if each.name == layout.name and count:
                key, namespace, timestamps = timers.flatten()
                groups = np.full(count, group, dtype=np.int64)
                yield layout.batch(RowColumns(groups, key, namespace, timestamp=timestamps))
