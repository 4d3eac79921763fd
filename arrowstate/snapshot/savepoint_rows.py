"""The rows of a savepoint: live ones that have not expired, merged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

from arrowstate.schema.times import expired_up_to
from arrowstate.table.merging import MemorySink, MergePolicy, SpillSink, merge_runs
from arrowstate.table.run import Run
from arrowstate_formats.schema_documents import TimeToLiveDocument

__all__ = ["cutoff_of", "drop_expired", "merged_rows"]


_IN_MEMORY_BYTES = 256 << 20


def cutoff_of(ttl: TimeToLiveDocument | None, now_ms: int, watermark: int | None) -> int | None:
    """Return the last time of update that has expired, None if nothing can have."""
    if ttl is None:
        return None
    return expired_up_to(ttl.ttl_ms, now_ms if ttl.clock == "processing_time" else watermark)


def drop_expired(runs: list[Run], cutoff: int | None) -> None:
    if cutoff is not None:
        for run in runs:
            run.kill(run.updated_up_to(cutoff))


def merged_rows(runs: list[Run], schema: pa.Schema) -> Run | None:
    size = sum(segment.stored.nbytes for run in runs for segment in run.segments)
    if size <= _IN_MEMORY_BYTES:
        return merge_runs(runs, MergePolicy(), MemorySink())
    return merge_runs(runs, MergePolicy(), SpillSink(Path(tempfile.gettempdir()), schema))
