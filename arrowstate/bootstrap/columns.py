"""Columns of tables: what a plan asks of them, and how they become the values of states.

A plan finds columns and checks their types, as the types of Spark or as those of Arrow. Whoever fills a state has them
as Arrow arrays, and puts the values together that the state takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor
from arrowstate.schema.times import whole_milliseconds


class TableColumns(Protocol):
    """The columns of a table by name, whatever its types are called."""

    int64_name: str
    """What an integer of 64 bits is called."""

    def has(self, name: str) -> bool:
        """Whether there is such a column."""

    def name_of(self, name: str) -> str:
        """Return the name of a column as the table has it; one that is not there is refused."""

    def fits(self, name: str, kind: pa.DataType) -> bool:
        """Whether a column has values of a type, or narrower ones, and Arrow converts between the two."""

    def is_time(self, name: str) -> bool:
        """Whether a column has timestamps, or whole numbers that count milliseconds."""

    def fields_of(self, name: str) -> TableColumns | None:
        """Return the fields of a struct column as columns, None for a column of another type."""

    def type_text(self, name: str) -> str:
        """Return the type of a column as messages have it."""

    def described(self) -> str:
        """Return all columns with their types as messages have them."""


def check_states(states: Any, kinds: tuple[type[StateDescriptor], ...], taken: str) -> None:
    """Refuse what is no list of states of these kinds with names of their own; `taken` says which kinds."""
    if isinstance(states, kinds) or not isinstance(states, Collection) or not states:
        raise InvalidInputError("states must be a list of at least one descriptor")
    names: set[str] = set()
    for descriptor in states:
        if not isinstance(descriptor, kinds):
            raise InvalidInputError(f"{taken}, expected a descriptor of one, got {type(descriptor).__name__}")
        if descriptor.name.lower() in names:
            raise InvalidInputError(f"state names must differ in more than case, got {descriptor.name!r} twice")
        names.add(descriptor.name.lower())


def is_counted(descriptor: StateDescriptor, field: str | None) -> bool:
    """Whether a state counts the values of a field, None for a plain type; they may have any type then."""
    if not isinstance(descriptor, ReducingStateDescriptor):
        return False
    reduce = descriptor.reduce
    return (reduce.get(field or "") if isinstance(reduce, Mapping) else reduce) == "count"


def milliseconds(column: pa.Array) -> pa.Array:
    """Return times as milliseconds since 1970, rounded down, of timestamps or of whole milliseconds."""
    return whole_milliseconds(column) if pa.types.is_timestamp(column.type) else column.cast(pa.int64())


def struct_values(descriptor: StateDescriptor, columns: Sequence[pa.Array], names: Sequence[str]) -> pa.StructArray:
    """Return the values of a struct type, of its fields; a value of which all are null is null."""
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    if isinstance(descriptor, ReducingStateDescriptor) and not isinstance(descriptor.reduce, str):
        # Field by field, as in SQL: a row of nulls makes a group, and changes nothing in one that exists.
        return pa.StructArray.from_arrays(columns, fields=fields)
    absent = columns[0].is_null()
    for column in columns[1:]:
        absent = pc.and_(absent, column.is_null())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=absent)
