"""The commit: the only fence, the only append, and the one place that knows what a failure means.

The steps of a commit, in their order:

1. The files are written under fresh names, and a `Commit` notes their paths. Nothing refers to them yet.
2. The fence is taken: an entry with the next writer epoch. Whoever wrote before finds it above its own entries, and
   stops.
3. One entry is made. It names the files and its parent, the newest entry.
4. What collections have said is read. If one of the files is gone, or may be going, nothing is committed; nor if the
   number of the entry is below the boundary, for then another entry has had it. A writer that goes on from an entry of
   its own looks whether that is there still: at the place of a store that was deleted, the next number may be free.
5. The entry is put under the next number of the log, if that number is free. If it is not, nothing is committed.
6. What collections have said is read again. A collection that began later sees the entry, and spares its files.
7. The commit is reported. If step 6 found that a file is gone, or may be going, it is not: the entry is **in doubt**.

Before step 5 nothing names the files, so they are deleted after any error. From then on the entry may be in the log
though its writer heard nothing of it: the files stay, unless the number was another writer's or the storage says that
it has put nothing (`NOT_COMMITTED`).

An entry in doubt is the newest of the log. A writer goes on after it with the next checkpoint. Where nobody goes on,
the commit of an edit for one, step 8 follows: the checkpoint before is committed once more, after the entry in doubt.
Then the store holds what it held, and the error says that nothing was committed. If that fails too, or another writer
was first, the outcome stays unknown. Specification: formats/spec/manifests-and-log.md, formats/spec/collection.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from arrowstate.errors import (
    ArrowStateError,
    CollectedError,
    CommitUnknownError,
    FencedError,
    InvalidInputError,
    StorageError,
    StorageFullError,
)
from arrowstate.log.boundary import Boundary, NewReferences, boundaries, highest_boundary, path_of
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import HINT_PATH, CommittedEntry, next_fence
from arrowstate.storage.base import Outcome, Storage, many_deletions
from arrowstate.storage.parallel import in_parallel, overlaps
from arrowstate_formats.documents import LogEntryDocument, encode
from arrowstate_formats.run_files import checksum

NOT_COMMITTED = (FencedError, InvalidInputError, StorageFullError, StorageError)
"""After these errors of a commit its entry is not in the log, or does not count; after any other it may be there."""

Again = Callable[[CommittedEntry], tuple[LogEntryDocument, NewReferences]]
"""Returns the entry that repeats the checkpoint before an entry in doubt, and the files that it refers to."""

_logger = logging.getLogger("arrowstate.log")


class Commit:
    """A commit under way: if its block ends with an error before its entry may be in the log, its files are deleted.

    A block within a block is the same commit.
    """

    def __init__(self, storage: Storage, paths: Iterable[str] = ()) -> None:
        self._storage = storage
        self.paths = list(paths)
        "The files written for it."
        self.entry: LogEntryDocument | None = None
        "The entry that is in the log, or may be."

    def __enter__(self) -> Commit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and self.entry is None:
            self.discard(self.paths)

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files of the commit that no entry is to name."""
        gone = set(paths)
        self.paths[:] = [path for path in self.paths if path not in gone]
        delete_quietly(self._storage, sorted(gone))

    def append(
        self,
        log: CommitLog,
        document: LogEntryDocument,
        references: NewReferences | None = None,
        *,
        said: Sequence[Boundary] | None = None,
        again: Again | None = None,
    ) -> CommittedEntry | None:
        """Take the steps from 4 on; None if another writer took the number first.

        `said` is what collections had said when it was last read, where that was after the newest entry was. With
        `again` an entry in doubt is followed by the checkpoint before it. If the log knows the id of its store and the
        store is another one, it is a StoreNotFoundError, and nothing is committed.
        """
        path = path_of(document.number)
        if references is not None:
            if said is None:
                said = boundaries(self._storage) if log.store_id is None else _look_before(log, document)
            if document.number < highest_boundary(said):
                # The entry that had the number is collected. If this one were put now, it would be in doubt.
                _logger.debug("%s: %s was another writer's", self._storage.url, path)
                return None
            lost = references.lost(self._storage, said)
            if lost:
                raise CollectedError(lost)
        data = encode(document)
        assert self.entry is None, "of two entries nobody could tell which of them names the files"
        self.entry = document
        try:
            outcome = self._storage.put_if_absent(path, data, document.commit_id)
        except NOT_COMMITTED:
            self.entry = None
            raise
        if outcome is Outcome.LOST:
            self.entry = None
            _logger.debug("%s: %s is another writer's", self._storage.url, path)
            return None
        committed = CommittedEntry(document, checksum(data), len(data))
        try:
            # Only now: what a collection says before this it may do without seeing the entry.
            said, hinted = _look_after(self._storage, document.number)
            is_below = document.number < highest_boundary(said)
            lost = [] if is_below or references is None else references.lost(self._storage, said)
        except (ArrowStateError, OSError) as error:
            raise self._unknown(document, f"collections could not be looked up: {error}") from error
        if is_below and document.kind == "fence":
            # A fence is worth something only while it is the newest entry.
            return None
        if is_below:
            # Its number had been taken and was free again; or others went on from it while this writer slept, and what
            # it wrote is part of theirs. So nothing of it may be deleted here.
            raise self._unknown(document, "others have gone on, and the log was collected past it")
        if lost:
            if again is not None and _repeated(self._storage, log, committed, again):
                raise CollectedError(lost)
            raise self._unknown(document, f"{lost[0]}, which it refers to, was being collected")
        log.known = committed
        if not hinted:
            _hint(self._storage, document.number)
        _say_committed(self._storage.url, document, len(data))
        return committed

    def _unknown(self, document: LogEntryDocument, why: str) -> CommitUnknownError:
        assert self.entry is document, "what an entry in doubt names is not deleted"
        return CommitUnknownError(path_of(document.number), document.commit_id, why, self._storage.url)


def _repeated(storage: Storage, log: CommitLog, doubtful: CommittedEntry, again: Again) -> bool:
    """Commit the checkpoint before an entry in doubt once more; whether that is certain."""
    try:
        document, references = again(doubtful)
        assert document.parent == doubtful.as_parent, "whoever came in between goes on, and is not undone"
        return Commit(storage).append(log, document, references) is not None
    except (ArrowStateError, OSError) as error:
        number = doubtful.document.number
        _logger.debug("%s: the checkpoint before entry %d is not repeated: %s", storage.url, number, error)
        return False


def _look_before(log: CommitLog, document: LogEntryDocument) -> list[Boundary]:
    """Return what the names in `gc/` say, of a store that is the one whose id the log knows.

    That is one more request, for the entry before, beside the listing where requests overlap. Between the look and the
    put a store may still be deleted and made again, with as many entries.
    """
    storage, parent = log.storage, document.parent
    assert parent is not None, "what refers to files comes after a fence"
    acts: list[Callable[[], Any]] = [lambda: log.checksum_of(parent.number), lambda: boundaries(storage)]
    found, said = in_parallel(storage, lambda act: act(), acts, name="commit", small=True)
    if found != parent.xxh3_128:
        # It was collected, or is damaged; or the store is another one.
        log.check_store()
    return said


def _look_after(storage: Storage, number: int) -> tuple[list[Boundary], bool]:
    """Return what the names in `gc/` say after an entry was made, and whether the hint names it by now.

    Where requests overlap the hint is written meanwhile: the entry is there, whatever is found out about it.
    """
    if not overlaps(storage):
        return boundaries(storage), False
    acts: list[Callable[[], list[Boundary]]] = [lambda: boundaries(storage), lambda: _hint(storage, number)]
    return in_parallel(storage, lambda act: act(), acts, name="commit", small=True)[0], True


def _hint(storage: Storage, number: int) -> list[Boundary]:
    """Have `_latest` name an entry; without it the next reader probes a little longer."""
    with suppress(OSError):
        storage.put_hint(HINT_PATH, str(number).encode())
    return []


def _say_committed(url: str, document: LogEntryDocument, size: int) -> None:
    fields = {
        "store": url,
        "log_entry": path_of(document.number),
        "kind": document.kind,
        "checkpoint_id": document.checkpoint_id,
        "writer_epoch": document.writer_epoch,
        "entry_bytes": size,
        "duration_ms": document.committed_at_ms - document.started_at_ms,
    }
    if document.kind == "fence":
        _logger.info("%(store)s: a writer of epoch %(writer_epoch)d begins", fields, extra=fields)
    else:
        text = "%(store)s: %(kind)s %(checkpoint_id)d committed, %(duration_ms)d ms after it began"
        _logger.info(text, fields, extra=fields)


def delete_quietly(storage: Storage, paths: Iterable[str]) -> None:
    """Delete files that nothing refers to; one that cannot be deleted stays behind, for a collection to find."""
    with suppress(OSError), many_deletions(storage):
        for path in paths:
            with suppress(OSError):
                storage.delete(path)


def take_fence(
    log: CommitLog,
    *,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    properties: Mapping[str, Any],
    check: Callable[[CommittedEntry | None], None] | None = None,
) -> tuple[CommittedEntry, CommittedEntry | None]:
    """Append a fence above whatever is in the log; return it, and the entry that it follows.

    `check` refuses an entry that it is not to follow, before anybody is fenced.
    """
    while True:
        newest = log.latest()
        if check is not None:
            check(newest)
        # Losing means that another writer took the number: look again and go above it.
        fence = append_fence(log, newest, new_id=new_id, clock_ms=clock_ms, properties=properties)
        if fence is not None:
            return fence, newest


def append_fence(
    log: CommitLog,
    newest: CommittedEntry | None,
    *,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    properties: Mapping[str, Any],
) -> CommittedEntry | None:
    """Append a fence to `newest`; return None if another writer has taken its number.

    So it has, whatever the storage said, where another writer's entry is found there or above: the fence, which has no
    files, is worth nothing even if it was made.
    """
    fence = next_fence(newest, commit_id=new_id(), now_ms=clock_ms(), properties=properties)
    assert newest is None or fence.writer_epoch > newest.document.writer_epoch, (
        "whoever wrote before finds a higher epoch than its own, and stops"
    )
    try:
        return Commit(log.storage).append(log, fence)
    except CommitUnknownError:
        with suppress(ArrowStateError, OSError):
            found = log.latest()
            others = None if found is None else found.document
            if others is not None and others.number >= fence.number and others.commit_id != fence.commit_id:
                return None
        raise
