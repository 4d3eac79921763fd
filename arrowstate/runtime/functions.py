"""Functions of jobs alone: with two inputs that share their keyed state, and without keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from arrowstate.functions.batch_function import BatchContext, BatchFunction, Output
from arrowstate.functions.checkpointed import CheckpointedFunction, OperatorContext
from arrowstate.functions.process_function import Collector, KeyedProcessFunction, ProcessContext


class MapFunction(CheckpointedFunction):
    """A function of `map_batches` that is opened and closed, is told of checkpoints, and may have operator state.

    Each subtask has a copy of its own. State needs `map_batches(function, uid=..., schema=...)`: the uid is its name in
    the store.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.runtime import Job, MapFunction, OutputTable, TableSource
    >>> class Pairs(MapFunction):
    ...     def open(self, context):
    ...         self.state = context.operator_state(arrowstate.OperatorListStateDescriptor("waiting", pa.int64()))
    ...         self.waiting = self.state.get()
    ...
    ...     def process_batch(self, batch):
    ...         self.waiting += batch["n"].to_pylist()
    ...         pairs = len(self.waiting) // 2 * 2
    ...         emitted, self.waiting = self.waiting[:pairs], self.waiting[pairs:]
    ...         return pa.record_batch({"n": emitted}, schema=batch.schema)
    ...
    ...     def snapshot_state(self, checkpoint_id, context):
    ...         self.state.update(self.waiting)
    >>> job = Job("memory://map-function")
    >>> numbers = job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers")
    >>> numbers.map_batches(Pairs(), uid="pairs", schema=numbers.schema).sink(OutputTable("paired"))
    >>> snapshot = job.run(mode="inline")
    >>> snapshot.sql("select n from paired.rows order by n").fetchall()
    [(1,), (2,)]
    >>> snapshot.sql("select waiting from pairs.waiting").fetchall()
    [(3,)]
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def open(self, context: OperatorContext) -> None:
        """Called once before the first batch: the place to ask the context for operator state."""

    def process_batch(self, batch: pa.RecordBatch) -> Output:  # noqa: ARG002
        """Return what becomes of a batch; not called for a batch without rows.

        Returns
        -------
        pa.RecordBatch, pa.Table or None
            Rows with the columns that `map_batches` was told; None for no rows.
        """
        raise TypeError(f"{type(self).__name__} has no process_batch(batch); define it")

    def close(self) -> None:
        """Called once after the last batch."""


class CoBatchFunction(BatchFunction):
    """A batch function over two streams that are keyed alike. Derive from it.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.runtime import CoBatchFunction
    >>> class Balance(CoBatchFunction):
    ...     def open(self, context):
    ...         self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    ...
    ...     def process_batch1(self, batch, context):
    ...         self.total.add_batch(batch["user"], batch["paid"])
    ...
    ...     def process_batch2(self, batch, context):
    ...         users = batch["user"]
    ...         return pa.record_batch({"user": users, "total": self.total.get_batch(users)})
    """

    def process_batch1(self, batch: pa.RecordBatch, context: BatchContext) -> Output:  # noqa: ARG002
        """Process rows of the first stream, as `BatchFunction.process_batch` does."""
        raise TypeError(f"{type(self).__name__} has no process_batch1(batch, context); define it")

    def process_batch2(self, batch: pa.RecordBatch, context: BatchContext) -> Output:  # noqa: ARG002
        """Process rows of the second stream."""
        raise TypeError(f"{type(self).__name__} has no process_batch2(batch, context); define it")

    def one_of_two(self) -> _BatchesOfTwo:
        """Return the function that a runner sees, which is told whose rows it is given."""
        return _BatchesOfTwo(self)


class KeyedCoProcessFunction(KeyedProcessFunction):
    """A process function over two streams that are keyed alike. Derive from it.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.runtime import KeyedCoProcessFunction
    >>> class Enriched(KeyedCoProcessFunction):
    ...     def open(self, context):
    ...         self.city = context.state(arrowstate.ValueStateDescriptor("city", pa.string()))
    ...
    ...     def process_element1(self, value, context, out):
    ...         out.collect((value.user, value.amount, self.city.value()))
    ...
    ...     def process_element2(self, value, context, out):
    ...         self.city.update(value.city)
    """

    def process_element1(self, value: Any, context: ProcessContext, out: Collector) -> None:  # noqa: ARG002
        """Process one element of the first stream, as `KeyedProcessFunction.process_element` does."""
        raise TypeError(f"{type(self).__name__} has no process_element1(value, context, out); define it")

    def process_element2(self, value: Any, context: ProcessContext, out: Collector) -> None:  # noqa: ARG002
        """Process one element of the second stream."""
        raise TypeError(f"{type(self).__name__} has no process_element2(value, context, out); define it")

    def one_of_two(self) -> OneOfTwo:
        """Return the function that a runner sees, which is told whose rows it is given."""
        # A runner asks the class whether there are timers.
        timed = type(self).on_timer is not KeyedProcessFunction.on_timer
        return (_TimedElementsOfTwo if timed else _ElementsOfTwo)(self)


class OneOfTwo:
    """A function as a runner sees it, and the input that its next rows are of."""

    port: int = 0


def _tell_of_checkpoints(told: CheckpointedFunction, function: CheckpointedFunction) -> None:
    """Have a function hear of checkpoints what another is told."""
    told.snapshot_state = function.snapshot_state  # type: ignore[method-assign]
    told.on_checkpoint_complete = function.on_checkpoint_complete  # type: ignore[method-assign]
    told.on_checkpoint_aborted = function.on_checkpoint_aborted  # type: ignore[method-assign]


class _BatchesOfTwo(OneOfTwo, BatchFunction):
    def __init__(self, function: CoBatchFunction) -> None:
        self._function = function
        self.side_outputs = function.side_outputs
        self.open = function.open  # type: ignore[method-assign]
        self.close = function.close  # type: ignore[method-assign]
        _tell_of_checkpoints(self, function)
        self.on_watermark = function.on_watermark  # type: ignore[method-assign]
        self.on_timers = function.on_timers  # type: ignore[method-assign]
        self.on_processing_time = function.on_processing_time  # type: ignore[method-assign]
        self.next_processing_time = function.next_processing_time  # type: ignore[method-assign]

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> Output:
        process = self._function.process_batch2 if self.port else self._function.process_batch1
        return process(batch, context)


class _ElementsOfTwo(OneOfTwo, KeyedProcessFunction):
    def __init__(self, function: KeyedCoProcessFunction) -> None:
        self._function = function
        self.side_outputs = function.side_outputs
        _tell_of_checkpoints(self, function)
        self.open = function.open  # type: ignore[method-assign]
        self.close = function.close  # type: ignore[method-assign]

    @property
    def process_element(self) -> Any:
        return self._function.process_element2 if self.port else self._function.process_element1


class _TimedElementsOfTwo(_ElementsOfTwo):
    def on_timer(self, timestamp: int, context: ProcessContext, out: Collector) -> None:
        self._function.on_timer(timestamp, context, out)
