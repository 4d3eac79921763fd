"""Arrow types as readable JSON, and back.

A flat type is a text such as `int64`, `timestamp[us, tz=UTC]` or `decimal128(10, 2)`; a nested type
is an object with `type` and its fields. Only types that every run file format can hold are accepted:
dictionary and run-end encodings are how values are laid out, not what they are, and unions,
list views and calendar intervals have no counterpart in Parquet. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import pyarrow as pa

from arrowstate_formats.errors import CorruptDataError, InvalidInputError

TypeJson: TypeAlias = str | dict[str, Any]
"""A type in a document: a text for a flat type, an object for a nested one."""

_FLAT: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32[s]": pa.time32("s"),
    "time32[ms]": pa.time32("ms"),
    "time64[us]": pa.time64("us"),
    "time64[ns]": pa.time64("ns"),
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"duration[{unit}]": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}
_NAMES = {arrow_type: name for name, arrow_type in _FLAT.items()}

_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]", re.DOTALL)
_FIXED_BINARY = re.compile(r"fixed_size_binary\[(\d{1,9})\]")
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d{1,2}), (-?\d{1,3})\)")
_PYARROW = int(pa.__version__.partition(".")[0])
"""The major version of PyArrow, on which some types depend."""
_DECIMALS = {"32": pa.decimal32, "64": pa.decimal64, "128": pa.decimal128, "256": pa.decimal256}


def type_to_json(arrow_type: pa.DataType) -> TypeJson:
    """Return the JSON form of a type; `type_from_json` gives the same type back.

    Field metadata is not kept.

    Raises
    ------
    InvalidInputError
        If the type, or one inside it, cannot be stored; the message names it and what would work.

    Examples
    --------
    >>> type_to_json(pa.timestamp("us", "UTC"))
    'timestamp[us, tz=UTC]'
    >>> type_to_json(pa.list_(pa.int8()))
    {'type': 'list', 'item': {'name': 'item', 'type': 'int8', 'nullable': True}}
    """
    name = _NAMES.get(arrow_type)
    if name is not None:
        return name
    types = pa.types
    if types.is_timestamp(arrow_type):
        return f"timestamp[{arrow_type.unit}, tz={arrow_type.tz}]"
    if types.is_fixed_size_binary(arrow_type):
        return f"fixed_size_binary[{arrow_type.byte_width}]"
    if types.is_decimal(arrow_type):
        _refuse_on_early_pyarrow(arrow_type)
        return f"decimal{arrow_type.bit_width}({arrow_type.precision}, {arrow_type.scale})"
    if types.is_struct(arrow_type):
        return {"type": "struct", "fields": _fields_to_json(arrow_type)}
    if types.is_list(arrow_type):
        return {"type": "list", "item": _field_to_json(arrow_type.value_field)}
    if types.is_large_list(arrow_type):
        return {"type": "large_list", "item": _field_to_json(arrow_type.value_field)}
    if types.is_fixed_size_list(arrow_type):
        return {
            "type": "fixed_size_list",
            "size": arrow_type.list_size,
            "item": _field_to_json(arrow_type.value_field),
        }
    if types.is_map(arrow_type):
        _refuse_on_early_pyarrow(arrow_type)
        return {
            "type": "map",
            "key": _field_to_json(arrow_type.key_field),
            "item": _field_to_json(arrow_type.item_field),
            "keys_sorted": arrow_type.keys_sorted,
        }
    raise InvalidInputError(f"the type {arrow_type} cannot be stored; {_remedy(arrow_type)}")


def _remedy(arrow_type: pa.DataType) -> str:
    if pa.types.is_dictionary(arrow_type):
        return f"use its value type {arrow_type.value_type}"
    if pa.types.is_run_end_encoded(arrow_type):
        return f"use its value type {arrow_type.value_type}"
    if isinstance(arrow_type, pa.BaseExtensionType):
        return f"use its storage type {arrow_type.storage_type}"
    if isinstance(arrow_type, (pa.ListViewType, pa.LargeListViewType)):
        return "use list or large_list"
    return "unions and calendar intervals have no stored form, use a struct"


def _fields_to_json(struct: pa.StructType) -> list[dict[str, Any]]:
    names = [field.name for field in struct]
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(f"a struct needs at least one field and no field name twice, got {struct}")
    return [_field_to_json(field) for field in struct]


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": type_to_json(field.type), "nullable": field.nullable}


def type_from_json(value: TypeJson, *, path: str = "") -> pa.DataType:
    """Return the Arrow type that `type_to_json` wrote.

    Parameters
    ----------
    value
        The JSON form.
    path
        The document it stands in, for the message.

    Raises
    ------
    CorruptDataError
        If the value is no type this version of the format knows.

    Examples
    --------
    >>> type_from_json("decimal128(10, 2)")
    Decimal128Type(decimal128(10, 2))
    """
    try:
        decoded = _decode(value)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        raise CorruptDataError(path, f"{value!r} is no type") from error
    _refuse_on_early_pyarrow(decoded)
    return decoded


def _refuse_on_early_pyarrow(kind: pa.DataType) -> None:
    """Refuse a type that the installed PyArrow cannot be trusted with.

    Before 26 it may abort the process over a map in a map whose keys hold structs, and before 21 it filters no
    decimal32 and no decimal64.
    """
    if _PYARROW >= 26:
        return
    parts = _parts(kind)
    if _PYARROW < 21 and any(pa.types.is_decimal(part) and part.bit_width < 128 for part in parts):
        raise InvalidInputError(
            f"the type {kind} needs PyArrow 21 or later, and {pa.__version__} is installed: earlier ones cannot "
            "filter a decimal32 or a decimal64; use decimal128"
        )
    maps = [part for part in parts if pa.types.is_map(part)]
    inner = [part for each in maps for part in _parts(each)[1:] if pa.types.is_map(part)]
    if any(pa.types.is_struct(part) for each in inner for part in _parts(each.key_type)):
        raise InvalidInputError(
            f"the type {kind} needs PyArrow 26 or later, and {pa.__version__} is installed: earlier ones may abort the "
            "process over a map in a map whose keys hold structs; use a list of structs"
        )


def _parts(kind: pa.DataType) -> list[pa.DataType]:
    inside = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return [kind, *(part for each in inside for part in _parts(each))]


def _decode(value: TypeJson) -> pa.DataType:
    if isinstance(value, str):
        return _decode_flat(value)
    members = dict(value)
    kind = members.pop("type")
    if kind == "struct":
        decoded = pa.struct([_decode_field(field) for field in members.pop("fields")])
    elif kind == "list":
        decoded = pa.list_(_decode_field(members.pop("item")))
    elif kind == "large_list":
        decoded = pa.large_list(_decode_field(members.pop("item")))
    elif kind == "fixed_size_list":
        decoded = pa.list_(_decode_field(members.pop("item")), _integer(members.pop("size")))
    elif kind == "map":
        key, item = _decode_field(members.pop("key")), _decode_field(members.pop("item"))
        decoded = pa.map_(key, item, keys_sorted=_boolean(members.pop("keys_sorted")))
    else:
        raise ValueError(kind)
    if members:
        # An unknown member may change the meaning, so it is refused like an unknown field of a document.
        raise ValueError(f"unknown members {sorted(members)}")
    return decoded


def _decode_flat(name: str) -> pa.DataType:
    flat = _FLAT.get(name)
    if flat is not None:
        return flat
    if match := _ZONED.fullmatch(name):
        return pa.timestamp(match[1], tz=match[2])
    if match := _FIXED_BINARY.fullmatch(name):
        return pa.binary(int(match[1]))
    if match := _DECIMAL.fullmatch(name):
        return _DECIMALS[match[1]](int(match[2]), int(match[3]))
    raise ValueError(name)


def _decode_field(value: dict[str, Any]) -> pa.Field:
    if set(value) != {"name", "type", "nullable"} or not isinstance(value["name"], str):
        raise ValueError(f"{value!r} is no field")
    return pa.field(value["name"], _decode(value["type"]), nullable=_boolean(value["nullable"]))


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no integer")
    return value
