"""The states with many rows per key as a process function sees them: list and map state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, KeyTypeError, NullKeyError, ValueTypeError
from arrowstate.schema.descriptors import MapStateDescriptor
from arrowstate.schema.keys import key_columns
from arrowstate.schema.plain import fitting, plain_values, same
from arrowstate.schema.types import shown_misfit
from arrowstate.state.current_key import hashable
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.map import MapState
from arrowstate.state.per_record.places import EXPIRED, ElementState, Place, Sparse
from arrowstate.table.columns import canonical_floats
from arrowstate.table.key_batch import KeyBatch

_GONE = object()
Entry = tuple[Any, Any, int | None]


class ElementList(ElementState[ListState]):
    """Any number of elements per key, as a process function sees it. An append reads nothing."""

    def __init__(self, state: ListState, place: Place) -> None:
        super().__init__(state, place)
        self._reset()

    def _reset(self) -> None:
        # Lists by place, and the times of their elements.
        self._lists: Any = None
        self._times: Any = None
        self._added = Sparse()
        self._times_added = Sparse()
        self._cleared: set[Any] = set()
        # Places where a read has met something that it removes or renews.
        self._touched: set[Any] = set()
        self._columns_to_write: tuple[Any, ...] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._reset()

    def add(self, value: Any) -> None:
        """Append one element to the list of the element's key."""
        self._batch()
        self._append(self._place.number, [self._element(value)])

    def add_all(self, values: Sequence[Any]) -> None:
        """Append elements to the list of the element's key; with a null among them none is."""
        given = self._elements(values)
        self._append(self._place.number, given)

    def update(self, values: Sequence[Any]) -> None:
        """Replace the list of the element's key; an empty one clears it."""
        given = self._elements(values)
        self._drop(self._place.number)
        self._append(self._place.number, given)

    def clear(self) -> None:
        """Remove the list of the element's key."""
        self._batch()
        self._drop(self._place.number)

    def get(self) -> list[Any]:
        """Return the list of the element's key.

        The first call in a batch reads the lists of all its keys, in all namespaces where there are any.
        """
        self._batch()
        return [self._copy(value) for value in self._list(self._place.number)]

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Move what the element's key has in some namespaces, in their order, to the end of its list in `target`.

        The sources are gone afterwards; one without elements is passed over, and so is one equal to the target. With
        a time to live what is moved counts as written by the element.
        """
        into, places = self._sources(target, sources)
        for place in places:
            moved = self._list(place)
            if moved:
                self._drop(place)
                self._append(into, moved)

    def _elements(self, values: Sequence[Any]) -> list[Any]:
        self._batch()
        return [self._element(value) for value in self.state.sequence(values)]

    def _element(self, value: Any) -> Any:
        if value is None:
            raise InvalidInputError(f"an element of list state {self.state.descriptor.name!r} must not be null")
        return self._fit(value)

    def _append(self, place: Any, values: list[Any]) -> None:
        self._added.setdefault(place, []).extend(values)
        if self._is_timed():
            self._times_added.setdefault(place, []).extend([self._time()] * len(values))

    def _drop(self, place: Any) -> None:
        self._cleared.add(place)
        self._added.pop(place, None)
        self._times_added.pop(place, None)

    def _list(self, place: Any) -> list[Any]:
        out: list[Any] = []
        if place not in self._cleared:
            if self._lists is None:
                self._lists, self._times = self._read_all(self.state.unread)
            out.extend(self._seen(place, self._lists, self._times))
        out.extend(self._seen(place, self._added, self._times_added))
        return out

    def _seen(self, place: Any, lists: Any, times: Any) -> list[Any]:
        """Return the elements in a place that a read shows; then expired ones are gone, and others may be renewed."""
        values: list[Any] = lists[place] or []
        if not values or not self._is_timed():
            return values
        elements = [
            (value, time, self._time_after_read(time)) for value, time in zip(values, times[place], strict=True)
        ]
        if any(after != time for _, time, after in elements):
            self._touched.add(place)
            lists[place] = [value for value, _, after in elements if after != EXPIRED]
            times[place] = [after for _, _, after in elements if after != EXPIRED]
        return [value for value, time, _ in elements if not self._is_hidden(time)]

    def convert(self) -> None:
        places = [place for place, values in self._added.items() for _ in values]
        times = [time for some in self._times_added.values() for time in some]
        values = [value for some in self._added.values() for value in some]
        given = pa.array(values, self.state.descriptor.type)
        cleared = self._where(list(self._cleared)) if self._cleared else None
        touched = self._where(list(self._touched)) if self._touched else None
        added = self._where(places) if places else None
        self._columns_to_write = (cleared, touched, added, given, self._event_times(times))

    def apply(self) -> None:
        assert self._columns_to_write is not None
        cleared, touched, added, given, times = self._columns_to_write
        if cleared is not None:
            self.state.clear_batch(cleared[0], namespace=cleared[1])
        if touched is not None:
            self.state.get_batch(touched[0], namespace=touched[1])
        if added is not None:
            self.state.add_batch(added[0], given, namespace=added[1], timestamps=times)

    def end(self) -> None:
        super().end()
        self._reset()


class ElementMap(ElementState[MapState]):
    """Any number of entries per key, as a process function sees it. A write reads nothing."""

    def __init__(self, state: MapState, place: Place) -> None:
        super().__init__(state, place)
        kind = state.descriptor.type
        self._user_key, self._identity = _user_keys_of(state.descriptor)
        # Fields are all that is stored of a struct.
        self._null = dict.fromkeys(field.name for field in kind) if pa.types.is_struct(kind) else None
        self._reset()

    def _reset(self) -> None:
        # Entries are found by what is equal for equal user keys: the user key, the value, and the time.
        self._maps: Any = None
        self._times: Any = None
        self._cleared: set[Any] = set()
        self._changes: dict[Any, dict[Any, Entry]] = {}
        # Places and user keys where a read has met something that it removes or renews.
        self._touched: list[tuple[Any, Any]] = []
        self._columns_to_write: tuple[Any, ...] | None = None

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._reset()

    def put(self, user_key: Any, value: Any) -> None:
        """Set one entry of the element's key; the value may be None."""
        self._change(self._key(user_key), self._value(value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set entries of the element's key; if one of them does not fit, none is set."""
        given = [(self._key(user_key), self._value(value)) for user_key, value in entries.items()]
        for user_key, value in given:
            self._change(user_key, value)

    def remove(self, user_key: Any) -> None:
        """Remove an entry of the element's key, if there is one."""
        self._change(self._key(user_key), _GONE)

    def clear(self) -> None:
        """Remove all entries of the element's key."""
        self._batch()
        self._cleared.add(self._place.number)
        self._changes.pop(self._place.number, None)

    def get(self, user_key: Any) -> Any:
        """Return the value of an entry of the element's key; None where there is none, or it is null.

        The first read of a batch reads the entries of all its keys, in all namespaces where there are any.
        """
        found = self._look(user_key)
        return None if found is _GONE else self._copy(found)

    def contains(self, user_key: Any) -> bool:
        """Whether the element's key has such an entry."""
        return self._look(user_key) is not _GONE

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries of the element's key as they are now; they may be changed meanwhile."""
        self._batch()
        entries = dict(self._read())
        entries.update(self._changes.get(self._place.number, {}))
        seen = [(entry[0], self._seen(identity, entry)) for identity, entry in entries.items()]
        copied = self._copy
        return iter([(copied(user_key), copied(value)) for user_key, value in seen if value is not _GONE])

    def keys(self) -> Iterator[Any]:
        """Iterate over the user keys of the element's key."""
        return (user_key for user_key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """Iterate over the values of the element's key."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Whether the element's key has no entry."""
        return next(self.items(), None) is None

    def convert(self) -> None:
        key_type, kind = self.state.descriptor.key_type, self.state.descriptor.type
        written = [(place, *entry) for place, entries in self._changes.items() for entry in entries.values()]
        puts = [item for item in written if item[2] is not _GONE]
        gone = [item for item in written if item[2] is _GONE]
        cleared = self._where(list(self._cleared)) if self._cleared else None
        touched = removed = put = None
        if self._touched:
            user_keys = pa.array([user_key for _, user_key in self._touched], key_type)
            touched = (self._where([place for place, _ in self._touched]), user_keys)
        if gone:
            removed = (self._where([item[0] for item in gone]), pa.array([item[1] for item in gone], key_type))
        if puts:
            user_keys = pa.array([item[1] for item in puts], key_type)
            put = (self._where([item[0] for item in puts]), user_keys, pa.array([item[2] for item in puts], kind))
        self._columns_to_write = (cleared, touched, removed, put, self._event_times([item[3] for item in puts]))

    def apply(self) -> None:
        assert self._columns_to_write is not None
        cleared, touched, removed, put, times = self._columns_to_write
        if cleared is not None:
            self.state.clear_batch(cleared[0], namespace=cleared[1])
        if touched is not None:
            (keys, namespace), user_keys = touched
            self.state.get_batch(keys, user_keys, namespace=namespace)
        if removed is not None:
            (keys, namespace), user_keys = removed
            self.state.remove_batch(keys, user_keys, namespace=namespace)
        if put is not None:
            (keys, namespace), user_keys, given = put
            self.state.put_batch(keys, user_keys, given, namespace=namespace, timestamps=times)

    def end(self) -> None:
        super().end()
        self._reset()

    def _value(self, value: Any) -> Any:
        """Return a value as it is stored."""
        return self._copy(self._null) if value is None else self._fit(value)

    def _key(self, user_key: Any) -> Any:
        """Return a user key as it is stored."""
        self._batch()
        if user_key is None:
            raise NullKeyError(f"{self.state.descriptor.name}_key", 0)
        return self._user_key(user_key)

    def _change(self, user_key: Any, value: Any) -> None:
        identity = self._identity(user_key)
        time = self._time() if value is not _GONE and self._is_timed() else None
        self._changes.setdefault(self._place.number, {})[identity] = (user_key, value, time)

    def _look(self, user_key: Any) -> Any:
        identity = self._identity(self._key(user_key))
        entry = self._changes.get(self._place.number, {}).get(identity) or self._read().get(identity)
        return _GONE if entry is None else self._seen(identity, entry)

    def _seen(self, identity: Any, entry: Entry) -> Any:
        """Return the value of an entry that a read shows; then an expired one is gone, and another may be renewed."""
        user_key, value, time = entry
        if time is None:
            return value
        after = self._time_after_read(time)
        if after != time:
            place = self._place.number
            changes = self._changes.get(place, {})
            if identity not in changes:
                self._touched.append((place, user_key))
            entries = changes if identity in changes else self._maps[place]
            entries[identity] = (user_key, _GONE, None) if after == EXPIRED else (user_key, value, after)
        return _GONE if self._is_hidden(time) else value

    def _read(self) -> dict[Any, Entry]:
        """Return the stored entries of the element's key."""
        place = self._place.number
        if place in self._cleared:
            return {}
        if self._maps is None:
            self._maps, self._times = self._read_all(self.state.unread)
        entries = self._maps[place]
        if not isinstance(entries, dict):
            identity = self._identity
            entries = entries or ()
            times = self._times[place] or () if self._is_timed() else [None] * len(entries)
            given = [(*entry, time) for entry, time in zip(entries, times, strict=True)]
            entries = self._maps[place] = {identity(entry[0]): entry for entry in given}
        return entries


def _user_keys_of(descriptor: MapStateDescriptor) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return what gives a user key as it is stored, and what gives such a one as something hashable."""
    kind, name = descriptor.key_type, descriptor.name
    if not (pa.types.is_nested(kind) or pa.types.is_floating(kind)):
        has_zone = pa.types.is_timestamp(kind) and kind.tz is not None
        return fitting(kind, name), hashable if has_zone else same
    schema = pa.schema([(name, kind)])

    def stored(user_key: Any) -> Any:
        # Of -0.0 and 0.0, and of all NaNs, one is stored.
        try:
            return plain_values(canonical_floats(key_columns([user_key], schema)[0]), f"state {name!r}")[0]
        except KeyTypeError as error:
            raise ValueTypeError(name, str(kind), shown_misfit(user_key, kind)) from error

    return stored, hashable
