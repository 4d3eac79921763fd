"""Reading a checkpoint: one key through `lookup`, and a full scan through `store.sql`.

The keys are 64-bit integers; a tenth of them was written twice, so that a tenth of the rows is dead. One key at a
time is looked up in a mapped checkpoint, in turns with a get of RocksDB. The full scan is a query over key and value
columns, in turns with the same query of DuckDB over one plain Parquet file with the same live rows.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.state.kinds.reducing import ReducingState
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.workload import SUM, Keys, load_rocksdb

__all__ = ["main"]

_QUERIES = {
    "key and value columns": "select count(*), min(key), max(key), sum(total), max(total) from {}",
    "the value column": "select count(*), sum(total), max(total) from {}",
}


def main(argv: list[str]) -> int:
    """Run the benchmark and return its exit code."""
    parser = argument_parser("lookup", __doc__, rounds=15)
    parser.add_argument("--keys", type=int, default=10_000_000, help="keys in the state (default 10000000)")
    parser.add_argument("--lookups", type=int, default=200, help="keys looked up in a round, one by one (default 200)")
    parser.add_argument("--no-peer", action="store_true", help="leave RocksDB out")
    arguments = parser.parse_args(argv)
    report = Report("lookup", arguments)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary)
        store = arrowstate.open_store(folder / "store", create=True)
        keys = Keys("int64", arguments.keys)
        backend = arrowstate.KeyedStateBackend(key=keys.schema, max_parallelism=128)
        _write(backend.state(SUM), keys, random)
        snapshot = store.writer().checkpoint({"bench": [backend]})
        asked = random.integers(0, keys.count, arguments.lookups).tolist()
        _look_up(report, snapshot, keys, asked, None if arguments.no_peer else folder / "rocksdb")
        _scan(report, store, keys, folder / "plain.parquet")
    return report.finish()


def _write(state: ReducingState, keys: Keys, random: np.random.Generator) -> None:
    """Give every key a sum, and a tenth of them a new one, as many small batches would leave it."""
    everyone = np.array_split(np.arange(keys.count), 10)
    again = np.array_split(random.permutation(keys.count)[: keys.count // 10], 10)
    for numbers in [*everyone, *again]:
        state.add_batch(keys.column(numbers), pa.array(random.integers(0, 1_000_000, numbers.size)))


def _look_up(
    report: Report, snapshot: arrowstate.Snapshot, keys: Keys, asked: list[int], peer_folder: Path | None
) -> None:
    def ours() -> None:
        for number in asked:
            assert snapshot.lookup("bench.total", [number]).num_rows == 1

    contenders = [Contender("arrowstate", ours)]
    if peer_folder is not None:
        database = load_rocksdb(peer_folder, keys)

        def peer() -> None:
            for number in asked:
                assert database.lookup(number) is not None

        contenders.append(Contender("RocksDB", peer))
    series = report.compare(f"{len(asked)} keys of {keys.count:,}, one by one", "", contenders)
    report.require_time("one key", statistics.median(series[0].seconds) / len(asked), at_most=0.01)
    if peer_folder is not None:
        database.close()


def _scan(report: Report, store: arrowstate.StateStore, keys: Keys, file: Path) -> None:
    snapshot = store.latest()
    connection = duckdb.connect()
    connection.register("live", snapshot.to_arrow("bench.total"))
    # DuckDB's own writer makes the file that its reader likes best.
    connection.execute(f"copy live to '{file}'")
    connection.unregister("live")
    snapshot.sql("select count(_key_group) from bench.total").fetchall()
    scan = snapshot.scans[-1]
    report.figure("dead rows in the checkpoint", 100 * (1 - keys.count / scan.rows), "%")
    for columns, query in _QUERIES.items():
        expected = connection.execute(query.format(f"'{file}'")).fetchall()
        assert store.sql(query.format("bench.total")).fetchall() == expected
        series = report.compare(
            f"full scan of {keys.count:,} rows, {columns}",
            "rows",
            [
                Contender("store.sql", partial(_fetch, store.sql, query.format("bench.total")), keys.count),
                Contender("DuckDB on Parquet", partial(_fetch, connection.sql, query.format(f"'{file}'")), keys.count),
            ],
        )
        ratio = statistics.median(series[0].times_better_than(series[1]))
        report.require(f"speed of store.sql, per speed of DuckDB on Parquet, {columns}", ratio, at_least=0.8)


def _fetch(run: Callable[[str], duckdb.DuckDBPyRelation], query: str) -> None:
    run(query).fetchall()
