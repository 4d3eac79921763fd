"""Streams of Snappy's framing format, as Flink compresses state with: chunks of at most 64 KiB with checksums."""

from __future__ import annotations

import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.sst.checksums import masked_crc32c

MAX_STREAM_BYTES = 1 << 30
"""What a stream may become. Flink writes one for each key group, and for each element of a list without keys."""
_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_MOST = 65536
_COMPRESSED, _PLAIN, _PADDING, _STREAM = 0x00, 0x01, 0xFE, 0xFF


def decompressed(
    data: memoryview, start: int, end: int, name: str, *, whole: bool = True, most: int = MAX_STREAM_BYTES
) -> bytes:
    """Return the content of a whole stream, or of chunks of one, of at most `most` bytes."""
    found = []
    position, left = start, most

    def wrong(reason: str) -> CorruptDataError:
        return CorruptDataError(name, f"at byte {position}: {reason}")

    if whole and bytes(data[start : min(start + 10, end)]) != _IDENTIFIER:
        raise wrong("no stream of Snappy begins here")
    while position < end:
        if end - position < 4:
            raise wrong("a chunk of Snappy is cut off")
        kind, size = data[position], int.from_bytes(data[position + 1 : position + 4], "little")
        if size > end - position - 4:
            raise wrong(f"a chunk of Snappy of {size} bytes, and {end - position - 4} are left")
        body = data[position + 4 : position + 4 + size]
        if kind in (_COMPRESSED, _PLAIN):
            if size < 4:
                raise wrong("a chunk of Snappy without a checksum")
            becomes = _size(body[4:], kind)
            if becomes is not None and becomes > left:
                raise wrong(f"the stream of Snappy becomes more than the {most} bytes that it may have")
            content = None if becomes is None else _content(body[4:], kind, becomes)
            if content is None:
                raise wrong("a chunk of Snappy is damaged, or longer than 65536 bytes")
            if masked_crc32c(content) != int.from_bytes(body[:4], "little"):
                raise wrong("the checksum of a chunk of Snappy is another one")
            found.append(content)
            left -= len(content)
        elif kind < 0x80 or (kind == _STREAM and bytes(body) != _IDENTIFIER[4:]):
            raise wrong(f"a chunk of Snappy of type {kind:#x}")
        position += 4 + size
    return b"".join(found)


def _size(body: memoryview, kind: int) -> int | None:
    """How many bytes a chunk says that it becomes; None if that cannot be."""
    if kind == _PLAIN:
        return len(body) if len(body) <= _MOST else None
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size if size <= _MOST and len(body) else None


def _content(body: memoryview, kind: int, size: int) -> bytes | None:
    """The bytes of a chunk; None if they cannot be had."""
    if kind == _PLAIN:
        return bytes(body)
    try:
        content: bytes = pa.Codec("snappy").decompress(bytes(body), decompressed_size=size, asbytes=True)
    except (OSError, ValueError, pa.ArrowException):
        return None
    return content if len(content) == size else None
