"""Which source reads a handle of keyed state."""

from __future__ import annotations

from collections.abc import Iterator

from arrowstate.foreign.flink.handles import IncrementalHandle, KeyedHandle, KeyGroupsHandle
from arrowstate.foreign.flink.heap import HeapSource
from arrowstate.foreign.flink.places import Places
from arrowstate.foreign.flink.sources import CanonicalSource, DatabaseSource, KeyedSource

__all__ = ["open_keyed"]


def open_keyed(places: Places, handle: KeyedHandle, max_parallelism: int) -> Iterator[KeyedSource]:
    """Yield what reads the states of a handle; nothing if it holds none."""
    if isinstance(handle, KeyGroupsHandle):
        if handle.stream is not None:
            kind = CanonicalSource if handle.canonical else HeapSource
            yield kind(places, handle, max_parallelism)
    elif isinstance(handle, IncrementalHandle):
        yield DatabaseSource(places, handle, max_parallelism)
