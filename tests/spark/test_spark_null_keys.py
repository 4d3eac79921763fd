"""Null keys as a group of their own: the sums of `group by`, over a restart, and what stands for null in each type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.spark import group_null_keys, keyed_sink

SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


def rows_of(*rows: tuple[int | None, str | None, int]) -> pa.Table:
    kinds = (pa.int64(), pa.string(), pa.int64())
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.table(columns, ["k", "name", "total"])


def test_null_is_a_group_beside_zero_and_the_empty_text_over_a_restart(stream: Any) -> None:
    stream.schema = "k long, name string, total long"
    stream.add(rows_of((None, "a", 1), (0, "a", 2), (None, None, 4), (0, "", 8)), rows_of((None, "a", 16)))

    def run(parallelism: int) -> None:
        frame, key = group_null_keys(stream.frame(), ["k", "name"])
        sink = keyed_sink(frame, store=stream.store, uid="op", key=key, states=[SUM], parallelism=parallelism)
        query = sink.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    run(2)
    stream.add(rows_of((None, None, 32), (0, None, 64)))
    run(3)

    store = arrowstate.open_store(stream.store)
    found = store.sql(
        "select if(k_is_null, null, k) as k, if(name_is_null, null, name) as name, total from op.total"
    ).fetchall()
    assert {(k, name): total for k, name, total in found} == {
        (None, "a"): 17,
        (0, "a"): 2,
        (None, None): 36,
        (0, ""): 8,
        (0, None): 64,
    }
    assert store.sql("select count(*) from op.total where k = 0 and not k_is_null").fetchall() == [(3,)]


def test_each_type_has_what_stands_for_null(spark: Any) -> None:
    numbers = ["byte", "short", "int", "long", "float", "double", "decimal(9,2)", "boolean"]
    kinds = [*numbers, "string", "binary", "date", "timestamp", "timestamp_ntz"]
    names = [f"c{number}" for number in range(len(kinds))]
    frame = spark.createDataFrame(
        [(None,) * len(kinds)], ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    )

    grouped, key = group_null_keys(frame, names)

    assert key == [part for name in names for part in (name, f"{name}_is_null")]
    assert [grouped.schema[name].dataType for name in names] == [frame.schema[name].dataType for name in names]
    (row,) = grouped.collect()
    assert all(row[f"{name}_is_null"] for name in names)
    assert None not in row


def test_what_stands_for_null_is_the_same_in_each_time_zone_of_the_session(spark: Any) -> None:
    kinds = {"at": "timestamp", "local": "timestamp_ntz", "day": "date"}
    frame = spark.createDataFrame([(None,) * len(kinds)], ", ".join(f"{name} {kinds[name]}" for name in kinds))
    zone = spark.conf.get("spark.sql.session.timeZone")
    found = []
    try:
        for zone_of_session in ("UTC", "America/New_York", "Asia/Kathmandu"):
            spark.conf.set("spark.sql.session.timeZone", zone_of_session)
            grouped, _ = group_null_keys(frame, list(kinds))
            rows = grouped.selectExpr("unix_micros(at)", "string(local)", "string(day)").collect()
            found.append(tuple(rows[0]))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    assert found == [(0, "1970-01-01 00:00:00", "1970-01-01")] * 3


def test_what_cannot_stand_for_null_or_cannot_be_null_is_told(spark: Any) -> None:
    frame = spark.range(2).selectExpr("id", "struct(id) as s", "id as n", "true as n_is_null")

    same, key = group_null_keys(frame, ["id"])
    assert (same.columns, key) == (frame.columns, ["id"])
    nullable = frame.selectExpr("nullif(id, 0) as id", "if(id = 0, null, s) as s", "nullif(n, 0) as n", "n_is_null")
    with pytest.raises(InvalidInputError, match="no column 'nobody'; it has id, s, n, n_is_null"):
        group_null_keys(nullable, ["nobody"])
    with pytest.raises(InvalidInputError, match="'s' is struct<id:bigint>; where it is null nothing stands for it"):
        group_null_keys(nullable, ["s"])
    with pytest.raises(InvalidInputError, match="'n_is_null', which is to say where 'n' is null; rename it"):
        group_null_keys(nullable, ["n"])
