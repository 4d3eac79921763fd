"""Reading a state as a Spark table: which checkpoint, which columns, which keys, and in how many partitions.

Every partition is a range of key groups and opens only the part of each run file that lies in it. A DataFrame
stays with the checkpoint that was newest when it was loaded, whatever is committed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError
from arrowstate.schema.layout import StateLayout, descriptor_of, key_schema_of
from arrowstate.snapshot.reading import find_operator, find_state
from arrowstate.spark.schemas import spark_schema

__all__ = ["FilteringStateReader", "KeyGroupPartition", "ReadPlan", "StateReader", "reader_of"]

_OPTIONS = ("operator", "state", "checkpoint", "columns", "partitions", "pushFilters")
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read, settled when the table is loaded."""

    store: str
    checkpoint_id: int
    operator: str
    state: str
    columns: tuple[str, ...]
    partitions: int
    push_filters: bool
    key: pa.Schema
    stored: pa.Schema
    """All columns of the state, by the types they are stored in."""
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
        state = find_state(entry, operator, options.get("state") or names[0])
        key = key_schema_of(operator.key)
        fields = [*key, *StateLayout(key, state.name, descriptor_of(state).type).value_fields]
        columns = _columns(options.get("columns"), [field.name for field in fields])
        stored = pa.schema(fields)
        partitions = _whole_number(options, "partitions")
        assert entry.checkpoint_id is not None, "a fence is never read"
        return cls(
            store=storage.url,
            checkpoint_id=entry.checkpoint_id,
            operator=operator.uid,
            state=state.name,
            columns=columns,
            partitions=min(operator.max_parallelism, len(operator.subtasks) if partitions is None else partitions),
            push_filters=_flag(options, "pushFilters"),
            key=key,
            stored=stored,
            schema=spark_schema(pa.schema([stored.field(name) for name in columns])),
        )


@dataclass(frozen=True)
class KeyGroupPartition(InputPartition):
    """The rows of a range of key groups, both ends inclusive; or of the keys named, which lie in it."""

    start: int
    end: int
    keys: pa.RecordBatch | None = None


class StateReader(DataSourceReader):
    """Reads a state in ranges of key groups."""

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self.plan = plan
        self.target = schema_for_spark(schema)
        self.filter: pc.Expression | None = None
        self.keys: pa.RecordBatch | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of key groups; with keys, one for each range that holds some of them."""
        _, entry = _open(self.plan.store, self.plan.checkpoint_id)
        maximum = find_operator(entry, self.plan.operator).max_parallelism
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
        # Spark makes one partition of its own out of none.
        return found or [KeyGroupPartition(ranges[0].start, ranges[0].end, self.keys)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as Spark wants them, in batches of at most 65,536."""
        assert isinstance(partition, KeyGroupPartition)
        for table in self._tables(partition):
            kept = table if self.filter is None else table.filter(self.filter)
            for batch in kept.select(self.target.names).to_batches(max_chunksize=_BATCH_ROWS):
                if batch.num_rows:
                    yield self._for_spark(batch)

    def _tables(self, partition: KeyGroupPartition) -> Iterator[pa.Table]:
        storage, entry = _open(self.plan.store, self.plan.checkpoint_id)
        store_id = open_store_document(storage).store_id
        plan = self.plan
        if partition.keys is not None:
            if partition.keys.num_rows:
                yield SnapshotReader(storage, store_id, entry).lookup(f"{plan.operator}.{plan.state}", partition.keys)
            return
        maximum = find_operator(entry, plan.operator).max_parallelism
        bounds = KeyGroupRange(partition.start, partition.end).hash_bounds(maximum)
        opened = open_state(storage, store_id, entry, plan.operator, plan.state, hash_bounds=bounds)
        for run in opened.runs:
            for batch in run.freeze().live_batches():
                yield pa.Table.from_batches([batch])

    def _for_spark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(self.target, batch.columns, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise InvalidInputError(
                    f"column {field.name!r} of state {self.plan.state!r} is {column.type} and holds a value that Spark's "
                    f"{field.type} cannot: {error}; leave the column out with the option 'columns'"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.target)


class FilteringStateReader(StateReader):
    """Also takes filters from Spark; a class of its own, because Spark refuses one while its push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that Arrow answers exactly; return the others, which Spark applies itself."""
        left = []
        for item in filters:
            expression = arrow_filter(item, self.plan.stored)
            if expression is None:
                left.append(item)
            else:
                self.filter = expression if self.filter is None else self.filter & expression
        self.keys = key_lookup(filters, self.plan.key)
        return left


def reader_of(plan: ReadPlan, schema: StructType) -> DataSourceReader:
    """Return the reader for a plan, for the columns of a schema that Spark may have been given by the user."""
    if schema.simpleString() != plan.schema.simpleString():
        raise InvalidInputError(
            f"the state has the columns {plan.schema.simpleString()}, the schema given is {schema.simpleString()}; "
            "leave .schema(...) out and choose columns with the option 'columns'"
        )
    return (FilteringStateReader if plan.push_filters else StateReader)(plan, schema)


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


def _columns(option: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """The columns asked for, in the order they were named."""
    if option is None:
        return tuple(names)
    chosen = [name.strip() for name in option.split(",")]
    unknown = [name for name in chosen if name not in names]
    if unknown or len(set(chosen)) < len(chosen):
        raise InvalidInputError(
            f"the option 'columns' must name each column once, got {option!r}; the state has {', '.join(names)}"
        )
    return tuple(chosen)


def _whole_number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < (name == "partitions"):
        raise InvalidInputError(f"the option {name!r} must be a whole number from {int(name == 'partitions')}, got {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"the option {name!r} must be true or false, got {text!r}")
    return text == "true"
