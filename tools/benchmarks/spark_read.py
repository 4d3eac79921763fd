"""Reading a state with Spark: checkpoints in Parquet and Arrow against `spark.read.parquet` of the same rows.

All are summed up in one session, so the rows are decoded and given to the JVM, and no more. `read_state` takes
Spark's own reader for Parquet files; the data source, which it takes for others, is measured on both formats too.
"""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.spark import plan_read, register
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.spark_jobs import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE = arrowstate.ValueStateDescriptor("value", pa.float64())


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("spark-read", __doc__, rounds=5)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the state")
    parser.add_argument("--dead", type=int, default=100_000, help="rows that were written again in the last store")
    parser.add_argument("--subtasks", type=int, default=2, help="subtasks of the state")
    arguments = parser.parse_args(argv)
    report = Report("spark-read", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as name:
        folder = Path(name)
        total = make_stores(folder, arguments)
        spark = session(folder)
        try:
            register(spark)
            for state in ("parquet", "dead", "arrow"):
                scan = plan_read(spark, folder / state, operator="bench")
                print(f"  {state}: {'Spark' if scan.native else 'data source'}: {scan.reason}")
            frames: dict[str, Callable[[], DataFrame]] = {
                "read_state, Parquet": lambda: plan_read(spark, folder / "parquet", operator="bench").frame,
                "spark.read.parquet": lambda: spark.read.parquet(str(folder / "plain")),
                "read_state, Parquet with dead rows": lambda: plan_read(spark, folder / "dead", operator="bench").frame,
                "read_state, Arrow": lambda: plan_read(spark, folder / "arrow", operator="bench").frame,
                "data source, Parquet": lambda: by_data_source(spark, folder / "parquet"),
            }
            contenders = [
                Contender(label, lambda frame=frame: check(frame(), arguments.rows, total), arguments.rows)  # type: ignore[misc]
                for label, frame in frames.items()
            ]
            series = report.compare(f"sum of {arguments.rows:,} rows (int64, double), local[2]", "rows", contenders)
        finally:
            spark.stop()
    plain = series[1]
    for one in series:
        if one is not plain:
            report.figure(f"{one.name} against spark.read.parquet", _times(one.times_better_than(plain)), "times")
    for what, one, least in (
        ("Parquet", series[0], 0.8),
        ("with dead rows", series[2], 0.8),
        ("Arrow", series[3], 0.6),
    ):
        report.require(f"checkpoint, {what}", _times(one.times_better_than(plain)), at_least=least, unit="times")
    return report.finish()


def make_stores(folder: Path, arguments: Namespace) -> float:
    """Write the rows as plain Parquet files and as three stores; return the sum of keys and values."""
    random = np.random.default_rng(1)
    keys, values = random.permutation(arguments.rows), random.random(arguments.rows)
    (folder / "plain").mkdir()
    for number, (some, of) in enumerate(zip(np.array_split(keys, 2), np.array_split(values, 2), strict=True)):
        pq.write_table(pa.table({"k": some, "value": of}), folder / "plain" / f"{number}.parquet", compression="zstd")
    groups = arrowstate.key_groups(pa.array(keys), 128).to_numpy()
    ranges = [
        arrowstate.key_group_range(128, parallelism=arguments.subtasks, subtask=subtask)
        for subtask in range(arguments.subtasks)
    ]
    backends = []
    for own in ranges:
        mine = (groups >= own.start) & (groups <= own.end)
        backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128, key_groups=own)
        backend.state(STATE).update_batch(pa.array(keys[mine]), pa.array(values[mine]))
        backends.append(backend)
    for name, format in (("parquet", "parquet"), ("arrow", "arrow"), ("dead", "parquet")):
        with arrowstate.open_store(folder / name, create=True).writer() as writer:
            writer.checkpoint({"bench": backends}, format=format)  # type: ignore[arg-type]
            if name != "dead":
                continue
            for backend, own in zip(backends, ranges, strict=True):
                again = np.flatnonzero((groups >= own.start) & (groups <= own.end))[: arguments.dead // len(ranges)]
                backend.state(STATE).update_batch(pa.array(keys[again]), pa.array(values[again]))
            writer.checkpoint({"bench": backends}, format="parquet")
    return float(keys.sum() + values.sum())


def by_data_source(spark: SparkSession, store: Path) -> DataFrame:
    """Return the state, read by the Python data source."""
    return spark.read.format("arrowstate").option("operator", "bench").load(str(store))


def check(frame: DataFrame, rows: int, total: float) -> None:
    """Read all rows and both columns, and refuse to time a wrong result."""
    from pyspark.sql import functions as sf

    found = frame.agg(sf.count("k"), sf.sum("k") + sf.sum("value")).collect()[0]
    if found[0] != rows or abs(found[1] - total) > 1:
        raise AssertionError(f"{found[0]} rows with the sum {found[1]}, expected {rows} with {total}")


def _times(ratios: list[float]) -> float:
    return statistics.median(ratios)
