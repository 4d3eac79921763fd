"""The types of Flink's SQL, which stand in savepoints as Java objects, as types of Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from arrowstate.foreign.flink.java_objects import JavaObject

_DEEPEST = 50
_MOST_TYPES = 10_000
"""Of one snapshot: a type that stands in many places is one Java object, and in Arrow as many types."""

_PLAIN = {
    "CharType": pa.string(),
    "VarCharType": pa.string(),
    "BooleanType": pa.bool_(),
    "BinaryType": pa.binary(),
    "VarBinaryType": pa.binary(),
    "TinyIntType": pa.int8(),
    "SmallIntType": pa.int16(),
    "IntType": pa.int32(),
    "BigIntType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "DateType": pa.date32(),
    "TimeType": pa.time32("ms"),
    "YearMonthIntervalType": pa.int32(),
    "DayTimeIntervalType": pa.int64(),
    "NullType": pa.null(),
    "RawType": pa.binary(),
    "TypeInformationRawType": pa.binary(),
    "SymbolType": pa.binary(),
}


class LogicalTypes:
    """Gives the types of Arrow of the logical types of one snapshot."""

    def __init__(self) -> None:
        self._left = _MOST_TYPES

    def arrow(self, found: Any, depth: int = 0) -> pa.DataType | None:
        """Return the type of Arrow of a logical type.

        None if it or one before it is not known or in itself; or if the snapshot has more than 10,000 types, each
        counted where it stands. Times of at most three digits after the second are milliseconds, others nanoseconds,
        those with a time zone in UTC.
        """
        if not isinstance(found, JavaObject) or depth > _DEEPEST or self._left == 0:
            return None
        self._left -= 1
        kind = self._arrow(found, depth)
        if kind is None:
            # Nothing that it is in has a type, so no other part of that needs to be looked at.
            self._left = 0
        return kind

    def _arrow(self, found: JavaObject, depth: int) -> pa.DataType | None:
        package, _, name = found.class_name.rpartition(".")
        if package != "org.apache.flink.table.types.logical":
            return None
        if name in _PLAIN:
            return _PLAIN[name]
        fields = found.fields
        if name == "DecimalType":
            precision, scale = fields.get("precision"), fields.get("scale")
            if (
                isinstance(precision, int)
                and isinstance(scale, int)
                and 1 <= precision <= 38
                and 0 <= scale <= precision
            ):
                return pa.decimal128(precision, scale)
            return None
        if name in ("TimestampType", "LocalZonedTimestampType", "ZonedTimestampType"):
            unit = "ms" if fields.get("precision", 9) <= 3 else "ns"
            return pa.timestamp(unit, None if name == "TimestampType" else "UTC")
        return self._nested(name, fields, depth)

    def _nested(self, name: str, fields: dict[str, Any], depth: int) -> pa.DataType | None:
        def inner(field: str) -> pa.DataType | None:
            return self.arrow(fields.get(field), depth + 1)

        if name == "ArrayType":
            element = inner("elementType")
            return None if element is None else pa.list_(element)
        if name == "MultisetType":
            element = inner("elementType")
            return None if element is None else pa.map_(element, pa.int32())
        if name == "MapType":
            key, value = inner("keyType"), inner("valueType")
            return None if key is None or value is None else pa.map_(key, value)
        if name == "DistinctType":
            return inner("sourceType")
        if name in ("RowType", "StructuredType"):
            members = _elements(fields.get("fields" if name == "RowType" else "attributes"))
            if members is None:
                return None
            children = []
            for member in members:
                values = member.fields if isinstance(member, JavaObject) else {}
                kind = self.arrow(values.get("type"), depth + 1)
                if kind is None:
                    return None
                children.append(pa.field(str(values.get("name")), kind))
            return pa.struct(children)
        return None


def _elements(found: Any) -> list[Any] | None:
    """What a Java list holds."""
    for _ in range(4):
        if not isinstance(found, JavaObject):
            return None
        if found.class_name in ("java.util.ArrayList", "java.util.LinkedList"):
            return [each for each in found.extra if not isinstance(each, bytes)]
        if found.class_name in ("java.util.Arrays$ArrayList", "java.util.Collections$SingletonList"):
            inside = found.fields.get("a", found.fields.get("element"))
            return inside if isinstance(inside, list) else [inside]
        if found.class_name == "java.util.CollSer":
            return [each for each in found.extra if not isinstance(each, bytes)]
        found = found.fields.get("list") or found.fields.get("c")
    return None
