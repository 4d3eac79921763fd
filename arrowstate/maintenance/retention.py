"""Which checkpoints of a store are kept: by count, by age, by tags and leases, and the newest always.

Pure: entries and pins go in, a decision comes out. What is kept by count and age is the newest part of the log, from
a boundary on without a gap; below it stand single checkpoints that a tag or a lease holds, or that are savepoints,
which belong to whoever made them. A clock decides only how long a checkpoint is kept beyond the count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import check_integer

__all__ = ["Retention", "RetentionPolicy", "retain"]


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How many checkpoints a store keeps: those within the count, and those younger than the age too.

    Tagged and leased checkpoints, savepoints and the newest checkpoint are kept whatever it says.

    Raises
    ------
    InvalidInputError
        If count is below 1 or age_ms is negative.

    Examples
    --------
    >>> RetentionPolicy(count=3, age_ms=24 * 3600 * 1000)
    RetentionPolicy(count=3, age_ms=86400000)
    """

    count: int = 1
    """The newest so many checkpoints, at least 1; savepoints do not count, and a compaction counts in the place of the
    checkpoint that it repeats."""
    age_ms: int | None = None
    "Also checkpoints committed less than so many milliseconds ago; None: none by age."

    def __post_init__(self) -> None:
        count = check_integer("count, the checkpoints that a retention keeps,", self.count, 1)
        age_ms = check_integer("age_ms", self.age_ms, 0, unit="milliseconds", optional=True)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "age_ms", age_ms)


@dataclass(frozen=True, slots=True)
class Retention:
    """What a policy says of a log."""

    boundary: int
    "Every entry from this number on is kept."
    kept: dict[int, tuple[str, ...]]
    "Why, by the number of the entry; empty for a fence between checkpoints that are kept."
    dropped: tuple[int, ...]
    "Numbers of entries that go, ascending."


def retain(
    entries: Iterable[LogEntryDocument],
    pins: Sequence[tuple[int, str]],
    policy: RetentionPolicy,
    *,
    now_ms: int,
    floor: int,
    in_doubt: Collection[int] = (),
    grace_ms: int = 0,
) -> Retention:
    """Decide which entries of a log are kept.

    Parameters
    ----------
    entries
        All there are, ascending by number; at least one from `floor` on.
    pins
        (Number of the entry, who holds it) of each tag and lease that counts.
    policy
        The rule.
    now_ms
        Milliseconds since 1970; what was committed later is young.
    floor
        The boundary that was reached before: what is below it and not held has been dropped for good.
    in_doubt
        Numbers of checkpoints that may lose a file. They are not counted, and while there are fewer others than the
        policy keeps, nothing is dropped.
    grace_ms
        For how long after a compaction the checkpoint that it repeats is kept beside it, in milliseconds: the writer of
        that checkpoint still refers to its files, until its next one is committed.

    Examples
    --------
    >>> checkpoints = [
    ...     LogEntryDocument(number=number, parent=None, commit_id="c", writer_epoch=1, kind="checkpoint",
    ...                      checkpoint_id=number, started_at_ms=0, committed_at_ms=number * 1000, operators=[])
    ...     for number in (1, 2, 3, 4)
    ... ]
    >>> found = retain(checkpoints, [(1, "tag 'gold'")], RetentionPolicy(count=2), now_ms=5000, floor=0)
    >>> found.boundary, found.kept[1], found.dropped
    (3, ("tag 'gold'",), (2,))
    """
    documents = list(entries)
    log = [document for document in documents if document.number >= floor]
    reasons: dict[int, list[str]] = {}

    def keep(number: int, reason: str) -> None:
        reasons.setdefault(number, []).append(reason)

    checkpoints = [document for document in log if document.kind in ("checkpoint", "compaction")]
    certain = [document for document in checkpoints if document.number not in in_doubt]
    # A compaction holds what the checkpoint before it does: the two are one, and the later one needs fewer files.
    pairs = list(zip_longest(certain, certain[1:]))
    counted = [document for document, following in pairs if following is None or following.kind != "compaction"]
    if in_doubt and len(counted) < policy.count:
        keep(log[0].number, "a newer checkpoint is in doubt")
    for document in counted[-policy.count :]:
        keep(document.number, f"one of the newest {policy.count}")
    for document, following in reversed(pairs):
        if following is None:
            continue
        if following.kind != "compaction" or following.committed_at_ms <= now_ms - grace_ms:
            break
        keep(document.number, f"its compaction is younger than {grace_ms} ms, its writer may go on from it")
    for document in checkpoints:
        if policy.age_ms is not None and document.committed_at_ms > now_ms - policy.age_ms:
            keep(document.number, f"younger than {policy.age_ms} ms")
    keep(log[-1].number, "the newest entry")
    boundary = max(floor, min(reasons))
    for document in documents:
        if document.kind == "savepoint":
            keep(document.number, "a savepoint")
    for number, holder in pins:
        keep(number, holder)
    kept = {
        document.number: tuple(reasons.get(document.number, ()))
        for document in documents
        if document.number >= boundary or document.number in reasons
    }
    dropped = tuple(document.number for document in documents if document.number not in kept)
    return Retention(boundary, kept, dropped)
