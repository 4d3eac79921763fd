"""The commit log: numbered, immutable entries, each created only if its number is free."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    CollectedError,
    CommitUnknownError,
    CorruptDataError,
    MissingFileError,
)
from arrowstate.log.boundary import NewReferences, boundaries, boundary_number, number_of, path_of
from arrowstate.log.entries import FIRST, FOLDER, HINT_PATH, CommittedEntry, hinted_number, lost_entry
from arrowstate.log.pins import read_pins
from arrowstate.storage.base import Outcome, Storage
from arrowstate_formats.documents import (
    LogEntryDocument,
    decode,
    encode,
)
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import checksum

__all__ = ["CommitLog", "refuse_loss", "warn_of_loss"]


_logger = logging.getLogger("arrowstate.log")

_ANY = 1 << 256
"""More than any id; one that no checkpoint can have is not found."""


def warn_of_loss(error: CorruptDataError) -> None:
    """Say that the newest entries are lost, and go on with what is there: what a reader does."""
    warnings.warn(str(error), RuntimeWarning, stacklevel=3)


def refuse_loss(error: CorruptDataError) -> None:
    """Stop where the newest entries are lost: the number of one that was acknowledged must not be given again."""
    raise CorruptDataError(
        error.path,
        f"{error.detail}. To write on from what is there and lose the rest for good, open the store with "
        "writer(accept_loss=True)",
    )


class CommitLog:
    """Reads and appends the log of a store; holds no state of its own.

    Parameters
    ----------
    storage
        The store.
    on_loss
        Called when the hint names an entry above the newest one, which is then lost: `warn_of_loss` by default. Whoever
        adds entries, or deletes files, takes `refuse_loss`.
    """

    def __init__(self, storage: Storage, *, on_loss: Callable[[CorruptDataError], None] = warn_of_loss) -> None:
        self._storage = storage
        self._on_loss = on_loss

    def latest(self) -> CommittedEntry | None:
        """Return the newest entry, None if there is none yet.

        Raises
        ------
        CorruptDataError
            If the entry at the boundary is lost, and every entry after it.
        """
        hinted = hinted_number(self._storage)
        newest = self._forward(hinted)
        # Where entries are gone, the one before the gap looks like the newest to who starts below it.
        while newest is None or newest.document.number < self.boundary():
            boundary = self.boundary()
            numbers = self.numbers()
            if not numbers and not boundary:
                # A listing may be an old one. Nothing was collected, so a log that has entries has the first.
                newest = self._forward(FIRST)
                break
            start = max([boundary, *numbers[-1:]])
            newest = self._forward(start)
            # The entry at the boundary goes only when the boundary rises, so each further round is another collection.
            if newest is None and self.boundary() <= boundary:
                if numbers and numbers[-1] == start:
                    raise CorruptDataError(path_of(start), "the log entry is listed and missing")
                raise lost_entry(start, max(boundaries(self._storage)).path, numbers[-1] if numbers else None)
        number = newest.document.number if newest else None
        if hinted is not None and (number is None or hinted > number):
            self._on_loss(lost_entry(hinted, HINT_PATH, number))
        return newest

    def latest_with_checkpoint(self) -> tuple[CommittedEntry, LogEntryDocument]:
        """Return the newest entry, and the checkpoint whose content it has: itself, or the one that a fence names.

        Raises
        ------
        CheckpointNotFoundError
            If there is no checkpoint yet.
        CorruptDataError
            If an entry is missing, or not the one its successor was written after.
        """
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

        Raises
        ------
        CorruptDataError
            If the entry is missing, or is not the one that the fence was written after.
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

    def boundary(self) -> int:
        """Return the lowest number of the log: entries below it have been collected."""
        return boundary_number(self._storage)

    def latest_checkpoint(self) -> LogEntryDocument | None:
        """Return the newest entry that is a checkpoint, that is, any but a fence."""
        return next(self.backwards(), None)

    def backwards(self) -> Iterator[LogEntryDocument]:
        """Yield the checkpoints, compactions and savepoints, newest first; a fence is passed over.

        Last come those that only a tag, a lease or being a savepoint has kept.

        Raises
        ------
        CorruptDataError
            If an entry is not the one its successor was written after.
        """
        floor = None
        while floor is None:
            floor = yield from self._chain()
        below = [number for number in self.numbers() if number < floor] if floor else []
        for number in reversed(below):
            entry = self.get(number)
            if entry is not None and entry.document.kind != "fence" and self._is_kept(entry):
                yield entry.document

    def _chain(self) -> Generator[LogEntryDocument, None, int | None]:
        """Yield the checkpoints of the log itself, newest first, and return the number below which it was collected.

        None if it was collected before there was a checkpoint to yield; then it is to be read again.
        """
        # The boundary first: whatever is the newest afterwards is not below it.
        boundary = self.boundary()
        entry = self.latest()
        seen = False
        while entry is not None:
            if entry.document.kind != "fence":
                seen = True
                yield entry.document
            parent = entry.document.parent
            if parent is None or parent.number < boundary:
                return boundary
            following, entry = entry, self.get(parent.number)
            if entry is not None:
                _check_parent(following, entry)
            elif parent.number >= self.boundary():
                raise CorruptDataError(path_of(parent.number), "the log entry is missing")
            else:
                return following.document.number if seen else None
        return 0

    def checkpoint(self, checkpoint_id: int) -> LogEntryDocument:
        """Return the entry of a checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is none with this id.
        CorruptDataError
            If the entry is not the one its successor was written after.
        """
        return self.committed_checkpoint(checkpoint_id).document

    def committed_checkpoint(self, checkpoint_id: int) -> CommittedEntry:
        """Return the entry of a checkpoint, with its checksum; see `checkpoint`."""
        checkpoint_id = check_integer("the id of a checkpoint", checkpoint_id, -_ANY, _ANY)
        guess = self.get(checkpoint_id) if checkpoint_id >= 0 else None
        if guess is not None and guess.document.checkpoint_id == checkpoint_id:
            if guess.document.number >= self.boundary():
                try:
                    following = self.get(guess.document.number + 1)
                except CorruptDataError:
                    # Damage of its own, and no reason to refuse this one: it may be what is left to restore.
                    return guess
                if following is not None:
                    _check_parent(following, guess)
                return guess
            if self._is_kept(guess):
                return guess
        seen = []
        try:
            for entry in self.backwards():
                if entry.checkpoint_id == checkpoint_id:
                    return self.read(entry.number)
                seen.append(entry.checkpoint_id)
        except CorruptDataError:
            # It may be what is left to restore, whatever else the log has lost.
            for number in reversed(self.numbers()):
                found = self._whole(number)
                if found is not None and found.document.checkpoint_id == checkpoint_id:
                    return found
            raise
        raise CheckpointNotFoundError(checkpoint_id, sorted(number for number in seen if number is not None))

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
        return entry.number >= self.boundary() or self._is_kept(found)

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending."""
        found = (number_of(path) for path in self._storage.list(FOLDER))
        return sorted(number for number in found if number is not None)

    def read(self, number: int) -> CommittedEntry:
        """Return the entry with a number, which must exist."""
        entry = self.get(number)
        if entry is None:
            raise CorruptDataError(path_of(number), "the log entry is missing")
        return entry

    def append(self, document: LogEntryDocument, references: NewReferences | None = None) -> CommittedEntry | None:
        """Commit an entry; None if another writer took its number first.

        Parameters
        ----------
        document
            The entry; its number is the one after its parent's.
        references
            The files that it refers to and its parent does not, which a collection may have taken for garbage; None
            for an entry that refers to nothing else, such as a fence.

        Raises
        ------
        CommitUnknownError
            If it cannot be told whether it was committed, a collection that runs may be deleting its files, or the log
            was collected past it before that could be found out.
        CollectedError
            If files that it refers to have been collected, or are being; it was not committed.
        StorageFullError, StorageError
            If it was not committed.
        """
        path = path_of(document.number)
        if references is not None:
            lost = references.lost(self._storage, boundaries(self._storage))
            if lost:
                raise CollectedError(lost)
        data = encode(document)
        if self._storage.put_if_absent(path, data, document.commit_id) is Outcome.LOST:
            _logger.debug("%s: entry %d is another writer's", self._storage.url, document.number)
            return None
        try:
            # Only now: what a collection says before this it may do without seeing the entry.
            found = boundaries(self._storage)
            is_below = document.number < max((boundary.boundary for boundary in found), default=0)
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
        # The entry is committed; without the hint the next reader probes a little longer.
        with suppress(OSError):
            self._storage.put_hint(HINT_PATH, str(document.number).encode())
        _say_committed(self._storage.url, document, len(data))
        return CommittedEntry(document, checksum(data), len(data))

    def _forward(self, number: int | None) -> CommittedEntry | None:
        """Return the entry before the first gap from a number on, None if the number itself is free."""
        newest = None if number is None else self.get(number)
        while newest is not None and (following := self.get(newest.document.number + 1)) is not None:
            newest = following
        return newest

    def _is_kept(self, entry: CommittedEntry) -> bool:
        """Whether an entry below the boundary is still a checkpoint of this store."""
        return entry.document.kind == "savepoint" or any(
            pin.entry == entry.as_parent for pin in read_pins(self._storage)
        )

    def _whole(self, number: int) -> CommittedEntry | None:
        """Return a checkpoint of a log that is damaged elsewhere, None if there is none or it cannot be read."""
        try:
            entry = self.get(number)
        except CorruptDataError:
            return None
        if entry is None or entry.document.kind == "fence":
            return None
        return entry if number >= self.boundary() or self._is_kept(entry) else None

    def get(self, number: int) -> CommittedEntry | None:
        """Return the entry with a number, None if there is none."""
        path = path_of(number)
        try:
            data = self._storage.read(path)
        except MissingFileError:
            return None
        document = decode(data, LogEntryDocument, path=path)
        if document.number != number:
            raise CorruptDataError(path, f"holds the entry {document.number}")
        return CommittedEntry(document, checksum(data), len(data))


def _check_parent(following: CommittedEntry, entry: CommittedEntry) -> None:
    if following.document.parent != entry.as_parent:
        raise CorruptDataError(path_of(entry.document.number), "the entry after it was written after other bytes")


def _say_committed(url: str, document: LogEntryDocument, size: int) -> None:
    fields = {
        "store": url,
        "entry": document.number,
        "kind": document.kind,
        "checkpoint_id": document.checkpoint_id,
        "writer_epoch": document.writer_epoch,
        "entry_bytes": size,
        "duration_ms": document.committed_at_ms - document.started_at_ms,
    }
    if document.kind == "fence":
        _logger.info("%(store)s: a writer of epoch %(writer_epoch)d begins with entry %(entry)d", fields, extra=fields)
    else:
        text = "%(store)s: %(kind)s %(checkpoint_id)d committed as entry %(entry)d, %(duration_ms)d ms after it began"
        _logger.info(text, fields, extra=fields)
