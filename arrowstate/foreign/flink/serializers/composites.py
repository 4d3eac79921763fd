"""Serializers that are made of others: lists, maps, tuples, rows, and values that may be absent."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Optional(Serializer):
    """A flag, and a value if the flag is not the one of null."""

    value: Serializer
    null_flag: int
    "What the flag is where nothing is."
    padding: int = 0
    "Bytes after the flag of a null; -1 for all that are left."

    @property
    def arrow(self) -> pa.DataType:
        return self.value.arrow

    @property
    def length(self) -> int:
        inner = self.value.length
        return inner + 1 if self.padding > 0 and self.padding == inner else -1

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        slot = program.slots()
        with program.branch(OPTIONAL, self.null_flag, after=(self.padding,), slot=slot):
            column = self.value.add_to(program, last)
        return lambda slots: masked(column(slots), slots[slot] != 0)


@dataclass(frozen=True, slots=True)
class ListOf(Serializer):
    """A number, and so many values."""

    least = 4

    element: Serializer

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow)

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(), self.arrow
        with program.repeated(REPEAT, register, self.element.least, slot=slot):
            column = self.element.add_to(program)
        return lambda slots: as_list(slots[slot], column(slots), kind)


@dataclass(frozen=True, slots=True)
class JoinedList(Serializer):
    """The elements of a list state in one value, with commas between them, to its end."""

    least = 0

    element: Serializer

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow)

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(), self.arrow
        with program.repeated(JOINED, register, slot=slot, again=(JOINED_NEXT, slot)):
            column = self.element.add_to(program)
        return lambda slots: as_list(slots[slot], column(slots), kind)


@dataclass(frozen=True, slots=True)
class MapOf(Serializer):
    """A number, and so many keys, each with a flag and its value."""

    least = 4

    key: Serializer
    value: Serializer

    @property
    def arrow(self) -> pa.DataType:
        return pa.map_(self.key.arrow, self.value.arrow)

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, register, kind = program.slots(), program.register(), self.arrow
        item = Optional(self.value, 1)
        with program.repeated(REPEAT, register, self.key.least + item.least, slot=slot):
            keys, items = self.key.add_to(program), item.add_to(program)
        return lambda slots: as_map(slots[slot], keys(slots), items(slots), kind)


@dataclass(frozen=True, slots=True)
class StructOf(Serializer):
    """Values one after the other: a tuple, a case class."""

    names: tuple[str, ...]
    parts: tuple[Serializer, ...] = field()
    class_name: str = ""

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

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        kind = self.arrow
        # Its first slot says how many there are, for there may be no part.
        register, slot = program.register(), program.slots()
        program.add(RANGE, 0, 0, 0, DAMAGED, 0, register, slot=slot)
        columns = [part.add_to(program, last and place == len(self.parts) - 1) for place, part in enumerate(self.parts)]
        return lambda slots: as_struct([column(slots) for column in columns], kind, len(slots[slot]))


@dataclass(frozen=True, slots=True)
class TtlOf(Serializer):
    """A value and when it was last used."""

    value: Serializer

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

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        return self.inner.add_to(program, last)


@dataclass(frozen=True, slots=True)
class RowOf(Serializer):
    """A `Row`: bits of what is null, and the fields that are not."""

    parts: tuple[Serializer, ...] = field()
    kinds: bool = field()
    "Whether the first two bits say what kind of change it is."
    names: tuple[str, ...] = ()
    "What the fields are called; `f0` and so on if they are not given."
    shown: bool = True
    "Whether a field `_row_kind` says the kind of change."

    @property
    def arrow(self) -> pa.DataType:
        names = self.names or tuple(f"f{place}" for place in range(len(self.parts)))
        kind = [pa.field("_row_kind", pa.string())] if self.kinds and self.shown else []
        return pa.struct([*kind, *fields_of(names, self.parts)])

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        arrow, register = self.arrow, program.register()
        before = 2 if self.kinds else 0
        rows = program.slots()
        program.add(RANGE, 0, 0, 0, DAMAGED, 0, program.register(), slot=rows)
        program.add(MASK, register, before + len(self.parts))
        bits = []
        for bit in range(before):
            bits.append(program.slots())
            with program.branch(BIT, register, bit, slot=bits[-1]):
                pass
        columns = []
        for number, part in enumerate(self.parts):
            slot = program.slots()
            with program.branch(BIT, register, before + number, slot=slot):
                columns.append((slot, part.add_to(program, last and number == len(self.parts) - 1)))

        def row(slots: Slots) -> pa.Array:
            children = [masked(column(slots), slots[slot] != 0) for slot, column in columns]
            if self.kinds and self.shown:
                # A slot of a bit says whether it is not set; the lower bit stands first.
                kinds = (1 - slots[bits[0]]) + 2 * (1 - slots[bits[1]])
                children = [ROW_KINDS.take(pa.array(kinds)), *children]
            return as_struct(children, arrow, len(slots[rows]))

        return row


@dataclass(frozen=True, slots=True)
class Either(Serializer):
    """One of two values; a flag says which."""

    left: Serializer
    right: Serializer
    flags: tuple[int, int] = (1, 0)
    "The flags of the left one and of the right one."

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct([pa.field("is_left", pa.bool_()), *fields_of(("left", "right"), self.parts)])

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        arrow, register, flag = self.arrow, program.register(), program.slots()
        program.add(RANGE, 1, min(self.flags), max(self.flags), DAMAGED, min(self.flags), register, slot=flag)
        columns = []
        for value, part in zip(self.flags, self.parts, strict=True):
            with program.branch(CASE, register, value):
                columns.append(part.add_to(program, last))

        def either(slots: Slots) -> pa.Array:
            is_left = slots[flag] == self.flags[0]
            left, right = (column(slots) for column in columns)
            children = [pa.array(is_left), masked(left, is_left), masked(right, ~is_left)]
            return as_struct(children, arrow, len(is_left))

        return either
