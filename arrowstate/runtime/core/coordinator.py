"""The coordinator of a job: starts its attempts, hears of failures, and decides how it ends.

It is a state machine, as `arrowstate.checkpoints.coordination` is. Checkpoints are the affair of `JobCheckpoints`, and
who reads what is that of `Assignment`. All that waits for a storage or a sink is work that is done beside it, one after
another.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeAlias, TypeVar

from arrowstate.checkpoints.coordination import CheckpointOptions, CheckpointRecord
from arrowstate.checkpoints.protocol import Acknowledge, Decline
from arrowstate.clock import has_passed
from arrowstate.errors import FencedError, InvalidInputError, JobFailedError
from arrowstate.log.commit import delete_quietly
from arrowstate.runtime.connectors import Split
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.assignment import Assignment
from arrowstate.runtime.core.checkpoints import (
    Answer,
    CommitCheckpoint,
    DeleteFiles,
    Done,
    EndAttempt,
    EndJob,
    GiveSinks,
    JobAction,
    JobCheckpoints,
    TellSlots,
)
from arrowstate.runtime.core.explaining import job_failure
from arrowstate.runtime.core.messages import (
    Acknowledged,
    AssignSplits,
    Cancel,
    Declined,
    Deploy,
    Ended,
    Failed,
    FromSlot,
    Limit,
    NotBegun,
    NotClosed,
    Ready,
    Run,
    SlotFigures,
    SourceTime,
    SplitState,
    StopSources,
    ToSlot,
)
from arrowstate.runtime.graph import Graph
from arrowstate.runtime.restart import Restart, RestartState, is_unrecoverable
from arrowstate.shown import error_text
from arrowstate_formats.documents import LogEntryDocument

JobState: TypeAlias = Literal[
    "created",
    "restoring",
    "deploying",
    "running",
    "failing",
    "waiting",
    "rescaling",
    "finished",
    "stopped",
    "failed",
]


T = TypeVar("T")

_logger = logging.getLogger("arrowstate.runtime")

_FIGURES_MS = 200
"""Figures that are closer together say little of how fast something is."""


@dataclass(frozen=True, slots=True)
class RestartStatus:
    """A failure of a job, or a change of its parallelism, and how it went on."""

    attempt: int
    """Which start of the job it ended, from 1."""
    failed_at_ms: int
    reason: str
    """The error, or what else ended the attempt."""
    checkpoint_id: int | None = None
    """The checkpoint that the next attempt began with; None before that, or where there was none."""
    running_at_ms: int | None = None
    """When rows were processed again; None until then, and for ever where the job ended with it."""
    again_at_ms: int | None = None
    """When the next attempt was, or is, to begin; None where there is none to wait for."""


class CoordinatorOutside(Protocol):
    """What the coordinator asks of whoever drives it."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Have work done beside, one after another, then call `done` between two events."""

    def now_ms(self) -> int: ...

    def tell(self, slot: int, message: ToSlot) -> None:
        """Tell a slot, after all that it was told before."""

    def restart_slots(self) -> None:
        """Bring slots that died back; `slot_started` tells of each."""


class Coordinator:
    """Decides all that is decided once for a job."""

    def __init__(
        self,
        graph: Graph,
        entries: Entries,
        options: CheckpointOptions,
        restart: Restart,
        outside: CoordinatorOutside,
        chance: random.Random,
    ) -> None:
        self._entries = entries
        self._restart = RestartState(restart)
        self._outside = outside
        self._chance = chance
        self._slots = range(entries.parallelism)
        subtasks = [(task.uid, slot) for task in graph.tasks for slot in self._slots]
        self._subtasks = frozenset(subtasks)
        self.state: JobState = "created"
        self.attempt = 0
        self.failures: list[tuple[int, BaseException]] = []
        "The times and errors of failures, oldest first, the last 100."
        self.restarts: list[RestartStatus] = []
        "What ended attempts, oldest first, the last 100."
        self.figures: dict[int, list[SlotFigures]] = {}
        "The last two that each slot has told in this attempt, some time apart."
        self.error: BaseException | None = None
        "Why the job failed for good."
        self._checkpoints = JobCheckpoints(entries.committer, subtasks, options)
        self._assignment = Assignment(graph, self._slots)
        self._alive = set(self._slots)
        self._ready: set[int] = set()
        self._ended: set[tuple[str, int]] = set()
        self._failed_ms = self._delay_ms = 0
        "When the last attempt failed, and how long the job then waits."
        self._stopping: Literal["stop", "drain"] | None = None
        self._has_begun = False
        "Whether rows have come since the job was started, or a checkpoint was committed."
        self._failed_stopping = False

    @property
    def is_running(self) -> bool:
        """Whether the slots process rows."""
        return self.state == "running"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, one way or another, or goes on with another coordinator."""
        return self.state in ("rescaling", "finished", "stopped", "failed")

    @property
    def is_ending(self) -> bool:
        """Whether all input was processed, or the job is being stopped."""
        return self._stopping is not None or self._ended == self._subtasks

    @property
    def _is_at_the_start(self) -> bool:
        """Whether nothing has come of the job since it was started: what fails then is the job as it was written."""
        return self.attempt == 1 and not self._has_begun

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints of all attempts, oldest first, the last hundred or so."""
        return self._checkpoints.records

    def begin(self, before: Coordinator | None = None, *, has_begun: bool = False) -> None:
        """Start the first attempt, or the next one of a job that another coordinator has left.

        With `has_begun` rows of the job have come elsewhere, so a failure before the first row is none of the job.
        """
        if before is not None:
            self.attempt = before.attempt
            self.failures, self.restarts = list(before.failures), list(before.restarts)
            self._checkpoints.go_on_from(before.records)
        self._has_begun = has_begun or before is not None
        self._restore()

    def request_checkpoint(self, done: Done, *, is_full: bool = False, is_aligned: bool = False) -> None:
        """Take a checkpoint as soon as there is room; `done` is told its id once it is committed, or why it is not."""
        self._checkpoints.request(done, is_full=is_full, is_aligned=is_aligned)
        if self.is_running:
            self._do(self._checkpoints.serve(self._outside.now_ms()))

    def stop(self, *, drain: bool) -> None:
        """Stop reading, take a last checkpoint, and end; with `drain` as at the end of the input.

        Between two attempts there is nothing to stop: the job ends at once, as one that was down.
        """
        how: Literal["stop", "drain"] = "drain" if drain else "stop"
        if self.is_over:
            if self._stopping is None and self.state == "stopped":
                raise InvalidInputError(
                    "the job was closed, and no last checkpoint was taken; start it again to stop it"
                )
        elif self._stopping is None:
            self._stopping = how
            if self.is_running:
                self._stop_sources()
            elif self.state == "waiting":
                self._stopped_down()
        elif self._stopping != how:
            before, now = ("with" if each == "drain" else "without" for each in (self._stopping, how))
            raise InvalidInputError(
                f"the job is being stopped {before} drain already, so it cannot be stopped {now} it; wait() returns "
                "its last checkpoint"
            )

    def cancel(self, reason: str, error: BaseException | None = None) -> None:
        """End at once, without a checkpoint; what was committed stays. With an error nobody has asked for that."""
        if not self.is_over:
            self._end_attempt(reason)
            self._over("stopped" if error is None else "failed", error)

    def leave(self, reason: str) -> None:
        """End at once, as `cancel` does, for a job that goes on with another coordinator."""
        if self.is_over or self._stopping is not None:
            how = f"has {self.state}" if self.is_over else "is being stopped"
            raise InvalidInputError(f"the job {how}, so it is not {reason}; start it again with another parallelism")
        self._end_attempt(reason)
        self._over("rescaling", None)
        self.restarts = [*self.restarts, RestartStatus(self.attempt, self._outside.now_ms(), reason)][-100:]

    def broke(self, error: BaseException) -> None:
        """Take note that the coordinator itself raised, or could not be replaced: the job ends."""
        _logger.error("the coordinator of the job raised, and the job does not start again", exc_info=error)
        if not self.is_over or self.state == "rescaling":
            self._note(error, None)
            self._end(error)

    def tick(self) -> None:
        """Let time pass."""
        now_ms = self._outside.now_ms()
        if self.state == "waiting" and has_passed(now_ms, self._failed_ms, self._delay_ms):
            if self._alive == set(self._slots):
                self._restore()
            else:
                self._restart_slots(now_ms)
        if self.state != "running":
            return
        may_take_last = self._may_take_last
        if may_take_last:
            self._do(self._checkpoints.take_last(now_ms))
        actions = self._checkpoints.tick(now_ms, only_last=may_take_last)
        if actions:
            self._do(actions)
        if self._stopping is None:
            for uid in self._assignment.due(now_ms):
                work = self._assignment.discovery(uid)
                self._outside.submit(work, partial(self._discovered, self.attempt, uid))

    def slot_started(self, slot: int) -> None:
        """Take note that a slot that had died is there again."""
        self._alive.add(slot)

    def slot_lost(self, slot: int, error: BaseException, not_begun: NotBegun | None = None) -> None:
        """Take note that a slot has died, and why it could not begin, if it could not."""
        self._alive.discard(slot)
        if not_begun is None:
            self.failed(error)
        else:
            self._failed(error, is_final=self._is_at_the_start, trace=not_begun.trace)

    def _restart_slots(self, now_ms: int) -> None:
        """Bring back the slots that died; where the system refuses, for it is short of something, it is asked later."""
        try:
            self._outside.restart_slots()
        except Exception as error:  # noqa: BLE001 (the strategy decides how often)
            delay_ms = self._restart.failed(now_ms, self._chance)
            _log_failure(self.attempt, error, "", delay_ms)
            self._note(error, None if delay_ms is None else now_ms + delay_ms)
            if delay_ms is None:
                self._over("failed", error)
            else:
                self._failed_ms, self._delay_ms = now_ms, delay_ms

    def hear(self, message: FromSlot) -> None:
        """Take note of what a slot says."""
        if isinstance(message, NotClosed):
            _log_not_closed(message)
            return
        if message.attempt != self.attempt or self.state not in ("deploying", "running"):
            if isinstance(message, Acknowledged):
                self._delete(message.handle.paths)
            return
        now_ms = self._outside.now_ms()
        match message:
            case Ready(_, slot):
                self._ready.add(slot)
                if self._ready == set(self._slots):
                    self.state = "running"
                    self._went_on(running_at_ms=now_ms)
                    self.tell_all(Run(self.attempt))
                    if self._stopping is not None:
                        self._stop_sources()
            case Acknowledged(_, checkpoint_id, handle):
                subtask = handle.task, handle.subtask
                self._do(self._checkpoints.feed(Acknowledge(now_ms, checkpoint_id, subtask, handle, handle.measured)))
            case Declined(_, checkpoint_id, task, subtask, reason):
                self._do(self._checkpoints.feed(Decline(now_ms, checkpoint_id, (task, subtask), reason)))
            case Ended(_, task, subtask):
                self._ended.add((task, subtask))
                self._take_last(now_ms)
            case SourceTime():
                changed = self._assignment.heard(message)
                if changed:
                    self.tell_all(Limit(self.attempt, changed))
            case SlotFigures(_, slot):
                self._has_begun = self._has_begun or any(task.rows for task in message.tasks)
                known = self.figures.get(slot, [])
                apart = len(known) < 2 or known[-1].at_ms - known[0].at_ms >= _FIGURES_MS
                self.figures[slot] = [*(known[-1:] if apart else known[:1]), message]
            case Failed(_, _, error):
                self._has_begun = self._has_begun or message.rows > 0
                is_final = message.is_unrecoverable or self._is_at_the_start
                self._failed(error, is_final=is_final, trace=message.trace)

    def _do(self, actions: Sequence[JobAction]) -> None:
        """Do what the checkpoints ask for."""
        for action in actions:
            match action:
                case TellSlots(message):
                    self.tell_all(message)
                case CommitCheckpoint(id, handles, based_on, started_at_ms):
                    work = partial(self._entries.commit, id, handles, based_on=based_on, started_at_ms=started_at_ms)
                    self._outside.submit(work, partial(self._committed, id))
                case GiveSinks(id):
                    # Where the job is over the sinks are closed: the next start gives them their rows.
                    if not self.is_over:
                        self._outside.submit(self._entries.give, partial(self._given, self.attempt, id))
                case DeleteFiles(paths):
                    self._delete(paths)
                case Answer(done, id, error):
                    done(id, error)
                case EndAttempt(error):
                    self.failed(error)
                case EndJob():
                    if self.is_running:
                        self._outside.submit(self._entries.settle, partial(self._settled, self.attempt))

    def _delete(self, paths: Sequence[str]) -> None:
        if paths:
            self._outside.submit(partial(delete_quietly, self._entries.storage, paths), lambda *_: None)

    def tell_all(self, message: ToSlot) -> None:
        """Tell all slots that are there."""
        for slot in self._slots:
            if slot in self._alive:
                self._outside.tell(slot, message)

    def failed(self, error: BaseException) -> None:
        """End the attempt, and begin another if the strategy says so and it would not fail just so."""
        self._failed(error, is_final=is_unrecoverable(error))

    def fenced(self, error: FencedError) -> None:
        """End the job: another one writes to its store."""
        if not self.is_over:
            _log_failure(self.attempt, error, "", None)
            self._note(error, None)
            self._end(error)

    def _committed(self, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        self._has_begun = self._has_begun or error is None
        self._do(self._checkpoints.committed(self._outside.now_ms(), checkpoint_id, error))
        if isinstance(error, FencedError):
            self.fenced(error)
        if self.state == "failing" and not self._checkpoints.is_committing:
            self._checkpoints.put_away()
            self._wait()

    def _given(self, attempt: int, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        self._do(self._checkpoints.given(attempt, checkpoint_id, error))

    def _settled(self, attempt: int, _: None, error: BaseException | None) -> None:
        """End the job, whether or not it could be noted that its sinks have all their rows."""
        if attempt != self.attempt or not self.is_running:
            return
        if error is not None:
            _logger.warning(
                "the sinks have all rows of the job, and that could not be noted; the next start gives them those of "
                "the last checkpoint again, which they know",
                exc_info=error,
            )
        self.tell_all(Cancel(self.attempt))
        self._checkpoints.put_away()
        self._over("finished" if self._stopping is None else "stopped", None)

    # Attempts.

    def _restore(self) -> None:
        """Begin an attempt: bring the sinks up to the newest checkpoint, find splits, then let slots begin with it."""
        self.state = "restoring"
        self.attempt += 1
        self._ready.clear()
        self._ended.clear()
        self.figures.clear()
        self._checkpoints.begin_attempt(self.attempt)
        self._assignment.forget_times()

        def work() -> tuple[LogEntryDocument | None, dict[str, list[SplitState]]]:
            entry = self._entries.restore()
            return entry, self._assignment.find(self._entries, entry)

        self._outside.submit(work, partial(self._restored, self.attempt))

    def _restored(
        self,
        attempt: int,
        found: tuple[LogEntryDocument | None, dict[str, list[SplitState]]] | None,
        error: BaseException | None,
    ) -> None:
        if attempt != self.attempt or self.state != "restoring":
            return
        if found is None:
            assert error is not None
            self._failed(error, is_final=is_unrecoverable(error) or self._is_at_the_start)
            return
        entry, splits = found
        self.state = "deploying"
        self._went_on(checkpoint_id=None if entry is None else entry.checkpoint_id)
        self._checkpoints.begin()
        base = None if entry is None else entry.number
        dealt = self._assignment.deal(splits, self._outside.now_ms())
        for slot, own in zip(self._slots, dealt, strict=True):
            had = self._assignment.had_splits(slot)
            self._outside.tell(slot, Deploy(self.attempt, base, own, self._assignment.bounded, had))

    def _end_attempt(self, reason: str) -> None:
        self.tell_all(Cancel(self.attempt))
        self._do(self._checkpoints.end(self._outside.now_ms(), reason))

    def _end(self, error: BaseException) -> None:
        # First of all: whoever waits for the job is told, whatever else raises.
        self.state, self.error = "failed", error
        self.tell_all(Cancel(self.attempt))
        self._over("failed", error)

    def _failed(self, error: BaseException, *, is_final: bool, trace: str = "") -> None:
        if self.is_over or self.state in ("failing", "waiting"):
            return
        now_ms = self._outside.now_ms()
        delay_ms = None if is_final else self._restart.failed(now_ms, self._chance)
        if delay_ms is not None and self._stopping is not None:
            # What was asked for is tried once more, and at once.
            delay_ms = None if self._failed_stopping else 0
            self._failed_stopping = True
        _log_failure(self.attempt, error, trace, delay_ms)
        self._note(error, None if delay_ms is None else now_ms + delay_ms)
        self._end_attempt(error_text(error))
        if delay_ms is None:
            self._over("failed", error)
            return
        self._failed_ms, self._delay_ms = now_ms, delay_ms
        # How a commit ends that has begun decides from which checkpoint the next attempt goes on.
        if self._checkpoints.is_committing:
            self.state = "failing"
        else:
            self._wait()

    def _wait(self) -> None:
        """Wait for the next attempt; a job that is to stop since before it failed has one more, later none."""
        self.state = "waiting"
        if self._stopping is not None and not self._failed_stopping:
            self._stopped_down()

    def _stopped_down(self) -> None:
        """End a job that is stopped between two attempts."""
        _, last = self.failures[-1]
        newest = self._entries.committer.newest_id
        begins = "from the beginning, for it has no checkpoint" if not newest else f"from checkpoint {newest}"
        error = JobFailedError(
            f"it was down when it was stopped, for attempt {self.attempt} had failed and the next was still to come; "
            f"the next start goes on {begins}; the failure was {error_text(last)}"
        )
        _logger.error("%s", error)
        error.__cause__ = last
        self._over("failed", error)

    def _over(self, state: Literal["rescaling", "finished", "stopped", "failed"], error: BaseException | None) -> None:
        self.state, self.error = state, error
        reason: Exception = InvalidInputError("it is rescaled" if state == "rescaling" else f"the job has {state}")
        if error is not None:
            reason = job_failure(error)
        self._do(self._checkpoints.refuse_requests(reason))
        self._outside.submit(self._entries.close, lambda *_: None)

    def _note(self, error: BaseException, again_at_ms: int | None) -> None:
        now_ms = self._outside.now_ms()
        self.failures = [*self.failures, (now_ms, error)][-100:]
        record = RestartStatus(self.attempt, now_ms, error_text(error), again_at_ms=again_at_ms)
        self.restarts = [*self.restarts, record][-100:]

    def _went_on(self, **known: int | None) -> None:
        """Take note of how a job goes on that was ended last."""
        if self.restarts and self.restarts[-1].running_at_ms is None:
            self.restarts[-1] = replace(self.restarts[-1], **known)  # type: ignore[arg-type]

    # The end, and more to read.

    @property
    def _may_take_last(self) -> bool:
        """Whether all is there that is to be in the checkpoint that ends the job."""
        return self._ended == self._subtasks or self._stopping == "stop"

    def _take_last(self, now_ms: int) -> None:
        if self._may_take_last and self.is_running:
            self._do(self._checkpoints.take_last(now_ms))

    def _stop_sources(self) -> None:
        self.tell_all(StopSources(self.attempt, self._stopping == "drain"))
        self._take_last(self._outside.now_ms())

    def _discovered(self, attempt: int, uid: str, found: Sequence[Split] | None, error: BaseException | None) -> None:
        self._assignment.asked(uid, self._outside.now_ms())
        if attempt != self.attempt or not self.is_running:
            return
        if found is None:
            assert error is not None
            self.failed(error)
            return
        for slot, splits in self._assignment.discovered(uid, found).items():
            self._outside.tell(slot, AssignSplits(self.attempt, uid, splits))


def _log_failure(attempt: int, error: BaseException, trace: str, delay_ms: int | None) -> None:
    """Tell the log of a failure, with its traceback and when the job starts again."""
    # An error of another process has come without its traceback, and with the text of it.
    told = f"\n{trace}" if trace else ""
    exc_info = None if trace else error
    if delay_ms is None:
        _logger.error("attempt %d of the job failed, and it does not start again%s", attempt, told, exc_info=exc_info)
        return
    again = "attempt %d of the job failed, and it starts again in %.1f s%s"
    _logger.warning(again, attempt, delay_ms / 1000, told, exc_info=exc_info)


def _log_not_closed(message: NotClosed) -> None:
    """Tell the log of a function, a reader or a sink that raised when it was closed."""
    told = f"\n{message.trace}" if message.trace else ""
    exc_info = None if message.trace else message.error
    _logger.warning("%r could not be closed in slot %d%s", message.uid, message.slot, told, exc_info=exc_info)
