"""The README's Spark blocks, as they are printed but for the place of their folders, one after the other."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate

ROOT = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 3, 1, 11, tzinfo=datetime.UTC)


def blocks() -> list[str]:
    """The Python blocks that are no dialogue."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [block for block in found if not block.startswith(">>>")]


def write(folder: Path, **columns: Any) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "rows.parquet")


def test_every_spark_block_of_the_readme_runs_as_printed(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from pyspark.sql import functions as sf

    # The block that reads as of a time names one.
    monkeypatch.setattr("arrowstate.spark.operators.query.now_ms", lambda: int(NOW.timestamp() * 1000))
    write(tmp_path / "payments", user=["ann", "bob", "ann"], amount=[1, 2, 3], expires_ms=[1, 2, 3], at=[NOW] * 3)
    write(tmp_path / "history", user=["ann", "bob", "ann"], amount=[1, 2, 3])
    amount = pa.array([5], pa.decimal128(12, 2))
    write(
        tmp_path / "orders", customer=["ann"], order_id=[1], amount=amount, _change_type=["insert"], _commit_version=[1]
    )
    spark.sql("drop table if exists orders")
    spark.sql(f"create table orders using parquet location '{tmp_path / 'orders'}'")
    old = spark.readStream.schema("user string, amount long").parquet(str(tmp_path / "history")).groupBy("user")
    old = old.agg(sf.sum("amount").alias("total")).writeStream.format("memory").outputMode("complete")
    old = old.queryName("readme_old").option("checkpointLocation", f"{tmp_path}/data/old-query/checkpoint")
    old.trigger(availableNow=True).start().awaitTermination()
    names: dict[str, Any] = {
        "spark": spark,
        "schema": "user string, amount long, expires_ms long, at timestamp",
        "store": f"{tmp_path}/data/stores/payments",
        "total": arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"),
        "F": sf,
    }

    def run(block: str) -> None:
        moved = block.replace('"/data/', f'"{tmp_path}/data/').replace('.parquet("', f'.parquet("{tmp_path}/')
        exec(compile(moved, "README.md", "exec"), names)

    def stored(store: str) -> list[Any]:
        return arrowstate.open_store(store).sql("select user, total from totals.total order by user").fetchall()

    try:
        operator, sink, reads, start, taken_over, progress = blocks()
        run(operator)
        names["query"].processAllAvailable()
        assert stored(names["store"]) == [("ann", 4), ("bob", 2)]
        run(sink)
        opened = arrowstate.open_store(names["store"])
        for tag in ("41", "44"):
            opened.tag(tag, opened.latest().checkpoint_id)
        run(reads)
        run(progress)
        names["store"] = f"{tmp_path}/data/stores/history"
        run(start)
        assert stored(names["store"]) == [("ann", 4), ("bob", 2)]
        names["store"] = f"{tmp_path}/data/stores/taken-over"
        run(taken_over)
        assert stored(names["store"]) == [("ann", 4), ("bob", 2)]
    finally:
        if "query" in names:
            names["query"].stop()
        spark.sql("drop table if exists orders")
