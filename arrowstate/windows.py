"""Windows over keyed state: tumbling, sliding and session, by event time or processing time, count and global."""

from arrowstate.functions.windows.assigners import (
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from arrowstate.functions.windows.assigning import WindowOutput
from arrowstate.functions.windows.function import WindowFunction
from arrowstate.functions.windows.operator import WindowOperator
from arrowstate.functions.windows.triggers import Trigger

__all__ = [
    "CountWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "ProcessingTimeSessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Trigger",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowFunction",
    "WindowOperator",
    "WindowOutput",
]
