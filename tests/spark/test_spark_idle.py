"""Timers fire while no row comes, over restarts; and the query runs no micro-batch where none is due."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import arrowstate
from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError

REMINDER = arrowstate.ListStateDescriptor("fired", pa.string())
HOUR_MS = 3_600_000


class Reminders(arrowstate.KeyedProcessFunction):
    """Sets a timer at the time of each row, and one of processing time."""

    def open(self, context: Any) -> None:
        self.fired = context.state(REMINDER)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timers.register_event_time_timer(context.timestamp)
        context.timers.register_processing_time_timer(value.due)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        self.fired.add("watermark" if timestamp < 1_000_000 else "clock")


class Idle:
    """A query of `Reminders` that fires while it is idle."""

    def __init__(self, stream: Any, in_ms: int) -> None:
        from arrowstate.spark import stateful

        stream.schema = "k long, at timestamp, due long"
        self.stream = stream
        self.due = self.add(1, in_ms=in_ms)
        rows = stream.frame().withWatermark("at", "0 seconds")
        operator = stateful(
            rows, key=["k"], operator=Reminders(), uid="idle", store=stream.store, parallelism=2, timestamp="at"
        )
        self.writer = operator.write_stream(fire_when_idle=True).option("checkpointLocation", str(stream.checkpoint))

    def add(self, key: int, in_ms: int) -> int:
        """Add a row whose timer is due so many milliseconds from now; return when that is."""
        due = now_ms() + in_ms
        at = pa.array([key * 10_000_000], pa.timestamp("us", "UTC"))
        self.stream.add(pa.table({"k": [key], "at": at, "due": [due]}))
        return due

    def run(self) -> None:
        """Run until nothing is due."""
        self.writer.trigger(availableNow=True).start().awaitTermination()

    @property
    def store(self) -> arrowstate.StateStore:
        return arrowstate.open_store(self.stream.store)

    def fired(self) -> list[tuple[int, str]]:
        return self.store.sql("select k, fired from idle.fired order by all").fetchall()


@pytest.mark.turns(3)
def test_timers_fire_without_rows_over_restarts(stream: Any) -> None:
    idle = Idle(stream, in_ms=HOUR_MS)
    idle.run()
    # The watermark of the first row comes after its micro-batch, in one that has no rows.
    assert (idle.fired(), _batches(idle)) == ([(1, "watermark")], [1, 0])

    idle.run()
    assert _batches(idle) == [1, 0]

    due = idle.add(2, in_ms=1_000)
    idle.run()
    while now_ms() <= due:
        idle.run()
    idle.run()
    assert idle.fired() == [(1, "watermark"), (2, "clock"), (2, "watermark")]

    batches = _batches(idle)
    idle.run()
    assert _batches(idle) == batches


@pytest.mark.long
def test_a_query_that_waits_runs_a_micro_batch_when_a_timer_is_due_and_no_other(stream: Any) -> None:
    idle = Idle(stream, in_ms=100)
    query = idle.writer.trigger(processingTime="0 seconds").start()
    try:
        end = time.monotonic() + 120
        while len(_batches(idle)) < 2 and time.monotonic() < end:
            query.processAllAvailable()
        for _ in range(5):
            query.processAllAvailable()

        assert query.isActive
        assert idle.fired() == [(1, "clock"), (1, "watermark")]
        # Both are due when the micro-batch with the row is done, so that they fire in one.
        assert _batches(idle) == [1, 0]
    finally:
        query.stop()


def _batches(idle: Idle) -> list[int]:
    from arrowstate.spark import progress

    return progress(idle.stream.store)["rows"].to_pylist()


def test_the_stream_stays_where_it_is_until_something_is_due(tmp_path: Path) -> None:
    from arrowstate.spark.read.idle import IdleStreamReader

    reader = IdleStreamReader({"path": str(tmp_path / "store")}, lambda: 500)
    limit = ReadAllAvailable()
    arrowstate.open_store(tmp_path / "store", create=True)

    reader.prepareForTriggerAvailableNow()

    assert reader.initialOffset() == reader.latestOffset({"checkpoint": 0}, limit) == {"checkpoint": 0}
    for next_timer, rows, start, expected in [(501, 0, 0, 0), (500, 0, 0, 2), (None, 0, 2, 2), (None, 7, 2, 4)]:
        _commit(tmp_path / "store", next_timer, rows)
        assert reader.latestOffset({"checkpoint": start}, limit) == {"checkpoint": expected}


def _commit(store: Path, next_timer: int | None, rows: int) -> None:
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    backend.state(REMINDER)
    record = {"query_id": "q", "run_id": "r", "batch_id": 0, "next_timer": next_timer, "metrics": {"rows": rows}}
    with arrowstate.open_store(store).writer() as writer:
        writer.checkpoint({"idle": [backend]}, properties={"spark": record})


def test_it_has_no_rows_to_read(spark: Any, tmp_path: Path) -> None:
    from arrowstate.spark import register

    register(spark)
    arrowstate.open_store(tmp_path, create=True)
    with pytest.raises(Exception, match="is for spark.readStream, and has no rows") as caught:
        spark.read.format("arrowstate").option("idleTimers", "true").load(str(tmp_path)).collect()
    assert InvalidInputError.__name__ in str(caught.value)
