"""The shredder: one pass over encoded values, which leaves of each part of them where it is and what it says.

A serializer is a program (`program`). For each value the machine walks through it and writes to a tape, in a slot per
part: the number itself, where a text begins, how many elements a list has, whether something is there. Columns are made
of slots by numpy and Arrow (`columns`). So no part of a value needs a kernel of its own, and no Python runs per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate.foreign.flink.serializers.machine_parts import (
    blank,
    put,
    run_bigint,
    run_bit,
    run_block,
    run_bytes,
    run_case,
    run_fixed,
    run_joined_next,
    run_mask,
    run_next,
    run_optional,
    run_pojo,
    run_range,
    run_repeat,
    run_string,
    run_suffix,
    wrong,
)
from arrowstate.foreign.flink.serializers.machine_rows import (
    run_array,
    run_array_next,
    run_enter,
    run_map_parts,
    run_root,
    run_row,
    run_slot_bytes,
    run_slot_fixed,
    run_slot_time,
)
from arrowstate.foreign.flink.serializers.operations import (
    ARRAY,
    ARRAY_NEXT,
    BEGIN_BLOCKS,
    BIGINT,
    BIT,
    BLOCK,
    BYTES,
    CASE,
    END,
    ENTER,
    FAILED,
    FIXED,
    HALT,
    JOINED,
    JOINED_NEXT,
    JUMP,
    MARK,
    MASK,
    NEXT,
    OPTIONAL,
    OVERFLOW,
    POJO,
    POSITION,
    RANGE,
    REPEAT,
    REST,
    ROOT,
    ROW,
    SHORT,
    SKIP,
    SLOT_BYTES,
    SLOT_FIXED,
    SLOT_TIME,
    STRING,
    SUFFIX,
    UNKNOWN,
    WIDTH,
)
from arrowstate_formats.compiled import kernel, subroutine


@subroutine
def _simple(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """Operations that fill no slots of what is not there, of Java's data output."""
    op = c[i]
    if op == FIXED:
        return run_fixed(r, data, c, i, tape, fills, limits)
    if op == STRING:
        return run_string(r, data, c, i, tape, fills, limits)
    if op == BYTES:
        return run_bytes(r, data, c, i, tape, fills, limits)
    if op == SKIP:
        if c[i + 1] > r[END] - r[POSITION]:
            return wrong(r, SHORT)
        r[POSITION] += c[i + 1]
        return i + WIDTH
    if op == RANGE:
        return run_range(r, data, c, i, tape, fills, limits)
    if op == REPEAT:
        return run_repeat(r, data, c, i, tape, fills, limits)
    if op == NEXT:
        return run_next(r, c, i)
    if op == JUMP:
        return c[i + 1]
    if op == MASK:
        return run_mask(r, c, i)
    if op == BIGINT:
        return run_bigint(r, data, c, i, tape, fills, limits)
    if op == JOINED:
        r[c[i + 1]] = 0
        if r[POSITION] == r[END]:
            put(r, tape, fills, limits, c[i + 7], 0)
            return c[i + 2]
        return i + WIDTH
    if op == JOINED_NEXT:
        return run_joined_next(r, data, c, i, tape, fills, limits)
    if op == MARK:
        r[c[i + 1]] = r[POSITION]
        put(r, tape, fills, limits, c[i + 7], r[POSITION])
        return i + WIDTH
    if op == SUFFIX:
        return run_suffix(r, data, c, i)
    if op == BEGIN_BLOCKS:
        r[c[i + 1] + 1] = 0
        return i + WIDTH
    if op == BLOCK:
        return run_block(r, data, c, i, tape, fills, limits)
    if op == REST:
        until = r[END] - c[i + 1]
        if until < r[POSITION]:
            return wrong(r, SHORT)
        if c[i + 7] >= 0:
            put(r, tape, fills, limits, c[i + 7], r[POSITION])
            put(r, tape, fills, limits, c[i + 7] + 1, until - r[POSITION])
        r[POSITION] = until
        return i + WIDTH
    return wrong(r, c[i + 1])


@subroutine
def _of_rows(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any, levels: Any) -> Any:
    op = c[i]
    if op == SLOT_FIXED:
        return run_slot_fixed(r, data, c, i, tape, fills, limits)
    if op == SLOT_BYTES:
        return run_slot_bytes(r, data, c, i, tape, fills, limits)
    if op == SLOT_TIME:
        return run_slot_time(r, data, c, i, tape, fills, limits)
    if op == ROOT:
        return run_root(r, data, c, i)
    if op == ROW:
        return run_row(r, data, c, i, tape, fills, limits)
    if op == ENTER:
        return run_enter(r, data, c, i, tape, fills, limits, levels)
    if op == ARRAY:
        return run_array(r, data, c, i, tape, fills, limits)
    if op == ARRAY_NEXT:
        return run_array_next(r, c, i)
    return run_map_parts(r, data, c, i)


@kernel(
    "uint8[], int64[], int64[], uint8[], int64[], int64[], int64[], int64, int64, "
    "out int64[], out int64[], out int64[], int64[], out int64[], out int64[], out uint8[]"
)
def shred(
    data: Any,
    c: Any,
    table: Any,
    names: Any,
    levels: Any,
    starts: Any,
    ends: Any,
    first: Any,
    chained: Any,
    r: Any,
    tape: Any,
    fills: Any,
    limits: Any,
    marks: Any,
    stops: Any,
    states: Any,
) -> Any:
    """Walk the values from `first`; return the one that it stopped at, their number if it is done.

    It stops where the tape is full and where a value is damaged; both leave the tape as before that value, and `marks`
    what it would have filled. With
    `chained` a value begins where the one before it ended. A value that cannot be decoded gets state 1 and zeros.
    """
    rows = len(starts)
    slots = len(fills)
    for row in range(first, rows):
        for slot in range(slots):
            marks[slot] = fills[slot]
        states[row] = 0
        r[OVERFLOW] = 0
        r[FAILED] = 0
        r[POSITION] = stops[row - 1] if chained and row else starts[row]
        r[END] = ends[row]
        # A plain 0 has a type of its own, for which all operations would be compiled once more.
        i = np.int64(0)
        while i >= 0:
            op = c[i]
            if op == HALT:
                break
            if op == OPTIONAL:
                i = run_optional(r, data, c, i, tape, fills, limits, levels)
            elif op == BIT:
                i = run_bit(r, data, c, i, tape, fills, limits, levels)
            elif op == CASE:
                i = run_case(r, c, i, tape, fills, limits, levels)
            elif op == POJO:
                i = run_pojo(r, data, c, i, tape, fills, limits, levels, table, names)
            elif op <= REST:
                i = _simple(r, data, c, i, tape, fills, limits)
            else:
                i = _of_rows(r, data, c, i, tape, fills, limits, levels)
        if r[FAILED] == UNKNOWN and not chained:
            for slot in range(slots):
                fills[slot] = marks[slot]
            r[OVERFLOW] = 0
            blank(r, tape, fills, limits, levels, 0, slots)
            states[row] = 1
            r[POSITION] = ends[row]
        elif r[FAILED] or r[OVERFLOW]:
            r[OVERFLOW] = 0 if r[FAILED] else 1
        if r[OVERFLOW] or (r[FAILED] and not states[row]):
            for slot in range(slots):
                needed = fills[slot]
                fills[slot] = marks[slot]
                marks[slot] = needed
            return row
        stops[row] = r[POSITION]
    return rows


@kernel("uint8[], int64[], int64[], int32[], out uint8[]")
def copy_bytes(data: Any, starts: Any, lengths: Any, offsets: Any, out: Any) -> None:
    """Copy ranges of bytes to where offsets say."""
    for row in range(len(starts)):
        start = starts[row]
        to = offsets[row]
        for place in range(max(lengths[row], 0)):
            out[to + place] = data[start + place]


@kernel("uint8[], int64[], int64[], int64[], int32[], out uint8[]")
def copy_texts(data: Any, starts: Any, units: Any, sizes: Any, offsets: Any, out: Any) -> None:
    """Write texts of UTF-16, whose units are numbers of variable length, as UTF-8."""
    for row in range(len(starts)):
        at = starts[row]
        to = 0 + offsets[row]
        if units[row] == sizes[row]:
            for place in range(units[row]):
                out[to + place] = data[at + place]
            continue
        high = 0
        for _ in range(units[row]):
            unit = 0 + data[at]
            at += 1
            if unit >= 0x80:
                unit &= 0x7F
                shift = 7
                while data[at] >= 0x80:
                    unit |= (0 + data[at] & 0x7F) << shift
                    shift += 7
                    at += 1
                unit |= (0 + data[at]) << shift
                at += 1
            if high:
                unit = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)
                out[to] = 0xF0 | (unit >> 18)
                out[to + 1] = 0x80 | ((unit >> 12) & 0x3F)
                out[to + 2] = 0x80 | ((unit >> 6) & 0x3F)
                out[to + 3] = 0x80 | (unit & 0x3F)
                to += 4
                high = 0
            elif unit < 0x80:
                out[to] = unit
                to += 1
            elif unit < 0x800:
                out[to] = 0xC0 | (unit >> 6)
                out[to + 1] = 0x80 | (unit & 0x3F)
                to += 2
            elif 0xD800 <= unit < 0xDC00:
                high = unit
            else:
                out[to] = 0xE0 | (unit >> 12)
                out[to + 1] = 0x80 | ((unit >> 6) & 0x3F)
                out[to + 2] = 0x80 | (unit & 0x3F)
                to += 3
