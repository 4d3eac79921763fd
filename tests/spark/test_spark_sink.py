"""`keyed_sink` in a real Spark session: what a stream leaves in the store, and what is refused before it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import (
    IncompatibleStateError,
    InvalidInputError,
    KeyTypeError,
    MissingDependencyError,
    UnsupportedStorageError,
    ValueTypeError,
)


def test_a_stream_equals_a_recomputation(stream: Any, make_rows: Any) -> None:
    import duckdb

    stream.add(*[make_rows(seed, count=5000) for seed in range(4)])

    query = stream.run()

    assert stream.stored() == stream.expected()
    by_duckdb = duckdb.sql(f"select k, count(n), sum(v) from '{stream.folder}/in/*.parquet' group by k").fetchall()
    assert stream.stored() == {key: (count, total) for key, count, total in by_duckdb}
    record = arrowstate.open_store(stream.store).latest().entry.properties["spark"]
    assert [record[name] for name in ("query_id", "run_id", "batch_id")] == [query.id, query.runId, 3]


def test_the_history_tells_what_each_micro_batch_took(stream: Any, make_rows: Any) -> None:
    stream.add(*[make_rows(seed, count=5000) for seed in range(2)])

    stream.run(parallelism=2)

    store = arrowstate.open_store(stream.store)
    rows = store.sql(
        "select c.properties, count(*), sum(s.bytes_written) = any_value(c.bytes_written), "
        "min(s.sync_us) >= 0, min(s.bytes_written) > 0 "
        "from arrowstate.checkpoints c join arrowstate.subtasks s using (checkpoint_id) "
        "group by c.properties order by c.properties"
    ).fetchall()
    assert [row[1:] for row in rows] == [(2, True, True, True)] * 2
    assert [json.loads(row[0])["spark"]["batch_id"] for row in rows] == [0, 1]


def test_a_query_goes_on_after_a_restart_at_any_parallelism(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0), make_rows(1))
    stream.run(parallelism=2, max_parallelism=128)
    stream.add(make_rows(2))
    stream.run(parallelism=3, max_parallelism=192)
    stream.add(make_rows(3))

    stream.run(parallelism=1)

    operator = arrowstate.open_store(stream.store).latest().entry.operators[0]
    assert stream.stored() == stream.expected()
    assert (len(operator.subtasks), operator.max_parallelism) == (1, 192)


def test_a_micro_batch_that_spark_repeats_counts_once(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0), make_rows(1))
    stream.run()
    # Spark has not noted that it finished the last batch, as after a crash between the two commits.
    (stream.checkpoint / "commits" / "1").unlink()
    (stream.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)

    query = stream.run()

    assert [progress["batchId"] for progress in query.recentProgress] == [1]
    assert stream.stored() == stream.expected()


def test_a_new_spark_checkpoint_folder_is_refused(stream: Any, make_rows: Any) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0))
    first = stream.run()

    with pytest.raises(
        StreamingQueryException, match=f"QueryConflictError: operator 'counter' belongs to query {first.id}"
    ):
        stream.run(checkpoint=stream.folder / "another")

    assert stream.stored() == stream.expected()


def test_a_null_key_fails_the_query_and_leaves_the_state(stream: Any, make_rows: Any) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0))
    stream.run()
    before = stream.stored()
    stream.add(pa.table({"k": pa.array([7, None], pa.int64()), "n": [1, 1], "v": [1, 1]}))

    with pytest.raises(StreamingQueryException, match="NullKeyError: key column 'k' is null in row"):
        stream.run()

    assert stream.stored() == before


def test_keys_and_values_of_many_types_arrive_unchanged(stream: Any) -> None:
    from pyspark.sql import functions as sf

    times = pa.array([0, 1, 2, 3], pa.timestamp("us", tz="UTC"))
    stream.schema = "k string, day date, at timestamp, price decimal(10,2), small smallint, ratio float, raw binary"
    rows = pa.table(
        {
            "k": ["a", "b", "a", "b"],
            "day": pa.array([10, 10, 10, 11], pa.date32()),
            "at": times,
            "price": pa.array([1, 2, 3, 4])
            .cast(pa.decimal128(19, 0))
            .cast(pa.decimal128(21, 2))
            .cast(pa.decimal128(10, 2)),
            "small": pa.array([1, 2, 3, 4], pa.int16()),
            "ratio": pa.array([0.5, 1.5, 2.5, 3.5], pa.float32()),
            "raw": pa.array([b"x", b"yy", b"zzz", b""], pa.binary()),
        }
    )
    stream.add(rows)
    states = [
        arrowstate.ReducingStateDescriptor("at", pa.timestamp("us", tz="UTC"), reduce="max"),
        arrowstate.ReducingStateDescriptor("price", pa.decimal128(12, 2), reduce="sum"),
        arrowstate.ReducingStateDescriptor("small", pa.int64(), reduce="sum"),
        arrowstate.ReducingStateDescriptor("ratio", pa.float64(), reduce="min"),
        arrowstate.ReducingStateDescriptor("raw", pa.int64(), reduce="count"),
        arrowstate.ValueStateDescriptor(
            "where", pa.struct([("x", pa.large_string()), ("seen", pa.timestamp("us", "UTC"))])
        ),
    ]
    frame = stream.frame().withColumns({"x": sf.lit("here"), "seen": sf.col("at")})
    previous = stream.spark.conf.get("spark.sql.session.timeZone")
    stream.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        stream.run(frame=frame, key=["k", "day"], states=states)
    finally:
        stream.spark.conf.set("spark.sql.session.timeZone", previous)

    snapshot = arrowstate.open_store(stream.store).latest()
    found = {
        state.name: snapshot.to_arrow(f"counter.{state.name}").sort_by([("k", "ascending"), ("day", "ascending")])
        for state in states
    }
    assert found["at"]["at"].equals(pa.chunked_array([times.take([2, 1, 3])]))
    assert [str(value) for value in found["price"]["price"].to_pylist()] == ["4.00", "2.00", "4.00"]
    assert found["small"]["small"].to_pylist() == [4, 2, 4]
    assert found["ratio"]["ratio"].to_pylist() == [0.5, 1.5, 3.5]
    assert found["raw"]["raw"].to_pylist() == [2, 1, 1]
    assert found["where"]["x"].to_pylist() == ["here"] * 3
    assert found["where"]["seen"].to_pylist()[1:] == times.take([1, 3]).to_pylist()


def test_column_names_may_have_any_characters(stream: Any) -> None:
    from pyspark.sql import functions as sf

    stream.schema = "k long, v long"
    stream.add(pa.table({"k": [1, 1, 2], "v": [1, 2, 3]}))
    frame = stream.frame().select(sf.col("k").alias("a.key `of` mine"), sf.col("v").alias("the sum"))
    total = arrowstate.ReducingStateDescriptor("t", pa.struct([("the sum", pa.int64())]), reduce={"the sum": "sum"})

    stream.run(frame=frame, key=["a.key `of` mine"], states=[total])

    table = arrowstate.open_store(stream.store).latest().to_arrow("counter.t").sort_by("a.key `of` mine")
    assert table.to_pydict() == {"a.key `of` mine": [1, 2], "the sum": [3, 3]}


def test_one_column_may_be_counted_and_summed(stream: Any) -> None:
    stream.schema = "k long, v int"
    stream.add(pa.table({"k": [1, 1, 2], "v": pa.array([1, None, 3], pa.int32())}))
    states = [
        arrowstate.ReducingStateDescriptor("counted", pa.struct([("v", pa.int64())]), reduce={"v": "count"}),
        arrowstate.ReducingStateDescriptor("added", pa.struct([("v", pa.int64())]), reduce={"v": "sum"}),
    ]

    stream.run(states=states)

    snapshot = arrowstate.open_store(stream.store).latest()
    assert snapshot.to_arrow("counter.counted").sort_by("k").to_pydict() == {"k": [1, 2], "v": [1, 1]}
    assert snapshot.to_arrow("counter.added").sort_by("k").to_pydict() == {"k": [1, 2], "v": [1, 3]}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": ["nobody"]}, InvalidInputError, "has no column 'nobody'; it has k, v, n"),
        ({"key": []}, InvalidInputError, "at least one column"),
        ({"key": "k"}, InvalidInputError, "key must be a list"),
        ({"states": []}, InvalidInputError, "at least one descriptor"),
        ({"uid": "no/uid"}, InvalidInputError, "uid"),
        ({"parallelism": 0}, InvalidInputError, "parallelism must be"),
        ({"parallelism": 9, "max_parallelism": 8}, InvalidInputError, "parallelism must be 1 to the max parallelism 8"),
        ({"store": "memory://x"}, UnsupportedStorageError, "in the memory of this process"),
        ({"states": [arrowstate.ValueStateDescriptor("v", pa.int32())]}, ValueTypeError, "must be int32, got bigint"),
        ({"states": [arrowstate.ValueStateDescriptor("v", pa.string())]}, ValueTypeError, "must be string, got bigint"),
        ({"states": [arrowstate.ValueStateDescriptor("w", pa.string())]}, InvalidInputError, "has no column 'w'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_the_call(
    stream: Any, make_rows: Any, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    stream.add(make_rows(0))

    with pytest.raises(error, match=message):
        stream.start(**change)

    assert not stream.store.exists()


def test_what_does_not_fit_the_store_is_refused_at_the_call(stream: Any, make_rows: Any) -> None:
    from pyspark.sql import functions as sf

    stream.add(make_rows(0))
    stream.run()
    other = arrowstate.ReducingStateDescriptor("totals", pa.int64(), reduce="sum")

    with pytest.raises(IncompatibleStateError, match="totals"):
        stream.start(states=[other], frame=stream.frame().withColumn("totals", sf.col("v")))
    with pytest.raises(KeyTypeError, match="keys must be k: int64, got k: string"):
        stream.start(frame=stream.frame().withColumn("k", sf.col("k").cast("string")))
    with pytest.raises(InvalidInputError, match="holds the state of 'counter'; a query needs a store of its own"):
        stream.start(uid="another")
    with pytest.raises(InvalidInputError, match="holds 'totals' of operator 'counter', .*allow_non_restored_state"):
        stream.start(states=[arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")])

    assert stream.stored() == stream.expected()


def test_a_narrower_key_is_widened_to_the_stored_one(stream: Any, make_rows: Any) -> None:
    from pyspark.sql import functions as sf

    stream.add(make_rows(0))
    stream.run()
    stream.add(make_rows(1))

    stream.run(frame=stream.frame().withColumn("k", sf.col("k").cast("int")))

    assert stream.stored() == stream.expected()


def test_a_static_frame_is_refused(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0))

    with pytest.raises(InvalidInputError, match="needs a streaming DataFrame"):
        stream.start(frame=stream.spark.read.parquet(str(stream.folder / "in")))


def test_spark_routes_every_row_to_the_subtask_of_its_key_group(spark: Any) -> None:
    from pyspark.sql import functions as sf

    from arrowstate.spark.routing import subtask_expression

    frame = spark.range(-500, 500).select(sf.col("id"), sf.concat(sf.lit("é"), sf.col("id")).alias("a`b"))

    for parallelism, max_parallelism in ((1, 1), (3, 128), (7, 192), (32768, 32768)):
        expression = subtask_expression(["id", "a`b"], parallelism, max_parallelism)
        rows = frame.select("*", sf.expr(expression).alias("subtask")).toArrow()
        keys = rows.select(["id", "a`b"]).combine_chunks().to_batches()[0]
        groups = arrowstate.key_groups(keys, max_parallelism).to_pylist()
        ranges = [
            arrowstate.key_group_range(max_parallelism, parallelism=parallelism, subtask=s) for s in range(parallelism)
        ]
        assert all(group in ranges[subtask] for group, subtask in zip(groups, rows["subtask"].to_pylist(), strict=True))


@pytest.mark.parametrize("order_by", [[], ["k"]])
@pytest.mark.parametrize("without_rows", ["k > 100", "1 = 0"])
def test_each_subtask_has_a_task_where_spark_sees_that_there_are_no_rows(
    spark: Any, without_rows: str, order_by: list[str]
) -> None:
    from pyspark.sql import functions as sf

    from arrowstate.spark.routing import run_tasks

    local = spark.sql("select k from values (1L), (2L) as t(k)").where(without_rows)
    plan = SimpleNamespace(parallelism=3, max_parallelism=128)

    def task(subtask: int, batches: Any) -> tuple[int, int]:
        return subtask, sum(batch.num_rows for batch in batches)

    found = run_tasks(local, {"k": sf.col("k")}, ["k"], plan, task, order_by=order_by)

    assert sorted(found) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("count", [1, 2, 7, 200, 4096])
def test_each_partition_has_a_value_that_spark_sends_there(spark: Any, count: int) -> None:
    from pyspark.sql import functions as sf

    from arrowstate.spark.routing import values_of_partitions

    table = spark.createDataFrame(list(enumerate(values_of_partitions(count))), "place int, value int")

    assert table.where(sf.expr(f"pmod(hash(value), {count}) <> place")).count() == 0


def test_without_repartition_by_id_every_row_reaches_its_subtask(
    stream: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add(make_rows(0), make_rows(1))
    for kind in type(stream.spark.range(1)).__mro__:
        monkeypatch.delattr(kind, "repartitionById", raising=False)

    stream.run(parallelism=3, max_parallelism=7)

    assert stream.stored() == stream.expected()
    assert arrowstate.open_store(stream.store).verify(deep=True).problems == []


def test_without_pyspark_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import arrowstate.spark\n"
        "try:\n    arrowstate.spark.keyed_sink\n"
        "except arrowstate.MissingDependencyError as error:\n    print(error)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "arrowstate.spark needs the package pyspark: pip install 'arrowstate[spark]'\n"
    assert issubclass(MissingDependencyError, ImportError)


_OLDER = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
import pyspark
import pyspark.sql.datasource
# This version imports the one module in the other.
sys.modules.pop({hidden!r}, None)
sys.meta_path.insert(0, Hidden())
pyspark.__version__ = "{version}"
import arrowstate.spark
"""
"""A process with a PySpark that lacks a module."""


def said(script: str) -> str:
    """What a process prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


def test_what_an_older_pyspark_lacks_is_named_with_the_version_that_has_it() -> None:
    hidden = _OLDER.format(hidden="pyspark.sql.datasource", version="3.5.9")
    calls = ("register(None)", "import_state(None, '/x', store='/y', parallelism=1)")

    lines = [
        said(
            f"{hidden}try:\n    arrowstate.spark.{call}\n"
            "except arrowstate.MissingDependencyError as error:\n    print(error)\n"
        )
        for call in calls
    ]

    what = ("reads by spark.read.format('arrowstate')", "imports of Spark's state")
    assert lines == [
        f"PySpark 3.5.9 is installed; {each} need 4.0 or later: pip install 'pyspark>=4.0'\n" for each in what
    ]


def test_what_only_streams_need_of_pyspark_takes_nothing_else_away() -> None:
    script = _OLDER.format(hidden="pyspark.sql.streaming.datasource", version="4.1.4") + (
        "print(all(getattr(arrowstate.spark, name) for name in arrowstate.spark.__all__))\n"
        "from arrowstate.spark.source import ArrowStateDataSource\n"
        "try:\n    ArrowStateDataSource({}).streamReader(None)\n"
        "except arrowstate.MissingDependencyError as error:\n    print(error)\n"
    )

    missing = "PySpark 4.1.4 is installed; streaming reads need 4.2 or later: pip install 'pyspark>=4.2'"
    assert said(script) == f"True\n{missing}\n"


def test_a_pyspark_that_is_too_old_for_all_is_named() -> None:
    script = (
        "import pyspark, arrowstate.spark\npyspark.__version__ = '3.4.4'\n"
        "try:\n    arrowstate.spark.keyed_sink\nexcept arrowstate.MissingDependencyError as error:\n    print(error)\n"
    )

    assert said(script) == (
        "PySpark 3.4.4 is installed; sinks, operators and reads need 3.5 or later: pip install 'pyspark>=3.5'\n"
    )


def test_importing_arrowstate_does_not_import_pyspark() -> None:
    script = "import sys, arrowstate, arrowstate.spark; print('pyspark' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
    assert Path(arrowstate.__file__).is_file()


def test_storage_options_stand_in_no_text_of_a_plan(sink: Any) -> None:
    from arrowstate.spark.places import StorePlace, storage_options_of

    secret = {"key": "a", "secret": "hush-hush", "client_kwargs": {"n": [1, None, True]}}
    plan = replace(sink.plan, storage_options=secret)
    place = replace(StorePlace("memory://x"), options=storage_options_of({"storageOptions": json.dumps(secret)}))

    assert place.options == plan.storage_options
    assert "hush" not in repr(plan) + str(plan) + repr(place)


@pytest.mark.parametrize("at_start", [False, True])
def test_a_sink_is_refused_the_complete_mode(stream: Any, make_rows: Any, at_start: bool) -> None:
    from arrowstate.spark import keyed_sink

    stream.add(make_rows(0))
    states = [arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")]
    writer = keyed_sink(stream.frame(), store=stream.store, uid="counter", key=["k"], states=states, parallelism=2)
    writer = writer.option("checkpointLocation", str(stream.checkpoint))

    with pytest.raises(InvalidInputError, match="use outputMode append or update, not complete"):
        writer.start(outputMode="complete") if at_start else writer.outputMode("complete").start()
