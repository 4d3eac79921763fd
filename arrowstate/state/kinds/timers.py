"""Timers: timestamps per key and namespace, each once, that come out in the order of time.

A timer is a row of a table without value columns, so timers are found, deleted, frozen and rescaled as every
state is. Those that are due are found by the time column of the table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import TimerStateDescriptor
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.plain import plain_value
from arrowstate.schema.times import saturated, timestamp_array
from arrowstate.state.base import KeyedState
from arrowstate.state.current_key import CurrentKey, KeyContext, identities_of, identity_of
from arrowstate.state.pending import Pending, together
from arrowstate.state.transaction import atomic
from arrowstate.table import kernels, pair_kernels
from arrowstate.table.columns import take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import Found, Table, find_keys, gather
from arrowstate.table.time_column import TimeColumn

Ints = npt.NDArray[np.int64]

_CHUNK_TIMERS = 1024


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires, as a callback gets it.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> timers = backend.timers()
    >>> timers.register_batch(["ann"], [10])
    >>> timers.advance_watermark(10, print)
    Timer(timestamp=10, key='ann', namespace=None)
    1
    """

    timestamp: int
    "Milliseconds since 1970."
    key: Any
    "A plain value, or a tuple for several key columns."
    namespace: Any = None
    "A plain value, or a tuple for several namespace columns; None if the timers have no namespaces."


class _Entry(Struct, frozen=True):
    """A timer of a scalar verb, or one that was taken out of the table to fire next."""

    timestamp: int
    key: CurrentKey
    namespace: tuple[pa.Array, ...]
    registered: bool = True


class TimerState(KeyedState[TimerStateDescriptor]):
    """The timers of one time domain; used through `TimerService`."""

    _plumbing = frozenset(
        {"check_not_firing", "fire", "merge_namespaces_batch", "none_after", "take_namespace", "write_current"}
    )

    def __init__(
        self, descriptor: TimerStateDescriptor, layout: StateLayout, table: Table, context: KeyContext
    ) -> None:
        super().__init__(descriptor, layout, table, context)
        self._column = layout.first_value - 1
        self._times = TimeColumn(table, self._column)
        # While timers fire: those taken out of the table, which are all up to this timestamp.
        self._due: Pending[Any, _Entry] = Pending()
        self._heap: list[tuple[int, int, Any]] = []
        self._cut: int | None = None
        self._turn = count()
        self._firing = False

    def begin(self) -> Any:
        return super().begin(), self._times.begin(), self._due.begin(), self._heap, self._cut

    def keep(self) -> None:
        super().keep()
        self._times.keep()
        self._due.keep()

    def go_back(self, mark: Any) -> None:
        rows, times, due, self._heap, self._cut = mark
        super().go_back(rows)
        self._times.go_back(times)
        self._due.go_back(due)

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory, the order of time included; mapped rows do not count."""
        return super().memory_bytes + self._times.memory_bytes

    @atomic
    def register_batch(self, keys: Any, timestamps: Any, *, namespace: Any = None) -> None:
        """Register one timer per row; one that is registered already stays one timer."""
        batch = self._batch(keys, timestamps, namespace)
        self._expiry.settle()
        self._register(batch)

    @atomic
    def delete_batch(self, keys: Any, timestamps: Any, *, namespace: Any = None) -> None:
        """Delete one timer per row; one that is not registered is passed over."""
        batch = self._batch(keys, timestamps, namespace)
        self._table.remove(self._find_timers(batch))

    @atomic
    def contains_batch(self, keys: Any, timestamps: Any, *, namespace: Any = None) -> npt.NDArray[np.bool_]:
        """Return for each row whether its timer is registered."""
        batch = self._batch(keys, timestamps, namespace)
        registered = np.ones(len(batch), dtype=np.bool_)
        registered[self._find_timers(batch).absent] = False
        return registered[batch.groups()]

    def write_current(self, timestamp: Any, *, registered: bool) -> None:
        """Register or delete a timer of the current key and namespace."""
        time = saturated(timestamp)
        key = self._context.current
        spaces = () if self.descriptor.namespace is None else tuple(self._current_namespace()[1])
        identity = (key.identity, tuple(identity_of(column) for column in spaces), time)
        if self._cut is not None and time <= self._cut:
            if not registered:
                if identity in self._due:
                    del self._due[identity]
            elif identity not in self._due:
                self._push(identity, _Entry(time, key, spaces))
            return
        self._note(identity, _Entry(time, key, spaces, registered))

    @atomic
    def pop_due(self, time: int) -> pa.RecordBatch:
        """Remove and return the timers with a timestamp up to `time`, in the order of time."""
        self._flush()
        return self._pop(time)

    def fire(self, time: int, on_timer: Callable[[Timer], object], other: TimerState) -> int:
        """Call `on_timer` for each timer up to `time` in the order of time; return how many fired.

        `other` are the timers of the other clock, whose current namespace goes along.
        """
        self._flush()
        fired = 0
        with self._context.kept(), self.kept_namespace(), other.kept_namespace(), self._marked():
            while (cut := self._times.cut(time, _CHUNK_TIMERS)) is not None:
                try:
                    self._take_out(cut)
                    while (due := self._earliest_due()) is not None:
                        # A callback that raises has done nothing, and its timer is as registered as before.
                        with self.transactions.begun():
                            self._fire_one(*due, on_timer, other)
                        fired += 1
                finally:
                    self._put_back()
                self._flush()
        return fired

    def check_not_firing(self) -> None:
        """Refuse to fire timers from a callback, which would be out of order."""
        if self._firing:
            raise InvalidInputError(f"{self.descriptor.name!r} is firing; a callback registers timers, it fires none")

    @contextmanager
    def _marked(self) -> Iterator[None]:
        self._firing = True
        try:
            yield
        finally:
            self._firing = False

    @atomic
    def next_timestamp(self) -> int | None:
        """Return the timestamp of the earliest timer, None if there is none."""
        self._flush()
        return self._times.earliest()

    def none_after(self, time: int) -> bool:
        """Whether it is certain, without looking at every timer, that none has a later timestamp."""
        self._flush()
        return self._times.none_after(time)

    def _flush(self, *, settle: bool = True) -> None:
        super()._flush(settle=settle)
        # What a callback reads, writes in batches or freezes holds the timers that have not fired yet.
        self._put_back()

    def _batch(self, keys: Any, timestamps: Any, namespace: Any) -> KeyBatch:
        self._flush()
        times = timestamp_array(self.descriptor.name, timestamps)
        columns = self._context.columns(keys)
        if len(times) != len(columns[0]):
            raise InvalidInputError(f"{len(columns[0])} keys need {len(columns[0])} timestamps, got {len(times)}")
        return self._context.group(columns, [*self._namespace_columns(namespace, len(times)), times])

    def _apply(self, writes: Sequence[_Entry]) -> None:
        for registered in (False, True):
            chosen = [entry for entry in writes if entry.registered is registered]
            if not chosen:
                continue
            columns = together(entry.key.columns for entry in chosen)
            times = pa.array([entry.timestamp for entry in chosen], pa.int64())
            batch = self._context.group(columns, [*together(entry.namespace for entry in chosen), times])
            if registered:
                self._register(batch)
            else:
                self._table.remove(self._find_timers(batch))

    def _register(self, batch: KeyBatch) -> None:
        found = self._find_timers(batch)
        if found.absent.size:
            # The rows of timers that are there already stay where they are.
            self._table.put(Found(len(batch), (), found.absent), batch, [], keep=found.absent)

    def _find_timers(self, batch: KeyBatch) -> Found:
        """Find timers, in runs with timestamps such as theirs only: most runs hold another time."""
        if not len(batch):
            return Found(0, (), np.empty(0, dtype=np.int64))
        ends = pc.min_max(batch.columns[-1]).as_py()
        return find_keys(self._times.overlapping(ends["min"], ends["max"]), batch)

    def _pop(self, time: int) -> pa.RecordBatch:
        found = self._times.find(time)
        schema = self.layout.schema
        hashes = gather(found, 0, pa.int64()).to_numpy()
        seconds = gather(found, 1, pa.int64()).to_numpy()
        times = gather(found, self._column, pa.int64()).to_numpy()
        by_key = pair_kernels.sort_by_pair(hashes, seconds)
        sorted_times, by_time = kernels.sort_by_hash(times[by_key])
        order = by_key[by_time]
        fields = [schema.field(self._column), *(schema.field(number) for number in range(2, self._column))]
        columns = [pa.array(sorted_times)]
        columns += [take(gather(found, number, schema.field(number).type), order) for number in range(2, self._column)]
        popped = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        self._times.remove(found)
        return popped

    # Firing

    @atomic
    def _take_out(self, cut: int) -> None:
        batch = self._pop(cut)
        self._cut = cut
        if not batch.num_rows:
            return
        last = 1 + len(self.layout.key)
        columns, spaces = batch.columns[1:last], batch.columns[last:]
        of_keys = list(zip(*(identities_of(column) for column in columns), strict=True))
        of_spaces = list(zip(*(identities_of(column) for column in spaces), strict=True)) or [()] * batch.num_rows
        for row, (time, key, space) in enumerate(zip(batch.column(0).to_pylist(), of_keys, of_spaces, strict=True)):
            one = tuple(column.slice(row, 1) for column in columns)
            current = CurrentKey(key, one, _plain(one))
            entry = _Entry(time, current, tuple(column.slice(row, 1) for column in spaces))
            self._push((key, space, time), entry)

    def _push(self, identity: Any, due: _Entry) -> None:
        self._due[identity] = due
        heapq.heappush(self._heap, (due.timestamp, next(self._turn), identity))

    def _earliest_due(self) -> tuple[Any, _Entry] | None:
        while self._heap:
            identity = heapq.heappop(self._heap)[2]
            # One that was deleted, or deleted and registered again, has left its old place in the heap.
            if identity in self._due:
                return identity, self._due[identity]
        return None

    def _fire_one(self, identity: Any, due: _Entry, on_timer: Callable[[Timer], object], other: TimerState) -> None:
        del self._due[identity]
        self._context.use(due.key)
        namespace = _plain(due.namespace) if due.namespace else None
        if due.namespace:
            for state in (self, other):
                state.take_namespace(namespace, list(due.namespace))
        on_timer(Timer(due.timestamp, due.key.value, namespace))

    def _put_back(self) -> None:
        """Put what was taken out and has not fired back into the table; that needs no room on disk."""
        if self._due:
            self._apply(list(self._due.values()))
            self._due.clear()
        self._heap, self._cut = [], None

    def take_namespace(self, value: Any, columns: list[pa.Array]) -> None:
        """Set the current namespace, given in both forms."""
        self._namespace = (value, columns)


def _plain(columns: tuple[pa.Array, ...]) -> Any:
    values = tuple(plain_value(column[0], "a timer") for column in columns)
    return values[0] if len(values) == 1 else values
