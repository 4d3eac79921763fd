"""Objects of Java by the names of their fields, and those of their subclasses.

A subclass is its declared class with more fields: a column has the fields of all classes that are known, null where an
object has no such field, and `_class` says which class it is of. What nothing is known of stays bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from arrowstate.foreign.flink.serializers.base import Serializer
from arrowstate.foreign.flink.serializers.columns import as_struct, masked
from arrowstate.foreign.flink.serializers.composites import Optional, fields_of
from arrowstate.foreign.flink.serializers.operations import CASE, POJO
from arrowstate.foreign.flink.serializers.program import Column, Program, Slots


@dataclass(frozen=True, slots=True)
class Subclass:
    """A class that objects may be of beside the declared one."""

    class_name: str
    tag: int
    "The number that stands for it, -1 if its name does."
    serializer: Serializer | None
    "How it was written; None if nothing is known."


@dataclass(frozen=True, slots=True)
class PojoOf(Serializer):
    """An object, or null: a flag, then each field with a flag of its own."""

    fallible = True

    class_name: str
    "The declared class."
    names: tuple[str, ...]
    "Its fields, in their order."
    parts: tuple[Serializer, ...] = field()
    subclasses: tuple[Subclass, ...] = ()

    @property
    def fields(self) -> dict[str, pa.Field]:
        """The fields of all classes, by name; those of one name and different types only of the first."""
        found = {field.name: field for field in fields_of(self.names, self.parts)}
        for each in self.known:
            if isinstance(each.serializer, PojoOf):
                for name, field in each.serializer.fields.items():
                    if name in found and found[name].type != field.type:
                        found.setdefault(f"{each.class_name}.{name}", field)
                    found.setdefault(name, field)
            elif each.serializer is not None:
                found.setdefault(each.class_name, pa.field(each.class_name, each.serializer.arrow))
        return found

    @property
    def known(self) -> list[Subclass]:
        """The subclasses whose objects can be decoded."""
        return [each for each in self.subclasses if each.serializer is not None]

    @property
    def arrow(self) -> pa.DataType:
        kind = [pa.field("_class", pa.string())] if self.known else []
        return pa.struct([*kind, *self.fields.values()])

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        arrow, register = self.arrow, program.register()
        slot = program.slots()
        first_name = len(program.table) // 4
        known = self.known
        for number, each in enumerate(known, start=1):
            program.name(each.class_name.encode(), number, each.tag)
        after_names = len(program.table) // 4
        columns, others = [], []
        with program.branch(POJO, register, after=(first_name, after_names), slot=slot):
            with program.branch(CASE, register, 0):
                for place, part in enumerate(self.parts):
                    columns.append(Optional(part, 1).add_to(program, last and place == len(self.parts) - 1))
            for number, each in enumerate(known, start=1):
                assert each.serializer is not None
                with program.branch(CASE, register, number):
                    others.append(each.serializer.add_to(program, last))

        def objects(slots: Slots) -> pa.Array:
            chosen = slots[slot]
            own = dict(zip(self.names, (column(slots) for column in columns), strict=True))
            found = self._merged(chosen, own, [column(slots) for column in others])
            if known:
                names = pa.array([self.class_name, *(each.class_name for each in known)], pa.string())
                found["_class"] = names.take(pa.array(np.maximum(chosen, 0)))
            children = [found[field.name] for field in arrow]
            return masked(as_struct(children, arrow, len(chosen)), chosen >= 0)

        return objects

    def _merged(self, chosen: np.ndarray, own: dict[str, pa.Array], others: list[pa.Array]) -> dict[str, pa.Array]:
        """The columns of all classes: of each row those of its own class."""
        found = {}
        rows = len(chosen)
        for name, whole_field in self.fields.items():
            sources = []
            if name in own:
                sources.append((0, own[name]))
            for number, (each, column) in enumerate(zip(self.known, others, strict=True), start=1):
                if isinstance(each.serializer, PojoOf):
                    inner = name.removeprefix(f"{each.class_name}.")
                    fields = each.serializer.fields
                    if inner in fields and fields[inner].type == whole_field.type:
                        sources.append((number, column.field(inner).filter(pa.array(np.ones(rows, bool)))))
                elif name == each.class_name:
                    sources.append((number, column))
            found[name] = _of_chosen(chosen, sources, whole_field.type)
        return found


def _of_chosen(chosen: np.ndarray, sources: list[tuple[int, pa.Array]], kind: pa.DataType) -> pa.Array:
    """Of each row the value of the class that it is of, null where that class has none."""
    if len(sources) == 1:
        number, column = sources[0]
        return masked(column, chosen == number)
    places = np.full(len(chosen), -1, dtype=np.int64)
    before = 0
    for number, column in sources:
        rows = np.flatnonzero(chosen == number)
        places[rows] = rows + before
        before += len(column)
    parts = pa.chunked_array([column for _, column in sources], kind)
    whole = parts.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    return whole.take(pa.array(places, mask=places < 0))
