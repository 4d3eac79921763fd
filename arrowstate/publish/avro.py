"""Avro object container files with the fixed schemas of Iceberg's manifests, written and read.

Blocks are not compressed and the marker between them is derived from the rest, so that the same records are the same
bytes in every process and with every version of a library.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import xxhash

from arrowstate.errors import CorruptDataError

Schema: TypeAlias = Any
_Write: TypeAlias = Callable[[bytearray, Any], None]
_Read: TypeAlias = Callable[[io.BytesIO], Any]

_MAGIC = b"Obj\x01"
_DOUBLE = struct.Struct("<d")
_METADATA: Schema = {"type": "map", "values": "bytes"}


def write_container(schema: Schema, records: Sequence[Any], metadata: Mapping[str, str]) -> bytes:
    """Return records as one file; `metadata` stands in its header."""
    write = _writer(schema)
    body = bytearray()
    for record in records:
        write(body, record)
    header = bytearray(_MAGIC)
    texts = {**metadata, "avro.schema": json.dumps(schema, separators=(",", ":")), "avro.codec": "null"}
    _writer(_METADATA)(header, {name: text.encode() for name, text in texts.items()})
    marker = xxhash.xxh3_128_digest(bytes(header) + bytes(body))
    out = header + marker
    if records:
        _write_long(out, len(records))
        _write_long(out, len(body))
        out += body + marker
    return bytes(out)


def read_container(data: bytes, *, path: str) -> tuple[dict[str, str], list[Any]]:
    """Return the metadata and the records of a file that `write_container` wrote."""
    file = io.BytesIO(data)
    try:
        if file.read(4) != _MAGIC:
            raise ValueError("no Avro file")
        texts = {name: text.decode() for name, text in _reader(_METADATA)(file).items()}
        if texts["avro.codec"] != "null":
            raise ValueError(f"the codec {texts['avro.codec']!r} is not one of this package")
        marker, records = file.read(16), []
        read = _reader(json.loads(texts["avro.schema"]))
        while file.tell() < len(data):
            count = _read_long(file)
            _read_long(file)
            records += [read(file) for _ in range(count)]
            if file.read(16) != marker:
                raise ValueError("a block does not end where it should")
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise CorruptDataError(path, f"no manifest of a publication: {error}") from error
    return texts, records


def _write_long(out: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def _read_long(file: io.BytesIO) -> int:
    shift = rest = 0
    while True:
        byte = file.read(1)[0]
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1)
        shift += 7


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _read_bytes(file: io.BytesIO) -> bytes:
    return file.read(_read_long(file))


_WRITERS: dict[str, _Write] = {
    "int": _write_long,
    "long": _write_long,
    "bytes": _write_bytes,
    "string": lambda out, value: _write_bytes(out, value.encode()),
    "boolean": lambda out, value: out.append(bool(value)),
    "double": lambda out, value: out.extend(_DOUBLE.pack(value)),
}
_READERS: dict[str, _Read] = {
    "int": _read_long,
    "long": _read_long,
    "bytes": _read_bytes,
    "string": lambda file: _read_bytes(file).decode(),
    "boolean": lambda file: file.read(1) == b"\x01",
    "double": lambda file: _DOUBLE.unpack(file.read(8))[0],
}


def _writer(schema: Schema) -> _Write:
    if isinstance(schema, str):
        return _WRITERS[schema]
    if isinstance(schema, list):
        inner = _writer(schema[1])

        def write_optional(out: bytearray, value: Any) -> None:
            out.append(0 if value is None else 2)
            if value is not None:
                inner(out, value)

        return write_optional
    if schema["type"] == "record":
        fields = [(field["name"], _writer(field["type"])) for field in schema["fields"]]

        def write_record(out: bytearray, value: Any) -> None:
            for name, write in fields:
                write(out, value[name])

        return write_record
    is_map = schema["type"] == "map"
    item = _writer(schema["values"] if is_map else schema["items"])

    def write_items(out: bytearray, value: Any) -> None:
        if value:
            _write_long(out, len(value))
        for each in value:
            if is_map:
                _write_bytes(out, each.encode())
            item(out, value[each] if is_map else each)
        out.append(0)

    return write_items


def _reader(schema: Schema) -> _Read:
    if isinstance(schema, str):
        return _READERS[schema]
    if isinstance(schema, list):
        inner = _reader(schema[1])
        return lambda file: inner(file) if _read_long(file) else None
    if schema["type"] == "record":
        fields = [(field["name"], _reader(field["type"])) for field in schema["fields"]]
        return lambda file: {name: read(file) for name, read in fields}
    if schema["type"] == "map":
        value = _reader(schema["values"])
        return lambda file: dict(_items(file, lambda file: (_read_bytes(file).decode(), value(file))))
    item = _reader(schema["items"])
    return lambda file: _items(file, item)


def _items(file: io.BytesIO, read: _Read) -> list[Any]:
    found: list[Any] = []
    while count := _read_long(file):
        found += [read(file) for _ in range(count)]
    return found
