"""Reading a state as a Spark table: which checkpoint, which columns, which keys, and in how many partitions.

Every partition is a range of key groups and opens only the part of each run file that lies in it. A DataFrame
stays with the checkpoint that was chosen when it was loaded, whatever is committed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError
from arrowstate.query.filters import columns_of, may_match, read_filter
from arrowstate.query.state import StateReader
from arrowstate.snapshot.log import CommitLog
from arrowstate.snapshot.reading import Validation, find_operator, readable
from arrowstate.spark.read.filters import arrow_filter, key_lookup
from arrowstate.spark.read.options import (
    check_options,
    column_names,
    flag,
    key_group_option,
    open_checkpoint,
    required,
    validation,
    whole_number,
)
from arrowstate.spark.schemas import batch_for_spark, schema_for_spark, spark_schema
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.key_groups import KeyGroupRange, key_group_range, key_groups

__all__ = [
    "FilteringTableReader",
    "KeyGroupPartition",
    "ReadPlan",
    "TableReader",
    "check_schema",
    "reader_of",
    "split_key_groups",
]

_PARTITION_ROWS = 1 << 21
OPTIONS = ("operator", "state", "checkpoint", "asOf", "columns", "partitions", "keyGroups", "pushFilters", "validate")
"""What a state is read with."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read, settled when the table is loaded."""

    store: str
    checkpoint_id: int
    operator: str
    state: str
    partitions: int
    push_filters: bool
    schema: StructType
    """The columns that are read, as Spark sees them."""
    key_groups: KeyGroupRange
    """The key groups that are read."""
    validate: Validation = "checksums"
    """What is compared when rows are read."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ReadPlan:
        """Look up what the options name.

        Raises
        ------
        InvalidInputError
            If an option is missing, unknown, or names no column.
        StoreNotFoundError, CheckpointNotFoundError, OperatorNotFoundError, StateNotFoundError
            If there is none like that; the message lists those there are.
        """
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
        columns = state.check_columns(column_names(options))
        groups = key_group_option(options, operator.max_parallelism)
        return cls(
            store=storage.url,
            checkpoint_id=entry.checkpoint_id,
            operator=operator.uid,
            state=state.layout.name,
            partitions=_partitions(operator, state.layout.name) if partitions is None else partitions,
            push_filters=flag(options, "pushFilters"),
            schema=spark_schema(pa.schema([state.schema.field(name) for name in columns])),
            key_groups=groups or KeyGroupRange(0, operator.max_parallelism - 1),
            validate=validation(options),
        )

    def open(self) -> StateReader:
        """Open the state of the checkpoint that was settled on."""
        storage = readable(open_storage(self.store), self.validate)
        return StateReader(storage, CommitLog(storage).checkpoint(self.checkpoint_id), self.operator, self.state)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it."""
        return reader_of(self, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Refuse: a state has no rows in order."""
        raise InvalidInputError(
            f"the state {self.state!r} is a table; stream what changes in it with .option('readChangeFeed', 'true'), "
            "or the rows of an output table with .option('output', ...)"
        )


@dataclass(frozen=True)
class KeyGroupPartition(InputPartition):
    """The rows of a range of key groups, both ends inclusive; or of the keys named, which lie in it."""

    start: int
    end: int
    keys: pa.RecordBatch | None = None


class TableReader(DataSourceReader):
    """Reads a state in ranges of key groups."""

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self.plan = plan
        self.target = schema_for_spark(schema)
        self.filter: pc.Expression | None = None
        self.keys: pa.RecordBatch | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of key groups; with keys, one for each range that holds some of them."""
        ranges = split_key_groups(self.plan.key_groups, self.plan.partitions)
        if self.keys is None:
            return [KeyGroupPartition(groups.start, groups.end) for groups in ranges]
        of_keys = key_groups(self.keys, self.plan.open().max_parallelism)
        found = []
        for groups in ranges:
            inside = pc.and_(pc.greater_equal(of_keys, groups.start), pc.less_equal(of_keys, groups.end))
            keys = self.keys.filter(inside)
            if keys.num_rows:
                found.append(KeyGroupPartition(groups.start, groups.end, keys))
        # Spark makes a partition of its own where it is given none.
        return found or [KeyGroupPartition(ranges[0].start, ranges[0].end, self.keys.slice(0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in the form that Spark wants."""
        assert isinstance(partition, KeyGroupPartition)
        state = self.plan.open()
        for batch in self._batches(state, partition):
            kept = batch if self.filter is None else batch.filter(self.filter)
            if kept.num_rows:
                yield batch_for_spark(kept.select(self.target.names), self.target, f"state {self.plan.state!r}")

    def _batches(self, state: StateReader, partition: KeyGroupPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, those left out that cannot pass the filter."""
        if partition.keys is not None:
            yield from state.lookup(partition.keys)[0].to_batches()
            return
        key_groups = KeyGroupRange(partition.start, partition.end)
        parts = state.in_key_groups(key_groups)
        columns = self.target.names
        if self.filter is not None:
            node = read_filter(self.filter)
            if node is None:
                columns = state.schema.names
            else:
                wanted = {*columns, *columns_of(node)}
                columns = [name for name in state.schema.names if name in wanted]
                passing = set(compress(state.parts.parts, may_match(node, state.bounds, len(state.parts.parts))))
                parts = [part for part in parts if part in passing]
        yield from state.batches(parts, columns, key_groups=key_groups)


class FilteringTableReader(TableReader):
    """Also takes filters from Spark; a class of its own, because Spark refuses one while its push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that Arrow answers exactly; return the others, which Spark applies itself."""
        state = self.plan.open()
        left = []
        for item in filters:
            expression = arrow_filter(item, state.schema)
            if expression is None:
                left.append(item)
            else:
                self.filter = expression if self.filter is None else self.filter & expression
        self.keys = key_lookup(filters, state.layout.key)
        return left


def reader_of(plan: ReadPlan, schema: StructType) -> DataSourceReader:
    """Return the reader for a plan, for the columns of a schema that Spark may have been given by the user."""
    check_schema(schema, plan.schema)
    return (FilteringTableReader if plan.push_filters else TableReader)(plan, schema)


def _partitions(operator: OperatorDocument, state: str) -> int:
    """One per subtask, and more where that would keep one core of a cluster busy for long."""
    rows = sum(subtask.live_rows.get(state, 0) for subtask in operator.subtasks)
    return max(len(operator.subtasks), -(-rows // _PARTITION_ROWS))


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
