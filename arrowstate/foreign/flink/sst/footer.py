"""The end of a table file: which version it has, which checksums, and where its index of blocks about itself lies."""

from __future__ import annotations

from dataclasses import dataclass

from arrowstate.errors import CorruptDataError, FormatVersionError
from arrowstate.foreign.flink.sst.checksums import CHECKSUMS, Checksum, modifier, of_whole
from arrowstate.foreign.flink.sst.files import RangeFile, read_exactly

TRAILER_BYTES = 5
"""After each block: the number of its codec, and its checksum."""

_MAGIC = 0x88E241B785F4CFF7
_FIRST_MAGIC = 0xDB4775248B80FB57
_EXTENDED_MAGIC = bytes((0x3E, 0x00, 0x7A, 0x00))
_FIRST_BYTES, _BYTES = 48, 53
_NEWEST = 6
_HANDLES_END = 41
"""Where a footer before version 6 ends its checksum type and handles."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a block lies, without its trailer."""

    offset: int
    "Of its first byte."
    size: int
    "Its bytes as they are stored."


@dataclass(frozen=True, slots=True)
class Footer:
    """What the end of a file says."""

    version: int
    "Of the format, 0 to 6."
    checksum: Checksum | None
    "Of the blocks, None where they have none."
    context: int
    "What the checksums of blocks are changed by, 0 where they are not."
    metaindex: Handle
    "The block that names the blocks about the file."
    index: Handle | None
    "The index of the data, None where the metaindex names it."
    blocks_end: int
    "No block reaches beyond this offset."


def varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return the number of variable length at a place, and the place behind it."""
    number = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if number >> 64:
                break
            return number, place
    raise ValueError(f"no number of variable length ends at byte {place}")


def read_footer(file: RangeFile) -> Footer:
    """Return the footer of a table file."""
    size = file.size_bytes
    if size < _FIRST_BYTES:
        raise CorruptDataError(file.name, f"it has {size} bytes, and a table has at least {_FIRST_BYTES}")
    data = bytes(read_exactly(file, max(0, size - _BYTES), min(size, _BYTES)))
    magic = int.from_bytes(data[-8:], "little")
    try:
        if magic == _FIRST_MAGIC:
            return _first(data[-_FIRST_BYTES:], size - _FIRST_BYTES)
        if magic != _MAGIC or len(data) < _BYTES:
            raise ValueError(f"its last 8 bytes are {data[-8:].hex()}, which no block-based table ends with")
        version = int.from_bytes(data[-12:-8], "little")
        if version > _NEWEST:
            raise FormatVersionError(file.name, version, _NEWEST)
        if version < 1:
            raise ValueError("its version is 0, which has another ending")
        read = _sixth if version >= 6 else _second
        return read(data, version, size - _BYTES)
    except ValueError as error:
        raise CorruptDataError(file.name, f"footer at byte {size - len(data)}: {error}") from None


def _first(data: bytes, start: int) -> Footer:
    metaindex, index = _handles(data[:40])
    return Footer(0, CHECKSUMS[1], 0, metaindex, index, start)


def _second(data: bytes, version: int, start: int) -> Footer:
    metaindex, index = _handles(data[1:_HANDLES_END])
    return Footer(version, _checksum(data[0]), 0, metaindex, index, start)


def _sixth(data: bytes, version: int, start: int) -> Footer:
    if data[1:5] != _EXTENDED_MAGIC:
        raise ValueError(f"its bytes 1 to 5 are {data[1:5].hex()} and not {_EXTENDED_MAGIC.hex()}")
    checksum = _checksum(data[0])
    stored, context, size = (int.from_bytes(data[place : place + 4], "little") for place in (5, 9, 13))
    blank = data[:5] + bytes(4) + data[9:]
    if checksum is not None and stored != (of_whole(checksum, blank) + modifier(context, start)) & 0xFFFFFFFF:
        raise ValueError("it does not match its checksum")
    if any(data[17:41]):
        raise ValueError("what is kept free in it is in use")
    offset = start - TRAILER_BYTES - size
    if offset < 0:
        raise ValueError(f"its index of {size} bytes does not fit before it")
    return Footer(version, checksum, context, Handle(offset, size), None, start)


def _handles(data: bytes) -> tuple[Handle, Handle]:
    numbers, place = [], 0
    for _ in range(4):
        number, place = varint(data, place)
        numbers.append(number)
    if any(data[place:]):
        raise ValueError("it goes on after its handles")
    return Handle(numbers[0], numbers[1]), Handle(numbers[2], numbers[3])


def _checksum(kind: int) -> Checksum | None:
    if kind not in CHECKSUMS:
        raise ValueError(f"it names the checksum {kind}, and there is {', '.join(map(str, CHECKSUMS))}")
    return CHECKSUMS[kind]
