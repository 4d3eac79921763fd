"""Jobs of the embedded runtime: a sum per key from rows in memory, slots in processes, beside Bytewax.

The rows are ready before the clock starts, and so are slots and functions; a round ends when the job has ended, for
ours with its last checkpoint committed. Bytewax runs in a Python of its own (`--bytewax`, made if not given), with its
best idiom for it, `stateful_map`, and without recovery; it gets fewer rows, for it is the rate that counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.runtime import GeneratorSource, Job, RunningJob
from benchmarks.harness import Contender, Report, argument_parser

_BATCH = 65_536
_MADE = 32
_PEER = "bytewax==0.21.1"


class Totals(arrowstate.BatchFunction):
    """The sum of each key, as a function of batches."""

    def open(self, context: Any) -> None:
        """Take the state."""
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        """Add a batch."""
        self.total.add_batch(context.group_keys(batch), batch["amount"])


class TotalsByRecord(arrowstate.KeyedProcessFunction):
    """The same as a function of records."""

    def open(self, context: Any) -> None:
        """Take the state."""
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_element(self, value: Any, context: Any, out: Any) -> None:  # noqa: ARG002
        """Add one."""
        self.total.add(value.amount)


class _Rows:
    """Rows from batches that are made once in each slot; none before a file is there."""

    def __init__(self, keys: int, go: Path) -> None:
        self._keys = keys
        self._go = go
        self._batches: list[pa.RecordBatch] = []

    def __call__(self, first: int, count: int) -> pa.RecordBatch:
        if not self._batches:
            chance = np.random.default_rng(1)
            self._batches = [
                pa.record_batch(
                    {"key": chance.integers(0, self._keys, _BATCH), "amount": chance.integers(0, 100, _BATCH)}
                )
                for _ in range(_MADE)
            ]
            while not self._go.exists():
                time.sleep(0.001)
        start = first % _BATCH
        made = self._batches[first // _BATCH % _MADE]
        if start + count <= _BATCH:
            return made.slice(start, count)
        following = self._batches[(first // _BATCH + 1) % _MADE]
        parts = [made.slice(start), following.slice(0, count - _BATCH + start)]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class _Ours:
    """A job that waits for its rows."""

    def __init__(self, folder: Path, keys: int, rows: int, slots: int, function: Any, interval_ms: int | None) -> None:
        self._folder, self._keys, self._rows, self._slots = folder, keys, rows, slots
        self._function, self._interval_ms = function, interval_ms
        self._round = 0
        self._running: RunningJob | None = None

    def prepare(self) -> None:
        """Start the job."""
        self._round += 1
        place = self._folder / f"{id(self)}-{self._round}"
        self._go = place / "go"
        options = arrowstate.CheckpointOptions(interval_ms=self._interval_ms)
        job = Job(place / "store", parallelism=self._slots, max_parallelism=128, options=options)
        schema = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
        source = GeneratorSource(
            _Rows(self._keys, self._go), schema, rows=self._rows, splits=self._slots, batch_rows=_BATCH
        )
        job.source(source, uid="rows").stateful(self._function, key=["key"], uid="totals")
        self._running = job.start()
        while self._running.status().state != "running":
            time.sleep(0.01)
        time.sleep(0.5)

    def run(self) -> None:
        """Let it have its rows, and wait for its end."""
        assert self._running is not None
        self._go.touch()
        snapshot = self._running.wait()
        self._running.close()
        counted = sum(operator.live_rows("total") for operator in snapshot.entry.operators if operator.uid == "totals")
        assert counted <= self._keys


class _Peer:
    """A Bytewax that waits for a line."""

    def __init__(self, python: Path, keys: int, rows: int) -> None:
        self._command = [str(python), str(Path(__file__).with_name("bytewax_job.py")), str(keys), str(rows)]
        self._process: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def run(self) -> None:
        """Let it run."""
        assert self._process is not None
        said, _ = self._process.communicate("\n")
        assert said == "done\n", said


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("runtime", __doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of a round of ours (default 20 M)")
    parser.add_argument("--record-rows", type=int, default=4_000_000, help="the same of records (default 4 M)")
    parser.add_argument("--peer-rows", type=int, default=1_000_000, help="rows of a round of Bytewax (default 1 M)")
    parser.add_argument("--keys", default="1000000,10000", help="numbers of keys (default 1 M and 10,000)")
    parser.add_argument("--bytewax", type=Path, help="a Python that has it; `none` leaves it out")
    parser.add_argument("--folder", type=Path, help="where to write (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    report = Report("runtime", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        python = arguments.bytewax or _made(folder / "bytewax")
        for keys in map(int, arguments.keys.split(",")):
            _compare(report, folder, keys, None if str(python) == "none" else python, arguments)
    return report.finish()


def _compare(report: Report, folder: Path, keys: int, python: Path | None, arguments: Any) -> None:
    rows, by_record = arguments.rows, arguments.record_rows
    contenders = {
        "batch function, a slot": (_Ours(folder, keys, rows, 1, Totals(), None), rows),
        "the same, a checkpoint every second": (_Ours(folder, keys, rows, 1, Totals(), 1_000), rows),
        "batch function, two slots": (_Ours(folder, keys, rows, 2, Totals(), None), rows),
        "record function, a slot": (_Ours(folder, keys, by_record, 1, TotalsByRecord(), None), by_record),
    }
    if python is not None:
        peer: Any = _Peer(python, keys, arguments.peer_rows)
        contenders["Bytewax, stateful_map"] = peer, arguments.peer_rows
    made = [Contender(name, it.run, amount, it.prepare) for name, (it, amount) in contenders.items()]
    series = dict(zip(contenders, report.compare(f"sum of {keys:,} keys", "rows", made), strict=True))

    def ratio(one: str, other: str) -> float:
        return statistics.median(series[one].times_better_than(series[other]))

    batch, record = "batch function, a slot", "record function, a slot"
    report.require("a batch function, a slot", statistics.median(series[batch].figures), at_least=3.5e6, unit="rows/s")
    report.require(
        "a record function, a slot", statistics.median(series[record].figures), at_least=0.7e6, unit="rows/s"
    )
    report.require("two slots against one", ratio("batch function, two slots", batch), at_least=1.7, unit="times")
    with_checkpoints = ratio("the same, a checkpoint every second", batch)
    report.require("with a checkpoint every second, against none", with_checkpoints, at_least=0.9, unit="times")
    if python is not None:
        peer_name = "Bytewax, stateful_map"
        report.require("a batch function against Bytewax", ratio(batch, peer_name), at_least=3, unit="times")
        bound = 5.0 if keys >= 1_000_000 else 1.5
        report.require("a record function against Bytewax", ratio(record, peer_name), at_least=bound, unit="times")


def _made(folder: Path) -> Path:
    """Make a Python with Bytewax, or say why there is none."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", _PEER], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"without Bytewax, which cannot be installed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return Path("none")
    return python
