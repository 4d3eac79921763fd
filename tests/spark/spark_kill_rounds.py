"""Kill a part of a streaming query by SIGKILL, at a random moment, round after round, and compare what it leaves.

    tools/python tests/spark/spark_kill_rounds.py FOLDER --rounds 60 [--seed N]

A standalone cluster with two workers runs a stateful operator (states, timers by the watermark, an output table) or
`keyed_sink` over Parquet files, one per micro-batch; each round adds some. What is killed is the driver (its JVM, its
Python, or both), a Python worker or an executor. A driver that is gone is started again at another parallelism and max
parallelism. After each round, and in the end when all files are processed, the newest checkpoint is compared with what
DuckDB makes of the files up to its micro-batch: every state, the pending timers, and every row of the output table with
its micro-batch and its place. Some rows have no key and are dead letters; the sink takes changes that come late, and
collects its store meanwhile. The exit code is 1 after any difference. Also run by a test, in a shorter form.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from spark_audit import compare, files_until, rows_of
from spark_cluster import Cluster, kill_group, make_class_archive, parents, standalone_cluster
from spark_files import add_file

DRIVER = Path(__file__).parent / "cluster" / "driver.py"
PATIENCE_SECONDS = 300
WHAT = ["driver", "driver", "jvm", "python", "worker", "worker", "executor", "executor"]
WHEN = ["start", "between", "between", "any", "any"]
PAUSES = {"start": 8, "any": 1}


class StuckError(Exception):
    """The query makes no progress, and nobody was killed."""


@dataclass(frozen=True)
class Round:
    """What happens in a round."""

    what: str
    "What is killed."
    when: str
    "`start`: while the driver starts; `between`: between the commits of the store and of Spark; `any`."
    files: int
    "How many files come."
    further: int
    "How many micro-batches are waited for."
    pause: float
    "And how long after that, in seconds."
    parallelism: int
    "Where a driver is started; the max parallelism too."
    max_parallelism: int | None

    @classmethod
    def drawn(cls, seed: int, number: int) -> Round:
        # What one round takes from the dice must not change the next one.
        dice = random.Random(f"{seed}-{number}")
        what = dice.choice(WHAT)
        when = dice.choice(WHEN)
        parallelism = dice.choice([1, 2, 3, 4])
        return cls(
            what=what,
            when=when,
            files=dice.choice([2, 3, 4]),
            further=0 if when == "start" else dice.choice([0, 1, 2]),
            pause=dice.choice([0, 0, 0.1 * dice.random()]) if when == "between" else PAUSES[when] * dice.random(),
            parallelism=parallelism,
            max_parallelism=dice.choice([None, parallelism, 7, 128, 300]),
        )


@dataclass
class Job:
    """The query, its files, and the driver while there is one."""

    folder: Path
    what: str
    "The function of the driver: `audit` or `sink`."
    cluster: Cluster
    settings: dict[str, str]
    files: int = 0
    driver: subprocess.Popen[bytes] | None = None
    left: list[subprocess.Popen[bytes]] = field(default_factory=list)
    "Drivers that were killed."
    counts: Counter[str] = field(default_factory=Counter)

    def add_files(self, count: int) -> None:
        """Add files for the stream."""
        for number in range(self.files, self.files + count):
            add_file(self.folder, number, rows_of(number))
        self.files += count

    def start(self, parallelism: int, max_parallelism: int | None) -> None:
        """Start a driver."""
        request = {
            "call": self.what,
            "folder": str(self.folder),
            "parallelism": parallelism,
            "max_parallelism": max_parallelism,
            "to_the_end": False,
        }
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = self.cluster.driver(
                DRIVER, json.dumps(self.settings), stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert self.driver.stdin is not None
        self.driver.stdin.write(json.dumps(request).encode() + b"\n")
        self.driver.stdin.close()
        self.counts["starts"] += 1

    def is_running(self) -> bool:
        """Whether there is a driver; one that has ended by itself is cleaned up."""
        if self.driver is not None and self.driver.poll() is not None:
            kill_group(self.driver)
            self.driver = None
            self.counts["ended by itself"] += 1
        return self.driver is not None

    def committed(self) -> int:
        """How many micro-batches Spark knows to be done."""
        commits = self.folder / "spark" / "commits"
        return sum(name.isdigit() for name in os.listdir(commits)) if commits.is_dir() else 0

    def is_between_commits(self) -> bool:
        """Whether the store has a micro-batch that Spark does not know to be done."""
        log = self.folder / "store" / "log"
        numbers = [name for name in os.listdir(log) if name.endswith(".json")] if log.is_dir() else []
        if not numbers:
            return False
        batch_id = json.loads((log / max(numbers)).read_text())["properties"]["spark"]["batch_id"]
        return batch_id is not None and batch_id >= self.committed()

    def targets(self, what: str) -> list[int]:
        """The processes that may be killed."""
        if self.driver is None:
            return []
        if what == "executor":
            return self.cluster.executors()
        if what == "worker":
            return self.cluster.python_workers()
        if what == "python":
            return [self.driver.pid]
        table = parents()
        jvms = [pid for pid, parent in table.items() if parent == self.driver.pid]
        if what == "jvm":
            return jvms
        return [self.driver.pid, *jvms]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait while the query runs."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self.is_running() and not condition():
            if time.monotonic() > end:
                raise StuckError
            time.sleep(0.003)

    def kill(self, drawn: Round) -> None:
        """Wait for the moment of a round, and kill."""
        what, further = drawn.what, self.committed() + drawn.further
        # Without files the query has nothing to do, and may be killed as well.
        self.wait_until(lambda: self.committed() >= further or self.has_all())
        if drawn.when == "between":
            self.wait_until(lambda: self.is_between_commits() or self.has_all())
        moment = time.monotonic() + drawn.pause
        self.wait_until(lambda: time.monotonic() >= moment)
        self.wait_until(lambda: bool(self.targets(what)))
        targets = self.targets(what)
        if not targets:
            self.counts["too late"] += 1
            return
        for pid in targets if what == "driver" else [random.choice(targets)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.counts[what] += 1
        self.counts["between the commits"] += self.is_between_commits()
        if what not in ("driver", "jvm", "python"):
            return
        assert self.driver is not None
        try:
            self.driver.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise StuckError from None
        # A JVM without its Python goes on until it notices, beside the next driver.
        self.left.append(self.driver)
        self.driver = None

    def has_all(self) -> bool:
        """Whether the query has taken all files."""
        done = self.committed()
        return done > 0 and files_until(self.folder, done - 1) == self.files

    def finish(self) -> None:
        """Wait until the query has taken all files."""
        in_vain = 0
        while not self.has_all():
            if not self.is_running():
                # Any max parallelism that the rounds have left allows 1.
                self.start(1, None)
            done = self.committed()
            self.wait_until(lambda done=done: self.committed() > done)  # type: ignore[misc]
            in_vain = 0 if self.committed() > done else in_vain + 1
            if in_vain == 3:
                raise StuckError

    def end(self) -> None:
        for driver in [*self.left, *([] if self.driver is None else [self.driver])]:
            kill_group(driver)
        self.driver = None


def rounds(job: Job, count: int, seed: int) -> Iterator[tuple[int, list[str]]]:
    """Kill so many times, and let it finish; after each yield the number and what is wrong."""
    for number in range(count):
        drawn = Round.drawn(seed, number)
        job.add_files(drawn.files)
        if not job.is_running():
            job.start(drawn.parallelism, drawn.max_parallelism)
        job.kill(drawn)
        yield number, [f"{problem}; {drawn}" for problem in compare(job.folder, job.what)[1]]
    job.finish()
    files, problems = compare(job.folder, job.what)
    if files != job.files:
        problems.append(f"the newest checkpoint has {files} of {job.files} files")
    yield count, problems


def run(folder: Path, what: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Kill so many times; what happened, and what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "classes.jsa"
    # It pays only where Spark starts often.
    if count > 10 and not archive.exists():
        make_class_archive(archive)
    with standalone_cluster(folder / "cluster", archive=archive if archive.exists() else None) as cluster:
        # Spark forgets what older micro-batches took.
        settings = {**cluster.settings(), "spark.sql.streaming.minBatchesToRetain": "100000"}
        job = Job(folder, what, cluster, settings, files=len(list(folder.glob("in/*.parquet"))))
        try:
            for number, problems in rounds(job, count, seed):
                print(f"round {number}: {job.committed()} batches, {dict(job.counts)}", flush=True)
                if problems:
                    return job.counts, [f"round {number}: {problem}" for problem in problems]
        except StuckError:
            return job.counts, [f"no progress for {PATIENCE_SECONDS} s, or by three drivers (driver.log)"]
        finally:
            job.end()
    return job.counts, []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="an empty folder of this machine, or one to go on in")
    parser.add_argument("--query", choices=["audit", "sink"], default="audit")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # Ended from outside, it ends the cluster.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.monotonic()
    counts, problems = run(given.folder.absolute(), given.query, given.rounds, given.seed)
    print(*problems, sep="\n", end="\n" if problems else "")
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    seconds = time.monotonic() - started
    print(f"{given.rounds} rounds, seed {given.seed}: {told}; {len(problems)} problems, {seconds:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
