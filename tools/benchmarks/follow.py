"""Lookups in the newest checkpoint beside a job that takes one a second and keeps three: how fast and how old they are.

The job runs in processes of its own as fast as it can, in turns alone and followed. Each lookup asks for one random
key; they begin at fixed times, so one that is slow makes those after it late, which counts as their latency. RocksDB is
no peer here: nobody outside of the process that has it open may read it while it is written to.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.errors import ArrowStateError
from arrowstate.runtime import GeneratorSource, Job, RunningJob
from benchmarks.harness import Report, argument_parser

SCHEMA = pa.schema({"key": pa.int64(), "amount": pa.int64()})
INTERVAL_MS = 1_000
CHECKPOINTS = 3


@dataclass(slots=True)
class Asked:
    """What lookups were like."""

    seconds: list[float] = field(default_factory=list)
    ages_ms: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    checkpoints: set[int] = field(default_factory=set)


class Rows:
    """Makes rows of random keys by their numbers."""

    def __init__(self, keys: int) -> None:
        self.keys = keys

    def __call__(self, first: int, count: int) -> pa.RecordBatch:
        numbers = np.arange(first, first + count, dtype=np.int64)
        keys = (numbers * 2_654_435_761) % self.keys
        return pa.record_batch([pa.array(keys), pa.array(np.ones(count, dtype=np.int64))], schema=SCHEMA)


class Totals(arrowstate.BatchFunction):
    """Adds the amounts of each key."""

    def open(self, context: arrowstate.BatchContext) -> None:
        """Declare the state."""
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        """Add a batch."""
        self.total.add_batch(context.group_keys(batch), batch["amount"])


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("follow", __doc__, rounds=1)
    parser.add_argument("--seconds", type=float, default=300, help="of each turn (default 300)")
    parser.add_argument("--rate", type=int, default=1_000, help="lookups a second (default 1,000)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys (default 1 M)")
    arguments = parser.parse_args(argv)
    report = Report("follow", arguments)
    asked = Asked()
    rates: dict[str, list[float]] = {"alone": [], "followed": []}
    for _ in range(arguments.rounds):
        for name in rates:
            with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
                rates[name].append(_turn(Path(folder), arguments, asked if name == "followed" else None))
    if asked.errors:
        print(f"  the first error: {asked.errors[0]}")
    for name, share in (("p50", 50), ("p99", 99), ("p99.9", 99.9)):
        report.figure(f"lookup of a key, {name}", float(np.percentile(asked.seconds, share)) * 1000, "ms")
    report.figure("lookups", len(asked.seconds), "")
    report.figure("lookups a second", len(asked.seconds) / arguments.seconds / arguments.rounds, "")
    report.figure("checkpoints that answered", len(asked.checkpoints), "")
    report.require("errors", len(asked.errors), at_most=0)
    report.require("the oldest answer", max(asked.ages_ms) / INTERVAL_MS, at_most=2, unit="intervals")
    for name, found in rates.items():
        report.figure(f"the job, {name}", float(np.median(found)), "rows/s")
    report.figure(
        "the job followed by the job alone", float(np.median(rates["followed"]) / np.median(rates["alone"])), ""
    )
    return report.finish()


def _turn(folder: Path, arguments: argparse.Namespace, asked: Asked | None) -> float:
    """Run a job for some time; return its rows a second."""
    job = Job(
        folder / "store",
        options=arrowstate.CheckpointOptions(interval_ms=INTERVAL_MS),
        retention=arrowstate.RetentionPolicy(count=CHECKPOINTS),
    )
    rows = job.source(GeneratorSource(Rows(arguments.keys), SCHEMA), uid="rows")
    rows.stateful(Totals(), key=["key"], uid="totals")
    with job.start() as running:
        running.checkpoint()
        before, began = _read(running), time.perf_counter()
        if asked is None:
            time.sleep(arguments.seconds)
        else:
            with running.follow() as follower:
                _ask(follower, arguments, asked)
        return (_read(running) - before) / (time.perf_counter() - began)


def _read(running: RunningJob) -> int:
    ((count,),) = running.sql("select sum(rows_in) from runtime.tasks where operator = 'totals'").fetchall()
    return int(count)


def _ask(follower: arrowstate.Follower, arguments: argparse.Namespace, asked: Asked) -> None:
    keys = np.random.default_rng(1).integers(0, arguments.keys, int(arguments.seconds * arguments.rate))
    follower.lookup("totals.total", pa.array(keys[:1]))
    began = time.perf_counter()
    for number, key in enumerate(keys):
        due = began + number / arguments.rate
        if (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        try:
            answer = follower.lookup("totals.total", pa.array([key]))
        except (ArrowStateError, OSError) as error:
            asked.errors.append(f"{type(error).__name__}: {error}")
            continue
        asked.seconds.append(time.perf_counter() - due)
        asked.ages_ms.append(answer.age_ms)
        asked.checkpoints.add(answer.checkpoint_id)
