"""Blocks: taken from a file, compared with their checksums, decompressed.

A block says how large it becomes: by a number before it, or, for Snappy, in its own head. That is believed up to 64 MiB
or 64 times its bytes, whichever is more, and never beyond what its codec can make of so many bytes or beyond
`MAX_BLOCK_BYTES`. So the memory that a file takes is in proportion to its bytes.
"""

from __future__ import annotations

import bz2
import zlib
from typing import NoReturn

import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.sst.checksums import modifier
from arrowstate.foreign.flink.sst.files import RangeFile, read_exactly
from arrowstate.foreign.flink.sst.footer import TRAILER_BYTES, Footer, Handle, varint

MAX_BLOCK_BYTES = 1 << 30
"""What a block may become. RocksDB cuts blocks at some kilobytes, but one value is never cut."""

_NONE, _SNAPPY, _ZLIB, _BZIP2, _LZ4, _LZ4HC, _ZSTD, _ZSTD_BEFORE = 0, 1, 2, 3, 4, 5, 7, 0x40
_LARGEST_RATIO = {_SNAPPY: 64, _ZLIB: 1040, _LZ4: 256, _LZ4HC: 256}
"""More than so many bytes the codec cannot make of one byte; zstd and bzip2 know no such number."""
_SMALL_BYTES = 64 << 20
"""A block may become so large whatever its bytes are: a value that repeats itself compresses well."""
_USUAL_RATIO = 64
"""A larger block becomes at most so many times its bytes."""
_ARROW_CODECS = {_SNAPPY: "snappy", _LZ4: "lz4_raw", _LZ4HC: "lz4_raw", _ZSTD: "zstd", _ZSTD_BEFORE: "zstd"}
_FIRST_SIZE_BYTES = 8
"""The size before what LZ4 made, up to version 1 of the format."""


class BlockReader:
    """Reads blocks of one file."""

    def __init__(self, file: RangeFile, footer: Footer) -> None:
        self.file, self.footer = file, footer
        self.has_dictionary = False
        "Whether the blocks of data were compressed with a dictionary of the file's own."
        self._codecs = {kind: pa.Codec(name) for kind, name in _ARROW_CODECS.items()}

    def read(self, handle: Handle) -> memoryview:
        """Return the content of a block."""
        return self.content(self.read_stored(handle), 0, handle)

    def read_stored(self, handle: Handle) -> bytes | memoryview:
        """Return a block and its trailer as they are stored."""
        self.check(handle)
        return read_exactly(self.file, handle.offset, handle.size + TRAILER_BYTES)

    def check(self, handle: Handle) -> None:
        """Refuse a handle that leads outside of the part of the file that has blocks."""
        end = handle.offset + handle.size + TRAILER_BYTES
        if end > self.footer.blocks_end:
            self.fail(handle.offset, f"reaches to byte {end}, and the footer begins at byte {self.footer.blocks_end}")
        if handle.size > MAX_BLOCK_BYTES:
            self.fail(handle.offset, f"has {handle.size} bytes, more than the {MAX_BLOCK_BYTES} of the largest")

    def content(self, data: bytes | memoryview, start: int, handle: Handle) -> memoryview:
        """Return the content of a block that was read with others; it begins at `start` of what was read."""
        block = memoryview(data)[start : start + handle.size]
        if not self.is_intact(data, start, handle):
            self.fail(handle.offset, "does not match its checksum")
        kind = data[start + handle.size]
        if kind == _NONE:
            return block
        if kind not in (_ZLIB, _BZIP2, *self._codecs):
            self.fail(handle.offset, f"was made by codec {kind}, which is not read")
        try:
            return memoryview(self._decompressed(kind, block))
        except (ValueError, OSError, EOFError, zlib.error, pa.ArrowException) as error:
            reason = "needs the dictionary of the file, which is not read" if self.has_dictionary else str(error)
            self.fail(handle.offset, f"cannot be decompressed: {reason}")

    def is_intact(self, data: bytes | memoryview, start: int, handle: Handle) -> bool:
        """Whether a block has the checksum that stands behind it."""
        if self.footer.checksum is None:
            return True
        end = start + handle.size
        stored = int.from_bytes(data[end + 1 : end + TRAILER_BYTES], "little")
        computed = self.footer.checksum(memoryview(data)[start:end], data[end])
        return stored == (computed + modifier(self.footer.context, handle.offset)) & 0xFFFFFFFF

    def fail(self, offset: int, detail: str) -> NoReturn:
        """Raise the error of a block that is not what it should be."""
        raise CorruptDataError(self.file.name, f"the block at byte {offset} {detail}")

    def _decompressed(self, kind: int, block: memoryview) -> bytes:
        size, rest = self._size(kind, block)
        most = min(MAX_BLOCK_BYTES, max(_SMALL_BYTES, _USUAL_RATIO * len(block)))
        most = min(most, _LARGEST_RATIO.get(kind, most) * len(block))
        if size > most:
            raise ValueError(f"it is said to become {size} bytes, and its {len(block)} bytes may become {most}")
        if kind == _ZLIB:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(rest, size + 1)
        elif kind == _BZIP2:
            content = bz2.BZ2Decompressor().decompress(rest, size + 1)
        else:
            content = self._codecs[kind].decompress(rest, size, asbytes=True)
        if len(content) != size:
            raise ValueError(f"it has {len(content)} bytes or more in the place of {size}")
        return content

    def _size(self, kind: int, block: memoryview) -> tuple[int, memoryview]:
        """Return how large a block becomes, and what is to be decompressed."""
        if kind == _SNAPPY:
            return varint(block, 0)[0], block
        if self.footer.version >= 2 or kind in (_ZSTD, _ZSTD_BEFORE):
            size, place = varint(block, 0)
            return size, block[place:]
        if kind in (_LZ4, _LZ4HC):
            return int.from_bytes(block[:_FIRST_SIZE_BYTES], "little"), block[_FIRST_SIZE_BYTES:]
        raise ValueError("version 0 and 1 of the format do not say how large it becomes")
