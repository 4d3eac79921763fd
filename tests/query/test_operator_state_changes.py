"""What changed in operator state and in properties between two checkpoints: compared as multisets of elements."""

import json
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main
from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.files import operator
from arrowstate.table.columns import row_numbers
from stores import KEY, OFFSETS

SPLITS = arrowstate.OperatorListStateDescriptor("splits", pa.struct([("split", pa.string()), ("position", pa.int64())]))
RULES = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.map_(pa.string(), pa.float64()))
DEEP = pa.struct([("of", pa.map_(pa.string(), pa.list_(pa.decimal128(9, 2)))), ("at", pa.list_(pa.timestamp("s"), 2))])


def splits_of(*parts):
    """Return a subtask for each list of splits, given as text and position."""
    backends = [arrowstate.OperatorStateBackend() for _ in parts]
    for backend, splits in zip(backends, parts, strict=True):
        backend.state(SPLITS).add_all([{"split": name, "position": position} for name, position in splits])
    return backends


@pytest.fixture
def store(tmp_path):
    return arrowstate.open_store(tmp_path / "store", create=True)


def commit(store, parts, **options):
    return store.writer().checkpoint({}, operator_states={"source": parts}, allow_dropped_state=True, **options)


def counts(difference):
    return [(item.state, item.inserted, item.updated, item.deleted, item.schema_change) for item in difference.states]


def test_positions_that_moved_are_a_difference(store, capsys, tmp_path):
    commit(store, splits_of([("a", 1), ("b", 1)], [("c", 1)]))
    commit(store, splits_of([("a", 1), ("b", 7)], [("c", 9)]))

    difference = store.diff(1, 2)

    assert counts(difference) == [("splits", 2, 0, 2, None)]
    assert [item.is_operator_state for item in difference.states] == [True]
    assert "source.splits +2 ~0 -2" in repr(difference)
    assert difference.rows("source.splits").to_pylist() == [
        {"split": "b", "position": 1, "_change_type": "delete"},
        {"split": "c", "position": 1, "_change_type": "delete"},
        {"split": "b", "position": 7, "_change_type": "insert"},
        {"split": "c", "position": 9, "_change_type": "insert"},
    ]
    assert difference.rows(("source", "splits"), columns=["split"], limit=1).to_pylist() == [
        {"split": "b", "_change_type": "delete"}
    ]
    with pytest.raises(InvalidInputError, match="columns split, position"):
        difference.rows("source.splits", columns=["nope"])
    assert store.sql("select state, inserted, deleted from arrowstate.change_counts(1, 2)").fetchall() == [
        ("splits", 2, 2)
    ]
    assert main(["diff", str(tmp_path / "store"), "1", "--state", "source.splits", "--rows"]) == 0
    assert capsys.readouterr().out.count("insert") == 2


def test_neither_order_nor_subtask_counts(store):
    commit(store, splits_of([("a", 1), ("b", 2)], [("c", 3), ("c", 3)]))
    commit(store, splits_of([("c", 3), ("a", 1)], [], [("b", 2), ("c", 3)]))
    commit(store, splits_of([("c", 3), ("a", 1), ("b", 2)]))

    assert counts(store.diff(1, 2)) == [("splits", 0, 0, 0, None)]
    assert store.diff(1, 2).states[0].is_empty
    assert counts(store.diff(2, 3)) == [("splits", 0, 0, 1, None)]


def test_an_entry_of_a_broadcast_map_counts_once(store):
    for rules in ({"a": {"x": 1.0}, "b": None}, {"a": {"x": 2.0}, "b": None}):
        backends = [arrowstate.OperatorStateBackend() for _ in range(3)]
        for backend in backends:
            backend.state(RULES).put_all(rules)
        commit(store, backends)

    assert counts(store.diff(1, 2)) == [("rules", 1, 0, 1, None)]
    assert counts(store.diff(None, 2)) == [("rules", 2, 0, 0, "new")]


def test_state_that_came_or_went_or_has_another_type_is_told(store):
    commit(store, splits_of([("a", 1)], [("b", 2)]))
    other = arrowstate.OperatorStateBackend()
    other.state(OFFSETS).add_all([5])
    wider = arrowstate.OperatorListStateDescriptor("splits", pa.struct([("split", pa.string()), ("at", pa.int64())]))
    other.state(wider).add({"split": "a", "at": 1})
    commit(store, [other])
    union = arrowstate.OperatorStateBackend()
    union.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64(), "union")).add_all([5])
    commit(store, [union])

    assert counts(store.diff(1, 2)) == [
        ("offsets", 1, 0, 0, "new"),
        ("splits", None, None, None, "without position int64; with at int64"),
    ]
    with pytest.raises(IncompatibleStateError, match="position int64"):
        store.diff(1, 2).rows("source.splits")
    assert counts(store.diff(2, 3)) == [
        ("offsets", 0, 0, 0, "union instead of list"),
        ("splits", 0, 0, 1, "dropped"),
    ]


def test_parts_that_both_checkpoints_have_are_not_read(store, monkeypatch):
    commit(store, splits_of([("a", 1)], [("b", 2)]))
    commit(store, splits_of([("a", 1)], [("b", 3)]))
    commit(store, splits_of([("a", 1)], [("b", 3)], [("c", 1)]))
    read = []
    whole = operator.read_part
    monkeypatch.setattr(operator, "read_part", lambda *given: read.append(given[2]) or whole(*given))

    assert counts(store.diff(1, 2)) == [("splits", 1, 0, 1, None)]
    assert read == [1, 1]
    assert counts(store.diff(2, 3)) == [("splits", 1, 0, 0, None)]
    assert counts(store.diff(3)) == [("splits", 0, 0, 0, None)]
    assert read == [1, 1]


def test_properties_that_changed_are_told(store, capsys, tmp_path):
    commit(store, splits_of([("a", 1)]), properties={"release": "1", "same": [1], "gone": None})
    commit(store, splits_of([("a", 1)]), properties={"release": "2" * 100, "same": [1], "new": {"x": 1}})

    difference = store.diff(1, 2)

    expected = {"release": ("1", "2" * 100), "gone": (None, None), "new": (None, {"x": 1})}
    assert difference.properties == expected
    assert "nothing changed" not in repr(difference)
    assert "property 'release' changed" in repr(difference)
    assert "property release" in difference._repr_html_()
    assert store.diff(2).properties == {}
    assert main(["diff", str(tmp_path / "store"), "1"]) == 0
    assert "property release" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "store"), "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {item["name"]: (item["before"], item["after"]) for item in told["properties"]} == expected
    assert [item["state"] for item in told["states"]] == ["splits"]


def test_a_plan_says_how_operator_state_would_change(store):
    keyed = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=4)
    keyed.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch([1], [1])
    store.writer().checkpoint({"op": [keyed]}, operator_states={"source": splits_of([("a", 1), ("b", 2)])})

    with store.edit() as edit:
        edit.update("source.splits", set={"position": "5"}, where="split = 'a'")
        plan = edit.plan()

        assert plan.operator_states == ("source.splits",)
        assert plan.changed_states == ()
        assert counts(plan.difference) == [("v", 0, 0, 0, None), ("splits", 1, 0, 1, None)]
        assert plan.sample("source.splits").num_rows == 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.null(), [None]),
        (pa.bool_(), [True, False, None]),
        (pa.int8(), [1, 2, None]),
        (pa.float64(), [0.0, -0.0, float("nan"), None]),
        (pa.decimal32(5, 2), [Decimal("1.25"), Decimal("1.26"), None]),
        (pa.binary(3), [b"abc", b"abd", None]),
        (pa.large_string(), ["", "a", "ab", None]),
        (pa.list_(pa.string()), [[], ["a"], ["a", ""], ["", "a"], [None], None]),
        (pa.list_(pa.int64(), 2), [[1, 2], [2, 1], [None, 1], None]),
        (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)], None]),
        (DEEP, [None, {"of": None, "at": None}, {"of": [("a", [Decimal(1), None])], "at": [1, None]}]),
        (DEEP, [{"of": [("a", [Decimal(1)])], "at": None}, {"of": [("a", [])], "at": None}]),
    ],
)
def test_rows_have_one_number_where_they_are_equal(kind, values):
    random = np.random.default_rng(7)
    places = random.integers(0, len(values), 60)
    column = pa.array([values[place] for place in (0, *places)], kind)[1:]

    numbers = row_numbers([column, pa.array([place % 2 for place in range(60)])])

    pairs = list(zip(numbers.tolist(), [(place, row % 2) for row, place in enumerate(places.tolist())], strict=True))
    assert len({number for number, _ in pairs}) == len(set(pairs)) == len({row for _, row in pairs})
    assert Counter(Counter(number for number, _ in pairs).values()) == Counter(
        Counter(row for _, row in pairs).values()
    )
