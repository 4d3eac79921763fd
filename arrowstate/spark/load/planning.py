"""Planning a fill of Spark: which columns of a frame are the key and the content of each state.

Columns are found as Spark finds them. Everything that can be refused before a job runs is refused here, and what does
not depend on the store before one is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arrowstate.bootstrap.plan import FillPlan
from arrowstate.bootstrap.planning import AskedStates, plan_of
from arrowstate.clock import new_id, now_ms
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.memory import TaskMemory
from arrowstate.spark.opening import Asked
from arrowstate_formats.run_files import RunFormat

__all__ = ["plan_fill"]


def plan_fill(
    columns: FrameColumns,
    *,
    store: str | Path,
    uid: str,
    key: Sequence[str],
    states: Sequence[StateDescriptor],
    parallelism: int | None,
    max_parallelism: int | None,
    overwrite: bool,
    accumulators: bool = False,
    updated_at: str | Mapping[str, str] | None = None,
    value_columns: Mapping[str, Sequence[str]] | None = None,
    user_keys: Mapping[str, str] | None = None,
    format: RunFormat = "arrow",
    memory_budget_bytes: int | None = None,
    watermark: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FillPlan:
    """Settle how a table fills states of an operator.

    Parameters
    ----------
    columns
        Those of the table.
    parallelism
        The number of subtasks; by default that of the operator in the store, and 1 where there is none.
    updated_at, value_columns, user_keys
        As for `AskedStates`.

    The others are those of `arrowstate.spark.bootstrap`.

    Raises
    ------
    InvalidInputError, KeyTypeError, ValueTypeError, UnsupportedStorageError
        As `bootstrap` says.
    """
    asked = Asked.of(
        columns,
        store=store,
        uid=uid,
        key=key,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        optional=True,
    )
    wanted = AskedStates(
        states,
        overwrite=overwrite,
        accumulators=accumulators,
        updated_at=updated_at,
        value_columns=value_columns or {},
        user_keys=user_keys or {},
    )
    wanted.fills(columns, asked.key)
    return plan_of(
        asked.open(storage_options),
        wanted,
        columns,
        uid=uid,
        key_columns=key,
        new_id=new_id,
        now_ms=now_ms(),
        watermark=watermark,
        format=format,
        memory=TaskMemory(memory_budget_bytes),
        storage_options=storage_options,
    )
