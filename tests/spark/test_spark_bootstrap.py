"""State made of tables: `bootstrap`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import (
    FencedError,
    InvalidInputError,
    KeyTypeError,
    NullKeyError,
    ValueTypeError,
)
from arrowstate.spark import bootstrap, register
from arrowstate.spark.schemas import spark_schema

LONGS = spark_schema(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
PLACE = arrowstate.ValueStateDescriptor("place", pa.struct([("city", pa.string()), ("zip", pa.int32())]))


def files(store: Path) -> set[str]:
    """The data files and manifests of a store."""
    return {
        str(path.relative_to(store))
        for folder in ("data", "manifests")
        for path in (store / folder).rglob("*")
        if path.is_file()
    }


def rows_of(snapshot: Any, state: str) -> dict[Any, Any]:
    """The rows of a state by their first column."""
    return {
        next(iter(row.values())): dict(itertools.islice(row.items(), 1, None))
        for row in snapshot.to_arrow(state).to_pylist()
    }


def test_a_table_becomes_the_state_that_a_job_restores_at_another_parallelism(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(1000).selectExpr("id as k", "id * 2 as total", "concat('c', id) as city", "int(id) as zip")

    made = bootstrap(
        frame, store=tmp_path / "store", uid="op", key=["k"], states=[TOTAL, PLACE], parallelism=2, max_parallelism=64
    )

    backends = [made.restore("op", parallelism=3, subtask=number) for number in range(3)]
    keys = arrowstate.key_groups(pa.array(range(1000)), 64)
    seen = 0
    for backend in backends:
        groups = backend.key_groups
        mine = pa.array([k for k in range(1000) if groups.start <= keys[k].as_py() <= groups.end])
        assert backend.state(TOTAL).get_batch(mine).to_pylist() == [2 * k for k in mine.to_pylist()]
        assert backend.state(PLACE).get_batch(mine).to_pylist() == [
            {"city": f"c{k}", "zip": k} for k in mine.to_pylist()
        ]
        seen += len(mine)
    assert seen == 1000
    assert made.checkpoint_id == 1
    assert arrowstate.open_store(tmp_path / "store").verify(deep=True).problems == []


def contents(snapshot: Any, state: str) -> list[dict[str, Any]]:
    """The rows of a state in an order that does not depend on where they are."""
    return sorted(snapshot.to_arrow(f"op.{state}").to_pylist(), key=repr)


def test_every_kind_of_state_is_made_of_rows(spark: Any, tmp_path: Path) -> None:
    rows = [
        ("a", 1, 10, "x", 1.0, 100, [1, 2], {"m": 1, "n": None}),
        ("a", 2, 20, "y", 3.0, 200, [3], {"o": 5}),
        ("b", 1, None, "x", None, 300, None, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "k string, at long, v long, entries_key string, mean double, timestamp long, visits array<long>, "
        "carts map<string, long>",
    ).withColumn("entries", spark_column("at"))
    states = [
        arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum"),
        arrowstate.AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean"),
        arrowstate.ListStateDescriptor("at", pa.int64()),
        arrowstate.ListStateDescriptor("visits", pa.int64()),
        arrowstate.MapStateDescriptor("carts", pa.string(), pa.int64()),
        arrowstate.MapStateDescriptor("entries", pa.string(), pa.int64()),
    ]

    made = bootstrap(
        frame, store=tmp_path / "store", uid="op", key=["k"], states=states, parallelism=2, order_by=["at"]
    )

    backend = made.restore("op")
    both = pa.array(["a", "b"])
    assert backend.state(states[0]).get_batch(both).to_pylist() == [30, None]
    assert backend.state(states[1]).get_batch(both).to_pylist() == [2.0, None]
    assert backend.state(states[2]).get_batch(both).to_pylist() == [[1, 2], [1]]
    assert backend.state(states[3]).get_batch(both).to_pylist() == [[1, 2, 3], []]
    assert dict(backend.state(states[4]).entries_batch(both).to_pylist()[0]) == {"m": 1, "n": None, "o": 5}
    assert dict(backend.state(states[5]).entries_batch(both).to_pylist()[0]) == {"x": 1, "y": 2}
    assert dict(backend.state(states[5]).entries_batch(both).to_pylist()[1]) == {"x": 1}
    # The same table without Spark.
    local = arrowstate.open_store(tmp_path / "local", create=True).bootstrap(
        "op", ["k"], states, frame.toArrow(), parallelism=2, order_by=["at"]
    )
    for state in states:
        assert contents(local, state.name) == contents(made, state.name)
    assert local.entry.operators[0].states == made.entry.operators[0].states


def spark_column(name: str) -> Any:
    from pyspark.sql import functions as sf

    return sf.col(name)


def test_accumulators_are_stored_as_they_are_and_added_to_later(spark: Any, tmp_path: Path) -> None:
    count = arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count")
    mean = arrowstate.AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean")
    frame = spark.createDataFrame([("a", 7, 2, 9.0), ("b", 1, 1, 4.0)], "k string, n long, count long, sum double")

    made = bootstrap(
        frame,
        store=tmp_path / "store",
        uid="op",
        key=["k"],
        states=[count, mean],
        parallelism=1,
        accumulators=True,
    )

    backend = made.restore("op")
    backend.state(count).add_batch(pa.array(["a"]), pa.array([None, 5])[1:])
    assert backend.state(count).get_batch(pa.array(["a", "b"])).to_pylist() == [8, 1]
    assert backend.state(mean).get_batch(pa.array(["a", "b"])).to_pylist() == [4.5, 4.0]


def test_rows_expire_by_the_time_they_were_updated(spark: Any, tmp_path: Path) -> None:
    ttl = arrowstate.TimeToLive(60_000)
    state = arrowstate.ValueStateDescriptor("v", pa.int64(), ttl=ttl)
    frame = spark.sql("select * from values (1, 10L, timestamp_millis(1000)), (2, 20L, null) as t(k, v, at)")

    made = bootstrap(
        frame, store=tmp_path / "store", uid="op", key=["k"], states=[state], parallelism=1, updated_at="at"
    )

    backend = made.restore("op")
    assert backend.state(state).get_batch(pa.array([1, 2], pa.int32())).to_pylist() == [None, 20]
    document = made.entry.operators[0].states[0]
    assert document.time_to_live.clock == "processing_time"


def test_a_query_starts_from_a_bootstrapped_store(spark: Any, stream: Any, make_rows: Any) -> None:
    from tests.spark.conftest import TOTALS

    history, new = make_rows(0), make_rows(1)
    counted = stream.spark.createDataFrame(history.to_pylist(), "k long, n long, v long")
    bootstrap(counted, store=stream.store, uid="counter", key=["k"], states=[TOTALS], parallelism=2)
    stream.add(new)

    stream.run(parallelism=3)

    stream.rows.append(history)
    assert stream.stored() == stream.expected()
    record = arrowstate.open_store(stream.store).latest().entry.properties["spark"]
    assert record["batch_id"] == 0


def test_a_stateful_operator_starts_from_a_bootstrapped_store(spark: Any, stream: Any) -> None:
    from arrowstate.spark import stateful

    class Totals(arrowstate.BatchFunction):
        def open(self, context: Any) -> None:
            self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

        def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
            self.total.add_batch(batch["k"], batch["v"])
            return pa.record_batch({"k": batch["k"], "total": self.total.get_batch(batch["k"])})

    history = spark.range(100).selectExpr("id as k", "id * 10 as total")
    bootstrap(history, store=stream.store, uid="totals", key=["k"], states=[TOTAL], parallelism=2)
    stream.add(pa.table({"k": [7, 200], "v": [1, 2], "n": [0, 0]}))
    seen: list[tuple[int, int]] = []

    operator = stateful(
        stream.frame(),
        key=["k"],
        operator=Totals(),
        uid="totals",
        store=stream.store,
        parallelism=2,
        output_schema="k long, total long",
    )
    writer = operator.foreach_batch(lambda frame, _: seen.extend(map(tuple, frame.collect())))
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()

    assert sorted(seen) == [(7, 71), (200, 2)]
    assert len(rows_of(arrowstate.open_store(stream.store).latest(), "totals.total")) == 101


def test_a_run_that_is_still_alive_is_fenced_and_a_new_one_goes_on(sink: Any, make_rows: Any) -> None:
    from arrowstate.bootstrap.commit import FilledOperator, commit_fill
    from arrowstate.clock import new_id, now_ms
    from arrowstate.spark.columns import FrameColumns
    from arrowstate.spark.load.filling import fill_subtask
    from arrowstate.spark.load.planning import plan_fill

    sink.run(0, make_rows(0))
    plan = plan_fill(
        FrameColumns(spark_schema(pa.schema([("k", pa.int64()), ("extra", pa.int64())]))),
        store=sink.store,
        uid="counter",
        key=["k"],
        states=[arrowstate.ValueStateDescriptor("extra", pa.int64())],
        parallelism=1,
        max_parallelism=None,
        overwrite=False,
    )
    filled = fill_subtask(plan, 0, [pa.record_batch({"k": [1], "extra": [5]})], new_id)
    storage = plan.open()
    commit_fill(
        storage, [FilledOperator(plan, [filled])], properties={}, started_at_ms=0, new_id=new_id, clock_ms=now_ms
    )

    with pytest.raises(FencedError):
        sink.run(1, make_rows(1))
    assert sink.but(run_id="run-2").run(0, make_rows(0)) is None
    sink.but(run_id="run-2").run(1, make_rows(1))

    assert sink.stored() == sink.expected(make_rows(0), make_rows(1))
    assert rows_of(arrowstate.open_store(sink.store).latest(), "counter.extra") == {1: {"extra": 5}}


def test_other_operators_and_states_stay(spark: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    frame = spark.range(10).selectExpr("id as k", "id as total", "'x' as city", "1 as zip")
    bootstrap(frame, store=store, uid="first", key=["k"], states=[TOTAL], parallelism=2, properties={"offset": 42})
    bootstrap(frame, store=store, uid="second", key=["k"], states=[TOTAL], parallelism=1)
    bootstrap(frame, store=store, uid="first", key=["k"], states=[PLACE], parallelism=3)

    with pytest.raises(InvalidInputError, match="operator 'first' in .* has the state 'total' already"):
        bootstrap(frame, store=store, uid="first", key=["k"], states=[TOTAL], parallelism=2)
    replaced = bootstrap(
        frame.limit(3), store=store, uid="first", key=["k"], states=[TOTAL], parallelism=2, overwrite=True
    )

    assert sorted(rows_of(replaced, "first.total")) == sorted(row.k for row in frame.limit(3).collect())
    assert len(rows_of(replaced, "first.place")) == len(rows_of(replaced, "second.total")) == 10
    assert replaced.properties == {"offset": 42}
    assert arrowstate.open_store(store).verify(deep=True).problems == []


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_second_row_of_a_key_is_refused_and_nothing_is_left(spark: Any, tmp_path: Path, partitions: int) -> None:
    state = arrowstate.ValueStateDescriptor("v", pa.int64())
    twice = spark.range(5000).union(spark.range(77, 78)).selectExpr("id as k", "id as v").repartition(partitions)
    arguments: dict[str, Any] = {"store": tmp_path / "store", "uid": "op", "key": ["k"], "states": [state]}

    with pytest.raises(InvalidInputError, match="state 'v' takes one row for each key, and 1 of .*: k=77; make one"):
        bootstrap(twice, parallelism=2, **arguments)

    assert files(tmp_path / "store") == set()
    assert arrowstate.open_store(tmp_path / "store").checkpoints() == []


def test_a_key_is_found_twice_in_pieces_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from arrowstate.bootstrap import subtask
    from arrowstate.clock import new_id
    from arrowstate.spark.columns import FrameColumns
    from arrowstate.spark.load import filling
    from arrowstate.spark.load.planning import plan_fill

    monkeypatch.setattr(subtask, "_PIECE_ROWS", 1)
    state = arrowstate.ValueStateDescriptor("v", pa.int64())
    plan = plan_fill(
        FrameColumns(LONGS),
        store=tmp_path / "store",
        uid="op",
        key=["k"],
        states=[state],
        parallelism=1,
        max_parallelism=None,
        overwrite=False,
    )
    rows = [pa.record_batch({"k": [k], "v": [0]}) for k in (5, 6, 7, 6)]

    with pytest.raises(InvalidInputError, match="1 of 1 rows have a key that came before: k=6;"):
        filling.fill_subtask(plan, 0, rows, new_id)


def test_attempts_of_a_task_leave_files_that_nothing_refers_to(tmp_path: Path) -> None:
    from arrowstate.bootstrap.commit import FilledOperator, commit_fill
    from arrowstate.clock import new_id, now_ms
    from arrowstate.spark.columns import FrameColumns
    from arrowstate.spark.load.filling import fill_subtask
    from arrowstate.spark.load.planning import plan_fill

    plan = plan_fill(
        FrameColumns(LONGS),
        store=tmp_path / "store",
        uid="op",
        key=["k"],
        states=[arrowstate.ListStateDescriptor("v", pa.int64())],
        parallelism=1,
        max_parallelism=None,
        overwrite=False,
    )
    rows = [pa.record_batch({"k": range(5000), "v": range(5000)})]
    attempts = [fill_subtask(plan, 0, rows, new_id) for _ in range(3)]

    commit_fill(
        plan.open(),
        [FilledOperator(plan, attempts[1:2])],
        properties={},
        started_at_ms=0,
        new_id=new_id,
        clock_ms=now_ms,
    )

    store = arrowstate.open_store(tmp_path / "store")
    assert store.latest().to_arrow("op.v").num_rows == 5000
    assert files(tmp_path / "store") == {path for attempt in attempts for path in attempt.paths}


def test_what_does_not_fit_is_refused_with_its_cause(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 1, "x"), (None, 2, "y")], "k long, total long, name string")
    arguments: dict[str, Any] = {"store": tmp_path / "store", "uid": "op", "key": ["k"], "parallelism": 2}

    with pytest.raises(NullKeyError, match="key column 'k' is null"):
        bootstrap(frame, states=[TOTAL], **arguments)
    with pytest.raises(ValueTypeError, match="name"):
        bootstrap(frame, states=[arrowstate.ValueStateDescriptor("name", pa.int64())], **arguments)
    with pytest.raises(InvalidInputError, match="the table has no column 'city'; it has k, total, name"):
        bootstrap(frame, states=[PLACE], **arguments)
    with pytest.raises(InvalidInputError, match="a savepoint|name"):
        bootstrap(frame, states=[TOTAL], savepoint="not a name!", **arguments)
    with pytest.raises(InvalidInputError, match="bootstrap needs a static DataFrame"):
        bootstrap(spark.readStream.format("rate").load(), states=[TOTAL], **arguments)
    with pytest.raises(InvalidInputError, match="inside of data/"):
        bootstrap(frame.dropna(), states=[TOTAL], savepoint=tmp_path / "store" / "data" / "start", **arguments)
    assert arrowstate.open_store(tmp_path / "store").checkpoints() == []
    bootstrap(frame.dropna(), states=[TOTAL], **arguments)
    with pytest.raises(KeyTypeError, match="int64"):
        bootstrap(frame.selectExpr("name as k", "total as other"), states=[other_total()], **arguments)


def other_total() -> Any:
    return arrowstate.ReducingStateDescriptor("other", pa.int64(), reduce="sum")


def test_a_commit_of_another_writer_meanwhile_wins(spark: Any, tmp_path: Path) -> None:
    from arrowstate.spark.columns import FrameColumns
    from arrowstate.spark.load.bootstrap import run_fills
    from arrowstate.spark.load.planning import plan_fill

    store = tmp_path / "store"
    frame = spark.range(20_000).selectExpr("id as k", "id as total")
    plan = plan_fill(
        FrameColumns.of(frame),
        store=store,
        uid="op",
        key=["k"],
        states=[TOTAL],
        parallelism=2,
        max_parallelism=None,
        overwrite=False,
    )

    def other_writer(_: Any) -> dict[str, Any]:
        assert files(store)
        with arrowstate.open_store(store).writer() as writer:
            backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
            writer.checkpoint({"other": [backend]})
        return {}

    with pytest.raises(FencedError):
        run_fills([(frame, plan, ())], other_writer)

    assert [operator.uid for operator in arrowstate.open_store(store).latest().entry.operators] == ["other"]
    assert files(store) == set()


def test_a_task_that_is_tried_again_counts_once(spark: Any, tmp_path: Path) -> None:
    from pyspark import TaskContext

    from arrowstate.spark.workers import own_python

    def failing_once(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("lost")

    with own_python(spark):
        frame = (
            spark.range(5000).selectExpr("id % 50 as k", "id as total").mapInArrow(failing_once, "k long, total long")
        )

    made = bootstrap(frame, store=tmp_path / "store", uid="op", key=["k"], states=[TOTAL], parallelism=2)

    assert rows_of(made, "op.total") == {k: {"total": sum(range(k, 5000, 50))} for k in range(50)}


def test_a_savepoint_is_made_too(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(100).selectExpr("id as k", "id as total")

    made = bootstrap(
        frame, store=tmp_path / "store", uid="op", key=["k"], states=[TOTAL], parallelism=2, savepoint="start"
    )

    (tmp_path / "store" / "savepoints" / "start").rename(tmp_path / "moved")
    moved = arrowstate.open_store(tmp_path / "moved").latest()
    assert made.checkpoint_id == moved.checkpoint_id
    assert len(moved.restore("op").state(TOTAL)) == 100
    assert {path.suffix for path in (tmp_path / "moved" / "data").rglob("*") if path.is_file()} <= {".parquet"}


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_table_that_is_written_is_refused_and_bootstrap_named(spark: Any, tmp_path: Path, mode: str) -> None:
    register(spark)
    options = {"operator": "op", "state": "v", "key": "id"}

    with pytest.raises(Exception, match="a table becomes state by arrowstate.spark.bootstrap"):
        spark.range(3).write.format("arrowstate").options(**options).mode(mode).save(str(tmp_path / "store"))

    assert not (tmp_path / "store").exists()


def test_columns_may_have_any_name(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a", 1, 2), ("b", 5, 0), ("a", 3, 1)], "`k.1` string, `a``b` long, `.x,y` long")
    value = arrowstate.ListStateDescriptor("all", pa.struct([("a`b", pa.int64()), (".x,y", pa.int64())]))

    made = bootstrap(
        frame, store=tmp_path / "store", uid="op", key=["k.1"], states=[value], parallelism=2, order_by=[".x,y"]
    )

    rows = made.restore("op").state(value).get_batch(["a", "b"]).to_pylist()
    assert rows == [[{"a`b": 3, ".x,y": 1}, {"a`b": 1, ".x,y": 2}], [{"a`b": 5, ".x,y": 0}]]


def test_columns_are_found_in_any_case(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(50).selectExpr("id as User", "id * 2 as TOTAL")

    made = bootstrap(frame, store=tmp_path / "one", uid="op", key=["user"], states=[TOTAL], parallelism=2)

    assert made.to_arrow("op.total").column_names == ["user", "total"]
    assert rows_of(made, "op.total") == {k: {"total": 2 * k} for k in range(50)}
