"""A stateful stream on Spark: `keyed_sink` against Spark's own aggregation on its RocksDB state store.

Both keep count and sum per key, in the same session and from the same Parquet files, one file per micro-batch.
A round is a query of its own with new state; its first micro-batches, in which workers start and code is
compiled, are not timed. Spark's result goes to the noop sink, so that all it writes is its state.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.spark import keyed_sink
from benchmarks.harness import Contender, Report, argument_parser

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TOTALS = arrowstate.ReducingStateDescriptor(
    "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TUNED = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("spark-sink", __doc__, rounds=3)
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct int64 keys (default 1 M)")
    parser.add_argument("--batch", type=int, default=500_000, help="rows per micro-batch (default 500,000)")
    parser.add_argument("--batches", type=int, default=6, help="micro-batches that are timed in a round (default 6)")
    parser.add_argument("--skipped", type=int, default=2, help="micro-batches before them (default 2)")
    parser.add_argument("--tuned", action="store_true", help="also Spark with changelog, and without counting rows")
    arguments = parser.parse_args(argv)
    report = Report("spark-sink", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as name:
        folder = Path(name)
        files = make_files(folder / "files", arguments)
        spark = session(folder)
        try:
            ours = Job(spark, folder / "arrowstate", files, arguments.skipped, into_store)
            peer = Job(spark, folder / "rocksdb", files, arguments.skipped, aggregated)
            jobs = {"arrowstate": ours, "Spark, RocksDB": peer}
            if arguments.tuned:
                tuned = Job(spark, folder / "tuned", files, arguments.skipped, aggregated, TUNED)
                jobs["Spark, RocksDB with changelog"] = tuned
            amount = arguments.batch * arguments.batches
            contenders = [
                Contender(label, job.finish, amount, prepare=lambda job=job: begin(job, jobs))  # type: ignore[misc]
                for label, job in jobs.items()
            ]
            title = f"{arguments.keys:,} keys, micro-batches of {arguments.batch:,} rows, local[2]"
            series = report.compare(title, "rows", contenders, warmup=0)
            stop(jobs)
            compare_results(ours.places[-1] / "store", files)
        finally:
            spark.stop()
    ratio = statistics.median(series[0].times_better_than(series[1]))
    report.require("against Spark's aggregation", ratio, at_least=4, unit="times")
    return report.finish()


@dataclass
class Job:
    """One contender: starts a query per round, and gives it the files."""

    spark: SparkSession
    folder: Path
    files: list[Path]
    skipped: int
    write: Callable[[DataFrame, Path], DataStreamWriter]
    settings: Mapping[str, str] = field(default_factory=dict)
    places: list[Path] = field(default_factory=list)
    """The folder of each round."""
    query: StreamingQuery | None = None

    def start(self) -> None:
        """Start a query over new state and let it have the files that are not timed."""
        place = self.folder / str(len(self.places))
        self.places.append(place)
        (place / "in").mkdir(parents=True)
        self._offer(self.files[: self.skipped])
        for key, value in self.settings.items():
            self.spark.conf.set(key, value)
        reader = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        writer = self.write(reader.parquet(str(place / "in")), place)
        self.query = writer.option("checkpointLocation", str(place / "spark")).start()
        self.query.processAllAvailable()
        for key in self.settings:
            self.spark.conf.unset(key)

    def finish(self) -> None:
        """Let it have the other files, and wait until it has processed them."""
        assert self.query is not None
        self._offer(self.files[self.skipped :])
        self.query.processAllAvailable()

    def _offer(self, files: list[Path]) -> None:
        for file in files:
            os.link(file, self.places[-1] / "in" / file.name)


def begin(job: Job, jobs: Mapping[str, Job]) -> None:
    """Start a round of one job, after stopping those that would go on looking for files beside it."""
    stop(jobs)
    job.start()


def stop(jobs: Mapping[str, Job]) -> None:
    """Stop whatever query is running."""
    for job in jobs.values():
        if job.query is not None:
            job.query.stop()
            job.query = None


def into_store(stream: DataFrame, place: Path) -> DataStreamWriter:
    """Ours: the sink, with one state of count and sum."""
    counted = stream.withColumn("n", stream["v"])
    return keyed_sink(counted, store=place / "store", uid="bench", key=["k"], states=[TOTALS], parallelism=2)


def aggregated(stream: DataFrame, place: Path) -> DataStreamWriter:  # noqa: ARG001
    """Spark's: a streaming aggregation that emits the keys that changed."""
    from pyspark.sql import functions as sf

    totals = stream.groupBy("k").agg(sf.count("v"), sf.sum("v"))
    return totals.writeStream.outputMode("update").format("noop")


def make_files(folder: Path, arguments: Namespace) -> list[Path]:
    """Write one Parquet file per micro-batch, with times that make Spark take them in order."""
    folder.mkdir()
    random = np.random.default_rng(1)
    files = []
    for number in range(arguments.skipped + arguments.batches):
        keys, values = random.integers(0, arguments.keys, arguments.batch), random.integers(0, 1000, arguments.batch)
        file = folder / f"{number:04}.parquet"
        pq.write_table(pa.table({"k": keys, "v": values}), file)
        os.utime(file, (1_600_000_000 + number,) * 2)
        files.append(file)
    return files


def session(folder: Path) -> SparkSession:
    """The session of all contenders."""
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    }
    builder = SparkSession.builder.master("local[2]").appName("arrowstate-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def compare_results(store: Path, files: list[Path]) -> None:
    """Refuse to report a figure for a wrong result."""
    connection = duckdb.connect()
    connection.register("totals", arrowstate.open_store(store).latest().to_arrow("bench.totals"))
    paths = ", ".join(f"'{file}'" for file in files)
    connection.execute(f"create view rows as from read_parquet([{paths}])")
    connection.execute("create view truth as select k, count(*) n, sum(v)::bigint v from rows group by k")
    query = "(from truth except from totals) union all (from totals except from truth)"
    different = connection.execute(query).fetchall()
    if different:
        raise AssertionError(f"{len(different)} keys differ from a recomputation, such as {different[:3]}")
