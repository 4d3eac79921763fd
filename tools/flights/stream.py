"""The stream of the demo: two stateful queries over the flights from New York in 2013.

Run as a program of its own, `python -m flights.stream`, so that the demo can kill it. It processes
the files that are in the input folder now, one file per micro-batch, and ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from arrowstate.schema.descriptors import ReducingStateDescriptor
from arrowstate.spark.java import ensure_java
from arrowstate.spark.sink.keyed_sink import keyed_sink

__all__ = ["DELAYS", "QUERIES", "main"]

QUERIES = {"aircraft": ["tailnum"], "routes": ["origin", "dest", "carrier"]}
"""By operator uid the key columns of a query; each query has a store of that name."""

DELAYS = ReducingStateDescriptor(
    "delays",
    pa.struct(
        [
            ("flights", pa.int64()),
            ("total_delay", pa.int64()),
            ("shortest_delay", pa.int64()),
            ("longest_delay", pa.int64()),
            ("last_departure", pa.timestamp("us", tz="UTC")),
        ]
    ),
    reduce={
        "flights": "count",
        "total_delay": "sum",
        "shortest_delay": "min",
        "longest_delay": "max",
        "last_departure": "max",
    },
)
"""Arrival delays in minutes; a flight that did not leave or arrive counts as a flight and adds nothing else."""

_SCHEMA = (
    "tailnum string, origin string, dest string, carrier string, dep_time bigint, arr_delay bigint, "
    "minute bigint, time_hour timestamp"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both queries over the files that are there, then end."""
    parser = argparse.ArgumentParser(prog="python -m flights.stream", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds input/, and gets stores/ and spark/")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--max-parallelism", type=int, default=128)
    options = parser.parse_args(arguments)
    ensure_java()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(options.parallelism))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    flights = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(options.folder / "input"))
    queries = [
        _start(flights, options.folder, uid, key, options.parallelism, options.max_parallelism)
        for uid, key in QUERIES.items()
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


def _start(
    flights: DataFrame, folder: Path, uid: str, key: list[str], parallelism: int, max_parallelism: int
) -> StreamingQuery:
    departure = sf.expr("if(dep_time is null, null, timestampadd(MINUTE, cast(minute as int), time_hour))")
    # A key must not be null: flights that were never given an aircraft are left out.
    stream = flights.dropna(subset=key).select(
        *key,
        sf.lit(1).cast("bigint").alias("flights"),
        sf.col("arr_delay").alias("total_delay"),
        sf.col("arr_delay").alias("shortest_delay"),
        sf.col("arr_delay").alias("longest_delay"),
        departure.alias("last_departure"),
    )
    sink = keyed_sink(
        stream,
        store=str(folder / "stores" / uid),
        uid=uid,
        key=key,
        states=[DELAYS],
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    return (
        sink.queryName(uid).option("checkpointLocation", str(folder / "spark" / uid)).trigger(availableNow=True).start()
    )


if __name__ == "__main__":
    main()
