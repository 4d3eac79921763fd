"""What every description of a serializer can do.

A description is made of the snapshot of a serializer that stands in a savepoint. It knows the Arrow type of its values,
adds itself to a program of the shredder, and names the classes in it that nobody can decode without the job's code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.foreign.flink.serializers.columns import as_bytes, masked
from arrowstate.foreign.flink.serializers.operations import BYTES, FAIL, REST, UNKNOWN
from arrowstate.foreign.flink.serializers.program import Bytes, Code, Column, Ints, Program, Slots, Tape


class Serializer:
    """A description of how values were written."""

    __slots__ = ()

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column."""
        raise NotImplementedError  # Abstract: each serializer knows its own type.

    @property
    def length(self) -> int:
        """The bytes of each value, -1 if they differ."""
        return -1

    @property
    def least(self) -> int:
        """The bytes of the shortest value."""
        return max(self.length, 1)

    @property
    def opaque(self) -> tuple[str, ...]:
        """The classes in it whose values cannot be decoded."""
        return ()

    @property
    def hashed(self) -> bool:
        """Whether the hash of a value in Java is known: see `key_hash`."""
        return False

    @property
    def fallible(self) -> bool:
        """Whether there may be values that cannot be decoded, though their neighbours can."""
        return bool(self.opaque)

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        """Add what reads one value, and return what makes a column of it.

        `last` says that nothing follows the value before the end of its bytes.
        """
        raise NotImplementedError  # Abstract: each serializer reads its bytes in its own way.

    def decode(self, data: Bytes, starts: Ints, ends: Ints, name: str = "") -> tuple[pa.Array, Ints]:
        """Decode values of which each begins and ends at a known place."""
        code, column = compiled(self)
        tape = Tape(code, data, name, len(starts))
        stops, unknown = tape.values(starts, ends)
        return masked(column(tape.slots), ~unknown), stops


def compiled(serializer: Serializer, *, last: bool = False) -> tuple[Code, Column]:
    """Return the program of one serializer and what makes a column of its slots."""
    program = Program()
    column = serializer.add_to(program, last)
    return program.finish(), column


class Opaque(Serializer):
    """Values that only the job's own classes can read: bytes where their end is known, else nothing."""

    __slots__ = ("class_name", "reason")

    def __init__(self, class_name: str, reason: str) -> None:
        self.class_name, self.reason = class_name, reason

    def __repr__(self) -> str:
        return f"Opaque({self.class_name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.class_name == self.class_name

    def __hash__(self) -> int:
        return hash(self.class_name)

    @property
    def arrow(self) -> pa.DataType:
        return pa.binary()

    @property
    def opaque(self) -> tuple[str, ...]:
        return (self.class_name,)

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        slot = program.slots(2)
        if last:
            program.add(REST, slot=slot)
        else:
            program.add(FAIL, UNKNOWN)
        return lambda slots: _range(slots, slot)


class CountedBytes(Serializer):
    """Bytes after their length; an array of bytes."""

    __slots__ = ("nullable", "text")

    def __init__(self, text: bool = False, nullable: bool = False) -> None:
        self.text, self.nullable = text, nullable

    @property
    def arrow(self) -> pa.DataType:
        return pa.string() if self.text else pa.binary()

    @property
    def least(self) -> int:
        return 4

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot = program.slots(2)
        program.add(BYTES, int(self.nullable), slot=slot)
        kind = self.arrow
        return lambda slots: as_bytes(slots.data, slots[slot], slots[slot + 1], kind)


def _range(slots: Slots, slot: int) -> pa.Array:
    return as_bytes(slots.data, slots[slot], slots[slot + 1])


def bytes_of(data: Bytes, starts: Ints, ends: Ints, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the bytes of some values as they are, null for the others."""
    return as_bytes(data, starts, np.where(chosen, ends - starts, -1))
