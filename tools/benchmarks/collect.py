"""A day of one-second checkpoints collected on a storage that takes 30 ms for each request: time, requests, memory.

Each checkpoint has a log entry, a manifest and a run file of its own, as that of a small job has that changes all its
state. The files are on a local disk, and each request waits besides; a listing does for each page of 1,000 names. A
tenth as many checkpoints are collected first: what a collection has in memory must not depend on their number.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

import arrowstate
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, path_of
from arrowstate.store import StateStore
from arrowstate_formats.documents import ManifestDocument, encode
from arrowstate_formats.run_files import checksum
from benchmarks.harness import Report, argument_parser
from benchmarks.slow_storage import SlowStorage

CHECKPOINTS = 86_400
MOST_SECONDS = 300.0
MOST_GROWTH = 1.5
"""How much more memory ten times as many checkpoints may take."""
NEWEST = arrowstate.RetentionPolicy(count=10)


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("collect", __doc__, rounds=1)
    parser.add_argument(
        "--checkpoints", type=int, default=CHECKPOINTS, help=f"how many are collected (default {CHECKPOINTS:,})"
    )
    parser.add_argument("--wait-ms", type=float, default=30.0, help="how long each request waits (default 30)")
    parser.add_argument(
        "--delete-one-by-one", action="store_true", help="a request deletes one file, as on other services than S3"
    )
    parser.add_argument("--folder", type=Path, help="where to write (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    report = Report("collect", arguments)
    peaks = []
    for checkpoints in (arguments.checkpoints // 10, arguments.checkpoints):
        print(f"\n{checkpoints:,} checkpoints")
        with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as folder:
            store = fill(Path(folder), checkpoints)
            seconds, together = arguments.wait_ms / 1000, not arguments.delete_one_by_one
            storage = SlowStorage(store.storage, seconds, deletes_together=together)
            before = resident_bytes()
            with Watch() as watch:
                started, began = time.perf_counter(), time.process_time()
                collected = StateStore(storage, store.store_id).collect(NEWEST).apply()
                seconds, worked = time.perf_counter() - started, time.process_time() - began
            peaks.append(watch.peak_bytes - before)
            report.figure("time", seconds, "s")
            report.figure("processor time", worked, "s")
            report.figure("requests", sum(storage.requests.values()), "")
            report.figure("files deleted", collected.deleted_count, "")
            report.figure("memory above that before", peaks[-1], "bytes")
            left = len(store.checkpoints())
            report.require("checkpoints left", left, at_least=NEWEST.count, at_most=NEWEST.count)
            report.require("problems found after it", len(store.verify().problems), at_most=0)
    report.require_time(f"time for {arguments.checkpoints:,}", seconds, at_most=MOST_SECONDS)
    report.require("memory, by that of a tenth as many", peaks[1] / max(peaks[0], 1), at_most=MOST_GROWTH)
    return report.finish()


def fill(folder: Path, checkpoints: int) -> StateStore:
    """Return a store with so many checkpoints, whose files are written without waiting until each is durable."""
    store = arrowstate.open_store(folder, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("key", pa.int64())]), max_parallelism=128)
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    keys = pa.array(range(3000), pa.int64())
    total.add_batch(keys, keys)
    with store.writer() as writer:
        entry = writer.checkpoint({"job": [backend]}).entry
    log = CommitLog(store.storage)
    last: CommittedEntry = log.read(entry.number)
    operator = entry.operators[0]
    subtask = operator.subtasks[0]
    handle = subtask.manifest
    assert handle.inline is not None
    states = handle.inline
    run = states[0].runs[0]
    assert run.path is not None
    data = store.storage.read(run.path)
    ids = (f"{number:032x}" for number in itertools.count(1))
    for number in range(entry.number + 1, entry.number + checkpoints):
        path = f"data/job/total/{next(ids)}.arrow"
        (folder / path).write_bytes(data)
        own = [replace(states[0], runs=[replace(run, id=Path(path).stem, path=path)])]
        manifest = encode(ManifestDocument(operator="job", key_groups=subtask.key_groups, states=own))
        place = f"manifests/{next(ids)}.json"
        (folder / "manifests").mkdir(exist_ok=True)
        (folder / place).write_bytes(manifest)
        kept = replace(handle, inline=None, path=place, bytes=len(manifest), xxh3_128=checksum(manifest))
        document = replace(
            entry,
            number=number,
            checkpoint_id=number - 1,
            parent=last.as_parent,
            commit_id=next(ids),
            operators=[replace(operator, subtasks=[replace(subtask, manifest=kept)])],
        )
        body = encode(document)
        (folder / path_of(number)).write_bytes(body)
        last = CommittedEntry(document, checksum(body), len(body))
    store.storage.put_hint("_latest", str(last.document.number).encode())
    return store


class Watch:
    """Looks every 20 ms how much memory the process has, in a block."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())


def resident_bytes() -> int:
    """Return how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
