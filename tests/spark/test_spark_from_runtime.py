"""A stream whose first half a job of the runtime processed, and the second half Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.runtime import Job, OutputTable, TableSource
from arrowstate.spark import stateful


class Totals(arrowstate.BatchFunction):
    """Emits the new sum of each key of the batch."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        self.total.add_batch(batch["k"], batch["v"].fill_null(0))
        keys = batch["k"].unique()
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys)})


OUTPUT = pa.schema([("k", pa.int64()), ("total", pa.int64())])


@pytest.mark.turns(2)
def test_a_job_goes_on_on_spark_where_it_was_stopped(
    stream: Any, make_rows: Callable[..., pa.Table], tmp_path: Any
) -> None:
    first, second = make_rows(0), make_rows(1)
    job = Job(tmp_path / "embedded", parallelism=2)
    rows = job.source(TableSource(first), uid="rows")
    rows.stateful(Totals(), key=["k"], uid="totals", output_schema=OUTPUT).sink(OutputTable("given"))
    job.run(mode="threads")
    own = arrowstate.open_store(stream.store, create=True)
    own.import_savepoint(arrowstate.open_store(tmp_path / "embedded").latest(), operators=["totals"])
    stream.add(second)

    operator = stateful(
        stream.frame(),
        key=["k"],
        operator=Totals(),
        uid="totals",
        store=stream.store,
        parallelism=3,
        output_schema="k long, total long",
    )
    writer = operator.foreach_batch(lambda frame, batch_id: frame.count())
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()

    state = own.latest().sql("select k, total from totals.total").fetchall()
    expected = pa.concat_tables([first, second]).group_by("k").aggregate([("v", "sum")])
    assert dict(state) == {row["k"]: row["v_sum"] or 0 for row in expected.to_pylist()}
