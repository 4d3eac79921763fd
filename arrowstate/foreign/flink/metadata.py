"""The file `_metadata` of a savepoint or checkpoint: versions 2 to 7, Flink 1.3 to 2.3 and what follows it.

Version 2 has no coordinators and no channels, 3 both; 4 ends with the properties of the checkpoint; 5 names operators;
6 merges channels; 7 says of a subtask which checkpoint its state is from.
"""

from __future__ import annotations

from typing import Final

from arrowstate.errors import FormatVersionError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.handles import (
    ChangelogFiles,
    ChangelogHandle,
    ChannelHandle,
    FileHandle,
    IncrementalHandle,
    InlineHandle,
    InMemoryChanges,
    KeyedHandle,
    KeyGroupsHandle,
    MasterState,
    Metadata,
    Operator,
    OperatorHandle,
    OperatorStatePlace,
    StreamHandle,
    Subtask,
)
from arrowstate.foreign.flink.java_objects import JavaEnum, JavaObject, read_java_object

_MAGIC: Final = 0x4960672D
_MASTER_MAGIC: Final = 0xC96B1696 - (1 << 32)
_OLDEST, _NEWEST = 2, 7
_MOST_KEY_GROUPS = 32768
_DEEPEST = 16
_LONGEST_PATH = 1000
"""Characters of the names that lead to a property; objects may refer to each other in a chain without end."""
_MODES = ("split", "union", "broadcast")


def read_metadata(data: bytes | memoryview, name: str = "_metadata") -> Metadata:
    """Parse the file `_metadata`."""
    reader = ByteReader(data, name)
    if reader.left < 8 or reader.integer() != _MAGIC:
        reader.position = 0
        raise reader.wrong("this is no _metadata of Flink, its first four bytes are not 49 60 67 2d")
    version = reader.integer()
    if version > _NEWEST:
        raise FormatVersionError(name, version, _NEWEST)
    if version < _OLDEST:
        raise reader.wrong(f"version {version} is of Flink 1.2 or before; let a newer Flink write a savepoint of it")
    checkpoint_id = reader.long()
    masters = tuple(_master_state(reader) for _ in range(reader.count(8)))
    operators = tuple(_operator(reader, version) for _ in range(reader.count(28)))
    properties: dict[str, object] = {}
    if version >= 4 and reader.left:
        properties = _plain(read_java_object(reader))
    if reader.left:
        raise reader.wrong(f"{reader.left} bytes after the end")
    return Metadata(version, checkpoint_id, masters, operators, properties)


def _plain(found: object) -> dict[str, object]:
    """Numbers, flags and names of an object and of those in it, by the names that lead to each."""
    plain: dict[str, object] = {}
    waiting, seen = [("", found)], set()
    while waiting:
        prefix, each = waiting.pop()
        if not isinstance(each, JavaObject) or id(each) in seen:
            continue
        seen.add(id(each))
        for name, value in each.fields.items():
            if len(prefix) + len(name) > _LONGEST_PATH:
                continue
            if isinstance(value, bool | int | float | str):
                plain[prefix + name] = value
            elif isinstance(value, JavaEnum):
                plain[prefix + name] = value.name
            else:
                waiting.append((f"{prefix}{name}.", value))
    return plain


def _master_state(reader: ByteReader) -> MasterState:
    if reader.integer() != _MASTER_MAGIC:
        reader.position -= 4
        raise reader.wrong("no state of a master where there must be one")
    part = reader.part(reader.count())
    version, name = part.integer(), part.utf()
    state = MasterState(name, version, part.counted_bytes())
    if part.left:
        raise part.wrong(f"{part.left} bytes after the state of a master")
    return state


def _operator(reader: ByteReader, version: int) -> Operator:
    name = uid = None
    if version >= 5:
        name, uid = reader.utf() or None, reader.utf() or None
    operator_id = reader.take(16).hex()
    parallelism, max_parallelism = reader.integer(), reader.integer()
    if not 1 <= parallelism <= _MOST_KEY_GROUPS or not 1 <= max_parallelism <= _MOST_KEY_GROUPS:
        raise reader.wrong(f"parallelism {parallelism} and max parallelism {max_parallelism}")
    coordinator = None
    if version == 2:
        reader.skip(4)
    else:
        coordinator = _stream(reader)
    subtasks = reader.integer()
    if subtasks < 0:
        return Operator(operator_id, name, uid, parallelism, max_parallelism, coordinator, (), finished=True)
    reader.position -= 4
    found = tuple(_subtask(reader, version) for _ in range(reader.count(4)))
    return Operator(operator_id, name, uid, parallelism, max_parallelism, coordinator, found)


def _subtask(reader: ByteReader, version: int) -> Subtask:
    index = reader.integer()
    if index < 0:
        return Subtask(-index - 1, finished=True)
    if version == 2:
        reader.skip(8)
        if reader.integer():
            reader.position -= 4
            raise reader.wrong("state of Flink 1.2 or before")
    managed = _operator_handle(reader) if reader.integer() else None
    raw = _operator_handle(reader) if reader.integer() else None
    keyed, raw_keyed = _keyed(reader), _keyed(reader)
    channels: tuple[ChannelHandle, ...] = ()
    if version >= 3:
        channels = tuple(_channel(reader, "input", version) for _ in range(reader.count(17)))
        channels += tuple(_channel(reader, "output", version) for _ in range(reader.count(17)))
    if version >= 7 and reader.boolean():
        reader.skip(8)
    return Subtask(index, False, managed, raw, keyed, raw_keyed, channels)


def _channel(reader: ByteReader, direction: str, version: int) -> ChannelHandle:
    kind = reader.byte() if version >= 6 else 0
    one, merged = (1, 3) if direction == "input" else (2, 4)
    if version >= 6 and kind not in (one, merged):
        reader.position -= 1
        raise reader.wrong(f"a channel of type {kind}")
    subtask = reader.integer()
    if kind == merged:
        size = reader.long()
        _stream(reader)
        reader.skip(reader.count())
    else:
        reader.skip(8)
        reader.skip(8 * reader.count(8))
        size = reader.long()
        _stream(reader)
    return ChannelHandle(direction, subtask, size)


def _operator_handle(reader: ByteReader) -> OperatorHandle | None:
    kind = reader.byte()
    if kind == 0:
        return None
    if kind not in (4, 17):
        reader.position -= 1
        raise reader.wrong(f"a handle of operator state of type {kind}")
    states = []
    for _ in range(reader.count(7)):
        name, mode = reader.utf(), reader.byte()
        if mode >= len(_MODES):
            raise reader.wrong(f"the mode {mode} of operator state {name!r}")
        states.append(OperatorStatePlace(name, _MODES[mode], tuple(_offset(reader) for _ in range(reader.count(8)))))
    if kind == 17:
        reader.utf()
        reader.utf()
        reader.boolean()
    return OperatorHandle(tuple(states), _stream(reader))


def _offset(reader: ByteReader) -> int:
    offset = reader.long()
    if offset < 0:
        raise reader.wrong(f"the offset {offset}")
    return offset


def _stream(reader: ByteReader) -> StreamHandle | None:
    kind = reader.byte()
    if kind in (0, 16):
        return None
    if kind == 1:
        name, size = reader.utf(), reader.count()
        start = reader.position
        reader.skip(size)
        return InlineHandle(name, start, size)
    if kind == 2:
        size = _offset(reader)
        return FileHandle(reader.utf(), size)
    if kind == 6:
        path = reader.utf()
        return FileHandle(path, _offset(reader), relative=True)
    if kind == 15:
        begin, size = _offset(reader), _offset(reader)
        reader.skip(4)
        path = reader.utf()
        reader.utf()
        return FileHandle(path, size, start=begin)
    reader.position -= 1
    raise reader.wrong(f"a handle of type {kind}")


def _key_groups(reader: ByteReader) -> tuple[int, int]:
    first, count = reader.integer(), reader.integer()
    if first < 0 or count < 0 or first + count > _MOST_KEY_GROUPS:
        raise reader.wrong(f"{count} key groups from {first}")
    return first, count


def _keyed(reader: ByteReader, depth: int = 0) -> KeyedHandle | None:
    if depth > _DEEPEST:
        raise reader.wrong(f"handles nested deeper than {_DEEPEST}")
    kind = reader.byte()
    if kind == 0:
        return None
    if kind in (3, 7, 12):
        first, count = _key_groups(reader)
        if count * 8 > reader.left:
            raise reader.wrong(f"{count} key groups, and {reader.left} bytes are left")
        offsets = tuple(_offset(reader) for _ in range(count))
        handle = KeyGroupsHandle(first, offsets, _stream(reader), canonical=kind == 7)
        if kind == 12:
            reader.utf()
        return handle
    if kind in (5, 11):
        return _incremental(reader, kind)
    if kind in (8, 14):
        return _changelog(reader, kind, depth)
    if kind == 9:
        return _changes(reader)
    if kind in (10, 13):
        first, count = _key_groups(reader)
        files = tuple((_offset(reader), _stream(reader)) for _ in range(reader.count(9)))
        reader.skip(16)
        reader.utf()
        return ChangelogFiles(first, count, files, reader.utf() if kind == 13 else "filesystem")
    reader.position -= 1
    raise reader.wrong(f"a handle of keyed state of type {kind}")


def _incremental(reader: ByteReader, kind: int) -> IncrementalHandle:
    reader.skip(8)
    backend = reader.utf()
    first, count = _key_groups(reader)
    if kind == 11:
        reader.skip(8)
    meta = _stream(reader)
    shared = tuple((reader.utf(), _stream(reader)) for _ in range(reader.count(3)))
    private = tuple((reader.utf(), _stream(reader)) for _ in range(reader.count(3)))
    if kind == 11:
        reader.utf()
    return IncrementalHandle(backend, first, count, meta, shared, private)


def _changelog(reader: ByteReader, kind: int, depth: int) -> ChangelogHandle:
    first, count = _key_groups(reader)
    reader.skip(8)
    base = tuple(_keyed(reader, depth + 1) for _ in range(reader.count()))
    changes = tuple(_keyed(reader, depth + 1) for _ in range(reader.count()))
    reader.skip(16 if kind == 14 else 8)
    reader.utf()
    return ChangelogHandle(first, count, tuple(each for each in base if each), tuple(each for each in changes if each))


def _changes(reader: ByteReader) -> InMemoryChanges:
    first, count = _key_groups(reader)
    reader.skip(16)
    changes = []
    for _ in range(reader.count(8)):
        key_group, size = reader.integer(), reader.count()
        changes.append((key_group, reader.position, size))
        reader.skip(size)
    reader.utf()
    return InMemoryChanges(first, count, tuple(changes))
