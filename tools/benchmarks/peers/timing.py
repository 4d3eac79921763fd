"""What jobs of peers have in common: nothing but the standard library, for each runs in an environment of its own.

A job is started with its arguments, says "ready" when its rows are made, waits for a line, runs, and says "done" with
the rows that count, and the seconds and the processor seconds that they took.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

__all__ = ["Watch", "ready", "tree_seconds"]

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds() -> float:
    """Return the processor time of this process and of all that it has started, and those have, until now."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            # It has just ended, so its parent has its time, or will.
            continue
        number = int(entry.parent.name)
        parents[number] = int(fields[1])
        # Its own, and that of children that it has waited for.
        spent[number] = sum(map(int, fields[11:15])) / _TICKS
    own = {os.getpid()}
    grown = True
    while grown:
        more = {number for number, parent in parents.items() if parent in own} - own
        own |= more
        grown = bool(more)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(spent[number] for number in own - {os.getpid()} if number in spent)
    return time.process_time() + children.ru_utime + children.ru_stime + living


def ready() -> None:
    """Say so, and wait until the job may run."""
    print("ready", flush=True)
    sys.stdin.readline()


class Watch:
    """Takes the time of a part of a job."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self._total = [0.0, 0.0]

    def start(self) -> None:
        """Begin here, or begin anew."""
        self._began = time.perf_counter(), tree_seconds()

    def stop(self, sign: int = 1) -> None:
        """End here; with -1 what was taken is taken off."""
        assert self._began is not None
        wall, cpu = time.perf_counter() - self._began[0], tree_seconds() - self._began[1]
        self._total[0] += sign * wall
        self._total[1] += sign * cpu

    def done(self, rows: int) -> None:
        """Say that so many rows took the time that was taken."""
        print(f"done {rows} {self._total[0]:.6f} {self._total[1]:.6f}", flush=True)
