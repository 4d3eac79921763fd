"""A query on the embedded runtime: the same functions over the same files, as a job.

Rows are read file by file, each slot its own, and the watermark follows the rows. So a function sees the rows of a
window in several batches, and what is to come in an order is put into it here; when the input ends event time ends, and
the truth is that of all rows.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa

from arrowstate import BatchContext, BatchFunction
from arrowstate.runtime import FileSource, Job, OutputTable, Watermarks
from benchmarks.peers.timing import tree_seconds
from nexmark_queries.events import SCHEMA, json_schema
from nexmark_queries.queries import OUTPUT, Query, Step
from nexmark_queries.truth import connect

__all__ = ["NOT_HERE", "declared", "run_job"]

NOT_HERE = ("q12",)
"""Queries by processing time: of a job nobody knows afterwards at which time it saw a row."""

Format = Literal["parquet", "json"]
_TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC")}
_of_thread = threading.local()


def run_job(
    query: Query,
    files: Path,
    folder: Path,
    *,
    delay_ms: int,
    parallelism: int = 2,
    mode: Any = "processes",
    format: Format = "parquet",
) -> tuple[float, float]:
    """Run a query to the end of the files that are there.

    Returns the seconds since its slots were ready, and the processor seconds of all processes in that time.

    Parameters
    ----------
    query
        The query.
    files
        The folder with the events.
    folder
        Where the query keeps its store.
    delay_ms
        By how much the watermark is behind the highest event time.
    parallelism
        The number of slots.
    mode
        Where slots run, as for `Job.start`.
    format
        What the events are written in.
    """
    job = declared(query, files, folder, delay_ms=delay_ms, parallelism=parallelism, format=format)
    with job.start(mode=mode) as running:
        while running.status().state in ("created", "restoring", "deploying"):
            time.sleep(0.01)
        began, spent = time.perf_counter(), tree_seconds()
        running.wait()
        return time.perf_counter() - began, tree_seconds() - spent


def declared(
    query: Query, files: Path, folder: Path, *, delay_ms: int, parallelism: int, format: Format = "parquet"
) -> Job:
    """Return the job of a query."""
    job = Job(folder / "store", parallelism=parallelism)
    read = pa.schema([field for field in SCHEMA if re.search(rf"\b{field.name}\b", query.text)])
    select = query.select
    if format == "json":
        read = json_schema(query.text)
        # Its times are milliseconds already.
        select = ["epoch_ms(date_time)::timestamptz as date_time" if name == "date_time" else name for name in select]
        select = [column.replace("unix_millis(", "(") for column in select]
    source = FileSource(files, format, schema=read)
    rows = job.source(source, uid="events", watermarks=Watermarks("date_time", out_of_order_ms=delay_ms))
    stream = rows.map_batches(_Selected(f"select {', '.join(select)} from given where {query.where}"))
    for step in query.steps:
        output = pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, step.output.split(", "))])
        stream = stream.stateful(_function(step), key=step.key, uid=step.uid, output_schema=output)
    stream.sink(OutputTable(OUTPUT))
    return job


def _function(step: Step) -> Any:
    made = step.make() if step.by_watermark is None else step.by_watermark()
    return _InOrder(made, step.order_by) if step.order_by else made


@dataclass(frozen=True, slots=True)
class _Selected:
    """What SQL makes of a batch of events, in their order."""

    sql: str

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        connection: duckdb.DuckDBPyConnection | None = getattr(_of_thread, "connection", None)
        if connection is None:
            connection = _of_thread.connection = connect()
            connection.execute("set threads = 1")
        connection.register("given", batch)
        return connection.sql(self.sql).to_arrow_table()


class _InOrder(BatchFunction):
    """Puts the rows of each batch in order for a function that has no timers."""

    def __init__(self, function: BatchFunction, by: list[str]) -> None:
        self._function = function
        self._by = by

    def open(self, context: BatchContext) -> None:
        self._function.open(context)

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> Any:
        return self._function.process_batch(batch.sort_by([(name, "ascending") for name in self._by]), context)
