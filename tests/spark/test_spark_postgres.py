"""Streams of Spark into PostgreSQL: each micro-batch once, whatever dies in between, and what does not fit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import arrowstate
import killed_driver
from arrowstate.errors import InvalidInputError, UnavailableError
from arrowstate.runtime import Job, OutputTable, TableSource
from arrowstate.spark import postgres_sink
from killed_driver import copy_of, files_of
from spark_files import add_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files, each with rows of its own."""
    for number in range(4):
        rows = {"k": [0, 1, number], "n": [3 * number, 3 * number + 1, 3 * number + 2], "v": [number] * 3}
        add_file(tmp_path, number, pa.table(rows, ROWS))
    return tmp_path


@pytest.fixture
def copy(connection: Any) -> Any:
    connection.execute("create table copy (k bigint, n bigint, v bigint)")
    return lambda: Counter(n for (n,) in connection.execute("select n from copy").fetchall())


@pytest.mark.slow
def test_a_driver_killed_between_the_transaction_and_spark_leaves_each_row_once(
    spark: SparkSession, folder: Path, database: str, copy: Any
) -> None:
    driver = [sys.executable, killed_driver.__file__, str(folder), "1", database]

    killed = subprocess.run(driver, check=False, capture_output=True)
    between, known = copy(), {path.name for path in (folder / "spark" / "commits").glob("[0-9]*")}
    query = copy_of(files_of(spark, folder), folder, database)
    query.awaitTermination()

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (sum(between.values()), known) == (6, {"0"})
    assert [progress["batchId"] for progress in query.recentProgress] == [1, 2, 3]
    assert copy() == Counter(range(12))


def test_a_micro_batch_that_postgres_refuses_leaves_nothing_and_comes_again(
    spark: SparkSession, folder: Path, database: str, copy: Any, connection: Any
) -> None:
    from pyspark.errors import StreamingQueryException

    connection.execute("alter table copy add check (n <> 4)")
    with pytest.raises(StreamingQueryException, match="copy_n_check"):
        copy_of(files_of(spark, folder), folder, database).awaitTermination()
    before = copy()
    connection.execute("alter table copy drop constraint copy_n_check")
    copy_of(files_of(spark, folder), folder, database).awaitTermination()

    assert sum(before.values()) == 3
    assert copy() == Counter(range(12))


def test_a_query_with_another_checkpoint_is_another_one(
    spark: SparkSession, folder: Path, database: str, copy: Any
) -> None:
    for other in ("one", "two"):
        (folder / other).mkdir()
        copy_of(files_of(spark, folder), folder / other, database).awaitTermination()

    assert copy() == Counter([*range(12), *range(12)])


def test_rows_of_an_output_table_replace_those_of_their_keys(
    spark: SparkSession, tmp_path: Path, database: str, connection: Any
) -> None:
    connection.execute("create table totals (k bigint primary key, v bigint)")
    changes = pa.table(
        {"k": [1, 2, 1, 2], "v": [3, 5, 4, 5], "kind": ["insert", "insert", "update_postimage", "delete"]}
    )
    job = Job(tmp_path / "store")
    job.source(TableSource(changes), uid="changes").sink(OutputTable("changed"))
    job.run(mode="inline")
    arrowstate.spark.register(spark)
    stream = spark.readStream.format("arrowstate").option("output", "changed").load(str(tmp_path / "store"))

    writer = postgres_sink(stream, database, "totals", uid="totals", key=["k"], operation="kind")
    writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True).start().awaitTermination()

    assert connection.execute("select * from totals").fetchall() == [(1, 4)]
    ((sink, subtask, _),) = connection.execute("select * from arrowstate_commits").fetchall()
    assert (sink.partition("/")[2], subtask) == ("totals", 0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"table": "nothing"}, "there is no table 'nothing'"),
        ({"key": ["x"]}, "sink 'copy': key is 'x', and the rows have only k, n, v"),
        ({"key": ["k"]}, "needs a primary key or a unique index"),
        ({"operation": "v"}, "operation= needs key="),
        ({"uid": ""}, "uid must be a text that is not empty"),
        ({"conninfo": "x://"}, "needs a conninfo that libpq can read"),
    ],
)
def test_what_does_not_fit_is_told_before_the_query_starts(
    spark: SparkSession, folder: Path, database: str, copy: Any, options: dict[str, Any], problem: str
) -> None:
    given = {"conninfo": database, "table": "copy", "uid": "copy", **options}

    with pytest.raises(InvalidInputError, match=problem):
        postgres_sink(files_of(spark, folder), **given)


def test_a_table_is_no_stream(spark: SparkSession, database: str, copy: Any) -> None:
    with pytest.raises(InvalidInputError, match="needs a stream"):
        postgres_sink(spark.range(3), database, "copy", uid="copy")


def test_a_server_that_is_away_is_told(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(UnavailableError, match="PostgreSQL"):
        postgres_sink(files_of(spark, folder), f"host={folder} dbname=x", "copy", uid="copy")
