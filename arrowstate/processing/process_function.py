"""Record at a time over Arrow batches: process functions, and what runs them.

A process function sees one element after the other, with plain Python values and states of the element's key. The
runner takes whole Arrow batches: it converts their columns once, reads the states of all keys of a batch in one
probe each, and writes them back in one put each. A batch is applied as a whole or not at all.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.errors import InvalidInputError, NullKeyError, ProcessElementError, ValueTypeError
from arrowstate.schema.descriptors import StateDescriptor, TimerStateDescriptor
from arrowstate.schema.plain import plain_values
from arrowstate.schema.times import timestamp_array
from arrowstate.schema.types import CONVERSION_ERRORS, python_array
from arrowstate.state.operator_list import ReadOnlyBroadcastState, find_broadcast
from arrowstate.state.per_record.collections import ElementList, ElementMap
from arrowstate.state.per_record.places import ElementState
from arrowstate.state.per_record.rows import ElementAggregating, ElementReducing, ElementValue
from arrowstate.state.per_record.timers import ElementTimers
from arrowstate.table.key_batch import KeyBatch
from arrowstate_formats.integers import check_integer

__all__ = ["Collector", "KeyedProcess", "KeyedProcessFunction", "ProcessContext"]

_VIEWS: dict[str, Any] = {
    "value": ElementValue,
    "reducing": ElementReducing,
    "aggregating": ElementAggregating,
    "list": ElementList,
    "map": ElementMap,
}


class Collector:
    """Takes what a process function emits: `out.collect(value)`."""

    __slots__ = ("collect", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.collect: Callable[[Any], None] = self.values.append


class ProcessContext:
    """What a process function knows besides the element: its states, its timers, the current key and the time."""

    def __init__(
        self, backend: KeyedStateBackend, timers: bool, broadcasts: Mapping[str, ReadOnlyBroadcastState]
    ) -> None:
        self._broadcasts = broadcasts
        self.row = 0
        "The row of the batch that the element comes from."
        self.number = 0
        "The number of the element's key among those of the batch."
        self._backend = backend
        self._states: dict[str, ElementState[Any]] = {}
        self._keys: list[list[Any]] = []
        self._timestamps: list[int] | None = None
        self._timers: ElementTimers | None = None
        if timers:
            event, processing = (
                backend.state(TimerStateDescriptor(f"timers_{clock}", clock))
                for clock in ("event_time", "processing_time")
            )
            self._timers = ElementTimers(event, processing, backend.key, self)

    @property
    def timers(self) -> ElementTimers:
        """The timers of the element's key; they are those of `backend.timers()`.

        Raises
        ------
        InvalidInputError
            If the function has no `on_timer`.
        """
        if self._timers is None:
            raise InvalidInputError("a process function without on_timer has no timers; define it")
        return self._timers

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the state with this descriptor: for use in `process_element`, where it is that of the element's key.

        A value state has `value`, `update`, `clear`; a reducing state and an aggregating state `add`, `get`,
        `clear`; a list state and a map state what they have in the backend. To be called in `open`.

        A state with namespaces also has `current_namespace`, which holds until another is set, and
        `merge_namespaces` where the backend has it. Of all keys of a batch all namespaces are read at once, so what
        is kept in namespaces that nobody needs any more costs time in every batch. A namespace of other columns than
        int64 and string costs about 0.2 ms when it is first set in a batch.

        Values added to an aggregating state are added up once a batch. A `get` after an `add` to the same key cannot
        wait for that: it costs about 0.4 ms, a hundred times as much as an `add`.

        Raises
        ------
        IncompatibleStateError
            If a state of this name has another kind, type or reducer.
        InvalidInputError
            If it is a timer state; `context.timers` are the timers.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> hour = pa.schema([("hour", pa.int64())])
        >>> class PerHour(arrowstate.KeyedProcessFunction):
        ...     def open(self, context):
        ...         self.clicks = context.state(
        ...             arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="count", namespace=hour)
        ...         )
        ...
        ...     def process_element(self, value, context, out):
        ...         self.clicks.current_namespace = value.minute // 60
        ...         self.clicks.add(1)
        ...         out.collect(self.clicks.get())
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with arrowstate.KeyedProcess(backend, PerHour(), output=pa.int64()) as process:
        ...     process.process(pa.record_batch({"user": ["ann"] * 3, "minute": [5, 61, 20]})).to_pylist()
        [1, 1, 2]
        """
        if isinstance(descriptor, TimerStateDescriptor):
            raise InvalidInputError(f"{descriptor.name!r} holds timers; a process function has them as context.timers")
        state = self._backend.state(descriptor)
        have = self._states.get(descriptor.name)
        if have is None:
            have = self._states[descriptor.name] = _VIEWS[descriptor.kind](state, self)
        return have

    def broadcast(self, name: str) -> ReadOnlyBroadcastState:
        """Return a broadcast state, which is the same in every subtask and cannot be changed here.

        Raises
        ------
        InvalidInputError
            If there is none of this name.
        """
        return find_broadcast(self._broadcasts, name)

    @property
    def states(self) -> tuple[ElementState[Any], ...]:
        """The states that have been asked for."""
        return tuple(self._states.values())

    @property
    def own_timers(self) -> ElementTimers | None:
        """The timers, None for a function without `on_timer`."""
        return self._timers

    @property
    def current_key(self) -> Any:
        """The key of the element: a plain value, or a tuple for several key columns."""
        key = tuple(column[self.number] for column in self._keys)
        return key[0] if len(key) == 1 else key

    @property
    def timestamp(self) -> int | None:
        """The event time of the element in milliseconds, None if it has none."""
        return None if self._timestamps is None else self._timestamps[self.row]

    @property
    def watermark(self) -> int | None:
        """The event time up to which everything has come; None before the first watermark."""
        return self._backend.watermark

    def enter(self, keys: list[list[Any]], timestamps: list[int] | None) -> None:
        """Start a batch with these key columns, one entry per distinct key."""
        self._keys, self._timestamps = keys, timestamps


class KeyedProcessFunction:
    """Processes one element at a time, with state per key. Derive from it.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> class Visits(arrowstate.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.count = context.state(arrowstate.ValueStateDescriptor("count", pa.int64(), default=0))
    ...
    ...     def process_element(self, value, context, out):
    ...         count = self.count.value() + 1
    ...         self.count.update(count)
    ...         if count == 2:
    ...             out.collect(f"{value.user} is back at {value.page}")
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> visits = arrowstate.KeyedProcess(backend, Visits(), output=pa.string())
    >>> visits.process(pa.record_batch({"user": ["ann", "bob", "ann"], "page": ["/", "/", "/cart"]})).to_pylist()
    ['ann is back at /cart']
    """

    def open(self, context: ProcessContext) -> None:
        """Called once before the first element: the place to ask the context for states."""

    def process_element(self, value: Any, context: ProcessContext, out: Collector) -> None:  # noqa: ARG002
        """Process one element.

        Parameters
        ----------
        value
            The row as a named tuple of plain Python values, one per column of the batch.
        context
            The key, the timestamp and the watermark.
        out
            Takes what is emitted, by `out.collect(value)`.
        """
        raise TypeError(f"{type(self).__name__} has no process_element(value, context, out); define it")

    def on_timer(self, timestamp: int, context: ProcessContext, out: Collector) -> None:
        """Called when a timer fires, with the states of its key; define it to have `context.timers`.

        What it registers at or below the time that is fired up to fires in the same call.

        Parameters
        ----------
        timestamp
            Of the timer, in milliseconds since 1970.
        context
            The key of the timer; its timestamp is that of the timer.
        out
            Takes what is emitted, by `out.collect(value)`.
        """

    def close(self) -> None:
        """Called once after the last element."""


class KeyedProcess:
    """Runs a process function over Arrow batches.

    Within a batch the function's reads see its writes. If it raises, or writes a value that does not fit its state, or
    the disk is full, all is as before the batch, and the same batch may be given again; only what the function keeps in
    attributes of its own stays. A read of a state with a time to live counts once for all keys of a batch, in all their
    namespaces.

    Parameters
    ----------
    backend
        Holds the states.
    function
        The function; its `open` is called here.
    output
        The type of what it emits; by default it may emit nothing but None.
    timestamp
        The column with the event time of each row: a timestamp, or milliseconds since 1970.
    broadcasts
        Broadcast states by name, for `context.broadcast`.

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
    >>> with arrowstate.KeyedProcess(backend, Total(), output=pa.int64()) as process:
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
    ) -> None:
        self._backend = backend
        self._function = function
        self._output = pa.null() if output is None else output
        self._timestamp = timestamp
        self._row_types: dict[tuple[str, ...], Callable[[Any], Any]] = {}
        with_timers = type(function).on_timer is not KeyedProcessFunction.on_timer
        self._context = ProcessContext(backend, with_timers, broadcasts or {})
        self._broadcasts = tuple((broadcasts or {}).values())
        self._closed = False
        function.open(self._context)

    def __enter__(self) -> KeyedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Call the function's `close`, once."""
        if not self._closed:
            self._closed = True
            self._function.close()

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
        keys = self._backend.group_keys(self._key_columns(batch))
        timestamps = self._timestamps(batch)
        self._context.enter(self._plain_keys(keys), timestamps and timestamps.to_pylist())
        with self._backend.transaction(*self._broadcasts):
            return self._applied(keys, lambda: (*self._run(batch, keys.groups().tolist()), timestamps))

    def advance_watermark(self, watermark: int) -> pa.Array:
        """Advance event time, and fire all event-time timers up to it, in the order of time, as one batch.

        Parameters
        ----------
        watermark
            Milliseconds since 1970. One below the current watermark is passed over: nothing fires.

        Returns
        -------
        pa.Array
            One entry per value emitted, of the output type.

        Raises
        ------
        ProcessElementError
            If the function raised, or a value it wrote or emitted does not fit; it names the timer. The states are as
            before the call then, and the timers stay registered and fire by the next call.
        """
        self._check_open()
        watermark = check_integer("watermark", watermark)
        if self._backend.watermark is not None and watermark < self._backend.watermark:
            return pa.array([], self._output)
        with self._backend.transaction(*self._broadcasts):
            self._backend.advance_watermark(watermark)
            return self._fire("event_time", watermark)

    def advance_processing_time(self, now_ms: int) -> pa.Array:
        """Fire all processing-time timers up to `now_ms`, milliseconds since 1970, as `advance_watermark` does."""
        self._check_open()
        now_ms = check_integer("now_ms", now_ms)
        with self._backend.transaction(*self._broadcasts):
            return self._fire("processing_time", now_ms)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInputError("this process function has been closed")

    def _applied(self, keys: KeyBatch, run: Callable[[], tuple[list[Any], list[int], pa.Array | None]]) -> pa.Array:
        """Run the function over a batch and write what it wrote; return what it emitted."""
        states, timers = self._context.states, self._context.own_timers
        try:
            for state in states:
                state.begin(keys)
            if timers is not None:
                timers.begin(keys)
            emitted, counts, timestamps = run()
            out = self._converted(emitted, counts)
            for state in states:
                state.convert(timestamps)
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

    def _fire(self, clock: str, until: int) -> pa.Array:
        """Fire the timers of a clock up to a time."""
        timers = self._context.own_timers
        if timers is None:
            return pa.array([], self._output)
        due = timers.states[clock].pop_due(until)
        if not due.num_rows:
            return pa.array([], self._output)
        keys = self._backend.group_keys(self._key_columns(due.select(self._backend.key.names)))
        numbers, times = keys.groups().tolist(), due.column(0).to_pylist()
        context, out = self._context, Collector()
        fired: list[int] = []
        counts: list[int] = []
        context.enter(self._plain_keys(keys), fired)

        def run() -> tuple[list[Any], list[int], pa.Array | None]:
            try:
                for context.number, timestamp in timers.fire(clock, until, numbers, times):
                    context.row = len(fired)
                    fired.append(timestamp)
                    self._function.on_timer(timestamp, context, out)
                    counts.append(len(out.values))
            except Exception as error:
                detail = f"timer of {context.current_key!r} at {fired[-1]}: {_described(error)}"
                raise ProcessElementError(context.row, detail) from error
            return out.values, counts, pa.array(fired, pa.int64())

        return self._applied(keys, run)

    def _run(self, batch: pa.RecordBatch, numbers: list[int]) -> tuple[list[Any], list[int]]:
        """Call the function for every row; return what it emitted, and how much it had emitted after each row."""
        context, out = self._context, Collector()
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
        try:
            return python_array(emitted, self._output)
        except CONVERSION_ERRORS as error:
            for number, value in enumerate(emitted):
                try:
                    python_array([value], self._output)
                except CONVERSION_ERRORS as cause:
                    row = int(np.searchsorted(counts, number, side="right")) if counts else 0
                    detail = f"emitted {value!r}, which is no {self._output}; declare the type with output="
                    raise ProcessElementError(row, detail) from cause
            raise ProcessElementError(0, str(error)) from error

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

    def _key_columns(self, batch: pa.RecordBatch) -> Any:
        names = self._backend.key.names
        missing = [name for name in names if name not in batch.schema.names]
        if missing:
            raise InvalidInputError(
                f"a batch must have the key columns {', '.join(names)}; it has {', '.join(batch.schema.names)}"
            )
        return batch.column(names[0]) if len(names) == 1 else batch.select(names)

    def _timestamps(self, batch: pa.RecordBatch) -> pa.Array | None:
        name = self._timestamp
        if name is None:
            return None
        if name not in batch.schema.names:
            raise InvalidInputError(
                f"a batch must have the timestamp column {name}; it has {', '.join(batch.schema.names)}"
            )
        column = batch.column(name)
        if column.null_count:
            raise NullKeyError(name, int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]))
        return timestamp_array(name, column, round_down=True)


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, ValueTypeError) else f"{type(error).__name__}: {error}"


def _one_batch(batch: Any) -> pa.RecordBatch:
    if isinstance(batch, pa.Table):
        batches = batch.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=batch.schema)
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidInputError(f"expected a record batch or a table, got {type(batch).__name__}")
    return batch
