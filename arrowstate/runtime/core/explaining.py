"""What a job says of a failure: the operator or source, and that a step is what was undone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import getclosurevars
from types import FunctionType
from typing import Any

from arrowstate.errors import FencedError, InvalidInputError, JobFailedError, SourceError
from arrowstate.functions import failing
from arrowstate.shown import error_text

_DEEPEST = 6
"""So many attributes of attributes are looked at."""


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


def job_failure(error: BaseException) -> JobFailedError:
    """Return the error of a job that ends with an error; one that was fenced has nothing to mend."""
    if isinstance(error, JobFailedError):
        return error
    if isinstance(error, FencedError):
        advice = "start it again only when the newer writer has ended, it goes on with the newest checkpoint"
        failed = JobFailedError(error_text(error), advice)
    else:
        failed = JobFailedError(error_text(error))
    failed.__cause__ = error
    return failed


def check_copies(functions: Iterable[tuple[str, Any]]) -> None:
    """Refuse a function that cannot be copied: each subtask has one of its own."""
    named = list(functions)
    for _, function in named:
        try:
            copy.deepcopy(function)
        except Exception as error:
            what = unpicklable(named, copy.deepcopy)
            raise InvalidInputError(
                f"each subtask has a copy of its own of a function, and {what} cannot be copied: {error_text(error)}; "
                "make it in open() or when it is called"
            ) from error


def unpicklable(named: Iterable[tuple[str, Any]], dumps: Callable[[Any], Any]) -> str:
    """Return which of some objects cannot be pickled, and by which attribute of it."""
    for name, value in named:
        if not _is_picklable(value, dumps):
            return name + _place(value, dumps)
    return "something in it"


def _place(value: Any, dumps: Callable[[Any], Any]) -> str:
    """Return the way from an object to what of it cannot be pickled."""
    place = ""
    for _ in range(_DEEPEST):
        found = next((item for item in _parts(value) if not _is_picklable(item[1], dumps)), None)
        if found is None:
            break
        place, value = place + found[0], found[1]
    return f" (by {place.strip(' .')}, of type {type(value).__name__})" if place else ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is inside an object."""
    if isinstance(value, FunctionType):
        variables = getclosurevars(value)
        yield from ((f" {name}", item) for name, item in {**variables.globals, **variables.nonlocals}.items())
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _is_picklable(value: Any, dumps: Callable[[Any], Any]) -> bool:
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 (whatever it is, it cannot be pickled)
        return False
    return True
