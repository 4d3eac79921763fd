"""Restoring at another parallelism and another max parallelism: slices of what is there, and no row rewritten."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.clock import new_id
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.reading import find_operator, find_state, open_runs, runs_by_state
from arrowstate.files.subtasks import read_states, subtasks_of
from arrowstate.files.writing import write_subtask
from arrowstate.schema.versions import RunSchemas
from arrowstate_formats.documents import OperatorDocument
from stores import KEY, NOTE, TOTAL, backend_of, commit

SCALES = [(1, 1), (1, 128), (2, 128), (3, 128), (4, 128), (3, 192), (5, 7), (7, 7), (2, 32768), (9, 100)]


def owned(keys, groups, max_parallelism):
    inside = np.isin(np.array(arrowstate.key_groups(keys, max_parallelism)), list(groups))
    return keys.filter(pa.array(inside))


def restore_all(snapshot, parallelism, max_parallelism=None):
    forget_open_files()
    return [
        snapshot.restore("op", parallelism=parallelism, subtask=subtask, max_parallelism=max_parallelism)
        for subtask in range(parallelism)
    ]


def check(backends, keys, model):
    """Each key is in its subtask with its value, and nowhere else."""
    rows = 0
    for backend in backends:
        own = owned(keys, backend.key_groups, backend.max_parallelism)
        state = backend.state(TOTAL)
        assert state.get_batch(own).to_pylist() == [model.get(key) for key in own.to_pylist()]
        rows += len(state)
    assert rows == len(model)


def write_in(backends, keys, value, model):
    for backend in backends:
        own = owned(keys, backend.key_groups, backend.max_parallelism)
        backend.state(TOTAL).add_batch(own, pa.array([value] * len(own), pa.int64()))
    for key in keys.to_pylist():
        model[key] = model.get(key, 0) + value


def clear_in(backends, keys, model):
    for backend in backends:
        backend.state(TOTAL).clear_batch(owned(keys, backend.key_groups, backend.max_parallelism))
    for key in keys.to_pylist():
        model.pop(key, None)


# Keys whose hashes are the lowest and the highest of each half.
AT_BORDERS = {
    -4360964622915849820: -(2**63),
    -5040612423211484345: -1,
    -365884300664092260: 0,
    -1080205089826481131: 2**63 - 1,
}


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(2, 128), (4, 4)])
def test_rows_at_the_very_ends_of_a_range_go_to_its_owner(store, parallelism, max_parallelism):
    keys = pa.array(AT_BORDERS)
    assert arrowstate.key_hash(keys).to_pylist() == [*AT_BORDERS.values()]
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch(keys, pa.array([1, 2, 3, 4]))
    snapshot = commit(store, {"op": [backend]})

    backends = restore_all(snapshot, parallelism, max_parallelism)

    check(backends, keys, dict(zip(keys.to_pylist(), [1, 2, 3, 4], strict=True)))


@pytest.mark.parametrize(
    ("watermarks", "expected"), [((20, 10), 10), ((10, 20), 10), ((20, None), None)], ids=["second", "first", "none"]
)
def test_a_subtask_of_several_goes_on_at_the_lowest_of_their_watermarks(store, watermarks, expected):
    backends = []
    for subtask, watermark in enumerate(watermarks):
        groups = arrowstate.key_group_range(128, parallelism=2, subtask=subtask)
        backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=groups)
        backend.state(TOTAL)
        if watermark is not None:
            backend.advance_watermark(watermark)
        backends.append(backend)
    snapshot = commit(store, {"op": backends})

    one, two = restore_all(snapshot, 1), restore_all(snapshot, 2)

    assert [backend.watermark for backend in one] == [expected]
    assert [backend.watermark for backend in two] == list(watermarks)


@pytest.fixture
def history(store):
    """A store whose last checkpoint has several runs with dead rows, and what it holds."""
    keys = pa.array(range(6000))
    backends = [
        backend_of(key_groups=arrowstate.key_group_range(128, parallelism=2, subtask=subtask)) for subtask in range(2)
    ]
    model = {}
    with store.writer() as writer:
        write_in(backends, keys, 1, model)
        writer.checkpoint({"op": backends})
        write_in(backends, keys.slice(1000, 500), 10, model)
        clear_in(backends, keys.slice(1400, 300), model)
        writer.checkpoint({"op": backends}, format="parquet")
        write_in(backends, keys.slice(0, 50), 100, model)
        writer.checkpoint({"op": backends})
    return keys, model


@pytest.mark.parametrize(("parallelism", "max_parallelism"), SCALES)
def test_a_restore_at_any_scale_equals_the_model_and_writes_nothing(
    store, files, history, parallelism, max_parallelism
):
    keys, model = history
    files.new()

    backends = restore_all(store.latest(), parallelism, max_parallelism)
    check(backends, keys, model)

    assert files.new() == []
    assert [backend.max_parallelism for backend in backends] == [max_parallelism] * parallelism
    assert [backend.key_groups for backend in backends] == [
        arrowstate.key_group_range(max_parallelism, parallelism=parallelism, subtask=subtask)
        for subtask in range(parallelism)
    ]


def test_max_parallelism_stays_as_it_is_unless_another_is_asked_for(store, history):
    assert {backend.max_parallelism for backend in restore_all(store.latest(), 3)} == {128}


def test_slices_of_slices_of_slices_hold_what_they_should(store, history):
    keys, model = history
    random = np.random.default_rng(3)

    with store.writer() as writer:
        for number, (parallelism, max_parallelism) in enumerate(SCALES):
            backends = restore_all(store.latest(), parallelism, max_parallelism)
            check(backends, keys, model)
            write_in(backends, pa.array(random.integers(0, 6000, 40)), number, model)
            clear_in(backends, pa.array(random.integers(0, 6000, 200)), model)

            writer.checkpoint({"op": backends}, format=("arrow", "parquet", "lance")[number % 3])

            check(backends, keys, model)
    check(restore_all(store.latest(), 4, 128), keys, model)


def test_a_rescaled_checkpoint_refers_to_slices_and_writes_no_run(store, files, history):
    keys, model = history
    with store.writer() as writer:
        files.new()
        for parallelism, max_parallelism in ((3, 192), (5, 7), (2, 128)):
            writer.checkpoint({"op": restore_all(store.latest(), parallelism, max_parallelism)})

    assert files.new("data/") == []
    check(restore_all(store.latest(), 1, 1), keys, model)


def test_slices_of_a_large_run_use_its_directory_at_every_scale(store, counts):
    keys = pa.array(range(100_000))
    model = dict(enumerate((np.arange(100_000) % 1000).tolist()))
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})
        for parallelism, max_parallelism in ((3, 128), (4, 96)):
            backends = restore_all(store.latest(), parallelism, max_parallelism)
            check(backends, keys, model)
            clear_in(backends, keys.slice(parallelism * 100, 50), model)
            writer.checkpoint({"op": backends})

    check(restore_all(store.latest(), 2, 7), keys, model)


def test_a_slice_of_a_large_run_is_written_to_another_store_with_a_directory_of_its_own(store, counts, tmp_path):
    other = arrowstate.open_store(tmp_path / "other", create=True)
    commit(store, {"op": [counts]})
    # Shares above 65,536 rows, so that each has a directory beside its file.
    for number, groups in enumerate([range(100), range(28, 128)]):
        backend = _restore_groups(store.latest(), groups)
        expected = owned(pa.array(range(100_000)), groups, 128)
        frozen = backend.freeze()
        written = write_subtask(other.storage, other.store_id, "op", 0, frozen, format="arrow", new_id=new_id)
        states = [state.document for state in frozen.states]
        document = OperatorDocument(
            uid="op", key=list(frozen.key), max_parallelism=128, states=states, subtasks=[written.document]
        )
        other.writer()._writer.commit([document], started_at_ms=number)
        forget_open_files()

        again = _restore_groups(other.latest(), groups)

        (states,) = [read_states(other.storage, written.document.manifest, "op")]
        assert states[0].runs[0].directory is not None
        assert again.state(TOTAL).get_batch(expected).to_pylist() == [key % 1000 for key in expected.to_pylist()]


def _restore_groups(snapshot, groups):
    """A backend of key groups that no subtask of a usual scale owns."""
    chosen = arrowstate.KeyGroupRange(groups[0], groups[-1])
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=chosen)
    backend._add(TOTAL, tuple(run for run, _ in _open(snapshot, chosen.hash_bounds(128))))
    return backend


def _open(snapshot, hash_bounds, name="total"):
    operator = find_operator(snapshot.entry, "op")
    schemas = RunSchemas(operator.key, find_state(snapshot.entry, operator, name))
    subtasks = subtasks_of(snapshot.storage, operator, hash_bounds)
    documents = runs_by_state(snapshot.storage, operator, subtasks)[name]
    return open_runs(snapshot.storage, snapshot.store_id, documents, schemas, hash_bounds=hash_bounds)


def test_rescaling_reads_little_more_than_it_needs(store):
    backends = [
        backend_of(key_groups=arrowstate.key_group_range(128, parallelism=4, subtask=subtask)) for subtask in range(4)
    ]
    write_in(backends, pa.array(range(400_000)), 1, {})
    snapshot = commit(store, {"op": backends})

    def bytes_read(parallelism):
        groups = [
            arrowstate.key_group_range(128, parallelism=parallelism, subtask=subtask) for subtask in range(parallelism)
        ]
        return sum(size for of_subtask in groups for _, size in _open(snapshot, of_subtask.hash_bounds(128)))

    assert bytes_read(1) <= bytes_read(3) <= 1.1 * bytes_read(1)
    assert bytes_read(4) == bytes_read(1)


def test_every_state_of_an_operator_is_restored(store):
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch([1, 2], [5, 6])
    backend.state(NOTE).update_batch([1, 3], ["a", "b"])
    commit(store, {"op": [backend], "other": [arrowstate.KeyedStateBackend(key=KEY, max_parallelism=4)]})

    restored = store.latest().restore("op")

    assert restored.state_names == ("total", "note")
    assert restored.state(NOTE).get_batch([1, 2, 3]).to_pylist() == ["a", None, "b"]
    assert store.latest().restore("other").state_names == ()
    assert store.latest().restore("other").max_parallelism == 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"parallelism": 0},
        {"parallelism": 129},
        {"parallelism": 2, "subtask": 2},
        {"subtask": -1},
        {"max_parallelism": 0},
        {"max_parallelism": 32769},
        {"parallelism": 9, "max_parallelism": 8},
    ],
    ids=str,
)
def test_a_scale_that_does_not_exist_is_refused(store, history, arguments):
    with pytest.raises(arrowstate.InvalidInputError):
        store.latest().restore("op", **arguments)


def test_a_name_that_does_not_exist_lists_those_that_do(store, history):
    snapshot = store.latest()

    with pytest.raises(arrowstate.OperatorNotFoundError, match="'po'.*'op'"):
        snapshot.restore("po")
    with pytest.raises(arrowstate.StateNotFoundError, match="'totl' of operator 'op' in checkpoint 3; it has 'total'"):
        _open(snapshot, None, "totl")


def test_restored_backends_do_not_touch_each_other(store, history):
    keys, model = history
    one, other = (restore_all(store.latest(), 2) for _ in range(2))

    write_in(one, keys, 5, {})
    clear_in(one, keys.slice(0, 3000), {})

    check(other, keys, model)
    check(restore_all(store.latest(), 3), keys, model)


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance"])
def test_a_group_that_no_key_is_in_is_an_empty_subtask(store, format):
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch([1], [1])
    commit(store, {"op": [backend]}, format=format)

    backends = restore_all(store.latest(), 128)

    assert sorted(len(backend.state(TOTAL)) for backend in backends) == [0] * 127 + [1]
    commit(store, {"op": backends})
    check(restore_all(store.latest(), 2), pa.array([1, 2]), {1: 1})


def test_the_parts_of_every_scale_add_up_to_the_whole(store, history):
    _, model = history

    for parallelism, max_parallelism in itertools.product((1, 2, 5), (5, 64)):
        parts = restore_all(store.latest(), parallelism, max_parallelism)

        assert sum(len(part.state(TOTAL)) for part in parts) == len(model)
