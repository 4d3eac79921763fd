"""What a coordinator is told, and what it says is to be done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from arrowstate.errors import FencedError
from arrowstate.log.commit import NOT_COMMITTED

Kind = Literal["checkpoint", "savepoint"]
Subtask = Hashable

# Events: what happened, and when, in milliseconds.


class Tick(Struct, frozen=True):
    """Time has passed."""

    now_ms: int


class Border(Struct, frozen=True):
    """Time has passed, and the job is between two batches: a periodic checkpoint may begin."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """Somebody asks for a checkpoint or a savepoint now; the pause between periodic checkpoints does not bind them."""

    now_ms: int
    kind: Kind = "checkpoint"


class Acknowledge(Struct, frozen=True):
    """A subtask has written its part."""

    now_ms: int
    checkpoint_id: int
    subtask: Subtask
    handle: Any
    metrics: Any = None


class Decline(Struct, frozen=True):
    """A subtask cannot take part."""

    now_ms: int
    checkpoint_id: int
    subtask: Subtask
    reason: str


class Cancel(Struct, frozen=True):
    """Somebody gives a checkpoint up, or all of them."""

    now_ms: int
    reason: str
    checkpoint_id: int | None = None


class CommitWon(Struct, frozen=True):
    """The commit is in the log."""

    now_ms: int
    checkpoint_id: int


class CommitRefused(Struct, frozen=True):
    """The commit is not in the log and will not be: the storage failed before it."""

    now_ms: int
    checkpoint_id: int
    reason: str


class CommitLost(Struct, frozen=True):
    """Another writer has taken the store over."""

    now_ms: int
    checkpoint_id: int
    reason: str


class CommitUnknown(Struct, frozen=True):
    """It cannot be told whether the commit is in the log."""

    now_ms: int
    checkpoint_id: int
    reason: str


Event = (
    Tick | Border | Trigger | Acknowledge | Decline | Cancel | CommitWon | CommitRefused | CommitLost | CommitUnknown
)


def end_of_commit(
    now_ms: int, checkpoint_id: int, error: BaseException | None, *, with_kind: bool = False
) -> CommitWon | CommitLost | CommitRefused | CommitUnknown:
    """Return what happened to a commit that ended so; `with_kind` has the reason begin with the name of the error."""
    if error is None:
        return CommitWon(now_ms, checkpoint_id)
    reason = f"{type(error).__name__}: {error}" if with_kind else str(error)
    if isinstance(error, FencedError):
        return CommitLost(now_ms, checkpoint_id, reason)
    if isinstance(error, NOT_COMMITTED):
        return CommitRefused(now_ms, checkpoint_id, reason)
    # Whatever else it was, the entry may be in the log.
    return CommitUnknown(now_ms, checkpoint_id, reason)


# Actions: what to do now, in this order.


class Start(Struct, frozen=True):
    """Let every subtask freeze its state and write it."""

    checkpoint_id: int
    kind: Kind


class Refuse(Struct, frozen=True):
    """Tell the one who asked that no checkpoint begins."""

    reason: str


class Commit(Struct, frozen=True):
    """Write the log entry; its handles are those of all subtasks, in their order."""

    checkpoint_id: int
    kind: Kind
    handles: tuple[Any, ...]


class Complete(Struct, frozen=True):
    """Tell every subtask that everything up to this checkpoint is committed."""

    checkpoint_id: int
    kind: Kind


class Abort(Struct, frozen=True):
    """Tell every subtask to stop writing for this checkpoint."""

    checkpoint_id: int
    reason: str


class Discard(Struct, frozen=True):
    """Delete what a subtask wrote; no log entry will name it."""

    checkpoint_id: int
    subtask: Subtask
    handle: Any


class Stop(Struct, frozen=True):
    """Take no more checkpoints; the job fails, or is no longer the owner of the store."""

    reason: str


Action = Start | Refuse | Commit | Complete | Abort | Discard | Stop
