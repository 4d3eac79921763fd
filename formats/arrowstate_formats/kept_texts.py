"""What was read of texts, kept by the text: it is read once however often the same text comes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from arrowstate_formats import system

V = TypeVar("V")

_VALUE_BYTES = 3
"""What is made of a document takes about so many bytes of memory for each of its text, and that text."""
_ENTRY_BYTES = 512
"""What the smallest text takes, with its value and its place among the others."""


class KeptTexts(Generic[V]):
    """Values by their text, the least recently used forgotten first; nobody may change a value."""

    def __init__(self, most_bytes: int) -> None:
        """Keep texts and values that take about so many bytes of memory."""
        self._most_bytes = most_bytes
        self._begin()
        system.after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[bytes, V] = OrderedDict()
        self._bytes = 0

    def get(self, text: bytes) -> V | None:
        """Return the value of a text, None if it is not kept."""
        with self._lock:
            found = self._values.get(text)
            if found is not None:
                self._values.move_to_end(text)
            return found

    def put(self, text: bytes, value: V) -> None:
        """Keep the value of a text."""
        with self._lock:
            if text not in self._values:
                self._bytes += _cost(text)
            self._values[text] = value
            while self._bytes > self._most_bytes:
                self._bytes -= _cost(self._values.popitem(last=False)[0])


def _cost(text: bytes) -> int:
    return _VALUE_BYTES * len(text) + _ENTRY_BYTES
