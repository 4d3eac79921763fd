"""A first script in a fresh environment, where kernels are compiled when they are first called, against the next run.

The script is `cold_job`. It runs in a process of its own, with a copy of the package that no compiled kernel lies
beside and with an empty cache folder; for the run after that the folder is full.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import arrowstate
import arrowstate_formats
from benchmarks.harness import Contender, Report, argument_parser

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("cold", __doc__, rounds=3)
    arguments = parser.parse_args(argv)
    report = Report("cold", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary)
        for package in (arrowstate, arrowstate_formats):
            source = Path(str(package.__file__)).parent
            # With their times, so that Python takes what it compiled for the original.
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("*.kernel"))
        shutil.copy2(Path(__file__).with_name("cold_job.py"), folder)
        cache = folder / "cache"
        processor: dict[str, list[float]] = {"cold": [], "warm": []}

        def run(name: str) -> None:
            before = os.times()
            subprocess.run([sys.executable, folder / "cold_job.py"], check=True, env=_environment(folder, cache))
            after = os.times()
            seconds = after.children_user + after.children_system - before.children_user - before.children_system
            processor[name].append(seconds)

        def forget() -> None:
            shutil.rmtree(cache, ignore_errors=True)

        def fill() -> None:
            if not cache.exists():
                subprocess.run([sys.executable, folder / "cold_job.py"], check=True, env=_environment(folder, cache))

        contenders = [
            Contender("nothing compiled", lambda: run("cold"), None, forget),
            Contender("compiled before", lambda: run("warm"), None, fill),
        ]
        series = report.compare("state of every kind, timers, windows, checkpoints, restore, SQL", "", contenders)
        for name, seconds in processor.items():
            report.figure(f"processor time, {name}: median", statistics.median(seconds), "s")
        report.require("nothing compiled", statistics.median(series[0].seconds), at_most=4, unit="s")
    return report.finish()


def _environment(folder: Path, cache: Path) -> dict[str, str]:
    # The package's own folder is looked into first where no other is named, so the copy's must stay empty.
    return {**os.environ, "PYTHONPATH": str(folder), "ARROWSTATE_CACHE_DIR": str(cache), "HOME": str(folder)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
