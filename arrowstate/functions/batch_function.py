"""A batch at a time over Arrow data: batch functions, and what runs them.

A batch function sees all rows of a batch at once and works on its states and timers by their batch verbs, so nothing
in it loops over rows. It is to a `KeyedProcessFunction` what a vectorised function is to a scalar one: the same
states, timers and watermark, and a batch that is applied as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.functions.checkpointed import CheckpointedFunction
from arrowstate.functions.runner import Context, Runner, batches_of, key_columns_of
from arrowstate.functions.side_outputs import BatchSides, OutputTag, fitted, nullable
from arrowstate.schema.descriptors import StateDescriptor, TimerStateDescriptor
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.kinds.timer_service import TimerService
from arrowstate.state.operator_list import ReadOnlyBroadcastState
from arrowstate.table.key_batch import KeyBatch
from arrowstate_formats.integers import check_integer

Output: TypeAlias = pa.RecordBatch | pa.Table | None
"""What a batch function emits: rows, or none."""


class BatchContext(Context):
    """What a batch function knows besides the rows: its states, its timers and the time.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> class Clock(arrowstate.BatchFunction):
    ...     def process_batch(self, batch, context):
    ...         print(context.key.names, context.watermark, context.processing_time)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> with arrowstate.BatchRunner(backend, Clock(), now_ms=lambda: 1_700_000_000_000) as process:
    ...     _ = process.advance_watermark(90)
    ...     _ = process.process(pa.record_batch({"user": ["ann"]}))
    ['user'] 90 1700000000000
    """

    _plumbing = frozenset({"own_timers"})

    def __init__(
        self,
        backend: KeyedStateBackend,
        broadcasts: Mapping[str, ReadOnlyBroadcastState],
        now_ms: Callable[[], int],
        sides: BatchSides,
        operator_states: OperatorStateBackend | None = None,
    ) -> None:
        super().__init__(backend, broadcasts, operator_states)
        self._sides = sides
        self._now_ms = now_ms
        self._timers: dict[str, TimerService] = {}
        self.clock: Literal["event_time", "processing_time"] | None = None
        "In `on_timers`, the clock of the timers that fire; else None."
        self.timers_name: str | None = None
        "In `on_timers`, the name of the timers that fire; else None."

    @property
    def key(self) -> pa.Schema:
        """The schema of the key columns."""
        return self._backend.key

    @property
    def backend(self) -> KeyedStateBackend:
        """The keyed state of the subtask, for operators such as `WindowOperator` that are made over one."""
        return self._backend

    @property
    def processing_time(self) -> int:
        """The processing time in milliseconds since 1970; on Spark that of the micro-batch, repeated or not."""
        return self._now_ms()

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the state with this descriptor, as `KeyedStateBackend.state` does; to be called in `open`."""
        if isinstance(descriptor, TimerStateDescriptor):
            raise InvalidInputError(f"{descriptor.name!r} holds timers; ask the context for them with timers()")
        return self._backend.state(descriptor)

    def timers(self, name: str = "timers", namespace: pa.Schema | None = None) -> TimerService:
        """Return the timers of a name, as `KeyedStateBackend.timers` does; to be called in `open`.

        Due timers go to `on_timers`.
        """
        self._timers[name] = self._backend.timers(name, namespace)
        return self._timers[name]

    @property
    def own_timers(self) -> Mapping[str, TimerService]:
        """The timers that have been asked for, by name."""
        return self._timers

    def output(self, tag: OutputTag, rows: pa.RecordBatch | pa.Table) -> None:
        """Send rows to a side output, which the function names in `side_outputs`.

        Raises
        ------
        InvalidInputError
            If the function has no such side output, the rows do not fit its columns, or nothing is processed.
        """
        self._sides.add(tag, batches_of(rows))

    def key_columns(self, batch: pa.RecordBatch) -> Any:
        """Return the key columns of a batch, in the form that the verbs of states take.

        Raises
        ------
        InvalidInputError
            If the batch lacks one.
        """
        return key_columns_of(self.key, batch)

    def group_keys(self, batch: pa.RecordBatch) -> KeyBatch:
        """Return the distinct keys of a batch, checked and hashed once for several verbs.

        Every state accepts the result in place of key columns. Value, reducing and aggregating states without
        namespaces hash nothing again, and their `read_keys` returns one value per distinct key. Its `columns` are the
        key columns, each key once, in the order of the key hash.

        Returns
        -------
        KeyBatch
            `columns`, the distinct keys by their hash, and which rows of the batch have them; an argument of verbs.

        Raises
        ------
        InvalidInputError
            If the batch lacks a key column.
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If a key does not fit the key schema or belongs to another subtask.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> class Totals(arrowstate.BatchFunction):
        ...     def open(self, context):
        ...         self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        ...
        ...     def process_batch(self, batch, context):
        ...         keys = context.group_keys(batch)
        ...         self.total.add_batch(keys, batch["amount"])
        ...         return pa.record_batch([*keys.columns, self.total.read_keys(keys)], names=["user", "total"])
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with arrowstate.BatchRunner(backend, Totals()) as process:
        ...     rows = process.process(pa.record_batch({"user": ["ann", "bob", "ann"], "amount": [1, 5, 2]}))
        >>> sorted(rows.to_pylist(), key=lambda row: row["user"])
        [{'user': 'ann', 'total': 3}, {'user': 'bob', 'total': 5}]
        """
        return self._backend.group_keys(self.key_columns(batch))


class BatchFunction(CheckpointedFunction):
    """Processes a batch at a time, with state per key. Derive from it.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> class Totals(arrowstate.BatchFunction):
    ...     def open(self, context):
    ...         self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    ...
    ...     def process_batch(self, batch, context):
    ...         self.total.add_batch(batch["user"], batch["amount"])
    ...         users = batch["user"].unique()
    ...         return pa.record_batch({"user": users, "total": self.total.get_batch(users)})
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> with arrowstate.BatchRunner(backend, Totals()) as process:
    ...     process.process(pa.record_batch({"user": ["ann", "bob", "ann"], "amount": [1, 5, 2]})).to_pylist()
    [{'user': 'ann', 'total': 3}, {'user': 'bob', 'total': 5}]
    """

    side_outputs: Sequence[OutputTag] = ()
    "The tags that it hands rows to, by `context.output`."

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def open(self, context: BatchContext) -> None:
        """Called once before the first batch: the place to ask the context for states and timers."""

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> Output:  # noqa: ARG002
        """Process the rows of a batch; not called for a batch without rows.

        Parameters
        ----------
        batch
            The key columns and all others.
        context
            The states, the timers and the time.

        Returns
        -------
        pa.RecordBatch, pa.Table or None
            The rows to emit.
        """
        raise TypeError(f"{type(self).__name__} has no process_batch(batch, context); define it")

    def on_watermark(self, watermark: int, context: BatchContext) -> Output:  # noqa: ARG002
        """Called with a higher watermark, in milliseconds, before event-time timers up to it fire.

        `context.watermark` is still the one before it.
        """
        return None

    def on_processing_time(self, now_ms: int, context: BatchContext) -> Output:  # noqa: ARG002
        """Called after processing time has passed, in milliseconds, and before processing-time timers up to it fire."""
        return None

    def next_processing_time(self) -> int | None:
        """Return when `on_processing_time` must be called next, in milliseconds since 1970; None for never.

        Timers do not count here, because their times are known.
        """
        return None

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> Output:  # noqa: ARG002
        """Called with due timers, and again while there are more: due timers that it registers fire in the same step.

        Parameters
        ----------
        timers
            `timestamp` int64, milliseconds since 1970, ascending; the key columns; the namespace columns. They are no
            longer registered.
        context
            Also says which timers these are: `context.timers_name` and `context.clock`.
        """
        raise TypeError(f"{type(self).__name__} has timers and no on_timers(timers, context); define it")

    def close(self) -> None:
        """Called once after the last batch."""


class BatchRunner(Runner[BatchFunction, BatchContext]):
    """Runs a batch function over Arrow batches.

    If the function raises, or emits rows that do not fit, or the disk is full, everything is as before the call: states
    and timers, the watermark and the processing time, and broadcast states if they were changed meanwhile. Only
    attributes that the function set on itself stay changed.

    Parameters
    ----------
    backend
        Holds the states.
    function
        The function; its `open` is called here.
    output
        The columns that it emits; by default those of the first rows that it emits.
    broadcasts
        Broadcast states by name.
    now_ms
        Returns the processing time in milliseconds since 1970; by default the time of the last
        `advance_processing_time`, 0 before it.
    operator_states
        The operator state of the subtask, for `context.operator_state`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> class Silence(arrowstate.BatchFunction):
    ...     def open(self, context):
    ...         self.timers = context.timers()
    ...
    ...     def process_batch(self, batch, context):
    ...         self.timers.register_batch(batch["user"], batch["ts"])
    ...
    ...     def on_timers(self, timers, context):
    ...         return timers
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> process = arrowstate.BatchRunner(backend, Silence())
    >>> process.process(pa.record_batch({"user": ["ann", "bob"], "ts": [10, 20]})).num_rows
    0
    >>> process.advance_watermark(15).to_pylist()
    [{'timestamp': 10, 'user': 'ann'}]
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        function: BatchFunction,
        *,
        output: pa.Schema | None = None,
        broadcasts: Mapping[str, ReadOnlyBroadcastState] | None = None,
        now_ms: Callable[[], int] | None = None,
        operator_states: OperatorStateBackend | None = None,
    ) -> None:
        self._output = None if output is None else nullable(output)
        self._time = 0
        sides = BatchSides(function)
        context = BatchContext(backend, broadcasts or {}, now_ms or (lambda: self._time), sides, operator_states)
        super().__init__(backend, function, context, broadcasts or {}, sides, operator_states)

    def process(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        """Process the rows of a batch; return what the function emitted.

        Returns
        -------
        pa.Table
            The rows that the function emitted, with the columns of `output`.

        Raises
        ------
        InvalidInputError
            If `batch` is not a batch, the runner is closed, or the emitted rows do not fit the output.
        """
        self._check_open()
        batches = [item for item in batches_of(batch) if item.num_rows]
        return self._applied(lambda: [self._function.process_batch(item, self._context) for item in batches])

    def advance_watermark(self, watermark: int) -> pa.Table:
        """Advance event time, and fire all event-time timers up to it.

        Parameters
        ----------
        watermark
            Milliseconds since 1970. A watermark below the current one is ignored: nothing fires.

        Returns
        -------
        pa.Table
            The rows that the function emitted, with the columns of `output`.
        """
        self._check_open()
        watermark = check_integer("watermark", watermark)
        before = self._backend.watermark
        if before is not None and watermark < before:
            return self._applied(list)

        def run() -> Iterable[Output]:
            # A window operator advances the watermark of the backend itself, and fires by it.
            emitted = [] if watermark == before else [self._function.on_watermark(watermark, self._context)]
            self._backend.advance_watermark(watermark)
            return [*emitted, *self._fire("event_time", watermark)]

        return self._applied(run)

    def advance_processing_time(self, now_ms: int) -> pa.Table:
        """Fire all processing-time timers up to `now_ms`, milliseconds since 1970.

        Returns
        -------
        pa.Table
            The rows that the function emitted, with the columns of `output`.
        """
        self._check_open()
        now_ms = check_integer("now_ms", now_ms)

        def run() -> Iterable[Output]:
            self._time = max(self._time, now_ms)
            emitted = [self._function.on_processing_time(now_ms, self._context)]
            return [*emitted, *self._fire("processing_time", now_ms)]

        return self._applied(run)

    def next_processing_time(self) -> int | None:
        of_timers, of_function = super().next_processing_time(), self._function.next_processing_time()
        return of_function if of_timers is None else of_timers if of_function is None else min(of_timers, of_function)

    def _fire(self, clock: Literal["event_time", "processing_time"], until: int) -> list[Output]:
        emitted: list[Output] = []
        context = self._context
        try:
            context.clock = clock
            found = True
            while found:
                found = False
                for name, timers in context.own_timers.items():
                    due = timers.pop_due(until, clock=clock)
                    if due.num_rows:
                        found = True
                        context.timers_name = name
                        emitted.append(self._function.on_timers(due, context))
        finally:
            context.clock = context.timers_name = None
        return emitted

    def _applied(self, run: Callable[[], Iterable[Output]]) -> pa.Table:
        before = self._time, self._output
        try:
            with self._transaction(), self._sides.call():
                return self._table(run())
        except BaseException:
            self._time, self._output = before
            raise

    def _table(self, emitted: Iterable[Output]) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        for rows in emitted:
            if rows is None:
                continue
            for batch in batches_of(rows):
                self._output = self._output or nullable(batch.schema)
                batches.append(fitted(batch, self._output))
        schema = pa.schema([]) if self._output is None else self._output
        return pa.Table.from_batches(batches, schema)
