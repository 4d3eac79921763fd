"""A driver that is killed in the middle of a micro-batch, with its JVM; `test_spark_recovery` runs it as a process.

Arguments: the folder of the stream, and the id of the micro-batch. It dies when one of the tasks has written its
files.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import arrowstate
from arrowstate.spark import keyed_sink
from arrowstate.spark.sink import keyed_sink as sinks
from arrowstate.spark.sink.task import fold_micro_batch


def run(folder: Path, batch_id: int) -> None:
    """Stream until the end comes."""
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
    processes = [spark.sparkContext._gateway.proc.pid, os.getpid()]

    def killing(plan: Any, step: Any, subtask: int, rows: Any, new_id: Any) -> Any:
        result = fold_micro_batch(plan, step, subtask, rows, new_id)
        if subtask == 1 and step.batch.batch_id == batch_id:
            for process in processes:
                os.kill(process, signal.SIGKILL)
            os._exit(1)
        return result

    sinks.fold_micro_batch = killing  # type: ignore[attr-defined]
    reader = spark.readStream.schema("k long, n long, v long").option("maxFilesPerTrigger", 1)
    totals = arrowstate.ReducingStateDescriptor(
        "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
    )
    writer = keyed_sink(
        reader.parquet(str(folder / "in")),
        store=folder / "store",
        uid="counter",
        key=["k"],
        states=[totals],
        parallelism=2,
    )
    query = writer.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
