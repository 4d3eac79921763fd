"""The rows of a savepoint: live ones that have not expired, merged."""

from __future__ import annotations

import pyarrow as pa

from arrowstate.schema.times import expired_up_to
from arrowstate.table.merging import MergePolicy, merge_runs
from arrowstate.table.run import Run
from arrowstate.table.spill import sink_of
from arrowstate_formats.schema_documents import TimeToLiveDocument


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
    return merge_runs(runs, MergePolicy(), sink_of(runs, schema))
