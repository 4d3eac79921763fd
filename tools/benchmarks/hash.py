"""Key hash of int64 and of 16-byte strings, rows per second on one core.

Peers: the package `xxhash`, which computes the same function for one value per call (on a fiftieth of
the rows, since it takes that much longer), and `Series.hash` of polars, which computes another function
for a whole column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import xxhash

from arrowstate_formats import key_hash
from benchmarks.harness import Contender, Report, argument_parser

SAMPLE = 50


def main(argv: list[str]) -> int:
    """Measure and report."""
    parser = argument_parser("hash", __doc__, rounds=7, cpu="last")
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of int64 (default 20,000,000)")
    parser.add_argument("--string-rows", type=int, default=5_000_000, help="rows of strings (default 5,000,000)")
    arguments = parser.parse_args(argv)
    report = Report("hash", arguments)
    random = np.random.default_rng(1)

    longs = pa.array(random.integers(-(2**63), 2**63, arguments.rows))
    ours = compare(report, "int64", longs, [value.to_bytes(8, "little", signed=True) for value in sample(longs)])
    report.require_rate("int64", ours, at_least=100e6, unit="rows/s")

    strings = random_strings(random, arguments.string_rows)
    ours = compare(report, "16-byte strings", strings, [value.encode() for value in sample(strings)])
    report.require_rate("16-byte strings", ours, at_least=25e6, unit="rows/s")
    return report.finish()


def sample(column: pa.Array) -> list[Any]:
    """The first rows, as Python objects."""
    return column[: max(1, len(column) // SAMPLE)].to_pylist()


def random_strings(random: np.random.Generator, rows: int) -> pa.StringArray:
    """Strings of 16 hexadecimal digits."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, rows * 16, np.uint8)]
    offsets = np.arange(rows + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(digits))


def compare(report: Report, title: str, column: pa.Array, values: list[bytes]) -> float:
    """Compare on one column; return our rows per second."""
    digest = xxhash.xxh64_intdigest
    same = np.array([digest(value, 42) for value in values], np.uint64).view(np.int64)
    if not np.array_equal(key_hash(column[: len(values)]).to_numpy(), same):
        raise AssertionError(f"the key hash of {title} is not xxhash64")
    series = pl.Series(column)
    contenders = [
        Contender("arrowstate key_hash", lambda: key_hash(column), len(column)),
        Contender("xxhash, value by value", lambda: [digest(value, 42) for value in values], len(values)),
        Contender("polars hash (another function)", lambda: series.hash(), len(column)),
    ]
    ours, *_ = report.compare(f"{title}, {len(column):,} rows", "rows", contenders)
    return float(np.median(ours.figures))
