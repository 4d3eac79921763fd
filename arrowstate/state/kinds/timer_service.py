"""The timers of a backend as an operator uses them: registered on the current key, fired as time advances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.times import saturated
from arrowstate.state.current_key import KeyContext
from arrowstate.state.kinds.timers import Timer, TimerState


class TimerService:
    """The timers of an operator, by event time and by processing time.

    A timer belongs to a key, and to a namespace if the timers have namespaces. It fires when the time of its clock
    reaches its timestamp. A timer that is registered twice is one timer. Deleting a timer that is not registered does
    nothing. Timestamps are milliseconds since 1970; one that does not fit 64 bits becomes the lowest or the highest
    number that does. `clock` is `event_time` or `processing_time`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> timers = backend.timers()
    >>> timers.register_batch(["ann", "bob", "ann"], [30, 10, 20])
    >>> timers.pop_due(15).to_pylist()
    [{'timestamp': 10, 'user': 'bob'}]
    >>> timers.advance_watermark(100, lambda timer: print(timer.key, timer.timestamp))
    ann 20
    ann 30
    2
    """

    def __init__(self, event: TimerState, processing: TimerState, context: KeyContext) -> None:
        self._states = {"event_time": event, "processing_time": processing}
        self._context = context

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(state)} by {clock.replace('_', ' ')}" for clock, state in self._states.items())
        return f"<TimerService {counts}>"

    def __len__(self) -> int:
        """The number of timers of both clocks."""
        return sum(len(state) for state in self._states.values())

    def count(self, clock: str = "event_time") -> int:
        """Return the number of timers of a clock."""
        return len(self._of(clock))

    def register_batch(self, keys: Any, timestamps: Any, *, namespace: Any = None, clock: str = "event_time") -> None:
        """Register one timer per row.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema.
        timestamps
            One timestamp per row, without nulls: integers in milliseconds since 1970, or Arrow timestamps.
        namespace
            Only for timers with namespaces: the namespace of each row as columns, or one plain value for all rows.
        clock
            `event_time` or `processing_time`.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError, InvalidInputError
            If a key, timestamp or namespace does not fit. No timer is registered then.
        """
        self._of(clock).register_batch(keys, timestamps, namespace=namespace)

    def delete_batch(self, keys: Any, timestamps: Any, *, namespace: Any = None, clock: str = "event_time") -> None:
        """Delete one timer per row; arguments and errors as for `register_batch`."""
        self._of(clock).delete_batch(keys, timestamps, namespace=namespace)

    def pop_due(self, time: int, *, clock: str = "event_time") -> pa.RecordBatch:
        """Remove and return all timers with a timestamp up to `time`; the watermark stays as it is.

        Parameters
        ----------
        time
            Milliseconds since 1970, inclusive.
        clock
            `event_time` or `processing_time`.

        Returns
        -------
        pa.RecordBatch
            `timestamp` int64, milliseconds since 1970, ascending; the key columns; the namespace columns. No nulls.
            Where a key column is named `timestamp`, the first column is `<state>_timestamp`.
        """
        return self._of(clock).pop_due(saturated(time))

    def next_timestamp(self, clock: str = "event_time") -> int | None:
        """Return the timestamp of the earliest timer, in milliseconds since 1970; None if there is no timer."""
        return self._of(clock).next_timestamp()

    @property
    def current_namespace(self) -> Any:
        """The namespace that scalar verbs work in."""
        return self._states["event_time"].current_namespace

    @current_namespace.setter
    def current_namespace(self, value: Any) -> None:
        for state in self._states.values():
            state.current_namespace = value

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer of the current key and namespace."""
        self._states["event_time"].write_current(timestamp, registered=True)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key and namespace, if it is registered."""
        self._states["event_time"].write_current(timestamp, registered=False)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer of the current key and namespace."""
        self._states["processing_time"].write_current(timestamp, registered=True)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key and namespace, if it is registered."""
        self._states["processing_time"].write_current(timestamp, registered=False)

    def advance_watermark(self, watermark: int, on_timer: Callable[[Timer], object]) -> int:
        """Set the watermark, then fire all event-time timers with a timestamp up to it, in the order of time.

        While `on_timer` runs, the current key and the current namespace are those of the timer. A timer that `on_timer`
        registers at or below the watermark fires in the same call, and a timer that it deletes does not fire. Outside
        of `on_timer`, a timer registered at or below the watermark waits for the next call. If `on_timer` raises, what
        it did for its timer is undone. This timer and those after it stay registered, and fire at the next call with
        this watermark or a higher one.

        Parameters
        ----------
        watermark
            Milliseconds since 1970. If it is below the current watermark, nothing happens.
        on_timer
            Called with each `Timer`.

        Returns
        -------
        int
            How many timers fired.
        """
        time = saturated(watermark)
        self._states["event_time"].check_not_firing()
        if self._context.watermark is not None and time < self._context.watermark:
            return 0
        # What may fail for want of room does so before time has passed.
        self._states["event_time"].flush()
        self._context.watermark = time
        return self._fire("event_time", time, on_timer)

    def advance_processing_time(self, on_timer: Callable[[Timer], object], *, now_ms: int | None = None) -> int:
        """Fire all processing-time timers with a timestamp up to now, as `advance_watermark` does.

        Parameters
        ----------
        on_timer
            Called with each `Timer`.
        now_ms
            Milliseconds since 1970; by default what the backend's clock says.

        Returns
        -------
        int
            How many timers fired.
        """
        now = self._context.now("processing_time") if now_ms is None else now_ms
        assert now is not None
        self._states["processing_time"].check_not_firing()
        return self._fire("processing_time", saturated(now), on_timer)

    def _fire(self, clock: str, time: int, on_timer: Callable[[Timer], object]) -> int:
        state = self._of(clock)
        (other,) = (item for item in self._states.values() if item is not state)
        return state.fire(time, on_timer, other)

    def _of(self, clock: str) -> TimerState:
        if clock not in self._states:
            raise InvalidInputError(f"the clock of a timer must be event_time or processing_time, got {clock!r}")
        return self._states[clock]
