"""Every kind of state under random batches, against RocksDB with the same logic.

List: one element is appended to the list of each key of a batch. Map: one entry of each key is set, or read. Value:
each key is set. Reducing: 1 is added to each key. Timers: a batch of timers of random keys is registered at random
times, or those of the next moment are popped; as many are registered as fall due, so their number stays.

RocksDB keeps a row per element of a list, with a sequence number behind the key, a row per entry of a map and a row
(timestamp, key) per timer, as arrowstate does; it has its keys sorted and, but for lists, made unique before, which
suits it best. It pops by a scan up to the time and one range delete, and sets entries and values blindly, without a
look at what is there; arrowstate always knows how many rows are live. What that costs RocksDB is shown beside, as
`RocksDB, counting`: it reads a key before it writes it.

Sustained is what all rounds took, merges included. A round of ours writes 7 M rows: of 10 M keys half are written
again by then, at which the largest run is merged, so that each round holds one merge of everything and merges of all
smaller sizes. Lists only grow: a round appends a third of that, and one merge of 10 M rows falls into all rounds.
RocksDB writes half of its rows again in all rounds, flushes and compactions included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rocksdict

import arrowstate
from benchmarks.harness import Contender, Report, Series, argument_parser
from benchmarks.rocksdb_peer import RocksDB
from benchmarks.workload import Keys

__all__ = ["MIXED_KINDS", "OurState", "OurTimers", "PeerState", "PeerTimers", "TimerWork"]

Numbers = npt.NDArray[np.int64]

_USER_KEYS = 4
_LOAD_ROWS = 1_000_000

_HORIZON_MS = 1_000_000_000

_REQUIRED = {"list append": 3e6, "map put": 2e6, "map get": 3e6, "timer register": 1e6, "timer pop": 1e6}


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("kinds", __doc__, rounds=5, cpu="last")
    parser.add_argument("--keys", type=int, default=10_000_000, help="distinct keys (default 10 M)")
    parser.add_argument("--batch", type=int, default=200_000, help="rows per batch (default 200,000)")
    parser.add_argument("--batches", type=int, default=35, help="batches per round of ours (default 35; lists a third)")
    parser.add_argument("--peer-keys", type=int, help="distinct keys of RocksDB (default as many as ours)")
    parser.add_argument("--peer-batches", type=int, default=5, help="batches per round of RocksDB; 0: without it")
    kinds = [*_WORK, "timers"]
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="what to measure (default all)")
    arguments = parser.parse_args(argv)
    report = Report("kinds", arguments)
    for kind in arguments.kinds:
        if kind == "timers":
            _measure_timers(report, arguments)
        else:
            _measure(report, arguments, kind)
    return report.finish()


class OurState:
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


MIXED_KINDS = tuple(_WORK)
"""What is done to states with a row, or rows, for each key."""


class PeerState:
    """The same state in RocksDB, each of its keys loaded once."""

    def __init__(self, kind: str, path: Path, count: int) -> None:
        self._kind = kind
        self._elements = 0
        self.count = count
        self._sums: RocksDB | None = None
        self._rows: rocksdict.Rdict | None = None
        numbers = np.arange(count)
        if kind == "reducing add":
            self._sums = RocksDB(path)
            self._sums.load(numbers, np.ones(count, dtype=np.int64))
            return
        self._rows = _open_rows(path)
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

    def run_counting(self, numbers: Numbers) -> None:
        """Write one batch as `run` does, and read before which of its rows are new."""
        assert self._rows is not None
        found = cast(list[Any], self._rows.get(cast(list[Any], self._stored(np.unique(numbers)))))
        self.count += found.count(None)
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
        return _row_bytes(parts)


def _open_rows(path: Path) -> rocksdict.Rdict:
    """Open a database of raw rows, set up as in `rocksdb_peer`."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_max_open_files(-1)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(2 << 30))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    rows = rocksdict.Rdict(str(path), options=options)
    unlogged = rocksdict.WriteOptions()
    # An attribute; the package's types say a method.
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
    rows.set_write_options(unlogged)
    return rows


def _row_bytes(parts: list[Numbers]) -> list[bytes]:
    """Return numbers side by side as big-endian bytes, which sort as the numbers do."""
    rows = np.stack(parts, axis=1).astype(">u8").view(np.uint8)
    stored: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
    return stored


class OurTimers:
    """The event time timers of a backend."""

    def __init__(self) -> None:
        self._keys = Keys("int64", 0)
        self._timers = arrowstate.KeyedStateBackend(key=self._keys.schema, max_parallelism=128).timers()

    def columns(self, keys: Numbers, times: Numbers) -> tuple[pa.Array, pa.Array]:
        return self._keys.column(keys), pa.array(times)

    def register(self, keys: pa.Array, times: pa.Array) -> None:
        self._timers.register_batch(keys, times)

    def pop(self, time: int) -> int:
        return self._timers.pop_due(time).num_rows


class PeerTimers:
    """The same timers in RocksDB: rows (timestamp, key), in which a timer is once however often it is registered."""

    def __init__(self, path: Path) -> None:
        self._rows = _open_rows(path)
        self._popped = bytes(8)

    def columns(self, keys: Numbers, times: Numbers) -> tuple[Numbers, Numbers]:
        return keys, times

    def register(self, keys: Numbers, times: Numbers) -> None:
        order = np.lexsort((keys, times))
        batch = rocksdict.WriteBatch(raw_mode=True)
        write = batch.put
        for row in _row_bytes([times[order], keys[order]]):
            write(row, b"")
        self._rows.write(batch)

    def pop(self, time: int) -> int:
        # Both ends of the scan are known, so it meets no row that was deleted before.
        bound = (time + 1).to_bytes(8, "big")
        until = rocksdict.ReadOptions()
        until.set_iterate_upper_bound(bound)
        found = b"".join(cast(Iterator[bytes], self._rows.keys(from_key=self._popped, read_opt=until)))
        rows = np.frombuffer(found, ">i8").reshape(-1, 2).astype(np.int64)
        self._rows.delete_range(self._popped, bound)
        self._popped = bound
        return len(rows)

    def settle(self) -> None:
        self._rows.flush()
        self._rows.compact_range(None, None)

    def close(self) -> None:
        self._rows.close()


class TimerWork:
    """Timers in balance: in each step as many are registered, anywhere within a horizon, as fall due."""

    def __init__(self, timers: OurTimers | PeerTimers, count: int, batch: int, batches: int) -> None:
        self._timers: Any = timers
        self._random = np.random.default_rng(1)
        self._count, self._batch, self._batches = count, batch, batches
        self._now = 0
        self._step = _HORIZON_MS * batch // (2 * count)
        self._drawn: list[Any] = []
        self.popped = 0
        for start in range(0, count, _LOAD_ROWS):
            # The share that is left of timers which were registered ever before: it falls evenly towards the horizon.
            share = 1 - np.sqrt(self._random.random(min(count - start, _LOAD_ROWS)))
            self._timers.register(*self._columns((share * _HORIZON_MS).astype(np.int64)))

    def _columns(self, ahead: Numbers) -> Any:
        return self._timers.columns(self._random.integers(0, self._count, ahead.size), self._now + 1 + ahead)

    def draw(self) -> None:
        """Draw the timers to register next."""
        ahead = self._random.integers(0, _HORIZON_MS, (self._batches, self._batch))
        self._drawn = [self._columns(each) for each in ahead]

    def register(self) -> None:
        """Register the timers drawn."""
        for each in self._drawn:
            self._timers.register(*each)

    def pop(self) -> None:
        """Pop about as many timers."""
        for _ in range(self._batches):
            self._now += self._step
            self.popped += self._timers.pop(self._now)


def _measure_timers(report: Report, arguments: Any) -> None:
    def pop_and_draw(work: TimerWork) -> None:
        work.pop()
        work.draw()

    def draw_and_register(work: TimerWork) -> None:
        work.draw()
        work.register()

    count, batch = arguments.keys, arguments.batch
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        works = [("arrowstate", arguments.batches, TimerWork(OurTimers(), count, batch, arguments.batches))]
        peer = None
        if arguments.peer_batches:
            peer = PeerTimers(Path(folder) / "rocksdb")
            peer_count = arguments.peer_keys or count
            work = TimerWork(peer, peer_count, batch, arguments.peer_batches)
            peer.settle()
            works.append(("RocksDB", arguments.peer_batches, work))
        for kind in ("timer register", "timer pop"):
            contenders = []
            for name, batches, work in works:
                run, prepare = (
                    (work.register, pop_and_draw) if kind == "timer register" else (work.pop, draw_and_register)
                )
                contenders.append(Contender(name, run, batches * batch, partial(prepare, work)))
            series = report.compare(f"{kind}, {count:,} timers", "timers", contenders)
            _judge(report, arguments, kind, series)
        if peer is not None:
            peer.close()


def _measure(report: Report, arguments: Any, kind: str) -> None:
    random = np.random.default_rng(1)
    ours = OurState(kind, arguments.keys)
    # Lists only grow, and are not to grow out of memory.
    batches = max(1, arguments.batches // 3) if kind == "list append" else arguments.batches
    amount = batches * arguments.batch
    columns: list[tuple[pa.Array, pa.Array, pa.Array]] = []

    def draw() -> None:
        columns[:] = [ours.columns(random.integers(0, arguments.keys, arguments.batch)) for _ in range(batches)]

    def run() -> None:
        for each in columns:
            ours.run(each)

    contenders = [Contender("arrowstate", run, amount, draw)]
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        peer = None
        if arguments.peer_batches:
            count = arguments.peer_keys or arguments.keys
            peer = PeerState(kind, Path(folder) / "rocksdb", count)

            def run_peer(peer: PeerState = peer) -> None:
                for _ in range(arguments.peer_batches):
                    peer.run(random.integers(0, count, arguments.batch))

            contenders.append(Contender("RocksDB", run_peer, arguments.peer_batches * arguments.batch))
            if kind in ("map put", "value update"):

                def run_counting(peer: PeerState = peer) -> None:
                    peer.run_counting(random.integers(0, count, arguments.batch))

                contenders.append(Contender("RocksDB, counting", run_counting, arguments.batch))
        series = report.compare(f"{kind}, {arguments.keys:,} keys", "rows", contenders)
        if peer is not None:
            peer.close()
    _judge(report, arguments, kind, series)


def _judge(report: Report, arguments: Any, kind: str, series: list[Series]) -> None:
    """Keep what each sustains, and at the full size whether that is enough."""
    sustained = [one.amount * len(one.seconds) / sum(one.seconds) for one in series if one.amount is not None]
    for one, rate in zip(series, sustained, strict=True):
        report.figure(f"{kind}, sustained, {one.name}", rate, "rows/s")
    if arguments.keys == 10_000_000:
        if kind in _REQUIRED:
            report.require_rate(kind, sustained[0], at_least=_REQUIRED[kind], unit="rows/s")
        if len(series) > 1:
            report.require(f"{kind}, against RocksDB", sustained[0] / sustained[1], at_least=10, unit="times")
