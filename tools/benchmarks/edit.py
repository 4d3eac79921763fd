"""Repairing a checkpoint: some rows of many are changed by SQL, and committed.

The keys are 64-bit integers with an integer for their value. An edit updates rows by a condition on the value or by a
table of keys, and commits; in turns with an UPDATE of the same rows of a DuckDB table in a file, and its checkpoint.
What an edit adds to the store is measured too.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import arrowstate
from benchmarks.harness import Contender, Report, argument_parser

__all__ = ["main"]

_VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())


def main(argv: list[str]) -> int:
    """Run the benchmark and return its exit code."""
    parser = argument_parser("edit", __doc__, rounds=7)
    parser.add_argument("--keys", type=int, default=10_000_000, help="rows in the state (default 10000000)")
    parser.add_argument("--changed", type=int, default=10_000, help="rows that an edit changes (default 10000)")
    arguments = parser.parse_args(argv)
    report = Report("edit", arguments)
    every = arguments.keys // arguments.changed
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        store = _filled(Path(temporary) / "store", arguments.keys)
        database = duckdb.connect(str(Path(temporary) / "plain.duckdb"))
        database.execute(
            f"create table plain as select range as key, range % {arguments.keys} as v from range({arguments.keys})"
        )
        numbers, theirs = itertools.count(), itertools.count()
        sizes = [_size(Path(temporary) / "store")]

        def by_condition() -> None:
            with store.edit() as edit:
                edit.update("bench.v", set={"v": "v + 1"}, where=f"key % {every} = {next(numbers) % every}")
                edit.commit()
            sizes.append(_size(Path(temporary) / "store"))

        def by_keys() -> None:
            keys = np.arange(next(numbers) % every, arguments.keys, every)
            with store.edit() as edit:
                edit.upsert("bench.v", pa.table({"key": keys, "v": keys}))
                edit.commit()
            sizes.append(_size(Path(temporary) / "store"))

        def peer() -> None:
            database.execute(f"update plain set v = v + 1 where key % {every} = {next(theirs) % every}")
            database.execute("checkpoint")

        what = f"{arguments.changed:,} of {arguments.keys:,} rows"
        series = report.compare(
            what,
            "",
            [
                Contender("edit by a condition", by_condition),
                Contender("edit by a table of keys", by_keys),
                Contender("DuckDB's UPDATE in a file", peer),
            ],
        )
        for kind, found in zip(("a condition", "a table of keys"), series[:2], strict=True):
            report.require_time(f"edit by {kind}", statistics.median(found.seconds), at_most=1)
        added = float(np.median(np.diff(sizes))) / 2**20
        report.require("written by an edit", added, at_most=2, unit="MiB")
        assert store.verify().problems == []
        database.close()
    return report.finish()


def _filled(folder: Path, keys: int) -> arrowstate.StateStore:
    store = arrowstate.open_store(folder, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("key", pa.int64())]), max_parallelism=128)
    state = backend.state(_VALUE)
    for numbers in np.array_split(np.arange(keys), 10):
        state.update_batch(pa.array(numbers), pa.array(numbers))
    with store.writer() as writer:
        writer.checkpoint({"bench": [backend]})
    return store


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
