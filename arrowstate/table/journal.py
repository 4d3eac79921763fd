"""A journal: what has changed since a moment, so that it can be taken back.

It is written only while somebody holds a mark of it, and forgotten with the last mark, so that going back costs what
the changes cost and never what there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Journal(Generic[T]):
    """The changes since the first mark that is held, in their order."""

    __slots__ = ("_changes", "_marks")

    def __init__(self) -> None:
        self._changes: list[T] = []
        self._marks = 0

    @property
    def is_open(self) -> bool:
        """Whether a mark is held."""
        return self._marks > 0

    def begin(self) -> int:
        """Return a mark, to be given up by `keep` or `undone`, the latest first."""
        self._marks += 1
        return len(self._changes)

    def note(self, change: T) -> None:
        """Add a change, if a mark is held."""
        if self._marks:
            self._changes.append(change)

    def keep(self) -> None:
        """Give up the latest mark; its changes stay."""
        self._marks -= 1
        if not self._marks:
            self._changes.clear()

    def undone(self, mark: int) -> Iterator[T]:
        """Give up the latest mark; yield what has changed since, the latest first."""
        while len(self._changes) > mark:
            yield self._changes.pop()
        self.keep()
