"""How the bytes of messages become columns, and columns become bytes.

A format decodes a batch of messages at once, and says of those that do not fit what is wrong with each: nothing raises
for a message.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.functions.dead_letters import tried
from arrowstate.runtime.kafka.flat_json import decode_objects, object_plan
from arrowstate.schema.conversion import with_elements
from arrowstate.schema.nanoseconds import nanoseconds_as_text, with_whole_offsets
from arrowstate.schema.times import times_of_texts, wraps_times
from arrowstate.schema.types import check_type, check_values, python_values, type_parts

Bytes: TypeAlias = Sequence[bytes | None]
"""The keys or values of messages; None for a message without one."""

Decode: TypeAlias = Callable[[Bytes], tuple[pa.RecordBatch, dict[int, Exception]]]
"""Returns a row for each message, all null for one without a value or one that does not fit, and these errors."""

Encode: TypeAlias = Callable[[pa.RecordBatch], Bytes]


class Format(ABC):
    """How the key or the value of a message is made of columns. It is pickled.

    The package has `RawFormat`, `JsonFormat`, `AvroFormat` and `ProtobufFormat`. Derive from this class for others.

    Examples
    --------
    Numbers as text:

    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Format
    >>> class Number(Format):
    ...     schema = pa.schema({"n": pa.int64()})
    ...
    ...     def decoder(self):
    ...         def decode(messages):
    ...             wrong = {at: ValueError(f"{text!r} is no number") for at, text in enumerate(messages)
    ...                      if text is not None and not text.isdigit()}
    ...             numbers = [None if at in wrong or text is None else int(text) for at, text in enumerate(messages)]
    ...             return pa.record_batch([pa.array(numbers, pa.int64())], schema=self.schema), wrong
    ...         return decode
    ...
    ...     def encoder(self, schema, subject):
    ...         return lambda rows: [str(n).encode() for n in rows["n"].to_pylist()]
    >>> rows, wrong = Number().decoder()([b"7", b"x", None])
    >>> rows.to_pydict(), wrong
    ({'n': [7, None, None]}, {1: ValueError("b'x' is no number")})
    """

    schema: pa.Schema | None = None
    """The columns. For a sink it may be None: then all columns that nothing else of the message takes."""

    @abstractmethod
    def decoder(self) -> Decode:
        """Return a function that decodes messages, for one reader.

        It takes the bytes of many messages, None for one that has none. It returns a record batch in the columns of
        `schema` with a row for each message, and the exceptions of messages that do not fit, by their places; their
        rows are null, and so is the row of a message without bytes.
        """

    @abstractmethod
    def encoder(self, schema: pa.Schema, subject: str) -> Encode:
        """Return a function that makes messages of record batches, for one sink.

        `schema` are the columns of these batches. `subject` is the name under which a registry has the schema of the
        messages: the topic with `-key` or `-value`.

        Raises
        ------
        InvalidInputError
            If messages cannot be made of these columns.
        """


class RawFormat(Format):
    """The bytes as they are, or as text, in one column.

    Parameters
    ----------
    name : str, default "value"
        The column.
    type : pa.DataType, default pa.binary()
        `pa.binary()`, or `pa.string()` for UTF-8; bytes that are not UTF-8 do not fit then.

    Raises
    ------
    InvalidInputError
        If it is another type.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import RawFormat
    >>> RawFormat("user", pa.string()).schema
    user: string
    """

    schema: pa.Schema

    def __init__(self, name: str = "value", type: pa.DataType | None = None) -> None:
        type = pa.binary() if type is None else type
        if type not in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
            raise InvalidInputError(f"RawFormat needs a binary or string type, got {type}")
        self.schema = pa.schema({name: type})

    def decoder(self) -> Decode:
        """Return a function that decodes messages."""
        schema = self.schema
        (field,) = schema
        is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)

        def decode(messages: Bytes) -> tuple[pa.RecordBatch, dict[int, Exception]]:
            wrong: dict[int, Exception] = {}
            column = pa.array(messages, pa.large_binary() if field.type == pa.large_string() else pa.binary())
            if is_text:
                try:
                    column = column.cast(field.type)
                except pa.ArrowInvalid:
                    column, wrong = _texts(messages, field.type)
            return pa.RecordBatch.from_arrays([column.cast(field.type)], schema=schema), wrong

        return decode

    def encoder(self, schema: pa.Schema, subject: str) -> Encode:  # noqa: ARG002
        """Return a function that makes messages."""
        _, (field,) = check_columns(self.schema, schema, "RawFormat")
        if field.type not in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
            raise InvalidInputError(f"RawFormat needs binary or string, and column {field.name!r} is {field.type}")
        kind = pa.large_binary()

        def encode(rows: pa.RecordBatch) -> Bytes:
            column = rows.column(field.name)
            return column.cast(pa.binary() if field.type in (pa.binary(), pa.string()) else kind).to_pylist()

        return encode


class JsonFormat(Format):
    """A JSON object, with a column for each of its names.

    Names without a column are passed over, and a name that is missing is null. A value of another type does not fit:
    a number in quotes is no number. Timestamps, dates and times are texts in ISO 8601, whose digits are cut to those of
    the column; decimals are texts or numbers, bytes are base64. A sink writes maps as objects, and null for a number
    that is not finite. It writes times in UTC where the zone of the column has an offset with seconds, as many had
    before 1950.

    Parameters
    ----------
    schema : pa.Schema, optional
        The columns. A source needs them.

    Raises
    ------
    InvalidInputError
        When rows are read, if there is a column of a type that cannot be read from JSON, such as a map or a duration.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import JsonFormat
    >>> decode = JsonFormat(pa.schema({"user": pa.string(), "amount": pa.int64()})).decoder()
    >>> rows, wrong = decode([b'{"user": "ann", "amount": 3}', b'{"amount": "four"}'])
    >>> rows.to_pylist()[0], list(wrong)
    ({'user': 'ann', 'amount': 3}, [1])
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = None if schema is None else checked_columns("JsonFormat", schema)

    def decoder(self) -> Decode:
        """Return a function that decodes messages."""
        assert self.schema is not None
        return JsonDecoder(self.schema)

    def encoder(self, schema: pa.Schema, subject: str) -> Encode:  # noqa: ARG002
        """Return a function that makes messages."""
        names, _ = check_columns(self.schema, schema, "JsonFormat")
        encode = msgspec.json.Encoder(enc_hook=str).encode

        def encode_all(rows: pa.RecordBatch) -> Bytes:
            columns = [nanoseconds_as_text(with_whole_offsets(rows.column(name))) for name in names]
            try:
                return list(map(encode, python_values(pa.RecordBatch.from_arrays(columns, names=names))))
            except OF_MESSAGES as error:
                raise InvalidInputError(f"a row does not fit JSON: {error}") from error

        return encode_all


class JsonDecoder:
    """Decodes JSON objects: those of plain values with a kernel, others with Arrow's parser, all of a batch at once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        for field in schema:
            _check_readable(field.name, field.type, is_column=True)
        self._plan = object_plan(schema)
        self._options = _parse_options(schema, times_as=None)
        units = {part.unit for field in schema for part in type_parts(field.type) if pa.types.is_timestamp(part)}
        # The parser refuses finer digits than a unit has, so times that have them are read as texts.
        self._as_texts = _parse_options(schema, times_as=pa.string()) if units else None
        if "ns" in units and wraps_times():
            self._options, self._as_texts = self._as_texts, None

    def __call__(self, messages: Bytes) -> tuple[pa.RecordBatch, dict[int, Exception]]:
        """Return a row for each message, and the errors of those that do not fit."""
        rows = None if self._plan is None else decode_objects(messages, self._plan)
        if rows is not None:
            return rows, {}
        given = [b"{}" if message is None else message for message in messages] if None in messages else messages
        return in_parts(given, self._parsed, self._schema)

    def _parsed(self, messages: Sequence[bytes]) -> pa.RecordBatch:
        text = b"\n".join(messages)
        if not _are_objects(text, messages):
            messages = [message.strip() for message in messages]
            text = b"\n".join(messages)
            if not _are_objects(text, messages):
                raise ValueError("it is no JSON object")
        # The parser does not look whether a text is UTF-8.
        text.decode()
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            rows = pyarrow.json.read_json(pa.BufferReader(text), options, self._options)
        except pa.ArrowInvalid:
            if self._as_texts is None:
                raise
            rows = pyarrow.json.read_json(pa.BufferReader(text), options, self._as_texts)
            # Who writes such digits once will do it again.
            self._options, self._as_texts = self._as_texts, None
        # Each message begins and ends as an object, so there are as many rows only if each is one.
        if rows.num_rows != len(messages):
            raise ValueError("it is more than one JSON object")
        columns = [check_values(_made(rows.column(field.name).combine_chunks(), field.type)) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=_nullable(self._schema))


def in_parts(
    messages: Sequence[Any], decode: Callable[[Sequence[Any]], pa.RecordBatch], schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, Exception]]:
    """Decode messages together with a function that raises for all if one does not fit; find those that do not."""
    parts: dict[int, pa.RecordBatch] = {}

    def attempt(start: int, end: int) -> None:
        parts[start] = decode(messages[start:end])

    wrong = tried(len(messages), attempt, _is_of_message)
    nullable = _nullable(schema)
    for place in wrong:
        parts[place] = nulls(1, nullable)
    if len(parts) == 1:
        return next(iter(parts.values())), wrong
    whole = pa.Table.from_batches([parts[place] for place in sorted(parts)], schema=nullable).combine_chunks()
    return (whole.to_batches() or [nulls(0, nullable)])[0], wrong


OF_MESSAGES = (ValueError, TypeError, LookupError, ArithmeticError, EOFError, pa.ArrowException)
"""What is raised for a message that does not fit."""


def _is_of_message(error: Exception) -> bool:
    """Whether the message is wrong, and not what it is read with, such as the password of a registry."""
    return isinstance(error, OF_MESSAGES) and not isinstance(error, ArrowStateError)


def _are_objects(text: bytes, messages: Sequence[bytes]) -> bool:
    """Whether each message begins with a brace and ends with one; `text` is all of them with a newline between."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    if not lengths.all():
        return False
    found = np.frombuffer(text, np.uint8)
    ends = np.cumsum(lengths + 1) - 2
    return bool((found[ends - lengths + 1] == ord("{")).all() and (found[ends] == ord("}")).all())


def _parse_options(schema: pa.Schema, *, times_as: pa.DataType | None) -> pyarrow.json.ParseOptions:
    """Return as which types columns are read."""

    def read_as(type: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(type):
            return times_as or pa.timestamp(_read_unit(type), type.tz)
        if pa.types.is_list(type):
            return pa.list_(read_as(type.value_type))
        if pa.types.is_struct(type):
            return pa.struct([pa.field(field.name, read_as(field.type)) for field in type])
        return pa.string() if _is_text(type) else type

    # The parser refuses a null in a column that is declared without nulls, and in a field within one even where the
    # value around it is null.
    read = pa.schema([pa.field(field.name, read_as(field.type)) for field in schema])
    return pyarrow.json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")


def _is_text(type: pa.DataType) -> bool:
    """Whether a column is read as text: the parser has no word for bytes, and takes dates and times for numbers."""
    return (
        pa.types.is_date(type) or pa.types.is_time(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type)
    )


def _made(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Return a column as it is declared."""
    if column.type == type:
        return column
    if pa.types.is_struct(type):
        parts = [_made(column.field(number), field.type) for number, field in enumerate(type)]
        absent = column.is_null()
        if column.null_count:
            parts = [
                part if field.nullable else _without_nulls_at(absent, part, field)
                for part, field in zip(parts, type, strict=True)
            ]
        return pa.StructArray.from_arrays(parts, fields=list(type), mask=absent)
    if pa.types.is_list(type):
        return with_elements(column, type, lambda items: _made(items, type.value_type))
    if pa.types.is_timestamp(type):
        return _cut(_moments(column, type) if pa.types.is_string(column.type) else column, type)
    if pa.types.is_date(type):
        return column.cast(type)
    if pa.types.is_time(type):
        texts = _with_digits(column, type)
        moments = pc.binary_join_element_wise("1970-01-01T", texts, "").cast(pa.timestamp(_read_unit(type)))
        return _cut(moments, pa.timestamp(type.unit)).cast(type)
    return pa.array([text and base64.b64decode(text, validate=True) for text in column.to_pylist()], type)


def _without_nulls_at(absent: pa.Array, part: pa.Array, field: pa.Field) -> pa.Array:
    """Return a part with some value where the struct is null: Parquet takes no null there, though nobody sees it."""
    some = pa.array([None], pa.struct([field])).field(0)[0]
    return pc.if_else(absent, some, part)


_UNITS = {"s": "second", "ms": "millisecond"}


def _cut(moments: pa.Array, type: pa.DataType) -> pa.Array:
    """Return timestamps without the digits that the unit of a type does not have."""
    if type.unit in _UNITS:
        moments = pc.floor_temporal(moments, unit=_UNITS[type.unit])
    return moments.cast(type)


def _read_unit(type: pa.DataType) -> str:
    """Return the unit in which times are read from text."""
    return "ns" if type.unit == "ns" else "us"


def _with_digits(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Return times with no more digits than the unit has in which they are read."""
    digits = 9 if type.unit == "ns" else 6
    return pc.replace_substring_regex(texts, rf"([.]\d{{{digits}}})\d+", r"\1")


def _moments(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Return the moments that texts name; those without a zone are in UTC, as for Arrow's parser of JSON."""
    texts = _with_digits(texts, type)
    has_zone = pc.match_substring_regex(texts, r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
    unit = _read_unit(type)
    zoned = times_of_texts(pc.if_else(has_zone, texts, None), pa.timestamp(unit, "UTC"))
    plain = times_of_texts(pc.if_else(has_zone, None, texts), pa.timestamp(unit)).cast(zoned.type)
    return pc.coalesce(zoned, plain).cast(pa.timestamp(unit, type.tz))


_NEAREST = {
    pa.float16().id: "pa.float32()",
    pa.large_list(pa.null()).id: "pa.list_(...)",
    pa.binary(1).id: "pa.binary()",
}
"""What is read in the place of types that the parser does not have."""


def _check_readable(name: str, type: pa.DataType, *, is_column: bool = False) -> None:
    """Refuse a type that cannot be read from JSON."""
    if type.id in _NEAREST:
        raise InvalidInputError(
            f"JsonFormat cannot read {name!r} as {type}; read it as {_NEAREST[type.id]} and convert it after that"
        )
    if pa.types.is_list(type):
        _check_readable(name, type.value_type)
    elif pa.types.is_struct(type):
        for field in type:
            _check_readable(f"{name}.{field.name}", field.type)
    elif pa.types.is_nested(type) or pa.types.is_duration(type) or (_is_text(type) and not is_column):
        raise InvalidInputError(
            f"JsonFormat cannot read {name!r} as {type}; read it as pa.string() or pa.int64() and convert it after that"
        )


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _texts(messages: Bytes, type: pa.DataType) -> tuple[pa.Array, dict[int, Exception]]:
    """Return messages as texts, those that are not UTF-8 as errors."""
    texts: list[str | None] = []
    wrong: dict[int, Exception] = {}
    for place, message in enumerate(messages):
        try:
            texts.append(None if message is None else message.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            wrong[place] = error
    return pa.array(texts, type), wrong


def checked_columns(name: str, schema: object) -> pa.Schema:
    """Return the schema of a format if it is one that a job can have."""
    if not isinstance(schema, pa.Schema):
        raise InvalidInputError(f"{name} needs a pyarrow.Schema, got {type(schema).__name__}")
    for field in schema:
        check_type(field.type, f"column {field.name!r} of {name}")
    return schema.remove_metadata()


def check_columns(wanted: pa.Schema | None, given: pa.Schema, name: str) -> tuple[list[str], list[pa.Field]]:
    """Return the columns that a format takes of the rows of a sink, which must have them."""
    names = given.names if wanted is None else wanted.names
    missing = [column for column in names if column not in given.names]
    if missing:
        raise InvalidInputError(f"{name} needs column {missing[0]!r}; the rows have {', '.join(given.names)}")
    if not names:
        raise InvalidInputError(f"{name} has nothing to write: none of {', '.join(given.names)} is a field of it")
    return names, [given.field(column) for column in names]


def nulls(count: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows without values."""
    return pa.RecordBatch.from_arrays([pa.nulls(count, field.type) for field in schema], schema=schema)
