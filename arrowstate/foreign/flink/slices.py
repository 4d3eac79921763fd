"""Parts of values as they were written, so that they can be put together anew.

Entries of the heap's format and changes of a changelog become entries of the canonical format, and are decoded as
those. Every part is a Python object here, which only a changelog needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from arrowstate.foreign.flink.entries import Entries, prefix_bytes
from arrowstate.foreign.flink.layout import StateLayout
from arrowstate.foreign.flink.serializers.base import Serializer
from arrowstate.foreign.flink.serializers.operations import MARK, NEXT, REPEAT
from arrowstate.foreign.flink.serializers.program import Bytes, Code, Ints, Program, Tape

_ROWS = 65536

Places: TypeAlias = tuple[list[int], list[list[int]]]
"""Where the parts of a value are, and those of each that is repeated; n parts have n + 1 places."""


class Marked:
    """Serializers one after the other, read for where each begins and ends."""

    def __init__(self, parts: Iterable[Serializer], repeated: Iterable[Serializer] = ()) -> None:
        program = Program()
        register = program.register()
        self._places = [self._mark(program, register)]
        for part in parts:
            with program.walking():
                part.add_to(program)
            self._places.append(self._mark(program, register))
        self._inner: list[int] = []
        several = list(repeated)
        if several:
            counter = program.register()
            self._count = program.slots()
            least = sum(part.least for part in several)
            place = program.add(REPEAT, counter, least, 0, slot=self._count)
            with program.deeper():
                body = program.here
                self._inner = [self._mark(program, register)]
                for part in several:
                    with program.walking():
                        part.add_to(program)
                    self._inner.append(self._mark(program, register))
            program.add(NEXT, counter, body)
            program.patch(place, 3)
        self._code: Code = program.finish()

    @staticmethod
    def _mark(program: Program, register: int) -> int:
        slot = program.slots()
        program.add(MARK, register, slot=slot)
        return slot

    def each(self, data: Bytes, name: str, starts: Ints, ends: Ints) -> Iterator[Places]:
        """Yield of each value where its parts are: n parts have n + 1 places; and of each that is repeated."""
        tape = Tape(self._code, data, name, len(starts))
        tape.values(starts, ends)
        yield from self._found(tape)

    def chain(self, data: Bytes, name: str, start: int, end: int, count: int) -> Iterator[Places]:
        """Yield the same of values that follow each other."""
        done = 0
        while done < count:
            tape = Tape(self._code, data, name)
            chunk = min(count - done, _ROWS)
            start = int(tape.chain(start, end, chunk)[-1])
            yield from self._found(tape)
            done += chunk

    def _found(self, tape: Tape) -> Iterator[Places]:
        slots = tape.slots
        places = np.stack([slots[slot] for slot in self._places], axis=1).tolist()
        if not self._inner:
            for place in places:
                yield place, []
            return
        inner = np.stack([slots[slot] for slot in self._inner], axis=1).tolist()
        at = 0
        for place, count in zip(places, slots[self._count].tolist(), strict=True):
            yield place, inner[at : at + count]
            at += count


class EntryBuilder:
    """Puts entries of the canonical format together."""

    def __init__(self, layout: StateLayout, max_parallelism: int) -> None:
        self._prefix = prefix_bytes(max_parallelism)
        self.suffixed = layout.kind != "timers" and layout.key.length < 0 and layout.namespace.length < 0

    def key(self, group: int, key: bytes, namespace: bytes, user_key: bytes = b"") -> bytes:
        """Return the bytes of a key."""
        if self.suffixed:
            key, namespace = key + _length(key), namespace + _length(namespace)
        return group.to_bytes(self._prefix, "big") + key + namespace + user_key

    @staticmethod
    def entries(name: str, found: Iterable[tuple[bytes, bytes]]) -> Iterator[Entries]:
        """Yield entries of keys and values."""
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, value in found:
            keys.append(key)
            values.append(value)
            if len(keys) == _ROWS:
                yield _entries(name, keys, values)
                keys, values = [], []
        if keys:
            yield _entries(name, keys, values)


def _length(data: bytes) -> bytes:
    size = len(data)
    return size.to_bytes(max((size.bit_length() + 7) // 8, 1), "little")


def _entries(name: str, keys: list[bytes], values: list[bytes]) -> Entries:
    key_ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    value_ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    return Entries(
        name,
        np.frombuffer(b"".join(keys), np.uint8),
        np.concatenate([[0], key_ends[:-1]]).astype(np.int64),
        key_ends,
        np.frombuffer(b"".join(values), np.uint8),
        np.concatenate([[0], value_ends[:-1]]).astype(np.int64),
        value_ends,
    )
