"""How long single batches take while merges go on: the slowest against the median, beside RocksDB.

Each kind of state gets a row for every key, then many batches of random keys, one after the other. Merges are in what
is measured: a large one goes on in steps that each batch pays for, so none should wait for one.

The figures are processor time of the thread that writes, which a machine with other work does not spoil, and wall time
beside it. RocksDB flushes and compacts in threads of its own, which its processor time leaves out; what it holds a
writer back for is wall time only. Its keys are sorted and made unique before, in the time that is measured as ours are.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Report, argument_parser
from benchmarks.kinds import MIXED_KINDS, OurState, OurTimers, PeerState, PeerTimers, TimerWork

Numbers = npt.NDArray[np.int64]

_BEFORE = 5
"""Batches that are not measured."""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    kinds = [*MIXED_KINDS, "timers"]
    parser = argument_parser("latency", __doc__, rounds=1, cpu="last")
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--batch", type=int, default=20_000, help="rows of a batch (default 20,000)")
    parser.add_argument("--batches", type=int, default=1500, help="batches (default 1,500)")
    parser.add_argument("--peer-batches", type=int, default=300, help="batches of RocksDB; 0: without it (default 300)")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="what to measure (default all)")
    arguments = parser.parse_args(argv)
    report = Report("latency", arguments)
    for kind in arguments.kinds:
        print(f"\n{kind}, {arguments.batches:,} batches of {arguments.batch:,} rows, {arguments.keys:,} keys")
        _ours(report, arguments, kind)
        if arguments.peer_batches:
            _peer(report, arguments, kind)
    return report.finish()


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return seconds of processor time of this thread, and of wall time."""
    wall, cpu = time.perf_counter(), time.thread_time()
    run()
    return time.thread_time() - cpu, time.perf_counter() - wall


def _ours(report: Report, arguments: Any, kind: str) -> None:
    random = np.random.default_rng(1)
    if kind == "timers":
        timed = _timers(OurTimers(), arguments, arguments.batches)
    else:
        state = OurState(kind, arguments.keys)
        timed = []
        for _ in range(_BEFORE):
            # The first pays for merges that the large batches before have made due.
            state.run(state.columns(random.integers(0, arguments.keys, arguments.batch)))
        gc.collect()
        gc.disable()
        for _ in range(arguments.batches):
            columns = state.columns(random.integers(0, arguments.keys, arguments.batch))
            timed.append(_timed(lambda columns=columns: state.run(columns)))  # type: ignore[misc]
        gc.enable()
    cpu = _show(report, kind, "arrowstate", arguments.batch, timed)
    median = float(np.median(cpu))
    report.require(f"{kind}: slowest batch by the median", float(cpu.max()) / median, at_most=8)
    report.require(f"{kind}: p99.9 by the median", float(np.quantile(cpu, 0.999)) / median, at_most=5)


def _peer(report: Report, arguments: Any, kind: str) -> None:
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        path = Path(folder) / "rocksdb"
        if kind == "timers":
            timers = PeerTimers(path)
            _show(report, kind, "RocksDB", arguments.batch, _timers(timers, arguments, arguments.peer_batches))
            timers.close()
            return
        state = PeerState(kind, path, arguments.keys)
        timed = []
        for _ in range(arguments.peer_batches):
            keys = random.integers(0, arguments.keys, arguments.batch)
            timed.append(_timed(lambda keys=keys: state.run(keys)))  # type: ignore[misc]
        _show(report, kind, "RocksDB", arguments.batch, timed)
        state.close()


def _timers(timers: OurTimers | PeerTimers, arguments: Any, batches: int) -> list[tuple[float, float]]:
    """Register a batch of timers and pop about as many, again and again."""
    work = TimerWork(timers, arguments.keys, arguments.batch, 1)
    timed = []
    for _ in range(_BEFORE):
        work.draw()
        work.register()
        work.pop()
    gc.collect()
    gc.disable()
    for _ in range(batches):
        work.draw()

        def step() -> None:
            work.register()
            work.pop()

        timed.append(_timed(step))
    gc.enable()
    return timed


def _show(report: Report, kind: str, who: str, rows: int, timed: list[tuple[float, float]]) -> Numbers:
    cpu, wall = np.array(timed).T * 1000
    for name, each in (("processor", cpu), ("wall", wall)):
        median = float(np.median(each))
        shown = {"median": median, "p99": np.quantile(each, 0.99), "p99.9": np.quantile(each, 0.999), "max": each.max()}
        parts = ", ".join(f"{what} {value:.1f}" for what, value in shown.items())
        rate = rows * each.size / each.sum() * 1000
        print(
            f"  {who:<10} {name:<9} ms: {parts}; {each.max() / median:.1f} times the median; {rate / 1e6:.2f} M rows/s"
        )
        for what, value in shown.items():
            report.figure(f"{kind}, {who}, {name} time, {what}", float(value), "ms", shown=False)
        report.figure(f"{kind}, {who}, rows by {name} time", rate, "rows/s", shown=False)
    return cpu
