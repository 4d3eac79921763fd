"""How a state's rows lie in Arrow columns, and how a descriptor is written to and compared with a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError, IncompatibleStateError, InvalidInputError
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from arrowstate_formats.arrow_types import type_from_json, type_to_json
from arrowstate_formats.documents import FieldDocument, StateDocument

__all__ = [
    "StateLayout",
    "check_same_state",
    "descriptor_of",
    "key_documents",
    "key_schema_of",
    "state_document",
]


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The columns of one state: `_key_hash`, the key columns, the value columns.

    A value is one column named after the state; a struct value is one column per field. A name that a key
    column has is prefixed with the state's name.
    """

    key: pa.Schema
    name: str
    value_type: pa.DataType

    @property
    def value_fields(self) -> list[pa.Field]:
        """The value columns; each may hold nulls only where the state is a struct."""
        taken = {name.lower() for name in self.key.names}
        if not pa.types.is_struct(self.value_type):
            name = f"{self.name}_{self.name}" if self.name.lower() in taken else self.name
            fields = [pa.field(name, self.value_type)]
        else:
            fields = [
                pa.field(f"{self.name}_{item.name}" if item.name.lower() in taken else item.name, item.type)
                for item in self.value_type
            ]
        names = [field.name.lower() for field in fields] + list(taken)
        if len(set(names)) < len(names):
            raise InvalidInputError(f"the columns of state {self.name!r} clash with each other or the key: {names}")
        return fields

    @property
    def schema(self) -> pa.Schema:
        """The schema of the state's runs."""
        return pa.schema([pa.field("_key_hash", pa.int64(), nullable=False), *self.key, *self.value_fields])

    def split(self, values: pa.Array) -> list[pa.Array]:
        """Return the value columns of an array of values without nulls."""
        return values.flatten() if pa.types.is_struct(self.value_type) else [values]

    def join(self, columns: Sequence[pa.Array], absent: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
        """Return the values of the value columns; the rows `absent` are null."""
        if not pa.types.is_struct(self.value_type):
            return columns[0]
        mask = np.zeros(len(columns[0]), dtype=np.bool_)
        mask[absent] = True
        return pa.StructArray.from_arrays(columns, fields=list(self.value_type), mask=pa.array(mask))


def key_documents(key: pa.Schema) -> list[FieldDocument]:
    """Return the documents of the key columns; field ids count from 1."""
    return [
        FieldDocument(id=number, name=field.name, type=type_to_json(field.type), nullable=False)
        for number, field in enumerate(key, 1)
    ]


def key_schema_of(documents: Sequence[FieldDocument]) -> pa.Schema:
    """Return the key schema that the documents describe."""
    return pa.schema([pa.field(item.name, type_from_json(item.type), nullable=False) for item in documents])


def state_document(descriptor: StateDescriptor, layout: StateLayout) -> StateDocument:
    """Return what a log entry says of a state; field ids go on after the key's."""
    reduce = descriptor.reduce if isinstance(descriptor, ReducingStateDescriptor) else None
    return StateDocument(
        name=descriptor.name,
        kind=descriptor.kind,
        value_type=type_to_json(descriptor.type),
        columns=[
            FieldDocument(id=number, name=field.name, type=type_to_json(field.type))
            for number, field in enumerate(layout.value_fields, len(layout.key) + 1)
        ],
        reduce=dict(reduce) if isinstance(reduce, Mapping) else reduce,
    )


def descriptor_of(document: StateDocument) -> StateDescriptor:
    """Return the descriptor that a document was made from, without a value state's default."""
    kind = type_from_json(document.value_type)
    try:
        if document.kind == "value":
            return ValueStateDescriptor(document.name, kind)
        if document.reduce is not None:
            return ReducingStateDescriptor(document.name, kind, reduce=document.reduce)
    except InvalidInputError as error:
        raise CorruptDataError(f"state {document.name!r}", str(error)) from None
    raise CorruptDataError(f"state {document.name!r}", "a reducing state without a reducer")


def check_same_state(have: StateDescriptor, given: StateDescriptor) -> None:
    """Refuse a descriptor that differs from the one the state was made with, in more than its default.

    Raises
    ------
    IncompatibleStateError
        If the kind, the type or the reducer differ.
    """
    if _described(have) != _described(given):
        raise IncompatibleStateError(
            have.name, _described(have), _described(given), "declare it as it is stored, or use another state name"
        )


def _described(descriptor: StateDescriptor) -> str:
    reduce = getattr(descriptor, "reduce", None)
    return f"{descriptor.kind} state of {descriptor.type}" + (f" reduced by {reduce}" if reduce else "")
