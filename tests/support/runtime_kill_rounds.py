"""Rounds of SIGKILL of slots, and of the whole job, at random moments; what came out is compared with DuckDB.

A round starts the job anew on the same store: a keyed sum of many files, each row of which goes into an output table
and a folder of Parquet files. After the last round the job runs to its end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.runtime import FileSource, Job, OutputTable, ParquetSink, Restart

ROWS, FILES, KEYS = 400_000, 40, 2_000
RUNNING = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])


class Totals(arrowstate.BatchFunction):
    """Adds amounts, and gives each row out again."""

    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["amount"])
        # So that a kill finds it at work.
        time.sleep(0.002)
        return pa.record_batch([batch["user"], batch["n"], batch["amount"]], names=["user", "n", "total"])


def make_files(folder: Path) -> None:
    """Write the input, the same each time."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(7)
    for number in range(FILES):
        count = ROWS // FILES
        first = number * count
        table = pa.table(
            {
                "user": chance.integers(0, KEYS, count),
                "n": np.arange(first, first + count),
                "amount": chance.integers(0, 100, count),
            }
        )
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=2_000)


def make_job(folder: Path, parallelism: int) -> Job:
    """Return the job."""
    job = Job(
        folder / "store",
        parallelism=parallelism,
        max_parallelism=128,
        options=arrowstate.CheckpointOptions(interval_ms=50, tolerated_failures=10),
        restart=Restart.fixed(delay_ms=20),
    )
    rows = job.source(FileSource(folder / "in"), uid="rows")
    totals = rows.rebalance().stateful(Totals(), key=["user"], uid="totals", output_schema=RUNNING)
    totals.sink(OutputTable("given"))
    totals.sink(ParquetSink(folder / "out"), uid="files")
    return job


def compare(folder: Path) -> str | None:
    """Return what is wrong with the results, None if nothing is."""
    snapshot = arrowstate.open_store(folder / "store").latest()
    connection = duckdb.connect()
    connection.register("totals", snapshot.to_arrow("totals.total"))
    given = snapshot.operator_state("given", "rows").column("rows").combine_chunks()
    connection.register("given", pa.Table.from_arrays(given.flatten(), names=["user", "n", "total"]))
    connection.execute(f"create view files as from read_parquet('{folder}/out/*.parquet')")
    connection.execute(f"create view input as from read_parquet('{folder}/in/*.parquet')")
    state = connection.execute(
        'select count(*) from (select "user", sum(amount)::bigint t from input group by all) a '
        'full join totals b on a."user" = b."user" where t is distinct from b.total'
    ).fetchone()
    if state != (0,):
        return f"{state} keys differ in the state"
    for table in ("given", "files"):
        found = connection.execute(
            f"select (select count(*) from {table}), (select count(distinct n) from {table}), "
            "(select count(*) from input)"
        ).fetchone()
        if found is None or len(set(found)) != 1:
            return f"{table}: rows, different rows and rows expected are {found}"
    return None


def run_rounds(folder: Path, rounds: int, seed: int) -> tuple[int, int]:
    """Run the job with kills; return how many slots and how many whole jobs were killed."""
    chance = random.Random(seed)
    if not (folder / "in").exists():
        make_files(folder / "in")
    slots = whole = 0
    for number in range(rounds):
        child = started(folder, chance.choice([1, 2, 3]))
        if number % 2:
            time.sleep(chance.uniform(0.1, 1.0))
            child.kill()
            whole += 1
        else:
            for _ in range(2):
                time.sleep(chance.uniform(0.1, 0.8))
                workers = workers_of(child.pid)
                if workers:
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    slots += 1
            time.sleep(chance.uniform(0.0, 0.3))
            child.kill()
        child.wait()
    return slots, whole


def started(folder: Path, parallelism: int) -> subprocess.Popen[str]:
    """Start the job in a process of its own, and return once it runs."""
    command = [sys.executable, __file__, str(folder), "--child", str(parallelism)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def workers_of(process: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        lines = [
            int(item)
            for task in Path(f"/proc/{process}/task").iterdir()
            for item in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return lines


def main() -> int:
    """Run rounds, or the job of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=int)
    arguments = parser.parse_args()
    if arguments.child is not None:
        running = make_job(arguments.folder, arguments.child).start()
        print("started", flush=True)
        running.wait()
        return 0
    problems = slots = whole = done = 0
    while done < arguments.rounds:
        place = arguments.folder / f"{done}"
        few = min(8, arguments.rounds - done)
        killed = run_rounds(place, few, arguments.seed + done)
        slots, whole, done = slots + killed[0], whole + killed[1], done + few
        make_job(place, 2).run()
        problem = compare(place)
        if problem is not None:
            problems += 1
            print(f"{place}: {problem}")
        print(f"{done} rounds, {slots} slots and {whole} jobs killed, {problems} problems", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
