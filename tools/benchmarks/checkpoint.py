"""Checkpoints on a local disk: their speed against `dd conv=fsync`, what they cost a job, and what churn leaves.

A full checkpoint is compared with dd writing the same bytes to the same disk. Updates are timed while full checkpoints
are written without a break in the background, and without. After many incremental checkpoints the bytes on
storage and the time of a restore are compared with those of a fresh full one.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.files.open_files import forget_open_files
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.workload import SUM, Keys, load_arrowstate


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("checkpoint", __doc__, rounds=7)
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--batch", type=int, default=200_000, help="keys of an update (default 200,000)")
    parser.add_argument("--batches", type=int, default=30, help="updates of a round (default 30)")
    parser.add_argument("--checkpoints", type=int, default=200, help="incremental checkpoints (default 200)")
    parser.add_argument("--changed", type=float, default=0.01, help="share of keys changed before each (default 0.01)")
    parser.add_argument("--folder", type=Path, help="where to write (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    report = Report("checkpoint", arguments)
    keys = Keys("int64", arguments.keys)
    backend = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
    load_arrowstate(backend.state(SUM), keys)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as temporary:
        folder = Path(temporary)
        _full(report, backend, folder)
        _others(report, backend, folder)
        _updates(report, backend, keys, folder, arguments.batch, arguments.batches)
        _churn(report, backend, keys, folder, arguments.checkpoints, int(arguments.keys * arguments.changed))
    return report.finish()


def _full(report: Report, backend: arrowstate.KeyedStateBackend, folder: Path) -> None:
    """Write all state to a new store each round, and as many bytes with dd."""
    numbers = count()
    writers: list[arrowstate.store.StoreWriter] = []

    def new_store() -> None:
        shutil.rmtree(folder / "stores", ignore_errors=True)
        store = arrowstate.open_store(folder / "stores" / str(next(numbers)), create=True)
        writers[:] = [store.writer()]

    def full() -> None:
        writers[0].checkpoint({"bench": [backend]})

    new_store()
    full()
    source = folder / "source"
    with source.open("wb") as sink:
        for path in sorted((folder / "stores").rglob("*")):
            if path.is_file():
                sink.write(path.read_bytes())
    mebibytes = source.stat().st_size / 2**20

    def clear() -> None:
        (folder / "target").unlink(missing_ok=True)

    def dd() -> None:
        command = ["dd", f"if={source}", f"of={folder / 'target'}", "bs=8M", "conv=fsync", "status=none"]
        subprocess.run(command, check=True)

    ours, theirs = report.compare(
        f"a full checkpoint of {mebibytes:.0f} MiB",
        "MiB",
        [Contender("arrowstate", full, mebibytes, new_store), Contender("dd", dd, mebibytes, clear)],
    )
    report.require(
        "full checkpoint, speed by that of dd", statistics.median(ours.times_better_than(theirs)), at_least=0.7
    )
    source.unlink()
    clear()


def _others(report: Report, backend: arrowstate.KeyedStateBackend, folder: Path) -> None:
    """Take a checkpoint when nothing has changed, and a savepoint as Parquet."""
    store = arrowstate.open_store(folder / "others", create=True)
    writer = store.writer()
    writer.checkpoint({"bench": [backend]})
    report.compare(
        "a checkpoint with nothing changed",
        "",
        [Contender("arrowstate", lambda: writer.checkpoint({"bench": [backend]}))],
    )
    numbers = count()
    (series,) = report.compare(
        "a savepoint as Parquet",
        "",
        [Contender("arrowstate", lambda: store.savepoint(folder / "saved" / str(next(numbers))))],
        warmup=0,
    )
    size = _bytes(folder / "saved") / len(series.seconds)
    report.figure("savepoint", size / 2**20, "MiB")
    shutil.rmtree(folder / "saved")
    shutil.rmtree(folder / "others")


def _updates(
    report: Report, backend: arrowstate.KeyedStateBackend, keys: Keys, folder: Path, batch: int, batches: int
) -> None:
    """Add to random keys, with full checkpoints in the background and without."""
    random = np.random.default_rng(1)
    total = backend.state(SUM)
    rows = keys.count
    ones = pa.array(np.ones(batch, dtype=np.int64))
    numbers = count()
    ready: list[arrowstate.CheckpointCoordinator[arrowstate.Snapshot]] = []
    taken: list[arrowstate.PendingCheckpoint[arrowstate.Snapshot]] = []

    def update() -> None:
        total.add_batch(pa.array(random.integers(0, rows, batch)), ones)

    def with_checkpoints() -> None:
        for _ in range(batches):
            if not taken or taken[-1].done:
                taken.append(ready.pop().trigger())
            update()

    def without() -> None:
        for _ in range(batches):
            update()

    def clear() -> None:
        for pending in taken:
            pending.result()
        taken.clear()
        ready.clear()
        shutil.rmtree(folder / "busy", ignore_errors=True)

    def prepare() -> None:
        clear()
        for _ in range(batches):
            # A store for each of them, so that it is a full one.
            store = arrowstate.open_store(folder / "busy" / str(next(numbers)), create=True)
            ready.append(store.writer().coordinator({"bench": [backend]}))

    amount = batch * batches
    busy, quiet = report.compare(
        f"updates of {batch:,} of {rows:,} keys",
        "rows",
        [
            Contender("during checkpoints", with_checkpoints, amount, prepare),
            Contender("without", without, amount, clear),
        ],
    )
    clear()
    report.require(
        "updates during checkpoints, by their speed without",
        statistics.median(busy.times_better_than(quiet)),
        at_least=0.85,
    )


def _churn(
    report: Report,
    backend: arrowstate.KeyedStateBackend,
    keys: Keys,
    folder: Path,
    checkpoints: int,
    changed: int,
) -> None:
    """Change a share of the keys before each of many checkpoints, then compare with a fresh full one."""
    random = np.random.default_rng(2)
    total = backend.state(SUM)
    rows = keys.count
    ones = pa.array(np.ones(changed, dtype=np.int64))
    store = arrowstate.open_store(folder / "churned", create=True)
    retention = arrowstate.RetentionPolicy(count=1)
    with store.writer() as writer, writer.coordinator({"bench": [backend]}) as coordinator:
        for number in range(checkpoints):
            total.add_batch(pa.array(random.choice(rows, changed, replace=False)), ones)
            coordinator.trigger().result()
            if number % 20 == 19:
                store.collect(retention, grace_ms=0, allow_short_grace=True).apply()
    store.collect(retention, grace_ms=0, allow_short_grace=True).apply()
    new = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
    load_arrowstate(new.state(SUM), keys)
    arrowstate.open_store(folder / "fresh", create=True).writer().checkpoint({"bench": [new]})
    report.require(
        f"bytes after {checkpoints} incremental checkpoints, by those of a full one",
        _bytes(folder / "churned") / _bytes(folder / "fresh"),
        at_most=2,
    )
    asked = pa.array(random.integers(0, rows, 1000))

    def restore(name: str) -> None:
        arrowstate.open_store(folder / name).latest().restore("bench").state(SUM).get_batch(asked)

    churned, full = report.compare(
        "restore and answer 1,000 keys",
        "",
        [
            Contender("after churn", lambda: restore("churned"), None, forget_open_files),
            Contender("a fresh full one", lambda: restore("fresh"), None, forget_open_files),
        ],
    )
    report.require(
        "restore after churn, by the time of a fresh full one",
        1 / statistics.median(churned.times_better_than(full)),
        at_most=1.4,
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
