"""The streaming queries that `tools/bench spark` compares: ours, and those of Spark's own that do the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.spark import keyed_sink, stateful
from arrowstate.spark.workers import own_python
from arrowstate.windows import EventTimeSessionWindows, WindowFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "HDFS",
    "MAX_PARALLELISM",
    "ROCKSDB",
    "TOTALS",
    "TUNED",
    "Job",
    "MemoryWatch",
    "aggregated",
    "by_batch_function",
    "by_pandas_processor",
    "by_row_processor",
    "in_sessions",
    "into_store",
    "make_files",
    "nothing_kept",
    "reminded",
    "session",
    "summed",
    "totalled",
]

MAX_PARALLELISM = 128
PARALLELISM = 2
TOTALS = arrowstate.ReducingStateDescriptor(
    "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
)
_GAP_MS = 10
SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = {_PROVIDER: f"{_PACKAGE}.RocksDBStateStoreProvider"}
HDFS = {_PROVIDER: f"{_PACKAGE}.HDFSBackedStateStoreProvider"}
TUNED = {
    **ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
"""RocksDB with its changelog, and without counting rows."""


@dataclass
class Job:
    """One contender: starts a query per round, and gives it the files."""

    spark: SparkSession
    folder: Path
    files: list[Path]
    skipped: int
    """How many files are not timed: workers start and code is compiled."""
    write: Callable[[DataFrame, Path], DataStreamWriter]
    settings: Mapping[str, str] = field(default_factory=dict)
    places: list[Path] = field(default_factory=list)
    """The folder of each round."""
    query: StreamingQuery | None = None

    def start(self) -> None:
        """Start a query in a folder of its own and let it have the files that are not timed."""
        place = self.folder / str(len(self.places))
        self.places.append(place)
        (place / "in").mkdir(parents=True)
        self._offer(self.files[: self.skipped])
        for key, value in self.settings.items():
            self.spark.conf.set(key, value)
        reader = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        with own_python(self.spark):
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

    def stop(self) -> None:
        """Stop the query, which would go on looking for files."""
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _offer(self, files: list[Path]) -> None:
        for file in files:
            os.link(file, self.places[-1] / "in" / file.name)


def into_store(stream: DataFrame, place: Path) -> DataStreamWriter:
    """Ours: the sink, with one state of count and sum."""
    counted = stream.withColumn("n", stream["v"])
    return keyed_sink(
        counted,
        store=place / "store",
        uid="bench",
        key=["k"],
        states=[TOTALS],
        parallelism=PARALLELISM,
        max_parallelism=MAX_PARALLELISM,
    )


class Totals(arrowstate.BatchFunction):
    """Count and sum per key; emits the keys that changed."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.totals = context.state(TOTALS)

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.Table:
        keys, values = context.group_keys(batch), batch["v"]
        added = pa.StructArray.from_arrays(
            [values, values], fields=[pa.field("n", pa.int64()), pa.field("v", pa.int64())]
        )
        self.totals.add_batch(keys, added)
        return pa.table([*keys.columns, *self.totals.read_keys(keys).flatten()], names=["k", "n", "v"])


class Sums(arrowstate.BatchFunction):
    """A running sum per key; emits the keys that changed."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(SUM)

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.Table:
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["v"])
        return pa.table([*keys.columns, self.total.read_keys(keys)], names=["k", "total"])


class Reminders(arrowstate.BatchFunction):
    """The values of a key as a list, and a timer for each."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.values = context.state(arrowstate.ListStateDescriptor("values", pa.int64()))
        self.timers = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        keys = context.key_columns(batch)
        self.values.add_batch(keys, batch["v"])
        self.timers.register_batch(keys, batch["v"])


def reminded(stream: DataFrame, place: Path) -> DataStreamWriter:
    """Ours: lists and timers, of which none is due."""
    return _stateful(_on_time(stream), place, Reminders(), None)


def in_sessions(stream: DataFrame, place: Path) -> DataStreamWriter:
    """Ours: session windows, of which none is over."""
    counted = arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count")
    sessions = EventTimeSessionWindows(_GAP_MS)
    windows = WindowFunction(sessions, counted, timestamp="v", value="k")
    return _stateful(_on_time(stream), place, windows, "k long, window_start long, window_end long, n long")


def _on_time(stream: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    return stream.withColumn("at", sf.timestamp_millis("v")).withWatermark("at", "1000 days")


def by_batch_function(stream: DataFrame, place: Path) -> DataStreamWriter:
    """Ours: a stateful operator that does what the sink does and emits the keys that changed."""
    return _stateful(stream, place, Totals(), "k long, n long, v long")


def summed(stream: DataFrame, place: Path) -> DataStreamWriter:
    """Ours: a running sum as a batch function."""
    return _stateful(stream, place, Sums(), "k long, total long")


def _stateful(
    stream: DataFrame, place: Path, operator: arrowstate.BatchFunction, output_schema: str | None
) -> DataStreamWriter:
    return stateful(
        stream,
        store=place / "store",
        uid="bench",
        key=["k"],
        operator=operator,
        parallelism=PARALLELISM,
        max_parallelism=MAX_PARALLELISM,
        output_schema=output_schema,
    ).write_stream()


def aggregated(stream: DataFrame, place: Path) -> DataStreamWriter:  # noqa: ARG001
    """Spark's: a streaming aggregation that emits the keys that changed."""
    from pyspark.sql import functions as sf

    totals = stream.groupBy("k").agg(sf.count("v"), sf.sum("v"))
    return totals.writeStream.outputMode("update").format("noop")


def by_pandas_processor(stream: DataFrame, place: Path) -> DataStreamWriter:  # noqa: ARG001
    """Spark's: a running sum by `transformWithStateInPandas`."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Sum(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
            before = self.total.get()
            total = 0 if before is None else before[0]
            for frame in rows:
                total += int(frame["v"].sum())
            self.total.update((total,))
            yield pd.DataFrame({"k": [key[0]], "total": [total]})

        def close(self) -> None:
            pass

    frame = stream.groupBy("k").transformWithStateInPandas(Sum(), "k long, total long", "Update", "None")
    return frame.writeStream.outputMode("update").format("noop")


def by_row_processor(stream: DataFrame, place: Path) -> DataStreamWriter:  # noqa: ARG001
    """Spark's: a running sum by `transformWithState`, row by row."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Sum(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
            before = self.total.get()
            total = 0 if before is None else before[0]
            for row in rows:
                total += row["v"]
            self.total.update((total,))
            yield Row(k=key[0], total=total)

        def close(self) -> None:
            pass

    frame = stream.groupBy("k").transformWithState(Sum(), "k long, total long", "Update", "None")
    return frame.writeStream.outputMode("update").format("noop")


def nothing_kept(stream: DataFrame, place: Path) -> DataStreamWriter:  # noqa: ARG001
    """Spark's: the shuffle and the Python workers of a stateful operator, and no state."""
    from arrowstate.spark.routing import divided, subtask_expression

    subtask = subtask_expression(["k"], PARALLELISM, MAX_PARALLELISM)

    def each_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch({"rows": pa.array([rows], pa.int64())})

    def each_batch(frame: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        with own_python(frame.sparkSession):
            divided(frame, PARALLELISM, subtask).mapInArrow(each_task, "rows long").collect()

    return stream.writeStream.foreachBatch(each_batch)


def totalled(place: Path, keys: int) -> None:
    """Make a store in which each of the keys 0 to `keys - 1` has a count of 1 and its number modulo 1000 as sum."""
    from arrowstate_formats.key_groups import key_group_range

    backends = []
    for subtask in range(PARALLELISM):
        backend = arrowstate.KeyedStateBackend(
            key=pa.schema([("k", pa.int64())]),
            max_parallelism=MAX_PARALLELISM,
            key_groups=key_group_range(MAX_PARALLELISM, parallelism=PARALLELISM, subtask=subtask),
        )
        state = backend.state(TOTALS)
        low, high = backend.key_groups.start, backend.key_groups.end
        for start in range(0, keys, 5_000_000):
            numbers = np.arange(start, min(keys, start + 5_000_000))
            groups = np.asarray(arrowstate.key_groups(pa.array(numbers), MAX_PARALLELISM))
            own = numbers[(groups >= low) & (groups <= high)]
            values = pa.StructArray.from_arrays(
                [pa.array(np.ones(own.size, dtype=np.int64)), pa.array(own % 1000)], fields=list(TOTALS.type)
            )
            state.add_batch(pa.array(own), values)
        backends.append(backend)
    with arrowstate.open_store(place / "store", create=True).writer() as writer:
        writer.checkpoint({"bench": backends})


def make_files(
    folder: Path, *, keys: int, rows: int, count: int, values: int = 1000, every_key_first: bool = False
) -> list[Path]:
    """Write one Parquet file of random keys per micro-batch, with times that make Spark take them in order.

    Each has so many rows; the first has each key once, where that is asked for.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    files = []
    for number in range(count):
        all_keys = every_key_first and not number
        numbers = np.arange(keys) if all_keys else random.integers(0, keys, rows)
        drawn = pa.table({"k": numbers, "v": random.integers(0, values, numbers.size)})
        file = folder / f"{number:04}.parquet"
        pq.write_table(drawn, file)
        os.utime(file, (1_600_000_000 + number,) * 2)
        files.append(file)
    return files


def session(folder: Path) -> SparkSession:
    """The session of all contenders."""
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps the state of queries that have ended for a while, which does not fit into its one GiB.
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(PARALLELISM),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    builder = SparkSession.builder.master(f"local[{PARALLELISM}]").appName("arrowstate-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class MemoryWatch:
    """The most memory that this process and all its descendants had at a moment, looked at twice a second.

    It is the sum of their proportional set sizes (PSS), as Linux counts them: a page that several processes share is
    counted once. Pages of mapped files are part of it, although the system may drop them at any time.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.peak_without_files = 0
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look while the block runs."""
        self._ended.clear()
        thread = threading.Thread(target=self._watch, name="memory")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while True:
            sizes = [_proportional(process) for process in _family(os.getpid())]
            self.peak_bytes = max(self.peak_bytes, sum(all_pages for all_pages, _ in sizes))
            self.peak_without_files = max(self.peak_without_files, sum(rest for _, rest in sizes))
            if self._ended.wait(0.5):
                return


def _family(process: int) -> list[int]:
    """The process and all its descendants."""
    found = [process]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            # It ended meanwhile.
            continue
    return found


def _proportional(process: int) -> tuple[int, int]:
    """The bytes of a process, all and without those of mapped files."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
    return sizes.get("Pss", 0), sizes.get("Pss", 0) - sizes.get("Pss_File", 0)
