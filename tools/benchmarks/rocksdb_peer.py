"""RocksDB as a keyed state of 64-bit sums, through the package `rocksdict`, set up in its favour.

What is in its favour: no write-ahead log (arrowstate has none either, a checkpoint is the durable
state), no compression, Bloom filters, hash indexes in the data blocks, a cache that holds everything,
and keys that are sorted and made unique before they are looked up, in vectorised code; random order
costs it about two thirds of its speed. Reads are one multi-get, writes are one write batch.

Keys are a numpy array of int64 or of 16-byte strings (dtype `S16`), values are int64.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import rocksdict

__all__ = ["RocksDB"]

Keys = npt.NDArray[np.int64] | npt.NDArray[np.bytes_]
Values = npt.NDArray[np.int64]

ABSENT = bytes(8)


class RocksDB:
    """A keyed sum in a RocksDB database.

    Parameters
    ----------
    path : Path
        Folder of the database, made where there is none.
    cache_bytes : int
        Size of the block cache.
    write_buffer_bytes : int
        Size of one memory table; up to four are kept.
    """

    def __init__(self, path: Path, *, cache_bytes: int = 2 << 30, write_buffer_bytes: int = 64 << 20) -> None:
        self._database = rocksdict.Rdict(str(path), options=_options(cache_bytes, write_buffer_bytes))
        unlogged = rocksdict.WriteOptions()
        # An attribute; the package's types say a method.
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._database.set_write_options(unlogged)

    def load(self, keys: Keys, values: Values, batch_rows: int = 1_000_000) -> None:
        """Write many keys at once, each of them new, and leave the database at rest: flushed and compacted."""
        order = np.argsort(_in_stored_order(keys), kind="stable")
        for start in range(0, len(keys), batch_rows):
            rows = order[start : start + batch_rows]
            self._write(_key_bytes(keys[rows]), values[rows])
        self._database.flush()
        self._database.compact_range(None, None)

    def rmw(self, keys: Keys, deltas: Values, *, in_order: bool = True) -> None:
        """Add each delta to the sum of its key; keys may repeat, and an absent key counts as 0.

        With `in_order` the distinct keys are looked up and written in the order of the files, else in that of
        their first occurrence.
        """
        if not in_order:
            self._rmw_as_it_comes(keys, deltas)
            return
        unique, inverse = np.unique(_in_stored_order(keys), return_inverse=True)
        sums = np.zeros(len(unique), np.int64)
        np.add.at(sums, inverse, deltas)
        stored = _key_bytes(unique)
        self._write(stored, sums + self._values(stored))

    def _rmw_as_it_comes(self, keys: Keys, deltas: Values) -> None:
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, inverse, deltas)
        arrival = np.argsort(first)
        stored = _key_bytes(keys[first[arrival]])
        self._write(stored, sums[arrival] + self._values(stored))

    def get_batch(self, keys: Keys) -> Values:
        """Return the sum of each key, 0 where there is none; keys may repeat and are looked up in sorted order."""
        unique, inverse = np.unique(_in_stored_order(keys), return_inverse=True)
        return self._values(_key_bytes(unique))[inverse]

    def lookup(self, key: int | bytes) -> int | None:
        """Return the sum of one key."""
        stored = key.to_bytes(8, "big", signed=True) if isinstance(key, int) else key
        found: bytes | None = self._database.get(stored)
        return None if found is None else int.from_bytes(found, "little", signed=True)

    def checkpoint(self, path: Path) -> None:
        """Write a checkpoint: RocksDB flushes its memory and links its files into a new folder."""
        rocksdict.Checkpoint(self._database).create_checkpoint(str(path))

    def scan_sum(self) -> int:
        """Return the sum of all values, for comparing contents."""
        return sum(int.from_bytes(value, "little", signed=True) for value in self._database.values())

    def close(self) -> None:
        """Close the database and wait for its background work."""
        self._database.close()

    @classmethod
    def restore(cls, checkpoint: Path, keys: Keys) -> tuple[RocksDB, Values]:
        """Open a checkpoint in place and answer a first `get_batch`."""
        restored = cls(checkpoint)
        return restored, restored.get_batch(keys)

    def _values(self, stored: list[bytes]) -> Values:
        # The package's types say list of any key type, and lists are invariant.
        found = cast(list[bytes | None], self._database.get(cast(list[Any], stored)))
        return np.frombuffer(b"".join([value or ABSENT for value in found]), np.int64)

    def _write(self, stored: list[bytes], values: Values) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in zip(stored, np.ascontiguousarray(values).view("V8").tolist(), strict=True):
            put(key, value)
        self._database.write(batch)


def _in_stored_order(keys: Keys) -> npt.NDArray[Any]:
    """Keys that sort as RocksDB sorts their bytes: big-endian, negative numbers last."""
    return keys.view(np.uint64) if keys.dtype == np.int64 else keys


def _key_bytes(keys: npt.NDArray[Any]) -> list[bytes]:
    """The keys as RocksDB stores them."""
    if keys.dtype.kind in "iu":
        keys = keys.astype(">u8")
    stored: list[bytes] = np.ascontiguousarray(keys).view(f"V{keys.dtype.itemsize}").tolist()
    return stored


def _options(cache_bytes: int, write_buffer_bytes: int) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.increase_parallelism(len(os.sched_getaffinity(0)))
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(4)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_max_open_files(-1)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(cache_bytes))
    blocks.set_bloom_filter(10, False)
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    blocks.set_data_block_hash_ratio(0.75)
    blocks.set_format_version(5)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(blocks)
    return options
