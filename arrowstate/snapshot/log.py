"""The commit log: numbered, immutable entries, each created only if its number is free.

The newest entry alone tells the state of the store; a checkpoint exists when its entry exists. `_latest` is
a hint: reading starts there and goes on to the first number that is free, or lists the log.
Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arrowstate.errors import (
    CheckpointNotFoundError,
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    StoreNotFoundError,
)
from arrowstate.storage.base import Outcome, Storage
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    ParentDocument,
    StoreDocument,
    decode,
    encode,
)
from arrowstate_formats.run_files import checksum

__all__ = [
    "HINT_PATH",
    "CommitLog",
    "CommittedEntry",
    "create_store",
    "next_checkpoint",
    "next_fence",
    "open_store_document",
    "path_of",
    "put_store_document",
]

STORE_PATH = "arrowstate.json"
HINT_PATH = "_latest"
_FOLDER = "log/"


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

    @property
    def as_parent(self) -> ParentDocument:
        return ParentDocument(number=self.document.number, xxh3_128=self.xxh3_128)


def next_fence(
    newest: CommittedEntry | None, *, commit_id: str, now_ms: int, properties: Mapping[str, Any]
) -> LogEntryDocument:
    """Return the fence with which a new writer takes over after the newest entry; it repeats that entry's operators."""
    document = newest.document if newest else None
    return LogEntryDocument(
        number=document.number + 1 if document else 1,
        parent=newest.as_parent if newest else None,
        commit_id=commit_id,
        writer_epoch=document.writer_epoch + 1 if document else 1,
        kind="fence",
        checkpoint_id=None,
        started_at_ms=now_ms,
        committed_at_ms=now_ms,
        watermark=document.watermark if document else None,
        properties=dict(properties),
        operators=document.operators if document else [],
    )


def next_checkpoint(
    newest: CommittedEntry,
    operators: Sequence[OperatorDocument],
    *,
    commit_id: str,
    started_at_ms: int,
    now_ms: int,
    watermark: int | None,
    properties: Mapping[str, Any],
) -> LogEntryDocument:
    """Return the checkpoint that the writer of the newest entry commits after it; its id is its number."""
    number = newest.document.number + 1
    return LogEntryDocument(
        number=number,
        parent=newest.as_parent,
        commit_id=commit_id,
        writer_epoch=newest.document.writer_epoch,
        kind="checkpoint",
        checkpoint_id=number,
        started_at_ms=started_at_ms,
        committed_at_ms=now_ms,
        watermark=watermark,
        properties=dict(properties),
        operators=list(operators),
    )


class CommitLog:
    """Reads and appends the log of a store; holds no state of its own."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def latest(self) -> CommittedEntry | None:
        """Return the newest entry, None if there is none yet."""
        number = self._hinted()
        newest = None if number is None else self._get(number)
        if newest is None:
            numbers = self.numbers()
            if not numbers:
                return None
            newest = self.read(numbers[-1])
        while (following := self._get(newest.document.number + 1)) is not None:
            newest = following
        return newest

    def latest_checkpoint(self) -> LogEntryDocument | None:
        """Return the newest entry that is a checkpoint or savepoint."""
        return next(self.backwards(), None)

    def backwards(self) -> Iterator[LogEntryDocument]:
        """Yield the checkpoints and savepoints, newest first; a fence is passed over.

        Raises
        ------
        CorruptDataError
            If an entry is not the one its successor was written after.
        """
        entry = self.latest()
        while entry is not None:
            if entry.document.kind != "fence":
                yield entry.document
            parent = entry.document.parent
            if parent is None:
                return
            following, entry = entry, self._get(parent.number)
            if entry is None:
                # Older entries may have been collected.
                return
            _check_parent(following, entry)

    def checkpoint(self, checkpoint_id: int) -> LogEntryDocument:
        """Return the entry of a checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is none with this id.
        CorruptDataError
            If the entry is not the one its successor was written after.
        """
        guess = self._get(checkpoint_id) if checkpoint_id >= 0 else None
        if guess is not None and guess.document.checkpoint_id == checkpoint_id:
            following = self._get(guess.document.number + 1)
            if following is not None:
                _check_parent(following, guess)
            return guess.document
        seen = []
        for entry in self.backwards():
            if entry.checkpoint_id == checkpoint_id:
                return entry
            seen.append(entry.checkpoint_id)
        raise CheckpointNotFoundError(checkpoint_id, [number for number in reversed(seen) if number is not None])

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending."""
        names = (path.removeprefix(_FOLDER).removesuffix(".json") for path in self._storage.list(_FOLDER))
        return sorted(int(name) for name in names if len(name) == 20 and name.isdigit())

    def read(self, number: int) -> CommittedEntry:
        """Return the entry with a number, which must exist."""
        entry = self._get(number)
        if entry is None:
            raise CorruptDataError(path_of(number), "the log entry is missing")
        return entry

    def append(self, document: LogEntryDocument) -> CommittedEntry | None:
        """Commit an entry; None if another writer took its number first.

        Raises
        ------
        CommitUnknownError
            If it cannot be told whether it was committed.
        StorageFullError, StorageError
            If it was not committed.
        """
        data = encode(document)
        if self._storage.put_if_absent(path_of(document.number), data, document.commit_id) is Outcome.LOST:
            return None
        # The entry is committed; without the hint the next reader probes a little longer.
        with suppress(OSError):
            self._storage.put_hint(HINT_PATH, str(document.number).encode())
        return CommittedEntry(document, checksum(data))

    def _hinted(self) -> int | None:
        try:
            text = self._storage.read(HINT_PATH)
        except MissingFileError:
            return None
        return int(text) if text.isdigit() and len(text) <= 20 else None

    def _get(self, number: int) -> CommittedEntry | None:
        path = path_of(number)
        try:
            data = self._storage.read(path)
        except MissingFileError:
            return None
        document = decode(data, LogEntryDocument, path=path)
        if document.number != number:
            raise CorruptDataError(path, f"holds the entry {document.number}")
        return CommittedEntry(document, checksum(data))


def _check_parent(following: CommittedEntry, entry: CommittedEntry) -> None:
    if following.document.parent != entry.as_parent:
        raise CorruptDataError(path_of(entry.document.number), "the entry after it was written after other bytes")


def path_of(number: int) -> str:
    """Return the path of the entry with a number."""
    return f"{_FOLDER}{number:020d}.json"
