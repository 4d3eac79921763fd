"""What the publication of a checkpoint takes, of which one row in a hundred has changed: its time, and what it writes.

A store of Parquet files is published after each checkpoint by a publisher that is kept, as a writer or a job has one,
and each time by a new one too, as the command line does. The bytes are those of metadata, manifests and manifest lists;
beside them stand those of dead rows. The same is measured with 1,000 changed rows, from few rows held to many: that
should cost what it brings.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.publish.publication import Publish, open_publisher
from benchmarks.harness import Report, argument_parser

_LOAD_ROWS = 1_000_000
_FEW_ROWS = 100_000
_FEW_CHANGED = 1000
_TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("publish", __doc__, rounds=5)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows held (default 10,000,000)")
    parser.add_argument("--subtasks", type=int, default=4, help="of the operator (default 4)")
    parser.add_argument("--version", type=int, choices=(3, 2), default=3, help="of Iceberg (default 3)")
    parser.add_argument("--folder", type=Path, help="where stores are written (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    report = Report("publish", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as temporary:
        folder = Path(temporary)
        many = _measure(report, folder, arguments.rows, arguments.rows // 100, arguments)
        if not arguments.rows < 1_000_000:
            report.require_time("publication, 1 % changed", many["kept"], at_most=0.3)
            report.require("metadata", many["metadata"] / 1000, at_most=200, unit="kB")
        costs = [
            _measure(report, folder, rows, _FEW_CHANGED, arguments)["kept"] for rows in (_FEW_ROWS, arguments.rows)
        ]
        report.require(
            f"{_FEW_CHANGED:,} changed rows: {arguments.rows:,} rows held over {_FEW_ROWS:,}",
            costs[1] / costs[0],
            at_most=4,
        )
    return report.finish()


def _measure(report: Report, folder: Path, rows: int, changed: int, arguments: Any) -> dict[str, float]:
    """Return the seconds of a publication, by a publisher that was kept and by a new one, and the bytes it wrote."""
    for path in ("store", "tables"):
        shutil.rmtree(folder / path, ignore_errors=True)
    store = arrowstate.open_store(folder / "store", create=True)
    backends = [
        arrowstate.KeyedStateBackend(
            key=pa.schema([("key", pa.int64())]),
            max_parallelism=128,
            key_groups=arrowstate.key_group_range(128, parallelism=arguments.subtasks, subtask=subtask),
        )
        for subtask in range(arguments.subtasks)
    ]
    for first in range(0, rows, _LOAD_ROWS):
        _add(backends, np.arange(first, min(first + _LOAD_ROWS, rows)))
    random = np.random.default_rng(1)
    publish = Publish(to=folder / "tables", version=arguments.version)
    kept = open_publisher(store.storage, store.store_id, publish)
    took: dict[str, list[float]] = {"kept": [], "new": []}
    written: list[tuple[int, int]] = []
    with store.writer() as writer:
        writer.checkpoint({"bench": backends}, format="parquet")
        began = time.perf_counter()
        kept.publish()
        first_seconds = time.perf_counter() - began
        for number in range(2 * arguments.rounds):
            _add(backends, random.choice(rows, changed, replace=False))
            writer.checkpoint({"bench": backends}, format="parquet")
            before = _sizes(folder / "tables")
            publisher = kept if number % 2 else open_publisher(store.storage, store.store_id, publish)
            began = time.perf_counter()
            publisher.publish()
            took["kept" if number % 2 else "new"].append(time.perf_counter() - began)
            new = {path: size for path, size in _sizes(folder / "tables").items() if path not in before}
            metadata = sum(size for path, size in new.items() if path.parent.name == "metadata")
            written.append((metadata, sum(new.values()) - metadata))
    found = {name: statistics.median(seconds) for name, seconds in took.items()}
    found["metadata"], found["dead"] = (statistics.median(sizes) for sizes in zip(*written, strict=True))
    files = len(list((folder / "store").rglob("*.parquet")))
    print(
        f"\n{rows:,} rows held in {files} files, {changed:,} changed: {found['kept'] * 1000:.0f} ms, by a new "
        f"publisher {found['new'] * 1000:.0f} ms, the first {first_seconds * 1000:.0f} ms; "
        f"{found['metadata'] / 1000:.0f} kB of metadata, {found['dead'] / 1000:.0f} kB of dead rows"
    )
    for name, value in found.items():
        report.figure(f"{rows} rows, {changed} changed, {name}", value, "bytes" if value > 1000 else "s", shown=False)
    return found


def _add(backends: list[arrowstate.KeyedStateBackend], keys: Any) -> None:
    hashes = np.asarray(arrowstate.key_hash(pa.array(keys)))
    for backend in backends:
        low, high = backend.key_groups.hash_bounds(128)
        own = keys[(low <= hashes) & (hashes <= high)]
        backend.state(_TOTAL).add_batch(pa.array(own), pa.array(own))


def _sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".text"}
