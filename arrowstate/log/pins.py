"""Tags and leases: checkpoints that are kept though the retention would drop them.

A tag holds until it is removed, a lease until a time. Both name the log entry by its number and the checksum of its
bytes, so that an entry made anew under the number is never taken for it. Files are never changed, so a lease is
renewed by a new file before the old one is deleted; at every moment one of them is there. A clock only decides
when a lease that nobody renews ends, and a reader whose lease has ended finds files missing, never other data.
A lease may hold the entries after its own as well: the log then begins there at the latest.
Specification: formats/spec/collection.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from arrowstate.errors import (
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    MissingFileError,
    NotFoundError,
)
from arrowstate.log.boundary import (
    Boundary,
    NewReferences,
    boundaries,
    condemned_paths,
    highest_boundary,
    missing_paths,
    path_of,
)
from arrowstate.storage.base import Outcome, Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.storage.retries import Retries, RetryBudget, RetryClock
from arrowstate_formats.document_base import HOLDS_LATER
from arrowstate_formats.documents import LeaseDocument, ParentDocument, TagDocument, decode, encode
from arrowstate_formats.names import check_new_tag_name, check_tag_name
from arrowstate_formats.run_files import checksum

TAG_FOLDER = "tags/"
LEASE_FOLDER = "leases/"
_OF_RETENTION = "retention-"
"""How the ids of leases begin by which a retention keeps single checkpoints."""
_WITHDRAWAL = RetryBudget(attempts=8, seconds=2, first_delay_seconds=0.05, longest_delay_seconds=0.5)
"""How long one who pinned a checkpoint too late has to take the pin away again."""
_LEASE = re.compile(r"leases/([A-Za-z0-9_-]{1,128})\.json")
_TAG = re.compile(r"tags/([A-Za-z0-9][A-Za-z0-9_.-]{0,127})\.json")


class Pin(Struct, frozen=True):
    """A tag or a lease, as it is stored."""

    path: str
    holder: str
    "For messages: `tag 'x'`, or `lease 3f0c of pid 7`."
    checkpoint_id: int
    entry: ParentDocument
    "The number of the log entry, and the checksum of its bytes."
    expires_at_ms: int | None = None
    "Milliseconds since 1970; None for a tag."
    and_later: bool = False
    "Whether a lease holds the entries after it, too."
    extensions: Mapping[str, Any] = field(default_factory=dict)
    "What a tag says besides."

    def holds(self, now_ms: int) -> bool:
        """Whether it still counts: a lease that expires now does not."""
        return self.expires_at_ms is None or self.expires_at_ms > now_ms

    @property
    def is_of_retention(self) -> bool:
        """Whether a collection made the lease for its policy; one with another policy may release it."""
        return self.path.startswith(LEASE_FOLDER + _OF_RETENTION)

    @property
    def tag(self) -> str | None:
        """The name of a tag, None for a lease."""
        return self.path.removeprefix(TAG_FOLDER).removesuffix(".json") if self.path.startswith(TAG_FOLDER) else None


def is_pin(path: str) -> bool:
    """Whether a path is one of a tag or a lease."""
    return (_LEASE.fullmatch(path) or _TAG.fullmatch(path)) is not None


def read_pins(
    storage: Storage,
    *,
    strict: bool = False,
    on_damage: Callable[[CorruptDataError | FormatVersionError], None] | None = None,
) -> list[Pin]:
    """Return all tags and leases, the expired ones too, sorted by path."""
    listed: list[str] = []
    damages: list[CorruptDataError | FormatVersionError] = []

    def read(path: str) -> Pin | None:
        try:
            return _read_pin(storage, path, strict=strict)
        except (CorruptDataError, FormatVersionError) as error:
            if on_damage is None:
                raise
            damages.append(error)
            return None

    while True:
        paths = [*storage.list(LEASE_FOLDER), *storage.list(TAG_FOLDER)]
        damages.clear()
        found = in_parallel(storage, read, paths, name="pins", small=True)
        pins = [pin for pin in found if pin is not None]
        # One that is gone was removed, or renewed by a file that may not be in the listing. The same listing again is
        # of a storage that lists what has gone.
        if len(pins) + len(damages) == sum(map(is_pin, paths)) or paths == listed:
            for damage in damages:
                assert on_damage is not None, "it was raised otherwise"
                on_damage(damage)
            return pins
        listed = paths


def _read_pin(storage: Storage, path: str, *, strict: bool) -> Pin | None:
    """Return a tag or lease, None if it has gone meanwhile, or is neither."""
    if not is_pin(path):
        if strict:
            raise CorruptDataError(
                path,
                "it is neither a tag nor a lease that this version knows, and might say what is still needed; "
                "nothing is deleted: move it out of the store, or use a newer arrowstate",
            )
        return None
    try:
        data = storage.read(path)
    except MissingFileError:
        return None
    return _lease(path, data) if path.startswith(LEASE_FOLDER) else _tag(path, data)


def _tag(path: str, data: bytes) -> Pin:
    document = decode(data, TagDocument, path=path)
    if path != f"{TAG_FOLDER}{document.name}.json":
        raise CorruptDataError(path, f"holds the tag {document.name!r}")
    return Pin(path, f"tag {document.name!r}", document.checkpoint_id, document.entry, extensions=document.extensions)


def _lease(path: str, data: bytes) -> Pin:
    document = decode(data, LeaseDocument, path=path)
    if path != f"{LEASE_FOLDER}{document.lease_id}.json":
        raise CorruptDataError(path, f"holds the lease {document.lease_id!r}")
    holder = f"lease {document.lease_id}" + (f" of {document.holder}" if document.holder else "")
    if document.holds_later:
        holder += ", with all after it"
    return Pin(path, holder, document.checkpoint_id, document.entry, document.expires_at_ms, document.holds_later)


def put_tag(
    storage: Storage,
    name: str,
    checkpoint_id: int,
    entry: ParentDocument,
    *,
    files: Collection[str],
    tag_id: str,
    now_ms: int,
    extensions: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    """Tag a checkpoint that needs these files; False if it is being collected or has been, and then there is no tag."""
    path = f"{TAG_FOLDER}{check_new_tag_name(name)}.json"
    document = TagDocument(
        name=name,
        tag_id=tag_id,
        checkpoint_id=checkpoint_id,
        entry=entry,
        created_at_ms=now_ms,
        extensions=dict(extensions),
    )
    if storage.put_if_absent(path, encode(document), tag_id) is Outcome.LOST:
        raise InvalidInputError(f"there is a tag {name!r} already; remove it first with untag({name!r})")
    with _withdrawn_after_an_error(storage, path):
        said = boundaries(storage)
        if not _confirm(storage, path, entry, said):
            return False
        lost = NewReferences(reused=files).lost(storage, said)
        if lost:
            raise CorruptDataError(
                lost[0],
                f"it is missing or being collected, and checkpoint {checkpoint_id} needs it; tag one that is whole",
            )
        return True


def read_tag(storage: Storage, name: str) -> Pin | None:
    """Return a tag, None if there is none of this name."""
    return _read_pin(storage, f"{TAG_FOLDER}{name}.json", strict=False)


def confirm_tag(storage: Storage, name: str, entry: ParentDocument) -> bool:
    """Whether a tag that somebody else puts is there, is of an entry and came in time; one that did not is removed."""
    there = read_tag(storage, name)
    return there is not None and there.entry == entry and _confirm(storage, there.path, entry, boundaries(storage))


def is_withdrawn(storage: Storage, pin: Pin) -> bool:
    """Whether a tag or lease on an entry that is not there is taken away, for which its maker gets a moment."""
    waiting = Retries(_WITHDRAWAL, RetryClock())
    while (there := _read_pin(storage, pin.path, strict=False)) is not None and there.entry == pin.entry:
        if not waiting.again():
            return False
    return True


def delete_tag(storage: Storage, name: str) -> None:
    """Remove a tag; what it kept is dropped by the next collection that does not keep it for another reason."""
    path = f"{TAG_FOLDER}{check_tag_name(name)}.json"
    if not storage.exists(path):
        there = [match[1] for match in map(_TAG.fullmatch, storage.list(TAG_FOLDER)) if match]
        raise NotFoundError(f"no tag {name!r} in {storage.url}; it has {', '.join(map(repr, there)) or 'none'}")
    storage.delete(path)


def put_lease(
    storage: Storage,
    lease_id: str,
    checkpoint_id: int,
    entry: ParentDocument,
    *,
    expires_at_ms: int,
    holder: str = "",
    and_later: bool = False,
) -> str | None:
    """Lease a checkpoint; return the path, or None if it is being collected or has been, and then there is no lease.

    With `and_later` all entries after it are leased as well, and it is refused if one of these is gone, or going.
    """
    path = f"{LEASE_FOLDER}{lease_id}.json"
    document = LeaseDocument(
        lease_id=lease_id,
        checkpoint_id=checkpoint_id,
        entry=entry,
        expires_at_ms=expires_at_ms,
        holder=holder,
        features=[HOLDS_LATER] if and_later else [],
    )
    if storage.put_if_absent(path, encode(document), lease_id) is Outcome.LOST:
        raise InvalidInputError(f"there is a lease {lease_id} already; ids must never repeat")
    with _withdrawn_after_an_error(storage, path):
        return path if _confirm(storage, path, entry, boundaries(storage), and_later=and_later) else None


def put_retention_lease(
    storage: Storage, new_id: str, checkpoint_id: int, entry: ParentDocument, *, until_ms: int
) -> None:
    """Lease a checkpoint for a retention that keeps it below the boundary; nothing where it is being collected."""
    put_lease(
        storage,
        _OF_RETENTION + new_id,
        checkpoint_id,
        entry,
        expires_at_ms=until_ms,
        holder="the retention, which keeps the newest checkpoint of each hour",
    )


@contextmanager
def _withdrawn_after_an_error(storage: Storage, path: str) -> Iterator[None]:
    """Take a new pin away again if the block that looks whether it came in time ends with an error."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            storage.delete(path)
        raise


def _confirm(
    storage: Storage, path: str, entry: ParentDocument, said: Collection[Boundary], *, and_later: bool = False
) -> bool:
    """Whether a pin that was just made came in time; otherwise it is taken away again.

    A collection that has not said what it deletes will read the pins after this one. One that has said so names the
    log entry of every checkpoint that it drops, and deletes that entry last; so an entry that is there, and that no
    collection names, has all its files.
    """
    boundary = highest_boundary(said)
    if entry.number >= boundary:
        return True
    held = {path_of(number) for number in range(entry.number, boundary if and_later else entry.number + 1)}
    if held.isdisjoint(condemned_paths(storage, said)) and (not and_later or not missing_paths(storage, held)):
        try:
            if checksum(storage.read(path_of(entry.number))) == entry.xxh3_128:
                return True
        except MissingFileError:
            pass
    storage.delete(path)
    return False
