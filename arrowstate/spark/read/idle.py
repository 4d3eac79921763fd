"""A stream without rows that moves on when a timer of its store is due, so that Spark runs a micro-batch.

Spark runs a micro-batch when a source of the query has moved on, and none while no row comes: a timer that is due
meanwhile would wait for the next row. This source moves on where the newest checkpoint of the query says that a timer
is due by processing time, and once after each micro-batch with rows, for Spark advances the watermark after the
micro-batch that had its rows (as Spark's own stateful operators have their micro-batch without data).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, StructField, StructType

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.spark.micro_batches import BatchRecord
from arrowstate.spark.places import STORAGE_OPTIONS, StorePlace, storage_options_text
from arrowstate.spark.read.bases import DataSourceStreamReader, InputPartition, ReadLimit, SupportsTriggerAvailableNow
from arrowstate.spark.read.options import IDLE_OPTION, check_options, open_read_storage, required

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["IdlePlan", "IdleStreamReader", "and_idle"]

_SCHEMA = StructType([StructField("never", BooleanType())])

_PAUSE_SECONDS = 0.25
"""Spark asks every 10 ms where no trigger says otherwise; the store is looked at no more often than this."""


def and_idle(stream: DataFrame, place: StorePlace) -> DataFrame:
    """Return the rows of a stream, with micro-batches where timers of the store are due and no row comes."""
    reader = stream.sparkSession.readStream.format("arrowstate").option(IDLE_OPTION, "true")
    secrets = storage_options_text(place.options)
    idle = (reader if secrets is None else reader.option(STORAGE_OPTIONS, secrets)).load(place.url)
    columns = [sf.lit(None).cast(field.dataType).alias(field.name) for field in stream.schema]
    return stream.unionAll(idle.select(*columns))


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """Of which store."""

    options: Mapping[str, str]

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> IdlePlan:
        """Look up what the options name.

        Raises
        ------
        InvalidInputError
            If there is another option, or no path.
        """
        check_options(options, (IDLE_OPTION, STORAGE_OPTIONS), "the timers of a store")
        required(options, "path", ".load('/data/store')")
        return cls(dict(options))

    @property
    def schema(self) -> StructType:
        return _SCHEMA

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002
        """Refuse: it has no rows."""
        raise InvalidInputError(f"the option {IDLE_OPTION!r} is for spark.readStream, and has no rows")

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Return what tells Spark to run a micro-batch."""
        return IdleStreamReader(self.options)


class IdleStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Its offset is the id of the newest checkpoint that a micro-batch was run for, 0 before the first."""

    def __init__(self, options: Mapping[str, str], clock_ms: Callable[[], int] = now_ms) -> None:
        self._options = options
        self._clock_ms = clock_ms
        self._until: int | None = None
        self._looked: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return {"checkpoint": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the time: timers that are due later are for the next start."""
        self._until = self._clock_ms()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002
        """Return the newest checkpoint if a micro-batch is due after it, else where it was."""
        now = time.monotonic()
        if self._until is None and self._looked is not None and now - self._looked < _PAUSE_SECONDS:
            return start
        self._looked = now
        checkpoint = CommitLog(open_read_storage(self._options)).latest_checkpoint()
        record = None if checkpoint is None else BatchRecord.of(checkpoint)
        if checkpoint is None or record is None:
            return start
        by = self._clock_ms() if self._until is None else self._until
        # Each checkpoint is answered by one micro-batch, whose own checkpoint is then the newest.
        is_due = record.next_timer is not None and record.next_timer <= by
        return {"checkpoint": checkpoint.checkpoint_id} if is_due or record.metrics.get("rows") else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return none: there are no rows."""
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield nothing."""
        yield from ()
