"""When checkpoints begin and how they end: a state machine that does no I/O and knows no time of its own.

Events go in, actions come out. Whoever drives it starts what it says to start, writes what it says to commit, and
tells it what happened. The rules are those of Flink's CheckpointCoordinator: a checkpoint is complete when every
subtask has acknowledged it and its commit has won; a completed checkpoint subsumes the pending ones before it;
savepoints stand beside checkpoints, they neither subsume nor are subsumed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from arrowstate.checkpoints.protocol import (
    Abort,
    Acknowledge,
    Action,
    Border,
    Cancel,
    Commit,
    CommitLost,
    CommitRefused,
    CommitUnknown,
    CommitWon,
    Complete,
    Decline,
    Discard,
    Event,
    Kind,
    Refuse,
    Start,
    Stop,
    Subtask,
    Tick,
    Trigger,
)
from arrowstate.errors import InvalidInputError
from arrowstate_formats.integers import check_integer


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """When checkpoints are taken, and when one is given up.

    The defaults are Flink's.

    Parameters
    ----------
    interval_ms
        Milliseconds between the beginnings of two periodic checkpoints, at least 1; None takes none by itself.
    timeout_ms
        A checkpoint that is not complete so long after its beginning is given up; at least 1.
    min_pause_ms
        Between the end of a checkpoint and the beginning of the next periodic one; 0 or more.
    max_concurrent
        Checkpoints in progress at once, at least 1; savepoints do not count.
    tolerated_failures
        How many checkpoints in a row may fail before the job does; 0 or more.
    writer_threads
        How many parts of checkpoints are written at once; at least 1.
    unaligned
        Only for an exactly-once `arrowstate.runtime.Job`: the barriers of a checkpoint overtake the rows before them,
        so that it does not wait for slow functions, and the rows that they overtake are part of it, as the state
        `inflight` of the operator that they were on their way to. Savepoints, and the checkpoint with which a job
        stops, are aligned all the same. `max_concurrent` must be 1.
    aligned_timeout_ms
        With `unaligned`: for how many milliseconds after the beginning of a checkpoint its barriers wait for the rows
        before them; 0 or more. By default they overtake at once.
    max_in_flight_bytes
        With `unaligned`: a checkpoint for which a subtask would have more bytes of rows in flight is declined; at
        least 1. What is left of an earlier checkpoint, after a restore, does not count.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://options-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> options = arrowstate.CheckpointOptions(interval_ms=3_600_000, max_concurrent=2)
    >>> with store.writer() as writer, writer.coordinator({"people": [backend]}, options=options) as checkpoints:
    ...     first = checkpoints.poll()  # due at once, the next one in an hour
    ...     second = checkpoints.poll()
    >>> first.result().checkpoint_id, second
    (1, None)
    """

    interval_ms: int | None = None
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerated_failures: int = 0
    writer_threads: int = 2
    unaligned: bool = False
    aligned_timeout_ms: int | None = None
    max_in_flight_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name, least in (
            ("interval_ms", 1),
            ("timeout_ms", 1),
            ("min_pause_ms", 0),
            ("max_concurrent", 1),
            ("tolerated_failures", 0),
            ("writer_threads", 1),
            ("aligned_timeout_ms", 0),
            ("max_in_flight_bytes", 1),
        ):
            optional = name in ("interval_ms", "aligned_timeout_ms")
            value = check_integer(name, getattr(self, name), least, optional=optional)
            object.__setattr__(self, name, value)
        if self.unaligned and self.max_concurrent > 1:
            raise InvalidInputError(
                f"max_concurrent must be 1 with unaligned=True, got {self.max_concurrent}: what a checkpoint captures "
                "ends where the next one begins"
            )
        if self.aligned_timeout_ms is not None and not self.unaligned:
            raise InvalidInputError("aligned_timeout_ms says when barriers overtake, which needs unaligned=True")


class Status(enum.Enum):
    """How far a checkpoint is, or how it ended."""

    IN_PROGRESS = "in progress"
    ACKNOWLEDGED = "acknowledged"
    COMMITTING = "committing"
    COMPLETED = "completed"
    DECLINED = "declined"
    EXPIRED = "expired"
    SUBSUMED = "subsumed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"


class SubtaskRecord(Struct, frozen=True):
    """The acknowledgement of one subtask."""

    acknowledged_at_ms: int
    handle: Any
    metrics: Any


class CheckpointRecord(Struct, frozen=True):
    """One checkpoint from its beginning to its end."""

    checkpoint_id: int
    kind: Kind
    triggered_at_ms: int
    status: Status = Status.IN_PROGRESS
    ended_at_ms: int | None = None
    reason: str | None = None
    "Why it ended, where it is not completed."
    acknowledged: dict[Subtask, SubtaskRecord] = field(default_factory=dict)


_FAILURES = (Status.DECLINED, Status.EXPIRED, Status.FAILED)


class Coordination:
    """Decides which checkpoints begin and how they end."""

    def __init__(
        self, subtasks: Sequence[Subtask], options: CheckpointOptions, *, newest_id: int = 0, kept_records: int = 100
    ) -> None:
        if not subtasks or len(set(subtasks)) < len(subtasks):
            raise InvalidInputError(f"checkpoints need at least one subtask, each named once; got {list(subtasks)}")
        self.options = options
        self.stopped: str | None = None
        self._subtasks = tuple(subtasks)
        self._newest_id = newest_id
        self._kept_records = kept_records
        self._pending: dict[int, CheckpointRecord] = {}
        self._ended: list[CheckpointRecord] = []
        self._failures = 0
        self._last_start_ms: int | None = None
        self._last_end_ms: int | None = None

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints that ended last, oldest first, and then those in progress."""
        return (*self._ended[-self._kept_records :], *self._pending.values())

    def record(self, checkpoint_id: int) -> CheckpointRecord:
        """Return a checkpoint that is in progress, was ended by the last event, or is among `records`."""
        ended = (record for record in reversed(self._ended) if record.checkpoint_id == checkpoint_id)
        return self._pending.get(checkpoint_id) or next(ended)

    @property
    def in_progress(self) -> tuple[int, ...]:
        """The ids of checkpoints and savepoints that have not ended, ascending."""
        return tuple(self._pending)

    @property
    def has_room(self) -> bool:
        """Whether one more checkpoint may begin."""
        checkpoints = sum(record.kind == "checkpoint" for record in self._pending.values())
        return checkpoints < self.options.max_concurrent

    def next_tick_ms(self) -> int | None:
        """Return when a `Tick` is due next, None if time alone will change nothing."""
        if self.stopped is not None:
            return None
        times = (
            record.triggered_at_ms + self.options.timeout_ms
            for record in self._pending.values()
            if record.status is not Status.COMMITTING
        )
        return min(times, default=None)

    def begin_above(self, checkpoint_id: int) -> None:
        """Give only ids above this one from now on: others commit to the store too."""
        self._newest_id = max(self._newest_id, checkpoint_id)

    def handle(self, event: Event) -> list[Action]:
        """Take note of what happened; return what to do, in order."""
        # Not where they end: one event may end more of them, and whoever does what is returned asks for each.
        del self._ended[: -self._kept_records]
        match event:
            case Tick(now_ms):
                return self._expire(now_ms)
            case Border(now_ms):
                return [*self._expire(now_ms), *self._periodic(now_ms)]
            case Trigger(now_ms, kind):
                return [*self._expire(now_ms), *self._trigger(now_ms, kind)]
            case Acknowledge():
                return self._acknowledge(event)
            case Decline(now_ms, id, subtask, reason):
                if not self._is_open(id) or subtask not in self._subtasks:
                    return []
                return self._end(id, Status.DECLINED, now_ms, f"{subtask} declined: {reason}")
            case Cancel(now_ms, reason, id):
                open_ids = [each for each in self._pending if self._is_open(each) and id in (None, each)]
                return [action for each in open_ids for action in self._end(each, Status.CANCELLED, now_ms, reason)]
            case _:
                return self._committed(event)

    def _trigger(self, now_ms: int, kind: Kind) -> list[Action]:
        if self.stopped is not None:
            return [Refuse(f"no more checkpoints are taken: {self.stopped}")]
        if kind == "checkpoint" and not self.has_room:
            return [Refuse(f"{self.options.max_concurrent} checkpoints are in progress, as many as may be")]
        return self._start(now_ms, kind)

    def _periodic(self, now_ms: int) -> list[Action]:
        due = self.stopped is None and self.options.interval_ms is not None and self.has_room
        return self._start(now_ms, "checkpoint") if due and now_ms >= self._next_periodic_ms() else []

    def _start(self, now_ms: int, kind: Kind) -> list[Action]:
        self._newest_id += 1
        self._pending[self._newest_id] = CheckpointRecord(self._newest_id, kind, now_ms)
        if kind == "checkpoint":
            self._last_start_ms = now_ms
        return [Start(self._newest_id, kind)]

    def _next_periodic_ms(self) -> int:
        assert self.options.interval_ms is not None
        # The first one is due at once.
        due = -(1 << 63) if self._last_start_ms is None else self._last_start_ms + self.options.interval_ms
        return due if self._last_end_ms is None else max(due, self._last_end_ms + self.options.min_pause_ms)

    def _is_open(self, id: int) -> bool:
        """Whether a checkpoint can still be given up: its commit has not been tried."""
        record = self._pending.get(id)
        return record is not None and record.status is not Status.COMMITTING

    def _acknowledge(self, event: Acknowledge) -> list[Action]:
        id, subtask = event.checkpoint_id, event.subtask
        record = self._pending.get(id)
        if record is None or subtask not in self._subtasks:
            return [Discard(id, subtask, event.handle)]
        if subtask in record.acknowledged:
            # The same message twice is one; another handle would be files that nobody names.
            same = record.acknowledged[subtask].handle == event.handle
            return [] if same else [Discard(id, subtask, event.handle)]
        acknowledged = {**record.acknowledged, subtask: SubtaskRecord(event.now_ms, event.handle, event.metrics)}
        self._pending[id] = replace(record, acknowledged=acknowledged)
        if len(acknowledged) < len(self._subtasks):
            return []
        self._pending[id] = replace(self._pending[id], status=Status.ACKNOWLEDGED)
        return self._next_commit()

    def _next_commit(self) -> list[Action]:
        """Commit the oldest checkpoint whose subtasks are done, one at a time."""
        if self.stopped is not None or any(each.status is Status.COMMITTING for each in self._pending.values()):
            return []
        for id, record in self._pending.items():
            if record.status is Status.ACKNOWLEDGED:
                self._pending[id] = replace(record, status=Status.COMMITTING)
                handles = tuple(record.acknowledged[subtask].handle for subtask in self._subtasks)
                return [Commit(id, record.kind, handles)]
        return []

    def _committed(self, event: CommitWon | CommitRefused | CommitLost | CommitUnknown) -> list[Action]:
        """Take note of how a commit ended."""
        id = event.checkpoint_id
        record = self._pending.get(id)
        if record is None or record.status is not Status.COMMITTING:
            raise InvalidInputError(f"checkpoint {id} is not being committed; {self.in_progress} are in progress")
        now_ms = event.now_ms
        if isinstance(event, CommitRefused):
            return [*self._end(id, Status.FAILED, now_ms, event.reason), *self._next_commit()]
        if isinstance(event, CommitLost):
            return [*self._end(id, Status.LOST, now_ms, event.reason), *self._stop(now_ms, event.reason)]
        if isinstance(event, CommitUnknown):
            # Its files may be named by the log, so they stay.
            self._close(id, Status.UNKNOWN, now_ms, event.reason)
            return [Abort(id, event.reason), *self._stop(now_ms, event.reason)]
        self._failures = 0
        self._close(id, Status.COMPLETED, now_ms, None)
        actions: list[Action] = [Complete(id, record.kind)]
        if record.kind == "checkpoint":
            older = [each for each, other in self._pending.items() if each < id and other.kind == "checkpoint"]
            for each in older:
                actions += self._end(each, Status.SUBSUMED, now_ms, f"checkpoint {id} is newer and complete")
        return [*actions, *self._next_commit()]

    def _take_nothing_for_later(self, now_ms: int) -> None:
        """Let what is later than now be of now: else nothing began or expired until a clock set back is there again."""
        if self._last_start_ms is not None:
            self._last_start_ms = min(self._last_start_ms, now_ms)
        if self._last_end_ms is not None:
            self._last_end_ms = min(self._last_end_ms, now_ms)
        for id, record in self._pending.items():
            if record.triggered_at_ms > now_ms:
                self._pending[id] = replace(record, triggered_at_ms=now_ms)

    def _expire(self, now_ms: int) -> list[Action]:
        self._take_nothing_for_later(now_ms)
        if not self._pending:
            return []
        limit = self.options.timeout_ms
        late = [
            id
            for id, record in self._pending.items()
            if record.status is not Status.COMMITTING and now_ms >= record.triggered_at_ms + limit
        ]
        if not late:
            return []
        return [action for id in late for action in self._end(id, Status.EXPIRED, now_ms, f"not done after {limit} ms")]

    def _stop(self, now_ms: int, reason: str) -> list[Action]:
        """Give up what is left, and take no more checkpoints."""
        self.stopped = reason
        left = [id for id, record in self._pending.items() if record.status is not Status.COMMITTING]
        given_up = [action for id in left for action in self._end(id, Status.CANCELLED, now_ms, reason)]
        return [*given_up, Stop(reason)]

    def _end(self, id: int, status: Status, now_ms: int, reason: str) -> list[Action]:
        """End a checkpoint that no log entry will name: what was written for it is deleted."""
        if id not in self._pending:
            # Given up with the rest while others ended.
            return []
        record = self._close(id, status, now_ms, reason)
        actions: list[Action] = [Abort(id, reason)]
        actions += [Discard(id, subtask, part.handle) for subtask, part in record.acknowledged.items()]
        if status in _FAILURES and record.kind == "checkpoint":
            self._failures += 1
            if self._failures > self.options.tolerated_failures and self.stopped is None:
                actions += self._stop(now_ms, f"{self._failures} checkpoints in a row failed, the last one: {reason}")
        return actions

    def _close(self, id: int, status: Status, now_ms: int, reason: str | None) -> CheckpointRecord:
        record = replace(self._pending.pop(id), status=status, ended_at_ms=now_ms, reason=reason)
        # What was written may hold much of the state in memory; a record of the past need not.
        told = {subtask: replace(part, handle=None) for subtask, part in record.acknowledged.items()}
        self._ended.append(replace(record, acknowledged=told))
        if record.kind == "checkpoint":
            self._last_end_ms = now_ms
        return record
