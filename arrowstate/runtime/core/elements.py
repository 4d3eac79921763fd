"""What flows through a channel of a job, in order: rows, and what is said between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa


def bytes_of(batch: pa.RecordBatch) -> int:
    """Return how large rows are, as they go through a channel; at least 1."""
    # `nbytes` looks at every buffer from Python's side and takes twenty times as long.
    size: int = pa.ipc.get_record_batch_size(batch)
    return max(size, 1)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to process."""

    batch: pa.RecordBatch
    bytes: int
    """What they count for in the credit of their channel."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row with an event time up to this one, in milliseconds, follows in this channel."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the channel is idle, so that nobody waits for its watermark."""

    is_idle: bool


@dataclass(frozen=True, slots=True)
class Barrier:
    """What comes before it is part of a checkpoint, and what comes after it is not."""

    checkpoint_id: int
    is_full: bool = False
    """Whether the checkpoint is to refer to no state that an earlier one has written."""
    overtakes_at_ms: int | None = None
    """From when on it overtakes the rows before it, in milliseconds since 1970; None for never."""


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """The barrier of this checkpoint will not come: it was given up upstream."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more rows will come."""


Element: TypeAlias = Rows | Watermark | Status | Barrier | CancelBarrier | EndOfData


def with_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with a schema of the same columns, which may say otherwise what is never null.

    Arrow joins no rows whose schemas differ in that.
    """
    return rows if rows.schema.equals(schema) else pa.RecordBatch.from_arrays(rows.columns, schema=schema)
