"""Objects of Java's own serialization, read as data: names of classes, names of fields, and their values.

No class is ever loaded and nothing is run. What a class wrote with a method of its own is kept as bytes and objects in
the order they stand. Depth and lengths are bounded, and an object that holds itself is one Python object that does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from arrowstate.foreign.flink.byte_reader import ByteReader, modified_utf8

_MAGIC = b"\xac\xed\x00\x05"
_DEEPEST = 100
_NULL, _REFERENCE, _CLASS_DESCRIPTION, _OBJECT, _STRING, _ARRAY, _CLASS = range(0x70, 0x77)
_BLOCK, _END_BLOCK, _RESET, _LONG_BLOCK, _EXCEPTION, _LONG_STRING, _PROXY, _ENUM = range(0x77, 0x7F)
_WRITES_ITSELF, _SERIALIZABLE, _EXTERNAL, _BLOCK_DATA = 1, 2, 4, 8
_FIRST_HANDLE = 0x7E0000
_SIZES = {"B": ">b", "C": ">H", "D": ">d", "F": ">f", "I": ">i", "J": ">q", "S": ">h", "Z": ">?"}


@dataclass(slots=True)
class JavaClass:
    """The description of a class in a stream."""

    name: str
    flags: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    "Type letter and name of each."
    parent: JavaClass | None = None


@dataclass(slots=True, repr=False)
class JavaObject:
    """An object: the fields of its class and of those above it by name."""

    class_name: str
    fields: dict[str, Any] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)
    "What methods of its classes wrote, bytes and objects in order."


@dataclass(frozen=True, slots=True)
class JavaEnum:
    """A constant of an enumeration."""

    class_name: str
    name: str


def read_java_object(reader: ByteReader) -> Any:
    """Return the object that stands at the reader's position, and leave the reader after it.

    Boxed numbers are `JavaObject`s with a field `value`; an array of bytes is bytes, another array a list.
    """
    if reader.take(4) != _MAGIC:
        reader.position -= 4
        raise reader.wrong("no serialized Java object")
    return _Stream(reader).content(0)


class _Stream:
    """One stream: its handles are what was read so far, in order."""

    def __init__(self, reader: ByteReader) -> None:
        self.reader = reader
        self.handles: list[Any] = []

    def content(self, depth: int) -> Any:
        reader = self.reader
        if depth > _DEEPEST:
            raise reader.wrong(f"objects nested deeper than {_DEEPEST}")
        kind = reader.byte()
        if kind == _NULL:
            return None
        if kind == _REFERENCE:
            return self._reference()
        if kind in (_STRING, _LONG_STRING):
            return self._string(kind)
        if kind == _OBJECT:
            return self._object(depth)
        if kind == _ARRAY:
            return self._array(depth)
        if kind in (_CLASS_DESCRIPTION, _PROXY):
            return self._class_description(kind, depth)
        if kind == _CLASS:
            described = self._described(depth)
            self.handles.append(described)
            return described
        if kind == _ENUM:
            return self._enum(depth)
        reader.position -= 1
        raise reader.wrong(f"an element of type {kind:#x} in a serialized Java object")

    def _reference(self) -> Any:
        number = self.reader.integer() - _FIRST_HANDLE
        if not 0 <= number < len(self.handles):
            raise self.reader.wrong(f"a reference to object {number} of {len(self.handles)}")
        return self.handles[number]

    def _string(self, kind: int) -> str:
        reader = self.reader
        if kind == _STRING:
            text = reader.utf()
        else:
            data = reader.take(reader.long())
            try:
                text = modified_utf8(data)
            except ValueError as error:
                raise reader.wrong("no text of modified UTF-8") from error
        self.handles.append(text)
        return text

    def _described(self, depth: int) -> JavaClass | None:
        described = self.content(depth + 1)
        if described is not None and not isinstance(described, JavaClass):
            raise self.reader.wrong("no description of a class where there must be one")
        return described

    def _class_description(self, kind: int, depth: int) -> JavaClass:
        reader = self.reader
        described = JavaClass("")
        if kind == _PROXY:
            self.handles.append(described)
            described.name, described.flags = (
                "proxy of " + ", ".join(reader.utf() for _ in range(reader.count(2))),
                _SERIALIZABLE,
            )
        else:
            described.name = reader.utf()
            reader.skip(8)
            self.handles.append(described)
            described.flags = reader.byte()
            for _ in range(reader.short() & 0xFFFF):
                letter = chr(reader.byte())
                described.fields.append((letter, reader.utf()))
                if letter in "[L":
                    self.content(depth + 1)
                elif letter not in _SIZES:
                    raise reader.wrong(f"a field of type {letter!r}")
        self._block(depth)
        parent = self._described(depth)
        above = parent
        while above is not None:
            if above is described:
                raise reader.wrong("a class that is above itself")
            above = above.parent
        described.parent = parent
        return described

    def _block(self, depth: int) -> list[Any]:
        """What stands up to the end of a block: bytes and objects."""
        reader = self.reader
        found: list[Any] = []
        while True:
            kind = reader.byte()
            if kind == _END_BLOCK:
                return found
            if kind == _BLOCK:
                found.append(reader.take(reader.byte()))
            elif kind == _LONG_BLOCK:
                found.append(reader.counted_bytes())
            else:
                reader.position -= 1
                found.append(self.content(depth + 1))

    def _object(self, depth: int) -> JavaObject:
        described = self._described(depth)
        if described is None:
            raise self.reader.wrong("an object without a class")
        found = JavaObject(described.name)
        self.handles.append(found)
        line = []
        each: JavaClass | None = described
        while each is not None:
            line.append(each)
            each = each.parent
        for each in reversed(line):
            if each.flags & _SERIALIZABLE:
                for letter, name in each.fields:
                    found.fields[name] = self._value(letter, depth)
                if each.flags & _WRITES_ITSELF:
                    found.extra += self._block(depth)
            elif each.flags & _EXTERNAL:
                if not each.flags & _BLOCK_DATA:
                    raise self.reader.wrong(f"{each.name} wrote itself without saying how long it is")
                found.extra += self._block(depth)
        return found

    def _value(self, letter: str, depth: int) -> Any:
        if letter in "[L":
            return self.content(depth + 1)
        form = struct.Struct(_SIZES[letter])
        value = form.unpack(self.reader.take(form.size))[0]
        return chr(value) if letter == "C" else value

    def _array(self, depth: int) -> list[Any] | bytes:
        described = self._described(depth)
        if described is None or len(described.name) < 2 or described.name[1] not in "[L" + "".join(_SIZES):
            raise self.reader.wrong("an array of an unknown type")
        letter = described.name[1]
        place = len(self.handles)
        found: list[Any] = []
        self.handles.append(found)
        count = self.reader.count()
        if letter == "B":
            data = self.reader.take(count)
            self.handles[place] = data
            return data
        for _ in range(count):
            found.append(self._value(letter, depth))  # noqa: PERF401  an array may hold itself
        return found

    def _enum(self, depth: int) -> JavaEnum:
        described = self._described(depth)
        if described is None:
            raise self.reader.wrong("a constant without a class")
        place = len(self.handles)
        self.handles.append(None)
        name = self.content(depth + 1)
        if not isinstance(name, str):
            raise self.reader.wrong("a constant without a name")
        found = JavaEnum(described.name, name)
        self.handles[place] = found
        return found
