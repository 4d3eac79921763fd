"""Tumbling windows that count per key, fire as event time advances, and are removed, against RocksDB.

Elements have random keys and timestamps that rise by one per element, each up to `--disorder` late; the watermark
follows every batch. One round is a whole stream, from an empty state until every window has fired, every merge
included. RocksDB runs the same stream, cut after `--peer-elements`: a count per (window, key), in that order, so that
a window that has ended is one range to read and delete; keys are counted per batch, sorted and made unique before they
are read and written. Both results are compared with those of Polars, which groups the stream as a whole.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import rocksdict

import arrowstate
from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
from benchmarks.harness import Contender, Report, argument_parser

Numbers = npt.NDArray[np.int64]

_KEY = pa.schema([("key", pa.int64())])
_COUNT = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count")


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("windows", __doc__, rounds=3, cpu="last")
    parser.add_argument("--elements", type=int, default=20_000_000, help="elements per round of ours (default 20 M)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys (default 1 M)")
    parser.add_argument("--batch", type=int, default=200_000, help="elements per batch (default 200,000)")
    parser.add_argument("--window", type=int, default=2_000_000, help="size of a window in ms (default 2 M)")
    parser.add_argument("--disorder", type=int, default=10_000, help="how late elements come, in ms (default 10,000)")
    parser.add_argument(
        "--peer-elements", type=int, default=3_000_000, help="elements per round of RocksDB (default 3 M)"
    )
    arguments = parser.parse_args(argv)
    report = Report("windows", arguments)
    stream = _Stream(arguments)
    counted: dict[str, _Results] = {}
    elements, peer_elements = arguments.elements, min(arguments.peer_elements, arguments.elements)

    def ours() -> None:
        counted["arrowstate"] = _arrowstate(stream, elements)

    def peer() -> None:
        with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
            counted["RocksDB"] = _rocksdb(stream, peer_elements, Path(folder) / "rocksdb")

    title = f"count per key in windows of {arguments.window:,} ms, {arguments.keys:,} keys"
    contenders = [Contender("arrowstate", ours, elements), Contender("RocksDB", peer, peer_elements)]
    # Enough to have the kernels loaded; a stream as a whole warms up nothing more.
    _arrowstate(stream, min(elements, 2 * arguments.batch))
    series = report.compare(title, "elements", contenders, warmup=0)
    for name, amount in (("arrowstate", elements), ("RocksDB", peer_elements)):
        same = counted[name].same_as(stream.table(amount))
        report.require(f"windows of {name} as Polars counts them", float(same), at_least=1)
    report.figure("windows fired", counted["arrowstate"].rows, "keys and windows")
    sustained = elements * len(series[0].seconds) / sum(series[0].seconds)
    report.figure("sustained, every merge included", sustained, "elements/s")
    if arguments.keys == 1_000_000 and elements == 20_000_000:
        times = sustained / statistics.median(series[1].figures)
        report.require("sustained, against RocksDB", times, at_least=5, unit="times")
    return report.finish()


class _Stream:
    """Elements, made once, so that their making is not measured."""

    def __init__(self, arguments: Any) -> None:
        self.batch: int = arguments.batch
        self.window: int = arguments.window
        self._disorder: int = arguments.disorder
        random = np.random.default_rng(1)
        rows = arguments.elements
        self._keys = random.integers(0, arguments.keys, rows)
        self._times = np.arange(rows) + self._disorder - random.integers(0, self._disorder + 1, rows)

    def batches(self, elements: int) -> Iterator[tuple[Numbers, Numbers, int]]:
        """Yield keys, timestamps and the watermark after each batch; the last one is above all timestamps."""
        for start in range(0, elements, self.batch):
            end = min(elements, start + self.batch)
            watermark = end - 1 if end < elements else end + self._disorder + self.window
            yield self._keys[start:end], self._times[start:end], watermark

    def table(self, elements: int) -> pl.DataFrame:
        """Return the first elements as a table."""
        return pl.DataFrame(
            {"key": self._keys[:elements], "start": self._times[:elements] // self.window * self.window}
        )


class _Results:
    """The windows that fired."""

    def __init__(self) -> None:
        self._parts: list[tuple[Numbers, Numbers, Numbers]] = []

    def add(self, starts: Numbers, keys: Numbers, counts: Numbers) -> None:
        self._parts.append((starts, keys, counts))

    @property
    def rows(self) -> int:
        return sum(starts.size for starts, _, _ in self._parts)

    def same_as(self, elements: pl.DataFrame) -> bool:
        """Whether these are the counts of the elements."""
        starts, keys, counts = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        found = pl.DataFrame({"start": starts, "key": keys, "count": counts}).sort("start", "key")
        expected = elements.group_by("start", "key").agg(pl.len().cast(pl.Int64).alias("count"))
        return found.equals(expected.sort("start", "key"))


def _arrowstate(stream: _Stream, elements: int) -> _Results:
    backend = arrowstate.KeyedStateBackend(key=_KEY, max_parallelism=128)
    operator = WindowOperator(backend, TumblingEventTimeWindows(stream.window), _COUNT)
    results = _Results()
    for keys, times, watermark in stream.batches(elements):
        column = pa.array(keys)
        operator.process(column, pa.array(times), column)
        fired = operator.advance_watermark(watermark)
        if fired.num_rows:
            results.add(*(fired.column(name).to_numpy() for name in ("window_start", "key", "count")))
    return results


def _rocksdb(stream: _Stream, elements: int, path: Path) -> _Results:
    database, write = _open(path)
    results = _Results()
    fired_to = 0
    for keys, times, watermark in stream.batches(elements):
        pairs = np.stack([times // stream.window * stream.window, keys], axis=1).astype(">u8").view("V16").ravel()
        unique, counts = _counted(pairs)
        stored: list[bytes] = unique.tolist()
        found = cast(list[bytes | None], database.get(cast(list[Any], stored)))
        before = np.frombuffer(b"".join([value or bytes(8) for value in found]), np.int64)
        write(stored, (before + counts).view("V8").tolist())
        end = (watermark + 1) // stream.window * stream.window
        if end > fired_to:
            _fire(database, fired_to, end, results)
            fired_to = end
    database.close()
    return results


def _counted(pairs: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], Numbers]:
    """Return the distinct pairs in the order of their bytes, and how often each is there."""
    # Two sorts of numbers are faster than one of bytes.
    words = pairs.view(">u8").reshape(-1, 2).astype(np.int64)
    order = np.lexsort((words[:, 1], words[:, 0]))
    words = words[order]
    first = np.flatnonzero(np.concatenate(([True], (words[1:] != words[:-1]).any(axis=1))))
    return pairs[order[first]], np.diff(np.append(first, order.size))


def _fire(database: rocksdict.Rdict, start: int, end: int, results: _Results) -> None:
    """Read the windows that start from `start` up to before `end`, and delete them as a range."""
    low, high = start.to_bytes(8, "big"), end.to_bytes(8, "big")
    options = rocksdict.ReadOptions()
    options.set_iterate_upper_bound(high)
    items = cast(list[tuple[bytes, bytes]], list(database.items(from_key=low, read_opt=options)))
    database.delete_range(low, high)
    if items:
        words = np.frombuffer(b"".join(key for key, _ in items), ">u8").reshape(-1, 2).astype(np.int64)
        results.add(words[:, 0], words[:, 1], np.frombuffer(b"".join(count for _, count in items), np.int64))


def _open(path: Path) -> tuple[rocksdict.Rdict, Callable[[list[bytes], list[bytes]], None]]:
    """Return a database without a log or compression, and what writes one batch."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_write_buffer_size(64 << 20)
    options.set_max_write_buffer_number(4)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(2 << 30))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    database = rocksdict.Rdict(str(path), options=options)
    unlogged = rocksdict.WriteOptions()
    # An attribute; the package's types say a method.
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
    database.set_write_options(unlogged)

    def write(keys: list[bytes], values: list[bytes]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in zip(keys, values, strict=True):
            put(key, value)
        database.write(batch)

    return database, write
