"""What every description of a serializer can do.

A description is made of the snapshot of a serializer that stands in a savepoint. It knows the Arrow type of its values,
adds itself to a program of the shredder, and names the classes in it that nobody can decode without the job's code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.foreign.flink.serializers.columns import as_bytes, masked
from arrowstate.foreign.flink.serializers.operations import BYTES, FAIL, REST, UNKNOWN
from arrowstate.foreign.flink.serializers.program import Bytes, Code, Column, Ints, Program, Tape


@dataclass(frozen=True, slots=True)
class Serializer:
    """A description of how values were written."""

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column."""
        raise NotImplementedError  # Abstract: each serializer knows its own type.

    @property
    def parts(self) -> tuple[Serializer, ...]:
        """The serializers that it is made of."""
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(value for value in values if isinstance(value, Serializer))

    @property
    def length(self) -> int:
        """The bytes of each value, -1 if they differ."""
        return -1

    @property
    def least(self) -> int:
        """The bytes of the shortest value."""
        return self.length if self.length >= 0 else 1

    @property
    def opaque(self) -> tuple[str, ...]:
        """The classes in it whose values cannot be decoded."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.opaque))

    @property
    def hashed(self) -> bool:
        """Whether the hash of a value in Java is known: see `key_hash`."""
        return False

    @property
    def fallible(self) -> bool:
        """Whether there may be values that cannot be decoded, though their neighbours can."""
        return any(part.fallible for part in self.parts)

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


@dataclass(frozen=True, slots=True)
class Opaque(Serializer):
    """Values that only the job's own classes can read: bytes where their end is known, else nothing."""

    arrow = pa.binary()
    fallible = True

    class_name: str
    "The class of the serializer or of the values."
    reason: str = field(compare=False)
    "Why it cannot be decoded."

    @property
    def opaque(self) -> tuple[str, ...]:
        return (self.class_name,)

    def add_to(self, program: Program, last: bool = False, /) -> Column:
        slot = program.slots(2)
        if last:
            program.add(REST, slot=slot)
        else:
            program.add(FAIL, UNKNOWN)
        return lambda slots: as_bytes(slots.data, slots[slot], slots[slot + 1])


@dataclass(frozen=True, slots=True)
class CountedBytes(Serializer):
    """Bytes after their length; an array of bytes."""

    least = 4

    text: bool = False
    "Whether they are text of UTF-8."

    @property
    def arrow(self) -> pa.DataType:
        return pa.string() if self.text else pa.binary()

    def add_to(self, program: Program, _last: bool = False, /) -> Column:
        slot, kind = program.slots(2), self.arrow
        program.add(BYTES, slot=slot)
        return lambda slots: as_bytes(slots.data, slots[slot], slots[slot + 1], kind)


def bytes_of(data: Bytes, starts: Ints, ends: Ints, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the bytes of some values as they are, null for the others."""
    return as_bytes(data, starts, np.where(chosen, ends - starts, -1))
