"""What a declaration of stateful operators must satisfy before a query starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.processing.batch_function import BatchFunction
from arrowstate.processing.process_function import KeyedProcessFunction
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.spark.operators.query import QueryOperator, uids_of

if TYPE_CHECKING:
    pass

__all__ = ["check_broadcasts", "check_operator", "check_uids", "text"]


def check_uids(operators: Sequence[QueryOperator]) -> None:
    names = [uid.lower() for uid in uids_of([item.plan for item in operators])]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"uids of operators and names of outputs must differ in more than case; {', '.join(twice)} is used twice"
        )


def check_operator(operator: Any, timestamp: str | None) -> None:
    if not isinstance(operator, BatchFunction | KeyedProcessFunction):
        raise InvalidInputError(
            f"operator must be a BatchFunction or a KeyedProcessFunction, got {operator!r}; make an instance of it"
        )
    if timestamp is not None and isinstance(operator, BatchFunction):
        raise InvalidInputError("timestamp is for a KeyedProcessFunction; a BatchFunction has the column in its batch")


def check_broadcasts(broadcast: Mapping[Any, Any]) -> None:
    for descriptor, frame in broadcast.items():
        if not isinstance(descriptor, BroadcastStateDescriptor):
            raise InvalidInputError(f"broadcast maps BroadcastStateDescriptor to DataFrame, got {descriptor!r}")
        if frame.isStreaming:
            raise InvalidInputError(f"broadcast state {descriptor.name!r} needs a static DataFrame, got a stream")


def text(key: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in key)
