"""Going back: an older checkpoint is committed again, as the newest.

Nothing is copied and nothing written but log entries: the files of the checkpoint are there. Writers opened before are
fenced, for they would go on from what was given up. What came between stays readable until it is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from arrowstate.checkpoints.committing import Committer
from arrowstate.checkpoints.notes import of_stopped_query
from arrowstate.errors import CorruptDataError
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.leases import held_while_read
from arrowstate.schema.versions import with_ids_taken
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument

ROLLED_BACK_TO = "rolled_back_to"
"""The property of the fence that says which checkpoint the one after it repeats."""


def roll_back(
    storage: Storage,
    store_id: str,
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
        committer = Committer(storage, store_id, clock_ms=clock_ms, new_id=new_id, properties=said)
        return committer.commit(
            with_given_ids(storage, entry.operators, entry.number),
            properties=of_stopped_query(entry.properties, new_id),
            watermark=entry.watermark,
            started_at_ms=started_at_ms,
        )


def with_given_ids(storage: Storage, operators: Sequence[OperatorDocument], base: int) -> list[OperatorDocument]:
    """Return operators of an entry, whose states give no field an id that a later checkpoint of the store has given.

    Whoever compares the two would take the one field for the other. Of each state the newest checkpoint that has it
    says which ids were given.
    """
    found = {operator.uid: operator for operator in operators}
    missing = {(operator.uid, state.name) for operator in operators for state in operator.states}
    # Going back may be the way out of a damaged log; what cannot be read of it says nothing.
    with suppress(CorruptDataError):
        for committed in CommitLog(storage).history().checkpoints():
            if not missing or committed.document.number <= base:
                break
            for later in committed.document.operators:
                states = {state.name: state for state in later.states if (later.uid, state.name) in missing}
                if not states:
                    continue
                missing -= {(later.uid, name) for name in states}
                own = found[later.uid]
                raised = [
                    with_ids_taken(state, own.key, states[state.name], later.key) if state.name in states else state
                    for state in own.states
                ]
                found[later.uid] = replace(own, states=raised)
    return list(found.values())
