"""A checkpoint after a newest entry that is known: appended once, or not at all where another writer came first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import fitted
from arrowstate.log.boundary import Boundary, NewReferences
from arrowstate.log.commit import delete_quietly
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, next_checkpoint
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument


def append_checkpoint(
    storage: Storage,
    log: CommitLog,
    parent: CommittedEntry,
    operators: Sequence[OperatorDocument],
    *,
    before: Sequence[OperatorDocument],
    base: int,
    paths: Collection[str],
    new_id: Callable[[], str],
    said: Sequence[Boundary] | None = None,
    **entry: Any,
) -> LogEntryDocument | None:
    """Append a checkpoint to `parent`, the newest entry; return None if another writer has taken its number.

    `operators` are all that it has, `before` those of the checkpoint before; `paths` are the files written for it, and
    `base` is the number of the checkpoint that tasks started from. The rest of `entry` is as for `next_checkpoint`.
    """
    lists: list[str] = []
    document = next_checkpoint(
        parent,
        fitted(storage, operators, before=before, new_id=new_id, paths=lists),
        commit_id=new_id(),
        **entry,
    )
    everything = partial(ReferenceReader(storage).files, document.operators)
    # After a checkpoint of its own a writer knows that it was acknowledged. A fence says nothing of what it repeats,
    # and what a compaction refers to no more may be gone.
    written = {*paths, *lists}
    reused = set(everything()) - written if parent.document.kind != "checkpoint" else ()
    if log.append(document, NewReferences(written, base, reused, everything), said=said) is not None:
        return document
    delete_quietly(storage, lists)
    return None
