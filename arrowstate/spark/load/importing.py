"""`import_state`: the state that a Spark query keeps in its own checkpoint becomes state of a store.

All states of an operator go through one shuffle, as rows in which the columns of the other states are null; all
operators become one checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce as fold
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from arrowstate.bootstrap.commit import FilledOperator
from arrowstate.bootstrap.plan import FillPlan
from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import TimeToLive
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.load.bootstrap import DEFAULT_BUDGET_BYTES, run_fills
from arrowstate.spark.load.planning import plan_fill
from arrowstate.spark.load.report import ImportedState, ImportReport
from arrowstate.spark.load.spark_checkpoints import (
    BatchLog,
    Part,
    StatefulOperator,
    Wishes,
    parts_of,
    stateful_operators,
)
from arrowstate.spark.routing import quoted
from arrowstate.spark.versions import IMPORTS, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["import_state"]

_POSITION = "position in all parts"


def import_state(
    spark: SparkSession,
    checkpoint_location: str | Path,
    *,
    store: str | Path,
    parallelism: int,
    max_parallelism: int | None = None,
    operator_id: int | None = None,
    uid: str | None = None,
    key: Sequence[str] | None = None,
    state: str | None = None,
    columns: Sequence[str] | None = None,
    reduce: str | Mapping[str, str] | None = None,
    time_to_live: Mapping[str, TimeToLive] | None = None,
    batch_id: int | None = None,
    overwrite: bool = False,
    memory_budget_bytes: int | None = DEFAULT_BUDGET_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Import the state of a Spark query from its checkpoint folder, and report what was imported and what was not.

    The state becomes one checkpoint of the store. Stop the query before the import; its folder is only read. Each
    stateful operator of the query becomes an operator of the store, with these states:

    ==========================================  ========================================================================
    aggregation                                 a value state `buffers`: a struct of Spark's aggregation buffers, which
                                                for sum, count, min and max are the results; with `reduce` a reducing
                                                state, which `keyed_sink` goes on with
    `dropDuplicates`                            a value state `seen`, true for each key
    `dropDuplicatesWithinWatermark`             a value state `expires_at`, a timestamp
    stream-stream join                          list states `left` and `right` of the rows, in their order, with a field
                                                `matched`, under the columns of the join condition
    `transformWithState`, in Python and Scala   each variable as a state of its name: value, list or map; timers as
                                                those of `backend.timers()`
    ==========================================  ========================================================================

    A struct in the key, such as the window of a windowed aggregation, becomes columns `window_start` and `window_end`.
    Spark stores when a row of a variable expires, but not how long rows live. So a variable whose rows expire needs an
    entry in `time_to_live`. Session windows, limits and arbitrary functions are left out, and so are columns of types
    that Arrow does not have.

    The offsets of the sources are not part of the state. Start the new query from the offsets in the report: a Kafka
    source takes them as `startingOffsets`, a file source must read the files that `sources` in the old folder does not
    list, and a Delta source begins at the `startingVersion` after the one in the report.

    Parameters
    ----------
    spark
        A session that can read the folder, with the packages of the state store provider it was written with.
    checkpoint_location
        The `checkpointLocation` of the query.
    store, parallelism, max_parallelism, overwrite, memory_budget_bytes, storage_options
        As in `bootstrap`; the options are for the store, and the folder of the query is read by Spark.
    operator_id
        The number that Spark gave to the stateful operator to import, from 0; all by default. If the query has several
        operators, `uid`, `key`, `state`, `columns` and `reduce` need it.
    uid
        The operator's name in the store; by default Spark's name and number, such as `stateStoreSave-0`.
    key
        New names for the key columns, all of them in their order.
    state
        A new name for the state of an aggregation or a deduplication.
    columns
        New names for the buffers of an aggregation, all of them in their order. By default Spark's, a number added
        where one occurs again: `count`, `sum`, `sum_2`.
    reduce
        By column the reducer that the buffers of an aggregation are results of. For an aggregation with one buffer it
        may be one name; the state then has a plain type. The checkpoint does not name the reducers, so you must know
        them.
    time_to_live
        By the name of a variable of `transformWithState`, how its rows expire.
    batch_id
        The micro-batch whose state is read, one that Spark still keeps; the last one committed by default.

    Returns
    -------
    ImportReport
        The operators and states that were imported with their numbers of rows, what was left out and why, and the
        offsets from which the new query starts.

    Raises
    ------
    InvalidInputError
        If there is no such operator or batch, or an argument does not fit the operators taken.
    FencedError, StorageError, UnsupportedStorageError
        As in `bootstrap`; nothing is committed then.

    Examples
    --------
    >>> from arrowstate.spark import import_state
    >>> def take_over(spark, folder):
    ...     report = import_state(
    ...         spark, f"{folder}/spark", store=f"{folder}/store", uid="counter", state="totals", parallelism=4,
    ...         columns=["n", "v"], reduce={"n": "count", "v": "sum"},
    ...     )
    ...     print(report)
    """
    require(IMPORTS)
    location = str(checkpoint_location)
    operators = stateful_operators(spark, location, operator_id, batch_id)
    if len(operators) > 1:
        given = {"uid": uid, "key": key, "state": state, "columns": columns, "reduce": reduce}
        named = [name for name, value in given.items() if value is not None]
        if named:
            raise InvalidInputError(
                f"{', '.join(named)} can be given for one operator, and the query has "
                f"{', '.join(f'{operator.id} ({operator.name})' for operator in operators)}; choose one by operator_id"
            )
    batch = operators[0].batch_id
    log = BatchLog.read(spark, location, batch)
    wishes = Wishes(key, state, columns, reduce, time_to_live or {})
    taken: list[tuple[StatefulOperator, list[Part], Observation]] = []
    fills: list[tuple[DataFrame, FillPlan, Sequence[str]]] = []
    for operator in operators:
        parts = parts_of(operator, wishes)
        if not parts:
            continue
        frame = _joined(parts)
        observation = Observation()
        null_key = fold(lambda left, right: left | right, (sf.col(quoted(name)).isNull() for name in parts[0].key))
        plan = plan_fill(
            FrameColumns.of(frame),
            store=store,
            uid=uid or f"{operator.name}-{operator.id}",
            key=parts[0].key,
            states=[part.descriptor for part in parts],
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            overwrite=overwrite,
            accumulators=True,
            updated_at=_named(parts, "updated"),
            value_columns={name: [column] for name, column in _named(parts, "value").items()},
            user_keys=_named(parts, "user_key"),
            memory_budget_bytes=memory_budget_bytes,
            watermark=log.watermark_ms,
            storage_options=storage_options,
        )
        # A key may be null in Spark, and not in a store.
        frame = frame.observe(observation, sf.count_if(null_key).alias("null_keys")).where(~null_key)
        taken.append((operator, parts, observation))
        fills.append((frame, plan, [_POSITION] if _POSITION in frame.columns else []))
    properties = {
        "imported_from_spark": {
            "checkpoint_location": location,
            "query_id": log.query_id,
            "batch_id": batch,
            "watermark_ms": log.watermark_ms,
            "offsets": list(log.offsets),
        }
    }
    entry, filled = run_fills(fills, lambda _: properties) if fills else (None, ())
    imported: list[ImportedState] = []
    for (operator, parts, observation), made in zip(taken, filled, strict=True):
        imported += [_imported(operator, part, made) for part in parts]
        null_keys = observation.get["null_keys"]
        if null_keys:
            operator.leave_out(
                ", ".join(part.source for part in parts),
                f"{null_keys:,} rows have a null in the key, which is no key here",
            )
    return ImportReport(
        checkpoint_location=location,
        query_id=log.query_id,
        batch_id=batch,
        watermark_ms=log.watermark_ms,
        offsets=log.offsets,
        store=fills[0][1].store if fills else str(store),
        checkpoint_id=None if entry is None else entry.checkpoint_id,
        imported=tuple(imported),
        left_out=tuple(item for operator in operators for item in operator.left_out),
    )


def _joined(parts: Sequence[Part]) -> DataFrame:
    """Return the rows of all parts; each has its own columns beside the key, null in the rows of the others."""
    frames = [
        # By place: a column of the key may be called `value` too, as Spark calls that of a line of text.
        part.frame.toDF(*part.key, *(_column(name, number) for name in part.frame.columns[len(part.key) :]))
        for number, part in enumerate(parts)
    ]
    return fold(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _named(parts: Sequence[Part], column: str) -> dict[str, str]:
    """By state, what a column of its part is called among those of all parts; of the states that have it."""
    return {
        part.descriptor.name: _column(column, number)
        for number, part in enumerate(parts)
        if column in part.frame.columns[len(part.key) :]
    }


def _column(name: str, number: int) -> str:
    # Positions order rows of one state each, so one column does for all of them.
    return _POSITION if name == "position" else f"{name} of part {number}"


def _imported(operator: StatefulOperator, part: Part, made: FilledOperator) -> ImportedState:
    descriptor = part.descriptor
    return ImportedState(
        operator_id=operator.id,
        operator_name=operator.name,
        source=part.source,
        uid=made.plan.uid,
        state=descriptor.name,
        kind=descriptor.kind,
        key=", ".join(f"{field.name} {field.type}" for field in made.plan.key_schema),
        type=str(descriptor.type),
        rows=sum(item.document.live_rows[descriptor.name] for item in made.subtasks),
    )
