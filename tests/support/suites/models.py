"""Keyed state and timers as plain dicts and sets: what a backend is tried against in random histories."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from arrowstate.schema.descriptors import StateDescriptor

__all__ = ["Folding", "StateModel", "TimerModel"]

Place = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Folding:
    """How a reducing or aggregating state takes values in."""

    first: Callable[[Any], Any] = lambda value: value
    "What is stored after the first value."
    fold: Callable[[Any, Any], Any] = lambda _, value: value
    "What is stored after another one."
    merge: Callable[[Any, Any], Any] = lambda _, other: other
    "What two stored ones become where namespaces merge."
    result: Callable[[Any], Any] = lambda stored: stored
    "What is read."


@dataclass(slots=True)
class StateModel:
    """One state: (key, namespace) to a list of [user key or None, stored value, time of the last update]."""

    descriptor: StateDescriptor
    folding: Folding = field(default_factory=Folding)
    entries: dict[Place, list[list[Any]]] = field(default_factory=dict)

    def copy(self) -> StateModel:
        """Return a model that does not change with this one."""
        entries = {place: [list(entry) for entry in entries] for place, entries in self.entries.items()}
        return StateModel(self.descriptor, self.folding, entries)

    def prune(self, clock: int, watermark: int) -> None:
        """Remove what has expired, and keys without anything."""
        ttl = self.descriptor.ttl
        if ttl is not None:
            now = clock if ttl.clock == "processing_time" else watermark
            for entries in self.entries.values():
                entries[:] = [entry for entry in entries if entry[2] + ttl.ttl_ms > now]
        self.entries = {place: entries for place, entries in self.entries.items() if entries}

    def write(self, place: Place, user_key: Any, value: Any, time: int) -> None:
        """Update, add or put one value; None clears, but is a value of a map."""
        entries = self.entries.setdefault(place, [])
        kind = self.descriptor.kind
        if kind == "list":
            entries.append([None, value, time])
        elif kind == "map":
            entries[:] = [entry for entry in entries if entry[0] != user_key] + [[user_key, value, time]]
        elif value is None:
            entries.clear()
        elif entries and kind != "value":
            entries[:] = [[None, self.folding.fold(entries[0][1], value), max(time, entries[0][2])]]
        else:
            entries[:] = [[None, self.folding.first(value), time]]

    def replace(self, place: Place, values: Iterable[Any], time: int) -> None:
        """Put a list in the place of that of a key."""
        self.entries[place] = [[None, value, time] for value in values]

    def clear(self, place: Place) -> None:
        """Remove what a key has in a namespace."""
        self.entries.pop(place, None)

    def remove(self, place: Place, user_key: Any) -> None:
        """Remove an entry of a map."""
        entries = self.entries.get(place, [])
        entries[:] = [entry for entry in entries if entry[0] != user_key]

    def read(self, place: Place, now: int | None = None) -> Any:
        """Return what a caller sees; `now` where a read renews."""
        entries = self.entries.get(place, [])
        self.renew(entries, now)
        if self.descriptor.kind == "list":
            return [entry[1] for entry in entries]
        if self.descriptor.kind == "map":
            return {entry[0]: entry[1] for entry in entries}
        return self.folding.result(entries[0][1]) if entries else None

    def entry(self, place: Place, user_key: Any, now: int | None = None) -> list[Any]:
        """Return the values of an entry of a map: one or none."""
        entries = [entry for entry in self.entries.get(place, []) if entry[0] == user_key]
        self.renew(entries, now)
        return [entry[1] for entry in entries]

    @staticmethod
    def renew(entries: list[list[Any]], now: int | None) -> None:
        """Make entries as young as `now`, if it is known."""
        if now is not None:
            for entry in entries:
                entry[2] = max(entry[2], now)

    def merge(self, key: Any, target: Any, sources: Iterable[Any]) -> None:
        """Merge namespaces of a key into one."""
        into = self.entries.setdefault((key, target), [])
        for source in sources:
            if source == target:
                continue
            for entry in self.entries.pop((key, source), []):
                if self.descriptor.kind != "list" and into:
                    into[:] = [[None, self.folding.merge(into[0][1], entry[1]), max(entry[2], into[0][2])]]
                else:
                    into.append(entry)


@dataclass(slots=True)
class TimerModel:
    """The timers of one clock: (timestamp, key, namespace)."""

    timers: set[tuple[int, Any, Any]] = field(default_factory=set)

    def copy(self) -> TimerModel:
        """Return a model that does not change with this one."""
        return TimerModel(set(self.timers))

    def due(self, time: int, keys: Iterable[Any]) -> set[tuple[int, Any, Any]]:
        """Return the timers of some keys up to a time."""
        wanted = set(keys)
        return {timer for timer in self.timers if timer[0] <= time and timer[1] in wanted}
