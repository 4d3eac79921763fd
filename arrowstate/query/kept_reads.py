"""What a process keeps of the checkpoints it read last.

Checkpoints never change, so what was made of one stays right; only room sets a limit.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
_ALL: weakref.WeakSet[Recent[Any]] = weakref.WeakSet()


def forget_checkpoints() -> None:
    """Let go of all that is kept, so that the next snapshot reads its manifests anew."""
    for recent in list(_ALL):
        recent.clear()


class Recent(Generic[Value]):
    """Keeps the values used last; safe to use from several threads and in a forked process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[object, Value] = OrderedDict()
        self._abandoned: list[object] = []
        _ALL.add(self)
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, key: object, make: Callable[[], Value]) -> Value:
        """Return the value kept under a key, made now if there is none."""
        with self._lock:
            value = self._kept.pop(key, None)
            if value is None:
                value = make()
            self._kept[key] = value
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return value

    def clear(self) -> None:
        """Keep nothing of what is kept now."""
        with self._lock:
            self._kept.clear()

    def _after_fork(self) -> None:
        # A database's threads do not come along into a forked process; closing it there would wait for them.
        self._abandoned.append(self._kept)
        self._kept = OrderedDict()
        self._lock = threading.Lock()
