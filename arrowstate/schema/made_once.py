"""What is made of documents, kept: the tasks of a job and its checkpoints describe the same states again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

from arrowstate_formats.document_text import pack

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_MOST = 512
"""How many results of a function are kept, those used last; a state is a few kilobytes."""


class _Documents(bytes):
    """The JSON of arguments, by which they are told apart, and the arguments."""

    given: tuple[object, ...]


def made_once(make: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that makes one result of equal documents; nobody may change it. Errors are raised each time."""

    @lru_cache(_MOST)
    def kept(documents: _Documents) -> Result:
        return cast("Callable[..., Result]", make)(*documents.given)

    @wraps(make)
    def made(*given: Parameters.args, **_: Parameters.kwargs) -> Result:
        documents = _Documents(pack([*given]))
        documents.given = given
        return kept(documents)

    return made
