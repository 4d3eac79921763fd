"""The status of a running job as tables for SQL; `RunningJob.sql` says what their columns are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from arrowstate.checkpoints.coordination import CheckpointRecord
from arrowstate.functions.failing import storable_text
from arrowstate.runtime.core.coordinator import RestartStatus
from arrowstate.runtime.status import ChannelStatus, JobStatus, TaskStatus

_COUNT = pa.int64()
_RATE = pa.float64()
_TIME = pa.timestamp("ms")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_TASKS = _schema(
    operator=pa.string(),
    subtask=_COUNT,
    rows_in=_COUNT,
    rows_in_per_second=_RATE,
    bytes_in=_COUNT,
    bytes_in_per_second=_RATE,
    rows_out=_COUNT,
    rows_out_per_second=_RATE,
    bytes_out=_COUNT,
    bytes_out_per_second=_RATE,
    busy=_RATE,
    blocked=_RATE,
    idle=_RATE,
    queued_rows=_COUNT,
    queued_bytes=_COUNT,
    watermark=_COUNT,
    lag_ms=_COUNT,
    behind_rows=_COUNT,
    has_ended=pa.bool_(),
    late_rows=_COUNT,
    dead_rows=_COUNT,
)

_CHANNELS = _schema(
    origin=pa.string(),
    operator=pa.string(),
    input=pa.string(),
    from_subtask=_COUNT,
    to_subtask=_COUNT,
    rows=_COUNT,
    rows_per_second=_RATE,
    bytes=_COUNT,
    bytes_per_second=_RATE,
    in_flight_rows=_COUNT,
    in_flight_bytes=_COUNT,
    window_bytes=_COUNT,
    queued_rows=_COUNT,
    queued_bytes=_COUNT,
    blocked=_RATE,
    watermark=_COUNT,
    is_aligning=pa.bool_(),
)

_CHECKPOINTS = _schema(
    checkpoint_id=_COUNT,
    status=pa.string(),
    triggered_at=_TIME,
    ended_at=_TIME,
    duration_ms=_COUNT,
    reason=pa.string(),
    acknowledged=_COUNT,
    alignment_us=_COUNT,
    async_us=_COUNT,
    bytes_written=_COUNT,
)

_RESTARTS = _schema(
    attempt=_COUNT,
    failed_at=_TIME,
    reason=pa.string(),
    checkpoint_id=_COUNT,
    running_at=_TIME,
    down_ms=_COUNT,
)


def status_tables(status: JobStatus) -> dict[str, pa.Table]:
    """Return tasks, channels, checkpoints and restarts of a job."""
    return {
        "tasks": _table(_TASKS, map(_task, status.tasks)),
        "channels": _table(_CHANNELS, map(_channel, status.channels)),
        "checkpoints": _table(_CHECKPOINTS, map(_checkpoint, status.checkpoints)),
        "restarts": _table(_RESTARTS, map(_restart, status.restarts)),
    }


def _table(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def _task(task: TaskStatus) -> tuple[Any, ...]:
    return (
        task.task,
        task.slot,
        task.rows,
        task.rows_per_second,
        task.bytes,
        task.bytes_per_second,
        task.rows_out,
        task.rows_out_per_second,
        task.bytes_out,
        task.bytes_out_per_second,
        task.busy,
        task.blocked,
        task.idle,
        task.queued_rows,
        task.queued_bytes,
        task.watermark,
        task.lag_ms,
        task.behind_rows,
        task.has_ended,
        task.late_rows,
        task.dead_rows,
    )


def _channel(channel: ChannelStatus) -> tuple[Any, ...]:
    return (
        channel.origin,
        channel.task,
        str(channel.input),
        channel.from_slot,
        channel.to_slot,
        channel.rows,
        channel.rows_per_second,
        channel.bytes,
        channel.bytes_per_second,
        channel.in_flight_rows,
        channel.in_flight_bytes,
        channel.window_bytes,
        channel.queued_rows,
        channel.queued_bytes,
        channel.blocked,
        channel.watermark,
        channel.is_aligning,
    )


def _checkpoint(record: CheckpointRecord) -> tuple[Any, ...]:
    ended_ms = record.ended_at_ms
    measured = [part.metrics for part in record.acknowledged.values()]
    return (
        record.checkpoint_id,
        record.status.value,
        record.triggered_at_ms,
        ended_ms,
        None if ended_ms is None else ended_ms - record.triggered_at_ms,
        None if record.reason is None else storable_text(record.reason),
        len(measured),
        max(_known(measured, "alignment_us"), default=None),
        max(_known(measured, "async_us"), default=None),
        sum(_known(measured, "bytes_written")),
    )


def _known(measured: Iterable[Any], name: str) -> Iterator[int]:
    return (value for item in measured if (value := getattr(item, name)) is not None)


def _restart(record: RestartStatus) -> tuple[Any, ...]:
    running_ms = record.running_at_ms
    return (
        record.attempt,
        record.failed_at_ms,
        storable_text(record.reason),
        record.checkpoint_id,
        running_ms,
        None if running_ms is None else running_ms - record.failed_at_ms,
    )
