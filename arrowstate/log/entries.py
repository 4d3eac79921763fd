"""The commit log: numbered, immutable entries, each created only if its number is free.

The newest entry alone tells the state of the store; a checkpoint exists when its entry exists. `_latest` is
a hint: reading starts there and goes on to the first number that is free, or lists the log. Nothing is found by it that
is not there; but an entry that it names, or the boundary does, was there once, so where it is not the log has lost it.
Entries below the boundary have been collected: one that is there is kept by a tag or a lease, or was made by a writer
that did not know.
Specification: formats/spec/manifests-and-log.md and formats/spec/collection.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    CollectedError,
    CommitUnknownError,
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    StoreNotFoundError,
)
from arrowstate.log.boundary import NewReferences, boundaries, boundary_number, number_of, path_of
from arrowstate.log.pins import read_pins
from arrowstate.storage.base import Outcome, Storage
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    ParentDocument,
    StatisticsDocument,
    StoreDocument,
    SubtaskStatisticsDocument,
    decode,
    encode,
)
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import checksum

__all__ = [
    "HINT_PATH",
    "CommitLog",
    "CommittedEntry",
    "content_of",
    "create_store",
    "hinted_number",
    "lost_entry",
    "newest_id",
    "next_checkpoint",
    "next_compaction",
    "next_fence",
    "open_store_document",
    "path_of",
    "put_store_document",
    "refuse_loss",
    "warn_of_loss",
]

_ANY = 1 << 256
"""More than any id; one that no checkpoint can have is not found."""

STORE_PATH = "arrowstate.json"
HINT_PATH = "_latest"
_FOLDER = "log/"
_FIRST = 1


def create_store(storage: Storage, store_id: str, created_at_ms: int) -> StoreDocument:
    """Make the storage a store, or return the store that is there already.

    Raises
    ------
    InvalidInputError
        If the place holds other files; they are left alone.
    """
    try:
        return open_store_document(storage)
    except StoreNotFoundError:
        others = storage.list("")
        if others:
            # Another process may have made the store since it was looked for.
            with suppress(StoreNotFoundError):
                return open_store_document(storage)
            raise InvalidInputError(
                f"{storage.url} holds other files ({others[0]} is one), a store needs a place of its own; "
                "name a new or empty folder"
            ) from None
    put_store_document(storage, store_id, created_at_ms)
    return open_store_document(storage)


def put_store_document(storage: Storage, store_id: str, created_at_ms: int) -> None:
    """Write `arrowstate.json` if there is none; whoever is first gives the store its identity."""
    document = StoreDocument(store_id=store_id, created_at_ms=created_at_ms)
    storage.put_if_absent(STORE_PATH, encode(document), store_id)


def open_store_document(storage: Storage) -> StoreDocument:
    """Return the identity of a store.

    Raises
    ------
    StoreNotFoundError
        If there is no store here.
    FormatVersionError
        If a newer version of arrowstate wrote it.
    CorruptDataError
        If the document cannot be read.
    """
    try:
        data = storage.read(STORE_PATH)
    except MissingFileError:
        raise StoreNotFoundError(storage.url) from None
    return decode(data, StoreDocument, path=STORE_PATH)


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """A log entry as it is stored."""

    document: LogEntryDocument
    xxh3_128: str
    "Checksum of its bytes, which the next entry repeats."
    bytes: int
    "Their number."

    @property
    def as_parent(self) -> ParentDocument:
        return ParentDocument(number=self.document.number, xxh3_128=self.xxh3_128)


def next_fence(
    newest: CommittedEntry | None, *, commit_id: str, now_ms: int, properties: Mapping[str, Any]
) -> LogEntryDocument:
    """Return the fence with which a new writer takes over after the newest entry; it has the content of that entry."""
    document = newest.document if newest else None
    return LogEntryDocument(
        number=document.number + 1 if document else _FIRST,
        parent=newest.as_parent if newest else None,
        commit_id=commit_id,
        writer_epoch=document.writer_epoch + 1 if document else 1,
        kind="fence",
        checkpoint_id=None,
        started_at_ms=now_ms,
        committed_at_ms=now_ms,
        watermark=document.watermark if document else None,
        properties=dict(properties),
        operators=[],
        content=content_of(newest),
        last_checkpoint_id=newest_id(newest) if newest else None,
    )


def content_of(newest: CommittedEntry | None) -> ParentDocument | None:
    """Return which entry has the operators that the newest one stands for: itself, or for a fence the one it names."""
    if newest is None:
        return None
    return newest.document.content if newest.document.kind == "fence" else newest.as_parent


def newest_id(newest: CommittedEntry) -> int:
    """Return an id that no checkpoint up to this entry is above.

    A fence has the id of the checkpoint before it; where it does not, ids are the numbers of their entries.
    """
    document = newest.document
    known = document.last_checkpoint_id if document.checkpoint_id is None else document.checkpoint_id
    return document.number if known is None else known


def next_checkpoint(
    newest: CommittedEntry,
    operators: Sequence[OperatorDocument],
    *,
    commit_id: str,
    started_at_ms: int,
    now_ms: int,
    watermark: int | None,
    properties: Mapping[str, Any],
    checkpoint_id: int | None = None,
    statistics: Sequence[SubtaskStatisticsDocument] = (),
) -> LogEntryDocument:
    """Return the checkpoint that the writer of the newest entry commits after it.

    Its id is the one given, or the number of the entry where that is above all ids before it.
    """
    number = newest.document.number + 1
    if checkpoint_id is None:
        checkpoint_id = max(number, newest_id(newest) + 1)
    return LogEntryDocument(
        number=number,
        parent=newest.as_parent,
        commit_id=commit_id,
        writer_epoch=newest.document.writer_epoch,
        kind="checkpoint",
        checkpoint_id=checkpoint_id,
        started_at_ms=started_at_ms,
        committed_at_ms=now_ms,
        watermark=watermark,
        properties=dict(properties),
        operators=list(operators),
        statistics=StatisticsDocument.of(statistics),
    )


def next_compaction(
    newest: CommittedEntry,
    checkpoint: LogEntryDocument,
    operators: Sequence[OperatorDocument],
    *,
    commit_id: str,
    started_at_ms: int,
    now_ms: int,
) -> LogEntryDocument:
    """Return the compaction that follows the newest entry; it is the newest checkpoint once more, in other files.

    It is of the epoch of the newest entry, so that the writer of that epoch goes on after it.
    """
    return LogEntryDocument(
        number=newest.document.number + 1,
        parent=newest.as_parent,
        commit_id=commit_id,
        writer_epoch=newest.document.writer_epoch,
        kind="compaction",
        checkpoint_id=checkpoint.checkpoint_id,
        started_at_ms=started_at_ms,
        committed_at_ms=now_ms,
        watermark=checkpoint.watermark,
        properties=checkpoint.properties,
        operators=list(operators),
    )


def hinted_number(storage: Storage) -> int | None:
    """Return the number that the hint names, None if there is none or it names nothing."""
    try:
        text = storage.read(HINT_PATH)
    except MissingFileError:
        return None
    return number_of(f"log/{text.decode(errors='replace'):0>20}.json") if text else None


def lost_entry(number: int, named_by: str, newest: int | None) -> CorruptDataError:
    """Return the error of a log that lacks an entry which something names, and every entry after it."""
    there = "the log has no entry" if newest is None else f"the newest entry there is {newest}"
    return CorruptDataError(
        path_of(number),
        f"the log has lost entries: {named_by} names this one, and {there}; put it back from a copy of the store. "
        "`verify` and `repair` say what is whole, latest_whole() finds the newest checkpoint that is",
    )


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
                newest = self._forward(_FIRST)
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
        found = (number_of(path) for path in self._storage.list(_FOLDER))
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
