"""Messages become rows and rows become messages: raw bytes, JSON, Avro and Protobuf, with a registry and without."""

import datetime as dt
import decimal
import io
import json
import random
import struct
import time

import cloudpickle
import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given as cases
from hypothesis import settings
from hypothesis import strategies as st

from arrowstate.errors import InvalidInputError, UnavailableError
from arrowstate.runtime import AvroFormat, JsonFormat, ProtobufFormat, RawFormat, SchemaRegistry
from arrowstate.runtime.kafka.flat_json import decode_objects
from arrowstate.runtime.kafka.formats import JsonDecoder
from long_form import short_or_long
from schema_registry import schema_registry


def decoded(format, *messages):
    """Rows and the texts of errors, after the format was in another process."""
    rows, wrong = cloudpickle.loads(cloudpickle.dumps(format)).decoder()(list(messages))
    assert rows.schema.types == format.schema.types
    assert rows.num_rows == len(messages)
    assert all(set(rows.to_pylist()[place].values()) == {None} for place in wrong)
    return rows.to_pylist(), {place: str(error) for place, error in wrong.items()}


def around(format, rows):
    """Rows that were made into messages and back."""
    encode = cloudpickle.loads(cloudpickle.dumps(format)).encoder(rows.schema, "t-value")
    messages = [message for batch in rows.to_batches() for message in encode(batch)]
    back, wrong = format.decoder()(messages)
    assert wrong == {}
    return back


@pytest.fixture
def in_new_york(monkeypatch):
    """A machine whose clock shows another time than UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class TestRaw:
    def test_bytes_are_as_they_are(self):
        assert decoded(RawFormat("v"), b"\xff", None, b"")[0] == [{"v": b"\xff"}, {"v": None}, {"v": b""}]

    def test_text_that_is_not_utf8_does_not_fit(self):
        rows, wrong = decoded(RawFormat("v", pa.string()), b"a", b"\xff", "ä".encode(), None)

        assert rows == [{"v": "a"}, {"v": None}, {"v": "ä"}, {"v": None}]
        assert list(wrong) == [1]

    def test_rows_become_messages(self):
        rows = pa.table({"v": ["a", None, ""]})

        assert RawFormat("v").encoder(rows.schema, "")(rows.to_batches()[0]) == [b"a", None, b""]

    def test_other_types_are_refused(self):
        with pytest.raises(InvalidInputError, match="a binary or string type, got int64"):
            RawFormat("v", pa.int64())


COLUMNS = pa.schema({"n": pa.int64(), "text": pa.string()})
PLAIN = pa.schema(
    {
        "n": pa.int64(),
        "text": pa.string(),
        "f": pa.float64(),
        "ok": pa.bool_(),
        "small": pa.int8(),
        "u": pa.uint64(),
        "ä": pa.string(),
    }
)
TEXTS = ["", "a", "ä", "a b", "x" * 20, "€𝄞"]
ODD_TEXTS = ["\n", '"', "\\", "{}", "true", "\x7f"]
# fmt: off
ODD_VALUES = [
    "00", "01", "-", "1.", "1.e", ".5", "+1", "-0", "-0.0", "0.10", "1e5", "1E-3", "1e400", "18446744073709551615",
    "-9223372036854775808", "9223372036854775808", "0.1234567890123456789", "123456789012345678.5",
    "9007199254740993.0", "127", "128", "-129", "nul", "True", "trueish", "nullx", "NaN", "-Infinity", "[1]", "{}",
    '{"n":1}', '"abc', "fals",
]
# fmt: on


def some_value(chance, name, odd):
    """A value that fits a column, but for the part `odd` of all."""
    if chance.random() < odd:
        kind = chance.random()
        if kind < 0.4:
            return chance.choice(ODD_VALUES)
        if kind < 0.8:
            # As many digits as there may be, and one more.
            whole, part = chance.getrandbits(64) - 2**63, chance.uniform(-1, 1)
            return str(chance.choice([whole, part, part * 1e15]))
        return json.dumps(chance.choice(TEXTS + ODD_TEXTS), ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.05:
        return "null"
    if name == "ok":
        return chance.choice(["true", "false"])
    if name == "f":
        return f"{chance.uniform(-1000, 1000):.{chance.randint(0, 12)}f}"
    most = {"n": 10**18 - 1, "small": 127, "u": 10**18 - 1}.get(name)
    if most is None:
        return json.dumps(chance.choice(TEXTS), ensure_ascii=False)
    return str(chance.randint(0 if name == "u" else -most, most))


def some_message(chance, odd):
    """An object of some of the columns in some order; the part `odd` with a name twice or a byte changed."""
    if chance.random() < 0.02:
        return None

    def space():
        return chance.choice(["", "", "", " ", "\t", " \n"[: 1 + (chance.random() < 0.02)]])

    names = [name for name in PLAIN.names if chance.random() < 0.6]
    if chance.random() < 0.3:
        chance.shuffle(names)
    if chance.random() < 0.1:
        names.append(chance.choice(["more", "N", "", "text "]))
    if names and chance.random() < odd:
        names.append(names[0])
    pairs = [f'{space()}"{name}"{space()}:{space()}{some_value(chance, name, odd)}{space()}' for name in names]
    message = bytearray(f"{space()}{{{','.join(pairs)}}}{space()}".encode())
    if chance.random() < odd:
        message[chance.randrange(len(message))] = chance.choice([0, 9, 10, 34, 44, 92, 123, 125, 58, 200, 255])
    return bytes(message)


class TestJson:
    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"null",
            b"3",
            b"[]",
            b"{",
            b'{"n": 1}}',
            b'{"n": 1}{"n": 2}',
            b'{"n": 1}\n{"n": 2}',
            b'{"n": 1, "n": 2}',
            b'{"n": "1"}',
            b'{"n": 1.5}',
            b'{"n": 99999999999999999999}',
            b'{"text": "a\nb"}',
            b'{"text": "\xff"}',
            b'{"text": 3}',
            b"\x00",
            b'{"n": 1},',
        ],
    )
    def test_what_is_no_object_of_these_columns_does_not_fit(self, message):
        rows, wrong = decoded(JsonFormat(COLUMNS), b'{"n": 1, "text": "a"}', message, b'{"n": 3}')

        assert rows[::2] == [{"n": 1, "text": "a"}, {"n": 3, "text": None}]
        assert list(wrong) == [1]

    @pytest.mark.parametrize("zone", [None, "UTC"])
    def test_a_time_that_has_no_nanoseconds_does_not_fit(self, zone):
        columns = pa.schema({"at": pa.timestamp("ns", zone)})

        rows, wrong = decoded(JsonFormat(columns), b'{"at": "2024-01-01"}', b'{"at": "9999-12-31T00:00:00Z"}', b"{}")

        assert [row["at"] and row["at"].year for row in rows[::2]] == [2024, None]
        assert list(wrong) == [1]

    def test_messages_that_make_up_for_each_other_are_both_found(self):
        _, wrong = decoded(JsonFormat(COLUMNS), b'{"n": 1}{"n": 2}', b"", b'{"n":', b"4}", b'{"n": 5}')

        assert list(wrong) == [0, 1, 2, 3]

    @cases(
        st.lists(
            st.sampled_from(
                [
                    b"{",
                    b"}",
                    b'{"n":1}',
                    b'{"n":',
                    b"2}",
                    b"",
                    b'{"text":"',
                    b'"}',
                    b",",
                    b"[{}]",
                    b"{}{}",
                    b"{\n}",
                    b" {} ",
                ]
            ),
            max_size=12,
        )
    )
    def test_no_message_is_taken_for_a_part_of_another(self, messages):
        rows, wrong = JsonFormat(COLUMNS).decoder()(messages)

        for place, message in enumerate(messages):
            try:
                alone = json.loads(message)
            except ValueError:
                alone = None
            if isinstance(alone, dict):
                assert place not in wrong
                assert rows.to_pylist()[place]["n"] == alone.get("n")
            else:
                assert place in wrong

    def test_names_without_a_column_are_passed_over_and_missing_ones_are_null(self):
        message = b' {"text": "\\u00e4", "more": [{"n": 3}]} '

        assert decoded(JsonFormat(COLUMNS), message, None) == (
            [{"n": None, "text": "ä"}, {"n": None, "text": None}],
            {},
        )

    def test_plain_objects_mean_to_the_kernel_what_they_mean_to_the_parser(self):
        """The kernel takes no message that Arrow's parser reads in another way, or refuses."""
        chance = random.Random(5)
        kernel, parser = JsonDecoder(PLAIN), JsonDecoder(PLAIN)
        plan, parser._plan = kernel._plan, None
        taken = 0
        rounds = short_or_long(2_000, 20_000)
        for _ in range(rounds):
            # What is odd in one of many messages leaves all of them to the parser.
            count, odd = chance.choice([(1, 0.1), (1, 0.2), (2, 0.1), (20, 0.0)])
            messages = [some_message(chance, odd) for _ in range(count)]

            rows, wrong = kernel(messages)

            expected, expected_wrong = parser(messages)
            rows.validate(full=True)
            assert rows.schema == expected.schema
            # As text, where NaN equals NaN.
            assert str(rows.to_pylist()) == str(expected.to_pylist()), messages
            assert {at: str(error) for at, error in wrong.items()} == {
                at: str(error) for at, error in expected_wrong.items()
            }
            taken += decode_objects(messages, plan) is not None
        assert rounds // 4 < taken < rounds

    def test_a_number_is_the_nearest_there_is(self):
        chance = random.Random(6)
        decode = JsonFormat(pa.schema({"f": pa.float64()})).decoder()
        numbers = [chance.uniform(-10, 10) * 10 ** chance.randint(0, 6) for _ in range(3000)]
        texts = [f"{number:.{chance.randint(0, 17)}f}" for number in numbers]

        found = [decode([f'{{"f": {text}}}'.encode()])[0]["f"][0].as_py() for text in texts]

        assert found == list(map(float, texts))

    def test_an_object_over_several_lines_is_one(self):
        assert decoded(JsonFormat(COLUMNS), b'{\n "n": 1,\n "text": "x"\n}\n')[0] == [{"n": 1, "text": "x"}]

    def test_no_messages_are_no_rows(self):
        assert decoded(JsonFormat(COLUMNS)) == ([], {})

    def test_values_come_back_as_they_went(self):
        rows = pa.table(
            {
                "i": pa.array([1, None], pa.int8()),
                "f": [1.5, -2e300],
                "s": ['a"\\\n\x00', "ä"],
                "b": [b"\xff\x00", b""],
                "t": pa.array([True, False]),
                "at": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 678_000), None], pa.timestamp("us")),
                "utc": pa.array([0, 1], pa.timestamp("ms", "UTC")),
                "day": [dt.date(2024, 1, 2), None],
                "time": [dt.time(1, 2, 3, 4), None],
                "money": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)),
                "list": [[1, 2], []],
                "struct": [{"x": 1, "y": ["a"]}, {"x": None, "y": None}],
            }
        )

        assert around(JsonFormat(rows.schema), rows).to_pylist() == rows.to_pylist()

    @pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_finer_digits_of_a_time_are_cut(self, unit, zone):
        format = JsonFormat(pa.schema({"x": pa.timestamp(unit, zone), "n": pa.int64()}))
        texts = ["2024-01-01T00:00:00.987654321Z", "1969-12-31T22:59:59.987654321-01", "2024-01-01", "soon"]

        rows, wrong = format.decoder()([f'{{"x": "{text}", "n": 1}}'.encode() for text in texts])

        ticks = 987654321 // {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
        scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
        assert list(wrong) == [3]
        days = [1_704_067_200 * scale + ticks, -scale + ticks, 1_704_067_200 * scale, None]
        assert rows["x"].cast(pa.int64()).to_pylist() == days

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_finer_digits_of_a_time_within_others_are_cut(self, unit):
        at = pa.timestamp(unit, "UTC")
        kind = pa.struct({"at": at, "all": pa.list_(pa.struct({"at": at, "n": pa.int64()}))})
        decode = JsonFormat(pa.schema({"x": kind})).decoder()
        time = '"2024-01-01T00:00:00.987654321Z"'
        part = f'{{"at": {time}, "all": [{{"at": {time}, "n": 1}}, null, {{"n": 2}}]}}'

        rows, wrong = decode([f'{{"x": {part}}}'.encode(), b'{"x": null}', b'{"x": {"all": [{"at": "soon"}]}}', b"{}"])

        ticks = pa.scalar("2024-01-01T00:00:00.987654321").cast(pa.timestamp("ns")).value
        ticks //= 10 ** {"s": 9, "ms": 6, "us": 3, "ns": 0}[unit]
        value = pa.array([ticks, None], pa.int64()).cast(at).to_pylist()
        assert list(wrong) == [2]
        assert rows["x"].type == kind
        assert rows["x"].to_pylist() == [
            {"at": value[0], "all": [{"at": value[0], "n": 1}, None, {"at": None, "n": 2}]},
            None,
            None,
            None,
        ]

    def test_a_part_without_nulls_may_be_missing_where_what_it_is_part_of_is_null(self):
        shop = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("s"))])
        shops = pa.list_(pa.field("item", shop, nullable=False))
        schema = pa.schema({"shop": shop, "all": pa.struct([pa.field("shops", shops, nullable=False)])})
        kept = pa.Table.from_pylist(
            [
                {"shop": None, "all": None},
                {"shop": {"id": 5, "at": dt.datetime(2024, 1, 2)}, "all": {"shops": [{"id": 6, "at": None}]}},
                {"shop": None, "all": {"shops": []}},
            ],
            schema,
        )
        written = JsonFormat().encoder(schema, "t-value")(kept.to_batches()[0])
        unfit = [b'{"shop": {}}', b'{"all": {}}', b'{"all": {"shops": [null]}}', b'{"all": {"shops": [{"id": null}]}}']

        rows, wrong = JsonFormat(schema).decoder()([*written, None, b"{}", *unfit, written[1]])

        rows.validate(full=True)
        assert rows.schema == schema
        absent = {"shop": None, "all": None}
        assert rows.to_pylist() == [*kept.to_pylist(), *[absent] * 6, kept.to_pylist()[1]]
        assert list(wrong) == [5, 6, 7, 8]
        assert "a null in 'id' of struct<id: int64 not null" in str(wrong[5])
        # Parquet looks at what lies under a null.
        pq.write_table(pa.table(rows.slice(0, 5)), io.BytesIO())

    def test_finer_digits_of_a_time_of_day_are_cut(self):
        format = JsonFormat(pa.schema({"us": pa.time64("us"), "ns": pa.time64("ns"), "s": pa.time32("s")}))
        time = '"10:00:00.987654321"'

        rows, wrong = format.decoder()([f'{{"us": {time}, "ns": {time}, "s": {time}}}'.encode()])

        assert wrong == {}
        assert [column.cast(pa.string())[0].as_py()[8:] for column in rows] == [".987654", ".987654321", ""]

    def test_nanoseconds_are_written_as_iso(self):
        def nanos(*counts, type):
            return pa.array(counts, pa.int64()).cast(type)

        day = 86_400 * 10**9
        rows = pa.table(
            {
                "at": nanos(-1, 1_000, day, type=pa.timestamp("ns")),
                "utc": nanos(1, 0, day, type=pa.timestamp("ns", "UTC")),
                "berlin": nanos(1, 0, day, type=pa.timestamp("ns", "Europe/Berlin")),
                "time": nanos(1, 1_000, 0, type=pa.time64("ns")),
                "took": nanos(0, -1, day + 1_500_000_000, type=pa.duration("ns")),
                "list": pa.array([[1], [], None], pa.list_(pa.timestamp("ns"))),
            }
        )

        encode = JsonFormat().encoder(rows.schema, "t-value")
        made = [json.loads(message) for batch in rows.to_batches() for message in encode(batch)]

        assert [list(row.values()) for row in made] == [
            [
                "1969-12-31T23:59:59.999999999",
                "1970-01-01T00:00:00.000000001Z",
                "1970-01-01T01:00:00.000000001+01:00",
                "00:00:00.000000001",
                "P0D",
                ["1970-01-01T00:00:00.000000001"],
            ],
            [
                "1970-01-01T00:00:00.000001",
                "1970-01-01T00:00:00Z",
                "1970-01-01T01:00:00+01:00",
                "00:00:00.000001",
                "-PT0.000000001S",
                [],
            ],
            [
                "1970-01-02T00:00:00",
                "1970-01-02T00:00:00Z",
                "1970-01-02T01:00:00+01:00",
                "00:00:00",
                "P1DT1.5S",
                None,
            ],
        ]

    def test_a_value_that_is_none_in_json_is_told(self):
        rows = pa.table({"x": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})

        with pytest.raises(InvalidInputError, match="a row does not fit JSON: .*key.*'a'"):
            around(JsonFormat(), rows)

    @pytest.mark.parametrize(
        "type",
        [
            pa.map_(pa.string(), pa.int64()),
            pa.duration("ms"),
            pa.struct({"b": pa.binary()}),
            pa.list_(pa.date32()),
            pa.float16(),
            pa.large_list(pa.int64()),
            pa.binary(2),
            pa.struct({"b": pa.binary(2)}),
        ],
    )
    def test_types_that_cannot_be_read_are_refused(self, type):
        with pytest.raises(InvalidInputError, match="JsonFormat cannot read 'x"):
            JsonFormat(pa.schema({"x": type})).decoder()


PAYMENT = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CARD", "CASH"]}},
        {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "double"]}},
        {
            "name": "shop",
            "type": ["null", {"type": "record", "name": "Shop", "fields": [{"name": "id", "type": "int"}]}],
        },
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}
PAYMENT_ROWS = pa.Table.from_pylist(
    [
        {
            "user": "ann",
            "amount": 3,
            "at": dt.datetime(2024, 1, 2, 3, 4, 5, 678_000, dt.UTC),
            "kind": "CASH",
            "money": decimal.Decimal("1.25"),
            "hash": b"ab",
            "tags": ["x", "y"],
            "more": [("pi", 3.14), ("none", None)],
            "shop": {"id": 7},
            "id": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "day": dt.date(1969, 12, 31),
        },
        {
            "user": "",
            "amount": None,
            "at": dt.datetime(1969, 1, 1, tzinfo=dt.UTC),
            "kind": "CARD",
            "money": decimal.Decimal("-99999999.99"),
            "hash": b"\x00\xff",
            "tags": [],
            "more": [],
            "shop": None,
            "id": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "day": dt.date(2024, 1, 2),
        },
    ],
    schema=AvroFormat(PAYMENT).schema,
)


def record(schema, row, id=None):
    """A message of fastavro's own."""
    text = io.BytesIO()
    fastavro.schemaless_writer(text, fastavro.parse_schema(schema), row)
    return (b"" if id is None else struct.pack(">bI", 0, id)) + text.getvalue()


@pytest.fixture
def registry():
    with schema_registry() as running:
        yield running


def two_fields(more=()):
    fields = [{"name": "user", "type": "string"}, {"name": "amount", "type": "long"}, *more]
    return {"type": "record", "name": "P", "fields": fields}


def of_field(type):
    return {"type": "record", "name": "P", "fields": [{"name": "x", "type": type}]}


FIXED = {"type": "fixed", "name": "Hash", "size": 2}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
MORE = {"type": "array", "items": MONEY}
SHOP = {
    "type": "record",
    "name": "Shop",
    "fields": [
        {"name": "id", "type": "int", "default": 3},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {
            "name": "more",
            "type": {
                "type": "record",
                "name": "More",
                "fields": [{"name": "money", "type": MORE, "default": ["\u0002"]}],
            },
            "default": {},
        },
    ],
}
TICK = dt.timedelta(milliseconds=1)


class TestAvro:
    def test_columns_follow_from_the_schema(self):
        types = {field.name: (str(field.type), field.nullable) for field in AvroFormat(json.dumps(PAYMENT)).schema}

        assert types["amount"] == ("int64", True)
        assert types["at"] == ("timestamp[ms, tz=UTC]", False)
        assert types["money"] == ("decimal128(10, 2)", False)
        assert types["shop"] == ("struct<id: int32 not null>", True)

    def test_values_come_back_as_they_went(self):
        assert around(AvroFormat(PAYMENT), PAYMENT_ROWS).to_pylist() == PAYMENT_ROWS.to_pylist()

    def test_a_registry_gives_the_schema_of_each_message_once(self, registry):
        old = registry.add("t-value", json.dumps(two_fields()))
        new = registry.add("t-value", json.dumps(two_fields([{"name": "note", "type": "string"}])))
        reader = two_fields([{"name": "kind", "type": "string", "default": "card"}])
        messages = [record(two_fields(), {"user": "ann", "amount": n}, old) for n in range(3)]
        messages += [
            record(two_fields([{"name": "note", "type": "string"}]), {"user": "bob", "amount": 9, "note": "x"}, new)
        ]

        rows, wrong = decoded(AvroFormat(reader, registry=SchemaRegistry(registry.url)), *messages)

        assert wrong == {}
        assert rows == [{"user": "ann", "amount": n, "kind": "card"} for n in range(3)] + [
            {"user": "bob", "amount": 9, "kind": "card"}
        ]
        assert registry.asked == [f"/schemas/ids/{old}", f"/schemas/ids/{new}"]

    @pytest.mark.parametrize(
        ("type", "default", "value"),
        [
            ("bytes", "\u00ff\u0000", b"\xff\x00"),
            (FIXED, "\u00ff\u0001", b"\xff\x01"),
            (MONEY, "\u0001\u0000", decimal.Decimal("2.56")),
            (MONEY | {"precision": 50}, "\u0080" + "\u0000" * 19, decimal.Decimal(f"-{2**159}e-2")),
            (FIXED | {"logicalType": "decimal", "precision": 4}, "\u00ff\u00fe", decimal.Decimal(-2)),
            (["bytes", "null"], "\u00ff", b"\xff"),
            (["null", MONEY], None, None),
            ({"type": "array", "items": "bytes"}, ["\u00ff", ""], [b"\xff", b""]),
            ({"type": "map", "values": MONEY}, {"logicalType": "\u0001"}, [("logicalType", decimal.Decimal("0.01"))]),
            (SHOP, {}, {"id": 3, "raw": b"\xff", "more": {"money": [decimal.Decimal("0.02")]}}),
            (SHOP, {"id": 4, "more": {"money": []}}, {"id": 4, "raw": b"\xff", "more": {"money": []}}),
            ({"type": "int", "logicalType": "date"}, 19724, dt.date(2024, 1, 2)),
            ({"type": "long", "logicalType": "timestamp-millis"}, -1, dt.datetime(1970, 1, 1, tzinfo=dt.UTC) - TICK),
            ({"type": "int", "logicalType": "time-millis"}, 1, dt.time(0, 0, 0, 1000)),
            ("double", 3, 3.0),
            ("float", "-Infinity", -float("inf")),
            ({"type": "enum", "name": "Kind", "symbols": ["CARD", "CASH"]}, "CASH", "CASH"),
        ],
    )
    def test_a_default_is_a_value_of_its_type(self, registry, type, default, value):
        id = registry.add("t-value", json.dumps(two_fields()))
        format = AvroFormat(
            two_fields([{"name": "x", "type": type, "default": default}]), registry=SchemaRegistry(registry.url)
        )
        row = {"user": "ann", "amount": 3}

        rows, wrong = decoded(format, record(two_fields(), row, id))
        assert (rows, wrong) == ([{**row, "x": value}], {})

        # A sink writes it where the rows have no such column.
        alone = AvroFormat(format.avro)
        assert around(alone, pa.Table.from_pylist([row])).to_pylist() == rows

    def test_a_record_that_misses_a_field_gets_its_default(self, registry):
        old = of_field({"type": "record", "name": "Shop", "fields": [{"name": "id", "type": "int"}]})
        id = registry.add("t-value", json.dumps(old))

        rows, wrong = decoded(
            AvroFormat(of_field(SHOP), registry=SchemaRegistry(registry.url)), record(old, {"x": {"id": 7}}, id)
        )

        shop = {"id": 7, "raw": b"\xff", "more": {"money": [decimal.Decimal("0.02")]}}
        assert (rows, wrong) == ([{"x": shop}], {})

    @pytest.mark.parametrize(
        ("type", "default", "told"),
        [
            ("bytes", "\u0100", "can't encode"),
            (FIXED, "a", "'a' has 1 bytes and not 2"),
            (MONEY | {"precision": 2}, "\u0064", "'d' is 100, a decimal of more than 2 digits"),
            ({"type": "array", "items": "int"}, [1, "a"], "'a' is no int"),
            ({"type": "map", "values": "bytes"}, {"a": 3}, "3 is no bytes"),
            ({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}, {}, "{} has no 'id'"),
            (["null", FIXED], "a", "'a' is no null and 'a' has 1 bytes"),
            ("int", 2**31, "2147483648 is no int"),
            ("long", True, "True is no long"),
            ("float", 1e300, "float too large"),
            ({"type": "enum", "name": "Kind", "symbols": ["CARD", "CASH"]}, "GOLD", "'GOLD' is none of CARD, CASH"),
        ],
    )
    def test_a_default_that_is_no_value_of_its_type_is_refused(self, type, default, told):
        with pytest.raises(InvalidInputError, match=f"the default of field 'x' does not fit its type: .*{told}"):
            AvroFormat(two_fields([{"name": "x", "type": type, "default": default}]))

    def test_messages_that_do_not_fit_are_told_apart(self, registry):
        id = registry.add("t-value", json.dumps(two_fields()))
        other = registry.add(
            "t-value", json.dumps({"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]})
        )
        proto = registry.add("t-value", "message X {}", "PROTOBUF")
        good = record(two_fields(), {"user": "ann", "amount": 1}, id)

        rows, wrong = decoded(
            AvroFormat(two_fields(), registry=SchemaRegistry(registry.url)),
            good,
            good[5:],
            good[:-1],
            good + b"x",
            struct.pack(">bI", 0, 99),
            record({"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}, {"x": 1}, other),
            struct.pack(">bI", 0, proto),
            b"",
            None,
            good,
        )

        assert [row["user"] for row in rows] == ["ann", *[None] * 8, "ann"]
        assert list(wrong) == [1, 2, 3, 4, 5, 6, 7]
        assert "no id of a schema" in wrong[1]
        assert wrong[3] == "1 bytes are left after the record"
        assert wrong[4].endswith("has no schema 99")
        assert wrong[6] == f"schema {proto} is PROTOBUF, not Avro"

    def test_a_schema_may_refer_to_others(self, registry):
        registry.add("shop", json.dumps({"type": "record", "name": "Shop", "fields": [{"name": "id", "type": "int"}]}))
        fields = [{"name": "shop", "type": "Shop"}]
        whole = {
            "type": "record",
            "name": "P",
            "fields": [{"name": "shop", "type": json.loads(registry.schemas[0]["schema"])}],
        }
        reference = {"name": "Shop", "subject": "shop", "version": 1}
        id = registry.add(
            "t-value", json.dumps({"type": "record", "name": "P", "fields": fields}), references=(reference,)
        )

        rows, wrong = decoded(
            AvroFormat(whole, registry=SchemaRegistry(registry.url)), record(whole, {"shop": {"id": 7}}, id)
        )

        assert (rows, wrong) == ([{"shop": {"id": 7}}], {})

    @pytest.mark.parametrize("status", [400, 401, 403])
    def test_a_registry_that_refuses_is_no_fault_of_the_messages(self, registry, status):
        id = registry.add("t-value", json.dumps(two_fields()))
        decode = AvroFormat(two_fields(), registry=SchemaRegistry(registry.url)).decoder()
        message = record(two_fields(), {"user": "ann", "amount": 3}, id)
        registry.failures = [status] * 2

        with pytest.raises(InvalidInputError, match=f"refuses /schemas/ids/{id}: {status}"):
            decode([message])

        rows, wrong = decode([message])
        assert (rows.to_pylist(), wrong) == ([{"user": "ann", "amount": 3}], {})

    @pytest.mark.parametrize(
        "schema",
        [
            '"string"',
            '{"type": "array", "items": "string"}',
            '["null", {"type": "record", "name": "P", "fields": [{"name": "user", "type": "string"}]}]',
            '{"type": "enum", "name": "P", "symbols": ["A"]}',
            '{"type": "enum", "name": "P", "symbols": ["not a name"]}',
            '{"type": "record", "name": "P", "fields": [{"name": "user", "type": "nothing"}]}',
            "no JSON",
        ],
    )
    def test_a_message_with_the_id_of_another_kind_of_schema_does_not_fit(self, registry, schema):
        good, other = registry.add("t-value", json.dumps(two_fields())), registry.add("t-key", schema)
        format = AvroFormat(two_fields(), registry=SchemaRegistry(registry.url))
        message = record(two_fields(), {"user": "ann", "amount": 3}, good)

        for messages in ([message[:1] + struct.pack(">I", other) + b"\x00", message], [b"\x00" * 4 + b"\x02\x00"] * 2):
            rows, wrong = decoded(format, *messages)

            assert [row["user"] for row in rows] == [None, "ann" if message in messages else None]
            assert list(wrong) == ([0] if message in messages else [0, 1])

    def test_a_schema_that_refers_to_one_that_is_gone_is_told_with_its_messages(self, registry):
        reference = {"name": "Shop", "subject": "gone", "version": 1}
        id = registry.add("t-value", json.dumps(two_fields()), references=(reference,))
        format = AvroFormat(two_fields(), registry=SchemaRegistry(registry.url))

        _, wrong = decoded(format, record(two_fields(), {"user": "ann", "amount": 3}, id))

        assert "has no version 1 of subject 'gone'" in wrong[0]

    def test_a_sink_finds_its_schema_or_registers_it(self, registry):
        rows = pa.table({"user": ["ann"], "amount": [1]}, schema=AvroFormat(two_fields()).schema)
        access = SchemaRegistry(registry.url)

        with pytest.raises(InvalidInputError, match="no such schema under subject 't-value'; register it"):
            around(AvroFormat(two_fields(), registry=access), rows)
        assert around(AvroFormat(two_fields(), registry=access, register=True), rows).to_pylist() == rows.to_pylist()
        assert around(AvroFormat(two_fields(), registry=access), rows).to_pylist() == rows.to_pylist()
        assert list(registry.subjects) == ["t-value"]

    def test_a_row_that_does_not_fit_is_told(self):
        rows = pa.table({"user": ["ann"], "amount": pa.array([None], pa.int64())})

        with pytest.raises(InvalidInputError, match="a row does not fit the Avro schema of t-value"):
            around(AvroFormat(two_fields()), rows)

    @pytest.mark.parametrize("unit", ["millis", "micros", "nanos"])
    @pytest.mark.parametrize("wrap", ["plain", "optional", "array", "map", "record"])
    def test_times_of_each_unit_come_back_as_they_went(self, unit, wrap, in_new_york):
        time = {"type": "long", "logicalType": f"timestamp-{unit}"}
        wrapped = {
            "plain": time,
            "optional": ["null", time],
            "array": {"type": "array", "items": time},
            "map": {"type": "map", "values": time},
            "record": {"type": "record", "name": "R", "fields": [{"name": "at", "type": time}]},
        }[wrap]
        format = AvroFormat(of_field(wrapped))
        seconds = -1_704_067_200_123_456_789 // 1000 ** {"millis": 2, "micros": 1, "nanos": 0}[unit]
        value = {"array": [seconds], "map": [("a", seconds)], "record": {"at": seconds}}.get(wrap, seconds)
        rows = pa.table([pa.array([value], format.schema.field("x").type)], schema=format.schema)

        assert pa.table(around(format, rows)).cast(format.schema).equals(rows)

    @pytest.mark.parametrize(
        ("unit", "avro", "type", "width"),
        [
            ("ns", "timestamp-micros", "long", 10**3),
            ("ns", "timestamp-millis", "long", 10**6),
            ("us", "timestamp-millis", "long", 10**3),
            ("ns", "date", "int", 86_400 * 10**9),
        ],
    )
    def test_the_lowest_times_are_rounded_down_as_others(self, unit, avro, type, width):
        counts = [-(2**63) + 1, -1, None, width + 1]
        rows = pa.table({"x": pa.array(counts, pa.int64()).cast(pa.timestamp(unit))})

        back = around(AvroFormat(of_field(["null", {"type": type, "logicalType": avro}])), rows)

        whole = back["x"].cast(pa.int32() if avro == "date" else pa.int64())
        assert whole.to_pylist() == [None if count is None else count // width for count in counts]

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_a_time_without_a_zone_is_one_of_utc_wherever_the_job_runs(self, unit, in_new_york):
        at = pa.array([-5, 1_704_067_200], pa.timestamp("s")).cast(pa.timestamp(unit))
        format = AvroFormat(of_field({"type": "long", "logicalType": "timestamp-millis"}))

        back = around(format, pa.table({"x": at}))

        assert back["x"].cast(pa.int64()).to_pylist() == [-5_000, 1_704_067_200_000]

    def test_a_local_time_is_that_of_the_zone(self):
        at = pa.array([0], pa.timestamp("us", "Europe/Berlin"))
        format = AvroFormat(of_field({"type": "long", "logicalType": "local-timestamp-micros"}))

        assert around(format, pa.table({"x": at}))["x"].to_pylist() == [dt.datetime(1970, 1, 1, 1)]

    @pytest.mark.parametrize(
        ("avro", "column"),
        [
            ("int", pa.array([1 << 40])),
            ("long", pa.array([1 << 63], pa.uint64())),
            ("long", pa.array([1.5])),
            ("float", pa.array([1e300])),
            ("boolean", pa.array(["false"])),
            ({"type": "array", "items": "int"}, pa.array([[1 << 40]])),
            ({"type": "map", "values": "int"}, pa.array([[("a", 1 << 40)]], pa.map_(pa.string(), pa.int64()))),
        ],
    )
    def test_a_value_that_no_reader_could_read_as_it_was_is_refused(self, avro, column):
        with pytest.raises(InvalidInputError, match="column 'x' of the rows has"):
            around(AvroFormat(of_field(avro)), pa.table({"x": column}))

    def test_names_are_those_of_their_namespace(self):
        def part(namespace, name, kind):
            fields = [{"name": name, "type": kind}]
            return {"type": "record", "name": "Part", "namespace": namespace, "fields": fields}

        fields = [
            {"name": "a", "type": part("com.shop", "n", "long")},
            {"name": "b", "type": part("com.other", "text", "string")},
            {"name": "own", "type": "Part"},
            {"name": "other", "type": "com.other.Part"},
        ]
        format = AvroFormat({"type": "record", "name": "P", "namespace": "com.shop", "fields": fields})

        assert format.schema.field("own").type == format.schema.field("a").type
        assert format.schema.field("other").type == format.schema.field("b").type

    def test_decimals_may_have_more_digits_than_38(self):
        format = AvroFormat(of_field({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}))
        rows = pa.table([pa.array([decimal.Decimal("9" * 48 + ".99")])], schema=format.schema)

        assert pa.table(around(format, rows)).cast(format.schema).equals(rows)

    @pytest.mark.parametrize("is_nested", [False, True])
    def test_a_time_that_was_renamed_has_its_unit_compared(self, registry, is_nested):
        millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))

        def schema(type, **field):
            inner = {"type": "record", "name": "P", "fields": [{"type": type, **field}]}
            return {**of_field({**inner, "name": "Q"}), "name": "R"} if is_nested else inner

        id = registry.add("t-value", json.dumps(schema(millis, name="at")))
        format = AvroFormat(schema(micros, name="seen", aliases=["at"]), registry=SchemaRegistry(registry.url))

        value = {"x": {"at": 5}} if is_nested else {"at": 5}
        _, wrong = decoded(format, record(schema("long", name="at"), value, id))

        place = "x.at" if is_nested else "at"
        assert wrong[0].startswith(f"field {place!r} is timestamp-millis in schema {id}, and timestamp-micros")

    def test_times_of_another_unit_are_not_taken_for_others(self, registry):
        millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
        id = registry.add("t-value", json.dumps(of_field(["null", millis])))
        format = AvroFormat(of_field(["null", micros]), registry=SchemaRegistry(registry.url))

        rows, wrong = decoded(format, record(of_field(["null", "long"]), {"x": 5}, id))

        assert rows == [{"x": None}]
        assert wrong == {
            0: f"field 'x' is timestamp-millis in schema {id}, and timestamp-micros in the schema that it is read with"
        }

    @pytest.mark.parametrize(
        ("schema", "told"),
        [
            ("{", "no schema of Avro: JSONDecodeError"),
            ({"type": "record"}, "no schema of Avro"),
            ({"type": "string"}, "a schema of a record"),
            (two_fields([{"name": "x", "type": ["int", "string"]}]), "field 'x' is a union of 2 types"),
            (two_fields([{"name": "x", "type": ["null", "P"]}]), "record 'P' is part of itself"),
        ],
    )
    def test_schemas_that_are_no_columns_are_refused(self, schema, told):
        with pytest.raises(InvalidInputError, match=told):
            AvroFormat(schema)


def message_class():
    """A message with a field of every kind, as protoc would make it."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="CARD", number=0)
    kind.value.add(name="CASH", number=1)
    file.message_type.add(name="Other")
    message = file.message_type.add(name="Payment")
    place = message.nested_type.add(name="Shop")
    place.field.add(name="id", number=1, type=5, label=1)
    entry = message.nested_type.add(name="MoreEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    for number, (name, type, label, of) in enumerate(
        [
            ("user", 9, 1, None),
            ("amount", 3, 1, None),
            ("ratio", 1, 1, None),
            ("raw", 12, 1, None),
            ("kind", 14, 1, ".shop.Kind"),
            ("tags", 9, 3, None),
            ("at", 11, 1, ".google.protobuf.Timestamp"),
            ("shop", 11, 1, ".shop.Payment.Shop"),
            ("shops", 11, 3, ".shop.Payment.Shop"),
            ("more", 11, 3, ".shop.Payment.MoreEntry"),
        ],
        start=1,
    ):
        message.field.add(name=name, number=number, type=type, label=label, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(Timestamp.DESCRIPTOR.file.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))


PROTO_ROWS = pa.Table.from_pylist(
    [
        {
            "user": "ann",
            "amount": -3,
            "ratio": 0.5,
            "raw": b"\xff",
            "kind": "CASH",
            "tags": ["x", "y"],
            "at": dt.datetime(2024, 1, 2, 3, 4, 5, 678_901, dt.UTC),
            "shop": {"id": 7},
            "shops": [{"id": 1}, {"id": 0}],
            "more": [("a", 1)],
        },
        {"user": "", "amount": 0, "ratio": 0.0, "raw": b"", "kind": "CARD", "tags": [], "shops": [], "more": []},
    ],
    schema=ProtobufFormat(message_class()).schema,
)


def nested_class():
    """A message with what is more than a plain value in other messages, lists and maps."""
    file = descriptor_pb2.FileDescriptorProto(name="nested.proto", package="shop", syntax="proto3")
    known = [Timestamp.DESCRIPTOR, Duration.DESCRIPTOR, StringValue.DESCRIPTOR]
    file.dependency.extend(descriptor.file.name for descriptor in known)
    part = file.message_type.add(name="Part")
    part.field.add(name="seal", number=1, type=12, label=1)
    part.field.add(name="opened_at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    message = file.message_type.add(name="Nested")
    for name, key, value, of in (("seals", 8, 12, None), ("times", 9, 11, ".google.protobuf.Timestamp")):
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=key, label=1)
        entry.field.add(name="value", number=2, type=value, label=1, type_name=of)
    for number, (name, label, of) in enumerate(
        [
            ("part", 1, ".shop.Part"),
            ("parts", 3, ".shop.Part"),
            ("at", 3, ".google.protobuf.Timestamp"),
            ("took", 1, ".google.protobuf.Duration"),
            ("note", 1, ".google.protobuf.StringValue"),
            ("seals", 3, ".shop.Nested.SealsEntry"),
            ("times", 3, ".shop.Nested.TimesEntry"),
        ],
        start=1,
    ):
        message.field.add(name=name, number=number, type=11, label=label, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    for descriptor in known:
        pool.AddSerializedFile(descriptor.file.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Nested"))


class TestProtobuf:
    def test_nested_messages_lists_and_maps_come_back_as_they_went(self):
        format = ProtobufFormat(nested_class())
        part = {"seal": b"abcd", "opened_at": 1_704_067_200_123_456_789}
        rows = pa.Table.from_pylist(
            [
                {
                    "part": part,
                    "parts": [part, {"seal": b"", "opened_at": None}],
                    "at": [-1],
                    "took": {"seconds": -1, "nanos": -500_000_000},
                    "note": {"value": "x"},
                    "seals": [(True, b"\x00\xff")],
                    "times": [("a", 7)],
                },
                {"part": None, "parts": [], "at": [], "took": None, "note": None, "seals": [], "times": []},
            ],
            schema=format.schema,
        )

        assert pa.table(around(format, rows)).cast(format.schema).equals(rows)

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_a_time_without_a_zone_is_one_of_utc_wherever_the_job_runs(self, unit, in_new_york):
        at = pa.array([-5, 1_704_067_200], pa.timestamp("s")).cast(pa.timestamp(unit))

        back = around(ProtobufFormat(message_class()), pa.table({"at": at}))

        assert back["at"].cast(pa.timestamp("s", "UTC")).cast(pa.int64()).to_pylist() == [-5, 1_704_067_200]

    @pytest.mark.parametrize("names", [["card", "iban"], ["iban", "card"]])
    def test_a_row_with_two_fields_of_a_oneof_is_told(self, names):
        file = descriptor_pb2.FileDescriptorProto(name="pay.proto", package="pay", syntax="proto3")
        pay = file.message_type.add(name="Pay")
        pay.oneof_decl.add(name="how")
        for number, name in enumerate(("card", "iban"), start=1):
            pay.field.add(name=name, number=number, type=9, label=1, oneof_index=0)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        format = ProtobufFormat(message_factory.GetMessageClass(pool.FindMessageTypeByName("pay.Pay")))
        rows = pa.table({"card": ["4111", None], "iban": [None, "DE12"]})

        assert around(format, rows.select(names)).to_pylist() == rows.to_pylist()
        with pytest.raises(InvalidInputError, match=r"one of the fields of oneof 'how', and there are values for"):
            around(format, pa.table({"card": ["4111"], "iban": ["DE12"]}).select(names))

    def test_a_number_that_is_too_large_for_a_float_is_told(self):
        file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="f", syntax="proto3")
        file.message_type.add(name="F").field.add(name="x", number=1, type=2, label=1)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        format = ProtobufFormat(message_factory.GetMessageClass(pool.FindMessageTypeByName("f.F")))

        with pytest.raises(InvalidInputError, match=r"1e\+300 is outside of the range of the float 'x'"):
            around(format, pa.table({"x": [1e300]}))

        assert around(format, pa.table({"x": [0.5, float("inf")]}))["x"].to_pylist() == [0.5, float("inf")]

    def test_a_null_in_a_list_of_messages_is_told(self):
        rows = pa.table({"shops": pa.array([[{"id": 1}, None]])})

        with pytest.raises(InvalidInputError, match=r"a null is no element, and shop.Payment.Shop is asked for"):
            around(ProtobufFormat(message_class()), rows)

    def test_values_come_back_as_they_went(self):
        assert around(ProtobufFormat(message_class()), PROTO_ROWS).to_pylist() == PROTO_ROWS.to_pylist()

    def test_fields_without_presence_have_defaults_and_others_are_null(self):
        (row,), wrong = decoded(ProtobufFormat(message_class()), b"")

        assert wrong == {}
        assert (row["user"], row["amount"], row["kind"], row["tags"]) == ("", 0, "CARD", [])
        assert (row["at"], row["shop"]) == (None, None)

    def test_a_message_has_the_id_of_its_schema_and_its_place_in_the_file(self, registry):
        id = registry.add("t-value", "message Payment {}", "PROTOBUF")
        format = ProtobufFormat(message_class(), registry=SchemaRegistry(registry.url))

        (first, *_) = format.encoder(PROTO_ROWS.schema, "t-value")(PROTO_ROWS.to_batches()[0])

        # The second message of its file: one number, which is 1, both as zigzag.
        assert first[:7] == struct.pack(">bI", 0, id) + b"\x02\x02"
        assert around(format, PROTO_ROWS).to_pylist() == PROTO_ROWS.to_pylist()

    def test_messages_that_do_not_fit_are_told_apart(self, registry):
        format = ProtobufFormat(message_class(), registry=SchemaRegistry(registry.url))

        rows, wrong = decoded(
            format, b"\x00\x00\x00\x00\x01\x00\x0a\x01a", b"\x0a\x01a", b"\x00\x00\x00\x00\x01\x00\x0a\x09a", None
        )

        assert [row["user"] for row in rows] == ["a", None, None, None]
        assert list(wrong) == [1, 2]
        assert "no id of a schema" in wrong[1]
        assert wrong[2].startswith("DecodeError")

    def test_a_row_that_does_not_fit_is_told(self):
        rows = pa.table({"kind": ["GOLD"]})

        with pytest.raises(InvalidInputError, match=r"a row does not fit the message shop.Payment"):
            around(ProtobufFormat(message_class()), rows)

    def test_a_required_field_needs_a_column_and_a_value(self):
        file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
        message = file.message_type.add(name="Payment")
        message.field.add(name="user", number=1, type=9, label=2)
        message.field.add(name="amount", number=2, type=3, label=1)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        format = ProtobufFormat(message_factory.GetMessageClass(pool.FindMessageTypeByName("old.Payment")))

        with pytest.raises(InvalidInputError, match="old.Payment requires the field 'user', .* the rows have amount"):
            format.encoder(pa.schema({"amount": pa.int64()}), "t-value")
        with pytest.raises(InvalidInputError, match="a row does not fit the message old.Payment: .*user"):
            around(format, pa.table({"user": ["ann", None]}))

        assert around(format, pa.table({"user": ["ann"]}))["user"].to_pylist() == ["ann"]

    def test_what_is_no_class_of_messages_is_refused(self):
        with pytest.raises(InvalidInputError, match="a class of messages that protoc made, got <class 'int'>"):
            ProtobufFormat(int)


def whole_answer(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


ODD_ANSWERS = [
    b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"schema":',
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n{",
    b"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n{",
    b"",
    b"garbage\r\n\r\n",
    *map(
        whole_answer,
        [
            b"",
            b"<html>",
            b"null",
            b"[]",
            b'"schema"',
            b"{}",
            b'{"id": 1, "schema": null}',
            b'{"id": 1, "schema": "{}", "schemaType": 3}',
            b'{"id": 1, "schema": "{}", "references": 3}',
            b'{"id": 1, "schema": "{}", "references": [3]}',
            b'{"id": 1, "schema": "{}", "references": [{"name": "Shop", "subject": "shop"}]}',
        ],
    ),
]
"""What is cut, no HTTP, or no answer of a registry."""


class TestRegistry:
    def test_it_is_asked_again_if_it_fails_for_a_while(self, registry):
        id = registry.add("t-value", "{}")
        registry.failures = [503, 500]

        assert SchemaRegistry(registry.url).schema(id).text == "{}"

    def test_one_that_stays_away_is_told_without_secrets(self, registry):
        registry.failures = [503] * 3

        with pytest.raises(UnavailableError, match="the schema registry at http://127.0.0.1:.*503") as caught:
            SchemaRegistry(registry.url, user="ann", password="pa55").latest("x")

        assert "pa55" not in str(caught.value)

    @pytest.mark.parametrize("raw", ODD_ANSWERS)
    def test_an_answer_that_is_cut_or_of_something_else_is_asked_for_again(self, registry, raw):
        id = registry.add("t-value", "{}")
        registry.raw = [raw] * 2

        assert SchemaRegistry(registry.url).schema(id).text == "{}"

    @pytest.mark.parametrize("raw", ODD_ANSWERS)
    def test_one_that_answers_something_else_is_not_available_and_no_fault_of_the_messages(self, registry, raw):
        id = registry.add("t-value", json.dumps(two_fields()))
        decode = AvroFormat(two_fields(), registry=SchemaRegistry(registry.url)).decoder()
        message = record(two_fields(), {"user": "ann", "amount": 3}, id)
        registry.raw = [raw] * 9

        # Alone it is left to the kernel, with one of another schema to the decoder of single records.
        with pytest.raises(UnavailableError, match=f"while asking for /schemas/ids/{id}"):
            decode([message])
        with pytest.raises(UnavailableError, match=f"while asking for /schemas/ids/{id}"):
            decode([message, b""])
        with pytest.raises(UnavailableError, match="while asking for /subjects/t-value/versions/latest"):
            SchemaRegistry(registry.url).latest("t-value")

        rows, wrong = decode([message])
        assert (rows.to_pylist(), wrong) == ([{"user": "ann", "amount": 3}], {})

    def test_an_answer_without_what_was_asked_for_is_told(self, registry):
        registry.raw = [whole_answer(b'{"subject": "x", "id": "1"}')] * 3

        with pytest.raises(UnavailableError, match='its answer has no \'id\' that is int: {"subject": "x", "id": "1"}'):
            SchemaRegistry(registry.url).id_of("x", "{}", "AVRO", register=True)

    def test_rights_are_told_and_not_tried_again(self, registry):
        registry.failures = [403]

        with pytest.raises(InvalidInputError, match="refuses /subjects/x/versions/latest: 403"):
            SchemaRegistry(registry.url).latest("x")

        assert len(registry.asked) == 1

    def test_it_is_asked_as_the_user_or_with_the_token(self, registry):
        registry.add("x", "{}")

        SchemaRegistry(registry.url, user="ann", password="pa55").latest("x")
        SchemaRegistry(registry.url, token="t0ken").latest("x")

        assert registry.authorization == ["Basic YW5uOnBhNTU=", "Bearer t0ken"]

    def test_a_subject_that_is_not_there_is_named(self, registry):
        with pytest.raises(InvalidInputError, match="has no subject 'x'; register its schema first"):
            SchemaRegistry(registry.url).latest("x")

    @pytest.mark.parametrize("url", ["registry:8081", "ftp://x", "https://ann:pa55@x"])
    def test_a_url_that_is_none_or_has_a_password_is_refused_without_it(self, url):
        with pytest.raises(InvalidInputError) as caught:
            SchemaRegistry(url)

        assert "pa55" not in str(caught.value)


FLAT = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": ["int", "null"]},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": ["null", "double"]},
        {"name": "s", "type": ["null", "string"]},
        {"name": "y", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}
FLAT_ROW = st.fixed_dictionaries(
    {
        "b": st.booleans(),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(),
        "y": st.binary(),
        "day": st.dates(),
        "at": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
    }
)


def comparable(rows):
    """Rows whose floats are their bits: NaN, which damage may make, is not equal to itself."""
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}

    def plain(column):
        if column.type not in bits:
            return column
        nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
        return nan.view(bits[column.type])

    return pa.RecordBatch.from_arrays([plain(column) for column in rows.columns], names=rows.schema.names)


class TestFlatRecords:
    """Records of plain fields are decoded at once, as the decoder of single records does."""

    @staticmethod
    def by_record(messages):
        decoder = AvroFormat(FLAT).decoder()
        decoder._plan = None
        return decoder(messages)

    @settings(max_examples=short_or_long(20, 1000))
    @cases(st.lists(st.none() | FLAT_ROW, min_size=1, max_size=8))
    def test_values_are_those_that_were_written(self, rows):
        messages = [None if row is None else record(FLAT, row) for row in rows]
        decoder = AvroFormat(FLAT).decoder()

        found = decoder._flat(messages)

        assert (found is None) == (rows == [None] * len(rows))
        if found is not None:
            assert found.to_pylist() == [row or dict.fromkeys(found.schema.names) for row in rows]
            assert found.equals(self.by_record(messages)[0])

    @settings(max_examples=short_or_long(30, 2000))
    @cases(
        st.lists(st.tuples(FLAT_ROW, st.integers(0, 60), st.integers(0, 255), st.booleans()), min_size=1, max_size=4)
    )
    def test_damaged_messages_give_what_single_records_give(self, damaged):
        messages = []
        for row, place, byte, cut in damaged:
            message = bytearray(record(FLAT, row))
            place %= len(message)
            messages.append(bytes(message[:place]) if cut else bytes([*message[:place], byte, *message[place + 1 :]]))
        decoder = AvroFormat(FLAT).decoder()

        rows, wrong = decoder(messages)

        expected, expected_wrong = self.by_record(messages)
        if decoder._flat(messages) is not None:
            # What the kernel takes is whole.
            assert wrong == {}
        assert wrong.keys() == expected_wrong.keys()
        assert comparable(rows).equals(comparable(expected))

    def test_one_that_is_too_short_or_too_long_is_left_to_the_other_decoder(self):
        row = {
            "b": True,
            "i": 1,
            "l": 2,
            "f": 0.5,
            "d": 1.5,
            "s": "ab",
            "y": b"c",
            "day": dt.date(2024, 1, 2),
            "at": None,
        }
        message = record(FLAT, row)
        decoder = AvroFormat(FLAT).decoder()

        assert decoder._flat([message]) is not None
        for damaged in (message + b"\x00", *(message[:size] for size in range(len(message)))):
            assert decoder._flat([message, damaged, message]) is None

    def test_a_registry_with_one_schema_for_all_is_read_at_once(self, registry):
        id = registry.add("t-value", json.dumps(two_fields([{"name": "more", "type": "double"}])))
        written = two_fields([{"name": "more", "type": "double"}])
        messages = [record(written, {"user": f"u{n}", "amount": n, "more": 0.5}, id) for n in range(5)]
        decoder = AvroFormat(two_fields(), registry=SchemaRegistry(registry.url)).decoder()

        assert decoder._flat(messages).to_pylist() == [{"user": f"u{n}", "amount": n} for n in range(5)]

    @pytest.mark.parametrize(
        "field",
        [
            {"name": "amount", "type": "int"},
            {"name": "amount", "type": ["null", "long"]},
            {"name": "other", "type": "long"},
            {"name": "amount", "type": {"type": "array", "items": "long"}},
        ],
    )
    def test_records_of_a_schema_that_must_be_resolved_are_read_one_by_one(self, registry, field):
        written = {"type": "record", "name": "P", "fields": [{"name": "user", "type": "string"}, field]}
        id = registry.add("t-value", json.dumps(written))
        value = [1] if "array" in str(field["type"]) else 1
        decoder = AvroFormat(two_fields(), registry=SchemaRegistry(registry.url)).decoder()

        assert decoder._flat([record(written, {"user": "a", field["name"]: value}, id)]) is None


def test_a_record_of_which_the_rows_have_no_field_is_refused():
    defaults = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": 3}]}

    with pytest.raises(InvalidInputError, match="AvroFormat has nothing to write: none of b, c is a field of it"):
        AvroFormat(defaults).encoder(pa.schema({"b": pa.int64(), "c": pa.string()}), "t-value")
