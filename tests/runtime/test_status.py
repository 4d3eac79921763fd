"""How a running job says that it is: counts of rows and bytes, parts of the time, restarts, and all of it in SQL."""

import pyarrow as pa
import pytest

import arrowstate
import runtime_jobs as jobs
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.runtime import (
    Batch,
    GeneratorSource,
    Job,
    OutputTable,
    Reader,
    Restart,
    Source,
    Split,
    TableSource,
    Watermarks,
)
from arrowstate.runtime.core import exchange

NUMBERS = pa.table({"k": [f"key {number % 5}" for number in range(100)], "n": pa.array(range(100), pa.int64())})
COUNT = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count")


class Endless(Source):
    """Rows for as long as one likes, ten at a time."""

    schema = NUMBERS.schema
    is_bounded = False

    def __init__(self, keys: list[str] | None = None) -> None:
        keys = keys or [f"key {number}" for number in range(5)]
        self.rows = pa.record_batch({"k": (keys * 10)[:10], "n": pa.array(range(10), pa.int64())})

    def discover(self, known):
        return [] if "all" in known else [Split("all", 0)]

    def reader(self):
        return _EndlessReader(self.rows)


class _EndlessReader(Reader):
    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.position = None

    def add(self, splits):
        self.position = splits[0].position

    def read(self, max_rows):
        if self.position is None:
            return None
        self.position += 10
        return Batch(self.rows, "all", self.position)


class Counts(arrowstate.BatchFunction):
    """Counts rows and gives them on."""

    left: list = []  # noqa: RUF012 (shared by the copies of one process on purpose)
    "Failures to come."

    def open(self, context):
        self.count = context.state(COUNT)

    def process_batch(self, batch, context):
        if self.left:
            raise self.left.pop()
        self.count.add_batch(context.key_columns(batch), batch["n"])
        return batch


class Slow(arrowstate.BatchFunction):
    """Gives rows on; each batch takes a while by the clock of the job."""

    clock: list = []  # noqa: RUF012

    def __init__(self, takes_ms: int) -> None:
        self.takes_ms = takes_ms

    def process_batch(self, batch, context):
        for inline in self.clock:
            inline.clock_ms += self.takes_ms
        return batch


def chain_of_two(
    store: str, source: Source, first: arrowstate.BatchFunction, second: arrowstate.BatchFunction, **options
) -> Job:
    job = Job(store, options=CheckpointOptions(interval_ms=None), **options)
    rows = job.source(source, uid="numbers")
    counted = rows.stateful(first, key=["k"], uid="first", output_schema=NUMBERS.schema)
    counted.stateful(second, key=["k"], uid="second", output_schema=NUMBERS.schema).sink(OutputTable("kept"))
    return job


@pytest.fixture
def clock():
    yield Slow.clock
    Slow.clock.clear()


def test_rows_are_counted_in_and_out_of_each_task_and_through_each_channel():
    job = chain_of_two("memory://status-counts", TableSource(NUMBERS), Counts(), Counts(), parallelism=3)

    with job.start(mode="inline") as running:
        running.wait()
    tasks = running.sql(
        "select operator, sum(rows_in), sum(rows_out), bool_and(has_ended) from runtime.tasks group by 1 order by 1"
    ).fetchall()
    channels = running.sql(
        "select origin, operator, input, count(*), sum(rows), sum(in_flight_rows), sum(in_flight_bytes)"
        " from runtime.channels group by all order by 1"
    ).fetchall()

    assert tasks == [("first", 100, 100, True), ("numbers", 100, 100, True), ("second", 100, 100, True)]
    assert channels == [("first", "second", "0", 9, 100, 0, 0), ("numbers", "first", "0", 9, 100, 0, 0)]


def test_a_job_that_has_ended_shows_what_it_did_and_no_rates():
    job = Job("memory://status-ended")
    rows = job.source(TableSource(NUMBERS), uid="numbers")
    rows.stateful(Counts(), key=["k"], uid="counts", output_schema=NUMBERS.schema)
    with job.start(mode="inline") as running:
        running.wait()
        status = running.status()

    assert (status.state, {task.rows for task in status.tasks}) == ("finished", {100})
    assert {task.rows_per_second for task in status.tasks} == {0.0}
    assert {(task.busy, task.blocked) for task in status.tasks} == {(0.0, 0.0)}
    assert {channel.rows_per_second for channel in status.channels} == {0.0}


def test_bytes_of_a_task_are_those_of_its_channels():
    job = chain_of_two("memory://status-bytes", TableSource(NUMBERS), Counts(), Counts(), parallelism=2)

    with job.start(mode="inline") as running:
        running.wait()
    same = running.sql(
        "with sent as (select operator, to_subtask as subtask, sum(bytes) as bytes from runtime.channels group by all)"
        " select bool_and(bytes = bytes_in and bytes > 0) from sent join runtime.tasks using (operator, subtask)"
    ).fetchall()

    assert same == [(True,)]


def test_the_bottleneck_is_the_busy_task_behind_blocked_ones(monkeypatch, clock):
    monkeypatch.setattr(exchange, "CREDIT_BYTES", 100)
    source = Endless([owned_by(1)])
    job = chain_of_two("memory://status-bottleneck", source, Slow(1), Slow(9), parallelism=2)

    with job.start(mode="inline", seed=1) as running:
        clock.append(running.driver.inline)
        running.go_on(1_000)
        bottleneck = running.sql("select operator, subtask from runtime.tasks order by busy desc limit 1").fetchall()
        status = running.status()
    tasks = {(task.task, task.slot): task for task in status.tasks}
    (waiting,) = (channel for channel in status.channels if channel.origin == "numbers" and channel.rows)

    assert bottleneck == [("second", 1)]
    assert tasks["second", 1].busy > 0.6 > tasks["first", 1].busy > 0
    assert tasks["numbers", 0].blocked > 0.3
    assert tasks["second", 1].blocked == 0
    assert all(task.busy + task.blocked + task.idle <= 1 for task in status.tasks)
    assert (waiting.from_slot, waiting.to_slot) == (0, 1)
    assert waiting.blocked > 0.3
    assert waiting.in_flight_rows >= waiting.queued_rows
    assert waiting.in_flight_bytes > 0


def owned_by(subtask: int) -> str:
    """A key of a subtask, of two."""
    keys = pa.record_batch({"k": [f"key {number}" for number in range(20)]})
    parts = dict(exchange.split_by_subtask(keys, keys.columns, [pa.string()], 128, 2))
    return parts[subtask].column(0)[0].as_py()


def test_a_task_that_has_nothing_to_do_is_idle():
    job = chain_of_two("memory://status-idle", TableSource(NUMBERS), Counts(), Counts())
    job.source(Silent(), uid="silent").sink(OutputTable("nothing"))

    with job.start(mode="inline") as running:
        ends_ms = running.driver.inline.clock_ms + 2_000
        while running.driver.inline.clock_ms < ends_ms:
            running.go_on(200)
        status = {task.task: task for task in running.status().tasks}

    assert status["second"].has_ended
    assert status["second"].idle > 0.9
    assert status["second"].busy == status["second"].blocked == 0


class Silent(Endless):
    """A source that never has any."""

    def discover(self, known):
        return []


def test_the_watermark_and_how_far_it_is_behind_the_clock_are_shown():
    job = Job("memory://status-lag", options=CheckpointOptions(interval_ms=None))
    rows = job.source(TableSource(jobs.rows()), uid="rows", watermarks=Watermarks("at"))
    rows.stateful(jobs.Running(), key=["user"], uid="running", output_schema=jobs.RUNNING)
    job.source(Silent(), uid="silent").sink(OutputTable("nothing"))

    with job.start(mode="inline") as running:
        started_ms = running.driver.inline.clock_ms
        shown = {}
        for _ in range(2_000):
            running.go_on(1)
            shown |= {task.task: task for task in running.status().tasks if task.lag_ms is not None}
        ended = {task.task: task.lag_ms for task in running.status().tasks}

    for task in shown.values():
        assert started_ms - task.watermark <= task.lag_ms <= started_ms + 2_000 - task.watermark
    assert ended["rows"] is None


def test_restarts_are_told_with_their_reason_and_how_the_job_went_on():
    restart = Restart.fixed(delay_ms=40)
    job = chain_of_two("memory://status-restarts", TableSource(NUMBERS), Counts(), Slow(0), restart=restart)
    Counts.left[:] = [ValueError("not this one"), ValueError("not this one")]

    with job.start(mode="inline") as running:
        running.wait()
        status = running.status()
    rows = running.sql("select attempt, checkpoint_id, down_ms >= 40, reason from runtime.restarts").fetchall()

    assert [row[:3] for row in rows] == [(1, None, True), (2, None, True)]
    assert all("operator 'first'" in row[3] and "not this one" in row[3] for row in rows)
    assert [record.reason for record in status.restarts] == list(status.failures)


def test_a_change_of_parallelism_is_told_too_and_with_the_checkpoint_that_the_job_went_on_from():
    job = chain_of_two("memory://status-rescale", Endless(), Counts(), Counts())

    with job.start(mode="inline") as running:
        taken = running.checkpoint().checkpoint_id
        running.rescale(parallelism=2)
        running.rescale(parallelism=3)
        running.checkpoint()
        rows = running.sql("select attempt, checkpoint_id, reason, running_at is not null from runtime.restarts")
        found = rows.fetchall()
        checkpoints = running.sql("select checkpoint_id from runtime.checkpoints where status = 'completed'").fetchall()

    assert found == [
        (1, taken + 1, "rescaled from parallelism 1 to 2", True),
        (2, taken + 2, "rescaled from parallelism 2 to 3", True),
    ]
    assert checkpoints == [(taken + number,) for number in range(4)]


def test_the_report_counts_rows_that_were_set_aside_before_a_change_of_parallelism():
    def numbered(first, count):
        numbers = range(first, first + count)
        return pa.record_batch({"k": ["key" if n else None for n in numbers], "n": pa.array(numbers, pa.int64())})

    source = GeneratorSource(numbered, NUMBERS.schema, rows_per_second=1_000)
    job = Job("memory://status-set-aside", lease_ms=100)
    job.source(source, uid="numbers").stateful(Counts(), key=["k"], uid="counts", on_error="dead_letter")

    def dead():
        return sum(operator.dead_rows for operator in running.store.health().report.operators)

    with job.start(mode="threads") as running:
        while not dead():
            running.checkpoint()
        running.rescale(parallelism=2)
        running.checkpoint()
        running.stop()

    assert dead() == 1


def test_checkpoints_are_told_and_how_long_each_waited_for_barriers():
    job = chain_of_two("memory://status-checkpoints", Endless(), Counts(), Counts(), parallelism=2)

    with job.start(mode="inline") as running:
        taken = running.checkpoint().checkpoint_id
        rows = running.sql(
            "select checkpoint_id, status, acknowledged, alignment_us is not null, told.bytes_written > 0"
            " from runtime.checkpoints told join arrowstate.checkpoints using (checkpoint_id, alignment_us)"
        ).fetchall()

    assert rows == [(taken, "completed", 6, True, True)]


def test_states_are_beside_how_the_job_is_and_before_the_first_checkpoint_there_are_none():
    job = chain_of_two("memory://status-states", Endless(), Counts(), Counts())

    with job.start(mode="inline") as running:
        before = running.sql("select count(*) from arrowstate.checkpoints").fetchall()
        with pytest.raises(StateNotFoundError, match="runtime.tasks"):
            running.sql("select * from first.count")
        running.checkpoint()
        both = running.sql(
            "select operator, count(*) from first.count, runtime.tasks where operator = $name group by 1",
            params={"name": "first"},
        ).fetchall()
        with pytest.raises(InvalidInputError, match="one SELECT"):
            running.sql("drop table runtime.tasks")

    assert before == [(0,)]
    assert both == [("first", 5)]


def test_an_operator_called_runtime_keeps_its_name():
    job = Job("memory://status-name", options=CheckpointOptions(interval_ms=None))
    job.source(TableSource(NUMBERS), uid="numbers").stateful(Counts(), key=["k"], uid="Runtime")

    with job.start(mode="inline") as running:
        running.wait()
    rows = running.sql(
        'select sum(count) from runtime.count, "runtime~2".tasks where operator = $1', params=["Runtime"]
    )

    assert rows.fetchall() == [(100,)]
