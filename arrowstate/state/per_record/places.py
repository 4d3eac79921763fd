"""The states of a process function: one record at a time on the outside, whole columns on the inside.

For each batch the distinct keys are numbered. A view of a state holds plain Python values by these numbers, or where
the state has namespaces by number and namespace: read from the table in one probe, changed in place by the function,
and written back in one put. What is written is checked at once and kept as the type stores it, so that a read gives the
same wherever the batch begins and ends. The table does not change before the whole batch has gone through. This module
has what the views of all kinds share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.plain import copying, fitting, plain_values
from arrowstate.state.base import KeyedState
from arrowstate.state.current_key import identities_of
from arrowstate.state.shown import Shown
from arrowstate.table.key_batch import KeyBatch

S = TypeVar("S", bound=KeyedState[Any])

NONE_EXPIRED = -(1 << 63) - 1
"""Lower than all times."""

EXPIRED = -(1 << 63) - 2
"""Stands for the time of what is gone; lower than all times too."""


class Place(Protocol):
    """Where in a batch the function is."""

    @property
    def row(self) -> int:
        """The row of the batch."""

    @property
    def number(self) -> Any:
        """The number of the row's key; in a state with namespaces a tuple of this number and the namespace."""

    @property
    def event_time(self) -> int | None:
        """The event time of the row, None where it has none."""


class _Space:
    """The place in a state with namespaces: that of the element, and the current namespace."""

    def __init__(self, state: KeyedState[Any], place: Place) -> None:
        self._state = state
        self._place = place
        self._fields = state.layout.namespace_fields
        # Plain values of these types are equal where the namespaces are, and Arrow takes them as they are. Others go
        # through Arrow, once for each namespace of a batch.
        plain = [{pa.int64(): int, pa.string(): str}.get(field.type) for field in self._fields]
        self._plain = None if None in plain else tuple(plain)
        self._value: Any = None
        self._identity: Hashable = None
        self._known: dict[Hashable, Hashable] = {}
        self._columns: dict[Hashable, list[pa.Array]] = {}
        state.transactions.join(self)

    def begin(self) -> Any:
        return self._value, self._identity, self._columns.get(self._identity)

    def keep(self) -> None:
        """There is nothing to give up."""

    def go_back(self, mark: Any) -> None:
        self._value, self._identity, columns = mark
        if columns is not None:
            self._columns[self._identity] = columns

    @property
    def row(self) -> int:
        return self._place.row

    @property
    def number(self) -> tuple[int, Hashable]:
        if self._identity is None:
            raise InvalidInputError(
                f"no namespace of state {self._state.descriptor.name!r} is set; set its current_namespace before"
            )
        return self._place.number, self._identity

    @property
    def event_time(self) -> int | None:
        return self._place.event_time

    def at(self, namespace: Any) -> tuple[int, Hashable]:
        """Return the place of the element's key in a namespace."""
        return self._place.number, self.identity(namespace)

    @property
    def current(self) -> Any:
        """The current namespace, as it was given."""
        self.number  # noqa: B018 (refuses where there is none)
        return self._value

    @current.setter
    def current(self, value: Any) -> None:
        self._identity = self.identity(value)
        self._value = value

    def identity(self, namespace: Any) -> Hashable:
        """Return a namespace as a tuple, equal for equal ones."""
        given = namespace if len(self._fields) > 1 else (namespace,)
        types = tuple(map(type, given)) if type(given) is tuple else ()
        if types and types == self._plain and all(map(_is_plain, given)):
            return given
        try:
            # True and 1 are equal, and only one of them is a namespace. So are two moments of an hour that comes twice.
            name = types, given, tuple(getattr(value, "fold", 0) for value in given)
            known = self._known.get(name)
        except TypeError:
            types, known = (), None
        if known is None:
            columns = self._state.namespace_columns(namespace, 1)
            known = self.identities(columns)[0]
            self._columns[known] = columns
            if types:
                self._known[name] = known
        return known

    @staticmethod
    def identities(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        """Return namespaces in columns as `identity` returns one."""
        return list(zip(*map(identities_of, columns), strict=True))

    def columns(self, identities: Sequence[Any]) -> Any:
        """Return namespaces that `identity` has returned in this batch as columns."""
        columns = []
        for number, field in enumerate(self._fields):
            if self._plain is None:
                columns.append(pa.concat_arrays([self._columns[each][number] for each in identities]))
            else:
                columns.append(pa.array([each[number] for each in identities], field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._state.descriptor.namespace)

    def end(self) -> None:
        """Forget all namespaces but the current one."""
        self._known = {}
        self._columns = {self._identity: self._columns[self._identity]} if self._identity in self._columns else {}


class ElementState(Shown, Generic[S]):
    """What the views of all kinds share."""

    _plumbing = frozenset({"apply", "begin", "convert", "end", "state"})

    def __init__(self, state: S, place: Place) -> None:
        self.state = state
        self._space = None if state.descriptor.namespace is None else _Space(state, place)
        self._place: Place = place if self._space is None else self._space
        self._keys: KeyBatch | None = None
        self._copy = copying(state.descriptor.type)
        self._fit = fitting(state.descriptor.type, state.descriptor.name)
        self._written_at: int | None = None
        "The time of what is written in the batch, unless it is that of the element; None where none is known."
        self._by_event_time = False
        self._expired_up_to = NONE_EXPIRED
        "The last time that has expired, where the state has a time to live."
        self._hidden_up_to = NONE_EXPIRED
        "The last time of what nobody sees."
        self._renewed_to = NONE_EXPIRED
        "The time that a read gives what is older."

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.descriptor.name!r}>"

    @property
    def current_namespace(self) -> Any:
        """The namespace that the verbs work in, until another is set: a plain value, or a tuple of several."""
        return self._spaces().current

    @current_namespace.setter
    def current_namespace(self, value: Any) -> None:
        self._batch()
        self._spaces().current = value

    def begin(self, keys: KeyBatch) -> None:
        """Start a batch with these distinct keys."""
        self._keys = keys
        ttl = self.state.descriptor.ttl
        if ttl is not None:
            self._by_event_time = ttl.clock == "event_time"
            self._written_at, expired = self.state.times_now()
            self._expired_up_to = NONE_EXPIRED if expired is None else expired
            hides = ttl.visibility == "never_return_expired"
            self._hidden_up_to = self._expired_up_to if hides else NONE_EXPIRED
            renewed = self._written_at if ttl.update == "on_read_and_write" else None
            self._renewed_to = NONE_EXPIRED if renewed is None else renewed

    def convert(self) -> None:
        """Make columns of what was written."""

    def apply(self) -> None:
        """Write the columns into the state."""

    def end(self) -> None:
        """Forget the batch."""
        self._keys = None
        if self._space is not None:
            self._space.end()

    def _batch(self) -> KeyBatch:
        if self._keys is None:
            raise self._outside()
        return self._keys

    def _outside(self) -> InvalidInputError:
        return InvalidInputError(
            f"state {self.state.descriptor.name!r} belongs to the key of an element: use it in process_element"
        )

    def _spaces(self) -> _Space:
        if self._space is None:
            raise InvalidInputError(f"state {self.state.descriptor.name!r} has no namespaces")
        return self._space

    def _stored(self) -> tuple[KeyBatch, Sequence[Any]]:
        """Return all that the table may have rows of for the keys of the batch, and the place that each of them is."""
        keys = self._batch()
        if self._space is None:
            return keys, range(len(keys))
        stored, numbers = self.state.namespaces_of(keys)
        spaces = self._space.identities(stored.columns[len(keys.columns) :])
        return stored, list(zip(numbers.tolist(), spaces, strict=True))

    def _read_all(self, read: Callable[[KeyBatch], tuple[pa.Array, pa.Array | None]]) -> tuple[Any, Any]:
        """Read what all keys of the batch have, and with a time to live its times; return plain values by place."""
        stored, places = self._stored()
        values, times = read(stored)
        kept = self._by_place(places, self._plain(values))
        return kept, None if times is None else self._by_place(places, times.to_pylist())

    def _plain(self, values: pa.Array) -> list[Any]:
        return plain_values(values, f"state {self.state.descriptor.name!r}")

    def _by_place(self, places: Sequence[Any], values: list[Any]) -> Any:
        """Return values so that each is found by its place: a list where places are numbers."""
        return values if self._space is None else Sparse(zip(places, values, strict=True))

    def _where(self, places: Sequence[Any]) -> tuple[Any, Any]:
        """Return places as the keys and the namespaces that a batch verb takes."""
        schema = self.state.layout.key
        if self._space is None:
            return key_rows(self._batch(), places, schema), None
        spaces = self._space.columns([each for _, each in places])
        return key_rows(self._batch(), [number for number, _ in places], schema), spaces

    def _is_timed(self) -> bool:
        """Whether the state has a time to live."""
        return self.state.descriptor.ttl is not None

    def _is_hidden(self, time: int | None) -> bool:
        """Whether what has this time has expired so that nobody sees it."""
        return time is not None and time <= self._hidden_up_to

    def _time_after_read(self, time: int | None) -> int | None:
        """Return the time of something after the function has read it, `EXPIRED` if it is gone then."""
        if time is None:
            return None
        return EXPIRED if time <= self._expired_up_to else max(time, self._renewed_to)

    def _time(self) -> int | None:
        """Return the time of what the element writes, None where none is known."""
        time = self._place.event_time if self._by_event_time else None
        return self._written_at if time is None else time

    def _event_times(self, times: Sequence[int | None]) -> pa.Array | None:
        """Return times as a batch verb takes them: event times, each of which must be known, and no others."""
        if not self._by_event_time:
            return None
        column = pa.array(times, pa.int64())
        if column.null_count:
            # Refused here, and not when other states have been written already.
            self.state.check_time_known()
        return column

    def _sources(self, target: Any, sources: Iterable[Any]) -> tuple[Any, list[Any]]:
        """Return the places of a target namespace of the element's key, and of those to be merged into it."""
        self._batch()
        space = self._spaces()
        number, into = space.at(target)
        places = [space.at(source) for source in sources]
        return (number, into), [place for place in places if place != (number, into)]


class Sparse(dict[Any, Any]):
    """Values by place, None where there is none."""

    def __missing__(self, place: Any) -> None:
        return None


def key_rows(keys: KeyBatch, numbers: Sequence[int], schema: pa.Schema) -> Any:
    """Return the keys with these numbers as a batch verb takes them."""
    rows = pa.array(numbers, pa.int64())
    columns = [column.take(rows) for column in keys.columns]
    return columns[0] if len(columns) == 1 else pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_plain(value: Any) -> bool:
    """Whether an int or str is a namespace as it stands: within 64 bits, and text for certain."""
    return value.isascii() if type(value) is str else -(1 << 63) <= value < 1 << 63
