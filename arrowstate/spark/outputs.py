"""Rows that are read by tasks, such as those of an output table, as a DataFrame of Spark; and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.files.output_tables import OutputTable, output_rows
from arrowstate.spark.schemas import schema_for_spark, spark_schema
from arrowstate.spark.workers import own_python
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import OperatorPartDocument, OperatorStateDocument, pack, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["arrow_table", "frame_by_tasks", "frame_of"]

_LOCAL_BYTES = 1 << 20
"""Rows up to this size go from the driver to Spark as they are; more are read by Spark's workers."""


def frame_of(
    session: SparkSession,
    table: OutputTable,
    parts: Sequence[OperatorPartDocument],
    first: int,
    store: str,
    storage_options: Mapping[str, Any] | None,
) -> DataFrame:
    """Return a DataFrame of the rows of an output from a number on, as they are in these parts for ever."""
    before = 0
    while before < len(parts) and first >= parts[before].rows:
        first -= parts[before].rows
        before += 1
    # What came in earlier micro-batches, which may be much, costs nothing.
    parts = parts[before:]
    document = table.document(parts).operator_states[0] if parts else None
    counts = [part.rows for part in parts]
    total = sum(counts)
    schema = spark_schema(table.columns)
    target = schema_for_spark(schema)
    if document is None or first >= total:
        return session.createDataFrame([], schema)
    # Before PySpark 4.0 it takes no Arrow tables.
    if hasattr(session, "dataSource") and sum(part.bytes for part in parts if part.rows) <= _LOCAL_BYTES:
        storage = open_storage(store, storage_options=storage_options)
        batches = list(output_rows(storage, document, first, total, columns=table.columns))
        rows = pa.Table.from_batches(batches, table.columns).cast(target)
        return session.createDataFrame(rows, schema)
    # One task per part: the text of the document goes with the function, and each task reads what is its own.
    text = pack(document)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    columns = table.columns

    def read(number: int) -> Iterator[pa.RecordBatch]:
        storage = open_storage(store, storage_options=storage_options)
        low = max(first, starts[number])
        for rows in output_rows(
            storage, unpack(text, OperatorStateDocument), low, starts[number] + counts[number], columns=columns
        ):
            yield from pa.Table.from_batches([rows]).cast(target).to_batches(max_chunksize=65_536)

    return frame_by_tasks(session, len(parts), read, schema)


def frame_by_tasks(
    session: SparkSession, count: int, read: Callable[[int], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """Return a DataFrame that so many tasks read, each what the function yields for its number."""

    def read_all(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read(number)

    with own_python(session):
        return session.range(0, count, 1, count).mapInArrow(read_all, schema)


def arrow_table(frame: DataFrame) -> pa.Table:
    """Return all rows of a DataFrame; before PySpark 4.0 tasks hand them over as bytes."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    target = schema_for_spark(frame.schema)

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": pa.array([batch.serialize().to_pybytes()], pa.binary())})

    with own_python(frame.sparkSession):
        rows = frame.mapInArrow(written, "rows binary").collect()
    batches = [pa.ipc.read_record_batch(pa.py_buffer(row["rows"]), target) for row in rows]
    return pa.Table.from_batches(batches, target)
