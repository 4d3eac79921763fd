"""From one task to the next: which subtask gets a row, and how much a channel may hold.

Rows count against the window of their channel until the receiver has taken them up, and the receiver says how large the
window is. Events never wait: whoever sends asks beforehand whether every channel has room, and one step may overdraw by
all that it gives out, so that no order of sending and taking can stop a job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.runtime.core.elements import Element, Rows, bytes_of
from arrowstate.runtime.core.pacing import FIRST_WINDOW_BYTES
from arrowstate.runtime.graph import Edge
from arrowstate.schema.keys import to_type
from arrowstate_formats.key_groups import first_hashes, key_group_range, key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns

CREDIT_BYTES = 4 << 20
"""The most that a channel may hold of rows that the receiver has not taken up."""

FRAME_ROWS = 65_536
"""The most rows of one frame."""


class Exchange:
    """The outgoing side of an edge in one subtask."""

    def __init__(
        self,
        edge: Edge,
        subtask: int,
        parallelism: int,
        max_parallelism: int,
        send: Callable[[int, int, Element], None],
    ) -> None:
        self.edge = edge
        self._key = None if edge.rule != "keyed" else [field.type for field in edge.target.key]  # type: ignore[union-attr]
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._send = send
        # Neighbours begin at different subtasks.
        self._next = subtask
        self._window = [min(FIRST_WINDOW_BYTES, CREDIT_BYTES)] * parallelism
        self._in_flight = [0] * parallelism
        self.bytes_given = 0
        "Of all channels."
        self.rows_sent = [0] * parallelism
        self.bytes_sent = [0] * parallelism
        self.blocked_us = [0] * parallelism
        "How long each channel had no room, as far as it was looked at."

    @property
    def has_room(self) -> bool:
        """Whether one more step may send."""
        return all(size < most for size, most in zip(self._in_flight, self._window, strict=True))

    @property
    def step_bytes(self) -> int:
        """How much one step is to send at most: as much as the channels that get its rows may hold."""
        match self.edge.rule:
            case "keyed":
                return sum(self._window)
            case "global":
                return self._window[0]
        return min(self._window)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The bytes of each channel that the receiver has not taken up."""
        return tuple(self._in_flight)

    @property
    def windows(self) -> tuple[int, ...]:
        """The bytes that each channel may hold."""
        return tuple(self._window)

    def look(self, passed_us: int) -> None:
        """Take note of the channels that have no room, and had none for so long."""
        for to, (size, most) in enumerate(zip(self._in_flight, self._window, strict=True)):
            if size >= most:
                self.blocked_us[to] += passed_us

    def granted(self, to: int, size: int, window: int) -> None:
        """Take note that a receiver has taken rows up, and of what it wants its channel to hold from now on."""
        self._in_flight[to] -= size
        self._window[to] = min(window, CREDIT_BYTES)

    def rows(self, batch: pa.RecordBatch) -> None:
        """Send rows to whom they are for."""
        match self.edge.rule:
            case "keyed":
                columns = [batch.column(name) for name in self.edge.key]
                for to, part in split_by_subtask(
                    batch, columns, self._key or [], self._max_parallelism, self._parallelism
                ):
                    self._rows(to, part)
            case "rebalance":
                self._next = (self._next + 1) % self._parallelism
                self._rows(self._next, batch)
            case "global":
                self._rows(0, batch)
            case "broadcast":
                for to in range(self._parallelism):
                    self._rows(to, batch)

    def event(self, element: Element) -> None:
        """Send what is no row, to all."""
        for to in range(self._parallelism):
            self._send(self.edge.number, to, element)

    def _rows(self, to: int, batch: pa.RecordBatch) -> None:
        size = bytes_of(batch)
        self._in_flight[to] += size
        self.bytes_given += size
        self.rows_sent[to] += batch.num_rows
        self.bytes_sent[to] += size
        self._send(self.edge.number, to, Rows(batch, size))


def split_by_subtask(
    batch: pa.RecordBatch,
    columns: list[pa.Array],
    types: list[pa.DataType],
    max_parallelism: int,
    parallelism: int,
) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows of each subtask that has any, in their order, by the key group of their key.

    A null in a key changes nothing of its hash, so such a row comes to some subtask, which refuses it.
    """
    if parallelism == 1:
        return [(0, batch)]
    keys = [
        column if column.type == kind else to_type(column, kind) for column, kind in zip(columns, types, strict=True)
    ]
    order, counts = _order_by_subtask(hash_columns(keys), max_parallelism, parallelism)
    if int(counts.max()) == batch.num_rows:
        return [(int(counts.argmax()), batch)]
    sorted_rows = pc.take(batch, pa.array(order), boundscheck=False)
    out = []
    start = 0
    for to, count in enumerate(counts.tolist()):
        if count:
            out.append((to, sorted_rows.slice(start, count)))
        start += count
    return out


def _order_by_subtask(
    hashes: npt.NDArray[np.int64], max_parallelism: int, parallelism: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows by their subtask, those of each in their order, and how many each has."""
    if parallelism == 2:
        # Key groups are ranges of the hash, and so are the subtasks.
        second = hashes >= _first_of_second(max_parallelism)
        rows = np.flatnonzero(~second), np.flatnonzero(second)
        return np.concatenate(rows), np.array([len(rows[0]), len(rows[1])])
    subtasks = _subtasks_of_groups(max_parallelism, parallelism)[key_groups_of_hashes(hashes, max_parallelism)]
    # numpy sorts small integers by radix.
    return np.argsort(subtasks, kind="stable"), np.bincount(subtasks, minlength=parallelism)


@cache
def _subtasks_of_groups(max_parallelism: int, parallelism: int) -> npt.NDArray[np.uint16]:
    # The range of subtask s begins at the ceiling of s times max parallelism over parallelism: see `key_group_range`.
    return (np.arange(max_parallelism) * parallelism // max_parallelism).astype(np.uint16)


@cache
def _first_of_second(max_parallelism: int) -> np.int64:
    """Return the lowest hash of the second of two subtasks."""
    first: np.int64 = first_hashes(max_parallelism)[key_group_range(max_parallelism, parallelism=2, subtask=1).start]
    return first
