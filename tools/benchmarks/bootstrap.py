"""Making a checkpoint of a table: rows of a value state, each with a key of its own, into a store that is empty.

The keys are 64-bit integers in no order, with an integer for their value, in one table in memory. In turns with an
insert of the same table into a DuckDB table with a primary key, in a file, and its checkpoint; and with a table that
gets its primary key after its rows. One subtask and two, and a budget of memory that most of the state does not fit in.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import arrowstate
from benchmarks.harness import Contender, Report, argument_parser

__all__ = ["main"]

_VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())
_INSERT = ["create table filled (key bigint primary key, v bigint)", "insert into filled from given"]
_KEY_LAST = ["create table filled as from given", "alter table filled add primary key (key)"]


def main(argv: list[str]) -> int:
    """Run the benchmark and return its exit code."""
    parser = argument_parser("bootstrap", __doc__, rounds=5)
    parser.add_argument("--keys", type=int, default=10_000_000, help="rows in the table (default 10000000)")
    arguments = parser.parse_args(argv)
    report = Report("bootstrap", arguments)
    numbers = np.random.default_rng(7).permutation(arguments.keys)
    table = pa.table({"key": numbers, "v": numbers})
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary) / "filled"

        def anew() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

        def ours(parallelism: int, budget: int | None) -> Callable[[], None]:
            def run() -> None:
                made = arrowstate.open_store(folder / "store", create=True).bootstrap(
                    "bench",
                    ["key"],
                    [_VALUE],
                    table,
                    parallelism=parallelism,
                    memory_budget_bytes=budget,
                    spill_dir=folder,
                )
                assert made["bench.v"].num_rows == arguments.keys

            return run

        def theirs(statements: list[str]) -> Callable[[], None]:
            def run() -> None:
                with duckdb.connect(str(folder / "plain.duckdb")) as database:
                    database.register("given", table)
                    for statement in [*statements, "checkpoint"]:
                        database.execute(statement)

            return run

        contenders = {
            "bootstrap, one subtask": ours(1, 256 << 20),
            "bootstrap, two subtasks": ours(2, 256 << 20),
            "bootstrap, one subtask, 32 MiB of memory": ours(1, 32 << 20),
            "DuckDB, insert by primary key": theirs(_INSERT),
            "DuckDB, primary key after the rows": theirs(_KEY_LAST),
        }
        report.compare(
            f"{arguments.keys:,} rows",
            "rows",
            [Contender(name, run, arguments.keys, prepare=anew) for name, run in contenders.items()],
        )
    return report.finish()
