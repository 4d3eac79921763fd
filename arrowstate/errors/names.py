"""Errors of whoever asks for a name, id or file that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from arrowstate_formats.errors import ArrowStateError

__all__ = [
    "CheckpointNotFoundError",
    "CheckpointsCollectedError",
    "MissingFileError",
    "NotFoundError",
    "OperatorNotFoundError",
    "StateNotFoundError",
    "StoreNotFoundError",
]


_MOST_NAMES = 20
"""How many names a message lists; a store may have thousands of checkpoints."""


def _names(available: tuple[Any, ...], none: str) -> str:
    """The end of a message that says what there is instead."""
    if not available:
        return none
    shown = ", ".join(map(repr, available[-_MOST_NAMES:]))
    more = len(available) - _MOST_NAMES
    return f"it has {shown}" + (f" and {more} earlier ones" if more > 0 else "")


def _in_checkpoint(checkpoint_id: int | None) -> str:
    """Where a name was looked up; savepoints and live backends have no checkpoint id."""
    return "" if checkpoint_id is None else f" in checkpoint {checkpoint_id}"


class NotFoundError(ArrowStateError, LookupError):
    """Something was asked for by a name or id that does not exist."""


class StoreNotFoundError(NotFoundError):
    """There is no store at a path or URL.

    Attributes
    ----------
    url : str
        Where the store was looked for.

    Examples
    --------
    >>> print(StoreNotFoundError("/data/clicks"))
    no store at /data/clicks; check the path, or make a new store with create=True
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return f"no store at {self.url}; check the path, or make a new store with create=True"


class CheckpointNotFoundError(NotFoundError):
    """A store has no checkpoint with an id, or none at all.

    Attributes
    ----------
    checkpoint_id : int or None
        The id asked for, None for the latest.
    available : tuple of int
        The ids there are, oldest first.

    Examples
    --------
    >>> print(CheckpointNotFoundError(7, [41, 42]))
    no checkpoint 7 in this store; it has 41, 42
    >>> print(CheckpointNotFoundError(None, []))
    no checkpoint in this store yet
    """

    def __init__(self, checkpoint_id: int | None, available: Iterable[int]) -> None:
        self.checkpoint_id = checkpoint_id
        self.available = tuple(available)
        super().__init__(checkpoint_id, self.available)

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return "no checkpoint in this store yet"
        return f"no checkpoint {self.checkpoint_id} in this store; {_names(self.available, 'it has none yet')}"


class CheckpointsCollectedError(NotFoundError):
    """What changed since a checkpoint cannot be told any more: it was collected, or checkpoints after it were.

    Attributes
    ----------
    after : int
        The checkpoint from which the changes were asked for.
    available : tuple of int
        The ids there are, oldest first.

    Examples
    --------
    >>> print(CheckpointsCollectedError(7, [41, 42]))
    the changes after checkpoint 7 need it and every checkpoint since, and some were collected; it has 41, 42: start \
anew from one of these (a stream with another Spark checkpoint folder), and keep checkpoints for longer than it takes \
to read their changes, by a retention policy, a tag or a lease
    """

    def __init__(self, after: int, available: Iterable[int]) -> None:
        self.after = after
        self.available = tuple(available)
        super().__init__(after, self.available)

    def __str__(self) -> str:
        return (
            f"the changes after checkpoint {self.after} need it and every checkpoint since, and some were collected; "
            f"{_names(self.available, 'the store has none')}: start anew from one of these (a stream with another "
            "Spark checkpoint folder), and keep checkpoints for longer than it takes to read their changes, by a "
            "retention policy, a tag or a lease"
        )


class OperatorNotFoundError(NotFoundError):
    """A checkpoint has no operator with a uid.

    Attributes
    ----------
    uid : str
        The uid asked for.
    available : tuple of str
        The uids there are.
    checkpoint_id : int or None
        The checkpoint that was read, None where it has no id (a savepoint).

    Examples
    --------
    >>> print(OperatorNotFoundError("conter", ["counter", "routes"], 41))
    no operator with uid 'conter' in checkpoint 41; it has 'counter', 'routes'
    """

    def __init__(self, uid: str, available: Iterable[str], checkpoint_id: int | None = None) -> None:
        self.uid = uid
        self.available = tuple(available)
        self.checkpoint_id = checkpoint_id
        super().__init__(uid, self.available, checkpoint_id)

    def __str__(self) -> str:
        where = _in_checkpoint(self.checkpoint_id)
        return f"no operator with uid {self.uid!r}{where}; {_names(self.available, 'it has no operators')}"


class StateNotFoundError(NotFoundError):
    """An operator has no state with a name.

    Attributes
    ----------
    name : str
        The name asked for.
    available : tuple of str
        The names of the operator's states.
    operator : str or None
        The operator's uid, None for a backend that has none yet.
    checkpoint_id : int or None
        The checkpoint that was read, None where there is none (a live backend, a savepoint).

    Examples
    --------
    >>> print(StateNotFoundError("cuonts", ["clicks", "counts"], "counter", 41))
    no state named 'cuonts' of operator 'counter' in checkpoint 41; it has 'clicks', 'counts'
    """

    def __init__(
        self, name: str, available: Iterable[str], operator: str | None = None, checkpoint_id: int | None = None
    ) -> None:
        self.name = name
        self.available = tuple(available)
        self.operator = operator
        self.checkpoint_id = checkpoint_id
        super().__init__(name, self.available, operator, checkpoint_id)

    def __str__(self) -> str:
        where = "" if self.operator is None else f" of operator {self.operator!r}"
        where += _in_checkpoint(self.checkpoint_id)
        return f"no state named {self.name!r}{where}; {_names(self.available, 'it has no states')}"


class MissingFileError(NotFoundError, FileNotFoundError):
    """A storage has no file at a path.

    Attributes
    ----------
    url : str
        The storage that was read.
    path : str
        The path inside it.

    Examples
    --------
    >>> print(MissingFileError("/data/clicks", "log/00000000000000000007.json"))
    no file log/00000000000000000007.json in /data/clicks
    """

    def __init__(self, url: str, path: str) -> None:
        super().__init__(f"no file {path} in {url}")
        self.url = url
        self.path = path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.path)
