"""Broadcast states restored again and again: a process makes the map of one once, and each task has its own of it.

All subtasks hold the same entries, and a task on Spark restores them for each micro-batch. So the runs that they were
made are kept, by the checksum of what is stored; whoever restores them gets live bits of his own, and writes to runs of
his own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from arrowstate.files.operator import read_part
from arrowstate.schema.operator_state import BroadcastStateDescriptor, operator_descriptor_of
from arrowstate.state.operator_list import BroadcastState
from arrowstate.storage.base import Storage
from arrowstate.table.table import FrozenTable
from arrowstate_formats.documents import OperatorStateDocument

_KEPT_BYTES = 256 << 20
"""Of the documents and files that they were made of."""


class _Kept:
    """What was made, the least recently used forgotten first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[Any, tuple[FrozenTable, int]] = OrderedDict()
        self._bytes = 0

    def get(self, name: Any) -> FrozenTable | None:
        with self._lock:
            if name not in self._tables:
                return None
            self._tables.move_to_end(name)
            return self._tables[name][0]

    def put(self, name: Any, table: FrozenTable, size: int) -> None:
        with self._lock:
            if name not in self._tables:
                self._tables[name] = table, size
                self._bytes += size
            while self._bytes > _KEPT_BYTES:
                self._bytes -= self._tables.popitem(last=False)[1][1]


_KEPT = _Kept()


def restored_broadcast(storage: Storage, document: OperatorStateDocument, number: int = 0) -> BroadcastState:
    """Return what a subtask had of a broadcast state; only the first of a process to ask for it reads it."""
    descriptor = operator_descriptor_of(document)
    assert isinstance(descriptor, BroadcastStateDescriptor)
    part = document.parts[number]
    # A local file that was altered or removed since is read, and refused, anew.
    identity = getattr(storage, "identity", None) if part.path is not None else None
    place = None if identity is None or part.path is None else identity(part.path)
    name = (part.xxh3_128, part.bytes, part.rows, descriptor, place)
    known = _KEPT.get(name)
    if known is not None:
        return BroadcastState(descriptor, known)
    state = BroadcastState(descriptor)
    state.take_up(read_part(storage, document, number))
    _KEPT.put(name, state.frozen_table(), part.bytes)
    return state
