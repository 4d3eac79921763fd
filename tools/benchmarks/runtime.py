"""Jobs of the embedded runtime, slots in processes, beside Bytewax, Pathway and PyFlink: rates, latency, recovery.

`sums` is a sum per key, `windows` a count per key and window of 10 s of event time; rows are made before the clock
starts, the first quarter of them is not timed, and for ours the time ends when the last checkpoint is committed.
`latency` is how long a row takes, at half the load, from where it is read to where its sum is committed; `recovery`,
how long it takes from a SIGKILL of a slot with 10 M keys to the next commit of rows that were read after it.

Each peer runs in a Python of its own (`--bytewax`, `--pathway`, `--pyflink`; made if not given, `none` leaves it out).
`record` is code of a user that is called for each row, `idiom` what the peer has built in for it. They get fewer rows,
for it is the rate that counts. What is unequal: Bytewax emits each sum, it and Flink's windows see keys in one worker;
Pathway reads a file; Flink makes its rows in the JVM, where its SQL stays; PyFlink's process function runs in thread
mode, the faster of its two.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Report, Series, argument_parser
from benchmarks.runtime_jobs import Latency, Recovery, Sums, Totals, TotalsByRecord, windows
from benchmarks.runtime_peers import PEERS, Peer, python_with

_PARTS = ("sums", "windows", "latency", "recovery")
_INTERVAL_MS = 1_000
_OURS, _CHECKPOINTS, _TWO = "batch function, a slot", "the same, a checkpoint every second", "the same, two slots"
_RECORD, _WINDOW = "record function, a slot", "window function, a slot"

# Rows of each peer for a million of Bytewax's, so that they take about as long: name, work, workers, checkpoints, rows.
_SUMS = [
    ("bytewax", "record", 0, False, 1_000_000),
    ("bytewax", "record", 0, True, 1_000_000),
    ("bytewax", "idiom", 0, False, 1_000_000),
    ("pathway", "idiom", 0, False, 2_000_000),
    ("pyflink", "record", 1, False, 400_000),
    ("pyflink", "record", 2, True, 400_000),
    ("pyflink", "idiom", 1, False, 4_000_000),
    ("pyflink", "idiom", 1, True, 4_000_000),
    ("pyflink", "idiom", 2, False, 4_000_000),
]
_WINDOWS = [
    ("bytewax", "window", 0, False, 120_000),
    ("pathway", "window", 0, False, 400_000),
    ("pyflink", "window", 1, False, 4_000_000),
    ("pyflink", "window", 2, True, 4_000_000),
]


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("runtime", __doc__, rounds=3)
    parser.add_argument("--parts", default=",".join(_PARTS), help=f"some of {', '.join(_PARTS)} (default all)")
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of a round of ours (default 20 M)")
    parser.add_argument("--record-rows", type=int, default=4_000_000, help="the same of records (default 4 M)")
    parser.add_argument("--peer-rows", type=int, default=1_000_000, help="rows of a round of Bytewax (default 1 M)")
    parser.add_argument("--keys", default="1000000,10000", help="numbers of keys (default 1 M and 10,000)")
    parser.add_argument("--state", type=int, default=10_000_000, help="keys of `recovery` (default 10 M)")
    parser.add_argument("--seconds", type=float, default=10, help="how long `latency` looks (default 10)")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, help="a Python that has it; `none` leaves it out")
    parser.add_argument("--folder", type=Path, help="where to write (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    parts = arguments.parts.split(",")
    if unknown := set(parts) - set(_PARTS):
        parser.error(f"no part named {', '.join(sorted(unknown))}; there is {', '.join(_PARTS)}")
    report = Report("runtime", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        pythons: dict[str, Path] = {}
        for peer in PEERS if {"sums", "windows"} & set(parts) else ():
            python = python_with(peer, getattr(arguments, peer), folder)
            if python is not None:
                pythons[peer] = python
        for keys in map(int, arguments.keys.split(",")):
            if "sums" in parts:
                _sums(report, folder, keys, pythons, arguments)
            if "windows" in parts:
                _windows(report, folder, keys, pythons, arguments)
        if "latency" in parts:
            _latency(report, folder, arguments.seconds)
        if "recovery" in parts:
            _recovery(report, folder, arguments.state, arguments.rounds)
    return report.finish()


def _sums(report: Report, folder: Path, keys: int, pythons: dict[str, Path], arguments: Any) -> None:
    rows, by_record = arguments.rows, arguments.record_rows
    ours = {
        _OURS: Sums(folder, keys, rows, 1, Totals()),
        _CHECKPOINTS: Sums(folder, keys, rows, 1, Totals(), interval_ms=_INTERVAL_MS),
        _TWO: Sums(folder, keys, rows, 2, Totals()),
        _RECORD: Sums(folder, keys, by_record, 1, TotalsByRecord()),
    }
    peers = _peers(_SUMS, folder, keys, pythons, arguments.peer_rows)
    series = _compared(report, f"sum of {keys:,} keys", ours | peers)
    _require_rate(report, "a batch function", series[_OURS], 3.5e6)
    _require_rate(report, "a record function", series[_RECORD], 0.7e6)
    _require_parts(report, series)
    best = _best(series, "idiom")
    if best is not None:
        report.require(
            f"a batch function against {best}", _ratio(series[_OURS], series[best]), at_least=3, unit="times"
        )
    bytewax = _label("bytewax", "record", 0, False)
    if bytewax in series:
        bound = 5.0 if keys >= 1_000_000 else 1.5
        ratio = _ratio(series[_RECORD], series[bytewax])
        report.require("a record function against Bytewax", ratio, at_least=bound, unit="times")


def _windows(report: Report, folder: Path, keys: int, pythons: dict[str, Path], arguments: Any) -> None:
    rows = arguments.rows

    def job(slots: int, interval_ms: int | None = None) -> Sums:
        return Sums(folder, keys, rows, slots, windows(), column="at", interval_ms=interval_ms)

    ours = {_WINDOW: job(1), _CHECKPOINTS: job(1, _INTERVAL_MS), _TWO: job(2)}
    peers = _peers(_WINDOWS, folder, keys, pythons, arguments.peer_rows)
    series = _compared(report, f"counts of windows of 10 s, {keys:,} keys", ours | peers)
    _require_parts(report, series)
    best = _best(series, "window")
    if best is not None:
        ratio = _ratio(series[_WINDOW], series[best])
        report.require(f"a window function against {best}", ratio, at_least=3, unit="times")


def _latency(report: Report, folder: Path, seconds: float) -> None:
    for interval_ms in (1_000, 200):
        job = Latency(folder, 10_000, interval_ms)
        highest = job.highest_rate(seconds)
        took = job.milliseconds(highest / 2, seconds)
        print(f"\nfrom reading to commit, a checkpoint every {interval_ms} ms, at half of {highest / 1e6:.2f} M rows/s")
        report.figure(f"median, every {interval_ms} ms", float(np.median(took)), "ms")
        highest_ms = 1.2 * interval_ms + 100
        of_hundred = float(np.percentile(took, 99))
        report.require(f"99 of 100 rows, every {interval_ms} ms", of_hundred, at_most=highest_ms, unit="ms")


def _recovery(report: Report, folder: Path, keys: int, rounds: int) -> None:
    print(f"\nSIGKILL of a slot, a checkpoint every 250 ms, {keys:,} keys of state")
    for slots in (1, 2):
        took = Recovery(folder, keys, slots, 250).milliseconds(rounds + 1)
        print(f"  {slots} of {slots} slots: {', '.join(f'{milliseconds:.0f}' for milliseconds in took)} ms")
        # The first has what the page cache has not.
        median = statistics.median(took[1:])
        report.require_time(f"to the next commit, {slots} in all", median / 1000, at_most=1.5)


def _peers(known: list[Any], folder: Path, keys: int, pythons: dict[str, Path], a_million: int) -> dict[str, Peer]:
    made = {}
    for name, work, workers, checkpoints, rows in known:
        if name in pythons:
            rows_here = rows * a_million // 1_000_000
            more = [workers] if workers else []
            made[_label(name, work, workers, checkpoints)] = Peer(
                folder, name, pythons[name], work, keys, rows_here, *more, checkpoints=checkpoints
            )
    return made


def _label(name: str, work: str, workers: int, checkpoints: bool) -> str:
    told = [{"bytewax": "Bytewax", "pathway": "Pathway", "pyflink": "PyFlink"}[name], work]
    if workers > 1:
        told.append("two workers")
    if checkpoints:
        told.append("checkpoints")
    return ", ".join(told)


def _compared(report: Report, title: str, jobs: dict[str, Any]) -> dict[str, Series]:
    contenders = [Contender(name, job.run, job.timed_rows, job.prepare) for name, job in jobs.items()]
    # Each round starts everything anew.
    return dict(zip(jobs, report.compare(title, "rows", contenders, warmup=0), strict=True))


def _require_rate(report: Report, what: str, series: Series, bound: float) -> None:
    report.require_rate(f"{what}, a slot", statistics.median(series.figures), at_least=bound, unit="rows/s")


def _require_parts(report: Report, series: dict[str, Series]) -> None:
    first = next(iter(series.values()))
    report.require("two slots against one", _ratio(series[_TWO], first), at_least=1.7, unit="times")
    with_checkpoints = _ratio(series[_CHECKPOINTS], first)
    report.require("with a checkpoint every second, against none", with_checkpoints, at_least=0.9, unit="times")


def _best(series: dict[str, Series], work: str) -> str | None:
    """Return the fastest peer of one worker without checkpoints."""
    peers = [name for name in series if name.endswith(f", {work}")]
    return max(peers, key=lambda name: statistics.median(series[name].figures), default=None)


def _ratio(one: Series, other: Series) -> float:
    return statistics.median(one.times_better_than(other))
