"""The commit log: numbered, immutable entries, each created only if its number is free.

`History` is the log as it was at one moment, and the walk over it that everybody takes who looks back: the newest entry
and the names in `gc/` are read once and handed on, so what is decided by them is decided by the same. Older entries are
read as the walk comes to them, so a collection may come in between; it only drops what the walk need not have seen.
Specification: formats/spec/collection.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import (
    CheckpointNotFoundError,
    CorruptDataError,
    FormatVersionError,
    MissingFileError,
    StoreNotFoundError,
)
from arrowstate.log.boundary import Boundary, boundaries, highest_boundary, number_of, path_of
from arrowstate.log.entries import (
    FIRST,
    FOLDER,
    HINT_PATH,
    STORE_PATH,
    CommittedEntry,
    hinted_number,
    lost_entry,
    newest_id,
    open_store_document,
)
from arrowstate.log.lookup import last_up_to
from arrowstate.log.pins import Pin, read_pins
from arrowstate.storage.base import Storage, listed_pages
from arrowstate.storage.parallel import in_parallel, overlaps
from arrowstate_formats.documents import (
    LogEntryDocument,
    StoreDocument,
    decode,
)
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import checksum

_ANY = 1 << 256
"""More than any id; one that no checkpoint can have is not found."""
_WINDOW = 512
_WINDOW_BYTES = 4 << 20
"""How many entries, and about how many bytes of them, are read at a time."""


def warn_of_loss(error: CorruptDataError) -> None:
    """Say that the newest entries are lost, and go on with what is there: what a reader does."""
    warnings.warn(str(error), RuntimeWarning, stacklevel=4)


def refuse_loss(error: CorruptDataError) -> None:
    """Stop where the newest entries are lost: the number of one that was acknowledged must not be given again."""
    raise CorruptDataError(
        error.path,
        f"{error.detail}. To write on from what is there and lose the rest for good, open the store with "
        "writer(accept_loss=True)",
    )


class History(Struct, frozen=True):
    """The log from one moment on back."""

    log: CommitLog
    newest: CommittedEntry | None
    "None if there is no entry yet."
    said: tuple[Boundary, ...]
    "What the names in `gc/` said after `newest` was found, which is not below the boundary."
    boundary: int
    "The lowest number of the log at that moment, by what they said."

    @property
    def checkpoint(self) -> LogEntryDocument | None:
        """The newest entry that is a checkpoint, that is, any but a fence."""
        return next((entry.document for entry in self.checkpoints()), None)

    def entries(self) -> Iterator[CommittedEntry]:
        """Yield the entries of the log itself, newest first, down to where it was collected."""
        boundary, entry = self.boundary, self.newest
        while entry is not None:
            yield entry
            parent = entry.document.parent
            if parent is None or parent.number < boundary:
                return
            following, entry = entry, self.log.get(parent.number)
            if entry is not None:
                check_parent(following, entry)
            elif parent.number >= self.log.boundary():
                raise CorruptDataError(path_of(parent.number), "the log entry is missing")

    def checkpoints(self) -> Iterator[CommittedEntry]:
        """Yield the checkpoints, compactions and savepoints, newest first; a fence is passed over.

        Last come those that only a tag, a lease or being a savepoint has kept. Where the log was collected before there
        was one to yield, they are those of the log as it is then.
        """
        is_empty, last = True, None
        for last in self.entries():
            if last.document.kind != "fence":
                is_empty = False
                yield last
        parent = None if last is None else last.document.parent
        if parent is None:
            return
        if is_empty and parent.number >= self.boundary:
            yield from self.log.history().checkpoints()
            return
        below = [number for number in self.log.numbers() if number <= parent.number]
        followed = None
        for followed in self.log.followed(last) if below and last is not None else ():
            if followed.document.kind != "fence":
                yield followed
        reached = parent.number + 1 if followed is None else followed.document.number
        single = [number for number in below if number < reached]
        pins = self.log.pins() if single else []
        for number in reversed(single):
            entry = self.log.get(number)
            if entry is not None and entry.document.kind != "fence" and self.log.is_kept(entry, pins):
                yield entry

    def up_to(self, is_later: Callable[[CommittedEntry], bool]) -> Iterator[CommittedEntry]:
        """Yield what `checkpoints` does, but hardly any that is later than something; the caller passes over those.

        Of n entries about log2 n are read to get there: what is asked, a time or an id, must rise with their numbers.
        """
        start = self.newest
        if start is not None and is_later(start):
            start = self._last_up_to(is_later, start)
        yield from replace(self, newest=start).checkpoints()

    def _last_up_to(self, is_later: Callable[[CommittedEntry], bool], newest: CommittedEntry) -> CommittedEntry:
        """Return the last entry that is not later, the first one if all are; the newest one if that cannot be told."""
        found, lowest = None, newest
        low, high = max(self.boundary, FIRST), newest.document.number - 1
        while low <= high:
            middle = (low + high) // 2
            try:
                entry = self.log.get(middle)
            except CorruptDataError:
                return newest
            if entry is None and (self.boundary or found is not None):
                # Lost, or collected meanwhile, which the walk tells apart.
                return newest
            if entry is None:
                # The log of a savepoint begins with a number of its own.
                low = middle + 1
            elif is_later(entry):
                lowest, high = entry, middle - 1
            else:
                found, low = entry, middle + 1
        return found or lowest


class CommitLog:
    """Reads the log of a store; it remembers the newest entry, which no later one changes.

    `known` is the newest entry that is known of, if there is one: what is before it is not read to find the newest.
    With `store_id` every look for the newest entry reads the small `arrowstate.json` too, beside `_latest` where
    requests overlap, and is a StoreNotFoundError if the store was deleted or another one was made at its place.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        on_loss: Callable[[CorruptDataError], None] = warn_of_loss,
        known: CommittedEntry | None = None,
        store_id: str | None = None,
    ) -> None:
        self._storage = storage
        self._on_loss = on_loss
        self.known = known
        self.store_id = store_id
        # The bytes of the document of the store, once they are known to be of this one.
        self._identity: bytes | None = None

    @property
    def storage(self) -> Storage:
        """The store."""
        return self._storage

    def get(self, number: int) -> CommittedEntry | None:
        """Return the entry with a number, None if there is none."""
        path = path_of(number)
        try:
            data = self._storage.read(path)
        except MissingFileError:
            return None
        document = decode(data, LogEntryDocument, path=path)
        if document.number != number:
            raise CorruptDataError(path, f"holds the entry of {path_of(document.number)}")
        return CommittedEntry(document, checksum(data), len(data))

    def checksum_of(self, number: int) -> str | None:
        """Return the checksum of the bytes of an entry, None if there is none; it is not decoded."""
        try:
            return checksum(self._storage.read(path_of(number)))
        except MissingFileError:
            return None

    def read(self, number: int) -> CommittedEntry:
        """Return the entry with a number, which must exist."""
        entry = self.get(number)
        if entry is None:
            raise CorruptDataError(path_of(number), "the log entry is missing")
        return entry

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending."""
        found = (number_of(path) for path in self._storage.list(FOLDER))
        return sorted(number for number in found if number is not None)

    def ranges(self) -> list[range]:
        """Return the numbers of all entries, ascending, as the stretches without a gap that they form."""
        paths = chain.from_iterable(listed_pages(self._storage, FOLDER))
        return ranges_of(number for number in map(number_of, paths) if number is not None)

    def many(self, numbers: Iterable[int]) -> Iterator[tuple[int, CommittedEntry | None]]:
        """Yield each of the numbers with its entry, None if there is none; several are read at a time, few are held."""
        left = iter(numbers)
        at_once = 1
        while window := list(islice(left, at_once)):
            found = in_parallel(self._storage, self.get, window, name="entries", small=True)
            yield from zip(window, found, strict=True)
            largest = max((entry.bytes for entry in found if entry is not None), default=0)
            at_once = max(1, min(_WINDOW, _WINDOW_BYTES // max(largest, 1)))

    def pins(self) -> list[Pin]:
        """Return all tags and leases; errors as for `read_pins`."""
        return read_pins(self._storage)

    def boundary(self) -> int:
        """Return the lowest number of the log: entries below it have been collected."""
        return highest_boundary(boundaries(self._storage))

    def history(self) -> History:
        """Return the log as it is now: the newest entry and what `gc/` says; errors as for `latest`."""
        if self.store_id is None:
            return self._history(hinted_number(self._storage))
        acts: list[Callable[[], int | None]] = [self.check_store, lambda: hinted_number(self._storage)]
        return self._history(in_parallel(self._storage, lambda act: act(), acts, name="log", small=True)[1])

    def check_store(self) -> None:
        """Refuse a store that was deleted, or another one that was made at its place."""
        if self.store_id is None:
            return
        try:
            data = self._storage.read(STORE_PATH)
        except MissingFileError:
            raise StoreNotFoundError(self._storage.url) from None
        if data == self._identity:
            return
        found = decode(data, StoreDocument, path=STORE_PATH).store_id
        if found != self.store_id:
            raise StoreNotFoundError(
                self._storage.url,
                f"store {self.store_id}",
                f"it was deleted, and store {found} was made there: open that one anew",
            )
        self._identity = data

    def opened(self) -> tuple[StoreDocument, History]:
        """Return the identity of the store, and the log as it is now.

        Both are asked for at once where requests overlap. Errors are those of `open_store_document` and `history`.
        """
        if not overlaps(self._storage):
            return open_store_document(self._storage), self.history()
        acts: list[Callable[[Storage], Any]] = [open_store_document, hinted_number]
        document, hinted = in_parallel(self._storage, lambda act: act(self._storage), acts, name="open", small=True)
        return document, self._history(hinted)

    def _history(self, hinted: int | None) -> History:
        newest = self._tail(hinted)
        # Only now: where entries are gone, the one before the gap looks like the newest to who starts below it.
        said = boundaries(self._storage)
        while newest is None or newest.document.number < highest_boundary(said):
            boundary, numbers = highest_boundary(said), self.numbers()
            # A listing may be an old one. Where nothing was collected, a log that has entries has the first.
            start = max([boundary, *numbers[-1:]]) if boundary or numbers else FIRST
            newest = self._forward(start)
            said = boundaries(self._storage)
            # The entry at the boundary goes only when the boundary rises, so each further round is another collection.
            if newest is None and highest_boundary(said) <= boundary:
                if numbers and numbers[-1] == start:
                    raise CorruptDataError(path_of(start), "the log entry is listed and missing")
                if not numbers and not boundary:
                    break
                raise lost_entry(start, max(said).path, numbers[-1] if numbers else None)
        number = newest.document.number if newest else None
        if hinted is not None and (number is None or hinted > number):
            self._on_loss(lost_entry(hinted, HINT_PATH, number))
        self.known = newest
        return History(self, newest, tuple(said), highest_boundary(said))

    def _tail(self, hinted: int | None) -> CommittedEntry | None:
        """Return the entry before the first gap from the one on that the hint names, or that was the newest before."""
        known = self.known
        if known is None or (hinted is not None and hinted > known.document.number):
            return self._forward(hinted)
        following = self.get(known.document.number + 1)
        if following is None:
            return known
        # Otherwise it was lost after it had been read, and its number given again.
        is_next = following.document.parent == known.as_parent
        return self._forward(following.document.number if is_next else hinted)

    def _forward(self, number: int | None) -> CommittedEntry | None:
        """Return the entry before the first gap from a number on, None if the number itself is free."""
        if number is None:
            return None
        if overlaps(self._storage):
            # The next one is hardly ever there, and is asked for in the same time.
            newest, following = in_parallel(self._storage, self.get, [number, number + 1], name="log", small=True)
            if newest is None or following is None:
                return newest
            newest = following
        else:
            newest = self.get(number)
        while newest is not None and (following := self.get(newest.document.number + 1)) is not None:
            newest = following
        return newest

    def is_kept(self, entry: CommittedEntry, pins: Sequence[Pin] | None = None) -> bool:
        """Whether an entry below the boundary is still a checkpoint of this store; `pins` as for `followed`."""
        if entry.document.kind == "savepoint":
            return True
        pins = self.pins() if pins is None else pins
        if any(pin.entry == entry.as_parent for pin in pins):
            return True
        if not any(pin.and_later and pin.entry.number < entry.document.number for pin in pins):
            return False
        first = self.get(self.boundary())
        return first is not None and any(found.as_parent == entry.as_parent for found in self.followed(first, pins))

    def followed(self, entry: CommittedEntry, pins: Sequence[Pin] | None = None) -> Iterator[CommittedEntry]:
        """Yield the entries before one of the log, newest first, that leases hold with all after them.

        They are there where a collection has said how far the log goes before it saw the lease. `pins` are all there
        are, where they have just been read.
        """
        pins = self.pins() if pins is None else pins
        lowest = min((pin.entry.number for pin in pins if pin.and_later), default=None)
        parent = entry.document.parent
        while lowest is not None and parent is not None and parent.number >= lowest:
            before = self.get(parent.number)
            # What was made anew under the number of one that went is none of them.
            if before is None or before.as_parent != parent:
                return
            yield before
            parent = before.document.parent

    def latest(self) -> CommittedEntry | None:
        """Return the newest entry, None if there is none yet."""
        return self.history().newest

    def latest_with_checkpoint(self) -> tuple[CommittedEntry, LogEntryDocument]:
        """Return the newest entry, and the checkpoint whose content it has: itself, or the one that a fence names."""
        while True:
            newest = self.latest()
            checkpoint = None if newest is None else self.content(newest, missing_ok=True)
            if newest is not None and checkpoint is not None:
                return newest, checkpoint
            if newest is None or (newest.document.kind == "fence" and newest.document.content is None):
                raise CheckpointNotFoundError(None, [])
            # The log has gone on and was collected meanwhile, or else it is damaged.
            if self.latest() == newest:
                self.content(newest)
                raise CheckpointNotFoundError(None, [])

    def content(self, newest: CommittedEntry, *, missing_ok: bool = False) -> LogEntryDocument | None:
        """Return the entry whose operators the newest one stands for: itself, or for a fence the one that it names.

        None if there is no checkpoint yet; with `missing_ok` also if the entry is not there.
        """
        entry = newest
        while entry.document.kind == "fence":
            named = entry.document.content
            if named is None:
                return None
            found = self.get(named.number)
            if found is None and missing_ok:
                return None
            if found is None:
                raise CorruptDataError(path_of(named.number), "the log entry is missing")
            if found.as_parent != named:
                raise CorruptDataError(path_of(named.number), "the fence after it was written after other bytes")
            entry = found
        return entry.document

    def latest_checkpoint(self) -> LogEntryDocument | None:
        """Return the newest entry that is a checkpoint, that is, any but a fence."""
        return self.history().checkpoint

    def backwards(self) -> Iterator[LogEntryDocument]:
        """Yield the checkpoints, compactions and savepoints, newest first; see `History.checkpoints`."""
        return (entry.document for entry in self.history().checkpoints())

    def checkpoint(self, checkpoint_id: int) -> LogEntryDocument:
        """Return the entry of a checkpoint."""
        return self.committed_checkpoint(checkpoint_id).document

    def committed_checkpoint(self, checkpoint_id: int) -> CommittedEntry:
        """Return the entry of a checkpoint, with its checksum: the newest of those that share the id; see `checkpoint`.

        Takes a listing of the log and two of `gc/`, and of n entries that are listed reads at most 2 log2 n and a few:
        four where few fences lie between the checkpoint and the newest one, a dozen among thousands. A damaged entry
        costs one more. For a checkpoint below the boundary all tags and leases are read too.
        """
        checkpoint_id = check_integer("the id of a checkpoint", checkpoint_id, -_ANY, _ANY)
        while True:
            boundary = self.boundary()
            numbers = self.numbers()
            # A listing may be an old one; the entry at the boundary is there, and without a boundary the first.
            of_log = [number for number in numbers if number >= boundary] or [boundary or FIRST]
            found = self._of_log(of_log, checkpoint_id)
            if found is not None and found.document.number >= self.boundary():
                return found
            found = self._held_below(boundary, numbers, checkpoint_id)
            if found is not None:
                return found
            if self.boundary() == boundary:
                break
        seen = {entry.checkpoint_id for entry in self.backwards()}
        raise CheckpointNotFoundError(checkpoint_id, sorted(number for number in seen if number is not None))

    def _of_log(self, numbers: Sequence[int], checkpoint_id: int) -> CommittedEntry | None:
        """Return the newest entry with an id among those from the boundary on, however much of the others is lost."""
        read = cache(self._readable)
        entry = last_up_to(numbers, checkpoint_id, read)
        # What was committed since the listing; and the next entry tells whether this one is what it was.
        while entry is not None and (following := read(entry.document.number + 1)) is not None:
            check_parent(following, entry)
            if newest_id(following) > checkpoint_id:
                break
            entry = following
        if entry is None or newest_id(entry) != checkpoint_id:
            return None
        try:
            content = self.content(entry)
        except CorruptDataError:
            # The checkpoint that a compaction repeated may be what is left to restore.
            before = (read(number) for number in reversed(numbers) if number < entry.document.number)
            for other in before:
                if other is not None and other.document.checkpoint_id == checkpoint_id:
                    return other
                if other is not None and newest_id(other) < checkpoint_id:
                    break
            raise
        if content is None or content.checkpoint_id != checkpoint_id or content.number < numbers[0]:
            return None
        return entry if content is entry.document else self.get(content.number)

    def _held_below(self, boundary: int, numbers: Sequence[int], checkpoint_id: int) -> CommittedEntry | None:
        """Return a checkpoint that only a tag, a lease or being a savepoint has kept."""
        below = [number for number in numbers if number < boundary]
        pins = [pin for pin in read_pins(self._storage) if pin.entry.number < boundary] if below else []
        for pin in sorted(pins, key=lambda pin: pin.entry.number, reverse=True):
            entry = self.get(pin.entry.number) if pin.checkpoint_id == checkpoint_id else None
            if entry is not None and entry.as_parent == pin.entry and entry.document.checkpoint_id == checkpoint_id:
                return entry
        first = self.get(boundary) if any(pin.and_later for pin in pins) else None
        for entry in () if first is None else self.followed(first, pins):
            if entry.document.checkpoint_id == checkpoint_id:
                return entry
        # Hardly ever more than one: the savepoint with which a log began, or what a collection has left behind.
        for number in sorted({*below}.difference(pin.entry.number for pin in pins)):
            entry = self._readable(number)
            document = None if entry is None else entry.document
            if document is not None and (document.kind, document.checkpoint_id) == ("savepoint", checkpoint_id):
                return entry
        return None

    def holds(self, entry: LogEntryDocument) -> bool:
        """Whether a checkpoint that was read is still one of this store, and not collected since."""
        try:
            found = self.get(entry.number)
        except CorruptDataError:
            return True
        if found is None:
            # Below the boundary it may be gone; above it, that is damage.
            return entry.number >= self.boundary()
        if found.document.commit_id != entry.commit_id:
            return False
        return entry.number >= self.boundary() or self.is_kept(found)

    def _readable(self, number: int) -> CommittedEntry | None:
        """Return the entry with a number, None if there is none or it cannot be read."""
        try:
            return self.get(number)
        except (CorruptDataError, FormatVersionError):
            return None


def ranges_of(numbers: Iterable[int]) -> list[range]:
    """Return the stretches without a gap that numbers form."""
    ascending = np.unique(np.fromiter(numbers, np.int64))
    ends = np.flatnonzero(np.diff(ascending) > 1)
    if not ascending.size:
        return []
    firsts, lasts = ascending[[0, *(ends + 1)]], ascending[[*ends, -1]]
    return [range(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def check_parent(following: CommittedEntry, entry: CommittedEntry) -> None:
    """Refuse an entry that its successor was not written after."""
    if following.document.parent != entry.as_parent:
        raise CorruptDataError(path_of(entry.document.number), "the entry after it was written after other bytes")
