"""How the job of a store is said to be: by crafted reports, and by jobs that run, fail, stand still and are gone."""

import os
import threading

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.coordination import CheckpointRecord, Status
from arrowstate.cli import main
from arrowstate.errors import JobFailedError, UserFunctionError
from arrowstate.log.jobs import FailedCheckpoint, Failure, JobReport, as_json, newest_report, put_report, report_of
from arrowstate.runtime import GeneratorSource, Job, JobStatus, Restart, RestartStatus, TableSource, TaskStatus
from arrowstate.runtime.reporting import Account, Look
from arrowstate_formats.documents import JobDocument

SCHEMA = pa.schema({"k": pa.int64(), "n": pa.int64()})
ROWS = pa.table({"k": [0, 1], "n": [1, 2]}, schema=SCHEMA)
NOW_MS = 10_000_000
FAILED = FailedCheckpoint(7, 1, 2, "expired", "not done after 600 ms")


@pytest.fixture
def store():
    """A store with a checkpoint of now, of writer epoch 1."""
    store = arrowstate.open_store(f"memory://health-{os.urandom(4).hex()}", create=True)
    store.clock_ms = lambda: NOW_MS
    with store.writer() as writer:
        writer.checkpoint({"op": [arrowstate.KeyedStateBackend(key=SCHEMA, max_parallelism=128)]})
    return store


def say(store, state="running", *, written_at_ms=NOW_MS, epoch=1, **report):
    report = JobReport(**{"since_ms": NOW_MS - 60_000, "interval_ms": 1_000, **report})
    put_report(
        store.storage,
        JobDocument(
            writer_epoch=epoch,
            holder="process 7 on there",
            lease_ms=10_000,
            renewal=3,
            state=state,
            written_at_ms=written_at_ms,
            report=as_json(report),
        ),
    )


@pytest.mark.parametrize(
    ("state", "given", "status", "exit_code", "problem"),
    [
        ("running", {}, "up", 0, None),
        ("finished", {}, "finished", 0, None),
        ("stopped", {"written_at_ms": 0}, "stopped", 0, None),
        ("failed", {"reason": "ValueError: no"}, "failed", 4, "ValueError: no"),
        ("starting", {}, "starting", 3, "it is starting"),
        ("down", {"reason": "ValueError: no"}, "down", 4, "ValueError: no"),
        ("running", {"written_at_ms": NOW_MS - 20_000}, "up", 0, None),
        ("running", {"written_at_ms": NOW_MS - 20_001}, "gone", 4, "no sign of life for 20 s"),
        ("down", {"written_at_ms": NOW_MS - 20_001}, "gone", 4, "no sign of life"),
        ("running", {"epoch": 0}, "fenced", 4, "a writer of epoch 1 has fenced it, of epoch 0"),
        ("finished", {"epoch": 0}, "finished", 0, None),
        (
            "running",
            {"failed_in_a_row": 2, "failed_checkpoints": (FAILED,)},
            "unwell",
            3,
            "the last 2 checkpoints failed; 7 expired: not done after 600 ms",
        ),
        ("running", {"failed_checkpoints": (FAILED,)}, "up", 0, None),
        (
            "running",
            {"failures": (Failure(NOW_MS - 500_000, 1, "E", "e"),) * 2 + (Failure(NOW_MS, 2, "E", "the last"),)},
            "unwell",
            3,
            "it failed 3 times in the last 10 minutes: the last",
        ),
        ("running", {"failures": (Failure(NOW_MS - 700_000, 1, "E", "e"),) * 3}, "up", 0, None),
    ],
)
def test_a_job_is_what_its_report_and_the_log_say(store, state, given, status, exit_code, problem):
    say(store, state, **given)

    health = store.health()

    assert (health.status, health.exit_code) == (status, exit_code)
    assert health.is_ok == (exit_code == 0)
    assert (problem is None) == (health.problems == ())
    assert problem is None or problem in health.problems[0]


@pytest.mark.parametrize(("passed_ms", "status"), [(10_000, "up"), (10_001, "unwell")])
def test_a_job_without_a_checkpoint_for_ten_intervals_is_not_well(store, passed_ms, status):
    store.clock_ms = lambda: NOW_MS + passed_ms
    say(store, written_at_ms=NOW_MS + passed_ms)

    assert store.health().status == status


def test_a_job_that_has_just_begun_has_time_for_its_first_checkpoint(store):
    later_ms = NOW_MS + 86_400_000
    store.clock_ms = lambda: later_ms
    say(store, written_at_ms=later_ms, since_ms=later_ms - 9_000)

    assert store.health().status == "up"


def test_a_store_without_a_job_is_unknown_and_so_is_one_whose_report_is_damaged(store):
    assert store.health().exit_code == 5
    store.storage.put_hint("jobs/00000000000000000001.json", b"{")
    assert store.health().status == "unknown"


def test_what_another_version_reports_is_taken_as_far_as_it_can_be_read(store):
    say(store)
    document = newest_report(store.storage)
    put_report(store.storage, msgspec.structs.replace(document, report={"more": 1, "attempt": 3}))
    assert store.health().report.attempt == 3
    put_report(store.storage, msgspec.structs.replace(document, report={"attempt": "three"}))
    assert store.health().report == JobReport()


def task(uid, late=0, dead=0):
    return TaskStatus(uid, 0, 10, 1.0, 0.5, 0.25, 0, None, False, late, dead)


def status_of(*records, state="running", attempt=1, restarts=(), tasks=()):
    return JobStatus(state, attempt, (), records, tasks, (), restarts)


def test_a_report_is_bounded_and_keeps_the_last_of_earlier_starts():
    before = JobReport(failures=(Failure(1, 1, "Old", "of before"),), failed_checkpoints=(FAILED,))
    account = Account(before, 1_000, ["rows"], 0)
    records, failures = [], []
    for number in range(1, 61):
        status = Status.COMPLETED if number == 30 else Status.EXPIRED
        records.append(CheckpointRecord(number, "checkpoint", number, status, number, "x" * 10_000))
        failures.append((number, ValueError(number)))
        if number == 10:
            _, early = account.report(Look(status_of(*records), tuple(failures), None), 60_000 * number)
        _, last = account.report(Look(status_of(*records), tuple(failures), None), 60_000 * number)

    assert early.failures[0].text == "of before"
    assert [item.checkpoint_id for item in early.failed_checkpoints] == [7, *range(1, 11)]
    assert (last.failed_count, last.failed_in_a_row, last.restarts) == (59, 30, 60)
    assert [item.checkpoint_id for item in last.failed_checkpoints] == list(range(41, 61))
    assert [item.text for item in last.failures] == [str(number) for number in range(41, 61)]
    assert max(len(item.reason) for item in last.failed_checkpoints) < 5_000


def test_an_hour_of_minutes_is_kept_and_rows_that_were_left_out_add_up_over_attempts():
    account = Account(JobReport(), 1_000, ["rows"], 0)
    for minute in range(90):
        tasks = (task("rows", late=minute % 45, dead=1),)
        _, report = account.report(Look(status_of(attempt=1 + minute // 45, tasks=tasks), (), None), minute * 60_000)

    (operator,) = report.operators
    assert [minute[0] for minute in operator.minutes] == [number * 60_000 for number in range(30, 90)]
    assert operator.minutes[-1][1:] == (0.5, 0.25)
    assert (operator.late_rows, operator.dead_rows, operator.is_source) == (88, 2, True)


def test_a_job_that_fails_before_it_runs_again_is_down_since_the_first_of_these_failures():
    account = Account(JobReport(), 1_000, [], 0)
    restarts = (
        RestartStatus(1, 5, "a", 1, 6, 6),
        RestartStatus(2, 10, "b", 1, None, 11),
        RestartStatus(3, 20, "c", None, None, 30),
    )

    waiting = account.report(Look(status_of(state="waiting", restarts=restarts), (), None), 25)
    restoring = account.report(Look(status_of(state="restoring", restarts=restarts), (), None), 31)
    rescaled = account.report(
        Look(status_of(state="deploying", restarts=(RestartStatus(1, 5, "rescaled"),)), (), None), 40
    )

    assert [(state, report.since_ms, report.reason) for state, report in (waiting, restoring)] == [
        ("down", 10, "c")
    ] * 2
    assert (waiting[1].again_at_ms, rescaled[0]) == (30, "starting")


def numbered(first, count):
    numbers = np.arange(first, first + count)
    return pa.record_batch({"k": numbers % 3, "n": numbers})


class Function(arrowstate.KeyedProcessFunction):
    def process_element(self, value, context, out):
        if value.n == 7:
            raise ValueError("seven")


def failing(name, restart):
    job = Job(name, restart=restart, lease_ms=1_000, options=arrowstate.CheckpointOptions(interval_ms=50))
    source = GeneratorSource(numbered, SCHEMA, rows_per_second=1_000, batch_rows=5)
    job.source(source, uid="numbers").stateful(Function(), key=["k"], uid="counts")
    return job


def awaited(store, *statuses):
    """Return the health when it is one of these; the job says it within the time of a lease."""
    for _ in range(2_000):
        health = store.health()
        if health.status in statuses:
            return health
        threading.Event().wait(0.02)
    raise TimeoutError(f"{health}")


def test_a_job_that_is_down_says_why_and_at_which_row_and_so_does_its_store_when_it_is_gone(tmp_path, capsys):
    with failing(tmp_path / "store", Restart.fixed(delay_ms=3_600_000)).start(mode="threads") as running:
        health = awaited(running.store, "down")
        code = main(["status", str(tmp_path / "store")])
    printed = capsys.readouterr().out
    with failing(tmp_path / "store", Restart.none()).start(mode="threads") as again, pytest.raises(JobFailedError):
        again.wait()
    gone = arrowstate.open_store(tmp_path / "store").health()

    (failure,) = health.report.failures
    assert failure.error == UserFunctionError.__name__
    assert "{'k': 1, 'n': 7}" in failure.row
    assert "ValueError: seven" in health.problems[0]
    assert code == 4
    assert "at row" in printed
    assert gone.status == "failed"
    assert "ValueError: seven" in gone.problems[0]
    # That of the start before is there too; how many rows are in the batch before that row is another matter.
    assert ["{'k': 1, 'n': 7}" in item.row for item in gone.report.failures] == [True, True]


def test_a_start_that_is_refused_changes_nothing_of_what_is_known_of_the_job():
    job = Job("memory://no-start")
    job.source(TableSource(ROWS), uid="rows").map_batches(lambda batch: batch)

    with pytest.raises(arrowstate.ArrowStateError):
        job.start(mode="processes")
    before = arrowstate.open_store("memory://no-start").health()
    job.run(mode="threads")
    with pytest.raises(arrowstate.ArrowStateError):
        job.start(mode="processes")
    after = arrowstate.open_store("memory://no-start").health()

    assert (before.status, after.status) == ("unknown", "finished")


def test_a_job_whose_coordinator_hangs_is_gone_though_its_process_is_there():
    goes_on = threading.Event()
    job = Job("memory://hangs", lease_ms=500)
    job.source(GeneratorSource(numbered, SCHEMA, rows_per_second=10), uid="numbers").map_batches(lambda batch: batch)
    with job.start(mode="threads") as running:
        awaited(running.store, "up", "unwell")
        running.driver.post(lambda _: goes_on.wait(60))

        health = awaited(running.store, "gone")
        goes_on.set()

    assert "no sign of life" in health.problems[0]


def test_dead_letters_of_the_newest_checkpoint_are_counted():
    job = Job("memory://dead-letters-of-health")
    rows = job.source(TableSource(pa.table({"k": [1, 2], "n": [7, 8]}, schema=SCHEMA)), uid="rows")
    rows.stateful(Function(), key=["k"], uid="counts", on_error="dead_letter")
    job.run(mode="threads")

    health = arrowstate.open_store("memory://dead-letters-of-health").health()

    assert health.dead_letters == (("counts_dead_letters", 1),)
    assert {item.operator: item.dead_rows for item in health.report.operators} == {"rows": 0, "counts": 1}
    assert report_of(newest_report(arrowstate.open_store("memory://dead-letters-of-health").storage)) == health.report
