"""The values of keys for programs: `GET /state/<operator>/<state>/<key>`, and POST for many keys at once.

Answers come from a follower of the store, so they are of the newest checkpoint, and a header says which and how old.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.query.row_text import rows_of
from arrowstate.query.state import StateReader
from arrowstate.ui import shown
from arrowstate.ui.keys import key_of, keys_of
from arrowstate.ui.site import Answer, Follower
from arrowstate_formats.run_files import checksum

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Found:
    """What is sent back."""

    body: bytes
    media_type: str
    rows: int
    headers: dict[str, str]


def by_path(follower: Follower, parts: Sequence[bytes], media_type: str, most_bytes: int) -> Found:
    """Return the rows of the key whose columns are the parts of a path after operator and state.

    The parts are those that were sent, so that a slash in a key is told from one between its columns.
    """
    operator, state, *texts = (unquote(part.decode("ascii")) for part in parts)
    return _found(follower, (operator, state), lambda schema: key_of(texts, schema), media_type, most_bytes)


def by_body(
    follower: Follower, state: tuple[str, str], body: bytes, sent: str, media_type: str, most_keys: int, most_bytes: int
) -> Found:
    """Return the rows of the keys of a body: an Arrow stream of their columns, or JSON of an array of keys."""

    def keys(schema: pa.Schema) -> pa.RecordBatch:
        given = _of_arrow(body, schema) if sent == ARROW else _of_json(body, schema)
        if given.num_rows > most_keys:
            raise InvalidInputError(f"at most {most_keys:,} keys are looked up at once, got {given.num_rows:,}")
        return given

    return _found(follower, state, keys, media_type, most_bytes)


def _found(
    follower: Follower,
    state: tuple[str, str],
    keys: Callable[[pa.Schema], pa.RecordBatch],
    media_type: str,
    most_bytes: int,
) -> Found:
    snapshot = follower.snapshot
    if state[1] not in snapshot.operators.get(state[0], ()):
        raise StateNotFoundError(".".join(state), snapshot.states())
    schema = StateReader(snapshot.storage, snapshot.entry, *state).layout.key
    answer = follower.lookup(state, keys(schema))
    if answer.value.nbytes > most_bytes:
        raise InvalidInputError(
            f"the rows have {answer.value.nbytes:,} bytes, and an answer at most {most_bytes:,}; ask for fewer keys"
        )
    return _written(answer, media_type)


def _written(answer: Answer, media_type: str) -> Found:
    table = answer.value
    if media_type == ARROW:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue()
    else:
        names = table.schema.names
        body = shown.to_json([dict(zip(names, row, strict=True)) for row in rows_of(table.to_batches())])
    headers = {
        "Arrowstate-Checkpoint": str(answer.checkpoint_id),
        "Arrowstate-Checkpoint-Age-Ms": str(answer.age_ms),
        # Of the rows alone: a checkpoint that did not change them is no other answer.
        "ETag": f'"{checksum(body)}"',
    }
    return Found(body, media_type, table.num_rows, headers)


def media_type_of(accept: str) -> str | None:
    """Return in which form an `Accept` header wants the rows, JSON unless it says Arrow first; None if in neither."""
    for wanted in accept.split(",") if accept else ["*/*"]:
        name = wanted.partition(";")[0].strip().lower()
        if name == ARROW:
            return ARROW
        if name in (JSON, "*/*", "application/*"):
            return JSON
    return None


def _of_arrow(body: bytes, schema: pa.Schema) -> pa.RecordBatch:
    try:
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidInputError(f"the body is no Arrow stream: {error}") from error
    if set(schema.names) - set(table.column_names):
        raise InvalidInputError(f"the keys must have the columns {', '.join(schema.names)}, got {table.column_names}")
    rows = table.select(schema.names).combine_chunks().to_batches()
    return rows[0] if rows else pa.RecordBatch.from_pylist([], table.select(schema.names).schema)


def _of_json(body: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return keys of JSON: an array of values, or of objects where a key has several columns."""
    try:
        given = _KEYS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"the body must be a JSON array of keys: {error}") from error
    names = schema.names
    are_objects = all(isinstance(key, dict) and set(key) == set(names) for key in given)
    if len(names) > 1 and not are_objects:
        raise InvalidInputError(f"each key must be an object with {', '.join(names)}")
    columns = [[key[name] for key in given] for name in names] if are_objects else [given]
    return keys_of(
        [[_text(value, item) for value in column] for column, item in zip(columns, schema, strict=True)], schema
    )


_KEYS = msgspec.json.Decoder(list[Any], float_hook=Decimal)
"""A number has all the digits that were sent."""


def _text(value: Any, column: pa.Field) -> str:
    if value is None or (isinstance(value, dict | list) and not pa.types.is_nested(column.type)):
        given = "null" if value is None else "an array or an object"
        raise InvalidInputError(f"the key column {column.name} is {column.type}, got {given}")
    return str(value) if isinstance(value, str | Decimal) else msgspec.json.encode(value).decode()
