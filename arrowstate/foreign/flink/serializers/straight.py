"""Programs that only read numbers, each as wide in all values: read part by part, and not value by value.

Most keys and many values are such: longs, windows, timers, what is there for no namespace, numbers with the time of
their last use. A value that is too short or has a number that may not be is left to the machine, which says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrowstate.foreign.flink.serializers.operations import FIXED, HALT, MARK, RANGE, SKIP, WIDTH
from arrowstate.foreign.flink.sst.kernels import swapped
from arrowstate_formats.compiled import kernel, load_uint8, load_uint64

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Part:
    """A number of each value."""

    slot: int
    "The slot it fills, -1 if it is only looked at."
    offset: int
    "Where in the value it is."
    width: int
    "Its bytes."
    low: int
    "The least that it may be."
    high: int
    "The largest that it may be."
    absent: int
    "What it may be besides."


@dataclass(frozen=True, slots=True)
class Straight:
    """All numbers of a value."""

    width: int
    "The bytes of a value."
    parts: tuple[Part, ...]


def straight(code: Sequence[int]) -> Straight | None:
    """Return what a program reads, None if it does more than read numbers."""
    parts = []
    width = 0
    for place in range(0, len(code), WIDTH):
        operation, *arguments, slot = code[place : place + WIDTH]
        if operation == FIXED:
            parts.append(Part(slot, width, arguments[0], _LEAST, _MOST, _MOST))
        elif operation == RANGE:
            # The register that it may fill nobody asks for here.
            parts.append(Part(slot, width, arguments[0], arguments[1], arguments[2], arguments[4]))
        elif operation not in (SKIP, HALT) and not (operation == MARK and slot < 0):
            return None
        width += arguments[0] if operation in (FIXED, RANGE, SKIP) else 0
    return Straight(width, tuple(parts))


@kernel("uint64, int64[], int64, int64, int64, int64, int64, int64, out int64[]")
def read_numbers(
    data: Any, starts: Any, offset: Any, width: Any, low: Any, high: Any, absent: Any, first: Any, tape: Any
) -> Any:
    """Read a big-endian number of each value onto the tape from `first` on, nowhere if that is -1.

    Returns the row of the first that may not be, the number of rows if all may.
    """
    eight = np.uint64(8)
    for row in range(len(starts)):
        address = data + np.uint64(starts[row] + offset)
        if width == 8:
            value = np.int64(swapped(load_uint64(address)))
        else:
            word = np.uint64(0)
            for place in range(width):
                word = word << eight | np.uint64(load_uint8(address + np.uint64(place)))
            unused = 64 - 8 * width
            value = np.int64(word << np.uint64(unused)) >> unused if width > 0 else np.int64(0)
        if (value < low or value > high) and value != absent:
            return row
        if first >= 0:
            tape[first + row] = value
    return len(starts)
