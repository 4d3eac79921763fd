"""From a checkpoint on local disk to the first answer, and what a rescale reads, against opening RocksDB.

The files are in the page cache for both. Ours maps them, checks the checksum of every record batch, and answers
a batch of keys. Besides, a process of its own does the same once: there the mapping is cold, the library loaded.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.reading import find_operator, find_state, open_runs, runs_by_state
from arrowstate.files.subtasks import subtasks_of
from arrowstate.schema.versions import RunSchemas
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.rocksdb_peer import RocksDB
from benchmarks.workload import SUM, Keys, load_arrowstate, load_rocksdb

_CHILD = """
import sys, time
import pyarrow as pa
import arrowstate
from benchmarks.workload import SUM, Keys

def first_answer(store, columns):
    started = time.perf_counter()
    backend = arrowstate.open_store(store).latest().restore("bench")
    answer = backend.state(SUM).get_batch(columns)
    assert answer.null_count == 0
    return (time.perf_counter() - started) * 1000

keys = Keys("int64", 1000)
small = arrowstate.open_store("memory://warm", create=True)
backend = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
backend.state(SUM).add_batch(pa.array(range(1000)), pa.array([1] * 1000))
small.writer().checkpoint({"bench": [backend]})
first_answer("memory://warm", pa.array(range(1000)))
print(first_answer(sys.argv[1], pa.array(range(1000))))
"""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("restore", __doc__, rounds=7)
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--batch", type=int, default=1000, help="keys in the first answer (default 1,000)")
    parser.add_argument("--no-peer", action="store_true", help="leave RocksDB out")
    arguments = parser.parse_args(argv)
    report = Report("restore", arguments)
    keys = Keys("int64", arguments.keys)
    asked = np.random.default_rng(1).integers(0, arguments.keys, arguments.batch)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary)
        backend = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
        load_arrowstate(backend.state(SUM), keys)
        store = arrowstate.open_store(folder / "store", create=True)
        store.writer().checkpoint({"bench": [backend]})

        def ours() -> None:
            restored = arrowstate.open_store(folder / "store").latest().restore("bench")
            restored.state(SUM).get_batch(pa.array(asked))

        contenders = [Contender("arrowstate", ours, None, forget_open_files)]
        if not arguments.no_peer:
            database = load_rocksdb(folder / "rocksdb", keys)
            database.checkpoint(folder / "checkpoint")
            database.close()
            opened: list[RocksDB] = []

            def copy() -> None:
                for one in opened:
                    one.close()
                opened.clear()
                shutil.rmtree(folder / "opened", ignore_errors=True)
                shutil.copytree(folder / "checkpoint", folder / "opened")

            def peer() -> None:
                opened.append(RocksDB.restore(folder / "opened", asked)[0])

            contenders.append(Contender("RocksDB", peer, None, copy))
        report.compare(f"restore {keys.count:,} keys and answer {arguments.batch:,}", "", contenders)
        command = [sys.executable, "-c", _CHILD, str(folder / "store")]
        times = [
            float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(arguments.rounds)
        ]
        report.figure("in a new process, library loaded: median", statistics.median(times), "ms")
        if arguments.keys == 10_000_000:
            report.require_time("to the first answer in a new process", statistics.median(times) / 1000, at_most=0.3)
        _rescale(report, store, arguments.keys)
    return report.finish()


def _rescale(report: Report, store: arrowstate.StateStore, keys: int) -> None:
    """Restore a checkpoint of 4 subtasks as 3 and count the bytes of the record batches that were opened."""
    parts = [store.latest().restore("bench", parallelism=4, subtask=subtask) for subtask in range(4)]
    snapshot = store.writer().checkpoint({"bench": parts})
    files = set(store.storage.list(""))
    row_bytes = 24
    shares = []
    operator = find_operator(snapshot.entry, "bench")
    total = RunSchemas(operator.key, find_state(snapshot.entry, operator, "total"))
    for subtask in range(3):
        bounds = arrowstate.key_group_range(128, parallelism=3, subtask=subtask).hash_bounds(128)
        documents = runs_by_state(store.storage, operator, subtasks_of(store.storage, operator, bounds))["total"]
        opened = open_runs(store.storage, store.store_id, documents, total, hash_bounds=bounds)
        needed = sum(run.rows for run, _ in opened) * row_bytes
        shares.append(sum(size for _, size in opened) / needed)
        snapshot.restore("bench", parallelism=3, subtask=subtask)
    report.figure(
        f"files written by restoring {keys:,} keys of 4 subtasks as 3", len(set(store.storage.list("")) - files), ""
    )
    report.require("bytes read by a rescale from 4 to 3, per byte needed", max(shares), at_most=1.1)
