"""The rows of a savepoint: live ones that have not expired, merged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from arrowstate.table.merging import MemorySink, MergePolicy, SpillSink, merge_runs
from arrowstate.table.run import Run
from arrowstate_formats.schema_documents import TimeToLiveDocument

__all__ = ["cutoff_of", "drop_expired", "merged_rows"]


_IN_MEMORY_BYTES = 256 << 20


def cutoff_of(ttl: TimeToLiveDocument | None, now_ms: int, watermark: int | None) -> int | None:
    """Return the last time of update that has expired, None if nothing can have."""
    now = None if ttl is None else now_ms if ttl.clock == "processing_time" else watermark
    if ttl is None or now is None or now - ttl.ttl_ms < -(1 << 63):
        return None
    return now - ttl.ttl_ms


def drop_expired(runs: list[Run], cutoff: int | None) -> None:
    if cutoff is None:
        return
    for run in runs:
        for segment in run.segments:
            updated = segment.batch.column(segment.batch.num_columns - 1).to_numpy()
            run.kill(np.flatnonzero(updated <= cutoff) + segment.first_row)


def merged_rows(runs: list[Run], schema: pa.Schema) -> Run | None:
    size = sum(segment.stored.nbytes for run in runs for segment in run.segments)
    if size <= _IN_MEMORY_BYTES:
        return merge_runs(runs, MergePolicy(), MemorySink())
    return merge_runs(runs, MergePolicy(), SpillSink(Path(tempfile.gettempdir()), schema))
