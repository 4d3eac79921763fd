"""How two checkpoints of a store differ: states that came and went, schemas, how many rows changed, and properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.files.reading import find_operator
from arrowstate.html import table_html
from arrowstate.query.changes import (
    ALL_HASHES,
    CHANGE_TYPE_COLUMN,
    UPDATED_COLUMN,
    StateChanges,
    change_columns,
    reader_between,
)
from arrowstate.query.describe import columns_of
from arrowstate.query.operator_changes import OperatorStateChanges
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.schema_documents import StateDocument

_COUNTS = pa.schema(
    [
        pa.field("operator", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("inserted", pa.int64()),
        pa.field("updated", pa.int64()),
        pa.field("deleted", pa.int64()),
        pa.field("schema_change", pa.string()),
    ]
)


class StateDifference(Struct, frozen=True):
    """What happened to a state from one checkpoint to another."""

    operator: str
    state: str
    inserted: int | None
    "Rows that came; None where rows cannot be compared, because the key or the type is another one."
    updated: int | None
    "Rows that have another value."
    deleted: int | None
    "Rows that went."
    schema_change: str | None = None
    "What became of its columns; None where they are the same."
    is_operator_state: bool = False
    """Whether it is operator state, whose elements have no key and are never updated.

    Neither their order counts nor which subtask has them; an entry of a broadcast state counts once."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.inserted or self.updated or self.deleted or self.schema_change)


class Difference(Struct, frozen=True):
    """How two checkpoints differ; see `StateStore.diff`."""

    before: int | None
    "The id of the earlier checkpoint, None for a store in which nothing is yet."
    after: int | None
    states: tuple[StateDifference, ...]
    "Each state that one of them has, operator state too, by operator, in the order of the later checkpoint."
    properties: Mapping[str, tuple[Any, Any]]
    "The properties of the checkpoint that differ: as they were, and as they are; None where there was or is none."
    _storage: Storage
    _entries: tuple[LogEntryDocument | None, LogEntryDocument]
    _times: bool = False
    "Whether rows differ that were updated at another time."

    def to_arrow(self) -> pa.Table:
        """Return the counts: operator, state, inserted, updated, deleted, schema_change."""
        rows = [{name: getattr(item, name) for name in _COUNTS.names} for item in self.states]
        return pa.Table.from_pylist(rows, schema=_COUNTS)

    def rows(
        self, state: str | tuple[str, str], *, columns: Sequence[str] | None = None, limit: int | None = None
    ) -> pa.Table:
        """Return the rows of a state that changed; those that were updated as they were, then as they are.

        Of operator state, the elements that went are `delete` and those that came `insert`.
        """
        named = [
            item for item in self.states if state in (f"{item.operator}.{item.state}", (item.operator, item.state))
        ]
        if any(item.is_operator_state for item in named):
            if len(named) > 1:
                both = " and ".join(repr((item.operator, item.state)) for item in named)
                raise InvalidInputError(f"{state!r} fits {both}; give the uid and the state name as a tuple")
            changes = OperatorStateChanges(self._storage, *self._entries, named[0].operator, named[0].state)
            return changes.rows(columns, limit)
        return rows_between(self._storage, *self._entries, state, columns, limit=limit, times=self._times)

    def _repr_html_(self) -> str:
        columns = ["state", "inserted", "updated", "deleted", "columns"]
        rows = [
            (f"{item.operator}.{item.state}", item.inserted, item.updated, item.deleted, item.schema_change)
            for item in self.states
        ]
        rows += [
            (f"property {name}", None, None, None, f"{was!r}, then {now!r}")
            for name, (was, now) in self.properties.items()
        ]
        return table_html(f"from checkpoint {self.before} to {self.after}", columns, rows)

    def __repr__(self) -> str:
        changed = [item for item in self.states if not item.is_empty]
        said = [f"{item.operator}.{item.state} {_counts(item)}" for item in changed]
        said += [f"property {name!r} changed" for name in self.properties]
        return f"<Difference of checkpoints {self.before} and {self.after}: {'; '.join(said) or 'nothing changed'}>"


def difference(
    storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument, *, times: bool = False
) -> Difference:
    """Compare two checkpoints; only rows are read that are live in one of them and not in the other.

    Of operator state all parts are read, and held in memory together, that one checkpoint has and the other has not,
    where both have such parts. Of a state that only one of them has, no row is read. With `times`, a row of a state
    with a time to live is another one if it was updated at another time.
    """
    found = tuple(
        _operator_state_difference(storage, before, after, uid, name)
        if is_operator_state
        else _state_difference(storage, before, after, uid, name, times=times)
        for uid, name, is_operator_state in _names(before, after)
    )
    return Difference(
        None if before is None else before.checkpoint_id,
        after.checkpoint_id,
        found,
        changed_properties({} if before is None else before.properties, after.properties),
        storage,
        (before, after),
        times,
    )


def changed_properties(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the properties that differ, as they were and as they are; None where there is none of the name."""
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if (name in before, before.get(name)) != (name in after, after.get(name))
    }


def _names(before: LogEntryDocument | None, after: LogEntryDocument) -> dict[tuple[str, str, bool], None]:
    """Return uid and name of each state, and whether it is operator state."""
    found: dict[tuple[str, str, bool], None] = {}
    for operator in (*after.operators, *(() if before is None else before.operators)):
        found |= {(operator.uid, state.name, False): None for state in operator.states}
        found |= {(operator.uid, state.name, True): None for state in operator.operator_states}
    return found


def rows_between(
    storage: Storage,
    before: LogEntryDocument | None,
    after: LogEntryDocument,
    state: str | tuple[str, str],
    columns: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    times: bool = False,
) -> pa.Table:
    """Return the changes of a state as a table, of at most so many rows."""
    reader = reader_between(storage, before, after, state)
    beside = [UPDATED_COLUMN] if times and reader.layout.has_ttl else []
    names = [*reader.columns, *beside] if columns is None else reader.check_columns(columns)
    names = [name for name in names if name in change_columns(reader)]
    schema = pa.schema(
        [*(reader.schema.field(name) for name in names), pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False)]
    )
    changes = StateChanges(storage, reader, before, after)
    found: list[pa.RecordBatch] = []
    left = limit
    for batch in changes.batches(names, ALL_HASHES):
        found.append(batch if left is None else batch.slice(0, left))
        left = None if left is None else left - found[-1].num_rows
        if left == 0:
            break
    return pa.Table.from_batches(found, schema)


def _state_difference(
    storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument, uid: str, name: str, *, times: bool
) -> StateDifference:
    was, now = _document(before, uid, name), _document(after, uid, name)
    change = _schema_change(was, now)
    if now is None:
        assert before is not None, "one of them has the state"
        return StateDifference(uid, name, 0, 0, find_operator(before, uid).live_rows(name), change)
    if was is None:
        return StateDifference(uid, name, find_operator(after, uid).live_rows(name), 0, 0, change)
    reader = reader_between(storage, before, after, (uid, name))
    try:
        counts = StateChanges(storage, reader, before, after).counts(times=times)
    except IncompatibleStateError as error:
        return StateDifference(uid, name, None, None, None, change or str(error))
    return StateDifference(uid, name, *counts, change)


def _operator_state_difference(
    storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument, uid: str, name: str
) -> StateDifference:
    changes = OperatorStateChanges(storage, before, after, uid, name)
    counts, (was, now) = changes.counts(), changes.columns
    if was is None or now is None:
        change = "new" if was is None else "dropped"
    else:
        kinds = changes.kinds
        other_kind = [] if kinds is None else [f"{kinds[1]} instead of {kinds[0]}"]
        change = "; ".join([*other_kind, *_column_changes(was, now)])
    if counts is None:
        return StateDifference(uid, name, None, None, None, change, True)
    return StateDifference(uid, name, counts[0], 0, counts[1], change or None, True)


def _document(entry: LogEntryDocument | None, uid: str, name: str) -> tuple[StateDocument, list[str]] | None:
    for operator in () if entry is None else entry.operators:
        if operator.uid == uid:
            for state in operator.states:
                if state.name == name:
                    return state, [f"{item['name']} {item['type']}" for item in columns_of(state, operator.key)]
    return None


def _schema_change(
    before: tuple[StateDocument, list[str]] | None, after: tuple[StateDocument, list[str]] | None
) -> str | None:
    if before is None or after is None:
        return "new" if before is None and after is not None else "dropped"
    return "; ".join(_column_changes(before[1], after[1])) or None


def _column_changes(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    came, went = [name for name in after if name not in before], [name for name in before if name not in after]
    if went:
        yield f"without {', '.join(went)}"
    if came:
        yield f"with {', '.join(came)}"


def _counts(item: StateDifference) -> str:
    if item.inserted is None:
        return f"cannot be compared ({item.schema_change})"
    text = f"+{item.inserted} ~{item.updated} -{item.deleted}"
    return f"{text} ({item.schema_change})" if item.schema_change else text
