"""Pathway beside the runtime, run by a Python that has it: rows from a CSV file, read by its own reader as a batch.

    python pathway_job.py WORK KEYS ROWS

WORK is `idiom`, `groupby().reduce(sum)`; or `window`, counts of tumbling windows of 10 s. It is run with a quarter of
the rows and with all of them, and the difference is what is timed: starting takes as long for both.
"""

# mypy: ignore-errors
# ruff: noqa: SLF001
# Nothing but the Python that runs it has Pathway.

from __future__ import annotations

import logging
import random
import sys
import tempfile
from pathlib import Path

import pathway as pw
from pathway.internals.parse_graph import G
from timing import Watch, ready

ROWS_PER_MS = 100


class Row(pw.Schema):
    """A row."""

    key: int
    value: int


def write(path, work, keys, rows):
    """Write a file of rows; a value is an amount, or a time in milliseconds, in order but for a second."""
    chance = random.Random(1)
    with path.open("w") as file:
        file.write("key,value\n")
        for row in range(rows):
            value = max(row // ROWS_PER_MS - chance.randrange(1000), 0) if work == "window" else chance.randrange(100)
            file.write(f"{chance.randrange(keys)},{value}\n")


def run(work, path):
    """Run over a file to its end."""
    G.clear()
    rows = pw.io.csv.read(str(path), schema=Row, mode="static")
    if work == "window":
        windows = rows.windowby(
            rows.value, window=pw.temporal.tumbling(duration=10_000), instance=rows.key,
            behavior=pw.temporal.common_behavior(delay=1_000, cutoff=1_000, keep_results=False),
        )  # fmt: skip
        made = windows.reduce(pw.this._pw_instance, pw.this._pw_window_start, count=pw.reducers.count())
    else:
        made = rows.groupby(rows.key).reduce(rows.key, total=pw.reducers.sum(rows.value))
    pw.io.null.write(made)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def main(work, keys, rows):
    """Make the rows and run."""
    logging.disable(logging.CRITICAL)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        quarter, whole = Path(folder, "quarter.csv"), Path(folder, "whole.csv")
        write(quarter, work, keys, rows // 4)
        write(whole, work, keys, rows)
        ready()
        for path, sign in ((quarter, -1), (whole, 1)):
            watch.start()
            run(work, path)
            watch.stop(sign)
    watch.done(rows - rows // 4)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
