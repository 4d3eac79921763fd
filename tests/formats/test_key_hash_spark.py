"""The key hash and the key group against a running Spark, for keys that hypothesis makes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrowstate_formats import hash_columns, key_groups_of_hashes
from long_form import short_or_long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Draw = Callable[[st.SearchStrategy[Any]], Any]


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda unscaled: f"{unscaled}E-{scale}").map(_decimal)


def _decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


# The type of a column, and values that `pa.array` takes for it; times are given as integers.
FLAT: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), signed(8)),
    (pa.int16(), signed(16)),
    (pa.int32(), signed(32)),
    (pa.int64(), signed(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(18, 4), decimals(18, 4)),
    (pa.decimal128(19, 4), decimals(19, 4)),
    (pa.decimal128(38, 10), decimals(38, 10)),
    (pa.string(), st.text(st.characters(codec="utf-8"), max_size=80)),
    (pa.binary(), st.binary(max_size=80)),
    (pa.date32(), signed(32)),
    (pa.timestamp("us", "UTC"), signed(64)),
    (pa.timestamp("us"), signed(64)),
    (pa.duration("us"), signed(64)),
]


@st.composite
def key_columns(draw: Draw) -> list[pa.Array]:
    """One to four key columns with nulls, some of them lists or structs."""
    rows = draw(st.integers(1, 20))
    return [_column(draw, rows, depth=2) for _ in range(draw(st.integers(1, 4)))]


def _column(draw: Draw, rows: int, depth: int) -> pa.Array:
    nulls = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    shape = draw(st.sampled_from(["flat", "flat", "flat", "list", "struct"])) if depth else "flat"
    if shape == "list":
        lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        items = _column(draw, offsets[-1], depth - 1)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=pa.array(nulls, pa.bool_()))
    if shape == "struct":
        fields = [_column(draw, rows, depth - 1) for _ in range(draw(st.integers(1, 3)))]
        names = [f"f{index}" for index in range(len(fields))]
        return pa.StructArray.from_arrays(fields, names, mask=pa.array(nulls, pa.bool_()))
    arrow_type, values = draw(st.sampled_from(FLAT))
    drawn = draw(st.lists(values, min_size=rows, max_size=rows))
    kept = [None if null else value for null, value in zip(nulls, drawn, strict=True)]
    if pa.types.is_temporal(arrow_type):
        return pa.array(kept, pa.int32() if arrow_type.bit_width == 32 else pa.int64()).view(arrow_type)
    return pa.array(kept, arrow_type)


@settings(max_examples=short_or_long(20, 60), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(columns=key_columns())
def test_composite_and_nested_keys_hash_like_in_spark(spark: SparkSession, columns: list[pa.Array]) -> None:
    names = [f"c{index}" for index in range(len(columns))]
    frame = spark.createDataFrame(pa.table(columns, names=names))

    expected = frame.selectExpr(f"xxhash64({', '.join(names)}) AS hash").toArrow()["hash"]

    assert hash_columns(columns).tolist() == expected.to_pylist()


def test_every_flat_kind_hashes_like_in_spark(spark: SparkSession) -> None:
    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        columns = []
        for arrow_type, values in FLAT:
            drawn = data.draw(st.lists(st.none() | values, min_size=40, max_size=40))
            if pa.types.is_temporal(arrow_type):
                integers = pa.array(drawn, pa.int32() if arrow_type.bit_width == 32 else pa.int64())
                columns.append(integers.view(arrow_type))
            else:
                columns.append(pa.array(drawn, arrow_type))
        names = [f"c{index}" for index in range(len(columns))]
        frame = spark.createDataFrame(pa.table(columns, names=names))

        hashes = frame.selectExpr(*(f"xxhash64({name}) AS {name}" for name in names)).toArrow()

        for name, column in zip(names, columns, strict=True):
            assert (column.type, hash_columns([column]).tolist()) == (column.type, hashes[name].to_pylist())

    check()


def test_the_key_group_expression_of_the_specification_is_that_of_spark_sql(spark: SparkSession) -> None:
    hashes = pa.array([-(2**63), -(2**32) - 1, -1, 0, 2**32, 2**63 - 1, *range(-(2**63), 2**63, 2**57 + 3)])
    frame = spark.createDataFrame(pa.table({"hash": hashes}))

    for max_parallelism in (1, 128, 192, 32768):
        expression = f"CAST(((hash >> 32) + 2147483648) * {max_parallelism} >> 32 AS INT) AS key_group"
        found = frame.selectExpr(expression).toArrow()["key_group"]

        assert found.to_pylist() == key_groups_of_hashes(hashes.to_numpy(), max_parallelism).tolist()
