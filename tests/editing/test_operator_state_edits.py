"""Operator state under statements: what is done to keyed state is done to lists of subtasks and broadcast maps too."""

import itertools

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from stores import OFFSETS, backend_of, commit

_names = itertools.count()
SPLITS = arrowstate.OperatorListStateDescriptor("splits", pa.struct([("path", pa.string()), ("_seq", pa.int64())]))
RULES = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.struct([("limit", pa.int64())]))


@pytest.fixture
def store():
    subtasks = [arrowstate.OperatorStateBackend() for _ in range(2)]
    for number, subtask in enumerate(subtasks):
        subtask.state(OFFSETS).add_all([10 * number, 10 * number + 1])
        subtask.state(SPLITS).add_all([{"path": f"p{number}", "_seq": 7}, {"path": None, "_seq": None}])
        subtask.state(RULES).put_all({"a": {"limit": 1}, "b": {"limit": None}})
    halves = [
        backend_of(max_parallelism=8, key_groups=arrowstate.key_group_range(8, parallelism=2, subtask=number))
        for number in range(2)
    ]
    store = arrowstate.open_store(f"memory://operator-edits-{next(_names)}", create=True)
    commit(store, {"op": halves}, operator_states={"op": subtasks})
    return store


def offsets(snapshot):
    table = snapshot.operator_state("op", "offsets")
    return list(zip(table["_subtask"].to_pylist(), table["offsets"].to_pylist(), strict=True))


EDITS = {
    "update": (lambda edit: edit.update("op.offsets", set={"offsets": "offsets + 5"}, where="offsets = 1"), [0, 6]),
    "update of a place": (lambda edit: edit.update("op.offsets", set={"offsets": 9}, where="_seq = 1"), [0, 9]),
    "delete": (lambda edit: edit.delete("op.offsets", where="_subtask = 0 and _seq = 0"), [1]),
    "append": (lambda edit: edit.insert("op.offsets", pa.table({"offsets": [7, 5], "_subtask": [0, 0]})), [0, 1, 7, 5]),
    "in a place": (
        lambda edit: edit.upsert("op.offsets", pa.table({"offsets": [7, 5], "_subtask": [0, 0], "_seq": [0, None]})),
        [7, 1, 5],
    ),
    "script": (
        lambda edit: edit.execute(
            "delete from op.offsets where offsets = 0; insert into op.offsets (_subtask, offsets) values (0, 3)"
        ),
        [1, 3],
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_elements_are_changed_in_their_places_and_new_ones_come_behind_them(store, name):
    do, first = EDITS[name]

    with store.edit() as edit:
        do(edit)
        snapshot = edit.commit()

    assert [value for subtask, value in offsets(snapshot) if subtask == 0] == first
    assert [restored.state(OFFSETS).get() for restored in [snapshot.restore_operator_state("op")]] == [
        [value for _, value in offsets(snapshot)]
    ]


def test_an_element_moves_to_another_subtask_behind_those_it_has(store):
    with store.edit() as edit:
        edit.update("op.offsets", set={"_subtask": 1}, where="offsets = 0")
        edit.insert("op.offsets", pa.table({"offsets": [99]}))
        snapshot = edit.commit()

    assert offsets(snapshot) == [(0, 1), (1, 10), (1, 11), (1, 0), (1, 99)]


def test_fields_of_elements_are_columns_whatever_their_names(store):
    with store.edit() as edit:
        edit.update("op.splits", set={"path": "path || '!'", "_seq": "_seq + 1"}, where="path = 'p1'")
        edit.execute("update op.splits set _seq = 0 where path is null")
        snapshot = edit.commit()

    assert snapshot.operator_state("op", "splits")["splits"].to_pylist() == [
        {"path": "p0", "_seq": 7},
        {"path": None, "_seq": 0},
        {"path": "p1!", "_seq": 8},
        {"path": None, "_seq": 0},
    ]


def test_the_entries_of_a_map_are_the_same_in_every_subtask(store):
    with store.edit() as edit:
        edit.update("op.rules", set={"rules": "{'limit': 5}"}, where="rules.limit is null")
        edit.upsert("op.rules", pa.table({"rules_key": ["a", "c"], "rules": [{"limit": 2}, {"limit": 3}]}))
        edit.execute("insert into op.rules values ('d', {'limit': 4}); delete from op.rules where rules_key = 'c'")
        edit.update("op.rules", set={"rules_key": "'e'"}, where="rules_key = 'd'")
        with pytest.raises(InvalidInputError, match="rules_key='e' already"):
            edit.insert("op.rules", pa.table({"rules_key": ["e"], "rules": [{"limit": 2}]}))
        snapshot = edit.commit()

    for number in range(2):
        restored = snapshot.restore_operator_state("op", parallelism=2, subtask=number).state(RULES)
        assert dict(restored.items()) == {"a": {"limit": 2}, "b": {"limit": 5}, "e": {"limit": 4}}


def test_rows_that_were_emitted_may_be_updated_and_none_added_or_deleted(store):
    rows = arrowstate.OperatorStateBackend()
    kind = pa.struct({"user": pa.string()})
    rows.state(arrowstate.OperatorListStateDescriptor("rows", kind)).extend(pa.array([("ann",), ("bob",)], kind))
    commit(store, {}, operator_states={"totals": [rows]}, allow_dropped_state=True)
    with store.edit() as edit:
        for refused in (
            lambda: edit.delete("totals.rows", where="user = 'ann'"),
            lambda: edit.insert("totals.rows", pa.table({"user": ["eve"]})),
            lambda: edit.execute("insert into totals.rows (user) values ('eve')"),
        ):
            with pytest.raises(InvalidInputError, match="none added or deleted"):
                refused()
        edit.update("totals.rows", set={"user": "'amy'"}, where="user = 'ann'")
        snapshot = edit.commit()

    assert snapshot.sql("from totals.rows").fetchall() == [("amy",), ("bob",)]
