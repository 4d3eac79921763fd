"""The commit log: numbered, immutable entries, each created only if its number is free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache

from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    CollectedError,
    CommitUnknownError,
    CorruptDataError,
    FormatVersionError,
)
from arrowstate.log.boundary import Boundary, NewReferences, boundaries, highest_boundary, path_of
from arrowstate.log.entries import FIRST, HINT_PATH, CommittedEntry, newest_id
from arrowstate.log.history import LogEntries, check_parent, refuse_loss, warn_of_loss
from arrowstate.log.lookup import last_up_to
from arrowstate.log.pins import read_pins
from arrowstate.storage.base import Outcome
from arrowstate.storage.parallel import in_parallel, overlaps
from arrowstate_formats.documents import (
    LogEntryDocument,
    encode,
)
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import checksum

__all__ = ["CommitLog", "refuse_loss", "warn_of_loss"]


_logger = logging.getLogger("arrowstate.log")

_ANY = 1 << 256
"""More than any id; one that no checkpoint can have is not found."""


class CommitLog(LogEntries):
    """Reads and appends the log of a store; parameters as for `LogEntries`."""

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

    def append(
        self,
        document: LogEntryDocument,
        references: NewReferences | None = None,
        *,
        said: Sequence[Boundary] | None = None,
    ) -> CommittedEntry | None:
        """Commit an entry; None if another writer took its number first."""
        path = path_of(document.number)
        if references is not None:
            lost = references.lost(self._storage, boundaries(self._storage) if said is None else said)
            if lost:
                raise CollectedError(lost)
        data = encode(document)
        if self._storage.put_if_absent(path, data, document.commit_id) is Outcome.LOST:
            _logger.debug("%s: %s is another writer's", self._storage.url, path)
            return None
        try:
            # Only now: what a collection says before this it may do without seeing the entry.
            found, hinted = self._look_after(document.number)
            is_below = document.number < highest_boundary(found)
            lost = [] if is_below or references is None else references.lost(self._storage, found)
        except (ArrowStateError, OSError) as error:
            raise CommitUnknownError(
                path, document.commit_id, f"collections could not be looked up: {error}", self._storage.url
            ) from error
        if is_below and document.kind == "fence":
            # A fence is worth something only while it is the newest entry.
            return None
        if is_below:
            # Its number had been taken and was free again; or others went on from it while this writer slept, and what
            # it wrote is part of theirs. So nothing of it may be deleted here.
            raise CommitUnknownError(
                path, document.commit_id, "others have gone on, and the log was collected past it", self._storage.url
            )
        if lost:
            raise CommitUnknownError(
                path, document.commit_id, f"{lost[0]}, which it refers to, was being collected", self._storage.url
            )
        if not hinted:
            self._hint(document.number)
        _say_committed(self._storage.url, document, len(data))
        return CommittedEntry(document, checksum(data), len(data))

    def _look_after(self, number: int) -> tuple[list[Boundary], bool]:
        """Return what the names in `gc/` say after an entry was made, and whether the hint names it by now.

        Where requests overlap the hint is written meanwhile: the entry is there, whatever is found out about it.
        """
        if not overlaps(self._storage):
            return boundaries(self._storage), False
        acts: list[Callable[[], list[Boundary]]] = [lambda: boundaries(self._storage), lambda: self._hint(number)]
        return in_parallel(self._storage, lambda act: act(), acts, name="commit", small=True)[0], True

    def _hint(self, number: int) -> list[Boundary]:
        """Have `_latest` name an entry; without it the next reader probes a little longer."""
        with suppress(OSError):
            self._storage.put_hint(HINT_PATH, str(number).encode())
        return []

    def _readable(self, number: int) -> CommittedEntry | None:
        """Return the entry with a number, None if there is none or it cannot be read."""
        try:
            return self.get(number)
        except (CorruptDataError, FormatVersionError):
            return None


def _say_committed(url: str, document: LogEntryDocument, size: int) -> None:
    fields = {
        "store": url,
        "log_entry": path_of(document.number),
        "kind": document.kind,
        "checkpoint_id": document.checkpoint_id,
        "writer_epoch": document.writer_epoch,
        "entry_bytes": size,
        "duration_ms": document.committed_at_ms - document.started_at_ms,
    }
    if document.kind == "fence":
        _logger.info("%(store)s: a writer of epoch %(writer_epoch)d begins", fields, extra=fields)
    else:
        text = "%(store)s: %(kind)s %(checkpoint_id)d committed, %(duration_ms)d ms after it began"
        _logger.info(text, fields, extra=fields)
