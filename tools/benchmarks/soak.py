"""A job that runs for long beside kills: whether its memory, its files and the age of its checkpoints stay as they are.

The job reads at a share of the rate that it can do, which is measured first, and takes unaligned checkpoints. Every
minute one of its slots is killed, so the job goes on from its newest checkpoint. Some times a minute it is looked at:
the resident memory of all its processes, the files of its store, and how old the newest checkpoint is. The age includes
the kills. At the end each row that the checkpoint says was read is counted once in the state.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import arrowstate
from arrowstate.clock import now_ms
from arrowstate.runtime import GeneratorSource, Job, Restart, RunningJob
from benchmarks.follow import SCHEMA, Rows, Totals
from benchmarks.harness import Report, argument_parser

_SETTLED = 0.25
"""The share of the time after which memory and files are looked at: until then the state grows to its size."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Looked:
    """What was seen, each time that the job was looked at."""

    seconds: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    own_bytes: list[int] = field(default_factory=list)
    """The part of the process that is never killed."""
    files: list[int] = field(default_factory=list)
    age_ms: list[int] = field(default_factory=list)
    kills: int = 0


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("soak", __doc__, rounds=1)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--load", type=float, default=0.6, help="share of the rate that the job can do (default 0.6)")
    parser.add_argument("--interval", type=int, default=1_000, help="ms from checkpoint to checkpoint (default 1,000)")
    parser.add_argument("--between", type=float, default=60, help="seconds from kill to kill (default 60)")
    parser.add_argument("--keys", type=int, default=200_000, help="distinct keys (default 200,000)")
    arguments = parser.parse_args(argv)
    report = Report("soak", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        rate = _rate(Path(folder) / "rate", arguments)
        report.figure("rows a second without a limit", rate, "rows/s")
        looked, lost = _soak(Path(folder) / "soak", arguments, int(rate * arguments.load))
    settled = [number for number, second in enumerate(looked.seconds) if second >= arguments.minutes * 60 * _SETTLED]
    minutes = np.array(looked.seconds)[settled] / 60
    memory, own = (np.array(looked_at)[settled] / 2**20 for looked_at in (looked.memory_bytes, looked.own_bytes))
    (slope, _), (own_slope, _) = (np.polyfit(minutes, sizes, 1) for sizes in (memory, own))
    half = len(settled) // 2
    earlier, later = (np.array(looked.files)[part] for part in (settled[:half], settled[half:]))
    report.figure("kills", looked.kills, "")
    report.figure("resident memory, median", float(np.median(memory)), "MiB")
    report.figure("of it the process of the job, median", float(np.median(own)), "MiB")
    report.figure("the process of the job grows in ten minutes", 10 * float(own_slope), "MiB")
    report.figure("files, most", int(max(looked.files)), "")
    report.figure("age of the newest checkpoint, median", float(np.median(looked.age_ms)), "ms")
    report.require("rows that were read and not counted once", lost, at_most=0)
    report.require(
        "memory grows in ten minutes", 10 * float(slope) / float(np.median(memory)), at_most=0.02, unit="of it"
    )
    report.require("files, second half by first", float(later.max() / earlier.max()), at_most=1.2)
    report.require("the oldest newest checkpoint", max(looked.age_ms) / arguments.interval, at_most=3, unit="intervals")
    return report.finish()


def _job(folder: Path, arguments: argparse.Namespace, rows_per_second: int | None) -> Job:
    job = Job(
        folder,
        parallelism=2,
        options=arrowstate.CheckpointOptions(interval_ms=arguments.interval, unaligned=True),
        retention=arrowstate.RetentionPolicy(count=10),
        restart=Restart.fixed(delay_ms=10),
    )
    source = GeneratorSource(Rows(arguments.keys), SCHEMA, splits=2, rows_per_second=rows_per_second)
    job.source(source, uid="rows").stateful(Totals(), key=["key"], uid="totals")
    return job


def _rate(folder: Path, arguments: argparse.Namespace) -> float:
    """Return how many rows a second the job can do."""
    with _job(folder, arguments, None).start() as running:
        running.checkpoint()
        before, began = _read(running), time.perf_counter()
        time.sleep(10)
        running.checkpoint()
        return (_read(running) - before) / (time.perf_counter() - began)


def _read(running: RunningJob) -> int:
    ((count,),) = running.sql("select coalesce(sum(position), 0) from rows.splits").fetchall()
    return int(count)


def _soak(folder: Path, arguments: argparse.Namespace, rows_per_second: int) -> tuple[Looked, int]:
    """Run the job; return what was seen, and by how many rows its state is wrong."""
    looked = Looked()
    chance = np.random.default_rng(1)
    with _job(folder, arguments, rows_per_second).start() as running:
        running.checkpoint()
        began = time.perf_counter()
        next_kill = arguments.between
        while (second := time.perf_counter() - began) < arguments.minutes * 60:
            slots = _slots(os.getpid())
            if second >= next_kill and slots:
                next_kill += arguments.between
                os.kill(int(chance.choice(slots)), signal.SIGKILL)
                looked.kills += 1
            looked.seconds.append(second)
            looked.own_bytes.append(_resident_bytes(os.getpid()))
            looked.memory_bytes.append(looked.own_bytes[-1] + sum(map(_resident_bytes, slots)))
            looked.files.append(sum(path.is_file() for path in folder.rglob("*")))
            looked.age_ms.append(now_ms() - running.store.latest().entry.committed_at_ms)
            time.sleep(arguments.interval / 4_000)
        last = running.stop()
    ((counted,),) = last.sql("select coalesce(sum(total), 0) from totals.total").fetchall()
    ((read,),) = last.sql("select coalesce(sum(position), 0) from rows.splits").fetchall()
    return looked, abs(int(counted) - int(read))


def _slots(process: int) -> list[int]:
    """Return the processes that this one has started and that are alive."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        # A thread may have ended since.
        with suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if _resident_bytes(child)]


def _resident_bytes(process: int) -> int:
    """Return the memory of a process; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
