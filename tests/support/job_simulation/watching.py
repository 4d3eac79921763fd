"""What is looked at while a job of the simulation runs: rules of the runtime that results alone would not show."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

from arrowstate.checkpoints.committing import Committer
from arrowstate.checkpoints.coordination import Status
from arrowstate.errors import CommitUnknownError, StorageError
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime import running
from arrowstate.runtime.core import checkpoints, exchange, task, turns
from arrowstate.runtime.core.barriers import ExactlyOnceBarriers
from arrowstate.runtime.core.checkpoints import JobCheckpoints
from arrowstate.runtime.core.elements import Barrier, CancelBarrier, Rows
from arrowstate.runtime.core.messages import (
    AbortCheckpoint,
    Acknowledged,
    CompleteCheckpoint,
    Declined,
    Deploy,
    TriggerCheckpoint,
)
from arrowstate.runtime.core.slot import Slot
from arrowstate.runtime.core.snapshots import SlotSnapshots
from arrowstate.runtime.core.task import OperatorTask
from arrowstate.runtime.drivers import inline
from arrowstate.runtime.drivers.inline import Inline
from arrowstate.runtime.graph import StatefulNode
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import KeyGroupRange, key_group_range
from job_simulation.parts import WORLD, Violation

__all__ = ["Luck", "Unruly", "watched"]

_PASSED = 8
"""So many steps more for each task of its slot a source may be passed over: others have their turns before it."""

_LATE_MS = 20
"""So long after its time a barrier may begin to overtake: the clock is looked at from time to time."""

_MAY_BE_LOST = (TriggerCheckpoint, CompleteCheckpoint, AbortCheckpoint, Acknowledged, Declined)


@dataclass(frozen=True, slots=True)
class Luck:
    """How bad the luck of a run is: a seed takes some kinds of it and leaves out others."""

    lost: float
    "Probability that a message about a checkpoint never arrives."
    stall: float
    "Probability per step that somebody is left alone for a while, with all that is for him."
    commit_failures: float
    write_failures: float
    kills: int
    crashes: int
    zombies: bool
    "Whether a coordinator that was left behind goes on as long as it can."
    rescales: int
    stops: int
    "How often the job is stopped with a last checkpoint, and started anew."
    refusals: int
    "How many commits of sinks fail."
    credit_bytes: int
    frame_rows: int
    exits: int
    "How many times a function ends the interpreter, as it thinks."
    bad_closes: bool
    "Whether functions raise when they are closed."

    @classmethod
    def draw(cls, chance: random.Random, *, subtasks: int) -> Luck:
        """Return luck by chance, of which some is good, so that about every second checkpoint is committed."""
        calm = chance.random() < 0.1
        some = lambda *rates: 0 if calm else chance.choice(rates)  # noqa: E731
        return cls(
            lost=some(0, 0, 0.2, 0.5) / subtasks,
            stall=chance.choice([0, 0.01, 0.05]),
            commit_failures=some(0, 0, 0.1),
            write_failures=some(0, 0.4) / subtasks,
            kills=some(0, 1, 2, 4),
            crashes=some(0, 0, 1, 2),
            zombies=chance.random() < 0.5,
            rescales=chance.choice([0, 0, 1, 2]),
            stops=chance.choice([0, 0, 0, 1]),
            refusals=some(0, 0, 1, 2),
            credit_bytes=chance.choice([1, 100, 400, 4 << 20]),
            frame_rows=chance.choice([2, 5, 65_536]),
            exits=some(0, 0, 1, 2),
            bad_closes=chance.random() < 0.3,
        )


MOST_TURNS = 150_000
"""After so many turns of its parts a job should be over; most have 1,000 to 5,000."""


class Unruly(Inline):
    """A job that loses messages and leaves some of its parts alone for a while, and is looked at in every step."""

    @cached_property
    def stalled(self) -> dict[str, int]:
        """Who is left alone, for how many steps."""
        return {}

    def step(self) -> None:
        WORLD.outside.turns += 1
        if WORLD.outside.turns > MOST_TURNS:
            raise Violation(f"the job is not over after {MOST_TURNS} turns")
        super().step()

    def loses(self, message: Any) -> bool:
        outside = WORLD.outside
        may_be = isinstance(message, _MAY_BE_LOST) and not outside.is_calm
        return may_be and self.chance.random() < outside.luck.lost

    def kill(self, slot: int) -> None:
        super().kill(slot)
        if self.links:
            # What is under way between two slots may be there long after others have begun anew.
            one, other = self.chance.choice(list(self.links))
            self.stalled[f"link {one} {other}"] = 200

    def choose(self, doable: list[tuple[str, Callable[[], Any]]]) -> Callable[[], Any]:
        stalled = self.stalled
        stall = WORLD.outside.luck.stall
        if stall and self.chance.random() < stall:
            stalled[self.chance.choice(doable)[0]] = self.chance.choice([10, 40, 200])
        if stalled:
            awake = [item for item in doable if item[0] not in stalled]
            for name in [name for name, left in stalled.items() if left == 0]:
                del stalled[name]
            for name in stalled:
                stalled[name] -= 1
            doable = awake or doable
        name, what = self.chance.choice(doable)
        WORLD.outside.trace(name)
        return what


def _step(right: Callable[[Slot], bool]) -> Callable[[Slot], bool]:
    def step(self: Slot) -> bool:
        attempt = self._attempt
        if attempt is None:
            return right(self)
        full = {number: item.in_flight for number, item in attempt.exchanges.items() if not item.has_room}
        could = [item for item in attempt.tasks if self._turns is not None and _could_step(item)]
        turn = None if self._turns is None else self._turns._turn
        did = right(self)
        if self._attempt is not attempt:
            return did
        goes_on = turn is not None and self._turns is not None and self._turns._turn is turn
        _check_turns(self, could, did, goes_on)
        for number, before in full.items():
            after = attempt.exchanges[number].in_flight
            if any(now > then for now, then in zip(after, before, strict=True)):
                raise Violation(f"edge {number} was sent rows though a channel of it had no room: {before}, {after}")
        for item in attempt.tasks:
            if item.late_rows:
                raise Violation(f"{item.late_rows} rows came late to {item.uid} in subtask {item.subtask}")
        for item in [] if self._turns is None else attempt.tasks:
            if isinstance(item, OperatorTask):
                _check_overtaking(item, self._outside.now_ms())
        for item in [] if did or self._turns is None else attempt.tasks:
            if isinstance(item, OperatorTask) and not item._recovered:
                heads = [queue[0] for number, queue in enumerate(item._queues) if queue and _open(item, number)]
                if any(isinstance(head, (Barrier, CancelBarrier)) for head in heads):
                    raise Violation(f"a barrier waits in front of {item.uid}, and nothing is done")
        return did

    return step


def _could_step(item: task.Task) -> bool:
    """Whether a source may read rows now: all that it waits for is its turn."""
    if not isinstance(item, task.SourceTask):
        return False
    reads = item.may_read and not item.has_ended and not item.has_nothing_now
    return reads and item.chain.has_room and not item.splits.is_finished


def _check_turns(slot: Slot, could: list[task.Task], did: bool, goes_on: bool) -> None:
    """A source that could read is not passed over for long, whatever its slot has to do.

    The steps of one turn are one here: it lasts as long as its task was passed over, however small its steps are.
    """
    passed = WORLD.outside.passed
    for item in slot.tasks:
        waits = did and item in could and not _has_stepped(slot, item) and _could_step(item)
        passed[item] = passed.get(item, 0) + (not goes_on) if waits else 0
        if passed[item] > turns.PASSED_STEPS + _PASSED * len(slot.tasks):
            raise Violation(f"source {item.uid} could read, and others had {passed[item]} steps before it")


def _has_stepped(slot: Slot, item: task.Task) -> bool:
    """Whether the last step was that of a task; a source may read no row in it, for they may all be set aside."""
    made = slot._turns
    return made is not None and made._seen[made._tasks.index(item)][0] == made._count


def _check_overtaking(item: OperatorTask, now_ms: int) -> None:
    """A barrier whose time has come waits behind no rows, but for those of channels that it may not overtake in."""
    barriers = item._barriers
    if not isinstance(barriers, ExactlyOnceBarriers) or not barriers._in_line <= barriers._got:
        return
    if barriers._has_overtaken and item.capture is None:
        # Too much was in flight: the checkpoint is declined, and its barriers say nothing any more.
        return
    for queue in item._queues:
        for element in queue:
            # Time is looked at some times a second.
            if not isinstance(element, Barrier) or element.overtakes_at_ms is None:
                continue
            counts = not barriers._is_obsolete(element.checkpoint_id)
            counts = counts and element.checkpoint_id not in barriers._given_up
            if counts and element.overtakes_at_ms + _LATE_MS <= now_ms:
                raise Violation(f"barrier {element.checkpoint_id} waits in a channel of {item.uid}")


def _open(item: OperatorTask, number: int) -> bool:
    return not item._barriers.is_blocked(number)


def _hear(right: Callable[[Slot, Any], None]) -> Callable[[Slot, Any], None]:
    def hear(self: Slot, message: Any) -> None:
        if isinstance(message, CompleteCheckpoint) and message.checkpoint_id not in WORLD.outside.committed:
            raise Violation(f"checkpoint {message.checkpoint_id} is told to be complete and not in the log")
        right(self, message)
        if isinstance(message, Deploy) and message.base is not None and self._attempt is not None:
            _check_watermarks(self, CommitLog(self._storage).read(message.base).document)

    return hear


def _check_watermarks(slot: Slot, base: LogEntryDocument) -> None:
    """Event time of a task is where the checkpoint has the slowest of those whose keys it has."""
    for item in slot.tasks:
        node = slot._graph.task(item.uid)
        stored = next((operator for operator in base.operators if operator.uid == item.uid), None)
        if isinstance(node, StatefulNode) and stored is not None:
            own = key_group_range(
                slot._setting.max_parallelism, parallelism=slot._setting.parallelism, subtask=item.subtask
            )
            low, high = own.hash_bounds(slot._setting.max_parallelism)
            bounds = [
                (subtask, KeyGroupRange(*subtask.key_groups).hash_bounds(stored.max_parallelism))
                for subtask in stored.subtasks
            ]
            known = [subtask.watermark for subtask, (first, last) in bounds if first <= high and low <= last]
            lowest = None if None in known or not known else min(known)
            if item.watermark != lowest:
                raise Violation(f"{item.uid} is at the watermark {item.watermark} after a restore, not {lowest}")


def _take(right: Callable[..., None]) -> Callable[..., None]:
    def take(self: SlotSnapshots, item: task.Task, checkpoint_id: int, *how: Any) -> None:
        taken = WORLD.outside.taken.setdefault(self, {})
        if taken.get(item.uid, 0) >= checkpoint_id:
            raise Violation(f"{item.uid} took a snapshot for {checkpoint_id} after one for {taken[item.uid]}")
        taken[item.uid] = checkpoint_id
        right(self, item, checkpoint_id, *how)

    return take


def _grown(right: Callable[..., None]) -> Callable[..., None]:
    def grown(self: OperatorTask, watermark: int | None) -> None:
        if watermark is not None:
            if watermark <= WORLD.outside.grown.get(self, watermark - 1):
                raise Violation(f"the watermark of {self.uid} went back to {watermark}")
            WORLD.outside.grown[self] = watermark
        right(self, watermark)

    return grown


def _commit(right: Callable[..., LogEntryDocument]) -> Callable[..., LogEntryDocument]:
    def commit(self: Committer, *given: Any, **named: Any) -> LogEntryDocument:
        outside = WORLD.outside
        fails = not outside.is_calm and outside.chance.random() < outside.luck.commit_failures
        bad = outside.chance.choice([1, 2, 3]) if fails else 0
        if bad == 1:
            raise StorageError("the log", "out of order, as the simulation has it")
        if bad == 2:
            raise CommitUnknownError("the log", "a commit", "nothing was written, as the simulation has it")
        entry = right(self, *given, **named)
        if entry.checkpoint_id is None or entry.checkpoint_id in outside.committed:
            raise Violation(f"checkpoint {entry.checkpoint_id} was committed twice")
        if self is not outside.committer:
            raise Violation(f"checkpoint {entry.checkpoint_id} was committed by a job that was left behind")
        outside.committed.add(entry.checkpoint_id)
        outside.entries.append(entry)
        if bad == 3:
            raise CommitUnknownError("the log", "a commit", "it was written, as the simulation has it")
        return entry

    return commit


def _take_last(right: Callable[..., Any]) -> Callable[..., Any]:
    def take_last(self: JobCheckpoints, now_ms: int) -> Any:
        before = self._last_id
        made = right(self, now_ms)
        ended = {record.checkpoint_id for record in self.records if record.status is Status.COMPLETED}
        if self._last_id != before and before in ended:
            raise Violation(f"{self._last_id} is to end the attempt though {before} is committed, which ends it")
        return made

    return take_last


@contextmanager
def watched(luck: Luck) -> Iterator[None]:
    """Have jobs that are started inline be unruly, and look at what they do."""
    with ExitStack() as stack:

        def put(where: Any, name: str, what: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, what))

        put(running, "Inline", Unruly)
        put(inline, "_STEP_MS", 5)
        put(checkpoints, "_TELL_AGAIN_MS", 50)
        put(exchange, "CREDIT_BYTES", luck.credit_bytes)
        put(task, "FRAME_ROWS", luck.frame_rows)
        put(Slot, "step", _step(Slot.step))
        put(Slot, "hear", _hear(Slot.hear))
        put(SlotSnapshots, "take", _take(SlotSnapshots.take))
        put(OperatorTask, "_grown", _grown(OperatorTask._grown))
        put(Committer, "commit", _commit(Committer.commit))
        put(JobCheckpoints, "take_last", _take_last(JobCheckpoints.take_last))
        yield


def rows_left(slot: Slot) -> int:
    """Return how many rows wait in the channels of a slot."""
    waiting = [item for item in slot.tasks if isinstance(item, OperatorTask)]
    queues = [
        queue for item in waiting for queue in (*item._queues, *(each.elements for each in item._recovered.values()))
    ]
    return sum(isinstance(element, Rows) for queue in queues for element in queue)
