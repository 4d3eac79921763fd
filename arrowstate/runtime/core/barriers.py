"""When a task with several input channels takes its snapshot: at the barriers, which arrive one channel after another.

The rules are those of Flink's `SingleCheckpointBarrierHandler` for aligned barriers, and of `CheckpointBarrierTracker`
for at-least-once: exactly once blocks each channel from its barrier on until all have come, at least once blocks none
and counts. A newer barrier ends the waiting for an older one; what was given up is never begun again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

_MOST_PENDING = 50
"""How many checkpoints a tracker waits for at once; older ones are given up."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Take the snapshot of this checkpoint now."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Take none for this checkpoint, and tell those downstream."""

    checkpoint_id: int


Decision: TypeAlias = Snapshot | GiveUp


class BarrierHandler(Protocol):
    """What a task asks about the barriers of its channels."""

    def barrier(self, channel: int, checkpoint_id: int) -> list[Decision]:
        """Take note of a barrier at the head of a channel."""

    def cancelled(self, checkpoint_id: int) -> list[Decision]:
        """Take note that a channel brought a cancel barrier: upstream the checkpoint was given up."""

    def aborted(self, checkpoint_id: int) -> list[Decision]:
        """Take note that the coordinator gave a checkpoint up, whose barriers may still come."""

    def ended(self, channel: int) -> list[Decision]:
        """Take note that a channel has ended: no barrier will come from it."""

    def is_blocked(self, channel: int) -> bool:
        """Whether nothing may be taken from a channel now."""


class AlignedBarriers:
    """Blocks a channel from its barrier on, until the barriers of all channels have come."""

    def __init__(self, channels: int) -> None:
        self._open = set(range(channels))
        self._pending: int | None = None
        self._got: set[int] = set()
        # The newest checkpoint that was taken or given up here.
        self._done = 0
        # Given up by the coordinator before a barrier came.
        self._given_up: set[int] = set()

    def barrier(self, channel: int, checkpoint_id: int) -> list[Decision]:
        if checkpoint_id <= self._done or (self._pending is not None and checkpoint_id < self._pending):
            return []
        decisions: list[Decision] = []
        if self._pending is not None and checkpoint_id > self._pending:
            decisions += self._end(GiveUp(self._pending))
        if checkpoint_id in self._given_up:
            return [*decisions, *self._end(GiveUp(checkpoint_id))]
        self._pending = checkpoint_id
        self._got.add(channel)
        return [*decisions, *self._all_here()]

    def cancelled(self, checkpoint_id: int) -> list[Decision]:
        if checkpoint_id <= self._done or (self._pending is not None and checkpoint_id < self._pending):
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
        return self._all_here() if self._pending is not None else []

    def is_blocked(self, channel: int) -> bool:
        return channel in self._got

    def _all_here(self) -> list[Decision]:
        assert self._pending is not None, "a barrier has come"
        return self._end(Snapshot(self._pending)) if self._open <= self._got else []

    def _end(self, decision: Decision) -> list[Decision]:
        self._done = decision.checkpoint_id
        self._pending = None
        self._got.clear()
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

    def barrier(self, channel: int, checkpoint_id: int) -> list[Decision]:
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
