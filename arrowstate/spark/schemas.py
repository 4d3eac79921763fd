"""Spark types and Arrow types: which stands for which, and which may be widened on the way in.

Timestamps arrive in the session's time zone and leave in UTC; the instant is the same. A column may be widened
where no value can change (int to bigint, float to double, int to double); every other difference is the
caller's to decide, and refused.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from arrowstate.errors import InvalidInputError

__all__ = [
    "arrow_type",
    "batch_for_spark",
    "is_binary",
    "key_text",
    "schema_for_spark",
    "spark_schema",
    "spark_type",
    "widens",
]

_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
_LARGEST_PRECISION = 38
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


def arrow_type(spark: DataType) -> pa.DataType:
    """Return the Arrow type in which a Spark column is kept: timestamps in UTC, no large offsets.

    Raises
    ------
    InvalidInputError
        If Spark has no Arrow form for the type, or the type is a string with a collation, whose equal values
        differ in their bytes.
    """
    if isinstance(spark, StringType) and not is_binary(spark):
        raise InvalidInputError(f"{spark.simpleString()} is not kept: cast it to a string without collation")
    try:
        return _nullable(_to_arrow(spark))
    except Exception as error:
        raise InvalidInputError(f"{spark.simpleString()} has no Arrow form in Spark: {error}") from error


def spark_type(arrow: pa.DataType) -> DataType:
    """Return the Spark type that holds every value of an Arrow type.

    Unsigned integers become the next wider signed type, 64-bit ones decimal(20, 0).

    Raises
    ------
    InvalidInputError
        If Spark has no such type.
    """
    plain: dict[pa.DataType, DataType] = {
        pa.uint8(): ShortType(),
        pa.uint16(): IntegerType(),
        pa.uint32(): LongType(),
        pa.uint64(): DecimalType(20, 0),
        pa.float16(): FloatType(),
        pa.date64(): DateType(),
    }
    if arrow in plain:
        return plain[arrow]
    types = pa.types
    if types.is_decimal(arrow):
        if arrow.precision > _LARGEST_PRECISION or not 0 <= arrow.scale <= arrow.precision:
            raise InvalidInputError(f"Spark has no decimal like {arrow}; its largest precision is 38")
        return DecimalType(arrow.precision, arrow.scale)
    if types.is_struct(arrow):
        return StructType([StructField(field.name, spark_type(field.type), True) for field in arrow])
    if types.is_map(arrow):
        return MapType(spark_type(arrow.key_type), spark_type(arrow.item_type), True)
    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        return ArrayType(spark_type(arrow.value_type), True)
    if types.is_time32(arrow):
        arrow = pa.time64("us")
    try:
        return from_arrow_type(arrow)
    except Exception as error:
        raise InvalidInputError(f"Spark has no type for {arrow}: {error}") from error


def widens(given: DataType, wanted: DataType) -> bool:
    """Whether a column may stand where another type is wanted, because it is equal or no value changes.

    Examples
    --------
    >>> widens(IntegerType(), LongType()), widens(LongType(), IntegerType()), widens(LongType(), FloatType())
    (True, False, False)
    """
    # The simple string leaves out which parts may be null; a store keeps nulls anywhere inside a value.
    if given.simpleString() == wanted.simpleString():
        return True
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return whole and wanted.scale >= given.scale
    return wanted.simpleString() in _WIDER.get(given.simpleString(), ())


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema for the columns of a table; every column may be null, as in every Spark source."""
    return StructType([StructField(field.name, spark_type(field.type), True) for field in schema])


def schema_for_spark(spark: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark demands of a Python source with this schema, to the last detail."""
    return pa.schema([pa.field(field.name, _to_arrow(field.dataType), True) for field in spark])


def is_binary(spark: StringType) -> bool:
    """Whether texts are equal where their bytes are; PySpark 3.5 has no collations."""
    return not hasattr(spark, "isUTF8BinaryCollation") or spark.isUTF8BinaryCollation()


def _to_arrow(spark: DataType) -> pa.DataType:
    """Return what PySpark makes of a type, timestamps in UTC; before 4.2 they are so without being asked for."""
    return to_arrow_type(spark, **_IN_UTC)


def batch_for_spark(batch: pa.RecordBatch, target: pa.Schema, what: str) -> pa.RecordBatch:
    """Return a batch in the schema that Spark demands, its columns in the same order.

    Parameters
    ----------
    batch
        The rows.
    target
        The result of `schema_for_spark`.
    what
        What they are rows of, for messages.

    Raises
    ------
    InvalidInputError
        If a column holds a value that Spark's type cannot; the message names the column.
    """
    columns = []
    for field, column in zip(target, batch.columns, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"column {field.name!r} of {what} is {column.type} and holds a value that Spark's {field.type} "
                f"cannot: {error}; leave the column out with the option 'columns'"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=target)


def key_text(key: pa.Schema) -> str:
    """Return a key as messages have it."""
    return ", ".join(f"{field.name}: {field.type}" for field in key)


def _nullable(arrow: pa.DataType) -> pa.DataType:
    """The type with all inner fields nullable: what may be null inside is no part of what a state is."""
    types = pa.types
    if types.is_struct(arrow):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in arrow])
    if types.is_list(arrow):
        return pa.list_(_nullable(arrow.value_type))
    if types.is_map(arrow):
        return pa.map_(_nullable(arrow.key_type), _nullable(arrow.item_type))
    return arrow
