"""What a user sees of each micro-batch: in the progress of the query, from a listener, and from the store."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StreamingQueryListener

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.spark import keyed_sink, progress, stateful


class Doubled(arrowstate.BatchFunction):
    """Emits each row twice, and counts the keys."""

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.Table:
        self.count.add_batch(batch["k"], batch["k"])
        rows = batch.select(["k"])
        return pa.Table.from_batches([rows, rows])


def test_the_progress_of_a_sink_has_what_each_micro_batch_took(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0), make_rows(1, count=200))

    query = stream.run()

    keys = [len(set(stream.rows[0]["k"].to_pylist())), len(stream.expected())]
    first, second = (item.observedMetrics["arrowstate"] for item in query.recentProgress)
    assert (first.rows, second.rows) == (1000, 200)
    assert [first.state_rows, second.state_rows] == keys
    assert 0 < first.bytes_written == first.state_bytes
    assert 0 < second.bytes_written < second.state_bytes
    assert 0 <= second.checkpoint_ms <= second.duration_ms
    assert (second.output_rows, second.cache_hits, second.cache_misses) == (0, 0, 0)
    assert query.lastProgress.observedMetrics["arrowstate"] == second
    assert json.loads(query.lastProgress.json)["observedMetrics"]["arrowstate"] == second.asDict()


def test_a_subtask_without_rows_counts_with_the_state_that_it_has(stream: Any) -> None:
    stream.add(
        pa.table({"k": list(range(100)), "v": [1] * 100, "n": [1] * 100}), pa.table({"k": [7], "v": [1], "n": [1]})
    )

    query = stream.run(parallelism=2)

    first, second = (item.observedMetrics["arrowstate"] for item in query.recentProgress)
    assert (second.rows, second.state_rows) == (1, 100)
    assert first.state_bytes < second.state_bytes < 2 * first.state_bytes


def test_operators_and_listeners_see_the_figures_too(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0), make_rows(1))
    heard = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None:
            heard.append(progress(stream.store, last=1).to_pylist())

        def onQueryProgress(self, event: Any) -> None: ...

    listener = Listener()
    operator = stateful(
        stream.frame(),
        key=["k"],
        operator=Doubled(),
        uid="doubled",
        store=stream.store,
        parallelism=2,
        output_schema="k long",
    )
    writer = operator.write_stream().option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    stream.spark.streams.addListener(listener)
    try:
        query = writer.start()
        query.awaitTermination()
        seen = [item.observedMetrics["arrowstate"] for item in query.recentProgress]
        stream.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        stream.spark.streams.removeListener(listener)

    table = progress(stream.store)
    assert [(item.rows, item.output_rows) for item in seen] == [(1000, 2000), (1000, 2000)]
    assert table.select(list(seen[0].asDict())).to_pylist() == [item.asDict() for item in seen]
    assert table["batch_id"].to_pylist() == [0, 1]
    assert set(table["query_id"].to_pylist()) == {query.id}
    assert set(table["run_id"].to_pylist()) == {query.runId}
    assert heard == [table.slice(1).to_pylist()]


def test_the_progress_of_spark_stays_if_the_store_cannot_be_read(stream: Any, make_rows: Any, caplog: Any) -> None:
    stream.add(make_rows(0))
    query = stream.run()
    shutil.rmtree(stream.store)

    (found,) = query.recentProgress

    assert (found.batchId, found.numInputRows, found.observedMetrics) == (0, 1000, {})
    assert "lacks the figures of arrowstate" in caplog.text


def test_micro_batches_are_counted_from_one_and_a_table_is_not_written(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0))
    stream.run()
    operator = stateful(
        stream.frame(), key=["k"], operator=Doubled(), uid="doubled", store=stream.folder / "more", parallelism=1
    )

    with pytest.raises(InvalidInputError, match="last must be at least 1, got 0"):
        progress(stream.store, last=0)
    with pytest.raises(InvalidInputError, match="start it with start\\(\\)"):
        operator.write_stream().toTable("counts")


def test_a_query_writes_to_its_store_and_nowhere_else(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0))
    state = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count")
    writer = keyed_sink(
        stream.frame(), key=["k"], states=[state], columns={"count": "k"}, uid="rows", store=stream.store, parallelism=1
    )
    writer = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)

    for refused, message in (
        (lambda: writer.start(format="memory", queryName="elsewhere"), "not to 'memory'; leave the format out"),
        (lambda: writer.start("/elsewhere", "parquet"), "not to 'parquet'; leave the format out"),
        (lambda: writer.format("parquet"), "not to 'parquet'; leave the format out"),
        (lambda: writer.foreachBatch(print), r"no function of foreachBatch; .* by stateful\(\.\.\.\)\.foreach_batch"),
        (lambda: writer.foreach(print), r"no function of foreach; .* by stateful\(\.\.\.\)\.foreach_batch"),
        (lambda: writer.start(None, None, "complete"), "use outputMode append or update, not complete"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            refused()
    query = writer.start(outputMode="update", queryName="by name")
    query.awaitTermination()

    assert query.name == "by name"
    counts = arrowstate.open_store(stream.store).latest().to_arrow("rows.count")
    assert sum(counts["count"].to_pylist()) == 1000
