"""What a store must keep: the roots of a collection, and what each of them refers to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain

from msgspec import Struct

from arrowstate.errors import CorruptDataError
from arrowstate.files.references import ReferenceReader
from arrowstate.log.commit_log import CommitLog, ranges_of, refuse_loss
from arrowstate.log.entries import (
    HINT_PATH,
    CommittedEntry,
    hinted_number,
    lost_entry,
    path_of,
)
from arrowstate.log.pins import Pin, is_withdrawn, read_pins
from arrowstate.storage.base import Storage

_HELD_ENTRIES = 1000
"""Of a log of no more entries all are kept in memory; those of a longer one are read again where they are needed."""


_READ_AHEAD = 512
_READ_AHEAD_BYTES = 4 << 20
"""Of how many entries, and about of how many bytes of them, manifests are read at a time."""
_MOST_KNOWN = 10_000
"""Manifests and lists whose references are in memory."""
_BROKEN = "it is missing, or the entry after it was written after other bytes"


class Roots(Struct, frozen=True):
    """The log and the pins at one moment."""

    log: CommitLog
    numbers: list[range]
    "Of all entries there are, ascending."
    floor: int
    "The boundary: entries from it on are the log."
    held: list[Pin]
    ended: list[Pin]
    "Leases that hold nothing any more."
    known: dict[int, CommittedEntry]
    "Entries that are kept in memory: all of a short log."
    advance: Callable[[], None] = lambda: None
    "Called after each entry that is read."

    @property
    def newest(self) -> int:
        """The number of the newest entry, 0 if there is none."""
        return self.numbers[-1][-1] if self.numbers else 0

    @property
    def pinned(self) -> set[int]:
        """The numbers of the entries that tags and leases hold, by themselves or below the floor with one before."""
        return {number for pin in self.held for number in self.held_by(pin)}

    def held_by(self, pin: Pin) -> Iterator[int]:
        """Yield the number of the entry that a tag or a lease holds, and of those after it, up to the floor."""
        yield pin.entry.number
        if pin.and_later:
            for part in self.numbers:
                yield from range(max(part.start, pin.entry.number + 1), min(part.stop, self.floor))

    def entries(self, numbers: Iterable[int]) -> Iterator[CommittedEntry]:
        """Yield entries; those below the floor that have gone meanwhile are left out."""
        if self.known:
            yield from (self.known[number] for number in numbers if number in self.known)
            return
        for number, entry in self.log.many(numbers):
            self.advance()
            if entry is not None:
                yield entry
            elif number >= self.floor:
                raise CorruptDataError(path_of(number), "the log entry is listed and missing")


def read_roots(
    storage: Storage,
    *,
    now_ms: int,
    floor: int,
    below: Collection[int] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Roots:
    """Read what may keep a file, and refuse pins that hold nothing, and a log that lacks its beginning or its end."""
    # The hint and the pins before the log: the entry that one names is there before it.
    hinted = hinted_number(storage)
    pins = read_pins(storage, strict=True)
    held = [pin for pin in pins if pin.holds(now_ms)]
    log = CommitLog(storage)
    while True:
        numbers = log.ranges()
        boundary = log.boundary()
        if boundary <= floor:
            break
        # Another collection has gone on meanwhile, and the entry at its boundary may be newer than the listing.
        floor = boundary
    if below is not None:
        wanted = {*below, *(pin.entry.number for pin in held)}
        there = [number for number in wanted if number < floor and any(number in part for part in numbers)]
        followed = min((pin.entry.number for pin in held if pin.and_later), default=floor)
        there += [number for part in numbers for number in range(max(part.start, followed), min(part.stop, floor))]
        numbers = [
            *ranges_of(there),
            *(range(max(part.start, floor), part.stop) for part in numbers if part.stop > floor),
        ]
    newest = numbers[-1][-1] if numbers else None
    if hinted is not None and hinted >= floor and (newest is None or hinted > newest):
        # What the lost entry refers to looks like garbage.
        refuse_loss(lost_entry(hinted, HINT_PATH, newest))
    of_log = [part for part in numbers if part.stop > floor]
    if floor and (not of_log or floor not in of_log[0]):
        raise CorruptDataError(path_of(floor), "the log begins with this entry, and it is missing")
    if len(of_log) > 1:
        raise CorruptDataError(path_of(of_log[1].start - 1), _BROKEN)
    roots = Roots(log, numbers, floor, held, [pin for pin in pins if not pin.holds(now_ms)], {}, advance)
    if sum(map(len, numbers)) <= _HELD_ENTRIES:
        found = {entry.document.number: entry for entry in roots.entries(chain.from_iterable(numbers))}
        roots.known.update(found)
    _check_pins(roots)
    return roots


def _check_pins(roots: Roots) -> None:
    """Refuse a pin on an entry that is not there, or is another, and leave out one that came too late."""
    own = sorted({pin.entry.number for pin in roots.held})
    pinned = {entry.document.number: entry.as_parent for entry in roots.entries(own)}
    for pin in [pin for pin in roots.held if pinned.get(pin.entry.number) != pin.entry]:
        if is_withdrawn(roots.log.storage, pin):
            roots.held.remove(pin)
        else:
            remedy = "remove the tag" if pin.tag is not None else "wait until it ends, or delete its file"
            raise CorruptDataError(
                pin.path, f"{pin.holder} holds checkpoint {pin.checkpoint_id}, which is not in the log; {remedy}"
            )


def chained(entries: Iterable[CommittedEntry], floor: int) -> Iterator[CommittedEntry]:
    """Yield entries, ascending, and refuse one of the log that its successor was not written after."""
    before = None
    for entry in entries:
        number = entry.document.number
        if before is not None and before.document.number >= floor and entry.document.parent != before.as_parent:
            raise CorruptDataError(path_of(number - 1), _BROKEN)
        yield entry
        before = entry


def mark(
    storage: Storage, reader: ReferenceReader, entries: Iterable[CommittedEntry], risked: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Return (bytes, number of an entry) of every file that entries refer to, but for those in manifests that went."""
    marked: dict[str, tuple[int, int]] = {}
    for entry in entries_ahead(reader, entries):
        number = entry.document.number
        unreadable: list[Exception] = []
        for path, size in reader.files(entry.document.operators, unreadable=unreadable).items():
            marked.setdefault(path, (size, number))
        for error in unreadable:
            if not isinstance(error, CorruptDataError) or error.path not in risked or storage.exists(error.path):
                raise error
    return marked


def entries_ahead(reader: ReferenceReader, entries: Iterable[CommittedEntry]) -> Iterator[CommittedEntry]:
    """Yield entries whose manifests are read ahead, of several entries at a time."""
    window: list[CommittedEntry] = []
    for entry in entries:
        window.append(entry)
        if len(window) == _READ_AHEAD or sum(other.bytes for other in window) > _READ_AHEAD_BYTES:
            reader.forget_beyond(_MOST_KNOWN)
            reader.read_ahead(operator for other in window for operator in other.document.operators)
            yield from window
            window = []
    reader.read_ahead(operator for other in window for operator in other.document.operators)
    yield from window
