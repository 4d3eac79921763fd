"""`arrowstate run`: which job of a file is run, how it ends, and what signals do."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

import arrowstate
from arrowstate.cli import main, run_display, run_table
from arrowstate.cli.job_file import load_job
from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime import JobStatus, RestartStatus, TaskStatus
from stores import until

HEAD = """
from __future__ import annotations

import threading

import arrowstate
import pyarrow as pa
from arrowstate.runtime import GeneratorSource, Job, Restart, TableSource

COUNT = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count")


class Counts(arrowstate.BatchFunction):
    def open(self, context):
        self.count = context.state(COUNT)

    def process_batch(self, batch, context):
        self.count.add_batch(context.key_columns(batch), batch["n"])


def numbered(first, count):
    return pa.record_batch({"k": [n % 3 for n in range(first, first + count)], "n": range(first, first + count)})


ROWS = pa.table({"k": [0, 1, 2, 0], "n": [1, 2, 3, 4]})
SCHEMA = pa.schema({"k": pa.int64(), "n": pa.int64()})


def declared(store, source, function=None, **options):
    job = Job(store, **options)
    job.source(source, uid="numbers").stateful(function or Counts(), key=["k"], uid="counts")
    return job
"""
BOUNDED = "declared({store!r}, TableSource(ROWS))"
STUCK = """print('{"event": "stuck"}', flush=True); threading.Event().wait()"""
ENDLESS = "declared({store!r}, GeneratorSource(numbered, SCHEMA, rows_per_second=2_000))"


@pytest.fixture
def write(tmp_path):
    """Write a file of jobs, in whose text `store` is replaced."""

    def write(text: str, name: str = "counting.py") -> str:
        path = tmp_path / name
        path.write_text(HEAD + "\n\n" + text.replace("{store!r}", repr(str(tmp_path / "store"))))
        return str(path)

    before = list(sys.path)
    yield write
    sys.path[:] = before
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def counts(place) -> dict[int, int]:
    return dict(arrowstate.open_store(place).sql("select k, count from counts.count").fetchall())


@pytest.mark.parametrize(
    "text",
    [
        f"anything = {BOUNDED}\nthe_same = anything",
        f"def job():\n    return {BOUNDED}",
        f"def counted() -> Job:\n    return {BOUNDED}\n\n\ndef other():\n    raise ValueError",
        f"def counted(more=1, *rest) -> Job:\n    return {BOUNDED}\n\n\nfound = counted()",
    ],
)
def test_the_only_job_of_a_file_is_found(write, tmp_path, capsys, text):
    code = main(["run", write(text), "--mode", "threads"])

    assert code == 0
    assert re.fullmatch(rf"finished at checkpoint \d of {tmp_path / 'store'}\n", capsys.readouterr().out)
    assert counts(tmp_path / "store") == {0: 2, 1: 1, 2: 1}


def test_a_job_is_chosen_by_its_name(write, tmp_path):
    path = write(f"one = {BOUNDED}\n\n\ndef two():\n    return declared({{store!r}} + '-of-two', TableSource(ROWS))")

    assert main(["run", path, "--job", "two", "--mode", "threads", "--parallelism", "2"]) == 0

    assert counts(tmp_path / "store-of-two") == {0: 2, 1: 1, 2: 1}
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("x = 1", None, "has no job: give a variable one"),
        (f"a = {BOUNDED}\nb = {BOUNDED}", None, "several jobs, a, b; choose one with --job"),
        ("def a() -> Job: ...\n\n\ndef b() -> 'Job': ...", None, "several jobs, a, b; choose one with --job"),
        ("x = 1", "y", "has no 'y'"),
        ("x = 1", "x", "'x' of .* is no Job, and returns none; it is int"),
        ("def a(n): ...", "a", "'a' of .* is called without arguments; give a default to n"),
        ("def a():\n    return None", "a", "'a' of .* is no Job, and returns none; it is NoneType"),
        ("def a():\n    return 1 / 0", "a", r"(?s)'a' of .* failed:.*line \d+, in a\n.*ZeroDivisionError"),
        ("1 / 0", None, r"(?s)cannot be loaded:.*in <module>\n.*ZeroDivisionError"),
        ("raise SystemExit('no configuration')", None, r"(?s)cannot be loaded:.*in <module>\n.*SystemExit: no config"),
        ("def a():\n    raise SystemExit(0)", "a", r"(?s)'a' of .* failed:.*, in a\n.*SystemExit"),
        ("def (", None, r"(?s)cannot be loaded:.*SyntaxError"),
    ],
)
def test_a_file_without_the_job_says_what_is_wrong_with_it(write, text, name, message):
    path = write(text)

    with pytest.raises(InvalidInputError, match=message):
        load_job(path, name)


def test_a_file_that_is_not_there_and_a_job_that_fails_exit_with_1(write, capsys):
    class_ = "class Fails(Counts):\n    def process_batch(self, batch, context):\n        raise ValueError('no')"
    job = "job = declared('memory://run-fails', TableSource(ROWS), Fails(), restart=Restart.none())"

    assert main(["run", "nothing.py"]) == 1
    assert "there is no file nothing.py" in capsys.readouterr().err
    assert main(["run", write(f"{class_}\n\n\n{job}"), "--mode", "threads"]) == 1
    assert "operator 'counts' failed" in capsys.readouterr().err


def test_a_file_with_the_name_of_a_module_takes_no_place_of_it(write):
    load_job(write(f"job = {BOUNDED}", "json.py"), None)

    assert sys.modules["json"] is json


def test_a_job_begins_with_a_savepoint_another_store_or_an_older_checkpoint(write, tmp_path, capsys):
    path = write(f"job = {BOUNDED}")
    other = write("job = declared({store!r} + '-of-another', TableSource(pa.concat_tables([ROWS] * 3)))", "another.py")
    once, thrice = {0: 2, 1: 1, 2: 1}, {0: 6, 1: 3, 2: 3}
    store = arrowstate.open_store(tmp_path / "store", create=True)

    def fences():
        fences = [entry.document for entry in CommitLog(store.storage).history().entries()]
        return [fence.properties for fence in reversed(fences) if fence.kind == "fence"]

    def run(*arguments):
        assert main(["run", path, "--mode", "threads", *arguments]) == 0
        return counts(tmp_path / "store")

    # What is read of a split is not read again, whatever the source has now.
    assert run() == once
    first = store.latest().checkpoint_id
    store.tag("first")
    store.savepoint("before")
    assert main(["run", other, "--mode", "threads"]) == 0
    assert run("--from", str(tmp_path / "store-of-another")) == thrice
    assert run("--from", "before") == once
    assert "imported_from" in fences()[-2]
    # The second start goes on.
    assert run("--from", "before") == once
    assert "imported_from" not in fences()[-1]
    assert run("--from", str(tmp_path / "store-of-another")) == thrice
    assert run("--from", str(first)) == once
    assert run() == once
    assert [file.parent.name for file in (tmp_path / "store").glob("savepoints/*/arrowstate.json")] == ["before"]
    last = arrowstate.open_store(tmp_path / "store-of-another").latest().checkpoint_id
    assert run("--from", f"{tmp_path}/store-of-another@{last}") == thrice
    assert run("--from", f"{tmp_path}/store@{first}") == once
    assert main(["run", path, "--from", "1000"]) == 1
    assert "no checkpoint 1000 in this store" in capsys.readouterr().err


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "arrowstate", "run", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen[str], event: str, count: int = 1) -> dict:
    """Read lines until the last of so many that tell of an event."""
    assert process.stdout is not None
    for line in process.stdout:
        told = json.loads(line)
        count -= told["event"] == event
        if not count:
            return told
    raise AssertionError(f"it ended, with {process.wait()}, before it told of {event!r}")


def test_ctrl_c_stops_a_job_with_a_savepoint_and_a_new_start_goes_on(write, tmp_path):
    path = write(f"job = {ENDLESS}")

    with started(path, "--json", "--every", "0.2") as process:
        while not (told := read_until(process, "status"))["tasks"] or not told["tasks"][0]["rows"]:
            pass
        process.send_signal(signal.SIGUSR1)
        full = read_until(process, "checkpoint")
        process.send_signal(signal.SIGINT)
        stopped = read_until(process, "stopped")
        code = process.wait(30)

    assert code == 0
    assert full["text"] == f"checkpoint {full['checkpoint_id']} is full"
    assert full["checkpoint_id"] < stopped["checkpoint_id"]
    assert {task["task"] for task in told["tasks"]} == {"numbers", "counts"}
    assert stopped["savepoint"] == str(tmp_path / "store" / "savepoints" / f"stopped-at-{stopped['checkpoint_id']}")
    assert sum(counts(stopped["savepoint"]).values()) >= told["tasks"][0]["rows"] > 0
    assert counts(tmp_path / "store") == counts(stopped["savepoint"])


@pytest.mark.parametrize("as_json", [True, False])
def test_a_job_goes_on_though_nobody_reads_its_output_any_more(write, tmp_path, as_json):
    path = write(f"job = {ENDLESS}")
    store = arrowstate.open_store(tmp_path / "store", create=True)

    with started(path, "--every", "0.2", *["--json"][: int(as_json)]) as process:
        while "running" not in process.stdout.readline():
            pass
        process.stdout.close()
        for count in (1, 2, 3):
            # It is told of each checkpoint, and of the figures in between.
            process.send_signal(signal.SIGUSR1)
            until(lambda count=count: len(store.checkpoints()) >= count, "the job did not go on")
            time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)

    assert code == 0
    assert store.health().status == "stopped"


def test_a_savepoint_at_a_place_that_is_taken_is_refused_before_the_job_starts(write, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    path = write(f"job = {BOUNDED}")

    code = main(["run", path, "--mode", "threads", "--savepoint", str(tmp_path / "taken")])

    assert code == 1
    assert "a savepoint needs an empty place" in capsys.readouterr().err
    assert not arrowstate.open_store(tmp_path / "store").checkpoints()


def test_a_savepoint_that_cannot_be_written_in_the_end_does_not_hide_where_the_job_has_stopped(write, tmp_path):
    path = write(f"job = {ENDLESS}")

    with started(path, "--json", "--every", "0.2", "--savepoint", str(tmp_path / "place")) as process:
        read_until(process, "running")
        (tmp_path / "place" / "notes.txt").write_text("mine")
        process.send_signal(signal.SIGTERM)
        stopped = read_until(process, "stopped")
        told = process.stdout.read()
        code = process.wait(30)

    assert code == 1
    assert stopped["savepoint"] is None
    assert stopped["checkpoint_id"] == arrowstate.open_store(tmp_path / "store").latest().checkpoint_id
    assert "a savepoint needs an empty place" in told


def test_a_second_signal_ends_a_job_at_once_though_a_step_of_it_never_ends(write, tmp_path):
    class_ = "class Stuck(Counts):\n    def process_batch(self, batch, context):\n        " + STUCK
    path = write(f"{class_}\n\n\njob = declared({{store!r}}, TableSource(ROWS), Stuck())")

    with started(path, "--json", "--every", "0.2", "--mode", "threads") as process:
        read_until(process, "stuck")
        process.send_signal(signal.SIGTERM)
        read_until(process, "stopping")
        # More than the time in which two signals are one.
        read_until(process, "status", count=4)
        process.send_signal(signal.SIGTERM)
        read_until(process, "ended")
        code = process.wait(30)

    assert code == 128 + signal.SIGTERM


def test_a_terminal_shows_a_table_of_the_operators(write):
    job = load_job(write(f"job = {ENDLESS.replace('{store!r}', repr('memory://run-table'))}"), None)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)

    with (
        job.start(mode="inline") as running,
        Live(console=console, auto_refresh=False) as live,
    ):
        running.checkpoint()
        run_table.LiveTable(live, "memory://run-table").show(running.status())
    shown = console.file.getvalue()

    for text in ("running, attempt 1, memory://run-table", "numbers", "counts", "blocked", "s ago, took", "Ctrl-C"):
        assert text in shown


def test_rows_that_were_set_aside_or_left_out_are_told():
    nothing = TaskStatus("clicks", 0, 5, 0.0, 0.0, 0.0, 0, None, False)
    hourly = replace(nothing, task="hourly", late_rows=3), replace(nothing, task="hourly", slot=1, dead_rows=1_200)
    status = JobStatus("running", 1, (), (), (nothing, *hourly))

    line = run_display._line(status)

    assert line.endswith("; hourly set 1,200 rows aside, hourly left out 3 late rows")
    assert "aside" not in run_display._line(replace(status, tasks=(nothing,)))


def test_a_job_that_is_down_says_when_it_starts_again_and_why():
    failed = RestartStatus(2, now_ms(), "ValueError: bad\nand more", again_at_ms=now_ms() + 12_400)
    status = JobStatus("waiting", 2, (), (), (TaskStatus("clicks", 0, 5, 0.0, 0.0, 0.0, 0, None, False),))
    status = replace(status, restarts=(failed,))

    assert run_display._line(status) == "down, again in 12 s: ValueError: bad; no checkpoint yet"
    assert ("waiting", "down, again in 12 s: ValueError: bad") in list(run_display._Changes(60).of(status))
    assert "down" not in run_display._line(replace(status, state="running"))
