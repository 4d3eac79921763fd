"""The frame of a benchmark: contenders take turns, the median and the spread are printed, a JSON file keeps the run.

A machine is never quiet, and two runs on it differ by more than most changes. So whoever is compared
runs in the same process on the same input, in turns, and each round gives a ratio of its own. The
order turns around every other round, so that nobody always runs right after the same neighbour.

A bound in seconds, or in rows a second, would be met or missed by the machine. So `Report.require_time` and
`Report.require_rate` measure a fixed piece of work at the same moment, the yardstick, and scale the bound by it.

A benchmark is a module with `main(argv)`:

    def main(argv: list[str]) -> int:
        parser = argument_parser("hash", __doc__, rounds=7, cpu="last")
        parser.add_argument("--rows", type=int, default=1_000_000)
        arguments = parser.parse_args(argv)
        report = Report("hash", arguments)
        report.compare("int64 keys", "rows", [Contender("arrowstate", ours, rows), Contender("peer", peer, rows)])
        return report.finish()
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peers.timing import tree_seconds

__all__ = ["Contender", "Report", "Series", "argument_parser", "run_rounds"]

RESULTS = Path(__file__).resolve().parent / "results"
YARDSTICK_SECONDS = 0.023
"""What the yardstick takes on the machine that bounds are meant for: two cores of an AMD EPYC, nothing else to do."""
PACKAGES = ("arrowstate", "duckdb", "numba", "numpy", "polars", "pyarrow", "pyspark", "rocksdict", "xxhash")


@dataclass(frozen=True, slots=True)
class Contender:
    """One of those who are compared."""

    name: str
    run: Callable[[], object]
    """One round; this is what is timed, unless it returns the seconds that it took and its processor seconds."""
    amount: float | None = None
    """How many units one round handles, for a rate; None where the time of a round is the figure."""
    prepare: Callable[[], object] | None = None
    """What must happen before each round, not timed."""


@dataclass(frozen=True, slots=True)
class Series:
    """The rounds of one contender."""

    name: str
    amount: float | None
    seconds: list[float] = field(default_factory=list)
    """Wall time of each round."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Processor time of each round, all threads of this process and of those that it has started."""

    @property
    def figures(self) -> list[float]:
        """Per round: units per second, or milliseconds where there is no amount."""
        if self.amount is None:
            return [seconds * 1000 for seconds in self.seconds]
        return [self.amount / seconds for seconds in self.seconds]

    def times_better_than(self, other: Series) -> list[float]:
        """Per round: how many times faster this one was."""
        ratios = [theirs / ours for ours, theirs in zip(self.figures, other.figures, strict=True)]
        return ratios if self.amount is None else [1 / ratio for ratio in ratios]


def run_rounds(contenders: Sequence[Contender], rounds: int, warmup: int = 1) -> list[Series]:
    """Run every contender once per round, in turns, and return their times without the `warmup` rounds before."""
    series = [Series(contender.name, contender.amount) for contender in contenders]
    for number in range(-warmup, rounds):
        turn = list(zip(contenders, series, strict=True))
        for contender, kept in turn if number % 2 == 0 else reversed(turn):
            if contender.prepare is not None:
                contender.prepare()
            # A collection in the middle of a round would be counted to whoever happens to run.
            gc.collect()
            gc.disable()
            try:
                cpu, wall = tree_seconds(), time.perf_counter()
                own = contender.run()
                wall, cpu = time.perf_counter() - wall, tree_seconds() - cpu
            finally:
                gc.enable()
            if isinstance(own, tuple):
                wall, cpu = own
            if number >= 0:
                kept.seconds.append(wall)
                kept.cpu_seconds.append(cpu)
    return series


def argument_parser(
    name: str, description: str | None, *, rounds: int = 5, cpu: str = "all"
) -> argparse.ArgumentParser:
    """Return a parser with the options every benchmark has.

    Parameters
    ----------
    name, description : str
        The benchmark's name and its module's docstring.
    rounds : int
        How many rounds are run unless `--rounds` says otherwise.
    cpu : {"all", "last"}
        Whether it runs on all cores, or on the last one alone (the first has most of the interrupts).
    """
    parser = argparse.ArgumentParser(
        prog=f"tools/bench {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds that count (default {rounds})")
    parser.add_argument(
        "--cpu", default=cpu, metavar="N", help=f"core to run on: a number, `last` or `all` (default {cpu})"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS / f"{name}.json", metavar="PATH", help="where the run is kept"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a required figure is missed")
    return parser


class Report:
    """What a benchmark found: printed as it comes, kept as JSON in the end.

    Pins the process to a core where `arguments.cpu` asks for it, so make it before any engine starts its threads.

    Parameters
    ----------
    name : str
        Name of the benchmark.
    arguments : Namespace
        The parsed options, of a parser made by `argument_parser`.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self._rounds: int = arguments.rounds
        self._json: Path = arguments.json
        self._check: bool = arguments.check
        self._missed = 0
        cores = _pin(arguments.cpu)
        self._document: dict[str, Any] = {
            "benchmark": name,
            "arguments": {key: _plain(value) for key, value in vars(arguments).items() if key not in ("json", "check")},
            "started_at_ms": time.time_ns() // 1_000_000,
            "commit": _commit(),
            "machine": {**machine(), "cores_used": cores},
            "versions": versions(PACKAGES),
            "comparisons": [],
            "figures": [],
            "requirements": [],
        }
        about = self._document["machine"]
        print(
            f"{name}: {about['cpu']}, {len(cores)} of {about['cores']} cores used, "
            f"{about['memory_bytes'] / 2**30:.0f} GiB, load {about['load_average'][0]:.1f}"
        )

    def compare(self, title: str, unit: str, contenders: Sequence[Contender], *, warmup: int = 1) -> list[Series]:
        """Run the contenders in turns; print and keep median, spread and ratio. The first is ours.

        Parameters
        ----------
        title : str
            What they all do.
        unit : str
            What `amount` counts, such as `rows`; not used where there is no amount.
        warmup : int
            Rounds before those that count.

        Returns
        -------
        list of Series
            In the order of the contenders.
        """
        series = run_rounds(contenders, self._rounds, warmup)
        print(f"\n{title}")
        width = max(len(one.name) for one in series)
        for one in series:
            unit_shown = "ms" if one.amount is None else f"{unit}/s"
            low, middle, high = _spread(one.figures)
            shown = f"{_short(middle):>9} {unit_shown}   ({_short(low)} .. {_short(high)})"
            print(f"  {one.name:<{width}}  {shown}{_processor_share(one)}")
        ours, *peers = series
        ratios = {peer.name: ours.times_better_than(peer) for peer in peers}
        for peer, values in ratios.items():
            low, middle, high = _spread(values)
            print(
                f"  {ours.name} is {_short(middle)} times as fast as {peer}"
                f"   ({_short(low)} .. {_short(high)} by round)"
            )
        self._document["comparisons"].append(
            {
                "title": title,
                "unit": unit,
                "contenders": [
                    {
                        "name": one.name,
                        "amount": one.amount,
                        "unit": "ms" if one.amount is None else f"{unit}/s",
                        "median": statistics.median(one.figures),
                        "minimum": min(one.figures),
                        "maximum": max(one.figures),
                        "seconds": one.seconds,
                        "cpu_seconds": one.cpu_seconds,
                    }
                    for one in series
                ],
                "ratios": {peer: {"median": statistics.median(v), "by_round": v} for peer, v in ratios.items()},
            }
        )
        return series

    def figure(self, name: str, value: float, unit: str, *, shown: bool = True) -> None:
        """Print, unless it was printed with others, and keep one figure that is not a comparison, such as bytes."""
        if shown:
            print(f"  {name}: {_short(value)} {unit}")
        self._document["figures"].append({"name": name, "value": value, "unit": unit})

    def require(
        self,
        name: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        unit: str = "",
        why: str = "",
    ) -> bool:
        """Print and keep whether a figure is within its bounds, and `why` they are what they are.

        `--check` makes a miss the exit code.
        """
        met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        self._missed += not met
        bounds = [
            f"{word} {_short(bound)}"
            for word, bound in (("at least", at_least), ("at most", at_most))
            if bound is not None
        ]
        print(f"  {'met   ' if met else 'MISSED'}  {name}: {_short(value)} {unit} ({', '.join(bounds)}{why})")
        self._document["requirements"].append(
            {"name": name, "value": value, "unit": unit, "at_least": at_least, "at_most": at_most, "met": met}
        )
        return met

    def require_time(self, name: str, seconds: float, *, at_most: float) -> bool:
        """Require that something took at most so many seconds, scaled by the yardstick."""
        slowness = self._slowness()
        why = f": {_short(at_most)} s, times {slowness:.2f} by the yardstick"
        return self.require(name, seconds, at_most=at_most * slowness, unit="s", why=why)

    def require_rate(self, name: str, rate: float, *, at_least: float, unit: str) -> bool:
        """Require that something had at least such a rate, scaled by the yardstick."""
        slowness = self._slowness()
        why = f": {_short(at_least)}, divided by {slowness:.2f} by the yardstick"
        return self.require(name, rate, at_least=at_least / slowness, unit=unit, why=why)

    def _slowness(self) -> float:
        """Return how many times as long as it should the yardstick takes now."""
        slowness = yardstick_seconds() / YARDSTICK_SECONDS
        self.figure("yardstick", slowness * YARDSTICK_SECONDS * 1000, "ms", shown=False)
        return slowness

    def finish(self) -> int:
        """Write the JSON file and return the exit code."""
        self._document["load_average_at_end"] = os.getloadavg()
        self._document["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._json.parent.mkdir(parents=True, exist_ok=True)
        self._json.write_text(json.dumps(self._document, indent=2) + "\n")
        print(f"\nkept in {self._json}")
        return 1 if self._check and self._missed else 0


def yardstick_seconds() -> float:
    """Return how long a fixed piece of work takes now, the median of five: a loop over a dict, and a sort."""
    took = []
    for _ in range(5):
        started = time.perf_counter()
        sums: dict[int, int] = {}
        for number in range(100_000):
            sums[number & 1023] = sums.get(number & 1023, 0) + number
        np.random.default_rng(1).integers(0, 1 << 62, 400_000).sort()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.system(),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit that is measured, marked where files differ from it; None outside of a repository."""
    described = subprocess.run(
        ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def _pin(cpu: str) -> list[int]:
    """Keep every thread of this process, and those it will start, on one core; return the cores that are used."""
    allowed = sorted(os.sched_getaffinity(0))
    if cpu == "all":
        return allowed
    core = allowed[-1] if cpu == "last" else int(cpu)
    if core not in allowed:
        sys.exit(f"core {core} is not one of {allowed}")
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
    # Pools that size themselves by the machine's cores would only get in each other's way.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    pa.set_cpu_count(1)
    return [core]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


def _processor_share(one: Series) -> str:
    """How much of the wall time the processor worked; far from 100 % means waiting, or several threads."""
    share = f"   cpu {sum(one.cpu_seconds) / sum(one.seconds):.0%}"
    if one.amount is None:
        return share
    return f"{share}, {_short(statistics.median(one.cpu_seconds) / one.amount * 1e6)} µs each"


def _short(value: float) -> str:
    """Three digits and a suffix: 4.92 M."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1000 if size == 1e4 else size):.3g}{suffix}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | bool | None) else str(value)
