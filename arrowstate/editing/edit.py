"""`store.edit()`: rows of a checkpoint are changed by statements, looked at as a plan, and committed as a new one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.editing.committing import commit_edit, new_files, new_inline_bytes
from arrowstate.editing.forms import UPDATED_AT, Rows
from arrowstate.editing.overlay import Overlay
from arrowstate.editing.plan import EditPlan, Statement
from arrowstate.editing.purging import (
    PurgeReport,
    check_tables,
    collect_all,
    holders,
    notes,
    rewrite_dead_rows,
    savepoints_in,
    tables_left,
)
from arrowstate.editing.script import run_script
from arrowstate.editing.staging import Staging
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError, EditConflictError, InvalidInputError
from arrowstate.files.notes import check_no_rows_kept, with_uid
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.output_tables import BATCH_SUFFIX
from arrowstate.files.reading import find_operator, find_state
from arrowstate.files.savepoint import open_savepoint_place, recorded_savepoint
from arrowstate.log.choosing import CheckpointReference, choose_checkpoint
from arrowstate.log.collected import advise
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, content_of
from arrowstate.log.leases import held_while_read
from arrowstate.publish.publication import erase_published
from arrowstate.query.catalog import SqlName, quoted, resolve, sql_names
from arrowstate.query.difference import changed_properties, difference
from arrowstate.query.duckdb.sql_types import shown_table
from arrowstate.query.reader import SnapshotReader
from arrowstate.schema.descriptors import AggregatingStateDescriptor
from arrowstate.schema.keys import key_columns
from arrowstate.schema.layout import descriptor_of, key_schema_of
from arrowstate.schema.row_streams import lasting_tables, read_rows
from arrowstate.storage.base import Storage
from arrowstate.table.columns import canonical_floats, columns_equal
from arrowstate_formats.documents import LogEntryDocument, ParentDocument, encode
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import RunFormat

Params: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
Given: TypeAlias = Any
"""A query, or rows: what `read_rows` takes, or a table of Arrow."""

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
_TEXT_CHARACTERS = 2_000
"""How much of a statement the log keeps."""
_MOST_STATEMENTS = 100
"""How many statements the log keeps."""
_ELEMENTS = "_elements"
"""The name of the elements of an operator state in the query of a statement."""


class _Beginning(Struct, frozen=True):
    """What an edit begins with."""

    base: CommittedEntry
    "The checkpoint that is edited."
    newest: CommittedEntry
    "The newest entry of the store."
    content: ParentDocument
    "The entry whose content the store holds."


def _waits_its_turn(verb: Callable[Concatenate[Edit[S], P], R]) -> Callable[Concatenate[Edit[S], P], R]:
    """Make a verb of an edit wait until no other thread is in one."""

    @wraps(verb)
    def run(self: Edit[S], /, *arguments: P.args, **named: P.kwargs) -> R:
        with self._turn:
            return verb(self, *arguments, **named)

    return run


class Edit(Generic[S]):
    """Changes to a checkpoint; the store stays as it is until `commit`. Use it in a `with` block.

    A statement sees the effect of the statements before it. A verb that raises has changed nothing. Several threads may
    use one edit: their statements are done one after another. The edit keeps its files in a temporary folder: about
    `plan().bytes`.

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
        storage: Storage,
        store_id: str,
        *,
        checkpoint: CheckpointReference | None,
        to: str | Path | None,
        format: RunFormat,
        folder: str | Path | None,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
        snapshot: Callable[[Storage, str, LogEntryDocument], S],
    ) -> None:
        self._storage = storage
        self._store_id = store_id
        self._checkpoint = checkpoint
        self._to = to
        self._format: RunFormat = format
        self._folder = folder
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._snapshot_of = snapshot
        self._log = CommitLog(storage, store_id=store_id)
        self._held = ExitStack()
        self._done: list[_Done] = []
        self._was_read = False
        self._is_open = True
        # A verb that calls another one has it already.
        self._turn = threading.RLock()
        self._begin(self._beginning())

    def _beginning(self) -> _Beginning:
        """Return the checkpoint that is edited, the newest where none was asked for, and what the store holds."""
        try:
            history = self._log.history()
            if self._checkpoint is None:
                base = next(history.checkpoints(), None)
            else:
                base = self._log.get(choose_checkpoint(self._storage, self._checkpoint, log=self._log).number)
        except CorruptDataError as error:
            advise(error)
            raise
        content = content_of(history.newest)
        if base is None or history.newest is None or content is None:
            raise CheckpointNotFoundError(None, [])
        return _Beginning(base, history.newest, content)

    def _begin(self, beginning: _Beginning) -> None:
        """Begin with a checkpoint that is as it was, to be changed; a lease holds what it was made of."""
        self._begun = beginning
        self._started_at_ms = self._clock_ms()
        with ExitStack() as held:
            held.enter_context(
                held_while_read(
                    self._storage, beginning.base, holder="an edit", clock_ms=self._clock_ms, new_id=self._new_id
                )
            )
            overlay = Overlay(self._storage, self._folder)
            held.callback(overlay.close)
            self._held = held.pop_all()
        self._staging = Staging(
            overlay,
            self._store_id,
            beginning.base.document,
            beginning.newest,
            format=self._format,
            clock_ms=self._clock_ms,
            new_id=self._new_id,
        )
        self._statements: list[Statement] = []
        # What statements alone make of the properties of the checkpoint.
        self._stated: dict[str, Any] = copy.deepcopy(self._base.properties)
        self.properties: dict[str, Any] = copy.deepcopy(self._base.properties)
        """What the checkpoint will have as its properties, for instance source offsets: JSON values, to be changed."""

    def __repr__(self) -> str:
        return f"<Edit of checkpoint {self._base.checkpoint_id} of {self._storage.url}>"

    def __enter__(self) -> Edit[S]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @_waits_its_turn
    def close(self) -> None:
        """Give up what is not committed."""
        self._is_open = False
        self._held.close()

    @property
    def _base(self) -> LogEntryDocument:
        return self._staging.base

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint that is edited; a commit with retries may change it."""
        return self._base.checkpoint_id or 0

    @property
    def snapshot(self) -> SnapshotReader:
        """The checkpoint as edited so far: for queries, lookups and comparisons.

        Rows and parameters that you pass after using it may come from rows that you read there, so `commit` does not
        plan them again.
        """
        with self._turn:
            self._was_read = True
            return self._snapshot()

    def _snapshot(self) -> SnapshotReader:
        self._check_open()
        staging = self._staging
        return SnapshotReader(staging.overlay, staging.store_id, staging.entry, clock_ms=staging.clock_ms)

    # Rows

    def update(
        self,
        state: str | tuple[str, str],
        *,
        set: Mapping[str, Any],
        where: str | None = None,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        touch: bool = False,
    ) -> int:
        """Set columns in the rows for which a condition holds.

        Accumulators of reducing and aggregating states are set, not added to. `_seq` names an element of a list.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both; timers are states such as `<uid>.timers_event_time`. It may be
            an operator state.
        set
            By column an expression in DuckDB's SQL over the columns of the row, or a number, a bool or None. If a
            column of the key, a namespace, a user key or a timestamp is set, the row moves.
        where
            A condition in DuckDB's SQL; all rows without it. One that limits the key to values costs a lookup.
        params
            Values for `?` or `$name`; those in `set` come first.
        touch
            In a state with a time to live: whether rows count as updated now; otherwise they keep their time.

        Returns
        -------
        int
            How many rows were changed.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state.
        InvalidInputError
            If there is no such column, DuckDB refuses an expression, two rows would have one key and entry, or the
            column is part of a sketch.
        NullKeyError, ValueTypeError
            If a value does not fit its column.
        """
        given: Any = copy.copy(set)
        params = copy.copy(params)

        def done() -> Statement:
            name = self._target(state)
            if not isinstance(given, Mapping) or not given:
                raise InvalidInputError(f"set names at least one column and what it becomes, got {given!r}")
            assigned, condition = _parsed(given, where)
            said = ", ".join(f"{column} = {value}" for column, value in given.items())
            text = f"update {name.uid}.{name.state} set {said}"  # noqa: S608 (for people)
            text += "" if where is None else f" where {where}"
            return Statement(text, self._update(name, assigned, condition, params, touch=touch))

        return self._do(done, has_values=bool(params))

    def _update(
        self, name: SqlName, assigned: Mapping[str, str], condition: str, params: Params, *, touch: bool
    ) -> int:
        form = self._staging.form(name)
        _check_known(form.name, assigned, [item for item in form.columns if item not in form.sequence])
        self._check_no_sketch(name, assigned)
        moves = [column for column in assigned if column in (*form.key, *form.entry)]
        # A row that moves is written whole.
        beside = [column for column in form.values if moves and column not in assigned]
        read = [*form.identity, *beside, *(form.updated_at if UPDATED_AT not in assigned else [])]
        made = [f"({value}) as {quoted(f'_set_{number}')}" for number, value in enumerate(assigned.values())]
        kept = [f"{quoted(column)} as {quoted(f'_was_{number}')}" for number, column in enumerate(read)]
        # The values come first, so that parameters are counted from them.
        table = self._select(name, [*made, *kept], condition, params)
        given = {column: table.column(f"_set_{number}") for number, column in enumerate(assigned)}
        was = {column: table.column(f"_was_{number}") for number, column in enumerate(read)}
        if touch and form.updated_at:
            was[UPDATED_AT] = pa.chunked_array([pa.nulls(table.num_rows, pa.int64())])
        rows = form.rows(pa.table({**was, **given}))
        if moves:
            gone = form.rows(pa.table({column: was[column] for column in form.identity}), identity_only=True)
            self._staging.change_rows(name, gone, _at_the_end(gone, rows), "insert")
        else:
            self._staging.change_rows(name, None, rows)
        return table.num_rows

    def delete(
        self,
        state: str | tuple[str, str],
        *,
        where: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
    ) -> int:
        """Delete the rows for which a condition holds; `where="true"` deletes all.

        Parameters and errors are those of `update`.

        Returns
        -------
        int
            How many rows were deleted.
        """
        params = copy.copy(params)

        def done() -> Statement:
            name = self._target(state)
            _, condition = _parsed({}, where, needed=True)
            form = self._staging.form(name)
            table = self._select(name, [quoted(column) for column in form.identity], condition, params)
            self._staging.change_rows(name, form.rows(table, identity_only=True), None)
            return Statement(f"delete from {name.uid}.{name.state} where {where}", table.num_rows)  # noqa: S608

        return self._do(done, has_values=bool(params))

    def upsert(
        self,
        state: str | tuple[str, str],
        rows: Given,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Write rows; a row replaces the existing row with the same key and entry, if there is one.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        rows
            A query in DuckDB's SQL; or a table, a frame of Polars or pandas, a dataset, a RecordBatchReader, a relation
            of DuckDB, anything with the PyCapsule protocol, or an iterator of record batches, which is read once. They
            have the columns that `to_arrow` returns. If `_seq` of a list is missing or null, the element is appended.
            If `_updated_at` of a state with a time to live (in milliseconds) is, the row counts as updated now.
        params, tables
            Values and tables for the query, as in `SnapshotReader.sql`.

        Returns
        -------
        int
            How many rows were written.

        Raises
        ------
        InvalidInputError
            If columns are missing or unknown, or two rows have one key and entry; other errors as for `update`.
        """
        return self._write(state, rows, "upsert", params, tables)

    def insert(
        self,
        state: str | tuple[str, str],
        rows: Given,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Write new rows; a row whose key and entry exist already is refused. The rest is as for `upsert`.

        Returns
        -------
        int
            How many rows were written.
        """
        return self._write(state, rows, "insert", params, tables)

    def delete_key(self, operator: str, keys: Any) -> int:
        """Delete some keys from all states of an operator: rows in all namespaces, windows and timers.

        Parameters
        ----------
        operator
            Its uid.
        keys
            An Arrow array or a sequence of the key's type; for a key of several columns a RecordBatch or StructArray.

        Returns
        -------
        int
            How many rows there were.

        Raises
        ------
        OperatorNotFoundError
            If there is no such operator.
        KeyTypeError, NullKeyError
            If a key does not fit.
        """
        self._check_open()
        schema = self._key_of(operator)
        columns = key_columns(keys, schema)
        given = pa.RecordBatch.from_arrays(columns, schema=schema)
        return self._do(lambda: self._delete_keys(operator, given), has_values=True)

    def _delete_keys(self, operator: str, keys: pa.RecordBatch) -> Statement:
        found = find_operator(self._staging.entry, operator)
        columns = [canonical_floats(column) for column in key_columns(keys, self._key_of(operator))]
        before = sum(found.live_rows(state.name) for state in found.states)
        self._staging.clear_keys(operator, columns)
        after = find_operator(self._staging.entry, operator)
        rows = before - sum(after.live_rows(state.name) for state in after.states)
        return Statement(f"delete {len(columns[0])} keys of {operator}", rows)

    def _key_of(self, operator: str) -> pa.Schema:
        found = find_operator(self._staging.entry, operator)
        if not found.key:
            raise InvalidInputError(f"operator {operator!r} has operator state only, which has no keys")
        return key_schema_of(found.key)

    def _write(
        self,
        state: str | tuple[str, str],
        rows: Given,
        rule: Literal["insert", "upsert"],
        params: Params,
        tables: Mapping[str, Any],
    ) -> int:
        self._check_open()
        given = rows if isinstance(rows, str) else read_rows(rows)
        params, tables = copy.copy(params), lasting_tables(tables)

        def done() -> Statement:
            name = self._target(state)
            if isinstance(given, str):
                table, source = self._fetched(given, params, tables), given
            else:
                table, source = given, "from a table"
            form = self._staging.form(name)
            form.check_columns(table.column_names)
            written = form.rows(table)
            self._staging.change_rows(name, None, written, rule)
            return Statement(f"{rule} into {name.uid}.{name.state} {source}", len(written))

        return self._do(done, has_values=not isinstance(given, str) or bool(params) or bool(tables))

    def execute(self, script: str, *, tables: Mapping[str, Any] = MappingProxyType({})) -> int:
        """Run a script of SQL with UPDATE, DELETE, INSERT, MERGE and other statements, and keep its changes of states.

        Each state that the script names is copied into a table of DuckDB with the columns of `to_arrow`, for a list
        with `_seq`, and with `_updated_at` if it has a time to live. Key and entry are the primary key, if DuckDB has
        one for their types. `counter.clicks at (version => 41)` reads a state of another checkpoint, and
        `arrowstate.changes(...)` its changes, as in `SnapshotReader.sql`. Other names are those of `tables`, and of
        tables that the script makes, which are not kept. New elements of a list have no `_seq`, and new rows need no
        `_updated_at`.

        Parameters
        ----------
        script
            Statements, each ended by `;`. They run in one transaction.
        tables
            Other tables, by name: whatever `upsert` takes as rows. Streams are read once, before the script runs.

        Returns
        -------
        int
            How many rows of states differ after it.

        Raises
        ------
        InvalidInputError
            If DuckDB refuses a statement; the message says which. Nothing is changed then, nor after any other error.
        """
        self._check_open()
        tables = lasting_tables(tables)
        return self._do(lambda: run_script(self._staging, self._snapshot(), script, tables), has_values=bool(tables))

    # States and operators

    def drop_state(self, operator: str, state: str) -> None:
        """Drop a state with all its rows; it may be an operator state. No row is written again.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state.
        """
        text = f"drop state {operator}.{state}"
        self._do_documents(text, lambda: self._staging.change_states(operator, drop=[state]))

    def rename_state(self, operator: str, state: str, new: str) -> None:
        """Give a state another name. Only rows of operator state are written again.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError, InvalidInputError
            If there is no such state, or the name is taken or none.
        """
        text = f"rename state {operator}.{state} to {new}"
        self._do_documents(text, lambda: self._staging.change_states(operator, rename={state: new}))

    def drop_operator(self, operator: str) -> None:
        """Drop an operator with all its states; OperatorNotFoundError if there is none."""
        self._do_documents(f"drop operator {operator}", lambda: self._staging.drop_operator(operator))

    def rename_operator(self, operator: str, new: str) -> None:
        """Give an operator another uid, also its output of the last micro-batch. No row is written again.

        Raises
        ------
        OperatorNotFoundError, InvalidInputError
            If there is no such operator, the uid is taken or none, or a job keeps rows under it for a sink.
        """
        text = f"rename operator {operator} to {new}"
        self._do_documents(text, lambda: self._rename_operator(operator, new))

    def _rename_operator(self, operator: str, new: str) -> None:
        check_no_rows_kept(self.properties, operator)
        before, properties, stated = self._staging.entry, self.properties, self._stated
        beside = [item.uid for item in before.operators if item.uid == f"{operator}{BATCH_SUFFIX}"]
        try:
            for uid in (operator, *beside):
                renamed = new + uid.removeprefix(operator)
                self._staging.rename_operator(uid, renamed)
                properties, stated = with_uid(properties, uid, renamed), with_uid(stated, uid, renamed)
        except BaseException:
            self._staging.entry = before
            raise
        self.properties, self._stated = properties, stated

    def change_max_parallelism(self, operator: str, max_parallelism: int) -> None:
        """Give an operator another number of key groups, 1 to 32768. No row is written again.

        Raises
        ------
        OperatorNotFoundError, InvalidInputError
            If there is no such operator, or it cannot have so many.
        """
        text = f"change max parallelism of {operator} to {max_parallelism}"
        self._do_documents(text, lambda: self._staging.change_max_parallelism(operator, max_parallelism))

    # What is done

    @_waits_its_turn
    def plan(self) -> EditPlan:
        """Return what a commit would change.

        It reads only rows that are live in just one of the two: before or after the edit.

        Returns
        -------
        EditPlan
            The statements; for each state how many rows would be inserted, updated and deleted; and the bytes that
            would be written. `sample` has rows.
        """
        self._check_open()
        entry = self._staging.entry
        files = new_files(self._staging.overlay, entry)
        return EditPlan(
            checkpoint_id=self._base.checkpoint_id or 0,
            statements=tuple(self._statements),
            difference=difference(self._staging.overlay, self._base, entry, times=True),
            operator_states=tuple(_changed_operator_states(self._base, entry)),
            properties=changed_properties(self._base.properties, self.properties),
            bytes=sum(files.values()) + new_inline_bytes(self._staging.overlay, self._base, entry),
            files=len(files),
        )

    @_waits_its_turn
    def commit(self, *, comment: str | None = None, to: str | Path | None = None, retries: int = 0) -> S:
        """Commit the checkpoint, as the newest of the store behind a fence; or write it as a savepoint.

        Earlier writers are fenced: stop the job first, and start it again from the new checkpoint. The checkpoint that
        was edited gets the tag `before-edit-<id>` with the id of the new one, for `rollback`. The properties of the
        fence describe the edit. If nothing has changed, nothing is committed.

        Parameters
        ----------
        comment
            Why, for those who look at the log.
        to
            The savepoint to write instead, as in `StateStore.savepoint`: then the store stays as it is, and nobody is
            fenced.
        retries
            How often the edit is planned again if somebody committed meanwhile, 0 or more: its statements are run
            again, in their order, on the newest checkpoint, with the same rows and parameters. An edit is not planned
            again if rows, tables, keys or parameters were passed after its `snapshot` was used, for they may come from
            rows that were read there, or if it changed a property that the other commit changed too. Text of SQL does
            not count as such a parameter.

        Returns
        -------
        Snapshot
            The checkpoint or savepoint; the checkpoint that was edited if nothing has changed.

        Raises
        ------
        EditConflictError
            If somebody committed to the store meanwhile, or opened it to write, after all retries; or if the edit
            cannot be planned again, for the reason in `not_again`. Nothing of the edit was committed.
        InvalidInputError
            If the properties are not JSON, or there is something at the place of the savepoint; if retries are asked
            for with a savepoint, or of an edit that was begun with a checkpoint of the caller's choice; or if a
            statement is refused when it is done again.
        CollectedError, StorageError, StorageFullError
            If a collection came in between, or the storage failed; nothing was committed.
        StoreNotFoundError
            If the store was deleted, or another one was made at its place; nothing was committed.
        CommitUnknownError
            If it is unknown whether it was committed.
        """
        place = self._to if to is None else to
        retries = check_integer("retries", retries, 0)
        if retries and (place is not None or self._to is not None or self._checkpoint is not None):
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
        beginning = self._beginning()
        why_not = self._why_not_again(beginning.base.document.properties)
        if why_not is not None:
            raise EditConflictError(conflict.edited, conflict.newest, conflict.is_fenced, why_not) from conflict
        self._held.close()
        try:
            self._do_again(beginning)
        except BaseException:
            self.close()
            raise

    def _committed(self, place: str | Path | None, comment: str | None) -> S:
        entry = self._entry()
        if place is not None:
            if comment is not None:
                raise InvalidInputError("a comment is kept in the log of the store, and a savepoint is not in it")
            staging, target = self._staging, open_savepoint_place(self._storage, place, create=True)
            store_id, written = recorded_savepoint(
                staging.overlay,
                self._store_id,
                entry,
                target,
                format="parquet",
                new_id=self._new_id,
                clock_ms=self._clock_ms,
            )
            return self._snapshot_of(target, store_id, written)
        return self._snapshot_of(
            self._storage, self._store_id, entry if entry is self._base else self._commit(entry, comment)
        )

    @_waits_its_turn
    def purge(self, *, comment: str | None = None, checked: Collection[str] = ()) -> PurgeReport:
        """Commit as `commit` does, and remove deleted rows from the files too.

        Files with rows that were deleted, by this edit or before, or that have expired, are written again without these
        rows. Earlier checkpoints are collected; there is no tag and no way back. Local copies of deleted files are
        deleted from the cache of the storage. It reads and writes the rows of these files, and reads the update times
        of states with a time to live, the log, and the manifests of the kept checkpoints. The fence keeps only how many
        rows the statements changed, because their text may name the purged data.

        Parameters
        ----------
        comment
            The reason, for people who look at the log. Do not name the purged data in it.
        checked
            Output tables, dead letters and pending rows of a sink, as `<uid>` or `<uid>.<state>`, that you have looked
            through and that hold nothing to purge: the report leaves them out.

        Returns
        -------
        PurgeReport
            The files that were written again and deleted; and the places, in the store and elsewhere, that may still
            hold purged rows.

        Raises
        ------
        InvalidInputError
            If `checked` names something else; nothing was committed.
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
        if entry is self._base and self._begun.content.number != entry.number:
            # What is newer would stay in its place.
            entry = self._staging.entry
        if entry is not self._base:
            entry = self._commit(entry, comment, purged=True)
        # Its own lease would keep what is to go.
        self.close()
        # Before the collection: the tags of publications would keep what is to go.
        published = erase_published(self._storage, self._store_id, clock_ms=self._clock_ms, new_id=self._new_id)
        collected = collect_all(self._storage, clock_ms=self._clock_ms, new_id=self._new_id)
        # Local copies that this process has open are on the disk until it lets go of them.
        forget_open_files()
        storage = self._storage
        return PurgeReport(
            checkpoint_id=entry.checkpoint_id or 0,
            rewritten=len(rewritten),
            deleted=collected.deleted,
            deleted_bytes=collected.deleted_bytes,
            held_by=tuple(holders(storage, entry, collected.kept)),
            savepoints=savepoints_in(storage),
            unreferenced=collected.unreferenced,
            tables=tuple(tables_left(storage, entry, checked)),
            notes=tuple(notes(collected.fences)),
            published=published,
            imported_from=collected.imported_from,
        )

    def _entry(self) -> LogEntryDocument:
        """Return the checkpoint to commit: the one that is edited itself where nothing has changed."""
        self._check_open()
        entry = self._staging.entry
        if entry.operators == self._base.operators and self.properties == self._base.properties:
            return self._base
        entry = msgspec.structs.replace(entry, properties=copy.deepcopy(self.properties))
        # What no reader takes is refused before anything is written; the rest of the entry is not the caller's.
        encode(msgspec.structs.replace(entry, operators=[]))
        return entry

    def _commit(self, entry: LogEntryDocument, comment: str | None, *, purged: bool = False) -> LogEntryDocument:
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
        committed = commit_edit(
            self._storage,
            self._staging.overlay,
            self._begun.base,
            self._begun.newest,
            entry,
            store_id=self._store_id,
            keeps_base=not purged,
            properties=said,
            started_at_ms=self._started_at_ms,
            clock_ms=self._clock_ms,
            new_id=self._new_id,
        )
        self._is_open = False
        return committed

    # How

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError("the edit is closed; begin another with store.edit()")

    def _do(self, what: Callable[[], Statement], *, has_values: bool) -> int:
        """Do what a statement says; `has_values` says whether it has values of the caller beside its text."""
        with self._turn:
            self._check_open()
            statement = what()
            self._statements.append(statement)
            self._done.append(_Done(what, may_hold_what_was_read=has_values and self._was_read))
        return statement.rows or 0

    def _do_documents(self, text: str, what: Callable[[], None]) -> None:
        def done() -> Statement:
            what()
            return Statement(text, None)

        self._do(done, has_values=False)

    def _do_again(self, beginning: _Beginning) -> None:
        """Do all statements on another checkpoint, and change the properties as they were changed."""
        changed = {name: self.properties.get(name, _GONE) for name in changed_names(self._stated, self.properties)}
        done, self._done = self._done, []
        self._begin(beginning)
        for item in done:
            self._do(item.what, has_values=False)
        for name, value in changed.items():
            if value is _GONE:
                self.properties.pop(name, None)
            else:
                self.properties[name] = value

    def _why_not_again(self, newer: Mapping[str, Any]) -> str | None:
        """Return why the statements cannot be done on a checkpoint with newer properties, None if they can."""
        for item, statement in zip(self._done, self._statements, strict=True):
            if item.may_hold_what_was_read:
                return (
                    f"{statement.text!r} has values given after the edit was read, which may be made of what was read"
                )
        both = changed_names(self._stated, self.properties) & changed_names(self._base.properties, newer)
        return f"the property {min(both)!r} was changed meanwhile" if both else None

    def _target(self, reference: str | tuple[str, str]) -> SqlName:
        """Return the state that is meant; one of operator state and another may have one name."""
        entry = self._staging.entry
        names = sql_names(entry)
        found = [name for name in names if reference in ((name.uid, name.state), f"{name.uid}.{name.state}")]
        if not any(name.is_operator_state for name in found):
            pair = resolve(entry, reference)
            return next(name for name in found if (name.uid, name.state) == pair)
        if len(found) > 1:
            raise InvalidInputError(
                f"{reference!r} fits {' and '.join(repr((name.uid, name.state)) for name in found)}, one of them "
                f"operator state; a script knows them as {' and '.join(name.relation for name in found)}"
            )
        return found[0]

    def _fetched(self, query: str, params: Params, tables: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
        import duckdb

        try:
            return self._snapshot().sql(query, params=params, tables=tables).to_arrow_table()
        except duckdb.Error as error:
            raise InvalidInputError(str(error)) from error

    def _select(self, name: SqlName, columns: Sequence[str], condition: str, params: Params) -> pa.Table:
        relation, tables = name.relation, {}
        if name.is_operator_state:
            # SQL shows the entries of a map for each subtask, and no places of elements.
            relation = _ELEMENTS
            tables = {_ELEMENTS: shown_table(self._staging.operator_state(name).rows())}
        query = f"select {', '.join(columns)} from {quoted(relation)} as {quoted(name.state)}"  # noqa: S608
        return self._fetched(query + condition, params, tables)

    def _check_no_sketch(self, name: SqlName, assigned: Mapping[str, str]) -> None:
        """Refuse to set parts of a sketch, which no expression can make."""
        if name.is_operator_state:
            return
        operator = find_operator(self._staging.entry, name.uid)
        descriptor = descriptor_of(find_state(self._staging.entry, operator, name.state))
        if not isinstance(descriptor, AggregatingStateDescriptor):
            return
        kind = descriptor.accumulator_type
        parts = [field.name for field in kind] if pa.types.is_struct(kind) else []
        if "sketch" in parts and any(column in parts for column in assigned):
            raise InvalidInputError(
                f"{name.uid}.{name.state} holds a sketch with what it sums up ({', '.join(parts)}), which an "
                "expression cannot make; upsert whole rows of another checkpoint, or delete"
            )


class _Done(Struct, frozen=True):
    """A statement, to be done again."""

    what: Callable[[], Statement]
    may_hold_what_was_read: bool
    "Whether it has values that its caller may have made of what the edit held."


_GONE = object()


def changed_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the names of the properties that differ."""
    return {name for name in {**before, **after} if before.get(name, _GONE) != after.get(name, _GONE)}


def _changed_operator_states(before: LogEntryDocument, after: LogEntryDocument) -> Iterator[str]:
    was = {(item.uid, state.name): state for item in before.operators for state in item.operator_states}
    now = {(item.uid, state.name): state for item in after.operators for state in item.operator_states}
    for uid, name in {**was, **now}:
        if was.get((uid, name)) != now.get((uid, name)):
            yield f"{uid}.{name}"


def _parsed(assigned: Mapping[str, Any], where: str | None, *, needed: bool = False) -> tuple[dict[str, str], str]:
    """Return what columns are set to and the condition, as parts of a query in this order."""
    from arrowstate.query.duckdb.preparing import expressions

    given: dict[str, Any] = {
        f"what {column!r} is set to": _as_text(column, value) for column, value in assigned.items()
    }
    if needed or where is not None:
        given["where"] = where
    made = expressions(given)
    condition = f" where ({made[-1]})" if "where" in given else ""
    return dict(zip(assigned, made, strict=False)), condition


def _as_text(column: str, value: Any) -> str:
    """Return what a column is set to as a text of SQL."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and (not np.isfinite(value) or value == 0):
        # As a decimal, which 0.0 is in SQL, a zero has no sign.
        return f"'{value}'::double"
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    raise InvalidInputError(
        f"{column!r} is set to an expression in SQL, such as 'total * 2', or to a number; got {value!r}: name it '?' "
        "and give other values as params=[...]"
    )


def _at_the_end(gone: Rows, rows: Rows) -> Rows:
    """Return rows that replace others, elements of a list that come to another one in their order behind all of it."""
    if rows.sequence is None:
        return rows
    pairs = zip([*gone.key, *gone.entry], [*rows.key, *rows.entry], strict=True)
    stay = np.logical_and.reduce([columns_equal(before, after) for before, after in pairs])
    sequence = pc.if_else(pa.array(stay), rows.sequence, pa.scalar(None, pa.int64()))
    order = np.argsort(rows.sequence.to_numpy(), kind="stable")
    return replace(rows, sequence=sequence).take(order)


def _check_known(name: str, assigned: Mapping[str, str], columns: Sequence[str]) -> None:
    unknown = [column for column in assigned if column not in columns]
    if unknown:
        raise InvalidInputError(f"{name} has no column {unknown[0]!r} to set; it has {', '.join(columns)}")
