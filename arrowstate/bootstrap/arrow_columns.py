"""The columns of a table of Arrow: which types fit which, and batches without encodings of columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.encodings import plain_column, plain_type
from arrowstate.schema.evolution import widens
from arrowstate.schema.types import cast_by_names, is_bytes, is_list, is_text


class ArrowColumns:
    """The columns of a table by name, in upper and lower case as they are; `what` has them, messages say."""

    int64_name = "int64"

    def __init__(self, schema: pa.Schema, what: str = "table") -> None:
        self.schema = schema
        self._what = what

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return bool(self._places(name))

    def name_of(self, name: str) -> str:
        """Return the name of a column; one that is not there is refused."""
        self.type_of(name)
        return name

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column, without dictionaries and views."""
        return plain_type(self._given(name))

    def fits(self, name: str, kind: pa.DataType) -> bool:
        """Whether a column has values of a type, or narrower ones, and Arrow converts between the two."""
        given = self.type_of(name)
        if not _fits(given, kind):
            return False
        try:
            cast_by_names(pa.nulls(1, given), kind)
        except pa.ArrowException:
            return False
        return True

    def is_time(self, name: str) -> bool:
        """Whether a column has timestamps, or whole numbers that count milliseconds."""
        kind = self.type_of(name)
        return pa.types.is_timestamp(kind) or kind in (pa.int32(), pa.int64())

    def is_sortable(self, name: str) -> bool:
        """Whether rows can be sorted by a column."""
        kind = self.type_of(name)
        if pa.types.is_nested(kind):
            return False
        try:
            pc.sort_indices(pa.array([], kind))
        except pa.ArrowException:
            return False
        return True

    def fields_of(self, name: str) -> ArrowColumns | None:
        """Return the fields of a struct column as columns, None for a column of another type."""
        kind = self.type_of(name)
        return ArrowColumns(pa.schema(list(kind)), f"column {name!r}") if pa.types.is_struct(kind) else None

    def type_text(self, name: str) -> str:
        """Return the type of a column as messages have it."""
        return str(self._given(name))

    def described(self) -> str:
        """Return all columns with their types as messages have them."""
        return ", ".join(f"{field.name} {field.type}" for field in self.schema)

    def _places(self, name: str) -> list[int]:
        places: list[int] = self.schema.get_all_field_indices(name)
        return places

    def _given(self, name: str) -> pa.DataType:
        places = self._places(name)
        if not places:
            raise InvalidInputError(f"the {self._what} has no column {name!r}; it has {', '.join(self.schema.names)}")
        if len(places) > 1:
            raise InvalidInputError(f"the {self._what} has {len(places)} columns {name!r}; rename all but one")
        return self.schema.field(places[0]).type


def smaller_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain type that has the same values without large offsets, at any depth."""
    types = pa.types
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return pa.string() if types.is_large_string(kind) else pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(smaller_type(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(smaller_type(field.type)) for field in kind])
    return kind


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose columns have the types of `plain_type`."""
    columns = [plain_column(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _fits(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether each value of a type is one of another; units of time and sizes may differ, which each value tells."""
    types = pa.types
    if given == kind or types.is_null(given):
        return True
    if types.is_struct(given) and types.is_struct(kind):
        inner = {field.name: field.type for field in given}
        wanted = {field.name: field.type for field in kind}
        return inner.keys() == wanted.keys() and all(_fits(inner[name], wanted[name]) for name in wanted)
    if types.is_map(given) and types.is_map(kind):
        return _fits(given.key_type, kind.key_type) and _fits(given.item_type, kind.item_type)
    if is_list(given) and is_list(kind):
        return _fits(given.value_type, kind.value_type)
    if types.is_nested(given) or types.is_nested(kind):
        return False
    if types.is_timestamp(given) and types.is_timestamp(kind):
        return (given.tz is None) == (kind.tz is None)
    same = (is_text, is_bytes, types.is_date, types.is_time, types.is_duration)
    if any(is_one(given) and is_one(kind) for is_one in same):
        return not types.is_fixed_size_binary(kind)
    if types.is_integer(given) and types.is_floating(kind):
        # As many bits of the integer as the float has for its digits.
        return given.bit_width <= {16: 8, 32: 16, 64: 32}[kind.bit_width]
    number = (types.is_integer, types.is_floating, types.is_decimal)
    return any(is_one(given) and is_one(kind) for is_one in number) and widens(given, kind)
