"""The shredder: one pass over encoded values, which leaves of each part of them where it is and what it says.

A serializer is a program (`program`). For each value the machine walks through it and writes to a tape, in a slot per
part: the number itself, where a text begins, how many elements a list has, whether something is there. Columns are made
of slots by numpy and Arrow (`columns`). So no part of a value needs a kernel of its own, and no Python runs per row.

An operation looks at the registers (`r`), moves the position, fills slots of the tape and returns the operation that
follows, -1 after a failure. `c` is the code and `i` where the operation stands in it. A slot that is full is only
counted on, and the row is read again with a longer tape.

The binary rows, arrays and maps of Flink's SQL are little-endian: the bits of what is null, then a slot for each field;
what does not fit into a slot lies behind them, and the slot says where. Six registers describe a row or an array: its
begin, its end, the first bit of its nulls, the first slot, the element that is looked at and their number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate.foreign.flink.serializers.operations import (
    ARRAY,
    ARRAY_NEXT,
    BEGIN_BLOCKS,
    BIGINT,
    BIT,
    BLOCK,
    BYTES,
    CASE,
    DAMAGED,
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

_MOST_EMPTY = 64
"""How many elements may follow a count where each of them has no bytes."""


@subroutine
def wrong(r: Any, reason: Any) -> Any:
    r[FAILED] = reason
    return -1


@subroutine
def put(r: Any, tape: Any, fills: Any, limits: Any, slot: Any, value: Any) -> None:
    if slot >= 0:
        at = fills[slot]
        if at < limits[slot]:
            tape[at] = value
        else:
            r[OVERFLOW] = 1
        fills[slot] = at + 1


@subroutine
def blank(r: Any, tape: Any, fills: Any, limits: Any, levels: Any, first: Any, after: Any) -> None:
    """Give every slot of what is not there a zero, so that the columns of a level stay as long as each other."""
    if first < after:
        level = levels[first]
        for slot in range(first, after):
            if levels[slot] == level:
                put(r, tape, fills, limits, slot, 0)


@subroutine
def big_endian(data: Any, position: Any, width: Any) -> Any:
    value = 0
    for place in range(width):
        value = (value << 8) | data[position + place]
    if width < 8 and value >> (8 * width - 1):
        value -= 1 << (8 * width)
    return value


@subroutine
def run_fixed(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    position = r[POSITION]
    width = c[i + 1]
    if width > r[END] - position:
        return wrong(r, SHORT)
    put(r, tape, fills, limits, c[i + 7], big_endian(data, position, width))
    r[POSITION] = position + width
    return i + WIDTH


@subroutine
def run_range(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """A number from b to c, or the one that stands for null; another is wrong for the reason d."""
    position = r[POSITION]
    width = c[i + 1]
    if width > r[END] - position:
        return wrong(r, SHORT)
    value = big_endian(data, position, width)
    if (value < c[i + 2] or value > c[i + 3]) and value != c[i + 5]:
        return wrong(r, c[i + 4])
    put(r, tape, fills, limits, c[i + 7], value)
    if c[i + 6] >= 0:
        r[c[i + 6]] = value
    r[POSITION] = position + width
    return i + WIDTH


@subroutine
def run_string(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """The first unit, the number of units (-1 for null) and the bytes of the text in UTF-8.

    If b is 1, halves of characters are gone over.
    """
    position = r[POSITION]
    end = r[END]
    length = 0
    shift = 0
    while True:
        if position >= end:
            return wrong(r, SHORT)
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            return wrong(r, DAMAGED)
    units = length - c[i + 1]
    if units > end - position:
        return wrong(r, SHORT)
    begin = position
    bytes_needed = 0
    high = False
    lenient = c[i + 2] == 1
    for _ in range(units):
        if position >= end:
            return wrong(r, SHORT)
        unit = 0 + data[position]
        position += 1
        if unit >= 0x80:
            unit &= 0x7F
            shift = 7
            while True:
                if position >= end:
                    return wrong(r, SHORT)
                byte = data[position]
                position += 1
                unit |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
                if shift > 14:
                    return wrong(r, DAMAGED)
            if unit > 0xFFFF:
                return wrong(r, DAMAGED)
        low = 0xDC00 <= unit < 0xE000
        if low != high and not lenient:
            return wrong(r, UNKNOWN)
        high = 0xD800 <= unit < 0xDC00
        bytes_needed += 1 if unit < 0x80 else 2 if unit < 0x800 or low or high else 3
    if high and not lenient:
        return wrong(r, UNKNOWN)
    slot = c[i + 7]
    if slot >= 0:
        put(r, tape, fills, limits, slot, begin)
        put(r, tape, fills, limits, slot + 1, units)
        put(r, tape, fills, limits, slot + 2, bytes_needed)
    r[POSITION] = position
    return i + WIDTH


@subroutine
def run_bytes(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """Bytes after a length of four bytes: where they begin and how many they are."""
    position = r[POSITION]
    if r[END] - position < 4:
        return wrong(r, SHORT)
    length = big_endian(data, position, 4)
    position += 4
    if length < 0:
        return wrong(r, DAMAGED)
    if length > r[END] - position:
        return wrong(r, SHORT)
    slot = c[i + 7]
    if slot >= 0:
        put(r, tape, fills, limits, slot, position)
        put(r, tape, fills, limits, slot + 1, length)
    r[POSITION] = position + length
    return i + WIDTH


@subroutine
def run_bigint(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """Begin and length of the bytes, -1 for null, -2 to -4 for 0, 1 and 10; with a scale after it if a is 1."""
    position = r[POSITION]
    end = r[END]
    if end - position < 4:
        return wrong(r, SHORT)
    length = big_endian(data, position, 4)
    position += 4
    if length < 0 or length == 4:
        return wrong(r, DAMAGED)
    length = length - 4 if length > 3 else -1 - length
    begin = position
    position += max(length, 0)
    if position > end:
        return wrong(r, SHORT)
    slot = c[i + 7]
    scale = 0
    if c[i + 1] == 1 and length != -1:
        if end - position < 4:
            return wrong(r, SHORT)
        scale = big_endian(data, position, 4)
        position += 4
    if slot >= 0:
        put(r, tape, fills, limits, slot, begin)
        put(r, tape, fills, limits, slot + 1, length)
        if c[i + 1] == 1:
            put(r, tape, fills, limits, slot + 2, scale)
    r[POSITION] = position
    return i + WIDTH


@subroutine
def run_repeat(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """A number of elements, each of at least b bytes; register a counts them, c is where to go on if there are none."""
    position = r[POSITION]
    if r[END] - position < 4:
        return wrong(r, SHORT)
    count = big_endian(data, position, 4)
    position += 4
    if count < 0:
        return wrong(r, DAMAGED)
    if (c[i + 2] and count > (r[END] - position) // c[i + 2]) or (c[i + 2] == 0 and count > _MOST_EMPTY):
        return wrong(r, SHORT)
    put(r, tape, fills, limits, c[i + 7], count)
    r[POSITION] = position
    r[c[i + 1]] = count
    return i + WIDTH if count else c[i + 3]


@subroutine
def run_next(r: Any, c: Any, i: Any) -> Any:
    r[c[i + 1]] -= 1
    return c[i + 2] if r[c[i + 1]] > 0 else i + WIDTH


@subroutine
def run_optional(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any, levels: Any) -> Any:
    """A flag; if it is a, there is nothing and c to d are left out. Padding of e bytes follows a null."""
    position = r[POSITION]
    if position >= r[END]:
        return wrong(r, SHORT)
    flag = data[position]
    if flag > 1:
        return wrong(r, DAMAGED)
    r[POSITION] = position + 1
    there = flag != c[i + 1]
    put(r, tape, fills, limits, c[i + 7], 1 if there else 0)
    if there:
        return i + WIDTH
    if c[i + 5] == -1:
        r[POSITION] = r[END]
    elif c[i + 5] > r[END] - r[POSITION]:
        return wrong(r, SHORT)
    else:
        r[POSITION] += c[i + 5]
    blank(r, tape, fills, limits, levels, c[i + 3], c[i + 4])
    return c[i + 2]


@subroutine
def run_mask(r: Any, c: Any, i: Any) -> Any:
    """Remember in register a where b bits begin."""
    size = (c[i + 2] + 7) >> 3
    if size > r[END] - r[POSITION]:
        return wrong(r, SHORT)
    r[c[i + 1]] = r[POSITION]
    r[POSITION] += size
    return i + WIDTH


@subroutine
def run_bit(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any, levels: Any) -> Any:
    """Bit b of the mask of register a: if it is set there is nothing, and d to e are left out."""
    bit = c[i + 2]
    there = not (data[r[c[i + 1]] + (bit >> 3)] >> (7 - (bit & 7))) & 1
    put(r, tape, fills, limits, c[i + 7], 1 if there else 0)
    if there:
        return i + WIDTH
    blank(r, tape, fills, limits, levels, c[i + 4], c[i + 5])
    return c[i + 3]


@subroutine
def run_case(r: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any, levels: Any) -> Any:
    """Go on only if register a is b; else c to d are left out."""
    if r[c[i + 1]] == c[i + 2]:
        return i + WIDTH
    blank(r, tape, fills, limits, levels, c[i + 4], c[i + 5])
    return c[i + 3]


@subroutine
def run_pojo(
    r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any, levels: Any, table: Any, names: Any
) -> Any:
    """Which class an object is of: register a is 0 for the declared one, else its number in the table, -1 for null."""
    position = r[POSITION]
    end = r[END]
    if position >= end:
        return wrong(r, SHORT)
    flags = data[position]
    position += 1
    chosen = -2
    if flags == 1:
        chosen = -1
    elif flags == 2:
        chosen = 0
    elif flags == 8:
        if position >= end:
            return wrong(r, SHORT)
        tag = data[position]
        position += 1
        for entry in range(c[i + 5], c[i + 6]):
            if table[4 * entry + 3] == tag:
                chosen = table[4 * entry + 2]
    elif flags == 4:
        if end - position < 2:
            return wrong(r, SHORT)
        length = (0 + data[position]) << 8 | data[position + 1]
        position += 2
        if length > end - position:
            return wrong(r, SHORT)
        for entry in range(c[i + 5], c[i + 6]):
            same = table[4 * entry + 1] == length
            if same:
                for place in range(length):
                    if names[table[4 * entry] + place] != data[position + place]:
                        same = False
                        break
            if same:
                chosen = table[4 * entry + 2]
        position += length
    else:
        return wrong(r, DAMAGED)
    if chosen == -2:
        return wrong(r, UNKNOWN)
    put(r, tape, fills, limits, c[i + 7], chosen)
    r[c[i + 1]] = chosen
    r[POSITION] = position
    if chosen == -1:
        blank(r, tape, fills, limits, levels, c[i + 3], c[i + 4])
        return c[i + 2]
    return i + WIDTH


@subroutine
def run_joined_next(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """After an element of a list that is joined by commas: its end, or a comma and another."""
    r[c[i + 1]] += 1
    if r[POSITION] == r[END]:
        put(r, tape, fills, limits, c[i + 7], r[c[i + 1]])
        return i + WIDTH
    if data[r[POSITION]] != 44:
        return wrong(r, DAMAGED)
    r[POSITION] += 1
    return c[i + 2]


@subroutine
def run_suffix(r: Any, data: Any, c: Any, i: Any) -> Any:
    """The length of what was read since register a was marked, in as few bytes as it needs, the lowest first."""
    length = r[POSITION] - r[c[i + 1]]
    while True:
        if r[POSITION] >= r[END]:
            return wrong(r, SHORT)
        if data[r[POSITION]] != length & 0xFF:
            return wrong(r, DAMAGED)
        r[POSITION] += 1
        length >>= 8
        if length == 0:
            return i + WIDTH


@subroutine
def run_block(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """A number of elements as Avro's encoder of Flink writes it: register a counts them, a + 1 all, 0 is the end."""
    count = 0
    shift = 0
    while True:
        if r[POSITION] >= r[END]:
            return wrong(r, SHORT)
        byte = data[r[POSITION]]
        r[POSITION] += 1
        count |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            return wrong(r, DAMAGED)
    if count == 0:
        put(r, tape, fills, limits, c[i + 7], r[c[i + 1] + 1])
        return c[i + 3]
    if (c[i + 2] and count > (r[END] - r[POSITION]) // c[i + 2]) or (c[i + 2] == 0 and count > _MOST_EMPTY):
        return wrong(r, SHORT)
    r[c[i + 1]] = count
    r[c[i + 1] + 1] += count
    return i + WIDTH


@subroutine
def _little_endian(data: Any, position: Any, width: Any) -> Any:
    value = 0
    for place in range(width - 1, -1, -1):
        value = (value << 8) | data[position + place]
    if width < 8 and value >> (8 * width - 1):
        value -= 1 << (8 * width)
    return value


@subroutine
def run_root(r: Any, data: Any, c: Any, i: Any) -> Any:
    """A length, and so many bytes that registers a and a + 1 are the ends of."""
    position = r[POSITION]
    if r[END] - position < 4:
        return wrong(r, SHORT)
    length = big_endian(data, position, 4)
    position += 4
    if length < 0:
        return wrong(r, DAMAGED)
    if length > r[END] - position:
        return wrong(r, SHORT)
    r[c[i + 1]] = position
    r[c[i + 1] + 1] = position + length
    r[POSITION] = position + length
    return i + WIDTH


@subroutine
def run_row(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """A row of b fields between the ends of register a; what kind of change it is."""
    a = c[i + 1]
    nulls = (((c[i + 2] + 8) + 63) >> 6) << 3
    if r[a + 1] - r[a] < nulls + 8 * c[i + 2]:
        return wrong(r, SHORT)
    kind = data[r[a]]
    if kind > 3:
        return wrong(r, DAMAGED)
    put(r, tape, fills, limits, c[i + 7], kind)
    r[a + 2] = 8 * r[a] + 8
    r[a + 3] = r[a] + nulls
    r[a + 4] = 0
    return i + WIDTH


@subroutine
def _is_null(r: Any, data: Any, a: Any, field: Any) -> Any:
    bit = r[a + 2] + r[a + 4] + field
    return (data[bit >> 3] >> (bit & 7)) & 1


@subroutine
def run_slot_fixed(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """Field b of the row of register a, of c bytes in slots of d: whether it is there, and its value."""
    a = c[i + 1]
    slot = c[i + 7]
    if slot >= 0:
        null = _is_null(r, data, a, c[i + 2])
        put(r, tape, fills, limits, slot, 1 - null)
        at = r[a + 3] + (r[a + 4] + c[i + 2]) * c[i + 4]
        put(r, tape, fills, limits, slot + 1, 0 if null else _little_endian(data, at, c[i + 3]))
    return i + WIDTH


@subroutine
def run_slot_bytes(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """Field b of the row of register a: whether it is there, where its bytes begin and how many they are."""
    a = c[i + 1]
    there = 1 - _is_null(r, data, a, c[i + 2])
    begin = 0
    length = 0
    if there:
        at = r[a + 3] + (r[a + 4] + c[i + 2]) * 8
        if data[at + 7] & 0x80:
            length = 0 + (data[at + 7] & 0x7F)
            begin = at
            if length > 7:
                return wrong(r, DAMAGED)
        else:
            length = _little_endian(data, at, 4)
            begin = r[a] + _little_endian(data, at + 4, 4)
            if length < 0 or begin < r[a] or length > r[a + 1] - begin:
                return wrong(r, DAMAGED)
    slot = c[i + 7]
    if slot >= 0:
        put(r, tape, fills, limits, slot, there)
        put(r, tape, fills, limits, slot + 1, begin)
        put(r, tape, fills, limits, slot + 2, length)
    return i + WIDTH


@subroutine
def run_slot_time(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """Field b of the row of register a, a time: whether it is there, its milliseconds, its nanoseconds beyond them."""
    a = c[i + 1]
    there = 1 - _is_null(r, data, a, c[i + 2])
    milliseconds = 0
    nanoseconds = 0
    if there:
        at = r[a + 3] + (r[a + 4] + c[i + 2]) * 8
        nanoseconds = _little_endian(data, at, 4)
        begin = r[a] + _little_endian(data, at + 4, 4)
        if begin < r[a] or r[a + 1] - begin < 8 or nanoseconds < 0 or nanoseconds > 999_999:
            return wrong(r, DAMAGED)
        milliseconds = _little_endian(data, begin, 8)
        if milliseconds < c[i + 3] or milliseconds > c[i + 4]:
            return wrong(r, c[i + 5])
    slot = c[i + 7]
    if slot >= 0:
        put(r, tape, fills, limits, slot, there)
        put(r, tape, fills, limits, slot + 1, milliseconds)
        put(r, tape, fills, limits, slot + 2, nanoseconds)
    return i + WIDTH


@subroutine
def run_enter(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any, levels: Any) -> Any:
    """Field b of the row of register a is a row, an array or a map; register c describes it, d is where to go on."""
    a = c[i + 1]
    there = 1 - _is_null(r, data, a, c[i + 2])
    put(r, tape, fills, limits, c[i + 7], there)
    if not there:
        blank(r, tape, fills, limits, levels, c[i + 5], c[i + 6])
        return c[i + 4]
    at = r[a + 3] + (r[a + 4] + c[i + 2]) * 8
    length = _little_endian(data, at, 4)
    begin = r[a] + _little_endian(data, at + 4, 4)
    if length < 0 or begin < r[a] or length > r[a + 1] - begin:
        return wrong(r, DAMAGED)
    r[c[i + 3]] = begin
    r[c[i + 3] + 1] = begin + length
    return i + WIDTH


@subroutine
def run_array(r: Any, data: Any, c: Any, i: Any, tape: Any, fills: Any, limits: Any) -> Any:
    """The elements of an array between the ends of register a, each in b bytes; c is where to go on without any."""
    a = c[i + 1]
    if r[a + 1] - r[a] < 4:
        return wrong(r, SHORT)
    count = _little_endian(data, r[a], 4)
    if count < 0:
        return wrong(r, DAMAGED)
    nulls = ((count + 31) >> 5) << 2
    if count > r[a + 1] - r[a] or r[a + 1] - r[a] < 4 + nulls + count * c[i + 2]:
        return wrong(r, SHORT)
    put(r, tape, fills, limits, c[i + 7], count)
    r[a + 2] = 8 * (r[a] + 4)
    r[a + 3] = r[a] + 4 + nulls
    r[a + 4] = 0
    r[a + 5] = count
    return i + WIDTH if count else c[i + 3]


@subroutine
def run_array_next(r: Any, c: Any, i: Any) -> Any:
    a = c[i + 1]
    r[a + 4] += 1
    return c[i + 2] if r[a + 4] < r[a + 5] else i + WIDTH


@subroutine
def run_map_parts(r: Any, data: Any, c: Any, i: Any) -> Any:
    """The map of register a is an array of keys, register b, and one of values, register c."""
    a = c[i + 1]
    if r[a + 1] - r[a] < 4:
        return wrong(r, SHORT)
    size = _little_endian(data, r[a], 4)
    if size < 0 or size > r[a + 1] - r[a] - 4:
        return wrong(r, DAMAGED)
    r[c[i + 2]] = r[a] + 4
    r[c[i + 2] + 1] = r[a] + 4 + size
    r[c[i + 3]] = r[a] + 4 + size
    r[c[i + 3] + 1] = r[a + 1]
    return i + WIDTH


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
