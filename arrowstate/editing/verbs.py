"""The verbs of an edit: a query says which rows, and what becomes of them; then they are written.

A verb is a SELECT over the state as the edit has it, with the filters and lookups of any query. What it returns tells
the rows by key and entry; columns that are not set stay as they are stored, and never pass through SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.editing.forms import UPDATED_AT, Rows, RowsForm
from arrowstate.editing.operator_states import PLACE, SUBTASK, OperatorRows
from arrowstate.editing.plan import Statement
from arrowstate.editing.staging import Staging
from arrowstate.errors import InvalidInputError
from arrowstate.files.reading import find_operator, find_state, states_of
from arrowstate.query.catalog import quoted, resolve, sql_names
from arrowstate.query.reader import SnapshotReader
from arrowstate.schema.descriptors import AggregatingStateDescriptor
from arrowstate.schema.layout import StateLayout, descriptor_of, key_schema_of
from arrowstate.table.columns import columns_equal

Params: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
Given: TypeAlias = Any
"""A query, or rows: what `read_rows` takes, or a table of Arrow."""

_ROWS = "_rows"


class Verbs:
    """What changes rows of a checkpoint that is being made."""

    def __init__(self, staging: Staging, snapshot: SnapshotReader) -> None:
        self.staging = staging
        self.snapshot = snapshot

    def target(self, reference: str | tuple[str, str]) -> tuple[str, str, bool]:
        """Return uid and name of a state, and whether it is operator state."""
        entry = self.staging.entry

        def fits(uid: str, name: str) -> bool:
            return reference in ((uid, name), f"{uid}.{name}")

        names = [(item.uid, state.name) for item in entry.operators for state in item.operator_states]
        found = [name for name in names if fits(*name)]
        if not found:
            return *resolve(entry, reference), False
        found += [name for name in states_of(entry) if fits(*name)]
        if len(found) > 1:
            raise InvalidInputError(
                f"{reference!r} fits {' and '.join(map(repr, found))}, one of them operator state; a script knows them "
                f"as {' and '.join(item.relation for item in sql_names(entry) if fits(item.uid, item.state))}"
            )
        return *found[0], True

    def form(self, uid: str, name: str) -> RowsForm:
        """Return the columns of a keyed state."""
        operator = find_operator(self.staging.entry, uid)
        document = find_state(self.staging.entry, operator, name)
        return RowsForm(f"{uid}.{name}", StateLayout.of(key_schema_of(operator.key), descriptor_of(document)))

    def operator_rows(self, uid: str, name: str) -> OperatorRows:
        """Return the elements of an operator state."""
        return OperatorRows(self.staging.overlay, find_operator(self.staging.entry, uid), name)

    def update(
        self,
        reference: str | tuple[str, str],
        set: Any,
        where: str | None,
        params: Params,
        *,
        touch: bool,
    ) -> Statement:
        """Change columns of the rows that a condition holds for."""
        uid, name, is_operator_state = self.target(reference)
        if not isinstance(set, Mapping) or not set:
            raise InvalidInputError(f"set names at least one column and what it becomes, got {set!r}")
        assigned, condition = _parsed(set, where)
        said = ", ".join(f"{column} = {value}" for column, value in set.items())
        text = f"update {uid}.{name} set {said}"  # noqa: S608 (for people)
        text += "" if where is None else f" where {where}"
        if is_operator_state:
            return Statement(text, self._update_elements(uid, name, assigned, condition, params))
        form = self.form(uid, name)
        _check_known(form.name, assigned, [item for item in form.columns if item not in form.sequence])
        self._check_no_sketch(uid, name, assigned)
        moves = [column for column in assigned if column in (*form.key, *form.entry)]
        # A row that moves is written whole.
        beside = [column for column in form.values if moves and column not in assigned]
        read = [*form.identity, *beside, *(form.updated_at if UPDATED_AT not in assigned else [])]
        made = [f"({value}) as {quoted(f'_set_{number}')}" for number, value in enumerate(assigned.values())]
        kept = [f"{quoted(column)} as {quoted(f'_was_{number}')}" for number, column in enumerate(read)]
        # The values come first, so that parameters are counted from them.
        table = self._select(uid, name, [*made, *kept], condition, params)
        given = {column: table.column(f"_set_{number}") for number, column in enumerate(assigned)}
        was = {column: table.column(f"_was_{number}") for number, column in enumerate(read)}
        if touch and form.updated_at:
            was[UPDATED_AT] = pa.chunked_array([pa.nulls(table.num_rows, pa.int64())])
        rows = form.rows(pa.table({**was, **given}))
        if moves:
            gone = form.rows(pa.table({column: was[column] for column in form.identity}), identity_only=True)
            self.staging.exchange(uid, name, gone, _at_the_end(gone, rows), "insert")
        else:
            self.staging.put(uid, name, rows, "update")
        return Statement(text, table.num_rows)

    def delete(self, reference: str | tuple[str, str], where: str, params: Params) -> Statement:
        """Delete the rows that a condition holds for."""
        uid, name, is_operator_state = self.target(reference)
        _, condition = _parsed({}, where, needed=True)
        text = f"delete from {uid}.{name} where {where}"  # noqa: S608 (for people)
        if is_operator_state:
            return Statement(text, self._delete_elements(uid, name, condition, params))
        form = self.form(uid, name)
        table = self._select(uid, name, [quoted(column) for column in form.identity], condition, params)
        self.staging.remove(uid, name, form.rows(table, identity_only=True))
        return Statement(text, table.num_rows)

    def write(
        self,
        reference: str | tuple[str, str],
        given: Given,
        rule: Literal["insert", "upsert"],
        params: Params,
        tables: Mapping[str, Any] = MappingProxyType({}),
    ) -> Statement:
        """Write rows of a query or a table."""
        uid, name, is_operator_state = self.target(reference)
        if isinstance(given, str):
            table = self._fetched(given, params, tables)
            text = f"{rule} into {uid}.{name} {given}"
        else:
            table, text = given, f"{rule} into {uid}.{name} from a table"
        if is_operator_state:
            return Statement(text, self._write_elements(uid, name, table, rule))
        form = self.form(uid, name)
        form.check_columns(table.column_names, optional=[*form.sequence, *form.updated_at])
        rows = form.rows(table)
        self.staging.put(uid, name, rows, rule)
        return Statement(text, len(rows))

    def _fetched(self, query: str, params: Params, tables: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
        import duckdb

        try:
            return self.snapshot.sql(query, params=params, tables=tables).to_arrow_table()
        except duckdb.Error as error:
            raise InvalidInputError(str(error)) from error

    def _select(self, uid: str, name: str, columns: Sequence[str], condition: str, params: Params) -> pa.Table:
        relation = next(
            item.relation for item in sql_names(self.staging.entry) if (item.uid, item.state) == (uid, name)
        )
        query = f"select {', '.join(columns)} from {quoted(relation)} as {quoted(name)}"  # noqa: S608
        return self._fetched(query + condition, params)

    def _check_no_sketch(self, uid: str, name: str, assigned: Mapping[str, str]) -> None:
        """Refuse to set parts of a sketch, which no expression can make."""
        operator = find_operator(self.staging.entry, uid)
        descriptor = descriptor_of(find_state(self.staging.entry, operator, name))
        if not isinstance(descriptor, AggregatingStateDescriptor):
            return
        kind = descriptor.accumulator_type
        parts = [field.name for field in kind] if pa.types.is_struct(kind) else []
        if "sketch" in parts and any(column in parts for column in assigned):
            raise InvalidInputError(
                f"{uid}.{name} holds a sketch with what it sums up ({', '.join(parts)}), which an expression cannot "
                "make; upsert whole rows of another checkpoint, or delete"
            )

    # Operator state

    def _elements(
        self, rows: OperatorRows, columns: Sequence[str], condition: str, params: Params
    ) -> tuple[pa.Table, pa.Table]:
        """Return all elements, and what a query makes of those that a condition holds for."""
        table = rows.table()
        query = f"select {', '.join(columns)} from {_ROWS} as {quoted(rows.name.rpartition('.')[2])}"  # noqa: S608
        return table, self._fetched(query + condition, params, {_ROWS: table})

    def _update_elements(self, uid: str, name: str, assigned: Mapping[str, str], condition: str, params: Params) -> int:
        rows = self.operator_rows(uid, name)
        _check_known(rows.name, assigned, rows.columns)
        made = [f"({value}) as {quoted(column)}" for column, value in assigned.items()]
        table, chosen = self._elements(rows, [*made, SUBTASK, PLACE], condition, params)
        stored, given = rows.stored(table), rows.stored(chosen)
        every, changed = _positions(stored), _positions(given)
        order = np.argsort(every)
        places = order[np.searchsorted(every[order], changed)]
        source = np.arange(table.num_rows, dtype=np.int64)
        source[places] = table.num_rows + np.arange(changed.size)
        for column in assigned:
            number = stored.schema.get_field_index(column)
            values = pa.concat_arrays([_one(stored.column(column)), _one(given.column(column))])
            stored = stored.set_column(number, column, values.take(pa.array(source)))
        self.staging.replace_operator(rows.written(stored, new_id=self.staging.new_id))
        return chosen.num_rows

    def _delete_elements(self, uid: str, name: str, condition: str, params: Params) -> int:
        rows = self.operator_rows(uid, name)
        _refuse_output(rows)
        table, chosen = self._elements(rows, [SUBTASK, PLACE], condition, params)
        kept = np.isin(_positions(table), _positions(chosen), invert=True)
        stored = rows.stored(table).filter(pa.array(kept))
        self.staging.replace_operator(rows.written(stored, new_id=self.staging.new_id))
        return chosen.num_rows

    def _write_elements(self, uid: str, name: str, table: pa.Table, rule: str) -> int:
        rows = self.operator_rows(uid, name)
        _refuse_output(rows)
        missing = [column for column in rows.columns if column not in table.column_names]
        unknown = [column for column in table.column_names if column not in (*rows.columns, SUBTASK)]
        if missing or unknown:
            raise InvalidInputError(
                f"rows of {rows.name} have the columns {', '.join(rows.columns)} ({SUBTASK} may be added); got "
                f"{', '.join(table.column_names) or 'none'}"
            )
        given = rows.stored(table)
        if SUBTASK not in given.column_names:
            given = given.append_column(SUBTASK, pa.nulls(given.num_rows, pa.int64()))
        given = given.append_column(PLACE, pa.nulls(given.num_rows, pa.int64()))
        stored = rows.stored(rows.table())
        if rows.is_map and rule == "upsert":
            key = rows.columns[0]
            stored = stored.filter(pa.array(_is_absent(stored.column(key), given.column(key))))
        both = pa.concat_tables([stored, given.select(stored.column_names)])
        self.staging.replace_operator(rows.written(both, new_id=self.staging.new_id))
        return table.num_rows


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
    if isinstance(value, float) and not np.isfinite(value):
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


def _refuse_output(rows: OperatorRows) -> None:
    if rows.is_output:
        raise InvalidInputError(
            f"{rows.name} holds rows that were emitted, and readers go on from their numbers: they may be updated, and "
            "none added or deleted"
        )


def _positions(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for each element, by its subtask and its place."""
    return (table.column(SUBTASK).to_numpy() << 40) + table.column(PLACE).to_numpy()


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _is_absent(keys: pa.ChunkedArray, given: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each key whether it is not among those given; maps of subtasks are small."""
    taken = {repr(value.as_py()) for value in given}
    return np.array([repr(value.as_py()) not in taken for value in keys], dtype=np.bool_)
