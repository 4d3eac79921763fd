"""The states with one row per key as a process function sees them: value, reducing and aggregating state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from arrowstate.schema.plain import copying, integer_bounds
from arrowstate.state.kinds.aggregating import AggregatingState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.state.kinds.value import ValueState
from arrowstate.state.per_record.folding import fold_of, given_of
from arrowstate.state.per_record.places import ElementState, Place
from arrowstate.table.key_batch import KeyBatch

OneRow = TypeVar("OneRow", bound=ValueState | ReducingState | AggregatingState)
Folding = TypeVar("Folding", bound=ReducingState | AggregatingState)


class _ElementRow(ElementState[OneRow]):
    """A state with one row per key: values by place, and the rows that wrote them."""

    def __init__(self, state: OneRow, place: Place) -> None:
        super().__init__(state, place)
        self._values: Any = []
        self._rows: Any = []
        self._write: Callable[[], None] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        stored, places = self._stored()
        self._values = self._by_place(places, self._read(stored))
        self._rows = [-1] * len(keys) if self._space is None else {}
        self._write = None

    def clear(self) -> None:
        """Remove the value of the element's key."""
        self._set(None)

    def convert(self, timestamps: pa.Array | None) -> None:
        keys, places, rows = self._written()
        if places:
            given = pa.array([self._values[place] for place in places], self.state.descriptor.type)
            self._write = self.state.stage(keys, given, self._times_of(given, rows, timestamps))

    def apply(self) -> None:
        if self._write is not None:
            self._write()

    def end(self) -> None:
        super().end()
        self._values, self._rows, self._write = [], [], None

    def _read(self, stored: KeyBatch) -> list[Any]:
        return self._plain(self.state.stored_values(stored))

    def _times_of(self, values: pa.Array, rows: Sequence[int], timestamps: pa.Array | None) -> pa.Array | None:
        """Return the event times of values; where all of them only remove, none need be known."""
        return None if values.null_count == len(values) and timestamps is None else self._times(rows, timestamps)

    def _written(self) -> tuple[KeyBatch, Sequence[Any], Sequence[int]]:
        """Return the keys written to, the place of each, and the row that wrote to it last."""
        keys = self._batch()
        if self._space is None:
            written = np.flatnonzero(np.array(self._rows, dtype=np.int64) >= 0)
            if written.size == len(keys):
                return keys, range(len(keys)), self._rows
            numbers = written.tolist()
            return keys.only(written), numbers, [self._rows[number] for number in numbers]
        places, rows = list(self._rows), list(self._rows.values())
        if not places:
            return keys, [], []
        batch = self.state.key_batch(*self._where(places))
        order = batch.order.tolist()
        return batch, [places[n] for n in order], [rows[n] for n in order]

    def _get(self) -> Any:
        try:
            return self._values[self._place.number]
        except (IndexError, TypeError):
            raise self._outside() from None

    def _set(self, value: Any) -> None:
        place = self._place
        number = place.number
        try:
            self._values[number] = value
        except (IndexError, TypeError):
            raise self._outside() from None
        self._rows[number] = place.row


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
        place = self._place
        number = place.number
        try:
            self._values[number] = value
        except (IndexError, TypeError):
            raise self._outside() from None
        self._rows[number] = place.row


class _ElementFold(_ElementRow[Folding], ABC):
    """A state into which values are folded: what was added in the batch, and from where on it counts."""

    def __init__(self, state: Folding, place: Place) -> None:
        super().__init__(state, place)
        # Place, row and value; of a reducing state they only tell times.
        self._added: list[tuple[Any, int, Any]] = []
        self._starts: dict[Any, int] = {}

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._added, self._starts = [], {}

    def clear(self) -> None:
        """Remove what the element's key has."""
        self._set(None)
        self._starts[self._place.number] = len(self._added)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Fold what the element's key has in some namespaces, in their order, into what it has in `target`.

        The sources are gone afterwards; one without anything is passed over, and so is one equal to the target. With
        a time to live the result counts as written by the element.
        """
        into, places = self._sources(target, sources)
        before = [(kept, {place: kept[place] for place in (into, *places) if place in kept}) for kept in self._kept()]
        try:
            for place in places:
                value = self._take(place)
                if value is not None:
                    self._rows[place] = self._rows[into] = self._place.row
                    self._starts[place] = len(self._added)
                    self._put(into, value)
        except BaseException:
            # A function that handles the error goes on with what was there.
            for kept, had in before:
                for place in (into, *places):
                    kept.pop(place, None)
                kept.update(had)
            raise

    def _kept(self) -> list[dict[Any, Any]]:
        """Return all that is kept by place."""
        return [self._values, self._rows, self._starts]

    def end(self) -> None:
        super().end()
        self._added, self._starts = [], {}

    @abstractmethod
    def _take(self, place: Any) -> Any:
        """Remove what is in a place, and return it; None if there is nothing."""

    @abstractmethod
    def _put(self, place: Any, value: Any) -> None:
        """Merge something into what is in a place."""

    def _stage(
        self, keys: KeyBatch, places: Sequence[Any], values: pa.Array, rows: Sequence[int], timestamps: pa.Array | None
    ) -> None:
        """Make ready to write; with a time to live what was folded is as old as the youngest that went into it."""
        times = self._times_of(values, rows, timestamps)
        if times is not None and timestamps is not None:
            at, latest = timestamps.to_pylist(), dict(zip(places, times.to_pylist(), strict=True))
            for number, (place, row, _) in enumerate(self._added):
                if number >= self._starts.get(place, 0):
                    latest[place] = max(latest[place], at[row])
            times = pa.array([latest[place] for place in places], pa.int64())
        # Few batches clear anything, and then no place is looked at.
        cleared = enumerate(places) if self._starts else ()
        anew = np.array([number for number, place in cleared if place in self._starts], dtype=np.int64)
        self._write = self.state.stage(keys, values, times, anew=anew)


class ElementReducing(_ElementFold[ReducingState]):
    """One value per key into which values are folded, as a process function sees it."""

    def __init__(self, state: ReducingState, place: Place) -> None:
        super().__init__(state, place)
        self._given = given_of(state.descriptor)
        self._fold = fold_of(state.descriptor)
        self._merge = fold_of(state.descriptor, merging=True)
        self._timed = self._is_timed()
        descriptor = state.descriptor
        is_sum = descriptor.reduce == "sum" and not self._timed
        # No integer is within the bounds of what is no sum of integers.
        self._lowest, self._highest = integer_bounds(descriptor.type) if is_sum else (1, 0)

    def add(self, value: Any) -> None:
        """Fold one value into that of the element's key; None clears it."""
        # Sums of integers without a call: they are most of what is folded, and a call costs as much as all the rest.
        if type(value) is int and self._lowest <= value <= self._highest:
            place = self._place
            number = place.number
            try:
                old = self._values[number]
            except (IndexError, TypeError):
                raise self._outside() from None
            total = value if old is None else old + value
            if self._lowest <= total <= self._highest:
                self._values[number] = total
                self._rows[number] = place.row
                return
        if value is None:
            self.clear()
            return
        value = self._given(value)
        place = self._place
        number = place.number
        try:
            old = self._values[number]
        except (IndexError, TypeError):
            raise self._outside() from None
        folded = self._fold(old, value)
        if folded is None:
            self.clear()
            return
        self._values[number] = folded
        self._rows[number] = place.row
        if self._timed:
            self._added.append((number, place.row, None))

    def get(self) -> Any:
        """Return the value of the element's key, None if it has none."""
        return self._copy(self._get())

    def convert(self, timestamps: pa.Array | None) -> None:
        keys, places, rows = self._written()
        if places:
            # A range is of all places.
            values = self._values if isinstance(places, range) else [self._values[place] for place in places]
            given = pa.array(values, self.state.descriptor.type)
            self._stage(keys, places, given, rows, timestamps)

    def _take(self, place: Any) -> Any:
        value = self._values[place]
        if value is not None:
            self._values[place] = None
        return value

    def _put(self, place: Any, value: Any) -> None:
        self._values[place] = merged = self._merge(self._values[place], value)
        if merged is None:
            self._starts[place] = len(self._added)


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
        # Of each place the numbers among those added that are in no accumulator yet.
        self._pending: dict[Any, list[int]] = {}

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._results, self._pending = None, {}

    def add(self, value: Any) -> None:
        """Add one value to the accumulator of the element's key; None clears it."""
        if value is None:
            self.clear()
            return
        value = self._fit(value)
        self._set(self._get())
        place = self._place.number
        self._pending.setdefault(place, []).append(len(self._added))
        self._added.append((place, self._place.row, value))

    def get(self) -> Any:
        """Return the result of the element's key, None if it has no values.

        After an `add` to the key in the same batch the aggregate is called for one key alone. Other results are
        computed for all keys of the batch by the first call.
        """
        held = self._get()
        if self._place.number in self._pending:
            held = self._fold(self._place.number)
        if held is None:
            return None
        if isinstance(held, pa.Array):
            return self._plain(self.state.results(held))[0]
        if self._results is None:
            self._results = self._plain(self.state.results(self._accumulators))
        return self._copy_result(self._results[held])

    def clear(self) -> None:
        super().clear()
        self._pending.pop(self._place.number, None)

    clear.__doc__ = _ElementFold.clear.__doc__

    def convert(self, timestamps: pa.Array | None) -> None:
        keys, places, rows = self._written()
        if not places:
            return
        given = pa.array([value for _, _, value in self._added], self.state.descriptor.type)
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
        accumulators = self.state.added(old, given.take(chosen), np.array(list(map(len, added)), dtype=np.int64))
        self._stage(keys, places, accumulators, rows, timestamps)

    def end(self) -> None:
        super().end()
        self._accumulators, self._results, self._pending = self._accumulators[:0], None, {}

    def _read(self, stored: KeyBatch) -> list[Any]:
        # A value is the number of a stored accumulator, or one that has been folded in this batch.
        self._accumulators = self.state.stored_values(stored)
        return list(range(len(stored)))

    def _kept(self) -> list[dict[Any, Any]]:
        return [*super()._kept(), self._pending]

    def _one(self, place: Any) -> pa.StructArray:
        """Return the accumulator in a place, null if there is none, without what is pending."""
        held = self._values[place]
        if isinstance(held, pa.Array):
            return held
        return self._accumulators.take(pa.array([held], pa.int64()))

    def _fold(self, place: Any) -> pa.StructArray:
        """Add what is pending to the accumulator in a place."""
        chosen = [self._added[number] for number in self._pending[place]]
        given = pa.array([value for _, _, value in chosen], self.state.descriptor.type)
        held = self.state.added(self._one(place), given, np.array([len(chosen)], dtype=np.int64))
        self._values[place] = held
        del self._pending[place]
        return held

    def _take(self, place: Any) -> Any:
        held = self._fold(place) if place in self._pending else self._one(place)
        if held.null_count:
            return None
        self._values[place] = None
        return held

    def _put(self, place: Any, value: Any) -> None:
        if place in self._pending:
            self._fold(place)
        self._values[place] = self.state.merged(self._one(place), np.zeros(1, dtype=np.int64), value)
