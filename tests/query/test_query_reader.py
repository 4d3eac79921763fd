import math

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.open_files import forget_open_files
from arrowstate.query.kept_reads import forget_checkpoints


def test_to_arrow_returns_each_live_row_once(large):
    table = large.snapshot.to_arrow("counter.clicks")

    assert table.column_names == ["user", "clicks"]
    assert table.num_rows == len(large.model)
    assert dict(zip(table["user"].to_pylist(), table["clicks"].to_pylist(), strict=True)) == large.model


def test_reserved_columns_are_there_by_name(large):
    columns = ["_key_group", "user", "_key_hash", "_checkpoint_id"]

    table = large.snapshot.to_arrow("counter.clicks", columns=columns)

    assert table.column_names == columns
    assert table["_key_hash"].combine_chunks() == arrowstate.key_hash(table["user"].combine_chunks())
    assert table["_key_group"].combine_chunks() == arrowstate.key_groups(table["user"].combine_chunks(), 128)
    assert set(table["_checkpoint_id"].to_pylist()) == {large.snapshot.checkpoint_id}


def test_a_column_may_be_asked_for_twice(people):
    table = people.to_arrow("people.age", columns=["age", "_key_group", "age"])

    assert table.column_names == ["age", "_key_group", "age"]
    assert table.column(0) == table.column(2)


def test_key_groups_divide_the_rows(large):
    ranges = [arrowstate.KeyGroupRange(*ends) for ends in ((0, 0), (1, 63), (64, 100), (101, 127))]

    tables = [
        large.snapshot.to_arrow("counter.clicks", columns=["user", "_key_group"], key_groups=groups)
        for groups in ranges
    ]

    for table, groups in zip(tables, ranges, strict=True):
        assert set(table["_key_group"].to_pylist()) <= set(groups)
    users = np.concatenate([table["user"].to_numpy() for table in tables])
    assert sorted(users.tolist()) == sorted(large.model)


def test_to_polars_equals_to_arrow(people):
    frame = people.to_polars("people.address")

    assert isinstance(frame, pl.DataFrame)
    assert frame.sort("name").to_dicts() == people.to_arrow("people.address").sort_by("name").to_pylist()


def test_lookup_returns_the_keys_that_exist_in_the_order_given(large):
    users = np.random.default_rng(1).integers(-1000, 210_000, 5000)

    found = large.snapshot.lookup("counter.clicks", pa.array(users))

    expected = [int(user) for user in users if int(user) in large.model]
    assert found["user"].to_pylist() == expected
    assert found["clicks"].to_pylist() == [large.model[user] for user in expected]


def test_lookup_repeats_a_key_that_is_given_twice(people):
    assert people.lookup("people.age", ["bob", "eve", "ann", "bob"]).to_pylist() == [
        {"name": "bob", "age": 40},
        {"name": "ann", "age": 30},
        {"name": "bob", "age": 40},
    ]


def test_lookup_of_no_key_that_exists_has_the_columns(people):
    found = people.lookup("people.address", ["eve"])

    assert found.num_rows == 0
    assert found.schema.names == ["name", "city", "tags"]
    assert people.lookup("people.address", pa.array([], pa.string())).num_rows == 0


def test_lookup_takes_composite_keys_with_columns_in_any_order(people):
    keys = pa.table({"page": pa.array([1, 9, 2], pa.int32()), "name": ["bob", "bob", "ann"]})

    assert people.lookup("page-views.v1.count.all", keys).to_pylist() == [
        {"name": "bob", "page": 1, "count.all": 7},
        {"name": "ann", "page": 2, "count.all": 6},
    ]


def test_lookup_takes_minus_zero_and_every_nan_as_one_key(new_store):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("x", pa.float64())]), max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.string())).update_batch([0.0, math.nan], ["zero", "nan"])
    snapshot = new_store().writer().checkpoint({"op": [backend]})

    found = snapshot.lookup("op.v", [-0.0, -math.nan])

    assert found["v"].to_pylist() == ["zero", "nan"]


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([1, 2], arrowstate.KeyTypeError),
        (["ann", None], arrowstate.NullKeyError),
        ("ann", arrowstate.KeyTypeError),
        (pa.record_batch({"other": ["ann"]}), arrowstate.KeyTypeError),
    ],
)
def test_lookup_refuses_keys_that_do_not_fit(people, keys, error):
    with pytest.raises(error):
        people.lookup("people.age", keys)


def test_a_reference_may_hold_dots_on_both_sides(people):
    assert people.states() == ["people.address", "people.age", "page-views.v1.count.all"]
    assert people.to_arrow("page-views.v1.count.all").num_rows == 3
    assert people.to_arrow(("page-views.v1", "count.all")).num_rows == 3


def test_a_reference_that_fits_two_states_asks_for_a_tuple(new_store):
    key = pa.schema([("k", pa.int64())])
    first, second = (arrowstate.KeyedStateBackend(key=key, max_parallelism=128) for _ in range(2))
    first.state(arrowstate.ValueStateDescriptor("b.c", pa.int64())).update_batch([1], [1])
    second.state(arrowstate.ValueStateDescriptor("c", pa.int64())).update_batch([2], [2])
    snapshot = new_store().writer().checkpoint({"a": [first], "a.b": [second]})

    with pytest.raises(arrowstate.InvalidInputError, match="tuple"):
        snapshot.to_arrow("a.b.c")
    assert snapshot.to_arrow(("a", "b.c")).to_pylist() == [{"k": 1, "b.c": 1}]
    tables = sorted(snapshot.duckdb().execute("show tables").fetchall())
    assert tables == [("a.b.c~1",), ("a.b.c~2",), ("arrowstate.checkpoints",), ("arrowstate.subtasks",)]
    assert snapshot.sql('select * from a."b.c" union all select * from "a.b".c').fetchall()[0][:2] == (1, 1)


@pytest.mark.parametrize(
    ("reference", "error", "listed"),
    [
        ("people.agee", arrowstate.StateNotFoundError, "'people.address', 'people.age', 'page-views.v1.count.all'"),
        ("age", arrowstate.StateNotFoundError, "'people.age'"),
        (("people", "agee"), arrowstate.StateNotFoundError, "'people.age'"),
        ("poeple.age", arrowstate.OperatorNotFoundError, "'people', 'page-views.v1'"),
        (("poeple", "age"), arrowstate.OperatorNotFoundError, "'people', 'page-views.v1'"),
        (7, arrowstate.InvalidInputError, "<operator uid>.<state>"),
    ],
)
def test_an_unknown_state_lists_what_there_is(people, reference, error, listed):
    with pytest.raises(error, match=listed):
        people.to_arrow(reference)


@pytest.mark.parametrize("columns", [["nmae"], [], "name"])
def test_columns_that_cannot_be_given_are_refused(people, columns):
    with pytest.raises(arrowstate.InvalidInputError, match="column"):
        people.to_arrow("people.age", columns=columns)


def test_an_operator_without_rows_is_an_empty_table(new_store):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    snapshot = new_store().writer().checkpoint({"op": [backend]})

    assert snapshot.to_arrow("op.v").to_pylist() == []
    assert snapshot.lookup("op.v", [1]).num_rows == 0
    assert snapshot.sql("select count(*), sum(v) from op.v where k = 1").fetchall() == [(0, None)]
    assert snapshot.sql("select count(*) from op.v").fetchall() == [(0,)]


def test_what_the_entry_says_can_be_asked_for(people):
    assert people.operators == {"people": ["address", "age"], "page-views.v1": ["count.all"]}
    assert people.checkpoint_id == people.entry.checkpoint_id == 1
    assert people.watermark is None
    assert "people.age" in repr(people)


def test_a_flipped_bit_is_an_error_that_names_the_file(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    keys = pa.array(range(20_000))
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(keys, keys)
    store.writer().checkpoint({"op": [backend]})
    (path,) = (tmp_path / "store" / "data").rglob("*.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    forget_open_files()
    forget_checkpoints()
    snapshot = store.latest()

    with pytest.raises(arrowstate.CorruptDataError, match=path.name):
        snapshot.to_arrow("op.v")
    relation = snapshot.sql("select v from op.v where v >= 0")
    readers = [
        relation.fetchall,
        relation.to_arrow_table,
        lambda: relation.to_arrow_reader(10).read_all(),
        relation.filter("v > 1").union(relation).fetchall,
        relation.pl,
        relation.show,
        lambda: len(relation),
        lambda: repr(relation),
    ]
    for read in readers:
        with pytest.raises(arrowstate.CorruptDataError, match=path.name):
            read()
    assert isinstance(snapshot.scans[-1].failure, arrowstate.CorruptDataError)
    with pytest.raises(duckdb.ConversionException):
        snapshot.sql("select 'x'::int as n").fetchall()
