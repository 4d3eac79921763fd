"""When a task with several input channels takes its snapshot: at the barriers, or before the rows that they overtake.

The rules are those of Flink's `SingleCheckpointBarrierHandler`, and of `CheckpointBarrierTracker` for at-least-once.
Exactly once blocks each channel from its barrier on until all have come. A barrier may say from what time on it
overtakes: from then on the snapshot waits for no rows, and what the barriers have still to pass is captured for it.
At least once blocks no channel and counts. A newer barrier ends the waiting for an older one; what was given up is
never begun again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, TypeAlias

_MOST_PENDING = 50
"""How many checkpoints a tracker waits for at once; older ones are given up."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Take the snapshot of this checkpoint now."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Overtake:
    """Take the snapshot of this checkpoint now, and capture what its barrier has not passed in some channels."""

    checkpoint_id: int
    channels: frozenset[int]
    """Those in which the barrier has not been taken: it waits behind rows, or is still to come."""


@dataclass(frozen=True, slots=True)
class Captured:
    """All barriers of a checkpoint that overtook have come: its capture is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Take none for this checkpoint, and tell those downstream."""

    checkpoint_id: int


Decision: TypeAlias = Snapshot | Overtake | Captured | GiveUp


class BarrierHandler(Protocol):
    """What a task asks about the barriers of its channels."""

    def arrived(self, channel: int, checkpoint_id: int, overtakes_at_ms: int | None, now_ms: int) -> list[Decision]:
        """Take note of a barrier that has come to the end of a channel, behind what waits there.

        From `overtakes_at_ms` on it overtakes; None for never.
        """

    def barrier(self, channel: int, checkpoint_id: int, now_ms: int = 0) -> list[Decision]:
        """Take note of a barrier at the head of a channel."""

    def tick(self, now_ms: int) -> list[Decision]:
        """Let time pass."""

    def cancelled(self, checkpoint_id: int) -> list[Decision]:
        """Take note that a channel brought a cancel barrier: upstream the checkpoint was given up."""

    def aborted(self, checkpoint_id: int) -> list[Decision]:
        """Take note that the coordinator gave a checkpoint up, whose barriers may still come."""

    def ended(self, channel: int) -> list[Decision]:
        """Take note that a channel has ended: no barrier will come from it."""

    def is_blocked(self, channel: int) -> bool:
        """Whether nothing may be taken from a channel now."""


class ExactlyOnceBarriers:
    """Blocks a channel from its barrier on, until the barriers of all channels have come, or overtake.

    In the channels `in_line` no barrier overtakes: a snapshot waits until it has come to the head of each of them.
    """

    def __init__(self, channels: int, in_line: Collection[int] = ()) -> None:
        self._open = set(range(channels))
        self._in_line = frozenset(in_line)
        self._pending: int | None = None
        # Channels whose barrier was taken from their head, and those to which it has come.
        self._got: set[int] = set()
        self._came: set[int] = set()
        self._overtakes_at_ms: int | None = None
        self._has_overtaken = False
        # The newest checkpoint that was taken or given up here.
        self._done = 0
        # Given up by the coordinator before a barrier came.
        self._given_up: set[int] = set()

    def arrived(self, channel: int, checkpoint_id: int, overtakes_at_ms: int | None, now_ms: int) -> list[Decision]:
        if overtakes_at_ms is None or self._is_obsolete(checkpoint_id):
            return []
        decisions, goes_on = self._begun(checkpoint_id)
        if not goes_on:
            return decisions
        self._overtakes_at_ms = overtakes_at_ms
        self._came.add(channel)
        return [*decisions, *self._looked(now_ms)]

    def barrier(self, channel: int, checkpoint_id: int, now_ms: int = 0) -> list[Decision]:
        if self._is_obsolete(checkpoint_id):
            return []
        decisions, goes_on = self._begun(checkpoint_id)
        if not goes_on:
            return decisions
        self._got.add(channel)
        self._came.add(channel)
        return [*decisions, *self._looked(now_ms)]

    def tick(self, now_ms: int) -> list[Decision]:
        return [] if self._pending is None or self._has_overtaken else self._looked(now_ms)

    def cancelled(self, checkpoint_id: int) -> list[Decision]:
        if self._is_obsolete(checkpoint_id):
            return []
        older = self._pending is not None and self._pending < checkpoint_id
        decisions = self._end(GiveUp(self._pending)) if older and self._pending is not None else []
        return [*decisions, *self._end(GiveUp(checkpoint_id))]

    def aborted(self, checkpoint_id: int) -> list[Decision]:
        if checkpoint_id == self._pending:
            return self._end(GiveUp(checkpoint_id))
        if checkpoint_id > self._done:
            self._given_up.add(checkpoint_id)
        return []

    def ended(self, channel: int) -> list[Decision]:
        self._open.discard(channel)
        return self._looked(None) if self._pending is not None else []

    def is_blocked(self, channel: int) -> bool:
        # After a snapshot that overtook all that follows belongs to the next checkpoint.
        return channel in self._got and not self._has_overtaken

    def _is_obsolete(self, checkpoint_id: int) -> bool:
        return checkpoint_id <= self._done or (self._pending is not None and checkpoint_id < self._pending)

    def _begun(self, checkpoint_id: int) -> tuple[list[Decision], bool]:
        """Wait for a checkpoint; return what was decided of others, and whether it is taken."""
        decisions: list[Decision] = []
        if self._pending is not None and checkpoint_id > self._pending:
            decisions += self._end(GiveUp(self._pending))
        if checkpoint_id in self._given_up:
            return [*decisions, *self._end(GiveUp(checkpoint_id))], False
        self._pending = checkpoint_id
        return decisions, True

    def _looked(self, now_ms: int | None) -> list[Decision]:
        """Return what follows from the barriers that have come; None where no time has passed."""
        assert self._pending is not None, "a barrier has come"
        id = self._pending
        if self._has_overtaken:
            return self._end(Captured(id)) if self._open <= self._came else []
        if self._open <= self._got:
            return self._end(Snapshot(id))
        due = now_ms is not None and self._overtakes_at_ms is not None and now_ms >= self._overtakes_at_ms
        if not due or not self._in_line & self._open <= self._got:
            return []
        self._has_overtaken = True
        overtake = Overtake(id, frozenset(self._open - self._got))
        return [overtake, *(self._end(Captured(id)) if self._open <= self._came else [])]

    def _end(self, decision: Decision) -> list[Decision]:
        self._done = decision.checkpoint_id
        self._pending = self._overtakes_at_ms = None
        self._has_overtaken = False
        self._got.clear()
        self._came.clear()
        self._given_up = {id for id in self._given_up if id > self._done}
        return [decision]


class TrackedBarriers:
    """Blocks nothing and counts barriers: after a restore rows may be processed again."""

    def __init__(self, channels: int) -> None:
        self._open = set(range(channels))
        self._pending: dict[int, set[int]] = {}
        self._done = 0
        self._given_up: set[int] = set()
        # Given up here, so that later barriers of them say nothing.
        self._cancelled: set[int] = set()

    def arrived(self, channel: int, checkpoint_id: int, overtakes_at_ms: int | None, now_ms: int) -> list[Decision]:  # noqa: ARG002
        return []

    def tick(self, now_ms: int) -> list[Decision]:  # noqa: ARG002
        return []

    def barrier(self, channel: int, checkpoint_id: int, now_ms: int = 0) -> list[Decision]:  # noqa: ARG002
        if checkpoint_id <= self._done or checkpoint_id in self._cancelled:
            return []
        if checkpoint_id in self._given_up:
            return self._end(GiveUp(checkpoint_id))
        decisions: list[Decision] = []
        if checkpoint_id not in self._pending and len(self._pending) == _MOST_PENDING:
            decisions += self._end(GiveUp(min(self._pending)))
        self._pending.setdefault(checkpoint_id, set()).add(channel)
        return [*decisions, *self._all_here()]

    def cancelled(self, checkpoint_id: int) -> list[Decision]:
        if checkpoint_id <= self._done or checkpoint_id in self._cancelled:
            return []
        return self._end(GiveUp(checkpoint_id))

    def aborted(self, checkpoint_id: int) -> list[Decision]:
        if checkpoint_id in self._pending:
            return self._end(GiveUp(checkpoint_id))
        if checkpoint_id > self._done:
            self._given_up.add(checkpoint_id)
        return []

    def ended(self, channel: int) -> list[Decision]:
        self._open.discard(channel)
        return self._all_here()

    def is_blocked(self, channel: int) -> bool:  # noqa: ARG002
        return False

    def _all_here(self) -> list[Decision]:
        whole = [id for id, got in self._pending.items() if self._open <= got]
        return self._end(Snapshot(max(whole))) if whole else []

    def _end(self, decision: Decision) -> list[Decision]:
        id = decision.checkpoint_id
        self._pending.pop(id, None)
        if isinstance(decision, GiveUp):
            self._cancelled.add(id)
            return [decision]
        # Those before a snapshot no longer matter.
        older = sorted(item for item in self._pending if item < id)
        for item in older:
            del self._pending[item]
        self._done = id
        self._given_up = {item for item in self._given_up if item > id}
        self._cancelled = {item for item in self._cancelled if item > id}
        return [*(GiveUp(item) for item in older), decision]
