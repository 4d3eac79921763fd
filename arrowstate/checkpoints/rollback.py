"""Going back: an older checkpoint is committed again, as the newest.

Nothing is copied and nothing written but log entries: the files of the checkpoint are there. Writers opened before are
fenced, for they would go on from what was given up. What came between stays readable until it is collected.
"""

from __future__ import annotations

from collections.abc import Callable

from arrowstate.checkpoints.committing import Committer, with_given_ids
from arrowstate.files.notes import of_stopped_query
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.leases import held_while_read
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument

ROLLED_BACK_TO = "rolled_back_to"
"""The property of the fence that says which checkpoint the one after it repeats."""


def roll_back(
    storage: Storage,
    entry: LogEntryDocument,
    *,
    comment: str | None,
    clock_ms: Callable[[], int],
    new_id: Callable[[], str],
) -> LogEntryDocument:
    """Commit the content, the properties and the watermark of a checkpoint once more; errors as of `Committer`."""
    started_at_ms = clock_ms()
    said = {ROLLED_BACK_TO: entry.checkpoint_id} | ({} if comment is None else {"comment": comment})
    with (
        held_while_read(storage, entry, holder="a rollback", clock_ms=clock_ms, new_id=new_id),
        reading_checkpoint(storage, entry),
    ):
        committer = Committer(storage, clock_ms=clock_ms, new_id=new_id, properties=said, once=True)
        return committer.commit(
            with_given_ids(storage, entry.operators, entry.number),
            properties=of_stopped_query(entry.properties, new_id),
            watermark=entry.watermark,
            started_at_ms=started_at_ms,
        )
