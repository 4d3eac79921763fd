"""Which way a store is read: as a state, a change feed, an output table, an operator state or the store's history.

The options decide, so this is the one place where Spark's `load` branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.files.reading import find_operator
from arrowstate.spark.read.bases import DataSourceReader, DataSourceStreamReader
from arrowstate.spark.read.changes import ChangePlan
from arrowstate.spark.read.idle import IdlePlan
from arrowstate.spark.read.options import IDLE_OPTION, flag, open_checkpoint
from arrowstate.spark.read.outputs import OutputPlan
from arrowstate.spark.read.states import ReadPlan
from arrowstate.spark.read.tables import HistoryPlan, OperatorStatePlan

__all__ = ["Plan", "plan_from_options"]


class Plan(Protocol):
    """What is read, settled when it is loaded."""

    @property
    def schema(self) -> StructType:
        """The columns, as Spark sees them."""
        ...

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it as a table; `schema` may be one of the user's own, which is refused."""
        ...

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads it as a stream, or refuse."""
        ...


def plan_from_options(options: Mapping[str, str]) -> Plan:
    """Return what the options of a read ask for.

    Raises
    ------
    InvalidInputError
        If an option is missing, unknown, or has no meaning beside the others.
    NotFoundError
        If there is no such store, checkpoint, operator, state or output table; the message lists the existing ones.
    """
    if options.get("table") is not None:
        return HistoryPlan.from_options(options)
    if flag(options, IDLE_OPTION):
        return IdlePlan.from_options(options)
    if options.get("output") is not None:
        return OutputPlan.from_options(options)
    if flag(options, "readChangeFeed"):
        return ChangePlan.from_options(options)
    return _state_plan(options)


def _state_plan(options: Mapping[str, str]) -> Plan:
    """Return the plan for a keyed state, or for an operator state of this name."""
    uid = options.get("operator")
    if not uid or not options.get("path"):
        return ReadPlan.from_options(options)
    _, entry = open_checkpoint(options)
    operator = find_operator(entry, uid)
    keyed = [state.name for state in operator.states]
    names = [*keyed, *(state.name for state in operator.operator_states)]
    name = options.get("state")
    if not name:
        if len(names) != 1:
            raise InvalidInputError(
                f"the option 'state' is missing; operator {uid!r} has {', '.join(names) or 'no states'}"
            )
        name = names[0]
    if name not in names:
        raise StateNotFoundError(name, names, uid, entry.checkpoint_id)
    return ReadPlan.from_options(options) if name in keyed else OperatorStatePlan.from_options(options, name)
