"""What one installed PySpark runs of arrowstate, step by step, each compared with a recomputation.

    PYTHONPATH=.:formats:tools:tests/support python tests/spark/version_check.py FOLDER [--kills 10] [--only STEP ...]

It runs in whatever environment its Python has: the README's stream, sinks and
operators over a restart, a rescale and a repeated micro-batch, every way to read a state, what this version lacks and
how that is said, the demo, kill rounds on a cluster, and Spark Connect where PySpark brings its server.
`tools/test --long spark-versions` runs it once for each version. The exit code is 1 after a failed step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import arrowstate
import arrowstate.spark
from arrowstate.errors import MissingDependencyError
from arrowstate.spark.versions import DATA_SOURCE, IMPORTS, STREAMING_READS, has
from page_examples import run_page
from spark_files import add_file

ROOT = Path(__file__).parents[2]
PACKAGES = ("pyspark", "pyarrow", "pandas", "numpy", "duckdb", "numba")
SUMS = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")


class Totals(arrowstate.BatchFunction):
    """Emits the new total of each key at a price that is broadcast, and sets a timer for it."""

    def open(self, context: Any) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        self.timers = context.timers()
        self.prices = context.broadcast("prices")

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        import pyarrow.compute as pc

        prices = self.prices.get_batch(batch["k"]).fill_null(1)
        self.total.add_batch(batch["k"], pc.multiply(batch["v"], prices))
        keys = batch["k"].unique()
        self.timers.register_batch(keys, pa.array([1_000] * len(keys)))
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys)})

    def on_timers(self, timers: pa.RecordBatch, context: Any) -> None:
        pass


class Check:
    """The steps; what one makes, later ones may use."""

    def __init__(self, folder: Path, kills: int) -> None:
        self.folder = folder
        self.kills = kills
        self.rows: list[pa.Table] = []
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The session of the steps that need one here."""
        if self._spark is None:
            builder = SparkSession.builder.master("local[2]")
            for name, value in {
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            }.items():
                builder = builder.config(name, value)
            self._spark = builder.getOrCreate()
            self._spark.sparkContext.setLogLevel("OFF")
        return self._spark

    def end(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def add(self, count: int = 3000) -> None:
        """Add the rows of a micro-batch."""
        number = len(self.rows)
        random = np.random.default_rng(number)
        at = pa.array(random.integers(0, 10**6, count) + number * 10**6).cast(pa.timestamp("us", "UTC"))
        rows = pa.table({"k": random.integers(0, 500, count), "v": random.integers(-9, 9, count), "at": at})
        add_file(self.folder, number, rows)
        self.rows.append(rows)

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema("k long, v long, at timestamp").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "in"))

    def run(self, writer: Any, checkpoint: str) -> Any:
        query = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def expected(self) -> dict[int, int]:
        table = pa.concat_tables(self.rows).group_by("k").aggregate([("v", "sum")])
        return dict(zip(table["k"].to_pylist(), table["v_sum"].to_pylist(), strict=True))

    def stored(self, store: str, state: str) -> dict[int, int]:
        table = arrowstate.open_store(self.folder / store).latest().to_arrow(state)
        return dict(zip(table["k"].to_pylist(), table[table.column_names[-1]].to_pylist(), strict=True))

    def forget_last_commit(self, checkpoint: str) -> None:
        """Take back what Spark noted of its last micro-batch, as after a crash between the two commits."""
        commits = self.folder / checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    # The steps.

    def readme(self) -> str:
        """The stream of the README."""
        place = self.folder / "readme"
        (place / "payments").mkdir(parents=True)
        pq.write_table(pa.table({"user": ["ann", "bob", "ann"], "amount": [1, 5, 3]}), place / "payments" / "a.parquet")
        before = Path.cwd()
        os.chdir(place)
        try:
            names: dict[str, Any] = {"spark": self.spark}
            assert run_page("README.md", names) > 0
            names["query"].processAllAvailable()
            names["query"].stop()
        finally:
            os.chdir(before)
        store = arrowstate.open_store(place / "stores" / "payments")
        totals = store.sql("select user, total from totals.total order by user").fetchall()
        assert totals == [("ann", 4), ("bob", 5)], totals
        return "ann 4, bob 5"

    def sink(self) -> str:
        """`keyed_sink` over restarts, a repeated micro-batch and two rescales."""
        self.add(), self.add()
        settings: dict[str, Any] = {"store": self.folder / "sink", "uid": "counter", "key": ["k"], "states": [SUMS]}
        for parallelism, maximum in ((2, 128), (3, 192), (1, 7)):
            query = self.run(
                arrowstate.spark.keyed_sink(
                    self.stream(), **settings, parallelism=parallelism, max_parallelism=maximum, on_error="dead_letter"
                ),
                "sink-spark",
            )
            assert self.stored("sink", "counter.v") == self.expected()
            self.forget_last_commit("sink-spark")
            self.add()
        self.run(arrowstate.spark.keyed_sink(self.stream(), **settings, parallelism=2, max_parallelism=7), "sink-spark")
        assert self.stored("sink", "counter.v") == self.expected()
        figures = [item["observedMetrics"]["arrowstate"] for item in _plain(query.recentProgress)]
        assert figures[-1]["rows"] == 3000, figures
        return f"{len(self.rows)} micro-batches, {len(self.expected())} keys"

    def operator(self) -> str:
        """`stateful` with timers, a watermark, a broadcast state and an output, over a restart and a rescale."""
        prices = arrowstate.BroadcastStateDescriptor("prices", pa.int64(), pa.int64())
        seen: list[int] = []
        for parallelism in (2, 3):
            operator = arrowstate.spark.stateful(
                self.stream().withWatermark("at", "1 second"),
                key=["k"],
                operator=Totals(),
                uid="totals",
                store=self.folder / "operator",
                parallelism=parallelism,
                output_schema="k long, total long",
                output="changes",
                broadcast={prices: self.spark.createDataFrame([(-1, 7)], "k long, price long")},
            )
            self.run(operator.foreach_batch(lambda frame, _: seen.append(frame.count())), "operator-spark")
            assert self.stored("operator", "totals.total") == self.expected()
            self.add()
        snapshot = arrowstate.open_store(self.folder / "operator").latest()
        assert snapshot.operator_state("changes", "rows").num_rows == sum(seen)
        assert snapshot.entry.watermark == (len(self.rows) - 3) * 1000 - 1 or snapshot.entry.watermark > 0
        return f"{sum(seen)} rows emitted"

    def read(self) -> str:
        """`read_state` in each way, and a table that becomes state."""
        scan = arrowstate.spark.plan_read(self.spark, self.folder / "sink", operator="counter", state="v")
        found = {row["k"]: row["v"] for row in scan.frame.collect()}
        assert found == self.stored("sink", "counter.v")
        table = self.spark.range(100_000).selectExpr("id as k", "id * 2 as v")
        arrowstate.spark.bootstrap(
            table, store=self.folder / "filled", uid="op", key=["k"], states=[SUMS], parallelism=2, format="parquet"
        )
        native = arrowstate.spark.plan_read(self.spark, self.folder / "filled", operator="op", state="v")
        assert native.native, native.reason
        assert native.frame.where("k = 7").collect()[0]["v"] == 14
        assert native.frame.count() == 100_000
        return f"{scan.reason}; {native.reason}"

    def lacks(self) -> str:
        """What this version has beside, and what it says of the rest."""
        found = []
        place = str(self.folder / "operator")

        def source(**options: str) -> Any:
            return self.spark.read.format("arrowstate").options(**options).load(place)

        if has(DATA_SOURCE):
            arrowstate.spark.register(self.spark)
            assert source(operator="totals", state="total").count() == len(self.expected())
            assert source(output="changes").count() > 0
            assert source(operator="totals", state="total", readChangeFeed="true").count() > 0
            found.append("data source")
        else:
            found.append(_refusal(lambda: arrowstate.spark.register(self.spark)))
        if has(IMPORTS):
            counts = self.stream().groupBy("k").count().writeStream.format("noop").outputMode("update")
            self.run(counts, "counts-spark")
            report = arrowstate.spark.import_state(
                self.spark, self.folder / "counts-spark", store=self.folder / "imported", uid="counts", parallelism=2
            )
            assert report.checkpoint_id == 1
            found.append("import_state")
        else:
            found.append(
                _refusal(lambda: arrowstate.spark.import_state(self.spark, "x", store="y", uid="z", parallelism=2))
            )
        stream = arrowstate.spark.stateful(
            self.stream(), key=["k"], operator=_Counts(), uid="counts", store=self.folder / "idle", parallelism=1
        )
        if has(STREAMING_READS):
            self.run(stream.write_stream(fire_when_idle=True), "idle-spark")
            for name, options in {
                "output": {"output": "changes"},
                "feed": {"operator": "totals", "state": "total", "readChangeFeed": "true"},
            }.items():
                rows = self.spark.readStream.format("arrowstate").options(**options).load(place)
                self.run(rows.writeStream.format("memory").queryName(name), f"{name}-spark")
                assert self.spark.table(name).count() > 0
            found.append("streaming reads, fire_when_idle")
        else:
            found.append(_refusal(lambda: stream.write_stream(fire_when_idle=True)))
            if has(DATA_SOURCE):
                rows = self.spark.readStream.format("arrowstate").option("output", "changes").load(place)
                found.append(_refusal(lambda: self.run(rows.writeStream.format("noop"), "refused-spark")))
        return "; ".join(found)

    def demo(self) -> str:
        """The demo: two queries over 336,776 flights, killed, resumed, rescaled."""
        self.end()
        _process("-m", "flights", "--folder", str(self.folder / "demo"), "--json")
        return "0 differences"

    def kill_rounds(self) -> str:
        """A driver, its JVM, a worker or an executor of a cluster is killed, round after round."""
        self.end()
        for query in ("audit", "sink"):
            script = str(ROOT / "tests" / "spark" / "spark_kill_rounds.py")
            count = str(-(-self.kills // 2))
            _process(script, str(self.folder / f"kills-{query}"), "--query", query, "--rounds", count)
        return f"{self.kills} rounds"

    def connect(self) -> str:
        """Operators and a sink on Spark Connect."""
        import pyspark

        self.end()
        if not list((Path(pyspark.__file__).parent / "jars").glob("spark-connect_*.jar")):
            return "this PySpark brings no server"
        script = ROOT / "tests" / "spark"
        place = self.folder / "connect"
        place.mkdir()
        python = place / "python"
        # Spark puts a zip of PySpark first, whose modules each process compiles anew, and gives a process ten seconds,
        # three of which are imports: a machine with much other work is too slow for this step.
        path = os.environ.get("PYTHONPATH", "")
        python.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec '{sys.executable}' -W ignore \"$@\"\n")
        python.chmod(0o755)
        with subprocess.Popen(
            [sys.executable, str(script / "connect_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(place / "server.log").open("wb"),
            env={**os.environ, "PYSPARK_PYTHON": str(python)},
        ) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline() or 0)
            assert port, (place / "server.log").read_text()
            _process(str(script / "connect_client.py"), f"sc://127.0.0.1:{port}", str(place))
        seen = json.loads((place / "seen.json").read_text())
        assert seen["folded"]["read"] == [[1, 7], [2, 10]], seen["folded"]
        assert seen["windows"][-1] == [2, 2, [[1, 0, 10_000, 3], [2, 0, 10_000, 10]]], seen["windows"]
        return "operators, windows, a sink, reads, bootstrap"


class _Counts(arrowstate.BatchFunction):
    """Counts the rows of each key."""

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        self.count.add_batch(batch["k"], batch["k"])


def _plain(progress: Any) -> list[dict[str, Any]]:
    """The progress of micro-batches, which is text, dicts or objects, version by version."""
    return [item if type(item) is dict else json.loads(item.json) for item in progress]


def _refusal(call: Callable[[], Any]) -> str:
    """Call what this version lacks, and return what is said."""
    try:
        call()
    except MissingDependencyError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (Spark's own, of a query that has ended)
        assert "MissingDependencyError" in str(error), error
        return next(line for line in str(error).splitlines() if "is installed;" in line).strip()
    raise AssertionError("it is not refused")


def _process(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"


STEPS = ("readme", "sink", "operator", "read", "lacks", "demo", "kill_rounds", "connect")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="an empty folder, or one that is made")
    parser.add_argument("--kills", type=int, default=10, help="rounds of SIGKILL (default 10)")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, help="steps, instead of all")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"Python {sys.version.split()[0]}, {', '.join(f'{name} {_version(name)}' for name in PACKAGES)}", flush=True)
    check, passed = Check(given.folder.resolve(), given.kills), 0
    for name in given.only:
        started = time.monotonic()
        try:
            told = getattr(check, name)()
        except Exception:  # noqa: BLE001 (the other steps are tried too)
            told = f"FAILED\n{traceback.format_exc()}"
        else:
            passed += 1
        print(f"  {name:12} {time.monotonic() - started:5.0f} s  {told}", flush=True)
    check.end()
    print(f"{passed} passed, {len(given.only) - passed} failed")
    return int(passed < len(given.only))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main())
