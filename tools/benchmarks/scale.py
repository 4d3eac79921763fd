"""What a store costs at a parallelism of 4 to 4,096 with ten states: bytes and requests of each thing done to it.

A job of as many subtasks, each with ten small states, takes checkpoints on a local disk through a storage that counts.
Then one subtask is restored, the checkpoints are listed, a collection is planned, and the newest checkpoint is opened,
each by a process that knows nothing yet. What every subtask pays for must not grow with their number; what is done once
must not either, except for the line that each subtask has in the log entry or a list beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

import arrowstate
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.clock import new_id, now_ms
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.references import ReferenceReader
from arrowstate.log.entries import path_of
from arrowstate.store import StateStore
from arrowstate_formats.run_files import INLINE_BYTES
from benchmarks.harness import Report, argument_parser
from benchmarks.slow_storage import SlowStorage

KEY = pa.schema([("key", pa.int64())])
KEYS_PER_SUBTASK = 8
LARGEST_ENTRY_BYTES = 4 << 20
LONGEST_COMMIT_SECONDS = 2.0
MOST_BYTES = 262_144
"""What a log entry has before its subtasks go to lists; a checkpoint that is opened costs no more."""
LIST_BYTES = 64 * INLINE_BYTES
"""What a list of 64 subtasks has at most, if what each has stored just fits into it."""
GROWTH = 1.5
"""How much more a subtask of a larger job may cost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one thing took."""

    seconds: float
    requests: int
    bytes_read: int


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("scale", __doc__, rounds=1)
    parser.add_argument(
        "--parallelism", type=int, nargs="+", default=[4, 64, 1024, 4096], help="subtasks (default 4 64 1024 4096)"
    )
    parser.add_argument("--states", type=int, default=10, help="states of a subtask (default 10)")
    arguments = parser.parse_args(argv)
    report = Report("scale", arguments)
    found = {}
    for parallelism in arguments.parallelism:
        with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
            found[parallelism] = _costs(report, Path(folder), parallelism, arguments.states)
    for parallelism, costs in found.items():
        _require_flat(report, parallelism, costs, found)
    return report.finish()


def _costs(report: Report, folder: Path, parallelism: int, states: int) -> dict[str, Cost]:
    """Take two checkpoints of a job, of which the second changes a row of every subtask, and use them."""
    print(f"\nparallelism {parallelism:,}")
    maximum = max(parallelism, 128)
    descriptors = [arrowstate.ReducingStateDescriptor(f"s{n}", pa.int64(), reduce="sum") for n in range(states)]
    store = arrowstate.open_store(folder, create=True)
    storage = SlowStorage(store.storage)
    writer = CheckpointWriter(storage, store.store_id, clock_ms=now_ms, new_id=new_id)
    backends, keys = _job(parallelism, maximum, descriptors)
    costs: dict[str, Cost] = {}

    def measure(name: str, act: Callable[[], object]) -> None:
        storage.reset()
        started = time.perf_counter()
        act()
        seconds = time.perf_counter() - started
        cost = costs[name] = Cost(seconds, sum(storage.requests.values()), storage.bytes_read)
        report.figure(f"{name}, {parallelism} subtasks: time", seconds * 1000, "ms")
        report.figure(f"{name}, {parallelism} subtasks: requests", cost.requests, "")
        report.figure(f"{name}, {parallelism} subtasks: bytes read", cost.bytes_read, "bytes")

    for number in range(2):
        for backend, own in zip(backends, keys, strict=True):
            backend.state(descriptors[0]).add_batch(own[: 1 + number], own[: 1 + number])
        attempt = writer.freeze({"job": backends})
        storage.reset()
        started = time.perf_counter()
        written = [writer.write(attempt, part) for part in attempt.frozen.parts]
        costs["write"] = Cost(time.perf_counter() - started, sum(storage.requests.values()), 0)
        measure("commit", partial(writer.commit_parts, attempt, written))
    entry = store.latest().entry
    size = len(store.storage.read(path_of(entry.number)))
    report.figure(f"log entry, {parallelism} subtasks", size, "bytes")
    report.require(f"log entry at {parallelism}", size, at_most=LARGEST_ENTRY_BYTES, unit="bytes")
    report.require_time(f"commit at {parallelism}", costs["commit"].seconds, at_most=LONGEST_COMMIT_SECONDS)
    held = sum(ReferenceReader(store.storage).files(entry.operators).values())
    costs["checkpoint"] = Cost(0.0, 0, held + size)

    def fresh() -> StateStore:
        forget_open_files()
        return StateStore(storage, store.store_id)

    restored = parallelism // 2
    measure("restore of a subtask", lambda: fresh().latest().restore("job", parallelism=parallelism, subtask=restored))
    measure("list", lambda: fresh().checkpoints())
    measure("collection plan", lambda: fresh().collect())
    measure("latest", lambda: fresh().latest())
    return costs


def _job(
    parallelism: int, maximum: int, descriptors: list[arrowstate.ReducingStateDescriptor]
) -> tuple[list[arrowstate.KeyedStateBackend], list[pa.Array]]:
    """Return the backends of all subtasks, each with the same number of rows in each state, and their keys."""
    candidates = pa.array(range(40 * KEYS_PER_SUBTASK * parallelism), pa.int64())
    groups = arrowstate.key_groups(candidates, maximum).to_numpy()
    order = groups.argsort(kind="stable")
    sorted_groups = groups[order]
    backends, keys = [], []
    for subtask in range(parallelism):
        own = arrowstate.key_group_range(maximum, parallelism=parallelism, subtask=subtask)
        start = int(sorted_groups.searchsorted(own.start))
        mine = candidates.take(pa.array(order[start : start + KEYS_PER_SUBTASK]))
        backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=maximum, key_groups=own)
        for descriptor in descriptors:
            backend.state(descriptor).add_batch(mine, mine)
        backends.append(backend)
        keys.append(mine)
    return backends, keys


def _require_flat(report: Report, parallelism: int, costs: dict[str, Cost], found: dict[int, dict[str, Cost]]) -> None:
    """Compare what a job costs with the smallest one of at least 64 subtasks, which has files beside its entries."""
    smaller = min((other for other in found if other >= 64), default=parallelism)
    if parallelism <= smaller:
        return
    base = found[smaller]
    print(f"\nparallelism {parallelism:,} by {smaller:,}")
    subtasks = parallelism / smaller
    for name, shared in (("write", subtasks), ("collection plan", subtasks), ("commit", subtasks)):
        growth = costs[name].requests / max(1, base[name].requests) / shared
        report.require(f"requests per subtask, {name}", growth, at_most=GROWTH)
    for name in ("checkpoint", "collection plan"):
        growth = costs[name].bytes_read / base[name].bytes_read / subtasks
        report.require(f"bytes per subtask, {name}", growth, at_most=GROWTH)
    for name, most in (
        ("restore of a subtask", MOST_BYTES + LIST_BYTES),
        ("list", 2 * MOST_BYTES),
        ("latest", MOST_BYTES),
    ):
        report.require(f"requests, {name}", costs[name].requests / base[name].requests, at_most=GROWTH)
        report.require(f"bytes, {name}", costs[name].bytes_read, at_most=most, unit="bytes")
