"""What becomes of failures wherever they happen in a job: they are told, and the job starts again or ends."""

import logging
import sys
import textwrap
import threading
import time
import uuid
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.clock import now_ms
from arrowstate.runtime import (
    Batch,
    DirectSink,
    FileSource,
    GeneratorSource,
    Job,
    Reader,
    Restart,
    Sink,
    Source,
    Split,
    TableSource,
)
from arrowstate.runtime import running as running_module
from arrowstate.runtime.core import task, turns
from arrowstate.runtime.drivers import mailbox, threads, timed
from arrowstate.runtime.restart import is_unrecoverable
from processes import python
from stores import until

ROWS = pa.table({"k": pa.array([1, 2, 3] * 10, pa.int64())})
SCHEMA = ROWS.schema
MODES = ["inline", "threads"]
LONG_MS = 60_000


class HardStop(BaseException):
    """What is no `Exception`."""


class Raises(arrowstate.BatchFunction):
    """Raises in one of its places, so often; its copies count together."""

    left: dict = {}  # noqa: RUF012 (shared by the copies of one process on purpose)

    def __init__(self, place: str, error: BaseException, *, times: int = 1) -> None:
        self.place = place
        self.error = error
        self.name = uuid.uuid4().hex
        self.left[self.name] = times

    def may_raise(self, place):
        if place == self.place and self.left[self.name]:
            self.left[self.name] -= 1
            raise self.error

    def open(self, context):
        self.n = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count"))
        self.may_raise("open")

    def process_batch(self, batch, context):
        self.may_raise("batch")
        self.n.add_batch(context.key_columns(batch), batch["k"])

    def close(self):
        self.may_raise("close")


class Given(Source):
    """Rows of a table, whose reader raises in one of its places."""

    schema = SCHEMA

    def __init__(self, raises: Raises | None = None, *, after_rows: int = 0) -> None:
        self.raises = raises
        self.after_rows = after_rows

    def discover(self, known):
        self.may_raise("discover")
        return [] if known else [Split("all")]

    def reader(self):
        return _GivenReader(self)

    def may_raise(self, place):
        if self.raises is not None:
            self.raises.may_raise(place)


class _GivenReader(Reader):
    def __init__(self, source: Given) -> None:
        self.source = source
        self.position = 0
        self.inner = TableSource(ROWS).reader()

    def add(self, splits):
        self.inner.add([Split("0", splits[0].position)])

    def read(self, max_rows):
        if self.position >= self.source.after_rows:
            self.source.may_raise("read")
        got = self.inner.read(min(max_rows, 3))
        if isinstance(got, Batch):
            self.position = got.position
            return Batch(got.rows, "all", got.position)
        return type(got)("all") if self.source.is_bounded else None

    def committed(self, positions):
        self.source.may_raise("committed")

    def close(self):
        self.source.may_raise("reader close")


class Direct(DirectSink):
    def __init__(self, raises: Raises) -> None:
        self.raises = raises

    def write(self, rows, subtask):
        self.raises.may_raise("write")

    def close(self):
        self.raises.may_raise("sink close")


def declared(store, function=None, source=None, sink=None, **options) -> Job:
    options.setdefault("restart", Restart.fixed(delay_ms=0))
    options.setdefault("options", arrowstate.CheckpointOptions(interval_ms=None))
    job = Job(store, **options)
    rows = job.source(source or Given(), uid="rows")
    if sink is not None:
        rows.sink(sink, uid="sink")
    rows.stateful(function or Raises("nowhere", ValueError()), key=["k"], uid="counts")
    return job


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "error", [SystemExit(3), HardStop("no more"), ValueError("bad")], ids=lambda it: type(it).__name__
)
@pytest.mark.parametrize("place", ["open", "batch", "read", "write", "committed"])
def test_whatever_a_part_of_a_slot_raises_is_a_failure_of_the_attempt(tmp_path, place, error, mode):
    raises = Raises(place, error)
    source = Given(raises)
    # The job must not have ended before it is asked for a checkpoint.
    source.is_bounded = place != "committed"
    job = declared(tmp_path / "store", raises, source, Direct(raises), restart=Restart.none())

    with job.start(mode=mode) as running, pytest.raises(arrowstate.JobFailedError, match=type(error).__name__):
        if place == "committed":
            # The checkpoint before it may have raised.
            with suppress(arrowstate.errors.CheckpointAbortedError):
                running.checkpoint(timeout_ms=LONG_MS)
        running.wait(timeout_ms=LONG_MS)

    (failure,) = running.status().failures
    named = {"open": "counts", "batch": "counts", "read": "rows", "write": "sink", "committed": "rows"}
    assert f"operator {named[place]!r} failed at" in failure


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["close", "reader close", "sink close"])
def test_what_raises_when_it_is_closed_is_told_and_the_job_goes_on(tmp_path, caplog, place, mode):
    raises = Raises(place, HardStop("it was gone already"))
    job = declared(tmp_path / "store", raises, Given(raises), Direct(raises))

    with job.start(mode=mode) as running:
        running.driver.call(lambda coordinator: coordinator.failed(RuntimeError("any failure")))
        snapshot = running.wait(timeout_ms=LONG_MS)

    assert snapshot.sql("select sum(n) from counts.n").fetchall() == [(30,)]
    (told,) = [record for record in caplog.records if "could not be closed" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert "it was gone already" in caplog.text


class NotClosing(Sink):
    """Cannot be closed."""

    closed: list = []  # noqa: RUF012 (shared by the sinks of one job on purpose)

    def __init__(self, name):
        self.name = name

    def commit(self, rows, token):
        pass

    def close(self):
        self.closed.append(self.name)
        raise OSError(f"{self.name} was gone already")


@pytest.mark.parametrize("mode", MODES)
def test_a_sink_of_commits_that_cannot_be_closed_is_told_and_the_others_are_closed(tmp_path, caplog, mode):
    job = Job(tmp_path / "store")
    rows = job.source(Given(), uid="rows")
    for name in ("one", "other"):
        rows.sink(NotClosing(name), uid=name)
    NotClosing.closed.clear()

    job.run(mode=mode)

    assert NotClosing.closed == ["one", "other"]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["sink 'one' could not be closed", "sink 'other' could not be closed"]
    assert "one was gone already" in caplog.text


class Unloadable(Given):
    """Cannot be made again in the process of a slot."""

    def __setstate__(self, state):
        raise ValueError("no licence on this machine")


def test_a_job_that_cannot_be_made_in_its_slots_fails_at_its_start_and_says_why(tmp_path, caplog):
    job = declared(tmp_path / "store", source=Unloadable())

    with pytest.raises(arrowstate.JobFailedError, match="slot 0 .*could not begin: ValueError: no licence"):
        job.run(mode="processes")

    assert "in __setstate__" in caplog.text


def test_slots_that_the_system_does_not_bring_back_for_a_while_are_asked_for_again(tmp_path, monkeypatch):
    refusals = ["Too many open files", "Resource temporarily unavailable"]
    restart = threads.ThreadSlots.restart

    def short_of_something(slots):
        if refusals:
            raise OSError(refusals.pop())
        restart(slots)

    monkeypatch.setattr(threads.ThreadSlots, "restart", short_of_something)
    with declared(tmp_path / "store", source=endless()).start(mode="threads") as running:
        until(lambda: running.status().state == "running")
        running.driver.post(lambda coordinator: coordinator.slot_lost(0, RuntimeError("it died")))
        running.driver._slots._ended.append(0)
        until(lambda: running.status().attempt == 2 and running.status().state == "running")

        assert [text.partition(": ")[2] for text in running.status().failures] == [
            "it died",
            "Resource temporarily unavailable",
            "Too many open files",
        ]


def test_a_job_whose_slots_cannot_be_brought_back_fails_when_its_attempts_are_used_up(tmp_path, monkeypatch):
    def refuses(slots):
        raise OSError("Too many open files")

    monkeypatch.setattr(threads.ThreadSlots, "restart", refuses)
    job = declared(tmp_path / "store", source=endless(), restart=Restart.fixed(attempts=2, delay_ms=1))
    with job.start(mode="threads") as running:
        until(lambda: running.status().state == "running")
        running.driver.post(lambda coordinator: coordinator.slot_lost(0, RuntimeError("it died")))

        with pytest.raises(arrowstate.JobFailedError, match="Too many open files"):
            running.wait(timeout_ms=LONG_MS)

        assert [text.partition(": ")[2] for text in running.status().failures] == [
            "it died",
            "Too many open files",
            "Too many open files",
        ]


def test_a_keyboard_interrupt_ends_a_step_of_an_inline_job_and_reaches_its_user(tmp_path):
    raises = Raises("batch", KeyboardInterrupt())

    with declared(tmp_path / "store", raises).start(mode="inline") as running:
        with pytest.raises(KeyboardInterrupt):
            running.wait()
        snapshot = running.wait()

    assert snapshot.sql("select sum(n) from counts.n").fetchall() == [(30,)]


def test_what_the_coordinator_raises_ends_the_job_and_whoever_waits_is_told(tmp_path):
    with declared(tmp_path / "store", source=endless()).start(mode="threads") as running:
        running.driver.post(lambda _: sys.exit(4))

        with pytest.raises(arrowstate.JobFailedError, match="SystemExit"):
            running.wait(timeout_ms=LONG_MS)

        assert running.status().state == "failed"
        assert running.status().failures == ("SystemExit: 4",)


def test_a_thread_of_a_slot_that_ends_is_begun_anew(tmp_path):
    with declared(tmp_path / "store", source=endless()).start(mode="threads") as running:
        running.checkpoint(timeout_ms=LONG_MS)
        mailbox = running.driver._slots._mailboxes[0]
        mailbox.slot = None
        coordinator = running.driver.coordinator
        running.driver.wait(lambda: coordinator.attempt == 2 and coordinator.is_running, LONG_MS)

        running.checkpoint(timeout_ms=LONG_MS)

    assert running.driver._slots._mailboxes[0] is not mailbox


def endless() -> GeneratorSource:
    return GeneratorSource(numbered, SCHEMA, rows_per_second=1_000, batch_rows=10)


def numbered(first, count):
    return pa.record_batch({"k": pa.array(range(first, first + count), pa.int64())})


# Failures in the log.


def test_each_failure_is_a_warning_with_its_attempt_and_delay_and_the_last_an_error(tmp_path, caplog):
    function = Raises("batch", ValueError("a typo"), times=10)

    with pytest.raises(arrowstate.JobFailedError):
        declared(tmp_path / "store", function, restart=Restart.fixed(attempts=2, delay_ms=1)).run(mode="threads")

    told = [(record.levelname, record.getMessage().splitlines()[0]) for record in caplog.records]
    assert told == [
        ("WARNING", "attempt 1 of the job failed, and it starts again in 0.0 s"),
        ("WARNING", "attempt 2 of the job failed, and it starts again in 0.0 s"),
        ("ERROR", "attempt 3 of the job failed, and it does not start again"),
    ]
    assert all("a typo" in str(record.exc_info[1]) for record in caplog.records)
    assert {record.name for record in caplog.records} == {"arrowstate.runtime"}


def test_a_failure_in_a_process_is_logged_with_its_traceback_and_keeps_its_class(tmp_path, caplog):
    class Broken(arrowstate.BatchFunction):
        def process_batch(self, batch, context):
            return batch.no_such_method()

    job = declared(tmp_path / "store", Broken(), TableSource(ROWS), restart=Restart.none(), spare_slot=False)

    with pytest.raises(arrowstate.JobFailedError) as failed:
        job.run(mode="processes")

    assert isinstance(failed.value.__cause__, arrowstate.UserFunctionError)
    assert "no_such_method" in caplog.text
    assert "in process_batch" in caplog.text


# Failures that would come again.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["discover", "open", "read"])
def test_a_failure_before_the_first_row_ends_the_job(tmp_path, place, mode):
    raises = Raises(place, ValueError("a typo"))

    with pytest.raises(arrowstate.JobFailedError, match="a typo"):
        declared(tmp_path / "store", raises, Given(raises)).run(mode=mode)


@pytest.mark.parametrize("place", ["batch", "read"])
def test_a_failure_after_the_first_row_starts_the_job_again(tmp_path, place):
    raises = Raises(place, ValueError("now and then"))

    snapshot = declared(tmp_path / "store", raises, Given(raises, after_rows=3)).run(mode="inline")

    assert snapshot.sql("select sum(n) from counts.n").fetchall() == [(30,)]


def test_a_job_goes_on_though_the_clock_was_set_back_by_an_hour(tmp_path, monkeypatch):
    behind_ms = 0
    for module in (mailbox, timed):
        monkeypatch.setattr(module, "now_ms", lambda: now_ms() - behind_ms)
    (tmp_path / "in").mkdir()
    pq.write_table(ROWS, tmp_path / "in" / "1.parquet")
    source = FileSource(f"{tmp_path}/in/*.parquet", schema=SCHEMA, is_bounded=False, discovery_ms=50)
    raises = Raises("batch", ValueError("once"), times=0)
    job = declared(tmp_path / "store", raises, source, restart=Restart.fixed(delay_ms=1_000))

    def is_counted(rows: int) -> bool:
        with suppress(arrowstate.errors.CheckpointAbortedError):
            return running.checkpoint().sql("select sum(n) from counts.n").fetchall() == [(rows,)]
        return False

    with job.start(mode="threads") as running:
        until(lambda: is_counted(30))
        behind_ms = 3_600_000
        pq.write_table(ROWS, tmp_path / "in" / "2.parquet")
        until(lambda: is_counted(60))
        Raises.left[raises.name] = 1
        pq.write_table(ROWS, tmp_path / "in" / "3.parquet")
        until(lambda: running.status().state == "waiting")
        behind_ms *= 2
        until(lambda: is_counted(90))


class SlowToSnapshot(Raises):
    """Its checkpoints take longer than the time after which one that failed is tried again."""

    def snapshot_state(self, checkpoint_id, context):
        time.sleep(0.15)


def ones(_, count):
    return pa.record_batch({"k": pa.array([1] * count, pa.int64())})


class SlowToCommit(Sink):
    def commit(self, rows, token):
        time.sleep(0.3)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_job_ends_with_one_last_checkpoint_however_long_it_and_its_sinks_take(tmp_path, is_stopped):
    source = GeneratorSource(ones, SCHEMA) if is_stopped else TableSource(ROWS)
    job = declared(tmp_path / "store", SlowToSnapshot("nowhere", ValueError()), source, SlowToCommit())

    with job.start(mode="threads") as running:
        if is_stopped:
            running.checkpoint()
            running.driver.call(lambda coordinator: coordinator.stop(drain=False))
        running.wait(timeout_ms=60_000)
        ((count,),) = running.sql("select count(*) from runtime.checkpoints").fetchall()

    assert count == (2 if is_stopped else 1)


def test_a_slot_that_dies_before_the_first_row_is_started_again(tmp_path):
    with declared(tmp_path / "store").start(mode="inline") as running:
        running.driver.inline.kill(0)

        assert running.wait().sql("select sum(n) from counts.n").fetchall() == [(30,)]

    assert running.status().attempt == 2


def test_a_failure_that_names_something_to_mend_ends_the_job(tmp_path):
    source = Given(Raises("read", arrowstate.SourceError("all", 3, "the file was changed")), after_rows=3)

    with pytest.raises(arrowstate.JobFailedError, match="the file was changed") as failed:
        declared(tmp_path / "store", source=source).run(mode="inline")

    assert isinstance(failed.value.__cause__, arrowstate.SourceError)


def test_what_a_function_raises_is_the_functions_whatever_its_class(tmp_path):
    function = Raises("batch", arrowstate.InvalidInputError("of a library that the function calls"))

    with declared(tmp_path / "store", function).start(mode="inline") as running:
        running.wait()

    assert running.status().attempt == 2


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (arrowstate.InvalidInputError("no such column"), True),
        (arrowstate.IncompatibleStateError("counts", "n", "int64", "string"), True),
        (arrowstate.MissingFileError("file:///store", "data/x.arrow"), True),
        (arrowstate.CorruptDataError("data/x.arrow", "cut"), True),
        (arrowstate.SourceError("s", 0, "too short"), True),
        (caused(arrowstate.SourceError("s", 0, "gone"), FileNotFoundError()), True),
        (caused(arrowstate.SourceError("s", 0, "no whole file"), pa.ArrowInvalid()), True),
        (caused(arrowstate.SourceError("s", 0, "of the generator"), ConnectionError()), False),
        (arrowstate.StorageError("file:///store", "away"), False),
        (arrowstate.UserFunctionError("counts", "InvalidInputError: x", "a batch", ""), False),
        (FileNotFoundError("of the user's"), False),
        (MemoryError(), False),
    ],
    ids=repr,
)
def test_errors_of_this_library_that_would_come_again_are_unrecoverable(error, expected):
    assert is_unrecoverable(error) is expected


# Stops and rescales.


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_between_two_attempts_ends_the_job_at_once_and_says_that_it_was_down(tmp_path, mode):
    function = Raises("batch", ValueError("for now"))
    job = declared(tmp_path / "store", function, restart=Restart.fixed(delay_ms=10 * LONG_MS))

    with job.start(mode=mode) as running:
        coordinator = running.driver.coordinator
        running.driver.wait(lambda: coordinator.state == "waiting", LONG_MS)
        with pytest.raises(
            arrowstate.JobFailedError, match="was down when it was stopped.*from the beginning.*for now"
        ):
            running.stop()

        assert running.status().state == "failed"


def test_a_failure_while_a_job_is_stopped_has_one_more_attempt_at_once(tmp_path):
    raises = Raises("close", ValueError("unused"))
    job = declared(tmp_path / "store", raises, endless(), restart=Restart.fixed(delay_ms=10 * LONG_MS))

    with job.start(mode="inline") as running:
        running.checkpoint()
        running.driver.coordinator.stop(drain=False)
        running.driver.inline.kill(0)
        running.wait()

        assert running.status().state == "stopped"


def test_the_figures_of_an_attempt_that_is_over_are_no_rates(tmp_path):
    with declared(tmp_path / "store", source=endless(), restart=Restart.fixed(delay_ms=LONG_MS)).start(
        mode="threads"
    ) as running:
        figures = running.driver.coordinator.figures
        running.driver.wait(lambda: len(figures.get(0, ())) == 2 and figures[0][1].tasks[1].rows > 0, LONG_MS)
        assert any(item.rows_per_second for item in running.status().tasks)
        running.driver.call(lambda coordinator: coordinator.failed(RuntimeError("any failure")))
        status = running.status()

    assert status.state == "waiting"
    assert sum(item.rows for item in status.tasks) > 0
    assert [(item.rows_per_second, item.busy, item.idle) for item in status.tasks] == [(0.0, 0.0, 0.0)] * 2


def test_wait_stop_and_checkpoint_beside_a_rescale_are_of_the_job_that_goes_on(tmp_path):
    source = GeneratorSource(numbered, SCHEMA, rows=3_000, rows_per_second=3_000, batch_rows=100)
    ended: list = []

    with declared(tmp_path / "store", source=source).start(mode="threads") as running:
        waiter = threading.Thread(target=lambda: ended.append(running.wait()))
        waiter.start()
        rescales = [
            threading.Thread(target=lambda number=number: running.rescale(parallelism=number)) for number in (2, 3)
        ]
        for thread in rescales:
            thread.start()
        while any(thread.is_alive() for thread in rescales):
            running.checkpoint(timeout_ms=LONG_MS)
            running.status()
        waiter.join()
        reasons = [item.reason for item in running.status().restarts]

    assert ended[0].sql("select sum(n) from counts.n").fetchall() == [(3_000,)]
    assert len(reasons) == 2
    assert reasons[1].startswith(f"rescaled from parallelism {reasons[0][-1]} to")


def test_a_rescale_whose_slots_cannot_be_started_leaves_a_job_that_says_so(tmp_path, monkeypatch):
    def refuses(*given):
        raise OSError("no more threads")

    with declared(tmp_path / "store", source=endless()).start(mode="threads") as running:
        monkeypatch.setattr(running_module, "TimedDriver", refuses)
        with pytest.raises(OSError, match="no more threads"):
            running.rescale(parallelism=2)

        with pytest.raises(
            arrowstate.JobFailedError, match="could not be rescaled from parallelism 1 to 2.*no more threads"
        ):
            running.wait(timeout_ms=LONG_MS)
        with pytest.raises(arrowstate.InvalidInputError, match="the job has failed"):
            running.checkpoint()


def test_a_job_that_has_ended_or_is_being_stopped_is_not_rescaled(tmp_path):
    with declared(tmp_path / "store").start(mode="inline") as running:
        running.wait()
        with pytest.raises(arrowstate.InvalidInputError, match="the job has finished"):
            running.driver.coordinator.leave("rescaled")


# Turns.


def test_a_source_is_read_though_its_slot_always_has_something_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "STEP_ROWS", 10)
    monkeypatch.setattr(task, "ENOUGH_ROWS", 1)
    monkeypatch.setattr(turns, "PASSED_STEPS", 8)
    job = Job(tmp_path / "store", parallelism=2, options=arrowstate.CheckpointOptions(interval_ms=None))
    rows = job.source(GeneratorSource(one_key, SCHEMA, splits=2, batch_rows=20), uid="rows")
    # What one slot reads in a step keeps the other busy for four.
    for number in range(4):
        rows = rows.stateful(Passes(), key=["k"], uid=f"passes{number}", output_schema=SCHEMA)

    with job.start(mode="inline") as running:
        running.go_on(1_000)
        early = [slot.tasks[-1].rows_in for slot in running.driver.inline.slots]
        running.go_on(2_000)
        read = [slot.tasks[-1].rows_in for slot in running.driver.inline.slots]

    assert min(read) > 2 * min(early) > 0
    assert min(read) * 20 > max(read)


class Passes(arrowstate.BatchFunction):
    def process_batch(self, batch, context):
        return batch


def one_key(first, count):
    return pa.record_batch({"k": pa.array([7] * count, pa.int64())})


# The end of the interpreter.

SCRIPT = """
import sys, tempfile, time
import pyarrow as pa
import arrowstate
from arrowstate.runtime import GeneratorSource, Job, OutputTable

def rows(first, count):
    return pa.record_batch({"i": list(range(first, first + count))})

job = Job(tempfile.mkdtemp() + "/store", options=arrowstate.CheckpointOptions(interval_ms=5))
job.source(GeneratorSource(rows, pa.schema({"i": pa.int64()}), rows_per_second=10_000), uid="rows").sink(
    OutputTable("out")
)
running = job.start(mode=MODE)
running.checkpoint()
if ENDS == "raises":
    raise ValueError("of the script")
if ENDS == "exits":
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("mode", "ends", "code"), [("threads", "raises", 1), ("threads", "runs out", 0), ("processes", "exits", 3)]
)
def test_a_script_that_leaves_a_job_open_ends_without_tracebacks_of_the_job(mode, ends, code):
    script = textwrap.dedent(SCRIPT).replace("MODE", repr(mode)).replace("ENDS", repr(ends))

    done = python("-c", script, timeout=300)

    assert done.returncode == code
    assert done.stderr.count("Traceback") == (ends == "raises")
    assert done.stdout == ""
