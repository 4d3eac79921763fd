"""What a statement sets becomes the type of its column by one rule, whether a verb, a table or a script says it."""

import datetime
import itertools
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.editing.forms import assigned, from_sql
from arrowstate.errors import ArrowStateError, ValueTypeError
from arrowstate.query.duckdb.sql_types import SqlForm
from stores import commit

_names = itertools.count()
MONEY = pa.decimal128(18, 2)
DAY = datetime.datetime(2024, 2, 29, 12, 30, 15)
TYPES = {
    "i8": (pa.int8(), 7),
    "u16": (pa.uint16(), 7),
    "i32": (pa.int32(), 7),
    "i64": (pa.int64(), 7),
    "f16": (pa.float16(), 1.5),
    "f32": (pa.float32(), 1.5),
    "f64": (pa.float64(), 1.5),
    "money": (MONEY, Decimal("10.55")),
    "tight": (pa.decimal128(4, 3), Decimal("1.250")),
    "wide": (pa.decimal256(30, 4), Decimal("10.5500")),
    "text": (pa.string(), "abc"),
    "large": (pa.large_string(), "abc"),
    "data": (pa.binary(), b"abc"),
    "flag": (pa.bool_(), True),
    "date": (pa.date32(), DAY.date()),
    "s": (pa.timestamp("s"), DAY),
    "ms": (pa.timestamp("ms"), DAY),
    "us": (pa.timestamp("us", "UTC"), DAY),
    "list": (pa.list_(pa.int32()), [1, 2]),
    "pair": (pa.struct([("a", pa.int32()), ("b", MONEY)]), {"a": 1, "b": Decimal("1.25")}),
}
EXPRESSIONS = [
    *("1.5", "2.5", "-1.5", "2.5::double", "3.5::double", "2.0", "0.994999::double", "1.005", "10.555 * 0.9", "1e0"),
    *("300", "70000", "-1", "1e10::double", "1e300::double", "12345678901234567890", "99999999999999999999.5"),
    *("'nan'::double", "'inf'::float", "9.9999", "9.9994", "123456789012345678", "2::utinyint", "0.1::float"),
    *("'12'", "'12.345'", "' 3 '", "'1e2'", "'x'", "''", "'true'", "'yes'", "'2024-02-29'", "'2024-02-30'", "'é'"),
    *(
        "true",
        "false",
        "date '2024-03-01'",
        "timestamp '2024-03-01 10:11:12.7'",
        "timestamptz '2024-03-01 10:00:00.1+00'",
    ),
    *("timestamp_s '2024-03-01 10:11:12'", "time '10:11:12'", "interval 1 day", "'abc'::blob", "uuid()::uuid is null"),
    *(
        "[1.5, 2.4]",
        "[300, 70000]",
        "['1', 'x']",
        "[]",
        "{'a': 1.5, 'b': 1.255}",
        "{'b': '1.255', 'a': '7'}",
        "{'a': 1}",
    ),
    *("[null, 1]", "'[1, 2]'", "map {'a': 1}", "k", "k * 1.5", "k / 2", "1::hugeint", "1::uhugeint"),
]


@pytest.fixture(scope="module")
def store():
    store = arrowstate.open_store(f"memory://conversions-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    for name, (kind, value) in TYPES.items():
        backend.state(arrowstate.ValueStateDescriptor(name, kind)).update_batch([3], pa.array([value], kind))
    commit(store, {"op": [backend]})
    return store


def tried(store, name, work):
    """Return the value after some work, or nothing where it is refused."""
    with store.edit() as edit:
        try:
            work(edit)
        except ArrowStateError:
            return "refused"
        return edit.snapshot.to_arrow(f"op.{name}").to_pylist()


@pytest.mark.parametrize("name", TYPES)
def test_what_a_verb_is_given_becomes_what_an_update_of_duckdb_makes_of_it(name):
    kind = TYPES[name][0]
    shown = SqlForm(pa.schema([pa.field("x", kind)])).schema
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("shown", shown.empty_table())
    connection.execute("create table t as from shown")
    differ, refused = [], 0
    for expression in EXPRESSIONS:
        query = f"select {expression} as x from (select 3 as k)"
        table = connection.sql(query).to_arrow_table()
        connection.execute("truncate t")
        try:
            connection.execute(f"insert into t {query}")
            stored = connection.sql("from t").to_arrow_table().column(0).combine_chunks()
            script = from_sql(stored, kind).to_pylist()
        except (duckdb.Error, pa.ArrowException):
            script = "refused"
        try:
            verb = assigned(table.column(0).combine_chunks(), kind, "op.x").to_pylist()
        except ValueTypeError:
            verb = "refused"
        refused += verb == "refused"
        if repr(verb) != repr(script):
            differ.append((expression, verb, script))

    assert differ == []
    assert (refused == 0) == (name in ("text", "large"))
    assert refused < len(EXPRESSIONS)


@pytest.mark.parametrize(
    ("name", "expression", "value"),
    [
        ("money", "money * 0.9", Decimal("9.50")),
        ("money", "money * 1.1::double", Decimal("11.61")),
        ("money", "'12.345'", Decimal("12.35")),
        ("money", "k", Decimal("3.00")),
        ("money", "1e16", "refused"),
        ("tight", "9.9994", Decimal("9.999")),
        ("tight", "9.9996", "refused"),
        ("wide", "wide * 0.9", Decimal("9.4950")),
        ("i64", "i64 * 1.5", 11),
        ("i64", "'1x'", "refused"),
        ("i8", "i8 * 100", "refused"),
        ("f32", "1e300", "refused"),
        ("ms", "ms + interval 1 microsecond", DAY),
        ("date", "timestamp '2024-03-01 23:59:59'", datetime.date(2024, 3, 1)),
    ],
)
def test_what_becomes_of_a_value(store, name, expression, value):
    said = value if value == "refused" else [{"k": 3, name: value}]

    assert tried(store, name, lambda edit: edit.update(f"op.{name}", set={name: expression})) == said
    assert tried(store, name, lambda edit: edit.execute(f"update op.{name} set {name} = {expression}")) == said


def test_fields_of_a_struct_are_under_the_same_rule(store):
    for values in ("a = 1.5, b = 1.255", "a = '7', b = 1", "a = 2.4, b = '1.2x'", "a = 1e10, b = 1"):
        given = dict(part.split(" = ") for part in values.split(", "))
        verb = tried(store, "pair", lambda edit, given=given: edit.update("op.pair", set=given))
        script = tried(store, "pair", lambda edit, text=values: edit.execute(f"update op.pair set {text}"))

        assert verb == script


def test_halves_of_a_struct_change_beside_nulls(tmp_path):
    value = pa.struct([("h", pa.float16()), ("n", pa.int64())])
    halves = pa.array(np.array([1.5, 0], np.float16), mask=np.array([False, True]))
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", value)).update_batch(
        ["a", "b"], pa.StructArray.from_arrays([halves, pa.array([1, 2])], fields=list(value))
    )
    store = arrowstate.open_store(tmp_path / "store", create=True)
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})

    with store.edit() as edit:
        edit.update("op.v", set={"h": "h + 1"})
        edit.commit()

    assert store.sql("select k, h from op.v order by k").fetchall() == [("a", 2.5), ("b", None)]
