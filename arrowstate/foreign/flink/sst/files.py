"""What a table is read from: a named run of bytes that gives ranges.

A file of a checkpoint is a file of a storage, a part of one, or bytes that the metadata itself holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arrowstate.errors import CorruptDataError
from arrowstate.storage import Storage


class RangeFile(Protocol):
    """A file whose bytes are read by ranges; the size is known before."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        ...

    def read(self, start: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `start`, fewer where the file ends."""
        ...


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that is in memory, or mapped into it."""

    name: str
    "What errors call it."
    content: bytes | memoryview
    "All of it."

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        return len(self.content)

    def read(self, start: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `start`, fewer where the file ends."""
        return self.content[start : start + length]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a storage, or a part of one, of which only what is asked for is read."""

    storage: Storage
    "Where it is."
    name: str
    "Its path."
    start: int
    "The first byte of the part."
    size_bytes: int
    "How many bytes the part has."

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer where the file ends."""
        return self.storage.read(self.name, self.start + start, min(length, self.size_bytes - start))


class WithTail:
    """A file whose last bytes are read once: all that a table says of itself lies there."""

    def __init__(self, file: RangeFile, tail_bytes: int) -> None:
        self._file = file
        self._start = max(0, file.size_bytes - tail_bytes)
        self._tail = read_exactly(file, self._start, file.size_bytes - self._start)

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._file.name

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        return self._file.size_bytes

    def read(self, start: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `start`, fewer where the file ends."""
        if start < self._start:
            return self._file.read(start, length)
        return self._tail[start - self._start : start - self._start + length]


def read_exactly(file: RangeFile, start: int, length: int) -> bytes | memoryview:
    """Return a range of a file, all of which must be there."""
    if start < 0 or length < 0 or start + length > file.size_bytes:
        raise CorruptDataError(
            file.name, f"bytes {start} to {start + length} are needed, and the file has {file.size_bytes}"
        )
    data = file.read(start, length)
    if len(data) != length:
        raise CorruptDataError(file.name, f"it ends at byte {start + len(data)}, and has {file.size_bytes} by its size")
    return data
