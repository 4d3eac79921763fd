"""What a checkpoint costs: freezing, a full one, and incremental ones after 1 % changed keys.

Freezing is the synchronous part. The peer's is a RocksDB checkpoint, which flushes and links files.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import arrowstate
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.workload import SUM, Keys, load_arrowstate, load_rocksdb


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("snapshot", __doc__, rounds=15)
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--changed", type=float, default=0.01, help="share of keys changed per checkpoint")
    parser.add_argument("--no-peer", action="store_true", help="leave RocksDB out")
    arguments = parser.parse_args(argv)
    report = Report("snapshot", arguments)
    random = np.random.default_rng(1)
    changed = int(arguments.keys * arguments.changed)
    ones = np.ones(changed, dtype=np.int64)

    for keys in (
        Keys("int64", arguments.keys // 10),
        Keys("int64", arguments.keys),
        Keys("string", arguments.keys // 10),
    ):
        backend = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
        load_arrowstate(backend.state(SUM), keys)
        (series,) = report.compare(
            f"freeze {keys.count:,} {keys.kind} keys", "keys", [Contender("arrowstate", backend.freeze)]
        )
        if keys == Keys("int64", arguments.keys):
            report.require_time("synchronous part", statistics.median(series.seconds), at_most=0.002)

    keys = Keys("int64", arguments.keys)
    backend = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
    total = backend.state(SUM)
    load_arrowstate(total, keys)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary)
        store = arrowstate.open_store(folder / "store", create=True)
        writer = store.writer()
        started = time.perf_counter()
        writer.checkpoint({"bench": [backend]})
        report.figure("full checkpoint", time.perf_counter() - started, "s")
        full = _bytes(folder / "store")
        report.figure("full checkpoint", full / 2**20, "MiB")
        written: list[int] = []

        def change() -> None:
            numbers = random.choice(arguments.keys, changed, replace=False)
            total.add_batch(pa.array(numbers), pa.array(ones))

        def checkpoint() -> None:
            before = _bytes(folder / "store")
            writer.checkpoint({"bench": [backend]})
            written.append(_bytes(folder / "store") - before)

        contenders = [Contender("arrowstate", checkpoint, None, change)]
        if not arguments.no_peer:
            database = load_rocksdb(folder / "rocksdb", keys)

            def change_peer() -> None:
                database.rmw(random.choice(arguments.keys, changed, replace=False), ones)

            def checkpoint_peer() -> None:
                database.checkpoint(folder / f"checkpoint-{time.monotonic_ns()}")

            contenders.append(Contender("RocksDB", checkpoint_peer, None, change_peer))
        report.compare(
            f"incremental checkpoint, {arguments.changed:.0%} of {keys.count:,} keys changed", "", contenders
        )
        shares = [size / full for size in written[1:]]
        report.figure("bytes of an incremental checkpoint, mean", statistics.mean(shares) * 100, "% of a full one")
        report.figure("bytes of an incremental checkpoint, most", max(shares) * 100, "% of a full one")
        if arguments.changed == 0.01:
            report.require(
                "bytes of an incremental checkpoint, median", statistics.median(shares) * 100, at_most=3, unit="%"
            )
    return report.finish()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
