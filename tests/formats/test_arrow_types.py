"""Arrow types as JSON: readable, exact, and refused where a run file could not hold them."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowstate_formats import CorruptDataError, InvalidInputError, arrow_types, type_from_json, type_to_json

UNITS = ["s", "ms", "us", "ns"]
FLAT = [
    pa.null(),
    pa.bool_(),
    *[pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    *[pa.float16(), pa.float32(), pa.float64()],
    *[pa.decimal32(5, 2), pa.decimal64(18, 0), pa.decimal128(38, 10), pa.decimal128(10, -3), pa.decimal256(76, 2)],
    *[pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    *[pa.binary(0), pa.binary(16)],
    *[pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    *[pa.timestamp(unit) for unit in UNITS],
    *[pa.timestamp(unit, zone) for unit in UNITS for zone in ("UTC", "Europe/Berlin", "+05:30")],
    *[pa.duration(unit) for unit in UNITS],
]


def nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    name = st.text(st.characters(codec="utf-8"), max_size=5)
    # Arrow has no field of type null that may not be null.
    field = st.builds(
        lambda name, kind, nullable: pa.field(name, kind, nullable or kind == pa.null()), name, inner, st.booleans()
    )
    required = field.filter(lambda key: key.type != pa.null()).map(lambda key: key.with_nullable(False))
    fields = st.lists(field, min_size=1, max_size=3, unique_by=lambda item: item.name)
    return (
        fields.map(pa.struct)
        | field.map(pa.list_)
        | field.map(pa.large_list)
        | st.builds(pa.list_, field, st.integers(0, 5))
        | st.builds(
            lambda key, item, in_order: pa.map_(key, item, keys_sorted=in_order), required, field, st.booleans()
        )
    )


def layout(arrow_type: pa.DataType) -> Any:
    """Return everything a type is made of; equality of nested types ignores the names of their items."""
    if pa.types.is_map(arrow_type):
        fields = [arrow_type.key_field, arrow_type.item_field]
    else:
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
    return str(arrow_type), [(field.name, field.nullable, layout(field.type)) for field in fields]


@pytest.mark.parametrize("arrow_type", FLAT, ids=str)
def test_a_flat_type_is_a_text_and_comes_back(arrow_type: pa.DataType) -> None:
    text = type_to_json(arrow_type)

    assert isinstance(text, str)
    assert type_from_json(text) == arrow_type


@given(arrow_type=st.recursive(st.sampled_from(FLAT), nest, max_leaves=6))
def test_a_nested_type_comes_back_with_names_and_nullability(arrow_type: pa.DataType) -> None:
    text = json.dumps(type_to_json(arrow_type))

    found = type_from_json(json.loads(text))

    assert found == arrow_type
    assert layout(found) == layout(arrow_type)


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.int64(), "int64"),
        (pa.float64(), "float64"),
        (pa.timestamp("us", "UTC"), "timestamp[us, tz=UTC]"),
        (pa.decimal128(10, 2), "decimal128(10, 2)"),
        (pa.binary(16), "fixed_size_binary[16]"),
        (
            pa.struct([pa.field("flights", pa.int64(), nullable=False)]),
            {"type": "struct", "fields": [{"name": "flights", "type": "int64", "nullable": False}]},
        ),
        (
            pa.list_(pa.int8(), 3),
            {"type": "fixed_size_list", "size": 3, "item": {"name": "item", "type": "int8", "nullable": True}},
        ),
    ],
    ids=str,
)
def test_types_are_written_in_the_notation_of_the_specification(arrow_type: pa.DataType, expected: object) -> None:
    assert type_to_json(arrow_type) == expected


@pytest.mark.parametrize(
    ("arrow_type", "remedy"),
    [
        (pa.dictionary(pa.int32(), pa.string()), "use its value type string"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "use its value type int64"),
        (pa.list_view(pa.int64()), "use list or large_list"),
        (pa.uuid(), r"use its storage type fixed_size_binary\[16\]"),
        (pa.dense_union([pa.field("a", pa.int64())]), "use a struct"),
        (pa.month_day_nano_interval(), "use a struct"),
        (pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]), "use its value type string"),
        (pa.struct([]), "at least one field"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "no field name twice"),
    ],
    ids=str,
)
def test_a_type_that_cannot_be_stored_is_refused_with_what_would_work(arrow_type: pa.DataType, remedy: str) -> None:
    with pytest.raises(InvalidInputError, match=remedy):
        type_to_json(arrow_type)


@pytest.mark.parametrize(
    "value",
    [
        "int65",
        "",
        "double ",
        "timestamp[h]",
        "decimal128(99, 2)",
        "decimal128(10)",
        "fixed_size_binary[-1]",
        7,
        None,
        [],
        {},
        {"type": "struct"},
        {"type": "list", "item": "int64"},
        {"type": "list", "item": {"name": "item", "type": "int64"}},
        {"type": "list", "item": {"name": "item", "type": "int64", "nullable": 1}},
        {"type": "list", "item": {"name": "item", "type": "int64", "nullable": True}, "since": 2},
        {"type": "fixed_size_list", "size": 1 << 40, "item": {"name": "item", "type": "int8", "nullable": True}},
        {"type": "fixed_size_list", "size": "3", "item": {"name": "item", "type": "int8", "nullable": True}},
        {"type": "set", "item": {"name": "item", "type": "int64", "nullable": True}},
    ],
    ids=str,
)
def test_what_is_no_type_is_damage_of_the_document(value: Any) -> None:
    with pytest.raises(CorruptDataError, match="is no type") as damage:
        type_from_json(value, path="log/1.json")
    assert damage.value.path == "log/1.json"


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_map_that_aborts_an_old_pyarrow_is_refused_by_name(monkeypatch, is_inside):
    inner = pa.map_(pa.struct([("x", pa.int8())]), pa.int8())
    kind = pa.map_(pa.string(), inner)
    kind = pa.list_(kind) if is_inside else kind
    monkeypatch.setattr(arrow_types, "_PYARROW", 26)
    stored = type_to_json(kind)
    monkeypatch.setattr(arrow_types, "_PYARROW", 25)

    for refused in (lambda: type_to_json(kind), lambda: type_from_json(stored)):
        with pytest.raises(InvalidInputError, match="needs PyArrow 26 or later"):
            refused()
    for allowed in (inner, pa.map_(pa.string(), pa.map_(pa.string(), pa.struct([("x", pa.int8())])))):
        assert type_from_json(type_to_json(allowed)) == allowed


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.list_(pa.decimal64(12, 2))], ids=str)
def test_a_decimal_that_an_old_pyarrow_cannot_filter_is_refused_by_name(monkeypatch, kind):
    monkeypatch.setattr(arrow_types, "_PYARROW", 21)
    stored = type_to_json(kind)
    monkeypatch.setattr(arrow_types, "_PYARROW", 20)

    for refused in (lambda: type_to_json(kind), lambda: type_from_json(stored)):
        with pytest.raises(InvalidInputError, match=r"needs PyArrow 21 or later.*use decimal128"):
            refused()
    assert type_to_json(pa.list_(pa.decimal128(12, 2)))
