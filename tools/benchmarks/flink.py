"""Savepoints of Flink read to Arrow on one core, in each of the forms that keyed state has in them.

A state of 5 million longs, one for each key that is a long, is read whole; its sum is checked. The savepoints are made
without Flink, or lie in `--folder`, a folder per form, from an earlier run or from Flink itself (operator `sums`, state
`total`, the value three times the key). Figures that are required are by processor time.

Memory is measured in a process of its own, which reads all rows into a table: the most that it had at a time, less what
it had before and what the table takes. Files are mapped, so their pages count.

Beside it stands how long Flink takes to restore a job of one slot from the same files, less what the job takes without
them: with `--flink PYTHON`, a Python that has apache-flink, it does so here (Java's compiler is needed), else the
figures are those of an earlier run, for 5 million.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc

from arrowstate.foreign.flink.savepoint import open_flink_savepoint
from benchmarks.flink_jobs import flink_command
from benchmarks.flink_savepoints import FORMS, STATE, write_savepoint
from benchmarks.harness import Contender, Report, argument_parser

_AT_LEAST = {"canonical": 6e6, "heap": 6e6, "rocksdb": 2e6}
"""Rows per second."""
_MOST_MEBIBYTES = 300
_WARM_ROWS = 10_000
_OF_FLINK = {"canonical": 14.9, "heap": 5.3, "rocksdb": 0.5}
"""Seconds that Flink 2.3 took for 5 million, with one slot; RocksDB takes its tables as they are, and reads nothing."""

_CHILD = """
import resource, sys
from arrowstate.foreign.flink.savepoint import open_flink_savepoint

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

state, warm, folder = sys.argv[1:]
open_flink_savepoint(warm)[state].to_arrow()
before = peak()
table = open_flink_savepoint(folder)[state].to_arrow()
print(peak() - before - table.nbytes / 2**20)
"""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("flink", __doc__, rounds=5, cpu="last")
    parser.add_argument("--rows", type=int, default=5_000_000, help="keys (default 5,000,000)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="which (default: all)")
    parser.add_argument("--flink", type=Path, metavar="PYTHON", help="a Python that has apache-flink 2.3")
    parser.add_argument("--folder", type=Path, help="where the savepoints lie, or are written to and stay")
    arguments = parser.parse_args(argv)
    report = Report("flink", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder: Path = arguments.folder or Path(temporary)
        for form in arguments.forms:
            savepoint, warm = folder / form, Path(temporary) / f"warm-{form}"
            write_savepoint(warm, form, _WARM_ROWS)
            if not savepoint.exists():
                write_savepoint(savepoint, form, arguments.rows)
            _measure(report, form, savepoint, warm, arguments.rows)
            if arguments.flink is None:
                report.figure(f"{form}, Flink's restore of 5,000,000 in an earlier run", _OF_FLINK[form], "s")
            else:
                seconds = _restored(arguments.flink, savepoint, form, Path(temporary))
                report.figure(f"{form}, Flink's restore", seconds, "s")
    return report.finish()


def _measure(report: Report, form: str, savepoint: Path, warm: Path, rows: int) -> None:
    contender = Contender("arrowstate", _reader(savepoint, rows), rows)
    (ours,) = report.compare(f"{form}, {rows:,} longs", "rows", [contender])
    rate = rows / statistics.median(ours.cpu_seconds)
    report.require_rate(f"{form}, by processor time", rate, at_least=_AT_LEAST[form], unit="rows/s")
    report.require(f"{form}, memory above the table", _memory(savepoint, warm), at_most=_MOST_MEBIBYTES, unit="MiB")


def _reader(savepoint: Path, rows: int) -> Callable[[], object]:
    def read() -> None:
        total = count = 0
        for batch in open_flink_savepoint(savepoint)[STATE].to_batches():
            count += batch.num_rows
            total += pc.sum(batch["value"]).as_py()
        if (count, total) != (rows, 3 * rows * (rows - 1) // 2):
            raise AssertionError(f"{count} rows with a sum of {total} were read")

    return read


def _memory(savepoint: Path, warm: Path) -> float:
    command = [sys.executable, "-c", _CHILD, STATE, str(warm), str(savepoint)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _restored(python: Path, savepoint: Path, form: str, classes: Path) -> float:
    """Have Flink restore a savepoint; return the seconds that it took for that alone."""
    backend = "rocksdb" if form == "rocksdb" else "hashmap"
    command = flink_command(python, "FlinkRestore", classes, savepoint.resolve().as_uri(), backend)
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    without, restored, total = (float(word) for word in said.rpartition("restored ")[2].split())
    if total != 3 * (0 + 1 + 2 + 3):
        raise AssertionError(f"Flink found a sum of {total} under the first four keys")
    return restored - without
