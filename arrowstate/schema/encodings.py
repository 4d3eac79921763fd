"""Arrow data without encodings that are a matter of layout: dictionaries, runs, views and extensions."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.conversion import with_elements, with_entries
from arrowstate.schema.types import type_parts


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that has the same values without dictionaries, runs, views and extensions, at any depth."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), kind.item_field.with_type(plain_type(kind.item_type)))
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size)
    return kind


def plain_column(column: pa.Array, name: str) -> pa.Array:
    """Return a column with the type of `plain_type`; messages call it `name`."""
    kind = plain_type(column.type)
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        return plain_column(column.storage, name)
    if pa.types.is_run_end_encoded(column.type):
        return plain_column(pc.run_end_decode(column), name)
    if pa.types.is_dictionary(column.type):
        values = plain_column(column.dictionary, name)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    inside = partial(plain_column, name=name)
    if pa.types.is_struct(kind):
        mask = column.is_null() if column.null_count else None
        fields = [inside(column.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        return with_entries(column, kind, inside, inside)
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        # Arrow's cast makes lists with offsets that fall.
        offsets = np.concatenate(([0], np.cumsum(column.value_lengths().fill_null(0).to_numpy())))
        of, width = (pa.ListArray, np.int32) if pa.types.is_list(kind) else (pa.LargeListArray, np.int64)
        return of.from_arrays(offsets.astype(width), inside(column.flatten()), kind, mask=column.is_null())
    if pa.types.is_nested(kind):
        return with_elements(column, kind, inside)
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidInputError(f"column {name!r} cannot be read as {kind}: {error}; cast it first") from None


def without_views(column: pa.Array, name: str) -> pa.Array:
    """Return a column as it is, or in plain form if it has views of text or bytes, of which Arrow takes no rows."""
    return plain_column(column, name) if _has_views(column.type) else column


@functools.cache
def _has_views(kind: pa.DataType) -> bool:
    return any(pa.types.is_string_view(part) or pa.types.is_binary_view(part) for part in type_parts(kind))
