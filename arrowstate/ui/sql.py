"""The page of SQL: a query, its result as a table, and as a file to keep."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from io import TextIOWrapper
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import SqlName, quoted, sql_names
from arrowstate.query.duckdb.about import ABOUT_TABLES
from arrowstate.query.duckdb.history import HISTORY_TABLES
from arrowstate.query.state import StateReader
from arrowstate.store import Snapshot
from arrowstate.ui.sandbox import opened
from arrowstate.ui.shown import plain
from arrowstate.ui.site import Ask

__all__ = ["form", "run", "written"]


def form(ask: Ask) -> dict[str, Any]:
    """Return what the form of the page offers: names to query, and a query to begin with."""
    snapshot = ask.snapshot()
    names = _names(snapshot)
    first = next((name["name"] for name in names if name["columns"]), "arrowstate.checkpoints")
    return {
        "checkpoint_id": snapshot.checkpoint_id,
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


def _names(snapshot: Snapshot) -> list[dict[str, Any]]:
    found = []
    for name in sql_names(snapshot.entry):
        text = f"{_word(name.schema)}.{_word(name.view)}"
        found.append({"name": text, "columns": _columns(snapshot, name)})
    return found


def _columns(snapshot: Snapshot, name: SqlName) -> list[str]:
    if name.is_operator_state:
        return []
    return [_word(column) for column in StateReader(snapshot.storage, snapshot.entry, name.uid, name.state).columns]


def _word(name: str) -> str:
    """Return a name as SQL takes it, in quotes where it needs them."""
    plain_name = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit() and name.islower()
    return name if plain_name and name not in ("user", "order", "group", "table", "end", "select") else quoted(name)


def run(ask: Ask) -> dict[str, Any]:
    """Return the first rows of a result, and what was read for it."""
    query = ask.text("q")
    if query is None:
        raise InvalidInputError("write a query")
    snapshot = ask.snapshot()
    limit = ask.site.limits.sql_rows
    rows: list[list[Any]] = []
    with opened(snapshot, query, ask.site.limits) as result:
        names = result.reader.schema.names
        types = [str(field.type) for field in result.reader.schema]
        for batch in result.reader:
            rows += _rows(batch.slice(0, limit + 1 - len(rows)))
            if len(rows) > limit:
                break
        seconds = result.seconds
    scans = [
        {key: value for key, value in asdict(scan).items() if key != "broken_off"} | {"columns": list(scan.columns)}
        for scan in result.scans
    ]
    return {
        "query": query,
        "checkpoint_id": snapshot.checkpoint_id,
        "checkpoint": ask.text("checkpoint"),
        "columns": names,
        "types": types,
        "rows": rows[:limit],
        "is_cut": len(rows) > limit,
        "seconds": seconds,
        "read": scans,
    }


def _rows(batch: pa.RecordBatch) -> list[list[Any]]:
    columns = [[plain(value) for value in _python(column)] for column in batch.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _python(column: pa.Array) -> list[Any]:
    """Return values; those that Python has no type for, such as nanoseconds, as text."""
    try:
        return column.to_pylist()
    except (ValueError, pa.ArrowException):
        return column.cast(pa.string()).to_pylist()


def written(ask: Ask, format: str) -> IO[bytes]:
    """Return a file with the whole result, as CSV or Parquet, from its beginning.

    Raises
    ------
    InvalidInputError
        If it has more rows than a page hands out.
    """
    query = ask.text("q")
    if query is None:
        raise InvalidInputError("write a query")
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed by who sends it)
    try:
        with opened(ask.snapshot(), query, ask.site.limits) as result:
            batches = _limited(result.reader, ask.site.limits.download_rows)
            (_write_parquet if format == "parquet" else _write_csv)(file, result.reader.schema, batches)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _limited(reader: pa.RecordBatchReader, most: int) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > most:
            raise InvalidInputError(
                f"the result has more than {most:,} rows; `arrowstate sql --csv` writes one of any size"
            )
        yield batch


def _write_parquet(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    text = TextIOWrapper(file, "utf-8", errors="replace", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(schema.names)
    for batch in batches:
        writer.writerows([_csv_cell(value) for value in row] for row in _rows(batch))
    text.detach()


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value
