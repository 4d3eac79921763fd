"""Small files that say they become large: an error that names the file, before the memory is taken."""

import bz2
import tracemalloc
import zlib
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.handles import OperatorStatePlace
from arrowstate.foreign.flink.keyed_header import StateInfo
from arrowstate.foreign.flink.operator_state import operator_batch
from arrowstate.foreign.flink.places import Stream
from arrowstate.foreign.flink.serializers.base import Opaque
from arrowstate.foreign.flink.snappy import decompressed
from arrowstate.foreign.flink.sst.blocks import BlockReader
from arrowstate.foreign.flink.sst.checksums import masked_crc32c
from arrowstate.foreign.flink.sst.footer import TRAILER_BYTES, Handle

LARGE = 80 << 20
SMALL = 1 << 20


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def by_arrow(codec: str) -> object:
    return lambda data: pa.Codec(codec).compress(data, asbytes=True)


CODECS = {
    "zlib": (2, raw_deflate),
    "bzip2": (3, bz2.compress),
    "lz4": (4, by_arrow("lz4_raw")),
    "lz4hc": (5, by_arrow("lz4_raw")),
    "zstd": (7, by_arrow("zstd")),
    "zstd before it was final": (0x40, by_arrow("zstd")),
}


def content(kind: int, block: bytes) -> memoryview:
    data = block + bytes([kind, 0, 0, 0, 0]) + bytes(max(0, TRAILER_BYTES - 5))
    footer = SimpleNamespace(checksum=None, version=5, blocks_end=len(data) + 100, context=0)
    return BlockReader(SimpleNamespace(name="a.sst"), footer).content(data, 0, Handle(0, len(block)))


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_becomes_too_large_is_refused_before_it_does(codec: str) -> None:
    kind, compress = CODECS[codec]
    block = varint(LARGE) + compress(bytes(LARGE))
    before = pa.total_allocated_bytes()
    tracemalloc.start()

    try:
        with pytest.raises(CorruptDataError, match=rf"a\.sst.*said to become {LARGE} bytes.*may become \d+"):
            content(kind, block)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_repeats_itself_is_read(codec: str) -> None:
    kind, compress = CODECS[codec]

    assert bytes(content(kind, varint(SMALL) + compress(bytes(SMALL)))) == bytes(SMALL)


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_becomes_more_than_it_says_is_refused(codec: str) -> None:
    kind, compress = CODECS[codec]

    with pytest.raises(CorruptDataError, match=r"a\.sst.*cannot be decompressed"):
        content(kind, varint(1000) + compress(bytes(SMALL)))


def framed(*pieces: bytes) -> bytes:
    """A stream of Snappy with a chunk for each piece."""
    chunks = b""
    for piece in pieces:
        body = masked_crc32c(piece).to_bytes(4, "little") + pa.Codec("snappy").compress(piece, asbytes=True)
        chunks += b"\0" + len(body).to_bytes(3, "little") + body
    return b"\xff\x06\x00\x00sNaPpY" + chunks


def test_a_stream_of_snappy_becomes_no_more_than_it_may() -> None:
    stream = memoryview(framed(bytes(65536), bytes(65536), b"end"))

    assert len(decompressed(stream, 0, len(stream), "file", most=131075)) == 131075
    with pytest.raises(CorruptDataError, match="file.*more than the 131074 bytes"):
        decompressed(stream, 0, len(stream), "file", most=131074)


@pytest.mark.parametrize("compressed", [True, False])
def test_offsets_that_repeat_do_not_make_rows_of_the_same_bytes(compressed: bool) -> None:
    first, second = (framed(each)[10:] if compressed else each for each in (b"a" * 1000, b"b"))
    info = StateInfo("state", "operator", {}, {"VALUE_SERIALIZER": Opaque("com.acme.Thing", "unknown")})
    offsets = (0,) * 1000 + (len(first),)
    stream = Stream(np.frombuffer(first + second, np.uint8), "file")

    with pytest.raises(CorruptDataError, match="two elements of 'state' begin at one byte"):
        operator_batch(stream, OperatorStatePlace("state", "split", offsets), [0, len(first)], compressed, info, 0)
