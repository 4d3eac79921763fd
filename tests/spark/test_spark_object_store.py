"""A sink whose store is in a bucket: Spark's workers find it by their environment, as other tools of the service do."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate


@pytest.fixture
def bucket(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty folder of a bucket; what is needed to reach it is in the environment, here and in the workers."""
    # Spark's workers import this file for its operator, and know nothing of tests/support.
    from object_servers import S3_OPTIONS, s3_server

    with s3_server() as endpoint:
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": S3_OPTIONS["key"],
            "AWS_SECRET_ACCESS_KEY": S3_OPTIONS["secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
            # What `spark.executorEnv.*` of a new session would set.
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        yield f"s3://bucket/{uuid.uuid4().hex}/store"


@pytest.mark.turns(2)
def test_a_stream_into_a_bucket_equals_a_recomputation(stream: Any, make_rows: Any, bucket: str) -> None:
    stream.add(make_rows(0, count=5000, keys=3000), make_rows(1))
    stream.run(store=bucket)
    stream.add(make_rows(2))

    stream.run(store=bucket, parallelism=3, max_parallelism=48)

    snapshot = arrowstate.open_store(bucket).latest()
    found = {row["k"]: (row["n"], row["v"]) for row in snapshot.to_arrow("counter.totals").to_pylist()}
    read = stream.spark.read.format("arrowstate").option("operator", "counter").load(bucket).toArrow().to_pylist()
    assert snapshot.entry.properties["spark"]["batch_id"] == 2
    assert found == stream.expected()
    assert {row["k"]: (row["n"], row["v"]) for row in read} == found


class Fold(arrowstate.BatchFunction):
    """Emits the new sum of each key of the batch."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        self.total.add_batch(batch["k"], batch["v"].fill_null(0))
        keys = batch["k"].unique()
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys)})


@pytest.mark.turns(3)
def test_the_state_and_the_output_of_an_operator_may_be_in_a_bucket(stream: Any, make_rows: Any, bucket: str) -> None:
    from arrowstate.spark import stateful

    stream.add(make_rows(0, count=5000, keys=3000), make_rows(1))
    operator = stateful(
        stream.frame(),
        key=["k"],
        operator=Fold(),
        uid="counter",
        store=bucket,
        parallelism=2,
        output_schema="k long, total long",
        output="changes",
    )
    seen: list[list[dict[str, int]]] = []
    writer = operator.foreach_batch(lambda frame, batch: seen.append(frame.toArrow().to_pylist()))
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()

    snapshot = arrowstate.open_store(bucket).latest()
    changes = snapshot.operator_state("changes", "rows")["rows"].to_pylist()
    totals = {row["k"]: row["total"] for row in snapshot.to_arrow("counter.total").to_pylist()}
    assert totals == {key: total or 0 for key, (_, total) in stream.expected().items()}
    assert changes == [*seen[0], *seen[1]]
    assert len(seen[0]) == len(set(stream.rows[0]["k"].to_pylist()))


def test_a_bucket_that_cannot_be_reached_is_named(stream: Any, make_rows: Any, bucket: str) -> None:
    stream.add(make_rows(0))

    with pytest.raises(arrowstate.errors.StorageError, match="there is no such bucket .in s3://no-such-bucket/store"):
        stream.run(store="s3://no-such-bucket/store")


@pytest.fixture
def options(spark: Any, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What is needed to reach a bucket, which no environment has."""
    from object_servers import S3_OPTIONS, s3_server

    with s3_server() as endpoint:
        yield {
            **S3_OPTIONS,
            "secret": "hush-hush-4711",
            "client_kwargs": {"region_name": "us-east-1"},
            "endpoint_url": endpoint,
            "cache_dir": str(tmp_path / "cache"),
        }


@pytest.mark.long
def test_storage_options_reach_the_workers_and_stand_nowhere(
    stream: Any, make_rows: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    from arrowstate.spark import plan_read, progress, register, stateful

    caplog.set_level("DEBUG", "arrowstate")
    bucket, spark = f"s3://bucket/{uuid.uuid4().hex}/store", stream.spark
    with pytest.raises(arrowstate.InvalidInputError, match="the storage option 'secret' is a object") as refused:
        stream.add(make_rows(0, 50))
        stream.start(store=bucket, storage_options=options | {"secret": object()})
    stream.run(store=bucket, storage_options=options, on_error="dead_letter")
    stream.add(make_rows(1, 50))
    query = stream.run(store=bucket, parallelism=3, storage_options=options, on_error="dead_letter")
    operator = stateful(
        stream.frame(),
        key=["k"],
        operator=Fold(),
        uid="fold",
        store=f"{bucket}-2",
        parallelism=1,
        storage_options=options,
    )
    writer = operator.write_stream().option("checkpointLocation", str(stream.folder / "spark-2"))
    writer.trigger(availableNow=True).start().awaitTermination()

    register(spark)

    def read(**chosen: str) -> Any:
        return spark.read.format("arrowstate").options(storageOptions=json.dumps(options), **chosen).load(bucket)

    table = read(operator="counter")
    history = read(table="arrowstate.checkpoints")
    letters = read(output="counter_dead_letters")
    changes = read(operator="counter", readChangeFeed="true")
    scan = plan_read(spark, bucket, operator="counter", storage_options=options)
    found = {row.k: (row.n, row.v) for row in table.collect()}
    assert found == stream.expected() == {row.k: (row.n, row.v) for row in scan.frame.collect()}
    assert (history.count(), letters.count()) == (2, 0)
    assert changes.where("_change_type = 'insert'").count() == len(found)
    assert sum(row["rows"] for row in progress(bucket, storage_options=options).to_pylist()) == 100
    assert query.lastProgress.observedMetrics["arrowstate"].rows == 50
    # Spark, our own texts and logs, its checkpoint and the store do not have the secret.
    plans = [frame._jdf.queryExecution().toString() for frame in (table, history, letters, changes, scan.frame)]
    sink = query._jsq.explainInternal(True)
    said = [*plans, sink, query.lastProgress.json, repr(operator.operators), caplog.text, str(refused.value)]
    assert "counter" in said[0] or "arrowstate" in said[0]
    assert [text for text in said if "hush" in text] == []
    files = [path for path in stream.folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"hush" in path.read_bytes()] == []
    storage = arrowstate.open_store(bucket, storage_options=options).storage
    assert [name for name in storage.list("") if b"hush" in bytes(storage.read(name))] == []
    for wrong in ('{"secret": "hush', '["hush"]'):
        with pytest.raises(Exception, match="'storageOptions' must be a JSON object") as error:
            spark.read.format("arrowstate").option("storageOptions", wrong).option("operator", "counter").load(bucket)
        assert "hush" not in str(error.value)


@pytest.mark.turns(3)
def test_tables_and_states_of_queries_are_taken_into_a_bucket_by_storage_options(
    stream: Any, make_rows: Any, options: dict[str, Any]
) -> None:
    from arrowstate.spark import bootstrap, import_state

    bucket, spark = f"s3://bucket/{uuid.uuid4().hex}/store", stream.spark
    history = make_rows(7)
    table = spark.createDataFrame(history.select(["k", "n", "v"]))
    state = arrowstate.ReducingStateDescriptor(
        "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
    )

    made = bootstrap(
        table, store=bucket, uid="counter", key=["k"], states=[state], parallelism=2, storage_options=options
    )
    # A query goes on from it.
    stream.add(make_rows(0))
    stream.run(store=bucket, storage_options=options)
    stream.rows.append(history)
    found = arrowstate.open_store(bucket, storage_options=options).latest().to_arrow("counter.totals").to_pylist()

    assert made.checkpoint_id == 1
    assert {row["k"]: (row["n"], row["v"]) for row in found} == stream.expected()

    counts = stream.frame().groupBy("k").count()
    old = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", f"{stream.folder}/old")
    old.trigger(availableNow=True).start().awaitTermination()
    report = import_state(
        spark, f"{stream.folder}/old", store=f"{bucket}-2", uid="old", parallelism=2, storage_options=options
    )
    taken = arrowstate.open_store(f"{bucket}-2", storage_options=options).latest().to_arrow("old.buffers")
    assert report.checkpoint_id == 1
    assert sum(row["count"] for row in taken.to_pylist()) == 1000
