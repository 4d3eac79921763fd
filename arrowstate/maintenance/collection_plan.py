"""What a collection would delete, and why the rest stays: a look at the store that changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.log.boundary import (
    Boundary,
    boundaries_in,
    highest_boundary,
    number_of,
    read_boundaries,
)
from arrowstate.log.entries import (
    HINT_PATH,
    STORE_PATH,
    CommittedEntry,
    open_store_document,
    path_of,
)
from arrowstate.log.pins import LEASE_FOLDER, TAG_FOLDER
from arrowstate.maintenance.retention import RetentionPolicy, retain
from arrowstate.maintenance.roots import mark, read_roots
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import BoundaryDocument, LogEntryDocument
from arrowstate_formats.integers import check_integer

__all__ = [
    "DEFAULT_GRACE_MS",
    "NEVER_NEEDED",
    "CollectionPlan",
    "Deletion",
    "Kept",
    "Waiting",
    "all_taken",
    "check_grace",
    "files_at_risk",
    "plan_collection",
    "settled_look",
]


DEFAULT_GRACE_MS = 24 * 3600 * 1000
"""Longer than any checkpoint should take from its first file to its commit."""
SHORTEST_GRACE_MS = 60_000
"""A shorter grace period takes an explicit word."""

_DATA = re.compile(r"data/[^/]+/[^/]+/[^/]+\.(arrow|parquet|lance|directory|roaring)")
_MANIFEST = re.compile(r"manifests/[^/]+\.json")

_Looked = TypeVar("_Looked")
Kind = Literal["data", "manifest", "log entry", "lease", "unfinished"]
_ORDER: tuple[Kind, ...] = ("lease", "unfinished", "data", "manifest", "log entry")
NEVER_NEEDED = ("lease", "unfinished")
"""Nothing refers to these files, and their names are never used again."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A file that a collection deletes."""

    path: str
    kind: Kind
    reason: str
    bytes: int | None
    "None where no document tells."
    orphan: bool = False
    "Whether nothing is known to have referred to it."


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file that nothing refers to and that waits for its grace period to end."""

    path: str
    first_seen_ms: int
    "When a collection saw it first, in milliseconds since 1970; for a file not seen before the time of the plan."
    until_ms: int
    "From when on a collection deletes it."


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint or savepoint that is kept."""

    entry_number: int
    "The number of its entry in the log, which is not its id."
    checkpoint_id: int
    reasons: tuple[str, ...]
    "Empty where it stands between others that are kept."


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What a collection would do; nothing is changed until it is applied."""

    head: int
    "The number of the newest log entry when it was made; 0 in a store without entries."
    boundary: int
    "Log entries from this number on are kept; the number of an entry is no id of a checkpoint."
    kept: tuple[Kept, ...]
    "By number."
    dropped: tuple[int, ...]
    "Ids of the checkpoints that go, ascending."
    deletions: tuple[Deletion, ...]
    "In the order in which they are deleted."
    waiting: tuple[Waiting, ...]
    "By path."
    foreign: tuple[str, ...]
    "Files of no shape that the format knows, and files of unfinished savepoints; they are never deleted."
    taken: Mapping[str, int] = field(default_factory=dict)
    """Files that collections took and that an entry may refer to all the same, without having been acknowledged; by the
    number of an entry that was there when they went."""
    statements: frozenset[Boundary] = frozenset()
    "The documents in `gc/` that it was made by; what others say has `taken` left out without a look at it."

    @property
    def bytes(self) -> int:
        """The bytes that would be freed, as far as documents tell."""
        return sum(deletion.bytes or 0 for deletion in self.deletions)

    @property
    def unknown_sizes(self) -> int:
        """How many of the files have a size that no document tells."""
        return sum(deletion.bytes is None for deletion in self.deletions)


def plan_collection(storage: Storage, policy: RetentionPolicy, *, now_ms: int, grace_ms: int) -> CollectionPlan:
    """Find out what a collection would delete. Nothing is written.

    Parameters
    ----------
    storage
        The store.
    policy
        Which checkpoints are kept by count and age.
    now_ms
        Milliseconds since 1970. Decides which leases have ended, which checkpoints are young, and which files have
        waited long enough.
    grace_ms
        How long a file that nothing is known to have referred to waits from when a collection first saw it, at least 0.
        It should be longer than any checkpoint takes from its first file to its commit. As long the checkpoint that the
        newest compaction repeats is kept beside it; so it should also be longer than the time between checkpoints.

    Raises
    ------
    CorruptDataError
        If a root is damaged or lacks a file, or there is something in the store that this version does not know and
        that might be a root. Nothing can be collected until that is settled; `verify` and `diagnose` say how.
    FormatVersionError
        If a document is of a newer version.
    StoreNotFoundError
        If there is no store.
    InvalidInputError
        If grace_ms is negative.
    """
    grace_ms = _grace(grace_ms)
    open_store_document(storage)
    return settled_look(lambda: _plan(storage, policy, now_ms=now_ms, grace_ms=grace_ms))


def _grace(grace_ms: int) -> int:
    return check_integer("grace_ms, the grace period,", grace_ms, 0, unit="milliseconds")


def check_grace(grace_ms: int, *, allow_short: bool) -> None:
    """Refuse a grace period that is shorter than a checkpoint may take, unless it is allowed."""
    if not allow_short and _grace(grace_ms) < SHORTEST_GRACE_MS:
        raise InvalidInputError(
            f"the grace period must be at least {SHORTEST_GRACE_MS} ms, got {grace_ms}: a shorter one may take the "
            "files of a checkpoint that is being written; where nobody writes to the store, allow it with "
            "allow_short_grace=True (`arrowstate gc --allow-short-grace`)"
        )


def settled_look(look: Callable[[], _Looked]) -> _Looked:
    """Return what a look at the store returns, although other collections, tags and leases come in between.

    What is damaged is found by the next look too. What another collection took in the middle of the look is not: the
    boundary or the pins have changed, and nothing that counts refers to it any more.
    """
    seen = None
    while True:
        try:
            return look()
        except CorruptDataError as error:
            if str(error) == seen:
                raise
            seen = str(error)


def _plan(storage: Storage, policy: RetentionPolicy, *, now_ms: int, grace_ms: int) -> CollectionPlan:
    """Plan a collection; CorruptDataError where another one came in between, too."""
    # Before any root is read: what is written from here on is not considered at all.
    unfinished = storage.list_unfinished()
    listed = storage.list("")
    files = _Files.of(listed)
    roots = read_roots(storage, now_ms=now_ms, floor=highest_boundary(boundaries_in(listed)))
    entries = roots.entries
    # After the log: whoever may be deleting files of an entry in it has said so before the entry was made.
    read = read_boundaries(storage)
    statements = read.values()
    seen = _first_seen(statements, now_ms)
    taken = all_taken(statements)
    risked = files_at_risk(statements)
    if not entries:
        # All files of a store that has no entry yet are of attempts.
        waiting, deletions = _unreferenced(files, unfinished, {}, {}, seen, now_ms=now_ms, grace_ms=grace_ms)
        return CollectionPlan(0, 0, (), (), _in_order(deletions), waiting, files.foreign)
    reader = ReferenceReader(storage)
    pins = [(pin.entry.number, pin.holder) for pin in roots.held]
    documents = [entry.document for entry in entries.values()]
    in_doubt = _in_doubt(reader, (entry for entry in documents if entry.number >= roots.floor), risked)
    retention = retain(documents, pins, policy, now_ms=now_ms, floor=roots.floor, in_doubt=in_doubt, grace_ms=grace_ms)
    marked = mark(storage, reader, [entries[number] for number in retention.kept], risked)
    _check_whole(storage, {path: found for path, found in marked.items() if path not in risked})
    known = _of_dropped(reader, [entries[number] for number in retention.dropped])
    waiting, deletions = _unreferenced(files, unfinished, marked, known, seen, now_ms=now_ms, grace_ms=grace_ms)
    for number in retention.dropped:
        reason = "older than what is kept, and nothing holds it"
        deletions.append(Deletion(path_of(number), "log entry", reason, entries[number].bytes))
    for pin in roots.ended:
        deletions.append(Deletion(pin.path, "lease", f"ended at {pin.expires_at_ms}", None))
    return CollectionPlan(
        head=max(entries),
        boundary=retention.boundary,
        kept=tuple(
            Kept(number, checkpoint_id, reasons)
            for number, reasons in retention.kept.items()
            if (checkpoint_id := entries[number].document.checkpoint_id) is not None
        ),
        dropped=tuple(
            document.checkpoint_id
            for document in (entries[number].document for number in retention.dropped)
            if document.checkpoint_id is not None
        ),
        deletions=_in_order(deletions),
        waiting=waiting,
        foreign=files.foreign,
        # Whoever was committing when they went had looked for them before, so only the next entry can refer to them.
        taken={path: number for path, number in taken.items() if number >= max(entries) or path in marked},
        statements=frozenset(read),
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """All files of a store at one moment, told apart by their paths."""

    own: tuple[str, ...]
    "Data and manifests; sorted."
    foreign: tuple[str, ...]
    "Never deleted: of no shape that the format knows, or of savepoints that were not finished."

    @classmethod
    def of(cls, listed: list[str]) -> _Files:
        """Tell files apart, and refuse a store with one that might be a root of an unknown kind."""
        # Savepoints, and any other store that somebody keeps in a folder of this one.
        stores = tuple(path.removesuffix(STORE_PATH) for path in listed if path.endswith(f"/{STORE_PATH}"))
        own, foreign = [], []
        for path in listed:
            if (
                path.startswith(stores)
                or path in (STORE_PATH, HINT_PATH)
                or path.startswith((LEASE_FOLDER, TAG_FOLDER))
            ):
                continue
            if _DATA.fullmatch(path) or _MANIFEST.fullmatch(path):
                own.append(path)
            elif path.startswith(("data/", "manifests/", "savepoints/")):
                foreign.append(path)
            elif path.startswith("log/"):
                if number_of(path) is None:
                    foreign.append(path)
            elif Boundary.of(path) is None:
                raise CorruptDataError(
                    path,
                    "this version does not know what it is, and it might say what is still needed; "
                    "nothing is collected: move it out of the store, or use a newer arrowstate",
                )
        return cls(tuple(own), tuple(foreign))


def all_taken(statements: Iterable[BoundaryDocument]) -> dict[str, int]:
    """Return the files that collections took, by the number of an entry that was there when they went."""
    found: dict[str, int] = {}
    for statement in statements:
        for path, number in statement.taken.items():
            found[path] = max(number, found.get(path, 0))
    return found


def files_at_risk(statements: Iterable[BoundaryDocument]) -> set[str]:
    """Return the files that collections took, and those that one which is not known to be done may be deleting."""
    return {path for statement in statements for path in (*statement.condemned, *statement.taken)}


def _in_doubt(reader: ReferenceReader, log: Iterable[LogEntryDocument], risked: set[str]) -> set[int]:
    """Return the entries that refer to files which a collection took, or may delete.

    Such an entry was made too late for that collection to see it, and was not acknowledged; or it was seen, and the
    collection died before it could say so. An older checkpoint must not go for its sake.
    """
    if not risked:
        return set()
    # What cannot be read is found when it is marked.
    return {entry.number for entry in log if not risked.isdisjoint(reader.files(entry.operators, unreadable=[]))}


def _check_whole(storage: Storage, marked: dict[str, tuple[int, int]]) -> None:
    """Refuse to go on where a checkpoint that is kept lacks a file: an older one may be needed in its place."""
    # Listed anew: of a collection that is done since the statements were read, all files are gone.
    there = {path for folder in ("data/", "manifests/") for path in storage.list(folder)}
    for path, (_, number) in sorted(marked.items()):
        if path not in there:
            raise CorruptDataError(
                path,
                f"it is missing, and {path_of(number)}, which is kept, refers to it; nothing is collected until "
                "newer checkpoints have taken its place, `diagnose` says which checkpoints are whole",
            )


def _of_dropped(reader: ReferenceReader, entries: Iterable[CommittedEntry]) -> dict[str, tuple[int | None, str]]:
    """Return (bytes, reason) of the files that dropped entries refer to, oldest entry first."""
    known: dict[str, tuple[int | None, str]] = {}
    for entry in entries:
        document = entry.document
        what = "a fence" if document.checkpoint_id is None else f"checkpoint {document.checkpoint_id}"
        # A manifest may be gone since an earlier collection was interrupted; the data went before it.
        for path, size in reader.files(document.operators, unreadable=[]).items():
            known.setdefault(path, (size, f"of {what}, which is dropped"))
    return known


def _in_order(deletions: list[Deletion]) -> tuple[Deletion, ...]:
    """Sort by kind, and leave data in the order of the checkpoints that it was of, log entries by number."""
    return tuple(sorted(deletions, key=lambda deletion: _ORDER.index(deletion.kind)))


def _unreferenced(
    files: _Files,
    unfinished: list[str],
    marked: dict[str, tuple[int, int]],
    known: dict[str, tuple[int | None, str]],
    seen: dict[str, int],
    *,
    now_ms: int,
    grace_ms: int,
) -> tuple[tuple[Waiting, ...], list[Deletion]]:
    """Tell the files that go from those that wait."""
    waiting: list[Waiting] = []
    orphans: list[Deletion] = []
    attributed: dict[str, Deletion] = {}
    kinds: dict[str, Kind] = dict.fromkeys(unfinished, "unfinished")
    kinds |= {path: "manifest" if _MANIFEST.fullmatch(path) else "data" for path in files.own}
    for path, kind in kinds.items():
        if path in marked:
            continue
        if path in known:
            size, reason = known[path]
            attributed[path] = Deletion(path, kind, reason, size)
            continue
        first = seen.get(path, now_ms)
        if now_ms - first >= grace_ms:
            reason = "nothing refers to it" if kind != "unfinished" else "it was not finished"
            orphans.append(Deletion(path, kind, f"{reason}, first seen at {first}", None, orphan=True))
        else:
            waiting.append(Waiting(path, first, first + grace_ms))
    oldest_first = [attributed[path] for path in known if path in attributed]
    return tuple(waiting), [*orphans, *oldest_first]


def _first_seen(statements: Iterable[BoundaryDocument], now_ms: int) -> dict[str, int]:
    """Return when a collection first saw each file that waits."""
    seen: dict[str, int] = {}
    for statement in statements:
        for path, first in statement.waiting.items():
            # A time in the future would have a file wait for a clock that was wrong.
            seen[path] = min(first, seen.get(path, now_ms), now_ms)
    return seen
