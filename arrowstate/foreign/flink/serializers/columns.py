"""Arrow arrays of the slots that the machine filled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.serializers import machine
from arrowstate.foreign.flink.serializers.program import Bytes, Ints

Flags = npt.NDArray[np.bool_]

_MOST_BYTES = (1 << 31) - 1


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors of columns made in the block say what bytes they were made of."""
    try:
        yield
    except CorruptDataError as error:
        if error.path:
            raise
        raise CorruptDataError(name, error.detail) from error


def as_numbers(values: Ints, kind: pa.DataType) -> pa.Array:
    """Return numbers of a type of fixed width; floats are given as their bits."""
    if pa.types.is_boolean(kind):
        return pa.array(values != 0)
    width = kind.bit_width // 8
    narrow = values.astype(f"i{width}", copy=True)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(narrow)])


def offsets_of(lengths: Ints) -> npt.NDArray[np.int32]:
    """Return the offsets of elements that have so many parts each; fewer than none is none."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    if offsets[-1] > _MOST_BYTES:
        raise CorruptDataError("", f"{offsets[-1]} bytes or elements in one batch, the most are {_MOST_BYTES}")
    return offsets.astype(np.int32)


def as_bytes(data: Bytes, starts: Ints, lengths: Ints, kind: pa.DataType | None = None) -> pa.Array:
    """Return ranges of bytes as binary, or as text of UTF-8; a length below 0 is null."""
    offsets = offsets_of(lengths)
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    machine.copy_bytes(data, starts, lengths, offsets, out)
    array = pa.Array.from_buffers(kind or pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
    if kind is not None and not pa.types.is_binary(kind):
        _check_text(array)
    return masked(array, lengths >= 0)


def _check_text(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptDataError("", f"a text is not of UTF-8 ({error})") from error


def as_texts(data: Bytes, starts: Ints, units: Ints, sizes: Ints) -> pa.Array:
    """Return texts of Java's 16-bit units; a number of units below 0 is null."""
    offsets = offsets_of(sizes)
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    machine.copy_texts(data, starts, units, sizes, offsets, out)
    array = pa.Array.from_buffers(pa.string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
    return masked(array, units >= 0)


def as_list(counts: Ints, elements: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists of so many elements each."""
    return pa.ListArray.from_arrays(pa.array(offsets_of(counts)), elements, type=kind)


def as_map(counts: Ints, keys: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return maps of so many entries each."""
    if keys.null_count:
        raise CorruptDataError("", "a key of a map is null, which Arrow's maps cannot hold")
    return pa.MapArray.from_arrays(pa.array(offsets_of(counts)), keys, items, type=kind)


def as_struct(children: list[pa.Array], kind: pa.DataType, rows: int) -> pa.Array:
    """Return structs of columns."""
    if not children:
        return pa.array([{}] * rows, type=kind)
    return pa.StructArray.from_arrays(children, fields=list(kind))


def masked(array: pa.Array, there: Flags) -> pa.Array:
    """Return the array with null where nothing is."""
    if there.all() or pa.types.is_null(array.type):
        return array
    if array.null_count:
        there = there & array.is_valid().to_numpy(zero_copy_only=False)
    kind = array.type
    gone = pa.array(~there)
    if pa.types.is_struct(kind):
        children = [array.field(place) for place in range(kind.num_fields)]
        if not children:
            return pa.array([{} if each else None for each in there.tolist()], type=kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=gone)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind, mask=gone)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, array.values, type=kind, mask=gone)
    bitmap = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(array), [bitmap, *array.buffers()[1:]])
