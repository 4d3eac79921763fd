"""How long a checkpoint of a job takes where a slow function has rows wait before it, aligned and unaligned.

The job runs in processes. Its source reads as fast as it can; its function waits for each batch as long as its rate
says, so the channels before it are full. Without back pressure the source reads a quarter of what the function takes.
The four kinds take turns. Rows that wait are bounded by the credit of channels, 4 MiB each: with four slots some 64
MiB.

Flink runs the same job beside it (`--flink PYTHON`, a Python that has apache-flink, made if not given, `none` leaves it
out; Java's compiler is needed). It has a fixed number of network buffers, so their size says how many bytes wait, and
its source makes fewer rows, so its function takes a quarter as many. Its times are those that it tells of itself.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.runtime import GeneratorSource, Job, RunningJob
from benchmarks.flink_jobs import flink_command
from benchmarks.harness import Report, argument_parser
from benchmarks.runtime_peers import python_with

SCHEMA = pa.schema({"key": pa.int64(), "amount": pa.int64(), "text": pa.string()})
TEXT = "0123456789" * 10


class Rows:
    """Makes rows of random keys by their numbers."""

    def __call__(self, first: int, count: int) -> pa.RecordBatch:
        numbers = np.arange(first, first + count, dtype=np.int64)
        keys = (numbers * 2_654_435_761) % 100_000
        return pa.record_batch([pa.array(keys), pa.array(numbers), pa.repeat(TEXT, count)], schema=SCHEMA)


class Slow(arrowstate.BatchFunction):
    """Adds the amounts of each key, at so many rows a second."""

    def __init__(self, rows_per_second: float) -> None:
        self.rows_per_second = rows_per_second

    def open(self, context: arrowstate.BatchContext) -> None:
        """Declare the state."""
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        """Add a batch, and wait."""
        self.total.add_batch(context.group_keys(batch), batch["amount"])
        time.sleep(batch.num_rows / self.rows_per_second)


@dataclass(slots=True)
class Taken:
    """What the checkpoints of one kind took."""

    seconds: list[float] = field(default_factory=list)
    waiting_bytes: list[int] = field(default_factory=list)
    captured_bytes: list[int] = field(default_factory=list)


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("backpressure", __doc__, rounds=3)
    parser.add_argument("--parallelism", type=int, default=4, help="slots (default 4)")
    parser.add_argument(
        "--rate", type=int, default=400_000, help="rows a second of a slot's function (default 400,000)"
    )
    parser.add_argument("--checkpoints", type=int, default=5, help="of each turn (default 5)")
    parser.add_argument("--flink", type=Path, metavar="PYTHON", help="a Python that has apache-flink 2.3")
    arguments = parser.parse_args(argv)
    report = Report("backpressure", arguments)
    kinds = [(unaligned, is_slow) for is_slow in (True, False) for unaligned in (False, True)]
    taken, of_flink = {kind: Taken() for kind in kinds}, {kind: Taken() for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        python = python_with("pyflink", arguments.flink, Path(temporary))
        for unaligned, is_slow in kinds * arguments.rounds:
            kind = unaligned, is_slow
            with tempfile.TemporaryDirectory(dir=temporary) as folder:
                _turn(Path(folder), arguments, taken[kind], unaligned=unaligned, is_slow=is_slow)
            if python is not None:
                with tempfile.TemporaryDirectory(dir=temporary) as folder:
                    _flink_turn(python, Path(folder), arguments, of_flink[kind], unaligned=unaligned, is_slow=is_slow)
    medians = _told(report, taken, "arrowstate")
    report.figure("aligned by unaligned, with back pressure", medians[False, True] / medians[True, True], "")
    if python is not None:
        theirs = _told(report, of_flink, "Flink")
        report.figure("Flink, aligned by unaligned, with back pressure", theirs[False, True] / theirs[True, True], "")
    report.require_time("unaligned with back pressure", medians[True, True], at_most=0.3)
    report.require("unaligned with by without", medians[True, True] / medians[True, False], at_most=1.5)
    return report.finish()


def _told(report: Report, taken: dict[tuple[bool, bool], Taken], system: str) -> dict[tuple[bool, bool], float]:
    """Report what the checkpoints of each kind took; return the median of their seconds."""
    medians = {}
    for (unaligned, is_slow), found in taken.items():
        name = f"{system}, {'unaligned' if unaligned else 'aligned'}, {'with' if is_slow else 'without'} back pressure"
        medians[unaligned, is_slow] = float(np.median(found.seconds))
        report.figure(f"{name}: median", medians[unaligned, is_slow] * 1000, "ms")
        report.figure(f"{name}: longest", max(found.seconds) * 1000, "ms")
        if found.waiting_bytes:
            report.figure(f"{name}: rows that waited", float(np.median(found.waiting_bytes)) / 2**20, "MiB")
        report.figure(f"{name}: rows in flight in it", float(np.median(found.captured_bytes)) / 2**20, "MiB")
    return medians


def _turn(folder: Path, arguments: object, taken: Taken, *, unaligned: bool, is_slow: bool) -> None:
    """Run a job, and take checkpoints of it one after another once rows wait."""
    rate, slots = arguments.rate, arguments.parallelism  # type: ignore[attr-defined]
    job = Job(
        folder / "store",
        parallelism=slots,
        options=arrowstate.CheckpointOptions(unaligned=unaligned),
        spare_slot=False,
    )
    most = None if is_slow else rate * slots // 4
    rows = job.source(GeneratorSource(Rows(), SCHEMA, splits=slots, rows_per_second=most), uid="rows")
    rows.stateful(Slow(rate), key=["key"], uid="totals")
    with job.start() as running:
        running.checkpoint()
        while is_slow and _waiting_bytes(running) < (1 << 20) * slots * slots:
            time.sleep(0.1)
        for _ in range(arguments.checkpoints):  # type: ignore[attr-defined]
            # The channels fill up again, and what is told of them is of some time ago.
            time.sleep(1)
            taken.waiting_bytes.append(_waiting_bytes(running))
            began = time.perf_counter()
            snapshot = running.checkpoint()
            taken.seconds.append(time.perf_counter() - began)
            taken.captured_bytes.append(snapshot.to_arrow("totals.inflight").nbytes if unaligned else 0)


def _waiting_bytes(running: RunningJob) -> int:
    ((count,),) = running.sql("select coalesce(sum(in_flight_bytes), 0) from runtime.channels").fetchall()
    return int(count)


def _flink_turn(python: Path, folder: Path, arguments: Any, taken: Taken, *, unaligned: bool, is_slow: bool) -> None:
    """Run the job in Flink until it has taken so many checkpoints of full channels, and note what it tells of them."""
    slots, rate = arguments.parallelism, arguments.rate / 4
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    (folder / "checkpoints").mkdir()
    given = 0 if is_slow else rate * slots / 4
    words = (rate, given, slots, str(unaligned).lower(), port, folder / "checkpoints", "1mb")
    command = flink_command(python, "FlinkBackpressure", folder, *map(str, words))
    with (folder / "told").open("w") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        try:
            # The first five are of channels that fill up.
            done = _flink_checkpoints(process, f"http://localhost:{port}", 5 + arguments.checkpoints)[5:]
        finally:
            process.kill()
            process.wait()
    for checkpoint in done:
        taken.seconds.append(checkpoint["end_to_end_duration"] / 1000)
        taken.captured_bytes.append(checkpoint["persisted_data"])


def _flink_checkpoints(process: subprocess.Popen[bytes], address: str, count: int) -> list[dict[str, Any]]:
    """Wait until a job has done so many checkpoints; return what Flink's REST interface tells of each, in order."""
    while process.poll() is None:
        time.sleep(1)
        try:
            (job,) = _asked(f"{address}/jobs")["jobs"]
            history = _asked(f"{address}/jobs/{job['id']}/checkpoints")["history"]
        except (urllib.error.URLError, ValueError):
            # It starts.
            continue
        done = [checkpoint for checkpoint in reversed(history) if checkpoint["status"] == "COMPLETED"]
        if len(done) >= count:
            return done[:count]
    raise RuntimeError(f"the job in Flink ended: {process.args!r}")


def _asked(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)
