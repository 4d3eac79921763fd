"""`arrowstate lookup` and `arrowstate history`: what a key is, and what it was."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from arrowstate.cli.listing import open_checkpoint
from arrowstate.cli.output import print_json, print_table
from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import resolve
from arrowstate.query.row_text import of_json, parsed, rows_of
from arrowstate.query.state import StateReader
from arrowstate.schema.types import CONVERSION_ERRORS, is_bytes, python_array
from arrowstate.shown import shown
from arrowstate.store import Snapshot


def look_up(options: argparse.Namespace) -> int:
    """Print the rows of some keys."""
    snapshot = open_checkpoint(options)
    return _print(snapshot.lookup(options.state, _keys(snapshot, options), expired=options.expired), options)


def history(options: argparse.Namespace) -> int:
    """Print what some keys were in each checkpoint that changed them."""
    snapshot = open_checkpoint(options)
    return _print(snapshot.history(options.state, _keys(snapshot, options)), options)


def _print(table: pa.Table, options: argparse.Namespace) -> int:
    names, rows = table.schema.names, list(rows_of(table.to_batches()))
    if options.json:
        print_json([shown(dict(zip(names, row, strict=True))) for row in rows])
    else:
        print_table(names, rows)
    return 0


def _keys(snapshot: Snapshot, options: argparse.Namespace) -> pa.RecordBatch:
    schema = StateReader(snapshot.storage, snapshot.entry, *resolve(snapshot.entry, options.state)).layout.key
    return keys_of(options.keys, schema)


def keys_of(texts: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Return keys that were given as texts, bytes by their digits; as JSON if nested or of several columns."""
    rows = [_key(text, schema) for text in texts]
    columns = [_column([row[field.name] for row in rows], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if is_bytes(field.type):
        return _of_digits(values, field)
    if pa.types.is_nested(field.type):
        return _of_json(values, field)
    try:
        return python_array(values, field.type)
    except (*CONVERSION_ERRORS, ArithmeticError):
        return _cast(values, field)


def _of_digits(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return bytes, which are given as `shown` writes them."""
    try:
        return python_array([None if value is None else bytes.fromhex(value) for value in values], field.type)
    except (*CONVERSION_ERRORS, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"the key column {field.name} is {field.type}: give its bytes as hexadecimal digits, such as 00ff, got "
            f"{', '.join(map(str, values))}"
        ) from error


def _of_json(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return python_array([of_json(value, field.type) for value in values], field.type)
    except (*CONVERSION_ERRORS, ArithmeticError, ValueError, TypeError, AttributeError) as error:
        raise _no_nested_key(field, ", ".join(json.dumps(value, ensure_ascii=False) for value in values)) from error


def _no_nested_key(field: pa.Field, given: str) -> InvalidInputError:
    example = json.dumps(_example(field.type))
    return InvalidInputError(f"the key column {field.name} is {field.type}; give it as JSON, {example}, got {given}")


def _example(kind: pa.DataType) -> Any:
    """Return what JSON of a type looks like."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    return [_example(kind.value_type)] if pa.types.is_nested(kind) else "..."


def _cast(values: Sequence[Any], field: pa.Field) -> pa.Array:
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    try:
        return parsed(texts, field.type)
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise InvalidInputError(f"the key column {field.name} is {field.type}, got {', '.join(texts)}") from error


def _key(text: str, schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of a key: the text where there is one column, its JSON if nested, else a JSON object's."""
    if len(schema) == 1:
        field = schema.field(0)
        return {field.name: _nested(text, field) if pa.types.is_nested(field.type) else text}
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict) or set(given) != set(schema.names):
        example = json.dumps({field.name: _example(field.type) for field in schema})
        raise InvalidInputError(f"the key has the columns {', '.join(schema.names)}; give it as {example}, got {text}")
    return given


def _nested(text: str, field: pa.Field) -> Any:
    """Return the JSON of a column; an object may have the column's name around it, as `lookup` prints a row."""
    try:
        given = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise _no_nested_key(field, text) from None
    is_around = isinstance(given, dict) and set(given) == {field.name}
    if is_around and not (pa.types.is_struct(field.type) and [part.name for part in field.type] == [field.name]):
        return given[field.name]
    return given
