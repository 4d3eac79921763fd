"""Columns of streams and tables: found as Spark finds them, checked, and made into the values of states.

A driver finds and checks columns; a task has them as Arrow arrays, and puts the values together that states take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor
from arrowstate.schema.keys import to_type
from arrowstate.schema.types import CONVERSION_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["FrameColumns", "check_states", "columns_as", "is_counted", "milliseconds", "struct_values", "typed"]


class FrameColumns:
    """The columns of a stream or a table, by name; `what` it is, messages say."""

    def __init__(self, schema: StructType, what: str = "table", *, case_sensitive: bool = False) -> None:
        self.schema = schema
        self._what = what
        self._case_sensitive = case_sensitive

    @classmethod
    def of(cls, frame: DataFrame) -> FrameColumns:
        """Return the columns of a frame, found as its session finds them."""
        what = "stream" if frame.isStreaming else "table"
        sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        return cls(frame.schema, what, case_sensitive=sensitive)

    def find(self, name: str) -> StructField | None:
        """Return a column, None if there is none."""
        same = [
            field
            for field in self.schema
            if field.name == name or (not self._case_sensitive and field.name.lower() == name.lower())
        ]
        if len(same) > 1:
            raise InvalidInputError(f"the {self._what} has {len(same)} columns {name!r}; rename all but one")
        return same[0] if same else None

    def field(self, name: str) -> StructField:
        """Return a column that must be there."""
        found = self.find(name)
        if found is None:
            raise InvalidInputError(f"the {self._what} has no column {name!r}; it has {', '.join(self.schema.names)}")
        return found

    def name_of(self, name: str) -> str:
        """Return the name of a column as the frame has it."""
        return self.field(name).name

    def type_of(self, name: str) -> DataType:
        """Return the type of a column."""
        return self.field(name).dataType


def check_states(states: Any, kinds: tuple[type[StateDescriptor], ...], taken: str) -> None:
    """Refuse what is no list of states of these kinds with names of their own; `taken` says which kinds."""
    if isinstance(states, kinds) or not states:
        raise InvalidInputError("states must be a list of at least one descriptor")
    names: set[str] = set()
    for descriptor in states:
        if not isinstance(descriptor, kinds):
            raise InvalidInputError(f"{taken}, expected a descriptor of one, got {type(descriptor).__name__}")
        if descriptor.name.lower() in names:
            raise InvalidInputError(f"state names must differ in more than case, got {descriptor.name!r} twice")
        names.add(descriptor.name.lower())


def is_counted(descriptor: StateDescriptor, field: str | None) -> bool:
    """Whether a state counts the values of a field, None for a plain type; they may have any type then."""
    if not isinstance(descriptor, ReducingStateDescriptor):
        return False
    reduce = descriptor.reduce
    return (reduce.get(field or "") if isinstance(reduce, Mapping) else reduce) == "count"


def typed(column: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    """Return a column in a type that holds its values, or refuse it with a `ValueTypeError`."""
    try:
        return to_type(column, kind)
    except CONVERSION_ERRORS as error:
        raise ValueTypeError(where, str(kind), f"{column.type} ({error})") from None


def columns_as(columns: Sequence[pa.Array], schema: pa.Schema, what: str | None = None) -> pa.RecordBatch:
    """Return columns under the names and in the types of a schema; `what` they belong to is for messages."""
    of = "" if what is None else f"{what}."
    arrays = [typed(column, field.type, f"{of}{field.name}") for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def milliseconds(column: pa.Array) -> pa.Array:
    """Return times as milliseconds since 1970, rounded down, of timestamps or of whole milliseconds."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz)).view(pa.int64())


def struct_values(descriptor: StateDescriptor, columns: Sequence[pa.Array], names: Sequence[str]) -> pa.StructArray:
    """Return the values of a struct type, of its fields; a value of which all are null is null."""
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    if isinstance(descriptor, ReducingStateDescriptor) and not isinstance(descriptor.reduce, str):
        # Field by field, as in SQL: a row of nulls makes a group, and changes nothing in one that exists.
        return pa.StructArray.from_arrays(columns, fields=fields)
    absent = columns[0].is_null()
    for column in columns[1:]:
        absent = pc.and_(absent, column.is_null())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=absent)
