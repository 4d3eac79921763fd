"""A query on Spark: its operators as one streaming query over the files, and what it left in its store.

One file is one micro-batch. Which watermark and which time a micro-batch had is read from Spark's own log of offsets,
so that the truth is computed for the same ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import arrowstate
from arrowstate.spark import StatefulStream, stateful
from nexmark_queries.events import SPARK_SCHEMA
from nexmark_queries.queries import OUTPUT, Query
from nexmark_queries.truth import Truth, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Kept", "read_store", "run_query", "seconds", "verify"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a query has in its store after the last micro-batch."""

    checkpoints: int
    "How many there are: one for each micro-batch."
    state_rows: int
    "Rows of all states and timers."
    output: pa.Table
    "All rows emitted, in the order of the output table."


def run_query(
    spark: SparkSession, query: Query, files: Path, folder: Path, *, delay_ms: int, parallelism: int = 2
) -> StreamingQuery:
    """Run a query over the files that are there now, or go on with it over those that are new; return it at its end.

    Parameters
    ----------
    spark
        The session.
    query
        The query.
    files
        The folder with the events.
    folder
        Where the query keeps its store and Spark's checkpoint.
    delay_ms
        By how much the watermark is behind the highest event time.
    parallelism
        Subtasks of each operator.
    """
    events = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    # Below the watermark, so that it does not depend on Spark's optimizer whether it sees the rows left out.
    rows = events.where(query.where).withWatermark("date_time", f"{delay_ms} milliseconds").selectExpr(*query.select)
    emitted: DataFrame | StatefulStream = rows
    for step in query.steps:
        emitted = stateful(
            emitted,
            key=step.key,
            operator=step.make(),
            uid=step.uid,
            store=folder / "store",
            parallelism=parallelism,
            output_schema=step.output,
            output=OUTPUT if step is query.steps[-1] else None,
            order_by=step.order_by,
        )
    assert isinstance(emitted, StatefulStream), "a query has a step"
    writer = emitted.write_stream().option("checkpointLocation", str(folder / "spark"))
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    return running


def read_store(folder: Path) -> Kept:
    """Return what the newest checkpoint of a query has."""
    store = arrowstate.open_store(folder / "store")
    snapshot = store.latest()
    rows = snapshot.operator_state(OUTPUT, "rows")["rows"].combine_chunks()
    fields = [field.name for field in rows.type]
    states = [(operator, state.name) for operator in snapshot.entry.operators for state in operator.states]
    return Kept(
        checkpoints=len(store.checkpoints()),
        state_rows=sum(operator.live_rows(state) for operator, state in states),
        output=pa.Table.from_arrays(rows.flatten(), names=fields),
    )


def seconds(running: StreamingQuery) -> list[float]:
    """Return how long each micro-batch took."""
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in running.recentProgress]


def verify(query: Query, truth: Truth, folder: Path, output: pa.Table) -> Verdict:
    """Compare what a query has emitted with the truth of the micro-batches that Spark logged.

    Raises
    ------
    ValueError
        If a micro-batch had another watermark than the truth has, or was not one file.
    """
    logs = sorted((folder / "spark" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    batches = [json.loads(path.read_text().splitlines()[1]) for path in logs]
    watermarks, expected = [batch["batchWatermarkMs"] for batch in batches], truth.watermarks(query)
    if watermarks != expected:
        raise ValueError(f"{query.name} ran with the watermarks {watermarks}, its files give {expected}")
    return truth.compare(query, output, times_ms=[batch["batchTimestampMs"] for batch in batches])
