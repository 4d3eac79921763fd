"""Which checkpoint is meant: by its id, by a tag, by a time, or by how far it lies back."""

from __future__ import annotations

import datetime
import re
from collections import deque
from contextlib import suppress
from typing import Any, TypeAlias

from arrowstate.clock import utc_text
from arrowstate.errors import (
    CheckpointNotFoundError,
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    NotFoundError,
)
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.pins import read_pins, read_tag
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument

CheckpointReference: TypeAlias = int | str | datetime.datetime
"""A checkpoint: its id; a tag; or a time, as of which it is the newest. Seen from another, -1 is the one before it.

A text is taken for an id if it is a whole number, then for a tag, then for a time in ISO 8601.
A text that is the id of one checkpoint and a tag of another is an error.
"""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BACK = re.compile("-[0-9]+")
_WAYS = "a checkpoint is named by its id, a whole number, by a tag, or by a time such as 2026-03-01T12:00:00Z"


def choose_checkpoint(
    storage: Storage,
    reference: CheckpointReference,
    *,
    log: CommitLog | None = None,
    seen_from: int | None = None,
) -> LogEntryDocument:
    """Return the checkpoint that is meant."""
    log = CommitLog(storage) if log is None else log
    if isinstance(reference, datetime.datetime):
        return checkpoint_at(log, _since_epoch(reference), reference.isoformat())
    if isinstance(reference, str) and not (seen_from is not None and _BACK.fullmatch(reference)):
        return _by_text(storage, log, reference)
    given: object = reference
    number = int(reference) if isinstance(reference, str) else reference
    # What is no number is refused by the log.
    if seen_from is not None and isinstance(given, (int, str)) and number < 0:
        return _before(log, seen_from, -number)
    return log.checkpoint(number)


def named_checkpoint(storage: Storage, log: CommitLog, name: str) -> LogEntryDocument | None:
    """Return the checkpoint with an id or a tag, None if the name is neither; an error if two are meant."""
    if not name.isdecimal():
        return _tagged(storage, log, name)
    try:
        found = log.checkpoint(int(name))
    except CheckpointNotFoundError:
        tagged = _tagged(storage, log, name)
        if tagged is None:
            raise
        return tagged
    # Such a tag is not made any more, and a store may have one.
    pin = read_tag(storage, name)
    if pin is not None and pin.checkpoint_id != found.checkpoint_id:
        raise InvalidInputError(
            f"{name!r} is the id of checkpoint {found.checkpoint_id} and a tag of checkpoint {pin.checkpoint_id} in "
            f"{storage.url}: give an id as a number in Python; or tag checkpoint {pin.checkpoint_id} under another "
            f"name, and remove this tag with untag({name!r})"
        )
    return found


def _tagged(storage: Storage, log: CommitLog, name: str) -> LogEntryDocument | None:
    """Return the checkpoint with a tag, None if there is no such tag."""
    pin = next((pin for pin in read_pins(storage) if pin.tag == name), None)
    if pin is None:
        return None
    found = log.checkpoint(pin.checkpoint_id)
    # One that is lost or damaged may be repeated by a compaction, which comes after it.
    is_it = found.number >= pin.entry.number
    with suppress(CorruptDataError, FormatVersionError):
        entry = log.get(pin.entry.number)
        is_it = is_it if entry is None else entry.as_parent == pin.entry
    if not is_it:
        # The log had lost entries, and gave the id again.
        raise NotFoundError(
            f"the checkpoint {pin.checkpoint_id} that the tag {name!r} holds is gone from {storage.url}, and another "
            f"one has its id; remove the tag with untag({name!r})"
        )
    return found


def tags_of(storage: Storage) -> dict[str, int]:
    """Return the id of the checkpoint of each tag."""
    return {pin.tag: pin.checkpoint_id for pin in read_pins(storage) if pin.tag is not None}


def checkpoint_at(log: CommitLog, time_ms: int, text: str) -> LogEntryDocument:
    """Return the newest checkpoint that was committed at a time or before, in milliseconds since 1970.

    Of n entries about log2 n are read. Times must rise with the entries, as they do where the clocks of writers agree.
    """
    for committed in log.history().up_to(lambda entry: entry.document.committed_at_ms > time_ms):
        if committed.document.committed_at_ms <= time_ms:
            return committed.document
    oldest = next(iter(deque(log.backwards(), maxlen=1)), None)
    if oldest is None:
        raise CheckpointNotFoundError(None, [])
    raise NotFoundError(
        f"no checkpoint was committed at {text} or before; the oldest, {oldest.checkpoint_id}, was committed at "
        f"{utc_text(oldest.committed_at_ms, 'milliseconds')}"
    )


def milliseconds_of(text: str) -> int | None:
    """Return a time as milliseconds since 1970: such a number, or ISO 8601, in UTC unless it has an offset.

    None for a text that is no time.
    """
    if text.isdecimal():
        return int(text)
    try:
        return _since_epoch(datetime.datetime.fromisoformat(text))
    except ValueError:
        return None


def _since_epoch(time: datetime.datetime) -> int:
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return (time - _EPOCH) // datetime.timedelta(milliseconds=1)


def _by_text(storage: Storage, log: CommitLog, text: str) -> LogEntryDocument:
    found = named_checkpoint(storage, log, text)
    if found is not None:
        return found
    time_ms = milliseconds_of(text)
    if time_ms is None:
        tags: Any = ", ".join(map(repr, tags_of(storage))) or "none"
        raise NotFoundError(f"no checkpoint and no tag {text!r} in {storage.url}; {_WAYS}; the tags are {tags}")
    return checkpoint_at(log, time_ms, text)


def _before(log: CommitLog, start: int, steps: int) -> LogEntryDocument:
    """Return the checkpoint that lies so many before another one."""
    # By id: a compaction has that of the checkpoint that it repeats, and comes first.
    older: set[int] = set()
    for entry in log.backwards():
        number = entry.checkpoint_id
        if number is not None and number < start and number not in older:
            older.add(number)
            if len(older) == steps:
                return entry
    raise NotFoundError(f"there are {len(older)} checkpoints before checkpoint {start}, got {-steps}")
