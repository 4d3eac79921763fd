"""Columns and the fields inside them, known by ids that outlive their names."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import CorruptDataError
from arrowstate_formats.arrow_types import type_from_json, type_to_json
from arrowstate_formats.defaults import decode_default, encode_default
from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument, check_types


class Field(Struct, frozen=True):
    """A column, or a field inside one, with its id and those of the fields inside it."""

    id: int
    name: str
    type: pa.DataType
    nullable: bool = True
    default: pa.Array | None = None
    "One value of the type: what rows have that were written before the field was there; None for null."
    children: tuple[Field, ...] = ()


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields inside a type: `element` of a list, `key` and `value` of a map, those of a struct."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return [kind.value_field.with_name("element")] if pa.types.is_nested(kind) else []


def fresh_field(declared: pa.Field, ids: Iterator[int]) -> Field:
    """Return a field that no stored one continues in, with ids of its own."""
    id = next(ids)
    children = tuple(fresh_field(inner, ids) for inner in inner_fields(declared.type))
    return Field(id, declared.name, declared.type, declared.nullable, None, children)


def fields_of(documents: Iterable[FieldDocument], ids: Iterator[int]) -> tuple[Field, ...]:
    """Return the fields that documents describe; a field inside a column that has no id yet is given one."""
    return tuple(
        _field(item, pa.field(item.name, type_from_json(item.type), item.nullable), item.name, ids)
        for item in documents
    )


def documents_of(fields: Iterable[Field]) -> list[FieldDocument]:
    """Return the documents of columns."""
    documents = [
        FieldDocument(
            id=item.id,
            name=item.name,
            type=type_to_json(item.type),
            nullable=item.nullable,
            default=None if item.default is None else encode_default(item.default),
            fields=[_nested(child) for child in item.children],
        )
        for item in fields
    ]
    # A type comes from whoever declares a state.
    check_types(documents)
    return documents


def unused_ids(*groups: Sequence[FieldDocument | NestedFieldDocument], last: int = 0) -> Iterator[int]:
    """Return ids above all that the documents have, and above `last`."""
    return itertools.count(max([last, *(_highest(item) for group in groups for item in group)]) + 1)


def _highest(document: FieldDocument | NestedFieldDocument) -> int:
    return max([document.id, *(_highest(child) for child in document.fields)])


def _nested(item: Field) -> NestedFieldDocument:
    return NestedFieldDocument(
        id=item.id,
        default=None if item.default is None else encode_default(item.default),
        fields=[_nested(child) for child in item.children],
    )


def _field(document: FieldDocument | NestedFieldDocument, field: pa.Field, path: str, ids: Iterator[int]) -> Field:
    default = None if document.default is None else decode_default(document.default, field.type, path=path)
    inner = inner_fields(field.type)
    if document.fields and len(document.fields) != len(inner):
        raise CorruptDataError(path, f"{len(document.fields)} fields inside {field.type}, which has {len(inner)}")
    children = tuple(
        _field(document.fields[number], child, f"{path}.{child.name}", ids)
        if document.fields
        else fresh_field(child, ids)
        for number, child in enumerate(inner)
    )
    return Field(document.id, field.name, field.type, field.nullable, default, children)
