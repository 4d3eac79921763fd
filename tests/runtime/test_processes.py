"""Slots in processes of their own: killed, hanging, and without the process that started them."""

import array
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import arrowstate
import runtime_kill_rounds as kill_rounds
from arrowstate.runtime import GeneratorSource, Job, Restart, TableSource
from arrowstate.runtime.core.messages import Deploy, Ready
from arrowstate.runtime.core.slot import Setting
from arrowstate.runtime.drivers import processes
from arrowstate.runtime.drivers.control import Connection
from long_form import short_or_long
from stores import TOTAL, until


class StuckOnce(arrowstate.BatchFunction):
    """Never returns from its first batch, in the first process that gets one."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def open(self, context):
        self.total = context.state(TOTAL)

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


class PoolAsked(arrowstate.BatchFunction):
    """Writes down which allocator Arrow has in its process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def process_batch(self, batch, context):
        self.file.write_text(pa.default_memory_pool().backend_name)


@pytest.mark.parametrize(("asked", "used"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_a_slot_has_the_allocator_of_the_system_unless_the_environment_names_another(
    asked, used, tmp_path, monkeypatch
):
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    if asked is not None:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", asked)

    job_of(tmp_path, PoolAsked(tmp_path / "pool")).run()

    assert (tmp_path / "pool").read_text() == used


def test_a_slot_that_hangs_is_killed_and_the_job_says_in_which_step(tmp_path):
    job = job_of(tmp_path, StuckOnce(tmp_path / "flag"), task_timeout_ms=1_000)

    with job.start() as running:
        snapshot = running.wait(timeout_ms=120_000)
        (failure,) = running.status().failures

    assert "busy in one step of 'stuck'" in failure
    assert "task_timeout_ms is 1000" in failure
    assert sorted(snapshot.sql("select k, total from stuck.total").fetchall()) == [(1, 4), (2, 2)]


class KeepsTheLock(StuckOnce):
    """Is in C for ever, and lets no other thread of its process run."""

    def process_batch(self, batch, context):
        if not self.flag.exists():
            self.flag.touch()
            lock, lib = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
            lib.pthread_mutex_lock(lock)
            lib.pthread_mutex_lock(lock)
        super().process_batch(batch, context)


def test_a_slot_whose_function_keeps_the_interpreters_lock_is_killed_and_the_job_says_where_it_was(tmp_path):
    job = job_of(tmp_path, KeepsTheLock(tmp_path / "flag"), task_timeout_ms=3_000)

    with job.start() as running:
        snapshot = running.wait(timeout_ms=120_000)
        (failure,) = running.status().failures

    assert "busy in one step of 'stuck'" in failure
    assert re.search(r"; since 20..-..-..T..:..:..\+00:00", failure)
    assert re.search(r'\n  File ".*test_processes.py", line \d+ in process_batch\n', failure)
    assert sorted(snapshot.sql("select k, total from stuck.total").fetchall()) == [(1, 4), (2, 2)]


@pytest.mark.parametrize("sink", kill_rounds.SINKS)
@pytest.mark.turns(6)
def test_what_kills_of_slots_and_jobs_leave_is_whole(tmp_path, sink, capfd):
    if (missing := kill_rounds.missing(sink)) is not None:
        pytest.skip(missing)  # It says what is not installed.
    with kill_rounds.server_of(sink) as server:
        problems = kill_rounds.run_rounds(tmp_path, short_or_long(2, 40), 3, sink, server)

    assert problems == 0, capfd.readouterr().out


def test_slots_end_with_the_process_that_started_them(tmp_path):
    child = kill_rounds.started(kill_rounds.make_place(tmp_path), 2)
    workers = kill_rounds.workers_of(child.pid)
    assert len(workers) == 2

    child.send_signal(signal.SIGKILL)
    child.wait()

    until(lambda: not any(map(_is_there, workers)), "slots went on without their job")


LOCKED = """
import sys
from pathlib import Path
from test_processes import KeepsTheLock, job_of
folder = Path(sys.argv[1])
job_of(folder, KeepsTheLock(folder / "flag")).run()
"""


def test_a_slot_that_keeps_the_interpreters_lock_ends_with_the_process_that_started_it(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", LOCKED, str(tmp_path)], env=environment) as child:
        try:
            until(lambda: (tmp_path / "flag").exists(), "the function was never called")
            # One is spare, if it has started by now.
            workers = kill_rounds.workers_of(child.pid)
        finally:
            child.send_signal(signal.SIGKILL)

    assert workers
    until(lambda: not any(map(_is_there, workers)), "the slot went on without its job")


ENDLESS = """
import sys
import pyarrow as pa
from arrowstate.runtime import GeneratorSource, Job
from test_processes import Adds, numbers
job = Job(sys.argv[1], lease_ms=1_000)
endless = GeneratorSource(numbers, pa.schema({"k": pa.int64(), "n": pa.int64()}))
job.source(endless, uid="rows").stateful(Adds(), key=["k"], uid="added")
job.run()
"""


FORKING = """
import multiprocessing, os, sys
import pyarrow as pa
from arrowstate.errors import InvalidInputError
from arrowstate.runtime import GeneratorSource, Job, OutputTable, Restart
from test_processes import numbers

def ask():
    for asked in (running.status, running.checkpoint, running.stop, running.wait):
        try:
            asked()
        except InvalidInputError as error:
            assert "a running job belongs to the process" in str(error), error
        else:
            raise AssertionError(asked)
    running.close()

job = Job(sys.argv[1], restart=Restart.none())
endless = GeneratorSource(numbers, pa.schema({"k": pa.int64(), "n": pa.int64()}), rows_per_second=1_000)
job.source(endless, uid="rows").sink(OutputTable("copy"))
with job.start(mode=sys.argv[2]) as running:
    running.checkpoint()
    fork = multiprocessing.get_context("fork")
    for function in (int, ask):
        child = fork.Process(target=function)
        child.start()
        child.join()
        assert child.exitcode == 0, function
    if os.fork() == 0:
        sys.exit()
    os.wait()
    running.checkpoint()
    assert not running.status().restarts
    running.stop()
"""


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_a_process_that_is_forked_from_that_of_a_job_ends_nothing_of_it(tmp_path, mode):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", FORKING, str(tmp_path / "store"), mode]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


def processor_ticks(pid: int) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def test_slots_whose_job_was_stopped_rest_until_it_goes_on(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", ENDLESS, store.url], env=environment) as child:
        try:
            until(store.checkpoints)
            slot = min(kill_rounds.workers_of(child.pid))
            child.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()

            def rests() -> bool:
                before = processor_ticks(slot)
                time.sleep(1)
                return processor_ticks(slot) - before < 0.1 * os.sysconf("SC_CLK_TCK")

            until(rests, "the slot went on")
            # Without a look at the lease it goes on for half a minute, until the job takes no more of what it says.
            assert time.monotonic() - stopped < 15
            newest = store.latest().checkpoint_id
            child.send_signal(signal.SIGCONT)
            until(lambda: store.latest().checkpoint_id > newest, "the job did not go on")
        finally:
            child.kill()


@dataclass
class WorkerOfTest:
    """A process of a slot, with the test in the place of the job."""

    process: subprocess.Popen[bytes]
    control: Connection
    passing: socket.socket
    links: list[socket.socket]

    def link(self, peer: int, generation: int) -> None:
        own, given = socket.socketpair()
        self.links.append(own)
        socket.send_fds(self.passing, [array.array("q", [peer, generation]).tobytes()], [given.fileno()])
        given.close()


@pytest.fixture
def worker(tmp_path) -> Iterator[WorkerOfTest]:
    """Slot 0 of two."""
    job = job_of(tmp_path, StuckOnce(tmp_path / "flag"))
    store = arrowstate.open_store(tmp_path / "store", create=True)
    control, theirs = socket.socketpair()
    passing, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends = [theirs.fileno(), given.fileno()]
    command = [sys.executable, "-m", "arrowstate.runtime.drivers.worker", *map(str, ends)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, pass_fds=ends, env=environment) as process:
        theirs.close()
        given.close()
        made = WorkerOfTest(process, Connection(control), passing, [])
        made.control.send(
            {
                "path": sys.path,
                "graph": cloudpickle.dumps(job.graph),
                "store": store.url,
                "storage_options": None,
                "setting": Setting(store.store_id, 2, 128),
                "slot": 0,
                "lease_ms": 10_000,
            }
        )
        yield made
        process.kill()
        for each in (control, passing, *made.links):
            each.close()


def deploy(worker: WorkerOfTest, generation: int) -> None:
    worker.control.send((Deploy(1, None, {}, frozenset(["rows"])), {1: generation}))


def test_a_slot_that_waits_for_its_links_ends_with_the_process_that_started_it(worker):
    deploy(worker, generation=2)
    assert worker.control.receive()[0] == "busy since"

    worker.control.close()
    worker.passing.close()

    assert worker.process.wait(timeout=60) == 1


def test_a_slot_begins_with_a_newer_link_than_it_was_told_of(worker):
    worker.link(peer=1, generation=2)
    worker.link(peer=1, generation=3)

    deploy(worker, generation=2)

    # Between two beats passes half a second.
    assert Ready(1, 0) in (worker.control.receive() for _ in range(60))


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
    monkeypatch.setattr(kill_rounds, "ROWS", 40_000)


def rows_taken(running):
    return sum(of.rows for of in running.status().tasks if of.task == "added")


def spare_of(running):
    return running.driver._slots._spare


def test_a_process_that_is_ready_takes_the_place_of_a_slot_that_dies_and_ends_with_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_SPARE_AFTER_MS", 0)
    job = Job(tmp_path / "store", restart=Restart.fixed(delay_ms=0))
    endless = GeneratorSource(numbers, pa.schema({"k": pa.int64(), "n": pa.int64()}), rows_per_second=1_000)
    job.source(endless, uid="rows").stateful(Adds(), key=["k"], uid="added")

    with job.start() as running:
        spare = until(lambda: spare_of(running))
        until(lambda: rows_taken(running))
        before = running.checkpoint(timeout_ms=60_000)
        os.kill(running.driver._slots._processes[0].popen.pid, signal.SIGKILL)
        until(lambda: running.status().attempt == 2 and running.status().state == "running")
        until(lambda: rows_taken(running))
        after = running.checkpoint(timeout_ms=60_000)
        pid = running.driver._slots._processes[0].popen.pid
        following = until(lambda: spare_of(running))

    counted = "select sum(total) from added.total"
    assert pid == spare.popen.pid != following.popen.pid
    assert 0 < before.sql(counted).fetchall()[0][0] < after.sql(counted).fetchall()[0][0]
    assert following.popen.poll() is not None


def test_a_process_that_was_ready_and_has_died_takes_no_place(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_SPARE_AFTER_MS", 0)
    job = Job(tmp_path / "store", restart=Restart.fixed(delay_ms=0))
    endless = GeneratorSource(numbers, pa.schema({"k": pa.int64(), "n": pa.int64()}), rows_per_second=1_000)
    job.source(endless, uid="rows").stateful(Adds(), key=["k"], uid="added")

    with job.start() as running:
        spare = until(lambda: spare_of(running))
        spare.popen.kill()
        spare.popen.wait()
        os.kill(running.driver._slots._processes[0].popen.pid, signal.SIGKILL)
        until(lambda: running.status().attempt == 2 and running.status().state == "running")
        pid = running.driver._slots._processes[0].popen.pid

    assert pid != spare.popen.pid
    assert len(running.status().failures) == 1


def test_a_job_that_is_to_keep_no_process_ready_keeps_none(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_SPARE_AFTER_MS", 0)
    monkeypatch.setattr(processes, "_LOOK_MS", 1)
    job = Job(tmp_path / "store", spare_slot=False)
    job.source(TableSource(pa.table({"k": [1], "n": [1]})), uid="rows").stateful(Adds(), key=["k"], uid="added")

    with job.start() as running:
        running.wait(timeout_ms=60_000)

        assert spare_of(running) is None


def numbers(first, count):
    return pa.record_batch({"k": pa.array(range(first, first + count)), "n": pa.array([1] * count)})


class Adds(arrowstate.BatchFunction):
    """Sums by key."""

    def open(self, context):
        self.total = context.state(TOTAL)

    def process_batch(self, batch, context):
        self.total.add_batch(context.key_columns(batch), batch["n"])
