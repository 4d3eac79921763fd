"""Savepoints as Flink writes them, made without it: one operator with a state of a long for each key that is a long.

There are the three forms of such a state: canonical, native of the heap, native of RocksDB. What is written is all
that Flink writes, metadata and key groups of its hash included.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rocksdict

__all__ = ["FORMS", "STATE", "write_savepoint"]

FORMS = ("canonical", "heap", "rocksdb")
STATE = "sums.total"
"""The operator by its uid, and the state."""

_OPERATOR, _NAME = STATE.split(".")
_GROUPS = 128
_LONG = "org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
_VOID = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"
_MEMORY_TABLE_ROWS = 1_250_000
"""RocksDB writes a table for so many rows; Flink's defaults give tables of about that size."""

Longs = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]


def write_savepoint(folder: Path, form: str, rows: int, *, max_parallelism: int = _GROUPS) -> None:
    """Write a savepoint of one subtask: the keys are 0 to `rows` - 1, and the value of each is three times the key.

    Parameters
    ----------
    folder : Path
        Made by this call.
    form : {"canonical", "heap", "rocksdb"}
        How the state lies in it.
    rows : int
        How many keys.
    max_parallelism : int
        At most 128: a key group is one byte.
    """
    folder.mkdir(parents=True)
    keys = np.arange(rows, dtype=np.int64)
    groups = _key_groups(keys, max_parallelism)
    order = np.argsort(groups, kind="stable")
    keys, groups = keys[order], groups[order]
    if form == "rocksdb":
        handle = _rocksdb(folder, keys, groups, max_parallelism)
    else:
        write = _canonical_group if form == "canonical" else _heap_group
        handle = _stream(folder, b"\x07" if form == "canonical" else b"\x03", keys, groups, max_parallelism, write)
    (folder / "_metadata").write_bytes(_metadata(handle, max_parallelism))


def _key_groups(keys: Longs, max_parallelism: int) -> npt.NDArray[np.uint8]:
    """The key groups of longs: Flink's hash of Java's hash code."""

    def rotated(code: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
        return code << np.uint32(bits) | code >> np.uint32(32 - bits)

    unsigned = keys.view(np.uint64)
    code = (unsigned ^ unsigned >> np.uint64(32)).astype(np.uint32) * np.uint32(0xCC9E2D51)
    code = rotated(rotated(code, 15) * np.uint32(0x1B873593), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        code = (code ^ code >> np.uint32(bits)) * np.uint32(factor)
    return (np.abs(code.view(np.int32).astype(np.int64)) % max_parallelism).astype(np.uint8)


def _stream(
    folder: Path, kind: bytes, keys: Longs, groups: npt.NDArray[np.uint8], max_parallelism: int, write: Any
) -> bytes:
    """Write one file of all key groups and return its handle."""
    bounds = np.searchsorted(groups, np.arange(max_parallelism + 1))
    offsets = []
    with (folder / "state").open("wb") as file:
        file.write(_header())
        for group in range(max_parallelism):
            part = keys[bounds[group] : bounds[group + 1]]
            offsets.append(file.tell() if len(part) else 0)
            if len(part):
                write(file, group, part)
        size = file.tell()
    head = struct.pack(f">ii{max_parallelism}q", 0, max_parallelism, *offsets)
    return kind + head + _relative("state", size)


def _canonical_group(file: Any, group: int, keys: Longs) -> None:
    kinds = [("size", ">i4"), ("group", "u1"), ("key", ">i8"), ("void", "u1"), ("length", ">i4"), ("value", ">i8")]
    rows = np.zeros(len(keys), dtype=kinds)
    rows["size"], rows["group"], rows["key"], rows["length"], rows["value"] = 10, group, keys, 8, keys * 3
    rows["group"][-1] |= 0x80
    file.write(struct.pack(">h", 0) + rows.tobytes() + struct.pack(">h", -1))


def _heap_group(file: Any, group: int, keys: Longs) -> None:
    rows = np.zeros(len(keys), dtype=[("void", "u1"), ("key", ">i8"), ("value", ">i8")])
    rows["key"], rows["value"] = keys, keys * 3
    file.write(struct.pack(">ihi", group, 0, len(keys)) + rows.tobytes())


def _rocksdb(folder: Path, keys: Longs, groups: npt.NDArray[np.uint8], max_parallelism: int) -> bytes:
    """Have RocksDB write tables, in the order in which keys come to a job, and return their handle."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.snappy())
    options.set_disable_auto_compactions(True)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_format_version(5)
    options.set_block_based_table_factory(blocks)
    database = rocksdict.Rdict(str(folder / "db"), options)
    unlogged = rocksdict.WriteOptions()
    # An attribute; the package's types say a method.
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
    family = database.create_column_family(_NAME, options)
    family.set_write_options(unlogged)
    stored = np.zeros(len(keys), dtype=[("group", "u1"), ("key", ">i8"), ("void", "u1")])
    stored["group"], stored["key"] = groups, keys
    for rows in _parts(np.random.default_rng(1).permutation(len(keys))):
        # Sorted for the sake of speed: tables are sorted anyway.
        rows = np.sort(rows)
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch.set_default_column_family(database.get_column_family_handle(_NAME))
        values = (keys[rows] * 3).astype(">i8").view("V8").tolist()
        for key, value in zip(np.ascontiguousarray(stored[rows]).view("V10").tolist(), values, strict=True):
            batch.put(key, value)
        family.write(batch)
        family.flush()
    family.close()
    database.close()
    (folder / "header").write_bytes(_header())
    files = sorted((folder / "db").iterdir())
    tables = [path for path in files if path.suffix == ".sst"]
    others = [path for path in files if path.name.startswith(("MANIFEST", "CURRENT", "OPTIONS"))]
    head = struct.pack(">q", 1) + _utf("backend") + struct.pack(">ii", 0, max_parallelism)
    handle = b"\x05" + head + _relative("header", (folder / "header").stat().st_size)
    for paths in (tables, others):
        handle += struct.pack(">i", len(paths))
        for path in paths:
            moved = path.rename(folder / path.name)
            handle += _utf(path.name) + _relative(path.name, moved.stat().st_size)
    shutil.rmtree(folder / "db")
    return handle


def _parts(rows: Longs) -> Iterator[Longs]:
    for start in range(0, len(rows), _MEMORY_TABLE_ROWS):
        yield rows[start : start + _MEMORY_TABLE_ROWS]


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _relative(name: str, size: int) -> bytes:
    return b"\x06" + _utf(name) + struct.pack(">q", size)


def _serializer(snapshot: str) -> bytes:
    return struct.pack(">i", 2) + _utf(snapshot) + struct.pack(">i", 3)


def _header() -> bytes:
    """What stands before keyed state: the key is a long, and so is the value of one state."""
    options = struct.pack(">ii", 0, 1) + _utf("KEYED_STATE_TYPE") + _utf("VALUE")
    values = _utf("VALUE_SERIALIZER") + _serializer(_LONG) + _utf("NAMESPACE_SERIALIZER") + _serializer(_VOID)
    state = _utf(_NAME) + options + struct.pack(">i", 2) + values
    return struct.pack(">ib", 6, 0) + _serializer(_LONG) + struct.pack(">h", 1) + state


def _metadata(handle: bytes, max_parallelism: int) -> bytes:
    subtask = struct.pack(">iii", 0, 0, 0) + handle + bytes(9)
    operator = _utf(_OPERATOR) + _utf(_OPERATOR) + bytes(range(16)) + struct.pack(">iibi", 1, max_parallelism, 0, 1)
    head = struct.pack(">iiqii", 0x4960672D, 6, 1, 0, 1)
    # A null of Java in the place of how the checkpoint is kept.
    return head + operator + subtask + b"\xac\xed\x00\x05p"
