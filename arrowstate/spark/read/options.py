"""Options of `spark.read` and `spark.readStream`: what is known, what is missing, and what the values mean.

Every way to read a store takes its own options. One that it does not take is refused by name, so none is ever
without effect.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import cast, get_args

import msgspec

from arrowstate.errors import CheckpointNotFoundError, InvalidInputError, NotFoundError
from arrowstate.files.validation import Validation
from arrowstate.log.choosing import checkpoint_at, milliseconds_of, named_checkpoint, tags_of
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import open_store_document
from arrowstate.spark.places import STORAGE_OPTIONS, StorePlace, storage_options_of
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import KeyGroupRange

__all__ = [
    "IDLE_OPTION",
    "StorePlace",
    "await_checkpoint",
    "check_options",
    "choice",
    "choose_columns",
    "column_names",
    "find_checkpoint",
    "flag",
    "key_group_option",
    "open_checkpoint",
    "open_read_storage",
    "refuse",
    "required",
    "split_names",
    "validation",
    "whole_number",
]

IDLE_OPTION = "idleTimers"
"""Asks for the stream of timers, with the value `true`; a part of `write_stream(fire_when_idle=True)`."""

_WAIT_SECONDS = 60
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


def check_options(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    """Refuse an option that a read does not take; the message says which it takes.

    Raises
    ------
    InvalidInputError
        If there is such an option.
    """
    names = list(known)
    names.append(STORAGE_OPTIONS)
    taken = {name.lower() for name in (*names, "path")}
    unknown = sorted(option for option in options if option.lower() not in taken)
    if unknown:
        raise InvalidInputError(
            f"unknown option {', '.join(map(repr, unknown))}; {what} is read with {', '.join(names)}"
        )


def refuse(options: Mapping[str, str], names: Iterable[str], reason: str) -> None:
    """Refuse options that have no place in this read, with the reason."""
    given = [name for name in names if options.get(name) is not None]
    if given:
        raise InvalidInputError(f"the option {given[0]!r} {reason}")


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """Return the value of an option that must be there."""
    value = options.get(name)
    if not value:
        raise InvalidInputError(f"the option {name!r} is missing: spark.read.format('arrowstate'){example}")
    return value


def whole_number(options: Mapping[str, str], name: str, *, at_least: int = 0) -> int | None:
    """Return an option that is a number, None if it is not given."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < at_least:
        raise InvalidInputError(f"the option {name!r} must be a whole number from {at_least}, got {text!r}")
    return int(text)


def flag(options: Mapping[str, str], name: str) -> bool:
    """Return an option that is true or false, false if it is not given."""
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"the option {name!r} must be true or false, got {text!r}")
    return text == "true"


def validation(options: Mapping[str, str]) -> Validation:
    """Return what is compared when rows are read."""
    return cast("Validation", choice(options, "validate", get_args(Validation)))


def choice(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return an option that is one of some words, the first of them if it is not given."""
    text = options.get(name, values[0]).lower()
    if text not in values:
        raise InvalidInputError(f"the option {name!r} must be {' or '.join(values)}, got {text!r}")
    return text


def column_names(options: Mapping[str, str]) -> list[str] | None:
    """Return what the option `columns` names, in its order; None if it is not given."""
    text = options.get("columns")
    if text is None:
        return None
    names = split_names(text)
    if len(set(names)) < len(names):
        raise InvalidInputError(f"the option 'columns' must name each column once, got {text!r}")
    return names


def split_names(text: str) -> list[str]:
    """Return names that are separated by commas, or a JSON array, for names that have commas themselves.

    Examples
    --------
    >>> split_names("user, clicks"), split_names('["last, first"]')
    (['user', 'clicks'], ['last, first'])
    """
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            pass  # a name that begins with a bracket
    return [name.strip() for name in text.split(",")]


def choose_columns(
    options: Mapping[str, str], available: Iterable[str], what: str, *, may_be_none: bool = False
) -> list[str]:
    """Return the columns that the option `columns` names, all of them if it is not given."""
    there = list(available)
    names = column_names(options)
    if names == [] and not may_be_none:
        # Rows without columns would be none.
        raise InvalidInputError(f"the option 'columns' names no column of {what}; leave it out to get all")
    for name in names or ():
        if name not in there:
            raise InvalidInputError(f"{what} has no column {name!r}; it has {', '.join(there)}")
    return there if names is None else names


def key_group_option(options: Mapping[str, str], max_parallelism: int) -> KeyGroupRange | None:
    """Return the option `keyGroups`, `3-7` or `5`, both ends inclusive; None if it is not given."""
    text = options.get("keyGroups")
    if text is None:
        return None
    first, _, last = (part.strip() for part in text.partition("-"))
    last = last or first
    is_range = first.isdecimal() and last.isdecimal() and int(first) <= int(last) < max_parallelism
    if not is_range:
        raise InvalidInputError(
            f"the option 'keyGroups' must be a key group or a range such as 3-7, from 0 to {max_parallelism - 1}, "
            f"got {text!r}"
        )
    return KeyGroupRange(int(first), int(last))


def open_read_storage(options: Mapping[str, str]) -> Storage:
    """Return the storage of the store that the option `path` names.

    Raises
    ------
    InvalidInputError
        If the option is missing, or the storage takes no such `storageOptions`.
    StoreNotFoundError
        If there is no store.
    """
    path = required(options, "path", ".load('/data/store')")
    storage = StorePlace(path, storage_options_of(options)).open()
    open_store_document(storage)
    return storage


def open_checkpoint(options: Mapping[str, str]) -> tuple[Storage, LogEntryDocument]:
    """Return the storage, and the checkpoint that the options `checkpoint` or `asOf` choose."""
    storage = open_read_storage(options)
    return storage, find_checkpoint(storage, options.get("checkpoint"), options.get("asOf"))


def await_checkpoint(storage: Storage, options: Mapping[str, str]) -> None:
    """Wait until the store has a checkpoint, for as long as the option `waitSeconds` says.

    What is committed to may be followed from its beginning, and who follows may be there first. Nothing is raised
    where none came: `find_checkpoint` does that.
    """
    seconds = whole_number(options, "waitSeconds")
    ends = time.monotonic() + (_WAIT_SECONDS if seconds is None else seconds)
    log = CommitLog(storage)
    pause = _FIRST_PAUSE_SECONDS
    while log.latest_checkpoint() is None and (left := ends - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


def find_checkpoint(storage: Storage, checkpoint: str | None = None, as_of: str | None = None) -> LogEntryDocument:
    """Return a checkpoint of a store.

    Parameters
    ----------
    storage
        The store.
    checkpoint
        An id, or the name of a tag; the newest by default.
    as_of
        A time in ISO 8601, in UTC unless it has an offset, or in milliseconds since 1970: the newest checkpoint that
        was committed then or before.

    Raises
    ------
    NotFoundError
        If there is no such checkpoint or tag; the message lists the existing ones. `CheckpointNotFoundError` for an id.
    InvalidInputError
        If both are given, `as_of` is no time, or `checkpoint` is the id of one checkpoint and a tag of another.
    """
    log = CommitLog(storage)
    if as_of is not None:
        if checkpoint is not None:
            raise InvalidInputError(
                f"the options 'checkpoint' and 'asOf' choose a checkpoint each: give one of them, got {checkpoint!r} "
                f"and {as_of!r}"
            )
        time_ms = milliseconds_of(as_of)
        if time_ms is None:
            raise InvalidInputError(
                "the option 'asOf' must be a time such as 2026-03-01T12:00:00Z, or milliseconds since 1970, "
                f"got {as_of!r}"
            )
        return checkpoint_at(log, time_ms, as_of)
    if checkpoint is None:
        entry = log.latest_checkpoint()
        if entry is None:
            raise CheckpointNotFoundError(None, [])
        return entry
    found = named_checkpoint(storage, log, checkpoint)
    if found is None:
        raise NotFoundError(
            f"no checkpoint and no tag {checkpoint!r} in {storage.url}; a checkpoint is named by its id, a whole "
            f"number, and the tags are {', '.join(map(repr, tags_of(storage))) or 'none'}"
        )
    return found
