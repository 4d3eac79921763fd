"""The operations of the shredder over the binary rows, arrays and maps of Flink's SQL.

They are little-endian: the bits of what is null, then a slot for each field; what does not fit into a slot lies behind
them, and the slot says where. Six registers describe a row or an array: its begin, its end, the first bit of its nulls,
the first slot, the element that is looked at and their number.
"""

from __future__ import annotations

from typing import Any

from arrowstate.foreign.flink.serializers.machine_parts import big_endian, blank, put, wrong
from arrowstate.foreign.flink.serializers.operations import DAMAGED, END, POSITION, SHORT, WIDTH
from arrowstate_formats.compiled import subroutine


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
