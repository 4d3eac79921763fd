"""Checkpoints as publications see them: which there are, what tables they have, and the tags that hold them.

Each checkpoint that a table lists is held by a tag of the publication, which is put before the table names the
checkpoint and removed after the table names it no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

import xxhash
from msgspec import Struct

from arrowstate.errors import CheckpointNotFoundError, CollectedError, CorruptDataError, InvalidInputError
from arrowstate.files.references import ReferenceReader
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.pins import TAG_FOLDER, Pin, confirm_tag, put_tag, read_pins, read_tag
from arrowstate.publish.content import CheckpointTables, place_of
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import ParentDocument

OWN_TAGS = "published-"
"""How the names of tags begin that hold what a publication lists."""
PLACE_KEY = "arrowstate.publication"
"""The extension of such a tag that says where the tables are."""
NUMBER, ENTRY, CHECKPOINT = (f"arrowstate.{name}" for name in ("log-number", "log-entry", "checkpoint-id"))
"""By these names a table says which checkpoint a version of it shows."""
STORE, OPERATOR, STATE = (f"arrowstate.{name}" for name in ("store-id", "operator", "state"))
"""By these names a table says what it shows."""
ATTEMPTS = 100

_LONGEST_PROPERTIES = 1024
"""Characters of the properties of a checkpoint that a table repeats; longer ones stay in the store alone."""


class PublishedCheckpoint(Struct, frozen=True):
    """A checkpoint, and its tables."""

    entry: CommittedEntry
    tables: CheckpointTables

    @property
    def number(self) -> int:
        return self.entry.document.number

    @property
    def snapshot_id(self) -> int:
        """From the id of the commit, so that a checkpoint has one in all tables and by all publishers."""
        return (xxhash.xxh3_64_intdigest(self.entry.document.commit_id.encode()) >> 1) or 1

    def is_shown(self, said: Mapping[str, str]) -> bool:
        """Whether a version of a table, by what it says, has the rows already: a compaction has them in other files."""
        document = self.entry.document
        return document.kind == "compaction" and said.get(CHECKPOINT) == str(document.checkpoint_id)

    def described(self) -> dict[str, str]:
        """Return what a table says of it."""
        document = self.entry.document
        out = {
            CHECKPOINT: str(document.checkpoint_id),
            NUMBER: str(document.number),
            ENTRY: self.entry.xxh3_128,
        }
        if document.watermark is not None:
            out["arrowstate.watermark-ms"] = str(document.watermark)
        properties = json.dumps(document.properties, separators=(",", ":"))
        if document.properties and len(properties) <= _LONGEST_PROPERTIES:
            out["arrowstate.properties"] = properties
        return out


class Brought(Struct, frozen=True):
    """A table after it was brought forward."""

    url: str
    "By which engines find it."
    version: int
    checkpoint_id: int
    is_new: bool
    "Whether a version was made."
    listed: frozenset[int]
    "The numbers of the log entries whose checkpoints can be read."


def not_own(place: str, store_id: str | None, own_id: str) -> InvalidInputError:
    """Return the error that a folder has the table of another store, or of none."""
    whose = "that no store has published" if store_id is None else f"of the store with the id {store_id}"
    return InvalidInputError(
        f"{place} is a table {whose}, this one has the id {own_id}; publish to another place, or delete the folder"
    )


def published_place(pin: Pin) -> str | None:
    """Return the URL of the place whose tables a pin is for, None if it is of no publication."""
    said = pin.extensions.get(PLACE_KEY)
    return None if said is None else str(said["url"])


def _is_of(pin: Pin, tables: Collection[str]) -> bool:
    """Whether those who put a tag list its checkpoint in no table but these."""
    said = pin.extensions[PLACE_KEY].get("tables")
    return said is not None and {*said} <= {*tables}


class Checkpoints:
    """The checkpoints of a store as tables; each is read once."""

    def __init__(self, storage: Storage, target: Storage, log: CommitLog) -> None:
        self._storage, self._target, self._log = storage, target, log
        self.look_again()

    def look_again(self) -> None:
        """Take the log as it is now."""
        self._walk = self._log.history().checkpoints()
        newest = next(self._walk, None)
        if newest is None:
            raise CheckpointNotFoundError(None, [])
        self.newest = newest
        self._walked = [newest]
        self._tables: dict[int, CheckpointTables] = {}

    def has_newer(self) -> bool:
        """Take the log as it is now; return whether its newest checkpoint is another one."""
        before = self.newest.as_parent
        self.look_again()
        return self.newest.as_parent != before

    @property
    def newest_tables(self) -> CheckpointTables:
        return self.tables(self.newest)

    def tables(self, entry: CommittedEntry) -> CheckpointTables:
        """Return the tables of a checkpoint."""
        number = entry.document.number
        if number not in self._tables:
            self._tables[number] = CheckpointTables(self._storage, self._target, entry.document)
        return self._tables[number]

    def after(self, number: int | None, most: int) -> list[CommittedEntry]:
        """Return the newest checkpoints after an entry, at most so many; after none the newest alone."""
        if number is None:
            return [self.newest]
        while len(self._walked) < most and self._walked[-1].document.number > number:
            following = next(self._walk, None)
            if following is None:
                break
            self._walked.append(following)
        return [entry for entry in self._walked[:most] if entry.document.number > number]

    def checksum_at(self, number: int) -> str | None:
        """Return the checksum of the entry that has a number, None if it is gone."""
        entry = self.newest if number == self.newest.document.number else self._log.get(number)
        return None if entry is None else entry.xxh3_128

    def at(self, place: ParentDocument) -> CommittedEntry | None:
        """Return an entry, None if it is gone."""
        entry = self._log.get(place.number)
        return None if entry is None or entry.as_parent != place else entry


class Holding:
    """The tags by which a publication holds the checkpoints that it lists, and those of everybody else.

    Publishers of different tables of a place have tags of their own, which say of which tables they are. A tag is
    removed by those alone who have brought each of its tables to the newest checkpoint that they know, and only where
    its checkpoint is no later than that one and no version that they have seen lists it. So nobody removes the tag of a
    checkpoint that a slower publisher is about to list: that one goes on from an older version
    of the table, loses to the version that is there, and looks at the tags again. An earlier checkpoint that a table
    lists again is held by the tag of the user, too.

    Who publishes all states brings everything in the place forward and removes the tags of everybody, also those of
    tables that are not there, as of a folder that was deleted. One case is left: a table that is made for the first
    time in that moment, of a state that the newest checkpoint has no more, lists what nothing holds.
    """

    def __init__(
        self,
        storage: Storage,
        target: Storage,
        tables: Collection[tuple[str, str]],
        *,
        is_of_all: bool,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._storage, self._clock_ms, self._new_id = storage, clock_ms, new_id
        self._tables, self._is_of_all = sorted("/".join(name) for name in tables), is_of_all
        self._url = place_of(target)
        whose = "\n".join([self._url, *self._tables])
        self._start = f"{OWN_TAGS}{xxhash.xxh3_64_hexdigest(whose.encode())[:8]}-"
        self._sure: dict[str, ParentDocument] = {}
        self.look_again()

    def look_again(self) -> None:
        """Take the tags as they are now."""
        pins = {pin.tag: pin for pin in read_pins(self._storage) if pin.tag is not None}
        # Not by their names: whoever likes names a tag so.
        own = {tag: pin for tag, pin in pins.items() if published_place(pin) == self._url}
        self._held = {tag: pin.entry for tag, pin in own.items()}
        self._removable = {tag for tag, pin in own.items() if self._is_of_all or _is_of(pin, self._tables)}
        self._sure = {tag: entry for tag, entry in self._sure.items() if self._held.get(tag) == entry}
        self.tags = {tag: pin.entry for tag, pin in pins.items() if published_place(pin) is None}

    def has(self, number: int, digest: str) -> bool:
        """Whether the checkpoint with the number and the checksum of its log entry is held."""
        return any(entry.number == number and entry.xxh3_128 == digest for entry in self._held.values())

    def hold(self, entry: CommittedEntry, *, is_needed: bool) -> bool:
        """Hold a checkpoint; return whether it is held, or raise if one that is needed is gone.

        A tag that is there does not say that yet: who puts one looks afterwards whether it came in time.
        """
        tag, document = f"{self._start}{entry.document.number}", entry.document
        if self._sure.get(tag) == entry.as_parent:
            return True
        assert document.checkpoint_id is not None, "a fence is no checkpoint"
        try:
            with reading_checkpoint(self._storage, document):
                files = ReferenceReader(self._storage).files(document.operators)
                is_held = self._put(tag, entry, files)
        except (CorruptDataError, CollectedError):
            if is_needed:
                raise
            is_held = False
        if is_held:
            self._held[tag] = self._sure[tag] = entry.as_parent
            self._removable.add(tag)
        elif is_needed:
            raise CheckpointNotFoundError(document.checkpoint_id, [])
        return is_held

    def _put(self, tag: str, entry: CommittedEntry, files: Collection[str]) -> bool:
        if read_tag(self._storage, tag) is not None:
            return self._has_put(tag, entry)
        checkpoint_id = entry.document.checkpoint_id
        assert checkpoint_id is not None, "a fence is no checkpoint"
        try:
            return put_tag(
                self._storage,
                tag,
                checkpoint_id,
                entry.as_parent,
                files=files,
                tag_id=self._new_id(),
                now_ms=self._clock_ms(),
                extensions={PLACE_KEY: {"url": self._url, "tables": self._tables}},
            )
        except InvalidInputError:
            return self._has_put(tag, entry)

    def _has_put(self, tag: str, entry: CommittedEntry) -> bool:
        """Whether another publisher of the same tables has put a tag, and in time."""
        return confirm_tag(self._storage, tag, entry.as_parent)

    def release(self, listed: Collection[int], *, up_to: int) -> None:
        """Hold no more what no table lists; later checkpoints than that of a number are for those who know of them."""
        for tag in sorted(self._removable):
            number = self._held[tag].number
            if number not in listed and number <= up_to:
                self._storage.delete(f"{TAG_FOLDER}{tag}.json")
                del self._held[tag]
                self._removable.remove(tag)
                self._sure.pop(tag, None)
