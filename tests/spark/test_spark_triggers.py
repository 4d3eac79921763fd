"""Queries under every trigger, and queries that want the same operator: the state is what one of them made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import arrowstate


class Fold(arrowstate.BatchFunction):
    """Does what the sink of the fixture does."""

    def open(self, context: arrowstate.BatchContext) -> None:
        fields = pa.struct([("n", pa.int64()), ("v", pa.int64())])
        reduce = {"n": "count", "v": "sum"}
        self.totals = context.state(arrowstate.ReducingStateDescriptor("totals", fields, reduce=reduce))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        self.totals.add_batch(batch["k"], pa.StructArray.from_arrays([batch["n"], batch["v"]], ["n", "v"]))


@pytest.fixture(params=["keyed_sink", "stateful"])
def start(request: pytest.FixtureRequest, stream: Any) -> Callable[..., Any]:
    """Return a function that starts a query over the stream."""

    def start_sink(trigger: dict[str, Any], checkpoint: Any = None) -> Any:
        return stream.start(trigger=trigger, checkpoint=checkpoint)

    def start_stateful(trigger: dict[str, Any], checkpoint: Any = None) -> Any:
        from arrowstate.spark import stateful

        query = stateful(
            stream.frame(), key=["k"], operator=Fold(), uid="counter", store=stream.store, parallelism=2
        ).write_stream()
        return query.option("checkpointLocation", str(checkpoint or stream.checkpoint)).trigger(**trigger).start()

    return start_sink if request.param == "keyed_sink" else start_stateful


ALWAYS = {"processingTime": "10 milliseconds"}


def batch_ids(stream: Any) -> list[int]:
    checkpoints = arrowstate.open_store(stream.store).checkpoints()
    return [snapshot.entry.properties["spark"]["batch_id"] for snapshot in checkpoints]


def test_a_query_may_go_on_under_another_trigger(start: Any, stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0), make_rows(1))
    query = start(ALWAYS)
    query.processAllAvailable()
    stream.add(make_rows(2))
    query.processAllAvailable()
    stream.wait_for(2)
    query.stop()
    after_processing_time = batch_ids(stream)
    stream.add(make_rows(3), make_rows(4))
    start({"once": True}).awaitTermination()
    after_once = batch_ids(stream)
    stream.add(make_rows(5), make_rows(6))

    start({"availableNow": True}).awaitTermination()

    assert after_processing_time == [0, 1, 2]
    # All that is there is one micro-batch, whatever the source's limit is.
    assert after_once == [0, 1, 2, 3]
    assert batch_ids(stream) == [0, 1, 2, 3, 4, 5]
    assert stream.stored() == stream.expected()


def test_a_trigger_without_new_rows_leaves_the_store_as_it_is(start: Any, stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0))
    start({"availableNow": True}).awaitTermination()
    before = {path for path in stream.store.rglob("*") if path.is_file()}

    for trigger in ({"availableNow": True}, {"once": True}):
        start(trigger).awaitTermination()

    assert {path for path in stream.store.rglob("*") if path.is_file()} == before


def test_of_two_queries_with_one_operator_the_second_is_refused_and_the_first_goes_on(
    start: Any, stream: Any, make_rows: Any
) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0))
    first = start(ALWAYS)
    first.processAllAvailable()

    second = start({"availableNow": True}, stream.folder / "another")
    with pytest.raises(StreamingQueryException, match=f"QueryConflictError: .*'counter' belongs to query {first.id}"):
        second.awaitTermination()
    stream.add(make_rows(1))
    first.processAllAvailable()
    first.stop()

    assert batch_ids(stream) == [0, 1]
    assert stream.stored() == stream.expected()


def test_a_writer_that_takes_the_store_stops_the_query_and_keeps_its_state(
    start: Any, stream: Any, make_rows: Any
) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0))
    query = start(ALWAYS)
    query.processAllAvailable()
    before = stream.stored()

    with arrowstate.open_store(stream.store).writer():
        stream.add(make_rows(1))
        with pytest.raises(StreamingQueryException, match=r"FencedError: .*\(epoch 1\) was fenced by .*\(epoch 2\)"):
            query.awaitTermination()
    after = stream.stored()
    start({"availableNow": True}).awaitTermination()

    assert after == before
    assert stream.stored() == stream.expected()
