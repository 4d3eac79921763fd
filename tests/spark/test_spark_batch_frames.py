"""The rows of a micro-batch as a DataFrame: what it costs does not depend on what the output table has before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.clock import new_id
from arrowstate.files.output_tables import OutputTable, write_output
from arrowstate.spark.outputs import frame_of
from arrowstate.storage import open_storage

TABLE = OutputTable("changes", pa.schema([("n", pa.int64())]), is_kept=True)
PART_ROWS = 70_000
"""Over half of what goes from the driver to Spark as it is."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frames")


@pytest.fixture(scope="module")
def parts(store: Path) -> list[Any]:
    """Four parts of a table with the numbers from 0 on."""
    storage = open_storage(str(store))
    numbers = [np.arange(PART_ROWS) + number * PART_ROWS for number in range(4)]
    return [write_output(storage, TABLE, pa.table({"n": rows}), new_id=new_id, paths=[]) for rows in numbers]


@pytest.mark.parametrize(
    ("first", "partitions"), [(4 * PART_ROWS - 7, None), (3 * PART_ROWS, None), (2 * PART_ROWS + 5, 2), (0, 4)]
)
def test_only_the_parts_of_the_rows_are_read(
    spark: Any, store: Path, parts: list[Any], first: int, partitions: int | None
) -> None:
    frame = frame_of(spark, TABLE, parts, first, str(store), None)

    # What the driver has read by itself is no job for Python.
    plan = frame._jdf.queryExecution().toString()
    assert ("MapInArrow" in plan) == (partitions is not None)
    assert partitions in (None, frame.rdd.getNumPartitions())
    assert frame.toArrow()["n"].to_pylist() == list(range(first, 4 * PART_ROWS))


def test_after_the_last_row_there_is_none(spark: Any, store: Path, parts: list[Any]) -> None:
    assert frame_of(spark, TABLE, parts, 4 * PART_ROWS, str(store), None).collect() == []
