"""The commit of a checkpoint: one writer of a store, its fence, and the entry that follows the newest one.

What a writer last knew of the log stands here: the newest entry, the files that it holds, and those that a collection
took. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arrowstate.errors import (
    CollectedError,
    CorruptDataError,
    FencedError,
)
from arrowstate.files.reading import store_key
from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import Content, fitted, list_files, whole_operators, without_unused_schemas
from arrowstate.log.boundary import NewReferences
from arrowstate.log.commit import NOT_COMMITTED, take_fence, written_for_commit
from arrowstate.log.commit_log import CommitLog, refuse_loss, warn_of_loss
from arrowstate.log.entries import CommittedEntry, newest_id, next_checkpoint
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    SubtaskStatisticsDocument,
)


@dataclass(frozen=True, slots=True)
class Needs:
    """The files that a checkpoint refers to."""

    all: set[str]
    written: set[str]
    "Those written for it."
    based_on: int
    "An entry committed before the first of them was written."


class Committer:
    """Commits checkpoints whose files are written.

    Only the newest writer of a store may. Commits wait for each other.
    """

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        *,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
        properties: Mapping[str, Any] | None = None,
        accept_loss: bool = False,
    ) -> None:
        self._storage = storage
        self._store_id = store_id
        self._log = CommitLog(storage, on_loss=warn_of_loss if accept_loss else refuse_loss)
        self.clock_ms = clock_ms
        self.new_id = new_id
        self._lock = threading.Lock()
        self._fenced_by: int | None = None
        # The files of its last checkpoint, which no collection takes while that is the newest entry.
        self._held: set[str] = set()
        # Files that a collection took or may take: nothing refers to them again.
        self._condemned: set[str] = set()
        # The id of a commit of which nobody knows whether it was made; if so, it is that of the newest checkpoint.
        self._unknown_id = 0
        self._newest, before = take_fence(self._log, new_id=new_id, clock_ms=clock_ms, properties=properties or {})
        self._content = self._content_of(before)

    @property
    def store_id(self) -> str:
        """The identity of the store."""
        return self._store_id

    @property
    def store_key(self) -> str:
        """What runs know the store by, see `arrowstate.files.reading.store_key`."""
        return store_key(self._storage, self._store_id)

    @property
    def newest_id(self) -> int:
        """The id of the newest checkpoint that the store may have, 0 if there is none, as far as this writer knows."""
        return max(newest_id(self._newest), self._unknown_id)

    @property
    def content(self) -> Content | CorruptDataError:
        """What the store holds, as far as this writer knows, or why that cannot be told."""
        return self._content

    @property
    def newest_number(self) -> int:
        """The number of the newest log entry, as far as this writer knows."""
        return self._newest.document.number

    @property
    def epoch(self) -> int:
        """The writer's epoch; a newer writer has a higher one."""
        return self._newest.document.writer_epoch

    @property
    def storage(self) -> Storage:
        """The store."""
        return self._storage

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._storage.url

    def commit(
        self,
        operators: Sequence[OperatorDocument],
        *,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        started_at_ms: int,
        checkpoint_id: int | None = None,
        needs: Needs | None = None,
        statistics: Sequence[SubtaskStatisticsDocument] = (),
    ) -> LogEntryDocument:
        """Commit a checkpoint whose files are written, for instance by the tasks of a cluster.

        Where `needs` does not say which files those are, the manifests are read for it. Every file that neither the
        checkpoint before has nor was written for this one is looked for.
        """
        if needs is None:
            operators = whole_operators(self._storage, operators)
            needed = ReferenceReader(self._storage).files(operators)
            needs = Needs(set(needed), set(), self._newest.document.number)
        with self._lock, written_for_commit(self._storage) as lists:
            self._check_not_fenced()
            kept = fitted(
                self._storage,
                operators,
                before=() if isinstance(self._content, CorruptDataError) else self._content.operators,
                condemned=self._condemned,
                new_id=self.new_id,
                paths=lists.paths,
            )
            files = {path for operator in kept for path in list_files(operator)}
            needs = Needs(needs.all | files, needs.written.union(lists.paths), needs.based_on)
            lists.is_tried = True
            committed = self._append(
                kept,
                needs,
                properties=properties or {},
                watermark=watermark,
                started_at_ms=started_at_ms,
                checkpoint_id=checkpoint_id,
                statistics=statistics,
            )
            self._newest, self._held = committed, needs.all
            self._content = Content(self._storage, kept, [without_unused_schemas(item) for item in operators])
            return committed.document

    def _append(self, operators: Sequence[OperatorDocument], needs: Needs, **entry: Any) -> CommittedEntry:
        """Append the entry of a checkpoint above all others of this writer."""
        while True:
            self._check_not_fenced()
            document = next_checkpoint(
                self._newest, operators, commit_id=self.new_id(), now_ms=self.clock_ms(), **entry
            )
            references = NewReferences(
                needs.written, needs.based_on, needs.all - needs.written - self._held, lambda: needs.all
            )
            try:
                committed = self._log.append(document, references)
            except CollectedError as error:
                self._condemned.update(error.paths)
                raise
            except BaseException as error:
                if not isinstance(error, NOT_COMMITTED):
                    self._unknown_id = document.checkpoint_id or 0
                raise
            if committed is not None:
                return committed
            newest = self._log.latest()
            if newest is None:
                # Listings lag behind: some entry took the number.
                continue
            if newest.document.writer_epoch == self.epoch:
                # An earlier commit of this writer, whose outcome nobody could tell, was made: go on after it. What is
                # older is no longer held by being the newest.
                self._newest, self._held = newest, set()
                self._content = self._content_of(newest)
            else:
                self._fenced_by = newest.document.writer_epoch

    def _check_not_fenced(self) -> None:
        if self._fenced_by is not None:
            raise FencedError(self.epoch, self._fenced_by)

    def _content_of(self, newest: CommittedEntry | None) -> Content | CorruptDataError:
        """Return what the store holds by an entry, or why that cannot be told."""
        try:
            entry = None if newest is None else self._log.content(newest)
        except CorruptDataError as error:
            return error
        return Content(self._storage, () if entry is None else entry.operators)
