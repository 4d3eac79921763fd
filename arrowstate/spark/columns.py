"""Columns of streams and tables: found as Spark finds them, and checked.

A driver finds and checks columns; a task has them as Arrow arrays, of which
`arrowstate.bootstrap.columns` makes values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.keys import to_type
from arrowstate.schema.types import CONVERSION_ERRORS
from arrowstate.spark.schemas import arrow_type, spark_type, widens

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["FrameColumns", "columns_as", "typed"]


class FrameColumns:
    """The columns of a stream or a table, by name; `what` it is, messages say."""

    int64_name = "bigint"

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

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return self.find(name) is not None

    def fits(self, name: str, kind: pa.DataType) -> bool:
        """Whether a column has values of a type, or narrower ones, and Arrow converts between the two."""
        given = self.type_of(name)
        if not widens(given, spark_type(kind)):
            return False
        try:
            pa.array([], arrow_type(given)).cast(kind)
        except (pa.ArrowException, InvalidInputError):
            return False
        return True

    def is_time(self, name: str) -> bool:
        """Whether a column has timestamps, or whole numbers that count milliseconds."""
        return self.type_text(name) in ("timestamp", "timestamp_ntz", "bigint", "int")

    def fields_of(self, name: str) -> FrameColumns | None:
        """Return the fields of a struct column as columns, None for a column of another type."""
        kind = self.type_of(name)
        if kind.typeName() != "struct":
            return None
        return FrameColumns(kind, case_sensitive=True)  # type: ignore[arg-type]

    def type_text(self, name: str) -> str:
        """Return the type of a column as messages have it."""
        return self.type_of(name).simpleString()

    def described(self) -> str:
        """Return all columns with their types as messages have them."""
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema)


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
