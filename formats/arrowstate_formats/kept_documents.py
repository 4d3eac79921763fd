"""What a store keeps, how far it was collected, and who runs its job: tags, leases, collections, reports of jobs.

Most of them name log entries by number and checksum. Specification: formats/spec/collection.md, formats/spec/jobs.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from arrowstate_formats.document_base import (
    HOLDS_LATER,
    Checksum,
    Count,
    Document,
    Milliseconds,
    Name,
    PinnedDocument,
    StoredPath,
    Text,
)


class ParentDocument(Document, frozen=True, kw_only=True):
    """The log entry before this one, pinned by the checksum of its bytes."""

    number: Count
    xxh3_128: Checksum


class TagDocument(PinnedDocument, frozen=True, kw_only=True):
    """`tags/<name>.json`: a checkpoint that is kept, whatever the retention, until the tag is removed."""

    name: Name
    tag_id: Text
    checkpoint_id: Count
    entry: ParentDocument
    created_at_ms: Milliseconds


class LeaseDocument(PinnedDocument, frozen=True, kw_only=True):
    """`leases/<lease id>.json`: a checkpoint that is kept until a time, because somebody reads it.

    With the feature `lease.later` all entries of the log after it are kept as well, for somebody who follows them.
    """

    known_features: ClassVar[frozenset[str]] = frozenset({HOLDS_LATER})

    lease_id: Text
    checkpoint_id: Count
    entry: ParentDocument
    expires_at_ms: Milliseconds
    holder: str = ""

    @property
    def holds_later(self) -> bool:
        """Whether it holds what comes after the checkpoint, too."""
        return HOLDS_LATER in self.features


class BoundaryDocument(PinnedDocument, frozen=True, kw_only=True):
    """How far the log has been collected, and what goes now.

    `gc/condemned-<boundary>-<swept>-<collection id>.json`, or `gc/boundary-...` if it condemns nothing. `condemned`
    are the paths that a collection may be deleting. `waiting` are files that nothing refers to, by the
    time at which a collection first saw them. `taken` are files that collections deleted, by the number of an entry
    that was there then: a later one that refers to them was never acknowledged.
    """

    what: ClassVar[str] = "boundary"
    max_bytes: ClassVar[int | None] = 256 << 20

    boundary: Count
    swept: Count
    collection_id: Text
    written_at_ms: Milliseconds
    condemned: list[StoredPath]
    waiting: dict[StoredPath, Milliseconds]
    taken: dict[StoredPath, Count] = msgspec.field(default_factory=dict)


class JobDocument(PinnedDocument, frozen=True, kw_only=True):
    """`jobs/<writer epoch>.json`: who runs the job of the store, for how long without another word, and how it is.

    It is replaced again and again while the job runs, by this job alone; its last form says how the job ended.
    """

    free_form: ClassVar[tuple[str, ...]] = ("extensions", "report")

    writer_epoch: Count
    holder: str
    lease_ms: Count
    renewal: Count
    state: Text
    written_at_ms: Milliseconds
    report: dict[str, Any] = {}
