"""A job with a checkpoint a second for 30 minutes, with the default retention: how many entries and files there are.

The job runs inline: its clock, that of its checkpoints and that of its collections are one, which does not wait. After
each commit a collection follows, as it does beside a job that has time for it. Each checkpoint changes some keys, so it
has run files of its own; the store is looked at after each of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import arrowstate
from arrowstate.checkpoints.committing import Committer
from arrowstate.log.pins import read_pins
from arrowstate.runtime import GeneratorSource, Job
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.drivers.inline import Inline
from arrowstate.store import StateStore
from arrowstate.upkeep.beside import Collector, collect_store
from arrowstate.upkeep.retention import DEFAULT_RETENTION
from benchmarks.harness import Report, argument_parser

CHECKPOINTS = 1_800
INTERVAL_MS = 1_000
START_MS = 1_767_225_600_000
ROWS = 2_000
"""So many come in a second, each of another key."""
KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Figures:
    """What was there at most, after any of the checkpoints, and at the end."""

    most_checkpoints: int
    most_entries: int
    most_files: int
    most_bytes: int
    checkpoints: int
    leases: int
    seconds_of_collections: float
    longest_collection: float


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("retention", __doc__, rounds=1)
    parser.add_argument("--checkpoints", type=int, default=CHECKPOINTS, help=f"how many (default {CHECKPOINTS:,})")
    parser.add_argument(
        "--interval-ms", type=int, default=INTERVAL_MS, help=f"from one to the next (default {INTERVAL_MS:,})"
    )
    arguments = parser.parse_args(argv)
    report = Report("retention", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        began = time.perf_counter()
        figures = run(Path(folder), arguments.checkpoints, interval_ms=arguments.interval_ms)
        report.figure("time", time.perf_counter() - began, "s")
        report.figure("time of collections", figures.seconds_of_collections, "s")
        report.figure("longest collection", figures.longest_collection, "s")
    most = DEFAULT_RETENTION.count + DEFAULT_RETENTION.hours
    report.require("checkpoints at most", figures.most_checkpoints, at_most=most)
    report.require("log entries at most", figures.most_entries, at_most=most + 1)
    report.figure("files at most", figures.most_files, "")
    report.figure("bytes at most", figures.most_bytes, "bytes")
    report.figure("checkpoints at the end", figures.checkpoints, "")
    report.figure("of them held by their hour", figures.leases, "")
    return report.finish()


def run(folder: Path, checkpoints: int, *, interval_ms: int = INTERVAL_MS) -> Figures:
    """Run the job until it has so many checkpoints."""
    made = arrowstate.open_store(folder / "store", create=True)
    time_ms: Callable[[], int] = lambda: START_MS  # noqa: E731
    store = StateStore(made.storage, made.store_id, clock_ms=lambda: time_ms())
    committer = Committer(store.storage, clock_ms=store.clock_ms, new_id=store.new_id)
    seconds: list[float] = []

    def collect() -> tuple[int, int]:
        began = time.perf_counter()
        report, dropped = collect_store(store.storage, DEFAULT_RETENTION, clock_ms=store.clock_ms, new_id=store.new_id)
        seconds.append(time.perf_counter() - began)
        return report.deleted_count, dropped

    collector = Collector(store.url, DEFAULT_RETENTION, collect, is_beside=False)
    job = _job(folder, interval_ms, lambda: time_ms() / 1000)
    entries = Entries(
        job.graph, store.storage, store.store_id, committer, 1, 128, store.new_id, after_commits=[collector]
    )
    setting = Setting(store.store_id, 1, 128)
    inline = Inline(
        job.graph, setting, store.storage, entries, job.options, job.restart, new_id=store.new_id, clock_ms=START_MS
    )
    time_ms = lambda: inline.clock_ms  # noqa: E731
    inline.coordinator.begin()
    looks: list[tuple[int, int, int, int]] = []
    while len(looks) < checkpoints:
        before = entries.committed_id
        while entries.committed_id == before:
            inline.step()
        paths = store.storage.list("")
        looks.append(
            (
                len(store.checkpoints()),
                sum(path.startswith("log/") for path in paths),
                len(paths),
                sum(path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file()),
            )
        )
        # Nothing comes until the next checkpoint is due.
        inline.clock_ms += interval_ms
    if inline.coordinator.error is not None:
        raise inline.coordinator.error
    leases = len(read_pins(store.storage))
    kept, entry_counts, file_counts, sizes = zip(*looks, strict=True)
    return Figures(
        max(kept), max(entry_counts), max(file_counts), max(sizes), kept[-1], leases, sum(seconds), max(seconds)
    )


def _job(folder: Path, interval_ms: int, clock: Callable[[], float]) -> Job:
    schema = pa.schema({"key": pa.int64(), "amount": pa.int64()})

    def rows(first: int, count: int) -> pa.RecordBatch:
        keys = [number * 7919 % KEYS for number in range(first, first + count)]
        return pa.record_batch([pa.array(keys, pa.int64()), pa.array([1] * count, pa.int64())], schema=schema)

    job = Job(folder / "store", options=arrowstate.CheckpointOptions(interval_ms=interval_ms))
    source = job.source(GeneratorSource(rows, schema, rows_per_second=ROWS, clock=clock), uid="rows")
    source.stateful(_Totals(), key=["key"], uid="totals")
    return job


class _Totals(arrowstate.BatchFunction):
    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        self.total.add_batch(context.group_keys(batch), batch["amount"])
