"""Write key_hash_types.json: keys of every type a key may have, also those that Spark lacks, and their hashes.

Run from the root of the repository; json, struct and xxhash alone are used, by the text of formats/spec/key-hash.md:

    python formats/vectors/make_key_hash_types.py
"""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import xxhash

TARGET = Path(__file__).with_name("key_hash_types.json")

FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
NANS = {
    "float16": ["7e00", "7e01", "fe00", "7c01"],
    "float32": ["7fc00000", "ffc00001", "7f800001"],
    "float64": ["7ff8000000000000", "fff8000000000001", "7ff0000000000001"],
}
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
DAY_MS = 86_400_000


def hashed(kind: Any, value: Any, seed: int) -> int:
    """Return the seed for what comes after a value in the notation of the vectors."""
    if value is None or kind == "null":
        return seed
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            for field in kind["fields"]:
                seed = hashed(field["type"], value[field["name"]], seed)
            return seed
        for item in value:
            seed = hashed(kind["item"]["type"], item, seed)
        return seed
    return xxhash.xxh64_intdigest(in_bytes(kind, value), seed=seed)


def in_bytes(kind: str, value: Any) -> bytes:
    """Return the bytes of a value that are hashed; all integers but the unscaled value of a decimal little-endian."""
    name, _, unit = re.sub(r"[\]),].*", "", kind).partition("[")
    if kind == "bool":
        return struct.pack("<i", int(value))
    if kind in ("int8", "int16", "int32", "uint8", "uint16"):
        return struct.pack("<i", value)
    if kind in ("int64", "uint32", "uint64"):
        return struct.pack("<Q", value % (1 << 64))
    if kind in FLOATS:
        (number,) = struct.unpack(f">{FLOATS[kind]}", bytes.fromhex(value))
        if math.isnan(number):
            return bytes.fromhex("7ff8000000000000" if kind == "float64" else "7fc00000")[::-1]
        # -0.0 and 0.0 make 0.0.
        return struct.pack("<d" if kind == "float64" else "<f", number + 0.0)
    if name.startswith("decimal"):
        precision, scale = (int(number) for number in re.findall(r"-?\d+", kind)[1:])
        unscaled = int(Decimal(value).scaleb(scale, Context(prec=100)))
        if precision <= 18:
            return struct.pack("<q", unscaled)
        size = next(size for size in range(1, 33) if -(1 << 8 * size - 1) <= unscaled < 1 << 8 * size - 1)
        return unscaled.to_bytes(size, "big", signed=True)
    if kind in ("string", "large_string", "string_view"):
        return str(value).encode()
    if "binary" in kind:
        return bytes.fromhex(value)
    if kind == "date32":
        return struct.pack("<i", value)
    if kind == "date64":
        return struct.pack("<i", value // DAY_MS)
    if name in ("timestamp", "duration"):
        return struct.pack("<q", value if unit == "ns" else value * UNITS[unit])
    nanoseconds = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
    return struct.pack("<q", value * nanoseconds[unit])


def cases() -> list[tuple[Any, list[Any]]]:
    """Return each type with values: bounds, zero, signs, null."""
    found: list[tuple[Any, list[Any]]] = [("null", [None]), ("bool", [True, False, None])]
    for bits in (8, 16, 32, 64):
        high = (1 << bits - 1) - 1
        found.append((f"int{bits}", [-high - 1, -1, 0, 1, high, None]))
        found.append((f"uint{bits}", [0, 1, high, high + 1, 2 * high + 1, None]))
    for name, code in FLOATS.items():
        numbers = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf]
        found.append((name, [struct.pack(f">{code}", number).hex() for number in numbers] + NANS[name] + [None]))
    for kind, decimals in {
        "decimal32(5, 2)": ["0.00", "-1.28", "999.99"],
        "decimal64(18, 0)": ["0", "-1", "999999999999999999"],
        "decimal128(18, 2)": ["-0.01", "9999999999999999.99"],
        "decimal128(19, 0)": ["0", "127", "128", "-128", "-129", "9223372036854775808"],
        "decimal128(38, 10)": ["-1.0000000000", "1234567890123456789012345678.0123456789"],
        "decimal256(76, 0)": ["255", "-256", "9" * 76],
    }.items():
        found.append((kind, [*decimals, None]))
    texts = ["", "a", "ä", "😀", "a\0b", "x" * 7, "x" * 8, "x" * 31, "x" * 32, "x" * 100, None]
    found += [(kind, texts) for kind in ("string", "large_string", "string_view")]
    found += [(kind, ["", "00", "ff00ff", "61" * 40, None]) for kind in ("binary", "large_binary", "binary_view")]
    found.append(("fixed_size_binary[3]", ["000000", "ff00ff", None]))
    found.append(("date32", [-719162, -1, 0, 1, 2932896, None]))
    found.append(("date64", [-DAY_MS, 0, DAY_MS, 20000 * DAY_MS, None]))
    for unit in ("s", "ms", "us", "ns"):
        found.append((f"timestamp[{unit}]", [-1, 0, 1, 1_700_000_000, None]))
        found.append((f"timestamp[{unit}, tz=Europe/Berlin]", [-1, 0, 1_700_000_000, None]))
        found.append((f"duration[{unit}]", [-1, 0, 86_400, None]))
    found += [("time32[s]", [0, 86_399, None]), ("time32[ms]", [0, 86_399_999, None])]
    found += [("time64[us]", [0, 86_399_999_999, None]), ("time64[ns]", [0, 1, 86_399_999_999_999, None])]
    item = {"name": "item", "type": "int16", "nullable": True}
    lists = [[], [1], [1, 2], [None], [2, 1, None], None]
    found += [({"type": kind, "item": item}, lists) for kind in ("list", "large_list")]
    found.append(({"type": "fixed_size_list", "size": 2, "item": item}, [[1, 2], [None, 3], None]))
    inner = {"type": "struct", "fields": [{"name": "x", "type": "float32", "nullable": True}]}
    fields = [
        {"name": "a", "type": "string", "nullable": True},
        {"name": "b", "type": inner, "nullable": True},
        {
            "name": "c",
            "type": {"type": "list", "item": {"name": "item", "type": inner, "nullable": True}},
            "nullable": True,
        },
    ]
    nan = "7fc00001"
    found.append(
        (
            {"type": "struct", "fields": fields},
            [
                {"a": "k", "b": {"x": "80000000"}, "c": [{"x": nan}, None]},
                {"a": None, "b": None, "c": None},
                {"a": "", "b": {"x": None}, "c": []},
                None,
            ],
        )
    )
    return found


def signed(number: int) -> int:
    """Return 64 bits as two's complement."""
    return number - (1 << 64) if number >> 63 else number


def main() -> None:
    """Write the file."""
    texts = [
        json.dumps({"type": kind, "values": values, "hashes": [signed(hashed(kind, value, 42)) for value in values]})
        for kind, values in cases()
    ]
    TARGET.write_text(
        '{"source": "formats/spec/key-hash.md with xxhash, made by formats/vectors/make_key_hash_types.py",\n'
        '"cases": [\n' + ",\n".join(texts) + "\n]}\n"
    )


if __name__ == "__main__":
    main()
