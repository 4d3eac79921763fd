"""Every type that a state can have, at every place, in SQL: exactly the values of the state."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from early_versions import is_before
from every_type import KINDS, places, to_arrow
from processes import python
from stores import commit


def in_utc(value):
    """A value with lists for arrays, and times in UTC."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    if isinstance(value, dict):
        return {in_utc(key): in_utc(item) for key, item in value.items()}
    return [in_utc(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(("kind", "stored", "shown"), KINDS, ids=lambda value: str(value)[:30])
def test_a_value_of_any_type_at_any_place_is_the_same_in_sql(new_store, kind, stored, shown):
    inside = places(kind, stored)
    columns = [
        pa.array([to_arrow(value), None, to_arrow(value)], type=at_place, from_pandas=False)
        for at_place, value in inside.values()
    ]
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    values = pa.StructArray.from_arrays(columns, names=list(inside))
    backend.state(arrowstate.ValueStateDescriptor("v", values.type)).update_batch([0, 1, 2], values)
    snapshot = new_store().writer().checkpoint({"op": [backend]})

    names = ", ".join(f'"{name}"' for name in inside)
    rows = snapshot.sql(f"select {names} from op.v order by k").fetchall()

    expected = [value for _, value in places(kind, shown).values()]
    if kind == pa.time64("ns"):
        expected[-1] = {"01:02:03.000004000": 1}
    assert [in_utc(row) for row in rows] == [in_utc(row) for row in (expected, [None] * len(expected), expected)]


def test_a_filter_on_a_column_in_another_form_finds_what_sql_shows(new_store):
    key = pa.schema([("half", pa.float16()), ("wide", pa.decimal256(50, 2))])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    half = pa.array([n / 2 for n in range(-20, 20)], pa.float16())
    wide = pa.array([Decimal(n) / 4 for n in range(40)], pa.decimal256(50, 2))
    value = pa.struct([("narrow", pa.decimal256(20, 2)), ("span", pa.duration("ns"))])
    values = pa.array([{"narrow": Decimal(n), "span": np.timedelta64(n, "ns")} for n in range(40)], value)
    keys = pa.RecordBatch.from_arrays([half, wide], schema=key)
    backend.state(arrowstate.ValueStateDescriptor("v", value)).update_batch(keys, values)
    snapshot = new_store().writer().checkpoint({"op": [backend]})

    def ask(condition):
        return snapshot.sql(f"select narrow::int from op.v where {condition} order by 1").fetchall()

    assert ask("half > 9") == [(39,)]
    assert ask("half in (1.5, 1.25)") == [(23,)]
    assert ask("wide = '0.25'") == [(1,)]
    assert ask("wide = '.25'") == []
    assert ask("wide::double >= 9.75") == [(39,)]
    assert ask("narrow between 3 and 4") == [(3,), (4,)]
    assert ask("span = 7") == [(7,)]
    assert ask("half = -10 and wide = '0.00'") == [(0,)]
    assert snapshot.scans[-1].keys == 1


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_a_filter_on_digits_does_not_go_by_the_bounds_of_the_numbers(new_store, format):
    kind = pa.decimal256(50, 2)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    # As numbers all are from 9 to 10, as text none is.
    numbers = pa.array([Decimal(number) for number in ("9.00", "9.50", "10.00")], kind)
    backend.state(arrowstate.ValueStateDescriptor("v", kind)).update_batch([1, 2, 3], numbers)
    snapshot = new_store().writer().checkpoint({"op": [backend]}, format=format)

    assert snapshot.sql("select k from op.v where v = '9.50'").fetchall() == [(2,)]
    assert snapshot.sql("select k from op.v where v < '9'").fetchall() == [(3,)]


def test_one_type_that_duckdb_has_not_leaves_all_other_tables_alone(new_store):
    keyed = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.decimal256(60, 2))]), max_parallelism=128)
    keyed.state(arrowstate.ValueStateDescriptor("n", pa.int64())).update_batch([Decimal("1.50")], [1])
    lists = arrowstate.OperatorStateBackend()
    element = pa.struct([("h", pa.float16()), ("in", pa.struct([("x", pa.decimal256(70, 1)), ("X", pa.int8())]))])
    lists.state(arrowstate.OperatorListStateDescriptor("l", element)).add_all(
        [{"h": 0.5, "in": {"x": Decimal("2.5"), "X": 9}}, {"h": None, "in": None}]
    )
    snapshot = commit(new_store(), {"op": [keyed]}, operator_states={"op": [lists]})

    assert snapshot.sql("select k, n from op.n where k = '1.50'").fetchall() == [("1.50", 1)]
    assert snapshot.sql("select count(*) from arrowstate.checkpoints").fetchall() == [(1,)]
    assert snapshot.sql('select h, "in"."x~1", "in"."X~2" from op.l').fetchall() == [(0.5, "2.5", 9), (None,) * 3]


@pytest.mark.skipif(is_before("duckdb", (2,)), reason="DuckDB 1.4 has no nanoseconds of a time with a zone")
def test_the_command_prints_times_with_a_zone_and_nanoseconds_without_pandas(tmp_path):
    kind = pa.struct([("moment", pa.timestamp("us", "UTC")), ("parts", pa.list_(pa.timestamp("ns", "UTC")))])
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    values = pa.StructArray.from_arrays(
        [pa.array([5], kind[0].type), pa.ListArray.from_arrays([0, 1], pa.array([1_001], pa.timestamp("ns", "UTC")))],
        fields=list(kind),
    )
    backend.state(arrowstate.ValueStateDescriptor("seen", kind)).update_batch([1], values)
    store = arrowstate.open_store(tmp_path / "store", create=True)
    store.writer().checkpoint({"op": [backend]})
    script = """
import sys
class NoPandas:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
from arrowstate.cli import main
sys.exit(main(sys.argv[1:]))
"""
    query = ["sql", str(tmp_path / "store"), "select moment, parts from op.seen", "--json"]

    done = python("-c", script, *query, timeout=120)

    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout) == [
        {"moment": "1970-01-01T00:00:00.000005+00:00", "parts": ["1970-01-01 00:00:00.000001001+0000"]}
    ]
