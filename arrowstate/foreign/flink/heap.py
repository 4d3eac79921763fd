"""The heap's own format: checkpoints and native savepoints of the hashmap backend.

`heap_index` says where the entries of each state are; here they become rows. A map is one value there and has a row
per entry here, as in the other formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.entries import Entries
from arrowstate.foreign.flink.handles import KeyGroupsHandle
from arrowstate.foreign.flink.heap_index import GroupParser, Segment, entry_serializer, walker
from arrowstate.foreign.flink.keyed_header import KeyedHeader, read_keyed_header
from arrowstate.foreign.flink.layout import RowColumns, StateLayout, layout_of
from arrowstate.foreign.flink.places import Places, Stream
from arrowstate.foreign.flink.serializers.base import Serializer, bytes_of, compiled
from arrowstate.foreign.flink.serializers.columns import named
from arrowstate.foreign.flink.serializers.composites import ListOf, MapOf, Optional, StructOf
from arrowstate.foreign.flink.serializers.program import Bytes, Code, Column, Ints, Tape, UndecodableError
from arrowstate.foreign.flink.slices import EntryBuilder, Marked
from arrowstate.foreign.flink.snappy import decompressed
from arrowstate_formats.cached_properties import cached_property

_ROWS = 65536
_BYTES = 16 << 20


def heap_value(layout: StateLayout) -> Serializer | None:
    """Return how the whole value of a state is written: of a list or a map, all of it."""
    if layout.value is None:
        return None
    if layout.kind == "list":
        return ListOf(layout.value)
    if layout.user_key is not None:
        return MapOf(layout.user_key, layout.value)
    return layout.value


class HeapSource:
    """A stream of the heap's own format."""

    def __init__(self, places: Places, handle: KeyGroupsHandle, max_parallelism: int) -> None:
        self._places, self._handle, self._max_parallelism = places, handle, max_parallelism
        self._parsed: dict[int, list[Segment]] = {}

    @cached_property
    def _opened(self) -> tuple[Stream, KeyedHeader]:
        assert self._handle.stream is not None
        stream = self._places.open(self._handle.stream)
        return stream, read_keyed_header(ByteReader(stream.view, stream.name))

    @cached_property
    def layouts(self) -> dict[str, StateLayout]:
        """The states, by name."""
        header = self._opened[1]
        return {info.name: layout_of(info, header.key) for info in header.states}

    @property
    def unknown(self) -> str:
        """A serializer after which states could not be described."""
        return self._opened[1].unknown

    @cached_property
    def _parser(self) -> GroupParser:
        layouts = dict(enumerate(self.layouts.values()))
        entries = {number: entry_serializer(layout, heap_value(layout)) for number, layout in layouts.items()}
        return GroupParser(entries, layouts, self._max_parallelism)

    def _groups(self) -> Iterator[tuple[int, Bytes, int, int, str]]:
        stream, header = self._opened
        handle, size = self._handle, len(stream.data)
        there = sorted((offset, handle.first_key_group + place) for place, offset in enumerate(handle.offsets))
        there = [each for each in there if each[0]]
        ends = [offset for offset, _ in there[1:]] + [size] * bool(there)
        for (offset, group), end in zip(there, ends, strict=True):
            if not offset + 4 <= end <= size:
                raise CorruptDataError(stream.name, f"key group {group} is at bytes {offset} to {end} of {size}")
            written = int.from_bytes(stream.data[offset : offset + 4].tobytes(), "big", signed=True)
            if written != group:
                raise CorruptDataError(stream.name, f"at byte {offset}: key group {written} and not {group}")
            if header.compressed:
                data = np.frombuffer(decompressed(stream.view, offset + 4, end, stream.name), np.uint8)
                yield group, data, 0, len(data), f"{stream.name} (key group {group}, decompressed)"
            else:
                yield group, stream.data, offset + 4, end, stream.name

    def batches(self, layout: StateLayout) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state."""
        rows = HeapRows(layout, heap_value(layout))
        for group, data, name, segment in self._segments(layout):
            yield from rows.add(data, name, group, segment)
        yield from rows.taken()

    def entries(self, layout: StateLayout) -> Iterator[Entries]:
        """Yield the entries of a state as the canonical format has them; made one by one, for changes to them."""
        builder = EntryBuilder(layout, self._max_parallelism)
        name = f"{self._opened[0].name} ({layout.name!r})"
        return builder.entries(name, self._pairs(layout, builder))

    def _pairs(self, layout: StateLayout, builder: EntryBuilder) -> Iterator[tuple[bytes, bytes]]:
        value = layout.value
        if value is None:
            parts: list[Serializer] = [entry_serializer(layout, None)]
            repeated: list[Serializer] = []
        elif layout.kind == "list":
            parts, repeated = [layout.namespace, layout.key], [value]
        elif layout.user_key is not None:
            parts, repeated = [layout.namespace, layout.key], [layout.user_key, Optional(value, 1)]
        else:
            parts, repeated = [layout.namespace, layout.key, value], []
        if any(part.opaque for part in (*parts, *repeated)):
            raise InvalidInputError(f"{layout.name!r} has changes, and {layout.opaque[0]} hides where its values end")
        marked = Marked(parts, repeated)
        for group, data, name, segment in self._segments(layout):
            if segment.kind != "rows":
                raise CorruptDataError(name, f"at byte {segment.start}: a value that cannot be decoded has changes")
            for places, inner in marked.chain(data, name, segment.start, segment.end, segment.count):
                cut = [data[start:end].tobytes() for start, end in pairwise(places)]
                if value is None:
                    yield builder.key(group, cut[0], b""), b""
                elif layout.kind == "list":
                    yield (
                        builder.key(group, cut[1], cut[0]),
                        b",".join(data[start:end].tobytes() for start, end in inner),
                    )
                elif layout.user_key is not None:
                    for start, middle, end in inner:
                        user_key = data[start:middle].tobytes()
                        yield builder.key(group, cut[1], cut[0], user_key), data[middle:end].tobytes()
                else:
                    yield builder.key(group, cut[1], cut[0]), cut[2]

    def _segments(self, layout: StateLayout) -> Iterator[tuple[int, Bytes, str, Segment]]:
        if self.unknown:
            # Without lengths nothing can be found behind a state that nobody describes.
            raise CorruptDataError(
                self._opened[0].name,
                f"a state is written by {self.unknown}, which is not known; a canonical savepoint has lengths",
            )
        number = list(self.layouts).index(layout.name)
        for group, data, start, end, name in self._groups():
            if group not in self._parsed:
                self._parsed[group] = self._parser.parse(data, name, start, end, group)
            for segment in self._parsed[group]:
                if segment.state == number:
                    yield group, data, name, segment


class HeapRows:
    """Makes rows of segments of entries."""

    def __init__(self, layout: StateLayout, value: Serializer | None) -> None:
        self.layout = layout
        self._entry: tuple[Code, Column] = compiled(entry_serializer(layout, value))
        self._key: tuple[Code, Column] = compiled(StructOf(("namespace", "key"), (layout.namespace, layout.key)))
        self._walk = walker(entry_serializer(layout, value))
        self._is_map = layout.user_key is not None
        self._tape: Tape | None = None
        self._groups: list[tuple[int, int]] = []
        self._rows = 0

    def add(self, data: Bytes, name: str, group: int, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Add a segment, and yield the batches that are full."""
        if segment.kind != "rows":
            yield from self.taken()
            yield self._bytes(data, name, group, segment)
            return
        if self._tape is not None and self._tape.data is not data:
            yield from self.taken()
        done, position = 0, segment.start
        # Large values make small batches.
        most = max(1, min(_ROWS, _BYTES * segment.count // max(segment.end - segment.start, 1)))
        while done < segment.count:
            if self._tape is None:
                self._tape = Tape(self._entry[0], data, name, min(segment.count, _ROWS))
            chunk = min(segment.count - done, max(most - self._rows, 1))
            try:
                position = int(self._tape.chain(position, segment.end, chunk)[-1])
            except UndecodableError as error:
                # Its end is known, and Arrow has no such value.
                chunk, start = error.row, error.position
                position = int(Tape(self._walk, data, name).chain(start, segment.end, 1)[-1])
                yield self._bytes(data, name, group, Segment(segment.state, "raw", start, position, 1))
                done += 1
            self._groups.append((group, chunk))
            self._rows += chunk
            done += chunk
            if self._rows >= most:
                yield from self.taken()
        if position != segment.end:
            raise CorruptDataError(name, f"at byte {position}: entries end here and not at byte {segment.end}")

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Yield what was added and not yet given."""
        if self._tape is None:
            return
        with named(self._tape.name):
            entries = self._entry[1](self._tape.slots)
        groups = np.repeat(*np.array(self._groups, dtype=np.int64).T)
        self._tape, self._groups, self._rows = None, [], 0
        fields = {field.name: column for field, column in zip(entries.type, entries.flatten(), strict=True)}
        parts = RowColumns(groups, fields["key"], fields["namespace"], timestamp=fields.get("timestamp"))
        if "value" in fields:
            parts = self._with_values(parts, fields["value"])
        yield self.layout.batch(parts)

    def _with_values(self, parts: RowColumns, value: pa.Array) -> RowColumns:
        if self._is_map:
            counts = np.diff(value.offsets.to_numpy())
            rows = np.repeat(np.arange(len(value)), counts)
            places = pa.array(rows)
            assert parts.namespace is not None
            parts = RowColumns(
                parts.key_groups[rows], parts.key.take(places), parts.namespace.take(places), user_key=value.keys
            )
            value = value.items
        parts.value = value
        if self.layout.may_fail:
            parts.raw = pa.nulls(len(value), pa.binary())
        return parts

    def _bytes(self, data: Bytes, name: str, group: int, segment: Segment) -> pa.RecordBatch:
        """A row of the bytes of an entry, or of entries that cannot be told apart: then its key is not known."""
        layout = self.layout
        if not layout.may_fail and not layout.is_raw:
            raise CorruptDataError(
                name,
                f"at byte {segment.start}: a text has half of a character; of a canonical savepoint a hint of binary "
                "keeps its bytes",
            )
        start: Ints = np.array([segment.start], dtype=np.int64)
        end: Ints = np.array([segment.end], dtype=np.int64)
        keys = pa.nulls(1, layout.key.arrow)
        namespace = pa.nulls(1, layout.namespace.arrow)
        if segment.kind == "raw":
            tape = Tape(self._key[0], data, name)
            start, unknown = tape.values(start, end)
            if not unknown[0]:
                namespace, keys = self._key[1](tape.slots).flatten()
            else:
                start = np.array([segment.start], dtype=np.int64)
        raw = bytes_of(data, start, end, np.ones(1, dtype=np.bool_))
        parts = RowColumns(np.array([group], dtype=np.int64), keys, namespace)
        if layout.user_key is not None:
            parts.user_key = pa.nulls(1, layout.user_key.arrow)
        assert layout.value is not None
        if layout.is_raw and layout.kind != "map" and not layout.has_ttl:
            parts.value = raw
        else:
            kind = pa.list_(layout.value.arrow) if layout.kind == "list" else layout.value.arrow
            parts.value, parts.raw = pa.nulls(1, kind), raw
        return layout.batch(parts)
