"""Which names and paths a store may contain.

Operator uids and state names become folder names and SQL identifiers, so they are kept to a
portable alphabet. Column names are free, except that a leading `_` is reserved for the format.
Paths found in a document are checked before they are used, so that a damaged or hostile document
cannot point outside the store. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import re
from functools import lru_cache

from arrowstate_formats.errors import CorruptDataError, InvalidInputError

# Python's `$` is also before a line feed at the end.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$(?!\n)"
PATH_PATTERN = r"^(?!(.*/)?\.{0,2}(/|$))[^\\\x00-\x1f\x7f]+$(?!\n)"
"""What `check_relative_path` takes, of text that is UTF-8."""

_NAME = re.compile(NAME_PATTERN)
_NO_COMPONENTS = frozenset({"", ".", ".."})
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\\]")


def _check_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInputError(
            f"{what} must be 1 to 128 characters out of A-Z a-z 0-9 _ - . and begin with a letter or a digit, "
            f"got {name!r}"
        )
    return name


def check_operator_uid(uid: str) -> str:
    """Return `uid` if it may name an operator."""
    return _check_name("an operator uid", uid)


def check_state_name(name: str) -> str:
    """Return `name` if it may name a state; the rule is the one of `check_operator_uid`."""
    return _check_name("a state name", name)


def check_savepoint_name(name: str) -> str:
    """Return `name` if it may name a savepoint in a store; the rule is the one of `check_operator_uid`."""
    return _check_name("a savepoint name", name)


def check_tag_name(name: str) -> str:
    """Return `name` if it may name a tag; the rule is the one of `check_operator_uid`."""
    return _check_name("a tag name", name)


def check_new_tag_name(name: str) -> str:
    """Return `name` if a tag may be made with it: as `check_tag_name`, and not digits alone, which are an id."""
    if check_tag_name(name).isdecimal():
        raise InvalidInputError(
            f"a tag name must not be digits alone, which name a checkpoint by its id, got {name!r}: put a letter "
            f"before them, such as 'v{name}'"
        )
    return name


def check_column_name(name: object) -> str:
    """Return `name` if it may name a key or value column."""
    if not isinstance(name, str) or name == "":
        raise InvalidInputError(f"a column name must be a non-empty text, got {name!r}")
    if name.startswith("_"):
        raise InvalidInputError(f"column names beginning with '_' are reserved, got {name!r}")
    # Arrow's C interface ends names at the first NUL, so such a name would change on its way to an engine.
    if "\0" in name or not _is_utf8(name):
        raise InvalidInputError(f"a column name must be UTF-8 without NUL, got {name!r}")
    return name


@lru_cache(maxsize=512)
def check_relative_path(path: object) -> str:
    """Return `path` if it is a relative POSIX path that stays inside the store."""
    # A restore meets the paths of its files again and again; a collection, which meets each once, keeps few of them.
    if not isinstance(path, str) or path == "":
        raise CorruptDataError(str(path), "a path must be a non-empty text")
    if _NOT_IN_PATHS.search(path) or not _is_utf8(path):
        raise CorruptDataError(repr(path), "a path must have no backslash and no control character")
    if not _NO_COMPONENTS.isdisjoint(path.split("/")):
        raise CorruptDataError(path, "a path must be relative and have no empty, '.' or '..' component")
    return path


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
