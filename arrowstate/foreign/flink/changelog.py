"""A changelog: state as it was when it was last written whole, and every change since.

A change is an operation, the id of a state, and a key, a namespace and what was set, added or removed; a description of
the state comes before the first. Reducing and aggregating states log what they hold, so no code of the job is needed,
but for windows that were merged. Changes are applied one by one to the bytes of entries, in Python; what is left is
decoded as the canonical format is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.entries import EntryDecoder, prefix_bytes
from arrowstate.foreign.flink.handles import ChangelogFiles, ChangelogHandle, FileHandle, InMemoryChanges
from arrowstate.foreign.flink.keyed_header import StateInfo, read_state_info
from arrowstate.foreign.flink.layout import StateLayout, layout_of
from arrowstate.foreign.flink.places import Places
from arrowstate.foreign.flink.serializers.base import Opaque, Serializer
from arrowstate.foreign.flink.serializers.composites import Optional, StructOf
from arrowstate.foreign.flink.serializers.program import Bytes
from arrowstate.foreign.flink.serializers.scalars import FlippedLong
from arrowstate.foreign.flink.serializers.snapshots import UnknownSnapshotError
from arrowstate.foreign.flink.slices import EntryBuilder, Marked
from arrowstate.foreign.flink.snappy import MAX_STREAM_BYTES, decompressed
from arrowstate.foreign.flink.sources import EntrySource
from arrowstate_formats.cached_properties import cached_property

_CLEAR, _SET, _SET_INTERNAL, _ADD, _MERGE, _ADD_ELEMENT, _PUT, _REMOVE = range(8)
_DESCRIPTION = 7


class _Change:
    """A change: where it stands, and of which key group."""

    __slots__ = ("data", "end", "group", "name", "operation", "start")

    def __init__(self, data: Bytes, name: str, start: int, end: int, group: int) -> None:
        self.data, self.name, self.group, self.end = data, name, group, end
        self.operation = int(data[start])
        self.start = start + 3


class ChangelogSource:
    """State and its changes."""

    def __init__(
        self, places: Places, handle: ChangelogHandle, base: Sequence[EntrySource], max_parallelism: int
    ) -> None:
        self._places, self._handle, self._max_parallelism = places, handle, max_parallelism
        self.base = base
        self._unknown = ""

    @cached_property
    def _read(self) -> tuple[dict[str, StateInfo], dict[str, list[_Change]]]:
        """The states that changes describe, and the changes of each, in order."""
        infos: dict[int, StateInfo] = {}
        changes: dict[str, list[_Change]] = {}
        groups = range(self._handle.first_key_group, self._handle.first_key_group + self._handle.key_groups)
        for data, name, start, end, group in self._all_changes():
            if end - start < 3:
                raise CorruptDataError(name, f"at byte {start}: a change of {end - start} bytes")
            if group < 0:
                reader = ByteReader(data.data, name, start, end)
                number = int.from_bytes(data[end - 3 : end - 1].tobytes(), "big")
                reader.skip(1)
                if reader.integer() != _DESCRIPTION:
                    raise reader.wrong("no description of a state of version 7")
                try:
                    infos[number] = read_state_info(reader)
                except UnknownSnapshotError as error:
                    self._unknown = error.class_name
                continue
            number = int.from_bytes(data[start + 1 : start + 3].tobytes(), "big")
            if number in infos and group in groups:
                changes.setdefault(infos[number].name, []).append(_Change(data, name, start, end, group))
            elif number not in infos and not self._unknown:
                raise CorruptDataError(name, f"at byte {start}: a change of state {number}, which nothing describes")
        return {info.name: info for info in infos.values()}, changes

    def _all_changes(self) -> Iterator[tuple[Bytes, str, int, int, int]]:
        for handle in self._handle.changes:
            if isinstance(handle, InMemoryChanges):
                metadata = self._places.metadata
                for group, start, size in handle.changes:
                    yield metadata.data, metadata.name, start, start + size, group
            elif isinstance(handle, ChangelogFiles):
                yield from self._of_files(handle)

    def _of_files(self, handle: ChangelogFiles) -> Iterator[tuple[Bytes, str, int, int, int]]:
        for offset, file in handle.files:
            if file is None:
                continue
            # The size is that of the changes before they were compressed, without the byte that says whether they were.
            stream = self._places.open(file, is_sized=False)
            if not len(stream.data) or stream.data[0] > 1:
                raise CorruptDataError(stream.name, "at byte 0: no file of changes")
            data, name = stream.data[1:], stream.name
            if stream.data[0]:
                whole = isinstance(file, FileHandle) and file.start is None
                most = min(file.size, MAX_STREAM_BYTES) if whole else MAX_STREAM_BYTES
                content = decompressed(stream.view, 1, len(stream.data), name, most=most)
                data, name = np.frombuffer(content, np.uint8), f"{name} (decompressed)"
            if isinstance(file, FileHandle) and file.start is None and len(data) != file.size:
                raise CorruptDataError(name, f"it has {len(data)} bytes of changes and must have {file.size}")
            reader = ByteReader(data.data, name, min(offset, len(data)))
            for _ in range(reader.count(8)):
                count, group = reader.count(4), reader.integer()
                for _ in range(count):
                    size = reader.count()
                    yield data, name, reader.position, reader.position + size, group
                    reader.skip(size)

    @cached_property
    def layouts(self) -> dict[str, StateLayout]:
        """The states, by name."""
        found = {name: layout for source in self.base for name, layout in source.layouts.items()}
        infos, _ = self._read
        key = self._key(infos, found)
        return {**found, **{name: layout_of(info, key) for name, info in infos.items()}}

    @staticmethod
    def _key(infos: dict[str, StateInfo], found: dict[str, StateLayout]) -> Serializer:
        """The key: what is written whole says it, and timers do; changes of other states do not."""
        for layout in found.values():
            return layout.key
        for info in infos.values():
            timer = info.serializer("VALUE_SERIALIZER")
            if isinstance(timer, StructOf) and timer.class_name == "timer":
                return timer.parts[1]
        return Opaque("the key", "a changelog without timers does not say how keys are written")

    @property
    def unknown(self) -> str:
        """A serializer of states that are left out."""
        _ = self._read
        return self._unknown or next((source.unknown for source in self.base if source.unknown), "")

    def batches(self, layout: StateLayout) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state."""
        changes = self._read[1].get(layout.name, [])
        base = [source for source in self.base if layout.name in source.layouts]
        if not changes:
            for source in base:
                yield from source.batches(layout)
            return
        applied = _Applied(layout, self._max_parallelism)
        for source in base:
            for entries in source.entries(layout):
                applied.begin(entries.pairs())
        for change in changes:
            applied.change(change)
        decoder = EntryDecoder(layout, self._max_parallelism)
        name = f"the changes of {layout.name!r}"
        yield from map(decoder.batch, EntryBuilder.entries(name, applied.entries()))


class _Applied:
    """Entries of one state by the bytes of their keys, while changes are applied to them."""

    def __init__(self, layout: StateLayout, max_parallelism: int) -> None:
        self.layout = layout
        self.builder = EntryBuilder(layout, max_parallelism)
        self.prefix = prefix_bytes(max_parallelism)
        self.timers: set[bytes] = set()
        self.values: dict[bytes, bytes] = {}
        self.lists: dict[bytes, list[bytes]] = {}
        self.maps: dict[bytes, dict[bytes, bytes]] = {}
        self.key = Marked((layout.key, layout.namespace))
        if layout.kind == "timers":
            self.whole = Marked((), (self._timer,))
        elif layout.kind == "list":
            assert layout.value is not None
            self.whole = Marked((), (layout.value,))
        elif layout.user_key is not None:
            assert layout.value is not None
            self.whole = Marked((), (layout.user_key, Optional(layout.value, 1)))
            self.user_key = Marked((layout.user_key,))

    @property
    def _timer(self) -> Serializer:
        return StructOf(("timestamp", "key", "namespace"), (FlippedLong(), self.layout.key, self.layout.namespace))

    def begin(self, pairs: Iterator[tuple[bytes, bytes]]) -> None:
        """Take entries of the canonical format as they were before the changes."""
        layout = self.layout
        for key, value in pairs:
            key = bytes([key[0] & 0x7F]) + key[1:]
            if layout.kind == "timers":
                self.timers.add(key)
            elif layout.kind == "list":
                assert layout.value is not None
                self.lists[key] = _elements(layout.value, value)
            elif layout.user_key is not None:
                data = np.frombuffer(key, np.uint8)
                end = self._end_of_key(data)
                self.maps.setdefault(key[:end], {})[key[end:]] = value
            else:
                self.values[key] = value

    def _end_of_key(self, data: Bytes) -> int:
        start = np.array([self.prefix], dtype=np.int64)
        (places, _), *_ = self.key.each(data, "a key", start, np.array([len(data)], dtype=np.int64))
        if self.builder.suffixed:
            raise InvalidInputError("maps by keys and namespaces of any length, written whole before their changes")
        return places[-1]

    def change(self, change: _Change) -> None:
        """Apply one change."""
        layout = self.layout
        if layout.kind == "timers":
            self._queue(change)
            return
        start = np.array([change.start], dtype=np.int64)
        end = np.array([change.end], dtype=np.int64)
        (places, _), *_ = self.key.each(change.data, change.name, start, end)
        data = change.data
        key, namespace = (data[places[at] : places[at + 1]].tobytes() for at in (0, 1))
        whole_key = self.builder.key(change.group, key, namespace)
        payload = places[-1]
        if change.operation == _MERGE:
            raise InvalidInputError(
                f"{layout.name!r} has windows that were merged in a changelog, which only the job's own function can; "
                "take a canonical savepoint"
            )
        if layout.kind == "list":
            self._list(change, whole_key, payload)
        elif layout.user_key is not None:
            self._map(change, whole_key, payload)
        elif change.operation == _CLEAR:
            self.values.pop(whole_key, None)
        elif change.operation in (_SET, _SET_INTERNAL):
            self.values[whole_key] = data[payload : change.end].tobytes()
        else:
            raise self._wrong(change)

    def _wrong(self, change: _Change) -> CorruptDataError:
        kind = self.layout.kind
        return CorruptDataError(change.name, f"at byte {change.start - 3}: operation {change.operation} on a {kind}")

    def _parts(self, change: _Change, start: int) -> list[list[int]]:
        """Where the parts of what follows a number are."""
        starts, ends = np.array([start], dtype=np.int64), np.array([change.end], dtype=np.int64)
        (_, inner), *_ = self.whole.each(change.data, change.name, starts, ends)
        return inner

    def _list(self, change: _Change, key: bytes, payload: int) -> None:
        data = change.data
        if change.operation == _CLEAR:
            self.lists.pop(key, None)
        elif change.operation == _ADD_ELEMENT:
            self.lists.setdefault(key, []).append(data[payload : change.end].tobytes())
        elif change.operation in (_SET, _SET_INTERNAL, _ADD):
            elements = [data[start:end].tobytes() for start, end in self._parts(change, payload)]
            if change.operation == _ADD:
                elements = self.lists.get(key, []) + elements
            self.lists[key] = elements
        else:
            raise self._wrong(change)

    def _map(self, change: _Change, key: bytes, payload: int) -> None:
        data, operation = change.data, change.operation
        if operation == _CLEAR:
            self.maps.pop(key, None)
        elif operation in (_SET, _SET_INTERNAL, _ADD):
            found = {} if operation != _ADD else self.maps.get(key, {})
            for start, middle, end in self._parts(change, payload):
                found[data[start:middle].tobytes()] = data[middle:end].tobytes()
            self.maps[key] = found
        elif operation == _PUT:
            starts, ends = np.array([payload], dtype=np.int64), np.array([change.end], dtype=np.int64)
            (places, _), *_ = self.user_key.each(data, change.name, starts, ends)
            user_key = data[payload : places[-1]].tobytes()
            self.maps.setdefault(key, {})[user_key] = b"\0" + data[places[-1] : change.end].tobytes()
        elif operation == _REMOVE:
            self.maps.get(key, {}).pop(data[payload : change.end].tobytes(), None)
        else:
            raise self._wrong(change)

    def _queue(self, change: _Change) -> None:
        group = change.group.to_bytes(self.prefix, "big")
        if change.operation == _ADD_ELEMENT:
            for start, end in self._parts(change, change.start):
                self.timers.add(group + change.data[start:end].tobytes())
        elif change.operation == _REMOVE:
            self.timers.discard(group + change.data[change.start : change.end].tobytes())
        else:
            raise self._wrong(change)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is left, as entries of the canonical format."""
        yield from ((timer, b"") for timer in sorted(self.timers))
        yield from self.values.items()
        for key, elements in self.lists.items():
            if elements:
                yield key, b",".join(elements)
        for key, found in self.maps.items():
            for user_key, value in found.items():
                yield key + user_key, value


def _elements(element: Serializer, joined: bytes) -> list[bytes]:
    """The elements of a list that is joined by commas."""
    found, at = [], 0
    ends = Marked((element,))
    data = np.frombuffer(joined, np.uint8)
    while at < len(joined):
        start, end = np.array([at], dtype=np.int64), np.array([len(joined)], dtype=np.int64)
        (places, _), *_ = ends.each(data, "a list", start, end)
        found.append(joined[at : places[-1]])
        at = places[-1] + 1
    return found
