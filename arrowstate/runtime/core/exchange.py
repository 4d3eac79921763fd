"""From one task to the next: which subtask gets a row, and how much a channel may hold.

Rows count against the credit of their channel until the receiver has taken them up. Events never wait: whoever sends
asks beforehand whether every channel has room, and one step may overdraw by all that it gives out, so that no order of
sending and taking can stop a job.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from arrowstate.runtime.core.elements import Element, Rows, bytes_of
from arrowstate.runtime.graph import Edge
from arrowstate.schema.keys import to_type
from arrowstate_formats.key_groups import key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns

__all__ = ["CREDIT_BYTES", "FRAME_ROWS", "Exchange", "split_by_subtask"]

CREDIT_BYTES = 4 << 20
"""What a channel may hold of rows that the receiver has not taken up."""

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
        self._credit = [CREDIT_BYTES] * parallelism
        self.rows_sent = [0] * parallelism
        self.bytes_sent = [0] * parallelism
        self.blocked_us = [0] * parallelism
        "How long each channel had no room, as far as it was looked at."

    @property
    def has_room(self) -> bool:
        """Whether one more step may send."""
        return min(self._credit) > 0

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The bytes of each channel that the receiver has not taken up."""
        return tuple(CREDIT_BYTES - credit for credit in self._credit)

    def look(self, passed_us: int) -> None:
        """Take note of the channels that have no room, and had none for so long."""
        for to, credit in enumerate(self._credit):
            if credit <= 0:
                self.blocked_us[to] += passed_us

    def granted(self, to: int, size: int) -> None:
        """Take note that a receiver has taken rows up."""
        self._credit[to] += size

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
        self._credit[to] -= size
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
    groups = key_groups_of_hashes(hash_columns(keys), max_parallelism)
    # The range of subtask s begins at the ceiling of s times max parallelism over parallelism: see `key_group_range`.
    subtasks = (groups.astype(np.int64) * parallelism // max_parallelism).astype(np.uint16)
    counts = np.bincount(subtasks, minlength=parallelism)
    if int(counts.max()) == batch.num_rows:
        return [(int(counts.argmax()), batch)]
    # numpy sorts small integers by radix.
    sorted_rows = batch.take(pa.array(np.argsort(subtasks, kind="stable")))
    out = []
    start = 0
    for to, count in enumerate(counts.tolist()):
        if count:
            out.append((to, sorted_rows.slice(start, count)))
        start += count
    return out
