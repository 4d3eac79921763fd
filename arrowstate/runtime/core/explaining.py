"""What a job says of a failure: the operator or source, and that a step is what was undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from arrowstate.errors import SourceError
from arrowstate.processing import failing

__all__ = ["explained"]


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
