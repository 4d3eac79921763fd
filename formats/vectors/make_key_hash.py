"""Write key_hash.json: keys of every kind and the `xxhash64` that Spark SQL computes for them.

Run from the root of the repository, with a Java that Spark accepts:

    PYTHONPATH=formats python formats/vectors/make_key_hash.py

The keys are the same on every run; a new version of Spark must not change the hashes.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from arrowstate_formats.arrow_types import type_to_json

TARGET = Path(__file__).with_name("key_hash.json")

Columns = dict[str, pa.Array]


def integers(arrow_type: pa.DataType, random: np.random.Generator) -> pa.Array:
    """Return the bounds, the values around zero and some at random."""
    low, high = -(1 << arrow_type.bit_width - 1), (1 << arrow_type.bit_width - 1) - 1
    some = [int(value) for value in random.integers(low, high, 12)]
    return pa.array([low, low + 1, -1, 0, 1, 2, 42, high - 1, high, None, *some], arrow_type)


def floats(arrow_type: pa.DataType, random: np.random.Generator) -> pa.Array:
    """Return zeros of both signs, NaNs of several bit patterns, infinities, subnormals and some at random."""
    special = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.0, -1.0, 1e-40, 5e-324, 1e308, 3.14]
    if arrow_type == pa.float32():
        some = np.array([*special[:9], 1e38, *random.normal(size=8)]).astype(np.float32)
        odd = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    else:
        some = np.array([*special, *random.normal(size=8)])
        odd = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(np.float64)
    return pa.concat_arrays([pa.array(some), pa.array(odd), pa.nulls(1, arrow_type)])


def texts(random: np.random.Generator) -> list[str | None]:
    """Return texts of every length that takes another path through the hash, and beyond ASCII."""
    lengths = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 36, 39, 40, 47, 63, 64, 65, 100, 257]
    letters = [bytes(random.integers(97, 123, length, dtype=np.uint8)).decode() for length in lengths]
    return [*letters, "N712JB", "ä", "中文", "😀", "a\0b", None]


def decimals(precision: int, scale: int, random: np.random.Generator) -> pa.Array:
    """Return unscaled values around the powers of 256, where the number of bytes changes."""
    limit = 10**precision - 1
    unscaled = {0, 1, -1, limit, -limit}
    for bits in range(7, 127, 8):
        unscaled |= {sign * ((1 << bits) + step) for sign in (1, -1) for step in (-1, 0, 1)}
    unscaled |= {int(value) for value in random.integers(-(10**17), 10**17, 8)}
    some = [Decimal(f"{value}E-{scale}") for value in sorted(unscaled) if abs(value) <= limit]
    return pa.array([*some, None], pa.decimal128(precision, scale))


def make_cases() -> dict[str, Columns]:
    """Return the key columns of each case."""
    random = np.random.default_rng(42)
    words = texts(random)
    data = [None if word is None else word.encode() for word in words] + [bytes(range(256)), b"\xff" * 9]
    days = pa.array([-719162, -1, 0, 1, 19000, 2932896, None], pa.int32()).cast(pa.date32())
    instants = pa.array([-(10**15), -1, 0, 1, 1_700_000_000_123_456, 10**15, None], pa.int64())
    pairs = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 3, "b": None}, {"a": None, "b": None}, None]
    cases: dict[str, Columns] = {
        "boolean": {"k": pa.array([True, False, None])},
        **{str(kind): {"k": integers(kind, random)} for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
        "float32": {"k": floats(pa.float32(), random)},
        "float64": {"k": floats(pa.float64(), random)},
        "decimal of 5 digits": {"k": decimals(5, 2, random)},
        "decimal of 18 digits": {"k": decimals(18, 2, random)},
        "decimal of 19 digits": {"k": decimals(19, 0, random)},
        "decimal of 38 digits": {"k": decimals(38, 10, random)},
        "string": {"k": pa.array(words)},
        "binary": {"k": pa.array(data)},
        "date": {"k": days},
        "timestamp": {"k": instants.cast(pa.timestamp("us", "UTC"))},
        "timestamp without time zone": {"k": instants.cast(pa.timestamp("us"))},
        "duration": {"k": instants.cast(pa.duration("us"))},
        "time": {"k": pa.array([0, 1000, 86_399_999_999_000, None], pa.int64()).cast(pa.time64("ns"))},
        "only nulls": {"a": pa.nulls(2, pa.int32()), "b": pa.nulls(2, pa.string())},
        "struct": {"k": pa.array(pairs, pa.struct([("a", pa.int32()), ("b", pa.string())]))},
        "list": {"k": pa.array([[1, 2], [2, 1], [None, 1], [], [None], None], pa.list_(pa.int64()))},
        "list of lists": {"k": pa.array([[["a"], ["b", "c"]], [["a", "b"], ["c"]], [None, []], None])},
        "list of structs": {
            "k": pa.array([pairs, pairs[::-1], [], None], pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])))
        },
        "origin, dest, carrier": {
            "origin": pa.array(["EWR", "JFK", "LGA", None, "EWR"]),
            "dest": pa.array(["IAH", "MIA", None, None, "IAH"]),
            "carrier": pa.array(["UA", "AA", "DL", None, None]),
        },
    }
    cases["every kind at once"] = {
        name: columns["k"].take(pa.array([0, 1, 2, 1])) for name, columns in cases.items() if "k" in columns
    }
    return cases


def to_json(array: pa.Array) -> list[Any]:
    """Return the values in the notation that README.md describes."""
    types, arrow_type = pa.types, array.type
    if types.is_struct(arrow_type):
        fields = {field.name: to_json(values) for field, values in zip(arrow_type, array.flatten(), strict=True)}
        rows = [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if types.is_list(arrow_type):
        return [to_json(item.values) if item.is_valid else None for item in array]
    if types.is_floating(arrow_type):
        bits = array.view(pa.uint64() if arrow_type.bit_width == 64 else pa.uint32())
        digits = arrow_type.bit_width // 4
        return [None if value is None else f"{value:0{digits}x}" for value in bits.to_pylist()]
    if types.is_decimal(arrow_type):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    if types.is_binary(arrow_type):
        return [None if value is None else value.hex() for value in array.to_pylist()]
    if types.is_temporal(arrow_type):
        return array.view(pa.int32() if arrow_type.bit_width == 32 else pa.int64()).to_pylist()
    return array.to_pylist()


def spark_hashes(spark: SparkSession, columns: Columns) -> list[int]:
    """Return what Spark SQL computes for each row."""
    names = [f"c{index}" for index in range(len(columns))]
    frame = spark.createDataFrame(pa.table(list(columns.values()), names=names))
    return frame.selectExpr(f"xxhash64({', '.join(names)}) AS hash").toArrow()["hash"].to_pylist()


def main() -> None:
    """Compute the hashes in a local session and write the file."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    cases = []
    for name, columns in make_cases().items():
        hashes = spark_hashes(spark, columns)
        keys = [
            {"name": column, "type": type_to_json(array.type), "values": to_json(array)}
            for column, array in columns.items()
        ]
        cases.append({"name": name, "keys": keys, "hashes": hashes})
    spark.stop()
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    source = json.dumps(f"xxhash64 of Apache Spark {spark_version}, made by formats/vectors/make_key_hash.py")
    TARGET.write_text(f'{{"source": {source},\n"cases": [\n{lines}\n]}}\n', encoding="ascii")


if __name__ == "__main__":
    main()
