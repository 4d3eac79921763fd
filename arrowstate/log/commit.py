"""What every commit does alike: take the fence, and see to the files that were written for an entry.

The steps of a commit, in their order:

1. The files are written under fresh names. Nothing refers to them, so they are deleted after any error.
2. The fence is taken: an entry with the next writer epoch. Whoever wrote before finds it above its own entries, and
   stops.
3. One entry that names the files is put under the next number of the log, if that number is free.

From step 3 on the entry may be in the log though its writer heard nothing of it. Only the errors in `NOT_COMMITTED` say
that it is not; after any other the files stay. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from arrowstate.errors import FencedError, InvalidInputError, StorageError, StorageFullError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, next_fence
from arrowstate.storage.base import Storage, many_deletions

NOT_COMMITTED = (FencedError, InvalidInputError, StorageFullError, StorageError)
"""After these errors of a commit its entry is not in the log; after any other it may be."""


@dataclass(slots=True)
class FilesOfCommit:
    """The files that are written for a commit."""

    paths: list[str]
    is_tried: bool = False
    "Whether the entry that names them may be in the log."


@contextmanager
def written_for_commit(storage: Storage, paths: Iterable[str] = ()) -> Iterator[FilesOfCommit]:
    """Delete the files of a commit that fails; who tries to append the entry sets `is_tried` before."""
    files = FilesOfCommit(list(paths))
    try:
        yield files
    except BaseException as error:
        if not files.is_tried or isinstance(error, NOT_COMMITTED):
            delete_quietly(storage, files.paths)
        raise


def delete_quietly(storage: Storage, paths: Iterable[str]) -> None:
    """Delete files that nothing refers to; one that cannot be deleted stays behind, for a collection to find."""
    with suppress(OSError), many_deletions(storage):
        for path in paths:
            with suppress(OSError):
                storage.delete(path)


def append_fence(
    log: CommitLog,
    newest: CommittedEntry | None,
    *,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    properties: Mapping[str, Any],
) -> CommittedEntry | None:
    """Append a fence to `newest`; return None if another writer has taken its number."""
    fence = next_fence(newest, commit_id=new_id(), now_ms=clock_ms(), properties=dict(properties))
    committed = log.append(fence)
    assert committed is None or newest is None or committed.document.writer_epoch > newest.document.writer_epoch, (
        "a fence has a higher epoch than all entries before it"
    )
    return committed


def take_fence(
    log: CommitLog, *, new_id: Callable[[], str], clock_ms: Callable[[], int], properties: Mapping[str, Any]
) -> tuple[CommittedEntry, CommittedEntry | None]:
    """Append a fence above whatever is in the log; return it, and the entry that it follows."""
    while True:
        newest = log.latest()
        # Losing means that another writer took the number: look again and go above it.
        fence = append_fence(log, newest, new_id=new_id, clock_ms=clock_ms, properties=properties)
        if fence is not None:
            return fence, newest
