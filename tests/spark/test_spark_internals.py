"""What PySpark does not promise to keep, each claim by itself: a test that fails here names what an upgrade changed."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arrowstate.spark.pyspark_internals import ROW_NUMBER, context_of, has_file, of_kind, times_of_batch


def test_a_classic_session_has_its_context(spark: Any) -> None:
    assert context_of(spark) is spark.sparkContext


def test_what_has_no_context_is_a_session_of_spark_connect() -> None:
    assert context_of(object()) is None  # type: ignore[arg-type]


def test_the_query_of_the_jvm_has_the_times_of_its_micro_batch(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0))
    seen = []

    def note(frame: Any, _: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        # The frame is of a session of its own, which knows of no query.
        seen.append(times_of_batch(stream.spark, query_id))

    writer = stream.frame().writeStream.option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).foreachBatch(note).start().awaitTermination()

    logged = json.loads((stream.checkpoint / "offsets" / "0").read_text().splitlines()[1])
    assert seen == [(logged["batchWatermarkMs"], logged["batchTimestampMs"])]


def test_the_jvm_has_no_query_of_another_id(spark: Any) -> None:
    assert times_of_batch(spark, "00000000-0000-0000-0000-000000000000") is None


def test_the_jvm_finds_a_file_where_there_is_one(spark: Any, tmp_path: Any) -> None:
    (tmp_path / "there").touch()

    assert has_file(spark, f"file:{tmp_path}/there")
    assert not has_file(spark, f"file:{tmp_path}/elsewhere")


def test_the_parquet_reader_numbers_the_rows_of_a_file(spark: Any, tmp_path: Any) -> None:
    table = pa.table({"k": range(100, 1100)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=300)

    frame = spark.read.schema(f"k long, {ROW_NUMBER} long").parquet(f"{tmp_path}/rows.parquet")

    # The second row group and half of the third, chosen by a filter that is pushed down.
    rows = frame.where("k between 400 and 850").select(ROW_NUMBER).toArrow()[0]
    assert sorted(rows.to_pylist()) == [*range(300, 751)]


def test_a_writer_and_its_query_may_be_of_a_subclass(stream: Any, make_rows: Any) -> None:
    stream.add(make_rows(0))
    writer = stream.frame().writeStream.format("noop").option("checkpointLocation", str(stream.checkpoint))
    named = of_kind(writer, type("Named", (type(writer),), {}), told="mine")

    query = named.trigger(availableNow=True).start()
    copy = of_kind(query, type("NamedQuery", (type(query),), {}), told="mine")
    copy.awaitTermination()

    assert (named.told, copy.told, copy.id) == ("mine", "mine", query.id)
