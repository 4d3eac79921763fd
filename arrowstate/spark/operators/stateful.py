"""`stateful`: a function with keyed state over a stream, each micro-batch exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from arrowstate.errors import InvalidInputError
from arrowstate.functions.dead_letters import dead_letter_table, dead_letters_name
from arrowstate.publish.publication import Publish, check_publish, open_publisher
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.memory import TaskMemory
from arrowstate.spark.opening import Asked
from arrowstate.spark.operators.declaring import check_broadcasts, check_operator, check_uids, output_table
from arrowstate.spark.operators.query import QueryOperator, stream_of
from arrowstate.spark.operators.stream import StatefulStream
from arrowstate.spark.operators.task import Operator, OperatorPlan, run_subtask
from arrowstate.spark.schemas import arrow_type, spark_schema, spark_type
from arrowstate.upkeep.beside import check_retention
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["stateful"]


def stateful(
    stream: DataFrame | StatefulStream,
    *,
    key: Sequence[str],
    operator: Operator,
    uid: str,
    store: str | Path,
    parallelism: int,
    max_parallelism: int | None = None,
    output_schema: str | StructType | None = None,
    output: str | None = None,
    order_by: Sequence[str] = (),
    timestamp: str | None = None,
    broadcast: Mapping[BroadcastStateDescriptor, DataFrame] | None = None,
    on_error: Literal["fail", "dead_letter"] = "fail",
    dead_letters: str | None = None,
    retention: RetentionPolicy | None = DEFAULT_RETENTION,
    publish: Publish | str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory_budget_bytes: int | Literal["auto"] | None = "auto",
    spill_dir: str | Path | None = None,
) -> StatefulStream:
    """Run a function with keyed state over a stream, each micro-batch exactly once.

    Every micro-batch becomes one checkpoint of the store, which has the state, the timers and the output of all
    operators of the query. A query that is started again with its Spark checkpoint folder goes on from the store, at
    any parallelism and any max parallelism. In a micro-batch an operator first gets the watermark of the earlier
    micro-batches, and event-time timers that are due fire; then processing-time timers that are due fire; then it gets
    the rows. Spark starts no micro-batch without new rows, so timers fire with the next rows.

    On Spark Connect the driver of the query is a process of the server: operators and functions are pickled when the
    query starts and run there, and the writer needs the option `checkpointLocation`. The client and the server must
    both see the store, and the Python of the server must have arrowstate.

    Parameters
    ----------
    stream
        A streaming DataFrame, with `withWatermark` if event time is used; or the stream of another operator.
    key
        The key columns. A null in one of them is an error of its row.
    operator
        A `BatchFunction` or a `KeyedProcessFunction`. It is pickled: each task of each micro-batch has a copy, of which
        only the state is kept.
    uid
        The operator's name in the store, the same at every start.
    store
        The path or URL of the store, which every worker must see; made if there is none. It belongs to this query
        alone, and has all operators of the query.
    parallelism
        The number of subtasks, which is the number of tasks of a micro-batch; 1 to `max_parallelism`.
    max_parallelism
        The number of key groups, up to 32768. By default that of the store; in a new store 128, or more at a
        parallelism above 85.
    output_schema
        The columns that the operator emits, as DDL or as a Spark schema. A `KeyedProcessFunction` emits plain values
        if there is one column, else tuples or mappings. Rows that no table, function or operator takes are not stored.
    output
        The name of a table in the store that keeps the emitted rows, each exactly once; read it with
        `spark.readStream.format("arrowstate").option("output", name)`. It is an operator uid in the store, so it must
        differ from the uids of operators.
    order_by
        Columns by which the rows of a subtask are sorted before they are processed, nulls last; without it they come
        in any order, because Spark shuffles them.
    timestamp
        The column with the event time of a row, for a `KeyedProcessFunction`: a timestamp or milliseconds since 1970.
    broadcast
        By descriptor of a broadcast state, a static DataFrame with two columns, key and value. It is read when the
        query is started, and is part of each checkpoint.
    on_error
        What happens to rows that the operator cannot process: their key or timestamp is null, the function raises on
        them, or a value that it writes or emits does not fit. `fail`, the default, ends the query. `dead_letter` sends
        them to an output table, each exactly once, and the state is as if they had never come: for a
        `KeyedProcessFunction` the row, for a `BatchFunction` all rows of the key in the micro-batch. The function is
        called again without them, so it must not count calls in attributes. An exception in `open`, at a watermark or
        in a timer still ends the query.
    dead_letters
        The name of that output table, by default the uid with `_dead_letters`. Its columns are `reason`, `error` (the
        class), `batch_id`, `key` and `row`, the latter structs of the key columns and of all columns.
    retention
        Which checkpoints stay: by default the newest 10, and the newest of each of the last 24 hours, and always
        savepoints and checkpoints with a tag or a lease. None keeps all. The others are deleted beside the query, as by
        `StateStore.collect` with its grace period of a day, after commits and one collection at a time. No commit waits
        for it, and a collection that fails is logged as a warning; `files_collected` and `collections_failed` in the
        progress count files and failures. Operators of one query must name the same, or leave it at the default.
    publish
        Where each micro-batch is published as open tables, see `StateStore.publish`: a folder or URL, or an
        `arrowstate.Publish`. It is done beside the query by the process that commits, no commit waits for it, and a
        publication that fails is logged as a warning. None publishes nothing. Operators of one query must
        name the same, or none.
    storage_options
        As for `arrowstate.open_store`.
    memory_budget_bytes
        How many bytes of its state each task holds in memory; the rest goes to mapped local files, which are deleted in
        the end. `auto`, the default, is half of the memory of an executor divided by the tasks that it
        runs at once: `spark.executor.pyspark.memory`, or if that is not set `spark.executor.memory`
        (`spark.driver.memory` with a local master); by the cores of `spark.executor.cores`, of `local[n]`, or of this
        machine for a standalone cluster that names none, over `spark.task.cpus`. None for no limit. What
        a write makes is looked at by the next one; the rows of a micro-batch, and the files of a checkpoint, which are
        mapped, do not count.
    spill_dir
        The folder of these files on the machine of a task. By default the one beside the cache of a bucket's files (see
        `cache_dir`) that ends with `-spill`, else those of Spark (`SPARK_LOCAL_DIRS`), else the system's temporary
        folder, whichever comes first that can be written and is not in memory, which a tmpfs is. If there is none,
        nothing is spilled, and a line in the log says so (INFO, once in a process), as where `spill_dir` is in memory.

    Returns
    -------
    StatefulStream
        `foreach_batch(function)` and `write_stream()` return a `DataStreamWriter`; `transform` and `union` lead to
        further operators.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, a column is missing, or `stream` is no stream.
    KeyTypeError
        If a key column has another type than the store's key; a narrower number is widened.
    IncompatibleStateError
        If the store has an output, or dead letters, of this name with other columns.
    UnsupportedStorageError
        If the store cannot be shared with Spark's workers.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.spark import stateful
    >>> class Totals(arrowstate.BatchFunction):
    ...     def open(self, context):
    ...         self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    ...
    ...     def process_batch(self, batch, context):
    ...         self.total.add_batch(batch["user"], batch["amount"])
    ...         users = batch["user"].unique()
    ...         return pa.record_batch({"user": users, "total": self.total.get_batch(users)})
    >>> def start(stream, folder):
    ...     totals = stateful(
    ...         stream,
    ...         key=["user"],
    ...         operator=Totals(),
    ...         uid="totals",
    ...         store=f"{folder}/store",
    ...         parallelism=4,
    ...         output_schema="user string, total long",
    ...     )
    ...     writer = totals.foreach_batch(lambda frame, batch_id: frame.show())
    ...     return writer.option("checkpointLocation", f"{folder}/spark").start()
    """
    if isinstance(stream, StatefulStream):
        before, source, schema = stream, stream.source, stream.columns()
    else:
        before, source, schema = None, stream, stream.schema
    if not source.isStreaming:
        raise InvalidInputError(
            "stateful needs a streaming DataFrame, made by spark.readStream; this one is static: process it with "
            "BatchRunner or KeyedProcessRunner, or stream it from files"
        )
    check_operator(operator, timestamp)
    table = output_table(uid, output, output_schema)
    types = {column.name: column.dataType for column in schema}
    if len(types) < len(schema):
        raise InvalidInputError(f"the columns of a stream must have different names, got {', '.join(schema.names)}")
    columns = FrameColumns(schema, "stream", case_sensitive=True)
    asked = Asked.of(columns, store=store, uid=uid, key=key, parallelism=parallelism, max_parallelism=max_parallelism)
    for name in [*order_by, *([timestamp] if timestamp is not None else [])]:
        columns.field(name)
    check_broadcasts(broadcast or {})
    given = pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])
    check_retention(retention)
    asked_tables = check_publish(publish)
    memory = TaskMemory.asked(source.sparkSession, memory_budget_bytes, spill_dir)
    dead_name = dead_letters_name(uid, on_error, dead_letters)
    opened = asked.open(storage_options)
    if asked_tables is not None:
        # A place that cannot be is refused now rather than logged after each commit.
        open_publisher(opened.storage, "", asked_tables)
    if before is not None and before.store != opened.url:
        raise InvalidInputError(
            f"the operators of a query share one store, so that one log entry has all of them; {uid!r} is in "
            f"{opened.url}, the one before it in {before.store}"
        )
    for item in opened.key_schema:
        given = given.set(given.get_field_index(item.name), pa.field(item.name, item.type))
    dead = None if dead_name is None else dead_letter_table(dead_name, opened.key_schema, given)
    for output_of in (table, dead):
        if output_of is not None and opened.checkpoint is not None:
            output_of.parts_before(opened.storage, opened.checkpoint.operators)
    plan = OperatorPlan(
        store=opened.url,
        uid=uid,
        key=opened.key,
        parallelism=opened.parallelism,
        max_parallelism=opened.max_parallelism,
        operator=operator,
        columns=given,
        output=table,
        order_by=tuple(order_by),
        timestamp=timestamp,
        storage_options=storage_options,
        dead_letters=dead,
        retention=retention,
        publish=asked_tables,
        memory=memory,
    )
    node = QueryOperator(
        plan,
        run_subtask,
        stream_of if before is None else before.frame,
        [(name, _cast(kind, spark_type(given.field(name).type))) for name, kind in types.items()],
        dict(broadcast or {}),
        frozenset(() if before is None else [item.plan.uid for item in before.operators]),
    )
    operators = (*(() if before is None else before.operators), node)
    check_uids(operators)
    return StatefulStream(
        source,
        operators,
        lambda frames: frames.emitted[uid](),
        None if table is None else spark_schema(table.columns),
        uid,
        opened.url,
    )


def _cast(given: DataType, wanted: DataType) -> str | None:
    """The type to cast a column to, None if it has it."""
    return None if given.simpleString() == wanted.simpleString() else wanted.simpleString()
