"""Process functions: the code of users that sees one record at a time, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from arrowstate.errors import InvalidInputError
from arrowstate.functions.checkpointed import CheckpointedFunction
from arrowstate.functions.runner import Context
from arrowstate.functions.side_outputs import ElementSides, OutputTag
from arrowstate.schema.descriptors import StateDescriptor, TimerStateDescriptor
from arrowstate.schema.plain import same
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.operator_list import ReadOnlyBroadcastState
from arrowstate.state.per_record.collections import ElementList, ElementMap
from arrowstate.state.per_record.places import ElementState
from arrowstate.state.per_record.rows import ElementAggregating, ElementReducing, ElementValue
from arrowstate.state.per_record.timers import ElementTimers

_VIEWS: dict[str, Any] = {
    "value": ElementValue,
    "reducing": ElementReducing,
    "aggregating": ElementAggregating,
    "list": ElementList,
    "map": ElementMap,
}


class Collector:
    """Takes what a process function emits, as it is then: `out.collect(value)`."""

    __slots__ = ("collect", "values")

    def __init__(self, copied: Callable[[Any], Any] = same) -> None:
        self.values: list[Any] = []
        append = self.values.append
        self.collect: Callable[[Any], None] = append if copied is same else lambda value: append(copied(value))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.values)} elements>"


class ProcessContext(Context):
    """What a process function knows besides the element: its states, its timers, the current key and the time."""

    _plumbing = frozenset({"enter", "event_time", "number", "own_timers", "row", "states"})

    def __init__(
        self,
        backend: KeyedStateBackend,
        timers: bool,
        broadcasts: Mapping[str, ReadOnlyBroadcastState],
        sides: ElementSides,
        operator_states: OperatorStateBackend | None = None,
    ) -> None:
        super().__init__(backend, broadcasts, operator_states)
        self._sides = sides
        self.clock: Literal["event_time", "processing_time"] | None = None
        "In `on_timer`, the clock of the timer that fires; else None."
        self.row = 0
        "The row of the batch that the element comes from."
        self.number = 0
        "The number of the element's key among those of the batch."
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
        """Return the state with this descriptor; in `process_element` it is the state of the element's key.

        Call it in `open`. A value state has `value`, `update`, `clear`; reducing and aggregating states have `add`,
        `get`, `clear`; list and map states have the same verbs for one record as in the backend.

        A state with namespaces also has `current_namespace`, which stays until another is set, and
        `merge_namespaces` if the backend has it. All namespaces of all keys of a batch are read at once, so namespaces
        that nobody needs any more cost time in every batch. A namespace with other columns than int64 and string costs
        about 0.2 ms when it is first set in a batch.

        Values added to an aggregating state are added up once a batch. A `get` after an `add` to the same key must
        add them up at once: it costs about 0.4 ms, a hundred times as much as an `add`.

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
        >>> with arrowstate.KeyedProcessRunner(backend, PerHour(), output=pa.int64()) as process:
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

    def output(self, tag: OutputTag, value: Any) -> None:
        """Send a value to a side output, which the function names in `side_outputs`.

        Parameters
        ----------
        tag
            The side output.
        value
            A plain value if the side output has one column, else a tuple or a mapping. A value that does not fit fails
            the row.

        Raises
        ------
        InvalidInputError
            If the function has no such side output, or no element or timer is being processed.
        """
        self._sides.add(tag, value, self.row)

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
    def event_time(self) -> int | None:
        """The timestamp, None in a timer by processing time."""
        times = self._timestamps
        return None if times is None or self.clock == "processing_time" else times[self.row]

    def enter(self, keys: list[list[Any]], timestamps: list[int] | None) -> None:
        """Start a batch with these key columns, one entry per distinct key."""
        self._keys, self._timestamps = keys, timestamps


class KeyedProcessFunction(CheckpointedFunction):
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
    >>> visits = arrowstate.KeyedProcessRunner(backend, Visits(), output=pa.string())
    >>> visits.process(pa.record_batch({"user": ["ann", "bob", "ann"], "page": ["/", "/", "/cart"]})).to_pylist()
    ['ann is back at /cart']
    """

    side_outputs: Sequence[OutputTag] = ()
    "The tags that it hands values to, by `context.output`."

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

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

        A timer that it registers fires in the same call if it is due already.

        Parameters
        ----------
        timestamp
            Of the timer, in milliseconds since 1970.
        context
            The key of the timer; its timestamp is that of the timer, and its `clock` is `event_time` or
            `processing_time`.
        out
            Takes what is emitted, by `out.collect(value)`.
        """

    def close(self) -> None:
        """Called once after the last element."""
