"""Collection: the deletions of a plan, in an order that loses nothing to those who write meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from arrowstate.log.boundary import (
    Boundary,
    number_of,
    put_boundary,
    read_boundaries,
)
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import (
    path_of,
)
from arrowstate.maintenance.collection_plan import NEVER_NEEDED, CollectionPlan, all_taken, files_at_risk, settled_look
from arrowstate.maintenance.roots import mark, read_roots
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.storage.base import Storage, many_deletions
from arrowstate_formats.documents import BoundaryDocument

__all__ = ["CollectionReport", "apply_collection"]


_logger = logging.getLogger("arrowstate.maintenance")


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What applying a plan did."""

    deleted: tuple[str, ...]
    "In order; a file that another collection deleted first is among them."
    spared: tuple[str, ...]
    "Files of the plan that had become referred to, or pinned, since it was made."
    boundary: int
    "Entries below it are no longer part of the log."


def apply_collection(
    storage: Storage, plan: CollectionPlan, *, now_ms: int, new_id: Callable[[], str]
) -> CollectionReport:
    """Do what a plan says, except to what has become referred to since.

    A plan may be applied any time after it was made, twice, or again after it was interrupted; whoever commits,
    tags, leases or collects meanwhile loses nothing.

    Parameters
    ----------
    storage
        The store that the plan is of.
    plan
        From `plan_collection`.
    now_ms
        Milliseconds since 1970. Decides which leases have ended.
    new_id
        Returns a fresh, unique name at each call.

    Raises
    ------
    CorruptDataError, FormatVersionError
        If a root cannot be read any more; nothing was deleted.
    StorageError
        If a file cannot be deleted; those before it are. The next collection goes on.
    """
    deleted = []
    # Durably, before anything goes that a lease which came back would be missing.
    with many_deletions(storage):
        for deletion in plan.deletions:
            if deletion.kind in NEVER_NEEDED:
                (storage.delete if deletion.kind == "lease" else storage.delete_unfinished)(deletion.path)
                deleted.append(deletion.path)
    others = read_boundaries(storage)
    doomed = [deletion for deletion in plan.deletions if deletion.kind not in NEVER_NEEDED]
    waiting = {item.path: item.first_seen_ms for item in plan.waiting}
    swept = plan.head if any(deletion.orphan for deletion in doomed) else 0
    statement = BoundaryDocument(
        boundary=max([plan.boundary, *(other.boundary for other in others)]),
        swept=max([swept, *(other.swept for other in others)]),
        collection_id=new_id(),
        written_at_ms=now_ms,
        condemned=[deletion.path for deletion in doomed],
        waiting=waiting,
        # What another collection has said since the plan was made, too.
        taken={
            **plan.taken,
            **all_taken(document for other, document in others.items() if other not in plan.statements),
        },
    )
    spared: list[str] = []
    said = None
    if doomed:
        # Durable before the roots are read again: who commits or pins after this reading finds it.
        said = put_boundary(storage, statement)
        held = settled_look(lambda: _held(storage, statement, now_ms))
        with many_deletions(storage):
            for deletion in doomed:
                if deletion.path in held:
                    spared.append(deletion.path)
                else:
                    storage.delete(deletion.path)
                    deleted.append(deletion.path)
    gone = set(deleted)
    # A collection that died deleted some of what its document condemns, and nobody else will say so.
    done = {
        other: document
        for other, document in others.items()
        if all(path in gone or not storage.exists(path) for path in document.condemned)
    }
    went = [path for path in statement.condemned if path in gone]
    went += [path for document in done.values() for path in document.condemned]
    # Log entries say themselves that they went: they are below the boundary.
    went = [path for path in went if number_of(path) is None]
    # An entry that is there by now, or the one after it, is the last that may refer to what has gone.
    newest = max([plan.head, *CommitLog(storage).numbers()[-1:]]) if went else 0
    taken = {**statement.taken, **dict.fromkeys(went, newest)}
    last = replace(statement, collection_id=new_id(), condemned=[], taken=taken)
    _leave_one(storage, last, done, said)
    fields = {"store": storage.url, "deleted": len(deleted), "spared": len(spared), "boundary": statement.boundary}
    _logger.info("%(store)s: %(deleted)d files collected, %(spared)d spared", fields, extra=fields)
    return CollectionReport(tuple(deleted), tuple(spared), statement.boundary)


def _held(storage: Storage, own: BoundaryDocument, now_ms: int) -> set[str]:
    """Return every file that must not be deleted now: all roots, read and marked anew, and their log entries."""
    roots = read_roots(storage, now_ms=now_ms, floor=own.boundary)
    pinned = {pin.entry.number for pin in roots.held}
    kept = [
        entry
        for number, entry in roots.entries.items()
        if number >= roots.floor or number in pinned or entry.document.kind == "savepoint"
    ]
    # Nothing has gone yet by the own document.
    statements = [other for other in read_boundaries(storage).values() if other.collection_id != own.collection_id]
    marked = mark(storage, ReferenceReader(storage), kept, files_at_risk(statements))
    return {*marked, *(path_of(entry.document.number) for entry in kept)}


def _leave_one(
    storage: Storage,
    last: BoundaryDocument,
    done: dict[Boundary, BoundaryDocument],
    said: Boundary | None,
) -> None:
    """Leave one document that says how far the store was collected, and take away those that it stands for (`done`).

    A document that condemns files stays until none of them is there, for its collection may only be slow: as long as it
    may delete a file, nobody must commit a reference to that file. The own one (`said`) goes: its collection is done,
    and what it spared may be referred to again.
    """
    if said is None and not done and not last.boundary and not last.waiting and not last.taken:
        return
    # A collection that found nothing to do leaves nothing: what it would say may have been said already.
    same = [boundary for boundary in done if said is None and _says(done[boundary], last)]
    own = max(same) if same else put_boundary(storage, last)
    if said is not None:
        storage.delete(said.path)
    for boundary in done:
        # Two collections that took each other's document for the older one would leave none.
        if boundary < own and boundary.swept <= own.swept:
            storage.delete(boundary.path)


def _says(document: BoundaryDocument, other: BoundaryDocument) -> bool:
    """Whether a document says what another one does, whoever wrote them, and when."""
    return document == replace(other, collection_id=document.collection_id, written_at_ms=document.written_at_ms)
