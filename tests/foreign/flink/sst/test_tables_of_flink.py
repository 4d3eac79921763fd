"""Tables that the RocksDB of Flink wrote, kept with what it read from them; `tables/Tables.java` writes them.

Lists are written by merges, as Flink does. There are all kinds of indexes, of checksums and most of codecs, levels with
deletions of ranges that were cut in two, and tables that were written apart and taken in.
"""

from pathlib import Path

import pytest

from arrowstate.foreign.flink.sst import Database, HeldFile

TABLES = Path(__file__).parent / "tables"


def _held(path: Path) -> HeldFile:
    return HeldFile(path.name, path.read_bytes())


def _truth(path: Path) -> list[tuple[bytes, bytes]]:
    data, place, parts = path.read_bytes(), 0, []
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4], "big")
        parts.append(data[place + 4 : end])
        place = end
    return list(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("folder", sorted(path.name for path in TABLES.iterdir() if path.is_dir()))
def test_what_is_read_is_what_rocksdb_read(folder: str) -> None:
    files = {path.name: _held(path) for path in (TABLES / folder).glob("*.sst")}
    (manifest,) = (TABLES / folder).glob("MANIFEST-*")

    batches = Database(files, _held(manifest)).entries("default", key_groups=range(256), prefix_bytes=1)

    rows = [pair for keys, values in batches for pair in zip(keys.to_pylist(), values.to_pylist(), strict=True)]
    assert rows == _truth(TABLES / folder / "truth.bin")
