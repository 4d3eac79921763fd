"""Values of Avro, whose schema stands in the snapshot of their serializer.

Flink writes them with an encoder of its own: numbers are big-endian and of fixed width, texts and bytes follow a length
of four bytes, and only the number of elements of a block is of variable length. Recursive types have no type of Arrow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.foreign.flink.serializers.base import CountedBytes, Opaque, Serializer
from arrowstate.foreign.flink.serializers.columns import as_bytes, as_list, as_map, as_struct, masked
from arrowstate.foreign.flink.serializers.composites import StructOf, fields_of
from arrowstate.foreign.flink.serializers.operations import (
    BEGIN_BLOCKS,
    BLOCK,
    CASE,
    DAMAGED,
    JUMP,
    MARK,
    NEXT,
    RANGE,
    SKIP,
)
from arrowstate.foreign.flink.serializers.program import Column, Ints, Program, Slots
from arrowstate.foreign.flink.serializers.scalars import Enumeration, Nothing, Number

_DEEPEST = 50
_MOST_TYPES = 10_000
"""Of one schema, and symbols. A record that is named in many places stands in it once, and in Arrow in each of them."""
_NUMBERS = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_TIMES = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


def avro_serializer(text: str, class_name: str) -> Serializer:
    """Return the serializer of a schema of Avro."""
    try:
        return _Schema().of(json.loads(text), 0)
    except _TooManyTypesError:
        return Opaque(
            class_name, f"its schema of Avro has more than {_MOST_TYPES:,} types, each counted where it is named"
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return Opaque(class_name, "its schema of Avro cannot be read, or refers to itself")


class _TooManyTypesError(Exception):
    """A schema has more types than are read."""


class _Schema:
    """Reads the types of one schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._left = _MOST_TYPES

    def of(self, schema: Any, depth: int) -> Serializer:
        if depth > _DEEPEST:
            raise RecursionError
        self._count(1)
        if isinstance(schema, list):
            parts = tuple(self.of(each, depth + 1) for each in schema)
            return _Union(parts, tuple(_short_name(each) for each in schema))
        if isinstance(schema, str):
            if schema in self._named:
                return self.of(self._named[schema], depth + 1)
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, depth + 1)
        if kind in _NUMBERS:
            return Number(_TIMES.get((kind, schema.get("logicalType", "")), _NUMBERS[kind]))
        if kind == "null":
            return Nothing(0)
        if kind in ("string", "bytes"):
            return CountedBytes(text=kind == "string")
        if kind in self._named:
            return self.of(self._named[kind], depth + 1)
        name = _full_name(schema)
        if kind == "array":
            return _Blocks(None, self.of(schema["items"], depth + 1))
        if kind == "map":
            return _Blocks(CountedBytes(text=True), self.of(schema["values"], depth + 1))
        self._named[name] = self._named[schema.get("name", name)] = schema
        if kind == "enum":
            symbols = tuple(schema["symbols"])
            self._count(len(symbols))
            return Enumeration(name, symbols)
        if kind == "fixed":
            width = int(schema["size"])
            if not 0 <= width < 1 << 31:
                raise ValueError(width)
            return _Fixed(width)
        if kind == "record":
            fields = schema["fields"]
            parts = tuple(self.of(field["type"], depth + 1) for field in fields)
            return StructOf(tuple(field["name"] for field in fields), parts, name)
        raise ValueError(kind)

    def _count(self, types: int) -> None:
        self._left -= types
        if self._left < 0:
            raise _TooManyTypesError


def _full_name(schema: dict[str, Any]) -> str:
    name, space = str(schema.get("name", "")), schema.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def _short_name(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"] if isinstance(schema["type"], str) else "value"))
    return str(schema)


@dataclass(frozen=True, slots=True)
class _Fixed(Serializer):
    """So many bytes."""

    arrow = pa.binary()

    length: int = field()

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        width, slot = self.length, program.slots()
        program.add(MARK, program.register(), slot=slot)
        program.add(SKIP, width)
        return lambda slots: as_bytes(slots.data, slots[slot], _same(slots[slot], width))


def _same(values: Ints, width: int) -> Ints:
    return values * 0 + width


@dataclass(frozen=True, slots=True)
class _Blocks(Serializer):
    """Elements, or entries with keys, in blocks."""

    key: Serializer | None
    element: Serializer

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow) if self.key is None else pa.map_(self.key.arrow, self.element.arrow)

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(2), self.arrow
        program.add(BEGIN_BLOCKS, register)
        least = self.element.least + (self.key.least if self.key else 0)
        block = program.add(BLOCK, register, least, 0, slot=slot)
        with program.deeper():
            body = program.here
            keys = self.key.add_to(program) if self.key else None
            column = self.element.add_to(program)
        program.add(NEXT, register, body)
        program.add(JUMP, block)
        program.patch(block, 3)
        if keys is None:
            return lambda slots: as_list(slots[slot], column(slots), kind)
        key_column = keys
        return lambda slots: as_map(slots[slot], key_column(slots), column(slots), kind)


@dataclass(frozen=True, slots=True)
class _Union(Serializer):
    """One of several types: the number of it, and a value. With null and one more it is that one or null."""

    least = 4

    parts: tuple[Serializer, ...] = field()
    names: tuple[str, ...] = field()

    @property
    def _values(self) -> list[int]:
        return [place for place, part in enumerate(self.parts) if not pa.types.is_null(part.arrow)]

    @property
    def arrow(self) -> pa.DataType:
        values = self._values
        if len(values) == 1:
            return self.parts[values[0]].arrow
        fields = fields_of(tuple(self.names[each] for each in values), tuple(self.parts[each] for each in values))
        return pa.struct(fields)

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        arrow, values, register, slot = self.arrow, self._values, program.register(), program.slots()
        program.add(RANGE, 4, 0, len(self.parts) - 1, DAMAGED, 0, register, slot=slot)
        columns = []
        for value in values:
            with program.branch(CASE, register, value):
                columns.append(self.parts[value].add_to(program, last))

        def union(slots: Slots) -> pa.Array:
            chosen = slots[slot]
            children = [masked(column(slots), chosen == value) for value, column in zip(values, columns, strict=True)]
            if len(children) == 1:
                return children[0]
            whole = as_struct(children, arrow, len(chosen))
            return masked(whole, np.isin(chosen, values))

        return union
