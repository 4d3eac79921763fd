"""What rows of a state look like to a statement, and back: from the types of SQL to those that are stored, exactly.

SQL shows some types as others (`arrowstate.query.duckdb.sql_types`). What a statement makes is turned into the stored
type or refused: an edit never changes the type of a column. `assigned` is the one rule for verbs and tables; it is that
of DuckDB's UPDATE, which scripts are under.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.errors import InvalidInputError, NullKeyError, ValueTypeError
from arrowstate.schema.conversion import with_elements, with_entries
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.types import CONVERSION_ERRORS, first_null, is_list
from arrowstate.table.columns import canonical_floats

SEQUENCE = "_seq"
UPDATED_AT = "_updated_at"


class Rows(Struct, frozen=True):
    """Rows of a state that are to be written, or removed."""

    key: list[pa.Array]
    entry: list[pa.Array]
    "What tells the rows of a key apart: namespaces, the user key of a map, the timestamp of a timer."
    sequence: pa.Array | None
    "In a list which element of its key a row is; null for a new one."
    values: dict[str, pa.Array]
    "The value columns that are written; a row that is there keeps the others."
    kept: dict[str, pa.BooleanArray]
    "By value column where a row that is there keeps what it has."
    updated_at: pa.Array | None = None
    "The time of the last update, null for now; None where the state has no time to live."

    def __len__(self) -> int:
        return len(self.key[0])

    def take(self, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Rows:
        """Return some of the rows."""
        chosen = pa.array(places)

        def of(column: pa.Array | None) -> pa.Array | None:
            return None if column is None else column.take(chosen)

        return Rows(
            [column.take(chosen) for column in self.key],
            [column.take(chosen) for column in self.entry],
            of(self.sequence),
            {name: column.take(chosen) for name, column in self.values.items()},
            {name: column.take(chosen) for name, column in self.kept.items()},
            of(self.updated_at),
        )


class RowsForm:
    """The columns of a state, by what they are for."""

    def __init__(
        self, name: str, layout: StateLayout, *, may_hold_nulls: bool | None = None, subtasks: int = 0
    ) -> None:
        self.name = name
        self.layout = layout
        self.key = list(layout.key.names)
        self.entry = [field.name for field in layout.entry_fields]
        self.values = [field.name for field in layout.value_fields]
        # A list of structs that are operator state may have a field of this name.
        self.sequence = [f"_{SEQUENCE}" if SEQUENCE in self.values else SEQUENCE] if layout.is_list else []
        self.updated_at = [UPDATED_AT] if layout.has_ttl else []
        fields = [*layout.key, *layout.entry_fields, *layout.value_fields]
        beside = dict.fromkeys([*self.sequence, *self.updated_at], pa.int64())
        self._types = {field.name: field.type for field in fields} | beside
        is_map = layout.user_key_type is not None and not layout.is_timer
        own = is_map or pa.types.is_struct(layout.value_type)
        self.may_hold_nulls = own if may_hold_nulls is None else may_hold_nulls
        """Whether a value may be null: in a map, and in fields of a struct."""
        self.subtasks = subtasks
        """Of an operator list state, whose key is the number of a subtask: how many there are."""

    @property
    def identity(self) -> list[str]:
        """What tells a row apart from all others of the state."""
        return [*self.key, *self.entry, *self.sequence]

    @property
    def columns(self) -> list[str]:
        """All columns that a statement may read and write."""
        return [*self.identity, *self.values, *self.updated_at]

    @property
    def optional(self) -> list[str]:
        """What rows may lack: then an element is appended, in operator state to the last subtask, a row updated now."""
        return [*self.sequence, *self.updated_at, *(self.key if self.subtasks else [])]

    def check_columns(self, given: list[str]) -> None:
        """Refuse rows that lack a column, or have one that the state has not."""
        optional = self.optional
        unknown = [name for name in given if name not in self.columns]
        missing = [name for name in self.columns if name not in given and name not in optional]
        if unknown or missing or len(set(given)) < len(given):
            raise InvalidInputError(
                f"rows of {self.name} have the columns {', '.join(self.columns)}"
                + (f" ({', '.join(optional)} may be left out)" if optional else "")
                + f"; got {', '.join(given) or 'none'}"
            )

    def rows(
        self, table: pa.Table, *, kept: dict[str, pa.BooleanArray] | None = None, identity_only: bool = False
    ) -> Rows:
        """Return rows that were given as a table of some columns, checked and in the stored types.

        Of rows that are to be removed it is enough to know which they are.
        """
        kept = kept or {}
        names = self.identity if identity_only else self.columns
        columns = {name: self._column(table, name) for name in names if name in table.column_names}
        if self.subtasks:
            columns[self.key[0]] = self._of_subtasks(columns.get(self.key[0]), table.num_rows)
        for name in (*self.key, *self.entry):
            if columns[name].null_count:
                raise NullKeyError(name, first_null(columns[name]))
        for name in columns.keys() & set(self.values) if not self.may_hold_nulls else ():
            null = columns[name].is_null()
            if name in kept:
                null = pc.and_not(null, kept[name])
            if pc.any(null).as_py():
                row = int(np.flatnonzero(null.to_numpy(zero_copy_only=False))[0])
                raise InvalidInputError(
                    f"a value of {self.name} must not be null, {name!r} of row {row} is; delete the row instead"
                )
        return Rows(
            [canonical_floats(columns[name]) for name in self.key],
            [canonical_floats(columns[name]) for name in self.entry],
            columns.get(self.sequence[0], pa.nulls(table.num_rows, pa.int64())) if self.sequence else None,
            {name: columns[name] for name in self.values if name in columns},
            kept,
            columns.get(UPDATED_AT, pa.nulls(table.num_rows, pa.int64())) if self.updated_at else None,
        )

    def _of_subtasks(self, numbers: pa.Array | None, count: int) -> pa.Array:
        """Return the subtask of each row of operator state, the last one where none is given."""
        last = pa.scalar(self.subtasks - 1, pa.int32())
        numbers = pa.repeat(last, count) if numbers is None else numbers.fill_null(last)
        beyond = numbers.filter(pc.or_(pc.less(numbers, 0), pc.greater(numbers, last)))
        if len(beyond):
            raise InvalidInputError(f"{self.name} is of subtasks 0 to {last}, got {beyond[0]}")
        return numbers

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        column = table.column(name).combine_chunks()
        column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
        return assigned(column, self._types[name], f"{self.name}.{name}")


def assigned(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return values of any type as a column of this type takes them, by the rule of an UPDATE in DuckDB.

    The statements of a script are under this rule, so what verbs are given is converted by DuckDB too.
    """
    import duckdb

    given = array.type
    try:
        if given != kind and not pa.types.is_null(given):
            array = _cast(array, kind)
        return from_sql(array, kind)
    except (*CONVERSION_ERRORS, duckdb.Error) as error:
        said = str(error).partition("\n")[0]
        raise ValueTypeError(name, str(kind), f"{given} ({said})") from None


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in the type that SQL shows a type as; as they are where DuckDB takes the two for one."""
    from arrowstate.query.duckdb.duckdb_internals import parser
    from arrowstate.query.duckdb.sql_types import SqlForm

    form = SqlForm(pa.schema([pa.field("given", array.type)]))
    shown = SqlForm(pa.schema([pa.field("shown", kind)])).schema.field(0).type
    column = form(pa.RecordBatch.from_arrays([array], names=["given"])).column(0)
    if column.type == shown or (pa.types.is_integer(column.type) and pa.types.is_integer(shown)):
        return array
    connection = parser()
    table = pa.table({"given": column, "shown": pa.nulls(len(column), shown)})
    relation = connection.from_arrow(table)
    have, wanted = relation.types
    if have == wanted:
        return array
    made = relation.project(f"cast(given as {wanted}) as made").to_arrow_table().column(0).combine_chunks()
    return made if isinstance(made, pa.Array) else pa.concat_arrays(made.chunks)


def from_sql(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of the types that SQL shows in the type that is stored, each the same value."""
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type) and array.type.num_fields == kind.num_fields:
        children = [from_sql(array.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(
            children, fields=list(kind), mask=array.is_null() if array.null_count else None
        )
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return with_entries(
            array,
            kind,
            lambda keys: from_sql(keys, kind.key_type),
            lambda items: from_sql(items, kind.item_type),
        )
    if is_list(kind) and is_list(array.type):
        return _list_of_nulls(array, kind) if pa.types.is_null(kind.value_type) else _list_from_sql(array, kind)
    if pa.types.is_time(kind) and pa.types.is_string(array.type):
        return _time_of_text(array, kind)
    if pa.types.is_duration(kind) and array.type == pa.month_day_nano_interval():
        return _duration_of_interval(array, kind)
    if pa.types.is_floating(kind) and (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        return _floats(array, kind)
    return array.cast(kind)


def _floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return numbers as floats; only floats may lose digits, as everywhere, but none becomes infinite."""
    if pa.types.is_float16(array.type) or pa.types.is_float16(kind):
        values = array.to_numpy(zero_copy_only=False).astype(np.float64)
        # Arrow has no rounding cast from doubles to halves of every width.
        mask = array.is_null().to_numpy(zero_copy_only=False)
        narrowed = pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=mask)
    else:
        narrowed = array.cast(kind)
    was = np.isfinite(array.to_numpy(zero_copy_only=False).astype(np.float64))
    now = np.isfinite(narrowed.to_numpy(zero_copy_only=False).astype(np.float64))
    if (was & ~now).any():
        row = int(np.flatnonzero(was & ~now)[0])
        raise pa.ArrowInvalid(f"{array[row]} in row {row} is too large for {kind}")
    return narrowed


def _time_of_text(array: pa.Array, kind: pa.DataType) -> pa.Array:
    parts = pc.extract_regex(array, r"^(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,9}))?$")
    if parts.null_count > array.null_count:
        raise pa.ArrowInvalid(f"a time of day is given as 12:34:56.789, got {array.filter(parts.is_null())[0]}")
    # `flatten` has a null for each part of a null; the fields themselves have empty texts there.
    *texts, digits = parts.flatten()
    seconds = [text.cast(pa.int64()) for text in texts]
    fraction = pc.utf8_rpad(pc.fill_null(digits, "0"), width=9, padding="0").cast(pa.int64())
    whole = pc.add(pc.add(pc.multiply(seconds[0], 3600), pc.multiply(seconds[1], 60)), seconds[2])
    nanos = pc.add(pc.multiply(whole, 1_000_000_000), fraction)
    return nanos.cast(pa.time64("ns")).cast(kind)


_INTERVAL = np.dtype([("months", np.int32), ("days", np.int32), ("nanos", np.int64)])
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_SECONDS_OF_DAY = 86_400


def _duration_of_interval(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return durations of what SQL shows them as; a day has 24 hours, and a month no length."""
    # Nulls may have anything in their places.
    known = array.is_valid().to_numpy(zero_copy_only=False)
    view = np.frombuffer(array.buffers()[1] or b"", dtype=_INTERVAL)[array.offset :][: len(array)]
    parts = np.where(known, view, np.zeros((), dtype=_INTERVAL))
    whole, left = np.divmod(parts["nanos"], _NANOS[kind.unit])
    per_day = _SECONDS_OF_DAY * (_NANOS["s"] // _NANOS[kind.unit])
    total = parts["days"].astype(np.int64) * per_day + whole
    # In floats only to see where the sum of integers went round.
    far = abs(parts["days"].astype(np.float64) * per_day + whole) > np.iinfo(np.int64).max / 2
    bad = (parts["months"] != 0) | (left != 0) | far
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise pa.ArrowInvalid(f"{array[row]} in row {row} is not a whole number of {kind.unit}; months have no length")
    return pa.array(total, mask=~known).view(kind)


def _list_of_nulls(array: Any, kind: Any) -> pa.Array:
    """Return lists of nothing but nulls, of which DuckDB gives fewer than there are."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    mask = array.is_null() if array.null_count else None
    plain = pa.ListArray.from_arrays(pa.array(offsets), pa.nulls(int(offsets[-1])), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        return array.cast(kind)
    return plain.cast(kind)


def _list_from_sql(array: Any, kind: Any) -> pa.Array:
    same_offsets = array.type.id == kind.id and getattr(array.type, "list_size", 0) == getattr(kind, "list_size", 0)
    if same_offsets:
        return with_elements(array, kind, lambda values: from_sql(values, kind.value_type))
    element = pa.list_(kind.value_field)
    plain = array.cast(pa.list_(array.type.value_field))
    return with_elements(plain, element, lambda values: from_sql(values, kind.value_type)).cast(kind)
