"""What a slot has of one attempt of a job: its tasks, the channels between them, and what of it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.exchange import Exchange
from arrowstate.runtime.core.messages import FromSlot
from arrowstate.runtime.core.sinking import DirectTask
from arrowstate.runtime.core.snapshots import Ended, SlotSnapshots
from arrowstate.runtime.core.task import Channel, OperatorTask, SourceTask, Task
from arrowstate_formats.run_files import RunFormat

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """What slots and coordinator know of the job besides its plan."""

    store_id: str
    parallelism: int
    max_parallelism: int
    exactly_once: bool = True
    format: RunFormat = "arrow"
    unaligned: bool = False
    """Whether barriers may overtake."""
    max_in_flight_bytes: int = 0
    """Of the rows that one task may have in flight at a checkpoint."""


class Outside(Protocol):
    """What a slot asks of whoever drives it."""

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        """Bring an element to the subtask `to` of an edge, after all that was sent there before."""

    def grant(self, attempt: int, to: int, edge: int, size: int, window: int) -> None:
        """Tell the subtask `to` that rows of this size were taken up, and how much it may have in flight."""

    def tell(self, message: FromSlot) -> None:
        """Tell the coordinator."""

    def submit(self, work: Callable[[], T], done: Ended[T], tell: Ended[T]) -> None:
        """Have work done beside the steps, and then call `done` between two of them and `tell` at once.

        Both get what the work returned or raised. `done` is called before the slot hears any answer to what `tell`
        tells.
        """

    def now_ms(self) -> int: ...
    def now_us(self) -> int: ...
    def new_id(self) -> str: ...


@dataclass(slots=True)
class Attempt:
    """All that is made anew for each start of the job."""

    number: int
    subtask: int
    snapshots: SlotSnapshots
    outside: Outside
    tasks: list[Task] = field(default_factory=list)
    "Each after those that it feeds, so that what is under way is done before more is read."
    operators: dict[int, OperatorTask] = field(default_factory=dict)
    "By the number of an edge that leads to it."
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    direct: dict[str, DirectTask] = field(default_factory=dict)
    "Sinks that keep nothing, each of which all tasks of a slot share."
    closes: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    "What lets go of each function, reader and sink that was made, by uid."
    has_rows: bool = False
    "Whether the coordinator was told that rows have come."
    told_time: dict[str, tuple[int | None, bool]] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, SourceTask]:
        """The tasks that read, by uid."""
        return {task.uid: task for task in self.tasks if isinstance(task, SourceTask)}

    @property
    def rows(self) -> int:
        """The rows that its tasks took."""
        return sum(task.rows_in for task in self.tasks)

    def send(self, edge: int, to: int, element: Element) -> None:
        """Bring an element to a subtask, this one or another."""
        if to == self.subtask:
            self.operators[edge].deliver((edge, to), element)
        else:
            self.outside.send(self.number, to, edge, element)

    def consumed(self, channel: Channel, size: int, window: int) -> None:
        """Tell whoever sent rows that they were taken up, and what the channel may hold from now on."""
        edge, sender = channel
        if sender == self.subtask:
            self.exchanges[edge].granted(sender, size, window)
        else:
            self.outside.grant(self.number, sender, edge, size, window)

    def close(self) -> Iterator[tuple[str, BaseException]]:
        """Let go of everything; yield what could not be closed, and why."""
        while self.closes:
            uid, close = self.closes.pop()
            try:
                close()
            except BaseException as error:  # noqa: BLE001 (the others are closed all the same)
                yield uid, error
