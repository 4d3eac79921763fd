"""Progress: what each micro-batch of a query took, as its log entry says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.spark.metrics import BatchMetrics
from arrowstate.spark.micro_batches import BatchRecord
from arrowstate.store import open_store
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["committed_batches", "progress"]

_SCHEMA = pa.schema(
    [
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("query_id", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("started_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("committed_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        *[pa.field(name, pa.int64()) for name in BatchMetrics.names()],
    ]
)


def progress(
    store: str | Path, *, last: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> pa.Table:
    """Return what the micro-batches of a query took that `keyed_sink` or `stateful` runs.

    It reads the log of the store and starts no Spark job, so a `StreamingQueryListener` may call it, with `last=1`,
    when it is told of a micro-batch; the batch is committed by then. The query that `start()` returned has the same
    figures in `lastProgress` and `recentProgress`.

    Parameters
    ----------
    store
        The path or URL of the store.
    last
        How many micro-batches to return at most, the newest; at least 1. All that the log has by default.
    storage_options
        As for `arrowstate.open_store`.

    Returns
    -------
    pyarrow.Table
        A row per micro-batch, in their order: `batch_id` int64; `query_id` and `run_id` string; `checkpoint_id` int64;
        `started_at` and `committed_at` timestamp[ms, UTC]; and int64, null in entries of older versions: `rows`,
        `output_rows`, `dead_rows` (set aside as dead letters), `state_rows`, `state_bytes`, `bytes_written`,
        `cache_hits`, `cache_misses`, `checkpoint_ms` (to freeze and to write the state, in the slowest subtask),
        `duration_ms` (from the start of the micro-batch to its commit), `files_collected` and `collections_failed` (by
        a `retention` since the micro-batch before).

    Raises
    ------
    NotFoundError
        If there is no store.
    InvalidInputError
        If `last` is below 1.

    Examples
    --------
    >>> from arrowstate.spark import progress
    >>> def rows_per_second(folder):
    ...     took = progress(f"{folder}/store", last=1).to_pylist()[0]
    ...     return took["rows"] * 1000 / took["duration_ms"]
    """
    if last is not None and last < 1:
        raise InvalidInputError(f"last must be at least 1, got {last}")
    log = CommitLog(open_store(store, storage_options=storage_options).storage)
    rows = [
        {
            "batch_id": record.batch_id,
            "query_id": record.query_id,
            "run_id": record.run_id,
            "checkpoint_id": entry.checkpoint_id,
            "started_at": entry.started_at_ms,
            "committed_at": entry.committed_at_ms,
            **{name: record.metrics.get(name) for name in BatchMetrics.names()},
        }
        for entry, record in islice(committed_batches(log), last)
    ]
    return pa.Table.from_pylist(rows[::-1], schema=_SCHEMA)


def committed_batches(log: CommitLog) -> Iterator[tuple[LogEntryDocument, BatchRecord]]:
    """Yield the micro-batches that the log has, newest first, each once."""
    found = ((entry, BatchRecord.of(entry)) for entry in log.backwards())
    known = ((entry, record) for entry, record in found if record is not None and record.batch_id is not None)
    # What is made of a checkpoint, such as its compaction, says what that said of its micro-batch.
    for _, same in groupby(known, key=lambda item: (item[1].query_id, item[1].batch_id)):
        *_, oldest = same
        yield oldest
