"""Keys, loading and RocksDB's side that several benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import arrowstate
from arrowstate.state.kinds.reducing import ReducingState
from benchmarks.rocksdb_peer import RocksDB

__all__ = ["SUM", "Keys", "load_arrowstate", "load_rocksdb"]

Numbers = npt.NDArray[np.int64]

SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")

_LOAD_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys 0 to count - 1, as int64 or as strings of 16 digits."""

    kind: str
    count: int

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("key", pa.int64() if self.kind == "int64" else pa.string())])

    def column(self, numbers: Numbers) -> pa.Array:
        """The keys with these numbers as a column."""
        if self.kind == "int64":
            return pa.array(numbers)
        offsets = np.arange(0, 16 * (numbers.size + 1), 16, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_digits(numbers))]
        return pa.Array.from_buffers(pa.string(), numbers.size, buffers)

    def raw(self, numbers: Numbers) -> Numbers | npt.NDArray[np.bytes_]:
        """The keys with these numbers as RocksDB takes them."""
        return numbers if self.kind == "int64" else _digits(numbers).view("S16").ravel()


def _digits(numbers: Numbers) -> npt.NDArray[np.uint8]:
    digits = np.empty((numbers.size, 16), dtype=np.uint8)
    rest = numbers
    for place in range(15, -1, -1):
        rest, digit = np.divmod(rest, 10)
        digits[:, place] = digit + ord("0")
    return digits


def load_arrowstate(state: ReducingState, keys: Keys) -> None:
    """Add 1 to every key once, in batches of 1 M."""
    _in_batches(keys, lambda numbers, ones: state.add_batch(keys.column(numbers), pa.array(ones)))


def load_rocksdb(path: Path, keys: Keys) -> RocksDB:
    """Return a database with 1 under every key, flushed and compacted."""
    database = RocksDB(path)
    numbers = np.arange(keys.count)
    database.load(keys.raw(numbers), np.ones(keys.count, dtype=np.int64))
    return database


def _in_batches(keys: Keys, write: Callable[[Numbers, Numbers], None]) -> None:
    for start in range(0, keys.count, _LOAD_ROWS):
        numbers = np.arange(start, min(keys.count, start + _LOAD_ROWS))
        write(numbers, np.ones(numbers.size, dtype=np.int64))
