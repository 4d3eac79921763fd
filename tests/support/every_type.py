"""Every type that a state may have, with a value, and the places where it may stand in another type."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from early_versions import is_before

MOMENT = datetime.datetime(2024, 2, 29, 12, 0, 0, 250_000)
SPAN = datetime.timedelta(days=400, microseconds=250_000)
FLAT = {
    pa.null(): None,
    pa.bool_(): True,
    pa.int8(): -3,
    pa.uint64(): 2**64 - 1,
    pa.float16(): 1.5,
    pa.float32(): -0.25,
    pa.float64(): 1e300,
    pa.string(): "Łódź",
    pa.large_string(): "it's",
    pa.binary(): b"\0\xff",
    pa.large_binary(): b"ab",
    pa.binary(2): b"xy",
    pa.date32(): MOMENT.date(),
    pa.date64(): MOMENT.date(),
    pa.time32("s"): datetime.time(1, 2, 3),
    pa.time32("ms"): datetime.time(1, 2, 3, 4000),
    pa.time64("us"): datetime.time(1, 2, 3, 4),
    pa.time64("ns"): datetime.time(1, 2, 3, 4),
    pa.timestamp("s"): MOMENT.replace(microsecond=0),
    **{pa.timestamp(unit): MOMENT for unit in ("ms", "us", "ns")},
    **{
        pa.timestamp(unit, zone): MOMENT.replace(tzinfo=datetime.UTC)
        for unit in ("ms", "us", "ns")
        for zone in ("UTC", "Europe/Rome", "+02:00")
    },
    pa.duration("s"): datetime.timedelta(3),
    **{pa.duration(unit): SPAN for unit in ("ms", "us")},
    pa.decimal32(5, 2): Decimal("-1.25"),
    pa.decimal64(12, 2): Decimal("1.25"),
    pa.decimal128(38, 10): Decimal("1.2500000000"),
    pa.decimal256(38, 10): Decimal("-1.2500000000"),
}
# What SQL shows in another form: the value stored, and the one of SQL.
SHOWN = {
    pa.decimal256(60, 10): (Decimal("1.0000000001"), "1.0000000001"),
    pa.decimal256(76, 0): (Decimal(-(10**75)), "-1" + "0" * 75),
    pa.decimal256(76, 76): (Decimal("-1E-76"), "-0." + "0" * 75 + "1"),
    pa.decimal256(40, 9): (Decimal(0), "0.000000000"),
    pa.duration("ns"): (np.timedelta64(1_500, "ns"), 1_500),
}
# What an early DuckDB has no nanoseconds for.
EARLY: dict[pa.DataType, Any] = {}
if is_before("duckdb", (2,)):
    EARLY |= {kind: MOMENT for kind in FLAT if str(kind).startswith("timestamp[ns, ")}
if is_before("duckdb", (1, 5)):
    EARLY[pa.time64("ns")] = "01:02:03.000004000"
KINDS = [(kind, value, EARLY.get(kind, value)) for kind, value in FLAT.items()] + [
    (kind, *both) for kind, both in SHOWN.items()
]


def places(kind: pa.DataType, value: Any) -> dict[str, tuple[pa.DataType, Any]]:
    """The type and a value at each place, by a name."""
    return {
        "flat": (kind, value),
        "absent": (kind, None),
        "list": (pa.list_(kind), [value, None]),
        "large_list": (pa.large_list(kind), [None, value]),
        "fixed": (pa.list_(kind, 2), [value, None]),
        "inner": (pa.struct([("s", pa.struct([("x", kind), ("y", kind)]))]), {"s": {"x": value, "y": None}}),
        "item": (pa.map_(pa.string(), kind), {"a": value, "b": None}),
        "deep": (pa.list_(pa.struct([("m", pa.map_(pa.int8(), pa.list_(kind)))])), [None, {"m": {1: [value]}}]),
        **({"keys": (pa.map_(kind, pa.int8()), {value: 1})} if kind != pa.null() else {}),
    }


def to_arrow(value: Any) -> Any:
    """A value as Arrow takes it: a map is a list of pairs."""
    if isinstance(value, dict) and value.keys().isdisjoint(("s", "x", "m")):
        return [(to_arrow(key), to_arrow(item)) for key, item in value.items()]
    if isinstance(value, dict):
        return {name: to_arrow(item) for name, item in value.items()}
    return [to_arrow(item) for item in value] if isinstance(value, list) else value


def any_bits(kind: pa.DataType, rows: int) -> pa.Array | None:
    """Values of all that a type with a fixed width can be; None for other types."""
    random, types = np.random.default_rng(rows), pa.types
    if types.is_floating(kind):
        return pa.array(np.frombuffer(random.bytes(rows * kind.bit_width // 8), dtype=kind.to_pandas_dtype()))
    if types.is_timestamp(kind):
        # Some 290 years around 1970, of every unit.
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return pa.array(random.integers(-9 * 10**9, 9 * 10**9, rows) * per_second + 7 % per_second).view(kind)
    if types.is_duration(kind):
        return pa.array(random.integers(-(10**9), 10**9, rows)).view(kind)
    if types.is_time(kind):
        a_day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        width = np.int32 if types.is_time32(kind) else np.int64
        return pa.array(random.integers(0, a_day, rows).astype(width)).view(kind)
    return None
