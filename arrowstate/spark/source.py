"""The Spark data source `arrowstate`: where Spark's calls meet the sink and the reader.

Spark pickles these classes by name, so the Python of its workers must have arrowstate installed. A writer is made
anew in every process and for every micro-batch; it holds the plan and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.spark.commit import abort_micro_batch, commit_micro_batch
from arrowstate.spark.load.writer import StateWriter, state_writer
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.read.plans import Plan, plan_from_options
from arrowstate.spark.sink.plan import SinkPlan
from arrowstate.spark.sink.task import SubtaskResult, fold_micro_batch
from arrowstate.spark.workers import spare_collector
from arrowstate_formats.documents import pack, unpack

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMAT", "ArrowStateDataSource", "KeyedStateWriter", "SubtaskMessage"]

FORMAT = "arrowstate"
"""The name of the data source."""


class SubtaskMessage(WriterCommitMessage):
    """A `SubtaskResult` on its way from a task to the commit."""

    def __init__(self, result: SubtaskResult) -> None:
        self.text = pack(result)

    @property
    def result(self) -> SubtaskResult:
        return unpack(self.text, SubtaskResult)


class KeyedStateWriter(DataSourceStreamArrowWriter):
    """Folds micro-batches into keyed state; see `fold_micro_batch` and `commit_micro_batch`."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: fold the rows of one subtask."""
        spare_collector()
        context = TaskContext.get()
        assert context is not None, "Spark calls write inside a task"
        return SubtaskMessage(
            fold_micro_batch(self.plan, _micro_batch(context), context.partitionId(), iterator, new_id)
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Beside the driver, after all tasks: commit the micro-batch."""
        spare_collector()
        results = [message.result for message in messages if isinstance(message, SubtaskMessage)]
        if len(results) != self.plan.parallelism or any(result.batch_id != batchId for result in results):
            raise InvalidInputError(
                f"batch {batchId} came in {len(messages)} tasks, expected {self.plan.parallelism}; "
                "write with keyed_sink only"
            )
        commit_micro_batch(self.plan, results, new_id=new_id, clock_ms=now_ms)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Beside the driver, after a failure: remove what the micro-batch left."""
        results = [message.result if isinstance(message, SubtaskMessage) else None for message in messages]
        abort_micro_batch(self.plan, results)


class ArrowStateDataSource(DataSource):
    """Reads the states of a store as tables, and writes streams to it for `keyed_sink`."""

    _plan: Plan | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The columns; from here on a table is pinned to one checkpoint."""
        self._plan = plan_from_options(self.options)
        return self._plan.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return (self._plan or plan_from_options(self.options)).reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return (self._plan or plan_from_options(self.options)).stream_reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> StateWriter:
        """The writer of a table into a state; see `register` for the options."""
        return state_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KeyedStateWriter:  # noqa: ARG002
        """The writer of a micro-batch; Spark asks a process beside the driver for one each time."""
        spare_collector()
        if overwrite:
            raise InvalidInputError("a keyed sink adds to its state; use outputMode append or update, not complete")
        return KeyedStateWriter(SinkPlan.from_options(self.options))


def _micro_batch(context: TaskContext) -> MicroBatch:
    """What Spark says of the micro-batch a task works for: the job group of a streaming query is its run."""
    query_id = context.getLocalProperty("sql.streaming.queryId")
    run_id = context.getLocalProperty("spark.jobGroup.id")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or run_id is None or batch_id is None:
        raise InvalidInputError("this task belongs to no streaming query; write with keyed_sink only")
    return MicroBatch(query_id, run_id, int(batch_id))
