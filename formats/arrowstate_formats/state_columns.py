"""What the columns of a run file are: the ids of their fields, at any depth, and which of them is a time.

Ids outlive names, so a file whose fields carry them can be read by whoever knows the ids and nothing else of a
state. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument, StateDocument

HASH_COLUMN = "_key_hash"
"""The first column of every run: int64, not null, rising."""

SEQ_COLUMN = "_seq"
"""The number of an element of a list: int64, not null."""

HIDDEN_FIELD_IDS: Mapping[str, int] = {
    HASH_COLUMN: 2_147_480_001,
    "_entry_hash": 2_147_480_002,
    SEQ_COLUMN: 2_147_480_003,
    "_updated_at": 2_147_480_004,
}
"""The field ids of the columns that no document has. Iceberg keeps those from 2147483447 on for itself."""

FIELD_ID_KEY = b"PARQUET:field_id"
"""The key of the id in the metadata of a field; Parquet writers take it from there."""

WINDOW_END = "window_end"
"""The namespace column that tells when a window ends."""


def fields_of_run(key: Sequence[FieldDocument], state: StateDocument) -> list[FieldDocument]:
    """Return the columns of a run file of the current version that documents describe, in the order of the file."""
    user_key = [] if state.user_key is None else [state.user_key]
    return [*key, *state.namespace, *user_key, *state.columns]


def time_column(state: StateDocument) -> str | None:
    """Return the column whose lowest and highest value each batch of the state's run files records, None if none.

    That is the timestamp of a timer; in the state of windows, which has it as a namespace, the end of the window.
    """
    if state.kind == "timer":
        return None if state.user_key is None else state.user_key.name
    ends = (WINDOW_END, f"{state.name}_{WINDOW_END}")
    return next((item.name for item in state.namespace if item.name in ends and item.type == "int64"), None)


def with_field_ids(schema: pa.Schema, fields: Iterable[FieldDocument]) -> pa.Schema:
    """Return a schema whose fields, at any depth, have the ids that documents and `HIDDEN_FIELD_IDS` give them."""
    known: dict[str, FieldDocument | NestedFieldDocument] = {
        name: NestedFieldDocument(id=number) for name, number in HIDDEN_FIELD_IDS.items()
    }
    known.update((field.name, field) for field in fields)
    return pa.schema([_with_ids(field, known.get(field.name)) for field in schema])


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata of its own and of its fields, at any depth."""
    return pa.schema([_with_ids(field, None) for field in schema])


def inner_fields(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """Return the fields inside a type, under the names that Parquet gives them."""
    if pa.types.is_struct(kind):
        return [(field.name, field) for field in kind]
    if pa.types.is_map(kind):
        return [("key_value.key", kind.key_field), ("key_value.value", kind.item_field)]
    return [("list.element", kind.value_field)] if pa.types.is_nested(kind) else []


def with_inner_fields(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """Return a nested type with other fields inside, as many as `inner_fields` has."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct(fields)
    if types.is_map(kind):
        return pa.map_(fields[0], fields[1], keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if types.is_large_list(kind) else pa.list_(fields[0])


def _with_ids(field: pa.Field, document: FieldDocument | NestedFieldDocument | None) -> pa.Field:
    kind = field.type
    if pa.types.is_nested(kind):
        inner = [child for _, child in inner_fields(kind)]
        known = document.fields if document is not None and len(document.fields) == len(inner) else [None] * len(inner)
        kind = with_inner_fields(kind, [_with_ids(child, item) for child, item in zip(inner, known, strict=True)])
    metadata = None if document is None else {FIELD_ID_KEY: str(document.id).encode()}
    return pa.field(field.name, kind, field.nullable, metadata)
