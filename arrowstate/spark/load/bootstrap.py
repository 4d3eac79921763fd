"""`bootstrap`: a table becomes the state that a job or a query starts from.

Spark sends each row to the task of its subtask, as in a micro-batch, and each task writes the state of one range
of key groups. The commit is in the driver: one checkpoint, whatever was tried again on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf

from arrowstate.bootstrap.commit import FilledOperator, commit_filled
from arrowstate.bootstrap.plan import FillPlan
from arrowstate.checkpoints.handles import SubtaskHandle
from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.files.savepoint import check_savepoint, open_savepoint_place
from arrowstate.log.entries import given_properties
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.load.filling import fill_subtask
from arrowstate.spark.load.planning import plan_fill
from arrowstate.spark.routing import quoted, run_tasks
from arrowstate.spark.schemas import spark_type
from arrowstate.spark.task import delete_files_named
from arrowstate.store import Snapshot, open_store
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.names import check_savepoint_name
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DEFAULT_BUDGET_BYTES", "bootstrap", "run_fills"]

DEFAULT_BUDGET_BYTES = 256 << 20
"""What a task holds of the state it makes in memory; the rest is in mapped local files."""


def bootstrap(
    frame: DataFrame,
    *,
    store: str | Path,
    uid: str,
    key: Sequence[str],
    states: Sequence[StateDescriptor],
    parallelism: int,
    max_parallelism: int | None = None,
    overwrite: bool = False,
    accumulators: bool = False,
    updated_at: str | None = None,
    order_by: Sequence[str] = (),
    watermark: int | None = None,
    savepoint: str | Path | None = None,
    format: RunFormat = "arrow",
    memory_budget_bytes: int | None = DEFAULT_BUDGET_BYTES,
    properties: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Make keyed states from a table and commit them as one checkpoint, exactly once whatever Spark tries again.

    A job restores from the checkpoint as from any other; a query of `keyed_sink` or `stateful` that has no Spark
    checkpoint folder yet starts from it. Other operators and states of the store stay. Other writers of the store are
    fenced.

    The values of a state come from the column with its name. For a struct type they may also come from the columns
    that are named after its fields:

    ===========  ===========================================================================================
    kind         what a row has
    ===========  ===========================================================================================
    value        the value of its key; a second row of a key is refused
    reducing     a value to fold in; with `accumulators`, what is stored for its key, once
    aggregating  a value to add; with `accumulators`, what is stored for its key, once
    list         one element; or an array with some of the key's elements, in their order
    map          one entry, with its user key in the column `<state>_key`; or a map with some of the key's entries;
                 a second row of an entry is refused
    timer        the `timestamp`; a state for each clock, `timers_event_time` for example
    ===========  ===========================================================================================

    A row with null there adds nothing to the state, except that an entry of a map may have the value null. Namespaces
    are columns with their names. Rows of one key have no order unless `order_by` gives them one.

    Parameters
    ----------
    frame
        A static DataFrame. Only the columns named here are used.
    store
        Where the store is, a path that every worker sees; made if there is none.
    uid
        The operator's name in the store; a new one, or one that has the same key.
    key
        The key columns. A null in one of them is refused.
    states
        The states to make, with the descriptors that the job uses.
    parallelism
        The number of subtasks, which is the number of tasks; 1 to `max_parallelism`. A job may restore at any other.
    max_parallelism
        The number of key groups, up to 32768. By default that of the operator in the store; for a new one 128, or
        more at a parallelism above 85.
    overwrite
        Replace states of these names that the operator has. They are refused otherwise.
    accumulators
        The rows have the stored values of reducing and aggregating states, such as a count, not values to add.
    updated_at
        For states with a time to live: the column with the time a row was last updated, a timestamp or milliseconds.
        Without it, and where it is null, rows count as updated now; a state that expires by event time needs it.
    order_by
        Columns by which the rows of each subtask are sorted before they are written, for lists and for the reducers
        `first` and `last`.
    watermark
        The event time, in milliseconds since 1970, up to which the state is complete.
    savepoint
        Also write the checkpoint as a savepoint, in Parquet: a name, or a path or URL (with a `/`).
    format
        The format of the run files.
    memory_budget_bytes
        How much of its state each task holds in memory; the rest is in mapped local files. None for no limit.
    properties
        JSON values kept in the checkpoint, for instance where the table comes from.
    storage_options
        As for `arrowstate.open_store`, for the driver and the tasks; what is left out comes from the environment of
        each process.

    Returns
    -------
    Snapshot
        The checkpoint, or the savepoint if there is to be one.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, a column is missing, a state exists already, or a key has two rows where it
        may have one; nothing is committed then, nor after any other error.
    NullKeyError, ValueOverflowError
        If a row does not fit.
    KeyTypeError, ValueTypeError
        If a column has another type than the store's key or the state; a narrower number is widened.
    FencedError
        If another writer committed to the store meanwhile.
    UnsupportedStorageError
        If the store cannot be shared with Spark's workers.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.spark import bootstrap
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> def start_from_history(spark, folder):
    ...     history = spark.read.parquet(f"{folder}/history").groupBy("user").agg({"n": "sum"})
    ...     return bootstrap(
    ...         history.toDF("user", "clicks"), store=f"{folder}/store", uid="counter", key=["user"], states=[clicks],
    ...         parallelism=4,
    ...     )
    """
    if frame.isStreaming:
        raise InvalidInputError(
            "bootstrap needs a static DataFrame, made by spark.read; this one is a stream: fold it with keyed_sink"
        )
    if savepoint is not None and "/" not in str(savepoint):
        check_savepoint_name(str(savepoint))
    plan = plan_fill(
        FrameColumns.of(frame),
        store=store,
        uid=uid,
        key=key,
        states=states,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        overwrite=overwrite,
        accumulators=accumulators,
        updated_at=updated_at,
        format=format,
        memory_budget_bytes=memory_budget_bytes,
        watermark=watermark,
        storage_options=storage_options,
    )
    made = open_store(plan.store, storage_options=storage_options)
    if savepoint is not None:
        # Once the checkpoint is committed it is too late to refuse the place.
        check_savepoint(open_savepoint_place(made.storage, savepoint, create=True), "parquet")
    noted = given_properties(properties)
    entry, _ = run_fills([(frame, plan, order_by)], lambda _: noted)
    return made.snapshot_of(entry) if savepoint is None else made.savepoint(savepoint, checkpoint=entry.checkpoint_id)


def run_fills(
    fills: Sequence[tuple[DataFrame, FillPlan, Sequence[str]]],
    properties: Callable[[Sequence[FilledOperator]], Mapping[str, Any]],
) -> tuple[LogEntryDocument, Sequence[FilledOperator]]:
    """Run the jobs of operators, each with its frame and the columns to sort by, and commit them as one checkpoint.

    `properties` is asked when all is written. After an error nothing is committed and no file is left, but what a
    task wrote that Spark has not told of yet.
    """
    storage = fills[0][1].open()

    def fill() -> list[FilledOperator]:
        return [FilledOperator(plan, _run(frame, plan, order_by)) for frame, plan, order_by in fills]

    def abandon() -> None:
        for _, plan, _ in fills:
            delete_files_named(storage, [plan.uid], plan.job)

    return commit_filled(storage, fill, properties, abandon=abandon, new_id=new_id, clock_ms=now_ms)


def _run(frame: DataFrame, plan: FillPlan, order_by: Sequence[str]) -> list[SubtaskHandle]:
    """Fill the subtasks of an operator, each in its task."""
    if isinstance(order_by, str):
        raise InvalidInputError(f"order_by must be a list of columns, got {order_by!r}")
    columns = FrameColumns.of(frame)
    taken = {
        name: sf.col(quoted(name)).cast(spark_type(field.type))
        for name, field in zip(plan.key_columns, plan.key_schema, strict=True)
    }
    for name in (*plan.columns, *map(columns.name_of, order_by)):
        taken.setdefault(name, sf.col(quoted(name)))
    sorting = [columns.name_of(name) for name in order_by]
    done = run_tasks(frame, taken, plan.key_columns, plan, _task(plan, list(taken)), order_by=sorting)
    return sorted(done, key=lambda handle: handle.subtask)


def _task(
    plan: FillPlan, names: list[str]
) -> Callable[[int, Iterator[pa.RecordBatch]], SubtaskHandle | InvalidInputError]:
    """Return what a task does with its rows, of columns in this order."""

    def fill(subtask: int, rows: Iterator[pa.RecordBatch]) -> SubtaskHandle | InvalidInputError:
        try:
            return fill_subtask(plan, subtask, (batch.rename_columns(names) for batch in rows), new_id)
        except InvalidInputError as error:
            return error

    return fill
