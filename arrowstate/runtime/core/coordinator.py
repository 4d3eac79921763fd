"""The coordinator of a job: starts its attempts, takes checkpoints, hears of failures, and decides how it ends.

It is a state machine, as `arrowstate.checkpoints.coordination` is, which it asks when a checkpoint begins and how it
ends. Commits, and all else that waits for a storage or a sink, is work that is done beside it, one after another.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from arrowstate.checkpoints.coordination import CheckpointOptions, CheckpointRecord, Coordination
from arrowstate.checkpoints.protocol import (
    Abort,
    Acknowledge,
    Action,
    Border,
    Commit,
    CommitLost,
    CommitRefused,
    CommitUnknown,
    CommitWon,
    Complete,
    Decline,
    Discard,
    Refuse,
    Start,
    Stop,
    Tick,
    Trigger,
)
from arrowstate.checkpoints.protocol import Cancel as CancelAll
from arrowstate.errors import (
    CheckpointAbortedError,
    CollectedError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    JobFailedError,
    StorageError,
    StorageFullError,
)
from arrowstate.processing.failing import explained
from arrowstate.runtime.connectors import Split
from arrowstate.runtime.core.assembling import Entries, stored_splits
from arrowstate.runtime.core.messages import (
    AbortCheckpoint,
    Acknowledged,
    AssignSplits,
    Cancel,
    CompleteCheckpoint,
    Declined,
    Deploy,
    Ended,
    Failed,
    FromSlot,
    Limit,
    Ready,
    Run,
    SlotFigures,
    SourceTime,
    SplitState,
    StopSources,
    ToSlot,
    TriggerCheckpoint,
)
from arrowstate.runtime.core.reading import MAX_WATERMARK
from arrowstate.runtime.graph import Graph
from arrowstate.runtime.restart import Restart, RestartState
from arrowstate.snapshot.writing import delete_quietly
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["Coordinator", "CoordinatorOutside", "JobState"]

T = TypeVar("T")
JobState: TypeAlias = Literal[
    "created", "restoring", "deploying", "running", "failing", "waiting", "finished", "stopped", "failed"
]

_RETRY_MS = 100
"""After how long a checkpoint that ends a job is tried again."""


class CoordinatorOutside(Protocol):
    """What the coordinator asks of whoever drives it."""

    def tell(self, slot: int, message: ToSlot) -> None:
        """Tell a slot, after all that it was told before."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Have work done beside, one after another, then call `done` between two events."""

    def restart_slots(self) -> None:
        """Bring slots that died back; `slot_started` tells of each."""

    def now_ms(self) -> int: ...


@dataclass(slots=True)
class _Request:
    """A checkpoint that somebody asked for."""

    done: Callable[[int | None, BaseException | None], None]
    checkpoint_id: int | None = None


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
        self._graph = graph
        self._entries = entries
        self._options = options
        self._restart = RestartState(restart)
        self._outside = outside
        self._chance = chance
        self._slots = range(entries.parallelism)
        self._subtasks = [(task.uid, slot) for task in graph.tasks for slot in self._slots]
        self.state: JobState = "created"
        self.attempt = 0
        self.failures: list[tuple[int, BaseException]] = []
        "The times and errors of failures, oldest first, the last 100."
        self.figures: dict[int, list[SlotFigures]] = {}
        "The last two that each slot has told in this attempt."
        self.error: BaseException | None = None
        "Why the job failed for good."
        self._alive = set(self._slots)
        self._ready: set[int] = set()
        self._ended: set[tuple[str, int]] = set()
        self._coordination: Coordination | None = None
        self._records: list[CheckpointRecord] = []
        self._based_on: dict[int, tuple[int, int]] = {}
        "Of a checkpoint in progress: the newest log entry at its beginning, and when that was."
        self._causes: dict[int, BaseException] = {}
        self._requests: list[_Request] = []
        self._committing = 0
        self._restart_at_ms: int | None = None
        self._stopping: Literal["stop", "drain"] | None = None
        self._last_id: int | None = None
        "The checkpoint that ends the job."
        self._known: dict[str, set[str]] = defaultdict(set)
        self._assigned = 0
        self._discovered_ms: dict[str, int] = {}
        self._discovering: set[str] = set()
        self._times: dict[tuple[str, int], tuple[int | None, bool]] = {}
        self._limits: dict[str, int] = {}
        self._retry_ms = 0

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, one way or another."""
        return self.state in ("finished", "stopped", "failed")

    @property
    def is_ending(self) -> bool:
        """Whether all input was processed, or the job is being stopped."""
        return self._stopping is not None or self._ended == set(self._subtasks)

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints of all attempts, oldest first, the last hundred or so."""
        current = () if self._coordination is None else self._coordination.records
        return (*self._records, *current)

    def begin(self) -> None:
        """Start the first attempt."""
        self._restore()

    def request_checkpoint(self, done: Callable[[int | None, BaseException | None], None]) -> None:
        """Take a checkpoint as soon as there is room; `done` is told its id once it is committed, or why it is not."""
        self._requests.append(_Request(done))
        self._serve_requests()

    def stop(self, *, drain: bool) -> None:
        """Stop reading, take a last checkpoint, and end; with `drain` as at the end of the input."""
        if self._stopping is None and not self.is_over:
            self._stopping = "drain" if drain else "stop"
            if self.state == "running":
                self._stop_sources()

    def cancel(self, reason: str) -> None:
        """End at once, without a checkpoint; what was committed stays."""
        if not self.is_over:
            self._end_attempt(reason)
            self._over("stopped", None)

    def broke(self, error: BaseException) -> None:
        """Take note that the coordinator itself raised: the job ends, for nobody knows what else is wrong."""
        if not self.is_over:
            self._tell_all(Cancel(self.attempt))
            self._over("failed", error)

    def tick(self) -> None:
        """Let time pass."""
        now_ms = self._outside.now_ms()
        if self.state == "waiting" and self._restart_at_ms is not None and now_ms >= self._restart_at_ms:
            if self._alive == set(self._slots):
                self._restore()
            else:
                self._outside.restart_slots()
        if self.state != "running" or self._coordination is None:
            return
        self._last_checkpoint(now_ms)
        # One that is due by time would leave no room for the last.
        last = self._ended == set(self._subtasks) or self._stopping == "stop"
        self._act(self._coordination.handle(Tick(now_ms) if last else Border(now_ms)))
        self._serve_requests()
        for node in self._graph.sources:
            due = now_ms - self._discovered_ms.get(node.uid, now_ms) >= node.source.discovery_ms
            if not node.source.is_bounded and due and self._stopping is None:
                self._discover(node.uid)

    def slot_started(self, slot: int) -> None:
        """Take note that a slot that had died is there again."""
        self._alive.add(slot)

    def slot_lost(self, slot: int, error: BaseException) -> None:
        """Take note that a slot has died."""
        self._alive.discard(slot)
        self._fail(error)

    def hear(self, message: FromSlot) -> None:
        """Take note of what a slot says."""
        if message.attempt != self.attempt or self.state not in ("deploying", "running"):
            if isinstance(message, Acknowledged):
                self._discard(message.handle.paths)
            return
        now_ms = self._outside.now_ms()
        match message:
            case Ready(_, slot):
                self._ready.add(slot)
                if self._ready == set(self._slots):
                    self.state = "running"
                    self._tell_all(Run(self.attempt))
                    if self._stopping is not None:
                        self._stop_sources()
            case Acknowledged(_, checkpoint_id, handle):
                subtask = handle.task, handle.subtask
                self._feed(Acknowledge(now_ms, checkpoint_id, subtask, handle, handle.statistics))
            case Declined(_, checkpoint_id, task, subtask, reason):
                self._feed(Decline(now_ms, checkpoint_id, (task, subtask), reason))
            case Ended(_, task, subtask):
                self._ended.add((task, subtask))
                self._last_checkpoint(now_ms)
            case SourceTime(_, uid, slot, watermark, is_idle):
                self._times[uid, slot] = watermark, is_idle
                self._set_limits()
            case SlotFigures(_, slot):
                self.figures[slot] = [*self.figures.get(slot, [])[-1:], message]
            case Failed(_, _, error):
                self._fail(error)

    # Attempts.

    def _restore(self) -> None:
        """Begin an attempt: bring the sinks up to the newest checkpoint, find splits, then let slots begin with it."""
        self.state = "restoring"
        self.attempt += 1
        self._restart_at_ms = None
        self._ready.clear()
        self._ended.clear()
        self._last_id, self._retry_ms = None, 0
        self._times.clear()
        self.figures.clear()
        self._limits.clear()
        self._requests = [request for request in self._requests if request.checkpoint_id is None]

        def work() -> tuple[LogEntryDocument | None, dict[str, list[SplitState]]]:
            entry = self._entries.restore()
            splits = {}
            for node in self._graph.sources:
                known = stored_splits(self._entries.storage, entry, node.uid)
                with explained(node.uid, "discovering splits"):
                    found = node.source.discover({split.id for split in known})
                splits[node.uid] = [*known, *(SplitState(split.id, split.position) for split in found)]
            return entry, splits

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
            self._fail(error)
            return
        entry, splits = found
        self.state = "deploying"
        newest = self._entries.committer.newest_id
        self._coordination = Coordination(self._subtasks, self._options, newest_id=newest)
        now_ms = self._outside.now_ms()
        of_slot: list[dict[str, list[SplitState]]] = [defaultdict(list) for _ in self._slots]
        for uid, all_splits in splits.items():
            self._known[uid] = {split.id for split in all_splits}
            self._discovered_ms[uid] = now_ms
            # What was read to its end is spread too, for it is state.
            for number, split in enumerate(sorted(all_splits, key=lambda split: split.finished)):
                of_slot[number % len(self._slots)][uid].append(split)
            self._assigned = len(all_splits)
        bounded = frozenset(node.uid for node in self._graph.sources if node.source.is_bounded)
        base = None if entry is None else entry.number
        for slot in self._slots:
            self._outside.tell(slot, Deploy(self.attempt, base, dict(of_slot[slot]), bounded))

    def _fail(self, error: BaseException) -> None:
        """End the attempt, and begin another if the strategy says so."""
        if self.is_over or self.state in ("failing", "waiting"):
            return
        now_ms = self._outside.now_ms()
        self.failures = [*self.failures, (now_ms, error)][-100:]
        self._end_attempt(str(error))
        delay_ms = (
            None if isinstance(error, (FencedError, CorruptDataError)) else self._restart.failed(now_ms, self._chance)
        )
        if delay_ms is None:
            self._over("failed", error)
            return
        self._restart_at_ms = now_ms + delay_ms
        # How a commit ends that has begun decides from which checkpoint the next attempt goes on.
        self.state = "failing" if self._committing else "waiting"

    def _end_attempt(self, reason: str) -> None:
        self._tell_all(Cancel(self.attempt))
        if self._coordination is not None:
            self._act(self._coordination.handle(CancelAll(self._outside.now_ms(), reason)))
            if not self._committing:
                self._put_away()

    def _put_away(self) -> None:
        """Keep the records of an attempt that has ended."""
        if self._coordination is not None:
            self._records = [*self._records, *self._coordination.records][-100:]
            self._coordination = None

    def _over(self, state: Literal["finished", "stopped", "failed"], error: BaseException | None) -> None:
        self.state, self.error = state, error
        reason: Exception = InvalidInputError(f"the job has {state}")
        if error is not None:
            reason = error if isinstance(error, JobFailedError) else JobFailedError(f"{type(error).__name__}: {error}")
            reason.__cause__ = None if reason is error else error
        requests, self._requests = self._requests, []
        for request in requests:
            request.done(None, reason)
        self._outside.submit(self._entries.close, lambda *_: None)

    # Checkpoints.

    def _feed(self, event: Any) -> None:
        if self._coordination is not None:
            self._act(self._coordination.handle(event))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(id, _):
                    self._based_on[id] = self._entries.committer.newest_number, self._outside.now_ms()
                    self._tell_all(TriggerCheckpoint(self.attempt, id))
                case Commit(id, _, handles):
                    self._committing += 1
                    based_on, started_at_ms = self._based_on[id]
                    work = partial(self._entries.commit, id, handles, based_on=based_on, started_at_ms=started_at_ms)
                    self._outside.submit(work, partial(self._committed, id))
                case Complete(id, _):
                    self._based_on.pop(id, None)
                    self._tell_all(CompleteCheckpoint(self.attempt, id))
                    # Where the job is over the sinks are closed: the next start gives them their rows.
                    if not self.is_over:
                        self._outside.submit(self._entries.give, partial(self._given, self.attempt, id))
                case Abort(id, reason):
                    self._based_on.pop(id, None)
                    cause = self._causes.pop(id, None)
                    gone = frozenset(cause.paths) if isinstance(cause, CollectedError) else frozenset[str]()
                    self._tell_all(AbortCheckpoint(self.attempt, id, gone))
                    self._answer(id, CheckpointAbortedError(id, self._status(id), reason))
                case Discard(_, _, handle):
                    self._discard(handle.paths)
                case Stop(reason):
                    self._fail(JobFailedError(reason))
                case Refuse():
                    pass

    def _status(self, checkpoint_id: int) -> str:
        records = [record for record in self.records if record.checkpoint_id == checkpoint_id]
        return records[-1].status.value if records else "cancelled"

    def _committed(self, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        self._committing -= 1
        now_ms = self._outside.now_ms()
        fatal = None
        if error is None:
            self._feed(CommitWon(now_ms, checkpoint_id))
        else:
            self._causes[checkpoint_id] = error
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, FencedError):
                fatal = error
                self._feed_lost(CommitLost(now_ms, checkpoint_id, reason))
            elif isinstance(error, (InvalidInputError, StorageError, StorageFullError, CollectedError)):
                self._feed(CommitRefused(now_ms, checkpoint_id, reason))
            else:
                self._feed_lost(CommitUnknown(now_ms, checkpoint_id, reason))
        if fatal is not None and not self.is_over:
            self.failures = [*self.failures, (now_ms, fatal)][-100:]
            self._tell_all(Cancel(self.attempt))
            self._over("failed", fatal)
        if self.state == "failing" and not self._committing:
            self._put_away()
            self.state = "waiting"

    def _feed_lost(self, event: CommitLost | CommitUnknown) -> None:
        """Tell the coordination, which takes no more checkpoints then; of a lost one the caller knows what to do."""
        if self._coordination is None:
            return
        actions = self._coordination.handle(event)
        lost = isinstance(event, CommitLost)
        self._act([action for action in actions if not (lost and isinstance(action, Stop))])

    def _given(self, attempt: int, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._answer(checkpoint_id, error)
            if attempt == self.attempt:
                self._fail(error)
            return
        self._answer(checkpoint_id, None)
        if attempt != self.attempt or self.state != "running":
            return
        if self._last_id is not None and checkpoint_id >= self._last_id:
            self._tell_all(Cancel(self.attempt))
            self._put_away()
            self._over("finished" if self._stopping is None else "stopped", None)

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
        if self._coordination is None or self.state != "running" or not self._coordination.has_room:
            return None
        actions = self._coordination.handle(Trigger(self._outside.now_ms()))
        self._act(actions)
        return next((action.checkpoint_id for action in actions if isinstance(action, Start)), None)

    def _last_checkpoint(self, now_ms: int) -> None:
        """Take the checkpoint that ends the job, once all that is to be in it is there; again where that fails."""
        ended = self._ended == set(self._subtasks)
        if self._coordination is None or self.state != "running" or not (ended or self._stopping == "stop"):
            return
        if self._last_id in self._coordination.in_progress or now_ms < self._retry_ms:
            return
        self._last_id = self._trigger()
        self._retry_ms = now_ms + _RETRY_MS

    def _stop_sources(self) -> None:
        self._tell_all(StopSources(self.attempt, self._stopping == "drain"))
        self._last_checkpoint(self._outside.now_ms())

    def _discard(self, paths: Sequence[str]) -> None:
        if paths:
            self._outside.submit(partial(delete_quietly, self._entries.storage, paths), lambda *_: None)

    # Splits and time.

    def _discover(self, uid: str) -> None:
        if uid in self._discovering:
            return
        self._discovering.add(uid)
        source = next(node.source for node in self._graph.sources if node.uid == uid)
        known = frozenset(self._known[uid])

        def work() -> Sequence[Split]:
            with explained(uid, "discovering splits"):
                return source.discover(known)

        self._outside.submit(work, partial(self._discovered, self.attempt, uid))

    def _discovered(self, attempt: int, uid: str, found: Any, error: BaseException | None) -> None:
        self._discovering.discard(uid)
        self._discovered_ms[uid] = self._outside.now_ms()
        if attempt != self.attempt or self.state != "running":
            return
        if error is not None:
            self._fail(error)
            return
        of_slot: dict[int, list[SplitState]] = defaultdict(list)
        for split in found:
            if split.id not in self._known[uid]:
                self._known[uid].add(split.id)
                of_slot[self._assigned % len(self._slots)].append(SplitState(split.id, split.position))
                self._assigned += 1
        for slot, splits in of_slot.items():
            self._outside.tell(slot, AssignSplits(self.attempt, uid, splits))

    def _set_limits(self) -> None:
        """Let sources of a group that are ahead wait for the slowest."""
        groups: dict[str, list[Any]] = defaultdict(list)
        for node in self._graph.sources:
            if node.watermarks is not None and node.watermarks.group is not None:
                groups[node.watermarks.group].append(node)
        changed = {}
        for nodes in groups.values():
            told = [self._times.get((node.uid, slot), (None, False)) for node in nodes for slot in self._slots]
            waiting = [watermark for watermark, is_idle in told if not is_idle]
            for node in nodes:
                if any(watermark is None for watermark in waiting):
                    limit = -MAX_WATERMARK
                else:
                    lowest = min((w for w in waiting if w is not None), default=MAX_WATERMARK)
                    limit = min(lowest + node.watermarks.max_drift_ms, MAX_WATERMARK)
                if self._limits.get(node.uid) != limit:
                    self._limits[node.uid] = changed[node.uid] = limit
        if changed:
            self._tell_all(Limit(self.attempt, changed))

    def _tell_all(self, message: ToSlot) -> None:
        for slot in self._slots:
            if slot in self._alive:
                self._outside.tell(slot, message)
