"""A keyed sink that is started again with another schema, and Spark's reader over rows of several versions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import IncompatibleStateError

NARROW = arrowstate.ReducingStateDescriptor("totals", pa.struct([("v", pa.int32())]), reduce={"v": "sum"})
WIDE = arrowstate.ReducingStateDescriptor(
    "totals",
    pa.struct([("n", pa.int64()), ("v", pa.int64()), ("low", pa.int64())]),
    reduce={"n": "count", "v": "sum", "low": "min"},
    evolution=arrowstate.SchemaEvolution(defaults={"low": -5000}),
)


def totals(rows: list[pa.Table], *, narrow: int) -> dict[int, tuple[int | None, int, int]]:
    """Count, sum and least of `v` by `k` in plain Python; the first `narrow` tables are summed alone."""
    found: dict[int, tuple[int | None, int, int]] = {}
    for number, table in enumerate(rows):
        for row in table.to_pylist():
            n, v, low = found.get(row["k"], (None, 0, 1 << 40))
            if number < narrow:
                found[row["k"]] = (None, v + row["v"], -5000)
            else:
                found[row["k"]] = ((n or 0) + 1, v + row["v"], min(low, row["v"]))
    return found


def test_a_sink_started_with_a_wider_state_goes_on_and_spark_reads_both_versions(stream: Any, make_rows: Any) -> None:
    from pyspark.sql import functions as sf

    tables = [make_rows(seed, count=400, keys=keys).drop_null() for seed, keys in enumerate((300, 20, 20))]
    stream.add(tables[0])
    narrow = stream.frame().withColumn("v", sf.col("v").cast("int"))
    stream.run(states=[NARROW], frame=narrow, parallelism=2)
    stream.add(*tables[1:])
    frame = stream.frame().withColumn("low", sf.col("v"))

    stream.run(states=[WIDE], frame=frame, parallelism=2)

    snapshot = arrowstate.open_store(stream.store).latest()
    versions = snapshot.show()["operators"][0]["states"][0]["schema_versions"]
    assert [version["runs"] > 0 for version in versions] == [True, True]
    expected = totals(tables, narrow=1)
    stored = {row["k"]: (row["n"], row["v"], row["low"]) for row in snapshot.to_arrow("counter.totals").to_pylist()}
    assert stored == expected
    reader = stream.spark.read.format("arrowstate").option("operator", "counter").load(str(stream.store))
    assert {row["k"]: (row["n"], row["v"], row["low"]) for row in reader.collect()} == expected
    assert reader.filter("low = -5000").count() == sum(low == -5000 for _, _, low in expected.values())
    assert reader.select("n").filter("n is null").count() == sum(n is None for n, _, _ in expected.values())


def test_a_sink_started_with_a_narrower_state_is_refused(stream: Any, make_rows: Any) -> None:
    from pyspark.sql import functions as sf

    stream.add(make_rows(0))
    stream.run(states=[arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")])
    before = arrowstate.open_store(stream.store).latest().to_arrow("counter.v")

    narrow = stream.frame().withColumn("v", sf.col("v").cast("int"))
    with pytest.raises(IncompatibleStateError, match="'v' is int64 but is declared as int32"):
        stream.start(states=[arrowstate.ReducingStateDescriptor("v", pa.int32(), reduce="sum")], frame=narrow)

    assert arrowstate.open_store(stream.store).latest().to_arrow("counter.v").equals(before)
