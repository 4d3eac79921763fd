"""What equal keys are, for every type a key may have, and how a batch of keys is grouped."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowstate.table.columns import canonical_floats, rows_equal
from arrowstate.table.key_batch import KeyBatch

NAN = float("nan")
POINT = pa.struct([("x", pa.int32()), ("name", pa.string())])
LONG = "a text that is longer than twelve bytes"
VALUES = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [0, -128, 127]),
    "uint16": (pa.uint16(), [0, 65535]),
    "int32": (pa.int32(), [0, 1, -1]),
    "int64": (pa.int64(), [0, 2**63 - 1, -(2**63)]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float16": (pa.float16(), [0.0, 1.5, NAN]),
    "float32": (pa.float32(), [0.0, 1.5, NAN, math.inf]),
    "float64": (pa.float64(), [0.0, 1.5, NAN, -math.inf]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("1.25"), Decimal("-1.25")]),
    "decimal64": (pa.decimal64(12, 2), [Decimal("1.25"), Decimal("-1.25")]),
    "decimal128": (pa.decimal128(38, 2), [Decimal("1.25"), Decimal("1.25") + 2**70, Decimal("-1.25")]),
    "decimal256": (pa.decimal256(60, 2), [Decimal("1.25"), Decimal("1.25") + 2**130, Decimal("-1.25")]),
    "string": (pa.string(), ["", "a", "b", "ab", LONG, LONG[:-1] + "S", "é"]),
    "large_string": (pa.large_string(), ["", "a", LONG]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"a"]),
    "large_binary": (pa.large_binary(), [b"", b"\0"]),
    "fixed_binary": (pa.binary(3), [b"abc", b"ab\0", b"\0\0\0"]),
    "date32": (pa.date32(), [dt.date(2020, 1, 1), dt.date(1960, 1, 1)]),
    "date64": (pa.date64(), [dt.date(2020, 1, 1), dt.date(1960, 1, 1)]),
    "time32": (pa.time32("s"), [dt.time(1, 2, 3), dt.time(0)]),
    "time64": (pa.time64("ns"), [dt.time(1, 2, 3), dt.time(0)]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    "duration": (pa.duration("ms"), [dt.timedelta(1), dt.timedelta(-1)]),
    "struct": (POINT, [{"x": 1, "name": None}, {"x": None, "name": "a"}, {"x": None, "name": None}]),
    "list": (pa.list_(pa.int32()), [[], [None], [1], [1, None], [None, 1], [1, 2]]),
    "large_list": (pa.large_list(pa.string()), [[], ["a"], [None]]),
    "fixed_list": (pa.list_(pa.float64(), 2), [[1.0, NAN], [NAN, 1.0], [1.0, None]]),
    "list_of_lists": (pa.list_(pa.list_(pa.int8())), [[[1], []], [[], [1]], [[1]], [None, [1]]]),
    "list_of_structs": (pa.list_(POINT), [[{"x": 1, "name": "a"}], [{"x": 1, "name": "b"}], [None]]),
    "struct_of_lists": (
        pa.struct([("a", pa.list_(pa.float32())), ("b", pa.struct([("c", pa.bool_())]))]),
        [{"a": [NAN], "b": None}, {"a": [NAN], "b": {"c": None}}, {"a": None, "b": {"c": True}}],
    ),
}


def same(left, right):
    return repr(left) == repr(right)


@pytest.mark.parametrize("name", VALUES)
def test_keys_are_equal_exactly_when_their_values_are(name):
    kind, values = VALUES[name]
    column = pa.array(values, kind)
    pairs = [(i, j) for i in range(len(values)) for j in range(len(values))]
    left, right = (np.array(rows) for rows in zip(*pairs, strict=True))

    equal = rows_equal(column, left, column, right)

    assert equal.tolist() == [i == j for i, j in pairs]


@pytest.mark.parametrize("name", VALUES)
def test_a_sliced_column_compares_like_a_whole_one(name):
    kind, values = VALUES[name]
    padded = pa.array([*values, *values, *values], kind).slice(len(values), len(values))
    plain = pa.array(values, kind)
    rows = np.arange(len(values))

    equal = rows_equal(padded, rows, plain, rows)
    unequal = rows_equal(padded, rows, plain, np.roll(rows, 1))

    assert equal.all()
    assert not unequal.any() or len(values) == 1


@pytest.mark.parametrize(
    ("kind", "given_values", "expected"),
    [
        (pa.float32(), [-0.0, NAN, 2.0], [0.0, NAN, 2.0]),
        (pa.float64(), [-0.0, None, NAN], [0.0, None, NAN]),
        (
            pa.struct([("a", pa.float64()), ("b", pa.string())]),
            [{"a": -0.0, "b": "x"}, None],
            [{"a": 0.0, "b": "x"}, None],
        ),
        (pa.list_(pa.float32()), [[-0.0], None, [], [NAN, None]], [[0.0], None, [], [NAN, None]]),
        (pa.large_list(pa.float64()), [[-0.0], [1.0]], [[0.0], [1.0]]),
        (pa.list_(pa.float64(), 2), [[-0.0, 1.0], None], [[0.0, 1.0], None]),
        (pa.list_(pa.struct([("a", pa.float64())])), [[{"a": -0.0}, None]], [[{"a": 0.0}, None]]),
        (pa.string(), ["a", None], ["a", None]),
    ],
)
def test_floats_become_canonical_at_any_depth_and_in_slices(kind, given_values, expected):
    whole = pa.array(given_values, kind)
    padded = pa.array([*given_values, *given_values, *given_values], kind).slice(len(given_values), len(given_values))

    results = canonical_floats(whole), canonical_floats(padded)

    for result in results:
        result.validate(full=True)
        assert result.type == kind
        assert same(result.to_pylist(), expected)


def test_every_nan_gets_the_same_bits():
    payloads = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF0000000000123], np.uint64).view(np.float64)

    result = canonical_floats(pa.array(payloads))

    assert set(np.frombuffer(result.buffers()[1], np.uint64, 3).tolist()) == {0x7FF8000000000000}


@settings(deadline=None)
@given(keys=st.lists(st.integers(0, 6), max_size=40), hash_count=st.integers(1, 4))
def test_a_batch_is_grouped_by_key_even_where_hashes_collide(keys, hash_count):
    column = pa.array([f"key {key}" for key in keys], pa.string())
    hashes = np.array([key % hash_count - 2 for key in keys], np.int64)

    batch = KeyBatch.of(hashes, [column])

    rows_of = {}
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    assert len(batch) == len(rows_of)
    assert batch.row_count == len(keys)
    assert batch.hashes.tolist() == sorted(batch.hashes.tolist())
    for group, text in enumerate(batch.columns[0].to_pylist()):
        key = int(text.removeprefix("key "))
        assert batch.order[batch.starts[group] : batch.starts[group + 1]].tolist() == rows_of[key]
        assert batch.hashes[group] == key % hash_count - 2
        assert batch.last_rows()[group] == rows_of[key][-1]
    assert [batch.columns[0][int(group)].as_py() for group in batch.groups()] == column.to_pylist()


@pytest.mark.parametrize("name", VALUES)
def test_keys_of_every_type_are_grouped_where_all_hashes_are_equal(name):
    kind, values = VALUES[name]
    column = pa.array(values * 2, kind)

    batch = KeyBatch.of(np.zeros(len(column), np.int64), [column])

    assert same(sorted(map(repr, batch.columns[0].to_pylist())), sorted(map(repr, pa.array(values, kind).to_pylist())))
    assert np.diff(batch.starts).tolist() == [2] * len(values)


def test_a_composite_key_is_compared_in_all_its_columns():
    a, b = pa.array([1, 1, 2, 2, 1]), pa.array(["x", "y", "x", "x", "x"])

    batch = KeyBatch.of(np.zeros(5, np.int64), [a, b])

    keys = [(x.as_py(), y.as_py()) for x, y in zip(*batch.columns, strict=True)]
    assert sorted(keys) == [(1, "x"), (1, "y"), (2, "x")]
    assert batch.last_rows()[keys.index((1, "x"))] == 4
