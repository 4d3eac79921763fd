"""Snapshots of serializers: what is known is described, and what is not stops as little as can be."""

import struct

import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.java_objects import JavaObject
from arrowstate.foreign.flink.keyed_header import read_keyed_header
from arrowstate.foreign.flink.serializers.logical_types import LogicalTypes
from arrowstate.foreign.flink.serializers.snapshots import UnknownSnapshotError, read_snapshot

BASE = "org.apache.flink.api.common.typeutils.base."
LONG = f"{BASE}LongSerializer$LongSerializerSnapshot"
STRING = f"{BASE}StringSerializer$StringSerializerSnapshot"


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def snapshot(class_name: str, content: bytes = b"", version: int = 3) -> bytes:
    return utf(class_name) + struct.pack(">i", version) + content


def composite(*parts: bytes, own: bytes = b"") -> bytes:
    return struct.pack(">ii", 911108, 2) + own + struct.pack(">iii", 1333245, 1, len(parts)) + b"".join(parts)


def described(data: bytes) -> pa.DataType:
    reader = ByteReader(data + b"after", "file")
    found = read_snapshot(reader)
    assert reader.left == len(b"after")
    return found.arrow


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (snapshot(LONG), pa.int64()),
        (snapshot(f"{BASE}ListSerializerSnapshot", composite(snapshot(STRING))), pa.list_(pa.string())),
        (
            snapshot(
                "org.apache.flink.api.java.typeutils.runtime.JavaEitherSerializerSnapshot",
                composite(snapshot(LONG), snapshot(STRING)),
            ),
            pa.struct([("is_left", pa.bool_()), ("left", pa.int64()), ("right", pa.string())]),
        ),
        (
            snapshot(
                "org.apache.flink.api.scala.typeutils.TraversableSerializerSnapshot",
                composite(snapshot(LONG), own=utf("some code of Scala")),
            ),
            pa.list_(pa.int64()),
        ),
        (
            snapshot(
                "org.apache.flink.api.scala.typeutils.ScalaCaseClassSerializerSnapshot",
                composite(snapshot(LONG), snapshot(STRING), own=utf("com.acme.Person")),
            ),
            pa.struct([("_1", pa.int64()), ("_2", pa.string())]),
        ),
        (
            snapshot(f"{BASE}EnumSerializer$EnumSerializerSnapshot", utf("Color") + struct.pack(">i", 1) + utf("RED")),
            pa.string(),
        ),
        (
            snapshot(
                "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot",
                utf("R") + struct.pack(">i", 6) + b'"long"',
            ),
            pa.int64(),
        ),
        (
            snapshot(
                "org.apache.flink.table.runtime.typeutils.DecimalDataSerializer$DecimalSerializerSnapshot",
                struct.pack(">ii", 20, 3),
            ),
            pa.decimal128(20, 3),
        ),
    ],
    ids=lambda case: str(case)[:20] if isinstance(case, pa.DataType) else "",
)
def test_a_snapshot_is_described(data: bytes, expected: pa.DataType) -> None:
    assert described(data) == expected


LOGICAL = "org.apache.flink.table.types.logical."


def map_type(key: JavaObject, value: JavaObject) -> JavaObject:
    return JavaObject(f"{LOGICAL}MapType", {"keyType": key, "valueType": value})


def maps_of_maps(levels: int, kind: JavaObject) -> JavaObject:
    """Maps whose keys and values have one type, that of the map before."""
    for _ in range(levels):
        kind = map_type(kind, kind)
    return kind


def test_logical_types_that_stand_in_many_places_are_counted_in_each() -> None:
    known, unknown = JavaObject(f"{LOGICAL}IntType"), JavaObject("com.acme.Thing")
    in_itself = map_type(known, known)
    in_itself.fields |= {"keyType": in_itself, "valueType": in_itself}

    for given in (maps_of_maps(45, known), maps_of_maps(45, unknown), in_itself):
        assert LogicalTypes().arrow(given) is None
    assert LogicalTypes().arrow(maps_of_maps(2, known)) == pa.map_(*[pa.map_(pa.int32(), pa.int32())] * 2)
    types = LogicalTypes()
    found = [types.arrow(maps_of_maps(11, known)) for _ in range(3)]
    assert [kind is None for kind in found] == [False, False, True]


def test_an_unknown_class_with_parts_is_gone_over() -> None:
    data = snapshot("com.acme.BoxSerializerSnapshot", composite(snapshot(LONG), own=b"anything at all"))

    found = read_snapshot(ByteReader(data, "file"))

    assert found.opaque == ("com.acme.BoxSerializerSnapshot",)


def test_a_class_of_the_job_is_not_taken_for_one_of_flink() -> None:
    with pytest.raises(UnknownSnapshotError):
        read_snapshot(ByteReader(snapshot("com.acme.LongSerializer$LongSerializerSnapshot"), "file"))


def test_states_before_an_unknown_serializer_are_kept() -> None:
    def state(name: str, serializer: bytes) -> bytes:
        proxy = struct.pack(">i", 2)
        serializers = utf("VALUE_SERIALIZER") + proxy + serializer
        return utf(name) + struct.pack(">iii", 0, 0, 1) + serializers

    states = [
        state("one", snapshot(LONG)),
        state("two", snapshot("com.acme.Mine", b"?")),
        state("three", snapshot(LONG)),
    ]
    data = struct.pack(">ib", 6, 0) + struct.pack(">i", 2) + snapshot(LONG) + struct.pack(">h", 3) + b"".join(states)

    header = read_keyed_header(ByteReader(data, "file"))

    assert [info.name for info in header.states] == ["one"]
    assert (header.missing, header.unknown) == (2, "com.acme.Mine")


def test_snapshots_in_snapshots_without_end_are_refused() -> None:
    deep = snapshot(LONG)
    for _ in range(60):
        deep = snapshot(f"{BASE}ListSerializerSnapshot", composite(deep))

    with pytest.raises(CorruptDataError, match="serializers nested deeper than 50"):
        read_snapshot(ByteReader(deep, "file"))
