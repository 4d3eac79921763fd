"""Changes of a type: those that stored values follow, with values before and after, and those that are refused."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from arrowstate.schema.evolution import SchemaEvolution

__all__ = ["CHANGES", "DAY", "POINT", "REFUSED", "Change"]

DAY = datetime.date(2024, 2, 29)
_MIDNIGHT = datetime.datetime.fromisoformat("2024-02-29")
_FIRST_MIDNIGHT = datetime.datetime.fromisoformat("0001-01-01")
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
_NEXT_POINT = pa.struct([("z", pa.float64()), ("y", pa.large_string()), ("x", pa.int64())])


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a type, with values before and after it."""

    stored: pa.DataType
    values: Sequence[Any]
    declared: pa.DataType
    after: Sequence[Any]
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    dropped: Sequence[str] = ()

    @property
    def evolution(self) -> SchemaEvolution:
        return SchemaEvolution(self.renamed, self.defaults, self.dropped)


def _widened(stored: pa.DataType, declared: pa.DataType, *values: Any) -> Change:
    return Change(stored, values, declared, values)


def _moved(kind: Any) -> Change:
    """A struct inside another type gets a field, loses none, and has them in another order; `kind` makes the type."""
    wrap, unwrapped = kind
    before = unwrapped(lambda x, y: {"x": x, "y": y})
    after = unwrapped(lambda x, y: {"z": None, "y": y, "x": x})
    return Change(wrap(POINT), before, wrap(_NEXT_POINT), after)


_INTEGERS = ("int8", "int16", "int32", "int64")
CHANGES: dict[str, Change] = {
    **{
        f"{small}_to_{large}": _widened(
            getattr(pa, small)(),
            getattr(pa, large)(),
            *(sign * 2 ** (8 << number) // 2 - (sign > 0) for sign in (-1, 1)),
        )
        for number, small in enumerate(_INTEGERS)
        for large in _INTEGERS[number + 1 :]
    },
    **{
        f"u{small}_to_{sign}{large}": _widened(
            getattr(pa, f"u{small}")(), getattr(pa, f"{sign}{large}")(), 0, 2 ** (8 << number) - 1
        )
        for number, small in enumerate(_INTEGERS)
        for large in _INTEGERS[number + 1 :]
        for sign in ("", "u")
    },
    "half_to_single": _widened(pa.float16(), pa.float32(), 1.5, float("-inf")),
    "half_to_double": _widened(pa.float16(), pa.float64(), 1.5, -0.25),
    "single_to_double": _widened(pa.float32(), pa.float64(), 1.5, float("inf")),
    "decimal_digits": _widened(pa.decimal128(5, 2), pa.decimal128(9, 4), Decimal("999.99"), Decimal("-0.01")),
    "decimal_width": _widened(pa.decimal64(5, 2), pa.decimal256(50, 2), Decimal("999.99")),
    "date_to_date64": _widened(pa.date32(), pa.date64(), DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    **{
        f"date_to_{unit}": Change(
            pa.date32(), [DAY, datetime.date.min], pa.timestamp(unit), [_MIDNIGHT, _FIRST_MIDNIGHT]
        )
        for unit in ("s", "ms", "us")
    },
    "text_offsets": _widened(pa.string(), pa.large_string(), "", "ä"),
    "binary_offsets": _widened(pa.binary(), pa.large_binary(), b"", b"\0"),
    "list_offsets": _widened(pa.list_(pa.int8()), pa.large_list(pa.int64()), [], [1, None], [-128]),
    "list_of_lists": _widened(
        pa.list_(pa.list_(pa.float32())), pa.large_list(pa.large_list(pa.float64())), [[1.5], None, []], []
    ),
    "list_of_two": _widened(pa.list_(pa.int32(), 2), pa.list_(pa.int64(), 2), [1, 2], [None, 3]),
    "map_values_and_keys": _widened(
        pa.map_(pa.int32(), pa.string()), pa.map_(pa.int64(), pa.large_string()), [(1, "a"), (2, None)], []
    ),
    "nulls_allowed": Change(
        pa.struct([pa.field("x", pa.int32(), nullable=False)]),
        [{"x": 1}],
        pa.struct([("x", pa.int32())]),
        [{"x": 1}],
    ),
    "added": Change(POINT, [{"x": 1, "y": "a"}], _NEXT_POINT, [{"z": None, "y": "a", "x": 1}]),
    "added_with_default": Change(
        POINT,
        [{"x": 1, "y": None}],
        pa.struct([("x", pa.int32()), ("y", pa.string()), pa.field("z", pa.list_(pa.int8()), nullable=False)]),
        [{"x": 1, "y": None, "z": [1, None]}],
        defaults={"z": [1, None]},
    ),
    "dropped": Change(POINT, [{"x": 1, "y": "a"}], pa.struct([("y", pa.string())]), [{"y": "a"}], dropped=["x"]),
    "renamed": Change(
        POINT,
        [{"x": 1, "y": "a"}],
        pa.struct([("X", pa.int32()), ("y", pa.string())]),
        [{"X": 1, "y": "a"}],
        {"x": "X"},
    ),
    "name_taken_over": Change(
        POINT,
        [{"x": 1, "y": "a"}],
        pa.struct([("x", pa.string()), ("w", pa.int64()), ("y", pa.string())]),
        [{"x": "new", "w": 1, "y": "a"}],
        {"x": "w"},
        {"x": "new"},
    ),
    "reordered": Change(
        POINT, [{"x": 1, "y": "a"}], pa.struct([("y", pa.string()), ("x", pa.int32())]), [{"y": "a", "x": 1}]
    ),
    "all_at_once": Change(
        pa.struct([("a", pa.int8()), ("b", pa.date32()), ("c", pa.string()), ("d", POINT)]),
        [{"a": 1, "b": DAY, "c": "gone", "d": {"x": 7, "y": "in"}}, {"a": None, "b": None, "c": None, "d": None}],
        pa.struct(
            [("e", pa.bool_()), ("d", pa.struct([("why", pa.string())])), ("at", pa.timestamp("us")), ("a", pa.int64())]
        ),
        [{"e": True, "d": {"why": "in"}, "at": _MIDNIGHT, "a": 1}, {"e": True, "d": None, "at": None, "a": None}],
        {"b": "at", "d.y": "why"},
        {"e": True},
        ["c", "d.x"],
    ),
    "struct_in_struct": _moved(
        (lambda kind: pa.struct([("in", kind)]), lambda at: [{"in": at(1, "a")}, {"in": at(None, None)}])
    ),
    "struct_in_list": _moved((pa.list_, lambda at: [[at(1, "a"), at(2, None)], [], [at(None, "b")]])),
    "struct_in_pair": _moved((lambda kind: pa.list_(kind, 2), lambda at: [[at(1, "a"), None]])),
    "struct_in_map": _moved(
        (lambda kind: pa.map_(pa.string(), kind), lambda at: [[("k", at(1, "a")), ("l", None)], []])
    ),
    "struct_in_list_in_map_in_struct": _moved(
        (
            lambda kind: pa.struct([("m", pa.map_(pa.int64(), pa.list_(kind)))]),
            lambda at: [{"m": [(1, [at(1, "a"), None]), (2, None), (3, [])]}, {"m": None}],
        )
    ),
    "nested_default": Change(
        pa.list_(POINT),
        [[{"x": 1, "y": "a"}, None]],
        pa.list_(pa.struct([*POINT, pa.field("on", POINT, nullable=False)])),
        [[{"x": 1, "y": "a", "on": {"x": 5, "y": None}}, None]],
        defaults={"element.on": {"x": 5, "y": None}},
    ),
}

REFUSED: dict[str, tuple[pa.DataType, pa.DataType, str, str, str, str]] = {
    # stored, declared, path, stored there, declared there, part of the remedy
    "narrower": (pa.int64(), pa.int32(), "", "int64", "int32", "declare int64 or something wider"),
    "unsigned": (pa.int32(), pa.uint64(), "", "int32", "uint64", "declare int32, or add a field"),
    "unsigned of one size": (pa.uint32(), pa.int32(), "", "uint32", "int32", "declare uint32, or add a field"),
    "lossy": (pa.int64(), pa.float64(), "", "int64", "double", "declare int64, or add a field"),
    "shorter float": (pa.float64(), pa.float32(), "", "double", "float", "declare double or something wider"),
    "digits before the point": (
        pa.decimal128(9, 2), pa.decimal128(9, 4), "", r"decimal128\(9, 2\)", r"decimal128\(9, 4\)", "declare decimal",
    ),
    "date to nanoseconds": (pa.date32(), pa.timestamp("ns"), "", "date32", r"timestamp\[ns\]", "declare date32"),
    "date to an instant": (
        pa.date32(), pa.timestamp("us", "UTC"), "", "date32", r"timestamp\[us, tz=UTC\]", "declare date32",
    ),
    "unit": (pa.timestamp("us"), pa.timestamp("s"), "", r"timestamp\[us\]", r"timestamp\[s\]", "declare timestamp"),
    "text to number": (pa.string(), pa.int64(), "", "string", "int64", "declare string, or add a field"),
    "shorter offsets": (pa.large_string(), pa.string(), "", "large_string", "string", "declare large_string"),
    "struct to text": (POINT, pa.string(), "", "struct", "string", "declare struct"),
    "text to struct": (pa.string(), POINT, "", "string", "struct", "declare string"),
    "size of a list": (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), "", "fixed", r"fixed.*\[3\]", "declare fixed"),
    "list to one of a size": (pa.list_(pa.int8()), pa.list_(pa.int8(), 2), "", "list", "fixed_size", "declare list"),
    "shorter list offsets": (pa.large_list(pa.int8()), pa.list_(pa.int8()), "", "large_list", "list", "declare large"),
    "gone without a word": (POINT, pa.struct([("x", pa.int32())]), "y", "string", "nothing", r"dropped=\['y'\]"),
    "without a default": (
        POINT,
        pa.struct([*POINT, pa.field("z", pa.int8(), nullable=False)]),
        "z",
        "not there",
        "int8 without nulls",
        r"defaults=\{'z': ...\}",
    ),
    "nulls forbidden": (
        POINT,
        pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())]),
        "x",
        "nullable",
        "not nullable",
        "declare it nullable",
    ),
    "deep": (
        pa.struct([("m", pa.map_(pa.string(), pa.list_(POINT)))]),
        pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int8()), ("y", pa.string())]))))]),
        "m.value.element.x",
        "int32",
        "int8",
        "declare int32 or something wider",
    ),
    "key of a map type": (
        pa.map_(pa.int64(), pa.int8()), pa.map_(pa.int32(), pa.int8()), "key", "int64", "int32", "declare int64",
    ),
}  # fmt: skip
