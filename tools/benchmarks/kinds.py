"""Every kind of state under random batches, against RocksDB with the same logic.

List: one element is appended to the list of each key of a batch. Map: one entry of each key is set, or read. Value:
each key is set. Reducing: 1 is added to each key. RocksDB keeps a row per element of a list, with a sequence number
behind the key, and a row per entry of a map, as arrowstate does; it has its keys sorted and, but for lists, made
unique before, which suits it best. A round of ours holds merges of all sizes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rocksdict

import arrowstate
from benchmarks.harness import Contender, Report, argument_parser
from benchmarks.rocksdb_peer import RocksDB
from benchmarks.workload import Keys

Numbers = npt.NDArray[np.int64]

_USER_KEYS = 4
_LOAD_ROWS = 1_000_000

_REQUIRED = {"list append": 3e6, "map put": 2e6, "map get": 3e6}


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("kinds", __doc__, rounds=5, cpu="last")
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--batch", type=int, default=200_000, help="rows per batch (default 200,000)")
    parser.add_argument("--batches", type=int, default=10, help="batches per round of ours (default 10)")
    parser.add_argument("--peer-keys", type=int, help="distinct keys of RocksDB (default as many as ours)")
    parser.add_argument("--peer-batches", type=int, default=1, help="batches per round of RocksDB; 0 leaves it out")
    parser.add_argument("--kinds", nargs="+", choices=_WORK, default=list(_WORK), help="what to measure (default all)")
    arguments = parser.parse_args(argv)
    report = Report("kinds", arguments)
    for kind in arguments.kinds:
        _measure(report, arguments, kind)
    return report.finish()


class _Ours:
    """A backend with one state, each of its keys loaded once."""

    def __init__(self, kind: str, count: int) -> None:
        self._keys = Keys("int64", count)
        self._backend = arrowstate.KeyedStateBackend(key=self._keys.schema, max_parallelism=128)
        descriptor, self._verb = _WORK[kind]
        self.state: Any = self._backend.state(descriptor)
        self._load(kind)

    def _load(self, kind: str) -> None:
        write = _WORK["map put"][1] if kind == "map get" else self._verb
        for start in range(0, self._keys.count, _LOAD_ROWS):
            numbers = np.arange(start, min(self._keys.count, start + _LOAD_ROWS))
            write(self.state, *self.columns(numbers))

    def columns(self, numbers: Numbers) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return keys, user keys and values of a batch."""
        return self._keys.column(numbers), pa.array(numbers % _USER_KEYS), pa.array(np.ones(numbers.size, np.int64))

    def run(self, columns: tuple[pa.Array, pa.Array, pa.Array]) -> None:
        """Do what is measured with one batch."""
        self._verb(self.state, *columns)


def _append(state: Any, keys: pa.Array, _: pa.Array, values: pa.Array) -> None:
    state.add_batch(keys, values)


def _put(state: Any, keys: pa.Array, user_keys: pa.Array, values: pa.Array) -> None:
    state.put_batch(keys, user_keys, values)


def _get(state: Any, keys: pa.Array, user_keys: pa.Array, _: pa.Array) -> None:
    state.get_batch(keys, user_keys)


def _update(state: Any, keys: pa.Array, _: pa.Array, values: pa.Array) -> None:
    state.update_batch(keys, values)


_MAP = arrowstate.MapStateDescriptor("m", pa.int64(), pa.int64())
_WORK: dict[str, tuple[Any, Callable[..., None]]] = {
    "list append": (arrowstate.ListStateDescriptor("l", pa.int64()), _append),
    "map put": (_MAP, _put),
    "map get": (_MAP, _get),
    "value update": (arrowstate.ValueStateDescriptor("v", pa.int64()), _update),
    "reducing add": (arrowstate.ReducingStateDescriptor("r", pa.int64(), reduce="sum"), _append),
}


class _Peer:
    """The same state in RocksDB, each of its keys loaded once."""

    def __init__(self, kind: str, path: Path, count: int) -> None:
        self._kind = kind
        self._elements = 0
        self._sums: RocksDB | None = None
        self._rows: rocksdict.Rdict | None = None
        numbers = np.arange(count)
        if kind == "reducing add":
            self._sums = RocksDB(path)
            self._sums.load(numbers, np.ones(count, dtype=np.int64))
            return
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_max_open_files(-1)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(rocksdict.Cache(2 << 30))
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        self._rows = rocksdict.Rdict(str(path), options=options)
        unlogged = rocksdict.WriteOptions()
        # An attribute; the package's types say a method.
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._rows.set_write_options(unlogged)
        for start in range(0, count, _LOAD_ROWS):
            self._write(numbers[start : start + _LOAD_ROWS])
        self._rows.flush()
        self._rows.compact_range(None, None)

    def run(self, numbers: Numbers) -> None:
        """Do what is measured with one batch."""
        if self._sums is not None:
            self._sums.rmw(numbers, np.ones(numbers.size, dtype=np.int64))
        elif self._kind == "map get":
            assert self._rows is not None
            found = cast(list[Any], self._rows.get(cast(list[Any], self._stored(np.unique(numbers)))))
            np.frombuffer(b"".join(found), np.int64)
        else:
            self._write(numbers)

    def close(self) -> None:
        """Close the database."""
        (self._sums or self._rows).close()  # type: ignore[union-attr]

    def _write(self, numbers: Numbers) -> None:
        assert self._rows is not None
        numbers = np.sort(numbers) if self._kind == "list append" else np.unique(numbers)
        batch = rocksdict.WriteBatch(raw_mode=True)
        write = batch.put
        one = (1).to_bytes(8, "little")
        for key in self._stored(numbers):
            write(key, one)
        self._rows.write(batch)

    def _stored(self, numbers: Numbers) -> list[bytes]:
        """Return the keys as bytes, with the user key behind in a map and a sequence number in a list."""
        parts = [numbers]
        if self._kind.startswith("map"):
            parts.append(numbers % _USER_KEYS)
        elif self._kind == "list append":
            parts.append(np.arange(self._elements, self._elements + numbers.size))
            self._elements += numbers.size
        rows = np.stack(parts, axis=1).astype(">u8").view(np.uint8)
        stored: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
        return stored


def _measure(report: Report, arguments: Any, kind: str) -> None:
    random = np.random.default_rng(1)
    ours = _Ours(kind, arguments.keys)
    amount = arguments.batches * arguments.batch
    columns: list[tuple[pa.Array, pa.Array, pa.Array]] = []

    def draw() -> None:
        columns[:] = [
            ours.columns(random.integers(0, arguments.keys, arguments.batch)) for _ in range(arguments.batches)
        ]

    def run() -> None:
        for each in columns:
            ours.run(each)

    contenders = [Contender("arrowstate", run, amount, draw)]
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        peer = None
        if arguments.peer_batches:
            count = arguments.peer_keys or arguments.keys
            peer = _Peer(kind, Path(folder) / "rocksdb", count)

            def run_peer(peer: _Peer = peer) -> None:
                for _ in range(arguments.peer_batches):
                    peer.run(random.integers(0, count, arguments.batch))

            contenders.append(Contender("RocksDB", run_peer, arguments.peer_batches * arguments.batch))
        series = report.compare(f"{kind}, {arguments.keys:,} keys", "rows", contenders)
        if peer is not None:
            peer.close()
    sustained = amount * len(series[0].seconds) / sum(series[0].seconds)
    report.figure(f"{kind}, sustained, every merge included", sustained, "rows/s")
    if arguments.keys == 10_000_000:
        if kind in _REQUIRED:
            report.require(kind, sustained, at_least=_REQUIRED[kind], unit="rows/s")
        if len(series) > 1:
            times = sustained / statistics.median(series[1].figures)
            report.require(f"{kind}, against RocksDB", times, at_least=10, unit="times")
