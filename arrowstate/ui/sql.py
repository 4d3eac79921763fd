"""The page of SQL: a query, its result as a table, and as a file to keep."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from io import TextIOWrapper
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from arrowstate.clock import new_id
from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import SqlName, quoted, sql_names
from arrowstate.query.duckdb.about import ABOUT_TABLES
from arrowstate.query.duckdb.history import HISTORY_TABLES
from arrowstate.query.reader import SnapshotReader
from arrowstate.query.row_text import rows_of, with_durations, write_csv
from arrowstate.query.state import StateReader
from arrowstate.storage.local import LocalStorage
from arrowstate.storage.objects import ObjectStorage
from arrowstate.ui import processes
from arrowstate.ui.sandbox import opened
from arrowstate.ui.shown import Room, as_bytes, cells
from arrowstate.ui.site import Ask, Limits
from arrowstate.ui.work import Stop

_LARGEST_CSV_SLICE = 16_000_000


def form(ask: Ask) -> dict[str, Any]:
    """Return what the form of the page offers: names to query, and a query to begin with."""
    snapshot = ask.snapshot()
    names = _names(snapshot)
    first = next((name["name"] for name in names if name["columns"]), "arrowstate.checkpoints")
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "page": new_id(),
        "query": ask.text("q"),
        "example": f"select * from {first} limit 100",  # noqa: S608 (it is for a reader to change)
        "names": names,
        "tables": [*HISTORY_TABLES, *(f"arrowstate.{name}" for name in ABOUT_TABLES)],
        "functions": [
            "arrowstate.changes('operator.state', 41, 44)",
            "arrowstate.change_counts(41, 44)",
            "arrowstate.history('operator.state', 'key')",
            "at (version => 41)",
            "at (timestamp => now() - interval 1 day)",
        ],
    }


def _names(snapshot: SnapshotReader) -> list[dict[str, Any]]:
    return [{"name": name_of_table(name), "columns": _columns(snapshot, name)} for name in sql_names(snapshot.entry)]


def name_of_table(name: SqlName) -> str:
    """Return the table of a state as SQL takes it."""
    return f"{_word(name.schema)}.{_word(name.view)}"


def _columns(snapshot: SnapshotReader, name: SqlName) -> list[str]:
    if name.is_operator_state:
        return []
    return [_word(column) for column in StateReader(snapshot.storage, snapshot.entry, name.uid, name.state).columns]


def _word(name: str) -> str:
    """Return a name as SQL takes it, in quotes where it needs them."""
    plain_name = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit() and name.islower()
    return name if plain_name and name not in ("user", "order", "group", "table", "end", "select") else quoted(name)


def _asked(ask: Ask) -> str:
    query = ask.text("q")
    if query is None:
        raise InvalidInputError("write a query")
    return query


def run(ask: Ask, stop: Stop) -> dict[str, Any]:
    """Return the first rows of a result, and what was read for it."""
    query, snapshot = _asked(ask), ask.snapshot()
    return {
        "query": query,
        "checkpoint_id": snapshot.checkpoint_id,
        "checkpoint": ask.text("checkpoint"),
        **answered_rows(snapshot, query, ask.site.limits, stop),
    }


def answered_rows(snapshot: SnapshotReader, query: str, limits: Limits, stop: Stop) -> dict[str, Any]:
    """Return the first rows of the result of a query, and what was read for it."""
    with tempfile.TemporaryFile() as file:
        found: dict[str, Any] = _answered(_rows, snapshot, (query, limits), stop, file)
    return found


def written(ask: Ask, stop: Stop, format: str) -> IO[bytes]:
    """Return a file with the whole result, as CSV or Parquet, from its beginning."""
    query = _asked(ask)
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed by who sends it)
    try:
        _answered(_written, ask.snapshot(), (query, ask.site.limits, format), stop, file)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _answered(
    answer: Callable[..., Any], snapshot: SnapshotReader, asked: tuple[Any, ...], stop: Stop, file: IO[bytes]
) -> Any:
    """Have a query answered in a process of its own; a store that another process cannot open, in this one."""
    if not isinstance(snapshot.storage, (LocalStorage, ObjectStorage)):
        return answer(snapshot, *asked, stop, file)
    limits: Limits = asked[1]
    given = (answer, snapshot, snapshot.clock_ms(), asked)
    return processes.call(_in_child, given, seconds=limits.sql_seconds, stop=stop, file=file.fileno())


def _in_child(
    answer: Callable[..., Any], snapshot: SnapshotReader, now_ms: int, asked: tuple[Any, ...], file: int
) -> Any:
    snapshot.clock_ms = lambda: now_ms
    with open(file, "wb", closefd=False) as opened_file:
        return answer(snapshot, *asked, Stop(), opened_file)


def _rows(snapshot: SnapshotReader, query: str, limits: Limits, stop: Stop, _: IO[bytes]) -> dict[str, Any]:
    limit, room = limits.sql_rows, Room()
    rows: list[list[Any]] = []
    with opened(snapshot, query, limits, stop, most_rows=limit + 1) as result:
        for batch in result.slices:
            rows += cells(batch.slice(0, limit - len(rows)), room)
            if len(rows) == limit or room.left <= 0:
                break
    scans = [
        {key: value for key, value in asdict(scan).items() if key != "broken_off"} | {"columns": list(scan.columns)}
        for scan in result.scans
    ]
    return {
        "columns": result.schema.names,
        "types": [str(field.type) for field in result.schema],
        "rows": rows,
        "is_cut": result.rows > len(rows),
        "seconds": result.seconds,
        "read": scans,
    }


def _written(snapshot: SnapshotReader, query: str, limits: Limits, format: str, stop: Stop, file: IO[bytes]) -> None:
    with opened(snapshot, query, limits, stop, most_rows=limits.download_rows + 1) as result:
        if result.rows > limits.download_rows:
            raise _too_much(f"the result has more than {limits.download_rows:,} rows")
        write = _write_parquet if format == "parquet" else _write_csv
        write(file, result.schema, _within(result.slices, file, limits.download_bytes))


def _too_much(what: str) -> InvalidInputError:
    return InvalidInputError(f"{what}; `arrowstate sql --csv` writes one of any size")


def _within(slices: Iterator[pa.RecordBatch], file: IO[bytes], most: int) -> Iterator[pa.RecordBatch]:
    """Yield what is to be written to a file, as long as that has at most so many bytes."""
    for batch in slices:
        yield batch
        if file.tell() > most:
            raise _too_much(f"the result has more than {as_bytes(most)}")


def _write_parquet(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    # Parquet has no type for the intervals of SQL.
    reader = with_durations(pa.RecordBatchReader.from_batches(schema, batches))
    with pq.ParquetWriter(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def _write_csv(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    text = TextIOWrapper(file, "utf-8", errors="replace", newline="", write_through=True)
    write_csv(schema.names, rows_of(map(_small_enough, batches)), text)
    text.detach()


def _small_enough(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that are to be texts: those of one row that is large take many times their bytes as Python's."""
    if batch.nbytes > _LARGEST_CSV_SLICE:
        raise _too_much(f"a row of the result has {as_bytes(batch.nbytes)}, as Parquet it can be downloaded")
    return batch
