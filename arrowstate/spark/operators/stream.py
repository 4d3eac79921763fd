"""Stateful operators over a stream: what `stateful` returns, and `write_stream`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from arrowstate.clock import new_id
from arrowstate.errors import InvalidInputError
from arrowstate.functions.dead_letters import is_dead_letters
from arrowstate.log.commit_log import CommitLog
from arrowstate.spark.commit import check_alone
from arrowstate.spark.failures import check_picklable
from arrowstate.spark.operators.clocks import clock_of
from arrowstate.spark.operators.declaring import (
    check_uids,
    with_readers,
)
from arrowstate.spark.operators.query import (
    BatchFrames,
    QueryOperator,
    StatefulQuery,
    publish_of,
    retention_of,
    uids_of,
)
from arrowstate.spark.operators.task import OperatorPlan
from arrowstate.spark.places import StorePlace
from arrowstate.spark.read.idle import and_idle
from arrowstate.spark.source import register_if_possible
from arrowstate.spark.stream_writer import QueryStart, writer_of
from arrowstate.spark.versions import IDLE_TIMERS, require
from arrowstate.store import open_store
from arrowstate.telemetry.records import Listener

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["StatefulStream", "write_stream"]


@dataclass(frozen=True, eq=False, repr=False)
class StatefulStream:
    """The rows that stateful operators emit, micro-batch by micro-batch. `stateful` returns it.

    Examples
    --------
    >>> import tempfile, arrowstate, pyarrow as pa
    >>> from pyspark.sql import SparkSession
    >>> from arrowstate.spark import stateful
    >>> class Counts(arrowstate.BatchFunction):
    ...     def open(self, context):
    ...         self.count = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count"))
    ...
    ...     def process_batch(self, batch, context):
    ...         keys = context.group_keys(batch)
    ...         self.count.add_batch(keys, batch["value"])
    ...         return pa.record_batch([*keys.columns, self.count.read_keys(keys)], names=["value", "n"])
    >>> counts = stateful(
    ...     SparkSession.builder.getOrCreate().readStream.format("rate").load(),
    ...     key=["value"],
    ...     operator=Counts(),
    ...     uid="counts",
    ...     store=tempfile.mkdtemp(),
    ...     parallelism=2,
    ...     output_schema="value long, n long",
    ... )
    >>> counts
    <StatefulStream of counts: value bigint, n bigint>
    >>> counts.transform(lambda rows: rows.where("n > 1").select("value"))
    <StatefulStream of counts: value bigint>
    """

    source: DataFrame
    """The stream that it starts from."""
    operators: tuple[QueryOperator, ...]
    """The operators up to here, each after those whose rows it takes."""
    frame: Callable[[BatchFrames], DataFrame]
    """Returns its rows in a micro-batch."""
    schema: StructType | None
    """The columns of its rows; None if the last operator emits none."""
    uid: str | None = None
    """The uid of the operator whose rows these are as they were emitted; None after `transform` and `union`."""
    store: str = ""

    def __repr__(self) -> str:
        of = ", ".join(item.plan.uid for item in self.operators)
        columns = [f"{item.name} {item.dataType.simpleString()}" for item in self.schema or ()]
        return f"<StatefulStream of {of}: {', '.join(columns) or 'no rows'}>"

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> StatefulStream:
        """Return the rows changed by a function of DataFrames, which is called for each micro-batch.

        Parameters
        ----------
        function
            Gets the rows of a micro-batch as a DataFrame that is not streaming, and returns another. It is called
            once here with no rows, to learn the columns.
        """
        schema = self.columns()
        empty = self.source.sparkSession.createDataFrame([], schema)
        changed = function(empty).schema
        # Not `self`: the function may be pickled, which the streaming DataFrame cannot be.
        before = self.frame
        return StatefulStream(
            self.source, self.operators, lambda frames: function(before(frames)), changed, None, self.store
        )

    def union(self, other: StatefulStream) -> StatefulStream:
        """Return the rows of both, which start from the same stream and have columns of the same names and types."""
        if other.source is not self.source:
            raise InvalidInputError(
                "the rows of two streams cannot be put together; both must start from one DataFrame"
            )
        mine, theirs = self.columns(), other.columns()
        if mine.simpleString() != theirs.simpleString():
            raise InvalidInputError(
                f"both must have the same columns, got {mine.simpleString()} and {theirs.simpleString()}"
            )
        first, second = self.frame, other.frame
        return StatefulStream(
            self.source,
            _all_operators([self, other]),
            lambda frames: first(frames).unionAll(second(frames)),
            mine,
            None,
            self.store,
        )

    def foreach_batch(
        self,
        function: Callable[[DataFrame, int], object],
        *,
        fire_when_idle: bool = False,
        on_checkpoint: Listener | None = None,
    ) -> DataStreamWriter:
        """Return a writer of the query that calls a function with the rows of each micro-batch, after its commit.

        Parameters
        ----------
        function
            Gets a DataFrame and the id of the micro-batch. If Spark repeats a micro-batch, because the function or the
            driver failed, it gets the same rows again, and must tolerate that.
        fire_when_idle, on_checkpoint
            As for `write_stream` of this module.

        Returns
        -------
        DataStreamWriter
            As `write_stream` returns it.
        """
        if self.uid is None:
            raise InvalidInputError(
                "foreach_batch takes the rows that an operator emitted; call it on what stateful returned, and change "
                "the rows inside the function"
            )
        return write_stream(
            self, foreach_batch={self.uid: function}, fire_when_idle=fire_when_idle, on_checkpoint=on_checkpoint
        )

    def write_stream(self, *, fire_when_idle: bool = False, on_checkpoint: Listener | None = None) -> DataStreamWriter:
        """Return a writer of the query; see `write_stream` of this module."""
        return write_stream(self, fire_when_idle=fire_when_idle, on_checkpoint=on_checkpoint)

    def columns(self) -> StructType:
        """Return the columns of the rows.

        Raises
        ------
        InvalidInputError
            If the last operator emits none.
        """
        if self.schema is None:
            raise InvalidInputError(f"operator {self.uid!r} emits no rows; give it an output_schema")
        return self.schema


def write_stream(
    *streams: StatefulStream,
    foreach_batch: Mapping[str, Callable[[DataFrame, int], object]] | None = None,
    allow_non_restored_state: bool = False,
    fire_when_idle: bool = False,
    on_checkpoint: Listener | None = None,
) -> DataStreamWriter:
    """Return a writer of one query with several stateful operators: one log entry per micro-batch for all of them.

    Parameters
    ----------
    streams
        What `stateful` returned; the operators before them belong to the query too. All start from one DataFrame.
    foreach_batch
        By operator uid, functions as for `StatefulStream.foreach_batch`, called in this order.
    allow_non_restored_state
        Drop the state of operators that this query does not have; dead letters stay.
    fire_when_idle
        Let timers fire, and event-time windows end, while no row comes: Spark runs a micro-batch when a processing-time
        timer is due, and one more after each micro-batch whose rows have advanced the watermark. Without it both wait
        for the next row. The store is checked every 250 ms. It needs PySpark 4.2. It adds a source to the query, so a
        query must be restarted with the same value.
    on_checkpoint
        Called once for each micro-batch that was committed, or could not be, with an
        `arrowstate.telemetry.OperationRecord`, before the functions of `foreach_batch`; in the driver, which on Spark
        Connect is a process of the server. If it raises, the error is logged and changes nothing.

    Returns
    -------
    DataStreamWriter
        Add `.option("checkpointLocation", ...)` and, if wanted, `.trigger(...)`, then `.start()`. The query has what
        each micro-batch took in its progress, under `observedMetrics["arrowstate"]`; see `progress`.

    Raises
    ------
    InvalidInputError
        If the streams do not belong together, or the store holds the state of other operators. When it is started:
        if an operator cannot be pickled (the message names it and its attribute), a broadcast DataFrame has not two
        columns, or, on Spark Connect, there is no option `checkpointLocation` or a function cannot be pickled.

    Examples
    --------
    >>> import tempfile, arrowstate, pyarrow as pa
    >>> from pyspark.sql import SparkSession
    >>> from arrowstate.spark import stateful, write_stream
    >>> class Sum(arrowstate.BatchFunction):
    ...     def __init__(self, column):
    ...         self.column = column
    ...
    ...     def open(self, context):
    ...         self.sum = context.state(arrowstate.ReducingStateDescriptor("sum", pa.int64(), reduce="sum"))
    ...
    ...     def process_batch(self, batch, context):
    ...         self.sum.add_batch(context.key_columns(batch), batch[self.column])
    >>> spark, folder = SparkSession.builder.getOrCreate(), tempfile.mkdtemp()
    >>> spark.range(10).selectExpr("id % 2 as k", "id as v").write.parquet(f"{folder}/rows")
    >>> rows = spark.readStream.schema("k long, v long").parquet(f"{folder}/rows")
    >>> where = {"store": f"{folder}/store", "parallelism": 1}
    >>> by_key = stateful(rows, key=["k"], operator=Sum("v"), uid="by_key", **where)
    >>> by_value = stateful(rows, key=["v"], operator=Sum("k"), uid="by_value", **where)
    >>> writer = write_stream(by_key, by_value).option("checkpointLocation", f"{folder}/spark")
    >>> writer.trigger(availableNow=True).start().awaitTermination()
    >>> arrowstate.open_store(f"{folder}/store").latest().to_arrow("by_key.sum").sort_by("k").to_pydict()
    {'k': [0, 1], 'sum': [20, 25]}
    """
    if not streams:
        raise InvalidInputError("write_stream needs at least one stream that stateful returned")
    first = streams[0]
    for other in streams[1:]:
        if other.source is not first.source or other.store != first.store:
            raise InvalidInputError("the operators of a query start from one DataFrame and share one store")
    operators = _all_operators(streams)
    check_uids(operators)
    functions = dict(foreach_batch or {})
    emitting = [item.plan.uid for item in operators if item.plan.output is not None]
    for uid in functions:
        if uid not in emitting:
            raise InvalidInputError(
                f"foreach_batch names operator {uid!r}; those with an output_schema are {', '.join(emitting) or 'none'}"
            )
    operators = tuple(with_readers(item, operators, functions) for item in operators)
    plans = [item.plan for item in operators]
    retention_of(plans)
    publish_of(plans)
    uids = uids_of(plans)
    storage = open_store(first.store, storage_options=plans[0].storage_options).storage
    checkpoint = CommitLog(storage).latest_checkpoint()
    dropped: list[str] = []
    if allow_non_restored_state and checkpoint is not None:
        dropped = [item.uid for item in checkpoint.operators if item.uid not in uids and not is_dead_letters(item)]
    check_alone([*uids, *dropped], checkpoint, first.store)
    session = first.source.sparkSession
    register_if_possible(session)

    def function(options: Mapping[str, str]) -> StatefulQuery:
        for plan in plans:
            if isinstance(plan, OperatorPlan):
                check_picklable(plan.uid, plan.operator)
        return StatefulQuery(clock_of(session, options, new_id()), operators, functions, dropped, on_checkpoint)

    source = first.source
    if fire_when_idle:
        require(IDLE_TIMERS)
        source = and_idle(source, StorePlace(first.store, plans[0].storage_options))
    return writer_of(source.writeStream, QueryStart(first.store, plans[0].storage_options, function))


def _all_operators(streams: Sequence[StatefulStream]) -> tuple[QueryOperator, ...]:
    """The operators of all streams, once each, each after those whose rows it takes."""
    found: dict[int, QueryOperator] = {}
    for stream in streams:
        for item in stream.operators:
            found.setdefault(id(item), item)
    return tuple(found.values())
