"""Damaged and forged tables: an error that names file and place, or the very same rows; never a crash, never memory."""

import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from arrowstate.errors import CorruptDataError, FormatVersionError, InvalidInputError
from arrowstate.foreign.flink.sst import Database, HeldFile, Table, merged, streams
from arrowstate.foreign.flink.sst.blocks import BlockReader
from arrowstate.foreign.flink.sst.checksums import CHECKSUMS
from long_form import short_or_long

TABLES = Path(__file__).parent / "tables"
FOLDERS = sorted(path.name for path in TABLES.iterdir() if path.is_dir())
SEEDS = short_or_long(20, 1500)
Files = dict[str, bytes]


def _files(folder: str) -> Files:
    return {path.name: path.read_bytes() for path in sorted((TABLES / folder).iterdir()) if path.name != "truth.bin"}


def _rows(files: Files) -> list[tuple[bytes, bytes]]:
    (manifest,) = (name for name in files if name.startswith("MANIFEST"))
    tables = {name: HeldFile(name, content) for name, content in files.items() if name != manifest}
    batches = Database(tables, HeldFile(manifest, files[manifest])).entries(
        "default", key_groups=range(256), prefix_bytes=1
    )
    return [pair for keys, values in batches for pair in zip(keys.to_pylist(), values.to_pylist(), strict=True)]


def _flipped(content: bytes, random_: random.Random) -> bytes:
    damaged = bytearray(content)
    damaged[random_.randrange(len(damaged))] ^= 1 << random_.randrange(8)
    return bytes(damaged)


def _truncated(content: bytes, random_: random.Random) -> bytes:
    return content[: random_.randrange(len(content))]


def _overwritten(content: bytes, random_: random.Random) -> bytes:
    start = random_.randrange(len(content))
    new = random_.choice(
        [b"\xff" * 4, b"\xff" * 9 + b"\x7f", bytes(4), b"\xff\xff\xff\x7f", b"\x80", random_.randbytes(20)]
    )
    return content[:start] + new + content[start + len(new) :]


def _without_a_part(content: bytes, random_: random.Random) -> bytes:
    start = random_.randrange(len(content))
    return content[:start] + content[start + random_.randrange(1, 300) :]


def _with_a_part_twice(content: bytes, random_: random.Random) -> bytes:
    start = random_.randrange(len(content))
    return content[: start + random_.randrange(1, 300)] + content[start:]


DAMAGES = (_flipped, _truncated, _overwritten, _without_a_part, _with_a_part_twice)


@pytest.mark.parametrize("folder", FOLDERS)
def test_damage_is_found_or_changes_no_row(folder: str) -> None:
    files = _files(folder)
    truth = _rows(files)
    found = 0
    for seed in range(SEEDS):
        random_ = random.Random(seed)
        name = random_.choice(list(files))
        damage: Callable[[bytes, random.Random], bytes] = random_.choice(DAMAGES)
        damaged = {**files, name: damage(files[name], random_)}

        try:
            assert _rows(damaged) == truth, (seed, name)
        except (CorruptDataError, FormatVersionError, InvalidInputError) as error:
            found += 1
            assert name in str(error), (seed, error)

    assert found > SEEDS // 2


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_was_forged_with_its_checksums_ends_in_an_error_or_in_rows(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _files(folder)
    monkeypatch.setattr(BlockReader, "is_intact", lambda *_: True)
    found = 0
    for seed in range(SEEDS):
        random_ = random.Random(seed)
        name = random_.choice([name for name in files if name.endswith(".sst")])
        damage: Callable[[bytes, random.Random], bytes] = random_.choice([_flipped, _overwritten])

        try:
            _rows({**files, name: damage(files[name], random_)})
        except (CorruptDataError, FormatVersionError, InvalidInputError) as error:
            found += 1
            # What two tables say together has no one file to be named.
            assert re.search(r"\d+\.sst|MANIFEST", str(error)), (seed, error)

    assert found > SEEDS // 4


def _varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def _entry(shared: int, key: bytes, value: bytes) -> bytes:
    return _varint(shared) + _varint(len(key)) + _varint(len(value)) + key + value


def _table(entries: bytes, *, codec: int = 0, stored: bytes | None = None, index: bytes | None = None) -> HeldFile:
    """Return a table of one block, forged: its entries as they are given, checksums and all else in order."""
    restarts = (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    checksum = CHECKSUMS[4]
    assert checksum is not None
    data = b""

    def put(block: bytes, codec: int = 0) -> bytes:
        nonlocal data
        handle = _varint(len(data)) + _varint(len(block))
        data += block + bytes([codec]) + checksum(memoryview(block), codec).to_bytes(4, "little")
        return handle

    first = put(entries + restarts if stored is None else stored, codec)
    index_handle = put(_entry(0, b"\xff" * 9, first if index is None else index) + restarts)
    metaindex = put(restarts)
    footer = (b"\x04" + metaindex + index_handle).ljust(41, b"\0")
    return HeldFile("forged.sst", data + footer + (5).to_bytes(4, "little") + bytes.fromhex("f7cff485b741e288"))


PUT = (1 | 7 << 8).to_bytes(8, "little")


def _read(file: HeldFile) -> list[tuple[bytes, bytes]]:
    return [pair for k, v in merged([Table(file)]) for pair in zip(k.to_pylist(), v.to_pylist(), strict=True)]


def test_a_forged_table_in_order_is_read() -> None:
    assert _read(_table(_entry(0, b"\0key" + PUT, b"value"))) == [(b"\0key", b"value")]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (
            _entry(0, b"\0b" + PUT, b"") + _entry(0, b"\0a" + PUT, b""),
            "a key that does not come after the one before it",
        ),
        (
            _entry(0, b"\0b" + PUT, b"") + _entry(0, b"\0b" + PUT, b""),
            "a key that does not come after the one before it",
        ),
        (_entry(1, b"\0b" + PUT, b""), "a key that shares more than the one before it has"),
        (_entry(0, b"\0b" + PUT, b"") + _entry(11, b"c" + PUT, b""), "shares more than the one before it has"),
        (_entry(0, b"short", b""), "an entry that does not fit the block"),
        (b"\0\x0a" + _varint(1 << 31) + b"\0b" + PUT, "an entry that does not fit the block"),
        (b"\0" + _varint(1 << 32) + b"\0\0b" + PUT, "an entry that does not fit the block"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x09\0" + PUT, "an entry that does not fit the block"),
        (_entry(0, b"\0b" + b"\x05" + bytes(7), b""), "an entry of the unknown kind 5"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_forged_entry_is_named(entries: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=rf"forged\.sst is damaged: the block at byte 0 has .*{reason}"):
        _read(_table(entries))


def test_a_blob_is_named_as_what_is_not_read() -> None:
    with pytest.raises(InvalidInputError, match=r"forged\.sst has a value in a blob file in the block at byte 0"):
        _read(_table(_entry(0, b"\0b" + b"\x11" + bytes(7), b"")))


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (1, _varint(1 << 30) + b"\0\0"),
        (7, _varint(1 << 31) + b"\x28\xb5\x2f\xfd"),
        (4, _varint(1 << 29) + b"\0\0"),
        (2, _varint(1 << 29) + b"\x03\0"),
        (2, _varint(10) + zlib.compress(bytes(100_000_000), 9, wbits=-15)),
        (5, _varint(1 << 29)),
        (3, _varint(1 << 30) + b"BZh9"),
        (1, b"\xff" * 12),
        (9, b"anything"),
    ],
    ids=str,
)
def test_a_bomb_is_not_lit(codec: int, stored: bytes) -> None:
    with pytest.raises(CorruptDataError, match="the block at byte 0 "):
        _read(_table(b"", codec=codec, stored=stored))


def test_keys_that_grow_by_what_they_share_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MAX_KEY_BYTES", 1 << 20)
    first = _entry(0, b"\0" * 10_000 + PUT, b"")
    each = b"".join(_entry(10_000 + place, b"\1" + PUT, b"") for place in range(1000))

    with pytest.raises(CorruptDataError, match="the block at byte 0 has keys of more than 1048576 bytes"):
        _read(_table(first + each))


@pytest.mark.parametrize(
    "index", [_varint(0) + _varint(1 << 40), _varint(1 << 62) + _varint(1), _varint(3) + _varint(60), b"\xff" * 11, b""]
)
def test_an_index_that_leads_outside_is_an_error(index: bytes) -> None:
    with pytest.raises(CorruptDataError, match=r"forged\.sst is damaged: the block at byte \d+ "):
        _read(_table(_entry(0, b"\0key" + PUT, b"value"), index=index))
