"""The text of a script or of queries: that of a file, or what a pipe brings."""

from __future__ import annotations

import sys
from pathlib import Path

from arrowstate.errors import InvalidInputError

__all__ = ["PIPE", "text_of"]

PIPE = "-"
"""The name of the pipe in the place of a file."""


def text_of(place: str) -> str:
    """Return the text of a file, or of the pipe; InvalidInputError if it cannot be read or is not UTF-8."""
    if place != PIPE:
        try:
            return Path(place).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{place} cannot be read: {error}") from error
    if sys.stdin is None:
        raise InvalidInputError("the pipe cannot be read: stdin is closed; name a file in its place")
    try:
        text = sys.stdin.read()
        # Some locales let bytes that are no UTF-8 pass as surrogates.
        text.encode()
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(f"the pipe cannot be read: {error}; it takes UTF-8 text") from error
    return text
