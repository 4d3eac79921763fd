"""Random read-modify-write of a summing state, merging included, against RocksDB.

Each key is loaded once; then batches of random keys are added to their sums. A round of ours is long enough to
hold merges of all sizes; the sustained rate is over all rounds together, with every merge in it. RocksDB takes
part twice: given the keys as they come, and sorted and made unique before, which suits its files best.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import arrowstate
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.workload import SUM, Keys, load_arrowstate, load_rocksdb


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("rmw", __doc__, rounds=5, cpu="last")
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--batch", type=int, default=200_000, help="rows per batch (default 200,000)")
    parser.add_argument("--batches", type=int, default=25, help="batches per round of ours (default 25)")
    parser.add_argument("--peer-batches", type=int, default=1, help="batches per round of RocksDB; 0 leaves it out")
    parser.add_argument("--key-type", choices=("int64", "string"), default="int64", help="string keys have 16 bytes")
    parser.add_argument("--memory-budget", type=int, help="bytes of rows in memory, the rest in mapped files")
    arguments = parser.parse_args(argv)
    report = Report("rmw", arguments)
    keys = Keys(arguments.key_type, arguments.keys)
    random = np.random.default_rng(1)
    ones = np.ones(arguments.batch, dtype=np.int64)

    backend = arrowstate.KeyedStateBackend(
        key=keys.schema, max_parallelism=128, memory_budget_bytes=arguments.memory_budget
    )
    total = backend.state(SUM)
    load_arrowstate(total, keys)
    columns: list[pa.Array] = []
    column_of_ones = pa.array(ones)

    def draw() -> None:
        columns[:] = [
            keys.column(random.integers(0, arguments.keys, arguments.batch)) for _ in range(arguments.batches)
        ]

    def ours() -> None:
        for column in columns:
            total.add_batch(column, column_of_ones)

    contenders = [Contender("arrowstate", ours, arguments.batches * arguments.batch, draw)]
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        if arguments.peer_batches:
            database = load_rocksdb(Path(folder) / "rocksdb", keys)
            amount = arguments.peer_batches * arguments.batch

            def peer(*, in_order: bool) -> None:
                for _ in range(arguments.peer_batches):
                    numbers = random.integers(0, arguments.keys, arguments.batch)
                    database.rmw(keys.raw(numbers), ones, in_order=in_order)

            contenders.append(Contender("RocksDB", lambda: peer(in_order=False), amount))
            contenders.append(Contender("RocksDB, sorted first", lambda: peer(in_order=True), amount))
        title = f"{arguments.keys:,} {arguments.key_type} keys, batches of {arguments.batch:,} random keys"
        series = report.compare(title, "rows", contenders)
    sustained = sum(len(series[0].seconds) * [arguments.batches * arguments.batch]) / sum(series[0].seconds)
    report.figure("sustained, every merge included", sustained, "rows/s")
    report.figure("rows, directories and live bits in memory", backend.memory_bytes / 2**30, "GiB")
    if arguments.keys == 10_000_000:
        least = 15 if arguments.key_type == "int64" else 8
        for peer_series in series[1:2]:
            times = sustained / statistics.median(peer_series.figures)
            report.require(f"sustained, against {peer_series.name}", times, at_least=least, unit="times")
    return report.finish()
