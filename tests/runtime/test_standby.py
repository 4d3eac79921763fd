"""Leases of jobs, and those who stand by: who takes over when, and what one that was taken over from still does."""

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
import standby_rounds
from arrowstate.errors import FencedError, JobFailedError, StoreNotFoundError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.jobs import newest_report, read_report, report_of
from arrowstate.runtime import GeneratorSource, Job, OutputTable, PostgresSink, Restart, Sink, TableSource
from arrowstate.runtime.lease import JobLease
from arrowstate.runtime.standing_by import OvertakenError, Watch
from arrowstate.upkeep.stored_files import StoredFiles
from long_form import short_or_long
from postgres import postgres_programs

SCHEMA = pa.schema({"k": pa.int64(), "n": pa.int64()})
ROWS = pa.table({"k": [0, 1, 2, 0], "n": [1, 2, 3, 4]}, schema=SCHEMA)
LEASE_MS = 300


def numbered(first, count):
    numbers = np.arange(first, first + count)
    return pa.record_batch({"k": numbers % 3, "n": numbers})


class Counts(arrowstate.BatchFunction):
    def open(self, context):
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))

    def process_batch(self, batch, context):
        self.count.add_batch(context.group_keys(batch), batch["n"])


class Failing(Counts):
    def process_batch(self, batch, context):
        raise ValueError("it never works")


def endless():
    return GeneratorSource(numbered, SCHEMA, rows_per_second=2_000, batch_rows=50)


def declared(store, source, function=None, **options):
    options = {"lease_ms": LEASE_MS, "options": arrowstate.CheckpointOptions(interval_ms=50), **options}
    job = Job(store, **options)
    job.source(source, uid="numbers").stateful(function or Counts(), key=["k"], uid="counts")
    return job


class Clock:
    """A clock that stands still."""

    def __init__(self):
        self.now_ms = 1_000

    def __call__(self):
        return self.now_ms


@pytest.fixture
def watched():
    """A store with a fence, a lease on it, and a watch, each with a clock of its own."""
    store = arrowstate.open_store(f"memory://watched-{os.urandom(4).hex()}", create=True)
    writer = store.writer()
    own, other, times = Clock(), Clock(), Clock()
    lease = JobLease(store.storage, writer.epoch, 1_000, clock_ms=times, monotonic_ms=own)
    return store, lease, own, Watch(store.storage, 1_000, other), other, times


def test_a_lease_that_is_renewed_is_never_over_and_one_that_is_not_is_after_its_time(watched):
    _, lease, _, watch, clock, _ = watched
    found = []
    for _ in range(5):
        lease.renew("running", {})
        found.append(watch.is_over())
        clock.now_ms += 999
        found.append(watch.is_over())
    clock.now_ms += 1

    assert found == [False] * 10
    assert watch.is_over()


@pytest.mark.parametrize("skew_ms", [-1 << 40, 1 << 40])
def test_the_clock_of_the_job_says_nothing_to_those_who_stand_by(watched, skew_ms):
    _, lease, _, watch, clock, times = watched
    times.now_ms += skew_ms
    lease.renew("running", {})
    watch.is_over()
    clock.now_ms += 999
    before = watch.is_over()
    clock.now_ms += 1

    assert (before, watch.is_over()) == (False, True)


def test_a_clock_that_is_set_back_ends_no_lease(tmp_path, monkeypatch):
    real = time.time_ns
    with (
        declared(tmp_path, endless()).start(mode="threads") as running,
        declared(tmp_path, endless()).stand_by(mode="threads") as standby,
    ):
        for minutes in (1, 2, 3):
            monkeypatch.setattr(time, "time_ns", lambda back=minutes * 60 * 10**9: real() - back)
            with pytest.raises(TimeoutError):
                standby.wait(timeout_ms=3 * LEASE_MS)
        assert running.status().state == "running"


@pytest.mark.parametrize("is_running", [False, True])
def test_one_who_stands_by_at_a_store_that_is_made_anew_says_so(tmp_path, is_running):
    store = tmp_path / "store"
    arrowstate.open_store(store, create=True)
    with declared(store, endless()).stand_by(mode="threads") as standby:
        shutil.rmtree(store)
        arrowstate.open_store(store, create=True)
        with (
            declared(store, endless()).start(mode="threads") if is_running else nullcontext(),
            pytest.raises(StoreNotFoundError, match="open that one anew"),
        ):
            standby.wait(timeout_ms=20_000)


def test_another_writer_has_the_time_of_a_lease_from_when_it_is_seen(watched):
    store, lease, _, watch, clock, _ = watched
    lease.renew("running", {})
    watch.is_over()
    clock.now_ms += 5_000
    store.writer()

    found = []
    for _ in range(3):
        found.append(watch.is_over())
        clock.now_ms += 999
    clock.now_ms += 1

    assert found == [False, False, True]


def test_nobody_is_taken_over_who_commits_in_the_last_moment(watched):
    store, lease, _, watch, clock, _ = watched
    lease.renew("running", {})
    watch.is_over()
    clock.now_ms += 1_000
    assert watch.is_over()
    newest = CommitLog(store.storage).latest()
    watch.check(newest)

    lease.renew("running", {})

    with pytest.raises(OvertakenError):
        watch.check(newest)
    store.writer()
    with pytest.raises(OvertakenError):
        watch.check(CommitLog(store.storage).latest())


def test_who_was_fenced_learns_it_when_the_lease_has_ended_and_writes_nothing(watched):
    store, lease, own, *_ = watched
    lease.renew("running", {})
    before = newest_report(store.storage)
    own.now_ms += 999
    store.writer()

    lease.check()  # Until its end nobody can have taken over but by force.
    own.now_ms += 1

    for act in (lease.check, lambda: lease.renew("running", {}), lease.check):
        with pytest.raises(FencedError, match=r"\(epoch 1\) was fenced by a newer one \(epoch 2\)"):
            act()
    assert newest_report(store.storage) == before


class Slow(Sink):
    """Waits in its first commit."""

    def __init__(self, name):
        self.name = name

    begun, goes_on = threading.Event(), threading.Event()
    given: list = []  # noqa: RUF012 (one for all, as what is outside would be)

    def commit(self, rows, token):
        Slow.given.append((self.name, token.checkpoint_id))
        Slow.begun.set()
        assert Slow.goes_on.wait(60)


def test_a_job_that_slept_while_another_took_over_gives_sinks_nothing_more():
    Slow.begun.clear(), Slow.goes_on.clear(), Slow.given.clear()
    job = Job("memory://slept", lease_ms=60_000, options=arrowstate.CheckpointOptions(interval_ms=50))
    rows = job.source(endless(), uid="numbers")
    for name in ("one", "two"):
        rows.sink(Slow(name), uid=name)
    with job.start(mode="threads") as running:
        assert Slow.begun.wait(60)
        running.store.writer()
        running._reporter.lease._monotonic_ms = lambda: 1 << 60
        Slow.goes_on.set()

        with pytest.raises(JobFailedError, match="FencedError: this writer"):
            running.wait()

    assert len(Slow.given) == 1


def test_a_job_that_is_fenced_ends_without_a_commit_to_learn_it_from():
    options = arrowstate.CheckpointOptions(interval_ms=None)
    with declared("memory://fenced", endless(), options=options).start(mode="threads") as running:
        running.store.writer()

        with pytest.raises(JobFailedError, match="FencedError: this writer"):
            running.wait(60_000)

    assert newest_report(running.store.storage).state in ("starting", "running")


@pytest.mark.parametrize(
    ("end", "state"), [("finish", "finished"), ("stop", "stopped"), ("close", "stopped"), ("fail", "failed")]
)
def test_the_last_report_says_how_a_job_ended(end, state):
    store = f"memory://last-report-{end}"
    source = TableSource(ROWS) if end == "finish" else endless()
    job = declared(store, source, Failing() if end == "fail" else None, restart=Restart.none())
    with job.start(mode="threads") as running:
        if end == "stop":
            running.stop()
        elif end == "fail":
            with pytest.raises(JobFailedError):
                running.wait()
        elif end == "finish":
            running.wait()

    last = newest_report(running.store.storage)
    assert last.state == state
    assert ("it never works" in (report_of(last).reason or "")) == (end == "fail")


class Refusing(Sink):
    """A sink that says of each commit what UTF-8 cannot hold."""

    def commit(self, rows, token):
        raise ValueError("half a pair: \ud83d")


def test_a_job_that_failed_with_a_text_that_utf_8_cannot_hold_says_so():
    job = Job("memory://half-a-pair", restart=Restart.none())
    job.source(TableSource(ROWS), uid="refused").sink(Refusing(), uid="refusing")
    with job.start(mode="threads") as running:
        with pytest.raises(JobFailedError, match="half a pair"):
            running.wait()
        ((reason,),) = running.sql("select reason from runtime.restarts").fetchall()

    last = newest_report(running.store.storage)
    assert last.state == "failed"
    assert all("half a pair: \\ud83d" in text for text in (reason, report_of(last).reason))


UNCLOSED = """
import sys
import time
sys.path[:0] = {paths!r}
from test_standby import ROWS, declared, endless
from arrowstate.runtime import TableSource
running = declared({store!r}, {source}).start(mode="threads")
while {until} running.status().state != "finished":
    pass
# The coordinator is busy when the interpreter ends, so it hears late that the job is to end.
running.driver.post(lambda coordinator: time.sleep(0.5))
{last}
"""


@pytest.mark.parametrize(
    ("source", "until", "last", "state", "reason"),
    [
        ("TableSource(ROWS)", "", "", "finished", None),
        ("endless()", "False and", "", "stopped", None),
        ("endless()", "False and", "1 / 0", "failed", "the script of the job was left by ZeroDivisionError: division"),
        ("endless()", "False and", "raise KeyboardInterrupt", "stopped", None),
    ],
    ids=["its input has ended", "the script has ended", "an exception", "Ctrl-C"],
)
def test_a_job_that_nobody_has_closed_says_how_it_ended(tmp_path, source, until, last, state, reason):
    paths = [str(Path(__file__).parent), *(path for path in sys.path if "tests" in path)]
    script = UNCLOSED.format(paths=paths, store=str(tmp_path / "store"), source=source, until=until, last=last)

    subprocess.run([sys.executable, "-c", script], check=not last, timeout=120)

    report = newest_report(arrowstate.open_store(tmp_path / "store").storage)
    assert report.state == state
    assert (report_of(report).reason or "").startswith(reason or "")


@pytest.mark.parametrize(("error", "state"), [(ValueError("no such price"), "failed"), (SystemExit(), "stopped")])
def test_a_job_whose_block_an_exception_leaves_has_failed_by_it(error, state):
    with pytest.raises(type(error)), declared("memory://left", endless()).start(mode="threads") as running:
        raise error

    health = running.store.health()
    assert health.status == state
    told = ("the `with` block of the job was left by ValueError: no such price",)
    assert health.problems == (told if state == "failed" else ())


@pytest.mark.parametrize("ends", ["stopped", "finished", "failed"])
def test_a_standby_ends_with_a_job_that_ends_by_itself(ends):
    store = f"memory://ends-{ends}"
    source = GeneratorSource(numbered, SCHEMA, rows=1_000, rows_per_second=2_000, batch_rows=50)
    job = declared(store, source if ends == "finished" else endless(), lease_ms=5_000)
    with job.start(mode="threads") as running, declared(store, endless()).stand_by(mode="threads") as standby:
        if ends != "finished":
            with pytest.raises(TimeoutError, match="nothing has happened to the job"):
                standby.wait(LEASE_MS * 2)
        if ends == "stopped":
            running.stop()
        if ends == "failed":
            running.driver.call(lambda job: job._failed(ValueError("for good"), is_final=True))

        if ends == "failed":
            with pytest.raises(JobFailedError, match="ValueError: for good"):
                standby.wait(60_000)
        else:
            assert standby.wait(60_000) is None

    assert CommitLog(running.store.storage).latest().document.writer_epoch == 1


def test_a_job_that_had_ended_before_is_begun_by_a_standby():
    with declared("memory://ended-before", endless()).start(mode="threads") as running:
        stopped = running.stop()

    with declared("memory://ended-before", endless()).stand_by(mode="threads") as standby:
        taken = standby.wait(60_000)
    with taken:
        last = taken.stop()

    assert last.checkpoint_id > stopped.checkpoint_id


def test_of_two_who_stand_by_one_wins_and_the_other_stands_by_for_it():
    declared("memory://two", TableSource(ROWS)).run(mode="threads")
    standbys = [declared("memory://two", TableSource(ROWS)).stand_by(mode="threads") for _ in range(2)]
    with standbys[0], standbys[1]:
        for standby in standbys:
            with pytest.raises(TimeoutError):
                standby.wait(0)
        entry = standbys[0]._watch.seen.entry
        for standby in standbys:
            standby._watch._since_ms -= LEASE_MS
            assert standby._watch.is_over()

        with standbys[0]._take_over(), pytest.raises(OvertakenError):
            standbys[1]._take_over()

    newest = CommitLog(standbys[0].store.storage).latest()
    assert newest.document.writer_epoch == entry.document.writer_epoch + 1


def test_several_who_stand_by_in_threads_have_one_that_takes_over():
    name = "memory://several"
    standbys = [declared(name, endless()).stand_by(mode="threads") for _ in range(4)]

    def wait(standby):
        try:
            return standby.wait(LEASE_MS * 6)
        except TimeoutError:
            return None

    with ThreadPoolExecutor(4) as pool:
        found = [running for running in pool.map(wait, standbys) if running is not None]

    for standby in standbys:
        standby.close()
    assert [running.status().state for running in found] == ["running"]
    found[0].close()
    assert CommitLog(found[0].store.storage).latest().document.writer_epoch == 1


def test_a_job_whose_state_is_edited_is_gone_on_with_by_its_standby():
    options = arrowstate.CheckpointOptions(interval_ms=None)
    with declared("memory://edited", endless(), options=options).start(mode="threads") as running:
        running.checkpoint()
        with declared("memory://edited", endless()).stand_by(mode="threads") as standby:
            with pytest.raises(TimeoutError):
                standby.wait(0)
            edit = running.store.edit()
            edit.execute("insert into counts.count (k, count) values (77, 5)")
            edit.commit()
            with pytest.raises(JobFailedError, match="FencedError"):
                running.wait()

            taken = standby.wait(60_000)
    with taken:
        last = taken.stop()

    assert last.sql("select count from counts.count where k = 77").fetchall() == [(5,)]


class Away(Sink):
    """A sink whose server is away at first."""

    times = 2

    def open(self, store_id, uid):
        if Away.times:
            Away.times -= 1
            raise ConnectionError("the server is starting up")

    def commit(self, rows, token):
        pass


def test_who_takes_over_while_a_server_is_away_waits_for_it_as_the_job_would_have():
    job = Job("memory://away", lease_ms=LEASE_MS, restart=Restart.fixed(delay_ms=0))
    job.source(endless(), uid="numbers").sink(Away(), uid="sink")
    store = arrowstate.open_store("memory://away", create=True)
    lease = JobLease(store.storage, store.writer().epoch, LEASE_MS, clock_ms=store.clock_ms)

    with job.stand_by(mode="threads") as standby:
        lease.renew("running", {})
        with pytest.raises(TimeoutError):
            standby.wait(0)
        with standby.wait(60_000) as running:
            running.checkpoint()

    assert Away.times == 0
    assert [restart.attempt for restart in running.status().restarts] == [1, 2]


def test_a_standby_with_another_job_is_refused_when_it_begins():
    declared("memory://another", TableSource(ROWS)).run(mode="threads")
    other = Job("memory://another")
    other.source(TableSource(ROWS), uid="numbers").sink(OutputTable("copy"))

    with pytest.raises(arrowstate.InvalidInputError, match="which the job does not declare"):
        other.stand_by(mode="threads")


def test_the_slots_that_stood_ready_are_those_of_the_job(tmp_path):
    with declared(tmp_path / "store", endless(), parallelism=2).stand_by() as standby:
        ready = standby._ready._slots
        before = {process.popen.pid for process in ready._processes.values()}
        with standby.wait(60_000) as taken:
            taken.checkpoint()
            after = {process.popen.pid for process in taken.driver._slots._processes.values()}

    assert before == after


def test_a_slot_that_died_while_it_stood_ready_is_replaced(tmp_path):
    with declared(tmp_path / "store", endless(), parallelism=2, lease_ms=2_000).stand_by() as standby:
        first = standby._ready
        victim = first._slots._processes[0]
        victim.popen.kill()
        victim.watcher.join(60)

        with standby.wait(60_000) as taken:
            assert taken.checkpoint().checkpoint_id >= 1
            assert taken.status().failures == ()


def test_a_collection_leaves_reports_alone_and_a_purge_removes_them(tmp_path):
    store = tmp_path / "store"
    declared(store, TableSource(ROWS)).run(mode="threads")
    opened = arrowstate.open_store(store)
    opened.collect(arrowstate.RetentionPolicy(count=1)).apply()
    report = newest_report(opened.storage)
    foreign = StoredFiles.of(opened.storage, holds_own=True).foreign

    edit = opened.edit()
    edit.execute("delete from counts.count where k = 0")
    edit.purge()

    assert (report.state, foreign) == ("finished", ())
    assert read_report(opened.storage, report.writer_epoch) is None


@pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed")
def test_a_transaction_that_a_suspended_job_holds_open_is_ended(database, connection):
    connection.execute("create table outside (k bigint, n bigint)")
    suspended = PostgresSink(database, "outside")
    job = Job("memory://suspended", lease_ms=LEASE_MS)
    job.source(TableSource(ROWS), uid="numbers").sink(PostgresSink(database, "outside"), uid="outside")
    store = arrowstate.open_store("memory://suspended", create=True)
    suspended.open(store.store_id, "outside")
    suspended._commits._in_transaction(lambda connection: None)
    suspended._commits._connection.autocommit = False
    token = f"{store.store_id}/outside"
    suspended._commits._connection.execute("insert into arrowstate_commits values (%s, 0, 0)", (token,))

    running = job.start(mode="threads")
    try:
        running.wait(60_000)
    finally:
        is_open = not suspended._commits._connection.closed
        suspended.close()
        running.close()

    assert is_open  # Nobody at this end has closed it.
    assert connection.execute("select count(*) from outside").fetchone() == (4,)


@pytest.mark.slow
@pytest.mark.turns(12)
@pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed")
def test_rounds_of_kills_and_suspensions_have_each_row_once(tmp_path, database):
    assert standby_rounds.run_rounds(tmp_path, database, short_or_long(2, 20), 1) == 0
