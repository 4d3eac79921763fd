"""A slot that has nothing to read holds back nobody's time."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.runtime import GeneratorSource, Job, OutputTable, Watermarks
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


def rows(first, count):
    numbers = pa.array(range(first, first + count), pa.int64())
    users, ones = pa.array(["ann"] * count, pa.string()), pa.array([1] * count, pa.int64())
    return pa.record_batch([users, ones, pc.multiply(numbers, 10)], names=["user", "amount", "at"])


@pytest.mark.parametrize("group", [None, "all"])
def test_windows_fire_while_another_slot_has_no_split(group):
    job = Job("memory://slots-without-splits-" + str(group), parallelism=3)
    source = GeneratorSource(rows, rows(0, 0).schema, rows=None, splits=1, batch_rows=50)
    rule = Watermarks("at", group=group, max_drift_ms=None if group is None else 1_000)
    function = WindowFunction(TumblingEventTimeWindows(100), SUM, timestamp="at", value="amount")
    given = job.source(source, uid="given", watermarks=rule)
    given.stateful(function, key=["user"], uid="windows").sink(OutputTable("fired"))

    with job.start(mode="inline") as running:
        running.go_on(600)
        snapshot = running.checkpoint()

    fired = [row["rows"] for row in snapshot.operator_state("fired", "rows").to_pylist()]
    assert len(fired) > 5
    assert all(row["total"] == 10 for row in fired)
