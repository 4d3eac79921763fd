"""Reading a state as a Spark table: which checkpoint, which columns, which keys, and in how many partitions.

Every partition is a range of key groups and opens only the part of each run file that lies in it. A DataFrame
stays with the checkpoint that was newest when it was loaded, whatever is committed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from arrowstate.errors import CheckpointNotFoundError, InvalidInputError
from arrowstate.query.filters import columns_of, may_match, read_filter
from arrowstate.query.state import StateReader
from arrowstate.snapshot.log import CommitLog, open_store_document
from arrowstate.snapshot.reading import find_operator
from arrowstate.spark.filters import arrow_filter, key_lookup
from arrowstate.spark.schemas import schema_for_spark, spark_schema
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import KeyGroupRange, key_group_range, key_groups

__all__ = ["FilteringTableReader", "KeyGroupPartition", "ReadPlan", "TableReader", "reader_of"]

_OPTIONS = ("operator", "state", "checkpoint", "columns", "partitions", "pushFilters")


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
        known = {option.lower(): option for option in (*_OPTIONS, "path")}
        unknown = [option for option in options if option.lower() not in known]
        if unknown:
            raise InvalidInputError(
                f"unknown option {', '.join(map(repr, sorted(unknown)))}; a state is read with {', '.join(_OPTIONS)}"
            )
        for option, example in (("path", ".load('/data/store')"), ("operator", ".option('operator', 'counter')")):
            if not options.get(option):
                raise InvalidInputError(f"the option {option!r} is missing: spark.read.format('arrowstate'){example}")
        storage, entry = _open(options["path"], _whole_number(options, "checkpoint"))
        operator = find_operator(entry, options["operator"])
        names = [state.name for state in operator.states]
        if not options.get("state") and len(names) > 1:
            raise InvalidInputError(f"the option 'state' is missing; operator {operator.uid!r} has {', '.join(names)}")
        state = StateReader(storage, entry, operator.uid, options.get("state") or names[0])
        partitions = _whole_number(options, "partitions")
        assert entry.checkpoint_id is not None, "a fence is never read"
        columns = _columns(options.get("columns"), state)
        return cls(
            store=storage.url,
            checkpoint_id=entry.checkpoint_id,
            operator=operator.uid,
            state=state.layout.name,
            partitions=min(operator.max_parallelism, len(operator.subtasks) if partitions is None else partitions),
            push_filters=_flag(options, "pushFilters"),
            schema=spark_schema(pa.schema([state.schema.field(name) for name in columns])),
        )

    def open(self) -> StateReader:
        """Open the state of the checkpoint that was settled on."""
        storage, entry = _open(self.store, self.checkpoint_id)
        return StateReader(storage, entry, self.operator, self.state)


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
        maximum = self.plan.open().max_parallelism
        count = self.plan.partitions
        ranges = [key_group_range(maximum, parallelism=count, subtask=number) for number in range(count)]
        if self.keys is None:
            return [KeyGroupPartition(groups.start, groups.end) for groups in ranges]
        of_keys = key_groups(self.keys, maximum)
        found = []
        for groups in ranges:
            inside = pc.and_(pc.greater_equal(of_keys, groups.start), pc.less_equal(of_keys, groups.end))
            keys = self.keys.filter(inside)
            if keys.num_rows:
                found.append(KeyGroupPartition(groups.start, groups.end, keys))
        # Spark makes a partition of its own where it is given none.
        return found or [KeyGroupPartition(ranges[0].start, ranges[0].end, self.keys)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in the form that Spark wants."""
        assert isinstance(partition, KeyGroupPartition)
        state = self.plan.open()
        for batch in self._batches(state, partition):
            kept = batch if self.filter is None else batch.filter(self.filter)
            if kept.num_rows:
                yield self._for_spark(kept.select(self.target.names))

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

    def _for_spark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(self.target, batch.columns, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise InvalidInputError(
                    f"column {field.name!r} of state {self.plan.state!r} is {column.type} and holds a value that "
                    f"Spark's {field.type} cannot: {error}; leave the column out with the option 'columns'"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.target)


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
    if schema.simpleString() != plan.schema.simpleString():
        raise InvalidInputError(
            f"the state has the columns {plan.schema.simpleString()}, the schema given is {schema.simpleString()}; "
            "leave .schema(...) out and choose columns with the option 'columns'"
        )
    return (FilteringTableReader if plan.push_filters else TableReader)(plan, schema)


def _open(store: str, checkpoint_id: int | None) -> tuple[Storage, LogEntryDocument]:
    storage = open_storage(store)
    open_store_document(storage)
    log = CommitLog(storage)
    if checkpoint_id is not None:
        return storage, log.checkpoint(checkpoint_id)
    entry = log.latest_checkpoint()
    if entry is None:
        raise CheckpointNotFoundError(None, [])
    return storage, entry


def _columns(option: str | None, state: StateReader) -> list[str]:
    """The columns asked for, in the order they were named."""
    if option is None:
        return state.columns
    names = [name.strip() for name in option.split(",")]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"the option 'columns' must name each column once, got {option!r}")
    return state.check_columns(names)


def _whole_number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < (name == "partitions"):
        raise InvalidInputError(
            f"the option {name!r} must be a whole number from {int(name == 'partitions')}, got {text!r}"
        )
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"the option {name!r} must be true or false, got {text!r}")
    return text == "true"
