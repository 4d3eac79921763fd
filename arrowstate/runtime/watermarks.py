"""How the watermark of a source follows from its rows."""

from __future__ import annotations

from dataclasses import dataclass

from arrowstate.errors import InvalidInputError
from arrowstate_formats.integers import check_integer


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The column with the event time of a source's rows, and how much rows may be out of order.

    The watermark of a split is its highest event time less `out_of_order_ms`, less a millisecond. The watermark of the
    source is the lowest of its splits. This is Flink's `forBoundedOutOfOrderness`.

    Parameters
    ----------
    timestamp
        The column with the event time: a timestamp, or milliseconds since 1970. A null in it is an error of its row.
    out_of_order_ms
        By how many milliseconds of event time a row may come after a later one; 0 or more.
    idle_ms
        After how many milliseconds without rows a split no longer delays the watermark, at least 1; None for never.
    group
        Sources that name the same group wait for each other: see `max_drift_ms`.
    max_drift_ms
        How far the event time of a split may be ahead of the slowest source of its group before reading it pauses, in
        milliseconds, 0 or more.

    Examples
    --------
    >>> Watermarks("at", out_of_order_ms=10_000, idle_ms=60_000).timestamp
    'at'
    """

    timestamp: str
    out_of_order_ms: int = 0
    idle_ms: int | None = None
    group: str | None = None
    max_drift_ms: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out_of_order_ms", check_integer("out_of_order_ms", self.out_of_order_ms, 0))
        for name, least in (("idle_ms", 1), ("max_drift_ms", 0)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least, optional=True))
        if (self.group is None) != (self.max_drift_ms is None):
            raise InvalidInputError(
                f"group and max_drift_ms belong together, got {self.group!r} and {self.max_drift_ms!r}"
            )
