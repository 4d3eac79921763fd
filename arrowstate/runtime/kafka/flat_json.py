"""JSON objects of plain values, all of a batch decoded into columns at once.

The kernel takes objects whose values are numbers, texts without escapes, booleans and null. It stops at the first
message that has anything else, and the batch is left to Arrow's parser, which knows all of JSON and says what is wrong.
So whatever the kernel takes must mean the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.runtime.kafka.flat_records import joined, text_column
from arrowstate_formats.compiled import kernel, subroutine

_INTEGER, _FLOAT, _BOOLEAN, _TEXT = range(4)
_VALID = 1
_NULL = 2


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """How objects become columns."""

    kinds: npt.NDArray[np.int64]
    """By column."""
    names: npt.NDArray[np.uint8]
    """Those of all columns, one after the other."""
    ends: npt.NDArray[np.int64]
    """By column where its name ends."""
    schema: pa.Schema


def object_plan(schema: pa.Schema) -> ObjectPlan | None:
    """Return how objects become these columns; None if a column is neither a plain number, nor text or a boolean."""
    kinds = [_kind(field.type) for field in schema]
    if not kinds or None in kinds:
        return None
    names = [field.name.encode() for field in schema]
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return ObjectPlan(np.array(kinds, np.int64), np.frombuffer(b"".join(names), np.uint8), ends, nullable)


def _kind(type: pa.DataType) -> int | None:
    if pa.types.is_integer(type):
        return _INTEGER
    if type == pa.float64():
        return _FLOAT
    if pa.types.is_boolean(type):
        return _BOOLEAN
    return _TEXT if type == pa.string() else None


def decode_objects(messages: Sequence[bytes | None], plan: ObjectPlan) -> pa.RecordBatch | None:
    """Return the rows of messages, all null where one is None; None if one of them is not for the kernel."""
    count, fields = len(messages), len(plan.kinds)
    text, starts, ends = joined(messages)
    try:
        # An object ends with a brace, so what is no UTF-8 in one message does not become it with the next one.
        text.decode()
    except UnicodeDecodeError:
        return None
    data = np.frombuffer(text, np.uint8)
    numbers, sizes = np.zeros(fields * count, np.int64), np.zeros(fields * count, np.int64)
    floats, seen = np.zeros(fields * count, np.float64), np.zeros(fields * count, np.uint8)
    if _read(data, starts, ends, plan.names, plan.ends, plan.kinds, numbers, floats, sizes, seen) != count:
        return None
    columns = []
    for at, (kind, field) in enumerate(zip(plan.kinds, plan.schema, strict=True)):
        own = slice(at * count, (at + 1) * count)
        valid = seen[own] == _VALID
        if kind == _TEXT:
            columns.append(text_column(field.type, data, numbers[own], sizes[own], valid))
            continue
        plain: npt.NDArray[Any] = floats[own] if kind == _FLOAT else numbers[own]
        made = pa.array(plain.astype(np.bool_) if kind == _BOOLEAN else plain, mask=None if valid.all() else ~valid)
        try:
            columns.append(made.cast(field.type))
        except pa.ArrowInvalid:
            return None
    return pa.RecordBatch.from_arrays(columns, schema=plan.schema)


@subroutine
def _after_spaces(data: Any, at: Any, end: Any) -> Any:
    while at < end and (data[at] == 32 or data[at] == 9):
        at += 1
    return at


@subroutine
def _text_end(data: Any, at: Any, end: Any) -> Any:
    """Return where a text ends that begins here; -1 if it has an escape, or does not end."""
    while at < end and data[at] != 34:
        if data[at] < 32 or data[at] == 92:
            return np.int64(-1)
        at += 1
    return np.int64(at) if at < end else np.int64(-1)


@subroutine
def _column_of(data: Any, start: Any, end: Any, names: Any, name_ends: Any, first: Any) -> Any:
    """Return the column of a name, which is looked for from a column on; -1 if there is none."""
    count = len(name_ends)
    for step in range(count):
        column = first + step
        if column >= count:
            column -= count
        begins = name_ends[column - 1] if column else 0
        if name_ends[column] - begins != end - start:
            continue
        is_same = True
        for byte in range(end - start):
            if names[begins + byte] != data[start + byte]:
                is_same = False
                break
        if is_same:
            return np.int64(column)
    return np.int64(-1)


@subroutine
def _number(data: Any, at: Any, end: Any) -> Any:
    """Return the end of a number, its digits as an integer, their count, and its power of ten; an end of -1 if not.

    A count beyond 18 says that the digits are too many to be told. A power of 1 is that of a number without a fraction.
    """
    failed = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    value, digits, power = np.int64(0), np.int64(0), np.int64(0)
    begins = at
    while at < end and 48 <= data[at] <= 57:
        if digits < 18:
            value = value * 10 + np.int64(data[at] - 48)
        digits += 1
        at += 1
    if digits == 0 or (digits > 1 and data[begins] == 48):
        return failed
    if at == end or data[at] != 46:
        return np.int64(at), value, digits, np.int64(1)
    at += 1
    whole = digits
    while at < end and 48 <= data[at] <= 57:
        if digits < 18:
            value = value * 10 + np.int64(data[at] - 48)
        digits += 1
        power -= 1
        at += 1
    if digits == whole:
        return failed
    return np.int64(at), value, digits, power


@subroutine
def _word_end(data: Any, at: Any, end: Any) -> Any:
    """Return where the word ends that begins with the letter here, `true`, `false` or `null`; -1 if it is another."""
    first = data[at]
    size = 5 if first == 102 else 4
    if at + size > end:
        return np.int64(-1)
    if first == 116:
        is_word = data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101
    elif first == 102:
        is_word = data[at + 1] == 97 and data[at + 2] == 108 and data[at + 3] == 115 and data[at + 4] == 101
    else:
        is_word = data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108
    return np.int64(at + size) if is_word else np.int64(-1)


@kernel("uint8[], int64[], int64[], uint8[], int64[], int64[], out int64[], out float64[], out int64[], out uint8[]")
def _read(
    data: Any,
    starts: Any,
    ends: Any,
    names: Any,
    name_ends: Any,
    kinds: Any,
    numbers: Any,
    floats: Any,
    sizes: Any,
    seen: Any,
) -> Any:
    """Read objects; return how many were read before one that is not plain."""
    count = len(starts)
    for message in range(count):
        at, end = starts[message], ends[message]
        if at < 0:
            continue
        at = _after_spaces(data, at, end)
        if at == end or data[at] != 123:
            return message
        at = _after_spaces(data, at + 1, end)
        is_first, column = True, np.int64(-1)
        while at < end and data[at] != 125:
            if not is_first:
                if data[at] != 44:
                    return message
                at = _after_spaces(data, at + 1, end)
            is_first = False
            if at >= end or data[at] != 34:
                return message
            start = at + 1
            at = _text_end(data, start, end)
            if at < 0:
                return message
            expected = column + 1 if column + 1 < len(kinds) else 0
            column = _column_of(data, start, at, names, name_ends, expected)
            at = _after_spaces(data, at + 1, end)
            if at >= end or data[at] != 58:
                return message
            at = _after_spaces(data, at + 1, end)
            if at >= end:
                return message
            place = column * count + message if column >= 0 else np.int64(-1)
            kind = kinds[column] if column >= 0 else np.int64(-1)
            if place >= 0:
                if seen[place]:
                    return message
                seen[place] = 1
            byte = data[at]
            if byte == 34:
                start = at + 1
                at = _text_end(data, start, end)
                if at < 0 or (place >= 0 and kind != 3):
                    return message
                if place >= 0:
                    numbers[place], sizes[place] = start, at - start
                at += 1
            elif byte == 116 or byte == 102 or byte == 110:
                at = _word_end(data, at, end)
                if at < 0 or (place >= 0 and byte != 110 and kind != 2):
                    return message
                if place >= 0:
                    numbers[place] = 1 if byte == 116 else 0
                    if byte == 110:
                        seen[place] = 2
            else:
                is_negative = byte == 45
                at, value, digits, power = _number(data, at + 1 if is_negative else at, end)
                if at < 0 or (place >= 0 and (kind > 1 or digits > 18 or (kind == 0 and power != 1))):
                    return message
                if place >= 0 and kind == 0:
                    if is_negative and value == 0:
                        return message
                    numbers[place] = -value if is_negative else value
                elif place >= 0:
                    # Both are exact, as 18 digits have no higher power, so their quotient is the nearest number
                    # (Clinger, 1990).
                    if value > 9007199254740992:
                        return message
                    divisor = 1.0
                    for _ in range(-power if power < 1 else 0):
                        divisor *= 10.0
                    number = np.float64(value) / divisor
                    floats[place] = -number if is_negative else number
            at = _after_spaces(data, at, end)
        if at >= end or _after_spaces(data, at + 1, end) != end:
            return message
    return count
