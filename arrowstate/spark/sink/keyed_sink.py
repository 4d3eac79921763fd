"""`keyed_sink`: a stream of rows folded into keyed states, each micro-batch exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arrowstate.clock import new_id
from arrowstate.errors import InvalidInputError
from arrowstate.functions.dead_letters import dead_letters_name
from arrowstate.publish.publication import Publish, check_publish, open_publisher
from arrowstate.schema.descriptors import StateDescriptor, TimeToLive
from arrowstate.schema.layout import key_documents
from arrowstate.schema.versions import evolve_state
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.commit import check_alone, check_no_operator_state
from arrowstate.spark.memory import TaskMemory
from arrowstate.spark.opening import Asked
from arrowstate.spark.operators.clocks import clock_of
from arrowstate.spark.operators.query import QueryOperator, StatefulQuery, stream_of
from arrowstate.spark.places import storage_options_text
from arrowstate.spark.schemas import spark_type
from arrowstate.spark.sink.columns import StreamColumns
from arrowstate.spark.sink.inputs import Inputs
from arrowstate.spark.sink.plan import SinkPlan
from arrowstate.spark.sink.task import fold_micro_batch
from arrowstate.spark.source import register_if_possible
from arrowstate.spark.stream_writer import QueryStart, writer_of
from arrowstate.telemetry.records import Listener
from arrowstate.upkeep.beside import check_retention
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.schema_documents import StateDocument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["keyed_sink"]


def keyed_sink(
    stream: DataFrame,
    *,
    store: str | Path,
    uid: str,
    key: Sequence[str],
    states: Sequence[StateDescriptor],
    parallelism: int,
    max_parallelism: int | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    sequence: str | Sequence[str] | None = None,
    late_changes: Literal["ignore", "apply"] = "ignore",
    tombstone_ttl: TimeToLive | None = None,
    operation: str | None = None,
    timestamp: str | None = None,
    on_error: Literal["fail", "dead_letter"] = "fail",
    dead_letters: str | None = None,
    allow_non_restored_state: bool = False,
    on_checkpoint: Listener | None = None,
    retention: RetentionPolicy | None = DEFAULT_RETENTION,
    publish: Publish | str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory_budget_bytes: int | Literal["auto"] | None = "auto",
    spill_dir: str | Path | None = None,
) -> DataStreamWriter:
    """Return a writer that adds a stream to keyed states, each micro-batch exactly once.

    Every micro-batch becomes one checkpoint of the store. A query that is started again with its Spark checkpoint
    folder goes on from the store, at any parallelism and any max parallelism; its last micro-batch, which Spark may
    repeat, counts once. Micro-batches are added in their order. Rows of one key within a micro-batch have no order,
    because Spark shuffles them, unless `sequence` gives them one: without it value and map states and the reducers
    `first` and `last` keep any of them, and a list gets them in any order.

    Parameters
    ----------
    stream
        A streaming DataFrame. Only the columns named here are used.
    store
        The path or URL of the store, which every worker must see; made if there is none. It belongs to this sink alone.
    uid
        The operator's name in the store, the same at every start.
    key
        The key columns. A null in one of them is an error of its row.
    states
        Value, reducing, aggregating, list and map states; reducers and aggregates are built-in ones. What a row
        does to a state:

        - value: sets it; a null clears it.
        - reducing, aggregating: adds to it; a null changes nothing. A counted column may have any type.
        - list: appends an element; a null appends nothing.
        - map: sets the entry of its user key, which must not be null; a null is a value.

        A value of a struct type is null if all its fields are. Namespace columns are columns of the stream with
        their names, and null in none. A time to live by processing time is measured by the time of the
        micro-batch.
    parallelism
        The number of subtasks, which is the number of tasks of a micro-batch; 1 to `max_parallelism`.
    max_parallelism
        The number of key groups, up to 32768. By default that of the store; in a new store 128, or more at a
        parallelism above 85.
    columns
        By the name of a state, the columns of its values: one for a plain type; for a struct one per field, or one
        struct column with these fields; for a map first the column of its user keys. By default the columns are named
        as in the table of the state: after the state, or after the fields of a struct (`<state>_<field>` if a key
        column has the name of the field) or one struct column named after the state; for a map also `<state>_key`.
    sequence
        The column, or columns, that order the rows of a key: numbers, dates, timestamps or strings, none null. Rows
        with equal values have no order within a micro-batch; a later micro-batch comes after an earlier one.
    late_changes
        What a row does to a value, or to an entry of a map, that a row with a higher sequence has already set, in any
        micro-batch and run. With `ignore`, the default, it does nothing. For this the highest sequence of each value or
        entry is kept in a state `<state>_sequence`, and that of removed or cleared ones in `<state>_removed`, both with
        the key, the namespace and the user key of the state. A store without these states is continued; its rows count
        as older than all new ones. `apply` keeps no sequences: `sequence` then orders only the rows of a micro-batch.
        It is for streams whose changes of a key come in their order. Other kinds of state count all rows.
    tombstone_ttl
        How long the sequence of a removed value is kept, by either clock; for ever by default. After this time a late
        change counts as a new one. A value that expires is forgotten with its sequence.
    operation
        The string column that says what a row of a stream of changes does: `+I`, `-U`, `+U`, `-D` (Flink); `c`, `r`,
        `u`, `d` (Debezium); `insert`, `update_preimage`, `update_postimage`, `delete` (Spark, Delta). Value and map
        states then need a `sequence` of the changes, such as a commit version or the offset in a log: inserts and
        post-images set, deletes and pre-images remove, and at equal sequences removals come first. Sums, counts and
        means subtract the values of deletes and pre-images, which must have them, in any order; if the state has a
        count, as a mean has, a key whose counts and sums are all zero is removed. No other state is allowed. `u` has no
        old row, so sums, counts and means cannot use it, and it must not change a key or a user key. A row with any
        other value does not fit.
    timestamp
        The column with the event time of each row, a timestamp or whole milliseconds, for states that expire by event
        time; none may be null. Event time is the highest timestamp of the earlier micro-batches, less the delay of
        `withWatermark` if the stream has one on this column.
    on_error
        What happens to rows that cannot be added: a null in a column of the key, the sequence, the timestamp, a
        namespace or a user key, an unknown operation, a value too large for its state, a sum that would overflow.
        `fail`, the default, ends the query, and nothing of its micro-batch is kept. `dead_letter` sends them to an
        output table, each exactly once, and no state has anything of such a row. All columns of the stream are then
        sent to the tasks. A row that overflows is found by trying its micro-batch in parts.
    dead_letters
        The name of that output table, by default the uid with `_dead_letters`. Its columns are `reason`, `error` (the
        class), `batch_id`, `key` and `row`, the latter structs of the key columns and of all columns of the stream.
        Dead letters stay in the store, also when the query goes on without the option.
    allow_non_restored_state
        Drop states of the store that are not in `states`. Without it they are refused, because a state that a run
        leaves out would lack the rows of that run for ever.
    on_checkpoint
        Called once for each micro-batch that was committed, or could not be, with an
        `arrowstate.telemetry.OperationRecord`; in the driver, which on Spark Connect is a process of the server. What
        it raises is logged, and changes nothing.
    retention
        Which checkpoints stay: by default the newest 10, and the newest of each of the last 24 hours, and always
        savepoints and checkpoints with a tag or a lease. None keeps all. The others are deleted beside the query, as by
        `StateStore.collect` with its grace period of a day, after commits and one collection at a time. No commit waits
        for it, and a collection that fails is logged as a warning; `files_collected` and `collections_failed` in the
        progress count files and failures.
    publish
        Where each micro-batch is published as open tables, see `StateStore.publish`: a folder or URL, or an
        `arrowstate.Publish`. It is done beside the query by the process that commits, no commit waits for it, and a
        publication that fails is logged as a warning. None publishes nothing.
    storage_options
        As for `arrowstate.open_store`, of values that JSON has; what is left out comes from the environment of each
        process. Spark's plans and logs do not print them.
    memory_budget_bytes, spill_dir
        As for `arrowstate.spark.stateful`.

    Returns
    -------
    DataStreamWriter
        Add `.option("checkpointLocation", ...)` and, if wanted, `.trigger(...)`, then `.start()`. The query has what
        each micro-batch took in its progress, under `observedMetrics["arrowstate"]`; see `progress`.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, a column is missing, `stream` is no stream, a state cannot follow a stream of
        changes, or the store holds the state of other operators, or states that are left out. When it is started: if
        the output mode is complete, or on Spark Connect there is no option `checkpointLocation`, or `on_checkpoint`
        cannot be pickled.
    KeyTypeError, ValueTypeError
        If a column has another type than the store's key or the state; a narrower number is widened.
    IncompatibleStateError
        If the store has a state of this name with another kind, type or reducer, or dead letters with other columns.
    UnsupportedStorageError
        If the store cannot be shared with Spark's workers.
    MissingDependencyError
        If an aggregate needs a package that is not installed.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.spark import keyed_sink
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="count")
    >>> pages = arrowstate.MapStateDescriptor("pages", pa.string(), pa.timestamp("us", tz="UTC"))
    >>> def start(stream, folder):
    ...     sink = keyed_sink(
    ...         stream,
    ...         store=f"{folder}/store",
    ...         uid="counter",
    ...         key=["user"],
    ...         states=[clicks, pages],
    ...         columns={"clicks": "url", "pages": ["url", "at"]},
    ...         sequence="at",
    ...         parallelism=4,
    ...     )
    ...     return sink.option("checkpointLocation", f"{folder}/spark").start()

    A table by its primary key, from the change feed of a Delta table:

    >>> city = arrowstate.ValueStateDescriptor("city", pa.string())
    >>> def follow(feed, folder):
    ...     sink = keyed_sink(
    ...         feed,
    ...         store=f"{folder}/store",
    ...         uid="users",
    ...         key=["user"],
    ...         states=[city],
    ...         operation="_change_type",
    ...         sequence="_commit_version",
    ...         parallelism=4,
    ...     )
    ...     return sink.option("checkpointLocation", f"{folder}/spark").start()
    """
    if not stream.isStreaming:
        raise InvalidInputError(
            "keyed_sink needs a streaming DataFrame, made by spark.readStream; this one is static: write it with "
            "bootstrap, or stream it from files"
        )
    asked = Asked.of(
        FrameColumns.of(stream),
        store=store,
        uid=uid,
        key=key,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    aside = dead_letters_name(uid, on_error, dead_letters)
    inputs = Inputs(
        states,
        columns or {},
        [sequence] if isinstance(sequence, str) else sequence,
        operation,
        timestamp,
        aside,
        late_changes,
        tombstone_ttl,
    )
    # What does not depend on the store is refused before one is made.
    inputs.take(StreamColumns(stream), key_documents(asked.key), {})
    storage_options_text(storage_options)
    check_retention(retention)
    asked_tables = check_publish(publish)
    memory = TaskMemory.asked(stream.sparkSession, memory_budget_bytes, spill_dir)
    opened = asked.open(storage_options)
    if asked_tables is not None:
        # A place that cannot be is refused now rather than logged after each commit.
        open_publisher(opened.storage, "", asked_tables)
    check_alone([uid, *([] if aside is None else [aside])], opened.checkpoint, opened.url)
    before = opened.operator
    check_no_operator_state(before, opened.url)
    orders = [item for kept in inputs.orders(FrameColumns.of(stream)).values() for item in kept]
    stored = {} if before is None else _stored_states(before, [*states, *orders])
    left_out = [] if before is None else [state.name for state in before.states if state.name not in stored]
    if left_out and not allow_non_restored_state:
        raise InvalidInputError(
            f"the store {opened.url} holds {', '.join(map(repr, left_out))} of operator {uid!r}, which would miss the "
            "rows of this run; declare it in states, or let it go with allow_non_restored_state=True"
        )
    taken = StreamColumns(stream)
    for field in opened.key_schema:
        taken.take(field.name, spark_type(field.type))
    found = inputs.take(taken, opened.key, stored)
    rows = stream.select(*taken.taken)
    plan = SinkPlan(
        store=opened.url,
        uid=uid,
        key=opened.key,
        parallelism=opened.parallelism,
        max_parallelism=opened.max_parallelism,
        names=rows.columns,
        dropped=left_out,
        retention=retention,
        publish=asked_tables,
        storage_options=storage_options,
        memory=memory,
        **found,
    )
    if plan.dead_letters is not None and opened.checkpoint is not None:
        plan.dead_letters.parts_before(opened.storage, opened.checkpoint.operators)
    operator = QueryOperator(plan, fold_micro_batch, stream_of, [(name, None) for name in rows.columns])

    def function(options: Mapping[str, str]) -> StatefulQuery:
        if options.get("outputmode", "").lower() == "complete":
            raise InvalidInputError("a keyed sink adds to its state; use outputMode append or update, not complete")
        return StatefulQuery(
            clock_of(stream.sparkSession, options, new_id()), [operator], {}, on_checkpoint=on_checkpoint
        )

    register_if_possible(stream.sparkSession)
    return writer_of(rows.writeStream, QueryStart(opened.url, storage_options, function))


def _stored_states(operator: OperatorDocument, states: Sequence[StateDescriptor]) -> dict[str, StateDocument]:
    """Return what the states that are stored become under their descriptors, by name."""
    found = {}
    stored = {state.name.lower(): state for state in operator.states}
    for descriptor in states:
        have = stored.get(descriptor.name.lower())
        if have is None:
            continue
        if have.name != descriptor.name:
            raise InvalidInputError(
                f"state names must differ in more than case, {have.name!r} exists; got {descriptor.name!r}"
            )
        found[have.name] = evolve_state(have, operator.key, descriptor)
    return found
