"""Values of PyFlink's state: bytes that coders of Python wrote, which the savepoint does not name.

A type of Arrow says how to read them. A state of one value is a list of one element there, and a list the bytes of its
elements, one after the other.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.foreign.flink.entries import bytes_and_offsets
from arrowstate.foreign.flink.serializers.base import CountedBytes, Serializer, compiled
from arrowstate.foreign.flink.serializers.columns import masked
from arrowstate.foreign.flink.serializers.composites import ListOf, MapOf, Optional, RowOf, StructOf
from arrowstate.foreign.flink.serializers.program import Bytes, Ints, Tape
from arrowstate.foreign.flink.serializers.scalars import Number


@dataclass(frozen=True, slots=True)
class Pickled:
    """Says that values are pickled, and that they may be unpickled: that runs whatever the pickle says.

    Examples
    --------
    >>> Pickled(pa.map_(pa.string(), pa.int64())).type
    MapType(map<string, int64>)
    """

    type: pa.DataType
    "What the values are, once unpickled; text of what Python shows of them if it is a string."


def python_serializer(kind: pa.DataType) -> Serializer:
    """Return how PyFlink writes the type that a type of Arrow stands for.

    A struct is a row; it is a tuple if none of its fields may be null, for tuples of PyFlink cannot hold nulls. A list
    is one of objects, of numbers that cannot be null if its field says so.
    """
    if pa.types.is_struct(kind):
        return _row(kind)
    if pa.types.is_list(kind):
        element = python_serializer(kind.value_type)
        return ListOf(Optional(element, 0) if kind.value_field.nullable else element)
    if pa.types.is_map(kind):
        return MapOf(python_serializer(kind.key_type), python_serializer(kind.item_type))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return CountedBytes(text=pa.types.is_string(kind))
    if pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return Number(kind)
    raise InvalidInputError(
        f"a hint for state of PyFlink has numbers, texts, bytes, structs, lists or maps, got {kind}"
    )


def _row(kind: pa.DataType) -> Serializer:
    """A row, where the kind of its change comes first and is none of its fields, or a tuple."""
    names = tuple(field.name for field in kind)
    parts = tuple(python_serializer(field.type) for field in kind)
    if parts and not any(field.nullable for field in kind):
        return StructOf(names, parts)
    return RowOf(parts, kinds=True, names=names, shown=False)


def python_column(column: pa.Array, kind: pa.DataType | Pickled, name: str) -> pa.Array:
    """Decode a column of bytes, or of lists of bytes.

    Lists of bytes give lists for a list type, and their only element for another type.
    """
    if pa.types.is_binary(column.type):
        return _decoded(column, kind, name)
    offsets = column.offsets.to_numpy()
    if isinstance(kind, pa.DataType) and pa.types.is_list(kind):
        return _lists(column, kind, name)
    if (np.diff(offsets) != 1).any():
        raise InvalidInputError(f"{name} has lists; a hint for it must be a list")
    return _decoded(column.values.slice(int(offsets[0]), len(column)), kind, name)


def _decoded(column: pa.Array, kind: pa.DataType | Pickled, name: str) -> pa.Array:
    data, offsets = bytes_and_offsets(column)
    serializer = CountedBytes() if isinstance(kind, Pickled) else python_serializer(kind)
    code, make = compiled(serializer)
    tape = Tape(code, data, name, len(column))
    stops, _ = tape.values(offsets[:-1], offsets[1:])
    _check(stops, offsets[1:], name)
    found = make(tape.slots)
    if isinstance(kind, Pickled):
        values = [None if each is None else pickle.loads(each) for each in found.to_pylist()]  # noqa: S301
        if pa.types.is_string(kind.type):
            values = [each if each is None or isinstance(each, str) else repr(each) for each in values]
        found = pa.array(values, kind.type)
    return masked(found, column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else found


def _lists(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Lists whose elements follow each other, with nothing between them."""
    data, inner = bytes_and_offsets(column.values)
    bounds = inner[column.offsets.to_numpy()]
    elements, counts = _elements(python_serializer(kind.value_type), data, bounds, name)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, type=kind)


def _elements(element: Serializer, data: Bytes, bounds: Ints, name: str) -> tuple[pa.Array, Ints]:
    """Elements up to the bounds of each list; a round for the first of every list, one for the second, and so on."""
    code, make = compiled(element)
    rows = np.arange(len(bounds) - 1)
    at, ends = bounds[:-1].copy(), bounds[1:]
    parts, owners = [], []
    counts = np.zeros(len(rows), dtype=np.int64)
    while len(left := rows[at < ends]):
        tape = Tape(code, data, name, len(left))
        stops, _ = tape.values(at[left], ends[left])
        if (stops == at[left]).any():
            raise CorruptDataError(name, "an element of no bytes")
        parts.append(make(tape.slots))
        owners.append(left)
        at[left] = stops
        counts[left] += 1
    if not parts:
        return pa.nulls(0, element.arrow), counts
    order = np.argsort(np.concatenate(owners), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order)), counts


def _check(stops: Ints, ends: Ints, name: str) -> None:
    wrong = stops != ends
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptDataError(name, f"a value has {int(ends[row] - stops[row])} bytes more than its type needs")
