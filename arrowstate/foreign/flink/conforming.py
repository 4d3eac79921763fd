"""Rows of one state with columns of several subtasks that do not know the same classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from arrowstate.errors import CorruptDataError

_ROWS = 65536


def merged_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return a schema with the fields of all, those of structs too."""
    found: dict[str, pa.Field] = {}
    for schema in schemas:
        for field in schema:
            before = found.get(field.name)
            kind = field.type if before is None else _merged(before.type, field.type)
            metadata = field.metadata or (before.metadata if before is not None else None)
            found[field.name] = pa.field(field.name, kind, metadata=metadata)
    last = found.pop("_key_group", None)
    return pa.schema([*found.values(), *([last] if last is not None else [])])


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field for field in one}
        for field in other:
            before = fields.get(field.name)
            fields[field.name] = field if before is None else field.with_type(_merged(before.type, field.type))
        return pa.struct(list(fields.values()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merged(one.value_type, other.value_type))
    if pa.types.is_map(one) and pa.types.is_map(other) and one.key_type == other.key_type:
        return pa.map_(one.key_type, _merged(one.item_type, other.item_type))
    raise CorruptDataError("", f"subtasks describe one state as {one} and as {other}")


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of a merged schema, null where it has none."""
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(None) if batch.schema.metadata else batch
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        columns.append(pa.nulls(len(batch), field.type) if place < 0 else _conformed(batch.column(place), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    gone = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        names = {field.name for field in array.type}
        children = [
            _conformed(array.field(field.name), field.type) if field.name in names else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=gone)
    if pa.types.is_list(kind):
        values = _conformed(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=gone)
    if pa.types.is_map(kind):
        items = _conformed(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=gone)
    raise CorruptDataError("", f"a column of {array.type} where there must be one of {kind}")


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about 65,536, none of them empty."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not len(batch):
            continue
        waiting.append(batch)
        rows += len(batch)
        if rows >= _ROWS:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
