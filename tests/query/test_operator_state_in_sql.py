"""Operator state in SQL: lists, lists of structs, broadcast maps, and names beside keyed state."""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import StateNotFoundError
from stores import OFFSETS, backend_of, commit

PLACES = arrowstate.OperatorListStateDescriptor("places", pa.struct([("x", pa.int64()), ("name", pa.string())]))
RULES = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.int64())


@pytest.fixture
def snapshot():
    keyed = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    keyed.state(arrowstate.ValueStateDescriptor("offsets_of_keys", pa.int64())).update_batch([1], pa.array([5]))
    backends = [arrowstate.OperatorStateBackend() for _ in range(2)]
    for number, backend in enumerate(backends):
        backend.state(OFFSETS).add_all([10 * number, 10 * number + 1])
        backend.state(PLACES).add_all([{"x": number, "name": f"p{number}"}, {"x": None, "name": None}])
        backend.state(RULES).put_all({"a": 1, "b": 2})
    halves = [
        backend_of(
            keyed.key, max_parallelism=8, key_groups=arrowstate.key_group_range(8, parallelism=2, subtask=number)
        )
        for number in range(2)
    ]
    store = arrowstate.open_store("memory://operator-state-in-sql", create=True)
    return commit(store, {"op": halves}, operator_states={"op": backends, "src": backends[:1]})


def test_a_list_has_a_row_per_element_in_order(snapshot):
    assert snapshot.sql("select * from op.offsets").fetchall() == [(0,), (1,), (10,), (11,)]
    assert snapshot.sql("select offsets from src.offsets where offsets > 0").fetchall() == [(1,)]


def test_a_list_of_structs_has_a_column_per_field(snapshot):
    relation = snapshot.sql("select * from op.places where x = 1")

    assert (relation.columns, relation.fetchall()) == (["x", "name"], [(1, "p1")])


def test_a_broadcast_map_has_key_and_value(snapshot):
    assert snapshot.sql("select rules_key, rules from src.rules order by 1").fetchall() == [("a", 1), ("b", 2)]


def test_the_whole_relation_tells_the_subtask(snapshot):
    rows = snapshot.duckdb().execute('select _subtask, offsets from "op.offsets"').fetchall()

    assert rows == [(0, 0), (0, 1), (1, 10), (1, 11)]


def test_a_misspelt_name_lists_operator_state_too(snapshot):
    with pytest.raises(StateNotFoundError, match=r"'ofsets'.*'op.offsets'"):
        snapshot.sql("select * from op.ofsets")
