"""Reading a state as a Spark table: which checkpoint, which columns, which keys, and in how many partitions.

Every partition is a range of key groups and opens only the part of each run file that lies in it. A DataFrame
stays with the checkpoint that was chosen when it was loaded, whatever is committed later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.files.reading import find_operator
from arrowstate.files.validation import Validation, readable
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.expiry import Seen
from arrowstate.query.state import StateReader
from arrowstate.spark.read.bases import DataSourceReader, DataSourceStreamReader, InputPartition
from arrowstate.spark.read.options import (
    StorePlace,
    check_options,
    column_names,
    flag,
    key_group_option,
    open_checkpoint,
    refuse,
    required,
    validation,
    whole_number,
)
from arrowstate.spark.schemas import batch_for_spark, schema_for_spark, spark_schema
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.key_groups import KeyGroupRange, key_group_range

__all__ = [
    "KeyGroupPartition",
    "ReadPlan",
    "TableReader",
    "check_schema",
    "split_key_groups",
]

_PARTITION_ROWS = 1 << 21
OPTIONS = ("operator", "state", "checkpoint", "asOf", "columns", "partitions", "keyGroups", "validate", "expired")
"""What a state is read with."""
_WHY_NO_FILTERS = (
    "does not exist: PySpark hands the filters of one query to the next on the same DataFrame, which then lacks rows; "
    "choose with 'keyGroups' and 'columns', read with arrowstate.spark.read_state, where Spark filters Parquet files "
    "itself, or look keys up with Snapshot.lookup or Snapshot.sql"
)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read, settled when the table is loaded."""

    store: StorePlace
    checkpoint_id: int
    operator: str
    state: str
    partitions: int
    schema: StructType
    """The columns that are read, as Spark sees them."""
    key_groups: KeyGroupRange
    """The key groups that are read."""
    validate: Validation = "checksums"
    """What is compared when rows are read."""
    expired_up_to: int | None = None
    """The last time of update whose rows are left out, in milliseconds since 1970; None where none is."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ReadPlan:
        """Look up what the options name.

        Raises
        ------
        InvalidInputError
            If an option is missing, unknown, or names no column.
        StoreNotFoundError, CheckpointNotFoundError, OperatorNotFoundError, StateNotFoundError
            If there is none like that; the message lists the existing ones.
        """
        refuse(options, ["pushFilters"], _WHY_NO_FILTERS)
        check_options(options, OPTIONS, "a state")
        required(options, "path", ".load('/data/store')")
        required(options, "operator", ".option('operator', 'counter')")
        storage, entry = open_checkpoint(options)
        operator = find_operator(entry, options["operator"])
        names = [state.name for state in operator.states]
        if not options.get("state") and len(names) > 1:
            raise InvalidInputError(f"the option 'state' is missing; operator {operator.uid!r} has {', '.join(names)}")
        state = StateReader(storage, entry, operator.uid, options.get("state") or names[0])
        partitions = whole_number(options, "partitions", at_least=1)
        assert entry.checkpoint_id is not None, "a fence is never read"
        seen = Seen(now_ms(), flag(options, "expired"))
        columns = state.check_columns(column_names(options), expired=seen.expired)
        groups = key_group_option(options, operator.max_parallelism)
        return cls(
            store=StorePlace.of(storage, options),
            checkpoint_id=entry.checkpoint_id,
            operator=operator.uid,
            state=state.layout.name,
            partitions=_partitions(operator, state.layout.name) if partitions is None else partitions,
            schema=spark_schema(pa.schema([state.schema.field(name) for name in columns])),
            key_groups=groups or KeyGroupRange(0, operator.max_parallelism - 1),
            validate=validation(options),
            expired_up_to=state.expired_up_to(seen),
        )

    def open(self) -> StateReader:
        """Open the state of the checkpoint that was settled on."""
        storage = readable(self.store.open(), self.validate)
        return StateReader(storage, CommitLog(storage).checkpoint(self.checkpoint_id), self.operator, self.state)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it, for the columns of a schema that Spark may have been given by the user."""
        check_schema(schema, self.schema)
        return TableReader(self, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Refuse: a state has no rows in order."""
        raise InvalidInputError(
            f"the state {self.state!r} is a table; stream what changes in it with .option('readChangeFeed', 'true'), "
            "or the rows of an output table with .option('output', ...)"
        )


@dataclass(frozen=True)
class KeyGroupPartition(InputPartition):
    """The rows of a range of key groups, both ends inclusive."""

    start: int
    end: int


class TableReader(DataSourceReader):
    """Reads a state in ranges of key groups.

    It takes no filters from Spark (`pushFilters`): what PySpark makes of them stays with the DataFrame, and its next
    query would lack the rows that this one does not want.
    """

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self.plan = plan
        self.target = schema_for_spark(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of key groups."""
        ranges = split_key_groups(self.plan.key_groups, self.plan.partitions)
        return [KeyGroupPartition(groups.start, groups.end) for groups in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in the form that Spark wants."""
        assert isinstance(partition, KeyGroupPartition)
        state = self.plan.open()
        key_groups = KeyGroupRange(partition.start, partition.end)
        batches = state.batches(
            state.in_key_groups(key_groups),
            self.target.names,
            key_groups=key_groups,
            expired_up_to=self.plan.expired_up_to,
        )
        for batch in batches:
            yield batch_for_spark(batch, self.target, f"state {self.plan.state!r}")


def _partitions(operator: OperatorDocument, state: str) -> int:
    """One per subtask, and more where that would keep one core of a cluster busy for long."""
    return max(operator.parallelism, -(-operator.live_rows(state) // _PARTITION_ROWS))


def check_schema(given: StructType, planned: StructType) -> None:
    """Refuse columns of the user's own."""
    if given.simpleString() != planned.simpleString():
        raise InvalidInputError(
            f"there are the columns {planned.simpleString()}, the schema given is {given.simpleString()}; "
            "leave .schema(...) out and choose columns with the option 'columns'"
        )


def split_key_groups(groups: KeyGroupRange, parts: int) -> list[KeyGroupRange]:
    """Return ranges of about the same length that make up the given one, no more of them than it has key groups.

    Examples
    --------
    >>> split_key_groups(KeyGroupRange(3, 7), 2)
    [KeyGroupRange(start=3, end=5), KeyGroupRange(start=6, end=7)]
    """
    count = min(parts, len(groups))
    pieces = [key_group_range(len(groups), parallelism=count, subtask=number) for number in range(count)]
    return [KeyGroupRange(groups.start + piece.start, groups.start + piece.end) for piece in pieces]
