"""How long a checkpoint of a job takes where a slow function has rows wait before it, aligned and unaligned.

The job runs in processes. Its source reads as fast as it can; its function waits for each batch as long as its rate
says, so the channels before it are full. Without back pressure the source reads a quarter of what the function takes.
The four kinds take turns. Rows that wait are bounded by the credit of channels, 4 MiB each: with four slots some 64
MiB.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.runtime import GeneratorSource, Job, RunningJob
from benchmarks.harness import Report, argument_parser

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
    captured_rows: list[int] = field(default_factory=list)


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("backpressure", __doc__, rounds=3)
    parser.add_argument("--parallelism", type=int, default=4, help="slots (default 4)")
    parser.add_argument(
        "--rate", type=int, default=400_000, help="rows a second of a slot's function (default 400,000)"
    )
    parser.add_argument("--checkpoints", type=int, default=5, help="of each turn (default 5)")
    arguments = parser.parse_args(argv)
    report = Report("backpressure", arguments)
    kinds = [(unaligned, is_slow) for is_slow in (True, False) for unaligned in (False, True)]
    taken = {kind: Taken() for kind in kinds}
    for _ in range(arguments.rounds):
        for unaligned, is_slow in kinds:
            with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
                _turn(Path(folder), arguments, taken[unaligned, is_slow], unaligned=unaligned, is_slow=is_slow)
    medians = {}
    for (unaligned, is_slow), found in taken.items():
        name = f"{'unaligned' if unaligned else 'aligned'}, {'with' if is_slow else 'without'} back pressure"
        medians[unaligned, is_slow] = float(np.median(found.seconds))
        report.figure(f"checkpoint {name}, median", medians[unaligned, is_slow] * 1000, "ms")
        report.figure(f"checkpoint {name}, longest", max(found.seconds) * 1000, "ms")
        report.figure(
            f"rows that waited at its beginning, {name}", float(np.median(found.waiting_bytes)) / 2**20, "MiB"
        )
        report.figure(f"rows in flight in it, {name}", float(np.median(found.captured_rows)), "rows")
    report.figure("aligned by unaligned, with back pressure", medians[False, True] / medians[True, True], "")
    report.require_time("unaligned with back pressure", medians[True, True], at_most=0.3)
    report.require("unaligned with by without", medians[True, True] / medians[True, False], at_most=1.5)
    return report.finish()


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
            count = snapshot.to_arrow("totals.inflight").num_rows if unaligned else 0
            taken.captured_rows.append(count)


def _waiting_bytes(running: RunningJob) -> int:
    ((count,),) = running.sql("select coalesce(sum(in_flight_bytes), 0) from runtime.channels").fetchall()
    return int(count)
