"""Checkpoints as entries: one that is appended once, and one writer of a store that appends one after another.

`arrowstate.log.commit` has the steps of a commit and says what a failure means. Here an entry is made of the operators
of a checkpoint, and of the files that it refers to. What a writer last knew of the log stands here as well: the newest
entry, the files that it holds, and those that a collection took. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import (
    CollectedError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    StorageError,
    StoreNotFoundError,
)
from arrowstate.files.notes import of_stopped_query
from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import Content, fitted, list_files, whole_operators, without_unused_schemas
from arrowstate.log.boundary import Boundary, NewReferences
from arrowstate.log.collected import ADVICE, taken_by_a_collection
from arrowstate.log.commit import Commit, take_fence
from arrowstate.log.commit_log import CommitLog, refuse_loss, warn_of_loss
from arrowstate.log.entries import CommittedEntry, given_properties, newest_id, next_checkpoint, next_compaction
from arrowstate.process import OwnProcess
from arrowstate.schema.versions import with_ids_taken
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, SubtaskStatisticsDocument


class Needs(Struct, frozen=True):
    """The files that a checkpoint refers to."""

    written: Collection[str]
    "Those written for it, but for lists of subtasks and parts."
    based_on: int
    "The number of an entry committed before the first of them was written; 0 if there was none."
    all: set[str] | None = None
    "All of them, but for those lists; None where the manifests are to be read for it."


def append_checkpoint(
    commit: Commit,
    log: CommitLog,
    parent: CommittedEntry,
    make: Callable[..., LogEntryDocument],
    operators: Sequence[OperatorDocument],
    needs: Needs,
    *,
    before: Sequence[OperatorDocument],
    held: Collection[str] | None = None,
    condemned: Iterable[str] = (),
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    said: Sequence[Boundary] | None = None,
    again: LogEntryDocument | None = None,
) -> CommittedEntry | None:
    """Append a checkpoint to `parent`, the newest entry; return None if another writer has taken its number.

    `make` makes the entry, as `next_checkpoint` does. `operators` are all that it has, `before` those of the checkpoint
    before. `held` are the files that no collection takes while `parent` is the newest entry; None for all that were
    there, if it is a checkpoint. Lists in `condemned` are written anew. `said` is as for `Commit.append`, and `again`
    the checkpoint that is committed again after an entry in doubt.
    """
    uids = [operator.uid for operator in operators]
    if len(set(uids)) < len(uids):
        raise InvalidInputError(f"a checkpoint has each operator once, got {', '.join(sorted(uids))}")
    storage, first = log.storage, len(commit.paths)
    kept = fitted(storage, operators, before=before, condemned=condemned, new_id=new_id, paths=commit.paths)
    lists = commit.paths[first:]
    written = {*needs.written, *lists}
    if needs.all is None:
        everything: Callable[[], Collection[str]] = partial(ReferenceReader(storage).files, kept)
    else:
        everything = needs.all.union(*map(list_files, kept)).copy
    # After a checkpoint of its own a writer knows that it was acknowledged. A fence says nothing of what it repeats,
    # and what a compaction refers to no more may be gone.
    is_held = held is None and parent.document.kind == "checkpoint"
    reused = () if is_held else set(everything()).difference(written, held or ())
    committed = commit.append(
        log,
        make(parent, kept, commit_id=new_id(), now_ms=clock_ms()),
        NewReferences(written, needs.based_on, reused, everything),
        said=said,
        again=None if again is None else partial(_repeated, storage, again, new_id, clock_ms),
    )
    if committed is None:
        commit.discard(lists)
    return committed


def _repeated(
    storage: Storage,
    checkpoint: LogEntryDocument,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
    doubtful: CommittedEntry,
) -> tuple[LogEntryDocument, NewReferences]:
    """Return a checkpoint once more, after an entry in doubt and of the same kind, and the files that it refers to."""
    make: Callable[..., LogEntryDocument]
    if doubtful.document.kind == "compaction":
        make = partial(next_compaction, checkpoint=checkpoint)
    else:
        properties = of_stopped_query(checkpoint.properties, new_id)
        make = partial(next_checkpoint, watermark=checkpoint.watermark, properties=properties)
    document = make(
        doubtful,
        with_given_ids(storage, checkpoint.operators, checkpoint.number),
        commit_id=new_id(),
        started_at_ms=doubtful.document.started_at_ms,
        now_ms=clock_ms(),
    )
    files = set(ReferenceReader(storage).files(checkpoint.operators))
    # The entry in doubt may need none of them, so it holds none.
    return document, NewReferences(reused=files, everything=files.copy)


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


def gone_files(error: BaseException | None) -> frozenset[str]:
    """Return the files that a commit failed for, since they are gone; what is in memory is to be written anew."""
    collected = error if error is None or isinstance(error, CollectedError) else error.__cause__
    return frozenset(collected.paths) if isinstance(collected, CollectedError) else frozenset()


class Committer:
    """Commits checkpoints whose files are written.

    Only the newest writer of a store may, in the process that opened it. Commits wait for each other. After one that
    commits `once` nobody goes on: if its entry is in doubt the checkpoint before is committed again. `known` is the
    newest entry that is known of, and `check` refuses, by an error, the newest entry before its fence is taken.

    With `store_id` a writer whose store was deleted is refused when it begins, by a StoreNotFoundError, and fenced when
    it commits; each commit then reads the entry that it goes on from.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
        properties: Mapping[str, Any] | None = None,
        accept_loss: bool = False,
        known: CommittedEntry | None = None,
        once: bool = False,
        check: Callable[[CommittedEntry | None], None] | None = None,
        store_id: str | None = None,
    ) -> None:
        self._storage = storage
        on_loss = warn_of_loss if accept_loss else refuse_loss
        self._log = CommitLog(storage, on_loss=on_loss, known=known, store_id=store_id)
        self.clock_ms = clock_ms
        self.new_id = new_id
        self._once = once
        self._lock = threading.Lock()
        self._process = OwnProcess()
        self._fenced_by: int | None = None
        # The files of its last checkpoint, which no collection takes while that is the newest entry.
        self._held: Collection[str] = ()
        # Files that a collection took or may take: nothing refers to them again.
        self._condemned: set[str] = set()
        # The id of a commit of which nobody knows whether it was made; if so, it is that of the newest checkpoint.
        self._unknown_id = 0
        self._checkpoint: LogEntryDocument | None
        self._content: Content | CorruptDataError
        self._newest, before = take_fence(
            self._log, new_id=new_id, clock_ms=clock_ms, properties=properties or {}, check=check
        )
        self._find_content(before)

    @property
    def newest_id(self) -> int:
        """The id of the newest checkpoint that the store may have, 0 if there is none, as far as this writer knows."""
        return max(newest_id(self._newest), self._unknown_id)

    @property
    def content(self) -> Content | CorruptDataError:
        """What the store holds, as far as this writer knows, or why that cannot be told."""
        return self._content

    @property
    def newest_checkpoint(self) -> LogEntryDocument | None:
        """The checkpoint that the store holds, as far as this writer knows; None if there is none."""
        if isinstance(self._content, CorruptDataError):
            raise self._content
        return self._checkpoint

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
        files: Commit | None = None,
    ) -> LogEntryDocument:
        """Commit a checkpoint whose files are written, for instance by the tasks of a cluster.

        Where `needs` does not say which files those are, the manifests are read for it. Every file that neither the
        checkpoint before has nor was written for this one is looked for. `files` is the commit for which they were
        written, if they are to be deleted with it.
        """
        self.check_process()
        if needs is None:
            operators = whole_operators(self._storage, operators)
            needed = set(ReferenceReader(self._storage).files(operators))
            needs = Needs((), self._newest.document.number, needed)
        make = partial(
            next_checkpoint,
            properties=properties or {},
            watermark=watermark,
            started_at_ms=started_at_ms,
            checkpoint_id=checkpoint_id,
            statistics=statistics,
        )
        return self._commit(make, operators, needs, files or Commit(self._storage))

    def commit_again(self, operators: Sequence[OperatorDocument], *, properties: Mapping[str, Any]) -> LogEntryDocument:
        """Commit the newest checkpoint once more, with those of its operators and with other properties.

        As a compaction it has the id of the checkpoint, and nothing that the checkpoint has not.
        """
        self.check_process()
        checkpoint = self.newest_checkpoint
        assert checkpoint is not None, "there is a checkpoint to commit again"
        make = partial(
            next_compaction,
            checkpoint=replace(checkpoint, properties=given_properties(properties)),
            started_at_ms=self.clock_ms(),
        )
        needed = self._held or set(ReferenceReader(self._storage).files(operators))
        needs = Needs((), self._newest.document.number, set(needed))
        return self._commit(make, operators, needs, Commit(self._storage))

    def _commit(
        self,
        make: Callable[..., LogEntryDocument],
        operators: Sequence[OperatorDocument],
        needs: Needs,
        files: Commit,
    ) -> LogEntryDocument:
        with self._lock, files as commit:
            try:
                committed = self._append(commit, make, operators, needs)
            except StoreNotFoundError as error:
                raise FencedError(self.epoch, None, self.url) from error
            except CollectedError as error:
                self._condemned.update(error.paths)
                lost = None if commit.entry is not None else self._lost(error.paths)
                if lost is not None:
                    raise lost from error
                raise
            except BaseException:
                if commit.entry is not None:
                    self._unknown_id = commit.entry.checkpoint_id or 0
                raise
            self._newest, self._checkpoint = committed, committed.document
            kept = committed.document.operators
            self._held = (needs.all or set()).union(*map(list_files, kept))
            self._content = Content(self._storage, kept, [without_unused_schemas(item) for item in operators])
            return committed.document

    @property
    def is_here(self) -> bool:
        """Whether this is the process that opened the writer, and not one that was forked from it."""
        return self._process.is_here

    def check_process(self) -> None:
        """Refuse a process that was forked from the one that opened the writer: both would commit with one epoch."""
        self._process.check("a StoreWriter", "open another here, which fences it, or have it commit what you write")

    def _append(
        self,
        commit: Commit,
        make: Callable[..., LogEntryDocument],
        operators: Sequence[OperatorDocument],
        needs: Needs,
    ) -> CommittedEntry:
        """Append the entry of a checkpoint above all others of this writer."""
        while True:
            self._check_not_fenced()
            committed = append_checkpoint(
                commit,
                self._log,
                self._newest,
                make,
                operators,
                needs,
                before=() if self._checkpoint is None else self._checkpoint.operators,
                held=self._held,
                condemned=self._condemned,
                new_id=self.new_id,
                clock_ms=self.clock_ms,
                again=self._checkpoint if self._once else None,
            )
            if committed is not None:
                return committed
            newest = self._log.latest()
            if newest is None:
                # Listings lag behind: some entry took the number.
                continue
            if newest.document.writer_epoch == self.epoch and self._is_before(newest):
                # An earlier commit of this writer, whose outcome nobody could tell, was made: go on after it. What is
                # older is no longer held by being the newest.
                self._newest, self._held = newest, ()
                self._find_content(newest)
            else:
                self._fenced_by = newest.document.writer_epoch

    def _is_before(self, newest: CommittedEntry) -> bool:
        """Whether a later entry goes on from what this writer knows, as far as the log tells after a collection."""
        number = self._newest.document.number + 1
        following = newest if newest.document.number == number else self._log.get(number)
        return following is None or following.document.parent == self._newest.as_parent

    def _lost(self, gone: Iterable[str]) -> StorageError | None:
        """Return the error of a file that the newest checkpoint needs and that no collection took, if there is one."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return None
        with suppress(CorruptDataError, OSError):
            for path in sorted(ReferenceReader(self._storage).files(checkpoint.operators).keys() & set(gone)):
                is_there = self._storage.exists(path)
                if not is_there and taken_by_a_collection(self._storage, path, checkpoint) is None:
                    needed = f"checkpoint {checkpoint.checkpoint_id}, the newest, needs it, and no collection took it"
                    return StorageError(
                        path,
                        f"the file is missing; {needed}: the store is damaged. Nothing was committed; put it back "
                        f"from a copy of the store. {ADVICE}",
                    )
        return None

    def _check_not_fenced(self) -> None:
        if self._fenced_by is not None:
            raise FencedError(self.epoch, self._fenced_by)

    def _find_content(self, newest: CommittedEntry | None) -> None:
        """Find what the store holds by an entry, or why that cannot be told."""
        self._checkpoint = None
        try:
            self._checkpoint = None if newest is None else self._log.content(newest)
            self._content = Content(self._storage, () if self._checkpoint is None else self._checkpoint.operators)
        except CorruptDataError as error:
            self._content = error
