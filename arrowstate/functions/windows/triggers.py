"""When windows fire, and how far they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from arrowstate.errors import InvalidInputError
from arrowstate.functions.windows.assigners import (
    CountWindows,
    GlobalWindows,
    SessionWindows,
    WindowAssigner,
    clock_of,
    whole_number,
)
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
)

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a window fires.

    Parameters
    ----------
    count
        None: a window fires when the watermark passes its end, and again with every batch that brings late elements to
        it; or, by processing time, when that reaches its end.
        A number from 1: a window fires with every batch after which it has received at least so many elements since it
        fired last; time alone does not make it fire.
    purging
        Whether the elements of a window are removed when it fires, so that its next result has only later elements.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import GlobalWindows, Trigger, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> windows = WindowOperator(backend, GlobalWindows(), clicks, trigger=Trigger(count=2, purging=True))
    >>> [windows.process(["ann"], None, [n]).fired["clicks"].to_pylist() for n in (1, 2, 3, 4)]
    [[], [3], [], [7]]
    """

    count: int | None = None
    purging: bool = False

    def __post_init__(self) -> None:
        if self.count is not None:
            whole_number("the count of a trigger", self.count, 1)
        if not isinstance(self.purging, bool):
            raise InvalidInputError(f"purging must be True or False, got {self.purging!r}")


@dataclass(slots=True, weakref_slot=True)
class Progress:
    """What a window operator knows besides its states."""

    processing_time: int = LOWEST
    "How far processing time is, for windows that end by it."
    fired_end: int = LOWEST
    "All windows with an end up to this have fired, and so do those at once that get elements later."
    late_rows: int = 0

    def begin(self) -> Any:
        return self.processing_time, self.fired_end, self.late_rows

    def keep(self) -> None:
        """There is nothing to give up."""

    def go_back(self, mark: Any) -> None:
        self.processing_time, self.fired_end, self.late_rows = mark


def check_triggers(windows: Any, descriptor: Any, trigger: Any, lateness: Any) -> None:
    """Refuse arguments that do not fit each other."""
    if not isinstance(windows, WindowAssigner):
        raise InvalidInputError(f"windows must be one of the assigners of arrowstate.windows, got {windows!r}")
    if not isinstance(descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor, ListStateDescriptor)):
        raise InvalidInputError(f"a window holds a reducing, aggregating or list state, got {descriptor!r}")
    if descriptor.namespace is not None or descriptor.ttl is not None:
        raise InvalidInputError(
            f"state {descriptor.name!r} is kept per window and as long as its window: declare it without namespaces "
            "and without a time to live"
        )
    if trigger is not None and not isinstance(trigger, Trigger):
        raise InvalidInputError(f"a trigger is a Trigger, got {trigger!r}")
    if isinstance(windows, GlobalWindows) and (trigger is None or trigger.count is None):
        raise InvalidInputError(f"global windows never end, so they need a trigger with a count; got {trigger!r}")
    if isinstance(windows, CountWindows) and trigger is not None:
        raise InvalidInputError(f"count windows fire when they are full and take no trigger, got {trigger!r}")
    if isinstance(windows, SessionWindows) and trigger is not None and trigger.purging:
        raise InvalidInputError(
            f"a session that was purged could not be merged with later elements, so session windows take no trigger "
            f"that purges; got {trigger!r}"
        )
    whole_number("allowed_lateness_ms", lateness, 0)
    if lateness and clock_of(windows) != "event_time":
        why = "knows no time" if clock_of(windows) is None else "takes each row at the time it is processed"
        raise InvalidInputError(f"{windows!r} {why}, so nothing is late for it; got {lateness} ms of lateness")
