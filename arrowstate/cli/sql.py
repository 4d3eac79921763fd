"""Queries over a checkpoint, from an argument, a file or a pipe, and where their results go."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import IO, Any, Protocol, cast

import pyarrow as pa

from arrowstate.cli.formats import Format, format_of
from arrowstate.cli.listing import open_checkpoint
from arrowstate.cli.output import print_table, say
from arrowstate.cli.places import catalog_of
from arrowstate.cli.results import as_text, new_file, write_binary, write_text
from arrowstate.cli.running_queries import interruptible
from arrowstate.cli.scripts import PIPE, text_of
from arrowstate.discovery import StateCatalog
from arrowstate.errors import InvalidInputError
from arrowstate.query.row_text import rows_of
from arrowstate.store import Snapshot, open_store

_MOST_ROWS = 1000
"""A table for people to read is cut here."""

_BATCH_ROWS = 10_000


def run(options: argparse.Namespace) -> int:
    """Run the queries and print their results."""
    format, queries = asked_of(options)
    with opened(options) as snapshot:
        for query in queries:
            interruptible(partial(show, snapshot, query, format, options.output, expired=options.expired))
    return 0


def asked_of(options: argparse.Namespace) -> tuple[Format | None, list[str]]:
    """Return the format and the queries that the options ask for, which fit each other."""
    format = format_asked(options)
    queries = queries_of(options)
    if options.output is not None and len(queries) > 1:
        raise InvalidInputError(f"--output has room for the result of one query, got {len(queries)}")
    if format in ("parquet", "arrow") and options.output is None and sys.stdout.isatty():
        raise InvalidInputError(f"{format} is no text for a terminal; give --output FILE, or a pipe")
    return format, queries


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Snapshot | StateCatalog]:
    """Give the checkpoint that the options name, held by a lease if that is asked for; or all below a folder."""
    if (catalog := catalog_of(options)) is not None:
        yield catalog
        return
    if not options.lease:
        yield open_checkpoint(options, options.validate)
        return
    store = open_store(options.store, validate=options.validate)
    with store.lease(options.checkpoint, holder="arrowstate sql") as lease:
        yield lease.snapshot


def format_asked(options: argparse.Namespace) -> Format | None:
    """Return the format of what is printed, None for tables."""
    given = [name for name in ("json", "csv") if getattr(options, name)]
    given += [options.format] if options.format is not None else []
    if len(set(given)) > 1:
        named = [f"--{name}" if getattr(options, name, False) is True else f"--format {name}" for name in given]
        raise InvalidInputError(f"{' and '.join(named)} exclude each other; choose one")
    if given:
        return None if given[0] == "table" else cast("Format", given[0])
    return None if options.output is None else format_of(options.output, None)


def queries_of(options: argparse.Namespace) -> list[str]:
    """Return the queries that the options give, or those of the pipe."""
    if options.query is not None and options.file is not None:
        raise InvalidInputError("a query and --file exclude each other; choose one")
    if options.query is not None:
        return [options.query]
    place = PIPE if options.file is None else options.file
    queries = statements_of(text_of(place))
    if not queries:
        named = "the pipe" if place == PIPE else place
        raise InvalidInputError(f"there is no query in {named}; give one, or --file FILE")
    return queries


def statements_of(text: str) -> list[str]:
    """Return the statements of a text; InvalidInputError if it is no SQL."""
    from arrowstate.query.duckdb import preparing

    return [statement.query for statement in preparing.statements_of(text)]


class Queried(Protocol):
    """What queries are put to."""

    def sql(self, query: str, *, expired: bool = False) -> Any:
        """Run a query."""
        ...


def show(snapshot: Queried, query: str, format: Format | None, output: str | None, *, expired: bool = False) -> None:
    """Run a query, and print its result or write it to a file; as a table where no format is given."""
    import duckdb

    try:
        reader = snapshot.sql(query, expired=expired).to_arrow_reader(_BATCH_ROWS)
        if output is not None:
            with new_file(output) as file:
                _write(reader, format, file)
        elif format is None:
            _print_rows(reader)
        elif format in ("parquet", "arrow"):
            write_binary(reader, format, sys.stdout.buffer)
        else:
            write_text(reader, format, sys.stdout)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise InvalidInputError(str(error)) from error


def _write(reader: pa.RecordBatchReader, format: Format | None, file: IO[bytes]) -> None:
    if format is not None:
        write_binary(reader, format, file)
        return
    with as_text(file) as text, redirect_stdout(text):
        _print_rows(reader)


def _print_rows(reader: pa.RecordBatchReader) -> None:
    rows = rows_of(reader)
    shown = list(itertools.islice(rows, _MOST_ROWS))
    print_table(reader.schema.names, shown)
    if next(rows, None) is not None:
        say(f"the first {_MOST_ROWS} rows; --csv or --json print all")
