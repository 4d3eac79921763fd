"""Errors and warnings as the command line tells them: in its own terms, and as JSON where that is asked for.

The messages of the library name the verbs of Python. Where the command line has a verb or an option for the same, it
says that one.
"""

from __future__ import annotations

import json
import re
import sys

_OWN_TERMS = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r", or make a new store with create=True", ""),
        (r"by store\.lease\(\) or a tag", "by `arrowstate tag`, or a query by --lease"),
        (
            r"store\.latest_whole\(\) returns the newest checkpoint that is whole, restore that one and go on from it",
            "`arrowstate verify STORE` says which are whole, `arrowstate rollback STORE N` goes back to one",
        ),
        (r"with untag\((.+)\)", r"with `arrowstate untag STORE \1`"),
        (r"with dispose_savepoint\((.+?)\)", r"with `arrowstate dispose \1`"),
        (r"with allow_short_grace=True \(`arrowstate gc --allow-short-grace`\)", "with --allow-short-grace"),
        (r"^sql\(\) takes one SELECT, got (.*); for other .*", r"sql takes queries, such as a SELECT, got \1"),
        (
            r"; give the uid and the state name as a tuple",
            "; `arrowstate sql STORE` has a name for each",
        ),
        (r"open the store with writer\(accept_loss=True\)", "open the store in Python with writer(accept_loss=True)"),
    )
)


def in_own_terms(text: str) -> str:
    """Return a message of the library with the verbs and options of the command line."""
    for theirs, ours in _OWN_TERMS:
        text = theirs.sub(ours, text)
    return text


def tell_error(kind: str, text: str, *, as_json: bool) -> None:
    """Print an error to stderr: a line for people, or an object for machines."""
    _tell("error", kind, in_own_terms(text), as_json=as_json)


def tell_warning(kind: str, text: str, *, as_json: bool) -> None:
    """Print a warning to stderr, likewise."""
    _tell("warning", kind, in_own_terms(text), as_json=as_json)


def _tell(what: str, kind: str, text: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({what: {"type": kind, "message": text}}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"arrowstate: {'warning: ' * (what == 'warning')}{text}", file=sys.stderr)
