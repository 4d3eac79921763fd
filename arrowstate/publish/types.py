"""Columns of a state as columns of an open table: their types, their ids, and which runs a reader reads by them.

A run file of Parquet is given to readers as it is where all of them read its types rightly. Any other run has a
twin: a Parquet file with the same rows under the same numbers, in types that all of them know.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import xxhash
from msgspec import Struct

from arrowstate.errors import InvalidInputError
from arrowstate.schema.fields import Field, fields_of, inner_fields
from arrowstate.schema.times import rounded_down
from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument
from arrowstate_formats.state_columns import FIELD_ID_KEY, HIDDEN_FIELD_IDS, with_inner_fields
from arrowstate_formats.stored_types import converted

TableFormat: TypeAlias = Literal["iceberg", "delta"]

_FIRST_OWN_ID = 1_000_000_000
"""Ids from here on are given to fields inside columns to which an early writer gave none."""

_UTC = "UTC"
_LEAVES: Mapping[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", _UTC): "timestamptz",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}
_PLAIN: Mapping[pa.DataType, pa.DataType] = {
    pa.null(): pa.int32(),
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.time64("ns"): pa.int64(),
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}
"""What stands in a twin for a type that some reader lacks or gets wrong."""

_DELTA_LEAVES: Mapping[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", _UTC): "timestamp",
    **dict.fromkeys([pa.string(), pa.large_string(), pa.string_view()], "string"),
    **dict.fromkeys([pa.binary(), pa.large_binary(), pa.binary_view()], "binary"),
}


class KnownTypes(Struct, frozen=True):
    """The types that readers of a format know."""

    leaves: Mapping[pa.DataType, str]
    "The name of each in the format."
    plain: Mapping[pa.DataType, pa.DataType]
    "What stands in a twin for another."
    has_fixed_binary: bool


ICEBERG = KnownTypes(_LEAVES, _PLAIN, has_fixed_binary=True)
DELTA = KnownTypes(
    _DELTA_LEAVES,
    {
        **_PLAIN,
        pa.uint8(): pa.int16(),
        # Delta has no times of day.
        **dict.fromkeys([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], pa.int64()),
    },
    has_fixed_binary=False,
)

_READ_AS_THEY_ARE = frozenset({pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.string_view(), pa.binary_view()})
"""Types that readers take from a run file as their plain type."""

_SIGNS = re.compile(r"[ ,;{}()\n\t=]")
"""What the name of a column of Delta may not have."""

_DEFAULTS = frozenset({"boolean", "int", "long", "float", "double", "string"})
"""Types whose defaults every reader of version 3 gives to the rows of earlier files."""


class TableForm(Struct, frozen=True):
    """A format of tables in one of its versions: what its readers can read."""

    format: TableFormat
    version: int
    "3, or 2 for readers that know no deletion vectors."

    @property
    def types(self) -> KnownTypes:
        return DELTA if self.format == "delta" else ICEBERG

    @property
    def has_run_files(self) -> bool:
        """Whether a table may name files in the folder of the store."""
        return self.format == "iceberg"

    @property
    def has_dead_rows(self) -> bool:
        """Whether a table says beside a file which of its rows are dead."""
        return self.format == "iceberg" or self.version >= 3

    def can_read(self, stored: Sequence[Field], current: Sequence[Field]) -> bool:
        """Whether readers get the rows of a file with the stored columns right when they go by the current schema."""
        if self.format == "delta":
            return has_names_of(stored, current, DELTA)
        return can_read(stored, current, self.version)

    def check(self, fields: Sequence[Field], what: str) -> None:
        """Refuse a column that no table of the form can hold."""
        if self.format == "delta":
            delta_schema(fields, what)
        else:
            iceberg_schema(fields, self.version)

    def digest_of(self, fields: Sequence[Field]) -> str:
        """Return a text that two lists of columns have where they are the same in twins."""
        schema: Any = iceberg_schema(fields, 2)
        if self.format == "delta":
            # A column that was dropped and added again has the same name, and the rows of earlier runs lose its values.
            schema = [delta_schema(fields, ""), _ids_and_types(fields, DELTA)]
        return xxhash.xxh3_64_hexdigest(json.dumps(schema).encode())[:8]


def table_fields(columns: Sequence[FieldDocument], hidden: Sequence[str]) -> list[Field]:
    """Return the columns of a table: those that documents describe, between the hidden ones of the run file."""
    known = fields_of(columns, itertools.count(_FIRST_OWN_ID))
    around = [Field(HIDDEN_FIELD_IDS[name], name, pa.int64(), False) for name in hidden]
    last = [field for field in around if field.name == "_updated_at"]
    return [*(field for field in around if field not in last), *known, *last]


def has_all_ids(columns: Sequence[FieldDocument]) -> bool:
    """Whether the fields inside all columns have ids, which early writers did not always give."""
    return all(_has_ids(item, _type_of(item)) for item in columns)


def _type_of(item: FieldDocument) -> pa.DataType:
    return fields_of([item], itertools.count(_FIRST_OWN_ID))[0].type


def _has_ids(item: FieldDocument | NestedFieldDocument, kind: pa.DataType) -> bool:
    inner = inner_fields(kind)
    return len(item.fields) == len(inner) and all(
        _has_ids(child, field.type) for child, field in zip(item.fields, inner, strict=True)
    )


def plain_type(kind: pa.DataType, what: str, known: KnownTypes = ICEBERG) -> pa.DataType:
    """Return the type that stands in a twin for a type, at any depth; `what` names the column in an error."""
    types = pa.types
    if types.is_nested(kind):
        fields = [field.with_type(plain_type(field.type, what, known)) for field in inner_fields(kind)]
        if types.is_struct(kind) or types.is_map(kind):
            return with_inner_fields(kind, fields)
        return pa.list_(fields[0])
    if kind in known.leaves:
        return kind
    if kind in known.plain:
        return known.plain[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else _UTC)
    if types.is_duration(kind):
        return pa.int64()
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        return kind if known.has_fixed_binary else pa.binary()
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    raise InvalidInputError(
        f"{what} has the type {kind}, for which open tables have none; publish the other states by states=[...], or "
        "change the column to a decimal of at most 38 digits with a scale of 0 to the precision, or to a text"
    )


def is_read_as_it_is(kind: pa.DataType) -> bool:
    """Whether all readers read a type from a run file of Parquet as it stands there."""
    if pa.types.is_nested(kind):
        is_fixed = pa.types.is_fixed_size_list(kind)
        return not is_fixed and all(is_read_as_it_is(field.type) for field in inner_fields(kind))
    is_plain = kind in _LEAVES or pa.types.is_decimal128(kind)
    return is_plain or kind in _READ_AS_THEY_ARE or (pa.types.is_fixed_size_binary(kind))


def changes_of(field: Field, known: KnownTypes = ICEBERG) -> str | None:
    """Return what a reader sees instead of the values of a column, None where it sees the values."""
    kind, plain = field.type, plain_type(field.type, field.name, known)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return "timestamps of nanoseconds, cut to microseconds"
    if plain == pa.int64() and (pa.types.is_duration(kind) or pa.types.is_time(kind)):
        return f"{kind} as whole numbers of {kind.unit}"
    return f"{kind} as {plain}" if not is_read_as_it_is(kind) else None


def iceberg_schema(fields: Sequence[Field], version: int) -> dict[str, Any]:
    """Return the schema of a table in Iceberg's JSON, without its id."""
    return {"type": "struct", "fields": [_iceberg_field(field, version) for field in fields]}


def _iceberg_field(field: Field, version: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": field.id,
        "name": field.name,
        "required": not field.nullable,
        "type": _iceberg_type(field, version),
    }
    if (seen := changes_of(field)) is not None:
        out["doc"] = seen
    default = default_of(field)
    if version >= 3 and default is not None:
        out["initial-default"] = out["write-default"] = default
    return out


def _iceberg_type(field: Field, version: int) -> Any:
    kind = plain_type(field.type, field.name)
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_iceberg_field(child, version) for child in field.children]}
    if pa.types.is_nested(kind):
        names = ["key", "value"] if pa.types.is_map(kind) else ["element"]
        out: dict[str, Any] = {"type": "map" if pa.types.is_map(kind) else "list"}
        for name, child in zip(names, field.children, strict=True):
            out[f"{name}-id"] = child.id
            out[name] = _iceberg_type(child, version)
            if name != "key":
                out[f"{name}-required"] = not child.nullable
        return out
    if kind in _LEAVES:
        return _LEAVES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return f"fixed[{kind.byte_width}]"


def delta_schema(fields: Sequence[Field], what: str, *, in_twins: bool = True) -> dict[str, Any]:
    """Return columns in the JSON of Delta, as they are stored or as they are in twins."""
    for field in fields:
        if _SIGNS.search(field.name):
            raise InvalidInputError(
                f"{what} has the column {field.name!r}, and a name in Delta has no space and none of ,;{{}}()=; "
                "rename the column, write the savepoint without delta, or publish the store as Iceberg tables"
            )
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _delta_type(field, f"{what}.{field.name}", in_twins=in_twins),
                "nullable": field.nullable,
                "metadata": {"comment": seen} if in_twins and (seen := changes_of(field, DELTA)) is not None else {},
            }
            for field in fields
        ],
    }


def _delta_type(field: Field, what: str, *, in_twins: bool) -> Any:
    kind, types = plain_type(field.type, what, DELTA) if in_twins else field.type, pa.types
    if types.is_struct(kind):
        return delta_schema(field.children, what, in_twins=in_twins)
    if types.is_map(kind):
        key, value = field.children
        inner = _delta_type(value, what, in_twins=in_twins)
        return {
            "type": "map",
            "keyType": _delta_type(key, what, in_twins=in_twins),
            "valueType": inner,
            "valueContainsNull": value.nullable,
        }
    if types.is_list(kind) or types.is_large_list(kind):
        (element,) = field.children
        inner = _delta_type(element, what, in_twins=in_twins)
        return {"type": "array", "elementType": inner, "containsNull": element.nullable}
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if kind not in DELTA.leaves:
        raise InvalidInputError(
            f"{what} has the type {kind}, for which Delta has none; write the savepoint without delta, or publish the "
            "store as Iceberg tables by store.publish"
        )
    return DELTA.leaves[kind]


def default_of(field: Field) -> Any:
    """Return the default of a field in Iceberg's JSON, None where it has none that every reader applies."""
    if field.default is None or not field.default.is_valid()[0].as_py():
        return None
    kind = plain_type(field.type, field.name)
    if pa.types.is_nested(kind) or _LEAVES.get(kind) not in _DEFAULTS:
        return None
    value = plain_array(field.default, kind, field.name)[0].as_py()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def can_read(stored: Sequence[Field], current: Sequence[Field], version: int) -> bool:
    """Whether readers get the rows of a file with the stored columns right when they go by the current schema."""
    known = {field.id: field for field in stored}
    return all(_can_read(known.get(field.id), field, version) for field in current)


def _can_read(stored: Field | None, current: Field, version: int) -> bool:
    if stored is None:
        has_value = current.default is not None and current.default.is_valid()[0].as_py()
        return not has_value or (version >= 3 and default_of(current) is not None)
    before, after = (plain_type(field.type, field.name) for field in (stored, current))
    if pa.types.is_struct(after):
        known = {field.id: field for field in stored.children}
        # A default inside a struct is not applied by every reader.
        return all(_can_read(known.get(field.id), field, 2) for field in current.children)
    if pa.types.is_nested(after):
        return [item.id for item in stored.children] == [item.id for item in current.children] and all(
            _can_read(old, new, 2) for old, new in zip(stored.children, current.children, strict=True)
        )
    if pa.types.is_decimal(after):
        return pa.types.is_decimal(before) and before.scale == after.scale and before.precision <= after.precision
    names = _LEAVES.get(before), _LEAVES.get(after)
    return before == after or (names[0] == names[1] is not None) or names in (("int", "long"), ("float", "double"))


def has_names_of(stored: Sequence[Field], current: Sequence[Field], known: KnownTypes) -> bool:
    """Whether readers that go by names get the rows of a file with the stored columns right by the current schema."""
    by_name, ids = {field.name: field for field in stored}, {field.id for field in stored}
    for field in current:
        old = by_name.get(field.name)
        if old is None:
            has_value = field.default is not None and field.default.is_valid()[0].as_py()
            # With its id among those of the file, it is there by the name that it had.
            if field.id in ids or has_value or not field.nullable:
                return False
        elif _ids_and_types([old], known) != _ids_and_types([field], known):
            return False
    return True


def _ids_and_types(fields: Sequence[Field], known: KnownTypes) -> list[Any]:
    return [
        (field.id, field.name, str(plain_type(field.type, field.name, known)), _ids_and_types(field.children, known))
        for field in fields
    ]


def twin_schema(fields: Sequence[Field], known: KnownTypes = ICEBERG) -> pa.Schema:
    """Return the columns of a twin, with the id of each field at any depth."""
    return pa.schema([_twin_field(field, known) for field in fields])


def _twin_field(field: Field, known: KnownTypes) -> pa.Field:
    kind = plain_type(field.type, field.name, known)
    if field.children:
        kind = with_inner_fields(kind, [_twin_field(child, known) for child in field.children])
    return pa.field(field.name, kind, field.nullable, {FIELD_ID_KEY: str(field.id)})


def plain_array(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Return a column as the type that stands for its own in a twin."""
    try:
        return converted(array, kind, _cast)
    except (pa.ArrowInvalid, ValueError) as error:
        raise InvalidInputError(
            f"{what} holds a value of {array.type} that {kind} cannot hold: {error}; publish the other states by "
            "states=[...]"
        ) from error


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    own = array.type
    if pa.types.is_timestamp(own) and own.unit == "ns":
        return rounded_down(array, "us").view(pa.int64()).view(kind)
    if kind == pa.int64() and (pa.types.is_duration(own) or pa.types.is_time(own)):
        return array.view(pa.int32()).cast(kind) if pa.types.is_time32(own) else array.view(kind)
    return array.cast(kind)
