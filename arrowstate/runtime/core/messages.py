"""What the coordinator of a job and its slots tell each other.

Each message is of one attempt; those of another are void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from arrowstate_formats.documents import OperatorPartDocument, SubtaskDocument, SubtaskStatisticsDocument
from arrowstate_formats.schema_documents import FieldDocument, StateDocument


@dataclass(frozen=True, slots=True)
class SplitState:
    """How far a split was read."""

    id: str
    position: Any = None
    finished: bool = False
    watermark: int | None = None
    recorded: bool = False
    """Whether the store has it among the finished ones, which are state of no slot."""
    number: int = 0
    """Its place in the order of the source, from 0."""
    slot: int | None = None
    """Which slot has it; None before it is dealt, and for one that is recorded."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """What a subtask has of an operator state, or adds to it, in files that are written."""

    uid: str
    """The operator under which the store has it."""
    name: str
    kind: Literal["list", "union", "broadcast"]
    value_type: Any
    part: OperatorPartDocument
    key_type: Any = None
    epoch: int | None = None
    """The checkpoint whose barrier ended the epoch of these rows; None for what is the whole of a state."""


@dataclass(frozen=True, slots=True)
class TaskHandle:
    """What a subtask has written for a checkpoint: all that a commit needs to name it."""

    task: str
    subtask: int
    key: list[FieldDocument] = field(default_factory=list)
    max_parallelism: int = 1
    states: list[StateDocument] = field(default_factory=list)
    document: SubtaskDocument | None = None
    """Of its keyed state."""
    parts: tuple[StatePart, ...] = ()
    paths: tuple[str, ...] = ()
    """The files written for it."""
    references: frozenset[str] = frozenset()
    """All files that it refers to."""
    statistics: SubtaskStatisticsDocument | None = None
    alignment_us: int = 0
    """From the first barrier to the last, in microseconds."""
    finished: tuple[SplitState, ...] = ()
    """The splits that were read to their end, to be recorded."""

    @property
    def measured(self) -> SubtaskStatisticsDocument:
        """What writing it took; of a task that has nothing in the store, that is how long it waited for barriers."""
        if self.statistics is not None:
            return self.statistics
        return SubtaskStatisticsDocument(
            operator=self.task,
            subtask=self.subtask,
            alignment_us=self.alignment_us,
            bytes_written=0,
            bytes_total=0,
            files_written=0,
        )


# From the coordinator to a slot.


@dataclass(frozen=True, slots=True)
class Deploy:
    """Make all tasks anew, as a checkpoint has them, and wait."""

    attempt: int
    base: int | None
    """The number of the log entry to restore; None to begin without state."""
    splits: Mapping[str, Sequence[SplitState]] = field(default_factory=dict)
    """By source what this slot reads."""
    no_more_splits: frozenset[str] = frozenset()
    """Sources that will get none besides."""
    had_splits: frozenset[str] = frozenset()
    """Sources of which the slot is not idle though it may have no split: it has had some that are recorded."""


@dataclass(frozen=True, slots=True)
class Run:
    """Begin: all slots are ready."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the attempt: drop all tasks, and say nothing of it any more."""

    attempt: int


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    attempt: int
    checkpoint_id: int
    is_full: bool = False
    overtakes_at_ms: int | None = None
    """As of the barrier."""


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """The checkpoint is committed."""

    attempt: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """The checkpoint was given up, or its commit failed."""

    attempt: int
    checkpoint_id: int
    gone: frozenset[str] = frozenset()
    """Files that a collection took: nothing may refer to them again."""


@dataclass(frozen=True, slots=True)
class AssignSplits:
    attempt: int
    uid: str
    splits: Sequence[SplitState]
    no_more: bool = False


@dataclass(frozen=True, slots=True)
class StopSources:
    """Read no more rows; with `drain` all is as at the end of the input."""

    attempt: int
    drain: bool


@dataclass(frozen=True, slots=True)
class Limit:
    """Splits of these sources that are further in event time than this pause."""

    attempt: int
    limits: Mapping[str, int]


ToSlot: TypeAlias = (
    Deploy
    | Run
    | Cancel
    | TriggerCheckpoint
    | CompleteCheckpoint
    | AbortCheckpoint
    | AssignSplits
    | StopSources
    | Limit
)


# From a slot to the coordinator.


@dataclass(frozen=True, slots=True)
class Ready:
    """All tasks are made."""

    attempt: int
    slot: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subtask's part of a checkpoint is written."""

    attempt: int
    checkpoint_id: int
    handle: TaskHandle


@dataclass(frozen=True, slots=True)
class Declined:
    """A subtask cannot take part in a checkpoint."""

    attempt: int
    checkpoint_id: int
    task: str
    subtask: int
    reason: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A subtask has processed the end of its input."""

    attempt: int
    task: str
    subtask: int


@dataclass(frozen=True, slots=True)
class SourceTime:
    """How far the event time of a source is in a slot; None while it is idle, or has shown none."""

    attempt: int
    uid: str
    slot: int
    watermark: int | None
    is_idle: bool


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """How a task in one slot is: sums since the attempt began, and how it is at the moment."""

    task: str
    subtask: int
    rows: int
    """Rows that it took."""
    bytes: int
    rows_out: int
    bytes_out: int
    busy_us: int
    blocked_us: int
    idle_us: int
    watermark: int | None
    has_ended: bool
    late_rows: int = 0
    dead_rows: int = 0
    behind_rows: int | None = None
    """Rows of the splits of a source that are there and not read; None where the source does not tell."""


@dataclass(frozen=True, slots=True)
class SentFigures:
    """The channels of an edge as the slot has it that sends: an item for each that receives."""

    edge: int
    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    in_flight_bytes: tuple[int, ...]
    """What was sent and not taken up."""
    window_bytes: tuple[int, ...]
    """How much of it there may be."""
    blocked_us: tuple[int, ...]
    """How long there was no room for more."""


@dataclass(frozen=True, slots=True)
class TakenFigures:
    """The channels of an edge as the slot has it that receives: an item for each that sends."""

    edge: int
    rows: tuple[int, ...]
    """Rows that were taken up."""
    queued_rows: tuple[int, ...]
    """Rows that have come and wait."""
    queued_bytes: tuple[int, ...]
    watermarks: tuple[int | None, ...]
    aligning: tuple[bool, ...]
    """Whether a channel has brought a barrier, and waits for those of the others."""


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """How the tasks of a slot are, and the channels at both of its ends."""

    attempt: int
    slot: int
    at_ms: int
    tasks: tuple[TaskFigures, ...]
    sent: tuple[SentFigures, ...] = ()
    taken: tuple[TakenFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt cannot go on."""

    attempt: int
    slot: int
    error: BaseException
    rows: int = 0
    """The rows that the tasks of the slot had taken."""
    is_unrecoverable: bool = False
    """Whether another attempt would fail as this one did."""
    trace: str = ""
    """The traceback, where the error has come from another process without it."""


@dataclass(frozen=True, slots=True)
class NotBegun:
    """The process of a slot could not make what it was given, such as the job, and ends."""

    error: BaseException
    trace: str = ""
    """The traceback, where the error has come from another process without it."""


@dataclass(frozen=True, slots=True)
class NotClosed:
    """A function, a reader or a sink raised when it was closed; the others of its attempt were closed."""

    attempt: int
    slot: int
    uid: str
    error: BaseException
    trace: str = ""


FromSlot: TypeAlias = Ready | Acknowledged | Declined | Ended | SourceTime | SlotFigures | Failed | NotClosed
