"""A name, an id or a place that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arrowstate_formats.errors import ArrowStateError

_MOST_NAMES = 20
"""How many names a message lists; a store may have thousands of checkpoints."""


def _names(available: tuple[Any, ...], none: str) -> str:
    """The end of a message that says what there is instead."""
    if not available:
        return none
    shown = ", ".join(map(repr, available[-_MOST_NAMES:]))
    more = len(available) - _MOST_NAMES
    return f"it has {shown}" + (f" and {more} earlier ones" if more > 0 else "")


class NotFoundError(ArrowStateError, LookupError):
    """Something was asked for by a name or id that does not exist.

    Examples
    --------
    >>> issubclass(StateNotFoundError, NotFoundError), issubclass(NotFoundError, LookupError)
    (True, True)
    """


@dataclass(eq=False, repr=False)
class StoreNotFoundError(NotFoundError):
    """There is no store at a path or URL.

    Examples
    --------
    >>> print(StoreNotFoundError("/data/clicks"))
    no store at /data/clicks; check the path, or make a new store with create=True
    """

    url: str
    _message = "no store at {url}; check the path, or make a new store with create=True"


class CheckpointNotFoundError(NotFoundError):
    """A store has no checkpoint with an id, or none at all.

    Examples
    --------
    >>> print(CheckpointNotFoundError(7, [41, 42]))
    no checkpoint 7 in this store; it has 41, 42
    >>> print(CheckpointNotFoundError(None, []))
    no checkpoint in this store yet
    """

    checkpoint_id: int | None
    "The id asked for, None for the latest."
    available: tuple[int, ...]
    "The ids there are, oldest first."

    def __init__(self, checkpoint_id: int | None, available: Iterable[int]) -> None:
        self.checkpoint_id, self.available = self.args = checkpoint_id, tuple(available)

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return "no checkpoint in this store yet"
        return f"no checkpoint {self.checkpoint_id} in this store; {_names(self.available, 'it has none yet')}"


class CheckpointsCollectedError(NotFoundError):
    """What changed since a checkpoint cannot be told any more: it was collected, or checkpoints after it were.

    Examples
    --------
    >>> print(CheckpointsCollectedError(7, [41, 42]))
    the changes after checkpoint 7 need it and every checkpoint since, and some were collected; it has 41, 42: start \
anew from one of these (a stream with another Spark checkpoint folder), and keep checkpoints for longer than it takes \
to read their changes, by a retention policy, a tag or a lease
    """

    after: int
    "The checkpoint from which the changes were asked for."
    available: tuple[int, ...]
    "The ids there are, oldest first."

    def __init__(self, after: int, available: Iterable[int]) -> None:
        self.after, self.available = self.args = after, tuple(available)

    def __str__(self) -> str:
        return (
            f"the changes after checkpoint {self.after} need it and every checkpoint since, and some were collected; "
            f"{_names(self.available, 'the store has none')}: start anew from one of these (a stream with another "
            "Spark checkpoint folder), and keep checkpoints for longer than it takes to read their changes, by a "
            "retention policy, a tag or a lease"
        )


class OperatorNotFoundError(NotFoundError):
    """A checkpoint has no operator with a uid.

    Examples
    --------
    >>> print(OperatorNotFoundError("conter", ["counter", "routes"], 41))
    no operator with uid 'conter' in checkpoint 41; it has 'counter', 'routes'
    """

    uid: str
    available: tuple[str, ...]
    checkpoint_id: int | None
    "The checkpoint that was read, None where it has no id (a savepoint)."

    def __init__(self, uid: str, available: Iterable[str], checkpoint_id: int | None = None) -> None:
        self.uid, self.available, self.checkpoint_id = self.args = uid, tuple(available), checkpoint_id

    def __str__(self) -> str:
        where = "" if self.checkpoint_id is None else f" in checkpoint {self.checkpoint_id}"
        return f"no operator with uid {self.uid!r}{where}; {_names(self.available, 'it has no operators')}"


class StateNotFoundError(NotFoundError):
    """An operator has no state with a name.

    Examples
    --------
    >>> print(StateNotFoundError("cuonts", ["clicks", "counts"], "counter", 41))
    no state named 'cuonts' of operator 'counter' in checkpoint 41; it has 'clicks', 'counts'
    """

    name: str
    available: tuple[str, ...]
    operator: str | None
    "The operator's uid, None for a backend that has none yet."
    checkpoint_id: int | None
    "The checkpoint that was read, None where there is none (a live backend, a savepoint)."

    def __init__(
        self, name: str, available: Iterable[str], operator: str | None = None, checkpoint_id: int | None = None
    ) -> None:
        self.args = name, tuple(available), operator, checkpoint_id
        self.name, self.available, self.operator, self.checkpoint_id = self.args

    def __str__(self) -> str:
        where = "" if self.operator is None else f" of operator {self.operator!r}"
        where += "" if self.checkpoint_id is None else f" in checkpoint {self.checkpoint_id}"
        return f"no state named {self.name!r}{where}; {_names(self.available, 'it has no states')}"


@dataclass(eq=False, repr=False)
class MissingFileError(NotFoundError, FileNotFoundError):
    """A storage has no file at a path.

    Examples
    --------
    >>> print(MissingFileError("/data/clicks", "log/00000000000000000007.json"))
    no file log/00000000000000000007.json in /data/clicks
    """

    url: str
    path: str
    _message = "no file {path} in {url}"
