"""What a declaration of stateful operators must satisfy before a query starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError
from arrowstate.files.output_tables import BATCH_SUFFIX, OutputTable
from arrowstate.functions.batch_function import BatchFunction
from arrowstate.functions.process_function import KeyedProcessFunction
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.spark.operators.query import QueryOperator, uids_of
from arrowstate.spark.pyspark_internals import columns_of_ddl
from arrowstate.spark.schemas import arrow_type
from arrowstate_formats.names import check_operator_uid

__all__ = ["check_broadcasts", "check_operator", "check_uids", "output_table", "with_readers"]


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
    if operator.side_outputs:
        names = ", ".join(tag.name for tag in operator.side_outputs)
        raise InvalidInputError(
            f"{type(operator).__name__} has side outputs, {names}, and a query on Spark has none: emit these rows too, "
            "with a column that says which they are, or run the function in arrowstate.runtime"
        )
    if timestamp is not None and isinstance(operator, BatchFunction):
        raise InvalidInputError("timestamp is for a KeyedProcessFunction; a BatchFunction has the column in its batch")


def check_broadcasts(broadcast: Mapping[Any, Any]) -> None:
    for descriptor, frame in broadcast.items():
        if not isinstance(descriptor, BroadcastStateDescriptor):
            raise InvalidInputError(f"broadcast maps BroadcastStateDescriptor to DataFrame, got {descriptor!r}")
        if frame.isStreaming:
            raise InvalidInputError(f"broadcast state {descriptor.name!r} needs a static DataFrame, got a stream")


def output_table(uid: str, output: str | None, schema: str | StructType | None) -> OutputTable | None:
    """Return where the rows of an operator go, None if it emits none."""
    if schema is None:
        if output is not None:
            raise InvalidInputError(f"output {output!r} needs an output_schema, such as 'user string, total long'")
        return None
    if output is not None:
        check_operator_uid(output)
    columns = columns_of_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(columns, StructType) or not columns.fields:
        raise InvalidInputError(f"output_schema must have columns, such as 'user string, total long'; got {schema!r}")
    return OutputTable(
        uid=f"{uid}{BATCH_SUFFIX}" if output is None else output,
        columns=pa.schema([(item.name, arrow_type(item.dataType)) for item in columns.fields]),
        is_kept=output is not None,
    )


def with_readers(
    item: QueryOperator, operators: Sequence[QueryOperator], functions: Mapping[str, object]
) -> QueryOperator:
    """The operator, knowing whether what it emits is read by anybody; if not, it need not be stored."""
    uid, output = item.plan.uid, item.plan.output
    is_taken = uid in functions or any(uid in other.after for other in operators)
    return replace(item, plan=replace(item.plan, is_read=output is not None and (output.is_kept or is_taken)))
