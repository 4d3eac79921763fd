"""A driver as a process of its own: makes a session with the settings given, and runs what each line of its input asks.

    python driver.py SETTINGS

A line is a JSON object: the name of a function of this file, and its arguments. The answer is a line too: what the
function returned under `result`, or the message of its exception under `error`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import arrowstate
from arrowstate.spark import keyed_sink, stateful
from arrowstate.spark.outputs import arrow_table
from arrowstate.spark.sink import keyed_sink as sinks
from arrowstate.spark.sink.task import fold_micro_batch
from spark_audit import WINDOW_MS

TOTALS = arrowstate.ReducingStateDescriptor(
    "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
)
NEWEST = arrowstate.ValueStateDescriptor("newest", pa.int64())


@dataclass(frozen=True)
class Trouble:
    """What befalls the first attempt of a task."""

    kind: str
    "`executor`: its executor is killed. `worker`: its Python is. `error`: it fails. `slow`: it waits for another one."
    batch_id: int
    subtask: int
    marks: Path
    "A folder with an empty file for each attempt that came so far."

    @classmethod
    def all(cls, folder: str, troubles: Sequence[tuple[str, int, int]]) -> list[Trouble]:
        return [cls(kind, batch, subtask, Path(folder, f"marks-{batch}")) for kind, batch, subtask in troubles]

    def strike(self) -> None:
        context = TaskContext.get()
        assert context is not None
        task = (int(context.getLocalProperty("streaming.sql.batchId")), context.partitionId())
        if task != (self.batch_id, self.subtask):
            return
        first = not os.listdir(self.marks)
        # A stage that is tried again counts the attempts of its tasks from 0; this number does not repeat.
        (self.marks / str(context.taskAttemptId())).touch()
        if not first:
            return
        if self.kind == "executor":
            daemon = os.getppid()
            os.kill(int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
            os._exit(1)
        elif self.kind == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "error":
            # What a function raises of its own would set rows aside, and fail no task.
            raise MemoryError("the first attempt fails")
        else:
            end = time.monotonic() + 60
            while len(os.listdir(self.marks)) < 2 and time.monotonic() < end:
                time.sleep(0.05)
            # By now the other attempt has written its files as well.


def sink(
    spark: SparkSession,
    folder: str,
    *,
    parallelism: int = 2,
    max_parallelism: int | None = None,
    to_the_end: bool = True,
    troubles: Sequence[tuple[str, int, int]] = (),
) -> list[int]:
    """Run `keyed_sink` over the files that are there, or for ever; the ids of the micro-batches."""
    sinks.fold_micro_batch = _troubled(Trouble.all(folder, troubles)) if troubles else fold_micro_batch
    schema = "id long, k long, v long, n long, seq long, op string"
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    # A deleted row has no value; sums and counts take all rows.
    changes = rows.selectExpr("*", "if(op = '-D', null, id) as newest")
    writer = keyed_sink(
        changes,
        store=f"{folder}/store",
        uid="counter",
        key=["k"],
        states=[TOTALS, NEWEST],
        sequence="seq",
        on_error="dead_letter",
        retention=arrowstate.RetentionPolicy(count=3),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    return _run(writer, folder, to_the_end)


AUDIT = "id long, k long, due long, n long, v long"
"""What `Audit` emits: `id` for a row, `due` for a timer, and the totals of the key then."""


class Audit(arrowstate.BatchFunction):
    """Emits the totals of the key after each row, and when the window of a row ends."""

    def __init__(self, troubles: list[Trouble]) -> None:
        self.troubles = troubles

    def open(self, context: arrowstate.BatchContext) -> None:
        self.totals = context.state(TOTALS)
        self.last = context.state(arrowstate.ValueStateDescriptor("last", pa.int64()))
        self.ends = context.timers("ends")

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        rows = pl.DataFrame(batch)
        before = pl.Series(self.totals.get_batch(batch["k"])).struct.unnest()
        counted = before["n"].fill_null(0) + rows.select(pl.col("n").is_not_null().cum_sum().over("k")).to_series()
        added = before["v"].fill_null(0) + rows.select(pl.col("v").cum_sum().over("k")).to_series()
        self.totals.add_batch(batch["k"], pa.StructArray.from_arrays([batch["n"], batch["v"]], ["n", "v"]))
        self.last.update_batch(batch["k"], batch["id"])
        times = pc.cast(batch["ts"], pa.timestamp("ms")).cast(pa.int64())
        ends = pc.multiply(pc.add(pc.divide(times, WINDOW_MS), 1), WINDOW_MS)
        self.ends.register_batch(batch["k"], ends)
        for trouble in self.troubles:
            trouble.strike()
        nothing = pa.nulls(batch.num_rows, pa.int64())
        columns = [batch["id"], batch["k"], nothing, counted.to_arrow(), added.to_arrow()]
        return pa.record_batch(columns, ["id", "k", "due", "n", "v"])

    def on_timers(self, timers: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        totals = self.totals.get_batch(timers["k"])
        columns = [pa.nulls(timers.num_rows, pa.int64()), timers["k"], timers["timestamp"], *totals.flatten()]
        return pa.record_batch(columns, ["id", "k", "due", "n", "v"])


def audit(
    spark: SparkSession,
    folder: str,
    *,
    parallelism: int = 2,
    max_parallelism: int | None = None,
    to_the_end: bool = True,
    troubles: Sequence[tuple[str, int, int]] = (),
) -> list[int]:
    """Run `Audit` over the files that are there, or for ever; the ids of the micro-batches.

    The rows that it emits go to the output table `audit`, and to `seen/<batch id>.arrow`.
    """
    seen = Path(folder, "seen")
    seen.mkdir(exist_ok=True)

    def see(frame: DataFrame, batch_id: int) -> None:
        rows = arrow_table(frame)
        if (seen / f"{batch_id}.arrow").exists():
            before = feather.read_table(seen / f"{batch_id}.arrow")
            if not rows.equals(before):
                feather.write_feather(rows, str(seen / f"{batch_id}-again.arrow"))
            return
        feather.write_feather(rows, str(seen / f"{batch_id}.new"))
        (seen / f"{batch_id}.new").rename(seen / f"{batch_id}.arrow")

    reader = spark.readStream.schema("id long, k long, v long, n long, ts timestamp").option("maxFilesPerTrigger", 1)
    rows = stateful(
        reader.parquet(f"{folder}/in").withWatermark("ts", "0 seconds"),
        key=["k"],
        operator=Audit(Trouble.all(folder, troubles)),
        # What is emitted is told by its checkpoint.
        retention=None,
        uid="counter",
        store=f"{folder}/store",
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        output_schema=AUDIT,
        output="audit",
        order_by=["id"],
        on_error="dead_letter",
    )
    return _run(rows.foreach_batch(see), folder, to_the_end)


def _run(writer: DataStreamWriter, folder: str, to_the_end: bool) -> list[int]:
    writer = writer.option("checkpointLocation", f"{folder}/spark")
    query = (writer.trigger(availableNow=True) if to_the_end else writer).start()
    query.awaitTermination()
    return [progress["batchId"] for progress in query.recentProgress]


def hosts(spark: SparkSession) -> list[str]:
    """The hosts of the executors, once both are there."""
    while True:
        infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        # The driver is one of them.
        if len(infos) > 2:
            return sorted({info.host() for info in infos[1:]})
        time.sleep(0.05)


def _troubled(troubles: list[Trouble]) -> Callable[..., Any]:
    def fold(plan: Any, step: Any, subtask: int, rows: Any, new_id: Any) -> Any:
        result = fold_micro_batch(plan, step, subtask, rows, new_id)
        for trouble in troubles:
            trouble.strike()
        return result

    return fold


def session_of(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    spark = session_of(json.loads(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": globals()[request.pop("call")](spark, **request)}
        except Exception as error:  # noqa: BLE001 - the other side decides what is expected
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
