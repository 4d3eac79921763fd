"""Tables that RocksDB wrote, read without it: what is read is what the database itself gives."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rocksdict

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.foreign.flink.sst import Database, HeldFile, Table, merged
from arrowstate.foreign.flink.sst.merging import Batch
from long_form import short_or_long

Contents = list[tuple[bytes, bytes]]

COMPRESSIONS = ("none", "snappy", "zlib", "bz2", "lz4", "lz4hc", "zstd")
CHECKSUMS = ("no_checksum", "crc32c", "xxhash", "xxhash64", "xxh3")
INDEXES = ("binary_search", "two_level_index_search", "hash_search")
LAYOUTS = [
    (compression, CHECKSUMS[place % 5], INDEXES[place % 3], version, place % 2 == 0)
    for place, (compression, version) in enumerate((c, v) for v in (2, 3, 4, 5, 6) for c in COMPRESSIONS)
]


def _options(
    compression: str = "snappy",
    checksum: str = "xxh3",
    index: str = "binary_search",
    version: int = 5,
    hashed: bool = False,
    block_size: int = 512,
) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    options.set_disable_auto_compactions(True)
    options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(1))
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(block_size)
    blocks.set_metadata_block_size(256)
    blocks.set_format_version(version)
    blocks.set_checksum_type(getattr(rocksdict.ChecksumType, checksum)())
    blocks.set_index_type(getattr(rocksdict.BlockBasedIndexType, index)())
    if hashed:
        blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        blocks.set_data_block_hash_ratio(0.75)
    options.set_block_based_table_factory(blocks)
    return options


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Callable[..., rocksdict.Rdict]]:
    opened: list[rocksdict.Rdict] = []

    def open_one(**options: Any) -> rocksdict.Rdict:
        opened.append(rocksdict.Rdict(str(tmp_path / f"db{len(opened)}"), _options(**options)))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def _files(db: rocksdict.Rdict) -> list[HeldFile]:
    paths = [Path(str(db.path())) / file["name"].lstrip("/") for file in db.live_files()]
    return [HeldFile(path.name, path.read_bytes()) for path in paths]


def _contents(batches: Iterator[Batch]) -> Contents:
    rows: Contents = []
    for keys, values in batches:
        keys.validate(full=True)
        values.validate(full=True)
        rows += zip(keys.to_pylist(), values.to_pylist(), strict=True)
    return rows


def _database(db: rocksdict.Rdict) -> Database:
    manifest = max(Path(str(db.path())).glob("MANIFEST-*"))
    return Database({file.name: file for file in _files(db)}, HeldFile(manifest.name, manifest.read_bytes()))


def _read(db: rocksdict.Rdict) -> Contents:
    return _contents(_database(db).entries("default", key_groups=range(256), prefix_bytes=1))


def _value(random_: random.Random) -> bytes:
    return random_.choice([b"", random_.randbytes(random_.randrange(40)), b"same" * random_.randrange(60)])


def _key(random_: random.Random, groups: int = 128, prefix_bytes: int = 1) -> bytes:
    key = random_.randrange(groups).to_bytes(prefix_bytes, "big") + random_.randrange(2000).to_bytes(8, "big")
    return key + random_.choice([b"", b"\0", b"longer, with bytes behind"])


@pytest.mark.parametrize("layout", LAYOUTS[:: short_or_long(4, 1)], ids=str)
def test_every_layout_is_read(layout: tuple[Any, ...], database: Callable[..., rocksdict.Rdict]) -> None:
    compression, checksum, index, version, hashed = layout
    db = database(compression=compression, checksum=checksum, index=index, version=version, hashed=hashed)
    random_ = random.Random(str(layout))
    for _ in range(2000):
        db[_key(random_)] = _value(random_)
    db.flush()

    assert _read(db) == list(db.items())


def _random_history(db: rocksdict.Rdict, random_: random.Random, *, steps: int) -> None:
    """Writes, deletions of keys and of ranges, flushes and compactions, in any order."""
    for _ in range(steps):
        match random_.randrange(12):
            case 0:
                db.flush()
            case 1 if random_.random() < 0.4:
                bounds = sorted((_key(random_), _key(random_)))
                db.compact_range(*bounds) if random_.random() < 0.7 else db.compact_range(None, None)
            case 2 | 3:
                start = _key(random_)
                end = start[:-2] + b"\xff" if random_.random() < 0.8 else _key(random_)
                if start < end:
                    db.delete_range(start, end)
            case 4 | 5:
                for _ in range(random_.randrange(60)):
                    del db[_key(random_)]
            case _:
                for _ in range(random_.randrange(200)):
                    db[_key(random_, groups=4)] = _value(random_)
    db.flush()


@pytest.mark.parametrize("seed", range(short_or_long(8, 400)))
def test_histories_leave_what_the_database_gives(seed: int, database: Callable[..., rocksdict.Rdict]) -> None:
    db = database(index=INDEXES[seed % 2], block_size=256)
    _random_history(db, random.Random(seed), steps=40)

    assert _read(db) == list(db.items())


@pytest.mark.parametrize("prefix_bytes", [1, 2])
@pytest.mark.parametrize("groups", [range(20, 60), range(1), range(100, 128), range(5, 5)], ids=str)
def test_foreign_key_groups_are_left_out(
    groups: range, prefix_bytes: int, database: Callable[..., rocksdict.Rdict]
) -> None:
    db = database(index=INDEXES[prefix_bytes - 1], block_size=256)
    random_ = random.Random(7)
    for _ in range(4):
        for _ in range(500):
            db[_key(random_, prefix_bytes=prefix_bytes)] = _value(random_)
        db.flush()

    found = _contents(_database(db).entries("default", key_groups=groups, prefix_bytes=prefix_bytes))

    assert found == [(key, value) for key, value in db.items() if int.from_bytes(key[:prefix_bytes], "big") in groups]


def test_files_that_were_taken_in_are_as_new_as_the_manifest_says(
    tmp_path: Path, database: Callable[..., rocksdict.Rdict]
) -> None:
    db = database()
    for number in range(300):
        db[b"%04d" % number] = b"before"
    db.flush()
    for file in range(2):
        writer = rocksdict.SstFileWriter(options=_options(compression="lz4"))
        writer.open(str(tmp_path / f"{file}.sst"))
        for number in range(file * 100, 300, 3):
            writer[b"%04d" % number] = b"of file %d" % file
        writer.finish()
        db.ingest_external_file([str(tmp_path / f"{file}.sst")])
    for number in range(0, 300, 5):
        db[b"%04d" % number] = b"behind"
    db.flush()

    assert _read(db) == list(db.items())
    with pytest.raises(InvalidInputError, match=r"is one of 4 tables, and how new it is is known to the MANIFEST"):
        _contents(merged([Table(file) for file in _files(db)]))


def test_deletions_of_ranges_need_the_manifest(database: Callable[..., rocksdict.Rdict]) -> None:
    db = database()
    db[b"\x05key"] = b"value"
    db.flush()
    db[b"\x07key"] = b"value"
    db.delete_range(b"\x06", b"\x08")
    db.flush()
    without = Database({file.name: file for file in _files(db)})

    assert _read(db) == list(db.items()) == [(b"\x05key", b"value")]
    with pytest.raises(InvalidInputError, match="how far its deletions of ranges of keys go is known to the MANIFEST"):
        _contents(without.entries("default", key_groups=range(7), prefix_bytes=1))
    # What is deleted in other key groups matters to nobody.
    assert _contents(without.entries("default", key_groups=range(6), prefix_bytes=1)) == [(b"\x05key", b"value")]


def test_a_live_table_that_is_missing_is_named(database: Callable[..., rocksdict.Rdict]) -> None:
    db = database()
    for number in range(2):
        db[b"%d" % number] = b"value"
        db.flush()
    manifest = max(Path(str(db.path())).glob("MANIFEST-*"))
    tables = {file.name: file for file in _files(db)}
    missing = min(tables)
    del tables[missing]

    with pytest.raises(CorruptDataError, match=f"names the table {missing}, which is not among the 1 given"):
        Database(tables, HeldFile(manifest.name, manifest.read_bytes()))


def test_a_table_that_is_named_twice_counts_once(database: Callable[..., rocksdict.Rdict]) -> None:
    db = database()
    random_ = random.Random(1)
    for _ in range(3):
        for _ in range(300):
            db[_key(random_, groups=2)] = _value(random_)
            del db[_key(random_, groups=2)]
        db.flush()
    files = _files(db)

    assert _contents(merged([Table(file) for file in files * 2])) == list(db.items())


def test_values_larger_than_what_is_read_at_a_time_are_whole(database: Callable[..., rocksdict.Rdict]) -> None:
    db = database(compression="zstd")
    for number in range(12):
        db[b"key %d" % number] = bytes([number]) * 3_000_000 + random.Random(number).randbytes(500_000)
    db.flush()

    assert _read(db) == list(db.items())


def test_a_wide_column_is_named_as_what_is_not_read(database: Callable[..., rocksdict.Rdict]) -> None:
    db = database()
    db.put_entity(b"key", [b"column"], [b"value"])
    db.flush()

    with pytest.raises(InvalidInputError, match=r"\.sst has a wide column in the block at byte 0, which is not read"):
        _read(db)


def test_memory_is_that_of_some_blocks_of_each_table(database: Callable[..., rocksdict.Rdict]) -> None:
    db = database(compression="zstd", block_size=4096)
    for _ in range(4):
        for number in range(500):
            db[b"%08d" % number] = bytes(40_000)
        db.flush()
    tables = [Table(file) for file in _files(db)]

    tracemalloc.start()
    try:
        rows = sum(len(keys) for keys, _ in merged(tables))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # 80 MB of entries, 20 of which are live; what is written for a batch is as large as what it may become.
    assert rows == 500
    assert peak < 40_000_000
