"""What a collection would do, as a plan says it, and how much of it at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from arrowstate.log.boundary import Boundary
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.documents import ParentDocument

DEFAULT_GRACE_MS = 24 * 3600 * 1000
"""Longer than any checkpoint should take from its first file to its commit."""

Kind = Literal["data", "manifest", "log entry", "lease", "unfinished"]
ORDER: tuple[Kind, ...] = ("lease", "unfinished", "data", "manifest", "log entry")
NEVER_NEEDED = ("lease", "unfinished")
"""Nothing refers to these files, and their names are never used again."""


class Portions(Struct, frozen=True):
    """How much a collection deletes at a time, and how much of what goes it has in memory."""

    entries: int = 4_000
    "Log entries, at least 1."
    files: int = 10_000
    "Files of checkpoints, at least 1; a portion ends with the checkpoint that reaches it."


DEFAULT_PORTIONS = Portions()


class Deletion(Struct, frozen=True):
    """A file that a collection deletes."""

    path: str
    kind: Kind
    reason: str
    bytes: int | None
    "None where no document tells."
    orphan: bool = False
    "Whether nothing is known to have referred to it."


class Waiting(Struct, frozen=True):
    """A file that nothing refers to and that waits for its grace period to end."""

    path: str
    first_seen_ms: int
    "When a collection saw it first, in milliseconds since 1970; for a file not seen before the time of the plan."
    until_ms: int
    "From when on a collection deletes it."


class Kept(Struct, frozen=True):
    """A checkpoint or savepoint that is kept."""

    entry_number: int
    "The number of its entry in the log, which is not its id."
    checkpoint_id: int
    reasons: tuple[str, ...]
    "Empty where it stands between others that are kept."


class Hourly(Struct, frozen=True):
    """A checkpoint below the boundary that is the newest of its hour: the collection leases it before it deletes."""

    checkpoint_id: int
    entry: ParentDocument
    until_ms: int
    "When it is kept by its hour no more, in milliseconds since 1970."


class CollectionPlan(Struct, frozen=True):
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
    further: int = 0
    """How many checkpoints go besides, in further portions that `apply` makes after this one. Then `dropped` and
    `deletions` are those of the first portion, and what nothing refers to is looked for when all of them are done."""
    grace_ms: int = DEFAULT_GRACE_MS
    "How long a file waits that nothing refers to."
    policy: RetentionPolicy = field(default_factory=RetentionPolicy)
    "Which checkpoints are kept."
    hourly: tuple[Hourly, ...] = ()
    "The newest checkpoints of their hours that no lease keeps yet."
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
