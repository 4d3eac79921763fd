"""Deletions of ranges of keys, cut where one begins or ends: between two cuts one number says what is deleted."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arrowstate.foreign.flink.sst import kernels
from arrowstate.foreign.flink.sst.table import RangeDeletion


class Fragments:
    """Bounds in the order of the keys, and for each the number below which entries from it to the next are deleted."""

    def __init__(self, deletions: Sequence[RangeDeletion]) -> None:
        bounds = sorted({bound for deletion in deletions for bound in (deletion.start, deletion.end)})
        waiting = sorted(deletions, key=lambda deletion: deletion.start, reverse=True)
        open_ones: list[tuple[int, bytes]] = []
        numbers = []
        for bound in bounds:
            while waiting and waiting[-1].start <= bound:
                deletion = waiting.pop()
                heapq.heappush(open_ones, (-deletion.number, deletion.end))
            while open_ones and open_ones[0][1] <= bound:
                heapq.heappop(open_ones)
            numbers.append(-open_ones[0][0] if open_ones else 0)
        self._keys = np.frombuffer(b"".join(bounds) + bytes(kernels.SLACK), np.uint8)
        self._offsets = np.cumsum([0, *map(len, bounds)], dtype=np.int64)
        self._numbers = np.array(numbers, np.uint64)

    def arrays(self) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Return the address of the bounds, their offsets and the numbers."""
        return self._keys.ctypes.data, self._offsets, self._numbers
