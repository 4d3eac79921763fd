"""Types of PostgreSQL as types of Arrow, and values that came as PostgreSQL's text.

A type that Arrow has not stays text: what PostgreSQL writes it can read again, so nothing is lost. A value that its
Arrow type cannot hold, such as the date `infinity`, is an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from psycopg import Connection

SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Settings of a session that gives values as they are read here, all rows, however long it takes."""

_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.uint32(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_LOOK = """
select t.typname, t.typnamespace = 'pg_catalog'::regnamespace, t.typtype = 'd', t.typbasetype, t.typtypmod, e.oid,
    e.typdelim from pg_type t left join pg_type e on e.typarray = t.oid where t.oid = %s
"""
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def arrow_type(connection: Connection[Any], oid: int, modifier: int) -> pa.DataType:
    """Return the Arrow type of a type of PostgreSQL, which is known by its number and its modifier."""
    found = connection.execute(_LOOK, (oid,)).fetchone()
    assert found is not None
    name, is_own, is_domain, base, base_modifier, element, delimiter = found
    if is_domain:
        return arrow_type(connection, base, base_modifier if modifier == -1 else modifier)
    if element is not None and delimiter == ",":
        return pa.list_(arrow_type(connection, element, modifier))
    if not is_own:
        return pa.string()
    return _numeric(modifier) if name == "numeric" else _TYPES.get(name, pa.string())


def _numeric(modifier: int) -> pa.DataType:
    """Return a decimal where the column says how many digits there are."""
    digits, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if modifier == -1 or not 0 <= scale <= digits <= 76:
        return pa.string()
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def from_text(texts: pa.StringArray, type: pa.DataType) -> pa.Array:
    """Return values of a type from PostgreSQL's text; what does not fit is an `ArrowInvalid`."""
    if pa.types.is_string(type):
        return texts
    if pa.types.is_boolean(type):
        return pc.equal(texts, "t")
    if pa.types.is_binary(type):
        return _from_hex(texts)
    if pa.types.is_list(type):
        return _from_arrays(texts, type)
    if pa.types.is_timestamp(type) and type.tz is not None:
        texts = pc.replace_substring_regex(texts, r"\+00$", "Z")
    if pa.types.is_time(type):
        # Arrow reads a time as a part of a timestamp only.
        return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp("us")).cast(type)
    return texts.cast(type)


def _from_hex(texts: pa.StringArray) -> pa.Array:
    digits = pc.fill_null(pc.utf8_slice_codeunits(texts, 2), "")
    offsets = np.frombuffer(digits.buffers()[1], np.int32)[digits.offset : digits.offset + len(digits) + 1]
    text = digits.buffers()[2]
    data = b"" if text is None else bytes.fromhex(text.to_pybytes()[offsets[0] : offsets[-1]].decode("ascii"))
    starts = pa.py_buffer(((offsets - offsets[0]) // 2).astype(np.int32))
    made = pa.Array.from_buffers(pa.binary(), len(texts), [None, starts, pa.py_buffer(data)])
    return pc.if_else(texts.is_valid(), made, pa.scalar(None, pa.binary()))


def _from_arrays(texts: pa.StringArray, type: pa.ListType) -> pa.Array:
    """Return lists of arrays, which have one dimension and begin with 1."""
    for forbidden, problem in {r"^[^{]": "other bounds than from 1", r"^\{\{": "more than one dimension"}.items():
        if pc.any(pc.match_substring_regex(texts, forbidden)).as_py():
            raise pa.ArrowInvalid(f"an array has {problem}")
    if pc.any(pc.match_substring(texts, '"')).as_py():
        # Whoever has commas, blanks or nothing in an element has it quoted.
        read = [None if text is None else _elements(text) for text in texts.to_pylist()]
        lists = pa.array(read, pa.list_(pa.string()))
        values = lists.flatten()
    else:
        inner = pc.utf8_slice_codeunits(texts, 1, -1)
        lists = pc.if_else(pc.equal(inner, ""), pa.scalar([], pa.list_(pa.string())), pc.split_pattern(inner, ","))
        values = lists.flatten()
        values = pc.if_else(pc.equal(values, "NULL"), pa.scalar(None, pa.string()), values)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, from_text(values, type.value_type), type=type, mask=texts.is_null())


def _elements(text: str) -> list[str | None]:
    """Return the elements of an array some of which are quoted."""
    found = []
    for match in _ELEMENT.finditer(text, 1, len(text) - 1):
        quoted, plain = match.groups()
        found.append(_ESCAPED.sub(r"\1", quoted) if quoted is not None else None if plain == "NULL" else plain)
    return found
