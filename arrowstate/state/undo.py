"""Several writes as one: all of them, or the states as they were before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from arrowstate.state.base import KeyedState

__all__ = ["unchanged_on_error"]


@contextmanager
def unchanged_on_error(states: Sequence[KeyedState[Any]]) -> Iterator[None]:
    """Put the states back to what they were if the block raises.

    States are frozen for that, which costs a copy of their live bits, one bit per row.
    """
    before = [(state, state.freeze()) for state in states]
    try:
        yield
    except BaseException:
        for state, frozen in before:
            state.table.go_back(frozen)
        raise
