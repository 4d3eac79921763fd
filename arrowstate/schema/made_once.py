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


class _Documents:
    """Arguments that are told apart by their JSON."""

    __slots__ = ("given", "text")

    def __init__(self, given: tuple[object, ...]) -> None:
        self.given = given
        self.text = pack([*given])

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Documents) and self.text == other.text


def made_once(make: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that makes one result of equal documents; nobody may change it. Errors are raised each time."""

    @lru_cache(_MOST)
    def kept(documents: _Documents) -> Result:
        return cast("Callable[..., Result]", make)(*documents.given)

    @wraps(make)
    def made(*given: Parameters.args, **_: Parameters.kwargs) -> Result:
        return kept(_Documents(given))

    return made
