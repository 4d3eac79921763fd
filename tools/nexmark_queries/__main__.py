"""Make events, run the queries over them, compare their results with DuckDB's, and print a table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.runtime_peers import python_with
from nexmark_queries.beside_flink import BLOCK, EVENTS_UNIT, Beside, figures, write_parts
from nexmark_queries.events import Config, write_files
from nexmark_queries.on_runtime import NOT_HERE, run_job
from nexmark_queries.queries import Query, all_queries
from nexmark_queries.running import read_store, run_query, seconds, verify
from nexmark_queries.truth import Truth, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELAY_MS = 4_000
"""By how much the watermark is behind, as in nexmark-flink."""


def main(argv: Sequence[str]) -> int:
    """Return 0 if every result is right, else 1."""
    options = _options(argv)
    chosen = [query for name, query in all_queries(period_ms=options.period_ms).items() if name in options.queries]
    # In a file a line of the table is a line.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arrowstate-nexmark-")))
        folder.mkdir(parents=True, exist_ok=True)
        if options.engine == "flink":
            python = python_with("pyflink", options.flink, folder)
            return 0 if python is not None and run_beside(chosen, folder, python, options, console) else 1
        spark = None
        if "spark" in options.engines:
            spark = _session(folder, options.parallelism)
            stack.callback(spark.stop)
        right = run_all(spark, chosen, folder, options, console, options.engines)
        if options.folder is not None:
            where = f"{folder}/runtime" if spark is None else str(folder)
            console.print(f"The store of each query is {where}/QUERY/store: arrowstate show {where}/q4/store")
    return 0 if right else 1


def run_all(
    spark: SparkSession | None,
    queries: Sequence[Query],
    folder: Path,
    options: argparse.Namespace,
    console: Console,
    engines: Sequence[str] = ("spark",),
) -> bool:
    """Make the events, run queries, and print their table; return whether every result is right."""
    say = _teller(console)
    per_file = -(-options.events // options.files)
    files = _written(folder, options, options.files, per_file)
    say(f"{per_file * options.files:,} events in {options.files} files, {_megabytes(files)} MB, one per micro-batch")
    truth = Truth(files, delay_ms=DELAY_MS)
    table = _table()
    right = True
    for query in queries:
        for engine in engines:
            if engine == "runtime" and query.name in NOT_HERE:
                continue
            place = folder / query.name if engine == "spark" else folder / engine / query.name
            if engine == "spark":
                assert spark is not None
                rate = _on_spark(spark, query, folder / "events", place, per_file, options.parallelism)
            else:
                took, _ = run_job(query, folder / "events", place, delay_ms=DELAY_MS, parallelism=options.parallelism)
                rate = per_file * options.files / took
            kept = read_store(place)
            if engine == "spark":
                verdict = verify(query, truth, place, kept.output)
            else:
                verdict = truth.compare_at_end(query, kept.output)
            right &= verdict.is_right
            shown = "" if rate is None else f"{rate:,.0f}"
            rows = f"{kept.state_rows:,}", f"{verdict.rows:,}"
            table.add_row(query.name, query.title, engine, shown, *rows, _said(verdict))
            say(f"{query.name} on {engine}: {query.title}")
    console.print(table)
    return right


def run_beside(
    queries: Sequence[Query], folder: Path, python: Path, options: argparse.Namespace, console: Console
) -> bool:
    """Make the events, run queries on the runtime and on Flink by turns, and print the table of both.

    Returns whether every result of each round is right.
    """
    say = _teller(console)
    events = -(-options.events // EVENTS_UNIT) * EVENTS_UNIT
    files = _written(folder, options, 1, events)
    truth = Truth(files, delay_ms=DELAY_MS)
    columns = ("query", "slots", "events/s", "Flink", "times", "of a core", "Flink", "times", "result")
    table = Table(*columns, title="Nexmark beside Flink's SQL, from the same files of JSON", title_justify="left")
    right = True
    for slots in options.slots:
        parts = write_parts(folder / "json", files, events=events, slots=slots)
        read = sorted(parts.all.iterdir())
        say(f"{events:,} events in {len(read)} files of JSON, {_megabytes(read)} MB, one per slot")
        for query in queries:
            if query.name in NOT_HERE:
                continue
            beside = Beside(query, parts, folder / f"{query.name}-{slots}", truth, DELAY_MS, python)
            found = figures(*beside.run(options.rounds))
            wrong = [
                f"{who}: {_said(verdict)}"
                for who, verdicts in beside.verdicts.items()
                for verdict in verdicts
                if not verdict.is_right
            ]
            right &= not wrong
            shown = [f"{value:,.2f}" if place % 3 == 2 else f"{value:,.0f}" for place, value in enumerate(found)]
            # A quarter takes as long as all where there are few events, or others on the machine.
            shown = shown if min(found) > 0 else ["too few"] * len(found)
            table.add_row(query.name, str(slots), *shown, wrong[0] if wrong else "[green]both as DuckDB[/]")
            # A run takes long, so nobody should have to wait for the table.
            say(f"{query.name}, slots: {slots}, rounds: {options.rounds}: {'  '.join(shown)}")
    console.print(table)
    return right


def _teller(console: Console) -> Callable[[str], None]:
    started = time.monotonic()
    return lambda text: console.print(f"[dim]{time.monotonic() - started:6.1f} s[/]  {text}", soft_wrap=True)


def _written(folder: Path, options: argparse.Namespace, files: int, per_file: int) -> list[Path]:
    config = Config(options.rate, options.seed, out_of_order_group=options.out_of_order)
    return write_files(folder / "events", config, files=files, events_per_file=per_file)


def _megabytes(files: Sequence[Path]) -> str:
    return f"{sum(file.stat().st_size for file in files) / 1e6:.0f}"


def _on_spark(
    spark: SparkSession, query: Query, events: Path, place: Path, per_file: int, parallelism: int
) -> float | None:
    """Run a query, and return the events per second; None where there was one micro-batch."""
    running = run_query(spark, query, events, place, delay_ms=DELAY_MS, parallelism=parallelism)
    # In the first micro-batch workers start and code is compiled or loaded.
    timed = seconds(running)[1:]
    return per_file * len(timed) / sum(timed) if timed else None


def _said(verdict: Verdict) -> str:
    if verdict.is_right:
        return "[green]as DuckDB[/]"
    return f"[bold red]{verdict.missing} missing, {verdict.wrong} wrong[/]"


def _options(argv: Sequence[str]) -> argparse.Namespace:
    known = list(all_queries())
    parser = argparse.ArgumentParser(prog="tools/nexmark", description=__doc__)
    names = ",".join(known)
    parser.add_argument("--events", type=int, default=1_000_000, help="how many (default 1,000,000)")
    parser.add_argument("--files", type=int, default=10, help="files, each a micro-batch (default 10)")
    parser.add_argument(
        "--queries", type=lambda text: text.split(","), default=known, help=f"some of them (default {names})"
    )
    parser.add_argument("--rate", type=int, default=10_000, help="events per second of event time (default 10,000)")
    parser.add_argument(
        "--out-of-order", type=int, default=1, help="events in a group that comes in shuffled order (default 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument(
        "--period-ms",
        type=int,
        default=2_000,
        help="processing time of q12's periods (default 2,000; Nexmark has 10,000, which a short run never ends)",
    )
    parser.add_argument("--parallelism", type=int, default=2, help="subtasks, and cores of Spark (default 2)")
    parser.add_argument(
        "--engine",
        choices=("spark", "runtime", "both", "flink"),
        default="spark",
        help="what runs them: Spark (default), arrowstate.runtime, or one after the other; with `flink` "
        "arrowstate.runtime and Flink's SQL by turns",
    )
    parser.add_argument(
        "--slots",
        type=lambda text: [int(count) for count in text.split(",")],
        default=[1, 2],
        help="with --engine flink: how many slots, one after the other (default 1,2)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="with --engine flink: whose median counts (default 3)")
    parser.add_argument(
        "--flink", type=Path, metavar="PYTHON", help="a Python that has apache-flink 2.3; made if not given"
    )
    parser.add_argument("--folder", type=Path, help="where events and stores stay; by default nothing stays")
    options = parser.parse_args(argv)
    unknown = [name for name in options.queries if name not in known]
    if unknown:
        parser.error(f"no query named {', '.join(unknown)}; there is {', '.join(known)}")
    options.engines = ("spark", "runtime") if options.engine == "both" else (options.engine,)
    if options.engine in ("runtime", "flink") and set(options.queries) <= set(NOT_HERE):
        parser.error(f"--queries {','.join(options.queries)} go by processing time, which only Spark logs; name others")
    for name in ("events", "files", "rate", "out_of_order", "period_ms", "parallelism", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if min(options.slots) < 1:
        parser.error(f"--slots must be at least 1, got {min(options.slots)}")
    if options.engine == "flink" and "q18" in options.queries and not _keeps_order(options):
        parser.error(
            "of bids at the same time Flink's q18 keeps the one that comes last: it needs --rate 1000 or less, or "
            f"--out-of-order 1 and a rate that divides {BLOCK * 1000:,}; leave it out with --queries, or name these"
        )
    if options.out_of_order * 1000 >= DELAY_MS * options.rate or options.out_of_order % 953 == 0:
        parser.error(
            f"--out-of-order must be below {DELAY_MS * options.rate // 1000}, so that no event is more than "
            f"{DELAY_MS} ms late, and no multiple of 953; got {options.out_of_order}"
        )
    if options.folder is not None and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"--folder must be new or empty, {options.folder} holds files; name another one")
    return options


def _keeps_order(options: argparse.Namespace) -> bool:
    """Whether events at the same time, if there are any, come in their order and in one file."""
    apart = options.rate <= 1000
    return apart or (options.out_of_order == 1 and BLOCK * 1000 % options.rate == 0)


def _session(folder: Path, cores: int) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("arrowstate-nexmark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _table() -> Table:
    table = Table(title="Nexmark", title_justify="left")
    for column in ("query", "", "on", "events/s", "state rows", "result rows", "result"):
        table.add_column(column, justify="right" if column in ("events/s", "state rows", "result rows") else "left")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
