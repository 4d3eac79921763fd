"""The defaults of an Avro schema as the values that a decoder gives.

A schema is JSON, which has no bytes and no decimals: it says bytes as a text with a character for each, and of a record
only the fields whose own defaults it changes. fastavro puts what the schema says into its rows as it stands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from typing import Any

from arrowstate.errors import InvalidInputError

_JSON: dict[str, Any] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    # A text for what JSON has no number, such as NaN.
    "float": (int, float, str),
    "double": (int, float, str),
    "string": (str,),
    "bytes": (str,),
    "fixed": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}
"""As what JSON has the values of a type."""
_HIGHEST = {"int": 2**31 - 1, "long": 2**63 - 1}


def with_values(parsed: Any, named: Mapping[str, Any]) -> Any:
    """Return a schema that fastavro has parsed, whose defaults are changed to the values that they stand for.

    `named` has what the schema refers to, by name.

    Raises
    ------
    InvalidInputError
        If a default does not fit the type of its field.
    """
    found = []
    # A default is completed with those of other records, so none is changed before all are known.
    for field in (field for schema in (parsed, *named.values()) for field in _fields(schema)):
        try:
            found.append((field, _value(field["default"], field["type"], named)))
        except (ValueError, OverflowError) as error:
            raise InvalidInputError(
                f"the default of field {field['name']!r} does not fit its type: {error}; mend the Avro schema"
            ) from None
    for field, value in found:
        field["default"] = value
    return parsed


def _fields(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields with a default that a schema says, at any depth."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _fields(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if "default" in field:
                yield field
            yield from _fields(field["type"])
        for part in ("items", "values"):
            yield from _fields(schema.get(part))


def _value(given: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """Return the value of a type that JSON stands for; raises ValueError or OverflowError if it stands for none."""
    if isinstance(schema, list):
        return _value_of_union(given, schema, named)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if not isinstance(given, _JSON[kind]) or (isinstance(given, bool) and kind != "boolean"):
        raise ValueError(f"{given!r} is no {kind}")
    if kind == "record":
        return _value_of_record(given, schema, named)
    if kind == "array":
        return [_value(item, schema["items"], named) for item in given]
    if kind == "map":
        return {key: _value(item, schema["values"], named) for key, item in given.items()}
    if kind in ("bytes", "fixed"):
        return _value_of_bytes(given, schema)
    if kind in ("float", "double"):
        number = float(given)
        # Refuses a number that would be infinite.
        struct.pack("<f" if kind == "float" else "<d", number)
        if math.isinf(number) and not isinstance(given, str):
            raise ValueError(f"{given!r} is no {kind}")
        return number
    if kind in _HIGHEST and not -_HIGHEST[kind] - 1 <= given <= _HIGHEST[kind]:
        raise ValueError(f"{given} is no {kind}")
    if kind == "enum" and given not in schema["symbols"]:
        raise ValueError(f"{given!r} is none of {', '.join(schema['symbols'])}")
    return given


def _value_of_union(given: Any, branches: list[Any], named: Mapping[str, Any]) -> Any:
    reasons = []
    for branch in branches:
        try:
            return _value(given, branch, named)
        except (ValueError, OverflowError) as error:
            reasons.append(str(error))
    raise ValueError(" and ".join(reasons))


def _value_of_record(given: dict[str, Any], record: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with all its fields; those that are not given have their own defaults."""
    whole = {field["name"]: field["default"] for field in record["fields"] if "default" in field} | given
    for field in record["fields"]:
        if field["name"] not in whole:
            raise ValueError(f"{given!r} has no {field['name']!r}, a field of {record['name']!r} without a default")
    return {field["name"]: _value(whole[field["name"]], field["type"], named) for field in record["fields"]}


def _value_of_bytes(given: str, schema: Mapping[str, Any]) -> bytes | Decimal:
    """Return the bytes that a text stands for, or the decimal that these are."""
    found = given.encode("latin-1")
    if len(found) != schema.get("size", len(found)):
        raise ValueError(f"{given!r} has {len(found)} bytes and not {schema['size']}")
    if schema.get("logicalType") != "decimal":
        return found
    number, digits = int.from_bytes(found, "big", signed=True), schema["precision"]
    if abs(number) >= 10**digits:
        raise ValueError(f"{given!r} is {number}, a decimal of more than {digits} digits")
    return Decimal(number).scaleb(-schema.get("scale", 0), Context(prec=digits))
