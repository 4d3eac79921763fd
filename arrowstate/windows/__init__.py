"""Windows over keyed state: tumbling, sliding, session, count and global, in event time, a batch at a time."""

from arrowstate.windows.assigners import (
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from arrowstate.windows.assigning import WindowOutput
from arrowstate.windows.function import WindowFunction
from arrowstate.windows.operator import WindowOperator
from arrowstate.windows.triggers import Trigger

__all__ = [
    "WindowFunction",
    "WindowOperator",
    "WindowOutput",
    "Trigger",
    "TumblingEventTimeWindows",
    "SlidingEventTimeWindows",
    "EventTimeSessionWindows",
    "CountWindows",
    "GlobalWindows",
]
