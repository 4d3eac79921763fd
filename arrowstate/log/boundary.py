"""How far a store has been collected, and what a collection may be deleting: the documents in `gc/`.

Collection and commit work without a lock between them. A collection first says durably what it will delete, then
reads the roots again, then deletes. A commit first makes its files and its entry, then reads what collections have
said, then reports success. Whichever comes first, the other one sees it: the collection finds the entry and
spares its files, or the writer finds its files condemned and does not report success. Log numbers serve as the
clock; no time of day decides. Specification: formats/spec/collection.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from itertools import chain

from msgspec import Struct

from arrowstate.errors import CorruptDataError, MissingFileError, StorageError
from arrowstate.storage.base import Outcome, Storage, listed_pages
from arrowstate_formats.documents import BoundaryDocument, decode, encode

BOUNDARY_FOLDER = "gc/"
_MOST_LOOKS = 32
"""Beyond so many files a listing is cheaper than a look at each."""

_NUMBER = r"([0-9]{20})"
"""Not `\\d`, which also takes the digits of other scripts."""
_NAME = re.compile(rf"gc/(boundary|condemned)-{_NUMBER}-{_NUMBER}-([A-Za-z0-9_-]{{1,128}})\.json")
_ENTRY = re.compile(rf"log/{_NUMBER}\.json")
_LARGEST = (1 << 63) - 1


def path_of(number: int) -> str:
    """Return the path of the log entry with a number."""
    return f"log/{number:020d}.json"


def number_of(path: str) -> int | None:
    """Return the number of the log entry with a path, None if it is no path of one."""
    match = _ENTRY.fullmatch(path)
    return int(match[1]) if match and int(match[1]) <= _LARGEST else None


class Boundary(Struct, frozen=True, order=True):
    """What the name of a document in `gc/` says."""

    boundary: int
    "Entries with a lower number are no longer part of the log, whether or not there are files of these names."
    swept: int
    """Files that nothing referred to, and that were there when this entry was the newest, may have been deleted."""
    collection_id: str
    condemns: bool
    "Whether the collection is not known to be done: it may still delete the files that the document names."

    @property
    def path(self) -> str:
        """Where the document is."""
        what = "condemned" if self.condemns else "boundary"
        return f"{BOUNDARY_FOLDER}{what}-{self.boundary:020d}-{self.swept:020d}-{self.collection_id}.json"

    @classmethod
    def of(cls, path: str) -> Boundary | None:
        """Return what a name says, None if it is not one of these names."""
        match = _NAME.fullmatch(path)
        return None if match is None else cls(int(match[2]), int(match[3]), match[4], match[1] == "condemned")


def boundaries(storage: Storage) -> list[Boundary]:
    """Return what the names in `gc/` say, ascending; other names are passed over."""
    return boundaries_in(storage.list(BOUNDARY_FOLDER))


def boundaries_in(paths: Iterable[str]) -> list[Boundary]:
    """Return what those of the paths say that are names in `gc/`, ascending."""
    return sorted(boundary for boundary in map(Boundary.of, paths) if boundary is not None)


def highest_boundary(found: Iterable[Boundary]) -> int:
    """Return the lowest number of the log; entries below it have been collected. 0 if none ever was."""
    return max((boundary.boundary for boundary in found), default=0)


def read_boundary(storage: Storage, boundary: Boundary) -> BoundaryDocument | None:
    """Return a document of `gc/`, None if it has gone meanwhile because its collection is done."""
    try:
        data = storage.read(boundary.path)
    except MissingFileError:
        return None
    document = decode(data, BoundaryDocument, path=boundary.path)
    if _name_of(document) != boundary:
        raise CorruptDataError(boundary.path, "the document is not the one that its name says")
    return document


def read_boundaries(storage: Storage, *, without: Collection[Boundary] = ()) -> dict[Boundary, BoundaryDocument]:
    """Return every document of `gc/` but those `without`, ascending, as they were at one moment.

    One that goes in the middle of it said something that the document in its place, which the listing lacks, says now.
    """
    listed = None
    while True:
        found = [boundary for boundary in boundaries(storage) if boundary not in without]
        documents = {boundary: read_boundary(storage, boundary) for boundary in found}
        there = {boundary: document for boundary, document in documents.items() if document is not None}
        # The same listing again is of a storage that lists what has gone.
        if len(there) == len(found) or found == listed:
            return there
        listed = found


def put_boundary(storage: Storage, document: BoundaryDocument) -> Boundary:
    """Write a document of `gc/`, durably."""
    boundary = _name_of(document)
    if storage.put_if_absent(boundary.path, encode(document), document.collection_id) is Outcome.LOST:
        raise StorageError(boundary.path, "there is a collection with this id already; ids must never repeat")
    return boundary


def _name_of(document: BoundaryDocument) -> Boundary:
    return Boundary(document.boundary, document.swept, document.collection_id, bool(document.condemned))


def condemned_paths(storage: Storage, among: Collection[Boundary]) -> set[str]:
    """Return what the collections that are not done may be deleting."""
    condemned: set[str] = set()
    for boundary in among:
        document = read_boundary(storage, boundary) if boundary.condemns else None
        if document is not None:
            condemned.update(document.condemned)
    return condemned


def _none() -> Collection[str]:
    return ()


class NewReferences(Struct, frozen=True):
    """The files that a new entry refers to; a collection may have taken them for garbage.

    What the parent refers to has not gone if its commit was acknowledged: while an entry is the newest, it is a root of
    every collection. After a fence nobody knows whether the entry before it was, so there every file is `reused`.
    """

    written: Collection[str] = ()
    "Files written for this entry."
    based_on: int = 0
    "An entry that was committed before the first of them was written."
    reused: Collection[str] = ()
    "Files that were there before, and that the parent does not refer to."
    everything: Callable[[], Collection[str]] = _none
    "Returns all files, those that the parent refers to as well; called while collections are not known to be done."

    def lost(self, storage: Storage, found: Collection[Boundary]) -> list[str]:
        """Return the files that are gone, or may be going, by the collections in `gc/`."""
        if not found and not self.reused:
            return []
        at_risk = set(self.reused)
        # A collection lists files before it looks for the newest entry, so one that saw an older entry than
        # `based_on` cannot have listed files that were written after it.
        if any(boundary.swept >= self.based_on for boundary in found):
            at_risk.update(self.written)
        lost = set()
        condemned = condemned_paths(storage, found)
        if condemned:
            # Those of the parent too: what was spared once is written anew, so that no checkpoint stays in doubt.
            lost = condemned & {*self.everything(), *self.written, *self.reused}
        # Looked at last: the document of a collection that is done is gone, and so are its files.
        return sorted(lost | missing_paths(storage, at_risk))


def missing_paths(storage: Storage, paths: set[str]) -> set[str]:
    """Return those of the paths where there is no file."""
    # Sorted, so that a program makes the same calls whenever it does the same.
    if len(paths) > _MOST_LOOKS:
        folders = sorted({f"{path.split('/')[0]}/" for path in paths})
        return paths.difference(*chain.from_iterable(listed_pages(storage, folder) for folder in folders))
    return {path for path in sorted(paths) if not storage.exists(path)}
