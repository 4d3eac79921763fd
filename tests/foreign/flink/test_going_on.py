"""A job whose first half Flink ran: ours goes on from its savepoint, and both emit what Flink's whole run did.

The job is in `generator/HalfJob.java`: event i has the key (i * 7) % 13, the amount i % 10 + 1, the category
"c" + i % 3 and the time 100 * i; after every tenth the watermark is the time of the last one. The savepoint is of the
first 200.
"""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.foreign.flink import import_flink_savepoint, open_flink_savepoint
from arrowstate.runtime import GeneratorSource, Job, OutputTable, Watermarks
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

EVENTS = 400
TOTAL = arrowstate.ValueStateDescriptor("total", pa.int64())
AMOUNTS = arrowstate.ListStateDescriptor("amounts", pa.int64())
BY_CATEGORY = arrowstate.MapStateDescriptor("by_category", pa.string(), pa.int64())
EVENT = pa.struct([("f0", pa.int64()), ("f1", pa.int64()), ("f2", pa.string()), ("f3", pa.int64())])
SUMS = arrowstate.ReducingStateDescriptor(
    "sums", EVENT, reduce={"f0": "first", "f1": "sum", "f2": "first", "f3": "first"}
)


class Totals(arrowstate.KeyedProcessFunction):
    """What the class of the same name in Java does."""

    def open(self, context):
        self.total = context.state(TOTAL)
        self.amounts = context.state(AMOUNTS)
        self.by_category = context.state(BY_CATEGORY)

    def process_element(self, event, context, out):
        self.total.update((self.total.value() or 0) + event.f1)
        self.amounts.add(event.f1)
        self.by_category.put(event.f2, (self.by_category.get(event.f2) or 0) + event.f1)
        context.timers.register_event_time_timer((event.f3 // 5000 + 1) * 5000 + 500)

    def on_timer(self, timestamp, context, out):
        row = (context.current_key, timestamp, self.total.value(), len(self.amounts.get()), self.by_category.get("c0"))
        out.collect(dict(zip(("key", "time", "total", "count", "c0"), row, strict=True)))


def events(first, end):
    numbers = range(first, end)
    return pa.record_batch(
        {
            "key": pa.array([number * 7 % 13 for number in numbers], pa.int64()),
            "f0": pa.array([number * 7 % 13 for number in numbers], pa.int64()),
            "f1": pa.array([number % 10 + 1 for number in numbers], pa.int64()),
            "f2": pa.array([f"c{number % 3}" for number in numbers]),
            "f3": pa.array([100 * number for number in numbers], pa.int64()),
        }
    )


@pytest.fixture
def halves(savepoint_folder, tmp_path):
    """The savepoint as a checkpoint of ours, what Flink had emitted by then, and in the whole run."""
    folder = savepoint_folder("half-job")
    store = arrowstate.open_store(tmp_path / "store", create=True)
    import_flink_savepoint(
        open_flink_savepoint(folder / "savepoint"),
        store,
        states={
            "windows.window-contents": SUMS,
            "windows._timer_state/event_window-timers": None,
            "windows._timer_state/processing_window-timers": None,
        },
        parallelism=3,
        max_parallelism=64,
    )
    first, whole = ((folder / name).read_text().split() for name in ("first_half.csv", "whole.csv"))
    return store, first, whole


def second_half(first, count):
    return events(EVENTS // 2 + first, EVENTS // 2 + first + count)


def declared(place):
    job = Job(place, parallelism=2)
    # Ten at a time, so that the watermark rises as it does in the job of Flink.
    source = GeneratorSource(second_half, events(0, 1).schema, rows=EVENTS // 2, batch_rows=10)
    rows = job.source(source, uid="events", watermarks=Watermarks("f3", out_of_order_ms=0))
    told = pa.schema([(name, pa.int64()) for name in ("key", "time", "total", "count", "c0")])
    rows.stateful(Totals(), key=["key"], uid="totals", output_schema=told).sink(OutputTable("timers"))
    sums = WindowFunction(TumblingEventTimeWindows(7_000), SUMS, timestamp="f3")
    fired = pa.schema([("key", pa.int64()), ("window_start", pa.int64()), ("window_end", pa.int64()), ("sums", EVENT)])
    rows.stateful(sums, key=["key"], uid="windows", output_schema=fired).sink(OutputTable("fired"))
    return job


def test_both_halves_emit_what_the_whole_run_of_flink_did(halves):
    store, first, whole = halves

    snapshot = declared(store.url).run(mode="threads")

    timers = snapshot.sql("select key, time, total, count, c0 from timers.rows").fetchall()
    fired = snapshot.sql("select key, window_end, sums.f1 from fired.rows").fetchall()
    ours = [f"timer,{','.join(map(str, row))}" for row in timers] + [
        f"window,{','.join(map(str, row))}" for row in fired
    ]
    # At its end our source says that no more will come, and Flink's went on waiting: what is due then is ours alone.
    end = 100 * (EVENTS - 1)
    ours = [line for line in ours if int(line.split(",")[2]) - line.startswith("window") <= end]
    assert sorted(first + ours) == sorted(whole)
    assert ours


def test_without_the_state_of_flink_they_do_not(halves, tmp_path):
    _, first, whole = halves

    snapshot = declared(str(tmp_path / "empty")).run(mode="threads")

    timers = snapshot.sql("select key, time, total, count, c0 from timers.rows").fetchall()
    assert not {f"timer,{','.join(map(str, row))}" for row in timers} <= set(whole) - set(first)
