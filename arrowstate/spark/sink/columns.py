"""Which columns of a stream a sink takes, in which types, and where each state finds its own among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from arrowstate.bootstrap.columns import is_counted
from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.aggregates import BuiltIn
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.keys import to_type
from arrowstate.schema.layout import StateLayout, key_schema_of, state_document
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.routing import quoted
from arrowstate.spark.schemas import arrow_type, is_binary, spark_type, widens
from arrowstate.spark.sink.plan import StateInput
from arrowstate.state.folds.aggregates import aggregate_of
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["KINDS", "StreamColumns", "state_input"]

KINDS = (
    ValueStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
)
"""The kinds of state that a stream is folded into."""

Source: TypeAlias = str | tuple[str, str]
"""A column, or a field of a struct column."""

_WATERMARK_DELAY = "spark.watermarkDelayMs"
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_ORDERED = (*_WHOLE, FloatType, DoubleType, DecimalType, DateType, TimestampType, TimestampNTZType, StringType)


class StreamColumns:
    """The columns of a stream, and those of them that the sink takes, in order."""

    def __init__(self, stream: DataFrame) -> None:
        self.found = FrameColumns.of(stream)
        self._numbers: dict[tuple[str, str], int] = {}
        self._names: set[str] = set()
        self.taken: list[Column] = []

    def take(self, source: Source, wanted: DataType) -> int:
        """Take a column, widened to a type, and return its number."""
        name, column, given = self._find(source)
        if given.simpleString() != wanted.simpleString():
            column = column.cast(wanted)
        return self._take(name, wanted.simpleString(), column)

    def take_presence(self, source: Source) -> int:
        """Take 1 where a column has a value and null where it has none, which is all that counting needs."""
        name, column, _ = self._find(source)
        return self._take(name, "presence", sf.when(column.isNotNull(), sf.lit(1).cast("tinyint")))

    def take_values(self, source: Source, field: pa.Field, where: str) -> int:
        """Take a column in the type in which Spark holds the values of a field, after checking that they fit."""
        _, _, given = self._find(source)
        wanted = spark_type(field.type)
        if not widens(given, wanted):
            raise ValueTypeError(where, str(field.type), given.simpleString())
        try:
            to_type(pa.array([], arrow_type(wanted)), field.type)
        except (pa.ArrowException, TypeError) as error:
            raise ValueTypeError(where, str(field.type), f"{given.simpleString()} ({error})") from None
        return self.take(source, wanted)

    def sources(self, descriptor: StateDescriptor, fields: Sequence[pa.Field], chosen: Sequence[str]) -> list[Source]:
        """Return where the fields of a struct type are: in columns of their own, or in one that has all of them.

        `fields` are those of the layout, and `chosen` what a caller named for them, if anything.
        """
        names: list[Source] = [*(chosen or (field.name for field in fields))]
        inner = list(descriptor.type) if pa.types.is_struct(descriptor.type) else []
        if not inner or len(chosen) > 1 or (not chosen and all(self.found.find(field.name) for field in fields)):
            return names
        column = self.found.find(chosen[0] if chosen else descriptor.name)
        if column is None or not isinstance(column.dataType, StructType):
            return names
        if chosen and len(inner) == 1 and widens(column.dataType, spark_type(inner[0].type)):
            return names
        return [(column.name, part.name) for part in inner]

    def _find(self, source: Source) -> tuple[str, Column, DataType]:
        """Return a column, or the field of a struct column, with its name and its type."""
        if isinstance(source, str):
            return source, sf.col(quoted(source)), self.found.type_of(source)
        name, part = source
        fields = self.found.type_of(name)
        assert isinstance(fields, StructType), "other columns have no fields"
        kind = FrameColumns(fields, f"struct column {name!r}").type_of(part)
        return f"{quoted(name)}.{quoted(part)}", sf.col(quoted(name)).getField(part), kind

    def take_sequence(self, sequence: Sequence[str]) -> list[int]:
        """Take the columns that order rows."""
        numbers = []
        for name in sequence:
            kind = self.found.type_of(name)
            if not isinstance(kind, _ORDERED) or (isinstance(kind, StringType) and not is_binary(kind)):
                raise InvalidInputError(
                    f"sequence column {name!r} must be a number, date, timestamp or string, got {kind.simpleString()}"
                )
            numbers.append(self.take(name, kind))
        return numbers

    def take_operation(self, name: str) -> int:
        """Take the column that says what each row does."""
        kind = self.found.type_of(name)
        if not isinstance(kind, StringType):
            raise InvalidInputError(f"operation column {name!r} must be a string, got {kind.simpleString()}")
        return self.take(name, StringType())

    def take_timestamp(self, name: str) -> tuple[int, int]:
        """Take the event times of rows, in milliseconds or as timestamps; return (number, delay of the watermark)."""
        field = self.found.field(name)
        kind = field.dataType
        if not isinstance(kind, (*_WHOLE, TimestampType, TimestampNTZType)):
            raise InvalidInputError(
                f"timestamp column {name!r} must be a timestamp, or a whole number of milliseconds since 1970, got "
                f"{kind.simpleString()}"
            )
        number = self.take(name, LongType() if isinstance(kind, _WHOLE) else kind)
        return number, int(field.metadata.get(_WATERMARK_DELAY, 0))

    def _take(self, name: str, form: str, column: Column) -> int:
        number = self._numbers.setdefault((name, form), len(self.taken))
        if number == len(self.taken):
            # The key is routed by name, so a second form of a column must not have the same one, in any case.
            free = name if name and name.lower() not in self._names else f"{name} ({form})"
            while free.lower() in self._names:
                free += "'"
            self._names.add(free.lower())
            self.taken.append(column.alias(free))
        return number


def state_input(
    descriptor: StateDescriptor,
    key: Sequence[FieldDocument],
    columns: StreamColumns,
    stored: Mapping[str, StateDocument],
    chosen: str | Sequence[str] | None,
    order: Sequence[StateDescriptor],
) -> StateInput:
    """Say where the rows of a state come from, after checking their types.

    `chosen` are the columns, if not by name; `order` are the states that keep the sequences of its changes.
    """
    _check_code(descriptor)
    layout = StateLayout.of(key_schema_of(key), descriptor)
    # What an aggregating state stores is not what it is given.
    values = StateLayout(layout.key, layout.name, descriptor.type, layout.namespace, layout.user_key_type).value_fields
    keys = list(layout.entry_fields[-1:]) if isinstance(descriptor, MapStateDescriptor) else []
    given = [chosen] if isinstance(chosen, str) else list(chosen or ())
    sources = columns.sources(descriptor, values, given[len(keys) :])
    sources = [*(given[: len(keys)] or [field.name for field in keys]), *sources]
    named = [*keys, *values]
    if len(sources) != len(named) or (chosen is not None and len(given) <= len(keys)):
        raise _misnamed(descriptor.name, named, given)
    namespace = [
        columns.take_values(field.name, field, f"{descriptor.name}.{field.name}") for field in layout.namespace_fields
    ]
    user_key = None
    if isinstance(descriptor, MapStateDescriptor):
        user_key = columns.take_values(sources[0], named[0], f"{descriptor.name}.{named[0].name}")
    numbers = []
    inner = list(descriptor.type) if pa.types.is_struct(descriptor.type) else [None]
    for source, field, part in zip(sources[-len(values) :], values, inner, strict=True):
        if is_counted(descriptor, None if part is None else part.name):
            numbers.append(columns.take_presence(source))
        else:
            where = descriptor.name if part is None else f"{descriptor.name}.{part.name}"
            numbers.append(columns.take_values(source, field, where))
    documents = [
        state_document(item, StateLayout.of(key_schema_of(key), item), key, stored.get(item.name))
        for item in (descriptor, *order)
    ]
    return StateInput(state=documents[0], order=documents[1:], columns=numbers, namespace=namespace, user_key=user_key)


def _check_code(descriptor: StateDescriptor) -> None:
    """Refuse what would need code of the user's in the workers: the plan is text, and a store keeps names only."""
    called = None
    if isinstance(descriptor, ReducingStateDescriptor):
        called = descriptor.callable_name
    elif isinstance(descriptor, AggregatingStateDescriptor):
        given = descriptor.declared
        if isinstance(given, BuiltIn):
            # A package that a sketch needs is missed here and not in a task.
            aggregate_of(given, descriptor.type)
        else:
            called = given.name
    if called is not None:
        raise InvalidInputError(
            f"state {descriptor.name!r}: a sink is a plan without code, and a store keeps the name of {called} only; "
            "a stream is folded by built-in reducers and aggregates"
        )


def _misnamed(state: str, named: Sequence[pa.Field], given: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(
        f"columns of state {state!r} must name the columns for {', '.join(field.name for field in named)}, in this "
        f"order, or a struct column with the fields of the value; got {', '.join(map(repr, given)) or 'none'}"
    )
