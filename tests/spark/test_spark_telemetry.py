"""What is told of the checkpoint of each micro-batch, where it is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import FencedError
from arrowstate.spark import bootstrap, stateful
from arrowstate.telemetry import OperationRecord, listen


class Counted(arrowstate.BatchFunction):
    """Counts the keys."""

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        self.count.add_batch(batch["k"], batch["k"])


@pytest.fixture
def told() -> Any:
    records: list[OperationRecord] = []
    stop = listen(records.append)
    yield records
    stop()


def test_each_commit_of_a_sink_is_told_with_its_subtasks(sink: Any, make_rows: Any, told: Any) -> None:
    first = sink.run(0, make_rows(0))
    second = sink.run(1, make_rows(1, count=1, keys=1))

    assert [record.checkpoint_id for record in told] == [first.checkpoint_id, second.checkpoint_id]
    for record in told:
        assert (record.kind, record.outcome, record.store) == ("checkpoint", "completed", str(sink.store))
        assert [(part.operator, part.subtask) for part in record.parts] == [("counter", 0), ("counter", 1)]
        assert record.rows == len(sink.stored())
        assert 0 < record.commit_us <= record.duration_us
    assert told[0].bytes_total == told[0].bytes_written > 0
    # One subtask had no rows.
    assert sorted(part.write_us is None for part in told[1].parts) == [False, True]
    assert told[0].bytes_total < told[1].bytes_total
    assert told[1].bytes_written < told[1].bytes_total


def test_a_micro_batch_that_the_store_holds_is_not_told_again(sink: Any, make_rows: Any, told: Any) -> None:
    results = sink.fold(0, make_rows(0))
    sink.commit(0, results)

    assert sink.commit(0, results) is None
    assert len(told) == 1


def test_a_commit_that_fails_is_told(sink: Any, make_rows: Any, told: Any) -> None:
    sink.run(0, make_rows(0))
    results = sink.fold(1, make_rows(1))
    arrowstate.open_store(sink.store).writer()

    with pytest.raises(FencedError) as raised:
        sink.commit(1, results)

    assert [record.outcome for record in told] == ["completed", "failed"]
    assert told[1].error is raised.value
    assert told[1].checkpoint_id is None


def noted(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def note_in(file: Path) -> Any:
    def note(record: OperationRecord) -> None:
        with file.open("a") as sink:
            print(json.dumps([record.checkpoint_id, record.outcome, record.rows, len(record.parts)]), file=sink)
        raise ValueError("the query does not care")

    return note


def test_a_sink_calls_the_function_in_the_driver(stream: Any, make_rows: Any, tmp_path: Path) -> None:
    stream.add(make_rows(0), make_rows(1))

    stream.run(on_checkpoint=note_in(tmp_path / "told"))

    (_, *first), (newest, *second) = noted(tmp_path / "told")
    assert first == ["completed", len(set(stream.rows[0]["k"].to_pylist())), 2]
    assert second == ["completed", len(stream.expected()), 2]
    assert arrowstate.open_store(stream.store).latest().checkpoint_id == newest


def test_operators_tell_of_each_micro_batch_in_the_driver(stream: Any, make_rows: Any, told: Any) -> None:
    stream.add(make_rows(0), make_rows(1))
    records: list[OperationRecord] = []
    operator = stateful(stream.frame(), key=["k"], operator=Counted(), uid="counted", store=stream.store, parallelism=2)

    writer = operator.write_stream(on_checkpoint=records.append).option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()

    assert [(record.outcome, [part.subtask for part in record.parts]) for record in records] == [
        ("completed", [0, 1]),
        ("completed", [0, 1]),
    ]
    assert records[-1].rows == len(stream.expected())
    # What the query collects beside is told too.
    assert [record for record in told if record.kind == "checkpoint"] == records


def test_a_table_that_becomes_state_is_told_as_an_import(spark: Any, tmp_path: Path, told: Any) -> None:
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    frame = spark.range(1000).selectExpr("id AS k", "id AS total")

    made = bootstrap(frame, store=tmp_path / "store", uid="op", key=["k"], states=[total], parallelism=2)

    (record,) = told
    assert (record.kind, record.outcome, record.checkpoint_id) == ("import", "completed", made.checkpoint_id)
    assert (record.rows, [part.subtask for part in record.parts]) == (1000, [0, 1])
    assert 0 < record.commit_us <= record.duration_us
