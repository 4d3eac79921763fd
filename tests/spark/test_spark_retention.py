"""Retention in a query: what it drops goes beside the query, no commit waits for it, and its failures fail nothing."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, StorageError
from arrowstate.spark import collecting, keyed_sink
from arrowstate.spark.collecting import new_collector
from arrowstate.spark.places import StorePlace
from arrowstate.upkeep.beside import Collector

POLICY = arrowstate.RetentionPolicy(count=2)


class Counts(arrowstate.BatchFunction):
    """Counts the rows of each key and emits nothing."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.count = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        self.count.add_batch(batch["k"], batch["k"])


@pytest.fixture
def collector(sink: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """What collects the store of the sink, without rests."""
    place = StorePlace(str(sink.store))
    collector = new_collector(place, POLICY, rest=lambda _: None)
    monkeypatch.setattr(collecting, "_collectors", {(str(sink.store), POLICY): (place, collector)})
    yield collector
    collector.join()


def run(sink: Any, batch_id: int, rows: pa.Table) -> Any:
    """Run a micro-batch of the sink with the retention."""
    entry = sink.but(retention=POLICY).run(batch_id, rows)
    assert entry is not None
    return entry.properties["spark"]["metrics"]


def ids(store: Any) -> list[int | None]:
    return [found.checkpoint_id for found in arrowstate.open_store(store).checkpoints()]


def test_what_a_retention_drops_is_deleted_after_the_commits(sink: Any, make_rows: Any, collector: Collector) -> None:
    tables = [make_rows(seed) for seed in range(6)]
    figures = []

    for number, rows in enumerate(tables):
        figures.append(run(sink, number, rows))
        collector.join()

    assert ids(sink.store) == [5, 6]
    assert sink.stored() == sink.expected(*tables)
    # Each tells what has been done since the one before; the third commit is the first that leaves a checkpoint over.
    assert figures[0]["files_collected"] == 0
    assert all(item["files_collected"] > 0 for item in figures[3:])
    assert {item["collections_failed"] for item in figures} == {0}
    assert arrowstate.open_store(sink.store).verify(deep=True).problems == []


def test_no_commit_waits_for_a_collection_and_one_follows_for_all_that_came_meanwhile(
    sink: Any, make_rows: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Semaphore(0), threading.Semaphore(0)
    threads: list[str] = []

    def slow(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        began.release()
        assert may_end.acquire(timeout=60)
        return arrowstate.open_store(*arguments, **options)

    monkeypatch.setattr(collecting, "open_store", slow)
    run(sink, 0, make_rows(0))
    assert began.acquire(timeout=60)

    for number in range(1, 6):
        run(sink, number, make_rows(number))

    assert ids(sink.store) == [1, 2, 3, 4, 5, 6]
    assert len(threads) == 1
    may_end.release(2)
    collector.join()
    assert threads == ["arrowstate-collection"] * 2
    assert ids(sink.store) == [5, 6]


def test_a_collection_that_fails_is_told_and_fails_no_micro_batch(
    sink: Any,
    make_rows: Any,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise StorageError("gc", "Permission denied", "bucket")

    run(sink, 0, make_rows(0))
    collector.join()
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "open_store", broken)
        run(sink, 1, make_rows(1))
        collector.join()

    after = [run(sink, number, make_rows(number)) for number in (2, 3)]
    collector.join()

    assert [item["collections_failed"] for item in after] == [1, 0]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "a collection failed, the next goes on" in warnings[0]
    assert "Permission denied" in warnings[0]
    assert ids(sink.store) == [3, 4]


def test_two_processes_do_not_collect_a_store_at_once(sink: Any, make_rows: Any) -> None:
    rests: list[float] = []
    place = StorePlace(str(sink.store))
    collector = new_collector(place, POLICY, rest=lambda seconds: (rests.append(seconds), end()))
    for number in range(4):
        sink.run(number, make_rows(number))
    other = collecting._alone(str(sink.store))
    assert other.__enter__()

    def end() -> None:
        if len(rests) == 3:
            other.__exit__(None, None, None)

    collector.wake()
    collector.join()

    # Three looks in vain, and the rest after the collection.
    assert rests[:3] == [1.0] * 3
    assert len(rests) == 4
    assert ids(sink.store) == [3, 4]


def until(condition: Callable[[], bool]) -> bool:
    """Wait for what happens in another process of Spark."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_queries_collect_their_stores_over_restarts(stream: Any, make_rows: Any) -> None:
    from arrowstate.spark import progress, stateful

    def operators(parallelism: int) -> None:
        counts = stateful(
            stream.frame(),
            key=["k"],
            operator=Counts(),
            uid="counts",
            store=stream.folder / "operators",
            parallelism=parallelism,
            retention=POLICY,
        )
        writer = counts.write_stream().option("checkpointLocation", str(stream.folder / "spark-2"))
        writer.trigger(availableNow=True).start().awaitTermination()

    stream.add(*map(make_rows, range(2)))
    stream.run(retention=POLICY, on_error="dead_letter")
    operators(2)
    arrowstate.open_store(stream.store).tag("kept", arrowstate.open_store(stream.store).latest().checkpoint_id)
    stream.add(*map(make_rows, range(2, 4)))
    stream.run(parallelism=3, retention=POLICY, on_error="dead_letter")
    operators(3)

    assert until(lambda: ids(stream.store) == [2, 3, 4])
    assert until(lambda: ids(stream.folder / "operators") == [3, 4])
    assert stream.stored() == stream.expected()
    found = arrowstate.open_store(stream.folder / "operators").sql("select sum(n) from counts.n").fetchall()
    assert found == [(4000,)]
    assert set(progress(stream.store).column("collections_failed").to_pylist()) == {0}
    for store in (stream.store, stream.folder / "operators"):
        assert arrowstate.open_store(store).verify(deep=True).problems == []


def test_an_operator_that_names_a_retention_decides_for_those_at_the_default(stream: Any) -> None:
    from arrowstate.spark import stateful
    from arrowstate.spark.operators.query import retention_of

    (stream.folder / "in").mkdir()
    frame = stream.frame()
    arguments = {"key": ["k"], "operator": Counts(), "store": stream.store, "parallelism": 1}
    default, named, endless = (
        stateful(frame, uid=f"counts-{number}", **options, **arguments).operators[-1].plan
        for number, options in enumerate(({}, {"retention": POLICY}, {"retention": None}))
    )

    found = [retention_of(plans) for plans in ([default, default], [default, named], [endless, default])]

    assert found == [arrowstate.RetentionPolicy(count=10, hours=24), POLICY, None]


def test_a_sink_and_operators_keep_the_newest_ten_and_one_of_each_hour_unless_they_are_told_otherwise() -> None:
    from arrowstate.spark import keyed_sink, stateful

    defaults = [inspect.signature(function).parameters["retention"].default for function in (keyed_sink, stateful)]

    assert defaults == [arrowstate.RetentionPolicy(count=10, hours=24)] * 2


def test_a_retention_that_is_none_is_refused(stream: Any) -> None:
    from arrowstate.spark import stateful, write_stream

    (stream.folder / "in").mkdir()
    with pytest.raises(InvalidInputError, match="retention must be a RetentionPolicy, .* got 3"):
        stream.start(retention=3)
    frame = stream.frame()
    arguments = {"key": ["k"], "operator": Counts(), "store": stream.store, "parallelism": 1}
    two = [
        stateful(frame, uid=f"counts-{count}", retention=arrowstate.RetentionPolicy(count=count), **arguments)
        for count in (1, 2)
    ]
    with pytest.raises(InvalidInputError, match="share one store, which has one retention; got .*count=1.*count=2"):
        write_stream(*two)


def test_a_sink_publishes_each_micro_batch_beside_the_query(sink: Any, make_rows: Any, tmp_path: Any) -> None:
    publishing = sink.but(publish=arrowstate.Publish(to=tmp_path / "tables"))

    for number in range(2):
        publishing.run(number, make_rows(number))
    ((_, _, publisher),) = collecting._publishers.values()
    publisher.join()

    publication = arrowstate.open_store(sink.store).publish(tmp_path / "tables")
    assert publication.tables
    assert {(table.checkpoint_id, table.is_new) for table in publication.tables} == {(2, False)}


def test_a_place_inside_the_store_is_refused_before_the_query_starts(spark: Any, tmp_path: Any) -> None:
    with pytest.raises(InvalidInputError, match="in two folders, neither inside the other"):
        keyed_sink(
            spark.readStream.format("rate").load(),
            store=tmp_path / "store",
            uid="op",
            key=["value"],
            states=[arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count")],
            columns={"n": "value"},
            parallelism=1,
            publish=tmp_path / "store" / "tables",
        )
