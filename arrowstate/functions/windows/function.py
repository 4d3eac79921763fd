"""Windows as a batch function: what a runner of batches needs to know to drive a `WindowOperator`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.functions.batch_function import BatchContext, BatchFunction
from arrowstate.functions.runner import check_once
from arrowstate.functions.side_outputs import OutputTag
from arrowstate.functions.windows.assigners import WindowAssigner, clock_of
from arrowstate.functions.windows.operator import WindowOperator
from arrowstate.functions.windows.triggers import Trigger
from arrowstate.schema.descriptors import AggregatingStateDescriptor, ListStateDescriptor, ReducingStateDescriptor
from arrowstate.schema.encodings import without_views


@dataclass
class WindowFunction(BatchFunction):
    """Windows over the rows of each key, for a runner of batches such as `arrowstate.spark.stateful`.

    It emits what `WindowOperator` fires: the key columns, `window_start` and `window_end` int64 in milliseconds since
    1970, and the result in a column named after the descriptor. Rows that come too late for all their windows are
    left out, or go to the side output `late`; `late_rows` counts them.

    Parameters
    ----------
    windows
        One of the assigners of this package.
    descriptor
        The state with the content of the windows, as for `WindowOperator`.
    timestamp
        The column with the event time of each row, a timestamp or milliseconds since 1970; None for windows by
        processing time, global windows and count windows.
    value
        The column with the values. By default the columns named after the fields of a struct type, else the column
        named after the descriptor.
    trigger, allowed_lateness_ms
        As for `WindowOperator`.
    late
        The side output for rows that come too late; its columns are those of the rows, or some of them.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import TumblingEventTimeWindows, WindowFunction
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> hourly = WindowFunction(TumblingEventTimeWindows(3_600_000), clicks, timestamp="ts", value="n")
    >>> process = arrowstate.BatchRunner(backend, hourly)
    >>> process.process(pa.record_batch({"user": ["ann", "ann"], "ts": [1_000, 2_000], "n": [1, 5]})).num_rows
    0
    >>> process.advance_watermark(3_600_000).to_pylist()
    [{'user': 'ann', 'window_start': 0, 'window_end': 3600000, 'clicks': 6}]
    """

    windows: WindowAssigner
    descriptor: ReducingStateDescriptor | AggregatingStateDescriptor | ListStateDescriptor
    timestamp: str | None = field(default=None, kw_only=True)
    value: str | None = field(default=None, kw_only=True)
    trigger: Trigger | None = field(default=None, kw_only=True)
    allowed_lateness_ms: int = field(default=0, kw_only=True)
    late: OutputTag | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        timed = clock_of(self.windows) == "event_time"
        if timed != (self.timestamp is not None):
            required = "the name of a timestamp column" if timed else "timestamp=None"
            raise InvalidInputError(f"{self.windows!r} needs {required}, got {self.timestamp!r}")
        self.side_outputs = () if self.late is None else (self.late,)
        self._operator: WindowOperator | None = None

    @property
    def late_rows(self) -> int:
        """How many rows have come too late since `open`."""
        return 0 if self._operator is None else self._operator.late_rows

    def open(self, context: BatchContext) -> None:
        """Make the window operator over the state of the runner."""
        self._operator = WindowOperator(
            context.backend,
            self.windows,
            self.descriptor,
            trigger=self.trigger,
            allowed_lateness_ms=self.allowed_lateness_ms,
        )

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        """Put the rows into their windows; emit those that fire at once."""
        assert self._operator is not None, "open was called"
        if clock_of(self.windows) == "processing_time":
            times = pa.array(np.full(batch.num_rows, context.processing_time, dtype=np.int64))
        else:
            times = None if self.timestamp is None else _column(batch, self.timestamp)
        output = self._operator.process(context.key_columns(batch), times, self._values(batch))
        if self.late is not None and len(output.late_row_numbers):
            names = self.late.schema.names
            columns = [without_views(_column(batch, name), name).take(output.late_row_numbers) for name in names]
            context.output(self.late, pa.RecordBatch.from_arrays(columns, names=names))
        return output.fired

    def on_watermark(self, watermark: int, context: BatchContext) -> pa.RecordBatch:  # noqa: ARG002
        """Emit the windows that the watermark has passed."""
        assert self._operator is not None, "open was called"
        return self._operator.advance_watermark(watermark)

    def on_processing_time(self, now_ms: int, context: BatchContext) -> pa.RecordBatch | None:  # noqa: ARG002
        """Emit the windows by processing time that end up to it."""
        assert self._operator is not None, "open was called"
        if clock_of(self.windows) != "processing_time":
            return None
        return self._operator.advance_processing_time(now_ms)

    def next_processing_time(self) -> int | None:
        """Return when the next window by processing time ends."""
        return None if self._operator is None else self._operator.next_processing_time()

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        kind = self.descriptor.type
        if self.value is not None or not pa.types.is_struct(kind):
            return _column(batch, self.value or self.descriptor.name)
        columns = [_column(batch, item.name) for item in kind]
        return pa.StructArray.from_arrays(columns, names=[item.name for item in kind])


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise InvalidInputError(f"a batch must have the column {name}; it has {', '.join(batch.schema.names)}")
    check_once(batch.schema, name)
    return batch.column(name)
