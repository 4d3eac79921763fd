"""Queries of Spark go on after an edit, exactly once: sinks and operators, killed before it, or running beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import arrowstate
from arrowstate.errors import EditConflictError, FencedError, QueryConflictError
from arrowstate.spark.commit import check_alone
from arrowstate.spark.micro_batches import BatchRecord

Sums = dict[Any, tuple[int, int | None]]


def edited(store: Path) -> Sums:
    """Edit the newest checkpoint of a sink, and return what it is to hold then."""
    opened = arrowstate.open_store(store)
    rows = {row["k"]: (row["n"], row["v"]) for row in opened.latest().to_arrow("counter.totals").to_pylist()}
    with opened.edit() as edit:
        edit.update("counter.totals", set={"v": "v + 1000"}, where="k % 2 = 0")
        edit.delete_key("counter", [1, 3])
        edit.upsert("counter.totals", pa.table({"k": [5, -7], "n": [100, 1], "v": [50, -1]}))
        edit.commit(comment="what was counted wrongly")
    rows = {k: (n, v + 1000 if k % 2 == 0 else v) for k, (n, v) in rows.items() if k not in (1, 3)}
    return {**rows, 5: (100, 50), -7: (1, -1)}


def added(sums: Mapping[Any, tuple[int, int | None]], more: Mapping[Any, tuple[int, int | None]]) -> Sums:
    """The sums of both."""
    out = dict(sums)
    for key, (count, value) in more.items():
        known = out.get(key, (0, 0))
        out[key] = known[0] + count, (known[1] or 0) + (value or 0)
    return out


@pytest.fixture
def rows(make_rows: Callable[..., pa.Table]) -> list[pa.Table]:
    """The rows of some micro-batches; each key has a value in each."""
    return [pa.table({"k": range(40), "n": [1] * 40, "v": [number * k for k in range(40)]}) for number in range(1, 6)]


class TestOfASink:
    """Tasks and commits as plain calls, so that each order of them can be had."""

    def test_that_was_killed_between_its_tasks_and_its_commit(self, sink: Any, rows: list[pa.Table]) -> None:
        sink.run(0, rows[0])
        sink.fold(1, rows[1])

        expected = edited(sink.store)
        again = sink.but(run_id="run-2")
        again.run(1, rows[1])
        again.run(2, rows[2])

        assert sink.stored() == added(expected, sink.expected(*rows[1:3]))

    def test_that_was_killed_after_its_commit_and_repeats_the_micro_batch(
        self, sink: Any, rows: list[pa.Table]
    ) -> None:
        sink.run(0, rows[0])
        sink.run(1, rows[1])

        expected = edited(sink.store)
        again = sink.but(run_id="run-2")
        assert again.run(1, rows[1]) is None
        assert sink.stored() == expected
        again.run(2, rows[2])

        assert sink.stored() == added(expected, sink.expected(rows[2]))

    def test_whose_tasks_had_begun_loses_the_micro_batch_and_not_the_edit(
        self, sink: Any, rows: list[pa.Table]
    ) -> None:
        sink.run(0, rows[0])
        work = sink.fold(1, rows[1])

        expected = edited(sink.store)
        with pytest.raises(FencedError):
            sink.commit(1, work)
        assert sink.stored() == expected
        sink.but(run_id="run-2").run(1, rows[1])

        assert sink.stored() == added(expected, sink.expected(rows[1]))

    def test_that_is_alive_takes_no_further_micro_batch(self, sink: Any, rows: list[pa.Table]) -> None:
        sink.run(0, rows[0])

        expected = edited(sink.store)
        with pytest.raises(FencedError):
            sink.run(1, rows[1])

        assert sink.stored() == expected

    def test_that_commits_before_the_edit_keeps_its_rows(self, sink: Any, rows: list[pa.Table]) -> None:
        sink.run(0, rows[0])

        with arrowstate.open_store(sink.store).edit() as edit:
            edit.delete_key("counter", [1])
            sink.run(1, rows[1])
            with pytest.raises(EditConflictError):
                edit.commit()
        sink.run(2, rows[2])

        assert sink.stored() == sink.expected(*rows[:3])

    def test_goes_on_from_an_edited_savepoint_in_another_store(
        self, sink: Any, rows: list[pa.Table], tmp_path: Path
    ) -> None:
        sink.run(0, rows[0])
        with arrowstate.open_store(sink.store).edit() as edit:
            edit.delete_key("counter", [1, 2])
            savepoint = edit.commit(to="fixed")
        sink.run(1, rows[1])
        assert sink.stored() == sink.expected(*rows[:2])

        other = sink.but(store=tmp_path / "other", run_id="run-2", max_parallelism=64, parallelism=3)
        arrowstate.open_store(other.store, create=True).import_savepoint(savepoint)
        kept = {k: counted for k, counted in sink.expected(rows[0]).items() if k not in (1, 2)}
        assert other.stored() == kept
        other.run(1, rows[1])

        assert other.stored() == added(kept, sink.expected(rows[1]))

    def test_is_fenced_by_a_rollback_too(self, sink: Any, rows: list[pa.Table]) -> None:
        sink.run(0, rows[0])
        before = sink.stored()
        edited(sink.store)
        alive = sink.but(run_id="run-2")
        work = alive.fold(1, rows[1])

        arrowstate.open_store(sink.store).rollback("before-edit-2")
        for run in (sink, alive):
            with pytest.raises(FencedError):
                run.commit(1, work) if run is alive else run.run(1, rows[1])
        assert sink.stored() == before
        sink.but(run_id="run-3").run(1, rows[1])

        assert sink.stored() == sink.expected(*rows[:2])

    def test_needs_its_own_checkpoint_folder_to_go_back_too(self, sink: Any, rows: list[pa.Table]) -> None:
        for number in range(3):
            sink.run(number, rows[number])

        arrowstate.open_store(sink.store).rollback(1)
        again = sink.but(run_id="run-2")
        with pytest.raises(QueryConflictError, match="3"):
            again.run(3, rows[3])
        again.run(1, rows[3])

        assert sink.stored() == sink.expected(rows[0], rows[3])


def test_a_query_that_fires_while_idle_looks_at_the_timers_of_an_edit(tmp_path: Path) -> None:
    from arrowstate.spark.read.idle import IdleStreamReader

    backend = arrowstate.KeyedStateBackend(key=pa.schema({"k": pa.int64()}), max_parallelism=128)
    backend.timers().register_batch([1], [900], clock="processing_time")
    record = {"query_id": "q", "run_id": "r", "batch_id": 0, "next_timer": 900, "metrics": {"rows": 0}}
    store = arrowstate.open_store(tmp_path, create=True)
    with store.writer() as writer:
        writer.checkpoint({"idle": [backend]}, properties={"spark": record})
    reader = IdleStreamReader({"path": str(tmp_path)}, lambda: 500)
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({"checkpoint": 0}, limit) == {"checkpoint": 0}

    with store.edit() as edit:
        edit.update("idle.timers_processing_time", set={"timestamp": 400})
        edit.commit()

    assert reader.latestOffset({"checkpoint": 0}, limit) == {"checkpoint": 2}


LETTERS = "counter_dead_letters"


def letters(store: Path) -> list[int]:
    """The values of the rows that were set aside."""
    found = arrowstate.open_store(store).latest().operator_state(LETTERS, "rows")
    return sorted(row["rows"]["row"]["v"] for row in found.to_pylist())


@pytest.mark.turns(2)
def test_a_sink_goes_on_after_an_edit_and_ends_where_one_comes_while_it_runs(stream: Any, rows: list[pa.Table]) -> None:
    null = pa.table({"k": pa.nulls(1, pa.int64()), "n": [1], "v": [-5]})
    stream.add(rows[0], pa.concat_tables([rows[1], null]))
    stream.run(on_error="dead_letter")
    assert stream.stored() == stream_sums(rows[:2])

    expected = edited(stream.store)
    stream.add(pa.concat_tables([rows[2], null.set_column(2, "v", [[-6]])]))
    query = stream.start(on_error="dead_letter", trigger={"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    expected = added(expected, stream_sums(rows[2:3]))
    assert (stream.stored(), letters(stream.store)) == (expected, [-6, -5])
    expected = edited(stream.store)
    with arrowstate.open_store(stream.store).edit() as edit:
        edit.update(f"{LETTERS}.rows", set={"reason": "'looked at'"}, where="row.v = -5")
        edit.commit()
    stream.add(rows[3])
    with pytest.raises(StreamingQueryException, match="FencedError"):
        query.processAllAvailable()
    assert stream.stored() == expected
    again = stream.run(on_error="dead_letter")

    assert [progress["batchId"] for progress in again.recentProgress] == [3]
    assert stream.stored() == added(expected, stream_sums(rows[3:4]))
    assert letters(stream.store) == [-6, -5]
    assert arrowstate.open_store(stream.store).verify(deep=True).problems == []


def stream_sums(rows: list[pa.Table]) -> Sums:
    """Count and sum by key."""
    grouped = pa.concat_tables(rows).group_by("k").aggregate([("v", "count"), ("v", "sum")])
    return {row["k"]: (row["v_count"], row["v_sum"]) for row in grouped.to_pylist()}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("killed_in", [1, 2])
def test_a_sink_whose_driver_was_killed_in_a_micro_batch_goes_on_after_an_edit(
    stream: Any, rows: list[pa.Table], killed_in: int
) -> None:
    # Not at the top: the processes of Spark import this file, and do not find it.
    import killed_driver

    stream.add(*rows[:4])
    driver = [sys.executable, killed_driver.__file__, str(stream.folder), str(killed_in)]
    killed = subprocess.run(driver, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert stream.stored() == stream_sums(rows[:killed_in])

    expected = edited(stream.store)
    query = stream.run()

    assert [progress["batchId"] for progress in query.recentProgress] == list(range(killed_in, 4))
    assert stream.stored() == added(expected, stream_sums(rows[killed_in:4]))
    store = arrowstate.open_store(stream.store)
    back = store.rollback(f"before-edit-{killed_in + 1}").properties["spark"]["batch_id"]
    assert (back, stream.stored()) == (killed_in - 1, stream_sums(rows[:killed_in]))
    with pytest.raises(StreamingQueryException, match="QueryConflictError"):
        stream.add(rows[4])
        stream.run()
    for path in [*(stream.checkpoint / "offsets").iterdir(), *(stream.checkpoint / "commits").iterdir()]:
        if path.name.strip(".").removesuffix(".crc").isdecimal() and int(path.name.strip(".").split(".")[0]) > back:
            path.unlink()
    stream.run()
    assert stream.stored() == stream_sums(rows[:5])


def test_an_operator_of_a_query_is_renamed_with_what_it_emitted(tmp_path: Path) -> None:
    backend = arrowstate.KeyedStateBackend(key=pa.schema({"k": pa.int64()}), max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("total", pa.int64())).update_batch([1], [2])
    emitted = arrowstate.OperatorStateBackend()
    row = pa.struct({"k": pa.int64()})
    emitted.state(arrowstate.OperatorListStateDescriptor("rows", row)).extend(pa.array([(1,)], row))
    record = {"query_id": "q", "run_id": "r", "batch_id": 0, "outputs": {"totals.batch": 0}}
    store = arrowstate.open_store(tmp_path, create=True)
    with store.writer() as writer:
        states = {"totals.batch": [emitted]}
        writer.checkpoint({"totals": [backend]}, operator_states=states, properties={"spark": record})

    with store.edit() as edit:
        edit.rename_operator("totals", "sums")
        renamed = edit.commit()

    check_alone(["sums"], renamed.entry, str(tmp_path))
    assert sorted(operator.uid for operator in renamed.entry.operators) == ["sums", "sums.batch"]
    assert BatchRecord.of(renamed.entry).outputs == {"sums.batch": 0}


class Visits(arrowstate.KeyedProcessFunction):
    """Counts, emits the count, and its negative a second after the first row of a key."""

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ValueStateDescriptor("count", pa.int64(), default=0))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        count = self.count.value() + 1
        self.count.update(count)
        if count == 1:
            context.timers.register_event_time_timer(context.timestamp + 1000)
        out.collect((value.k, count))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect((context.current_key, -self.count.value()))


def visits(keys: list[int], time: int) -> pa.Table:
    at = pa.array([time * 1000] * len(keys), pa.timestamp("us", tz="UTC"))
    return pa.table({"k": pa.array(keys, pa.int64()), "at": at})


def read(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]


def counts(store: Path, checkpoint_id: int) -> dict[int, int]:
    table = arrowstate.open_store(store).snapshot(checkpoint_id).to_arrow("visits.count")
    return {row["k"]: row["count"] for row in table.to_pylist()}


def changes(store: Path, last: int) -> set[tuple[Any, ...]]:
    """How the counts differ from each checkpoint to the next."""
    found = set()
    for checkpoint_id in range(1, last + 1):
        old, new = counts(store, checkpoint_id - 1) if checkpoint_id > 1 else {}, counts(store, checkpoint_id)
        found |= {(k, old[k], "delete", checkpoint_id) for k in old.keys() - new.keys()}
        found |= {(k, new[k], "insert", checkpoint_id) for k in new.keys() - old.keys()}
        for k in old.keys() & new.keys():
            if old[k] != new[k]:
                found |= {(k, old[k], "update_preimage", checkpoint_id), (k, new[k], "update_postimage", checkpoint_id)}
    return found


@pytest.mark.turns(2)
def test_an_operator_goes_on_after_an_edit_of_its_state_its_timers_and_its_output(stream: Any) -> None:
    from arrowstate.spark import stateful
    from arrowstate.spark.read.changes import ChangePlan
    from arrowstate.spark.read.outputs import OutputPlan

    stream.schema = "k long, at timestamp"
    seen: list[tuple[int, list[tuple[int, int]]]] = []

    def run() -> None:
        operator = stateful(
            stream.frame().withWatermark("at", "0 seconds"),
            key=["k"],
            operator=Visits(),
            uid="visits",
            store=stream.store,
            parallelism=2,
            timestamp="at",
            output_schema="k long, n long",
            output="changes",
        ).foreach_batch(lambda frame, batch: seen.append((batch, sorted(tuple(row) for row in frame.collect()))))
        writer = operator.option("checkpointLocation", str(stream.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    stream.add(visits([1, 2, 3], 0), visits([1, 2], 100))
    run()
    # As where the driver died before it noted that the second micro-batch is done.
    (stream.checkpoint / "commits" / "1").unlink()
    (stream.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    plan = OutputPlan.from_options({"path": str(stream.store), "output": "changes"})
    output = plan.stream_reader(plan.schema)
    start = output.initialOffset()
    half = output.latestOffset(start, output.getDefaultReadLimit())
    emitted = read(output, output.partitions(start, half))

    store = arrowstate.open_store(stream.store)
    with store.edit() as edit:
        edit.update("visits.count", set={"count": 10}, where="k = 1")
        edit.delete_key("visits", [2])
        edit.update("visits.timers_event_time", set={"timestamp": 5000}, where="k = 3")
        edit.upsert("visits.count", "select 9 as k, 7 as count")
        edit.insert("visits.timers_event_time", "select 9 as k, 1500 as timestamp")
        edit.update("changes.rows", set={"n": 20}, where="k = 1 and n = 2")
        edit.commit()
    stream.add(visits([1], 3000), visits([1], 10_000), visits([2], 11_000))
    run()

    assert seen == [
        (0, [(1, 1), (2, 1), (3, 1)]),
        (1, [(1, 2), (2, 2)]),
        (1, [(1, 20), (2, 2)]),
        (2, [(1, 11)]),
        (3, [(1, -11), (1, 12), (9, -7)]),
        (4, [(2, 1), (3, -1)]),
    ]
    assert counts(stream.store, 6) == {1: 12, 2: 1, 3: 1, 9: 7}
    end = output.latestOffset(half, output.getDefaultReadLimit())
    rest = [(row["k"], row["n"]) for row in read(output, output.partitions(half, end))]
    assert sorted((row["k"], row["n"]) for row in emitted) == sorted(seen[0][1] + seen[1][1])
    assert sorted(rest) == sorted(seen[3][1] + seen[4][1] + seen[5][1])
    options = {"path": str(stream.store), "operator": "visits", "state": "count", "readChangeFeed": "true"}
    feed = ChangePlan.from_options(options | {"startingCheckpoint": "earliest"})
    table, follower = feed.reader(feed.schema), feed.stream_reader(feed.schema)
    start = follower.initialOffset()
    end = follower.latestOffset(start, follower.getDefaultReadLimit())
    for found in (read(table, table.partitions()), read(follower, follower.partitions(start, end))):
        assert {tuple(row.values()) for row in found} == changes(stream.store, 6)
        assert len(found) == len(changes(stream.store, 6))
    assert store.verify(deep=True).problems == []


def test_a_stream_of_changes_that_holds_what_it_has_not_read_goes_on_over_a_purge(tmp_path: Path) -> None:
    from arrowstate.spark.read.changes import ChangePlan

    backend = arrowstate.KeyedStateBackend(key=pa.schema({"k": pa.int64()}), max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("count", pa.int64())).update_batch([1, 2, 3], [1, 2, 3])
    store = arrowstate.open_store(tmp_path, create=True)
    with store.writer() as writer:
        writer.checkpoint({"visits": [backend]})
    options = {"path": str(tmp_path), "operator": "visits", "readChangeFeed": "true", "leaseSeconds": "600"}
    plan = ChangePlan.from_options(options)
    stream = plan.stream_reader(plan.schema)
    limit = stream.getDefaultReadLimit()
    start = stream.latestOffset(stream.initialOffset(), limit)

    with store.edit() as edit:
        edit.delete_key("visits", [2])
        report = edit.purge()
    end = stream.latestOffset(start, limit)
    rows = read(stream, stream.partitions(start, end))

    assert [holder.checkpoint_id for holder in report.held_by] == [1]
    assert "a change feed of visits.count" in report.held_by[0].reasons[0]
    assert [tuple(row.values()) for row in rows] == [(2, 2, "delete", 2)]
