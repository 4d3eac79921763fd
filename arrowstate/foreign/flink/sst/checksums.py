"""The checksums of blocks: CRC-32C, XXH32, XXH64 and XXH3, each of a block and the byte after it that names its codec.

What is stored has 32 bits. CRC-32C is masked, for a checksum of bytes that hold checksums says little. XXH3 is that of
the block alone, and the byte after it is mixed in. Since version 6 of the format the place in the file is added to
each, where the footer says so, and a block that was copied to another place is found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from arrowstate_formats.compiled import kernel

_MASK = 0xFFFFFFFF
_POLYNOMIAL = 0x82F63B78
_CRC_MASK_DELTA = 0xA282EAD8
_LAST_BYTE_PRIME = 0x6B9083D9
_8, _16, _24, _255 = (np.uint32(number) for number in (8, 16, 24, 255))
_ALL = np.uint32(_MASK)

Checksum: TypeAlias = Callable[[memoryview, int], int]
"""Of a block and the byte after it."""


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    return int(_crc32c(np.frombuffer(data, np.uint8), _tables()))


def modifier(context: int, offset: int) -> int:
    """Return what is added to the checksum of a block at an offset; the context is 0 where nothing is."""
    return context ^ ((offset & _MASK) + (offset >> 32) & _MASK) if context else 0


def of_whole(checksum: Checksum, data: bytes) -> int:
    """Return the checksum of bytes the last of which stands for the codec."""
    return checksum(memoryview(data)[:-1], data[-1])


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes as it is stored."""
    return _masked(crc32c(data))


def _masked_crc32c(block: memoryview, last: int) -> int:
    crc = crc32c(block) ^ _MASK
    crc = (crc >> 8) ^ int(_tables()[(crc ^ last) & 255]) ^ _MASK
    return _masked(crc)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & _MASK


def _xxh32(block: memoryview, last: int) -> int:
    digest = xxhash.xxh32(block)
    digest.update(bytes([last]))
    return digest.intdigest()


def _xxh64(block: memoryview, last: int) -> int:
    digest = xxhash.xxh64(block)
    digest.update(bytes([last]))
    return digest.intdigest() & _MASK


def _xxh3(block: memoryview, last: int) -> int:
    return (xxhash.xxh3_64_intdigest(block) ^ last * _LAST_BYTE_PRIME) & _MASK


CHECKSUMS: dict[int, Checksum | None] = {0: None, 1: _masked_crc32c, 2: _xxh32, 3: _xxh64, 4: _xxh3}
"""By the number in the footer: the checksum of a block and of the byte after it. Files of number 0 have none."""


@cache
def _tables() -> npt.NDArray[np.uint32]:
    """Return eight tables of 256, one after the other, the n-th for a byte that n others follow."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> np.uint32(1)) ^ np.where(first & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [first]
    for _ in range(7):
        before = tables[-1]
        tables.append((before >> _8) ^ first[before & _255])
    return np.concatenate(tables).astype(np.uint32)


@kernel("uint8[], uint32[]")
def _crc32c(data: npt.NDArray[np.uint8], tables: npt.NDArray[np.uint32]) -> np.uint32:
    crc, place = _ALL, 0
    while place + 8 <= data.size:
        crc ^= (
            np.uint32(data[place])
            | np.uint32(data[place + 1]) << _8
            | np.uint32(data[place + 2]) << _16
            | np.uint32(data[place + 3]) << _24
        )
        crc = (
            tables[1792 + np.int64(crc & _255)]
            ^ tables[1536 + np.int64(crc >> _8 & _255)]
            ^ tables[1280 + np.int64(crc >> _16 & _255)]
            ^ tables[1024 + np.int64(crc >> _24)]
            ^ tables[768 + np.int64(data[place + 4])]
            ^ tables[512 + np.int64(data[place + 5])]
            ^ tables[256 + np.int64(data[place + 6])]
            ^ tables[np.int64(data[place + 7])]
        )
        place += 8
    while place < data.size:
        crc = crc >> _8 ^ tables[np.int64((crc ^ np.uint32(data[place])) & _255)]
        place += 1
    return crc ^ _ALL
