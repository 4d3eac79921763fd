"""What a user does with a job: real parts, real time, threads, and processes once."""

import threading
from collections import Counter
from contextlib import suppress

import pyarrow as pa
import pytest

import arrowstate
import runtime_jobs as jobs
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import CheckpointAbortedError, FencedError, InvalidInputError, JobFailedError, UserFunctionError
from arrowstate.runtime import (
    Batch,
    EndOfSplit,
    IteratorSource,
    Job,
    OutputTable,
    Reader,
    Restart,
    Sink,
    Source,
    Split,
    TableSource,
    Watermarks,
)
from arrowstate.runtime.core.snapshots import SnapshotWork
from arrowstate.windows import TumblingEventTimeWindows, TumblingProcessingTimeWindows, WindowFunction

LONG_MS = 60_000
ROWS = pa.table(
    {
        "user": [f"u{number % 5}" for number in range(100)],
        "amount": pa.array(range(100), pa.int64()),
        "at": pa.array([number * 10 for number in range(100)], pa.int64()),
    }
)
TOTALS = {f"u{user}": sum(range(user, 100, 5)) for user in range(5)}


class Endless(Source):
    """Rows of a table, then nothing for as long as one likes."""

    is_bounded = False
    discovery_ms = LONG_MS

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = table.schema

    def discover(self, known):
        return [] if "all" in known else [Split("all")]

    def reader(self):
        return _EndlessReader(self._table)


class _EndlessReader(Reader):
    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._position = None

    def add(self, splits):
        for split in splits:
            self._position = split.position or 0

    def read(self, max_rows):
        if self._position is None or self._position == self._table.num_rows:
            return None
        rows = self._table.slice(self._position, min(10, max_rows)).combine_chunks().to_batches()[0]
        self._position += rows.num_rows
        return Batch(rows, "all", self._position)


class Kept(Sink):
    """Keeps in this process what it was given, and refuses as often as it is told to."""

    def __init__(self) -> None:
        self.given: dict = {}
        self.refusals = 0

    @property
    def rows(self) -> list:
        return [row for rows in self.given.values() for row in rows]

    def commit(self, rows, token):
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the shop is closed")
        assert self.given.setdefault(str(token), rows.to_pylist()) == rows.to_pylist(), "equal tokens are equal rows"


def declared(folder, source=None, sink=None, **options) -> Job:
    options.setdefault("options", CheckpointOptions(interval_ms=LONG_MS))
    options.setdefault("restart", Restart.none())
    job = Job(folder / "store", **options)
    given = job.source(source or TableSource(ROWS), uid="given")
    running = given.stateful(jobs.Running(), key=["user"], uid="running", output_schema=jobs.RUNNING)
    running.sink(OutputTable("changes"))
    if sink is not None:
        running.sink(sink, uid="shop")
    return job


def totals(snapshot) -> dict:
    return {row["user"]: row["total"] for row in snapshot.to_arrow("running.total").to_pylist()}


def emitted(snapshot) -> list:
    return [row["rows"] for row in snapshot.operator_state("changes", "rows").to_pylist()]


def latest(snapshot) -> dict:
    """What was emitted last of each key, which is the most."""
    found: dict = {}
    for row in emitted(snapshot):
        found[row["user"]] = max(row["total"], found.get(row["user"], 0))
    return found


def wait_for(condition, running) -> None:
    """Let a job go on until something holds, without a clock of one's own: by its checkpoints."""
    for _ in range(200):
        if condition(running.checkpoint(timeout_ms=LONG_MS)):
            return
    raise AssertionError("it never came")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_bounded_job_runs_to_its_end_with_every_row_once(tmp_path, parallelism):
    sink = Kept()

    snapshot = declared(tmp_path, sink=sink, parallelism=parallelism).run(mode="threads")

    assert totals(snapshot) == TOTALS
    assert len(emitted(snapshot)) == 100
    assert Counter(map(repr, sink.rows)) == Counter(map(repr, emitted(snapshot)))


def test_a_job_that_has_ended_and_is_started_again_emits_nothing_twice(tmp_path):
    sink = Kept()
    declared(tmp_path, sink=sink).run(mode="threads")

    snapshot = declared(tmp_path, sink=sink, parallelism=2).run(mode="threads")

    assert totals(snapshot) == TOTALS
    assert len(emitted(snapshot)) == len(sink.rows) == 100


def test_slots_in_processes_do_what_threads_do(tmp_path):
    sink = Kept()

    with declared(tmp_path, sink=sink, parallelism=2).start(mode="processes") as running:
        snapshot = running.wait(timeout_ms=LONG_MS)
        status = running.status()

    assert totals(snapshot) == TOTALS
    assert len(emitted(snapshot)) == len(sink.rows) == 100
    assert (status.state, status.attempt, status.failures) == ("finished", 1, ())


def test_a_checkpoint_is_there_and_its_sinks_have_their_rows_when_it_returns(tmp_path):
    sink = Kept()

    with declared(tmp_path, source=Endless(ROWS), sink=sink, parallelism=2).start(mode="threads") as running:
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)
        snapshot = running.checkpoint()

    assert snapshot.checkpoint_id == running.store.latest().checkpoint_id
    assert len(emitted(snapshot)) == len(sink.rows) == 100


class HeldUp(arrowstate.BatchFunction):
    """Waits with its second batch."""

    begun, writing, waiting, released = (threading.Event() for _ in range(4))

    def process_batch(self, batch, context):
        if self.begun.is_set():
            self.waiting.set()
            assert self.released.wait(LONG_MS / 1000)
        self.begun.set()


class AfterTheBarrier(_EndlessReader):
    """Gives its second batch when the first checkpoint is being written."""

    def read(self, max_rows):
        return None if self._position and not HeldUp.writing.is_set() else super().read(max_rows)


def test_a_checkpoint_does_not_wait_for_the_end_of_a_step_after_its_barrier(tmp_path, monkeypatch):
    write = SnapshotWork.write

    def written_while_a_batch_waits(work):
        HeldUp.writing.set()
        assert HeldUp.waiting.wait(LONG_MS / 1000)
        return write(work)

    monkeypatch.setattr(SnapshotWork, "write", written_while_a_batch_waits)
    monkeypatch.setattr(Endless, "reader", lambda self: AfterTheBarrier(self._table))
    job = Job(tmp_path, options=CheckpointOptions(), restart=Restart.none())
    job.source(Endless(ROWS), uid="given").stateful(HeldUp(), key=["user"], uid="held")

    with job.start(mode="threads") as running:
        try:
            assert HeldUp.begun.wait(LONG_MS / 1000)
            snapshot = running.checkpoint(timeout_ms=20_000)
            assert not HeldUp.released.is_set()
        finally:
            HeldUp.released.set()

    ((position,),) = snapshot.sql("select position from given.splits").fetchall()
    assert 0 < position < ROWS.num_rows


def test_a_savepoint_stands_by_itself_and_the_job_goes_on(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="threads") as running:
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)
        savepoint = running.savepoint(tmp_path / "saved")

        assert running.status().state == "running"
    assert totals(arrowstate.open_store(tmp_path / "saved").latest()) == TOTALS
    assert totals(savepoint) == TOTALS


def test_stop_takes_a_last_checkpoint_and_a_new_start_goes_on_there(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="threads") as running:
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)
        stopped = running.stop()

    assert running.status().state == "stopped"
    more = pa.concat_tables([ROWS, ROWS.slice(0, 5)])
    with declared(tmp_path, source=Endless(more)).start(mode="threads") as running:
        wait_for(lambda snapshot: len(emitted(snapshot)) == 105, running)
        snapshot = running.stop()
    assert totals(stopped) == TOTALS
    assert totals(snapshot) == {user: total + int(user[1:]) for user, total in TOTALS.items()}


def test_stop_with_a_savepoint_returns_it(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="threads") as running:
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)
        savepoint = running.stop(tmp_path / "saved")

    assert totals(savepoint) == TOTALS
    assert (tmp_path / "saved").is_dir()


@pytest.mark.parametrize(
    ("place", "given", "error"),
    [
        ("taken", {}, InvalidInputError),
        ("saved", {"format": "csv"}, InvalidInputError),
        ("saved", {"to": 1}, TypeError),
    ],
)
def test_a_job_goes_on_that_is_to_stop_with_a_savepoint_that_cannot_be_written(tmp_path, place, given, error):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="threads") as running:
        running.savepoint("taken")
        for ask in (running.stop, running.savepoint):
            with pytest.raises(error):
                ask(place, **given)

        assert running.status().state == "running"
        assert running.stop("saved").storage.url.endswith("/saved")


def windowed(folder, first, second=None, rules=(Watermarks("at"), Watermarks("at")), **options) -> Job:
    options.setdefault("options", CheckpointOptions(interval_ms=LONG_MS))
    options.setdefault("restart", Restart.none())
    job = Job(folder / "store", **options)
    stream = job.source(first, uid="first", watermarks=rules[0])
    if second is not None:
        stream = stream.union(job.source(second, uid="second", watermarks=rules[1]))
    function = WindowFunction(TumblingEventTimeWindows(500), jobs.SUM, timestamp="at", value="amount")
    stream.stateful(function, key=["user"], uid="windows").sink(OutputTable("changes"))
    return job


def windows_of(table: pa.Table) -> Counter:
    expected: Counter = Counter()
    for row in table.to_pylist():
        expected[row["user"], row["at"] // 500 * 500] += row["amount"]
    return expected


def fired(snapshot) -> dict:
    rows = emitted(snapshot)
    found = {(row["user"], row["window_start"]): row["total"] for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_slot_without_a_split_holds_no_window_back(tmp_path, parallelism):
    with windowed(tmp_path, Endless(ROWS), parallelism=parallelism).start(mode="threads") as running:
        wait_for(lambda snapshot: len(emitted(snapshot)) == 5, running)


def test_a_job_that_was_closed_has_no_last_checkpoint_that_a_stop_could_return(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="inline") as running:
        running.go_on(50)
        running.checkpoint()
        running.go_on(50)
        running.close()

        with pytest.raises(InvalidInputError, match="was closed, and no last checkpoint was taken"):
            running.stop()


def test_a_stop_that_drains_is_not_taken_for_one_that_does_not(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="inline") as running:
        running.go_on(50)
        running.driver.coordinator.stop(drain=False)
        with pytest.raises(InvalidInputError, match="stopped without drain already, so it cannot be stopped with it"):
            running.stop(drain=True)

        assert running.stop().checkpoint_id == running.wait().checkpoint_id


@pytest.mark.parametrize("drain", [True, False])
def test_windows_that_are_open_fire_at_a_stop_only_with_drain(tmp_path, drain):
    with windowed(tmp_path, Endless(ROWS)).start(mode="threads") as running:
        wait_for(lambda snapshot: position_of(snapshot, "first") == 100, running)
        snapshot = running.stop(drain=drain)

    expected = windows_of(ROWS)
    assert fired(snapshot) == {place: sum for place, sum in expected.items() if drain or place[1] == 0}


def test_a_window_waits_for_the_slower_of_two_sources(tmp_path):
    slow = ROWS.slice(0, 30)
    with windowed(tmp_path, Endless(ROWS), Endless(slow), parallelism=2).start(mode="threads") as running:
        for uid, count in (("first", 100), ("second", 30)):
            wait_for(lambda snapshot, uid=uid, count=count: position_of(snapshot, uid) == count, running)
        assert emitted(running.checkpoint()) == []
        snapshot = running.stop(drain=True)

    assert fired(snapshot) == dict(windows_of(pa.concat_tables([ROWS, slow])))


def test_a_source_that_is_idle_holds_no_window_back(tmp_path):
    rules = Watermarks("at"), Watermarks("at", idle_ms=20)
    with windowed(tmp_path, Endless(ROWS), Endless(ROWS.slice(0, 0)), rules).start(mode="threads") as running:
        wait_for(lambda snapshot: len(emitted(snapshot)) == 5, running)


def position_of(snapshot, uid) -> int:
    (row,) = snapshot.operator_state(uid, "splits").to_pylist()
    return row["splits"]["position"] or 0


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sources_of_a_group_stay_together(tmp_path, parallelism):
    rules = tuple(Watermarks("at", group="both", max_drift_ms=100) for _ in range(2))
    slow = ROWS.slice(0, 30)
    job = windowed(tmp_path, Endless(ROWS), Endless(slow), rules, parallelism=parallelism)
    with job.start(mode="threads") as running:
        # 300 ms of the slow one, 100 ms of drift, and the batch that leads beyond.
        wait_for(lambda snapshot: position_of(snapshot, "first") == 50, running)
        for _ in range(5):
            assert position_of(running.checkpoint(), "first") == 50


def test_a_job_goes_on_with_another_number_of_slots(tmp_path):
    sink = Kept()
    with declared(tmp_path, source=Endless(ROWS), sink=sink).start(mode="threads") as running:
        running.rescale(parallelism=3)
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)
        running.rescale(parallelism=2, max_parallelism=60)
        snapshot = running.checkpoint()

    assert totals(snapshot) == TOTALS
    assert len(emitted(snapshot)) == len(sink.rows) == 100
    (operator,) = [item for item in snapshot.entry.operators if item.uid == "running"]
    assert (len(operator.subtasks), operator.max_parallelism) == (2, 60)


def test_a_job_is_not_rescaled_to_a_number_that_is_none_or_beyond_its_key_groups_and_goes_on(tmp_path):
    with declared(tmp_path, source=Endless(ROWS), max_parallelism=4).start(mode="threads") as running:
        for given, message in [(5, "must be 1 to 4, the max parallelism, got 5"), (1.5, "got 1.5"), (True, "got True")]:
            with pytest.raises(InvalidInputError, match=f"parallelism .*{message}"):
                running.rescale(parallelism=given)

        assert running.checkpoint().checkpoint_id


class Picky(jobs.Running):
    """Fails at an amount, as often as there are letters in a list that is shared by all copies."""

    left: list = []  # noqa: RUF012

    def process_element(self, value, context, out):
        if value.amount == 42 and self.left:
            self.left.pop()
            raise ValueError("no 42 please")
        super().process_element(value, context, out)


class Never42(jobs.Running):
    def process_element(self, value, context, out):
        if value.amount == 42:
            raise ValueError("no 42 please")


def picky(folder, failures, restart) -> Job:
    Picky.left[:] = ["x"] * failures
    job = Job(folder / "store", options=CheckpointOptions(interval_ms=LONG_MS), restart=restart)
    given = job.source(TableSource(ROWS), uid="given")
    given.stateful(Picky(), key=["user"], uid="running", output_schema=jobs.RUNNING).sink(OutputTable("changes"))
    return job


def test_a_function_that_raises_ends_the_job_with_its_operator_row_key_and_traceback(tmp_path):
    with pytest.raises(JobFailedError) as caught:
        picky(tmp_path, 1, Restart.none()).run(mode="threads")

    text = str(caught.value)
    assert "operator 'running'" in text
    assert "{'user': 'u2'}" in text
    assert "'amount': 42" in text
    assert "ValueError: no 42 please" in text
    assert "test_running.py" in text
    assert isinstance(caught.value.__cause__, arrowstate.UserFunctionError)


def test_a_function_that_raises_in_a_process_of_its_own_says_the_same(tmp_path):
    with pytest.raises(JobFailedError, match=r"'amount': 42(.|\n)*no 42 please(.|\n)*test_running.py") as caught:
        job = Job(tmp_path / "store", restart=Restart.none())
        job.source(TableSource(ROWS), uid="given").stateful(Never42(), key=["user"], uid="running")
        job.run(mode="processes")

    assert isinstance(caught.value.__cause__, arrowstate.UserFunctionError)


def test_a_job_that_failed_starts_again_by_its_strategy_and_counts_each_row_once(tmp_path):
    with picky(tmp_path, 2, Restart.fixed(attempts=2, delay_ms=0)).start(mode="threads") as running:
        snapshot = running.wait(timeout_ms=LONG_MS)
        status = running.status()

    assert totals(snapshot) == TOTALS
    assert len(emitted(snapshot)) == 100
    assert (status.attempt, len(status.failures)) == (3, 2)
    assert all("no 42 please" in failure for failure in status.failures)


def test_a_job_that_failed_more_often_than_its_strategy_allows_fails(tmp_path):
    with picky(tmp_path, 3, Restart.fixed(attempts=2, delay_ms=0)).start(mode="threads") as running:
        with pytest.raises(JobFailedError, match="no 42 please"):
            running.wait(timeout_ms=LONG_MS)

        assert (running.status().state, running.status().attempt) == ("failed", 3)


def test_a_job_that_failed_is_mended_and_goes_on_where_it_was(tmp_path):
    with pytest.raises(JobFailedError):
        picky(tmp_path, 1, Restart.none()).run(mode="threads")

    snapshot = declared(tmp_path).run(mode="threads")

    assert totals(snapshot) == TOTALS


@pytest.mark.parametrize("broken", ["map", "batch"])
def test_a_batch_function_that_raises_is_named_with_its_traceback(tmp_path, broken):
    class Broken(arrowstate.BatchFunction):
        def process_batch(self, batch, context):
            raise KeyError("broken on purpose")

    def fails(batch):
        if batch.num_rows:
            raise KeyError("broken on purpose")
        return batch

    job = Job(tmp_path / "store", restart=Restart.none())
    given = job.source(TableSource(ROWS), uid="given")
    stream = given.map_batches(fails) if broken == "map" else given
    stream.stateful(Broken(), key=["user"], uid="broken")

    uid = "given" if broken == "map" else "broken"
    with pytest.raises(JobFailedError, match=rf"operator '{uid}'(.|\n)*broken on purpose(.|\n)*test_running.py"):
        job.run(mode="threads")


def test_a_sink_that_refuses_once_gets_the_same_rows_again(tmp_path):
    sink = Kept()
    sink.refusals = 1

    with declared(tmp_path, sink=sink, restart=Restart.fixed(delay_ms=0)).start(mode="threads") as running:
        snapshot = running.wait(timeout_ms=LONG_MS)
        status = running.status()

    assert len(sink.rows) == len(emitted(snapshot)) == 100
    assert [("the shop is closed" in failure) for failure in status.failures] == [True]


class Opened(Kept):
    """Refuses to be opened at the second time, and rows while it is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def open(self, store_id, uid):
        self.calls.append("open")
        if self.calls.count("open") == 2:
            raise ConnectionError("the shop is closed")

    def close(self):
        self.calls.append("close")

    def commit(self, rows, token):
        assert self.calls[-1] == "open"
        super().commit(rows, token)


def test_a_sink_that_could_not_be_opened_is_opened_by_the_next_attempt(tmp_path):
    sink = Opened()
    job = declared(tmp_path, source=Endless(ROWS), sink=sink, restart=Restart.fixed(delay_ms=0))
    with job.start(mode="threads") as running:
        running.rescale(parallelism=2)
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)
        running.checkpoint()

    assert len(sink.rows) == 100
    assert sink.calls == ["open", "close", "open", "close", "open", "close"]


def test_a_checkpoint_that_is_committed_is_told_though_a_sink_refuses_one_before_it():
    answered = 0
    for seed in range(12):
        sink = Kept()
        sink.refusals = 1
        job = Job(
            f"memory://refused-{seed}",
            options=CheckpointOptions(interval_ms=1, max_concurrent=2),
            restart=Restart.fixed(delay_ms=0),
        )
        job.source(Endless(ROWS), uid="given").sink(sink, uid="shop")
        with job.start(mode="inline", seed=seed) as running:
            while not running.status().checkpoints:
                running.go_on(1)
            with suppress(CheckpointAbortedError, UserFunctionError):
                answered += running.checkpoint(timeout_ms=10_000).checkpoint_id > 0

    assert answered > 0


def test_a_checkpoint_that_is_asked_for_comes_before_those_that_time_begins():
    job = Job("memory://asked-for", options=CheckpointOptions(interval_ms=1))
    job.source(Endless(ROWS), uid="given").sink(Kept(), uid="shop")

    with job.start(mode="inline") as running:
        inline = running.driver.inline
        step = inline.step

        def slow_step() -> None:
            # Each checkpoint takes longer than the interval.
            inline.clock_ms += 1
            step()

        inline.step = slow_step
        running.go_on(200)
        newest = max(record.checkpoint_id for record in running.status().checkpoints)
        asked = running.checkpoint(timeout_ms=10_000).checkpoint_id

    assert asked == newest + 1


def test_rows_that_a_sink_refused_are_given_to_it_by_the_next_start(tmp_path):
    sink = Kept()
    sink.refusals = 1
    with pytest.raises(
        JobFailedError,
        match=r"'shop' failed at the commit of rows of checkpoint \d+: ConnectionError: the shop is closed",
    ):
        declared(tmp_path, sink=sink).run(mode="threads")
    assert sink.rows == []

    declared(tmp_path, sink=sink).run(mode="threads")

    assert len(sink.rows) == 100


def test_rows_of_a_sink_that_is_let_go_are_let_go(tmp_path):
    sink = Kept()
    sink.refusals = 1
    with pytest.raises(JobFailedError):
        declared(tmp_path, sink=sink).run(mode="threads")

    snapshot = declared(tmp_path, allow_non_restored_state=True).run(mode="threads")

    assert totals(snapshot) == TOTALS
    assert "shop" not in {operator.uid for operator in snapshot.entry.operators}


def test_a_job_whose_checkpoints_fail_says_why_once(tmp_path):
    options = CheckpointOptions(interval_ms=1, tolerated_failures=0)
    running = declared(tmp_path, source=Endless(ROWS), options=options).start(mode="inline")
    running.driver.inline.write_failures = 1.0

    with pytest.raises(JobFailedError) as caught:
        running.wait()
    running.close()

    assert str(caught.value).count("the job failed") == 1


def test_a_null_key_is_an_error_of_its_row(tmp_path):
    job = Job(tmp_path / "store", restart=Restart.none(), parallelism=2)
    given = job.source(TableSource(pa.table({"user": ["a", "b", None], "amount": [1, 2, 3]})), uid="given")
    given.stateful(jobs.Running(), key=["user"], uid="running", output_schema=jobs.RUNNING)

    with pytest.raises(JobFailedError, match="'running' failed at the row {'user': None, 'amount': 3}: NullKeyError"):
        job.run(mode="threads")


def test_the_store_of_another_job_is_refused_until_its_state_is_let_go(tmp_path):
    declared(tmp_path).run(mode="threads")

    def other(**options):
        job = Job(tmp_path / "store", restart=Restart.none(), **options)
        given = job.source(TableSource(ROWS), uid="given")
        given.stateful(jobs.Running(), key=["user"], uid="sums", output_schema=jobs.RUNNING).sink(
            OutputTable("changes")
        )
        return job

    with pytest.raises(InvalidInputError, match="an operator with keyed state named 'running', which the job does not"):
        other().start(mode="threads")
    snapshot = other(allow_non_restored_state=True).run(mode="threads")

    assert "sums" in {operator.uid for operator in snapshot.entry.operators} or emitted(snapshot)
    assert "running" not in {operator.uid for operator in snapshot.entry.operators}


def test_a_uid_that_was_something_else_in_the_store_is_refused(tmp_path):
    declared(tmp_path).run(mode="threads")
    job = Job(tmp_path / "store", allow_non_restored_state=True)
    given = job.source(TableSource(ROWS), uid="running")
    given.stateful(jobs.Running(), key=["user"], uid="sums", output_schema=jobs.RUNNING)

    with pytest.raises(
        InvalidInputError, match="'running' is an operator with keyed state in the store and a source in"
    ):
        job.start(mode="threads")


def test_of_two_runs_on_one_store_the_first_is_fenced(tmp_path):
    sink = Kept()
    first = declared(tmp_path, source=Endless(ROWS), restart=Restart.fixed(delay_ms=0)).start(mode="threads")
    wait_for(lambda snapshot: totals(snapshot) == TOTALS, first)

    with declared(tmp_path, source=Endless(ROWS), sink=sink).start(mode="threads") as second:
        second.checkpoint()
        with pytest.raises((CheckpointAbortedError, JobFailedError)):
            first.checkpoint(timeout_ms=LONG_MS)
        with pytest.raises(JobFailedError) as caught:
            first.wait(timeout_ms=LONG_MS)
        snapshot = second.checkpoint()
    first.close()

    assert isinstance(caught.value.__cause__, FencedError)
    assert str(caught.value).endswith(
        "start it again only when the newer writer has ended, it goes on with the newest checkpoint"
    )
    assert "mend that" not in str(caught.value)
    assert len(emitted(snapshot)) == 100


class Prices(arrowstate.BatchFunction):
    """Emits the price of each row as the table beside it has it."""

    def process_batch(self, batch, context):
        prices = {key: context.broadcast("prices").get(key) for key in set(batch["user"].to_pylist())}
        users = batch["user"].to_pylist()
        return pa.record_batch({"user": users, "price": pa.array([prices[user] for user in users], pa.int64())})


PRICES = arrowstate.BroadcastStateDescriptor("prices", pa.string(), pa.int64())


def test_a_table_beside_the_rows_is_in_every_subtask_and_in_the_checkpoint(tmp_path):
    def job(rows):
        made = Job(tmp_path / "store", parallelism=2, restart=Restart.none())
        given = made.source(Endless(rows), uid="given")
        prices = made.source(
            TableSource(pa.table({"user": [f"u{n}" for n in range(5)], "price": range(5)})), uid="prices"
        )
        schema = pa.schema([("user", pa.string()), ("price", pa.int64())])
        priced = given.stateful(Prices(), key=["user"], uid="priced", output_schema=schema, broadcast={PRICES: prices})
        priced.sink(OutputTable("changes"))
        return made

    with job(ROWS.slice(0, 0)).start(mode="threads") as running:
        wait_for(lambda snapshot: len(snapshot.operator_state("priced", "prices")) >= 5, running)
        running.stop()
    with job(ROWS).start(mode="threads") as running:
        wait_for(lambda snapshot: len(emitted(snapshot)) == 100, running)
        snapshot = running.stop()

    assert {(row["user"], row["price"]) for row in emitted(snapshot)} == {(f"u{n}", n) for n in range(5)}


class Later(jobs.Running):
    """Emits the sum of a key some time after its rows."""

    def process_element(self, value, context, out):
        self.total.add(value.amount)
        context.timers.register_processing_time_timer(0)

    def on_timer(self, timestamp, context, out):
        out.collect((context.current_key, self.total.get()))


def test_timers_by_processing_time_fire_while_no_row_comes(tmp_path):
    job = Job(tmp_path / "store", restart=Restart.none(), parallelism=2)
    given = job.source(Endless(ROWS), uid="given")
    given.stateful(Later(), key=["user"], uid="later", output_schema=jobs.RUNNING).sink(OutputTable("changes"))

    with job.start(mode="threads") as running:
        wait_for(lambda snapshot: latest(snapshot) == TOTALS, running)


def test_windows_by_processing_time_fire_while_no_row_comes(tmp_path):
    job = Job(tmp_path / "store", restart=Restart.none(), parallelism=2)
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    windows = WindowFunction(TumblingProcessingTimeWindows(50), total, value="amount")
    given = job.source(Endless(ROWS), uid="given")
    given.stateful(windows, key=["user"], uid="windows").sink(OutputTable("fired"))
    sums = "select user, sum(total) from fired.rows group by user"

    with job.start(mode="threads") as running:
        wait_for(lambda snapshot: dict(snapshot.sql(sums).fetchall()) == TOTALS, running)
        last = running.stop()

    assert last.sql("select count(*) from windows.total").fetchall() == [(0,)]


def test_a_job_that_has_ended_takes_no_checkpoint_and_says_so(tmp_path):
    with declared(tmp_path).start(mode="threads") as running:
        running.wait(timeout_ms=LONG_MS)

        with pytest.raises(InvalidInputError, match="the job has finished, so no checkpoint can be taken"):
            running.checkpoint()
        with pytest.raises(InvalidInputError, match="only one that runs inline"):
            running.go_on(1)


def test_rows_with_a_text_that_is_not_utf8_come_into_no_checkpoint(tmp_path):
    texts = pa.array([b"a", b"b\xff", b"c"], pa.binary())
    rows = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, texts.buffers())})
    job = Job(tmp_path, options=CheckpointOptions(), restart=Restart.none())
    job.source(TableSource(rows), uid="given").sink(OutputTable("kept"))

    with pytest.raises(JobFailedError, match="UTF8"):
        job.run(mode="threads")

    with pytest.raises(arrowstate.CheckpointNotFoundError):
        arrowstate.open_store(tmp_path).latest()


def test_closing_ends_a_job_at_once_and_what_was_committed_stays(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="threads") as running:
        wait_for(lambda snapshot: totals(snapshot) == TOTALS, running)

    assert running.status().state == "stopped"
    assert totals(arrowstate.open_store(tmp_path / "store").latest()) == TOTALS
    assert "stopped" in repr(running)


def test_a_job_in_memory_has_no_slots_in_processes(tmp_path):
    job = Job("memory://no-processes")
    job.source(TableSource(ROWS), uid="given").sink(OutputTable("copy"))

    with pytest.raises(arrowstate.UnsupportedStorageError, match="threads do"):
        job.start(mode="processes")


def test_a_wait_that_is_over_says_so_and_the_job_goes_on(tmp_path):
    with declared(tmp_path, source=Endless(ROWS)).start(mode="threads") as running:
        with pytest.raises(TimeoutError, match="the job has not ended within 1 ms"):
            running.wait(timeout_ms=1)

        assert not running.driver.coordinator.is_over


class Ending(Endless):
    """The same rows, and then their end."""

    is_bounded = True

    def reader(self):
        return _EndingReader(self._table)


class _EndingReader(_EndlessReader):
    def read(self, max_rows):
        if self._position == self._table.num_rows:
            self._position = None
            return EndOfSplit("all")
        return super().read(max_rows)


class Passed(arrowstate.BatchFunction):
    """Gives its rows on."""

    def process_batch(self, batch, context):
        return batch


def test_event_time_of_what_had_ended_counts_after_a_restart(tmp_path):
    few, more = ROWS.slice(0, 5), ROWS.slice(5)
    rule = Watermarks("at")

    def job(second: Source) -> Job:
        made = Job(tmp_path / "store", options=CheckpointOptions(interval_ms=None))
        ended = made.source(TableSource(few), uid="first", watermarks=rule)
        passed = ended.stateful(Passed(), key=["user"], uid="passed", output_schema=ROWS.schema)
        windows = WindowFunction(TumblingEventTimeWindows(10_000), jobs.SUM, timestamp="at", value="amount")
        both = passed.union(made.source(second, uid="second", watermarks=rule))
        both.stateful(windows, key=["user"], uid="windows").sink(OutputTable("fired"))
        return made

    # In the checkpoint one input has ended, and the task behind it is at the end of event time.
    with job(Endless(more)).start(mode="inline") as running:
        running.go_on(1_000)
        running.checkpoint()
    snapshot = job(Ending(more)).run(mode="inline")

    assert dict(snapshot.sql('select "user", total from fired.rows').fetchall()) == TOTALS


def test_the_clock_of_an_inline_job_goes_on_over_a_rescale():
    seen = []

    class Times(arrowstate.BatchFunction):
        def process_batch(self, batch, context):
            seen.append(context.processing_time)

    def now_and_then(split, position):
        while True:
            yield from [None] * 2000
            yield pa.record_batch({"k": [1]})

    job = Job("memory://clock-over-a-rescale")
    source = IteratorSource(now_and_then, pa.schema({"k": pa.int64()}), is_bounded=False)
    job.source(source, uid="rows").stateful(Times(), key=["k"], uid="times")
    with job.start(mode="inline") as running:
        while len(seen) < 3:
            running.go_on(100)
        running.rescale(parallelism=2)
        while len(seen) < 5:
            running.go_on(100)

    assert seen == sorted(seen)
