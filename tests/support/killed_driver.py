"""A driver that is killed in the middle of a micro-batch, with its JVM; tests run it as a process.

Arguments: the folder of the stream, the id of the micro-batch, and a database. Without a database it dies when one of
the tasks has written its files; with one, when the rows are in PostgreSQL and Spark does not know it yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

import arrowstate
from arrowstate.postgres.commits import PostgresCommits
from arrowstate.spark import keyed_sink, postgres_sink
from arrowstate.spark.sink import keyed_sink as sinks
from arrowstate.spark.sink.task import fold_micro_batch

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def start() -> tuple[SparkSession, list[int]]:
    """Start Spark, and return its processes."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    return spark, [spark.sparkContext._gateway.proc.pid, os.getpid()]


def kill(processes: list[int]) -> None:
    """End the driver."""
    for process in processes:
        os.kill(process, signal.SIGKILL)
    os._exit(1)


def files_of(spark: SparkSession, folder: Path) -> Any:
    """Return the stream, a file for each micro-batch."""
    return spark.readStream.schema("k long, n long, v long").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def run(folder: Path, batch_id: int) -> None:
    """Stream into a store until the end comes."""
    spark, processes = start()

    def killing(plan: Any, step: Any, subtask: int, rows: Any, new_id: Any) -> Any:
        result = fold_micro_batch(plan, step, subtask, rows, new_id)
        if subtask == 1 and step.batch.batch_id == batch_id:
            kill(processes)
        return result

    sinks.fold_micro_batch = killing  # type: ignore[attr-defined]
    totals = arrowstate.ReducingStateDescriptor(
        "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
    )
    writer = keyed_sink(
        files_of(spark, folder),
        store=folder / "store",
        uid="counter",
        key=["k"],
        states=[totals],
        parallelism=2,
    )
    query = writer.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start()
    query.awaitTermination()


def copy_of(stream: Any, folder: Path, conninfo: str) -> StreamingQuery:
    """Start to copy a stream into PostgreSQL."""
    writer = postgres_sink(stream, conninfo, "copy", uid="copy")
    return writer.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start()


def run_to_postgres(folder: Path, batch_id: int, conninfo: str) -> None:
    """Stream into PostgreSQL until the end comes."""
    spark, processes = start()
    commit = PostgresCommits.commit

    def killing(self: PostgresCommits, rows: pa.Table, sink: str, subtask: int, number: int) -> None:
        commit(self, rows, sink, subtask, number)
        if number == batch_id:
            kill(processes)

    PostgresCommits.commit = killing  # type: ignore[method-assign]
    copy_of(files_of(spark, folder), folder, conninfo).awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        run_to_postgres(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        run(Path(sys.argv[1]), int(sys.argv[2]))
