"""Stateful streams on Spark: `keyed_sink` and `stateful` against Spark's own, in one session and from the same files.

Each micro-batch is a Parquet file. A round is a query of its own with new state; its first micro-batches, in which
workers start and code is compiled, are not timed. What Spark emits goes to the noop sink, so that all it writes is its
state. The parts: `aggregation`, count and sum per key against Spark's aggregation, and against a query with the same
source, shuffle and Python workers that only counts its rows, which is the limit; `code`, a running sum as code of the
user against `transformWithStateInPandas` and `transformWithState`; `fixed`, what a micro-batch of few rows takes by
one that keeps no state; `flat`, the same for session windows, and for lists with timers, over much state and over
little; and with `--state N`, `state`: the same rows over N keys against 1 M keys, and the memory.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

import arrowstate
from benchmarks.harness import Contender, Report, Series, argument_parser
from benchmarks.spark_jobs import (
    HDFS,
    ROCKSDB,
    TUNED,
    Job,
    MemoryWatch,
    aggregated,
    by_batch_function,
    by_pandas_processor,
    by_row_processor,
    in_sessions,
    into_store,
    make_files,
    nothing_kept,
    reminded,
    session,
    summed,
    totalled,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTS = ("aggregation", "code", "fixed", "flat", "state")
_SMALL_STATE = 1_000_000
_HORIZON_MS = 1_000_000_000
"""Within which the timers and sessions of `flat` lie."""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("spark", __doc__, rounds=3)
    parser.add_argument("--parts", default="aggregation,fixed", help=f"which of {', '.join(PARTS)}, or all")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of `aggregation` (default 1 M)")
    parser.add_argument("--batch", type=int, default=500_000, help="rows per micro-batch (default 500,000)")
    parser.add_argument("--batches", type=int, default=6, help="micro-batches that are timed in a round (default 6)")
    parser.add_argument("--skipped", type=int, default=2, help="micro-batches before them (default 2)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds that do not count, of the fast parts (default 2)")
    parser.add_argument("--tuned", action="store_true", help="also Spark's RocksDB with changelog, not counting rows")
    parser.add_argument("--code-keys", type=int, default=100_000, help="keys of `code` (default 100,000)")
    parser.add_argument("--code-batches", type=int, default=1, help="micro-batches of `code` (default 1)")
    parser.add_argument(
        "--code-skipped", type=int, default=20, help="micro-batches of ours before those of `code` (default 20)"
    )
    parser.add_argument("--small", type=int, default=1000, help="rows of a micro-batch of `fixed` (default 1,000)")
    parser.add_argument("--small-batches", type=int, default=20, help="micro-batches of `fixed` (default 20)")
    parser.add_argument("--held", type=int, default=10_000_000, help="rows of state of `flat` (default 10 M)")
    parser.add_argument("--state", type=int, help="keys of `state`, such as 50000000; also adds this part")
    parser.add_argument("--folder", type=Path, help="where to write (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    parts = set(PARTS if arguments.parts == "all" else arguments.parts.split(","))
    if not parts <= set(PARTS):
        parser.error(f"--parts takes {', '.join(PARTS)} or all, got {arguments.parts}")
    if arguments.code_skipped < 1:
        parser.error(f"--code-skipped must be 1 or more, got {arguments.code_skipped}")
    if arguments.state is not None:
        parts.add("state")
    report = Report("spark", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as name:
        spark = session(Path(name))
        try:
            for part, run in (
                ("aggregation", _aggregation),
                ("code", _code),
                ("fixed", _fixed),
                ("flat", _flat),
                ("state", _state),
            ):
                if part in parts:
                    run(report, spark, Path(name) / part, arguments)
                    shutil.rmtree(Path(name) / part)
        finally:
            spark.stop()
    return report.finish()


def _aggregation(report: Report, spark: SparkSession, folder: Path, arguments: Namespace) -> None:
    """Count and sum per key."""
    count = arguments.skipped + arguments.batches
    files = make_files(folder / "files", keys=arguments.keys, rows=arguments.batch, count=count)
    peers = {"Spark, RocksDB": ROCKSDB, "Spark, HDFS-backed": HDFS}
    if arguments.tuned:
        peers["Spark, RocksDB with changelog"] = TUNED
    jobs = {
        "keyed_sink": Job(spark, folder / "sink", files, arguments.skipped, into_store),
        "stateful": Job(spark, folder / "stateful", files, arguments.skipped, by_batch_function),
        "rows only counted": Job(spark, folder / "none", files, arguments.skipped, nothing_kept),
    }
    for number, (label, settings) in enumerate(peers.items()):
        jobs[label] = Job(spark, folder / f"peer-{number}", files, arguments.skipped, aggregated, settings)
    title = f"count and sum: {arguments.keys:,} keys, micro-batches of {arguments.batch:,} rows, local[2]"
    series = _compare(report, title, jobs, arguments.batch * arguments.batches, warmup=arguments.warmup)
    for label in ("keyed_sink", "stateful"):
        compare_results(jobs[label].places[-1] / "store", files)
        bound: float
        for peer, bound in (("Spark, RocksDB", 5), ("Spark, HDFS-backed", 3)):
            ratio = statistics.median(series[label].times_better_than(series[peer]))
            report.require(f"{label} against {peer}", ratio, at_least=bound, unit="times")
        # The same source, shuffle and Python workers: the limit of what can be had on Spark's path.
        ratio = statistics.median(series[label].times_better_than(series["rows only counted"]))
        bound = 0.9 if arguments.keys <= _SMALL_STATE else 0.85
        report.require(f"{label} against rows only counted", ratio, at_least=bound, unit="times")


def _code(report: Report, spark: SparkSession, folder: Path, arguments: Namespace) -> None:
    """A running sum per key as code of the user."""
    before, count = arguments.code_skipped, arguments.code_batches
    files = make_files(folder / "files", keys=arguments.code_keys, rows=arguments.batch, count=before + count)
    # Warmed up by time, not by number: one micro-batch takes ours a second, and the peers half a minute and minutes.
    last = files[before - 1 :]
    jobs = {
        "stateful": Job(spark, folder / "stateful", files, before, summed),
        "transformWithStateInPandas": Job(spark, folder / "pandas", last, 1, by_pandas_processor, ROCKSDB),
        "transformWithState": Job(spark, folder / "rows", last, 1, by_row_processor, ROCKSDB),
    }
    title = f"a running sum: {arguments.code_keys:,} keys, micro-batches of {arguments.batch:,} rows, local[2]"
    series = _compare(report, title, jobs, arguments.batch * arguments.code_batches)
    for peer, bound in (("transformWithStateInPandas", 100), ("transformWithState", 20)):
        ratio = statistics.median(series["stateful"].times_better_than(series[peer]))
        report.require(f"stateful against {peer}", ratio, at_least=bound, unit="times")


def _fixed(report: Report, spark: SparkSession, folder: Path, arguments: Namespace) -> None:
    """What a micro-batch of few rows takes."""
    count = arguments.skipped + arguments.small_batches
    files = make_files(folder / "files", keys=arguments.small, rows=arguments.small, count=count)
    jobs = {
        "keyed_sink": Job(spark, folder / "sink", files, arguments.skipped, into_store),
        "stateful": Job(spark, folder / "stateful", files, arguments.skipped, by_batch_function),
        "foreachBatch without state": Job(spark, folder / "none", files, arguments.skipped, nothing_kept),
    }
    title = f"micro-batches of {arguments.small:,} rows, local[2]"
    series = _compare(report, title, jobs, arguments.small_batches, "micro-batches", warmup=arguments.warmup)
    for label in ("keyed_sink", "stateful"):
        ratio = 1 / statistics.median(series[label].times_better_than(series["foreachBatch without state"]))
        report.require(f"a small micro-batch of {label}, by one without state", ratio, at_most=1.3, unit="times")


def _flat(report: Report, spark: SparkSession, folder: Path, arguments: Namespace) -> None:
    """What a micro-batch of few rows takes over much state and over little."""
    sizes = (arguments.held, min(arguments.held, 100_000))
    count = 1 + arguments.skipped + arguments.small_batches
    for what, write in (("session windows", in_sessions), ("lists and timers", reminded)):
        jobs = {}
        for held in sizes:
            place = folder / f"{write.__name__}-{held}"
            files = make_files(
                place / "files",
                keys=held,
                rows=arguments.small,
                count=count,
                values=_HORIZON_MS,
                every_key_first=True,
            )
            jobs[f"over {held:,} rows"] = Job(spark, place, files, 1 + arguments.skipped, write)
        title = f"{what}: micro-batches of {arguments.small:,} rows, local[2]"
        series = list(_compare(report, title, jobs, arguments.small_batches, "micro-batches").values())
        ratio = 1 / statistics.median(series[0].times_better_than(series[-1]))
        report.require(
            f"{what}: a micro-batch over {sizes[0]:,} rows, by {sizes[1]:,}", ratio, at_most=1.3, unit="times"
        )


def _state(report: Report, spark: SparkSession, folder: Path, arguments: Namespace) -> None:
    """The same rows over many keys and over few."""
    sizes = {"many keys": arguments.state or 50_000_000, "1 M keys": _SMALL_STATE}
    count = arguments.skipped + arguments.batches
    jobs = {}
    for label, keys in sizes.items():
        place = folder / label.replace(" ", "-")
        # In a process of its own, so that the memory it takes is not that of the stream.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(totalled, place / "made", keys).result()
        files = make_files(place / "files", keys=keys, rows=arguments.batch, count=count)
        jobs[label] = Job(spark, place / "rounds", files, arguments.skipped, _over_a_copy(place / "made" / "store"))
    title = f"keyed_sink over {sizes['many keys']:,} keys, micro-batches of {arguments.batch:,} rows, local[2]"
    watch = MemoryWatch()
    with watch.watching():
        series = _compare(report, title, jobs, arguments.batch * arguments.batches)
    size = sum(path.stat().st_size for path in jobs["many keys"].places[-1].rglob("data/**/*") if path.is_file())
    report.figure("bytes of the store of many keys", size / 2**30, "GiB")
    report.figure("peak memory of all processes without pages of mapped files", watch.peak_without_files / 2**30, "GiB")
    report.require("peak memory of all processes (PSS)", watch.peak_bytes / 2**30, at_most=12, unit="GiB")
    ratio = 1 / statistics.median(series["many keys"].times_better_than(series["1 M keys"]))
    report.require("time of a row over many keys, by that over 1 M keys", ratio, at_most=1.6, unit="times")


def _over_a_copy(store: Path) -> Callable[[DataFrame, Path], DataStreamWriter]:
    """Write a sink to a copy of a store, whose files are shared with it because none is ever changed."""

    def write(stream: DataFrame, place: Path) -> DataStreamWriter:
        shutil.copytree(store, place / "store", copy_function=_link)
        return into_store(stream, place)

    return write


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _compare(
    report: Report, title: str, jobs: Mapping[str, Job], amount: float, unit: str = "rows", *, warmup: int = 0
) -> dict[str, Series]:
    def begin(job: Job) -> None:
        for other in jobs.values():
            other.stop()
        job.start()

    contenders = [
        Contender(label, job.finish, amount, prepare=lambda job=job: begin(job))  # type: ignore[misc]
        for label, job in jobs.items()
    ]
    series = report.compare(title, unit, contenders, warmup=warmup)
    for job in jobs.values():
        job.stop()
    return dict(zip(jobs, series, strict=True))


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
