"""Keys and values of every type through Arrow files, Parquet files and savepoints, bit for bit."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from arrowstate import KeyedStateBackend, ValueStateDescriptor
from arrowstate.files.open_files import forget_open_files
from stores import commit

NAN = math.nan
TYPES = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [1, -128]),
    "uint8": (pa.uint8(), [0, 255]),
    "int16": (pa.int16(), [1, -5]),
    "uint16": (pa.uint16(), [1, 65535]),
    "int32": (pa.int32(), [1, -5]),
    "uint32": (pa.uint32(), [1, 2**32 - 1]),
    "int64": (pa.int64(), [1, -(2**63), 2**63 - 1]),
    "uint64": (pa.uint64(), [1, 2**64 - 1]),
    "float16": (pa.float16(), [1.5, NAN, -math.inf]),
    "float32": (pa.float32(), [1.5, NAN]),
    "float64": (pa.float64(), [0.25, NAN, math.inf]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("1.25"), Decimal("-1.00")]),
    "decimal64": (pa.decimal64(12, 2), [Decimal("1.25"), Decimal("-1.00")]),
    "decimal128": (pa.decimal128(30, 30), [Decimal("0.1"), Decimal("-0.1")]),
    "decimal256": (pa.decimal256(60, 2), [Decimal("1.25"), Decimal("-1.00")]),
    "string": (pa.string(), ["", "aé", "\0"]),
    "large_string": (pa.large_string(), ["", "aé"]),
    "binary": (pa.binary(), [b"", b"\0a"]),
    "large_binary": (pa.large_binary(), [b"", b"\0a"]),
    "fixed_binary": (pa.binary(3), [b"abc", b"\0\0\0"]),
    "date32": (pa.date32(), [dt.date(2020, 1, 1), dt.date(1, 1, 1)]),
    "date64": (pa.date64(), [dt.date(2020, 1, 1), dt.date(1960, 1, 1)]),
    "time32_s": (pa.time32("s"), [dt.time(1, 2, 3)]),
    "time32_ms": (pa.time32("ms"), [dt.time(1, 2, 3)]),
    "time64_us": (pa.time64("us"), [dt.time(1, 2, 3, 4)]),
    "time64_ns": (pa.time64("ns"), [dt.time(1, 2, 3, 4)]),
    **{f"timestamp_{unit}": (pa.timestamp(unit), [dt.datetime(2020, 1, 2, 3)]) for unit in ("s", "ms", "us", "ns")},
    "timestamp_zoned": (pa.timestamp("us", "Europe/Paris"), [dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC)]),
    **{f"duration_{unit}": (pa.duration(unit), [dt.timedelta(-1, 5)]) for unit in ("s", "ms", "us", "ns")},
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}],
    ),
    "struct_not_null": (
        pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": 2, "b": "x"}],
    ),
    "list": (pa.list_(pa.int32()), [[], [1, None], [None, 1]]),
    "list_named_item": (pa.list_(pa.field("element", pa.int32(), nullable=False)), [[], [1, 2]]),
    "large_list": (pa.large_list(pa.string()), [[], ["a", None]]),
    "fixed_list": (pa.list_(pa.int16(), 2), [[1, 2], [None, 1]]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], []]),
    "nested": (
        pa.list_(pa.struct([("x", pa.list_(pa.float64())), ("y", pa.struct([("z", pa.bool_())]))])),
        [[{"x": [1.0, None], "y": {"z": True}}, None], [{"x": None, "y": None}], []],
    ),
    "struct_of_lists": (
        pa.struct([("a", pa.list_(pa.struct([("q", pa.string())])))]),
        [{"a": [{"q": "x"}, {"q": None}]}, {"a": None}, {"a": []}],
    ),
}
NO_KEYS = {"map"}


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance", "savepoint"])
@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_come_back(store, name, format):
    kind, values = TYPES[name]
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    state = backend.state(ValueStateDescriptor("s", kind))
    keys = pa.array(range(4 * len(values)))
    column = pa.array(values * 4, kind)

    # In two runs, with dead rows, and from a slice.
    state.update_batch(keys, column)
    state.update_batch(keys.slice(3), column.slice(3))
    restored = through(store, backend, format).state(state.descriptor)

    assert repr(state.get_batch(keys).to_pylist()) == repr(column.to_pylist())
    again = restored.get_batch(keys)
    assert again.type == kind
    again.validate(full=True)
    assert repr(again.to_pylist()) == repr(column.to_pylist())
    assert restored.get_batch([1000]).to_pylist() == [None]


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance", "savepoint"])
@pytest.mark.parametrize("name", sorted(TYPES.keys() - NO_KEYS))
def test_keys_of_every_type_find_their_rows(store, name, format):
    kind, values = TYPES[name]
    backend = KeyedStateBackend(key=pa.schema([("k", kind), ("n", pa.int8())]), max_parallelism=128)
    state = backend.state(ValueStateDescriptor("s", pa.int64()))
    keys = pa.record_batch([pa.array(values * 2, kind), pa.array([0, 1] * len(values), pa.int8())], ["k", "n"])
    expected = {repr(key): number for number, key in enumerate(keys.to_pylist())}

    state.update_batch(keys, range(len(keys)))
    for row, key in enumerate(keys.to_pylist()):
        backend.current_key = key
        assert state.value() == expected[repr(key)], row
    restored = through(store, backend, format).state(state.descriptor)

    for each in (state, restored):
        assert each.get_batch(keys).to_pylist() == [expected[repr(key)] for key in keys.to_pylist()]
        assert each.get_batch(keys.slice(1)).to_pylist() == [expected[repr(key)] for key in keys.slice(1).to_pylist()]
        assert len(each) == len(expected)


def through(store, backend, format):
    snapshot = commit(store, {"op": [backend]}, format="arrow" if format == "savepoint" else format)
    if format == "savepoint":
        snapshot = store.savepoint("copy")
    forget_open_files()
    return snapshot.restore("op")
