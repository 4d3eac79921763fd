"""Operator state: verbs, checkpoints, and how a restore shares it out."""

from __future__ import annotations

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.backend.operator import split_pieces
from arrowstate.cli import main
from arrowstate.errors import (
    CorruptDataError,
    IncompatibleStateError,
    InvalidInputError,
    NullKeyError,
    OperatorNotFoundError,
    StateNotFoundError,
    ValueTypeError,
)

OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.string(), mode="union")
RULES = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.int64())


def backend_of(*, offsets=(), seen=(), rules=None):
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).add_all(list(offsets))
    backend.state(SEEN).add_all(list(seen))
    backend.state(RULES).put_all(rules or {})
    return backend


def snapshot_of(store, backends, **arguments):
    return store.writer().checkpoint({}, operator_states={"source": backends}, **arguments)


@pytest.fixture
def store(tmp_path):
    return arrowstate.open_store(tmp_path / "store", create=True)


def restored_lists(snapshot, descriptor, parallelism):
    backends = [
        snapshot.restore_operator_state("source", parallelism=parallelism, subtask=number)
        for number in range(parallelism)
    ]
    return [backend.state(descriptor).get() for backend in backends]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([[0, 1, 2, 3, 4]], [[0, 1, 2], [3, 4]]),
        ([[0, 1], [2, 3, 4]], [[0, 1], [2, 3], [4]]),
        ([[7]], [[7], [], [], []]),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ([[0, 1, 2], [3]], [[0, 1, 2], [3]]),
        ([[], []], [[], [], []]),
    ],
)
def test_a_split_list_is_shared_out_as_flink_does(store, old, new):
    snapshot = snapshot_of(store, [backend_of(offsets=elements) for elements in old])

    restored = restored_lists(snapshot, OFFSETS, len(new))

    assert restored == new


def test_the_turn_of_who_gets_the_extra_element_continues_across_states():
    pieces = [split_pieces([1, 1, 4, 2], 3, subtask) for subtask in range(3)]

    assert [[last - first for first, last in row] for row in pieces] == [[1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 2, 0]]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 100])
def test_every_element_goes_to_exactly_one_subtask(parallelism):
    totals = [5, 0, 13, 101, 1]

    pieces = [split_pieces(totals, parallelism, subtask) for subtask in range(parallelism)]

    for state, total in enumerate(totals):
        rows = sorted(row for of_subtask in pieces for row in range(*of_subtask[state]))
        assert rows == list(range(total))


def test_a_union_list_goes_to_every_subtask_as_a_whole(store):
    snapshot = snapshot_of(store, [backend_of(seen=["a", "b"]), backend_of(), backend_of(seen=["c"])])

    restored = restored_lists(snapshot, SEEN, 2)

    assert restored == [["a", "b", "c"]] * 2


def test_a_broadcast_state_comes_from_the_old_subtask_of_the_same_number_modulo_their_count(store):
    snapshot = snapshot_of(store, [backend_of(rules={"old": 0}), backend_of(rules={"old": 1})])

    restored = [
        snapshot.restore_operator_state("source", parallelism=5, subtask=number).state(RULES).get("old")
        for number in range(5)
    ]

    assert restored == [0, 1, 0, 1, 0]


def test_a_list_keeps_order_and_duplicates_over_all_its_verbs():
    offsets = backend_of().state(OFFSETS)

    offsets.add(3)
    offsets.add_all([1, 3])
    offsets.extend(pa.array([9], pa.int32()))
    offsets.add_all([])

    assert offsets.get() == [3, 1, 3, 9]
    assert offsets.to_arrow().equals(pa.array([3, 1, 3, 9], pa.int64()))
    offsets.update([8])
    assert offsets.get() == [8]
    offsets.update([])
    assert offsets.get() == []


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.add(None),
        lambda state: state.add_all([1, None]),
        lambda state: state.update(None),
        lambda state: state.update([None]),
        lambda state: state.extend(pa.array([2, None])),
    ],
)
def test_a_null_element_is_refused_and_the_list_unchanged(write):
    offsets = backend_of(offsets=[5]).state(OFFSETS)

    with pytest.raises(InvalidInputError, match="offsets"):
        write(offsets)

    assert offsets.get() == [5]


@pytest.mark.parametrize("value", ["text", 1.5, 1 << 70])
def test_an_element_of_another_type_is_refused(value):
    offsets = backend_of(offsets=[5]).state(OFFSETS)

    with pytest.raises(ValueTypeError, match="offsets"):
        offsets.add_all([1, value])

    assert offsets.get() == [5]


def test_what_the_caller_gets_is_not_the_state():
    lists = arrowstate.OperatorStateBackend().state(arrowstate.OperatorListStateDescriptor("l", pa.list_(pa.int64())))
    lists.add([1])

    lists.get()[0].append(2)
    lists.get().append([3])

    assert lists.get() == [[1]]


def test_a_broadcast_state_is_a_map_whose_values_may_be_null():
    rules = backend_of(rules={"a": 1}).state(RULES)

    rules.put("b", None)
    rules.put_batch(pa.array(["c", "a"]), pa.array([3, 4]))
    rules.remove("c")

    assert dict(rules.items()) == {"a": 4, "b": None}
    assert rules.contains("b")
    assert not rules.contains("c")
    assert rules.get_batch(["a", "b", "c"]).to_pylist() == [4, None, None]
    assert rules.contains_batch(["a", "b", "c"]).to_pylist() == [True, True, False]
    assert len(rules) == 2
    rules.clear()
    assert rules.is_empty()


def test_a_null_key_of_a_broadcast_state_is_refused():
    rules = backend_of(rules={"a": 1}).state(RULES)

    with pytest.raises(NullKeyError):
        rules.put(None, 3)
    with pytest.raises(NullKeyError):
        rules.put_batch(pa.array(["b", None]), pa.array([1, 2]))

    assert dict(rules.items()) == {"a": 1}


def test_a_keyed_operator_reads_broadcast_state_through_a_view_that_cannot_write():
    rules = backend_of(rules={"a": 1}).state(RULES)
    view = rules.read_only()

    rules.put("b", 2)

    assert dict(view.items()) == {"a": 1, "b": 2}
    assert view.to_arrow().num_rows == 2
    for verb in ("put", "put_all", "put_batch", "remove", "clear"):
        assert not hasattr(view, verb)


@pytest.mark.parametrize(
    "other",
    [
        arrowstate.OperatorListStateDescriptor("offsets", pa.int32()),
        arrowstate.OperatorListStateDescriptor("offsets", pa.int64(), mode="union"),
        arrowstate.BroadcastStateDescriptor("offsets", pa.string(), pa.int64()),
    ],
)
def test_a_name_is_not_used_again_with_another_kind_or_type(store, other):
    backend = backend_of(offsets=[1])
    restored = snapshot_of(store, [backend]).restore_operator_state("source")

    for used in (backend, restored):
        with pytest.raises(IncompatibleStateError, match="offsets"):
            used.state(other)


def test_names_that_differ_in_case_only_are_refused():
    with pytest.raises(InvalidInputError, match="offsets"):
        backend_of().state(arrowstate.OperatorListStateDescriptor("Offsets", pa.int64()))


def test_a_state_nobody_asked_for_is_in_the_next_checkpoint(store):
    first = snapshot_of(store, [backend_of(offsets=[1, 2], rules={"a": 1})])

    second = snapshot_of(store, [first.restore_operator_state("source")])

    assert second.operator_state("source", "offsets").to_pylist() == [
        {"_subtask": 0, "offsets": 1},
        {"_subtask": 0, "offsets": 2},
    ]
    assert second.operator_state("source", "rules").to_pylist() == [{"_subtask": 0, "rules_key": "a", "rules": 1}]


def test_large_parts_are_files_that_later_checkpoints_use_again(store, tmp_path):
    backends = [backend_of(offsets=range(5000), rules={str(n): n for n in range(5000)}) for _ in range(3)]

    writer = store.writer()
    first = writer.checkpoint({}, operator_states={"source": backends})
    files = set((tmp_path / "store" / "data").rglob("*.arrow"))
    second = writer.checkpoint({}, operator_states={"source": backends})

    assert len(files) == 2
    assert set((tmp_path / "store" / "data").rglob("*.arrow")) == files
    assert first.entry.operators == second.entry.operators
    assert restored_lists(second, OFFSETS, 1) == [[*range(5000)] * 3]


def test_damage_is_reported_wherever_it_is(store, tmp_path):
    snapshot = snapshot_of(store, [backend_of(offsets=range(5000))])
    (path,) = (tmp_path / "store" / "data").rglob("*.arrow")
    whole = path.read_bytes()

    for damaged in (whole[:-1], whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:], b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError, match="offsets"):
            snapshot.restore_operator_state("source")
    path.unlink()
    with pytest.raises(CorruptDataError, match="missing"):
        snapshot.restore_operator_state("source")


def test_names_that_do_not_exist_say_what_there_is(store):
    snapshot = snapshot_of(store, [backend_of()])

    with pytest.raises(OperatorNotFoundError, match="source"):
        snapshot.restore_operator_state("sink")
    with pytest.raises(StateNotFoundError, match="'offsets', 'seen', 'rules'"):
        snapshot.operator_state("source", "offset")
    with pytest.raises(StateNotFoundError, match="'offsets', 'seen', 'rules'"):
        snapshot.restore_operator_state("source").existing("offset")


@pytest.mark.parametrize(("parallelism", "subtask"), [(0, 0), (2, 2), (2, -1), (40000, 0)])
def test_a_subtask_that_cannot_be_is_refused(store, parallelism, subtask):
    snapshot = snapshot_of(store, [backend_of()])

    with pytest.raises(InvalidInputError):
        snapshot.restore_operator_state("source", parallelism=parallelism, subtask=subtask)


def keyed_backends(count):
    ranges = [arrowstate.key_group_range(16, parallelism=count, subtask=number) for number in range(count)]
    key = pa.schema([("user", pa.string())])
    backends = [arrowstate.KeyedStateBackend(key=key, max_parallelism=16, key_groups=groups) for groups in ranges]
    for backend in backends:
        backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
    return backends


def test_an_operator_may_have_keyed_and_operator_state(store):
    keyed = keyed_backends(1)
    keyed[0].state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])

    snapshot = store.writer().checkpoint({"source": keyed}, operator_states={"source": [backend_of(offsets=[1])]})

    assert snapshot.to_arrow("source.city").to_pylist() == [{"user": "ann", "city": "Rome"}]
    assert restored_lists(snapshot, OFFSETS, 2) == [[1], []]


def test_the_subtasks_of_keyed_and_operator_state_agree(store):
    with pytest.raises(InvalidInputError, match="2 backends of keyed state and 1"):
        store.writer().checkpoint({"source": keyed_backends(2)}, operator_states={"source": [backend_of()]})


def test_a_keyed_and_an_operator_state_do_not_share_a_name(store):
    backend = arrowstate.OperatorStateBackend()
    backend.state(arrowstate.OperatorListStateDescriptor("City", pa.int64()))

    with pytest.raises(InvalidInputError, match="City"):
        store.writer().checkpoint({"source": keyed_backends(1)}, operator_states={"source": [backend]})


def test_subtasks_with_other_states_are_refused_and_nothing_is_left(store, tmp_path):
    other = arrowstate.OperatorStateBackend()

    with pytest.raises(InvalidInputError, match="same operator states"):
        snapshot_of(store, [backend_of(offsets=range(5000)), other])

    assert not list((tmp_path / "store").rglob("*.arrow"))


def test_a_checkpoint_that_would_drop_operator_state_is_refused(store):
    writer = store.writer()
    writer.checkpoint({"a": keyed_backends(1)}, operator_states={"a": [backend_of()], "b": [backend_of()]})

    with pytest.raises(InvalidInputError, match="drop the state of b"):
        writer.checkpoint({"a": keyed_backends(1)}, operator_states={"a": [backend_of()]})
    with pytest.raises(InvalidInputError, match="drop the state of a"):
        writer.checkpoint({}, operator_states={"a": [backend_of()], "b": [backend_of()]})
    with pytest.raises(InvalidInputError, match="operator state offsets, seen, rules of a"):
        writer.checkpoint({"a": keyed_backends(1)}, operator_states={"b": [backend_of()]})

    dropped = writer.checkpoint({"a": keyed_backends(1)}, allow_dropped_state=True)
    assert [operator.uid for operator in dropped.entry.operators] == ["a"]


def test_a_savepoint_carries_operator_state(store, tmp_path):
    snapshot_of(store, [backend_of(offsets=range(5000), seen=["x"], rules={"a": 1}), backend_of(offsets=[7])])

    store.savepoint(tmp_path / "moved")
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    savepoint = arrowstate.open_store(tmp_path / "elsewhere").latest()

    assert restored_lists(savepoint, OFFSETS, 2) == [[*range(5000)], [7]]
    assert restored_lists(savepoint, SEEN, 1) == [["x"]]
    assert savepoint.operator_state("source", "rules").to_pylist() == [{"_subtask": 0, "rules_key": "a", "rules": 1}]


def test_the_command_line_shows_and_checks_operator_state(store, tmp_path, capsys):
    snapshot_of(store, [backend_of(offsets=range(5000)), backend_of(rules={"a": 1})])
    place = str(tmp_path / "store")

    assert main(["show", place]) == 0
    shown = capsys.readouterr().out
    assert main(["restore-check", place]) == 0
    (path,) = (tmp_path / "store" / "data").rglob("*.arrow")
    path.unlink()
    assert main(["restore-check", place]) == 1

    assert "offsets" in shown
    assert "broadcast" in shown


def test_an_operator_without_keyed_state_has_no_keyed_backend(store):
    with pytest.raises(InvalidInputError, match="restore_operator_state"):
        snapshot_of(store, [backend_of()]).restore("source")
