"""What the driver decides once and every task of a sink follows: where in the rows each state has its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.layout import descriptor_of
from arrowstate.spark.task import TaskPlan
from arrowstate_formats.schema_documents import StateDocument

__all__ = ["SinkPlan", "StateInput"]


@dataclass(frozen=True, kw_only=True)
class StateInput:
    """One state of the sink, and where in the rows its values are."""

    state: StateDocument
    columns: Sequence[int]
    """Per value column of the state, the number of the column in the rows that reach the sink."""
    namespace: Sequence[int] = ()
    """Those of the namespace columns."""
    user_key: int | None = None
    """That of the user key of a map."""
    order: Sequence[StateDocument] = ()
    """The states that keep the sequences of its changes; none where late changes count."""

    @property
    def descriptor(self) -> StateDescriptor:
        return descriptor_of(self.state)


@dataclass(frozen=True, kw_only=True)
class SinkPlan(TaskPlan):
    """What a keyed sink does with each micro-batch."""

    names: Sequence[str]
    """The columns of the rows, for messages; those of the key are the first of them, in their order."""
    states: Sequence[StateInput]
    sequence: Sequence[int] = ()
    """The columns that order the rows of a key; none where order does not matter, or there is none."""
    operation: int | None = None
    """The column that says whether a row is added or removed; None if all rows are added."""
    timestamp: int | None = None
    """The column with the event time of each row, None where no state needs one."""
    watermark_delay_ms: int = 0
    """How far the watermark is behind the highest event time."""
    dropped: Sequence[str] = ()
    """Stored states that may go; one that neither this names nor `states` has come since the plan, and stays."""
    row: Sequence[int] = ()
    """The columns of a row that is set aside, in the order of the table `dead_letters`."""
