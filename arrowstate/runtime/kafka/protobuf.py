"""Messages in Protobuf, with the id of their schema before them where a registry is used."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.runtime.kafka.formats import (
    OF_MESSAGES,
    Bytes,
    Decode,
    Encode,
    Format,
    check_columns,
    checked_columns,
    in_parts,
)
from arrowstate.runtime.kafka.registry import HEADER, SchemaRegistry
from arrowstate.schema.conversion import with_children
from arrowstate.schema.types import python_values

_TYPES = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""By the number of a type in a descriptor; an enum is the name of its value."""

_FLOAT = 2
_MESSAGE = 11
_ENUM = 14
_TIMESTAMP = "google.protobuf.Timestamp"
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class ProtobufFormat(Format):
    """A Protobuf message, with a column for each of its fields.

    A field with presence (a message, `optional`, a part of a `oneof`) is null where it is not set; any other has its
    default then. A row has a value for one field of a `oneof` at most. Enums are the names of their values,
    `google.protobuf.Timestamp` is a timestamp in nanoseconds, for which a sink takes a time without a zone as one of
    UTC. Fields that the class does not know are passed over, as Protobuf says. So all messages of a topic should be
    of this class: in Confluent's form a message says which of its file it is, and that is passed over too, as
    Confluent's client for Python does.

    Parameters
    ----------
    message : type
        The class that `protoc` made. Slots get its descriptor, so they need not have its module.
    registry : SchemaRegistry, optional
        Whether messages have the id of their schema before them, in Confluent's form, and where a sink finds it: the
        newest schema of its subject, `<topic>-value` or `<topic>-key`, which must be registered.

    Raises
    ------
    MissingDependencyError
        If protobuf is not installed: `pip install 'arrowstate[kafka]'`.
    InvalidInputError
        If it is no class of messages, or a message is part of itself.

    Examples
    --------
    >>> from google.protobuf.type_pb2 import EnumValue
    >>> from arrowstate.runtime import ProtobufFormat
    >>> ProtobufFormat(EnumValue).schema.field("name")
    pyarrow.Field<name: string not null>
    """

    schema: pa.Schema

    def __init__(self, message: Any, *, registry: SchemaRegistry | None = None) -> None:
        try:
            from google.protobuf import descriptor_pb2
        except ImportError as error:
            raise MissingDependencyError("ProtobufFormat", "protobuf", "kafka") from error
        descriptor: Any = getattr(message, "DESCRIPTOR", None)
        if not isinstance(message, type) or not hasattr(descriptor, "fields"):
            raise InvalidInputError(f"ProtobufFormat needs a class of messages that protoc made, got {message!r}")
        files = descriptor_pb2.FileDescriptorSet()
        _add_file(descriptor.file, files, set())
        self.name: str = descriptor.full_name
        self._files: bytes = files.SerializeToString()
        self.registry = registry
        self.schema = checked_columns("ProtobufFormat", pa.schema(_fields(descriptor, ())))

    def decoder(self) -> Decode:
        """Return a function that decodes messages."""
        kind = self._class()
        values = _values_of(kind.DESCRIPTOR)
        has_id = self.registry is not None
        names = [field.name for field in kind.DESCRIPTOR.fields]
        schema = pa.schema([field.with_nullable(True) for field in self.schema])
        parse = kind.FromString

        def record(message: bytes | None) -> dict[str, Any]:
            if message is None:
                return {}
            return values(parse(message[_start(message) :] if has_id else message))

        def decode(messages: Sequence[bytes | None]) -> pa.RecordBatch:
            found = list(map(record, messages))
            columns = [
                pa.array([row.get(name) for row in found], field.type)
                for name, field in zip(names, schema, strict=True)
            ]
            return pa.RecordBatch.from_arrays(columns, schema=schema)

        from google.protobuf.message import DecodeError

        def told(messages: Sequence[bytes | None]) -> pa.RecordBatch:
            try:
                return decode(messages)
            except DecodeError as error:
                raise ValueError(f"DecodeError: {error}") from error

        return lambda messages: in_parts(messages, told, self.schema)

    def encoder(self, schema: pa.Schema, subject: str) -> Encode:
        """Return a function that makes messages; fields without a column are not set, so required ones need one."""
        kind = self._class()
        own = [name for name in self.schema.names if name in schema.names]
        check_columns(pa.schema([self.schema.field(name) for name in own]), schema, "ProtobufFormat")
        required = [field.name for field in kind.DESCRIPTOR.fields if field.is_required]
        missing = [name for name in required if name not in schema.names]
        if missing:
            raise InvalidInputError(
                f"{self.name} requires the field {missing[0]!r}, which needs a column; the rows have "
                f"{', '.join(schema.names)}"
            )

        @functools.cache
        def header() -> bytes:
            if self.registry is None:
                return b""
            return HEADER.pack(0, self.registry.latest(subject).id) + _indexes(kind.DESCRIPTOR)

        from google.protobuf.json_format import ParseError
        from google.protobuf.message import EncodeError

        def encode(rows: pa.RecordBatch) -> Bytes:
            made = []
            first = header()
            columns = [_in_parts_of_time(rows.column(name)) for name in own]
            try:
                for row in python_values(pa.RecordBatch.from_arrays(columns, names=own)):
                    message = kind()
                    _fill(message, row)
                    made.append(first + message.SerializeToString())
            except (*OF_MESSAGES, ParseError, EncodeError) as error:
                raise InvalidInputError(f"a row does not fit the message {self.name}: {error}") from error
            return made

        return encode

    def _class(self) -> Any:
        """Return the class of the messages, of a pool of its own."""
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(self._files).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(self.name))


def _add_file(file: Any, files: Any, known: set[str]) -> None:
    """Add a file, after those that it needs."""
    if file.name not in known:
        known.add(file.name)
        for other in file.dependencies:
            _add_file(other, files, known)
        file.CopyToProto(files.file.add())


def _fields(descriptor: Any, within: tuple[str, ...]) -> list[pa.Field]:
    if descriptor.full_name in within:
        raise InvalidInputError(f"message {descriptor.full_name} is part of itself, which is no column")
    within = (*within, descriptor.full_name)
    return [_field(field, within) for field in descriptor.fields]


def _field(field: Any, within: tuple[str, ...]) -> pa.Field:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_field(part, within).type for part in field.message_type.fields)
        return pa.field(field.name, pa.map_(key, value), nullable=False)
    if field.type == _MESSAGE:
        is_time = field.message_type.full_name == _TIMESTAMP
        kind = pa.timestamp("ns", "UTC") if is_time else pa.struct(_fields(field.message_type, within))
    elif field.type not in _TYPES:
        raise InvalidInputError(f"field {field.name!r} is a group, which is no column")
    else:
        kind = _TYPES[field.type]
    if field.is_repeated:
        return pa.field(field.name, pa.list_(kind), nullable=False)
    return pa.field(field.name, kind, nullable=field.has_presence)


def _values_of(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what makes a plain value of each field of a message."""
    parts = [
        (field.name, field.has_presence and not field.is_repeated, _value_of(field)) for field in descriptor.fields
    ]

    def values(message: Any) -> dict[str, Any]:
        return {
            name: make(getattr(message, name))
            for name, may_be_absent, make in parts
            if not may_be_absent or message.HasField(name)
        }

    return values


def _value_of(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        make = _one_of(field.message_type.fields_by_name["value"])
        return lambda value: [(key, make(value[key])) for key in value]
    make = _one_of(field)
    return (lambda value: list(map(make, value))) if field.is_repeated else make


def _one_of(field: Any) -> Callable[[Any], Any]:
    if field.type == _MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda value: value.ToNanoseconds()
        return _values_of(field.message_type)
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    return lambda value: value


def _in_parts_of_time(column: pa.Array, _: int = 0) -> pa.Array:
    """Return a column with its timestamps as Protobuf has them: seconds, and the nanoseconds of the last one."""
    if not pa.types.is_timestamp(column.type):
        return with_children(column, _in_parts_of_time)
    ticks = column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.int64()).fill_null(0).to_numpy()
    seconds, rest = np.divmod(ticks, _TICKS[column.type.unit])
    nanos = (rest * (_TICKS["ns"] // _TICKS[column.type.unit])).astype(np.int32)
    return pa.StructArray.from_arrays([seconds, nanos], names=["seconds", "nanos"], mask=column.is_null())


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    """Set fields; null leaves one as it is."""
    fields = message.DESCRIPTOR
    for name, value in row.items():
        if value is None:
            continue
        field = fields.fields_by_name.get(name) or fields.fields_by_camelcase_name.get(name)
        if field is None:
            raise ValueError(f"{fields.full_name} has no field {name!r}")
        of, group = field.message_type, field.containing_oneof
        if group is not None and (other := message.WhichOneof(group.name)) is not None:
            raise ValueError(
                f"{fields.full_name} has one of the fields of oneof {group.name!r}, and there are values for {other!r} "
                f"and {field.name!r}"
            )
        if of is not None and of.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), of.fields_by_name["value"], value)
        elif of is not None and field.is_repeated:
            target = getattr(message, field.name)
            for item in value:
                _fill_message(target.add(), item)
        elif of is not None:
            target = getattr(message, field.name)
            target.SetInParent()
            _fill_message(target, value)
        elif field.is_repeated:
            getattr(message, field.name).extend(_plain(field, item) for item in value)
        else:
            setattr(message, field.name, _plain(field, value))


def _fill_map(target: Any, field: Any, values: Mapping[Any, Any]) -> None:
    for key, value in values.items():
        if field.message_type is None:
            target[key] = _plain(field, value)
        else:
            _fill_message(target[key], value)


def _fill_message(message: Any, value: Any) -> None:
    from google.protobuf.json_format import ParseDict

    if value is None:
        raise ValueError(f"a null is no element, and {message.DESCRIPTOR.full_name} is asked for")
    if isinstance(value, Mapping):
        _fill(message, value)
    else:
        # Messages of Google's, such as a Duration or a StringValue, may be plain values in JSON.
        ParseDict(value, message)


def _plain(field: Any, value: Any) -> Any:
    """Return what a field takes that is no message."""
    if field.type == _FLOAT and isinstance(value, float) and math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        raise ValueError(f"{value} is outside of the range of the float {field.name!r}")
    if field.type != _ENUM or not isinstance(value, str):
        return value
    found = field.enum_type.values_by_name.get(value)
    if found is not None:
        return found.number
    # A number without a name is read as its digits.
    if not value.removeprefix("-").isdecimal():
        raise ValueError(f"{value!r} is no value of the enum {field.enum_type.full_name}")
    return int(value)


def _indexes(descriptor: Any) -> bytes:
    """Return which message of its file this is, in Confluent's form: how many numbers, then they, as zigzag varints."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        siblings = parent.nested_types if parent is not None else list(descriptor.file.message_types_by_name.values())
        path.insert(0, next(at for at, other in enumerate(siblings) if other.name == descriptor.name))
        descriptor = parent
    return b"\x00" if path == [0] else b"".join(map(_varint, (len(path), *path)))


def _varint(number: int) -> bytes:
    number <<= 1
    text = bytearray()
    while number > 127:
        text.append(number & 127 | 128)
        number >>= 7
    text.append(number)
    return bytes(text)


def _start(message: bytes) -> int:
    """Return where a message begins, after the id of its schema and which message of it this is."""
    if len(message) <= HEADER.size or message[0]:
        raise ValueError("it has no id of a schema: the first byte is not zero")
    count, place = _number(message, HEADER.size)
    for _ in range(count):
        _, place = _number(message, place)
    return place


def _number(message: bytes, place: int) -> tuple[int, int]:
    """Return a zigzag varint, and the place after it."""
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), place
