"""A job that starts again with other columns, or another kind of source or sink, than its store has."""

import json
import re
import threading

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.errors import (
    CheckpointAbortedError,
    IncompatibleStateError,
    InvalidInputError,
    JobFailedError,
    SourceError,
)
from arrowstate.runtime import (
    BulkParquetSink,
    FileSource,
    FunctionSink,
    GeneratorSource,
    Job,
    OutputTable,
    ParquetSink,
    Restart,
    Sink,
    TableSource,
    Watermarks,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

ROWS = pa.table({"user": ["ann", "bob", "ann"], "amount": [1, 2, 3]})


class Totals(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.total.add_batch(context.group_keys(batch), batch["amount"])


def numbered(first, count):
    return ROWS.slice(first, count).combine_chunks().to_batches()[0]


def endless(first, count):
    return pa.record_batch({"user": ["ann"] * count, "amount": pa.array(range(first, first + count), pa.int64())})


def keyed(store, key):
    job = Job(store)
    source = GeneratorSource(numbered, ROWS.schema, rows=3, batch_rows=1)
    job.source(source, uid="rows").stateful(Totals(), key=key, uid="totals")
    return job


def test_another_key_is_refused_before_a_row_is_read():
    with keyed("memory://second-key", ["user"]).start(mode="inline") as running:
        running.go_on(8)
        stopped = running.stop()

    with pytest.raises(
        IncompatibleStateError,
        match=re.escape("'totals' is keyed by user: string but is declared as keyed by user: string, amount: int64"),
    ):
        keyed("memory://second-key", ["user", "amount"]).start(mode="inline")

    finished = keyed("memory://second-key", ["user"]).run(mode="inline")
    assert stopped.sql("select finished from rows.splits").fetchall() == [(False,)]
    assert sorted(finished.sql("select user, total from totals.total").fetchall()) == [("ann", 4), ("bob", 2)]


def too_many_slots(store):
    job = keyed(store, ["user"])
    job.parallelism = 500
    return job


def cannot_be_pickled(store):
    job = Job(store)
    lock = threading.Lock()
    source = GeneratorSource(lambda first, count: lock and numbered(first, count), ROWS.schema)
    job.source(source, uid="rows").stateful(Totals(), key=["user"], uid="totals")
    return job


def published_into_itself(store):
    job = Job(store, publish=store / "tables")
    job.source(TableSource(ROWS), uid="rows").stateful(Totals(), key=["user"], uid="totals")
    return job


@pytest.mark.parametrize("other", [too_many_slots, cannot_be_pickled, published_into_itself])
def test_a_start_that_is_refused_leaves_the_job_alone_that_runs(tmp_path, other):
    store = tmp_path / "store"
    job = Job(store, options=arrowstate.CheckpointOptions(interval_ms=None))
    source = GeneratorSource(endless, ROWS.schema, rows_per_second=100)
    job.source(source, uid="rows").stateful(Totals(), key=["user"], uid="totals")
    with job.start(mode="threads") as running:
        running.checkpoint()

        with pytest.raises(InvalidInputError):
            other(store).start()

        running.checkpoint()
        assert running.status().state == "running"
        assert running.store.health().status in ("starting", "up")


class Priced(arrowstate.BatchFunction):
    """Emits what the table beside the rows has."""

    def process_batch(self, batch, context):
        price = context.broadcast("prices").get("ann")
        return pa.record_batch({"user": batch["user"], "price": pa.array([str(price)] * batch.num_rows)})


def priced(store, key, value, parallelism, rows):
    job = Job(store, parallelism=parallelism)
    prices = job.source(TableSource(pa.table({"user": ["ann"], "price": [7]})), uid="prices")
    prices = prices.map_batches(lambda batch: batch.cast(pa.schema({"user": key, "price": value})))
    beside = {arrowstate.BroadcastStateDescriptor("prices", key, value): prices}
    source = job.source(TableSource(ROWS), uid=rows)
    priced = source.stateful(
        Priced(),
        key=["user"],
        uid="priced",
        output_schema=pa.schema({"user": pa.string(), "price": pa.string()}),
        broadcast=beside,
    )
    priced.sink(OutputTable(f"out_of_{rows}"))
    return job


def test_a_table_beside_the_rows_follows_its_type_or_is_refused_before_a_row_is_read():
    store = "memory://second-broadcast"
    priced(store, pa.string(), pa.int32(), 2, "first").run(mode="inline")

    for key, value in ((pa.string(), pa.string()), (pa.large_string(), pa.int32())):
        with pytest.raises(IncompatibleStateError, match="prices"):
            priced(store, key, value, 2, "first").start(mode="inline")
    job = priced(store, pa.string(), pa.int64(), 3, "second")
    job.allow_non_restored_state = True
    last = job.run(mode="inline")

    assert last.operator_state("priced", "prices").schema.field("prices").type == pa.int64()
    assert last.sql("select distinct price from out_of_second.rows").fetchall() == [("7",)]


def test_another_kind_of_source_under_the_uid_is_refused(tmp_path):
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    sources = [TableSource(ROWS), FileSource(tmp_path, "parquet", schema=ROWS.schema)]
    for number, (before, after) in enumerate([sources, sources[::-1]]):
        job, again = Job(f"memory://second-source-{number}"), Job(f"memory://second-source-{number}")
        job.source(before, uid="rows").sink(OutputTable("copy"))
        again.source(after, uid="rows").sink(OutputTable("copy"))
        job.run(mode="inline")

        with pytest.raises(SourceError, match="positions of type .* so it is not the source that was read"):
            again.start(mode="inline")


def test_an_output_table_with_other_columns_is_told_in_types():
    job, again = Job("memory://second-table"), Job("memory://second-table")
    job.source(TableSource(ROWS), uid="rows").sink(OutputTable("copy"))
    again.source(TableSource(ROWS.select(["user"])), uid="rows").sink(OutputTable("copy"))
    job.run(mode="inline")

    with pytest.raises(
        IncompatibleStateError,
        match="an output table of user: string, amount: int64 but is declared as user: string; name another",
    ):
        again.start(mode="inline")


def copied(store):
    job = Job(store, retention=None)
    source = GeneratorSource(endless, ROWS.schema, rows=20_000, batch_rows=2_000)
    job.source(source, uid="rows").sink(OutputTable("copy"))
    return job


def test_a_lost_file_of_an_output_table_is_told_as_damage_and_ends_the_job_until_it_is_back(tmp_path):
    with copied(tmp_path / "store").start(mode="inline") as running:
        running.go_on(8)
        running.stop()
    (lost,) = (tmp_path / "store" / "data" / "copy").rglob("*.arrow")

    running = copied(tmp_path / "store").start(mode="inline")
    lost.rename(tmp_path / "lost")
    with pytest.raises(CheckpointAbortedError, match=f"{lost.name}: the file is missing.*the store is damaged"):
        running.checkpoint()
    with pytest.raises(JobFailedError, match=f"{lost.name}: the file is missing.*the store is damaged"):
        running.wait()

    (tmp_path / "lost").rename(lost)
    with copied(tmp_path / "store").start(mode="inline") as running:
        last = running.wait()

    assert last.sql("select sum(amount) from copy.rows").fetchall() == [(sum(range(20_000)),)]


class Shop(Sink):
    """Takes rows when it is open."""

    is_open = False

    def commit(self, rows, token):
        if not Shop.is_open:
            raise OSError("it is shut")
        self.taken.extend(rows.to_pylist())

    taken: list = []  # noqa: RUF012 (one for all, as a shop outside would be)


def sold(store, rows, sink):
    job = Job(store, restart=Restart.none())
    job.source(TableSource(rows), uid="rows").sink(sink, uid="shop")
    return job


@pytest.mark.parametrize(
    ("rows", "sink", "declared"),
    [
        (ROWS.select(["user"]), Shop(), "user: string"),
        (ROWS.rename_columns(["user", "paid"]), Shop(), "user: string, paid: int64"),
        (ROWS, FunctionSink(print), "FunctionSink, which takes rows as they come"),
    ],
    ids=["fewer columns", "other names", "another kind"],
)
def test_rows_that_a_sink_has_not_had_are_not_lost_by_another_declaration(rows, sink, declared):
    store = f"memory://second-sink-{declared}"
    Shop.is_open, Shop.taken = False, []
    with pytest.raises(JobFailedError, match="it is shut"):
        sold(store, ROWS, Shop()).run(mode="inline")

    Shop.is_open = True
    with pytest.raises(
        IncompatibleStateError,
        match=f"rows that the sink has not had, of user: string, amount: int64 but is declared as {declared}; start",
    ):
        sold(store, rows, sink).start(mode="inline")
    sold(store, ROWS, Shop()).run(mode="inline")

    assert Shop.taken == ROWS.to_pylist()


class Place(Sink):
    """Keeps rows in one place of many."""

    def __init__(self, place):
        self.place = place

    def commit(self, rows, token):
        if not Shop.is_open:
            raise OSError("it is shut")
        Shop.taken.extend(rows.to_pylist())


@pytest.mark.parametrize(
    ("had", "now", "told"),
    [
        (
            Place("table a"),
            Place("table b"),
            "rows for table a but is declared as rows for table b; start the job once",
        ),
        (Place("table a"), Shop(), "rows for table a but is declared as rows for Shop; start the job once"),
        (Shop(), Place("table b"), None),
    ],
    ids=["another", "one that does not say", "one that had none"],
)
def test_rows_that_were_for_one_place_are_not_given_to_another(had, now, told):
    store = f"memory://second-place-{told}"
    Shop.is_open, Shop.taken = False, []
    with pytest.raises(JobFailedError, match="it is shut"):
        sold(store, ROWS, had).run(mode="inline")
    Shop.is_open = True

    if told is not None:
        with pytest.raises(IncompatibleStateError, match=told):
            sold(store, ROWS, now).start(mode="inline")
        assert Shop.taken == []
        now = had
    sold(store, ROWS, now).run(mode="inline")

    assert Shop.taken == ROWS.to_pylist()


def windows():
    return WindowFunction(
        TumblingEventTimeWindows(10_000),
        arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"),
        timestamp="at",
        value="amount",
    )


@pytest.mark.parametrize("relay", ["no", "rebalance", "to_one", "broadcast"])
@pytest.mark.parametrize("change", ["added", "renamed"])
def test_event_time_of_what_is_new_begins_anew_behind_every_exchange(relay, change, tmp_path):
    later = pa.table({"user": ["ann", "bob"], "amount": [1, 3], "at": pa.array([1000, 90_000], pa.int64())})
    earlier = pa.table({"user": ["ann", "ann"], "amount": [10, 20], "at": pa.array([1000, 20_000], pa.int64())})

    def declared(name, table, through, job):
        rows = job.source(TableSource(table), uid=f"rows_{name}", watermarks=Watermarks("at"))
        rows = rows if through == "no" else getattr(rows, through)()
        rows.stateful(windows(), key=["user"], uid=f"windows_{name}").sink(OutputTable(f"out_{name}"))
        return job

    declared("first", later, "no", Job(tmp_path / "store")).run(mode="threads")
    job = Job(tmp_path / "store", allow_non_restored_state=change == "renamed")
    if change == "added":
        declared("first", later, "no", job)
    snapshot = declared("new", earlier, relay, job).run(mode="threads")

    found = snapshot.sql("select window_start, total from out_new.rows order by all").fetchall()
    assert found == [(0, 10), (20_000, 20)]


class Reminders(arrowstate.KeyedProcessFunction):
    def process_element(self, value, context, out):
        context.timers.register_event_time_timer(value[1])

    def on_timer(self, timestamp, context, out):
        out.collect(timestamp)


class Recent(arrowstate.BatchFunction):
    def open(self, context):
        ttl = arrowstate.TimeToLive(1_000, clock="event_time")
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=ttl))

    def process_batch(self, batch, context):
        self.total.add_batch(context.group_keys(batch), batch["amount"], timestamps=batch["at"])


class Counts(arrowstate.BatchFunction):
    def open(self, context):
        self.rows = context.state(arrowstate.ReducingStateDescriptor("rows", pa.int64(), reduce="count"))

    def process_batch(self, batch, context):
        self.rows.add_batch(context.group_keys(batch), batch["amount"])


TIMED = pa.schema({"user": pa.string(), "at": pa.int64(), "amount": pa.int64()})
WINDOWED = pa.schema({"user": pa.string(), "window_start": pa.int64(), "window_end": pa.int64(), "total": pa.int64()})


def daily(folder, what, *, is_bounded=True, late=None):
    """A job over the files of a folder, which grows between two starts."""
    job = Job(folder / "store", restart=Restart.none())
    source = FileSource(folder / "days", "csv", schema=TIMED, is_bounded=is_bounded, discovery_ms=10)
    rows = job.source(source, uid="days", watermarks=Watermarks("at"))
    if what == "windows":
        total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
        function = WindowFunction(TumblingEventTimeWindows(10), total, timestamp="at", value="amount", late=late)
        rows.stateful(function, key=["user"], uid="op", output_schema=WINDOWED).sink(OutputTable("out"))
    elif what == "timers":
        made = rows.stateful(
            Reminders(), key=["user"], uid="op", timestamp="at", output_schema=pa.schema({"at": pa.int64()})
        )
        made.sink(OutputTable("out"))
    else:
        rows.stateful(Recent() if what == "expiry" else Totals(), key=["user"], uid="op")
    return job


def write_day(folder, number):
    (folder / "days").mkdir(exist_ok=True)
    (folder / "days" / f"{number}.csv").write_text(f"user,at,amount\nann,{number}3,1\nann,{number}4,1\n")


@pytest.mark.parametrize("what", ["windows", "expiry"])
def test_rows_that_come_after_the_end_of_event_time_are_told_of(tmp_path, caplog, what):
    write_day(tmp_path, 1)
    daily(tmp_path, what).run(mode="inline")
    assert "had ended" not in caplog.text
    write_day(tmp_path, 2)

    daily(tmp_path, what).run(mode="inline")

    assert caplog.text.count("all input of operator 'op' had ended") == 1


def test_rows_after_the_end_are_taken_where_no_event_time_counts(tmp_path, caplog):
    write_day(tmp_path, 1)
    daily(tmp_path, "sums").run(mode="inline")
    write_day(tmp_path, 2)
    assert daily(tmp_path, "sums").run(mode="inline").sql("select total from op.total").fetchall() == [(4,)]
    assert "had ended" not in caplog.text


def test_timers_of_rows_after_the_end_fire_at_the_end_of_these(tmp_path):
    for day, times in ((1, [13, 14]), (2, [13, 14, 23, 24])):
        write_day(tmp_path, day)
        snapshot = daily(tmp_path, "timers").run(mode="inline")
        assert snapshot.sql("select rows.at from out.rows order by 1").fetchall() == [(time,) for time in times]

    # One more start has no rows, and gives nothing out.
    again = daily(tmp_path, "timers").run(mode="inline")
    assert again.sql("select count(*) from out.rows").fetchall() == [(4,)]


class Watermarked(arrowstate.BatchFunction):
    def process_batch(self, batch, context):
        pass

    def on_watermark(self, watermark, context):
        return pa.record_batch({"user": ["ann"], "watermark": [watermark]})


def test_an_operator_hears_of_the_end_of_event_time_once_whatever_starts_follow(tmp_path):
    for day in (1, 2, 2):
        write_day(tmp_path, day)
        job = Job(tmp_path / "store", restart=Restart.none())
        rows = job.source(FileSource(tmp_path / "days", "csv", schema=TIMED), uid="days", watermarks=Watermarks("at"))
        columns = pa.schema({"user": pa.string(), "watermark": pa.int64()})
        rows.stateful(Watermarked(), key=["user"], uid="op", output_schema=columns).sink(OutputTable("out"))
        snapshot = job.run(mode="inline")
        found = snapshot.sql("select count(*) from out.rows where watermark = 9223372036854775807").fetchall()
        assert found == [(1,)]


def test_a_state_that_is_asked_for_no_more_does_not_count_at_the_end_of_event_time(tmp_path, caplog):
    write_day(tmp_path, 1)
    daily(tmp_path, "expiry").run(mode="inline")
    write_day(tmp_path, 2)

    job = Job(tmp_path / "store", restart=Restart.none())
    rows = job.source(FileSource(tmp_path / "days", "csv", schema=TIMED), uid="days", watermarks=Watermarks("at"))
    rows.stateful(Counts(), key=["user"], uid="op")
    assert job.run(mode="inline").sql("select rows from op.rows").fetchall() == [(2,)]
    assert "had ended" not in caplog.text


def test_a_job_that_was_stopped_goes_on_with_the_windows_of_the_next_day(tmp_path):
    for day in (1, 2):
        write_day(tmp_path, day)
        with daily(tmp_path, "windows", is_bounded=False).start(mode="inline") as running:
            running.go_on(200)
            snapshot = running.stop()

    assert snapshot.sql("select total from out.rows").fetchall() == [(2,)]


@pytest.mark.parametrize("mode", ["inline", "threads"])
@pytest.mark.parametrize("sink", [ParquetSink, BulkParquetSink])
def test_a_sink_with_another_folder_gets_only_the_rows_after_a_job_that_ended(tmp_path, sink, mode):
    for day in (1, 2):
        write_day(tmp_path, day)
        job = Job(tmp_path / "store")
        source = FileSource(tmp_path / "days", "csv", schema=TIMED)
        job.source(source, uid="days").sink(sink(tmp_path / f"out{day}"), uid="out")
        snapshot = job.run(mode=mode)

    found = [
        ds.dataset(tmp_path / f"out{day}", exclude_invalid_files=True).to_table()["at"].to_pylist() for day in (1, 2)
    ]
    assert found == [[13, 14], [23, 24]]
    entry = arrowstate.open_store(tmp_path / "store").latest().entry
    assert entry.checkpoint_id == snapshot.checkpoint_id
    assert [operator.uid for operator in entry.operators] == ["days"]


def emitting(folder):
    job = Job(folder / "store")
    rows = job.source(GeneratorSource(numbered, ROWS.schema, batch_rows=1), uid="rows")
    rows.sink(ParquetSink(folder / "out"), uid="out")
    rows.sink(OutputTable("table"))
    return job


def ended(folder):
    with emitting(folder).start(mode="inline") as running:
        running.go_on(3)
        running.stop()
    return arrowstate.open_store(folder / "store")


def test_what_a_job_notes_at_its_end_is_no_change_of_its_tables_and_the_first_publication_is_one(tmp_path):
    store = ended(tmp_path)
    assert store.latest().entry.kind == "compaction"

    for kind in ("delta", "iceberg"):
        store.publish(tmp_path / kind, format=kind)

    (commit,) = (tmp_path / "delta").rglob("_delta_log/*.json")
    added = [action["add"] for action in map(json.loads, commit.read_text().splitlines()) if "add" in action]
    assert {item["dataChange"] for item in added} == {True}
    (metadata,) = (tmp_path / "iceberg").rglob("*.metadata.json")
    assert [item["summary"]["operation"] for item in json.loads(metadata.read_text())["snapshots"]] == ["append"]


def test_a_checkpoint_whose_entry_goes_while_its_note_stays_was_not_removed(tmp_path, caplog):
    for _ in range(2):
        store = ended(tmp_path)

    assert [snapshot.checkpoint_id for snapshot in store.checkpoints()] == [1, 2]
    assert "checkpoints were removed" not in caplog.text
