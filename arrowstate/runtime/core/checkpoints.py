"""The checkpoints of a job: when they are taken, how they are committed, and who is told.

When one begins and how it ends says `arrowstate.checkpoints.coordination`; commits, and giving the sinks their rows,
are work that is done beside, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from arrowstate.checkpoints.coordination import CheckpointOptions, CheckpointRecord, Coordination
from arrowstate.checkpoints.protocol import (
    Abort,
    Action,
    Border,
    Cancel,
    Commit,
    CommitLost,
    CommitRefused,
    CommitUnknown,
    CommitWon,
    Complete,
    Discard,
    Event,
    Refuse,
    Start,
    Stop,
    Tick,
    Trigger,
)
from arrowstate.errors import (
    CheckpointAbortedError,
    CollectedError,
    FencedError,
    InvalidInputError,
    JobFailedError,
    StorageError,
    StorageFullError,
)
from arrowstate.log.commit import delete_quietly
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.messages import AbortCheckpoint, CompleteCheckpoint, ToSlot, TriggerCheckpoint

T = TypeVar("T")
Done = Callable[[int | None, BaseException | None], None]
"""Is told the id of a checkpoint that was asked for, or why there is none."""

_RETRY_MS = 100
"""After how long a checkpoint that ends a job is tried again."""

_TELL_AGAIN_MS = 1_000
"""How often slots are told of the newest checkpoint that was given up, until another begins."""


class JobSide(Protocol):
    """What the checkpoints of a job ask of its coordinator."""

    attempt: int

    @property
    def is_running(self) -> bool:
        """Whether the slots process rows."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""

    def tell_all(self, message: ToSlot) -> None:
        """Tell all slots."""

    def failed(self, error: BaseException) -> None:
        """End the attempt."""

    def fenced(self, error: FencedError) -> None:
        """End the job: another one writes to its store."""

    def committed(self) -> None:
        """Take note that a checkpoint is in the log."""

    def commits_ended(self) -> None:
        """Take note that no commit is under way any more."""

    def completed(self) -> None:
        """End the job: its last checkpoint is committed, and the sinks have had their rows."""


class CheckpointsOutside(Protocol):
    """What they ask of whoever drives the coordinator."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Have work done beside, one after another, then call `done` between two events."""

    def now_ms(self) -> int: ...


@dataclass(slots=True)
class _Request:
    """A checkpoint that somebody asked for."""

    done: Done
    checkpoint_id: int | None = None


class JobCheckpoints:
    """Takes the checkpoints of a job."""

    def __init__(
        self,
        job: JobSide,
        entries: Entries,
        subtasks: Sequence[tuple[str, int]],
        options: CheckpointOptions,
        outside: CheckpointsOutside,
    ) -> None:
        self._job = job
        self._entries = entries
        self._subtasks = subtasks
        self._options = options
        self._outside = outside
        self._coordination: Coordination | None = None
        self._records: list[CheckpointRecord] = []
        self._based_on: dict[int, tuple[int, int]] = {}
        "Of a checkpoint in progress: the newest log entry at its beginning, and when that was."
        self._causes: dict[int, BaseException] = {}
        self._requests: list[_Request] = []
        self._committing = 0
        self._last_id: int | None = None
        "The checkpoint that ends the job."
        self._retry_ms = 0
        self._given_up: AbortCheckpoint | None = None
        "The newest checkpoint, if it was given up: a slot that has not heard of it waits for its barriers for ever."
        self._told_ms = 0

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints of all attempts, oldest first, the last hundred or so."""
        current = () if self._coordination is None else self._coordination.records
        return (*self._records, *current)

    @property
    def is_committing(self) -> bool:
        """Whether a commit is under way."""
        return self._committing > 0

    def forget_last(self) -> None:
        """Begin an attempt, which takes a last checkpoint of its own.

        What was asked for and not begun is taken in it; what was begun is answered when its commit has ended, and the
        sinks have its rows.
        """
        self._last_id, self._retry_ms = None, 0

    def begin(self) -> None:
        """Take checkpoints of an attempt, whose slots are about to be deployed."""
        newest = self._entries.committer.newest_id
        self._coordination = Coordination(self._subtasks, self._options, newest_id=newest)

    def end(self, reason: str) -> None:
        """Give up what is in progress: the attempt has ended. A commit that has begun goes on."""
        if self._coordination is not None:
            self._act(self._coordination.handle(Cancel(self._outside.now_ms(), reason)))
            self._given_up = None
            if not self._committing:
                self.put_away()

    def put_away(self) -> None:
        """Keep the records of an attempt that has ended."""
        if self._coordination is not None:
            self._records = [*self._records, *self._coordination.records][-100:]
            self._coordination = None

    def refuse_requests(self, reason: Exception) -> None:
        """Answer whoever waits for a checkpoint: there will be none."""
        requests, self._requests = self._requests, []
        for request in requests:
            request.done(None, reason)

    def request(self, done: Done) -> None:
        """Take one as soon as there is room."""
        self._requests.append(_Request(done))
        self._serve_requests()

    def feed(self, event: Event) -> None:
        """Take note of what a subtask says of a checkpoint."""
        if self._coordination is not None:
            self._act(self._coordination.handle(event))

    def tick(self, now_ms: int, *, only_last: bool) -> None:
        """Let time pass; with `only_last` none is begun by time, which would leave no room for the last."""
        if self._coordination is not None:
            self._act(self._coordination.handle(Tick(now_ms) if only_last else Border(now_ms)))
            self._serve_requests()
        if self._given_up is not None and now_ms - self._told_ms >= _TELL_AGAIN_MS:
            self._told_ms = now_ms
            self._job.tell_all(self._given_up)

    def take_last(self, now_ms: int) -> None:
        """Take the checkpoint that ends the job, for all that is to be in it is there; again where that fails."""
        if self._coordination is None or not self._job.is_running:
            return
        if self._last_id in self._coordination.in_progress or now_ms < self._retry_ms:
            return
        self._last_id = self._trigger()
        self._retry_ms = now_ms + _RETRY_MS

    def discard(self, paths: Sequence[str]) -> None:
        """Delete what was written for nothing."""
        if paths:
            self._outside.submit(partial(delete_quietly, self._entries.storage, paths), lambda *_: None)

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(id, _):
                    self._given_up = None
                    self._based_on[id] = self._entries.committer.newest_number, self._outside.now_ms()
                    self._job.tell_all(TriggerCheckpoint(self._job.attempt, id))
                case Commit(id, _, handles):
                    self._committing += 1
                    based_on, started_at_ms = self._based_on[id]
                    work = partial(self._entries.commit, id, handles, based_on=based_on, started_at_ms=started_at_ms)
                    self._outside.submit(work, partial(self._committed, id))
                case Complete(id, _):
                    self._based_on.pop(id, None)
                    self._job.tell_all(CompleteCheckpoint(self._job.attempt, id))
                    # Where the job is over the sinks are closed: the next start gives them their rows.
                    if not self._job.is_over:
                        self._outside.submit(self._entries.give, partial(self._given, self._job.attempt, id))
                case Abort(id, reason):
                    self._based_on.pop(id, None)
                    cause = self._causes.pop(id, None)
                    gone = frozenset(cause.paths) if isinstance(cause, CollectedError) else frozenset[str]()
                    self._given_up, self._told_ms = AbortCheckpoint(self._job.attempt, id, gone), self._outside.now_ms()
                    self._job.tell_all(self._given_up)
                    self._answer(id, CheckpointAbortedError(id, self._status(id), reason))
                case Discard(_, _, handle):
                    self.discard(handle.paths)
                case Stop(reason):
                    self._job.failed(JobFailedError(reason))
                case Refuse():
                    pass

    def _status(self, checkpoint_id: int) -> str:
        records = [record for record in self.records if record.checkpoint_id == checkpoint_id]
        return records[-1].status.value if records else "cancelled"

    def _committed(self, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        self._committing -= 1
        now_ms = self._outside.now_ms()
        if error is None:
            self._job.committed()
            self.feed(CommitWon(now_ms, checkpoint_id))
        else:
            self._causes[checkpoint_id] = error
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, FencedError):
                self._feed_lost(CommitLost(now_ms, checkpoint_id, reason))
                self._job.fenced(error)
            elif isinstance(error, (InvalidInputError, StorageError, StorageFullError, CollectedError)):
                self.feed(CommitRefused(now_ms, checkpoint_id, reason))
            else:
                self._feed_lost(CommitUnknown(now_ms, checkpoint_id, reason))
        if not self._committing:
            self._job.commits_ended()

    def _feed_lost(self, event: CommitLost | CommitUnknown) -> None:
        """Tell the coordination, which takes no more checkpoints then; of a lost one the caller knows what to do."""
        if self._coordination is None:
            return
        actions = self._coordination.handle(event)
        lost = isinstance(event, CommitLost)
        self._act([action for action in actions if not (lost and isinstance(action, Stop))])

    def _given(self, attempt: int, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        self._answer(checkpoint_id, error)
        if attempt != self._job.attempt:
            return
        if error is not None:
            self._job.failed(error)
        elif self._job.is_running and self._last_id is not None and checkpoint_id >= self._last_id:
            self._job.completed()

    def _answer(self, checkpoint_id: int, error: BaseException | None) -> None:
        for request in [item for item in self._requests if item.checkpoint_id == checkpoint_id]:
            self._requests.remove(request)
            request.done(None if error is not None else checkpoint_id, error)

    def _serve_requests(self) -> None:
        for request in self._requests:
            if request.checkpoint_id is None:
                id = self._trigger()
                if id is None:
                    return
                request.checkpoint_id = id

    def _trigger(self) -> int | None:
        """Take a checkpoint if there is room; return its id."""
        if self._coordination is None or not self._job.is_running or not self._coordination.has_room:
            return None
        actions = self._coordination.handle(Trigger(self._outside.now_ms()))
        self._act(actions)
        return next((action.checkpoint_id for action in actions if isinstance(action, Start)), None)
