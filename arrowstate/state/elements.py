"""The states of a process function: one record at a time on the outside, whole columns on the inside.

For each batch the distinct keys are numbered. A view of a state holds plain Python values by these numbers: read
from the table in one probe, changed in place by the function, and written back in one put. The table does not
change before the whole batch has gone through and everything that the function wrote fits its type.
"""

from __future__ import annotations

import copy
import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, NullKeyError, ProcessElementError, ValueTypeError
from arrowstate.schema.descriptors import ReducingStateDescriptor
from arrowstate.schema.types import CONVERSION_ERRORS, python_array
from arrowstate.state.base import KeyedState
from arrowstate.state.keyed import ReducingState, ValueState
from arrowstate.state.lists import ListState
from arrowstate.state.maps import MapState
from arrowstate.table.batch import KeyBatch

__all__ = [
    "ElementList",
    "ElementMap",
    "ElementReducing",
    "ElementState",
    "ElementValue",
    "Place",
    "element_state",
    "key_rows",
]

S = TypeVar("S", bound=KeyedState[Any])
OneRow = TypeVar("OneRow", bound=ValueState | ReducingState)

_GONE = object()


class Place(Protocol):
    """Where in a batch the function is."""

    row: int
    "The row of the batch."
    number: int
    "The number of the row's key."


class ElementState(Generic[S]):
    """What the views of all kinds share."""

    def __init__(self, state: S, place: Place) -> None:
        if state.descriptor.namespace is not None:
            raise InvalidInputError(
                f"state {state.descriptor.name!r} has namespaces, which a process function does not set; "
                "declare it without, or use the batch verbs"
            )
        self.state = state
        self._place = place
        self._keys: KeyBatch | None = None
        nested = pa.types.is_nested(state.descriptor.type)
        self._copy: Callable[[Any], Any] = copy.deepcopy if nested else _same

    def begin(self, keys: KeyBatch) -> None:
        """Start a batch with these distinct keys."""
        self._keys = keys

    def convert(self, timestamps: pa.Array | None) -> None:
        """Make columns of what was written; `timestamps` are the event times of the rows of the batch.

        Raises
        ------
        ProcessElementError
            If a value does not fit the state's type; it names the row that wrote it.
        """

    def apply(self) -> None:
        """Write the columns into the state."""

    def end(self) -> None:
        """Forget the batch."""
        self._keys = None

    def _batch(self) -> KeyBatch:
        if self._keys is None:
            raise self._outside()
        return self._keys

    def _outside(self) -> InvalidInputError:
        return InvalidInputError(
            f"state {self.state.descriptor.name!r} belongs to the key of an element: use it in process_element"
        )

    def _columns(self, numbers: Sequence[int]) -> Any:
        """Return the keys with these numbers as a batch verb takes them."""
        return key_rows(self._batch(), numbers, self.state.layout.key)

    def _array(self, values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
        """Return values as an array of a type; `rows` wrote them."""
        try:
            return python_array(values, kind)
        except CONVERSION_ERRORS as error:
            row, value, cause = _culprit(values, rows, kind) or (rows[0], values, error)
            reason = ValueTypeError(self.state.descriptor.name, str(kind), repr(value))
            raise ProcessElementError(row, str(reason)) from cause

    def _times(self, rows: Sequence[int], timestamps: pa.Array | None) -> pa.Array | None:
        """Return the event times that rows carry, for a state that expires by them."""
        ttl = self.state.descriptor.ttl
        if timestamps is None or ttl is None or ttl.clock != "event_time":
            return None
        return timestamps.take(pa.array(rows, pa.int64()))


class _ElementRow(ElementState[OneRow]):
    """A state with one value per key: a list of values by the number of the key."""

    def __init__(self, state: OneRow, place: Place) -> None:
        super().__init__(state, place)
        self._values: list[Any] = []
        self._rows: list[int] = []
        self._write: Callable[[], None] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._values = self.state.read_keys(keys).to_pylist()
        self._rows = [-1] * len(keys)
        self._write = None

    def clear(self) -> None:
        """Remove the value of the element's key."""
        self._set(None)

    def convert(self, timestamps: pa.Array | None) -> None:
        written = np.flatnonzero(np.array(self._rows, dtype=np.int64) >= 0)
        if not written.size:
            return
        keys, values, rows = self._batch(), self._values, self._rows
        if written.size < len(keys):
            numbers = written.tolist()
            keys, values, rows = keys.only(written), [values[n] for n in numbers], [rows[n] for n in numbers]
        given = self._array(values, rows, self.state.descriptor.type)
        self._write = self.state.stage(keys, given, self._times(rows, timestamps))

    def apply(self) -> None:
        if self._write is not None:
            self._write()

    def end(self) -> None:
        super().end()
        self._values, self._rows, self._write = [], [], None

    def _get(self) -> Any:
        try:
            return self._values[self._place.number]
        except IndexError:
            raise self._outside() from None

    def _set(self, value: Any) -> None:
        place = self._place
        number = place.number
        try:
            self._values[number] = value
        except IndexError:
            raise self._outside() from None
        self._rows[number] = place.row


class ElementValue(_ElementRow[ValueState]):
    """One value per key, as a process function sees it."""

    def __init__(self, state: ValueState, place: Place) -> None:
        super().__init__(state, place)
        default = state.descriptor.default
        self._default = None if default is None else pa.scalar(default, state.descriptor.type).as_py()
        self._is_nested = self._copy is not _same

    def value(self) -> Any:
        """Return the value of the element's key, or the default."""
        try:
            value = self._values[self._place.number]
        except IndexError:
            raise self._outside() from None
        if value is None:
            value = self._default
        return self._copy(value) if self._is_nested else value

    def update(self, value: Any) -> None:
        """Set the value of the element's key; None clears it."""
        if self._is_nested:
            value = self._copy(value)
        place = self._place
        number = place.number
        try:
            self._values[number] = value
        except IndexError:
            raise self._outside() from None
        self._rows[number] = place.row


class ElementReducing(_ElementRow[ReducingState]):
    """One value per key into which values are folded, as a process function sees it."""

    def __init__(self, state: ReducingState, place: Place) -> None:
        super().__init__(state, place)
        self._fold = _fold_of(state.descriptor)

    def add(self, value: Any) -> None:
        """Fold one value into that of the element's key; None clears it."""
        self._set(None if value is None else self._fold(self._get(), value))

    def get(self) -> Any:
        """Return the value of the element's key, None if it has none."""
        return self._copy(self._get())


class ElementList(ElementState[ListState]):
    """Any number of elements per key, as a process function sees it. An append reads nothing."""

    def __init__(self, state: ListState, place: Place) -> None:
        super().__init__(state, place)
        self._reset()

    def _reset(self) -> None:
        self._stored: list[list[Any]] | None = None
        self._cleared: set[int] = set()
        self._added: dict[int, list[Any]] = {}
        self._rows: dict[int, list[int]] = {}
        self._columns_to_write: tuple[Any, ...] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._reset()

    def add(self, value: Any) -> None:
        """Append one element to the list of the element's key."""
        self.add_all([value])

    def add_all(self, values: Sequence[Any]) -> None:
        """Append elements to the list of the element's key; with a null among them none is."""
        self._batch()
        given = [self._copy(value) for value in values]
        if None in given:
            raise InvalidInputError(f"an element of list state {self.state.descriptor.name!r} must not be null")
        number = self._place.number
        self._added.setdefault(number, []).extend(given)
        self._rows.setdefault(number, []).extend([self._place.row] * len(given))

    def update(self, values: Sequence[Any]) -> None:
        """Replace the list of the element's key; an empty one clears it."""
        given = list(values)
        if None in given:
            raise InvalidInputError(f"an element of list state {self.state.descriptor.name!r} must not be null")
        self.clear()
        self.add_all(given)

    def clear(self) -> None:
        """Remove the list of the element's key."""
        self._batch()
        number = self._place.number
        self._cleared.add(number)
        self._added.pop(number, None)
        self._rows.pop(number, None)

    def get(self) -> list[Any]:
        """Return the list of the element's key. The first call in a batch reads the lists of all its keys."""
        keys, number = self._batch(), self._place.number
        out: list[Any] = []
        if number not in self._cleared:
            if self._stored is None:
                self._stored = self.state.get_batch(self._columns(range(len(keys)))).to_pylist()
            out.extend(self._stored[number])
        out.extend(self._added.get(number, ()))
        return [self._copy(value) for value in out]

    def convert(self, timestamps: pa.Array | None) -> None:
        numbers = [number for number, values in self._added.items() for _ in values]
        rows = [row for some in self._rows.values() for row in some]
        values = [value for some in self._added.values() for value in some]
        given = self._array(values, rows, self.state.descriptor.type)
        cleared = self._columns(sorted(self._cleared)) if self._cleared else None
        added = self._columns(numbers) if numbers else None
        self._columns_to_write = (cleared, added, given, self._times(rows, timestamps))

    def apply(self) -> None:
        assert self._columns_to_write is not None
        cleared, added, given, times = self._columns_to_write
        if cleared is not None:
            self.state.clear_batch(cleared)
        if added is not None:
            self.state.add_batch(added, given, timestamps=times)

    def end(self) -> None:
        super().end()
        self._reset()


class ElementMap(ElementState[MapState]):
    """Any number of entries per key, as a process function sees it. A write reads nothing."""

    def __init__(self, state: MapState, place: Place) -> None:
        super().__init__(state, place)
        self._reset()

    def _reset(self) -> None:
        self._stored: list[Any] | None = None
        self._cleared: set[int] = set()
        self._changes: dict[int, dict[Any, tuple[Any, int]]] = {}
        self._columns_to_write: tuple[Any, ...] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._reset()

    def put(self, user_key: Any, value: Any) -> None:
        """Set one entry of the element's key; the value may be None."""
        self._change(user_key, self._copy(value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set entries of the element's key."""
        for user_key, value in entries.items():
            self.put(user_key, value)

    def remove(self, user_key: Any) -> None:
        """Remove an entry of the element's key, if there is one."""
        self._change(user_key, _GONE)

    def clear(self) -> None:
        """Remove all entries of the element's key."""
        self._batch()
        self._cleared.add(self._place.number)
        self._changes.pop(self._place.number, None)

    def get(self, user_key: Any) -> Any:
        """Return the value of an entry of the element's key; None where there is none, or it is null.

        The first read of a batch reads the entries of all its keys.
        """
        found = self._look(user_key)
        return None if found is _GONE else self._copy(found)

    def contains(self, user_key: Any) -> bool:
        """Whether the element's key has such an entry."""
        return self._look(user_key) is not _GONE

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries of the element's key as they are now; they may be changed meanwhile."""
        entries = dict(self._read())
        for user_key, (value, _) in self._changes.get(self._place.number, {}).items():
            entries[user_key] = value
        return iter([(user_key, self._copy(value)) for user_key, value in entries.items() if value is not _GONE])

    def keys(self) -> Iterator[Any]:
        """Iterate over the user keys of the element's key."""
        return (user_key for user_key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """Iterate over the values of the element's key."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Whether the element's key has no entry."""
        return next(self.items(), None) is None

    def convert(self, timestamps: pa.Array | None) -> None:
        kind = self.state.descriptor.key_type
        written = [
            (number, user_key, value, row)
            for number, entries in self._changes.items()
            for user_key, (value, row) in entries.items()
        ]
        puts = [item for item in written if item[2] is not _GONE]
        gone = [item for item in written if item[2] is _GONE]
        put_rows = [item[3] for item in puts]
        cleared = self._columns(sorted(self._cleared)) if self._cleared else None
        removed = put = None
        if gone:
            user_keys = self._array([item[1] for item in gone], [item[3] for item in gone], kind)
            removed = (self._columns([item[0] for item in gone]), user_keys)
        if puts:
            user_keys = self._array([item[1] for item in puts], put_rows, kind)
            given = self._array([item[2] for item in puts], put_rows, self.state.descriptor.type)
            put = (self._columns([item[0] for item in puts]), user_keys, given)
        self._columns_to_write = (cleared, removed, put, self._times(put_rows, timestamps))

    def apply(self) -> None:
        assert self._columns_to_write is not None
        cleared, removed, put, times = self._columns_to_write
        if cleared is not None:
            self.state.clear_batch(cleared)
        if removed is not None:
            self.state.remove_batch(*removed)
        if put is not None:
            self.state.put_batch(*put, timestamps=times)

    def end(self) -> None:
        super().end()
        self._reset()

    def _change(self, user_key: Any, value: Any) -> None:
        self._batch()
        if user_key is None:
            raise NullKeyError(f"{self.state.descriptor.name}_key", 0)
        self._changes.setdefault(self._place.number, {})[user_key] = (value, self._place.row)

    def _look(self, user_key: Any) -> Any:
        self._batch()
        if user_key is None:
            raise NullKeyError(f"{self.state.descriptor.name}_key", 0)
        changed = self._changes.get(self._place.number, {}).get(user_key)
        return changed[0] if changed is not None else self._read().get(user_key, _GONE)

    def _read(self) -> dict[Any, Any]:
        """Return the stored entries of the element's key."""
        keys, number = self._batch(), self._place.number
        if number in self._cleared:
            return {}
        if self._stored is None:
            self._stored = self.state.entries_batch(self._columns(range(len(keys)))).to_pylist()
        entries = self._stored[number]
        if not isinstance(entries, dict):
            entries = self._stored[number] = dict(entries)
        return entries


def element_state(state: KeyedState[Any], place: Place) -> ElementState[Any]:
    """Return the view of a state for a process function."""
    if isinstance(state, ValueState):
        return ElementValue(state, place)
    if isinstance(state, ReducingState):
        return ElementReducing(state, place)
    if isinstance(state, ListState):
        return ElementList(state, place)
    if isinstance(state, MapState):
        return ElementMap(state, place)
    raise InvalidInputError(
        f"a process function works on value, reducing, list and map state, not on {state.descriptor.kind} state "
        f"{state.descriptor.name!r}; use its batch verbs"
    )


def key_rows(keys: KeyBatch, numbers: Sequence[int], schema: pa.Schema) -> Any:
    """Return the keys with these numbers as a batch verb takes them."""
    rows = pa.array(numbers, pa.int64())
    columns = [column.take(rows) for column in keys.columns]
    return columns[0] if len(columns) == 1 else pa.RecordBatch.from_arrays(columns, schema=schema)


def _same(value: Any) -> Any:
    return value


def _culprit(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> tuple[int, Any, Exception] | None:
    """Return (row, value, error) of the first value that does not fit."""
    for value, row in zip(values, rows, strict=True):
        try:
            python_array([value], kind)
        except CONVERSION_ERRORS as error:
            return row, value, error
    return None


def _less(left: Any, right: Any) -> bool:
    # NaN is the one value that differs from itself, and it is the largest.
    return bool(left < right or (right != right and left == left))


def _sum(old: Any, new: Any) -> Any:
    if isinstance(new, decimal.Decimal):
        with decimal.localcontext(prec=80):
            return new if old is None else old + new
    return new if old is None else old + new


_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": _sum,
    "min": lambda old, new: new if old is None or _less(new, old) else old,
    "max": lambda old, new: new if old is None or _less(old, new) else old,
    "count": lambda old, _: 1 if old is None else old + 1,
    "first": lambda old, new: new if old is None else old,
    "last": lambda _, new: new,
}


def _fold_of(descriptor: ReducingStateDescriptor) -> Callable[[Any, Any], Any]:
    """Return what folds a plain value, not None, into an old one or None."""
    reduce = descriptor.reduce
    if isinstance(reduce, str):
        return _FOLDS[reduce]
    if not isinstance(reduce, Mapping):
        return lambda old, new: new if old is None else reduce(old, new)
    folds = {name: _FOLDS[each] for name, each in reduce.items()}
    counted = {name for name, each in reduce.items() if each == "count"}

    def fold(old: Any, new: Any) -> Any:
        if not isinstance(new, Mapping) or not set(new) <= set(folds):
            raise ValueTypeError(descriptor.name, f"a mapping of {', '.join(folds)}", repr(new))
        out = {name: 0 if name in counted else None for name in folds} if old is None else dict(old)
        for name, value in new.items():
            if value is not None:
                out[name] = folds[name](out[name], value)
        return out

    return fold
