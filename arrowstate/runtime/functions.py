"""Functions with two inputs, which share their keyed state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from arrowstate.functions.batch_function import BatchContext, BatchFunction, Output
from arrowstate.functions.process_function import Collector, KeyedProcessFunction, ProcessContext


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


class _BatchesOfTwo(OneOfTwo, BatchFunction):
    def __init__(self, function: CoBatchFunction) -> None:
        self._function = function
        self.side_outputs = function.side_outputs
        self.open = function.open  # type: ignore[method-assign]
        self.close = function.close  # type: ignore[method-assign]
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
        self.open = function.open  # type: ignore[method-assign]
        self.close = function.close  # type: ignore[method-assign]

    @property
    def process_element(self) -> Any:
        return self._function.process_element2 if self.port else self._function.process_element1


class _TimedElementsOfTwo(_ElementsOfTwo):
    def on_timer(self, timestamp: int, context: ProcessContext, out: Collector) -> None:
        self._function.on_timer(timestamp, context, out)
