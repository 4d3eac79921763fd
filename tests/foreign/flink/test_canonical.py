"""The canonical format: batches stay small, and every length and place is checked."""

import struct

import numpy as np
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.canonical import canonical_entries
from arrowstate.foreign.flink.places import Stream


def entry(key: bytes, value: bytes, last: bool = False) -> bytes:
    marked = bytes([key[0] | 0x80 * last]) + key[1:]
    return struct.pack(">i", len(marked)) + marked + struct.pack(">i", len(value)) + value


def run(state: int, *pairs: tuple[bytes, bytes]) -> bytes:
    entries = [entry(key, value, place == len(pairs) - 1) for place, (key, value) in enumerate(pairs)]
    return struct.pack(">h", state) + b"".join(entries)


def stream(*groups: bytes) -> tuple[Stream, tuple[int, ...]]:
    """Groups of keys behind a head of one byte; those without entries have no place."""
    data, offsets = b"\0", []
    for group in groups:
        offsets.append(len(data) if group else 0)
        data += group + b"\xff\xff" if group else b""
    return Stream(np.frombuffer(data, np.uint8), "file"), tuple(offsets)


def test_entries_of_one_state_are_found_in_all_key_groups() -> None:
    first = run(0, (b"\5a", b"1"), (b"\5b", b"")) + run(1, (b"\5x", b"other"))
    found, offsets = stream(first, b"", run(1, (b"\7y", b"z")))

    pairs = [pair for entries in canonical_entries(found, 5, offsets, False, 1) for pair in entries.pairs()]

    assert pairs == [(b"\x85x", b"other"), (b"\x87y", b"z")]


def test_a_handle_without_entries_has_none() -> None:
    found, offsets = stream(b"", b"")

    assert list(canonical_entries(found, 0, offsets, False, 0)) == []


def test_large_values_make_small_batches() -> None:
    value = bytes(5 << 20)
    found, offsets = stream(run(0, *((b"\0" + bytes([key]), value) for key in range(9))))

    batches = list(canonical_entries(found, 0, offsets, False, 0))

    assert [len(each.key_starts) for each in batches] == [4, 4, 1]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (struct.pack(">hi", 0, 2**31 - 1), "at byte 3: a length is longer than what is left"),
        (struct.pack(">hi", 0, 0), "at byte 3: a key of no bytes"),
        (run(0, (b"\0a", b"1"))[:-1], "at byte 14: it is cut off"),
        (run(0, (b"\0a", b"1")) + b"\xff\xff" + b"more", "key group 0 ends here and not at byte"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(group: bytes, message: str) -> None:
    found, offsets = stream(group)

    with pytest.raises(CorruptDataError, match=message):
        list(canonical_entries(found, 0, offsets, False, 0))
