"""What changed between two checkpoints: their difference, the history of one key, and one key by SQL.

Two checkpoints of one state: of its rows a hundredth was changed, most of them updated, some deleted, some new. Their
difference is counted from files that were not opened before, in turns with a full outer join of DuckDB over two Parquet
files of the same rows. Beside it: what one key was in a row of checkpoints, told with nothing of them in memory; and
one key at a time by SQL on a snapshot that is held, with the key in the query and as a parameter.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.files.open_files import forget_open_files
from arrowstate.query.kept_reads import forget_checkpoints
from benchmarks.harness import Contender, Report, argument_parser

__all__ = ["main"]

_KEY = pa.schema([("key", pa.int64())])
_TOTAL = arrowstate.ValueStateDescriptor("total", pa.int64())
_BATCH = 1_000_000
_JOIN = """
    select
        count(*) filter (where old.key is null),
        count(*) filter (where old.total <> new.total),
        count(*) filter (where new.key is null)
    from '{}' old full join '{}' new using (key)
"""


def main(argv: list[str]) -> int:
    """Run the benchmark and return its exit code."""
    parser = argument_parser("diff", __doc__, rounds=9)
    parser.add_argument("--keys", type=int, default=10_000_000, help="rows of the first checkpoint (default 10000000)")
    parser.add_argument("--checkpoints", type=int, default=1000, help="checkpoints of the history (default 1000)")
    parser.add_argument("--lookups", type=int, default=200, help="keys asked for by SQL in a round (default 200)")
    arguments = parser.parse_args(argv)
    report = Report("diff", arguments)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary)
        store = _two_checkpoints(folder, arguments.keys, random)
        _compare(report, store, folder, arguments.keys)
        _by_sql(report, store.latest(), random.integers(0, arguments.keys, arguments.lookups).tolist(), arguments.keys)
        _history(report, folder / "history", arguments.checkpoints, random)
    return report.finish()


def _two_checkpoints(folder: Path, rows: int, random: np.random.Generator) -> arrowstate.StateStore:
    """Write two checkpoints, and each as a Parquet file."""
    store = arrowstate.open_store(folder / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=_KEY, max_parallelism=128)
    state = backend.state(_TOTAL)
    for start in range(0, rows, _BATCH):
        keys = pa.array(np.arange(start, min(start + _BATCH, rows)))
        state.update_batch(keys, keys)
    changed = random.permutation(rows)[: rows // 100]
    updated, deleted = np.split(changed, [changed.size * 9 // 10])
    added = np.arange(rows, rows + deleted.size)
    with store.writer() as writer:
        writer.checkpoint({"bench": [backend]})
        state.update_batch(pa.array(updated), pa.array(updated + 1))
        state.clear_batch(pa.array(deleted))
        state.update_batch(pa.array(added), pa.array(added))
        writer.checkpoint({"bench": [backend]})
    for number in (1, 2):
        pq.write_table(store.snapshot(number).to_arrow("bench.total"), folder / f"{number}.parquet")
    return store


def _compare(report: Report, store: arrowstate.StateStore, folder: Path, rows: int) -> None:
    connection = duckdb.connect()
    query = _JOIN.format(folder / "1.parquet", folder / "2.parquet")
    (expected,) = connection.execute(query).fetchall()

    def ours() -> None:
        (found,) = store.diff(1, 2).states
        assert (found.inserted, found.updated, found.deleted) == expected

    series = report.compare(
        f"difference of two checkpoints of {rows:,} rows, 1% of them changed",
        "",
        [
            Contender("store.diff", ours, prepare=_forget),
            Contender("DuckDB on Parquet", lambda: connection.execute(query).fetchall()),
        ],
    )
    times = statistics.median(series[0].times_better_than(series[1]))
    report.require("the difference, of files not opened before, against DuckDB", times, at_least=4, unit="times")


def _by_sql(report: Report, snapshot: arrowstate.Snapshot, asked: list[int], rows: int) -> None:
    def in_the_query() -> None:
        for key in asked:
            assert len(snapshot.sql(f"select * from bench.total where key = {key}").fetchall()) <= 1

    def as_a_parameter() -> None:
        for key in asked:
            assert len(snapshot.sql("select * from bench.total where key = ?", params=[key]).fetchall()) <= 1

    series = report.compare(
        f"{len(asked)} keys of {rows:,} by SQL, one by one",
        "",
        [Contender("in the query", in_the_query), Contender("as a parameter", as_a_parameter)],
    )
    for one in series:
        seconds = statistics.median(one.seconds) / len(asked)
        report.require_time(f"one key by SQL, {one.name}", seconds, at_most=0.0015)


def _history(report: Report, place: Path, checkpoints: int, random: np.random.Generator) -> None:
    """A tenth of the checkpoints change the key; each changes 200 rows of 200,000."""
    store = arrowstate.open_store(place, create=True)
    backend = arrowstate.KeyedStateBackend(key=_KEY, max_parallelism=128)
    state = backend.state(_TOTAL)
    state.update_batch(pa.array(range(200_000)), pa.array(range(200_000)))
    with store.writer() as writer:
        for number in range(checkpoints):
            keys = random.integers(1, 200_000, 200)
            if number % 10 == 0:
                keys[0] = 0
            state.update_batch(pa.array(keys), pa.array(np.full(keys.size, number)))
            writer.checkpoint({"bench": [backend]})
    changes = len(range(0, checkpoints, 10))

    def tell() -> None:
        assert store.latest().history("bench.total", [0]).num_rows == 2 * changes - 1

    contenders = [Contender("snapshot.history", tell, prepare=_forget)]
    series = report.compare(f"the history of one key over {checkpoints:,} checkpoints", "", contenders)
    of_1000 = statistics.median(series[0].seconds) * 1000 / checkpoints
    report.require_time("the history of a key, for 1,000 checkpoints", of_1000, at_most=0.5)


def _forget() -> None:
    forget_checkpoints()
    forget_open_files()
