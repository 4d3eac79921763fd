"""Rows of an earlier schema as rows of the current one: column by column, when they are looked at.

Nothing here decides whether a change is allowed; that was settled when the schema changed. A column that did not
change is passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.schema.fields import Field

Converter = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Conversion:
    """How batches of one schema become batches of another.

    `sources` has per column of `current` the stored column it is made from, None if there is none, and how.
    """

    stored: pa.Schema
    current: pa.Schema
    sources: tuple[tuple[str | None, Converter], ...]

    @classmethod
    def of(
        cls, stored: pa.Schema, stored_fields: Sequence[Field], current: pa.Schema, current_fields: Sequence[Field]
    ) -> Conversion:
        """Return the conversion from one schema to another.

        The fields are those of the columns that people declare; the other columns are the same in both schemas.
        """
        by_id = {item.id: item for item in stored_fields}
        by_name = {item.name: item for item in current_fields}
        sources: list[tuple[str | None, Converter]] = []
        for column in current:
            item = by_name.get(column.name)
            if item is None:
                sources.append((column.name, _unchanged))
            else:
                source = by_id.get(item.id)
                sources.append((None if source is None else source.name, converter(source, item)))
        return cls(stored, current, tuple(sources))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return all columns of a batch of the stored schema."""
        return self.pick(batch, self.current.names)

    def sources_of(self, columns: Sequence[str]) -> list[str]:
        """Return the stored columns that these columns are made from; at least one, which tells the rows."""
        found = [self._source(name)[0] for name in columns]
        return list(dict.fromkeys(name for name in found if name is not None)) or [self.stored.names[0]]

    def pick(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of a batch that has what they are made from."""
        arrays = []
        for name in columns:
            source, convert = self._source(name)
            arrays.append(convert(batch.column(0 if source is None else source)))
        schema = pa.schema([self.current.field(name) for name in columns])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def same_as(self, column: str) -> str | None:
        """Return the stored column that has the very values of a column, None if they may differ."""
        source, convert = self._source(column)
        return source if convert is _unchanged else None

    def _source(self, column: str) -> tuple[str | None, Converter]:
        return self.sources[self.current.get_field_index(column)]


def converter(stored: Field | None, current: Field) -> Converter:
    """Return what turns an array of a stored field into one of the current field.

    For a field that was not stored, the array given tells the number of rows.
    """
    if stored is None:
        return lambda array: _constant(current, len(array))
    if _same(stored, current):
        return _unchanged
    if pa.types.is_struct(current.type):
        return _struct_converter(stored, current)
    if pa.types.is_map(current.type):
        key, item = (converter(old, new) for old, new in zip(stored.children, current.children, strict=True))
        return lambda array: with_entries(array, current.type, key, item)
    if pa.types.is_nested(current.type):
        element = converter(stored.children[0], current.children[0])
        return lambda array: with_elements(array, current.type, element)
    return lambda array: pc.cast(array, current.type, safe=True)


def _unchanged(array: pa.Array) -> pa.Array:
    return array


def _same(stored: Field, current: Field) -> bool:
    return stored.type == current.type and _ids(stored) == _ids(current)


def _ids(item: Field) -> tuple[object, ...]:
    return tuple((child.id, _ids(child)) for child in item.children)


def _constant(item: Field, rows: int) -> pa.Array:
    if item.default is None:
        return pa.nulls(rows, item.type)
    # Arrow repeats a nested value any number of times but none.
    return pa.repeat(item.default[0], rows) if rows else item.default[:0]


def _struct_converter(stored: Field, current: Field) -> Converter:
    places = {child.id: number for number, child in enumerate(stored.children)}
    parts = [(places.get(child.id), child) for child in current.children]
    converters = [
        (place, converter(None if place is None else stored.children[place], child)) for place, child in parts
    ]
    fields = list(current.type)

    def convert(array: pa.Array) -> pa.Array:
        columns = [change(array if place is None else array.field(place)) for place, change in converters]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)

    return convert


def rows_of(structs: pa.StructArray) -> pa.RecordBatch:
    """Return the fields of structs as columns, in which a null struct is a row of nulls.

    PyArrow before 23 has `RecordBatch.from_struct_array` for it, which takes a slice from the first struct on for all.
    """
    return pa.RecordBatch.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type)))


def with_elements(array: pa.Array, kind: pa.DataType, element: Converter) -> pa.Array:
    """Return lists whose elements are converted; `kind` is the type of the outcome."""
    values = element(array.values)
    if pa.types.is_large_list(kind) and pa.types.is_list(array.type):
        offsets = array.offsets.cast(pa.int64())
        mask = array.is_null() if array.null_count else None
        return pa.LargeListArray.from_arrays(offsets, values, kind, mask=mask)
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children=[values])


def list_of(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    """Return the type of lists, large or of a fixed size as those of another type, with other elements."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)


def check_keys(keys: pa.Array) -> None:
    """Refuse nulls among the keys of maps, and have Arrow count them.

    PyArrow before 26 takes a number of nulls that nobody has asked for as one of some, and aborts the process.
    """
    if keys.null_count:
        raise pa.ArrowInvalid("a key of a map is null")


def with_entries(array: pa.Array, kind: pa.DataType, key: Converter, item: Converter) -> pa.Array:
    """Return maps whose keys and items are converted; `kind` is the type of the outcome."""
    entries = array.values
    keys, items = key(entries.field(0)), item(entries.field(1))
    check_keys(keys)
    changed = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, array.offset, children=[changed]
    )


def with_children(array: pa.Array, change: Callable[[pa.Array, int], pa.Array]) -> pa.Array:
    """Return a struct, a list or a map whose parts are changed, which are counted from 0; any other array as it is."""
    kind = array.type
    if pa.types.is_struct(kind) and kind.num_fields:
        parts = [change(array.field(number), number) for number in range(kind.num_fields)]
        fields = [field.with_type(part.type) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)
    if pa.types.is_map(kind):
        entries = array.values
        key, item = (change(entries.field(number), number) for number in range(2))
        changed = pa.map_(kind.key_field.with_type(key.type), kind.item_field.with_type(item.type))
        return with_entries(array, changed, lambda _: key, lambda _: item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = change(array.values, 0)
        return with_elements(array, list_of(kind, kind.value_field.with_type(values.type)), lambda _: values)
    return array
