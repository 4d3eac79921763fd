"""The name of a state that a backend does not have yet: whether it may be given, and whether it was meant."""

from __future__ import annotations

import logging
from collections.abc import Collection
from difflib import get_close_matches

from arrowstate.errors import InvalidInputError

_logger = logging.getLogger("arrowstate.state")


def check_new_name(new: str, taken: Collection[str], untouched: Collection[str]) -> None:
    """Refuse a name that differs from a state's only in case, and log one close to that of an untouched state.

    A state of a misspelt name starts empty; the restored rows stay under theirs, and go into the next checkpoint.
    """
    for name in taken:
        if name.lower() == new.lower():
            raise InvalidInputError(f"state names must differ in more than case, {name!r} exists; got {new!r}")
    closest = get_close_matches(new, untouched, n=1)
    if closest:
        fields = {"state": new, "closest": closest[0]}
        text = (
            "the state '%(state)s' is new and starts empty, while nobody has asked for the restored state "
            "'%(closest)s'; if that is meant, give its name, or rename it by restore(..., rename=)"
        )
        _logger.info(text, fields, extra=fields)
