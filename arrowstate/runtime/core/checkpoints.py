"""The checkpoints of a job: when they are taken, how they are committed, and who is told.

When one begins and how it ends says `arrowstate.checkpoints.coordination`. As that, this takes events and returns what
is to be done: it tells nobody, writes nothing and knows no time. `Coordinator` does what is returned, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from arrowstate.checkpoints.committing import Committer, gone_files
from arrowstate.checkpoints.coordination import CheckpointOptions, CheckpointRecord, Coordination
from arrowstate.checkpoints.protocol import (
    Abort,
    Action,
    Border,
    Cancel,
    Commit,
    CommitLost,
    Complete,
    Discard,
    Event,
    Refuse,
    Start,
    Stop,
    Tick,
    Trigger,
    end_of_commit,
)
from arrowstate.clock import has_passed
from arrowstate.errors import CheckpointAbortedError, JobFailedError
from arrowstate.runtime.core.messages import AbortCheckpoint, CompleteCheckpoint, TaskHandle, ToSlot, TriggerCheckpoint

Done = Callable[[int | None, BaseException | None], None]
"""Is told the id of a checkpoint that was asked for, or why there is none."""

_RETRY_MS = 100
"""After how long a checkpoint that ends a job is tried again."""

_TELL_AGAIN_MS = 1_000
"""How often slots are told of the newest checkpoint that was given up, until another begins."""

# What the coordinator is to do.


@dataclass(frozen=True, slots=True)
class TellSlots:
    """Tell all slots."""

    message: ToSlot


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Write the log entry, after what is being done beside; `JobCheckpoints.committed` is told how that ended."""

    checkpoint_id: int
    handles: tuple[TaskHandle, ...]
    based_on: int
    started_at_ms: int


@dataclass(frozen=True, slots=True)
class GiveSinks:
    """Give the sinks the rows of a checkpoint, while they are open; `JobCheckpoints.given` is told how that ended."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DeleteFiles:
    """Delete what was written for nothing."""

    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell somebody who asked for a checkpoint its id, or why there is none."""

    done: Done
    checkpoint_id: int | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """End the attempt, which failed."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class EndJob:
    """End the job, if it is running: its last checkpoint is committed, and the sinks have had their rows."""


JobAction: TypeAlias = TellSlots | CommitCheckpoint | GiveSinks | DeleteFiles | Answer | EndAttempt | EndJob


@dataclass(slots=True)
class _Request:
    """A checkpoint that somebody asked for."""

    done: Done
    is_full: bool = False
    is_aligned: bool = False
    checkpoint_id: int | None = None


class JobCheckpoints:
    """Takes the checkpoints of a job."""

    def __init__(self, committer: Committer, subtasks: Sequence[tuple[str, int]], options: CheckpointOptions) -> None:
        self._committer = committer
        self._subtasks = subtasks
        self._options = options
        self._attempt = 0
        self._coordination: Coordination | None = None
        self._records: list[CheckpointRecord] = []
        self._based_on: dict[int, tuple[int, int]] = {}
        "Of a checkpoint in progress: the newest log entry at its beginning, and when that was."
        self._causes: dict[int, BaseException] = {}
        self._requests: list[_Request] = []
        self._committing = 0
        self._last_id: int | None = None
        "The checkpoint that ends the job."
        self._is_last_committed = False
        "Then the job ends when the sinks have its rows."
        self._tried_last_ms: int | None = None
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

    def go_on_from(self, records: Sequence[CheckpointRecord]) -> None:
        """Keep the records of checkpoints of before, which others have taken."""
        self._records = list(records)

    def begin_attempt(self, attempt: int) -> None:
        """Begin an attempt, which takes a last checkpoint of its own.

        What was asked for and not begun is taken in it; what was begun is answered when its commit has ended, and the
        sinks have its rows.
        """
        self._attempt, self._last_id, self._tried_last_ms = attempt, None, None
        self._is_last_committed = False

    def begin(self) -> None:
        """Take checkpoints of the attempt, whose slots are about to be deployed."""
        self._coordination = Coordination(self._subtasks, self._options, newest_id=self._committer.newest_id)

    def end(self, now_ms: int, reason: str) -> list[JobAction]:
        """Give up what is in progress: the attempt has ended. A commit that has begun goes on."""
        actions = self.feed(Cancel(now_ms, reason))
        if self._coordination is not None:
            self._given_up = None
            if not self._committing:
                self.put_away()
        return actions

    def put_away(self) -> None:
        """Keep the records of an attempt that has ended."""
        if self._coordination is not None:
            self._records = [*self._records, *self._coordination.records][-100:]
            self._coordination = None

    def refuse_requests(self, reason: Exception) -> list[JobAction]:
        """Answer whoever waits for a checkpoint: there will be none."""
        requests, self._requests = self._requests, []
        return [Answer(request.done, None, reason) for request in requests]

    def request(self, done: Done, *, is_full: bool = False, is_aligned: bool = False) -> None:
        """Take one as soon as there is room, see `serve`; none of its barriers overtakes if it is to be aligned."""
        self._requests.append(_Request(done, is_full, is_aligned))

    def feed(self, event: Event) -> list[JobAction]:
        """Take note of what happened to a checkpoint."""
        if self._coordination is None:
            return []
        actions = self._coordination.handle(event)
        return self._to_do(event.now_ms, actions) if actions else []

    def tick(self, now_ms: int, *, only_last: bool) -> list[JobAction]:
        """Let time pass; none is begun by time that would leave no room for the last, or for one that was asked for.

        Flink's `CheckpointRequestDecider` has the same order.
        """
        goes_first = only_last or any(request.checkpoint_id is None for request in self._requests)
        made = self.feed(Tick(now_ms) if goes_first else Border(now_ms))
        if self._requests:
            made += self.serve(now_ms)
        if self._given_up is not None and has_passed(now_ms, self._told_ms, _TELL_AGAIN_MS):
            self._told_ms = now_ms
            made.append(TellSlots(self._given_up))
        return made

    def serve(self, now_ms: int) -> list[JobAction]:
        """Begin what was asked for, as far as there is room; the slots process rows."""
        made: list[JobAction] = []
        for request in self._requests:
            if request.checkpoint_id is None:
                request.checkpoint_id, actions = self._trigger(
                    now_ms, is_full=request.is_full, is_aligned=request.is_aligned
                )
                made += actions
                if request.checkpoint_id is None:
                    break
        return made

    def take_last(self, now_ms: int) -> list[JobAction]:
        """Take the checkpoint that ends the job, for all that is to be in it is there; again where that fails."""
        if self._coordination is None or self._is_last_committed or self._last_id in self._coordination.in_progress:
            return []
        if self._tried_last_ms is not None and not has_passed(now_ms, self._tried_last_ms, _RETRY_MS):
            return []
        # It may become a savepoint, which another job begins with.
        self._last_id, actions = self._trigger(now_ms, is_aligned=True)
        self._tried_last_ms = now_ms
        return actions

    def committed(self, now_ms: int, checkpoint_id: int, error: BaseException | None) -> list[JobAction]:
        """Take note of how a commit ended."""
        self._committing -= 1
        if error is not None:
            self._causes[checkpoint_id] = error
        elif checkpoint_id == self._last_id:
            self._is_last_committed = True
        event = end_of_commit(now_ms, checkpoint_id, error, with_kind=True)
        actions = self.feed(event)
        # Of a lost commit the coordinator knows what to do: it ends the job, and not the attempt alone.
        lost = isinstance(event, CommitLost)
        return [action for action in actions if not (lost and isinstance(action, EndAttempt))]

    def given(self, attempt: int, checkpoint_id: int, error: BaseException | None) -> list[JobAction]:
        """Take note of how giving the sinks the rows of a checkpoint ended, that was committed in an attempt."""
        actions = self._answers(checkpoint_id, error)
        if attempt == self._attempt and error is not None:
            actions.append(EndAttempt(error))
        elif attempt == self._attempt and self._last_id is not None and checkpoint_id >= self._last_id:
            actions.append(EndJob())
        return actions

    def _to_do(
        self, now_ms: int, actions: Sequence[Action], *, is_full: bool = False, is_aligned: bool = False
    ) -> list[JobAction]:
        made: list[JobAction] = []
        first: BaseException | None = None
        for action in actions:
            match action:
                case Start(id, _):
                    self._given_up = None
                    self._based_on[id] = self._committer.newest_number, now_ms
                    overtakes_at_ms = None if is_aligned else self._overtakes_at_ms(now_ms)
                    made.append(TellSlots(TriggerCheckpoint(self._attempt, id, is_full, overtakes_at_ms)))
                case Commit(id, _, handles):
                    self._committing += 1
                    made.append(CommitCheckpoint(id, handles, *self._based_on[id]))
                case Complete(id, _):
                    self._based_on.pop(id, None)
                    if self._given_up is not None and self._given_up.checkpoint_id < id:
                        # All its barriers have come past every slot, and a slot forgets what it was told of before.
                        self._given_up = None
                    made += [TellSlots(CompleteCheckpoint(self._attempt, id)), GiveSinks(id)]
                case Abort(id, reason):
                    self._based_on.pop(id, None)
                    cause = self._causes.pop(id, None)
                    first = first or cause
                    self._given_up, self._told_ms = AbortCheckpoint(self._attempt, id, gone_files(cause)), now_ms
                    made.append(TellSlots(self._given_up))
                    made += self._answers(id, CheckpointAbortedError(id, self._status(id), reason))
                case Discard(_, _, handle):
                    made.append(DeleteFiles(handle.paths))
                case Stop(reason):
                    failure = JobFailedError(reason)
                    failure.__cause__ = first
                    made.append(EndAttempt(failure))
                case Refuse():
                    pass
        return made

    def _overtakes_at_ms(self, now_ms: int) -> int | None:
        """Return from when on the barriers of a checkpoint overtake that begins now; at once whatever clocks say."""
        if not self._options.unaligned:
            return None
        timeout_ms = self._options.aligned_timeout_ms
        return now_ms + timeout_ms if timeout_ms else 0

    def _status(self, checkpoint_id: int) -> str:
        records = [record for record in self.records if record.checkpoint_id == checkpoint_id]
        return records[-1].status.value if records else "cancelled"

    def _answers(self, checkpoint_id: int, error: BaseException | None) -> list[JobAction]:
        answered = [request for request in self._requests if request.checkpoint_id == checkpoint_id]
        self._requests = [request for request in self._requests if request.checkpoint_id != checkpoint_id]
        return [Answer(request.done, None if error is not None else checkpoint_id, error) for request in answered]

    def _trigger(
        self, now_ms: int, *, is_full: bool = False, is_aligned: bool = False
    ) -> tuple[int | None, list[JobAction]]:
        """Take a checkpoint if there is room; return its id."""
        if self._coordination is None or not self._coordination.has_room:
            return None, []
        actions = self._coordination.handle(Trigger(now_ms))
        id = next((action.checkpoint_id for action in actions if isinstance(action, Start)), None)
        return id, self._to_do(now_ms, actions, is_full=is_full, is_aligned=is_aligned)
