"""Whether a file that is missing was collected, or is damage: two errors, of which only one is the store's fault.

A reader that holds a checkpoint by nothing, neither tag nor lease, may find its files gone because newer ones have
taken its place. And a commit that nobody was told of may refer to files that a collection took for garbage before it
was made; documents in `gc/` name these. Looked up only after a file was found missing.
Specification: formats/spec/collection.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from arrowstate.errors import CollectedError, CorruptDataError
from arrowstate.log.boundary import read_boundaries
from arrowstate.log.commit_log import CommitLog
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument

ADVICE = "`arrowstate diagnose STORE` says what is whole and what helps; store.latest_whole() is what can be restored"


def advise(error: CorruptDataError) -> None:
    """Have the error of a damaged store say, beneath its message, what to do about it."""
    if ADVICE not in getattr(error, "__notes__", ()):
        error.add_note(ADVICE)


@contextmanager
def reading_checkpoint(storage: Storage, *entries: LogEntryDocument) -> Iterator[None]:
    """Raise CollectedError in a block that reads checkpoints, where a file is missing and is no damage.

    Of a block within it, which knows only one of the checkpoints, the error may name the wrong one.
    """
    try:
        yield
    except (CorruptDataError, CollectedError) as error:
        if isinstance(error, CollectedError) and (error.acknowledged or len(entries) == 1):
            raise
        collected = taken_by_a_collection(storage, error.path, *entries)
        if collected is not None:
            raise collected from error
        if isinstance(error, CorruptDataError) and any(entry.kind != "savepoint" for entry in entries):
            advise(error)
        raise


def taken_by_a_collection(storage: Storage, path: str, *entries: LogEntryDocument) -> CollectedError | None:
    """Return why a file of one of some checkpoints is missing if a collection took it; None if it is damage."""
    # A storage that does not answer now tells nothing, and the error stands.
    with suppress(CorruptDataError, OSError):
        if not path.startswith(("data/", "manifests/")) or storage.exists(path):
            return None
        log = CommitLog(storage)
        for entry in entries:
            if not log.holds(entry):
                return CollectedError([path], entry.checkpoint_id)
        for statement in read_boundaries(storage).values():
            if path in statement.taken or path in statement.condemned:
                return CollectedError([path], entries[-1].checkpoint_id, acknowledged=False)
    return None
