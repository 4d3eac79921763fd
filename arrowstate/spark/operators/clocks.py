"""Which micro-batch a driver function is called for, and what time it is in it.

Both times, Spark's watermark and the start of the micro-batch, are in Spark's offset log, so they are the same if the
micro-batch is repeated. PySpark hands neither to the function. In a classic session the JVM has them; on Spark Connect
the function runs in a process of the server that knows nothing of its query, and reads Spark's checkpoint folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from arrowstate.errors import InvalidInputError
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.pyspark_internals import times_of_batch
from arrowstate.spark.workers import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchClock", "BatchTime", "clock_of"]


@dataclass(frozen=True, slots=True)
class BatchTime:
    """A micro-batch and its times."""

    batch: MicroBatch
    watermark: int | None
    """Spark's watermark in milliseconds, None while there is none."""
    processing_time: int
    """Spark's time of the micro-batch in milliseconds."""


class BatchClock(Protocol):
    """Tells the micro-batch that Spark is at."""

    def at(self, frame: DataFrame, batch_id: int) -> BatchTime:
        """Return the micro-batch and its times; `frame` is what `foreachBatch` gave."""


def clock_of(session: SparkSession, options: Mapping[str, str], run_id: str) -> BatchClock:
    """Return the clock of a query.

    Parameters
    ----------
    session
        The session in which the stream was made.
    options
        Those of the writer, their names in lower case.
    run_id
        Names this start of the query where Spark's own id of it cannot be known.

    Raises
    ------
    InvalidInputError
        On Spark Connect, if the writer has no checkpoint folder.
    """
    if not is_connect(session):
        return ClassicClock(session)
    location = options.get("checkpointlocation")
    if location is None:
        raise InvalidInputError(
            "on Spark Connect the query needs the option checkpointLocation, .option('checkpointLocation', ...) on its "
            "writer: its id and its times are read from there, and Spark does not tell of a folder that it chooses"
        )
    return ConnectClock(location.rstrip("/"), run_id)


class ClassicClock:
    """Asks the query in the JVM."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def at(self, frame: DataFrame, batch_id: int) -> BatchTime:  # noqa: ARG002
        """Return the micro-batch and its times."""
        context = self._session.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        run_id = context.getLocalProperty("spark.jobGroup.id")
        times = None if query_id is None else times_of_batch(self._session, query_id)
        if times is None or query_id is None or run_id is None:
            raise InvalidInputError(
                "this is no micro-batch of a streaming query; start the query that stateful returned"
            )
        watermark, time = times
        return BatchTime(MicroBatch(query_id, run_id, batch_id), watermark or None, time)


class ConnectClock:
    """Reads the checkpoint folder of the query, which Spark has written before it calls the function.

    Parameters
    ----------
    checkpoint
        The folder, as Spark was told of it.
    run_id
        Names this start of the query.
    """

    def __init__(self, checkpoint: str, run_id: str) -> None:
        self._checkpoint = checkpoint
        self._run_id = run_id
        self._query_id: str | None = None
        self._folder: Path | None = None

    def at(self, frame: DataFrame, batch_id: int) -> BatchTime:
        session = frame.sparkSession
        if self._query_id is None:
            self._open(session)
        assert self._query_id is not None, "it was read"
        # A version, the times, and then an offset per source, line by line.
        text = self._text(session, f"offsets/{batch_id}").splitlines()
        times = json.loads(text[1])
        batch = MicroBatch(self._query_id, self._run_id, batch_id)
        return BatchTime(batch, times["batchWatermarkMs"] or None, times["batchTimestampMs"])

    def _open(self, session: SparkSession) -> None:
        """Learn the id of the query, and where Spark has the folder: a path alone does not tell the file system."""
        row = session.read.text(f"{self._checkpoint}/metadata", wholetext=True).select("value", "_metadata.file_path")
        text, location = row.collect()[0]
        self._query_id = json.loads(text)["id"]
        parts = urlsplit(location)
        folder = Path(unquote(parts.path)).parent
        # A local folder is read without a job of Spark.
        if parts.scheme == "file" and (folder / "metadata").is_file():
            self._folder = folder

    def _text(self, session: SparkSession, name: str) -> str:
        if self._folder is not None:
            return (self._folder / name).read_text()
        rows = session.read.text(f"{self._checkpoint}/{name}", wholetext=True).collect()
        return rows[0]["value"]
