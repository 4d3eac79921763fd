"""Rounds of SIGKILL and SIGSTOP of a job beside one that stands by; what came out must have each row once.

    tools/python tests/runtime/standby_rounds.py --rounds 50 [--seed N] [--keys 10000000]

Each round has two processes of `arrowstate run --standby` on one store, which write to PostgreSQL, a server of the
script's own, and to an output table. The one that runs the job is killed, or stopped by SIGSTOP: by itself or with its
slots. The other must take over, and commit within two seconds of the end of the lease. Who was stopped is woken later:
it must end with `FencedError`, and neither the log nor PostgreSQL may have anything of it after the fence. At the end
SIGTERM stops the job, and its standby must end by itself. It exits with 1 after a finding.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psycopg
import pyarrow as pa

import arrowstate
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.jobs import newest_report
from postgres import postgres_server
from runtime_kill_rounds import workers_of

LEASE_MS = 2_000
WITHIN_MS = 2_000
"""From the end of the lease to the first commit of the one that takes over."""
WAIT_S = 120
ROWS_PER_SECOND = 20_000

JOB = """
import os

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.runtime import GeneratorSource, Job, OutputTable, PostgresSink, Restart

KEYS = int(os.environ["ROUNDS_KEYS"])
SCHEMA = pa.schema({"k": pa.int64(), "n": pa.int64()})


def numbered(first, count):
    numbers = np.arange(first, first + count)
    return pa.record_batch({"k": numbers * 7919 % KEYS, "n": numbers})


class Counts(arrowstate.BatchFunction):
    def open(self, context):
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.count.add_batch(context.group_keys(batch), pa.array(np.ones(batch.num_rows, np.int64)))
        return batch


job = Job(
    os.environ["ROUNDS_STORE"],
    parallelism=2,
    max_parallelism=128,
    options=arrowstate.CheckpointOptions(interval_ms=100, tolerated_failures=10),
    restart=Restart.fixed(delay_ms=20),
    # Half a minute of checkpoints: whoever looks at one has the time for it.
    retention=arrowstate.RetentionPolicy(count=300),
    lease_ms=int(os.environ["ROUNDS_LEASE_MS"]),
)
source = GeneratorSource(numbered, SCHEMA, splits=2, batch_rows=500, rows_per_second=float(os.environ["ROUNDS_RATE"]))
counts = job.source(source, uid="numbers").stateful(Counts(), key=["k"], uid="counts", output_schema=SCHEMA)
counts.sink(OutputTable("given"))
counts.sink(PostgresSink(os.environ["ROUNDS_CONNINFO"], "outside"), uid="outside")
"""
TWICE = "select count(*) - count(distinct n) from "
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job is."""

    folder: Path
    conninfo: str
    keys: int = 1_000

    @property
    def store(self) -> Path:
        return self.folder / "store"


class Runner:
    """A process of `arrowstate run --standby`, and what it says."""

    def __init__(self, place: Place) -> None:
        environment = {
            **os.environ,
            "ROUNDS_STORE": str(place.store),
            "ROUNDS_CONNINFO": place.conninfo,
            "ROUNDS_KEYS": str(place.keys),
            "ROUNDS_LEASE_MS": str(LEASE_MS),
            "ROUNDS_RATE": str(ROWS_PER_SECOND),
        }
        command = [sys.executable, "-m", "arrowstate", "run", str(place.folder / "job.py"), "--standby", "--json"]
        self.process = subprocess.Popen(
            [*command, "--no-savepoint"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.events: list[dict[str, Any]] = []
        self.errors = ""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._hear, self._hear_errors)]
        for thread in self._threads:
            thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def _hear_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def has_said(self, event: str) -> bool:
        """Whether it has told of an event."""
        return any(said["event"] == event for said in list(self.events))

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(WAIT_S)
        for thread in self._threads:
            thread.join(WAIT_S)
        return code

    def kill(self) -> None:
        """End it whatever it does."""
        self.process.kill()
        self.process.wait()


def awaited(what: str, condition: Callable[[], Found], seconds: float = WAIT_S) -> Found:
    """Wait until a condition holds, and return what it gave."""
    ends = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > ends:
            raise TimeoutError(f"{what} has not come within {seconds} s")
        time.sleep(0.02)


def make_place(folder: Path, conninfo: str, keys: int = 1_000) -> Place:
    """Make the table, and the state of many keys if so many are asked for."""
    place = Place(folder, conninfo, keys)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.py").write_text(JOB)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("drop table if exists outside; create table outside (k bigint, n bigint)")
    if keys > 100_000:
        store = arrowstate.open_store(place.store, create=True)
        given = pa.table({"k": np.arange(keys), "count": np.zeros(keys, np.int64)})
        descriptor = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="sum")
        store.bootstrap("counts", ["k"], [descriptor], given, parallelism=2, max_parallelism=128)
    return place


def first_commit_of(place: Place, above: int) -> tuple[int, int] | None:
    """Return the epoch of the writer after another, and when it committed its first checkpoint."""
    log = CommitLog(arrowstate.open_store(place.store).storage)
    found = None
    for entry in log.history().entries():
        if entry.document.writer_epoch <= above:
            break
        if entry.document.kind == "checkpoint":
            found = entry.document.writer_epoch, entry.document.committed_at_ms
    return found


def problem_of(place: Place, *, is_over: bool = False) -> str | None:
    """Return what is wrong with what came out, None for nothing."""
    # Rows come to the table first, and outside after the commit: so outside is looked at before.
    with psycopg.connect(place.conninfo) as connection:
        outside = {row[0] for row in connection.execute("select n from outside").fetchall()}
        (twice,) = connection.execute(TWICE + "outside").fetchone() or (None,)
    snapshot = arrowstate.open_store(place.store).latest()
    given = snapshot.sql("select n from given.rows").fetchnumpy()["n"]
    once = {int(number) for number in given}
    if twice or len(once) < len(given):
        return f"{twice} rows are twice outside, {len(given) - len(once)} in the table"
    if outside - once:
        return f"{len(outside - once)} rows are outside that the table has not"
    counts = snapshot.sql("select sum(count)::bigint from counts.count").fetchall()[0][0]
    if counts != len(once):
        return f"the counts are {counts}, and the table has {len(once)} rows"
    if is_over and outside != once:
        return f"{len(once - outside)} rows are not outside"
    return None


def run_round(
    place: Place, first: Runner, second: Runner, chance: random.Random, within_ms: float
) -> tuple[str, int, str | None]:
    """Let the second take over from the first; return what was done, after how long it committed, what is wrong."""
    awaited("a standby that is ready", lambda: second.has_said("ready"))
    time.sleep(chance.uniform(0.2, 1.0))
    kind = chance.choice(["SIGKILL", "SIGSTOP", "SIGSTOP with slots"])
    workers = workers_of(first.process.pid) if kind == "SIGSTOP with slots" else []
    for process in (first.process.pid, *workers):
        os.kill(process, signal.SIGKILL if kind == "SIGKILL" else signal.SIGSTOP)
    storage = arrowstate.open_store(place.store).storage
    report = newest_report(storage)
    assert report is not None
    ends_ms = report.written_at_ms + report.lease_ms
    epoch, committed_ms = awaited("a commit", lambda: first_commit_of(place, report.writer_epoch))
    after_ms = committed_ms - ends_ms
    found = None if after_ms <= within_ms else f"the first commit came {after_ms} ms after the end of the lease"
    if not second.has_said("takeover"):
        awaited("word of the takeover", lambda: second.has_said("takeover"))
    if kind != "SIGKILL":
        time.sleep(chance.uniform(0, 1.5))
        for process in (*workers, first.process.pid):
            os.kill(process, signal.SIGCONT)
        code = first.ended()
        if code != 1 or "FencedError" not in first.errors:
            found = found or f"who was woken ended with {code}: {first.errors[-500:]}"
    else:
        first.ended()
    entries = CommitLog(storage).history().entries()
    epochs = [entry.document.writer_epoch for entry in entries]
    if epochs != sorted(epochs, reverse=True) or epochs[0] != epoch:
        found = found or f"the log has entries of another after the fence: {epochs[:10]}"
    last = newest_report(storage)
    if last is None or last.writer_epoch != epoch or len(storage.list("jobs/")) != 1:
        found = found or f"the reports are {storage.list('jobs/')}, and the job is of epoch {epoch}"
    return kind, after_ms, found or problem_of(place)


def run_rounds(
    folder: Path, conninfo: str, rounds: int, seed: int, keys: int = 1_000, within_ms: float = math.inf
) -> int:
    """Run rounds, print what happened, and return how many findings there were."""
    chance = random.Random(seed)
    place = make_place(folder, conninfo, keys)
    problems, latest_ms = 0, []
    runners = [Runner(place)]
    try:
        awaited("the first commit", lambda: (place.store / "arrowstate.json").exists() and first_commit_of(place, 0))
        # A store of many keys has a commit before its job: whoever reports first is the one that the other waits for.
        storage = arrowstate.open_store(place.store).storage
        awaited("a report of the job", lambda: newest_report(storage) is not None)
        for number in range(rounds):
            runners.append(Runner(place))
            kind, after_ms, found = run_round(place, runners[0], runners[1], chance, within_ms)
            runners.pop(0)
            problems += found is not None
            latest_ms.append(after_ms)
            median = sorted(latest_ms)[len(latest_ms) // 2]
            print(
                f"round {number + 1}: {kind}, committed {after_ms} ms after the end of the lease (median {median}, "
                f"longest {max(latest_ms)}), {problems} problems {found or ''}",
                flush=True,
            )
        runners.append(Runner(place))
        awaited("a standby that is ready", lambda: runners[1].has_said("ready"))
        runners[0].process.send_signal(signal.SIGTERM)
        codes = [runner.ended() for runner in runners]
        found = None if codes == [0, 0] else f"they ended with {codes}: {runners[0].errors} {runners[1].errors}"
        found = found or problem_of(place, is_over=True)
        if not runners[1].has_said("ended") or runners[1].has_said("takeover"):
            found = found or f"who stood by said {runners[1].events}"
        problems += found is not None
        print(f"stopped: {problems} problems {found or ''}", flush=True)
    finally:
        for runner in runners:
            runner.kill()
    return problems


def main() -> int:
    """Run rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, help="where the store is made; by default a temporary one")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="arrowstate-standby-"))
    with postgres_server() as conninfo:
        return 1 if run_rounds(folder, conninfo, arguments.rounds, arguments.seed, arguments.keys, WITHIN_MS) else 0
