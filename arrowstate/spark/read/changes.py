"""The change feed of a state: what came, went or changed from one checkpoint to the next, as a table or a stream.

A stream remembers the id of the checkpoint that it has read up to. All changes of a key are in one partition of a
micro-batch, in the order of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError
from arrowstate.files.reading import find_operator
from arrowstate.files.validation import Validation, readable
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.timeline import (
    Step,
    newest_checkpoint_id,
    oldest_checkpoint_id,
    oldest_followed_id,
    steps_between,
)
from arrowstate.query.changes import CHANGE_TYPE_COLUMN, StateChanges, change_columns
from arrowstate.query.state import CHECKPOINT_COLUMN, StateReader
from arrowstate.spark.read.bases import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from arrowstate.spark.read.holding import Held, check_no_lease
from arrowstate.spark.read.options import (
    StorePlace,
    await_checkpoint,
    check_options,
    choose_columns,
    find_checkpoint,
    key_group_option,
    open_read_storage,
    required,
    validation,
    whole_number,
)
from arrowstate.spark.read.states import check_schema, split_key_groups
from arrowstate.spark.schemas import batch_for_spark, schema_for_spark, spark_schema
from arrowstate_formats.documents import LogEntryDocument, pack, unpack
from arrowstate_formats.key_groups import KeyGroupRange

__all__ = ["ChangePartition", "ChangePlan", "ChangeReader", "ChangeStreamReader"]

_BOTH = ("readChangeFeed", "operator", "state", "columns", "partitions", "keyGroups", "validate", "startingCheckpoint")
_BATCH = (*_BOTH, "endingCheckpoint", "waitSeconds")
_STREAM = (*_BOTH, "maxCheckpointsPerTrigger", "leaseSeconds", "waitSeconds")

_NOTHING = -1
"""In an offset: no checkpoint."""


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """The changes of the keys whose hash is in a range, both ends inclusive, step by step."""

    low: int
    high: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """What to read, settled when the feed is loaded."""

    store: StorePlace
    entry: bytes
    """What the log entry that gave the schema says of the state; it may be collected while a stream goes on."""
    operator: str
    state: str
    columns: tuple[str, ...]
    schema: StructType
    """The columns that are read, as Spark sees them."""
    hash_ranges: tuple[tuple[int, int], ...]
    """One partition each."""
    starting: str | None
    ending: str | None
    newest: int
    """The checkpoint up to which a table goes."""
    max_checkpoints: int | None
    lease_seconds: int | None
    """How long a stream holds what it has not read, None for not at all."""
    validate: Validation
    """What is compared when rows are read."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ChangePlan:
        """Look up what the options name.

        Raises
        ------
        InvalidInputError
            If an option is missing, has no meaning for a change feed, or names no column.
        NotFoundError
            If there is no such store, checkpoint, operator or state; the message lists the existing ones.
        """
        check_options(options, dict.fromkeys((*_BATCH, *_STREAM)), "a change feed")
        storage = open_read_storage(options)
        uid = required(options, "operator", ".option('operator', 'counter')")
        ending = options.get("endingCheckpoint")
        if ending is None:
            await_checkpoint(storage, options)
        entry = find_checkpoint(storage, ending)
        operator = find_operator(entry, uid)
        names = [state.name for state in operator.states]
        if not options.get("state") and len(names) != 1:
            raise InvalidInputError(
                f"the option 'state' is missing; operator {uid!r} has {', '.join(names) or 'no keyed states'}"
            )
        state = StateReader(storage, entry, uid, options.get("state") or names[0])
        available = change_columns(state)
        columns = (
            state.columns
            if options.get("columns") is None
            else choose_columns(options, available, f"state {uid}.{state.layout.name}", may_be_none=True)
        )
        fields = [
            *(state.schema.field(name) for name in columns),
            pa.field(CHANGE_TYPE_COLUMN, pa.string()),
            pa.field(CHECKPOINT_COLUMN, pa.int64()),
        ]
        maximum = operator.max_parallelism
        groups = key_group_option(options, maximum) or KeyGroupRange(0, maximum - 1)
        partitions = whole_number(options, "partitions", at_least=1) or operator.parallelism
        kept = replace(operator, states=[state.document], subtasks=[], operator_states=[])
        assert entry.checkpoint_id is not None, "a fence is never read"
        return cls(
            store=StorePlace.of(storage, options),
            entry=pack(replace(entry, operators=[kept], statistics=[], properties={})),
            operator=uid,
            state=state.layout.name,
            columns=tuple(columns),
            schema=spark_schema(pa.schema(fields)),
            hash_ranges=tuple(piece.hash_bounds(maximum) for piece in split_key_groups(groups, partitions)),
            starting=options.get("startingCheckpoint"),
            ending=ending,
            newest=entry.checkpoint_id,
            max_checkpoints=whole_number(options, "maxCheckpointsPerTrigger", at_least=1),
            lease_seconds=whole_number(options, "leaseSeconds", at_least=1),
            validate=validation(options),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it as a table."""
        check_schema(schema, self.schema)
        check_no_lease(self.lease_seconds)
        if self.max_checkpoints is not None or self.starting == "latest":
            raise InvalidInputError(
                "the option 'maxCheckpointsPerTrigger', and 'latest' for 'startingCheckpoint', are for "
                f"spark.readStream; as a table a change feed is read with {', '.join(_BATCH)}"
            )
        return ChangeReader(self)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads it as a stream."""
        check_schema(schema, self.schema)
        if self.ending is not None:
            raise InvalidInputError(
                "the option 'endingCheckpoint' is for spark.read; as a stream a change feed is read with "
                f"{', '.join(_STREAM)}, and ends where the query is stopped"
            )
        return ChangeStreamReader(self)

    def starting_id(self, log: CommitLog) -> int:
        """Return the id of the checkpoint after which the feed begins, `_NOTHING` for one that has all rows first."""
        if self.starting in (None, "earliest"):
            return _NOTHING
        if self.starting == "latest":
            return _or_nothing(newest_checkpoint_id(log))
        storage = self.store.open()
        return _or_nothing(find_checkpoint(storage, self.starting).checkpoint_id)

    def partitions(self, steps: Sequence[Step]) -> list[InputPartition]:
        """Return one partition per range of key groups."""
        return [ChangePartition(low, high, tuple(steps)) for low, high in self.hash_ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition in the form that Spark wants, in the order of the checkpoints."""
        assert isinstance(partition, ChangePartition)
        storage = readable(self.store.open(), self.validate)
        log = CommitLog(storage)
        state = StateReader(storage, unpack(self.entry, LogEntryDocument), self.operator, self.state)
        target = schema_for_spark(self.schema)
        for step in partition.steps:
            before = None if step.before is None else log.read(step.before).document
            changes = StateChanges(storage, state, before, log.read(step.after).document)
            for batch in changes.batches(self.columns, (partition.low, partition.high)):
                ids = pa.repeat(pa.scalar(step.checkpoint_id, pa.int64()), batch.num_rows)
                columns = pa.RecordBatch.from_arrays([*batch.columns, ids], names=target.names)
                yield batch_for_spark(columns, target, f"state {self.state!r}")


class ChangeReader(DataSourceReader):
    """Reads the changes between two checkpoints as a table."""

    def __init__(self, plan: ChangePlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per range of key groups."""
        plan = self.plan
        log = CommitLog(plan.store.open())
        start = plan.starting_id(log)
        if start > plan.newest:
            raise InvalidInputError(f"the feed starts after checkpoint {start} and ends before, at {plan.newest}")
        snapshot = oldest_checkpoint_id(log) if start == _NOTHING else None
        return plan.partitions(steps_between(log, _known(start), plan.newest, snapshot=snapshot, gaps=True))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition."""
        return self.plan.read(partition)


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a state as a stream: an offset is the id of the checkpoint that was read last.

    The offset at the end of a micro-batch says where it began too, so a micro-batch that is repeated has the same rows
    even where the stream began at what was the newest checkpoint then.
    """

    def __init__(self, plan: ChangePlan) -> None:
        self.plan = plan
        self._target: int | None = None
        self._held = Held(plan.store, plan.lease_seconds, f"a change feed of {plan.operator}.{plan.state}")

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        start = self.plan.starting_id(self._log)
        return {"checkpoint_id": start, "after": start, "snapshot": _NOTHING}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the option asks for; of what Spark can count, a checkpoint is nearest to a file."""
        limit = self.plan.max_checkpoints
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: the checkpoint that is the newest now."""
        self._target = newest_checkpoint_id(self._log)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        log = self._log
        after = start["checkpoint_id"]
        if after != _NOTHING:
            self._held.from_checkpoint(after)
        until = newest_checkpoint_id(log) if self._target is None else self._target
        if until is None or until <= after:
            return start
        snapshot = _NOTHING
        if after == _NOTHING:
            snapshot = _or_nothing(oldest_followed_id(log)) if self.plan.starting == "earliest" else until
            self._held.from_checkpoint(snapshot)
        steps = steps_between(log, _known(after), until, snapshot=_known(snapshot))
        if isinstance(limit, ReadMaxFiles):
            steps = steps[: limit.max_files]
        return {"checkpoint_id": steps[-1].checkpoint_id, "after": after, "snapshot": snapshot}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition per range of key groups."""
        if start == end:
            return []
        # A micro-batch that is repeated after a restart comes here first.
        self._held.from_checkpoint(end["snapshot"] if end["after"] == _NOTHING else end["after"])
        steps = steps_between(self._log, _known(end["after"]), end["checkpoint_id"], snapshot=_known(end["snapshot"]))
        return self.plan.partitions(steps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition."""
        return self.plan.read(partition)

    def stop(self) -> None:
        """Leave what was not read held until the lease ends."""
        self._held.leave()

    @property
    def _log(self) -> CommitLog:
        return CommitLog(self.plan.store.open())


def _known(checkpoint_id: int) -> int | None:
    return None if checkpoint_id == _NOTHING else checkpoint_id


def _or_nothing(checkpoint_id: int | None) -> int:
    return _NOTHING if checkpoint_id is None else checkpoint_id
