"""Avro records of plain fields, all of a batch decoded into columns at once.

A plan says of each field of the writer's schema how its bytes are read. The kernel walks through each message and
checks its bounds; what it stops at is left to the decoder that reads one record at a time, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate_formats.compiled import kernel, subroutine

_KINDS = {"boolean": 0, "int": 1, "long": 2, "float": 3, "double": 4, "bytes": 5, "string": 5}
_TEXT = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """How the records of one schema are read."""

    kinds: npt.NDArray[np.int64]
    """By field of the writer."""
    branches: npt.NDArray[np.int64]
    """By field of the writer: which branch of a union is null, -1 for a field that is no union."""
    places: tuple[int, ...]
    """By column: the field of the writer."""
    schema: pa.Schema


def plan_of(writer: Any, reader: Mapping[str, Any], schema: pa.Schema) -> Plan | None:
    """Return how records of the writer become the columns of the reader; None if a field is not plain or differs."""
    # A registry may have any schema under an id.
    if not isinstance(writer, Mapping) or writer.get("type") != "record":
        return None
    written = {field["name"]: (at, _plain(field["type"])) for at, field in enumerate(writer["fields"])}
    places = []
    for field, column in zip(reader["fields"], schema, strict=True):
        wanted = _plain(field["type"])
        at, had = written.get(field["name"], (0, None))
        # A name of other names and a change of type are for Avro's rules.
        if had is None or wanted is None or had[0] != wanted[0] or "aliases" in field:
            return None
        if (had[2] >= 0 and wanted[2] < 0) or had[1] != wanted[1] or pa.types.is_decimal(column.type):
            return None
        places.append(at)
    plain = [found for _, found in written.values()]
    if len(written) < len(writer["fields"]) or any(found is None for found in plain):
        return None
    if writer.get("name") != reader.get("name"):
        return None
    known = [found for found in plain if found is not None]
    return Plan(
        np.array([kind for kind, _, _ in known], np.int64),
        np.array([branch for _, _, branch in known], np.int64),
        tuple(places),
        schema,
    )


def decode_flat(messages: Sequence[bytes | None], header: int, plan: Plan) -> pa.RecordBatch | None:
    """Return the rows of messages, whose records begin after `header` bytes; None if one of them does not fit."""
    count, fields = len(messages), len(plan.kinds)
    text, starts, ends = joined(messages, header)
    data = np.frombuffer(text, np.uint8)
    numbers = np.zeros(fields * count, np.int64)
    sizes = np.zeros(fields * count, np.int64)
    valid = np.zeros(fields * count, np.uint8)
    if _decode(data, starts, ends, plan.kinds, plan.branches, numbers, sizes, valid) != count:
        return None
    columns = []
    for field, at in zip(plan.schema, plan.places, strict=True):
        own = slice(at * count, (at + 1) * count)
        column = _column(field.type, int(plan.kinds[at]), data, numbers[own], sizes[own], valid[own])
        if column is None:
            return None
        columns.append(column)
    nullable = pa.schema([field.with_nullable(True) for field in plan.schema])
    return pa.RecordBatch.from_arrays(columns, schema=nullable)


def joined(
    messages: Sequence[bytes | None], header: int = 0
) -> tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return messages as one text, and where each begins after its header and ends; one that is None begins at -1."""
    has_nulls = None in messages
    given = [b"" if message is None else message for message in messages] if has_nulls else messages
    lengths = np.fromiter(map(len, given), np.int64, len(messages))  # type: ignore[arg-type]
    ends = np.cumsum(lengths)
    starts = ends - lengths + header
    if has_nulls:
        starts[[at for at, message in enumerate(messages) if message is None]] = -1
    return b"".join(given), starts, ends  # type: ignore[arg-type]


def text_column(
    type: pa.DataType,
    data: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_],
) -> pa.Array:
    """Return a column of pieces of a text, by where they begin and their sizes; nobody looks whether it is UTF-8."""
    offsets = np.zeros(len(places) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    text = np.empty(max(int(offsets[-1]), 1), np.uint8)
    _gather(data, places, sizes, text)
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(type, len(places), [mask, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)])


def _plain(type: Any) -> tuple[int, str, int] | None:
    """Return how a field is read, its type, and which branch of its union is null."""
    branch = -1
    if isinstance(type, list):
        if len(type) != 2 or "null" not in type:
            return None
        branch = type.index("null")
        type = type[1 - branch]
    if isinstance(type, Mapping):
        if "logicalType" in type:
            return None
        type = type.get("type")
    return (_KINDS[type], type, branch) if isinstance(type, str) and type in _KINDS else None


def _column(
    type: pa.DataType,
    kind: int,
    data: npt.NDArray[np.uint8],
    numbers: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    valid: npt.NDArray[np.uint8],
) -> pa.Array | None:
    """Return a column; None if it is text that is not UTF-8."""
    if kind == _TEXT:
        column = text_column(type, data, numbers, sizes, valid.view(np.bool_))
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return None
        return column
    plain: npt.NDArray[Any] = numbers
    if kind == _KINDS["boolean"]:
        plain = numbers.astype(np.bool_)
    elif kind == _KINDS["int"]:
        plain = numbers.astype(np.int32)
    elif kind == _KINDS["float"]:
        plain = numbers.astype(np.uint32).view(np.float32)
    elif kind == _KINDS["double"]:
        plain = numbers.view(np.float64)
    return pa.array(plain, mask=None if valid.all() else valid == 0).cast(type)


@subroutine
def _varint(data: Any, at: Any, end: Any) -> Any:
    """Return a zigzag number and the place after it, -1 if it does not end."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            sign = np.int64(value & np.uint64(1))
            return np.int64(value >> np.uint64(1)) ^ -sign, np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@kernel("uint8[], int64[], int64[], int64[], int64[], out int64[], out int64[], out uint8[]")
def _decode(data: Any, starts: Any, ends: Any, kinds: Any, branches: Any, numbers: Any, sizes: Any, valid: Any) -> Any:
    """Read records field by field; return how many were read before one that does not fit."""
    count = len(starts)
    for message in range(count):
        at, end = starts[message], ends[message]
        if at < 0:
            continue
        for field in range(len(kinds)):
            place = field * count + message
            if branches[field] >= 0:
                branch, at = _varint(data, at, end)
                if at < 0 or branch < 0 or branch > 1:
                    return message
                if branch == branches[field]:
                    continue
            valid[place] = 1
            kind = kinds[field]
            if kind == 0:
                if at >= end or data[at] > 1:
                    return message
                numbers[place] = data[at]
                at += 1
            elif kind == 3 or kind == 4:
                width = 4 if kind == 3 else 8
                if at + width > end:
                    return message
                bits = np.uint64(0)
                for byte in range(width):
                    bits |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
                numbers[place] = np.int64(bits)
                at += width
            else:
                value, at = _varint(data, at, end)
                if at < 0 or (kind == 1 and (value < -2147483648 or value > 2147483647)):
                    return message
                numbers[place] = value
                if kind == 5:
                    if value < 0 or value > end - at:
                        return message
                    numbers[place], sizes[place] = at, value
                    at += value
        if at != end:
            return message
    return count


@kernel("uint8[], int64[], int64[], out uint8[]")
def _gather(data: Any, starts: Any, sizes: Any, out: Any) -> None:
    """Copy pieces of bytes, one after the other."""
    to = 0
    for row in range(len(starts)):
        for byte in range(sizes[row]):
            out[to] = data[starts[row] + byte]
            to += 1
