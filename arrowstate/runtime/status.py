"""How a running job is: what its slots counted, put together for whoever asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arrowstate.checkpoints.coordination import CheckpointRecord
from arrowstate.runtime.core.coordinator import Coordinator, JobState, RestartStatus
from arrowstate.runtime.core.messages import SlotFigures, TaskFigures
from arrowstate.runtime.core.valve import MAX_WATERMARK
from arrowstate.runtime.graph import Graph
from arrowstate.shown import error_text


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a subtask; rates are of the last quarter of a second or so, and 0 between attempts.

    A slot has one thread. In the time that is not `busy`, `blocked` or `idle`, a task waits for its turn while another
    task of its slot is busy.
    """

    task: str
    """The uid."""
    slot: int
    rows: int
    """Rows that it received since the last start of the job."""
    rows_per_second: float
    busy: float
    """The share of the time that it spent in its function, 0 to 1."""
    blocked: float
    """The share of the time in which it had rows to process and no room for its output, 0 to 1."""
    queued_rows: int
    """Rows that wait in its channels."""
    watermark: int | None
    """How far event time is, in milliseconds; None before the first watermark."""
    has_ended: bool
    """Whether it has processed the end of its input."""
    late_rows: int = 0
    """Rows that came too late for their windows and were left out, since the job was started last; those that go to a
    side output do not count."""
    dead_rows: int = 0
    """Rows that were set aside as dead letters, since the job was started last."""
    idle: float = 0.0
    """The share of the time in which it had nothing to do, 0 to 1."""
    rows_out: int = 0
    """Rows that it sent to channels and sinks."""
    rows_out_per_second: float = 0.0
    bytes: int = 0
    """The size of the rows that it received."""
    bytes_per_second: float = 0.0
    bytes_out: int = 0
    """The size of the rows that it sent."""
    bytes_out_per_second: float = 0.0
    queued_bytes: int = 0
    """The size of the rows that wait in its channels."""
    lag_ms: int | None = None
    """The time by which its watermark is behind the clock; None before the first watermark, and after the last."""
    behind_rows: int | None = None
    """Rows of its splits that are there and not read, for a source that tells, such as `KafkaSource`; else None."""


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """The status of a channel from a subtask of one task to a subtask of another."""

    origin: str
    """The uid of the task that sends."""
    task: str
    """The uid of the task that receives."""
    input: int | str
    """Which input of it the channel belongs to: 0, or 1 for the second stream; for a broadcast state its name."""
    from_slot: int
    to_slot: int
    rows: int
    """Rows that were sent since the job was started last."""
    bytes: int
    rows_per_second: float
    bytes_per_second: float
    in_flight_rows: int
    """Rows that were sent and not processed yet."""
    in_flight_bytes: int
    window_bytes: int
    """How many of these there may be: what the receiver takes in half a second, by the number of its channels."""
    queued_rows: int
    """Rows of these that have arrived and wait."""
    queued_bytes: int
    blocked: float
    """The share of the time in which it had no room for more rows, 0 to 1."""
    watermark: int | None
    """How far event time is by this channel, in milliseconds; None before its first watermark."""
    is_aligning: bool
    """Whether it has brought the barrier of a checkpoint, and waits for those of the other channels."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job at the moment."""

    state: JobState
    attempt: int
    """How often it was started, including this time."""
    failures: tuple[str, ...]
    """The last failures, oldest first."""
    checkpoints: tuple[CheckpointRecord, ...]
    """The checkpoints that ended last, oldest first, and those in progress."""
    tasks: tuple[TaskStatus, ...]
    """The status of each subtask, ordered by the name of its task and by its slot."""
    channels: tuple[ChannelStatus, ...] = ()
    """The status of each channel, ordered by receiver and sender."""
    restarts: tuple[RestartStatus, ...] = ()
    """The last failures and changes of parallelism, oldest first, and how the job went on after each."""


def status_of(job: Coordinator, graph: Graph) -> JobStatus:
    """Return how a job is; to be called between two events of its coordinator."""
    told = tuple(error_text(error) for _, error in job.failures)
    # Of an attempt that is over it is told what it did, and not how fast.
    ended = job.state != "running"
    slots = {slot: _Span(known[-1], known[-1] if ended else known[0]) for slot, known in job.figures.items()}
    tasks = [status for span in slots.values() for status in _tasks(span, graph)]
    channels = [status for span in slots.values() for status in _channels(span, slots, graph)]
    return JobStatus(
        job.state,
        job.attempt,
        told,
        job.records,
        tuple(sorted(tasks, key=lambda item: (item.task, item.slot))),
        tuple(sorted(channels, key=lambda item: (item.task, str(item.input), item.origin, item.to_slot))),
        tuple(job.restarts),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """The last figures of a slot, and those some time before; the same ones where there are none."""

    last: SlotFigures
    first: SlotFigures

    def per_second(self, now: int, before: int) -> float:
        """Return how fast a number grows."""
        passed_ms = self.last.at_ms - self.first.at_ms
        return (now - before) / passed_ms * 1000 if passed_ms else 0.0

    def share(self, now_us: int, before_us: int) -> float:
        """Return which part of the time it was."""
        return min(self.per_second(now_us, before_us) / 1_000_000, 1.0)


def _tasks(span: _Span, graph: Graph) -> Iterator[TaskStatus]:
    rows, size = _queued(span.last, graph)
    for now, before in zip(span.last.tasks, span.first.tasks, strict=True):
        yield TaskStatus(
            task=now.task,
            slot=now.subtask,
            rows=now.rows,
            rows_per_second=span.per_second(now.rows, before.rows),
            busy=span.share(now.busy_us, before.busy_us),
            blocked=span.share(now.blocked_us, before.blocked_us),
            queued_rows=rows.get(now.task, 0),
            watermark=now.watermark,
            has_ended=now.has_ended,
            late_rows=now.late_rows,
            dead_rows=now.dead_rows,
            idle=span.share(now.idle_us, before.idle_us),
            rows_out=now.rows_out,
            rows_out_per_second=span.per_second(now.rows_out, before.rows_out),
            bytes=now.bytes,
            bytes_per_second=span.per_second(now.bytes, before.bytes),
            bytes_out=now.bytes_out,
            bytes_out_per_second=span.per_second(now.bytes_out, before.bytes_out),
            queued_bytes=size.get(now.task, 0),
            lag_ms=_lag_ms(span.last, now),
            behind_rows=now.behind_rows,
        )


def _lag_ms(figures: SlotFigures, task: TaskFigures) -> int | None:
    ended = task.watermark is None or task.watermark == MAX_WATERMARK
    return None if ended else figures.at_ms - task.watermark  # type: ignore[operator]


def _queued(figures: SlotFigures, graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Return rows and bytes that wait, by the task that they are for."""
    rows: dict[str, int] = defaultdict(int)
    size: dict[str, int] = defaultdict(int)
    for taken in figures.taken:
        uid = graph.edges[taken.edge].target.uid
        rows[uid] += sum(taken.queued_rows)
        size[uid] += sum(taken.queued_bytes)
    return rows, size


def _channels(span: _Span, slots: Mapping[int, _Span], graph: Graph) -> Iterator[ChannelStatus]:
    """Yield the channels that a slot sends to; what the other end says is of about the same time."""
    taken = {(slot, item.edge): item for slot, other in slots.items() for item in other.last.taken}
    sender = span.last.slot
    for now, before in zip(span.last.sent, span.first.sent, strict=True):
        edge = graph.edges[now.edge]
        for to in range(len(now.rows)):
            end = taken.get((to, now.edge))
            if end is None or edge.origin is None:
                continue
            queued = end.queued_rows[sender]
            yield ChannelStatus(
                origin=edge.origin.uid,
                task=edge.target.uid,
                input=edge.port,
                from_slot=sender,
                to_slot=to,
                rows=now.rows[to],
                bytes=now.bytes[to],
                rows_per_second=span.per_second(now.rows[to], before.rows[to]),
                bytes_per_second=span.per_second(now.bytes[to], before.bytes[to]),
                in_flight_rows=max(now.rows[to] - end.rows[sender], queued),
                in_flight_bytes=now.in_flight_bytes[to],
                window_bytes=now.window_bytes[to],
                queued_rows=queued,
                queued_bytes=end.queued_bytes[sender],
                blocked=span.share(now.blocked_us[to], before.blocked_us[to]),
                watermark=end.watermarks[sender],
                is_aligning=end.aligning[sender],
            )
