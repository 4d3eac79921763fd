"""The binary rows, arrays and maps of Flink's SQL, and the single values of its types.

A logical type stands in a savepoint as a Java object (`logical_types`); here it is a `Field` or a serializer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.serializers.base import Serializer
from arrowstate.foreign.flink.serializers.columns import as_bytes, as_list, as_map, as_numbers, as_struct, masked
from arrowstate.foreign.flink.serializers.operations import (
    ARRAY,
    ARRAY_NEXT,
    BYTES,
    ENTER,
    FIXED,
    MAP_PARTS,
    ROOT,
    ROW,
    SLOT_BYTES,
    SLOT_FIXED,
    SLOT_TIME,
    UNKNOWN,
)
from arrowstate.foreign.flink.serializers.program import Column, Ints, Program, Slots

_MOST_COMPACT = 18
_MOST_MILLIS = (1 << 63) // 1_000_000 - 1
_DESCRIBED = 6
"""Registers that describe a row or an array."""


def add_field(program: Program, register: int, number: int, kind: pa.DataType, stride: int = 8) -> Column:
    """Add what reads one field of the row, or the element of the array, that a register describes."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_long_decimal(kind):
        slot = program.slots(3)
        program.add(SLOT_BYTES, register, number, slot=slot)
        if _is_long_decimal(kind):
            return lambda slots: masked(_decimals(slots, slot + 1, kind), slots[slot] != 0)
        return lambda slots: masked(as_bytes(slots.data, slots[slot + 1], slots[slot + 2], kind), slots[slot] != 0)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        slot = program.slots(3)
        program.add(SLOT_TIME, register, number, -_MOST_MILLIS, _MOST_MILLIS, UNKNOWN, slot=slot)
        return lambda slots: masked(as_numbers(slots[slot + 1] * 1_000_000 + slots[slot + 2], kind), slots[slot] != 0)
    if pa.types.is_nested(kind):
        return _nested(program, register, number, kind)
    slot = program.slots(2)
    program.add(SLOT_FIXED, register, number, slot_width(kind), stride, slot=slot)
    if pa.types.is_null(kind):
        return lambda slots: pa.nulls(len(slots[slot]))
    if pa.types.is_decimal(kind):
        return lambda slots: masked(_compact(slots[slot + 1], kind), slots[slot] != 0)
    return lambda slots: masked(as_numbers(slots[slot + 1], kind), slots[slot] != 0)


def slot_width(kind: pa.DataType) -> int:
    """Return how many bytes of its slot a value of fixed width fills."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return 1
    return 8 if pa.types.is_decimal(kind) else kind.bit_width // 8


def _stride(kind: pa.DataType) -> int:
    """The bytes of an element of an array."""
    if pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        return 8
    return 8 if pa.types.is_null(kind) else slot_width(kind)


def _is_long_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) and kind.precision > _MOST_COMPACT


def _compact(values: Ints, kind: pa.DataType) -> pa.Array:
    """Decimals of at most 18 digits are their unscaled numbers."""
    halves = np.empty((len(values), 2), dtype=np.int64)
    halves[:, 0], halves[:, 1] = values, values >> 63
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(halves)])


def _decimals(slots: Slots, slot: int, kind: pa.DataType) -> pa.Array:
    """Decimals of more than 18 digits are big-endian bytes; made row by row."""
    out = bytearray()
    for start, length in zip(slots[slot].tolist(), slots[slot + 1].tolist(), strict=True):
        if length > 16:
            raise CorruptDataError("", f"a decimal of {length} bytes")
        number = int.from_bytes(slots.data[start : start + max(length, 0)].tobytes(), "big", signed=True)
        if abs(number) >= 10**kind.precision:
            raise CorruptDataError("", f"a decimal of more than {kind.precision} digits")
        out += number.to_bytes(16, "little", signed=True)
    return pa.Array.from_buffers(kind, len(slots[slot]), [None, pa.py_buffer(bytes(out))])


def _nested(program: Program, register: int, number: int, kind: pa.DataType) -> Column:
    slot, inner = program.slots(), program.register(_DESCRIBED)
    with program.branch(ENTER, register, number, inner, slot=slot):
        column = _add_inner(program, inner, kind)
    return lambda slots: masked(column(slots), slots[slot] != 0)


def _add_inner(program: Program, register: int, kind: pa.DataType) -> Column:
    """What reads the row, the array or the map between the ends that a register holds."""
    if pa.types.is_map(kind):
        return _map(program, register, kind)
    if pa.types.is_list(kind):
        counts, elements = _array(program, register, kind.value_type)
        return lambda slots: as_list(slots[counts], elements(slots), kind)
    return _row(program, register, kind)


def _array(program: Program, register: int, element: pa.DataType) -> tuple[int, Column]:
    slot, stride = program.slots(), _stride(element)
    with program.repeated(ARRAY, register, stride, slot=slot, again=(ARRAY_NEXT, -1)):
        column = add_field(program, register, 0, element, stride)
    return slot, column


def _map(program: Program, register: int, kind: pa.DataType) -> Column:
    keys, items = program.register(_DESCRIBED), program.register(_DESCRIBED)
    program.add(MAP_PARTS, register, keys, items)
    key_counts, key_column = _array(program, keys, kind.key_type)
    item_counts, item_column = _array(program, items, kind.item_type)

    def maps(slots: Slots) -> pa.Array:
        if not np.array_equal(slots[key_counts], slots[item_counts]):
            raise CorruptDataError("", "a map has more keys than values, or fewer")
        return as_map(slots[key_counts], key_column(slots), item_column(slots), kind)

    return maps


def _row(program: Program, register: int, kind: pa.DataType) -> Column:
    slot = program.slots()
    program.add(ROW, register, kind.num_fields, slot=slot)
    columns = [add_field(program, register, number, field.type) for number, field in enumerate(kind)]
    return lambda slots: as_struct([column(slots) for column in columns], kind, len(slots[slot]))


@dataclass(frozen=True, slots=True)
class Binary(Serializer):
    """A row, an array or a map after its length."""

    least = 4

    arrow: pa.DataType = field()
    "A struct, a list or a map."

    @property
    def fallible(self) -> bool:
        return _has_long_times(self.arrow)

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        register = program.register(_DESCRIBED)
        program.add(ROOT, register)
        return _add_inner(program, register, self.arrow)


def _has_long_times(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_long_times(kind.field(place).type) for place in range(kind.num_fields))
    return pa.types.is_timestamp(kind) and kind.unit == "ns"


@dataclass(frozen=True, slots=True)
class DecimalData(Serializer):
    """A decimal by itself: eight bytes of at most 18 digits, else bytes after their length."""

    least = 4

    precision: int
    scale: int

    @property
    def arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    @property
    def length(self) -> int:
        return 8 if self.precision <= _MOST_COMPACT else -1

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        kind = self.arrow
        if self.precision <= _MOST_COMPACT:
            slot = program.slots()
            program.add(FIXED, 8, slot=slot)
            return lambda slots: _compact(slots[slot], kind)
        slot = program.slots(2)
        program.add(BYTES, slot=slot)
        return lambda slots: _decimals(slots, slot, kind)
