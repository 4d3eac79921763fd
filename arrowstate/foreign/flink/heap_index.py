"""Where the states of a key group begin in the heap's own format, which has no lengths.

Of each key group, of each state: its id, the number of its entries, and the entries, each a namespace, a key and a
value. So to find a state is to walk through those before it. A value that cannot be decoded is gone around: what
follows must be another entry whose key belongs to the key group, or another state, and all that is left must parse to
the last byte of the group, in one way only. What cannot be told apart stays one run of bytes; so does all of a state
whose entries would take too long to tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.key_hash import key_groups_of
from arrowstate.foreign.flink.layout import StateLayout
from arrowstate.foreign.flink.serializers.base import Serializer
from arrowstate.foreign.flink.serializers.composites import StructOf
from arrowstate.foreign.flink.serializers.program import Bytes, Code, Program, Tape, UndecodableError
from arrowstate.foreign.flink.serializers.scalars import FlippedLong

_ROWS = 65536
_WINDOW = 1 << 16
_TRIES = 3_000
_TRIES_OF_STATES = 1_000_000


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries of a state in a key group."""

    state: int
    kind: str
    "`rows`, `raw` for one entry whose value cannot be decoded, or `blob` for several."
    start: int
    end: int
    count: int


def entry_serializer(layout: StateLayout, value: Serializer | None) -> Serializer:
    """Return what reads one entry; `value` is the whole value of a list or a map."""
    if value is None:
        return StructOf(("timestamp", "key", "namespace"), (FlippedLong(), layout.key, layout.namespace))
    return StructOf(("namespace", "key", "value"), (layout.namespace, layout.key, value))


class _TooManyTriesError(Exception):
    pass


class GroupParser:
    """Finds the states of key groups."""

    def __init__(
        self, entries: Mapping[int, Serializer], layouts: Mapping[int, StateLayout], max_parallelism: int
    ) -> None:
        self.layouts, self.max_parallelism = layouts, max_parallelism
        self.walkers = {number: walker(entry) for number, entry in entries.items()}
        self.least = {number: max(entry.least, 1) for number, entry in entries.items()}
        self.lengths = {number: entry.length for number, entry in entries.items()}

    def parse(self, data: Bytes, name: str, start: int, end: int, group: int) -> list[Segment]:
        """Return where the entries of a key group are."""
        return _Group(self, data, name, end, group).all(start)


class _Group:
    """One key group as it is parsed."""

    def __init__(self, parser: GroupParser, data: Bytes, name: str, end: int, group: int) -> None:
        self.parser, self.data, self.name, self.end, self.group = parser, data, name, end, group
        self.tries = 0
        self.by_entries = True
        self.damage: CorruptDataError | None = None

    def all(self, start: int) -> list[Segment]:
        found: list[list[Segment]] = []
        for self.by_entries in (True, False):
            self.tries = 0
            try:
                found = self._states(start, frozenset(self.parser.walkers))
                break
            except _TooManyTriesError:
                continue
        if len(found) == 1:
            return found[0]
        if self.damage is not None and not self.tries:
            raise self.damage
        detail = "where a value that cannot be decoded ends is not certain; a canonical savepoint says it"
        raise CorruptDataError(self.name, f"at byte {start}: key group {self.group} cannot be read, {detail}")

    def _states(self, position: int, left: frozenset[int]) -> list[list[Segment]]:
        """All ways, at most two, in which the states that are left fill the group from here on."""
        before: list[Segment] = []
        while left:
            if self.end - position < 6:
                self._wrong(position, "the next state of the key group is missing")
                return []
            number, count = self._short(position), self._int(position + 2)
            if number not in left:
                self._wrong(position, f"a state of id {number}, which the stream does not describe or had already")
                return []
            position += 6
            if count < 0 or count > (self.end - position) // self.parser.least[number]:
                self._wrong(position - 4, f"a number of {count} entries")
                return []
            left -= {number}
            done, stop, is_known = self._walk(number, position, count)
            if stop < 0:
                return []
            if done or is_known:
                before.append(Segment(number, "rows", position, stop, done))
            if not is_known:
                return [before + after for after in self._around(number, stop, count - done, left)]
            position = stop
        if position != self.end:
            self._wrong(position, f"{self.end - position} bytes after the last state of the key group")
            return []
        return [before]

    def _wrong(self, position: int, reason: str) -> None:
        if self.damage is None:
            self.damage = CorruptDataError(self.name, f"at byte {position}: {reason}")

    def _short(self, position: int) -> int:
        return int.from_bytes(self.data[position : position + 2].tobytes(), "big", signed=True)

    def _int(self, position: int) -> int:
        return int.from_bytes(self.data[position : position + 4].tobytes(), "big", signed=True)

    def _walk(self, number: int, position: int, count: int) -> tuple[int, int, bool]:
        """Walk over entries: how many, where they end (-1 if bytes are wrong), and whether all could be decoded."""
        length = self.parser.lengths[number]
        if length >= 0:
            return count, position + length * count, True
        done = 0
        while done < count:
            tape = Tape(self.parser.walkers[number], self.data, self.name)
            chunk = min(count - done, _ROWS)
            try:
                position = int(tape.chain(position, self.end, chunk)[-1])
            except UndecodableError as error:
                return done + error.row, error.position, False
            except CorruptDataError as error:
                self.damage = self.damage or error
                return done, -1, True
            done += chunk
        return done, position, True

    def _around(self, number: int, start: int, count: int, left: frozenset[int]) -> list[list[Segment]]:
        """The ways on from an entry that cannot be decoded, with `count` entries of its state to come, it included.

        Ways that differ in nothing but the entries of this state are one way, in which these are a run of bytes.
        """
        ways: dict[tuple[Segment, ...], list[Segment]] = {}
        for way in self._after_one(number, start, count, left):
            rest = tuple(segment for segment in way if segment.state != number)
            if rest in ways:
                # Six bytes say which state comes next, and how many entries it has.
                stop = rest[0].start - 6 if rest else self.end
                ways[rest] = [Segment(number, "blob", start, stop, count), *rest]
            else:
                ways[rest] = way
            if len(ways) > 1 or not self.by_entries:
                break
        return list(ways.values())

    def _after_one(self, number: int, start: int, count: int, left: frozenset[int]) -> Iterator[list[Segment]]:
        found = False
        if count > 1 and self.by_entries:
            for place in self._next_entries(number, start):
                self._count_try()
                done, stop, is_known = self._walk(number, place, count - 1)
                if stop < 0:
                    continue
                rows = [Segment(number, "rows", place, stop, done)] if done else []
                ways = self._states(stop, left) if is_known else self._around(number, stop, count - 1 - done, left)
                for after in ways:
                    found = True
                    yield [Segment(number, "raw", start, place, 1), *rows, *after]
        if found:
            return
        for place in self._next_states(start, left):
            self._count_try()
            for after in self._states(place, left):
                yield [Segment(number, "raw" if count == 1 else "blob", start, place, count), *after]

    def _count_try(self) -> None:
        self.tries += 1
        if self.tries > (_TRIES if self.by_entries else _TRIES_OF_STATES):
            raise _TooManyTriesError

    def _next_states(self, start: int, left: frozenset[int]) -> Iterator[int]:
        """Where a state that is still to come may begin; the end of the group if none is."""
        if not left:
            yield self.end
            return
        ids = sorted(left)
        for begin in range(start, self.end - 5, _WINDOW):
            end = min(begin + _WINDOW, self.end - 5)
            found = self.data[begin:end].astype(np.int64) << 8 | self.data[begin + 1 : end + 1]
            yield from (np.flatnonzero(np.isin(found, ids)) + begin).tolist()

    def _next_entries(self, number: int, start: int) -> Iterator[int]:
        """Where another entry of the state may begin, if its key tells the key group that it belongs to."""
        layout = self.parser.layouts[number]
        length = layout.key.length
        if not layout.key.hashed or layout.namespace.length < 0 or layout.kind == "timers" or length < 0:
            return
        before = layout.namespace.length
        last = self.end - before - length
        if last <= start:
            return
        for begin in range(start + 1, last + 1, _WINDOW):
            places = np.arange(begin, min(begin + _WINDOW, last + 1), dtype=np.int64)
            keys, _ = layout.key.decode(self.data, places + before, places + before + length, self.name)
            fits = key_groups_of(keys, self.parser.max_parallelism) == self.group
            if not layout.has_namespace and before:
                fits &= self.data[places] == 0
            yield from places[fits].tolist()


def walker(entry: Serializer) -> Code:
    """Return what finds the end of an entry, and looks at nothing in it."""
    program = Program()
    with program.walking():
        entry.add_to(program)
    return program.finish()
