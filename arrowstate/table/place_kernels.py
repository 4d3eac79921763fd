"""The numba kernels of merges in steps: where rows went, and what of it died since.

Where a row went is a number of the merged run plus 1, so that memory of zeros says that none went anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowstate_formats.compiled import kernel

_1, _3, _7 = (np.uint64(number) for number in (1, 3, 7))


@kernel("int64[], int64[], int64, out uint32[]")
def note_places(starts: Any, places: Any, first: Any, out: Any) -> None:
    """Write where rows went, the first to `first`, to out[starts[source] + row]; a place is source << 32 | row."""
    for i in range(places.size):
        place = places[i]
        out[starts[place >> 32] + (place & 0xFFFFFFFF)] = np.uint32(first + i)


@kernel("int64[], int64, int64, uint32[], out uint8[]")
def clear_places(rows: Any, end: Any, ahead: Any, went: Any, bits: Any) -> Any:
    """Clear the bits of where rows before `end` went, which went[row + ahead] says; return how many were set."""
    count = 0
    for i in range(rows.size):
        # Where the others will go, nobody has written yet, and a look at it would have the system find memory for it.
        if rows[i] >= end:
            continue
        place = np.uint64(went[rows[i] + ahead])
        if place > 0:
            place -= _1
            mask = np.uint8(_1 << (place & _7))
            before = bits[place >> _3]
            bits[place >> _3] = before & ~mask
            count += int((before & mask) != 0)
    return count
