"""How two checkpoints of a store differ: states that came and went, their schemas, and how many rows changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import IncompatibleStateError
from arrowstate.files.reading import find_operator, states_of
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
    "Each state that one of them has, by operator, in the order of the later checkpoint."
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
        """Return the rows of a state that changed; those that were updated as they were, then as they are."""
        return rows_between(self._storage, *self._entries, state, columns, limit=limit, times=self._times)

    def _repr_html_(self) -> str:
        columns = ["state", "inserted", "updated", "deleted", "columns"]
        rows = [
            (f"{item.operator}.{item.state}", item.inserted, item.updated, item.deleted, item.schema_change)
            for item in self.states
        ]
        return table_html(f"from checkpoint {self.before} to {self.after}", columns, rows)

    def __repr__(self) -> str:
        changed = [item for item in self.states if not item.is_empty]
        said = [f"{item.operator}.{item.state} {_counts(item)}" for item in changed]
        return f"<Difference of checkpoints {self.before} and {self.after}: {'; '.join(said) or 'nothing changed'}>"


def difference(
    storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument, *, times: bool = False
) -> Difference:
    """Compare two checkpoints; only rows are read that are live in one of them and not in the other.

    Of a state that only one of them has, no row is read. With `times`, a row of a state with a time to live is another
    one if it was updated at another time.
    """
    names = dict.fromkeys((*states_of(after), *(() if before is None else states_of(before))))
    found = tuple(_state_difference(storage, before, after, uid, name, times=times) for uid, name in names)
    return Difference(
        None if before is None else before.checkpoint_id, after.checkpoint_id, found, storage, (before, after), times
    )


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
