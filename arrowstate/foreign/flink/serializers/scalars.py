"""Serializers of single values: numbers, texts, times, large numbers, constants of enumerations."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.serializers.base import Serializer
from arrowstate.foreign.flink.serializers.columns import as_numbers, as_texts, masked
from arrowstate.foreign.flink.serializers.operations import BIGINT, DAMAGED, FIXED, RANGE, STRING, UNKNOWN
from arrowstate.foreign.flink.serializers.program import Column, Ints, Program, Slots

_LEAST_INT, _LEAST_LONG = -(1 << 31), -(1 << 63)
_MOST_SECONDS = (1 << 63) // 1_000_000_000 - 1
_MOST_MILLIS = (1 << 63) // 1_000_000 - 1
_UTC: Final = pa.timestamp("ns", "UTC")


@dataclass(frozen=True, slots=True)
class Number(Serializer):
    """A number of fixed width, big-endian."""

    arrow: pa.DataType = field()
    "An integer, a float or a boolean."
    hashed: bool = False
    "Whether its hash in Java is that of a `Long` or an `Integer`."

    @property
    def length(self) -> int:
        return max(self.arrow.bit_width // 8, 1)

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, kind = program.slots(), self.arrow
        if pa.types.is_boolean(kind):
            program.add(RANGE, 1, 0, 1, DAMAGED, 0, -1, slot=slot)
        else:
            program.add(FIXED, self.length, slot=slot)
        return lambda slots: as_numbers(slots[slot], kind)


@dataclass(frozen=True, slots=True)
class FlippedLong(Serializer):
    """A number of eight bytes with its sign turned, so that its bytes are in its order."""

    arrow = pa.int64()
    length = 8

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots()
        program.add(FIXED, 8, slot=slot)
        return lambda slots: pa.array(slots[slot] ^ _LEAST_LONG)


@dataclass(frozen=True, slots=True)
class Char(Serializer):
    """One of Java's 16-bit characters, as a text."""

    arrow = pa.string()
    length = 2

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots()
        program.add(FIXED, 2, slot=slot)
        return lambda slots: _characters(slots[slot] & 0xFFFF)


def _characters(units: Ints) -> pa.Array:
    if ((units >= 0xD800) & (units < 0xE000)).any():
        raise CorruptDataError("", "a character is half of a pair, which is no text; a hint of binary keeps its bytes")
    distinct, places = np.unique(units, return_inverse=True)
    return pa.array([chr(unit) for unit in distinct.tolist()], pa.string()).take(pa.array(places))


@dataclass(frozen=True, slots=True)
class Text(Serializer):
    """A string, or null, as Flink writes them: a length and 16-bit units, all of variable length."""

    arrow = pa.string()

    nullable: bool = True
    "Whether the length is one more than it is, and 0 means null."

    @property
    def hashed(self) -> bool:
        return self.nullable

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots(3)
        program.add(STRING, int(self.nullable), slot=slot)
        return lambda slots: as_texts(slots.data, slots[slot], slots[slot + 1], slots[slot + 2])


@dataclass(frozen=True, slots=True)
class Nothing(Serializer):
    """A value without content, of no byte or of one that is zero."""

    arrow = pa.null()

    length: int = 1

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots()
        program.add(RANGE, self.length, 0, 0, DAMAGED, 0, -1, slot=slot)
        return lambda slots: pa.nulls(len(slots[slot]))


@dataclass(frozen=True, slots=True)
class BigNumber(Serializer):
    """A `BigInteger`, or with a scale a `BigDecimal`: as text, for they have no bound; made row by row."""

    arrow = pa.string()
    least = 4

    scaled: bool
    "Whether a scale follows."

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots(3 if self.scaled else 2)
        program.add(BIGINT, int(self.scaled), slot=slot)
        return lambda slots: self._texts(slots, slot)

    def _texts(self, slots: Slots, slot: int) -> pa.Array:
        starts, lengths = slots[slot].tolist(), slots[slot + 1].tolist()
        scales = slots[slot + 2].tolist() if self.scaled else [0] * len(starts)
        known = {-2: 0, -3: 1, -4: 10}
        texts: list[str | None] = []
        data = slots.data
        for start, length, scale in zip(starts, lengths, scales, strict=True):
            if length == -1 or length == 0:
                texts.append(None)
                continue
            number = (
                known[length]
                if length < 0
                else int.from_bytes(data[start : start + length].tobytes(), "big", signed=True)
            )
            texts.append(_decimal_text(number, scale) if self.scaled else str(number))
        return pa.array(texts, pa.string())


def _decimal_text(number: int, scale: int) -> str:
    """A number with its scale as Java's `toString` has it."""
    digits = tuple(int(digit) for digit in str(abs(number)))
    return str(Decimal((int(number < 0), digits, -scale)))


@dataclass(frozen=True, slots=True)
class Enumeration(Serializer):
    """A constant of an enumeration by its place among those that were known."""

    arrow = pa.string()
    length = 4

    class_name: str
    names: tuple[str, ...]

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots()
        program.add(RANGE, 4, 0, len(self.names) - 1, DAMAGED, 0, -1, slot=slot)
        names = pa.array(self.names, pa.string())
        return lambda slots: names.take(pa.array(slots[slot]))


_TIMES: Final = {
    "date": (pa.date32(), 6),
    "time": (pa.time64("ns"), 7),
    "datetime": (pa.timestamp("ns"), 13),
    "instant": (_UTC, 12),
    "millis": (pa.timestamp("ms", "UTC"), 8),
    "sql_timestamp": (_UTC, 12),
    "table_time": (pa.timestamp("ns"), 12),
}
"""Of each kind of time its type and the bytes of a value."""


@dataclass(frozen=True, slots=True)
class Time(Serializer):
    """A date, a time or a point in time of Java.

    What 64 bits of nanoseconds since 1970 cannot hold (before 1677 or after 2262) is kept as bytes.
    """

    kind: str
    """`date`, `time`, `datetime` and `instant` are those of `java.time`; `millis` is a `java.util.Date` or one of its
    kinds, `sql_timestamp` a `java.sql.Timestamp`; `table_time` a `TimestampData` of more than milliseconds."""

    @property
    def arrow(self) -> pa.DataType:
        return _TIMES[self.kind][0]

    @property
    def length(self) -> int:
        return _TIMES[self.kind][1]

    @property
    def fallible(self) -> bool:
        return self.kind not in ("time", "millis")

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        kind = self.kind
        slot = program.slots(1 if kind == "millis" else {"date": 3, "time": 4, "datetime": 7}.get(kind, 2))
        after = -1 if slot < 0 else slot
        place = iter(range(after, after + 8)) if slot >= 0 else iter([-1] * 8)

        def number(width: int, least: int, most: int, reason: int, null: int) -> None:
            program.add(RANGE, width, least, most, reason, null, -1, slot=next(place))

        if kind == "millis":
            program.add(FIXED, 8, slot=slot)
            return lambda slots: _with_null(slots[slot], self.arrow)
        if kind in ("date", "datetime"):
            years = (-5_000_000, 5_000_000) if kind == "date" else (1678, 2261)
            number(4, *years, UNKNOWN, _LEAST_INT)
            number(1, 1, 12, DAMAGED, -128)
            number(1, 1, 31, DAMAGED, 0)
        if kind in ("time", "datetime"):
            number(1, 0, 23, DAMAGED, -128)
            number(1, 0, 59, DAMAGED, 0)
            number(1, 0, 59, DAMAGED, 0)
            number(4, 0, 999_999_999, DAMAGED, _LEAST_INT)
        if kind in ("date", "time", "datetime"):
            return lambda slots: _calendar(slots, slot, kind, self.arrow)
        bound = _MOST_SECONDS if kind == "instant" else _MOST_MILLIS
        number(8, -bound, bound, UNKNOWN, _LEAST_LONG)
        number(4, 0, 999_999_999, DAMAGED, _LEAST_INT if kind == "instant" else 0)
        return lambda slots: _point(slots[slot], slots[slot + 1], kind, self.arrow)


def _with_null(values: Ints, kind: pa.DataType) -> pa.Array:
    return masked(as_numbers(values, kind), values != _LEAST_LONG)


def _calendar(slots: Slots, slot: int, kind: str, arrow: pa.DataType) -> pa.Array:
    """Days, nanoseconds of a day, or both; null where the year or the hour is the least number."""
    days = nanoseconds = np.zeros(len(slots[slot]), dtype=np.int64)
    there = np.ones(len(days), dtype=np.bool_)
    if kind != "time":
        years, months, dates = slots[slot], slots[slot + 1], slots[slot + 2]
        there = years != _LEAST_INT
        days = _days(np.where(there, years, 1970), np.where(there, months, 1), np.where(there, dates, 1))
        slot += 3
    if kind != "date":
        hours = slots[slot]
        if kind == "time":
            there = hours != -128
        nanoseconds = ((hours * 60 + slots[slot + 1]) * 60 + slots[slot + 2]) * 1_000_000_000 + slots[slot + 3]
    whole = days if kind == "date" else nanoseconds if kind == "time" else days * 86_400_000_000_000 + nanoseconds
    return masked(as_numbers(np.where(there, whole, 0), arrow), there)


def _days(years: Ints, months: Ints, dates: Ints) -> Ints:
    """The days since 1970 of dates of the Gregorian calendar, which is counted in years that begin with March."""
    shifted = years - (months <= 2)
    eras = shifted // 400
    of_era = shifted - eras * 400
    of_year = (153 * (months + np.where(months > 2, -3, 9)) + 2) // 5 + dates - 1
    found: Ints = eras * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return found


def _point(first: Ints, nanoseconds: Ints, kind: str, arrow: pa.DataType) -> pa.Array:
    there = first != _LEAST_LONG
    seconds = np.where(there, first, 0)
    if kind == "instant":
        whole = seconds * 1_000_000_000 + nanoseconds
    elif kind == "sql_timestamp":
        # Its milliseconds count the whole ones of the nanoseconds too.
        whole = (seconds // 1000) * 1_000_000_000 + nanoseconds
    else:
        whole = seconds * 1_000_000 + nanoseconds
    return masked(as_numbers(np.where(there, whole, 0), arrow), there)
