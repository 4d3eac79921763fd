"""Rows in flight: what barriers overtake is state of the operator that it was on its way to."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
import runtime_jobs as jobs
from arrowstate.errors import CheckpointAbortedError, IncompatibleStateError, InvalidInputError, JobFailedError
from arrowstate.runtime import CoBatchFunction, Job, OutputTable, Restart, TableSource, Watermarks
from arrowstate.runtime.core.in_flight import InFlightStates
from arrowstate.runtime.core.turns import Turns
from arrowstate.testing.jobs import simulate
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction
from long_form import short_or_long
from stores import until

ROWS = 1_200
KEYS = 40
SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
LAST = arrowstate.ValueStateDescriptor("last", pa.int64())


def table(rows: int = ROWS) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {
            "user": [f"u{number * 7 % KEYS}" for number in numbers],
            "n": pa.array(numbers, pa.int64()),
            "at": pa.array([number * 10 for number in numbers], pa.timestamp("ms")),
        }
    )


def totals(rows: int = ROWS) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for row in table(rows).to_pylist():
        sums[row["user"]] += row["n"]
    return dict(sums)


class InOrder(arrowstate.BatchFunction):
    """Sums, and fails where rows of a key come in another order than they were read."""

    def open(self, context):
        self.total = context.state(SUM)
        self.last = context.state(LAST)

    def process_batch(self, batch, context):
        keys = context.group_keys(batch)
        self.total.add_batch(batch["user"], batch["n"])
        newest: dict[str, int] = {}
        for user, n in zip(batch["user"].to_pylist(), batch["n"].to_pylist(), strict=True):
            if n <= newest.get(user, -1):
                raise ValueError(f"{n} of {user} comes after {newest[user]}")
            newest[user] = n
        users = pa.array(list(newest))
        for user, n, before in zip(newest, newest.values(), self.last.get_batch(users).to_pylist(), strict=True):
            first = min(m for u, m in zip(batch["user"].to_pylist(), batch["n"].to_pylist(), strict=True) if u == user)
            if before is not None and first <= before:
                raise ValueError(f"{first} of {user} comes after {before}, up to {n}")
        self.last.update_batch(users, pa.array(list(newest.values()), pa.int64()))
        return pa.record_batch([*keys.columns, self.total.read_keys(keys)], names=["user", "total"])


class AnyOrder(InOrder):
    """Sums."""

    def process_batch(self, batch, context):
        keys = context.group_keys(batch)
        self.total.add_batch(batch["user"], batch["n"])
        return pa.record_batch([*keys.columns, self.total.read_keys(keys)], names=["user", "total"])


OUT = pa.schema({"user": pa.string(), "total": pa.int64()})


def options(**others) -> arrowstate.CheckpointOptions:
    return arrowstate.CheckpointOptions(**{"interval_ms": None, "unaligned": True, **others})


def job_of(store, *, parallelism=2, max_parallelism=128, function=None, source=None, **others) -> Job:
    job = Job(
        store,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        options=others.pop("options", options()),
        restart=Restart.none(),
        **others,
    )
    source = source or jobs.SlowTable(table())
    numbers = job.source(source, uid="numbers", watermarks=Watermarks("at", out_of_order_ms=0))
    sums = numbers.stateful(function or InOrder(), key=["user"], uid="totals", output_schema=OUT)
    sums.sink(OutputTable("changes"))
    return job


def left_in_flight(job: Job, seed: int = 3):
    """Run a job up to its first checkpoint with rows in flight, and leave it there; return the snapshot."""
    with job.start(mode="inline", seed=seed) as running:
        for _ in range(200):
            running.go_on(5)
            if not running.driver.coordinator.is_running or running.driver.coordinator.is_ending:
                continue
            snapshot = running.checkpoint()
            if snapshot.to_arrow("totals.inflight").num_rows:
                return snapshot
    raise AssertionError("no checkpoint has rows in flight")


def check_end(job: Job, seed: int = 5, rows: int = ROWS):
    snapshot = job.run(mode="inline", seed=seed)
    found = {row["user"]: row["total"] for row in snapshot.to_arrow("totals.total").to_pylist()}
    assert found == totals(rows)
    assert snapshot.operator_state("changes", "rows").num_rows > 0
    return snapshot


def test_rows_in_flight_are_a_table_with_their_key_and_channel(tmp_path):
    snapshot = left_in_flight(job_of(tmp_path / "store"))

    found = snapshot.sql("select user, from_subtask, to_subtask, position, row.n from totals.inflight").fetchall()
    channels = snapshot.sql("select origin, input, from_subtask from totals.inflight_channels").fetchall()

    processed = sum(row["total"] for row in snapshot.to_arrow("totals.total").to_pylist())
    read = snapshot.operator_state("numbers", "splits").to_pylist()
    position = next(row["splits"]["position"] for row in read if row["splits"]["position"])
    assert processed + sum(row[-1] for row in found) == sum(range(position))
    assert {row[0] for row in found} <= {f"u{number}" for number in range(KEYS)}
    assert {row[:2] for row in channels} == {("numbers", 1)}


def test_rows_in_flight_are_verified_as_any_state_and_are_gone_when_they_are_processed(tmp_path):
    job = job_of(tmp_path / "store")
    snapshot = left_in_flight(job)

    assert snapshot.verify(deep=True).ok
    assert check_end(job).to_arrow("totals.inflight").num_rows == 0


@pytest.mark.parametrize(("before", "after"), [((7, 128), (12, 128)), ((12, 128), (7, 128)), ((3, 128), (5, 192))])
def test_rows_in_flight_go_to_the_subtasks_of_their_keys_in_their_order(tmp_path, before, after):
    left_in_flight(job_of(tmp_path / "store", parallelism=before[0], max_parallelism=before[1]))

    check_end(job_of(tmp_path / "store", parallelism=after[0], max_parallelism=after[1]))


@pytest.mark.parametrize("parallelism", [(2, 2, 2), (2, 3, 1), (5, 2, 4)])
def test_a_checkpoint_while_rows_in_flight_are_restored_has_the_rest(tmp_path, parallelism):
    store = tmp_path / "store"
    left = [left_in_flight(job_of(store, parallelism=number), seed=number) for number in parallelism]

    assert len({snapshot.checkpoint_id for snapshot in left}) == len(left)
    check_end(job_of(store, parallelism=2))


def test_a_job_that_goes_on_aligned_processes_what_is_in_flight_and_keeps_no_such_state(tmp_path):
    left_in_flight(job_of(tmp_path / "store"))

    last = check_end(job_of(tmp_path / "store", options=arrowstate.CheckpointOptions(interval_ms=20)))

    operator = next(item for item in last.entry.operators if item.uid == "totals")
    assert [state.name for state in operator.states] == ["total", "last"]
    assert operator.operator_states == []


def test_a_savepoint_of_the_store_takes_rows_in_flight_along(tmp_path):
    left_in_flight(job_of(tmp_path / "store", parallelism=3))
    arrowstate.open_store(tmp_path / "store").savepoint(tmp_path / "savepoint")

    check_end(job_of(tmp_path / "other", from_savepoint=tmp_path / "savepoint"))


def test_rows_in_flight_are_not_left_behind_by_a_copy_for_spark(tmp_path):
    snapshot = left_in_flight(job_of(tmp_path / "store"))

    with pytest.raises(InvalidInputError, match="rows are in flight to 'totals'.* start the job once more, stop it"):
        snapshot.for_spark(tmp_path / "query")
    copied = job_of(tmp_path / "store").run(mode="inline").for_spark(tmp_path / "query")

    # A query would keep states of the runtime, and a job that goes on with it would take them for those of a function.
    operator = next(item for item in copied.entry.operators if item.uid == "totals")
    assert [state.name for state in operator.states] == ["total", "last"]
    assert operator.operator_states == []
    assert copied.verify(deep=True).ok
    assert {row["user"]: row["total"] for row in copied.to_arrow("totals.total").to_pylist()} == totals()


@pytest.mark.parametrize(
    "statement",
    ["delete from totals.inflight_channels", "update totals.inflight set channel = 99 where row.n % 2 = 0"],
)
def test_rows_in_flight_of_a_channel_that_an_edit_has_made_unknown_are_processed(tmp_path, statement):
    left_in_flight(job_of(tmp_path / "store", function=AnyOrder()))
    with arrowstate.open_store(tmp_path / "store").edit() as edit:
        edit.execute(statement)
        edit.commit()

    check_end(job_of(tmp_path / "store", function=AnyOrder(), parallelism=3))


def test_a_savepoint_of_the_job_and_the_checkpoint_that_ends_it_are_aligned(tmp_path):
    job = job_of(tmp_path / "store", options=options())
    with job.start(mode="inline", seed=3) as running:
        running.go_on(200)
        overtaken = running.checkpoint()
        savepoint = running.savepoint(tmp_path / "savepoint")
        last = running.stop()

    assert overtaken.to_arrow("totals.inflight").num_rows > 0
    assert savepoint.to_arrow("totals.inflight").num_rows == 0
    assert last.to_arrow("totals.inflight").num_rows == 0


def test_until_the_timeout_checkpoints_are_aligned(tmp_path):
    job = job_of(tmp_path / "store", options=options(aligned_timeout_ms=3_600_000))
    with job.start(mode="inline", seed=3) as running:
        running.go_on(200)
        snapshot = running.checkpoint()

    assert snapshot.to_arrow("totals.inflight").num_rows == 0


def test_a_job_may_be_rescaled_with_rows_in_flight(tmp_path):
    job = job_of(tmp_path / "store", options=options())
    with job.start(mode="inline", seed=3) as running:
        running.go_on(200)
        running.rescale(parallelism=5, max_parallelism=192)
        at_rescale = running.store.latest()
        last = running.wait()

    assert at_rescale.to_arrow("totals.inflight").num_rows > 0
    assert {row["user"]: row["total"] for row in last.to_arrow("totals.total").to_pylist()} == totals()


def test_windows_are_those_of_an_aligned_run_and_no_row_is_late(tmp_path):
    def job(name, **others):
        made = Job(tmp_path / name, parallelism=3, options=options(**others), restart=Restart.none())
        rows = made.source(jobs.SlowTable(table()), uid="numbers", watermarks=Watermarks("at", out_of_order_ms=0))
        windows = WindowFunction(TumblingEventTimeWindows(500), SUM, timestamp="at", value="n")
        rows.stateful(windows, key=["user"], uid="totals").sink(OutputTable("ended"))
        return made

    def ended(snapshot):
        return Counter(map(repr, (row["rows"] for row in snapshot.operator_state("ended", "rows").to_pylist())))

    aligned = ended(job("aligned", unaligned=False).run(mode="inline"))
    for seed in range(3):
        made = job(f"store{seed}")
        left_in_flight(made, seed)
        made.parallelism = seed + 1
        assert ended(made.run(mode="inline", seed=seed)) == aligned


class Two(CoBatchFunction):
    def open(self, context):
        self.total = context.state(SUM)

    def process_batch1(self, batch, context):
        self.total.add_batch(batch["user"], batch["n"])

    def process_batch2(self, batch, context):
        self.total.add_batch(batch["user"], batch["m"])


def test_each_input_has_a_table_of_its_own(tmp_path):
    def job(parallelism):
        made = Job(tmp_path / "store", parallelism=parallelism, options=options(), restart=Restart.none())
        first = made.source(jobs.SlowTable(table().select(["user", "n"])), uid="first")
        second = made.source(jobs.SlowTable(table().select(["n", "user"]).rename_columns(["m", "name"])), uid="second")
        first.connect(second).stateful(Two(), key=(["user"], ["name"]), uid="totals")
        return made

    snapshot = left_in_flight(job(2))
    second = snapshot.to_arrow("totals.inflight_2")
    last = job(3).run(mode="inline")

    assert second["row"].type.names == ["m", "user"]
    assert sum(row["total"] for row in last.to_arrow("totals.total").to_pylist()) == 2 * sum(range(ROWS))


def test_rows_with_a_null_in_their_key_are_set_aside_after_a_restore_too(tmp_path):
    given = pa.table({"user": [None if n % 10 == 0 else f"u{n % KEYS}" for n in range(ROWS)], "n": range(ROWS)})

    def job(parallelism):
        made = Job(tmp_path / "store", parallelism=parallelism, options=options(), restart=Restart.none())
        rows = made.source(jobs.SlowTable(given), uid="numbers")
        rows.stateful(InOrder(), key=["user"], uid="totals", output_schema=OUT, on_error="dead_letter")
        return made

    snapshot = left_in_flight(job(2))
    last = job(3).run(mode="inline")

    assert snapshot.operator_state("totals", "inflight_null_key").num_rows > 0
    dead = [row["rows"]["row"]["n"] for row in last.operator_state("totals_dead_letters", "rows").to_pylist()]
    assert sorted(dead) == list(range(0, ROWS, 10))
    expected = sum(n for n in range(ROWS) if n % 10)
    assert sum(row["total"] for row in last.to_arrow("totals.total").to_pylist()) == expected


def test_a_checkpoint_with_too_much_in_flight_is_declined_and_says_so(tmp_path):
    job = job_of(tmp_path / "store", options=options(max_in_flight_bytes=100, tolerated_failures=1_000_000))
    with job.start(mode="inline", seed=3) as running:
        with pytest.raises(CheckpointAbortedError, match="more than max_in_flight_bytes, 100"):
            for _ in range(100):
                running.go_on(5)
                if running.driver.coordinator.is_running:
                    running.checkpoint()
        last = running.wait()

    assert {row["user"]: row["total"] for row in last.to_arrow("totals.total").to_pylist()} == totals()


def test_rows_in_flight_with_other_columns_are_refused(tmp_path):
    left_in_flight(job_of(tmp_path / "store"))
    other = Job(tmp_path / "store", parallelism=2, options=options())
    rows = other.source(jobs.SlowTable(table()), uid="numbers").map_batches(lambda batch: batch.select(["user", "n"]))
    rows.stateful(InOrder(), key=["user"], uid="totals", output_schema=OUT).sink(OutputTable("changes"))

    with pytest.raises(IncompatibleStateError, match=r"totals\.inflight.*start the job once as it was"):
        other.run(mode="inline")


def test_an_operator_with_rows_in_flight_to_it_is_not_left_out_of_the_job(tmp_path):
    left_in_flight(job_of(tmp_path / "store"))
    without = Job(tmp_path / "store", parallelism=2, options=options(), allow_non_restored_state=True)
    without.source(jobs.SlowTable(table()), uid="numbers").sink(OutputTable("copy"))

    with pytest.raises(InvalidInputError, match=r"rows in flight to 'totals', which .*start the job once as it was"):
        without.start(mode="inline")

    with job_of(tmp_path / "store").start(mode="inline") as running:
        running.stop()
    assert without.run(mode="inline").sql("select finished from numbers.splits").fetchall() == [(True,)]


def test_columns_that_cannot_be_kept_are_found_when_the_job_is_built():
    given = pa.table({"user": ["ann"], "kind": pa.array(["a"]).dictionary_encode()})
    job = Job("memory://unaligned-types", options=options())

    with pytest.raises(InvalidInputError, match="rows in flight to 'totals': column 'kind'"):
        job.source(TableSource(given), uid="given").stateful(InOrder(), key=["user"], uid="totals")


@pytest.mark.parametrize("name", ["inflight", "INFLIGHT_2", "inflight_channels"])
def test_a_function_has_no_state_under_the_names_of_rows_in_flight(name):
    class Named(InOrder):
        def open(self, context):
            super().open(context)
            context.state(arrowstate.ValueStateDescriptor(name, pa.int64()))

    job = job_of("memory://unaligned-names-" + name, function=Named())

    with pytest.raises(JobFailedError, match="name it otherwise"):
        job.run(mode="inline")


@pytest.mark.parametrize("name", ["inflight", "inflight_channels", "inflight_null_key"])
def test_a_table_beside_the_rows_has_none_of_the_names_of_rows_in_flight(name):
    job = Job("memory://unaligned-broadcast-" + name, options=options(), restart=Restart.none())
    prices = job.source(TableSource(table().select(["user", "n"])), uid="prices")
    beside = {arrowstate.BroadcastStateDescriptor(name, pa.string(), pa.int64()): prices}
    rows = job.source(TableSource(table()), uid="rows")
    rows.stateful(InOrder(), key=["user"], uid="totals", output_schema=OUT, broadcast=beside)

    with pytest.raises(JobFailedError, match="name it otherwise"):
        job.run(mode="inline")


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidInputError, match="max_concurrent must be 1"):
        options(max_concurrent=2)
    with pytest.raises(InvalidInputError, match="needs unaligned=True"):
        arrowstate.CheckpointOptions(aligned_timeout_ms=5)
    with pytest.raises(InvalidInputError, match="at least once no channel waits"):
        Job("memory://unaligned-at-least-once", mode="at-least-once", options=options())
    store = arrowstate.open_store("memory://unaligned-writer", create=True)
    with store.writer() as writer, pytest.raises(InvalidInputError, match=r"Job of arrowstate\.runtime"):
        writer.coordinator({}, options=options())


@pytest.mark.parametrize("make", [jobs.windows, jobs.balances, jobs.everything_aside])
def test_jobs_are_what_they_are_without_kills(make, monkeypatch):
    job = make(2)
    job.options = options()
    check = None
    restored, recovered = InFlightStates.restored, []

    def noted(*given, **named):
        found = restored(*given, **named)
        recovered.extend(found)
        return found

    monkeypatch.setattr(InFlightStates, "restored", noted)
    # Where producers go first at times, rows wait in the channels.
    first, chance = Turns._consumers_first, random.Random(1)
    monkeypatch.setattr(Turns, "_consumers_first", lambda self: iter([*first(self)][:: chance.choice([1, -1])]))
    if make is jobs.everything_aside:
        calm = simulate(jobs.everything_aside(1), seeds=[0], kills=0, crashes=0, write_failures=0, check=lambda _: None)
        expected = jobs.everything_of(calm[0].snapshot)

        def check(run):
            found = jobs.everything_of(run.snapshot)
            differ = {name for name in expected if found[name] != expected[name]}
            # Other slots begin with the event time of the slowest before: what was late need not be late there.
            assert differ <= {"fired", "late", "prepared", "late_sums.total"}, (run.seed, differ)
            assert found["late"] <= expected["late"], run.seed

    simulate(job, seeds=range(short_or_long(3, 500)), kills=4, rescales=(1, 3), check=check)

    assert recovered


def test_slots_in_processes_take_unaligned_checkpoints(tmp_path):
    job = job_of(tmp_path / "store", options=options(interval_ms=5))

    snapshot = job.run()

    assert {row["user"]: row["total"] for row in snapshot.to_arrow("totals.total").to_pylist()} == totals()


class Slow(InOrder):
    """Sums, two milliseconds a row, so that rows always wait before it."""

    def process_batch(self, batch, context):
        time.sleep(0.002 * batch.num_rows)
        return super().process_batch(batch, context)


MANY = TableSource(table(20_000))
KILLED = """
import sys
from test_in_flight import MANY, Slow, job_of, options
job_of(sys.argv[1], function=Slow(), options=options(interval_ms=200), source=MANY).run()
"""


def processed_and_in_flight(snapshot) -> tuple[int, int]:
    read = snapshot.operator_state("numbers", "splits").to_pylist()
    position = next((row["splits"]["position"] for row in read if row["splits"]["position"]), 0)
    in_flight = snapshot.to_arrow("totals.inflight").num_rows
    return position - in_flight, in_flight


@pytest.mark.turns(4)
def test_a_job_that_is_killed_each_time_it_recovers_rows_in_flight_gets_on(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    found, newest = [], 0

    def has_come() -> bool:
        """Whether there is a checkpoint of this attempt; of the first one a checkpoint with rows in flight."""
        last = next(iter(store.checkpoints()[-1:]), None)
        return last is not None and last.checkpoint_id > newest and (newest > 0 or processed_and_in_flight(last)[1] > 0)

    for _ in range(short_or_long(6, 21)):
        with subprocess.Popen([sys.executable, "-c", KILLED, store.url], env=environment) as child:
            try:
                until(has_come)
            finally:
                child.send_signal(signal.SIGKILL)
        newest = store.latest().checkpoint_id
        found.append(processed_and_in_flight(store.latest()))

    processed = [rows for rows, _ in found]
    assert processed == sorted(processed), found
    assert processed[-1] > processed[0], found
    # At the first checkpoint after a start a part of what was in flight then was still in flight.
    assert any(later[0] - earlier[0] < earlier[1] for earlier, later in pairwise(found)), found
    check_end(job_of(store.url, source=MANY), rows=20_000)
