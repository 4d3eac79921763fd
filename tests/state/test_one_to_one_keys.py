"""Where hashes of keys are one-to-one the keys are not compared; what else tells rows apart still is."""

import pyarrow as pa
import pytest

import arrowstate

WINDOW = pa.schema([("window", pa.int64())])
KEYS = pa.array([1, 2, 1, 2])
WINDOWS = pa.array([10, 10, 20, 20])


@pytest.fixture
def backend():
    return arrowstate.KeyedStateBackend(key=pa.schema([("key", pa.int64())]), max_parallelism=8)


def test_lists_of_one_key_in_two_namespaces_stay_apart(backend):
    state = backend.state(arrowstate.ListStateDescriptor("s", pa.string(), namespace=WINDOW))
    state.add_batch(KEYS, ["a", "b", "c", "d"], namespace=WINDOWS)

    before = state.get_batch(KEYS, namespace=WINDOWS).to_pylist()
    state.clear_batch([1], namespace=10)
    after = state.get_batch(KEYS, namespace=WINDOWS).to_pylist()

    assert before == [["a"], ["b"], ["c"], ["d"]]
    assert after == [[], ["b"], ["c"], ["d"]]


def test_maps_of_one_key_in_two_namespaces_stay_apart(backend):
    state = backend.state(arrowstate.MapStateDescriptor("s", pa.int64(), pa.string(), namespace=WINDOW))
    state.put_batch(KEYS, [7, 7, 7, 7], ["a", "b", "c", "d"], namespace=WINDOWS)

    before = state.entries_batch(KEYS, namespace=WINDOWS).to_pylist()
    state.clear_batch([1], namespace=10)
    after = state.get_batch(KEYS, [7, 7, 7, 7], namespace=WINDOWS).to_pylist()

    assert before == [[(7, "a")], [(7, "b")], [(7, "c")], [(7, "d")]]
    assert after == [None, "b", "c", "d"]


@pytest.mark.parametrize(
    "descriptor",
    [
        arrowstate.ValueStateDescriptor("s", pa.int64(), namespace=WINDOW),
        arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum", namespace=WINDOW),
    ],
    ids=["value", "reducing"],
)
def test_values_of_one_key_in_two_namespaces_stay_apart(backend, descriptor):
    state = backend.state(descriptor)
    write = state.update_batch if descriptor.kind == "value" else state.add_batch
    write(KEYS, [1, 2, 3, 4], namespace=WINDOWS)

    before = state.get_batch(KEYS, namespace=WINDOWS).to_pylist()
    state.clear_batch([1], namespace=10)
    after = state.get_batch(KEYS, namespace=WINDOWS).to_pylist()

    assert before == [1, 2, 3, 4]
    assert after == [None, 2, 3, 4]
