"""Reading what is no keyed state: an operator state of all subtasks, and the history of a store.

Both are small tables. An operator state has a partition for each subtask that has some of it; a table of the history
is read in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError
from arrowstate.files.operator import OperatorStateTable, find_operator_state
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.duckdb.history import HISTORY_TABLES, history_table
from arrowstate.spark.read.bases import DataSourceReader, DataSourceStreamReader, InputPartition
from arrowstate.spark.read.options import StorePlace, check_options, choose_columns, open_checkpoint, open_read_storage
from arrowstate.spark.read.states import check_schema
from arrowstate.spark.schemas import batch_for_spark, schema_for_spark, spark_schema

__all__ = ["HistoryPlan", "HistoryReader", "OperatorStatePlan", "OperatorStateTableReader", "PartPartition"]

OPERATOR_STATE_OPTIONS = ("operator", "state", "checkpoint", "asOf", "columns")
"""What an operator state is read with."""

HISTORY_OPTIONS = ("table", "columns")
"""What a table of the history is read with."""

_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class PartPartition(InputPartition):
    """What one subtask had of an operator state."""

    subtask: int


@dataclass(frozen=True, slots=True)
class OperatorStatePlan:
    """Which operator state to read, settled when the table is loaded."""

    store: StorePlace
    checkpoint_id: int
    operator: str
    state: str
    schema: StructType

    @classmethod
    def from_options(cls, options: Mapping[str, str], state: str) -> OperatorStatePlan:
        """Look up an operator state that the checkpoint has.

        Raises
        ------
        InvalidInputError
            If an option has no meaning for an operator state, or names no column.
        """
        check_options(options, OPERATOR_STATE_OPTIONS, f"an operator state, as {state!r} is,")
        storage, entry = open_checkpoint(options)
        document = find_operator_state(storage, entry, options["operator"], state)
        columns = OperatorStateTable(storage, entry, document).schema
        names = choose_columns(options, columns.names, f"operator state {state!r}")
        assert entry.checkpoint_id is not None, "a fence is never read"
        return cls(
            store=StorePlace.of(storage, options),
            checkpoint_id=entry.checkpoint_id,
            operator=options["operator"],
            state=state,
            schema=spark_schema(pa.schema([columns.field(name) for name in names])),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it."""
        check_schema(schema, self.schema)
        return OperatorStateTableReader(self)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Refuse: an operator state has no rows in order."""
        raise InvalidInputError(f"the operator state {self.state!r} is a table: read it with spark.read")


class OperatorStateTableReader(DataSourceReader):
    """Reads an operator state, one subtask after the other."""

    def __init__(self, plan: OperatorStatePlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the subtasks that had some of it."""
        storage = self.plan.store.open()
        entry = CommitLog(storage).checkpoint(self.plan.checkpoint_id)
        parts = find_operator_state(storage, entry, self.plan.operator, self.plan.state).parts
        # Spark makes a partition of its own where it is given none.
        return [PartPartition(number) for number, part in enumerate(parts) if part.rows] or [PartPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a subtask."""
        assert isinstance(partition, PartPartition)
        plan = self.plan
        storage = plan.store.open()
        entry = CommitLog(storage).checkpoint(plan.checkpoint_id)
        document = find_operator_state(storage, entry, plan.operator, plan.state)
        target = schema_for_spark(plan.schema)
        part = OperatorStateTable(storage, entry, document).part(partition.subtask).select(target.names)
        for batch in pa.Table.from_batches([part]).to_batches(max_chunksize=_BATCH_ROWS):
            yield batch_for_spark(batch, target, f"operator state {plan.state!r}")


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Which table of the history to read; its rows are those of the log when a query reads it."""

    store: StorePlace
    table: str
    schema: StructType

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> HistoryPlan:
        """Look up what the options name.

        Raises
        ------
        InvalidInputError
            If there is no such table, an option has no meaning for it, or one names no column.
        StoreNotFoundError
            If there is no store.
        """
        check_options(options, HISTORY_OPTIONS, "the history of a store")
        table = options["table"]
        if table not in HISTORY_TABLES:
            raise InvalidInputError(
                f"there is no table {table!r}; the history of a store is in {', '.join(HISTORY_TABLES)}, and a state "
                "is read with the options 'operator' and 'state'"
            )
        columns = HISTORY_TABLES[table][0]
        names = choose_columns(options, columns.names, f"the table {table}")
        schema = spark_schema(pa.schema([columns.field(name) for name in names]))
        return cls(StorePlace.of(open_read_storage(options), options), table, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it."""
        check_schema(schema, self.schema)
        return HistoryReader(self)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Refuse: it is read as a whole."""
        raise InvalidInputError(f"{self.table} is a table: read it with spark.read")


class HistoryReader(DataSourceReader):
    """Reads a table of the history in one partition."""

    def __init__(self, plan: HistoryPlan) -> None:
        self.plan = plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield the rows, oldest checkpoint first."""
        target = schema_for_spark(self.plan.schema)
        table = history_table(self.plan.store.open(), self.plan.table, target.names)
        for batch in table.select(target.names).to_batches():
            yield batch_for_spark(batch, target, self.plan.table)
