"""The checkpoints of a store one after the other, for whoever follows what changes between them.

A checkpoint and the compactions of it have one id and the same content. Of these, the one from which the next
checkpoint went on shares most files with it; so a step goes from the last entry of one id to the first of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise

from arrowstate.errors import CheckpointNotFoundError, CheckpointsCollectedError
from arrowstate.log.commit_log import CommitLog
from arrowstate_formats.documents import LogEntryDocument


@dataclass(frozen=True, slots=True)
class Step:
    """From one checkpoint to the next."""

    checkpoint_id: int
    "The later checkpoint."
    before: int | None
    "The number of the log entry to compare with; None where nothing was stored before."
    after: int
    "The number of the log entry of the later checkpoint."


def newest_checkpoint_id(log: CommitLog) -> int | None:
    """Return the id of the newest checkpoint, None if there is none yet."""
    entry = log.latest_checkpoint()
    return None if entry is None else entry.checkpoint_id


def oldest_checkpoint_id(log: CommitLog) -> int | None:
    """Return the id of the oldest checkpoint there is, None if there is none yet."""
    return min((_id(entry) for entry in log.backwards()), default=None)


def oldest_followed_id(log: CommitLog) -> int | None:
    """Return the id of the oldest checkpoint since which none was collected, None if there is no checkpoint yet."""
    # The boundary of that moment: a collection that comes in between only drops checkpoints that are named here.
    history = log.history()
    found = (entry.document for entry in history.checkpoints())
    return min((_id(entry) for entry in found if entry.number >= history.boundary), default=None)


def steps_between(
    log: CommitLog, after: int | None, until: int | None, *, snapshot: int | None = None, gaps: bool = False
) -> list[Step]:
    """Return the steps between consecutive checkpoints, oldest first."""
    start = after if after is not None else snapshot
    entries: list[LogEntryDocument] = []
    seen: list[int] = []
    for entry in log.backwards():
        seen.append(_id(entry))
        if start is not None and _id(entry) < start:
            break
        if until is None:
            until = _id(entry)
        if _id(entry) <= until:
            entries.append(entry)
        if start is None and entries and _id(entry) < until:
            break
    by_id = [list(group) for _, group in groupby(reversed(entries), key=_id)]
    if start is None:
        by_id = by_id[-1:]
    if until is not None and (not by_id or _id(by_id[-1][0]) != until):
        raise CheckpointNotFoundError(until, sorted(set(seen)))
    if start is not None and (not by_id or _id(by_id[0][0]) != start):
        raise CheckpointsCollectedError(start, sorted({_id(entry) for entry in log.backwards()}))
    if not gaps and by_id:
        _check_no_gap(log, by_id[0][-1].number, by_id[-1][0].number, _id(by_id[0][0]))
    steps = [Step(_id(new[0]), old[-1].number, new[0].number) for old, new in pairwise(by_id)]
    if after is None and by_id:
        steps.insert(0, Step(_id(by_id[0][0]), None, by_id[0][-1].number))
    return steps


def _check_no_gap(log: CommitLog, first: int, last: int, after: int) -> None:
    """Refuse a stretch of the log of which entries were collected: below its boundary only what is pinned is left."""
    if first >= log.boundary():
        return
    if sum(first <= number <= last for number in log.numbers()) <= last - first:
        raise CheckpointsCollectedError(after, sorted({_id(entry) for entry in log.backwards()}))


def _id(entry: LogEntryDocument) -> int:
    assert entry.checkpoint_id is not None, "a fence is passed over"
    return entry.checkpoint_id
