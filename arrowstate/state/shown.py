"""What completion shows of an object: the verbs of users, and not what the parts of the project call each other by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class Shown:
    """Leaves out of `dir()` what a class, or one that it derives from, names in `_plumbing`."""

    _plumbing: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> Iterable[str]:
        hidden = frozenset().union(*(vars(kind).get("_plumbing", ()) for kind in type(self).__mro__))
        return [name for name in super().__dir__() if name not in hidden]
