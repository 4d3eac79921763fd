"""SQL of a reader of the page: one query over a checkpoint, in a database of its own that reaches nothing else.

The settings are made in this order before the query is looked at, and the last one locks them. What is read of states
comes from our own datasets; files, the network, extensions and variables of Python are out of reach.

A result is put into a table of the database first, whose memory counts to that of the query, and then read in slices of
a size that fits: what is on its way out of DuckDB counts to nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import SqlName, history_names, sql_names
from arrowstate.query.duckdb.dataset import ScanStatistics, Source
from arrowstate.query.duckdb.engine import Database
from arrowstate.query.duckdb.selecting import select, told_of_connection
from arrowstate.query.duckdb.sources import sources_of
from arrowstate.query.duckdb.travel import OtherTables
from arrowstate.query.expiry import Seen
from arrowstate.query.reader import SnapshotReader
from arrowstate.query.state import StateReader
from arrowstate.storage.base import Storage
from arrowstate.ui.site import Limits
from arrowstate.ui.work import Stop
from arrowstate_formats.documents import LogEntryDocument

_RESULT = "result_of_the_page"
_SLICE_BYTES = 4_000_000
_SLICE_ROWS = 16_384
_THREADS = 2
_MOST_CHARACTERS = 100_000
_LONGEST_MADE = 10_000_000
"""Characters and elements that a function may make at once: DuckDB's limit does not count those of a constant."""
_SECONDS_BETWEEN_INTERRUPTS = 0.05


@dataclass
class Result:
    """The result of a query."""

    schema: pa.Schema
    rows: int
    slices: Iterator[pa.RecordBatch]
    "Each of few bytes, unless one row has more."
    scans: list[ScanStatistics]
    seconds: float


@contextmanager
def opened(snapshot: SnapshotReader, query: str, limits: Limits, stop: Stop, *, most_rows: int) -> Iterator[Result]:
    """Run a query; it is broken off at the end of its time, when it is stopped, and at the end of the block."""
    if len(query) > _MOST_CHARACTERS:
        raise InvalidInputError(f"the query has {len(query):,} characters, at most {_MOST_CHARACTERS:,} are taken")
    held: list[duckdb.DuckDBPyConnection] = []
    scans: list[ScanStatistics] = []
    is_over = threading.Event()
    began = time.monotonic()

    def begin(connection: duckdb.DuckDBPyConnection) -> None:
        _lock_up(connection, limits)
        held.append(connection)

    watch = threading.Thread(target=_watch, args=[held, stop, limits.sql_seconds, is_over], daemon=True)
    watch.start()
    told = told_of_connection.set(begin)
    try:
        relation = _select(snapshot, query, scans)
        _stop_if_asked(stop)
        relation.limit(most_rows).create(_RESULT)
        seconds = time.monotonic() - began
        yield _result(held[0], list(relation.columns), scans, seconds)
    except Exception as error:
        # What an interrupt makes of a query has the type of whatever it was at.
        _stop_if_asked(stop, error)
        if isinstance(error, (duckdb.Error, pa.ArrowException)):
            raise InvalidInputError(str(error)) from error
        raise
    finally:
        told_of_connection.reset(told)
        is_over.set()
        for connection in held:
            connection.interrupt()


def _watch(held: list[duckdb.DuckDBPyConnection], stop: Stop, seconds: float, is_over: threading.Event) -> None:
    """Interrupt a query when it is stopped, again and again: an interrupt that comes before it runs is forgotten."""
    if not stop.wait(seconds):
        stop(f"the query was stopped after {seconds:g} s")
    while not is_over.wait(_SECONDS_BETWEEN_INTERRUPTS):
        for connection in list(held):
            with suppress(duckdb.Error):
                connection.interrupt()


def _stop_if_asked(stop: Stop, error: Exception | None = None) -> None:
    if stop.reason is not None:
        raise InvalidInputError(stop.reason) from error


def _result(
    connection: duckdb.DuckDBPyConnection, names: list[str], scans: list[ScanStatistics], seconds: float
) -> Result:
    ((rows,),) = connection.sql(f"select count(*) from {_RESULT}").fetchall()  # noqa: S608 (the name is our own)

    def read(first: int, most: int) -> pa.Table:
        # The names of the table differ from those of the query where that names two columns alike.
        found = connection.sql(f"select * from {_RESULT} limit {most} offset {first}")  # noqa: S608 (as above)
        return found.to_arrow_table().rename_columns(names)

    def slices() -> Iterator[pa.RecordBatch]:
        first, most = 0, 1
        while first < rows:
            table = read(first, most)
            first += most
            each = max(1, table.nbytes // max(1, table.num_rows))
            most = max(1, min(4 * most, _SLICE_BYTES // each, _SLICE_ROWS))
            yield from table.to_batches()

    return Result(read(0, 0).schema, rows, slices(), scans, seconds)


def _lock_up(connection: duckdb.DuckDBPyConnection, limits: Limits) -> None:
    for setting in (
        "timezone = 'UTC'",
        "python_enable_replacements = false",
        f"memory_limit = '{limits.sql_memory}'",
        "max_temp_directory_size = '0MB'",
        f"threads = {_THREADS}",
        "allow_community_extensions = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "enable_external_access = false",
    ):
        connection.execute(f"set global {setting}")
    for name, arguments, size in _MAKERS:
        told = f"error('{name} may make at most {_LONGEST_MADE:,} characters or elements on the page')"
        # The check stands in the argument: what is constant is computed while the query is planned.
        checked = arguments.replace("b", f"case when {size} > {_LONGEST_MADE} then {told} else b end", 1)
        connection.execute(f"create macro {name}({arguments}) as system.main.{name}({checked})")
    connection.execute("set global lock_configuration = true")


_MAKERS = (
    ("repeat", "a, b", "strlen(a::varchar)::hugeint * b"),
    ("lpad", "a, b, c", "b"),
    ("rpad", "a, b, c", "b"),
)
"""Functions that make of a few characters as many as asked for: name, arguments, and what it makes."""


def _select(snapshot: SnapshotReader, query: str, scans: list[ScanStatistics]) -> duckdb.DuckDBPyRelation:
    storage, entry = snapshot.storage, snapshot.entry
    seen = Seen(snapshot.clock_ms(), False)
    return select(
        Database(_sources(storage, entry, seen)),
        query,
        None,
        seen=seen,
        on_scan=scans.append,
        names=lambda: [*sql_names(entry), *history_names()],
        checkpoint_id=snapshot.checkpoint_id,
        others=partial(OtherTables, storage, entry, partial(_sources, storage), seen),
    )


def _sources(storage: Storage, entry: LogEntryDocument, seen: Seen) -> Mapping[SqlName, Source]:
    readers: dict[tuple[str, str], Any] = {}

    def reader(uid: str, name: str) -> StateReader:
        if (uid, name) not in readers:
            readers[uid, name] = StateReader(storage, entry, uid, name)
        found: StateReader = readers[uid, name]
        return found

    return sources_of(storage, entry, reader, seen)
