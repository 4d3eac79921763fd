"""What a job says of a failure: the operator, and which row of a step it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from arrowstate.errors import SourceError
from arrowstate.processing import failing
from arrowstate.processing.dead_letters import is_of_function

__all__ = ["explained", "misfit_row"]


@contextmanager
def explained(uid: str, doing: str, *, key: list[str] | None = None, rows: Any = None) -> Iterator[None]:
    """As `failing.explained`, of a step of a job; what a source says of itself is told with its uid."""
    of_source: SourceError | None = None
    with failing.explained(uid, doing, key=key, rows=rows, unit="step"):
        try:
            yield
        except SourceError as error:
            of_source = error
    if of_source is not None:
        of_source.source = of_source.source or uid
        raise of_source


def misfit_row(count: int, attempt: Callable[[int, int], object], error: Exception) -> int | None:
    """Return the first of so many rows that fails alone, None if they fail only together, or it is no fault of theirs.

    Parameters
    ----------
    count
        They are numbered from 0, and have failed together.
    attempt
        Does those from one number to before another.
    error
        What was raised for all.
    """
    if not is_of_function(error):
        return None

    def fails(start: int, end: int) -> bool:
        try:
            attempt(start, end)
        except Exception as other:
            if not is_of_function(other):
                raise
            return True
        return False

    start, end = 0, count
    while end - start > 1:
        middle = (start + end) // 2
        start, end = (start, middle) if fails(start, middle) else (middle, end)
    return start if fails(start, end) else None
