"""A job that starts again without restoring is told that its first checkpoint leaves the state of before out."""

import warnings
from collections.abc import Callable

import pyarrow as pa
import pytest

import arrowstate
from stores import OFFSETS, TOTAL, commit

KEY = pa.schema([("k", pa.string())])


def new_backend(*keys: str, subtask: int | None = None) -> arrowstate.KeyedStateBackend:
    groups = None if subtask is None else arrowstate.key_group_range(128, parallelism=2, subtask=subtask)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=groups)
    backend.state(TOTAL).add_batch(list(keys), [1] * len(keys))
    return backend


def new_offsets(*offsets: int) -> arrowstate.OperatorStateBackend:
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).add_all(offsets)
    return backend


@pytest.fixture
def store(tmp_path) -> arrowstate.StateStore:
    """A store whose newest checkpoint has two rows of keyed state and two of operator state."""
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [new_backend("a", "b")]}, operator_states={"op": [new_offsets(5, 7)]})
    return store


def test_backends_that_were_not_restored_do_not_take_the_place_of_state_in_silence(store):
    offsets = store.latest().restore_operator_state("op")

    with (
        store.writer() as writer,
        pytest.warns(RuntimeWarning, match=r"1 rows of operator 'op' and the one before 2.*restore\('op'\)") as said,
    ):
        writer.checkpoint({"op": [new_backend("c")]}, operator_states={"op": [offsets]})

    assert len(said) == 1
    assert said[0].filename == __file__


def test_neither_do_those_of_operator_state(store):
    keyed = store.latest().restore("op")

    with store.writer() as writer, pytest.warns(RuntimeWarning, match=r"restore_operator_state\('op'\)") as said:
        writer.checkpoint({"op": [keyed]}, operator_states={"op": [new_offsets()]})

    assert len(said) == 1


def test_one_subtask_that_was_not_restored_is_enough(store):
    subtasks = [store.latest().restore("op", parallelism=2, subtask=number) for number in range(2)]
    offsets = [store.latest().restore_operator_state("op", parallelism=2, subtask=number) for number in range(2)]
    of_a = arrowstate.key_groups(pa.array(["a"]), 128)[0].as_py() // 64
    subtasks[of_a] = new_backend(subtask=of_a)

    with store.writer() as writer, pytest.warns(RuntimeWarning, match="were not restored"):
        writer.checkpoint({"op": subtasks}, operator_states={"op": offsets})


def test_as_many_subtasks_as_have_lists_in_files_are_counted_too(tmp_path):
    many = arrowstate.open_store(tmp_path / "many", create=True)
    groups = [arrowstate.key_group_range(256, parallelism=256, subtask=number) for number in range(256)]

    def backends(*keys: str) -> list[arrowstate.KeyedStateBackend]:
        made = [arrowstate.KeyedStateBackend(key=KEY, max_parallelism=256, key_groups=own) for own in groups]
        for backend in made:
            backend.state(TOTAL)
        for key in keys:
            made[arrowstate.key_groups(pa.array([key]), 256)[0].as_py()].state(TOTAL).add_batch([key], [1])
        return made

    commit(many, {"op": backends("a", "b")}, operator_states={"op": [new_offsets(5)] * 256})
    assert many.latest().entry.operators[0].subtask_files
    assert many.latest().entry.operators[0].operator_states[0].part_files

    with many.writer() as writer, pytest.warns(RuntimeWarning) as said:
        writer.checkpoint({"op": backends("c")}, operator_states={"op": [new_offsets()] * 256})

    assert [str(each.message).partition(",")[0] for each in said] == [
        "the checkpoint has 1 rows of operator 'op' and the one before 2",
        "the checkpoint has 0 rows of operator 'op' and the one before 256",
    ]


def test_a_coordinator_tells_it_too_and_once(store):
    backends, offsets = {"op": [new_backend()]}, {"op": [store.latest().restore_operator_state("op")]}

    with (
        pytest.warns(RuntimeWarning, match="were not restored") as said,
        store.writer() as writer,
        writer.coordinator(backends, operator_states=offsets) as coordinator,
    ):
        for _ in range(2):
            coordinator.trigger().result()

    assert len(said) == 1


def restored(store: arrowstate.StateStore) -> tuple[arrowstate.KeyedStateBackend, arrowstate.OperatorStateBackend]:
    return store.latest().restore("op"), store.latest().restore_operator_state("op")


def restored_elsewhere(
    store: arrowstate.StateStore,
) -> tuple[arrowstate.KeyedStateBackend, arrowstate.OperatorStateBackend]:
    savepoint = store.savepoint("before")
    return savepoint.restore("op"), savepoint.restore_operator_state("op")


def checkpointed(store: arrowstate.StateStore) -> tuple[arrowstate.KeyedStateBackend, arrowstate.OperatorStateBackend]:
    backends = new_backend("z"), new_offsets(1)
    commit(store, {"op": [backends[0]]}, operator_states={"op": [backends[1]]}, allow_dropped_state=True)
    backends[0].clear_key(["z"])
    return backends


def of_an_empty_operator(
    store: arrowstate.StateStore,
) -> tuple[arrowstate.KeyedStateBackend, arrowstate.OperatorStateBackend]:
    with store.writer() as writer:
        empty = {"op": [new_backend()]}, {"op": [new_offsets()]}
        writer.checkpoint(empty[0], operator_states=empty[1], allow_dropped_state=True)
    return new_backend("z"), new_offsets(1)


def computed_anew(store: arrowstate.StateStore) -> tuple[arrowstate.KeyedStateBackend, arrowstate.OperatorStateBackend]:
    return new_backend("c", "d"), new_offsets(8, 9)


@pytest.mark.parametrize("make", [restored, restored_elsewhere, checkpointed, of_an_empty_operator, computed_anew])
def test_what_goes_on_from_state_or_follows_on_none_is_not_warned_of(
    store: arrowstate.StateStore,
    make: Callable[[arrowstate.StateStore], tuple[arrowstate.KeyedStateBackend, arrowstate.OperatorStateBackend]],
) -> None:
    keyed, offsets = make(store)

    with warnings.catch_warnings(), store.writer() as writer:
        warnings.simplefilter("error")
        snapshot = writer.checkpoint({"op": [keyed]}, operator_states={"op": [offsets]})

    assert snapshot.checkpoint_id == store.latest().checkpoint_id > 1


def test_a_job_begins_anew_on_purpose(store):
    with warnings.catch_warnings(), store.writer() as writer:
        warnings.simplefilter("error")
        snapshot = writer.checkpoint(
            {"op": [new_backend("c")]}, operator_states={"op": [new_offsets()]}, allow_dropped_state=True
        )

    assert snapshot.to_arrow("op.total").to_pylist() == [{"k": "c", "total": 1}]
