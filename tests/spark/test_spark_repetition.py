"""`stateful` when a micro-batch comes twice: event time goes on, and of two runs that commit it one is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.spark.operators import query as queries


class Ends(arrowstate.BatchFunction):
    """Emits the key of a row one second of event time after it."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.ends = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        self.ends.register_batch(batch["k"], pa.array([time + 1000 for time in batch["ms"].to_pylist()]))

    def on_timers(self, timers: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        return timers.select(["k"])


def run(stream: Any, seen: list[tuple[int, list[int]]] | None) -> None:
    """Run the query over what there is; without `seen` no function takes its output."""
    from arrowstate.spark import stateful

    stream.schema = "k long, ms long"
    operator = stateful(
        stream.frame().selectExpr("k", "ms", "timestamp_millis(ms) as at").withWatermark("at", "0 seconds"),
        key=["k"],
        operator=Ends(),
        uid="ends",
        store=stream.store,
        parallelism=2,
        output_schema="k long",
    )
    if seen is None:
        writer = operator.write_stream()
    else:
        writer = operator.foreach_batch(lambda frame, batch: seen.append((batch, frame.toArrow()["k"].to_pylist())))
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()


def rows(key: int, ms: int) -> pa.Table:
    return pa.table({"k": [key], "ms": [ms]})


def forget_end(stream: Any, batch_id: int) -> None:
    """Let Spark not have noted that it finished a micro-batch, as after a crash between the two commits."""
    (stream.checkpoint / "commits" / str(batch_id)).unlink()
    (stream.checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


def test_event_time_advances_by_the_rows_of_a_repeated_micro_batch(stream: Any) -> None:
    seen: list[tuple[int, list[int]]] = []
    stream.add(rows(1, 10_000), rows(2, 20_000))
    run(stream, seen)
    forget_end(stream, 1)
    stream.add(rows(3, 30_000))

    run(stream, seen)

    assert seen == [(0, []), (1, []), (1, []), (2, [1])]
    assert arrowstate.open_store(stream.store).latest().entry.watermark == 20_000


def test_a_micro_batch_that_another_run_commits_first_is_handed_on(stream: Any, monkeypatch: Any) -> None:
    commit = queries.commit_batch

    def beaten(storage: Any, uids: Any, work: Any, **arguments: Any) -> Any:
        if work.batch.batch_id == 0:
            # The run before this one has lost its driver, and is not done yet.
            commit(storage, uids, replace(work, batch=replace(work.batch, run_id="dying")), **arguments)
        return commit(storage, uids, work, **arguments)

    seen: list[tuple[int, list[int]]] = []
    stream.add(rows(1, 10_000), rows(2, 12_000))
    monkeypatch.setattr(queries, "commit_batch", beaten)

    run(stream, seen)

    assert seen == [(0, []), (1, [])]


def test_an_output_that_the_repeated_micro_batch_was_committed_without_begins_with_the_next_one(stream: Any) -> None:
    from pyspark.errors import StreamingQueryException

    seen: list[tuple[int, list[int]]] = []
    stream.add(rows(1, 10_000))
    run(stream, None)
    forget_end(stream, 0)

    with pytest.raises(StreamingQueryException, match="batch 0 was committed without the output of operator 'ends'"):
        run(stream, seen)
    run(stream, None)
    stream.add(rows(2, 20_000))
    run(stream, seen)

    assert seen == [(1, [])]
