"""The peer of `tools/bench runtime`, run by a Python that has Bytewax: a running sum per key, from rows in memory.

    python bytewax_job.py KEYS ROWS

It makes its rows, says "ready", waits for a line, and runs to the end.
"""

# mypy: ignore-errors
# ruff: noqa: ARG002
# Nothing but the Python that runs it has Bytewax.

from __future__ import annotations

import random
import sys

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

BATCH = 10_000


class Rows(DynamicSource):
    """Gives batches of pairs of key and amount; keys are text, as Bytewax asks for."""

    def __init__(self, batches):
        self._batches = batches

    def build(self, step_id, worker_index, worker_count):
        return _Part(iter(self._batches))


class _Part(StatelessSourcePartition):
    def __init__(self, batches):
        self._batches = batches

    def next_batch(self):
        return next(self._batches)


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


def run():
    keys, rows = int(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(1)
    names = [str(number) for number in range(keys)]
    batches = [
        [(names[chance.randrange(keys)], chance.randrange(100)) for _ in range(BATCH)] for _ in range(rows // BATCH)
    ]
    flow = Dataflow("sums")
    totals = op.stateful_map("total", op.input("rows", flow, Rows(batches)), add)
    op.output("nowhere", totals, Nowhere())
    print("ready", flush=True)
    sys.stdin.readline()
    run_main(flow)
    print("done", flush=True)


run()
