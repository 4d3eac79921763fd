"""Keys and values as callers give them: what is converted, and what is refused rather than changed."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, KeyTypeError, NullKeyError, ValueTypeError
from arrowstate.schema.keys import check_key_schema, key_columns, value_array
from arrowstate.schema.types import CONVERSION_ERRORS, python_array, python_scalar, python_values
from arrowstate.shown import shown

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
TWO = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)])


def one(kind):
    return pa.schema([pa.field("k", kind, nullable=False)])


@pytest.mark.parametrize(
    "key",
    [
        pa.schema([]),
        pa.schema([("_k", pa.int64())]),
        pa.schema([("", pa.int64())]),
        pa.schema([("k", pa.int64()), ("K", pa.int64())]),
        pa.schema([("k", pa.null())]),
        pa.schema([("k", pa.map_(pa.string(), pa.int64()))]),
        pa.schema([("k", pa.list_(pa.map_(pa.string(), pa.int64())))]),
        pa.schema([("k", pa.dictionary(pa.int8(), pa.string()))]),
        pa.schema([("k", pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]))]),
        pa.schema([("k", pa.list_view(pa.int64()))]),
        pa.schema([("k", pa.string_view())]),
        pa.schema([("k", pa.uuid())]),
        pa.int64(),
        None,
        ["k"],
    ],
    ids=str,
)
def test_a_key_schema_that_cannot_be_hashed_or_stored_is_refused(key):
    with pytest.raises(InvalidInputError):
        check_key_schema(key)


def test_key_columns_are_never_null():
    checked = check_key_schema(pa.schema([("a", pa.int64()), ("b", pa.string())]))

    assert checked == TWO


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.string(), pa.array(["a", "b"]).dictionary_encode()),
        (pa.string(), pa.array(["a", "b"], pa.large_string())),
        (pa.string(), pa.array(["a", "b"], pa.string_view())),
        (pa.large_string(), pa.array(["a", "b"])),
        (pa.string(), pa.chunked_array([["a"], [], ["b"]])),
        (pa.string(), pa.chunked_array([pa.array(["a"]).dictionary_encode(), pa.array(["b"]).dictionary_encode()])),
        (pa.string(), pa.array(["x", "a", "b", "y"]).slice(1, 2)),
        (pa.string(), ["a", "b"]),
        (pa.string(), ("a", "b")),
        (pa.string(), np.array(["a", "b"])),
        (pa.string(), pa.record_batch({"k": ["a", "b"]})),
        (pa.string(), pa.table({"k": pa.chunked_array([["a"], ["b"]])})),
        (pa.string(), pa.array([{"k": "a"}, {"k": "b"}])),
        (pa.binary(), pa.array([b"a", b"b"], pa.large_binary())),
        (pa.int64(), np.array([1, 2])),
        (pa.int8(), [1, 2]),
        (pa.int64(), range(1, 3)),
        (pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2)]),
        (STRUCT, pa.array([{"a": 1, "b": None}, {"a": None, "b": "x"}], STRUCT)),
    ],
    ids=str,
)
def test_keys_come_in_any_layout_of_their_type(kind, keys):
    (column,) = key_columns(keys, one(kind))

    assert column.type == kind
    assert len(column) == 2
    expected = [row["k"] for row in keys.to_pylist()] if isinstance(keys, (pa.RecordBatch, pa.Table)) else None
    if isinstance(keys, pa.StructArray) and kind == pa.string():
        expected = ["a", "b"]
    if expected is None:
        expected = pa.array(keys.to_pylist() if hasattr(keys, "to_pylist") else list(keys), kind).to_pylist()
    assert column.to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int64(), pa.array([1], pa.int32())),
        (pa.int64(), np.array([1], np.int32)),
        (pa.int32(), pa.array([1], pa.int64())),
        (pa.int64(), pa.array([1.0])),
        (pa.int64(), [1.5]),
        (pa.int64(), [1.0]),
        (pa.int64(), [True]),
        (pa.int64(), [Decimal(1)]),
        (pa.int64(), ["1"]),
        (pa.int8(), [300]),
        (pa.uint64(), [-1]),
        (pa.uint64(), [2**64]),
        (pa.string(), [1]),
        (pa.string(), "ab"),
        (pa.string(), b"ab"),
        (pa.string(), ["\ud800"]),
        (pa.string(), {"a"}),
        (pa.string(), None),
        (pa.string(), pa.record_batch({"q": ["a"]})),
        (pa.string(), pa.record_batch({"k": ["a"], "q": ["a"]})),
        (pa.timestamp("us"), pa.array([1], pa.timestamp("ms"))),
        (pa.timestamp("s"), [dt.datetime(2020, 1, 1, 0, 0, 0, 1)]),
        (pa.timestamp("us"), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.date32(), [dt.datetime(2020, 1, 1, 5)]),
        (pa.decimal128(5, 2), [Decimal("1.255")]),
        (STRUCT, [{"a": 1, "c": "x"}]),
        (STRUCT, [{"a": 1.5, "b": "x"}]),
        (STRUCT, pa.array([{"a": 1, "b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        (pa.list_(pa.int64()), [[1, 2.5]]),
    ],
    ids=str,
)
def test_a_key_of_another_type_is_refused_and_never_changed_to_fit(kind, keys):
    with pytest.raises(KeyTypeError, match="k: "):
        key_columns(keys, one(kind))


@pytest.mark.parametrize(
    ("keys", "column", "row"),
    [
        (pa.array(["a", None, None]), "k", 1),
        (pa.array(["a", None]).dictionary_encode(), "k", 1),
        (pa.nulls(2), "k", 0),
        ([None], "k", 0),
        (pa.array([{"k": "a"}, None]), "k", 1),
        (pa.array(["a", "b", None]).slice(1), "k", 1),
    ],
    ids=str,
)
def test_a_null_key_is_refused_with_its_column_and_first_row(keys, column, row):
    with pytest.raises(NullKeyError) as caught:
        key_columns(keys, one(pa.string()))

    assert (caught.value.column, caught.value.row) == (column, row)
    assert f"row {row}" in str(caught.value)


def test_several_key_columns_come_as_a_batch_or_a_struct_in_any_order():
    rows = [{"b": "x", "a": 1}, {"b": "y", "a": 2}]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("b", pa.string()), ("a", pa.int64())]))
    struct = pa.array([rows[0], *rows, rows[0]], pa.struct([("a", pa.int64()), ("b", pa.string())])).slice(1, 2)

    for keys in (batch, struct, pa.Table.from_batches([batch])):
        a, b = key_columns(keys, TWO)

        assert (a.to_pylist(), b.to_pylist()) == ([1, 2], ["x", "y"])


@pytest.mark.parametrize(
    "keys", [pa.array([1]), [(1, "x")], pa.record_batch({"a": [1]}), pa.array([{"a": 1}])], ids=str
)
def test_a_missing_key_column_is_a_type_error_that_names_the_schema(keys):
    with pytest.raises(KeyTypeError, match="a: int64, b: string"):
        key_columns(keys, TWO)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), pa.array([1, None, 3], pa.int8())),
        (pa.int8(), pa.array([1, None, 3], pa.int64())),
        (pa.float64(), pa.array([1, None, 3], pa.float32())),
        (pa.float32(), pa.array([0.1, None, 3])),
        (pa.decimal128(10, 2), pa.array([Decimal("1.5"), None, Decimal("3.0")], pa.decimal128(5, 1))),
        (pa.string(), pa.array(["a", None, "b"]).dictionary_encode()),
        (pa.large_string(), pa.array(["a", None, "b"])),
        (pa.timestamp("us", "UTC"), pa.array([1, None, 3], pa.timestamp("ms", "UTC"))),
        (pa.date64(), pa.array([1, None, 3], pa.date32())),
        (pa.int64(), pa.nulls(3)),
        (pa.int64(), [1, None, 3]),
        (pa.int64(), pa.chunked_array([[1], [None, 3]])),
        (pa.list_(pa.int64()), pa.array([[1], None, []], pa.list_(pa.int8()))),
        (
            pa.map_(pa.string(), pa.int64()),
            pa.array(
                [[("a", 1)], None, []], pa.map_(pa.field("name", pa.string(), nullable=False), pa.field("n", pa.int8()))
            ),
        ),
        (STRUCT, pa.record_batch({"a": [1, 2, 3], "b": ["x", None, "y"]})),
        (STRUCT, pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}])),
    ],
    ids=str,
)
def test_values_are_converted_within_their_family_of_types(kind, values):
    result = value_array(values, kind, 3, "s")

    assert result.type == kind
    expected = values if isinstance(values, list) else values.to_pylist()
    assert result.to_pylist() == pa.array(expected, kind).to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), pa.array([1.0])),
        (pa.int8(), pa.array([300])),
        (pa.int64(), pa.array(["1"])),
        (pa.string(), pa.array([1])),
        (pa.uint8(), pa.array([-1])),
        (pa.timestamp("s"), pa.array([1500], pa.timestamp("ms"))),
        (pa.timestamp("us"), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.decimal128(3, 1), pa.array([Decimal("1.25")])),
        (pa.bool_(), pa.array([1])),
        (pa.int64(), [1.5]),
        (pa.int64(), ["a"]),
        (pa.uint64(), [-1]),
        (STRUCT, [{"a": 1, "typo": "x"}]),
        (STRUCT, [5]),
        (pa.int64(), 5),
        (pa.int64(), None),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused_and_never_changed_to_fit(kind, values):
    with pytest.raises(ValueTypeError, match="state 's'"):
        value_array(values, kind, 1, "s")


def test_the_number_of_values_must_be_that_of_the_keys():
    with pytest.raises(InvalidInputError, match="3 keys need 3 values, got 2"):
        value_array([1, 2], pa.int64(), 3, "s")


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), np.float32(1.5)),
        (pa.int64(), Decimal("1.5")),
        (pa.duration("us"), 1.5),
        (pa.date32(), 1.5),
        (pa.date32(), dt.datetime(2020, 1, 1, 5)),
        (pa.timestamp("ms"), dt.datetime(2020, 1, 1, 0, 0, 0, 1)),
        (pa.time32("s"), dt.time(0, 0, 0, 1)),
        (pa.duration("s"), dt.timedelta(microseconds=1)),
        (STRUCT, {"a": 1, "c": 2}),
        (STRUCT, {"a": 1.5}),
        (pa.list_(STRUCT), [{"a": 1}, None, {"a": 2.5}]),
        (pa.list_(pa.int32(), 2), [1, 2.5]),
        (MAP, {"a": 1.5}),
        (MAP, [("a", 1.5)]),
    ],
    ids=str,
)
def test_a_python_value_that_would_lose_something_is_refused(kind, value):
    with pytest.raises(CONVERSION_ERRORS):
        python_scalar(value, kind)
    with pytest.raises(CONVERSION_ERRORS):
        python_array([None, value], kind)


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (pa.int8(), -128, -128),
        (pa.float64(), 1, 1.0),
        (pa.timestamp("ms"), dt.datetime(2020, 1, 1, 0, 0, 0, 1000), dt.datetime(2020, 1, 1, 0, 0, 0, 1000)),
        (pa.duration("s"), dt.timedelta(days=-1), dt.timedelta(days=-1)),
        (pa.date32(), dt.date(2020, 1, 1), dt.date(2020, 1, 1)),
        (STRUCT, {"b": "x"}, {"a": None, "b": "x"}),
        (MAP, {"a": 1}, [("a", 1)]),
        (MAP, [("a", None)], [("a", None)]),
        (pa.list_(pa.int64()), (1, None), [1, None]),
        (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
    ],
    ids=str,
)
def test_a_python_value_that_fits_is_taken(kind, value, result):
    assert python_scalar(value, kind).as_py() == result
    assert python_array([value, None], kind).to_pylist() == [result, None]


REQUIRED = pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        (REQUIRED, {"a": None, "b": "x"}, {"a": 1, "b": None}),
        (pa.list_(REQUIRED), [{"a": 1}, {"a": None}], [None, {"a": 1, "b": None}]),
        (pa.list_(pa.field("item", pa.int8(), nullable=False)), [1, None], []),
        (pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)), [("a", None)], [("a", 1)]),
        (pa.struct([("m", pa.map_(pa.string(), REQUIRED))]), {"m": [("a", {"a": None})]}, {"m": [("a", None)]}),
    ],
    ids=str,
)
def test_a_null_where_the_type_says_there_is_none_is_refused(kind, bad, good):
    padded = pa.array([bad, good, None, bad], kind).slice(1, 2)

    assert value_array(padded, kind, 2, "s").to_pylist() == [good, None]
    assert python_scalar(good, kind).as_py() == good
    for values in ([bad, good], pa.array([None, bad], kind)):
        with pytest.raises(ValueTypeError):
            value_array(values, kind, 2, "s")
    with pytest.raises(CONVERSION_ERRORS):
        python_scalar(bad, kind)


def not_utf8(kind):
    """Three texts, the second of which is not UTF-8, as an array that nobody has looked at; nested in each way."""
    texts = pa.array([b"a", b"b\xff", "ä".encode()], pa.large_binary() if kind == pa.large_string() else pa.binary())
    plain = pa.Array.from_buffers(pa.large_string() if kind == pa.large_string() else pa.string(), 3, texts.buffers())
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([plain], fields=list(kind))
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), plain)
    return plain


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.string(), pa.string()),
        (pa.large_string(), pa.large_string()),
        (pa.string(), pa.large_string()),
        (pa.struct({"a": pa.string()}), pa.struct({"a": pa.string()})),
        (pa.list_(pa.string()), pa.list_(pa.string())),
    ],
    ids=str,
)
def test_a_text_that_is_not_utf8_is_refused_with_its_row(given, kind):
    values = not_utf8(given)

    with pytest.raises(ValueTypeError, match=r"got a text that is not UTF-8 in row 1; cast them first$"):
        value_array(values, kind, 3, "s")
    if not pa.types.is_nested(kind):
        with pytest.raises(KeyTypeError, match="got a text that is not UTF-8 in row 1"):
            key_columns(values, one(kind))
    # What a slice leaves out counts no more, nor what lies under a null.
    assert value_array(values.slice(2), kind, 1, "s").to_pylist() == values.slice(2).to_pylist()
    assert value_array(values.slice(0, 1), kind, 1, "s").to_pylist() == values.slice(0, 1).to_pylist()
    others = pa.array([0, None, 2])
    assert value_array(values.take(others), kind, 3, "s").to_pylist() == values.take(others).to_pylist()


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (pa.time32("s"), 86_400),
        (pa.time64("ns"), -1),
        (pa.date64(), 5),
        (pa.list_(pa.time32("ms")), [86_400_000]),
    ],
    ids=str,
)
def test_a_time_that_is_none_is_refused(kind, bad):
    numbers = pa.array([bad], pa.list_(pa.int32()) if isinstance(bad, list) else None)
    values = numbers.cast(pa.int32()).view(kind) if kind == pa.time32("s") else numbers.view(kind)

    with pytest.raises(ValueTypeError):
        value_array(values, kind, 1, "s")
    with pytest.raises(KeyTypeError):
        key_columns(values, one(kind))


def test_halves_are_floats_at_any_depth():
    halves = pa.array(np.array([1.5, 65504], np.float16))
    rows = pa.RecordBatch.from_arrays(
        [
            halves,
            pa.StructArray.from_arrays([halves], ["f"]),
            pa.array([[one] for one in halves], pa.list_(halves.type)),
        ],
        names=["flat", "struct", "list"],
    )

    values = python_values(rows)

    assert values == [{"flat": at, "struct": {"f": at}, "list": [at]} for at in (1.5, 65504.0)]
    assert {type(value) for value in (values[1]["flat"], values[1]["struct"]["f"], values[1]["list"][0])} == {float}
    assert shown(np.float16(65504)) == 65504.0
