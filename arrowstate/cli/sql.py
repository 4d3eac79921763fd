"""`arrowstate sql`: a query over a checkpoint, as a table, JSON or CSV."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.cli.listing import open_checkpoint
from arrowstate.cli.output import plain, print_table, say
from arrowstate.errors import InvalidInputError
from arrowstate.query.duckdb.sql_types import recast
from arrowstate.store import Snapshot, open_store

__all__ = ["run"]

_MOST_ROWS = 1000
"""A table for people to read is cut here."""

_BATCH_ROWS = 10_000


def run(options: argparse.Namespace) -> int:
    """Run the query and print its result."""
    if options.json and options.csv:
        raise InvalidInputError("--json and --csv exclude each other; choose one")
    if not options.lease:
        return _print(open_checkpoint(options, options.validate), options)
    with open_store(options.store, validate=options.validate).lease(
        options.checkpoint, holder="arrowstate sql"
    ) as lease:
        return _print(lease.snapshot, options)


def _print(snapshot: Snapshot, options: argparse.Namespace) -> int:
    import duckdb

    try:
        reader = snapshot.sql(options.query, expired=options.expired).to_arrow_reader(_BATCH_ROWS)
        names = reader.schema.names
        rows = _rows(reader)
        if options.json:
            _print_json(names, rows)
        elif options.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(tuple(_csv_cell(value) for value in row) for row in rows)
        else:
            shown = list(itertools.islice(rows, _MOST_ROWS))
            print_table(names, shown)
            if next(rows, None) is not None:
                say(f"the first {_MOST_ROWS} rows; --csv or --json print all")
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise InvalidInputError(str(error)) from error
    return 0


def _rows(reader: pa.RecordBatchReader) -> Iterator[tuple[Any, ...]]:
    for batch in reader:
        yield from zip(*(_values(column) for column in batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    _, convert = recast(column.type, _as_text)
    return (column if convert is None else convert(column)).to_pylist()


def _as_text(kind: pa.DataType, is_map_key: bool) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]] | None:
    """Turn nanoseconds into text: Python's own types end at microseconds."""
    del is_map_key
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns":
        return pa.string(), lambda array: pc.cast(array, pa.string())
    return None


def _print_json(names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """Print an array with one object per line."""
    print("[", end="")
    for number, row in enumerate(rows):
        text = json.dumps({name: plain(value) for name, value in zip(names, row, strict=True)}, ensure_ascii=False)
        print(",\n" if number else "\n", text, sep="", end="")
    print("\n]")


def _csv_cell(value: Any) -> Any:
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value
