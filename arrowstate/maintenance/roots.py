"""What a store must keep: the roots of a collection, and what each of them refers to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

from arrowstate.errors import CorruptDataError
from arrowstate.log.commit_log import CommitLog, refuse_loss
from arrowstate.log.entries import (
    HINT_PATH,
    CommittedEntry,
    hinted_number,
    lost_entry,
    path_of,
)
from arrowstate.log.pins import Pin, read_pins
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.storage.base import Storage

__all__ = ["mark", "read_roots"]


@dataclass(frozen=True, slots=True)
class _Roots:
    """The log and the pins at one moment."""

    entries: dict[int, CommittedEntry]
    "All there are, ascending."
    floor: int
    "The boundary: entries from it on are the log."
    held: list[Pin]
    ended: list[Pin]
    "Leases that hold nothing any more."


def read_roots(storage: Storage, *, now_ms: int, floor: int) -> _Roots:
    """Read everything that may keep a file, and refuse what is not whole."""
    # The hint and the pins before the log: the entry that one names is there before it.
    hinted = hinted_number(storage)
    pins = read_pins(storage, strict=True)
    log = CommitLog(storage)
    while True:
        found = {number: log.get(number) for number in log.numbers()}
        boundary = log.boundary()
        if boundary <= floor:
            break
        # Another collection has gone on meanwhile, and the entry at its boundary may be newer than the listing.
        floor = boundary
    gone = [number for number, entry in found.items() if entry is None and number >= floor]
    if gone:
        raise CorruptDataError(path_of(gone[0]), "the log entry is listed and missing")
    entries = {number: entry for number, entry in found.items() if entry is not None}
    newest = max(entries, default=None)
    if hinted is not None and hinted >= floor and (newest is None or hinted > newest):
        # What the lost entry refers to looks like garbage.
        refuse_loss(lost_entry(hinted, HINT_PATH, newest))
    _check_chain([entry for number, entry in entries.items() if number >= floor], floor)
    held = [pin for pin in pins if pin.holds(now_ms)]
    for pin in held:
        entry = entries.get(pin.entry.number)
        if entry is None or entry.as_parent != pin.entry:
            remedy = "remove the tag" if pin.tag is not None else "wait until it ends, or delete its file"
            raise CorruptDataError(
                pin.path, f"{pin.holder} holds checkpoint {pin.checkpoint_id}, which is not in the log; {remedy}"
            )
    return _Roots(entries, floor, held, [pin for pin in pins if not pin.holds(now_ms)])


def _check_chain(log: list[CommittedEntry], floor: int) -> None:
    """Refuse a log with a gap, or with an entry that its successor was not written after."""
    if floor and (not log or log[0].document.number != floor):
        raise CorruptDataError(path_of(floor), "the log begins with this entry, and it is missing")
    for before, entry in pairwise(log):
        if entry.document.parent != before.as_parent:
            path = path_of(entry.document.number - 1)
            raise CorruptDataError(path, "it is missing, or the entry after it was written after other bytes")


def mark(
    storage: Storage, reader: ReferenceReader, entries: Iterable[CommittedEntry], risked: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Return (bytes, number of an entry) of every file that entries refer to, but for those in manifests that went."""
    marked: dict[str, tuple[int, int]] = {}
    for entry in entries:
        number = entry.document.number
        unreadable: list[Exception] = []
        for path, size in reader.files(entry.document.operators, unreadable=unreadable).items():
            marked.setdefault(path, (size, number))
        for error in unreadable:
            if not isinstance(error, CorruptDataError) or error.path not in risked or storage.exists(error.path):
                raise error
    return marked
