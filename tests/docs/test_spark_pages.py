"""The examples of docs/spark and of the README, which need a session: run as they are printed, page by page."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from page_examples import run_page, servers_of, spark_pages

NOW = datetime.datetime(2026, 3, 1, 11, tzinfo=datetime.UTC)


def write(folder: Path, **columns: Any) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "rows.parquet")


@pytest.fixture
def names(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a page may use that it does not make: a session, and the files of its streams below `/data`."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "payments", user=["ann", "bob", "ann"], amount=[1, 2, 3], expires_ms=[1, 2, 3], at=[NOW] * 3)
    write(tmp_path / "history", user=["ann", "bob", "ann"], amount=[1, 2, 3])
    amount = pa.array([5], pa.decimal128(12, 2))
    write(
        tmp_path / "orders", customer=["ann"], order_id=[1], amount=amount, _change_type=["insert"], _commit_version=[1]
    )
    spark.sql("drop table if exists orders")
    yield {"spark": spark}
    for query in spark.streams.active:
        query.stop()
    spark.sql("drop table if exists orders")


# A page that goes on where another one ended.
TOGETHER = {"docs/spark/operators.md": ["docs/spark/reading.md"]}
AFTER = [page for pages in TOGETHER.values() for page in pages]


@pytest.mark.turns(2)
@pytest.mark.parametrize("page", [page for page in spark_pages() if page not in AFTER])
def test_every_example_of_a_page_on_spark_gives_what_it_shows(
    page: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == "docs/spark/loading.md":
        run_old_query(names["spark"], tmp_path)

    with servers_of(page) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for each in [page, *TOGETHER.get(page, [])]:
            assert run_page(each, dict(names)) > 0


def test_the_example_of_the_readme_keeps_the_totals_that_it_says(names: dict[str, Any], tmp_path: Path) -> None:
    run_page("README.md", names)
    names["query"].processAllAvailable()

    totals = arrowstate.open_store(tmp_path / "stores" / "payments").sql("select user, total from totals.total")

    assert sorted(totals.fetchall()) == [("ann", 4), ("bob", 2)]


def run_old_query(spark: Any, folder: Path) -> None:
    """Leave the checkpoint of a query of Spark's own, of the sums of the history."""
    from pyspark.sql import functions as sf

    rows = spark.readStream.schema("user string, amount long").parquet(str(folder / "history")).groupBy("user")
    query = rows.agg(sf.sum("amount").alias("total")).writeStream.format("memory").outputMode("complete")
    query = query.queryName("old_query").option("checkpointLocation", str(folder / "old-query" / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
