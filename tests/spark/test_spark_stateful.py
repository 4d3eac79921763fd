"""`stateful` in a real Spark session: operators, time, outputs, several operators, restarts, and what is refused."""

from __future__ import annotations

import datetime
import decimal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import IncompatibleStateError, InvalidInputError, KeyTypeError, UnsupportedStorageError
from arrowstate.windows import TumblingEventTimeWindows, TumblingProcessingTimeWindows, WindowFunction

TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


class Totals(arrowstate.BatchFunction):
    """Emits the new sum of each key of the batch."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(TOTAL)

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        self.total.add_batch(batch["k"], batch["v"].fill_null(0))
        keys = batch["k"].unique()
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys)})


class Handing(Totals):
    side_outputs = (arrowstate.OutputTag("aside", pa.schema([("k", pa.int64())])),)


class Positions(arrowstate.KeyedProcessFunction):
    """Emits each row with its number among those of its key, and with `-1` when a timer of the key fires."""

    def open(self, context: Any) -> None:
        self.count = context.state(arrowstate.ValueStateDescriptor("count", pa.int64(), default=0))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        number = self.count.value() + 1
        self.count.update(number)
        if number == 1:
            context.timers.register_event_time_timer(context.timestamp + 1000)
        out.collect((value.k, number))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect({"k": context.current_key, "n": -1})


class Passing(arrowstate.BatchFunction):
    """Emits its rows as they are."""

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        return batch.select(["k", "ms"])


class Ends(arrowstate.BatchFunction):
    """Emits the key of a row one second of event time after it."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.ends = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        self.ends.register_batch(batch["k"], pa.array([time + 1000 for time in batch["ms"].to_pylist()]))

    def on_timers(self, timers: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        return timers.select(["k"])


def timed(keys: list[int], times: list[int]) -> pa.Table:
    """Rows with a key and an event time in milliseconds."""
    at = pa.array(times, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"k": pa.array(keys, pa.int64()), "at": at})


class Job:
    """A stateful query over the stream of the fixture; collects what `foreach_batch` is given."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.seen: list[tuple[int, list[dict[str, Any]]]] = []

    def see(self, frame: Any, batch_id: int) -> None:
        self.seen.append((batch_id, frame.toArrow().to_pylist()))

    def operator(self, rows: Any = None, **changes: Any) -> Any:
        from arrowstate.spark import stateful

        arguments = {"key": ["k"], "operator": Totals(), "uid": "totals", "store": self.stream.store, "parallelism": 2}
        arguments |= {"output_schema": "k long, total long"}
        return stateful(self.stream.frame() if rows is None else rows, **arguments | changes)

    def run(self, writer: Any = None, **changes: Any) -> Any:
        writer = self.operator(**changes).foreach_batch(self.see) if writer is None else writer
        query = writer.option("checkpointLocation", str(self.stream.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def sql(self, query: str) -> Any:
        return arrowstate.open_store(self.stream.store).sql(query)


@pytest.fixture
def job(stream: Any) -> Job:
    return Job(stream)


def sums(rows: list[pa.Table]) -> dict[int, int]:
    """The sum of `v` by `k`."""
    grouped = pa.concat_tables(rows).group_by("k").aggregate([("v", "sum")])
    return {row["k"]: row["v_sum"] or 0 for row in grouped.to_pylist()}


def stored(job: Job) -> dict[int, int]:
    return dict(job.sql("select k, total from totals.total").fetchall())


def test_a_batch_function_keeps_state_and_emits_over_a_restart_at_any_parallelism(
    job: Job, stream: Any, make_rows: Callable[..., pa.Table]
) -> None:
    stream.add(make_rows(0), make_rows(1))
    job.run(parallelism=2, max_parallelism=128)
    stream.add(make_rows(2))

    job.run(parallelism=3, max_parallelism=192)

    assert stored(job) == sums(stream.rows)
    assert [batch_id for batch_id, _ in job.seen] == [0, 1, 2]
    for number, (_, rows) in enumerate(job.seen):
        expected = sums(stream.rows[: number + 1])
        touched = set(stream.rows[number]["k"].to_pylist())
        assert {row["k"]: row["total"] for row in rows} == {key: expected[key] for key in touched}
        assert len(rows) == len(touched)


class SetAside(arrowstate.BatchFunction):
    """Emits how many objects the garbage collector of its worker passes over."""

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        import gc

        return pa.record_batch({"k": batch["k"][:1], "total": pa.array([gc.get_freeze_count()])})


def test_a_worker_that_is_used_again_passes_over_its_modules_when_it_collects_garbage(
    job: Job, stream: Any, make_rows: Callable[..., pa.Table]
) -> None:
    stream.add(*map(make_rows, range(3)))

    job.run(operator=SetAside(), parallelism=1)

    assert job.seen[-1][1][0]["total"] > 10_000


def test_elements_come_in_the_order_asked_for_and_timers_fire_by_the_watermark_of_spark(job: Job, stream: Any) -> None:
    stream.schema = "k long, at timestamp"
    stream.add(timed([1, 2], [10_000, 10_500]), timed([1, 3], [20_000, 19_000]), timed([1, 1], [30_100, 30_000]))
    rows = stream.frame().withWatermark("at", "2 seconds")

    job.run(rows=rows, operator=Positions(), output_schema="k long, n long", order_by=["at"], timestamp="at")

    found = [(batch_id, sorted((row["k"], row["n"]) for row in rows)) for batch_id, rows in job.seen]
    # Micro-batch 2 is the first whose watermark, 18 s, is past the timers at 11 and 11.5 s; that of key 3 is at 20 s.
    assert found == [(0, [(1, 1), (2, 1)]), (1, [(1, 2), (3, 1)]), (2, [(1, -1), (1, 3), (1, 4), (2, -1)])]
    assert arrowstate.open_store(stream.store).latest().entry.watermark == 18_000


def test_windows_close_when_the_watermark_passes_them(job: Job, stream: Any) -> None:
    stream.schema = "k long, at timestamp"
    stream.add(timed([1, 1, 2], [1_000, 9_000, 11_000]), timed([2], [25_000]), timed([2], [40_000]))
    clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="count")
    windows = WindowFunction(TumblingEventTimeWindows(10_000), clicks, timestamp="at", value="k")
    rows = stream.frame().withWatermark("at", "0 seconds")

    job.run(rows=rows, operator=windows, output_schema="k long, window_start long, window_end long, clicks long")

    found = [[(row["k"], row["window_start"], row["clicks"]) for row in rows] for _, rows in job.seen]
    assert found == [[], [(1, 0, 2)], [(2, 10_000, 1)]]


def test_several_operators_are_committed_in_one_entry(job: Job, stream: Any, make_rows: Any) -> None:
    from arrowstate.spark import write_stream

    stream.add(make_rows(0), make_rows(1))
    first = job.operator(output="changes")
    odd = job.operator(
        first.transform(lambda frame: frame.where("k % 2 = 1").selectExpr("k", "1L as v")),
        uid="odd",
        output_schema="k long, total long",
    )
    both = job.operator(
        first.union(odd).transform(lambda frame: frame.selectExpr("0L as k", "1L as v")), uid="all", output_schema=None
    )

    job.run(write_stream(both, foreach_batch={"odd": job.see}))

    checkpoints = arrowstate.open_store(stream.store).checkpoints()
    assert len(checkpoints) == 2
    uids = [operator.uid for operator in checkpoints[0].entry.operators]
    assert uids == ["totals", "odd", "all", "changes", "odd.batch"]
    changes = [len(set(rows["k"].to_pylist())) for rows in stream.rows]
    odds = [len({key for key in rows["k"].to_pylist() if key % 2}) for rows in stream.rows]
    assert [len(rows) for _, rows in job.seen] == odds
    assert job.sql("select sum(total) from odd.total").fetchall() == [(sum(odds),)]
    assert job.sql('select k, total from "all".total').fetchall() == [(0, sum(changes) + sum(odds))]
    assert stored(job) == sums(stream.rows)


def test_an_operator_whose_rows_are_all_filtered_out_lets_time_pass(job: Job, stream: Any) -> None:
    stream.schema = "k long, ms long"
    stream.add(*(pa.table({"k": [1, 2], "ms": [ms, ms]}) for ms in (10_000, 20_000, 30_000)))
    rows = stream.frame().selectExpr("k", "ms", "timestamp_millis(ms) as at").withWatermark("at", "0 seconds")
    first = job.operator(rows, operator=Passing(), uid="first", output_schema="k long, ms long")
    early = first.transform(lambda frame: frame.where("k = 1 and ms < 15000"))

    job.run(job.operator(early, operator=Ends(), uid="ends", output_schema="k long").foreach_batch(job.see))

    # Micro-batch 2 is the first whose watermark, 20 s, is past the timer at 11 s.
    assert job.seen == [(0, []), (1, []), (2, [{"k": 1}])]
    checkpoints = arrowstate.open_store(stream.store).checkpoints()
    taking_part = [{item.uid: item.parallelism for item in each.entry.operators}["ends"] for each in checkpoints]
    assert taking_part == [2, 2, 2]


def test_a_repeated_micro_batch_counts_once_and_hands_the_same_rows_on(job: Job, stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0), make_rows(1))
    job.run(output="changes")
    # Spark has not noted that it finished the last batch, as after a crash between the two commits.
    (stream.checkpoint / "commits" / "1").unlink()
    (stream.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    stream.add(make_rows(2))

    job.run(output="changes")

    assert [batch_id for batch_id, _ in job.seen] == [0, 1, 1, 2]
    assert job.seen[1] == job.seen[2]
    assert stored(job) == sums(stream.rows)


def test_a_function_that_fails_gets_the_rows_again_after_a_restart(job: Job, stream: Any, make_rows: Any) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0), make_rows(1))

    def fail(frame: Any, batch_id: int) -> None:
        job.see(frame, batch_id)
        if batch_id == 1:
            raise OSError("the target is down")

    with pytest.raises(StreamingQueryException, match="the target is down"):
        job.run(job.operator().foreach_batch(fail))
    job.run()

    assert [batch_id for batch_id, _ in job.seen] == [0, 1, 1]
    assert job.seen[1] == job.seen[2]
    assert stored(job) == sums(stream.rows)


def test_an_output_table_has_each_row_once_whatever_is_merged(job: Job, stream: Any, monkeypatch: Any) -> None:
    from arrowstate.files import output_tables

    monkeypatch.setattr(output_tables, "_MERGED_PARTS", 1)
    tables = [pa.table({"k": [number, 7], "v": [1, 1], "n": [1, 1]}) for number in range(8)]
    stream.add(*tables)

    job.run(output="changes")

    snapshot = arrowstate.open_store(stream.store).latest()
    table = snapshot.operator_state("changes", "rows")["rows"].combine_chunks()
    rows = [(row["k"], row["total"]) for row in table.to_pylist()]
    assert sorted(row for row in rows if row[0] != 7) == [(number, 1) for number in range(7)]
    assert [total for key, total in rows if key == 7] == [1, 2, 3, 4, 5, 6, 7, 9]
    (operator,) = [item for item in snapshot.entry.operators if item.uid == "changes"]
    assert len(operator.operator_states[0].parts) < 8


def test_large_output_is_read_by_the_workers(job: Job, stream: Any, monkeypatch: Any, make_rows: Any) -> None:
    from arrowstate.spark import outputs

    monkeypatch.setattr(outputs, "_LOCAL_BYTES", 0)
    stream.add(make_rows(0), make_rows(1))

    job.run(output="changes")

    assert {row["k"]: row["total"] for row in job.seen[1][1]}.items() <= sums(stream.rows).items()
    assert len(job.seen[1][1]) == len(set(stream.rows[1]["k"].to_pylist()))


def test_a_broadcast_state_reaches_every_subtask_and_is_in_the_checkpoint(job: Job, stream: Any) -> None:
    class Priced(arrowstate.BatchFunction):
        def open(self, context: Any) -> None:
            self.prices = context.broadcast("prices")

        def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
            return pa.record_batch({"k": batch["k"], "price": self.prices.get_batch(batch["k"])})

    stream.add(pa.table({"k": [1, 2, 3, 4], "v": [0] * 4, "n": [0] * 4}))
    prices = stream.spark.createDataFrame([(1, 10.0), (2, 20.0), (4, 40.0)], "item long, price double")
    descriptor = arrowstate.BroadcastStateDescriptor("prices", pa.int64(), pa.float64())

    job.run(operator=Priced(), uid="priced", output_schema="k long, price double", broadcast={descriptor: prices})

    assert sorted((row["k"], row["price"]) for row in job.seen[0][1]) == [(1, 10.0), (2, 20.0), (3, None), (4, 40.0)]
    table = arrowstate.open_store(stream.store).latest().operator_state("priced", "prices")
    assert table.num_rows == 6


def test_a_broadcast_state_is_written_anew_when_a_query_that_failed_is_started_again(job: Job, stream: Any) -> None:
    from pyspark.errors import StreamingQueryException

    marker = stream.folder / "fail"
    marker.touch()

    class Failing(arrowstate.BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
            if marker.exists():
                raise ValueError("not yet")
            return pa.record_batch({"k": batch["k"], "price": context.broadcast("prices").get_batch(batch["k"])})

    stream.add(pa.table({"k": [1], "v": [0], "n": [0]}))
    # More than what is kept inline, so that it is a file, which goes with the attempt that failed.
    prices = stream.spark.range(5_000).selectExpr("id", "id * 1.5D")
    descriptor = arrowstate.BroadcastStateDescriptor("prices", pa.int64(), pa.float64())
    arguments = {"uid": "priced", "output_schema": "k long, price double", "broadcast": {descriptor: prices}}
    writer = job.operator(operator=Failing(), **arguments).foreach_batch(job.see)

    with pytest.raises(StreamingQueryException, match="not yet"):
        job.run(writer)
    assert not list((stream.store / "data" / "priced" / "prices").glob("*"))
    marker.unlink()
    job.run(writer)

    assert job.seen == [(0, [{"k": 1, "price": 1.5}])]


def test_an_output_with_other_columns_is_refused(job: Job, stream: Any, make_rows: Any) -> None:
    class Renamed(Totals):
        def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
            return super().process_batch(batch, context).rename_columns(["k", "sum"])

    stream.add(make_rows(0))
    job.run(output="changes")

    with pytest.raises(IncompatibleStateError, match="name another output"):
        job.operator(operator=Renamed(), output="changes", output_schema="k long, sum long")


def test_time_to_live_and_processing_time_go_by_the_time_of_the_micro_batch(job: Job, stream: Any) -> None:
    class Reminders(arrowstate.BatchFunction):
        def open(self, context: Any) -> None:
            self.timers = context.timers()

        def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
            times = np.full(batch.num_rows, context.processing_time)
            self.timers.register_batch(batch["k"], pa.array(times), clock="processing_time")

        def on_timers(self, timers: pa.RecordBatch, context: Any) -> pa.RecordBatch:
            late = pa.array(np.full(timers.num_rows, context.processing_time)).cast(pa.int64())
            return pa.record_batch({"k": timers["k"], "due": timers["timestamp"], "now": late})

    stream.add(*[pa.table({"k": [number], "v": [0], "n": [0]}) for number in range(2)])

    job.run(operator=Reminders(), uid="reminders", output_schema="k long, due long, now long")

    assert [len(rows) for _, rows in job.seen] == [0, 1]
    (row,) = job.seen[1][1]
    assert row["k"] == 0
    assert row["due"] <= row["now"]


def test_windows_by_processing_time_end_by_the_time_of_the_micro_batch(job: Job, stream: Any) -> None:
    total = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")
    windows = WindowFunction(TumblingProcessingTimeWindows(1), total)
    stream.add(*[pa.table({"k": [number], "v": [number], "n": [0]}) for number in range(2)])

    job.run(operator=windows, uid="windows", output_schema="k long, window_start long, window_end long, v long")

    assert [[(row["k"], row["v"]) for row in rows] for _, rows in job.seen] == [[], [(0, 0)]]


class Dividing(arrowstate.KeyedProcessFunction):
    """Divides by zero in a method of its own."""

    def open(self, context: Any) -> None:
        self.last = context.state(arrowstate.ValueStateDescriptor("last", pa.int64()))

    def divided(self, value: int) -> int:
        return 10 // value

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.last.update(self.divided(value.v))


def test_a_null_key_or_a_failing_function_leaves_the_store_as_it_was(job: Job, stream: Any, make_rows: Any) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0))
    job.run(output="changes")
    before = {path: path.stat().st_size for path in Path(stream.store).rglob("*") if path.is_file()}
    stream.add(pa.table({"k": pa.array([7, None], pa.int64()), "v": [1, 1], "n": [1, 1]}))

    with pytest.raises(StreamingQueryException, match="NullKeyError: key column 'k' is null"):
        job.run(output="changes")

    after = {path: path.stat().st_size for path in Path(stream.store).rglob("*") if path.is_file()}
    assert set(before) <= set(after)
    assert stored(job) == sums(stream.rows[:1])


def test_the_error_of_a_query_has_the_traceback_of_the_function_and_the_row(job: Job, stream: Any) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(pa.table({"k": [7, 7, 8], "v": [5, 0, 1], "n": [1, 2, 3]}))

    with pytest.raises(StreamingQueryException) as caught:
        job.run(job.operator(operator=Dividing(), order_by=["n"], output_schema=None, parallelism=1).write_stream())

    text = str(caught.value)
    assert "operator 'totals' failed at micro-batch 0, row 1 with key {'k': 7}" in text
    assert "values {'k': 7, 'v': 0, 'n': 2}" in text
    assert f'{__file__}", line ' in text
    assert "in divided" in text
    assert "return 10 // value" in text
    assert "ZeroDivisionError" in text


class Chained(arrowstate.BatchFunction):
    """Fails in a reducer, in a timer, or by an error of another library that has a cause."""

    def __init__(self, place: str) -> None:
        self.place = place

    def open(self, context: Any) -> None:
        self.last = context.state(arrowstate.ReducingStateDescriptor("last", pa.int64(), reduce=self.reduced))
        self.timers = context.timers()

    def reduced(self, left: int, right: int) -> int:
        return left // right

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        if self.place == "reducer":
            self.last.add_batch(batch["k"], batch["v"])
        if self.place == "batch":
            batch["no such column"]
        self.timers.register_batch(batch["k"], pa.array([5] * batch.num_rows, pa.int64()))

    def on_timers(self, timers: pa.RecordBatch, context: Any) -> None:
        raise RuntimeError("in a timer")


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("reducer", ["micro-batch 0, row 1", "in reduced", "return left // right", "ZeroDivisionError"]),
        ("batch", ["micro-batch 0: KeyError", "in process_batch", 'batch["no such column"]']),
        ("timer", ["watermark 9: RuntimeError: in a timer", "in on_timers"]),
    ],
)
def test_the_error_of_a_task_says_where_in_the_users_code(place: str, parts: list[str]) -> None:
    from arrowstate.errors import UserFunctionError
    from arrowstate.spark.micro_batches import MicroBatch
    from arrowstate.spark.operators.task import OperatorPlan, Step, _process

    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    rows = pa.table({"k": [7, 7], "v": [5, 0]})
    plan = OperatorPlan(
        store="", uid="op", key=[], parallelism=1, max_parallelism=128, operator=Chained(place), columns=rows.schema,
        output=None,
    )  # fmt: skip
    step = Step(MicroBatch("q", "r", 0), "store", None, None, 1)

    with pytest.raises(UserFunctionError) as caught:
        _process(plan, step, backend, rows, {})
        _process(plan, replace(step, watermark=9), backend, rows.slice(0, 0), {})

    assert all(part in str(caught.value) for part in [*parts, f'{__file__}", line ']), str(caught.value)
    assert "arrowstate/state/" not in str(caught.value)
    assert str(caught.value).count("operator 'op' failed") == 1


class Holding(Totals):
    """Has something that cannot be pickled."""

    def __init__(self, held: Any) -> None:
        self.held = held


def test_an_operator_that_cannot_be_pickled_is_refused_by_start(job: Job, stream: Any) -> None:
    stream.add(pa.table({"k": [1], "v": [1], "n": [1]}))
    writer = job.operator(operator=Holding(threading.Lock())).write_stream()

    with pytest.raises(
        InvalidInputError, match=r"operator 'totals', a Holding, .* attribute 'held' \(lock\) cannot be"
    ):
        job.run(writer)

    assert arrowstate.open_store(stream.store).checkpoints() == []


class OddNames(arrowstate.BatchFunction):
    """Passes rows on whose columns have odd names."""

    def open(self, context: Any) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        self.total.add_batch(batch["k.1"], batch["a`b"])
        return batch


class OddElements(arrowstate.KeyedProcessFunction):
    """Keeps the last value of each key."""

    def open(self, context: Any) -> None:
        self.last = context.state(arrowstate.ValueStateDescriptor("last", pa.int64()))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.last.update(value[1])


def test_columns_may_have_any_name_in_operators_outputs_and_reads(job: Job, stream: Any) -> None:
    from pyspark.sql.types import StructType

    from arrowstate.spark import read_state, write_stream
    from arrowstate.spark.schemas import arrow_type

    stream.schema = (
        "`k.1` string, `a``b` long, `.x,y` long, exact decimal(38, 10), at timestamp_ntz, "
        "nested array<struct<a: tinyint, b: map<string, date>>>"
    )
    kinds = pa.schema([(field.name, arrow_type(field.dataType)) for field in StructType.fromDDL(stream.schema)])
    odd = {"exact": decimal.Decimal("-1.0000000001"), "at": datetime.datetime(1500, 1, 1, microsecond=1)}
    odd["nested"] = [None, {"a": None, "b": [("x", None), ("y", datetime.date(1, 1, 1))]}]
    given = [{"k.1": k, "a`b": n, ".x,y": 4 - n, **(odd if n < 3 else {})} for k, n in (("a", 1), ("b", 2), ("a", 3))]
    stream.add(pa.Table.from_pylist(given, schema=kinds))
    first = job.operator(
        key=["k.1"], operator=OddNames(), order_by=[".x,y"], output_schema=stream.schema, output="out", parallelism=1
    )
    second = job.operator(
        first, key=["k.1"], operator=OddElements(), uid="last", order_by=["a`b"], output_schema=None, parallelism=1
    )

    job.run(write_stream(second))

    assert job.sql('select "k.1", total from totals.total order by all').fetchall() == [("a", 4), ("b", 2)]
    assert job.sql('select "k.1", last from last.last order by all').fetchall() == [("a", 3), ("b", 2)]
    rows = (
        stream.spark.read.format("arrowstate").options(output="out", columns='[".x,y", "k.1"]').load(str(stream.store))
    )
    assert rows.toArrow().to_pylist() == [{".x,y": n, "k.1": k} for n, k in ((1, "a"), (2, "b"), (3, "a"))]
    feed = {"operator": "totals", "state": "total", "readChangeFeed": "true", "columns": '["k.1"]'}
    whole = stream.spark.read.format("arrowstate").option("output", "out").load(str(stream.store))
    assert whole.toArrow().sort_by("a`b").to_pylist() == stream.rows[0].to_pylist()
    changes = stream.spark.read.format("arrowstate").options(**feed).load(str(stream.store))
    assert sorted(changes.toArrow()["k.1"].to_pylist()) == ["a", "b"]
    state = read_state(stream.spark, stream.store, operator="totals", columns=["k.1"])
    assert sorted(row["k.1"] for row in state.collect()) == ["a", "b"]


def test_a_query_that_lost_an_operator_is_refused_unless_its_state_may_go(
    job: Job, stream: Any, make_rows: Any
) -> None:
    from arrowstate.spark import write_stream

    stream.add(make_rows(0))
    rows = stream.frame()
    job.run(write_stream(job.operator(rows), job.operator(rows, uid="more")))
    stream.add(make_rows(1))

    with pytest.raises(InvalidInputError, match="holds the state of 'more'; a query needs a store of its own"):
        job.operator().write_stream()
    job.run(write_stream(job.operator(), allow_non_restored_state=True))

    assert stored(job) == sums(stream.rows)
    # What it emits is taken by nobody, so it is not stored.
    assert [item.uid for item in arrowstate.open_store(stream.store).latest().entry.operators] == ["totals"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"key": []}, InvalidInputError, "key must be a list of at least one column"),
        ({"key": ["x"]}, InvalidInputError, "the stream has no column 'x'; it has k, v, n"),
        ({"order_by": ["x"]}, InvalidInputError, "the stream has no column 'x'"),
        ({"operator": Totals}, InvalidInputError, "make an instance of it"),
        ({"operator": Handing()}, InvalidInputError, "Handing has side outputs, aside, and a query on Spark has none"),
        ({"timestamp": "v"}, InvalidInputError, "timestamp is for a KeyedProcessFunction"),
        ({"uid": "a/b"}, InvalidInputError, "an operator uid must be"),
        ({"output": "totals"}, InvalidInputError, "totals is used twice"),
        ({"output": "x", "output_schema": None}, InvalidInputError, "output 'x' needs an output_schema"),
        ({"output_schema": "long"}, InvalidInputError, "output_schema must have columns"),
        ({"parallelism": 0}, InvalidInputError, "parallelism"),
        ({"parallelism": 4, "max_parallelism": 2}, InvalidInputError, "parallelism"),
        ({"store": "memory://x"}, UnsupportedStorageError, "Spark's tasks run in others"),
        ({"broadcast": {"rules": None}}, InvalidInputError, "broadcast maps BroadcastStateDescriptor to DataFrame"),
    ],
)
def test_bad_arguments_are_refused_before_a_store_is_made(
    job: Job, stream: Any, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    stream.add(pa.table({"k": [1], "v": [1], "n": [1]}))

    with pytest.raises(error, match=message):
        job.operator(**changes)

    assert not stream.store.exists() or changes.get("output") == "totals"


def test_a_static_frame_an_unknown_function_and_rows_that_are_not_there_are_refused(job: Job, stream: Any) -> None:
    from arrowstate.spark import write_stream

    stream.add(pa.table({"k": [1], "v": [1], "n": [1]}))
    silent = job.operator(output_schema=None)

    with pytest.raises(InvalidInputError, match="this one is static"):
        job.operator(stream.spark.range(1).withColumnRenamed("id", "k"))
    with pytest.raises(InvalidInputError, match="names operator 'x'; those with an output_schema are totals"):
        write_stream(job.operator(), foreach_batch={"x": job.see})
    with pytest.raises(InvalidInputError, match="operator 'totals' emits no rows; give it an output_schema"):
        silent.transform(lambda frame: frame)
    with pytest.raises(InvalidInputError, match="call it on what stateful returned"):
        job.operator().transform(lambda frame: frame).foreach_batch(job.see)
    with pytest.raises(InvalidInputError, match="start from one DataFrame"):
        write_stream(job.operator(), job.operator(uid="b"))


def test_a_key_of_another_type_is_refused_and_a_narrower_one_is_widened(job: Job, stream: Any, make_rows: Any) -> None:
    from pyspark.sql import functions as sf

    stream.add(make_rows(0))
    job.run()
    stream.add(make_rows(1))

    with pytest.raises(KeyTypeError):
        job.operator(stream.frame().withColumn("k", sf.col("k").cast("string")))
    job.run(rows=stream.frame().withColumn("k", sf.col("k").cast("int")))

    assert stored(job) == sums(stream.rows)
