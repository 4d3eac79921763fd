"""Programs of the shredder, and the tape that they write.

A serializer adds its operations to a `Program` and returns a `Column`: what makes an Arrow array of the slots that the
operations fill. A slot has a level, which is how many repetitions it is in; slots of one level and one repetition are
equally long, for what is not there is a zero in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.serializers import machine
from arrowstate.foreign.flink.serializers.operations import (
    DAMAGED,
    FAILED,
    FREE,
    HALT,
    NEXT,
    OVERFLOW,
    POSITION,
    RANGE,
    SHORT,
    SLOT_TIME,
    STRING,
    UNKNOWN,
    WIDTH,
)
from arrowstate.foreign.flink.serializers.straight import Straight, read_numbers, straight

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Column: TypeAlias = Callable[["Slots"], pa.Array]

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

_REASONS = {
    SHORT: "the value is longer than what is left",
    DAMAGED: "the bytes are no such value",
    UNKNOWN: "nothing says how the value was written",
}


class UndecodableError(Exception):
    """Values follow each other without lengths, and one of them cannot be decoded."""

    def __init__(self, row: int, position: int) -> None:
        self.row, self.position = row, position
        super().__init__(row, position)


class Program:
    """Operations as they are put together."""

    def __init__(self) -> None:
        self.code: list[int] = []
        self.levels: list[int] = []
        self.table: list[int] = []
        self.names = bytearray()
        self.registers = FREE
        self.level = 0
        self.silent = False
        "Whether operations fill no slots: what is walked over and not looked at."

    @property
    def here(self) -> int:
        """Where the next operation will stand."""
        return len(self.code)

    def slots(self, count: int = 1) -> int:
        """Return the first of new slots."""
        if self.silent:
            return -1
        self.levels += [self.level] * count
        return len(self.levels) - count

    @property
    def next_slot(self) -> int:
        """The slot that is taken next."""
        return len(self.levels)

    def register(self, count: int = 1) -> int:
        """Return the first of new registers."""
        self.registers += count
        return self.registers - count

    def add(self, code: int, *arguments: int, slot: int = -1) -> int:
        """Add an operation and return where it stands.

        Where nothing is looked at, values may be those that Arrow does not have: their ends are known.
        """
        place = self.here
        if self.silent and code == STRING:
            arguments = (arguments[0], 1)
        elif self.silent and code == RANGE and arguments[3] == UNKNOWN:
            arguments = (arguments[0], _LEAST, _MOST, *arguments[3:])
        elif self.silent and code == SLOT_TIME:
            arguments = (*arguments[:2], _LEAST, _MOST, *arguments[4:])
        self.code += [code, *arguments, *[0] * (WIDTH - 2 - len(arguments)), slot]
        return place

    def patch(self, place: int, argument: int, value: int | None = None) -> None:
        """Set an argument, from 1, of an operation; to where the next one will stand if no value is given."""
        self.code[place + argument] = self.here if value is None else value

    def name(self, text: bytes, number: int, tag: int) -> None:
        """Enter a class into the table: its name, its number among the alternatives and its tag, -1 for none."""
        self.table += [len(self.names), len(text), number, tag]
        self.names += text

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Slots in the block are in one more repetition."""
        self.level += 1
        yield
        self.level -= 1

    @contextmanager
    def repeated(self, code: int, *arguments: int, slot: int, again: tuple[int, int] = (NEXT, -1)) -> Iterator[None]:
        """Operations in the block are done for each element; `code` counts them, and its last argument is their end.

        Its first argument is the register of the count. `again` is the operation after each element, and its slot.
        """
        place = self.add(code, *arguments, 0, slot=slot)
        with self.deeper():
            body = self.here
            yield
        self.add(again[0], arguments[0], body, slot=again[1])
        self.patch(place, len(arguments) + 1)

    @contextmanager
    def branch(self, code: int, *before: int, after: tuple[int, ...] = (), slot: int = -1) -> Iterator[None]:
        """Operations in the block are left out where `code` says so, and their slots get zeros then.

        `before` and `after` are its arguments beside the place to go on at and the slots of the block.
        """
        place = self.add(code, *before, 0, self.next_slot, 0, *after, slot=slot)
        yield
        self.patch(place, len(before) + 1)
        self.patch(place, len(before) + 3, self.next_slot)

    @contextmanager
    def walking(self) -> Iterator[None]:
        """Operations in the block fill no slots."""
        before, self.silent = self.silent, True
        yield
        self.silent = before

    def finish(self) -> Code:
        """Return the whole, ready to run."""
        return Code(
            np.array([*self.code, HALT, *[0] * (WIDTH - 1)], dtype=np.int64),
            np.array(self.table or [0] * 4, dtype=np.int64),
            np.frombuffer(bytes(self.names) or b"\0", dtype=np.uint8),
            np.array(self.levels, dtype=np.int64),
            self.registers,
            straight(self.code),
        )


@dataclass(frozen=True, slots=True)
class Code:
    """A program as the machine takes it."""

    code: Ints
    table: Ints
    names: Bytes
    levels: Ints
    registers: int
    straight: Straight | None
    "The same as parts, if it only reads numbers."


class Slots:
    """What the machine left of values, and the bytes they were read from."""

    __slots__ = ("_fills", "_firsts", "_tape", "data")

    def __init__(self, data: Bytes, tape: Ints, firsts: Ints, fills: Ints) -> None:
        self.data, self._tape, self._firsts, self._fills = data, tape, firsts, fills

    def __getitem__(self, slot: int) -> Ints:
        return self._tape[self._firsts[slot] : self._fills[slot]]


class Tape:
    """A run of a program over values of one array of bytes."""

    def __init__(self, code: Code, data: Bytes, name: str, rows: int = 64) -> None:
        self.code, self.data, self.name = code, data, name
        slots = len(code.levels)
        self._capacities = np.full(slots, max(rows, 1), dtype=np.int64)
        self._registers = np.zeros(code.registers, dtype=np.int64)
        self._marks = np.zeros(slots, dtype=np.int64)
        self._tape = np.empty(int(self._capacities.sum()), dtype=np.int64)
        self._firsts = np.cumsum(self._capacities) - self._capacities
        self._fills = self._firsts.copy()

    @property
    def slots(self) -> Slots:
        """What was read so far."""
        return Slots(self.data, self._tape, self._firsts, self._fills)

    def values(self, starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Read values that begin at `starts` and end at or before `ends`; return their ends, and which are unknown.

        A value that cannot be decoded ends at its last possible byte, and its slots are zeros.
        """
        if len(starts) and (starts.min() < 0 or ends.max() > len(self.data) or (starts > ends).any()):
            # The machine looks at no bounds but these.
            raise CorruptDataError(self.name, f"a value is to end at byte {ends.max()} of {len(self.data)}")
        straight = self.code.straight
        if straight is not None and (ends - starts >= straight.width).all() and self._read_numbers(straight, starts):
            return starts + straight.width, np.zeros(len(starts), dtype=np.bool_)
        stops = np.empty(len(starts), dtype=np.int64)
        states = np.zeros(len(starts), dtype=np.uint8)
        row = self._run(starts, ends, False, stops, states)
        if row < len(starts):
            raise self._damage()
        return stops, states.view(np.bool_)

    def chain(self, start: int, end: int, count: int) -> Ints:
        """Read values that follow each other without lengths; return where each ended."""
        if not 0 <= start <= end <= len(self.data):
            raise CorruptDataError(self.name, f"values are to be at bytes {start} to {end} of {len(self.data)}")
        straight = self.code.straight
        if straight is not None and end - start >= count * straight.width:
            places = start + np.arange(count + 1, dtype=np.int64) * straight.width
            if self._read_numbers(straight, places[:-1]):
                return places[1:]
        starts = np.full(count, start, dtype=np.int64)
        ends = np.full(count, end, dtype=np.int64)
        stops = np.empty(count, dtype=np.int64)
        row = self._run(starts, ends, True, stops, np.zeros(count, dtype=np.uint8))
        if row == count:
            return stops
        if self._registers[FAILED] == UNKNOWN:
            raise UndecodableError(row, int(stops[row - 1]) if row else start)
        raise self._damage()

    def _read_numbers(self, straight: Straight, starts: Ints) -> bool:
        """Read values that are nothing but numbers; False, and nothing is read, if one may not be."""
        rows = len(starts)
        needed = self._fills + rows
        if (needed - self._firsts > self._capacities).any():
            self._marks[:] = needed
            self._grow(0)
        data = self.data.ctypes.data
        for part in straight.parts:
            first = -1 if part.slot < 0 else int(self._fills[part.slot])
            limits = part.low, part.high, part.absent
            if read_numbers(data, starts, part.offset, part.width, *limits, first, self._tape) < rows:
                return False
        self._fills[[part.slot for part in straight.parts if part.slot >= 0]] += rows
        return True

    def _run(self, starts: Ints, ends: Ints, chained: bool, stops: Ints, states: Bytes) -> int:
        row = 0
        code = self.code
        while True:
            row = machine.shred(
                self.data,
                code.code,
                code.table,
                code.names,
                code.levels,
                starts,
                ends,
                row,
                int(chained),
                self._registers,
                self._tape,
                self._fills,
                self._firsts + self._capacities,
                self._marks,
                stops,
                states,
            )
            if row == len(starts) or not self._registers[OVERFLOW]:
                return int(row)
            self._grow(len(starts) - row)

    def _grow(self, rows: int) -> None:
        """Make room for what the row that did not fit needs, and for as many again."""
        needed = self._marks - self._firsts
        short = needed > self._capacities
        filled = self._fills - self._firsts
        capacities = np.where(short, np.maximum(2 * needed, filled + rows), self._capacities)
        firsts = np.cumsum(capacities) - capacities
        tape = np.empty(int(capacities.sum()), dtype=np.int64)
        for slot, (begin, count) in enumerate(zip(self._firsts.tolist(), filled.tolist(), strict=True)):
            tape[firsts[slot] : firsts[slot] + count] = self._tape[begin : begin + count]
        self._tape, self._firsts, self._capacities = tape, firsts, capacities
        self._fills = firsts + filled

    def _damage(self) -> CorruptDataError:
        reason = _REASONS[int(self._registers[FAILED])]
        return CorruptDataError(self.name, f"at byte {int(self._registers[POSITION])}: {reason}")
