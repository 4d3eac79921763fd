"""The states with one row per key as a process function sees them: value, reducing and aggregating state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.schema.plain import copying, integer_bounds
from arrowstate.state.expiry import UNKNOWN_TIME
from arrowstate.state.kinds.aggregating import AggregatingState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.state.kinds.value import ValueState
from arrowstate.state.per_record.folding import fold_of, given_of
from arrowstate.state.per_record.places import NONE_EXPIRED, ElementState, Place, Sparse
from arrowstate.table.key_batch import KeyBatch

OneRow = TypeVar("OneRow", bound=ValueState | ReducingState | AggregatingState)
Folding = TypeVar("Folding", bound=ReducingState | AggregatingState)


class _ElementRow(ElementState[OneRow]):
    """A state with one row per key: values by place, with a time to live also their times, and which were written."""

    def __init__(self, state: OneRow, place: Place) -> None:
        super().__init__(state, place)
        self._values: Any = []
        self._times: Any = None
        # Whether what is in the batch may expire or be renewed within it, so that times count before its end.
        self._ages = False
        self._written: Any = []
        self._renewed: set[Any] = set()
        self._write: Callable[[], None] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        stored, places = self._stored()
        values, times = self.state.unread(stored)
        self._values = self._by_place(places, self._held(values))
        self._times = None if times is None else self._by_place(places, times.to_pylist())
        oldest = None if times is None else pc.min(times).as_py()
        expires = oldest is not None and oldest <= self._expired_up_to
        self._ages = self._by_event_time or expires or self._renewed_to > NONE_EXPIRED
        self._written = [False] * len(keys) if self._space is None else Sparse()
        self._renewed = set()
        self._write = None

    def clear(self) -> None:
        """Remove the value of the element's key."""
        self._get()
        self._drop(self._place.number)

    def convert(self) -> None:
        places = self._written if self._space is not None else np.flatnonzero(self._written).tolist()
        if places:
            keys, places = self._grouped(places)
            self._stage(keys, places, self._columns(places))

    def apply(self) -> None:
        if self._write is not None:
            self._write()
        # What was written has its time already.
        read = [place for place in self._renewed if not self._written[place]]
        if read:
            self.state.stored_values(self._grouped(read)[0])

    def end(self) -> None:
        super().end()
        self._values, self._times, self._written, self._write = [], None, [], None
        self._ages = False

    def _held(self, stored: pa.Array) -> list[Any]:
        """Return what is kept of stored values."""
        return self._plain(stored)

    def _columns(self, places: Sequence[Any]) -> pa.Array:
        """Return the values in places as they are stored."""
        # A range is of all places.
        values = self._values if isinstance(places, range) else [self._values[place] for place in places]
        return pa.array(values, self.state.descriptor.type)

    def _stage(self, keys: KeyBatch, places: Sequence[Any], values: pa.Array) -> None:
        """Make ready to write; what only removes needs no time."""
        times = None
        if self._times is not None:
            if not self._ages:
                for place in places:
                    self._renew(place)
            times = pa.array([self._times[place] for place in places], pa.int64())
            if pc.any(pc.and_(times.is_null(), values.is_valid())).as_py():
                # Refused here, and not when other states have been written already.
                self.state.check_time_known()
            times = times.fill_null(0)
        self._write = self.state.stage(keys, values, times)

    def _grouped(self, given: Iterable[Any]) -> tuple[KeyBatch, Sequence[Any]]:
        """Return the keys of places, and the place of each."""
        keys = self._batch()
        if self._space is None:
            places = sorted(given)
            return (keys, range(len(keys))) if len(places) == len(keys) else (keys.only(np.array(places)), places)
        places = list(given)
        batch = self.state.key_batch(*self._where(places))
        return batch, [places[n] for n in batch.order.tolist()]

    def _drop(self, place: Any) -> None:
        """Remove what is in a place."""
        self._values[place] = None
        self._written[place] = True
        if self._times is not None:
            self._times[place] = None

    def _base(self, place: Any) -> Any:
        """Return what is in a place for more to be folded into it; what has expired and is hidden is no more."""
        if self._ages and self._is_hidden(self._times[place]):
            self._drop(place)
        return self._values[place]

    def _seen(self, place: Any) -> Any:
        """Return what is in a place for a read; then it is gone if it has expired, and else it may be renewed."""
        value, time = self._values[place], self._times[place]
        if time is None:
            return value
        if time <= self._expired_up_to:
            self._drop(place)
            return None if self._is_hidden(time) else value
        if time < self._renewed_to:
            self._times[place] = self._renewed_to
            self._renewed.add(place)
        return value

    def _renew(self, place: Any) -> None:
        """Give what is in a place the time of the element."""
        self._times[place] = self._time()

    def _get(self) -> Any:
        try:
            return self._values[self._place.number]
        except (IndexError, TypeError):
            raise self._outside() from None


class ElementValue(_ElementRow[ValueState]):
    """One value per key, as a process function sees it."""

    def __init__(self, state: ValueState, place: Place) -> None:
        super().__init__(state, place)
        default = state.descriptor.default
        self._is_nested = pa.types.is_nested(state.descriptor.type)
        self._default = None if default is None else self._fit(default)
        self._lowest, self._highest = integer_bounds(state.descriptor.type)

    def value(self) -> Any:
        """Return the value of the element's key, or the default."""
        try:
            value = self._values[self._place.number]
        except (IndexError, TypeError):
            raise self._outside() from None
        if self._ages:
            value = self._seen(self._place.number)
        if value is None:
            value = self._default
        return self._copy(value) if self._is_nested else value

    def update(self, value: Any) -> None:
        """Set the value of the element's key; None clears it."""
        # Integers without a call: counters are most of what is written.
        if type(value) is int and self._lowest <= value <= self._highest:
            pass
        elif value is not None:
            value = self._fit(value)
        number = self._place.number
        try:
            self._values[number] = value
        except (IndexError, TypeError):
            raise self._outside() from None
        self._written[number] = True
        if self._ages:
            self._renew(number)


class _ElementFold(_ElementRow[Folding], ABC):
    """A state into which values are folded."""

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Fold what the element's key has in some namespaces, in their order, into what it has in `target`.

        The sources are gone afterwards; one without anything is passed over, and so is one equal to the target. With
        a time to live the result counts as written by the element.
        """
        into, places = self._sources(target, sources)
        before = [(kept, {place: kept[place] for place in (into, *places) if place in kept}) for kept in self._kept()]
        try:
            for place in places:
                value = self._one(place)
                if value is not None:
                    self._drop(place)
                    merged = self._values[into] = self._merged(self._one(into), value)
                    if merged is None:
                        self._drop(into)
                    else:
                        self._note(into)
        except BaseException:
            # A function that handles the error goes on with what was there.
            for kept, had in before:
                for place in (into, *places):
                    kept.pop(place, None)
                kept.update(had)
            raise

    def _kept(self) -> list[dict[Any, Any]]:
        """Return all that is kept by place."""
        return [self._values, self._written] + ([] if self._times is None else [self._times])

    def _renew(self, place: Any) -> None:
        """Give what is in a place the time of the element, unless something younger went into it."""
        old, new = self._times[place], self._time()
        self._times[place] = new if new is None or old is None or old == UNKNOWN_TIME else max(old, new)

    def _note(self, place: Any) -> None:
        """Note that something was folded into a place."""
        self._written[place] = True
        if self._ages:
            self._renew(place)

    @abstractmethod
    def _one(self, place: Any) -> Any:
        """Return what is in a place for it to be merged; None if there is nothing."""

    @abstractmethod
    def _merged(self, old: Any, value: Any) -> Any:
        """Return something merged into what a place has, or None."""


class ElementReducing(_ElementFold[ReducingState]):
    """One value per key into which values are folded, as a process function sees it."""

    def __init__(self, state: ReducingState, place: Place) -> None:
        super().__init__(state, place)
        self._given = given_of(state.descriptor)
        self._fold = fold_of(state.descriptor)
        self._merge = fold_of(state.descriptor, merging=True)
        descriptor = state.descriptor
        # No integer is within the bounds of what is no sum of integers.
        self._lowest, self._highest = integer_bounds(descriptor.type) if descriptor.reduce == "sum" else (1, 0)

    def add(self, value: Any) -> None:
        """Fold one value into that of the element's key; None clears it."""
        if value is None:
            self.clear()
            return
        # Sums of integers without a call: they are most of what is folded, and a call costs as much as all the rest.
        is_fast = type(value) is int and self._lowest <= value <= self._highest
        if not is_fast:
            value = self._given(value)
        number = self._place.number
        try:
            old = self._values[number]
        except (IndexError, TypeError):
            raise self._outside() from None
        if self._ages:
            old = self._base(number)
        if is_fast:
            folded = value if old is None else old + value
            is_fast = self._lowest <= folded <= self._highest
        if not is_fast:
            folded = self._fold(old, value)
        if folded is None:
            self.clear()
            return
        self._values[number] = folded
        self._written[number] = True
        if self._ages:
            self._renew(number)

    def get(self) -> Any:
        """Return the value of the element's key, None if it has none."""
        value = self._get()
        return self._copy(self._seen(self._place.number) if self._ages else value)

    def _one(self, place: Any) -> Any:
        return self._base(place)

    def _merged(self, old: Any, value: Any) -> Any:
        return self._merge(old, value)


class ElementAggregating(_ElementFold[AggregatingState]):
    """An accumulator per key, as a process function sees it.

    Values are added to the accumulators of all keys at once, at the end of the batch; before that only to the one
    that `get` is asked for after an `add`.
    """

    def __init__(self, state: AggregatingState, place: Place) -> None:
        super().__init__(state, place)
        self._copy_result = copying(state.descriptor.result_type)
        self._accumulators = pa.array([], state.layout.value_type)
        self._results: list[Any] | None = None
        self._added: list[Any] = []
        # Of each place the numbers among those added that are in no accumulator yet.
        self._pending: dict[Any, list[int]] = {}

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._results, self._added, self._pending = None, [], {}

    def add(self, value: Any) -> None:
        """Add one value to the accumulator of the element's key; None clears it."""
        if value is None:
            self.clear()
            return
        value = self._fit(value)
        self._get()
        place = self._place.number
        self._base(place)
        self._note(place)
        self._pending.setdefault(place, []).append(len(self._added))
        self._added.append(value)

    def get(self) -> Any:
        """Return the result of the element's key, None if it has no values.

        After an `add` to the key in the same batch the aggregate is called for one key alone. Other results are
        computed for all keys of the batch by the first call.
        """
        held = self._get()
        place = self._place.number
        if place in self._pending:
            held = self._folded(place)
        if self._ages:
            held = self._seen(place)
        if held is None:
            return None
        if isinstance(held, pa.Array):
            return self._plain(self.state.results(held))[0]
        if self._results is None:
            self._results = self._plain(self.state.results(self._accumulators))
        return self._copy_result(self._results[held])

    def end(self) -> None:
        super().end()
        self._accumulators, self._results = self._accumulators[:0], None
        self._added, self._pending = [], {}

    def _held(self, stored: pa.Array) -> list[Any]:
        # A value is the number of a stored accumulator, or one that has been folded in this batch.
        self._accumulators = stored
        return list(range(len(stored)))

    def _columns(self, places: Sequence[Any]) -> pa.Array:
        given = pa.array(self._added, self.state.descriptor.type)
        parts, numbers = [self._accumulators], []
        for place in places:
            held = self._values[place]
            if isinstance(held, pa.Array):
                numbers.append(len(self._accumulators) + len(parts) - 1)
                parts.append(held)
            else:
                numbers.append(held)
        old = pa.concat_arrays(parts).take(pa.array(numbers, pa.int64()))
        added = [self._pending.get(place, ()) for place in places]
        chosen = pa.array([number for some in added for number in some], pa.int64())
        return self.state.added(old, given.take(chosen), np.array(list(map(len, added)), dtype=np.int64))

    def _kept(self) -> list[dict[Any, Any]]:
        return [*super()._kept(), self._pending]

    def _drop(self, place: Any) -> None:
        super()._drop(place)
        self._pending.pop(place, None)

    def _folded(self, place: Any) -> pa.StructArray:
        """Add what is pending to the accumulator in a place, and return it."""
        held = self._values[place]
        if not isinstance(held, pa.Array):
            held = self._accumulators.take(pa.array([held], pa.int64()))
        chosen = [self._added[number] for number in self._pending.get(place, ())]
        if chosen:
            given = pa.array(chosen, self.state.descriptor.type)
            held = self._values[place] = self.state.added(held, given, np.array([len(chosen)], dtype=np.int64))
            del self._pending[place]
        return held

    def _one(self, place: Any) -> pa.StructArray | None:
        self._base(place)
        held = self._folded(place)
        return None if held.null_count else held

    def _merged(self, old: pa.StructArray | None, value: pa.StructArray) -> pa.StructArray:
        return value if old is None else self.state.merged(old, np.zeros(1, dtype=np.int64), value)
