"""The entries of a log and the documents beside them: what the next one is, and what makes a place a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from arrowstate.errors import (
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    StoreNotFoundError,
)
from arrowstate.log.boundary import number_of, path_of
from arrowstate.storage.base import Storage
from arrowstate_formats.document_base import wide
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    ParentDocument,
    StatisticsDocument,
    StoreDocument,
    SubtaskStatisticsDocument,
    decode,
    encode,
    plain_json,
)

__all__ = [
    "FIRST",
    "FOLDER",
    "HINT_PATH",
    "STORE_PATH",
    "CommittedEntry",
    "content_of",
    "create_store",
    "given_properties",
    "hinted_number",
    "lost_entry",
    "newest_id",
    "next_checkpoint",
    "next_compaction",
    "next_fence",
    "open_store_document",
    "path_of",
    "put_store_document",
]


STORE_PATH = "arrowstate.json"
HINT_PATH = "_latest"
FOLDER = "log/"
FIRST = 1


def create_store(storage: Storage, store_id: str, created_at_ms: int) -> StoreDocument:
    """Make the storage a store, or return the store that is there already."""
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
    """Return the identity of a store."""
    try:
        data = storage.read(STORE_PATH)
    except MissingFileError:
        raise StoreNotFoundError(storage.url) from None
    return decode(data, StoreDocument, path=STORE_PATH)


class CommittedEntry(Struct, frozen=True):
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
        number=document.number + 1 if document else FIRST,
        parent=newest.as_parent if newest else None,
        commit_id=commit_id,
        writer_epoch=document.writer_epoch + 1 if document else 1,
        kind="fence",
        checkpoint_id=None,
        started_at_ms=now_ms,
        committed_at_ms=now_ms,
        watermark=document.watermark if document else None,
        properties=given_properties(properties),
        operators=[],
        content=content_of(newest),
        last_checkpoint_id=newest_id(newest) if newest else 0,
    )


def given_properties(properties: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return properties that a caller has given as plain JSON; errors as of `plain_json`."""
    found: object = {} if properties is None else properties
    if not isinstance(found, Mapping):
        raise InvalidInputError(f"properties must be a dict with JSON values by name, got a {type(found).__name__}")
    plain: dict[str, Any] = plain_json("properties", dict(found))
    return plain


def content_of(newest: CommittedEntry | None) -> ParentDocument | None:
    """Return which entry has the operators that the newest one stands for: itself, or for a fence the one it names."""
    if newest is None:
        return None
    return newest.document.content if newest.document.kind == "fence" else newest.as_parent


def newest_id(newest: CommittedEntry) -> int:
    """Return the id of the newest checkpoint up to this entry, 0 if there is none.

    A fence says the one before it. Some early fences do not: before them ids are the numbers of their entries, so of
    such a fence the number is returned, which is above them; or 0 where the log begins with it.
    """
    document = newest.document
    known = document.last_checkpoint_id if document.checkpoint_id is None else document.checkpoint_id
    if known is not None:
        return known
    return 0 if document.parent is None else document.number


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

    Its id is the one given, or the one after that of the newest checkpoint; the first of a store is 1.
    """
    before = newest_id(newest)
    if checkpoint_id is None:
        checkpoint_id = before + 1
    if checkpoint_id <= before:
        raise InvalidInputError(
            f"checkpoint {checkpoint_id} cannot be committed after checkpoint {before}, ids rise: another checkpoint "
            "of this writer was committed since it began; take a new one"
        )
    return LogEntryDocument(
        number=newest.document.number + 1,
        parent=newest.as_parent,
        commit_id=commit_id,
        writer_epoch=newest.document.writer_epoch,
        kind="checkpoint",
        checkpoint_id=checkpoint_id,
        started_at_ms=started_at_ms,
        committed_at_ms=now_ms,
        watermark=wide(watermark),
        properties=given_properties(properties),
        operators=list(operators),
        statistics=StatisticsDocument.of(statistics),
    )


def next_compaction(
    newest: CommittedEntry,
    operators: Sequence[OperatorDocument],
    *,
    checkpoint: LogEntryDocument,
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
    there = "the log has no entry" if newest is None else f"the newest there is {path_of(newest)}"
    return CorruptDataError(
        path_of(number),
        f"the log has lost entries: {named_by} names this one, and {there}; put it back from a copy of the store. "
        "`verify` and `diagnose` say what is whole, latest_whole() finds the newest checkpoint that is",
    )
