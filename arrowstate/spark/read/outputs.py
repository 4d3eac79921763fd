"""Reading an output table: the rows that an operator gave out, in the order in which they were committed.

An output table is an operator state, a list called `rows`, whose parts are appended to by every commit. Parts may be
merged later and rows are never moved, so the number of a row, counted from the first, is what a stream remembers: it
means the same in every later checkpoint, whatever files the rows are in by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from arrowstate.errors import IncompatibleStateError, InvalidInputError, NotFoundError
from arrowstate.files.output_tables import fewest_rows, find_output, output_rows, row_count
from arrowstate.log.commit_log import CommitLog
from arrowstate.spark.read.bases import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from arrowstate.spark.read.holding import Held, check_no_lease
from arrowstate.spark.read.options import (
    StorePlace,
    await_checkpoint,
    check_options,
    choice,
    choose_columns,
    find_checkpoint,
    open_checkpoint,
    open_read_storage,
    whole_number,
)
from arrowstate.spark.read.states import check_schema
from arrowstate.spark.schemas import batch_for_spark, schema_for_spark, spark_schema
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import LogEntryDocument, OperatorPartDocument, OperatorStateDocument

__all__ = ["OutputPlan", "OutputReader", "OutputStreamReader", "RowsPartition"]

_BATCH = ("output", "columns", "checkpoint", "asOf", "waitSeconds")
_STREAM = ("output", "columns", "startingPosition", "maxRowsPerTrigger", "leaseSeconds", "waitSeconds")

_PARTITION_ROWS = 1 << 18
_PARTITION_BYTES = 32 << 20
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class RowsPartition(InputPartition):
    """The rows from number `start` to before number `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """Which output table to read, settled when it is loaded."""

    store: StorePlace
    checkpoint_id: int
    """The checkpoint of a table; a stream goes on with those that come."""
    output: str
    schema: StructType
    starting: str | None
    max_rows: int | None
    lease_seconds: int | None
    """How long a stream holds the checkpoints in which it finds its rows, None for not at all."""
    is_pinned: bool
    """Whether the checkpoint was chosen by an option."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> OutputPlan:
        """Look up what the options name.

        Raises
        ------
        InvalidInputError
            If an option has no meaning for an output table, or one names no column.
        NotFoundError
            If there is no such output table; the message lists the existing ones.
        """
        check_options(options, dict.fromkeys((*_BATCH, *_STREAM)), "an output table")
        is_pinned = any(options.get(option) is not None for option in ("checkpoint", "asOf"))
        if not is_pinned:
            await_checkpoint(open_read_storage(options), options)
        storage, entry = open_checkpoint(options)
        name = options["output"]
        columns = pa.schema(list(type_from_json(find_output(storage, entry, name).value_type)))
        chosen = choose_columns(options, columns.names, f"output table {name!r}")
        starting = options.get("startingPosition")
        assert entry.checkpoint_id is not None, "a fence is never read"
        return cls(
            store=StorePlace.of(storage, options),
            checkpoint_id=entry.checkpoint_id,
            output=name,
            schema=spark_schema(pa.schema([columns.field(column) for column in chosen])),
            starting=None if starting is None else choice(options, "startingPosition", ("earliest", "latest")),
            max_rows=whole_number(options, "maxRowsPerTrigger", at_least=1),
            lease_seconds=whole_number(options, "leaseSeconds", at_least=1),
            is_pinned=is_pinned,
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it as a table."""
        check_schema(schema, self.schema)
        check_no_lease(self.lease_seconds)
        if self.starting is not None or self.max_rows is not None:
            raise InvalidInputError(
                "the options 'startingPosition' and 'maxRowsPerTrigger' are for spark.readStream; as a table an "
                f"output is read with {', '.join(_BATCH)}"
            )
        return OutputReader(self)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads it as a stream."""
        check_schema(schema, self.schema)
        if self.is_pinned:
            raise InvalidInputError(
                "the options 'checkpoint' and 'asOf' are for spark.read; as a stream an output is read with "
                f"{', '.join(_STREAM)}"
            )
        return OutputStreamReader(self)


class OutputReader(DataSourceReader):
    """Reads an output table of one checkpoint."""

    def __init__(self, plan: OutputPlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of rows that begin and end with a part."""
        storage = self.plan.store.open()
        parts = find_output(storage, self._entry(storage), self.plan.output).parts
        # Spark makes a partition of its own where it is given none.
        return _ranges(parts, 0, sum(part.rows for part in parts)) or [RowsPartition(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows in their order."""
        assert isinstance(partition, RowsPartition)
        storage = self.plan.store.open()
        yield from _rows(storage, find_output(storage, self._entry(storage), self.plan.output), self.plan, partition)

    def _entry(self, storage: Storage) -> LogEntryDocument:
        return find_checkpoint(storage, str(self.plan.checkpoint_id))


class OutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads an output table as a stream: an offset is the number of rows before it, and the epoch of their writer.

    The offset at the end of a micro-batch says where it began too, so a micro-batch that is repeated has the same rows
    even where the stream began at `latest`, which is another place by then.
    """

    def __init__(self, plan: OutputPlan) -> None:
        self.plan = plan
        self._target: int | None = None
        self._held = Held(plan.store, plan.lease_seconds, f"a stream of the output {plan.output}")

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        storage = self.plan.store.open()
        entry = find_checkpoint(storage)
        row = row_count(find_output(storage, entry, self.plan.output)) if self.plan.starting == "latest" else 0
        return {"row": row, "after": row, "epoch": entry.writer_epoch}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the option asks for."""
        return ReadAllAvailable() if self.plan.max_rows is None else ReadMaxRows(self.plan.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: the rows there are now."""
        self._target = row_count(self._newest(self.plan.store.open()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        entry, document = self._newest_held(start)
        row = row_count(document) if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            row = min(row, start["row"] + limit.max_rows)
        end = {"row": row, "after": start["row"], "epoch": entry.writer_epoch}
        return end if row > start["row"] else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return ranges of the rows of a micro-batch that begin and end with a part."""
        if start == end:
            return []
        _, document = self._newest_held(end)
        return _ranges(document.parts, end["after"], end["row"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows in their order, from the files in which the newest checkpoint has them."""
        assert isinstance(partition, RowsPartition)
        storage = self.plan.store.open()
        yield from _rows(storage, self._newest(storage), self.plan, partition)

    def stop(self) -> None:
        """Leave the checkpoints held until the lease ends."""
        self._held.leave()

    def _newest_held(self, offset: dict[str, Any]) -> tuple[LogEntryDocument, OperatorStateDocument]:
        """The newest checkpoint, and its rows, of which those before the offset are as they were read.

        The checkpoint is held with all after it: a task reads the newest of these.
        """
        storage = self.plan.store.open()
        entry = find_checkpoint(storage)
        assert entry.checkpoint_id is not None, "a fence is never read"
        document = find_output(storage, entry, self.plan.output)
        # A query that began with an earlier version has no epoch.
        epoch, fewest = offset.get("epoch"), None
        if epoch is not None and epoch != entry.writer_epoch:
            fewest = fewest_rows(storage, CommitLog(storage).backwards(), self.plan.output, epoch)
        _check_rows(row_count(document) if fewest is None else fewest, self.plan, offset["row"])
        self._held.from_checkpoint(entry.checkpoint_id)
        return entry, document

    def _newest(self, storage: Storage) -> OperatorStateDocument:
        return find_output(storage, find_checkpoint(storage), self.plan.output)


def _ranges(parts: Sequence[OperatorPartDocument], start: int, end: int) -> list[InputPartition]:
    """Cut a range of rows between parts, so that each piece is worth a task."""
    out: list[InputPartition] = []
    first, size = start, 0
    for part, part_end in zip(parts, accumulate(part.rows for part in parts), strict=True):
        if part_end <= start or part_end - part.rows >= end:
            continue
        size += part.bytes
        last = min(part_end, end)
        if last - first >= _PARTITION_ROWS or size >= _PARTITION_BYTES or last == end:
            out.append(RowsPartition(first, last))
            first, size = last, 0
    return out


def _rows(
    storage: Storage, document: OperatorStateDocument, plan: OutputPlan, rows: RowsPartition
) -> Iterator[pa.RecordBatch]:
    """Yield a range of rows, parts of a few rows put together."""
    _check_rows(row_count(document), plan, rows.end)
    columns = pa.schema(list(type_from_json(document.value_type)))
    chosen = [name for name in plan.schema.names if name in columns.names]
    stored = spark_schema(pa.schema([columns.field(name) for name in chosen]))
    if stored.simpleString() != plan.schema.simpleString():
        raise IncompatibleStateError(
            plan.output,
            f"rows of {spark_schema(columns).simpleString()}",
            f"rows of {plan.schema.simpleString()}",
            "start the query again, so that it reads the columns of today",
        )
    target = schema_for_spark(plan.schema)
    waiting: list[pa.RecordBatch] = []
    for batch in output_rows(storage, document, rows.start, rows.end, columns=columns):
        ready = batch_for_spark(batch.select(chosen), target, f"output table {plan.output!r}")
        for start in range(0, len(ready), _BATCH_ROWS):
            piece = ready.slice(start, _BATCH_ROWS)
            if waiting and sum(map(len, waiting)) + len(piece) > _BATCH_ROWS:
                yield pa.concat_batches(waiting)
                waiting = []
            waiting.append(piece)
    if waiting:
        yield pa.concat_batches(waiting)


def _check_rows(rows: int, plan: OutputPlan, read: int) -> None:
    if rows < read:
        raise NotFoundError(
            f"of the {read} rows that the query has read of output table {plan.output!r} only {rows} are left: the "
            "store has gone back to an earlier checkpoint; start the query anew with another Spark checkpoint folder"
        )
