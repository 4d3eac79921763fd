"""Transactions: either all that is done between begin and keep has happened, or nothing of it.

Whatever a backend holds takes part: the rows of its states, what scalar verbs have written and no table has yet, the
cursors of timers and windows, the watermark, the current key and namespaces. To begin costs a few numbers for each of
them and nothing that grows with the rows held; what is changed after it is noted in journals, by which each goes back.
Transactions nest: an inner one that fails leaves the outer one as it was when the inner one began.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from arrowstate.errors import ConcurrentUseError

P = ParamSpec("P")
R = TypeVar("R")

# What a transaction calls, within verbs and around them, and what goes on after its call.
_NO_VERBS = frozenset({"begin", "keep", "go_back", "kept_namespace", "live_batches"})


class Participant(Protocol):
    """Something that changes in a batch and can go back."""

    def begin(self) -> Any:
        """Return a mark of what it is now, to be given up by `keep` or `go_back`, the latest first."""

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""

    def go_back(self, mark: Any) -> None:
        """Give up the latest mark and be what it was when it was taken."""


class State(Participant, Protocol):
    """A participant with verbs, which two threads cannot be in at once."""

    transactions: Transactions


S = TypeVar("S", bound=State)


def atomic(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a verb of a state do all it does or, where it raises, nothing; two threads cannot be in it at once."""

    @wraps(verb)
    def run(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        owner = self.transactions.own()
        try:
            mark = self.begin()
            try:
                result = verb(self, *arguments, **named)
            except BaseException:
                self.go_back(mark)
                raise
            self.keep()
            return result
        finally:
            owner.release()

    owned: Any = run
    owned.has_one_owner = True
    return run


def one_owner(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a verb of a state one that two threads cannot be in at once."""

    @wraps(verb)
    def run(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        owner = self.transactions.own()
        try:
            return verb(self, *arguments, **named)
        finally:
            owner.release()

    owned: Any = run
    owned.has_one_owner = True
    return run


def own_verbs(kind: type) -> None:
    """Make the public verbs of a class ones that two threads cannot be in at once, but for what a transaction calls."""
    for name in dir(kind):
        verb = getattr(kind, name)
        is_verb = isfunction(verb) and (not name.startswith("_") or name == "__len__") and name not in _NO_VERBS
        if is_verb and not hasattr(verb, "has_one_owner"):
            setattr(kind, name, one_owner(verb))


class Transactions:
    """All that takes part in the transactions of a backend."""

    def __init__(self) -> None:
        self._members: list[weakref.ref[Any]] = []
        # The innermost is the last: its participants with their marks.
        self._open: list[list[tuple[Participant, Any]]] = []
        # Taken by every verb and asked for in turn, but never waited for.
        self._owner = threading.RLock()

    def own(self) -> threading.RLock:
        """Take the backend for this thread, which may have it already; the caller releases what is returned."""
        owner = self._owner
        if not owner.acquire(False):
            raise ConcurrentUseError("a verb of another thread is running")
        return owner

    def join(self, participant: Participant) -> None:
        """Let something take part from now on, for as long as it lives; it goes back to what it is now at most."""
        self._members = [member for member in self._members if member() is not None]
        self._members.append(weakref.ref(participant))
        for marks in self._open:
            marks.append((participant, participant.begin()))

    @contextmanager
    def begun(self, others: Iterable[Participant] = ()) -> Iterator[None]:
        """Keep what is done in the block if it ends, and go back to what was before it if it raises."""
        with self.owned():
            yield from self._begun(others)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Keep other threads out of the backend; errors are those of `own`."""
        owner = self.own()
        try:
            yield
        finally:
            owner.release()

    def _begun(self, others: Iterable[Participant]) -> Iterator[None]:
        members = [found for member in self._members if (found := member()) is not None]
        marks = [(each, each.begin()) for each in (*members, *others)]
        self._open.append(marks)
        try:
            yield
        except BaseException:
            for each, mark in reversed(marks):
                each.go_back(mark)
            raise
        else:
            for each, _ in marks:
                each.keep()
        finally:
            self._open.pop()
