"""`import_state`: what real queries of Spark keep becomes state of a store, equal to what the queries have seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.spark import import_state, keyed_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROWS = [
    ("a", 1, "2024-01-01 00:00:00"),
    ("b", 2, "2024-01-01 00:00:10"),
    ("a", 3, "2024-01-01 00:00:20"),
    ("a", 1, "2024-01-01 00:00:20"),
]


class Queries:
    """Queries of Spark's own over one folder of files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.store = folder / "store"
        self.add(*ROWS)

    def add(self, *rows: tuple[str | None, int, str]) -> None:
        """Add a file of rows."""
        frame = self.spark.createDataFrame(list(rows), "k string, v long, t string")
        frame.selectExpr("k", "v", "cast(t as timestamp) t").coalesce(1).write.mode("append").parquet(
            str(self.folder / "in")
        )

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema("k string, v long, t timestamp").parquet(str(self.folder / "in"))

    def run(self, frame: DataFrame, mode: str = "update", name: str = "query") -> Path:
        """Run a query over the files that are there; return its checkpoint folder."""
        checkpoint = self.folder / name
        writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return checkpoint


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Queries:
    return Queries(spark, tmp_path)


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Let queries keep their state in RocksDB."""
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


def rows_of(store: Path, state: str) -> list[dict[str, Any]]:
    rows = arrowstate.open_store(store).latest().to_arrow(state).to_pylist()
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def test_an_aggregation_goes_on_in_a_keyed_sink(queries: Queries) -> None:
    from pyspark.sql import functions as sf

    checkpoint = queries.run(queries.stream().groupBy("k").agg(sf.count("v").alias("n"), sf.sum("v").alias("total")))
    totals = arrowstate.ReducingStateDescriptor(
        "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
    )

    report = import_state(
        queries.spark,
        checkpoint,
        store=queries.store,
        uid="counter",
        state="totals",
        columns=["n", "v"],
        reduce=totals.reduce,
        parallelism=2,
    )

    assert rows_of(queries.store, "counter.totals") == [{"k": "a", "n": 3, "v": 5}, {"k": "b", "n": 1, "v": 2}]
    (taken,) = report.imported
    assert (taken.uid, taken.state, taken.kind, taken.key, taken.rows) == (
        "counter",
        "totals",
        "reducing",
        "k string",
        2,
    )
    assert report.left_out == ()
    assert (report.batch_id, report.watermark_ms, report.offsets) == (0, None, ('{"logOffset":0}',))
    # The new query begins where the old one ended: with the files that came later.
    later = queries.folder / "later"
    queries.spark.sql("select 'a' as k, 10L as v union all select 'c', null").coalesce(1).write.parquet(str(later))
    stream = queries.spark.readStream.schema("k string, v long").parquet(str(later)).selectExpr("k", "v", "v as n")
    sink = keyed_sink(stream, store=queries.store, uid="counter", key=["k"], states=[totals], parallelism=3)
    sink.option("checkpointLocation", str(queries.folder / "new")).trigger(availableNow=True).start().awaitTermination()
    assert rows_of(queries.store, "counter.totals") == [
        {"k": "a", "n": 4, "v": 15},
        {"k": "b", "n": 1, "v": 2},
        {"k": "c", "n": 0, "v": None},
    ]


def test_a_column_of_the_key_may_have_any_name(queries: Queries) -> None:
    from pyspark.sql import functions as sf

    words = queries.stream().withColumnRenamed("k", "value")
    checkpoint = queries.run(words.groupBy("value").agg(sf.count("v").alias("n")))

    import_state(queries.spark, checkpoint, store=queries.store, uid="words", state="n", reduce="count", parallelism=1)

    assert rows_of(queries.store, "words.n") == [{"value": "a", "n": 3}, {"value": "b", "n": 1}]


def test_an_aggregation_of_windows_keeps_its_buffers(queries: Queries, rocksdb: None) -> None:
    from pyspark.sql import functions as sf

    stream = queries.stream().withWatermark("t", "15 seconds")
    checkpoint = queries.run(
        stream.groupBy(sf.window("t", "10 seconds"), "k").agg(sf.avg("v"), sf.sum("v"), sf.collect_list("v"))
    )

    report = import_state(queries.spark, checkpoint, store=queries.store, parallelism=1)

    rows = rows_of(queries.store, "stateStoreSave-0.buffers")
    assert [
        (row["window_start"].second, row["window_end"].second, row["k"], row["sum"], row["count"], row["sum_2"])
        for row in rows
    ] == [(0, 10, "a", 1.0, 1, 1), (10, 20, "b", 2.0, 1, 2), (20, 30, "a", 4.0, 2, 4)]
    assert report.imported[0].key.startswith("window_start timestamp")
    assert [item.source for item in report.left_out] == ["default.buf"]
    assert "collect_list" in report.left_out[0].reason
    assert report.watermark_ms == 1_704_067_205_000
    snapshot = arrowstate.open_store(queries.store).latest()
    assert snapshot.entry.watermark == report.watermark_ms
    assert snapshot.properties["imported_from_spark"]["batch_id"] == report.batch_id
    assert snapshot.restore("stateStoreSave-0").watermark == report.watermark_ms


def test_deduplications_keep_the_keys_they_have_seen(queries: Queries) -> None:
    first = queries.run(queries.stream().dropDuplicates(["k", "v"]), "append")
    stream = queries.stream().withWatermark("t", "30 seconds").dropDuplicatesWithinWatermark(["k"])
    second = queries.run(stream, "append", "within")

    import_state(queries.spark, first, store=queries.store, uid="seen", parallelism=2)
    import_state(queries.spark, second, store=queries.store, uid="within", state="until", parallelism=2)

    assert [(row["k"], row["v"], row["seen"]) for row in rows_of(queries.store, "seen.seen")] == [
        ("a", 1, True),
        ("a", 3, True),
        ("b", 2, True),
    ]
    until = {row["k"]: row["until"].second for row in rows_of(queries.store, "within.until")}
    assert until == {"a": 30, "b": 40}


@pytest.mark.parametrize(("provider", "version"), [(None, "2"), (ROCKSDB, "3"), (ROCKSDB, "4")])
def test_a_join_keeps_the_rows_of_both_sides(
    queries: Queries, request: pytest.FixtureRequest, provider: str | None, version: str
) -> None:
    from pyspark.sql import functions as sf

    if provider is not None:
        request.getfixturevalue("rocksdb")
    left = queries.stream().withWatermark("t", "1 hour")
    right = queries.stream().selectExpr("k as k2", "v * 10 as w", "t as t2").withWatermark("t2", "1 hour")
    condition = sf.expr("k = k2 and t2 between t - interval 1 hour and t + interval 1 hour")
    queries.spark.conf.set("spark.sql.streaming.join.stateFormatVersion", version)
    try:
        checkpoint = queries.run(left.join(right, condition, "leftOuter"), "append")
    finally:
        queries.spark.conf.unset("spark.sql.streaming.join.stateFormatVersion")

    report = import_state(queries.spark, checkpoint, store=queries.store, uid="join", key=["k"], parallelism=2)

    backend = arrowstate.open_store(queries.store).latest().restore("join")
    taken = {item.state: (item.kind, item.rows, item.key) for item in report.imported}
    assert taken == {"left": ("list", 4, "k string"), "right": ("list", 4, "k string")}
    lists = {}
    for name in backend.state_names:
        state = backend.state(backend.states[name].descriptor)
        lists[name] = state.get_batch(pa.array(["a", "b"])).to_pylist()
    of_left = [[row["v"] for row in of] for of in lists["left"]]
    of_right = [[row["w"] for row in of] for of in lists["right"]]
    if version == "4":
        assert [item.source for item in report.left_out] == ["left: order and matched", "right: order and matched"]
        of_left, of_right = [[sorted(of, key=str) for of in side] for side in (of_left, of_right)]
        assert (of_left, of_right) == ([[1, 1, 3], [2]], [[10, 10, 30], [20]])
        return
    assert report.left_out == ()
    assert (of_left, of_right) == ([[1, 3, 1], [2]], [[10, 30, 10], [20]])
    assert all(row["matched"] for of in lists["left"] for row in of)


@pytest.mark.turns(2)
def test_variables_of_transform_with_state_become_states(queries: Queries, rocksdb: None) -> None:
    pytest.importorskip("google.protobuf")
    checkpoint = run_processor(queries)
    ttl = arrowstate.TimeToLive(3_600_000)
    before_ms = time.time() * 1000

    report = import_state(
        queries.spark,
        checkpoint,
        store=queries.store,
        uid="op",
        parallelism=2,
        time_to_live={"expiring": ttl, "expiring_list": ttl, "expiring_map": ttl},
    )

    backend = arrowstate.open_store(queries.store).latest().restore("op")
    keys = pa.array(["a", "b"])
    n, x, uv = (pa.struct([(name, pa.int64())]) for name in ("n", "x", "uv"))
    count = backend.state(arrowstate.ValueStateDescriptor("count", n))
    assert count.get_batch(keys).to_pylist() == [{"n": 3}, {"n": 1}]
    values = backend.state(arrowstate.ListStateDescriptor("values", x))
    assert [[row["x"] for row in of] for of in values.get_batch(keys).to_pylist()] == [[1, 3, 1], [2]]
    per_value = backend.state(arrowstate.MapStateDescriptor("per_value", pa.string(), uv))
    entries = [{key: value["uv"] for key, value in of} for of in per_value.entries_batch(keys).to_pylist()]
    assert entries == [{"u1": 1, "u3": 3}, {"u2": 2}]
    expiring = backend.state(arrowstate.ValueStateDescriptor("expiring", n, ttl=ttl))
    assert expiring.get_batch(keys).to_pylist() == [{"n": 3}, {"n": 1}]
    of_list = backend.state(arrowstate.ListStateDescriptor("expiring_list", x, ttl=ttl))
    assert [[row["x"] for row in of] for of in of_list.get_batch(keys).to_pylist()] == [[1, 3, 1], [2]]
    of_map = backend.state(arrowstate.MapStateDescriptor("expiring_map", pa.string(), uv, ttl=ttl))
    assert [len(of) for of in of_map.entries_batch(keys).to_pylist()] == [2, 1]
    # What Spark says of the end of a row is the time it was written and the time it lives.
    for batch in expiring.live_batches():
        age = before_ms - batch.column("_updated_at").to_numpy()
        assert ((age > 0) & (age < 600_000)).all()
    assert backend.timers().next_timestamp("processing_time") == 5_000_000_000_000
    assert backend.timers().count("processing_time") == 2
    assert len(report.imported) == 7
    assert report.left_out == ()


@pytest.mark.turns(3)
def test_a_variable_that_expires_needs_to_be_told_when(queries: Queries, rocksdb: None) -> None:
    pytest.importorskip("google.protobuf")
    checkpoint = run_processor(queries)

    with pytest.raises(InvalidInputError, match="count is none of them; those that do: expiring, expiring_list"):
        import_state(
            queries.spark,
            checkpoint,
            store=queries.store,
            parallelism=1,
            time_to_live={"count": arrowstate.TimeToLive(1)},
        )
    report = import_state(queries.spark, checkpoint, store=queries.store, parallelism=1)

    assert {item.state for item in report.imported} == {"count", "values", "per_value", "timers_processing_time"}
    assert {item.source for item in report.left_out} == {"expiring", "expiring_list", "expiring_map"}
    text = str(report)
    assert "transformWithStateInPandasExec, count -> transformWithStateInPandasExec-0.count: 2 rows, value of" in text
    assert "give time_to_live={'expiring': ...}" in text
    assert 'offset of source 0: {"logOffset":0}' in text


def run_processor(queries: Queries) -> Path:
    """Run one micro-batch of a processor with a variable of each sort; with timers the query never ends by itself."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    from arrowstate.spark.workers import own_python

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            hour = 3_600_000
            self.values = [handle.getValueState("count", "n long"), handle.getValueState("expiring", "n long", hour)]
            self.lists = [handle.getListState("values", "x long"), handle.getListState("expiring_list", "x long", hour)]
            self.maps = [
                handle.getMapState("per_value", "uk string", "uv long"),
                handle.getMapState("expiring_map", "uk string", "uv long", hour),
            ]

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N803
            values = [int(v) for frame in rows for v in frame.sort_values("t", kind="stable")["v"]]
            for state in self.lists:
                state.put([(v,) for v in values])
            for state in self.maps:
                for v in values:
                    state.updateValue((f"u{v}",), (v,))
            for state in self.values:
                state.update((len(values),))
            self.handle.registerTimer(5_000_000_000_000)
            yield pd.DataFrame({"k": [key[0]], "n": [len(values)]})

        def close(self) -> None:
            pass

    checkpoint = queries.folder / "processor"
    with own_python(queries.spark):
        frame = (
            queries.stream()
            .groupBy("k")
            .transformWithStateInPandas(Processor(), "k string, n long", "Update", "ProcessingTime")
        )
        writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(processingTime="1 hour").start()
    try:
        while query.lastProgress is None and query.exception() is None:
            time.sleep(0.1)
        assert query.exception() is None
    finally:
        query.stop()
    return checkpoint


def test_what_cannot_be_taken_is_reported_and_the_rest_is_taken(queries: Queries) -> None:
    from pyspark.sql import functions as sf

    queries.add((None, 5, "2024-01-01 00:00:30"))
    windows = queries.stream().withWatermark("t", "10 seconds").groupBy(sf.session_window("t", "5 seconds"), "k")
    sessions = queries.run(windows.count(), "append", "sessions")
    counts = queries.run(queries.stream().groupBy("k").count(), "complete", "counts")
    everything = queries.run(queries.stream().groupBy().count(), "complete", "everything")

    of_sessions = import_state(queries.spark, sessions, store=queries.store, parallelism=1)
    of_everything = import_state(queries.spark, everything, store=queries.store, parallelism=1)
    of_counts = import_state(queries.spark, counts, store=queries.store, parallelism=1, reduce="count")

    assert (of_sessions.imported, of_sessions.checkpoint_id) == ((), None)
    assert "session windows" in of_sessions.left_out[0].reason
    assert "no key" in of_everything.left_out[0].reason
    assert rows_of(queries.store, "stateStoreSave-0.buffers") == [{"k": "a", "buffers": 3}, {"k": "b", "buffers": 1}]
    assert of_counts.left_out[0].reason == "1 rows have a null in the key, which is no key here"


def test_a_query_with_several_operators_is_imported_as_a_whole_or_by_number(queries: Queries) -> None:
    from pyspark.sql import functions as sf

    stream = queries.stream().withWatermark("t", "10 seconds").dropDuplicates(["k", "v", "t"])
    checkpoint = queries.run(stream.groupBy(sf.window("t", "10 seconds")).count(), "append")

    with pytest.raises(InvalidInputError, match=r"uid can be given for one operator, and the query has 0 \(stateSto"):
        import_state(queries.spark, checkpoint, store=queries.store, parallelism=1, uid="op")
    with pytest.raises(
        InvalidInputError, match=r"has no stateful operator 7; it has 0 \(stateStoreSave\), 1 \(dedupe\)"
    ):
        import_state(queries.spark, checkpoint, store=queries.store, parallelism=1, operator_id=7)
    with pytest.raises(InvalidInputError, match="Spark keeps the state after the micro-batches 0 to 1, got 9"):
        import_state(queries.spark, checkpoint, store=queries.store, parallelism=1, batch_id=9)
    with pytest.raises(InvalidInputError, match="is no checkpoint folder of a Spark query with state"):
        import_state(queries.spark, queries.folder / "nowhere", store=queries.store, parallelism=1)
    report = import_state(queries.spark, checkpoint, store=queries.store, parallelism=1)

    operators = arrowstate.open_store(queries.store).latest().entry.operators
    assert [operator.uid for operator in operators] == ["stateStoreSave-0", "dedupe-1"]
    assert {item.operator_id: item.rows for item in report.imported} == {
        0: len(rows_of(queries.store, "stateStoreSave-0.buffers")),
        1: len(rows_of(queries.store, "dedupe-1.seen")),
    }
    assert len(arrowstate.open_store(queries.store).checkpoints()) == 1
