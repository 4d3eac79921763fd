"""Properties that are computed once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 (the name that Python has)
        """`functools.cached_property` as Python 3.12 has it, without a lock.

        In Python 3.11 all objects of a class share one. A process that is forked while a thread computes the property
        of any of them has that lock taken for ever.
        """

        def __init__(self, compute: Any) -> None:
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Return what the object has; of two threads that compute it both return what the first has kept."""
            if instance is None:
                return self
            known = instance.__dict__
            if self._name not in known:
                known.setdefault(self._name, self._compute(instance))
            return known[self._name]


__all__ = ["cached_property"]
