"""SQL of a reader of the page: one query over a checkpoint, in a database of its own that reaches nothing else.

The settings are made in this order before the query is looked at, and the last one locks them. What is read of states
comes from our own datasets; files, the network, extensions and variables of Python are out of reach.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from arrowstate.query.state import StateReader
from arrowstate.storage.base import Storage
from arrowstate.store import Snapshot
from arrowstate.ui.site import Limits
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["Result", "opened"]

_BATCH_ROWS = 2_048
_THREADS = 2
_MOST_CHARACTERS = 100_000


@dataclass
class Result:
    """A query that runs."""

    reader: pa.RecordBatchReader
    scans: list[ScanStatistics]
    began: float

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began


@contextmanager
def opened(snapshot: Snapshot, query: str, limits: Limits) -> Iterator[Result]:
    """Run a query; it is broken off at the end of its time, and at the end of the block.

    Raises
    ------
    StateNotFoundError, InvalidInputError
        If DuckDB refuses it, or it is not one SELECT; or it took too long, too much memory, or wanted what a page may
        not have.
    """
    if len(query) > _MOST_CHARACTERS:
        raise InvalidInputError(f"the query has {len(query):,} characters, at most {_MOST_CHARACTERS:,} are taken")
    held: list[duckdb.DuckDBPyConnection] = []
    scans: list[ScanStatistics] = []
    late = threading.Event()
    began = time.monotonic()

    def begin(connection: duckdb.DuckDBPyConnection) -> None:
        _lock_up(connection, limits)
        held.append(connection)

    def stop() -> None:
        late.set()
        for connection in held:
            connection.interrupt()

    timer = threading.Timer(limits.sql_seconds, stop)
    timer.daemon = True
    timer.start()
    told = told_of_connection.set(begin)
    try:
        relation = _select(snapshot, query, scans)
        yield Result(relation.to_arrow_reader(_BATCH_ROWS), scans, began)
    except (duckdb.Error, pa.ArrowException, InvalidInputError) as error:
        if late.is_set():
            raise InvalidInputError(f"the query was stopped after {limits.sql_seconds:g} s") from error
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(str(error)) from error
    finally:
        told_of_connection.reset(told)
        timer.cancel()
        for connection in held:
            connection.interrupt()


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
        "lock_configuration = true",
    ):
        connection.execute(f"set global {setting}")


def _select(snapshot: Snapshot, query: str, scans: list[ScanStatistics]) -> duckdb.DuckDBPyRelation:
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
