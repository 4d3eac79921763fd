"""Bytewax beside the runtime, run by a Python that has it: rows from memory, nothing kept of what is emitted.

    python bytewax_job.py WORK KEYS ROWS [CHECKPOINT_FOLDER]

WORK is `record`, a running sum per key by `stateful_map`; `idiom`, the sums at the end by `reduce_final`; or `window`,
counts of tumbling windows of 10 s. The first quarter of the rows is not timed.
"""

# mypy: ignore-errors
# ruff: noqa: ARG002
# Nothing but the Python that runs it has Bytewax.

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main
from timing import Watch, ready

BATCH = 10_000
ROWS_PER_MS = 100
START = datetime(2026, 1, 1, tzinfo=UTC)


class Rows(FixedPartitionedSource):
    """Gives batches of pairs of key and amount, or of key and time; keys are text, as Bytewax asks for."""

    def __init__(self, batches, watch):
        self._batches = batches
        self._watch = watch

    def list_parts(self):
        return ["all"]

    def build_part(self, step_id, for_part, resume_state):
        return _Part(self._batches, self._watch, resume_state or 0)


class _Part(StatefulSourcePartition):
    def __init__(self, batches, watch, at):
        self._batches = batches
        self._watch = watch
        self._at = at

    def next_batch(self):
        if self._at == len(self._batches):
            raise StopIteration
        if self._at == len(self._batches) // 4:
            self._watch.start()
        self._at += 1
        return self._batches[self._at - 1]

    def snapshot(self):
        return self._at


class Nowhere(DynamicSink):
    """Takes what is emitted."""

    def build(self, step_id, worker_index, worker_count):
        return _Nothing()


class _Nothing(StatelessSinkPartition):
    def write_batch(self, items):
        pass


def add(total, amount):
    """The new total, which is emitted too."""
    total = (total or 0) + amount
    return total, total


def flow_of(work, source):
    """The dataflow of a kind of work."""
    flow = Dataflow("sums")
    rows = op.input("rows", flow, source)
    if work == "record":
        made = op.stateful_map("total", rows, add)
    elif work == "idiom":
        made = op.reduce_final("total", rows, lambda one, two: one + two)
    else:
        clock = win.EventClock(lambda row: row[1], wait_for_system_duration=timedelta(seconds=1))
        windower = win.TumblingWindower(length=timedelta(seconds=10), align_to=START)
        made = win.count_window("count", rows, clock, windower, lambda row: row[0]).down
    op.output("nowhere", made, Nowhere())
    return flow


def main(work, keys, rows, folder=None):
    """Make the rows and run."""
    chance = random.Random(1)
    names = [str(number) for number in range(keys)]
    batches = []
    for first in range(0, rows, BATCH):
        if work == "window":
            # In order but for a second.
            times = [(first + n) // ROWS_PER_MS - chance.randrange(1000) for n in range(BATCH)]
            values = [START + timedelta(milliseconds=max(time, 0)) for time in times]
        else:
            values = [chance.randrange(100) for _ in range(BATCH)]
        batches.append([(names[chance.randrange(keys)], value) for value in values])
    watch = Watch()
    flow = flow_of(work, Rows(batches, watch))
    options = {}
    if folder is not None:
        init_db_dir(folder, 1)
        options = {"recovery_config": RecoveryConfig(folder), "epoch_interval": timedelta(seconds=1)}
    ready()
    run_main(flow, **options)
    watch.stop()
    watch.done((len(batches) - len(batches) // 4) * BATCH)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
