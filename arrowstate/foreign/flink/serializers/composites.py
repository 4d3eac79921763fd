"""Serializers that are made of others: lists, maps, tuples, rows, and values that may be absent."""

from __future__ import annotations

import pyarrow as pa

from arrowstate.foreign.flink.serializers.base import Serializer
from arrowstate.foreign.flink.serializers.columns import as_list, as_map, as_struct, masked
from arrowstate.foreign.flink.serializers.operations import (
    BIT,
    CASE,
    DAMAGED,
    JOINED,
    JOINED_NEXT,
    MASK,
    NEXT,
    OPTIONAL,
    RANGE,
    REPEAT,
)
from arrowstate.foreign.flink.serializers.program import Column, Program, Slots
from arrowstate.foreign.flink.serializers.scalars import Number

ROW_KINDS = pa.array(["+I", "-U", "+U", "-D"])


def fields_of(names: tuple[str, ...], parts: tuple[Serializer, ...]) -> list[pa.Field]:
    """Return the fields of parts; one whose values only its class can read names it."""
    return [
        pa.field(name, part.arrow, metadata={"flink.class": part.opaque[0]} if part.opaque else None)
        for name, part in zip(names, parts, strict=True)
    ]


def _joined(parts: tuple[Serializer, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part.opaque))


class Optional(Serializer):
    """A flag, and a value if the flag is not the one of null."""

    __slots__ = ("null_flag", "padding", "value")

    def __init__(self, value: Serializer, null_flag: int, padding: int = 0) -> None:
        self.value, self.null_flag, self.padding = value, null_flag, padding

    @property
    def arrow(self) -> pa.DataType:
        return self.value.arrow

    @property
    def length(self) -> int:
        inner = self.value.length
        return inner + 1 if self.padding and self.padding == inner else -1

    @property
    def opaque(self) -> tuple[str, ...]:
        return self.value.opaque

    @property
    def fallible(self) -> bool:
        return self.value.fallible

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        slot = program.slots()
        place = program.add(OPTIONAL, self.null_flag, 0, program.next_slot, 0, self.padding, slot=slot)
        column = self.value.add_to(program, last)
        program.patch(place, 2)
        program.patch(place, 4, program.next_slot)
        return lambda slots: masked(column(slots), slots[slot] != 0)


class ListOf(Serializer):
    """A number, and so many values."""

    __slots__ = ("element", "nullable")

    def __init__(self, element: Serializer, nullable: bool = False) -> None:
        self.element, self.nullable = element, nullable

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow)

    @property
    def least(self) -> int:
        return 4

    @property
    def opaque(self) -> tuple[str, ...]:
        return self.element.opaque

    @property
    def fallible(self) -> bool:
        return self.element.fallible

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(), self.arrow
        place = program.add(REPEAT, register, self.element.least, 0, int(self.nullable), slot=slot)
        with program.deeper():
            body = program.here
            column = self.element.add_to(program)
        program.add(NEXT, register, body)
        program.patch(place, 3)
        return lambda slots: as_list(slots[slot], column(slots), kind)


class JoinedList(Serializer):
    """The elements of a list state in one value, with commas between them, to its end."""

    __slots__ = ("element",)

    def __init__(self, element: Serializer) -> None:
        self.element = element

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow)

    @property
    def least(self) -> int:
        return 0

    @property
    def opaque(self) -> tuple[str, ...]:
        return self.element.opaque

    @property
    def fallible(self) -> bool:
        return self.element.fallible

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(), self.arrow
        place = program.add(JOINED, register, 0, slot=slot)
        with program.deeper():
            body = program.here
            column = self.element.add_to(program)
        program.add(JOINED_NEXT, register, body, slot=slot)
        program.patch(place, 2)
        return lambda slots: as_list(slots[slot], column(slots), kind)


class MapOf(Serializer):
    """A number, and so many keys, each with a flag and its value."""

    __slots__ = ("flagged", "key", "value")

    def __init__(self, key: Serializer, value: Serializer, flagged: bool = True) -> None:
        self.key, self.value, self.flagged = key, value, flagged

    @property
    def item(self) -> Serializer:
        """The value with its flag."""
        return Optional(self.value, 1) if self.flagged else self.value

    @property
    def arrow(self) -> pa.DataType:
        return pa.map_(self.key.arrow, self.value.arrow)

    @property
    def least(self) -> int:
        return 4

    @property
    def opaque(self) -> tuple[str, ...]:
        return _joined((self.key, self.value))

    @property
    def fallible(self) -> bool:
        return self.key.fallible or self.value.fallible

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(), self.arrow
        place = program.add(REPEAT, register, self.key.least + self.item.least, 0, slot=slot)
        with program.deeper():
            body = program.here
            keys = self.key.add_to(program)
            items = self.item.add_to(program)
        program.add(NEXT, register, body)
        program.patch(place, 3)
        return lambda slots: as_map(slots[slot], keys(slots), items(slots), kind)


class StructOf(Serializer):
    """Values one after the other: a tuple, a case class."""

    __slots__ = ("class_name", "names", "parts")

    def __init__(self, names: tuple[str, ...], parts: tuple[Serializer, ...], class_name: str = "") -> None:
        self.names, self.parts, self.class_name = names, parts, class_name

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct(fields_of(self.names, self.parts))

    @property
    def length(self) -> int:
        lengths = [part.length for part in self.parts]
        return -1 if min(lengths, default=0) < 0 else sum(lengths)

    @property
    def least(self) -> int:
        return sum(part.least for part in self.parts)

    @property
    def opaque(self) -> tuple[str, ...]:
        return _joined(self.parts)

    @property
    def fallible(self) -> bool:
        return any(part.fallible for part in self.parts)

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        kind = self.arrow
        # Its first slot says how many there are, for there may be no part.
        register, slot = program.register(), program.slots()
        program.add(RANGE, 0, 0, 0, DAMAGED, 0, register, slot=slot)
        columns = [part.add_to(program, last and place == len(self.parts) - 1) for place, part in enumerate(self.parts)]
        return lambda slots: as_struct([column(slots) for column in columns], kind, len(slots[slot]))


class TtlOf(Serializer):
    """A value and when it was last used."""

    __slots__ = ("value",)

    def __init__(self, value: Serializer) -> None:
        self.value = value

    @property
    def inner(self) -> StructOf:
        """Both as a struct."""
        return StructOf(("_last_access", "value"), (Number(pa.int64()), self.value))

    @property
    def arrow(self) -> pa.DataType:
        return self.inner.arrow

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def least(self) -> int:
        return self.inner.least

    @property
    def opaque(self) -> tuple[str, ...]:
        return self.value.opaque

    @property
    def fallible(self) -> bool:
        return self.value.fallible

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        return self.inner.add_to(program, last)


class RowOf(Serializer):
    """A `Row`: bits of what is null, and the fields that are not."""

    __slots__ = ("kinds", "names", "parts", "shown")

    def __init__(
        self, parts: tuple[Serializer, ...], kinds: bool, names: tuple[str, ...] = (), shown: bool = True
    ) -> None:
        self.parts, self.kinds, self.shown = parts, kinds, kinds and shown
        self.names = names or tuple(f"f{place}" for place in range(len(parts)))

    @property
    def arrow(self) -> pa.DataType:
        kind = [pa.field("_row_kind", pa.string())] if self.shown else []
        return pa.struct([*kind, *fields_of(self.names, self.parts)])

    @property
    def opaque(self) -> tuple[str, ...]:
        return _joined(self.parts)

    @property
    def fallible(self) -> bool:
        return any(part.fallible for part in self.parts)

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        arrow, register = self.arrow, program.register()
        before = 2 if self.kinds else 0
        rows = program.slots()
        program.add(RANGE, 0, 0, 0, DAMAGED, 0, program.register(), slot=rows)
        program.add(MASK, register, before + len(self.parts))
        bits = []
        for bit in range(before):
            slot = program.slots()
            place = program.add(BIT, register, bit, 0, 0, 0, slot=slot)
            program.patch(place, 3)
            bits.append(slot)
        columns = []
        for number, part in enumerate(self.parts):
            slot = program.slots()
            place = program.add(BIT, register, before + number, 0, program.next_slot, 0, slot=slot)
            columns.append((slot, part.add_to(program, last and number == len(self.parts) - 1)))
            program.patch(place, 3)
            program.patch(place, 5, program.next_slot)

        def row(slots: Slots) -> pa.Array:
            children = [masked(column(slots), slots[slot] != 0) for slot, column in columns]
            if self.shown:
                # A slot of a bit says whether it is not set; the lower bit stands first.
                kinds = (1 - slots[bits[0]]) + 2 * (1 - slots[bits[1]])
                children = [ROW_KINDS.take(pa.array(kinds)), *children]
            return as_struct(children, arrow, len(slots[rows]))

        return row


class Either(Serializer):
    """One of two values; a flag says which."""

    __slots__ = ("flags", "left", "right")

    def __init__(self, left: Serializer, right: Serializer, flags: tuple[int, int] = (1, 0)) -> None:
        self.left, self.right, self.flags = left, right, flags

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct([pa.field("is_left", pa.bool_()), *fields_of(("left", "right"), (self.left, self.right))])

    @property
    def opaque(self) -> tuple[str, ...]:
        return _joined((self.left, self.right))

    @property
    def fallible(self) -> bool:
        return self.left.fallible or self.right.fallible

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        arrow, register, flag = self.arrow, program.register(), program.slots()
        program.add(RANGE, 1, min(self.flags), max(self.flags), DAMAGED, min(self.flags), register, slot=flag)
        columns = []
        for value, part in zip(self.flags, (self.left, self.right), strict=True):
            place = program.add(CASE, register, value, 0, program.next_slot, 0)
            columns.append(part.add_to(program, last))
            program.patch(place, 3)
            program.patch(place, 5, program.next_slot)

        def either(slots: Slots) -> pa.Array:
            is_left = slots[flag] == self.flags[0]
            left, right = (column(slots) for column in columns)
            return as_struct(
                [pa.array(is_left), masked(left, is_left), masked(right, ~is_left)],
                arrow,
                len(is_left),
            )

        return either
