"""What scalar verbs have written and no table has yet.

A scalar write is kept in a small dict and becomes a row of a run before the next batch verb or snapshot, or when there
are many. The dict takes part in transactions as the rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa
from msgspec import Struct

from arrowstate.table.journal import Journal

K = TypeVar("K")
V = TypeVar("V")

_MANY_ROWS = 16_384


class Write(Struct, frozen=True):
    """What a scalar verb has written."""

    columns: Sequence[pa.Array]
    "Key, namespace and user key, one row each; of an addition to a list as many as there are elements."
    values: Sequence[pa.Scalar | None]
    updated: Sequence[pa.Array]
    "The time of the update, where there is a time to live."
    removed: bool = False
    "Whether the row is removed instead."


def together(parts: Iterable[Sequence[pa.Array]]) -> list[pa.Array]:
    """Return the columns of several writes as one."""
    return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]


class Pending(dict[K, V], Generic[K, V]):
    """Writes by what they write to, the last of each; changes can be taken back."""

    def __init__(self, rows_of: Callable[[V], int] = lambda _: 1) -> None:
        super().__init__()
        self._journal: Journal[tuple[str, Any, Any]] = Journal()
        self._rows_of = rows_of
        self._rows = 0

    @property
    def is_full(self) -> bool:
        """Whether it holds so much that it belongs into the table before more comes."""
        return self._rows >= _MANY_ROWS

    def __setitem__(self, key: K, value: V) -> None:
        known = key in self
        if self._journal.is_open:
            self._journal.note(("set" if known else "new", key, self.get(key)))
        self._rows += self._rows_of(value) - (self._rows_of(self[key]) if known else 0)
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._journal.note(("set", key, self[key]))
        self._rows -= self._rows_of(self[key])
        super().__delitem__(key)

    def clear(self) -> None:
        """Remove everything."""
        if self._journal.is_open:
            self._journal.note(("all", None, dict(self)))
        self._rows = 0
        super().clear()

    def begin(self) -> tuple[int, int]:
        """Return a mark of what it holds now."""
        return self._journal.begin(), self._rows

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""
        self._journal.keep()

    def go_back(self, mark: tuple[int, int]) -> None:
        """Give up the latest mark and hold what it held then."""
        changes, self._rows = mark
        for change, key, value in self._journal.undone(changes):
            if change == "all":
                self.update(value)
            elif change == "new":
                super().__delitem__(key)
            else:
                super().__setitem__(key, value)
