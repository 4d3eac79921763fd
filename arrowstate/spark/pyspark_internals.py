"""What PySpark does not promise to keep: its way to the JVM, and what its objects consist of.

All of it is here, and `tests/spark/test_spark_internals.py` fails by the name of what an upgrade has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["ROW_NUMBER", "columns_of_ddl", "context_of", "has_file", "of_kind", "times_of_batch"]

ROW_NUMBER = "_tmp_metadata_row_index"
"""A column that Spark's Parquet reader fills with the numbers of the rows within their file, where a schema names it.

It is what `_metadata.row_index` is read from; that one makes a struct of each row, which takes half as long again.
"""


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the context of a classic session, None for one of Spark Connect; asked in either, it raises nothing."""
    return getattr(session, "_sc", None)


def times_of_batch(session: SparkSession, query_id: str) -> tuple[int, int] | None:
    """Return the watermark and the time of the micro-batch that a query is at, in milliseconds; None for no query.

    PySpark shows both only after its end; the query of the JVM has them. The watermark is 0 where none has been set.
    """
    query = session._jsparkSession.streams().get(query_id)
    if query is None:
        return None
    times = query.streamingQuery().lastExecution().offsetSeqMetadata()
    return times.batchWatermarkMs(), times.batchTimestampMs()


def has_file(session: SparkSession, place: str) -> bool:
    """Whether a classic session finds a file; raises whatever its file system does."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    configuration: Any = session._jsc.hadoopConfiguration()
    return bool(path.getFileSystem(configuration).exists(path))


def columns_of_ddl(text: str) -> Any:
    """Return the columns that a text such as `user string, total long` names; PySpark 3.5 has no public name for it."""
    from pyspark.sql import types

    if hasattr(types.StructType, "fromDDL"):
        return types.StructType.fromDDL(text)
    parse: Any = types._parse_datatype_string
    return parse(text)


def of_kind(given: Any, kind: type, **more: Any) -> Any:
    """Return an object of PySpark as one of a subclass of its class, with these attributes besides."""
    made: Any = object.__new__(kind)
    vars(made).update(vars(given), **more)
    return made
