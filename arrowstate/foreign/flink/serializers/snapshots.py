"""Snapshots of serializers, as they stand in savepoints, to descriptions.

A snapshot is the name of its class, a version, and what the class wrote. What composite serializers are made of is
framed by magic numbers, so that the parts of an unknown one can be skipped; fields of objects are framed by lengths.
An unknown class without frames ends what can be read of a header: `UnknownSnapshotError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.java_objects import read_java_object
from arrowstate.foreign.flink.serializers.avro import avro_serializer
from arrowstate.foreign.flink.serializers.base import CountedBytes, Opaque, Serializer
from arrowstate.foreign.flink.serializers.composites import Either, ListOf, MapOf, Optional, RowOf, StructOf, TtlOf
from arrowstate.foreign.flink.serializers.logical_types import LogicalTypes
from arrowstate.foreign.flink.serializers.pojo import PojoOf, Subclass
from arrowstate.foreign.flink.serializers.rows import Binary, DecimalData
from arrowstate.foreign.flink.serializers.scalars import (
    Enumeration,
    FlippedLong,
    Number,
    Time,
)
from arrowstate.foreign.flink.serializers.simple import SIMPLE

_OURS: Final = "org.apache.flink."
_COMPOSITE, _DELEGATE = 911108, 1333245
_OPTIONAL_MAP: Final = 0x4F2C69A3D70
_DEEPEST = 50
_NO_KRYO = "Kryo wrote it, which only the job's own classes can read"
_NO_CLASS = "its serializer is not known"


class UnknownSnapshotError(Exception):
    """Nothing says how long the snapshot of a class is."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        super().__init__(class_name)


def read_proxy(reader: ByteReader) -> Serializer:
    """Read a snapshot with the version of what frames it, as it stands in the headers of streams."""
    version = reader.integer()
    if version != 2:
        reader.position -= 4
        raise reader.wrong(f"a snapshot of a serializer of version {version}; Flink 1.8 and later write 2")
    return read_snapshot(reader)


def read_snapshot(reader: ByteReader, depth: int = 0) -> Serializer:
    """Read the class, the version and the content of a snapshot, and return what it describes."""
    if depth > _DEEPEST:
        raise reader.wrong(f"serializers nested deeper than {_DEEPEST}")
    class_name = reader.utf()
    version = reader.integer()
    short = _short_name(class_name)
    if short in SIMPLE:
        return SIMPLE[short]
    if short in _READERS:
        return _READERS[short](reader, version, depth + 1)
    return _unknown(reader, class_name, depth + 1)


def _short_name(class_name: str) -> str:
    """`Long` of `org.apache.flink...LongSerializer$LongSerializerSnapshot`; empty for classes that are not Flink's."""
    if not class_name.startswith(_OURS) or ".serializers.python." in class_name:
        return ""
    name = class_name.rpartition(".")[2].rpartition("$")[2]
    for ending in ("SerializerSnapshot", "SerializerConfigSnapshot"):
        name = name.removesuffix(ending)
    return name


def _composite(
    reader: ByteReader, depth: int, outer: Callable[[ByteReader, int], object] | None = None
) -> tuple[list[Serializer], object]:
    """The parts of a composite serializer, and what it wrote of itself."""
    if reader.integer() != _COMPOSITE:
        reader.position -= 4
        raise reader.wrong("no snapshot of a composite serializer where there must be one")
    version = reader.integer()
    own = outer(reader, version) if outer else None
    return _parts(reader, depth), own


def _parts(reader: ByteReader, depth: int) -> list[Serializer]:
    if reader.integer() != _DELEGATE or reader.integer() != 1:
        reader.position -= 8
        raise reader.wrong("no snapshots of nested serializers where there must be some")
    return [read_snapshot(reader, depth) for _ in range(reader.count(6))]


def _few(reader: ByteReader, parts: list[Serializer], number: int) -> list[Serializer]:
    if len(parts) != number:
        raise reader.wrong(f"{len(parts)} nested serializers, and there must be {number}")
    return parts


def _unknown(reader: ByteReader, class_name: str, depth: int) -> Serializer:
    """A class that is not known: its parts are skipped where their frame is found."""
    start = reader.position
    if reader.left >= 8 and reader.integer() == _COMPOSITE and _to_parts(reader):
        try:
            _parts(reader, depth)
        except CorruptDataError:
            reader.position = start
            raise UnknownSnapshotError(class_name) from None
        return Opaque(class_name, _NO_CLASS)
    reader.position = start
    raise UnknownSnapshotError(class_name)


def _to_parts(reader: ByteReader) -> bool:
    """Go over what a composite serializer wrote of itself, to its parts; whether they were found."""
    magic = _DELEGATE.to_bytes(4, "big") + (1).to_bytes(4, "big")
    place = bytes(reader.data[reader.position : reader.end]).find(magic)
    if place >= 0:
        reader.position += place
    return place >= 0


def _framed(data: bytes, name: str, class_name: str, depth: int) -> Serializer:
    """A snapshot of known length: one that cannot be read is opaque."""
    part = ByteReader(data, name)
    try:
        found = read_snapshot(part, depth)
    except UnknownSnapshotError as error:
        return Opaque(error.class_name, _NO_CLASS)
    return found if not part.left else Opaque(class_name, _NO_CLASS)


def _optional_map(reader: ByteReader) -> list[tuple[str, bytes | None]]:
    """Names, and the framed bytes of a value or None."""
    if reader.long() != _OPTIONAL_MAP:
        reader.position -= 8
        raise reader.wrong("no map of names where there must be one")
    found = []
    for _ in range(reader.count(4)):
        name = reader.utf()
        if reader.boolean():
            reader.skip(reader.count())
        found.append((name, reader.counted_bytes() if reader.boolean() else None))
    return found


def _list(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return ListOf(_few(reader, parts, 1)[0])


def _set(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return ListOf(Optional(_few(reader, parts, 1)[0], 1))


def _map(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    key, value = _few(reader, parts, 2)
    return MapOf(key, value)


def _view(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return _few(reader, parts, 1)[0]


def _tuple(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, class_name = _composite(reader, depth, lambda outer, _: outer.utf())
    return StructOf(tuple(f"f{place}" for place in range(len(parts))), tuple(parts), str(class_name))


def _case_class(reader: ByteReader, version: int, depth: int) -> Serializer:
    found = _tuple(reader, version, depth)
    assert isinstance(found, StructOf)
    return StructOf(tuple(f"_{place + 1}" for place in range(len(found.parts))), found.parts, found.class_name)


def _row(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, kinds = _composite(reader, depth, lambda outer, version: outer.boolean() if version >= 3 else False)
    return RowOf(tuple(parts), bool(kinds))


def _either(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    left, right = _few(reader, parts, 2)
    return Either(left, right)


def _tagged_union(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    one, two = _few(reader, parts, 2)
    return Either(one, two, flags=(1, 2))


def _option(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return Optional(_few(reader, parts, 1)[0], 0)


def _traversable(reader: ByteReader, _version: int, depth: int) -> Serializer:
    """A collection of Scala: what makes it is code, and is gone over."""
    if reader.integer() != _COMPOSITE:
        reader.position -= 4
        raise reader.wrong("no snapshot of a composite serializer where there must be one")
    if not _to_parts(reader):
        raise UnknownSnapshotError("org.apache.flink.api.scala.typeutils.TraversableSerializer")
    return ListOf(Optional(_few(reader, _parts(reader, depth), 1)[0], 0))


def _stream_element(reader: ByteReader, _version: int, depth: int) -> Serializer:
    """A record with a timestamp, or without one."""
    parts, _ = _composite(reader, depth)
    record = _few(reader, parts, 1)[0]
    return Either(StructOf(("timestamp", "value"), (Number(pa.int64()), record)), record, flags=(0, 1))


def _generic_array(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth, lambda outer, _: outer.utf())
    return ListOf(Optional(_few(reader, parts, 1)[0], 0))


def _nullable(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, padding = _composite(reader, depth, lambda outer, _: outer.integer())
    assert isinstance(padding, int)
    if not 0 <= padding < 1 << 20:
        raise reader.wrong(f"a padding of {padding} bytes")
    return Optional(_few(reader, parts, 1)[0], 1, padding)


def _ttl(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return TtlOf(_few(reader, parts, 2)[1])


def _timer(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    key, namespace = _few(reader, parts, 2)
    return StructOf(("timestamp", "key", "namespace"), (FlippedLong(), key, namespace), "timer")


def _buffer_entry(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return StructOf(("joined", "element"), (Number(pa.bool_()), _few(reader, parts, 1)[0]))


def _window_key(reader: ByteReader, _version: int, depth: int) -> Serializer:
    parts, _ = _composite(reader, depth)
    return StructOf(("window", "key"), (Number(pa.int64()), _few(reader, parts, 1)[0]))


def _external(reader: ByteReader, _version: int, depth: int) -> Serializer:
    def outer(own: ByteReader, _: int) -> None:
        read_java_object(own)
        own.boolean()

    parts, _ = _composite(reader, depth, outer)
    return _few(reader, parts, 1)[0]


def _enumeration(reader: ByteReader, _version: int, _depth: int) -> Serializer:
    class_name = reader.utf()
    return Enumeration(class_name, tuple(reader.utf() for _ in range(reader.count(2))))


def _pojo(reader: ByteReader, _version: int, depth: int) -> Serializer:
    class_name = reader.utf()
    fields, registered, others = _optional_map(reader), _optional_map(reader), _optional_map(reader)

    def described(name: str, data: bytes | None) -> Serializer:
        if data is None:
            return Opaque(f"{class_name}.{name}", _NO_CLASS)
        return _framed(data, reader.name, f"{class_name}.{name}", depth)

    subclasses = [
        Subclass(name, tag, _framed(data, reader.name, name, depth) if data is not None else None)
        for tag, (name, data) in enumerate(registered)
    ]
    subclasses += [
        Subclass(name, -1, _framed(data, reader.name, name, depth)) for name, data in others if data is not None
    ]
    names = tuple(name for name, _ in fields)
    return PojoOf(class_name, names, tuple(described(*field) for field in fields), tuple(subclasses))


def _kryo(reader: ByteReader, _version: int, _depth: int) -> Serializer:
    class_name = reader.utf()
    for _ in range(3):
        _optional_map(reader)
    return Opaque(class_name, _NO_KRYO)


def _copied_value(reader: ByteReader, _version: int, _depth: int) -> Serializer:
    class_name = reader.utf()
    name = class_name.removeprefix("org.apache.flink.types.")
    return SIMPLE.get(name) or Opaque(class_name, "a Value of the job writes itself")


def _avro(reader: ByteReader, version: int, _depth: int) -> Serializer:
    class_name = reader.utf()
    if version >= 3:
        data = reader.counted_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise reader.wrong("a schema of Avro is no text of UTF-8") from error
    else:
        text = reader.utf()
    return avro_serializer(text, class_name)


def _row_data(reader: ByteReader, _version: int, depth: int) -> Serializer:
    types = LogicalTypes()
    kinds = [types.arrow(read_java_object(reader)) for _ in range(reader.count(5))]
    _parts(reader, depth)
    fields = [pa.field(f"f{place}", kind) for place, kind in enumerate(kinds) if kind is not None]
    if len(fields) < len(kinds):
        return CountedBytes()
    return Binary(pa.struct(fields))


def _nested_serializer(reader: ByteReader, depth: int) -> None:
    """Go over the serializer of elements: a Java object, or a snapshot."""
    if bytes(reader.data[reader.position : reader.position + 2]) == b"\xac\xed":
        read_java_object(reader)
    else:
        read_snapshot(reader, depth)


def _array_data(reader: ByteReader, _version: int, depth: int) -> Serializer:
    kind = LogicalTypes().arrow(read_java_object(reader))
    _nested_serializer(reader, depth)
    return Binary(pa.list_(kind)) if kind is not None else CountedBytes()


def _map_data(reader: ByteReader, _version: int, depth: int) -> Serializer:
    types = LogicalTypes()
    key, value = (types.arrow(read_java_object(reader)) for _ in range(2))
    _nested_serializer(reader, depth)
    _nested_serializer(reader, depth)
    return Binary(pa.map_(key, value)) if key is not None and value is not None else CountedBytes()


def _decimal(reader: ByteReader, _version: int, _depth: int) -> Serializer:
    precision, scale = reader.integer(), reader.integer()
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise reader.wrong(f"a decimal of {precision} digits with {scale} after the point")
    return DecimalData(precision, scale)


def _timestamp(reader: ByteReader, _version: int, _depth: int) -> Serializer:
    return Number(pa.timestamp("ms")) if reader.integer() <= 3 else Time("table_time")


def _binary_row(reader: ByteReader, _version: int, _depth: int) -> Serializer:
    reader.skip(4)
    return CountedBytes()


_READERS: Final[dict[str, Callable[[ByteReader, int, int], Serializer]]] = {
    "List": _list,
    "ArrayList": _list,
    "Set": _set,
    "Map": _map,
    "ListView": _view,
    "MapView": _view,
    "Tuple": _tuple,
    "ScalaCaseClass": _case_class,
    "Tuple2CaseClass": _case_class,
    "Row": _row,
    "JavaEither": _either,
    "ScalaEither": _either,
    "Union": _tagged_union,
    "ScalaOption": _option,
    "Traversable": _traversable,
    "StreamElement": _stream_element,
    "GenericArray": _generic_array,
    "Nullable": _nullable,
    "Ttl": _ttl,
    "Timer": _timer,
    "BufferEntry": _buffer_entry,
    "WindowKey": _window_key,
    "External": _external,
    "Enum": _enumeration,
    "Pojo": _pojo,
    "Kryo": _kryo,
    "CopyableValue": _copied_value,
    "Avro": _avro,
    "RowData": _row_data,
    "ArrayData": _array_data,
    "MapData": _map_data,
    "Decimal": _decimal,
    "TimestampData": _timestamp,
    "BinaryRowData": _binary_row,
}
"""Serializers whose snapshots have content, by the names of their classes without `Serializer`."""
