"""Operator state on disk: files, damage, what a checkpoint refuses, the command line.

What operator state means is in `arrowstate.testing.OperatorStateSuite`.
"""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main
from arrowstate.state.backend import broadcast

OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.string(), mode="union")
RULES = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.int64())


def backend_of(*, offsets=(), seen=(), rules=None):
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).add_all(list(offsets))
    backend.state(SEEN).add_all(list(seen))
    entries = rules or {}
    backend.state(RULES).put_batch(pa.array(list(entries), pa.string()), pa.array(list(entries.values()), pa.int64()))
    return backend


def snapshot_of(store, backends, **arguments):
    return store.writer().checkpoint({}, operator_states={"source": backends}, **arguments)


def restored_lists(snapshot, descriptor, parallelism):
    backends = [
        snapshot.restore_operator_state("source", parallelism=parallelism, subtask=number)
        for number in range(parallelism)
    ]
    return [backend.state(descriptor).get() for backend in backends]


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
        with pytest.raises(arrowstate.CorruptDataError, match="offsets"):
            snapshot.restore_operator_state("source")
    path.unlink()
    with pytest.raises(arrowstate.CorruptDataError, match="missing"):
        snapshot.restore_operator_state("source")


def test_names_that_do_not_exist_say_what_there_is(store):
    snapshot = snapshot_of(store, [backend_of()])

    with pytest.raises(arrowstate.OperatorNotFoundError, match="source"):
        snapshot.restore_operator_state("sink")
    with pytest.raises(arrowstate.StateNotFoundError, match="'offsets', 'seen', 'rules'"):
        snapshot.operator_state("source", "offset")
    with pytest.raises(arrowstate.StateNotFoundError, match="'offsets', 'seen', 'rules'"):
        snapshot.restore_operator_state("source").existing("offset")


@pytest.mark.parametrize(("parallelism", "subtask"), [(0, 0), (2, 2), (2, -1), (40000, 0)])
def test_a_subtask_that_cannot_be_is_refused(store, parallelism, subtask):
    snapshot = snapshot_of(store, [backend_of()])

    with pytest.raises(arrowstate.InvalidInputError):
        snapshot.restore_operator_state("source", parallelism=parallelism, subtask=subtask)


def keyed_backends(count):
    ranges = [arrowstate.key_group_range(16, parallelism=count, subtask=number) for number in range(count)]
    key = pa.schema([("user", pa.string())])
    backends = [arrowstate.KeyedStateBackend(key=key, max_parallelism=16, key_groups=groups) for groups in ranges]
    for backend in backends:
        backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
    return backends


def test_the_subtasks_of_keyed_and_operator_state_agree(store):
    with pytest.raises(arrowstate.InvalidInputError, match="2 backends of keyed state and 1"):
        store.writer().checkpoint({"source": keyed_backends(2)}, operator_states={"source": [backend_of()]})


def test_subtasks_with_other_states_are_refused_and_nothing_is_left(store, tmp_path):
    other = arrowstate.OperatorStateBackend()

    with pytest.raises(arrowstate.InvalidInputError, match="same operator states"):
        snapshot_of(store, [backend_of(offsets=range(5000)), other])

    assert not list((tmp_path / "store").rglob("*.arrow"))


def test_a_checkpoint_that_would_drop_operator_state_is_refused(store):
    writer = store.writer()
    writer.checkpoint({"a": keyed_backends(1)}, operator_states={"a": [backend_of()], "b": [backend_of()]})

    with pytest.raises(arrowstate.InvalidInputError, match="drop the state of b"):
        writer.checkpoint({"a": keyed_backends(1)}, operator_states={"a": [backend_of()]})
    with pytest.raises(arrowstate.InvalidInputError, match="drop the state of a"):
        writer.checkpoint({}, operator_states={"a": [backend_of()], "b": [backend_of()]})
    with pytest.raises(arrowstate.InvalidInputError, match="operator state offsets, seen, rules of a"):
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
    with pytest.raises(arrowstate.InvalidInputError, match="restore_operator_state"):
        snapshot_of(store, [backend_of()]).restore("source")


def test_a_broadcast_state_is_made_once_in_a_process_and_each_restore_has_its_own(store, monkeypatch):
    snapshot = snapshot_of(store, [backend_of(rules={f"r{n}": n for n in range(5000)})])
    first, again = (snapshot.restore_operator_state("source") for _ in range(2))

    first.state(RULES).put_batch(["r1", "new"], [-1, -2])
    first.state(RULES).remove("r2")
    monkeypatch.setattr("arrowstate.state.backend.broadcast.read_part", None)
    later = snapshot.restore_operator_state("source")

    for restored in (again, later):
        assert restored.state(RULES).get_batch(["r1", "r2", "new"]).to_pylist() == [1, 2, None]
        assert len(restored.state(RULES)) == 5000
    assert first.state(RULES).get_batch(["r1", "r2", "new"]).to_pylist() == [-1, None, -2]
    later.state(RULES).clear()
    assert (len(later.state(RULES)), len(again.state(RULES))) == (0, 5000)
    assert again.freeze() == snapshot.restore_operator_state("source").freeze()


def test_a_broadcast_state_whose_file_was_damaged_since_is_refused(store, tmp_path):
    snapshot = snapshot_of(store, [backend_of(rules={f"r{n}": n for n in range(5000)})])
    snapshot.restore_operator_state("source")
    (path,) = (tmp_path / "store" / "data").rglob("*.arrow")
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    with pytest.raises(arrowstate.CorruptDataError, match="rules"):
        snapshot.restore_operator_state("source")


def test_the_least_recently_used_broadcast_states_are_forgotten(store, monkeypatch):
    snapshots = [snapshot_of(store, [backend_of(rules={f"r{n}": n + k for n in range(3000)})]) for k in range(4)]
    monkeypatch.setattr(broadcast, "_KEPT", broadcast._Kept())
    monkeypatch.setattr(broadcast, "_KEPT_BYTES", 150_000)

    for snapshot in snapshots:
        assert len(snapshot.restore_operator_state("source").state(RULES)) == 3000

    assert 0 < len(broadcast._KEPT._tables) < 4
    assert broadcast._KEPT._bytes == sum(size for _, size in broadcast._KEPT._tables.values()) <= 150_000
