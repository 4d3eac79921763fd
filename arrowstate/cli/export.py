"""`arrowstate export`: a state, or some of its rows and columns, as a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from arrowstate.cli.formats import Format, format_of
from arrowstate.cli.listing import open_checkpoint
from arrowstate.cli.output import print_json, say
from arrowstate.cli.results import new_file, write_binary
from arrowstate.cli.running_queries import interruptible
from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.log.leases import held_while_read
from arrowstate.query.catalog import quoted, sql_names
from arrowstate.query.duckdb.preparing import expressions
from arrowstate.query.row_text import with_durations
from arrowstate.query.state import StateReader
from arrowstate.shown import bytes_text
from arrowstate.store import Snapshot

_BATCH_ROWS = 65_536


def export(options: argparse.Namespace) -> int:
    """Write a state to a file and print what it holds."""
    format = format_of(options.output, options.format)
    snapshot = open_checkpoint(options)
    with held_while_read(snapshot.storage, snapshot.entry, holder="arrowstate export", clock_ms=now_ms, new_id=new_id):
        rows = interruptible(partial(_write, snapshot, options, format))
    output = Path(options.output)
    # A pipe has no size.
    size = output.stat().st_size if output.is_file() else None
    if options.json:
        print_json(
            {
                "path": options.output,
                "format": format,
                "checkpoint_id": snapshot.checkpoint_id,
                "rows": rows,
                "bytes": size,
            }
        )
        return 0
    say(f"{rows} rows of {options.state} at checkpoint {snapshot.checkpoint_id} are in {options.output}")
    say(f"  {format}" if size is None else f"  {format}, {bytes_text(size)}")
    return 0


def _write(snapshot: Snapshot, options: argparse.Namespace, format: Format) -> int:
    # Before the file is made: what is asked for may not be there.
    batches = _batches(snapshot, options)
    try:
        with new_file(options.output) as file:
            return write_binary(batches, format, file)
    except pa.ArrowException as error:
        raise InvalidInputError(f"{options.state} cannot be written as {format}: {error}") from error


def _batches(snapshot: Snapshot, options: argparse.Namespace) -> pa.RecordBatchReader:
    """Return the rows that are asked for, in the types that the state has."""
    name = next((item for item in sql_names(snapshot.entry) if options.state == f"{item.uid}.{item.state}"), None)
    if name is not None and name.is_operator_state:
        elements = snapshot.operator_state(name.uid, name.state)
        schema = _fields(elements.schema, options.columns or elements.schema.names, options.state)
        if options.where is None:
            return elements.select(schema.names).to_reader()
        return _selected(snapshot, "elements", schema, options, {"elements": elements})
    state = snapshot[options.state]
    if options.expired:
        state = state.with_expired()
    reader = StateReader(snapshot.storage, snapshot.entry, state.operator, state.state)
    schema = _fields(reader.schema, options.columns or state.schema.names, options.state)
    if options.where is None:
        return pa.RecordBatchReader.from_batches(schema, state.to_batches(columns=schema.names))
    assert name is not None
    return _selected(snapshot, quoted(name.relation), schema, options, {})


def _fields(available: pa.Schema, names: Sequence[str], state: str) -> pa.Schema:
    for name in names:
        if name not in available.names:
            raise InvalidInputError(f"state {state} has no column {name!r}; it has {', '.join(available.names)}")
    return pa.schema([available.field(name) for name in names])


def _selected(
    snapshot: Snapshot, table: str, schema: pa.Schema, options: argparse.Namespace, tables: Mapping[str, pa.Table]
) -> pa.RecordBatchReader:
    """Return the rows of a table for which a condition is true, as SQL finds them, in the types of a schema."""
    # DuckDB hands on an interval of more than 292 years as another one, but not the number of its microseconds.
    spans = {field.name for field in schema if pa.types.is_duration(field.type) and field.type.unit != "ns"}
    columns = ", ".join(f"epoch_us({quoted(name)})" if name in spans else quoted(name) for name in schema.names)
    (condition,) = expressions({"--where": options.where})
    query = f"select {columns} from {table} where ({condition})"  # noqa: S608 (names are quoted, the condition parsed)
    try:
        found = snapshot.sql(query, tables=tables, expired=options.expired).to_arrow_reader(_BATCH_ROWS)
    except duckdb.Error as error:
        raise InvalidInputError(f"--where {options.where}: {error}") from error
    found = with_durations(found)
    between = [
        pa.field(name, pa.duration("us") if name in spans else kind)
        for name, kind in zip(schema.names, found.schema.types, strict=True)
    ]
    batches = (pa.RecordBatch.from_arrays(batch.columns, schema.names) for batch in found)
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(pa.schema(between)).cast(schema) for batch in batches))
