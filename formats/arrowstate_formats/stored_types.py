"""Columns as other types that hold the same values, at any depth, for formats that lack a type of Arrow.

Which type stands for which is up to each format; here one becomes the other, in both directions, without a copy where
the buffers stay the same. What stands in memory below a null may be anything; it is never looked at, so that it can
neither fail a conversion nor pass for a value. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets: TypeAlias = npt.NDArray[np.int64]
Cast: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]


def converted(array: pa.Array, kind: pa.DataType, cast: Cast = pa.Array.cast) -> pa.Array:
    """Return a column as the type that stands for its own, or whose own it stands for.

    `cast` is what turns an array that is not nested into another type.
    """
    if not pa.types.is_nested(kind):
        return array if array.type == kind else cast(array, kind)
    return _rebuilt(_from_zero(array), kind, cast)


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether two types are the same down to the names of the items of lists, which Arrow does not compare."""
    return left == right and (not pa.types.is_nested(left) or str(left) == str(right))


def _rebuilt(array: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    """Return an array that is no slice with other children; casts of structs go by names, which differ here."""
    types = pa.types
    if not types.is_nested(kind):
        return array if array.type == kind else cast(array, kind)
    if types.is_struct(kind):
        parts = array.flatten() if array.null_count else [array.field(number) for number in range(len(kind))]
        children = [
            _required(_rebuilt(_from_zero(part), field.type, cast), field, array.null_count)
            for part, field in zip(parts, kind, strict=True)
        ]
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=children)
    offsets, values = elements_of(array)
    if types.is_fixed_size_list(kind):
        return _fixed_from_list(array, offsets, values, kind, cast)
    if types.is_map(kind):
        pair = (kind.key_type, kind.item_type)
        entries = [_rebuilt(_from_zero(values.field(number)), inner, cast) for number, inner in enumerate(pair)]
        children = [pa.StructArray.from_arrays(entries, fields=[kind.key_field, kind.item_field])]
    else:
        children = [_required(_rebuilt(_from_zero(values), kind.value_type, cast), kind.value_field, 0)]
    wide = np.int64 if types.is_large_list(kind) else np.int32
    buffers = [array.buffers()[0], pa.py_buffer(offsets.astype(wide, copy=False))]
    return pa.Array.from_buffers(kind, len(array), buffers, children=children)


def elements_of(array: pa.Array) -> tuple[Offsets, pa.Array]:
    """Return where each list begins and the last one ends among its elements, and these, without those of nulls.

    The elements of a map are structs of key and value.
    """
    array = _from_zero(array)
    if pa.types.is_fixed_size_list(array.type):
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        ends = np.cumsum(valid * np.int64(array.type.list_size), dtype=np.int64)
        return np.concatenate([np.zeros(1, dtype=np.int64), ends]), array.flatten()
    wide = np.int64 if pa.types.is_large_list(array.type) else np.int32
    buffer = array.buffers()[1]
    offsets = np.frombuffer(buffer, dtype=wide, count=len(array) + 1) if buffer else np.zeros(1, dtype=wide)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    sizes = np.diff(offsets)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if valid is not None and sizes[~valid].any():
        if pa.types.is_map(array.type):
            plain = pa.list_(values.type)
            array = pa.Array.from_buffers(plain, len(array), array.buffers()[:2], children=[array.values])
        values = array.flatten()
        sizes = sizes * valid
    elif not offsets[0]:
        return offsets.astype(np.int64, copy=False), values
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)]), values


def _fixed_from_list(
    array: pa.Array,
    offsets: Offsets,
    values: pa.Array,
    kind: pa.FixedSizeListType,
    cast: Cast,
) -> pa.Array:
    missing = array.is_null().to_numpy(zero_copy_only=False)
    hidden = int(missing.sum()) * kind.list_size
    if (np.diff(offsets)[~missing] != kind.list_size).any():
        raise ValueError(f"a list is not of the size of {kind}")
    if missing.any():
        rows = offsets[:-1, np.newaxis] + np.arange(kind.list_size)
        values = values.take(pa.array(rows.ravel(), mask=np.repeat(missing, kind.list_size)))
    children = [_required(_rebuilt(_from_zero(values), kind.value_type, cast), kind.value_field, hidden)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=children)


def _required(array: pa.Array, field: pa.Field, hidden: int) -> pa.Array:
    """Return the array of a field; if the field has no nulls, those below nulls, `hidden` of them, count as values.

    Some libraries look at the field alone and take a null below a null for one that must not be.
    """
    if field.nullable or not array.null_count:
        return array
    if array.null_count != hidden:
        raise ValueError(f"a null in {field.name!r}, which is declared without nulls")
    kind = array.type
    if not pa.types.is_nested(kind):
        return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]])
    if pa.types.is_struct(kind):
        own, children = 0, [array.field(number) for number in range(len(kind))]
    else:
        own, children = (0 if pa.types.is_fixed_size_list(kind) else 1), [array.values]
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1 : 1 + own]], children=children)


def _from_zero(array: pa.Array) -> pa.Array:
    """Return an array whose buffers begin with its first row."""
    return whole(array) if array.offset else array


def whole(array: pa.Array) -> pa.Array:
    """Return a copy of an array without the rest of what it is a slice of."""
    batch = pa.record_batch([array], ["column"])
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema).column(0)
