"""What a coordinator is told, and what it says is to be done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from arrowstate.errors import FencedError
from arrowstate.log.commit import NOT_COMMITTED

Kind = Literal["checkpoint", "savepoint"]
Subtask = Hashable

# Events: what happened, and when, in milliseconds.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Border:
    """Time has passed, and the job is between two batches: a periodic checkpoint may begin."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """Somebody asks for a checkpoint or a savepoint now; the pause between periodic checkpoints does not bind them."""

    now_ms: int
    kind: Kind = "checkpoint"


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A subtask has written its part."""

    now_ms: int
    checkpoint_id: int
    subtask: Subtask
    handle: Any
    metrics: Any = None


@dataclass(frozen=True, slots=True)
class Decline:
    """A subtask cannot take part."""

    now_ms: int
    checkpoint_id: int
    subtask: Subtask
    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody gives a checkpoint up, or all of them."""

    now_ms: int
    reason: str
    checkpoint_id: int | None = None


@dataclass(frozen=True, slots=True)
class CommitWon:
    """The commit is in the log."""

    now_ms: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """The commit is not in the log and will not be: the storage failed before it."""

    now_ms: int
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommitLost:
    """Another writer has taken the store over."""

    now_ms: int
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommitUnknown:
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


@dataclass(frozen=True, slots=True)
class Start:
    """Let every subtask freeze its state and write it."""

    checkpoint_id: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the one who asked that no checkpoint begins."""

    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the log entry; its handles are those of all subtasks, in their order."""

    checkpoint_id: int
    kind: Kind
    handles: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell every subtask that everything up to this checkpoint is committed."""

    checkpoint_id: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell every subtask to stop writing for this checkpoint."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete what a subtask wrote; no log entry will name it."""

    checkpoint_id: int
    subtask: Subtask
    handle: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """Take no more checkpoints; the job fails, or is no longer the owner of the store."""

    reason: str


Action = Start | Refuse | Commit | Complete | Abort | Discard | Stop
