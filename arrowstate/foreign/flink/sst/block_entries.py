"""Entries of the small blocks, those about a file and its indexes, one by one.

A key is stored without what it shares with the key before it. In an index of delta encoding values have no length: a
handle after another one is the difference of their sizes, for blocks lie one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from arrowstate.foreign.flink.sst.footer import TRAILER_BYTES, Handle, varint

_RESTART_BYTES = 4
_HASH_INDEX = 1 << 31
_HASH_FOOTER_BYTES = 2


def entries_end(block: memoryview) -> int:
    """Return where the entries of a block end and the places begin from which a search may start."""
    footer = int.from_bytes(block[-_RESTART_BYTES:], "little")
    end = len(block) - _RESTART_BYTES
    if footer & _HASH_INDEX and end >= _HASH_FOOTER_BYTES:
        # One byte for each bucket of the hash index, and the number of its buckets.
        end -= _HASH_FOOTER_BYTES + int.from_bytes(block[end - _HASH_FOOTER_BYTES : end], "little")
    end -= (footer & ~_HASH_INDEX) * _RESTART_BYTES
    if end < 0:
        raise ValueError(f"its {len(block)} bytes have no room for the {footer & ~_HASH_INDEX} places it names")
    return end


def entries_of(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield key and value of each entry."""
    place, end, key = 0, entries_end(block), b""
    while place < end:
        shared, place = varint(block, place)
        added, place = varint(block, place)
        size, place = varint(block, place)
        key, place = _key(key, shared, block, place, place + added, end)
        if place + size > end:
            raise ValueError(f"a value of {size} bytes at byte {place} of it does not fit")
        yield key, block[place : place + size]
        place += size


def handles_of(block: memoryview, *, is_delta: bool, has_first_key: bool) -> Iterator[tuple[bytes, Handle]]:
    """Yield a key that is not before the last of a block, and where the block lies, in the order of the index."""
    place, end, key, handle = 0, entries_end(block), b"", Handle(0, 0)
    behind = 0
    while place < end:
        shared, place = varint(block, place)
        added, place = varint(block, place)
        value_end = end
        if not is_delta:
            size, place = varint(block, place)
            value_end = place + added + size
        key, place = _key(key, shared, block, place, place + added, end)
        if is_delta and shared:
            change, place = varint(block, place)
            handle = Handle(behind, handle.size + (change >> 1 ^ -(change & 1)))
        else:
            handle, place = handle_of(block, place)
        if has_first_key:
            size, place = varint(block, place)
            place += size
        if place > value_end or value_end > end or handle.size < 0 or handle.offset < behind:
            raise ValueError(f"its entry that ends at byte {place} leads to {handle}, behind byte {behind}")
        if not is_delta:
            place = value_end
        behind = handle.offset + handle.size + TRAILER_BYTES
        yield key, handle


def handle_of(data: bytes | memoryview, place: int = 0) -> tuple[Handle, int]:
    """Return the handle at a place, and the place behind it."""
    offset, place = varint(data, place)
    size, place = varint(data, place)
    return Handle(offset, size), place


def _key(before: bytes, shared: int, block: memoryview, start: int, end: int, limit: int) -> tuple[bytes, int]:
    if shared > len(before) or end > limit:
        raise ValueError(f"a key of {end - start} bytes at byte {start} of it, and {shared} of that before, do not fit")
    return before[:shared] + bytes(block[start:end]), end
