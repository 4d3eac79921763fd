"""What an edit is told: statements over rows, states and operators, each done when it is given."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from arrowstate.checkpoints.notes import check_no_rows_kept, with_uid
from arrowstate.editing.plan import Statement
from arrowstate.editing.script import run_script
from arrowstate.editing.staging import Staging
from arrowstate.editing.verbs import Given, Verbs
from arrowstate.errors import InvalidInputError
from arrowstate.query.reader import SnapshotReader
from arrowstate.schema.keys import key_columns
from arrowstate.schema.layout import key_schema_of
from arrowstate.snapshot.output_tables import BATCH_SUFFIX
from arrowstate.snapshot.reading import find_operator
from arrowstate.table.columns import canonical_floats
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["Statements"]


class Statements:
    """Takes statements, each of which sees what those before it did; one that raises has done nothing.

    Parameters
    ----------
    staging
        The checkpoint that they make.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._statements: list[Statement] = []
        self._is_open = True
        self.properties: dict[str, Any] = copy.deepcopy(staging.base.properties)
        """What the checkpoint will have as its properties, for instance source offsets: JSON values, to be changed."""

    @property
    def _base(self) -> LogEntryDocument:
        return self._staging.base

    @property
    def snapshot(self) -> SnapshotReader:
        """The checkpoint as the statements so far have made it: for queries, lookups and comparisons."""
        self._check_open()
        staging = self._staging
        return SnapshotReader(staging.overlay, staging.store_id, staging.entry, clock_ms=staging.clock_ms)

    @property
    def _verbs(self) -> Verbs:
        self._check_open()
        return Verbs(self._staging, self.snapshot)

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
        return self._done(self._verbs.update(state, set, where, params, touch=touch))

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
        return self._done(self._verbs.delete(state, where, params))

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
        return self._done(self._verbs.write(state, rows, "upsert", params, tables))

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
        return self._done(self._verbs.write(state, rows, "insert", params, tables))

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
        found = find_operator(self._staging.entry, operator)
        if not found.key:
            raise InvalidInputError(f"operator {operator!r} has operator state only, which has no keys")
        columns = [canonical_floats(column) for column in key_columns(keys, key_schema_of(found.key))]
        before = sum(found.live_rows(state.name) for state in found.states)
        self._staging.clear_keys(operator, columns)
        after = find_operator(self._staging.entry, operator)
        rows = before - sum(after.live_rows(state.name) for state in after.states)
        self._done(Statement(f"delete {len(columns[0])} keys of {operator}", rows))
        return rows

    def execute(self, script: str, *, tables: Mapping[str, Any] = MappingProxyType({})) -> int:
        """Run a script of SQL: UPDATE, DELETE, INSERT, MERGE and what helps them, and take over what it changed.

        Each state that the script names is a table of DuckDB with the columns of `to_arrow`, in a list `_seq`, with a
        time to live `_updated_at`; key and entry are its primary key where DuckDB has one for their types. So the
        states that it names are copied, whatever it changes. `counter.clicks at (version => 41)` is what a state was,
        as in `SnapshotReader.sql`. Other names are those of `tables`, and what the script makes. New elements of a
        list have no `_seq`, new rows need no `_updated_at`. Nothing but the states is kept.

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
        return self._done(run_script(self._verbs, script, tables))

    # States and operators

    def drop_state(self, operator: str, state: str) -> None:
        """Leave a state out, whatever it holds, operator state too. No row is written again.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state.
        """
        self._check_open()
        self._staging.change_states(operator, drop=[state])
        self._done(Statement(f"drop state {operator}.{state}", None))

    def rename_state(self, operator: str, state: str, new: str) -> None:
        """Give a state another name. No row is written again, but those of operator state.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError, InvalidInputError
            If there is no such state, or the name is taken or none.
        """
        self._check_open()
        self._staging.change_states(operator, rename={state: new})
        self._done(Statement(f"rename state {operator}.{state} to {new}", None))

    def drop_operator(self, operator: str) -> None:
        """Leave an operator out, with all its states; OperatorNotFoundError if there is none."""
        self._check_open()
        self._staging.drop_operator(operator)
        self._done(Statement(f"drop operator {operator}", None))

    def rename_operator(self, operator: str, new: str) -> None:
        """Give an operator another uid, and what it emitted in the last micro-batch with it. No row is written again.

        Raises
        ------
        OperatorNotFoundError, InvalidInputError
            If there is no such operator, the uid is taken or none, or a job keeps rows under it for a sink.
        """
        self._check_open()
        check_no_rows_kept(self.properties, operator)
        before, properties = self._staging.entry, self.properties
        beside = [item.uid for item in before.operators if item.uid == f"{operator}{BATCH_SUFFIX}"]
        try:
            for uid in (operator, *beside):
                renamed = new + uid.removeprefix(operator)
                self._staging.rename_operator(uid, renamed)
                properties = with_uid(properties, uid, renamed)
        except BaseException:
            self._staging.entry = before
            raise
        self.properties = properties
        self._done(Statement(f"rename operator {operator} to {new}", None))

    def change_max_parallelism(self, operator: str, max_parallelism: int) -> None:
        """Give an operator another number of key groups, 1 to 32768. No row is written again.

        Raises
        ------
        OperatorNotFoundError, InvalidInputError
            If there is no such operator, or it cannot have so many.
        """
        self._check_open()
        self._staging.change_max_parallelism(operator, max_parallelism)
        self._done(Statement(f"change max parallelism of {operator} to {max_parallelism}", None))

    # How

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError("the edit is closed; begin another with store.edit()")

    def _done(self, statement: Statement) -> int:
        self._statements.append(statement)
        return statement.rows or 0
