"""Which source reads a handle of keyed state."""

from __future__ import annotations

from collections.abc import Iterator

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.changelog import ChangelogSource
from arrowstate.foreign.flink.handles import ChangelogHandle, IncrementalHandle, KeyedHandle, KeyGroupsHandle
from arrowstate.foreign.flink.heap import HeapSource
from arrowstate.foreign.flink.places import METADATA, Places
from arrowstate.foreign.flink.sources import CanonicalSource, DatabaseSource, EntrySource


def open_keyed(places: Places, handle: KeyedHandle, max_parallelism: int) -> Iterator[EntrySource | ChangelogSource]:
    """Yield what reads the states of a handle; nothing if it holds none."""
    if isinstance(handle, ChangelogHandle):
        base = [source for each in handle.base for source in _whole(places, each, max_parallelism)]
        yield ChangelogSource(places, handle, base, max_parallelism)
    else:
        yield from _whole(places, handle, max_parallelism)


def _whole(places: Places, handle: KeyedHandle, max_parallelism: int) -> Iterator[EntrySource]:
    """What reads a handle of state that was written whole."""
    if isinstance(handle, KeyGroupsHandle):
        if handle.stream is not None:
            kind = CanonicalSource if handle.canonical else HeapSource
            yield kind(places, handle, max_parallelism)
    elif isinstance(handle, IncrementalHandle):
        yield DatabaseSource(places, handle, max_parallelism)
    else:
        raise CorruptDataError(METADATA, f"a {type(handle).__name__} stands where state must be")
