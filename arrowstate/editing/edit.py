"""`store.edit()`: rows of a checkpoint are changed by statements, looked at as a plan, and committed as a new one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from arrowstate.editing.committing import EditCommit, new_files, new_inline_bytes
from arrowstate.editing.overlay import Overlay
from arrowstate.editing.plan import EditPlan
from arrowstate.editing.purging import (
    Collected,
    PurgeReport,
    check_tables,
    holders,
    notes,
    rewrite_dead_rows,
    tables_left,
)
from arrowstate.editing.staging import Staging
from arrowstate.editing.statements import Statements, changed_names
from arrowstate.errors import EditConflictError, InvalidInputError
from arrowstate.files.open_files import forget_open_files
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.leases import held_while_read
from arrowstate.query.difference import difference
from arrowstate_formats.documents import LogEntryDocument, encode
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import RunFormat

S = TypeVar("S")
_TEXT_CHARACTERS = 2_000
"""How much of a statement the log keeps."""
_MOST_STATEMENTS = 100
"""How many statements the log keeps."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What an edit begins with."""

    base: LogEntryDocument
    "The checkpoint that is edited."
    newest: CommittedEntry
    "The newest entry of the store."
    content: int
    "The number of the entry that the store holds."


@dataclass(frozen=True, slots=True)
class EditSide(Generic[S]):
    """What an edit needs of the store."""

    commit: EditCommit
    snapshot_of: Callable[[LogEntryDocument], S]
    savepoint_of: Callable[[Overlay, LogEntryDocument, str | Path], S]
    "Writes a checkpoint as a savepoint."
    collect: Callable[[], Collected]
    "Collects all but the newest checkpoint."
    is_newest: Callable[[LogEntryDocument], bool]
    "Whether the store holds nothing newer than a checkpoint."
    savepoints: Callable[[], tuple[str, ...]]
    begin_again: Callable[[], Beginning] | None
    "Returns what an edit of the newest checkpoint begins with now; None where another one was asked for."
    free_tag: Callable[[int, int], str]
    "Returns the name of the tag for a checkpoint, given the id of the one that is made of it."


class Edit(Statements, Generic[S]):
    """Changes to a checkpoint, none of which reaches the store before `commit`. Use it in a `with` block.

    Statements see what those before them did. A verb that raises has done nothing. What is written for the edit is in a
    temporary folder: about as much as `plan().bytes`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://edit-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    >>> total.add_batch(["ann", "bob", "bot-1"], [10, 20, 30])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"shop": [backend]}, properties={"offset": 17})
    >>> with store.edit() as edit:
    ...     _ = edit.update("shop.total", set={"total": "total * 2"}, where="user = 'ann'")
    ...     _ = edit.delete("shop.total", where="user like 'bot-%'")
    ...     edit.properties["offset"] = 16
    ...     print(edit.plan())  # doctest: +ELLIPSIS
    ...     snapshot = edit.commit(comment="ticket 4711")
    checkpoint 1, ... bytes in 0 files would be written
      update shop.total set total = total * 2 where user = 'ann' (1 rows)
      delete from shop.total where user like 'bot-%' (1 rows)
    shop.total: 0 inserted, 1 updated, 1 deleted
    property 'offset': 17 becomes 16
    >>> snapshot.to_arrow("shop.total").sort_by("user").to_pylist()
    [{'user': 'ann', 'total': 20}, {'user': 'bob', 'total': 20}]
    >>> store.rollback("before-edit-2").properties
    {'offset': 17}
    """

    def __init__(
        self,
        side: EditSide[S],
        beginning: Beginning,
        *,
        to: str | Path | None,
        format: RunFormat,
        folder: str | Path | None,
    ) -> None:
        self._to = to
        self._side = side
        self._format: RunFormat = format
        self._folder = folder
        self._held = ExitStack()
        super().__init__(self._staging_of(beginning))

    def _staging_of(self, beginning: Beginning) -> Staging:
        """Return a checkpoint that is as it was, to be changed; a lease holds what it was made of."""
        commit = self._side.commit
        self._content = beginning.content
        self._started_at_ms = commit.clock_ms()
        with ExitStack() as held:
            held.enter_context(
                held_while_read(
                    commit.storage, beginning.base, holder="an edit", clock_ms=commit.clock_ms, new_id=commit.new_id
                )
            )
            overlay = Overlay(commit.storage, self._folder)
            held.callback(overlay.close)
            self._held = held.pop_all()
        return Staging(
            overlay,
            commit.store_id,
            beginning.base,
            beginning.newest,
            format=self._format,
            clock_ms=commit.clock_ms,
            new_id=commit.new_id,
        )

    def __repr__(self) -> str:
        return f"<Edit of checkpoint {self._base.checkpoint_id} of {self._side.commit.storage.url}>"

    def __enter__(self) -> Edit[S]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is not committed."""
        self._is_open = False
        self._held.close()

    def plan(self) -> EditPlan:
        """Return what a commit would change.

        Only rows are read that are live before and not after, or the other way round.

        Returns
        -------
        EditPlan
            The statements; by state how many rows would be inserted, updated and deleted; what would be written, in
            bytes. `sample` has rows.
        """
        self._check_open()
        entry = self._staging.entry
        files = new_files(self._staging.overlay, entry)
        return EditPlan(
            checkpoint_id=self._base.checkpoint_id or 0,
            statements=tuple(self._statements),
            difference=difference(self._staging.overlay, self._base, entry, times=True),
            operator_states=tuple(_changed_operator_states(self._base, entry)),
            properties=_changed_properties(self._base.properties, self.properties),
            bytes=sum(files.values()) + new_inline_bytes(self._staging.overlay, self._base, entry),
            files=len(files),
        )

    def commit(self, *, comment: str | None = None, to: str | Path | None = None, retries: int = 0) -> S:
        """Commit the checkpoint, as the newest of the store behind a fence; or write it as a savepoint.

        Every writer opened before is fenced: stop the job first, and start it again from the new checkpoint. The
        checkpoint that was edited gets the tag `before-edit-<id>` with the id of the new one, for `rollback`. The fence
        keeps in its properties what was done. Where nothing has changed, nothing is committed.

        Parameters
        ----------
        comment
            Why, for those who look at the log.
        to
            The savepoint to write instead, as in `StateStore.savepoint`: then the store stays as it is, and nobody is
            fenced.
        retries
            How often the edit is planned again if somebody committed meanwhile, 0 or more: its statements are done
            again, in their order, on the checkpoint that is the newest then. Rows and parameters that were given are
            given again. Not planned again is an edit with rows, tables, keys or parameters that were given after its
            `snapshot` was read, for they may be made of what was read; and one that changed a property which the other
            checkpoint changed too. A text of SQL is taken to be none of these.

        Returns
        -------
        Snapshot
            The checkpoint or savepoint; the checkpoint that was edited where nothing has changed.

        Raises
        ------
        EditConflictError
            If somebody committed to the store meanwhile, or opened it to write, after all retries; or if the edit is
            not to be planned again, which `not_again` says. Nothing of the edit was committed.
        InvalidInputError
            If the properties are not JSON, or there is something at the place of the savepoint; if retries are asked
            for with a savepoint, or of an edit that was begun with a checkpoint of the caller's choice; or if a
            statement is refused when it is done again.
        CollectedError, StorageError, StorageFullError
            If a collection came in between, or the storage failed; nothing was committed.
        CommitUnknownError
            If it cannot be told whether it was committed.
        """
        place = self._to if to is None else to
        retries = check_integer("retries", retries, 0)
        if retries and (place is not None or self._side.begin_again is None):
            raise InvalidInputError(
                "retries are of edits of the newest checkpoint that are committed to the store: a savepoint has no "
                "conflicts, and an edit of an older checkpoint takes the place of what came after it"
            )
        for left in range(retries, -1, -1):
            try:
                return self._committed(place, comment)
            except EditConflictError as error:
                if not left:
                    raise
                self._plan_again(error)
        raise AssertionError("the last try returns or raises")

    def _plan_again(self, conflict: EditConflictError) -> None:
        """Do the statements again on the newest checkpoint; nothing is planned any more if one fails."""
        assert self._side.begin_again is not None, "only such an edit is tried again"
        beginning = self._side.begin_again()
        why_not = self._why_not_again(beginning.base.properties)
        if why_not is not None:
            raise EditConflictError(conflict.edited, conflict.newest, conflict.is_fenced, why_not) from conflict
        self._held.close()
        try:
            self._do_again(self._staging_of(beginning))
        except BaseException:
            self.close()
            raise

    def _committed(self, place: str | Path | None, comment: str | None) -> S:
        entry = self._entry()
        if place is not None:
            if comment is not None:
                raise InvalidInputError("a comment is kept in the log of the store, and a savepoint is not in it")
            return self._side.savepoint_of(self._staging.overlay, entry, place)
        if entry is self._base:
            return self._side.snapshot_of(entry)
        tag = self._side.free_tag(self._base.checkpoint_id or 0, entry.checkpoint_id or 0)
        return self._side.snapshot_of(self._commit(entry, tag, comment))

    def purge(self, *, comment: str | None = None, checked: Collection[str] = ()) -> PurgeReport:
        """Commit as `commit` does, and leave no deleted row in a file.

        Files with rows that are gone, by this edit or before, or that have expired, are written again without them; the
        checkpoints before are collected, and there is no tag and no way back. Local copies of deleted files leave the
        cache of the storage. The cost is that of the rows of these files, of the times of update of states with a time
        to live, and of reading the log and the manifests of what is kept. What the fence keeps of the statements is how
        many rows they changed, for their text may name what is to go.

        Parameters
        ----------
        comment
            Why, for those who look at the log. Do not name in it what is to go.
        checked
            Output tables, dead letters and rows that a sink has not had yet, as `<uid>` or `<uid>.<state>`, that hold
            nothing of what is to go, for you have looked through them: the report leaves them out.

        Returns
        -------
        PurgeReport
            What was written again and deleted; and what may still hold what is gone, in the store and elsewhere.

        Raises
        ------
        InvalidInputError
            If `checked` names what is no such table; nothing was committed.
        EditConflictError
            As for `commit`, and so are the other errors. If the collection fails, the checkpoint is committed: purge
            once more.
        """
        self._check_open()
        if self._to is not None:
            raise InvalidInputError("a purge is of a store, and this edit is to be a savepoint: begin one without `to`")
        check_tables(self._staging.overlay, self._staging.entry, checked)
        rewritten = rewrite_dead_rows(self._staging)
        entry = self._entry()
        if entry is self._base and not self._side.is_newest(entry):
            # What is newer would stay in its place.
            entry = self._staging.entry
        if entry is not self._base:
            entry = self._commit(entry, None, comment, purged=True)
        # Its own lease would keep what is to go.
        self.close()
        collected = self._side.collect()
        # Local copies that this process has open are on the disk until it lets go of them.
        forget_open_files()
        storage = self._side.commit.storage
        return PurgeReport(
            checkpoint_id=entry.checkpoint_id or 0,
            rewritten=len(rewritten),
            deleted=collected.deleted,
            deleted_bytes=collected.deleted_bytes,
            held_by=tuple(holders(storage, entry, collected.kept)),
            savepoints=self._side.savepoints(),
            unreferenced=collected.unreferenced,
            tables=tuple(tables_left(storage, entry, checked)),
            notes=tuple(notes(collected.fences)),
            imported_from=collected.imported_from,
        )

    def _entry(self) -> LogEntryDocument:
        """Return the checkpoint to commit: the one that is edited itself where nothing has changed."""
        self._check_open()
        entry = self._staging.entry
        if entry.operators == self._base.operators and self.properties == self._base.properties:
            return self._base
        entry = msgspec.structs.replace(entry, properties=copy.deepcopy(self.properties))
        # What no reader takes is refused before anything is written.
        encode(entry)
        return entry

    def _commit(
        self, entry: LogEntryDocument, tag: str | None, comment: str | None, *, purged: bool = False
    ) -> LogEntryDocument:
        said: dict[str, Any] = {
            "edited_from": self._base.checkpoint_id,
            "statements": [
                {"rows": item.rows} if purged else {"text": item.text[:_TEXT_CHARACTERS], "rows": item.rows}
                for item in self._statements[:_MOST_STATEMENTS]
            ],
        }
        if len(self._statements) > _MOST_STATEMENTS:
            said["further_statements"] = len(self._statements) - _MOST_STATEMENTS
        said |= {} if comment is None else {"comment": comment}
        said |= {"purged": True} if purged else {}
        committed = self._side.commit(
            self._staging.overlay,
            self._base,
            self._content,
            entry,
            tag=tag,
            audit=said,
            started_at_ms=self._started_at_ms,
        )
        self._is_open = False
        return committed


def _changed_operator_states(before: LogEntryDocument, after: LogEntryDocument) -> Iterator[str]:
    was = {(item.uid, state.name): state for item in before.operators for state in item.operator_states}
    now = {(item.uid, state.name): state for item in after.operators for state in item.operator_states}
    for uid, name in {**was, **now}:
        if was.get((uid, name)) != now.get((uid, name)):
            yield f"{uid}.{name}"


def _changed_properties(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    changed = changed_names(before, after)
    return {name: (before.get(name), after.get(name)) for name in {**before, **after} if name in changed}
