"""What an edit is told: statements over rows, states and operators, each done when it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from arrowstate.checkpoints.notes import check_no_rows_kept, with_uid
from arrowstate.editing.plan import Statement
from arrowstate.editing.script import run_script
from arrowstate.editing.staging import Staging
from arrowstate.editing.verbs import Given, Params, Verbs
from arrowstate.errors import InvalidInputError
from arrowstate.files.output_tables import BATCH_SUFFIX
from arrowstate.files.reading import find_operator
from arrowstate.query.reader import SnapshotReader
from arrowstate.schema.keys import key_columns
from arrowstate.schema.layout import key_schema_of
from arrowstate.schema.row_streams import lasting_tables, read_rows
from arrowstate.table.columns import canonical_floats
from arrowstate_formats.documents import LogEntryDocument


class Statements:
    """Takes statements, each of which sees what those before it did; one that raises has done nothing.

    Parameters
    ----------
    staging
        The checkpoint that they make.
    """

    def __init__(self, staging: Staging) -> None:
        self._done: list[_Done] = []
        self._was_read = False
        self._is_open = True
        self._begin(staging)

    def _begin(self, staging: Staging) -> None:
        self._staging = staging
        self._statements: list[Statement] = []
        # What statements alone make of the properties of the checkpoint.
        self._stated: dict[str, Any] = copy.deepcopy(staging.base.properties)
        self.properties: dict[str, Any] = copy.deepcopy(staging.base.properties)
        """What the checkpoint will have as its properties, for instance source offsets: JSON values, to be changed."""

    @property
    def _base(self) -> LogEntryDocument:
        return self._staging.base

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint that is edited; a commit with retries may change it."""
        return self._base.checkpoint_id or 0

    @property
    def snapshot(self) -> SnapshotReader:
        """The checkpoint as the statements so far have made it: for queries, lookups and comparisons.

        Rows and parameters that are given after it was asked for may be made of what was read, so `commit` does not
        plan them again.
        """
        self._was_read = True
        return self._snapshot()

    def _snapshot(self) -> SnapshotReader:
        self._check_open()
        staging = self._staging
        return SnapshotReader(staging.overlay, staging.store_id, staging.entry, clock_ms=staging.clock_ms)

    @property
    def _verbs(self) -> Verbs:
        return Verbs(self._staging, self._snapshot())

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
        """Change columns of the rows that a condition holds for.

        Accumulators of reducing and aggregating states are set, not added to. Elements of a list are known by `_seq`.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both; timers are states such as `<uid>.timers_event_time`. Operator
            state too.
        set
            By column an expression in DuckDB's SQL over the columns of the row, or a number, a bool or None. A column
            of the key, a namespace, a user key or a timestamp moves the row.
        where
            A condition in DuckDB's SQL; all rows without it. One that limits the key to values costs a lookup.
        params
            Values for `?` or `$name`; those in `set` come first.
        touch
            In a state with a time to live: whether rows count as updated now, rather than when they were.

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
        set, params = copy.copy(set), copy.copy(params)
        return self._do(lambda: self._verbs.update(state, set, where, params, touch=touch), has_values=bool(params))

    def delete(
        self,
        state: str | tuple[str, str],
        *,
        where: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
    ) -> int:
        """Delete the rows that a condition holds for; `where="true"` deletes all.

        Parameters and errors are those of `update`.

        Returns
        -------
        int
            How many rows were deleted.
        """
        params = copy.copy(params)
        return self._do(lambda: self._verbs.delete(state, where, params), has_values=bool(params))

    def upsert(
        self,
        state: str | tuple[str, str],
        rows: Given,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Write rows, each in the place of the one with its key and entry, if there is one.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        rows
            A query in DuckDB's SQL; or a table, a frame of Polars or pandas, a dataset, a RecordBatchReader, a relation
            of DuckDB, anything with the PyCapsule protocol, or an iterator of record batches, which is read once. They
            have the columns that `to_arrow` returns. `_seq` of a list may be left out or null: then the element is
            appended. So may `_updated_at` of a state with a time to live, in milliseconds: then a row is updated now.
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
        """Write new rows; one whose key and entry there is already is refused. The rest is as for `upsert`.

        Returns
        -------
        int
            How many rows were written.
        """
        return self._write(state, rows, "insert", params, tables)

    def delete_key(self, operator: str, keys: Any) -> int:
        """Delete all that an operator holds of some keys: rows of every state, in all namespaces, windows and timers.

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
        has_values = not isinstance(given, str) or bool(params) or bool(tables)
        return self._do(lambda: self._verbs.write(state, given, rule, params, tables), has_values=has_values)

    def execute(self, script: str, *, tables: Mapping[str, Any] = MappingProxyType({})) -> int:
        """Run a script of SQL: UPDATE, DELETE, INSERT, MERGE and what helps them, and take over what it changed.

        Each state that the script names is a table of DuckDB with the columns of `to_arrow`, in a list `_seq`, with a
        time to live `_updated_at`; key and entry are its primary key where DuckDB has one for their types. So the
        states that it names are copied, whatever it changes. `counter.clicks at (version => 41)` is what a state was,
        and `arrowstate.changes(...)` what changed, as in `SnapshotReader.sql`. Other names are those of `tables`, and
        what the script makes. New elements of a list have no `_seq`, new rows need no `_updated_at`. Nothing but the
        states is kept.

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
        return self._do(lambda: run_script(self._verbs, script, tables), has_values=bool(tables))

    # States and operators

    def drop_state(self, operator: str, state: str) -> None:
        """Leave a state out, whatever it holds, operator state too. No row is written again.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state.
        """
        text = f"drop state {operator}.{state}"
        self._do_documents(text, lambda: self._staging.change_states(operator, drop=[state]))

    def rename_state(self, operator: str, state: str, new: str) -> None:
        """Give a state another name. No row is written again, but those of operator state.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError, InvalidInputError
            If there is no such state, or the name is taken or none.
        """
        text = f"rename state {operator}.{state} to {new}"
        self._do_documents(text, lambda: self._staging.change_states(operator, rename={state: new}))

    def drop_operator(self, operator: str) -> None:
        """Leave an operator out, with all its states; OperatorNotFoundError if there is none."""
        self._do_documents(f"drop operator {operator}", lambda: self._staging.drop_operator(operator))

    def rename_operator(self, operator: str, new: str) -> None:
        """Give an operator another uid, and what it emitted in the last micro-batch with it. No row is written again.

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

    # How

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError("the edit is closed; begin another with store.edit()")

    def _do(self, what: Callable[[], Statement], *, has_values: bool) -> int:
        """Do what a statement says; `has_values` says whether it has values of the caller beside its text."""
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

    def _do_again(self, staging: Staging) -> None:
        """Do all statements on another checkpoint, and change the properties as they were changed."""
        changed = {name: self.properties.get(name, _GONE) for name in changed_names(self._stated, self.properties)}
        done, self._done = self._done, []
        self._begin(staging)
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


@dataclass(frozen=True, slots=True)
class _Done:
    """A statement, to be done again."""

    what: Callable[[], Statement]
    may_hold_what_was_read: bool
    "Whether it has values that its caller may have made of what the edit held."


_GONE = object()


def changed_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the names of the properties that differ."""
    return {name for name in {**before, **after} if before.get(name, _GONE) != after.get(name, _GONE)}
