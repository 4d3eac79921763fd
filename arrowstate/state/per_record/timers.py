"""The timers of a process function: what it registers and deletes, collected over a batch, and the order of firing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.times import saturated
from arrowstate.state.kinds.timers import TimerState
from arrowstate.state.per_record.places import Place, key_rows
from arrowstate.state.shown import Shown
from arrowstate.table.key_batch import KeyBatch


class ElementTimers(Shown):
    """The timers of the element's key: timestamps in milliseconds since 1970, each once per clock.

    Those that 64 bits cannot hold become the lowest or highest they can.
    """

    _plumbing = frozenset({"apply", "begin", "convert", "end", "fire", "states"})

    def __init__(self, event: TimerState, processing: TimerState, key: pa.Schema, place: Place) -> None:
        self.states = {"event_time": event, "processing_time": processing}
        self._key = key
        self._place = place
        self._keys: KeyBatch | None = None
        self._changes: dict[str, dict[tuple[int, int], bool]] = {}
        self._writes: list[tuple[TimerState, bool, Any, pa.Array]] = []
        self._firing: str | None = None
        self._until = 0
        self._live: set[tuple[int, int]] = set()
        self._heap: list[tuple[int, int, int]] = []
        self._order = count()

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the watermark reaches the timestamp."""
        self._set("event_time", timestamp, registered=True)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered."""
        self._set("event_time", timestamp, registered=False)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the processing time reaches the timestamp."""
        self._set("processing_time", timestamp, registered=True)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered."""
        self._set("processing_time", timestamp, registered=False)

    def begin(self, keys: KeyBatch) -> None:
        """Start a batch with these distinct keys."""
        self.end()
        self._keys = keys

    def fire(self, clock: str, until: int, numbers: list[int], timestamps: list[int]) -> Iterator[tuple[int, int]]:
        """Yield (number of the key, timestamp) of timers in the order of time, those registered meanwhile included.

        What has been taken out of the table to fire is given by `numbers` and `timestamps`.
        """
        self._firing, self._until = clock, until
        self._live = set(zip(numbers, timestamps, strict=True))
        self._heap = [(time, next(self._order), number) for number, time in zip(numbers, timestamps, strict=True)]
        heapq.heapify(self._heap)
        while self._heap:
            timestamp, _, number = heapq.heappop(self._heap)
            # One that was deleted, or deleted and registered again, has left an old place in the heap.
            if (number, timestamp) in self._live:
                self._live.discard((number, timestamp))
                yield number, timestamp

    def convert(self) -> None:
        """Make columns of what was registered and deleted."""
        assert self._keys is not None
        for clock, changes in self._changes.items():
            for registered in (False, True):
                chosen = [place for place, each in changes.items() if each == registered]
                if chosen:
                    keys = key_rows(self._keys, [number for number, _ in chosen], self._key)
                    times = pa.array([timestamp for _, timestamp in chosen], pa.int64())
                    self._writes.append((self.states[clock], registered, keys, times))

    def apply(self) -> None:
        """Register and delete."""
        for state, registered, keys, times in self._writes:
            (state.register_batch if registered else state.delete_batch)(keys, times)

    def end(self) -> None:
        """Forget the batch."""
        self._keys, self._firing = None, None
        self._changes = {clock: {} for clock in self.states}
        self._writes, self._heap, self._live = [], [], set()

    def _set(self, clock: str, timestamp: int, *, registered: bool) -> None:
        if self._keys is None:
            raise InvalidInputError("timers belong to the key of an element: use them in process_element or on_timer")
        time, number = saturated(timestamp), self._place.number
        if clock != self._firing or time > self._until:
            self._changes[clock][number, time] = registered
        elif not registered:
            self._live.discard((number, time))
        elif (number, time) not in self._live:
            self._live.add((number, time))
            heapq.heappush(self._heap, (time, next(self._order), number))
