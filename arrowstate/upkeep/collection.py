"""Collection: the deletions of a plan, in an order that loses nothing to those who write meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from itertools import chain, groupby

from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import CorruptDataError
from arrowstate.files.references import ReferenceReader
from arrowstate.log.boundary import (
    Boundary,
    missing_paths,
    number_of,
    put_boundary,
    read_boundaries,
)
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, path_of
from arrowstate.log.pins import put_retention_lease
from arrowstate.storage.base import Storage, many_deletions
from arrowstate.storage.parallel import delete_all
from arrowstate.telemetry.records import recorded
from arrowstate.upkeep.collection_plan import all_taken, files_at_risk, plan_collection, settled_look
from arrowstate.upkeep.planned import DEFAULT_PORTIONS, NEVER_NEEDED, CollectionPlan, Portions
from arrowstate.upkeep.portions import collect_portions, delete_entries
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate.upkeep.roots import chained, mark, read_roots
from arrowstate_formats.documents import BoundaryDocument

_logger = logging.getLogger("arrowstate.upkeep")

_FEW_TAKEN = 30_000
"""Of so many files that went in portions one document says so."""


class CollectionReport(Struct, frozen=True):
    """What applying a plan did."""

    deleted: tuple[str, ...]
    """In order; a file that another collection deleted first is among them. Where a plan had further portions, these
    are the files of the first one, and what was deleted after all of them."""
    spared: tuple[str, ...]
    "Files of the plan that had become referred to, or pinned, since it was made."
    boundary: int
    "Entries below it are no longer part of the log."
    deleted_count: int = 0
    "How many files were deleted in all portions."
    deleted_bytes: int = 0
    "How many bytes they had, as far as documents tell."


def recorded_collection(
    storage: Storage, plan: CollectionPlan, *, clock_ms: Callable[[], int], new_id: Callable[[], str]
) -> CollectionReport:
    """Apply a plan, and tell listeners of it."""
    now_ms = clock_ms()
    with recorded("collection", storage.url, now_ms) as recording:
        report = apply_collection(storage, plan, now_ms=now_ms, new_id=new_id)
        recording.files_deleted = report.deleted_count
        recording.bytes_deleted = report.deleted_bytes
    return report


def apply_collection(
    storage: Storage,
    plan: CollectionPlan,
    *,
    now_ms: int,
    new_id: Callable[[], str],
    portions: Portions | None = None,
    without: frozenset[Boundary] = frozenset(),
    superseded: frozenset[Boundary] = frozenset(),
) -> CollectionReport:
    """Do what a plan says, except to what has become referred to since.

    A plan may be applied any time after it was made, twice, or again after it was interrupted; whoever commits,
    tags, leases or collects meanwhile loses nothing.
    """
    for item in plan.hourly:
        put_retention_lease(storage, new_id(), item.checkpoint_id, item.entry, until_ms=item.until_ms)
    deleted = []
    # Durably, before anything goes that a lease which came back would be missing.
    with many_deletions(storage):
        for deletion in plan.deletions:
            if deletion.kind in NEVER_NEEDED:
                (storage.delete if deletion.kind == "lease" else storage.delete_unfinished)(deletion.path)
                deleted.append(deletion.path)
    if plan.further:
        return _apply_in_portions(storage, plan, deleted, portions, now_ms, new_id)
    others = read_boundaries(storage, without=without)
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
        held = settled_look(lambda: _held(storage, statement, now_ms, without))
        spared += [deletion.path for deletion in doomed if deletion.path in held]
        for kind, of_kind in groupby(doomed, key=lambda deletion: deletion.kind):
            paths = [deletion.path for deletion in of_kind if deletion.path not in held]
            (delete_entries if kind == "log entry" else delete_all)(storage, paths)
            deleted += paths
    gone = set(deleted)
    # A collection that died deleted some of what its document condemns, and nobody else will say so.
    done = {
        other: document
        for other, document in others.items()
        if len(missing_paths(storage, left := set(document.condemned) - gone)) == len(left)
    }
    went = [path for path in statement.condemned if path in gone]
    went += [path for document in done.values() for path in document.condemned]
    # Log entries say themselves that they went: they are below the boundary.
    went = [path for path in went if number_of(path) is None]
    # An entry that is there by now, or the one after it, is the last that may refer to what has gone.
    newest = max([plan.head, *CommitLog(storage).numbers()[-1:]]) if went else 0
    taken = {**statement.taken, **dict.fromkeys(went, newest)}
    last = replace(statement, collection_id=new_id(), condemned=[], taken=taken)
    if said is not None or done or waiting or taken or not (without or last.boundary == 0):
        _leave_one(storage, last, done, said, superseded)
    fields = {"store": storage.url, "deleted": len(deleted), "spared": len(spared), "boundary": statement.boundary}
    _logger.info("%(store)s: %(deleted)d files collected, %(spared)d spared", fields, extra=fields)
    sizes = {deletion.path: deletion.bytes or 0 for deletion in plan.deletions}
    freed = sum(sizes[path] for path in deleted)
    return CollectionReport(tuple(deleted), tuple(spared), statement.boundary, len(deleted), freed)


def _apply_in_portions(
    storage: Storage,
    plan: CollectionPlan,
    deleted: list[str],
    portions: Portions | None,
    now_ms: int,
    new_id: Callable[[], str],
) -> CollectionReport:
    """Delete the checkpoints of a plan in portions, and then what else there is to delete."""
    done = collect_portions(storage, plan, portions or DEFAULT_PORTIONS, now_ms=now_ms, new_id=new_id)

    def rest(without: frozenset[Boundary]) -> CollectionReport:
        left = plan_collection(
            storage,
            RetentionPolicy(hours=plan.policy.hours),
            now_ms=now_ms,
            grace_ms=plan.grace_ms,
            portions=portions,
            up_to=plan.boundary,
            without=without,
        )
        return apply_collection(
            storage,
            left,
            now_ms=now_ms,
            new_id=new_id,
            portions=portions,
            without=without,
            superseded=left.statements & done.left,
        )

    try:
        # What was taken has been said. Much of it needs not be in memory; a later collection has it go.
        last = rest(frozenset(done.left) if done.deleted > _FEW_TAKEN else frozenset())
    except CorruptDataError:
        # A commit that came too late may lack some of it, which is no damage.
        last = rest(frozenset())
    return CollectionReport(
        (*deleted, *done.first, *last.deleted),
        (*done.spared, *last.spared),
        last.boundary,
        len(deleted) + done.deleted + last.deleted_count,
        done.bytes + last.deleted_bytes,
    )


def _held(storage: Storage, own: BoundaryDocument, now_ms: int, without: Collection[Boundary]) -> set[str]:
    """Return every file that must not be deleted now: all roots, read and marked anew, and their log entries."""
    roots = read_roots(storage, now_ms=now_ms, floor=own.boundary)
    entries = chained(roots.entries(chain.from_iterable(roots.numbers)), roots.floor)
    pinned = roots.pinned
    numbers: list[int] = []

    def kept() -> Iterator[CommittedEntry]:
        for entry in entries:
            number = entry.document.number
            if number >= roots.floor or number in pinned or entry.document.kind == "savepoint":
                numbers.append(number)
                yield entry

    # Nothing has gone yet by the own document.
    statements = [
        other
        for other in read_boundaries(storage, without=without).values()
        if other.collection_id != own.collection_id
    ]
    marked = mark(storage, ReferenceReader(storage), kept(), files_at_risk(statements))
    return {*marked, *map(path_of, numbers)}


def _leave_one(
    storage: Storage,
    last: BoundaryDocument,
    done: dict[Boundary, BoundaryDocument],
    said: Boundary | None,
    superseded: Collection[Boundary],
) -> None:
    """Leave one document that says how far the store was collected, and take away those that it stands for (`done`).

    A document that condemns files stays until none of them is there, for its collection may only be slow: as long as it
    may delete a file, nobody must commit a reference to that file. The own one (`said`) goes: its collection is done,
    and what it spared may be referred to again.
    """
    # A collection that found nothing to do leaves nothing: what it would say may have been said already.
    same = [boundary for boundary in done if said is None and _says(done[boundary], last)]
    own = max(same) if same else put_boundary(storage, last)
    if said is not None:
        storage.delete(said.path)
    for boundary in done:
        # Two collections that took each other's document for the older one would leave none.
        is_older = boundary < own and boundary.swept <= own.swept
        if is_older or (boundary in superseded and boundary != own):
            storage.delete(boundary.path)


def _says(document: BoundaryDocument, other: BoundaryDocument) -> bool:
    """Whether a document says what another one does, whoever wrote them, and when."""
    return document == replace(other, collection_id=document.collection_id, written_at_ms=document.written_at_ms)
