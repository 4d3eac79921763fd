"""The process that something lives in.

The threads of an object do not come along into a process that is forked from its own, a lock may come along held, and
what the object knows is from then on known twice.
"""

from __future__ import annotations

import os

from arrowstate.errors import InvalidInputError


class OwnProcess:
    """The process that made an object.

    Examples
    --------
    >>> OwnProcess().is_here
    True
    """

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and not one that was forked from it."""
        return self._id == os.getpid()

    def check(self, what: str, instead: str) -> None:
        """Refuse the use of `what` in a process that was forked from its own."""
        if self._id != os.getpid():
            raise InvalidInputError(
                f"{what} belongs to the process that opened it, {self._id}, from which this one was forked; {instead}"
            )
