import datetime
import decimal
import math
import uuid

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrowstate
from arrowstate.query.duckdb.filters import Bounds, as_sql, columns_of, evaluate, may_match, read_filter, values_of

A, B = pc.field("a"), pc.field("b")
MIDNIGHT = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def is_in(field, values):
    """What DuckDB makes of `field in (...)`."""
    inside = pc.is_in(field, value_set=pa.array(values))
    return pc.if_else(field.is_valid(), inside, pa.scalar(None, pa.bool_()))


def comparisons():
    values = st.integers(-3, 3)
    return st.one_of(
        st.builds(lambda f, v: f == v, st.sampled_from([A, B]), values),
        st.builds(lambda f, v: f != v, st.sampled_from([A, B]), values),
        st.builds(lambda f, v: f < v, st.sampled_from([A, B]), values),
        st.builds(lambda f, v: f <= v, st.sampled_from([A, B]), values),
        st.builds(lambda f, v: f > v, st.sampled_from([A, B]), values),
        st.builds(lambda f, v: f >= v, st.sampled_from([A, B]), values),
        st.builds(lambda f, v: pc.scalar(v) < f, st.sampled_from([A, B]), values),
        st.builds(is_in, st.sampled_from([A, B]), st.lists(values, min_size=1, max_size=4)),
        st.sampled_from([A.is_null(), B.is_valid(), pc.scalar(True), pc.scalar(False)]),
        st.just(pa.scalar(None, pa.int64()) == A),
    )


filters = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(lambda x, y: x & y, inner, inner),
        st.builds(lambda x, y: x | y, inner, inner),
        st.builds(lambda x: ~x, inner),
    ),
    max_leaves=6,
)
keys = st.integers(-3, 3)
rows = st.lists(st.tuples(keys, st.none() | keys), min_size=1, max_size=8)


def table_of(pairs):
    return pa.table(
        {"a": pa.array([a for a, _ in pairs], pa.int64()), "b": pa.array([b for _, b in pairs], pa.int64())}
    )


def passing(table, expression):
    return ds.InMemoryDataset(table).to_table(filter=expression).to_pylist()


@given(filters)
def test_a_filter_of_comparisons_is_read(expression):
    node = read_filter(expression)

    assert node is not None
    assert columns_of(node) <= {"a", "b"}


@given(filters, rows)
def test_evaluate_passes_the_rows_that_arrow_passes(expression, pairs):
    table = table_of(pairs)

    passes = evaluate(read_filter(expression), table.to_batches()[0])

    assert table.filter(passes).to_pylist() == passing(table, expression)


@given(filters, rows)
def test_the_values_of_a_column_hold_all_that_pass(expression, pairs):
    values = values_of(read_filter(expression), "a", pa.int64())

    if values is not None:
        assert len(set(values.to_pylist())) == len(values)
        assert {row["a"] for row in passing(table_of(pairs), expression)} <= set(values.to_pylist())


@given(filters, st.lists(rows, min_size=1, max_size=4), st.booleans())
def test_a_batch_that_cannot_match_has_no_row_that_passes(expression, batches, known):
    def bounds(column):
        found = [
            [value for value in batch[column].to_pylist() if value is not None] for batch in map(table_of, batches)
        ]
        return Bounds(
            pa.int64(),
            np.array([bool(values) and known for values in found]),
            np.array([min(values, default=None) for values in found], dtype=object),
            np.array([max(values, default=None) for values in found], dtype=object),
        )

    match = may_match(read_filter(expression), {"a": bounds("a"), "b": bounds("b")}, len(batches))

    for batch, may in zip(batches, match, strict=True):
        assert may or not passing(table_of(batch), expression)


def test_equality_and_in_limit_the_values():
    def values(expression):
        return sorted(values_of(read_filter(expression), "a", pa.int64()).to_pylist())

    assert values(A == 3) == [3]
    assert values((A == 3) | (A == 4)) == [3, 4]
    assert values(is_in(A, [1, 2, 2]) & (B > 7)) == [1, 2]
    assert values(is_in(A, [1, 2, 3]) & is_in(A, [2, 3, 4])) == [2, 3]
    assert values((A == 1) & (A == 2)) == []
    assert values_of(read_filter((A == 3) | (B == 4)), "a", pa.int64()) is None
    assert values_of(read_filter(~(A == 3)), "a", pa.int64()) is None
    assert values_of(read_filter(A > 3), "a", pa.int64()) is None


def test_bounds_rule_batches_out():
    bounds = {"a": Bounds(pa.int64(), np.array([True, True, False]), np.array([0, 10, 0]), np.array([9, 19, 0]))}

    def may(expression):
        return may_match(read_filter(expression), bounds, 3).tolist()

    assert may(A == 12) == [False, True, True]
    assert may(is_in(A, [3, 30])) == [True, False, True]
    assert may((A >= 9) & (A < 10)) == [True, False, True]
    assert may((A > 100) | (B == 1)) == [True, True, True]
    assert may((A > 100) & (B == 1)) == [False, False, True]
    assert may(pc.scalar(10) > A) == [True, False, True]
    assert may(A == "text") == [True, True, True]


@pytest.mark.parametrize(
    ("kind", "low", "high", "inside", "outside"),
    [
        (pa.date32(), 0, 10, datetime.date(1970, 1, 5), datetime.date(1971, 1, 1)),
        (pa.timestamp("us"), 0, 10**6, datetime.datetime(1970, 1, 1), datetime.datetime(1980, 1, 1)),
        (pa.timestamp("ms", "UTC"), 0, 9, MIDNIGHT, MIDNIGHT.replace(year=1980)),
        (pa.time64("us"), 0, 10**6, datetime.time(0, 0, 1), datetime.time(0, 0, 2)),
        (pa.string(), "b", "d", "c", "a"),
        (pa.float64(), 0.5, 1.5, 1.0, 2.0),
        (pa.decimal128(10, 2), None, None, decimal.Decimal("1.00"), None),
    ],
)  # fmt: skip
def test_bounds_of_other_types_are_compared_as_they_are_stored(kind, low, high, inside, outside):
    bounds = {"a": Bounds(kind, np.array([low is not None]), np.array([low], object), np.array([high], object))}

    assert may_match(read_filter(pa.scalar(inside) == A), bounds, 1).tolist() == [True]
    if outside is not None:
        assert may_match(read_filter(pa.scalar(outside) == A), bounds, 1).tolist() == [False]


@pytest.mark.parametrize("name", ["a", "a b", 'a"b', "a'b", "ä€", "end", "0", "x: 'y'", "call: 'equal'", ".a[0]"])
def test_a_column_of_any_name_is_read(name):
    node = read_filter(pc.field(name) == "it's: 'x'")

    assert columns_of(node) == {name}
    assert values_of(node, name, pa.string()).to_pylist() == ["it's: 'x'"]


@pytest.mark.parametrize("expression", [pc.add(A, 1) == 2, pc.field("new\nline") == 1, pc.match_substring(A, "x")])
def test_a_filter_that_is_not_understood_is_left_to_arrow(expression):
    assert read_filter(expression) is None


def day_and_number_rows():
    """A store of two rows, and its rows as a table."""
    day = datetime.date(2024, 1, 1)
    kind = pa.struct(
        [("d32", pa.date32()), ("d64", pa.date64()), ("i", pa.int64()), ("f", pa.float32()), ("b", pa.bool_())]
    )
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    values = [{"d32": day, "d64": day, "i": number, "f": 0.1, "b": True} for number in (1, None)]
    backend.state(arrowstate.ValueStateDescriptor("v", kind)).update_batch([1, 2], pa.array(values, kind))
    with arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True).writer() as writer:
        return writer.checkpoint({"op": [backend]})


NOON = datetime.datetime(2024, 1, 1, 12)
DAYS = [field for name in ("d32", "d64") for field in (pc.field(name), pc.field(name).cast(pa.timestamp("ms")))]
UNEQUAL_TYPES = {
    **{f"{field} before noon": field < NOON for field in DAYS},
    **{f"noon after {field}": pc.scalar(NOON) > field for field in DAYS},
    **{f"{field} not after noon": ~(field >= NOON) for field in DAYS},
    "in numbers and null": pc.field("i").isin([9, None]),
    "in null": pc.field("i").isin(pa.array([None], pa.int64())),
    "in doubles": pc.field("f").isin([0.1]),
    "in doubles and NaN": pc.field("f").isin([math.nan, 0.1, 3.0]),
    "in numbers for truth": pc.field("b").isin([5]),
    "in other numbers": pc.field("i").isin(pa.array([1, 2], pa.int8())),
}


@pytest.mark.parametrize("condition", UNEQUAL_TYPES.values(), ids=UNEQUAL_TYPES)
def test_a_filter_with_values_of_another_type_finds_what_arrow_finds(condition):
    snapshot = day_and_number_rows()
    expected = snapshot.to_arrow("op.v").filter(condition)

    found = snapshot["op.v"].dataset().to_table(filter=condition)

    assert found.num_rows == expected.num_rows > 0


@pytest.mark.parametrize("name", ["d32", "d64"])
def test_polars_finds_the_days_before_a_time_of_day(name):
    snapshot = day_and_number_rows()
    condition = pl.col(name).cast(pl.Datetime("ms")) < NOON if name == "d32" else pl.col(name) < NOON

    assert snapshot["op.v"].lazy().filter(condition).collect().height == 2


def test_nan_is_the_greatest_number_of_sql_in_conditions_and_edits(tmp_path):
    value = pa.struct([("d", pa.float64()), ("deep", pa.struct([("f", pa.float32())]))])
    numbers = {"a": 1.5, "b": math.nan, "c": 3.0, "e": math.inf, "n": None}
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", value)).update_batch(
        list(numbers), pa.array([{"d": number, "deep": {"f": number}} for number in numbers.values()], value)
    )
    store = arrowstate.open_store(tmp_path / "store", create=True)
    with store.writer() as writer:
        snapshot = writer.checkpoint({"op": [backend]})

    for condition, found in {
        "{} > 1": "abce",
        "1.5 < {}": "bce",
        "{} >= 3": "bce",
        "{} > 'inf'": "b",
        "{} >= 'nan'": "b",
        "{} < 'nan'": "ace",
        "not ({} <= 1.5)": "bce",
        "{} between 2 and 'nan'": "bce",
        "{} > 1 and {} < 4": "ac",
        "{} > 3 or {} is null": "ben",
        "{} = 'nan'": "b",
    }.items():
        for column in ("d", "deep.f"):
            rows = snapshot.sql(f"select k from op.v where {condition.replace('{}', column)} order by k").fetchall()
            assert "".join(key for (key,) in rows) == found, (condition, column)
    with store.edit() as edit:
        edit.delete("op.v", where="d > 1.5")
        assert edit.snapshot.sql("select k from op.v order by k").fetchall() == [("a",), ("n",)]


def test_a_condition_on_numbers_still_leaves_out_what_bounds_exclude_where_nan_passes_it():
    node = read_filter(as_sql(pc.field("f") > 5.0))
    known = np.array([True, True, False])
    bounds = {"f": Bounds(pa.float64(), known, np.array([0.0, 4.0, None]), np.array([3.0, 9.0, None]))}

    assert may_match(node, bounds, 3).tolist() == [False, True, True]
