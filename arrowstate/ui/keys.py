"""Keys as texts: what a form takes and an address holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.query.row_text import of_json, parsed
from arrowstate.schema.types import is_bytes, is_text, python_array
from arrowstate.shown import shown
from arrowstate.ui.shown import Cut

_LONGEST = 16_000
"""Characters of a key that an address holds."""


def text_of(value: Any) -> str:
    """Return a value of a key column as text; `key_of` reads it."""
    value = shown(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def key_texts(cells: Sequence[Any]) -> list[str] | None:
    """Return the columns of a key as texts, None if it is too long for an address."""
    if any(isinstance(cell, Cut) for cell in cells):
        return None
    texts = [text_of(cell) for cell in cells]
    return texts if sum(map(len, texts)) <= _LONGEST else None


def key_of(texts: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Return a key of which each column is given as a text."""
    if len(texts) != len(schema):
        raise InvalidInputError(f"the key has the columns {', '.join(schema.names)}, got {len(texts)} values")
    return keys_of([[text] for text in texts], schema)


def keys_of(columns: Sequence[Sequence[str]], schema: pa.Schema) -> pa.RecordBatch:
    """Return keys of which each column is given as texts."""
    arrays = [_column(texts, field) for texts, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(texts: Sequence[str], field: pa.Field) -> pa.Array:
    kind = field.type
    try:
        if is_text(kind):
            return pa.array(texts, kind)
        if is_bytes(kind):
            return pa.array([bytes.fromhex(text) for text in texts], kind)
        if pa.types.is_nested(kind):
            return python_array([of_json(json.loads(text), kind) for text in texts], kind)
        return parsed(texts, kind)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as error:
        given = texts[0][:100] if len(texts) == 1 else error
        raise InvalidInputError(f"the key column {field.name} is {kind}, got {given!r}") from error
