"""Windows over keyed state: tumbling, sliding, session, count and global, in event time, a batch at a time."""

from arrowstate.functions.windows.assigners import (
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from arrowstate.functions.windows.assigning import WindowOutput
from arrowstate.functions.windows.function import WindowFunction
from arrowstate.functions.windows.operator import WindowOperator
from arrowstate.functions.windows.triggers import Trigger

__all__ = [
    "CountWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "SlidingEventTimeWindows",
    "Trigger",
    "TumblingEventTimeWindows",
    "WindowFunction",
    "WindowOperator",
    "WindowOutput",
]
