"""What a run of the tests took: its processor time, that of all processes that it started, and which folders took it.

`--durations=N` names the N tests that took most. What outlives its test, as Spark's JVM does, is counted in the sum
alone.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_STARTED = time.monotonic()
_TICKS = os.sysconf("SC_CLK_TCK")
_FOLDERS = 8

_of_tests: Counter[str] = Counter()
_of_workers: list[float] = []
_last = 0.0


def of_this_process() -> float:
    """Return the seconds of this process and of the processes that it started and that have ended."""
    return sum(os.times()[:4])


def of_living_children() -> float:
    """Return the same of the processes below this one that still run."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before the last bracket may hold spaces.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        ticks[number] = sum(map(int, fields[11:15]))
    below, found = [os.getpid()], 0
    while below:
        for number in children.get(below.pop(), ()):
            found += ticks[number]
            below.append(number)
    return found / _TICKS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    global _last
    report = yield
    now = of_this_process()
    report.processor_seconds, _last = now - _last, now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _of_tests[report.nodeid] += getattr(report, "processor_seconds", 0.0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = of_this_process() + of_living_children()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A worker that crashed says nothing.
    _of_workers.append(getattr(node, "workeroutput", {}).get("processor_seconds", 0.0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seconds = sum(os.times()[:2]) + sum(_of_workers) if _of_workers else of_this_process() + of_living_children()
    of_folders: Counter[str] = Counter()
    for nodeid, own in _of_tests.items():
        of_folders[nodeid.split("/")[1] if nodeid.count("/") > 1 else "tests"] += own
    most = ", ".join(f"{folder} {own:.0f} s" for folder, own in of_folders.most_common(_FOLDERS))
    took = f"{minutes(time.monotonic() - _STARTED)}, {minutes(seconds)} of processor time"
    terminalreporter.write_line(f"{took}: {most}" if len(of_folders) > 1 else took)
    for nodeid, own in _of_tests.most_common(config.option.durations or 0):
        terminalreporter.write_line(f"{own:8.2f} s of processor time  {nodeid}")


def minutes(seconds: float) -> str:
    """Return a time as people say it."""
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.1f} s"
