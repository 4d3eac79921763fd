"""The operations of the shredder over Java's data output, each as a part of the kernel.

An operation looks at the registers (`r`), moves the position, fills slots of the tape and returns the operation that
follows, -1 after a failure. `c` is the code and `i` where the operation stands in it. A slot that is full is only
counted on, and the row is read again with a longer tape.
"""

from __future__ import annotations

from typing import Any

from arrowstate.foreign.flink.serializers.operations import (
    DAMAGED,
    END,
    FAILED,
    OVERFLOW,
    POSITION,
    SHORT,
    UNKNOWN,
    WIDTH,
)
from arrowstate_formats.compiled import subroutine

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
    """Bytes after a length of four bytes: where they begin and how many they are, -1 for null where that may be."""
    position = r[POSITION]
    if r[END] - position < 4:
        return wrong(r, SHORT)
    length = big_endian(data, position, 4)
    position += 4
    if length < 0 and (c[i + 1] == 0 or length != -1):
        return wrong(r, DAMAGED)
    if length > r[END] - position:
        return wrong(r, SHORT)
    slot = c[i + 7]
    if slot >= 0:
        put(r, tape, fills, limits, slot, position)
        put(r, tape, fills, limits, slot + 1, length)
    r[POSITION] = position + max(length, 0)
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
    if count == -1 and c[i + 4] == 1:
        count = 0
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
