"""Serializers whose snapshots have no content."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from arrowstate.foreign.flink.serializers.base import CountedBytes, Opaque, Serializer
from arrowstate.foreign.flink.serializers.composites import ListOf, StructOf
from arrowstate.foreign.flink.serializers.scalars import BigNumber, Char, FlippedLong, Nothing, Number, Text, Time


def _numbers() -> dict[str, Serializer]:
    kinds = {
        "Boolean": pa.bool_(),
        "Byte": pa.int8(),
        "Short": pa.int16(),
        "Int": pa.int32(),
        "Long": pa.int64(),
        "Float": pa.float32(),
        "Double": pa.float64(),
    }
    found: dict[str, Serializer] = {}
    for name, kind in kinds.items():
        found[name], found[f"{name}Value"] = Number(kind, hashed=name in ("Int", "Long")), Number(kind)
        found[f"{name}PrimitiveArray"] = ListOf(Number(kind))
    return found


SIMPLE: Final[dict[str, Serializer]] = {
    **_numbers(),
    "BytePrimitiveArray": CountedBytes(),
    "CharPrimitiveArray": ListOf(Char()),
    "StringArray": ListOf(Text()),
    "String": Text(),
    "StringValue": Text(nullable=False),
    "Char": Char(),
    "CharValue": Char(),
    "BigInt": BigNumber(scaled=False),
    "BigDec": BigNumber(scaled=True),
    "LocalDate": Time("date"),
    "LocalTime": Time("time"),
    "LocalDateTime": Time("datetime"),
    "Instant": Time("instant"),
    "Date": Time("millis"),
    "SqlDate": Time("millis"),
    "SqlTime": Time("millis"),
    "SqlTimestamp": Time("sql_timestamp"),
    "Void": Nothing(1),
    "NullValue": Nothing(1),
    "VoidNamespace": Nothing(1),
    "GlobalWindow": Nothing(1),
    "TimeWindow": StructOf(("start", "end"), (Number(pa.int64()), Number(pa.int64())), "TimeWindow"),
    "CountWindow": StructOf(("id",), (Number(pa.int64()),), "CountWindow"),
    "StringData": CountedBytes(text=True),
    "ByteArrayWrapper": CountedBytes(),
    "SortedLong": FlippedLong(),
    "Null": Nothing(1),
    "Bitmap": Opaque("org.apache.flink.types.bitmap.Bitmap", "a bitmap of Flink is kept as it is"),
    "Variant": Opaque("org.apache.flink.types.variant.Variant", "a variant is kept as it is"),
    "Java": Opaque("org.apache.flink.runtime.state.JavaSerializer", "Java's own serialization wrote it"),
}
"""Serializers whose snapshots have no content, by the names of their classes without `Serializer`."""
