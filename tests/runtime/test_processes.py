"""Slots in processes of their own: killed, hanging, and without the process that started them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
import runtime_kill_rounds as kill_rounds
from arrowstate.runtime import Job, Restart, TableSource
from long_form import short_or_long

SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


class StuckOnce(arrowstate.BatchFunction):
    """Never returns from its first batch, in the first process that gets one."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def open(self, context):
        self.total = context.state(SUM)

    def process_batch(self, batch, context):
        if not self.flag.exists():
            self.flag.touch()
            time.sleep(600)
        self.total.add_batch(context.key_columns(batch), batch["n"])


def job_of(folder: Path, function: arrowstate.BatchFunction, **options) -> Job:
    job = Job(folder / "store", restart=Restart.fixed(attempts=3, delay_ms=10), **options)
    rows = job.source(TableSource(pa.table({"k": [1, 2, 1], "n": [1, 2, 3]})), uid="rows")
    rows.stateful(function, key=["k"], uid="stuck")
    return job


def test_a_slot_that_hangs_is_killed_and_the_job_says_in_which_step(tmp_path):
    job = job_of(tmp_path, StuckOnce(tmp_path / "flag"), task_timeout_ms=1_000)

    with job.start() as running:
        snapshot = running.wait(timeout_ms=120_000)
        (failure,) = running.status().failures

    assert "busy in one step of 'stuck'" in failure
    assert "task_timeout_ms is 1000" in failure
    assert sorted(snapshot.sql("select k, total from stuck.total").fetchall()) == [(1, 4), (2, 2)]


def test_what_kills_of_slots_and_jobs_leave_is_whole(tmp_path):
    slots, whole = kill_rounds.run_rounds(tmp_path, short_or_long(4, 40), seed=3)
    kill_rounds.make_job(tmp_path, 2).run()

    assert slots + whole >= 2
    assert kill_rounds.compare(tmp_path) is None


def test_slots_end_with_the_process_that_started_them(tmp_path):
    kill_rounds.make_files(tmp_path / "in")
    child = kill_rounds.started(tmp_path, 2)
    workers = kill_rounds.workers_of(child.pid)
    assert len(workers) == 2

    child.send_signal(signal.SIGKILL)
    child.wait()

    deadline = time.monotonic() + 60
    while any(_is_there(worker) for worker in workers):
        assert time.monotonic() < deadline, "slots went on without their job"
        time.sleep(0.05)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # Nobody has waited for it: it has ended all the same.
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.fixture(autouse=True)
def _small_input(monkeypatch):
    # The processes read what is there.
    monkeypatch.setattr(kill_rounds, "ROWS", 80_000)
