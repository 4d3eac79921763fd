"""What runs a process function: one record at a time on the outside, a batch of columns on the inside."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, NullKeyError, ProcessElementError, ValueTypeError
from arrowstate.functions.process_function import Collector, KeyedProcessFunction, ProcessContext
from arrowstate.functions.runner import Runner, batches_of, check_once, key_columns_of
from arrowstate.functions.side_outputs import ElementSides, element_array
from arrowstate.schema.plain import keeping, plain_values
from arrowstate.schema.times import timestamp_array
from arrowstate.schema.types import first_null
from arrowstate.shown import error_text
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.operator_list import ReadOnlyBroadcastState
from arrowstate.table.key_batch import KeyBatch
from arrowstate_formats.integers import check_integer


class KeyedProcessRunner(Runner[KeyedProcessFunction, ProcessContext]):
    """Runs a process function over Arrow batches.

    Within a batch the function's reads see its writes. If the function raises, or writes a value that does not fit its
    state, or the disk is full, everything is as before the batch, and the same batch can be processed again. Only
    attributes that the function set on itself stay changed. With a time to live, a read renews or removes what it was
    asked for, and nothing else.

    Parameters
    ----------
    backend
        Holds the states.
    function
        The function; its `open` is called here.
    output
        The type of the values that it emits; by default it may emit only None.
    timestamp
        The column with the event time of each row: a timestamp, or milliseconds since 1970.
    broadcasts
        Broadcast states by name, for `context.broadcast`.
    operator_states
        The operator state of the subtask, for `context.operator_state`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> class Total(arrowstate.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    ...
    ...     def process_element(self, value, context, out):
    ...         self.total.add(value.amount)
    ...         out.collect(self.total.get())
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> with arrowstate.KeyedProcessRunner(backend, Total(), output=pa.int64()) as process:
    ...     process.process(pa.record_batch({"user": ["ann", "bob", "ann"], "amount": [1, 5, 2]})).to_pylist()
    [1, 5, 3]
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        function: KeyedProcessFunction,
        *,
        output: pa.DataType | None = None,
        timestamp: str | None = None,
        broadcasts: Mapping[str, ReadOnlyBroadcastState] | None = None,
        operator_states: OperatorStateBackend | None = None,
    ) -> None:
        self._output = pa.null() if output is None else output
        if not isinstance(self._output, pa.DataType):
            raise InvalidInputError(
                f"output must be the Arrow type of what the function emits, such as pa.int64(), got {output!r}"
            )
        # Until the batch ends, the function may change what it has emitted.
        self._kept = keeping(self._output)
        self._timestamp = timestamp
        self._row_types: dict[tuple[str, ...], Callable[[Any], Any]] = {}
        with_timers = type(function).on_timer is not KeyedProcessFunction.on_timer
        sides = ElementSides(function)
        context = ProcessContext(backend, with_timers, broadcasts or {}, sides, operator_states)
        super().__init__(backend, function, context, broadcasts or {}, sides, operator_states)

    def process(self, batch: pa.RecordBatch) -> pa.Array:
        """Process the rows of a batch in their order; return what the function emitted.

        Parameters
        ----------
        batch
            A record batch or table with the key columns, the timestamp column if one was named, and any others.

        Returns
        -------
        pa.Array
            One entry per value emitted, of the output type.

        Raises
        ------
        ProcessElementError
            If the function raised, or a value it wrote or emitted does not fit; it names the row, and the function's
            own exception is its cause. The states are as before the batch.
        InvalidInputError
            If the batch lacks a column, or the runner is closed.
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If a key does not fit the key schema or belongs to another subtask.
        """
        self._check_open()
        batch = _one_batch(batch)
        keys = self._backend.group_keys(key_columns_of(self._backend.key, batch))
        timestamps = self._timestamps(batch)
        self._context.enter(self._plain_keys(keys), timestamps and timestamps.to_pylist())
        with self._transaction(), self._sides.call():
            return self._applied(keys, lambda: self._run(batch, keys.groups().tolist()))

    def advance_watermark(self, watermark: int) -> pa.Array:
        """Advance event time, and fire all event-time timers up to it, in the order of time, as one batch.

        Parameters
        ----------
        watermark
            Milliseconds since 1970. A watermark below the current one is ignored: nothing fires.

        Returns
        -------
        pa.Array
            One entry per value emitted, of the output type.

        Raises
        ------
        ProcessElementError
            If the function raised, or a value it wrote or emitted does not fit; it names the timer. The states are then
            as before the call, and the timers stay registered and fire at the next call.
        """
        self._check_open()
        watermark = check_integer("watermark", watermark)
        with self._transaction(), self._sides.call():
            if self._backend.watermark is not None and watermark < self._backend.watermark:
                return pa.array([], self._output)
            self._backend.advance_watermark(watermark)
            return self._fire("event_time", watermark)

    def advance_processing_time(self, now_ms: int) -> pa.Array:
        """Fire all processing-time timers up to `now_ms`, milliseconds since 1970, as `advance_watermark` does.

        Returns
        -------
        pa.Array
            One entry per value emitted, of the output type.
        """
        self._check_open()
        now_ms = check_integer("now_ms", now_ms)
        with self._transaction(), self._sides.call():
            return self._fire("processing_time", now_ms)

    def _applied(self, keys: KeyBatch, run: Callable[[], tuple[list[Any], list[int]]]) -> pa.Array:
        """Run the function over a batch and write what it wrote; return what it emitted."""
        states, timers = self._context.states, self._context.own_timers
        try:
            for state in states:
                state.begin(keys)
            if timers is not None:
                timers.begin(keys)
            out = self._converted(*run())
            for state in states:
                state.convert()
            if timers is not None:
                timers.convert()
                timers.apply()
            for state in states:
                state.apply()
        finally:
            for state in states:
                state.end()
            if timers is not None:
                timers.end()
        return out

    def _fire(self, clock: Literal["event_time", "processing_time"], until: int) -> pa.Array:
        """Fire the timers of a clock up to a time."""
        timers = self._context.own_timers
        if timers is None:
            return pa.array([], self._output)
        due = timers.states[clock].pop_due(until)
        if not due.num_rows:
            return pa.array([], self._output)
        keys = self._backend.group_keys(key_columns_of(self._backend.key, due.select(self._backend.key.names)))
        numbers, times = keys.groups().tolist(), due.column(0).to_pylist()
        context, out = self._context, Collector(self._kept)
        fired: list[int] = []
        counts: list[int] = []
        context.enter(self._plain_keys(keys), fired)
        context.clock = clock

        def run() -> tuple[list[Any], list[int]]:
            try:
                for context.number, timestamp in timers.fire(clock, until, numbers, times):
                    context.row = len(fired)
                    fired.append(timestamp)
                    self._function.on_timer(timestamp, context, out)
                    counts.append(len(out.values))
            except Exception as error:
                detail = f"timer of {context.current_key!r} at {fired[-1]}: {_described(error)}"
                raise ProcessElementError(context.row, detail) from error
            return out.values, counts

        try:
            return self._applied(keys, run)
        finally:
            context.clock = None

    def _run(self, batch: pa.RecordBatch, numbers: list[int]) -> tuple[list[Any], list[int]]:
        """Call the function for every row; return what it emitted, and how much it had emitted after each row."""
        context, out = self._context, Collector(self._kept)
        process = self._function.process_element
        columns = [plain_values(batch.column(n), f"column {name!r}") for n, name in enumerate(batch.schema.names)]
        elements = map(self._row_type(batch.schema.names), zip(*columns, strict=True))
        emitted = out.values
        counts: list[int] = []
        count = counts.append
        try:
            if self._output == pa.null():
                for context.row, context.number, value in zip(range(batch.num_rows), numbers, elements, strict=True):
                    process(value, context, out)
            else:
                for context.row, context.number, value in zip(range(batch.num_rows), numbers, elements, strict=True):
                    process(value, context, out)
                    count(len(emitted))
        except Exception as error:
            raise ProcessElementError(context.row, _described(error)) from error
        return emitted, counts

    def _converted(self, emitted: list[Any], counts: list[int]) -> pa.Array:
        def row_of(number: int) -> int:
            return int(np.searchsorted(counts, number, side="right")) if counts else 0

        def told(value: Any) -> str:
            return f"emitted {value!r}, which is no {self._output}; declare the type with output="

        return element_array(emitted, self._output, told, row_of)

    def _row_type(self, names: list[str]) -> Callable[[Any], Any]:
        known = self._row_types.get(tuple(names))
        if known is None:
            # Names that are no Python identifiers become _0, _1 and so on, by the place of the column.
            row: type[tuple[Any, ...]] = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            # The constructor of a named tuple is Python code, the one of tuple is not.
            known = self._row_types[tuple(names)] = partial(tuple.__new__, row)
        return known

    def _plain_keys(self, keys: KeyBatch) -> list[list[Any]]:
        names = self._backend.key.names
        return [plain_values(column, f"column {name!r}") for name, column in zip(names, keys.columns, strict=True)]

    def _timestamps(self, batch: pa.RecordBatch) -> pa.Array | None:
        name = self._timestamp
        if name is None:
            return None
        if name not in batch.schema.names:
            raise InvalidInputError(
                f"a batch must have the timestamp column {name}; it has {', '.join(batch.schema.names)}"
            )
        check_once(batch.schema, name)
        column = batch.column(name)
        if column.null_count:
            raise NullKeyError(name, first_null(column))
        return timestamp_array(name, column, round_down=True)


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, ValueTypeError) else error_text(error)


def _one_batch(batch: Any) -> pa.RecordBatch:
    batches = batches_of(batch)
    if len(batches) > 1:
        # A process function is given plain values, also of dictionaries that cannot be joined.
        batches = batches_of(_without_dictionaries(batch))
    if len(batches) > 1:
        raise InvalidInputError("a column holds more text than a record batch can; give the rows in several batches")
    if batches:
        return batches[0]
    # Arrow makes no dictionaries of some types from a list of no rows.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in batch.schema], schema=batch.schema)


def _without_dictionaries(rows: pa.Table) -> pa.Table:
    for number, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            plain = rows.column(number).cast(field.type.value_type)
            rows = rows.set_column(number, pa.field(field.name, plain.type, field.nullable), plain)
    return rows
