"""Values as Flink writes them become columns, and what is no such value is an error that says where."""

import json
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.serializers.avro import avro_serializer
from arrowstate.foreign.flink.serializers.base import CountedBytes, Opaque, Serializer, compiled
from arrowstate.foreign.flink.serializers.composites import Either, JoinedList, ListOf, MapOf, Optional, RowOf, StructOf
from arrowstate.foreign.flink.serializers.pojo import PojoOf, Subclass
from arrowstate.foreign.flink.serializers.program import Tape
from arrowstate.foreign.flink.serializers.scalars import BigNumber, Char, Enumeration, Nothing, Number, Text, Time

LONG, INT = Number(pa.int64()), Number(pa.int32())


def text(value: str | None) -> bytes:
    """A string as Flink writes it."""
    if value is None:
        return b"\0"
    units = np.frombuffer(value.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    return _varint(len(units) + 1) + b"".join(_varint(unit) for unit in units)


def _varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def decode(serializer: Serializer, *values: bytes) -> list[Any]:
    """Decode values that lie one after the other, each up to its end."""
    data = np.frombuffer(b"".join(values), np.uint8)
    ends = np.cumsum([len(value) for value in values]).astype(np.int64)
    array, stops = serializer.decode(data, ends - [len(value) for value in values], ends, "file")
    assert array.type == serializer.arrow
    array.validate(full=True)
    assert stops.tolist() == ends.tolist()
    found: list[Any] = array.to_pylist()
    return found


def ints(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


CASES: list[tuple[Serializer, Sequence[bytes], list[Any]]] = [
    (LONG, [struct.pack(">q", each) for each in (0, -1, 2**63 - 1, -(2**63))], [0, -1, 2**63 - 1, -(2**63)]),
    (Number(pa.int8()), [b"\x80", b"\x7f"], [-128, 127]),
    (Number(pa.float32()), [struct.pack(">f", 1.5)], [1.5]),
    (Number(pa.bool_()), [b"\1", b"\0"], [True, False]),
    (Char(), ["\u20ac".encode("utf-16-be"), b"\0A"], ["\u20ac", "A"]),
    (Nothing(), [b"\0", b"\0"], [None, None]),
    (CountedBytes(), [ints(3) + b"abc", ints(0)], [b"abc", b""]),
    (
        BigNumber(scaled=False),
        [ints(0), ints(1), ints(2), ints(3), ints(6) + b"\xff\x00"],
        [None, "0", "1", "10", "-256"],
    ),
    (BigNumber(scaled=True), [ints(0), ints(5) + b"\x96" + ints(2), ints(1, 0)], [None, "-1.06", "0"]),
    (Enumeration("Color", ("RED", "BLUE")), [ints(1), ints(0)], ["BLUE", "RED"]),
    (ListOf(LONG), [ints(2) + struct.pack(">qq", 1, 2), ints(0)], [[1, 2], []]),
    (
        ListOf(ListOf(Text())),
        [ints(2, 1) + text("a") + ints(0), ints(1, 2) + text("b") + text(None)],
        [[["a"], []], [["b", None]]],
    ),
    (MapOf(INT, Text()), [ints(2, 7) + b"\0" + text("x") + ints(8) + b"\1"], [[(7, "x"), (8, None)]]),
    (StructOf(("a", "b"), (INT, Text())), [ints(5) + text("y")], [{"a": 5, "b": "y"}]),
    (StructOf((), ()), [b"", b""], [{}, {}]),
    (Optional(StructOf(("a",), (ListOf(INT),)), 1), [b"\1", b"\0" + ints(1, 3)], [None, {"a": [3]}]),
    (Optional(INT, 1, padding=4), [b"\1" + bytes(4), b"\0" + ints(9)], [None, 9]),
    (
        Either(Text(), LONG),
        [b"\1" + text("l"), b"\0" + struct.pack(">q", 4)],
        [{"is_left": True, "left": "l", "right": None}, {"is_left": False, "left": None, "right": 4}],
    ),
    (
        RowOf((INT, Text(), INT), kinds=True),
        [bytes([0b01_010_000]) + ints(1, 3), bytes([0b10_000_000]) + ints(1) + text("z") + ints(2)],
        [{"_row_kind": "+U", "f0": 1, "f1": None, "f2": 3}, {"_row_kind": "-U", "f0": 1, "f1": "z", "f2": 2}],
    ),
    (JoinedList(Text()), [text("a") + b"," + text(",") + b"," + text(None), text("b")], [["a", ",", None], ["b"]]),
]


@pytest.mark.parametrize(("serializer", "values", "expected"), CASES, ids=lambda case: type(case).__name__)
def test_values_become_columns(serializer: Serializer, values: Sequence[bytes], expected: list[Any]) -> None:
    assert decode(serializer, *values) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "ascii",
        "na\u00efve",
        "\u65e5\u672c\u8a9e",
        "\U0001f600 and \U0010ffff",
        "nul\0",
        "\u007f\u0080\u07ff\u0800",
        "x" * 40_000,
    ],
)
def test_every_text_comes_back(value: str) -> None:
    assert decode(Text(), text(None), text(value), text("after")) == [None, value, "after"]


def test_half_of_a_pair_of_surrogates_is_not_decoded_and_its_neighbours_are() -> None:
    assert decode(Text(), text("a"), text("\ud83d"), text("\ude00\ud83d"), text("b")) == ["a", None, None, "b"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("date", struct.pack(">ibb", 1969, 3, 7), "1969-03-07"),
        ("date", struct.pack(">ibb", 2000, 2, 29), "2000-02-29"),
        ("date", struct.pack(">ibb", -(2**31), -128, 0), None),
        ("time", struct.pack(">bbbi", 23, 59, 58, 999_999_999), "23:59:58.999999999"),
        ("datetime", struct.pack(">ibbbbbi", 1700, 12, 31, 1, 2, 3, 4), "1700-12-31 01:02:03.000000004"),
        ("datetime", struct.pack(">ibbbbbi", 3000, 1, 1, 0, 0, 0, 0), None),
        ("instant", struct.pack(">qi", -1, 999_999_999), "1969-12-31 23:59:59.999999999"),
        ("instant", struct.pack(">qi", -(2**63), -(2**31)), None),
        ("millis", struct.pack(">q", -1), "1969-12-31 23:59:59.999"),
        ("sql_timestamp", struct.pack(">qi", 1_001, 1_000_007), "1970-01-01 00:00:01.001000007"),
    ],
)
def test_times_are_those_of_the_calendar(kind: str, value: bytes, expected: str | None) -> None:
    data = np.frombuffer(value, np.uint8)

    array, _ = Time(kind).decode(data, np.array([0]), np.array([len(value)]))

    assert array.cast(pa.string())[0].as_py() == (
        expected and expected + ("Z" if array.type == Time("instant").arrow or kind == "millis" else "")
    )


def _pojo(*fields: bytes | None) -> bytes:
    return b"\2" + b"".join(b"\1" if field is None else b"\0" + field for field in fields)


BASE = (("a", "b"), (INT, Text()))


def test_an_object_of_a_known_subclass_has_its_own_fields() -> None:
    vip = PojoOf("Vip", ("a", "b", "level"), (INT, Text(), LONG))
    tagged = PojoOf("Tagged", ("a", "b"), (INT, Text()))
    serializer = PojoOf("Base", *BASE, (Subclass("Tagged", 0, tagged), Subclass("Vip", -1, vip)))
    named = b"\4" + struct.pack(">H", 3) + b"Vip" + _pojo(ints(2), None, struct.pack(">q", 9))

    found = decode(serializer, _pojo(ints(1), text("x")), named, b"\1", b"\x08\0" + _pojo(ints(3), text("y")))

    assert found == [
        {"_class": "Base", "a": 1, "b": "x", "level": None},
        {"_class": "Vip", "a": 2, "b": None, "level": 9},
        None,
        {"_class": "Tagged", "a": 3, "b": "y", "level": None},
    ]


def test_an_object_of_an_unknown_subclass_is_not_decoded_and_its_neighbours_are() -> None:
    named = b"\4" + struct.pack(">H", 3) + b"Vip" + _pojo(ints(2), None)

    found = decode(PojoOf("Base", *BASE), _pojo(ints(1), None), named, _pojo(None, text("z")))

    assert found == [{"a": 1, "b": None}, None, {"a": None, "b": "z"}]


def test_what_only_a_class_can_read_is_bytes_where_it_is_last() -> None:
    serializer = StructOf(("a", "b"), (INT, Opaque("com.acme.Thing", "unknown")))
    data = np.frombuffer(ints(7) + b"whatever", np.uint8)
    code, column = compiled(serializer, last=True)
    tape = Tape(code, data, "file")
    tape.values(np.array([0]), np.array([len(data)]))

    assert column(tape.slots).to_pylist() == [{"a": 7, "b": b"whatever"}]
    assert serializer.arrow.field("b").metadata == {b"flink.class": b"com.acme.Thing"}


def test_a_schema_of_avro_gives_the_columns() -> None:
    schema = """{"type": "record", "name": "R", "namespace": "n", "fields": [
        {"name": "id", "type": "long"}, {"name": "s", "type": ["null", "string"]},
        {"name": "l", "type": {"type": "array", "items": "int"}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "u", "type": ["int", "string",
            {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}]}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
    value = (
        struct.pack(">q", 5)
        + ints(1, 2)
        + b"hi"
        + b"\2"
        + ints(3, 4)
        + b"\0"
        + b"\1"
        + ints(1)
        + b"k"
        + struct.pack(">d", 0.5)
        + b"\0"
        + ints(1)
        + b"xy"
        + ints(2)
        + b"\1"
        + struct.pack(">q", 10**6)
    )

    (found,) = decode(avro_serializer(schema, "R"), value)

    at = found.pop("at")
    assert (at.year, at.second) == (1970, 1)
    assert found == {
        "id": 5,
        "s": "hi",
        "l": [3, 4],
        "m": [("k", 0.5)],
        "e": "B",
        "f": b"xy",
        "u": {"int": None, "string": None, "I": {"x": True}},
    }


def test_a_schema_that_refers_to_itself_is_opaque() -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}'

    assert avro_serializer(schema, "com.acme.R").opaque == ("com.acme.R",)


def records_of_records(levels: int) -> str:
    """A schema of records with two fields each, which have the record before as their type."""
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, levels + 1):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(schema)


def test_a_schema_that_becomes_many_types_is_opaque_at_once() -> None:
    symbols = {"type": "enum", "name": "E", "symbols": [f"s{number}" for number in range(5000)]}
    fields = [{"name": f"f{number}", "type": "E" if number else symbols} for number in range(5000)]
    many = json.dumps({"type": "record", "name": "R", "fields": fields})

    for schema in (records_of_records(20), many):
        found = avro_serializer(schema, "com.acme.R")

        assert isinstance(found, Opaque)
        assert found.reason == "its schema of Avro has more than 10,000 types, each counted where it is named"
    assert avro_serializer(records_of_records(10), "com.acme.R").opaque == ()


DAMAGE: list[tuple[Serializer, bytes, str]] = [
    (LONG, b"1234567", "at byte 0: the value is longer than what is left"),
    (Text(), b"\x05abc", "longer than what is left"),
    (Text(), b"\xff\xff\xff\xff\xff\xff", "no such value"),
    (Number(pa.bool_()), b"\2", "no such value"),
    (ListOf(LONG), ints(2**31 - 1) + bytes(8), "longer than what is left"),
    (ListOf(LONG), ints(-5), "no such value"),
    (ListOf(StructOf((), ())), ints(2**31 - 1), "longer than what is left"),
    (CountedBytes(), ints(-1), "no such value"),
    (CountedBytes(text=True), ints(2) + b"\xc3\x28", "not of UTF-8"),
    (Enumeration("E", ("A",)), ints(1), "no such value"),
    (Time("time"), struct.pack(">bbbi", 24, 0, 0, 0), "no such value"),
    (JoinedList(INT), ints(1) + b";" + ints(2), "no such value"),
]


@pytest.mark.parametrize(("serializer", "value", "message"), DAMAGE, ids=lambda case: type(case).__name__)
def test_bytes_that_are_no_such_value_are_refused(serializer: Serializer, value: bytes, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        decode(serializer, value)


def test_columns_grow_with_what_is_in_a_value() -> None:
    rows = [[f"{row}-{element}" for element in range(row * 37 % 300)] for row in range(200)]

    found = decode(ListOf(Text()), *(ints(len(row)) + b"".join(map(text, row)) for row in rows))

    assert found == rows


def test_decimals_keep_their_scale() -> None:
    values = [Decimal("0.00"), Decimal("-1E+3"), Decimal("123456789012345678901234567890.12345")]
    encoded = []
    for value in values:
        sign, digits, exponent = value.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        data = number.to_bytes(20, "big", signed=True)
        encoded.append(ints(len(data) + 4) + data + ints(-int(exponent)))

    assert [Decimal(each) for each in decode(BigNumber(scaled=True), *encoded)] == values
