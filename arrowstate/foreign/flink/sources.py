"""What a handle of keyed state holds: the states it names, and their rows.

Each kind of handle has a source of its own; all of them give the same columns (`layout`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.canonical import canonical_entries
from arrowstate.foreign.flink.entries import Entries, EntryDecoder, prefix_bytes
from arrowstate.foreign.flink.handles import IncrementalHandle, KeyGroupsHandle
from arrowstate.foreign.flink.keyed_header import KeyedHeader, read_keyed_header
from arrowstate.foreign.flink.layout import StateLayout, layout_of
from arrowstate.foreign.flink.places import Places, Stream
from arrowstate.foreign.flink.sst import Database, RangeFile
from arrowstate.storage import in_parallel
from arrowstate_formats.cached_properties import cached_property

_OF_A_DATABASE = re.compile(r"\.sst$|(^|/)MANIFEST-\d+$")
"""Files that are read; the others are options."""


class KeyedSource(Protocol):
    """States of a range of key groups of one operator."""

    @property
    def layouts(self) -> dict[str, StateLayout]:
        """The states, by name; what is more is known of one may be put in its place."""
        ...

    @property
    def unknown(self) -> str:
        """A serializer after which states could not be described; empty if there is none."""
        ...

    def batches(self, layout: StateLayout) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state, with the columns of this layout."""
        ...


class EntrySource(KeyedSource, Protocol):
    """A source whose states can be had as entries of the canonical format."""

    def entries(self, layout: StateLayout) -> Iterator[Entries]:
        """Yield the entries of a state."""
        ...


class CanonicalSource:
    """A stream of the canonical format."""

    def __init__(self, places: Places, handle: KeyGroupsHandle, max_parallelism: int) -> None:
        self._places, self._handle, self._max_parallelism = places, handle, max_parallelism

    @cached_property
    def _opened(self) -> tuple[Stream, KeyedHeader]:
        assert self._handle.stream is not None
        stream = self._places.open(self._handle.stream)
        return stream, read_keyed_header(ByteReader(stream.view, stream.name))

    @cached_property
    def layouts(self) -> dict[str, StateLayout]:
        """The states, by name."""
        _, header = self._opened
        return {info.name: layout_of(info, header.key) for info in header.states}

    @property
    def unknown(self) -> str:
        """A serializer after which states could not be described."""
        return self._opened[1].unknown

    def entries(self, layout: StateLayout) -> Iterator[Entries]:
        """Yield the entries of a state."""
        stream, header = self._opened
        for number, info in enumerate(header.states):
            if info.name == layout.name:
                handle = self._handle
                yield from canonical_entries(stream, handle.first_key_group, handle.offsets, header.compressed, number)

    def batches(self, layout: StateLayout) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state."""
        yield from map(EntryDecoder(layout, self._max_parallelism).batch, self.entries(layout))


class DatabaseSource:
    """The files of a RocksDB or ForSt instance."""

    def __init__(self, places: Places, handle: IncrementalHandle, max_parallelism: int) -> None:
        self._places, self._handle, self._max_parallelism = places, handle, max_parallelism

    @cached_property
    def _header(self) -> KeyedHeader | None:
        if self._handle.meta is None:
            return None
        stream = self._places.open(self._handle.meta)
        return read_keyed_header(ByteReader(stream.view, stream.name))

    @cached_property
    def _database(self) -> Database:
        handles = {
            name.rpartition("/")[2]: handle
            for name, handle in (*self._handle.shared, *self._handle.private)
            if handle is not None and _OF_A_DATABASE.search(name)
        }
        places = self._places
        files = in_parallel(places.storage, places.ranges, list(handles.values()), small=True)
        found: dict[str, RangeFile] = dict(zip(handles, files, strict=True))
        manifest = next((found.pop(name) for name in handles if not name.endswith(".sst")), None)
        return Database(found, manifest)

    @cached_property
    def layouts(self) -> dict[str, StateLayout]:
        """The states, by name."""
        header = self._header
        return {info.name: layout_of(info, header.key) for info in header.states} if header else {}

    @property
    def unknown(self) -> str:
        """A serializer after which states could not be described."""
        return self._header.unknown if self._header else ""

    def entries(self, layout: StateLayout) -> Iterator[Entries]:
        """Yield the entries of a state."""
        handle = self._handle
        groups = range(handle.first_key_group, handle.first_key_group + handle.key_groups)
        width = prefix_bytes(self._max_parallelism)
        for keys, values in self._database.entries(layout.name, key_groups=groups, prefix_bytes=width):
            yield Entries.of_arrays(f"the column family {layout.name!r}", keys, values)

    def batches(self, layout: StateLayout) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state."""
        yield from map(EntryDecoder(layout, self._max_parallelism).batch, self.entries(layout))
