"""A client of Spark Connect; `test_spark_connect` runs it as a process, because a process has one kind of session.

Arguments: the address of the server, and a folder. It runs queries and leaves what it has seen in `seen.json`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.spark import bootstrap, keyed_sink, plan_read, progress, register, stateful, write_stream
from arrowstate.spark.versions import STREAMING_READS, has
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from spark_files import add_file


def timed(keys: Sequence[int], values: Sequence[int], seconds: Sequence[int]) -> pa.Table:
    """Rows of a micro-batch."""
    at = pa.array(seconds, pa.timestamp("s", "UTC")).cast(pa.timestamp("us", "UTC"))
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.int64()), "at": at})


MANY = range(100, 60_100)
BATCHES = [
    timed([1, 2, 1], [1, 10, 2], [1, 2, 9]),
    timed([1, 3], [4, 100], [12, 13]),
    # More rows than go from the driver to Spark by hand.
    timed([2, *MANY], [20, *MANY], [14] * (1 + len(MANY))),
]
PRICES = arrowstate.BroadcastStateDescriptor("prices", pa.int64(), pa.int64())


class Totals(arrowstate.BatchFunction):
    """Emits the new total of each key of the batch, at the price that is broadcast, and what time it is."""

    def open(self, context: Any) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        self.prices = context.broadcast("prices")

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        import pyarrow.compute as pc

        prices = self.prices.get_batch(batch["k"]).fill_null(1)
        self.total.add_batch(batch["k"], pc.multiply(batch["v"], prices))
        keys = batch["k"].unique()
        times = [
            pa.repeat(pa.scalar(time, pa.int64()), len(keys)) for time in (context.watermark, context.processing_time)
        ]
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys), "watermark": times[0], "now": times[1]})


class Counts(arrowstate.BatchFunction):
    """Emits how often it has been given each parity."""

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        self.count.add_batch(batch["odd"], batch["odd"])
        odd = batch["odd"].unique()
        return pa.record_batch({"odd": odd, "count": self.count.get_batch(odd)})


class Kept(arrowstate.BatchFunction):
    """Emits the rows of the odd keys, or of the even ones, and counts them."""

    def __init__(self, rest: int) -> None:
        self.rest = rest

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        import pyarrow.compute as pc

        halves = pc.multiply(pc.divide(batch["k"], 2), 2)
        kept = batch.filter(pc.equal(pc.subtract(batch["k"], halves), self.rest))
        self.count.add_batch(kept["k"], kept["k"])
        return kept


class Locked(Totals):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def noting(path: Path) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreach_batch` that runs on the server and notes the first rows in a file."""
    name = str(path)

    def note(frame: DataFrame, batch_id: int) -> None:
        with open(name, "a") as file:
            rows = sorted(map(list, frame.collect()))
            file.write(json.dumps([batch_id, len(rows), rows[:2]]) + "\n")

    return note


def telling(path: Path) -> Callable[[Any], None]:
    """Return a function for `on_checkpoint` that runs on the server and notes each record in a file."""
    name = str(path)

    def tell(record: Any) -> None:
        with open(name, "a") as file:
            parts = [[part.operator, part.subtask] for part in record.parts]
            file.write(json.dumps([record.checkpoint_id, record.outcome, parts]) + "\n")

    return tell


class Client:
    """The queries of the test."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    def add(self, number: int) -> None:
        add_file(self.folder, number, BATCHES[number])

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.schema("k long, v long, at timestamp").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "in"))

    def run(self, writer: Any, checkpoint: str) -> Any:
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        return query

    def fold(self) -> dict[str, Any]:
        """Fold the stream by a sink, and read the state by Spark."""
        states = [arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")]
        store = self.folder / "folded"
        arguments = {"store": store, "uid": "counter", "key": ["k"], "states": states, "parallelism": 2}
        writer = keyed_sink(self.rows(), **arguments, on_checkpoint=telling(self.folder / "told_of_folded"))
        query = self.run(writer, "folding")
        register(self.spark)
        read = self.spark.read.format("arrowstate").option("operator", "counter").load(str(store))
        return {
            "read": sorted(map(list, read.where("k < 3").select("k", "v").collect())),
            "query": query.id,
            "progress": [item.observedMetrics["arrowstate"].asDict() for item in query.recentProgress],
            "table": progress(store).drop_columns(["started_at", "committed_at"]).to_pylist(),
        }

    def operators(self, **changes: Any) -> list[Any]:
        prices = self.spark.createDataFrame([(1, 1), (2, 2), (3, 3)], "k long, price long")
        store = self.folder / "operated"
        arguments = {
            "key": ["k"],
            "operator": Totals(),
            "uid": "totals",
            "store": store,
            "parallelism": 2,
            "output_schema": "k long, total long, watermark long, now long",
            "output": "changes",
            "broadcast": {PRICES: prices},
        }
        totals = stateful(self.rows().withWatermark("at", "1 second"), **arguments | changes)
        odd = totals.transform(lambda frame: frame.selectExpr("k % 2 as odd"))
        counts = stateful(
            odd,
            key=["odd"],
            operator=Counts(),
            uid="counts",
            store=store,
            parallelism=1,
            output_schema="odd long, count long",
        )
        return [totals, counts]

    def operate(self) -> Any:
        functions = {uid: noting(self.folder / uid) for uid in ("totals", "counts")}
        tell = telling(self.folder / "told_of_operated")
        return self.run(write_stream(*self.operators(), foreach_batch=functions, on_checkpoint=tell), "operating")

    def unite(self) -> Any:
        """Put the rows of two operators together, and sum them in windows of ten seconds."""
        rows = self.rows().withWatermark("at", "1 second")
        store = self.folder / "united"
        schema = "k long, v long, at timestamp"
        arguments = {"key": ["k"], "store": store, "parallelism": 2, "output_schema": schema}
        odd, even = (
            stateful(rows, operator=Kept(rest), uid=uid, **arguments) for uid, rest in (("odd", 1), ("even", 0))
        )
        sums = arrowstate.ReducingStateDescriptor("sums", pa.int64(), reduce="sum")
        windows = stateful(
            odd.union(even),
            operator=WindowFunction(TumblingEventTimeWindows(10_000), sums, timestamp="at", value="v"),
            uid="windows",
            **arguments | {"output_schema": "k long, window_start long, window_end long, sums long"},
        )
        return self.run(windows.foreach_batch(noting(self.folder / "windows")), "uniting")

    def follow(self) -> int:
        """Follow the output of an operator to the end, and return how many rows came."""
        register(self.spark)
        stream = self.spark.readStream.format("arrowstate").option("output", "changes")
        writer = stream.load(str(self.folder / "operated")).writeStream.format("memory").queryName("changes")
        self.run(writer, "following")
        return self.spark.table("changes").count()

    def bootstrap(self) -> list[Any]:
        """Make state of a table, and read it back."""
        frame = self.spark.range(10).selectExpr("id as k", "id * 2 as total")
        states = [arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")]
        bootstrap(frame, store=self.folder / "filled", uid="totals", key=["k"], states=states, parallelism=2)
        scan = plan_read(self.spark, self.folder / "filled", operator="totals")
        return [scan.native, sorted(map(list, scan.frame.select("k", "total").collect()))]

    def refused(self) -> list[str]:
        """Return what the errors say of what is refused."""
        found = []
        starts: list[Callable[[], Any]] = [
            lambda: write_stream(*self.operators()).start(),
            lambda: self.run(write_stream(*self.operators(operator=Locked())), "refused"),
        ]
        for start in starts:
            try:
                start()
            except InvalidInputError as error:
                found.append(str(error))
        try:
            self.run(write_stream(*self.operators()), "another")
        except StreamingQueryException as error:
            found.append(str(error))
        return found


def run(remote: str, folder: Path) -> None:
    """Run all queries."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    client = Client(spark, folder)
    client.add(0)
    client.unite()
    client.add(1)
    client.unite()
    seen: dict[str, Any] = {"kind": type(spark).__module__, "folded": client.fold()}
    first = client.operate()
    # Spark has not noted that it finished the last batch, as after a crash between the two commits.
    for name in ("1", ".1.crc"):
        (folder / "operating" / "commits" / name).unlink(missing_ok=True)
    client.add(2)
    second = client.operate()
    client.unite()
    seen["queries"] = [first.id, second.id]
    seen["progress"] = [[item.batchId, item.observedMetrics["arrowstate"].rows] for item in second.recentProgress]
    seen["followed"] = client.follow() if has(STREAMING_READS) else None
    seen["bootstrapped"] = client.bootstrap()
    seen["refused"] = client.refused()
    for uid in ("totals", "counts", "windows", "told_of_folded", "told_of_operated"):
        seen[uid] = [json.loads(line) for line in (folder / uid).read_text().splitlines()]
    (folder / "seen.json").write_text(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
