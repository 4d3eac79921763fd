"""Different keys with one and the same key hash, through the public API to the last byte.

XXH64 of a value of 8 bytes is a chain of invertible steps, so for any two first columns there are second
columns that give the composite keys (a1, b1) and (a2, b2) one hash. A null inside a struct, and an empty list
inside a list, collide without any art, because nulls and empty lists leave the hash alone.
"""

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import KeyedStateBackend, ReducingStateDescriptor, ValueStateDescriptor, key_hash, open_store
from arrowstate.files.open_files import forget_open_files
from arrowstate.table.merging import MergePolicy
from stores import commit

MASK = 2**64 - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
COMPOSITE = pa.schema([("a", pa.int64()), ("b", pa.int64())])
SMALL = MergePolicy(fan_in=2, first_tier_rows=4)


def rotate_right(value, bits):
    return (value >> bits | value << (64 - bits)) & MASK


def invert(factor):
    return pow(factor, -1, 2**64)


def unshift(value, bits):
    """The x of which value is x ^ (x >> bits)."""
    result = value
    for _ in range(64 // bits):
        result = value ^ (result >> bits)
    return result


def value_with_hash(target, seed):
    """The int64 whose XXH64 with a seed is the target."""
    h = unshift(target & MASK, 32) * invert(P3) & MASK
    h = unshift(h, 29) * invert(P2) & MASK
    h = unshift(h, 33)
    h = rotate_right((h - P4) * invert(P1) & MASK, 27)
    k = (h ^ (seed + P5 + 8)) & MASK
    value = rotate_right(k * invert(P1) & MASK, 31) * invert(P2) & MASK
    return value - 2**64 if value >= 2**63 else value


def colliding(count, target=None):
    """Keys (a, b) that all have one hash."""
    first = key_hash(pa.array(range(count)))
    if target is None:
        target = key_hash(pa.record_batch({"a": [0], "b": [0]}))[0].as_py()
    rows = [(a, value_with_hash(target, first[a].as_py() & MASK)) for a in range(count)]
    return pa.record_batch({"a": [a for a, _ in rows], "b": [b for _, b in rows]})


def several_hashes():
    """Forty keys: ten with each of three hashes, and ten with hashes of their own."""
    batches = [colliding(10, target) for target in (-(2**63), 5, 2**63 - 1)]
    batches.append(pa.record_batch({"a": list(range(100, 110)), "b": list(range(10))}))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def rows(snapshot, name):
    return {(row["a"], row["b"]): row["v"] for row in snapshot.to_arrow(name).to_pylist()}


def test_the_keys_are_different_and_their_hashes_are_not():
    keys = colliding(50)

    assert len(set(key_hash(keys).to_pylist())) == 1
    assert len(set(keys["b"].to_pylist())) == 50


@pytest.mark.parametrize("policy", [None, SMALL], ids=["one_run", "merged_often"])
def test_colliding_keys_keep_their_own_values(policy):
    keys = several_hashes()
    order = np.random.default_rng(3).permutation(len(keys))
    backend = KeyedStateBackend(key=COMPOSITE, max_parallelism=128, merge_policy=policy)
    total = backend.state(ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    model = dict.fromkeys(range(len(keys)), 0)

    for start in range(0, 40, 5):
        rows = np.concatenate((order[start : start + 5], order[:3]))
        total.add_batch(keys.take(pa.array(rows)), pa.array(rows + 1))
        for row in rows.tolist():
            model[row] += row + 1

    assert total.get_batch(keys).to_pylist() == list(model.values())
    total.clear_batch(keys.take(pa.array([0, 11, 39])))
    model.update({0: None, 11: None, 39: None})
    assert total.get_batch(keys).to_pylist() == list(model.values())
    assert len(total) == 37


def test_scalar_verbs_tell_colliding_keys_apart():
    keys = colliding(6).to_pylist()
    backend = KeyedStateBackend(key=COMPOSITE, max_parallelism=128)
    state = backend.state(ValueStateDescriptor("v", pa.int64()))

    for number, key in enumerate(keys):
        backend.current_key = key
        state.update(number)
    state.flush()
    backend.current_key = keys[2]
    state.clear()

    got = []
    for key in keys:
        backend.current_key = key
        got.append(state.value())
    assert got == [0, 1, None, 3, 4, 5]


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance"])
def test_colliding_keys_survive_checkpoint_restore_rescale_lookup_and_savepoint(tmp_path, format):
    keys = several_hashes()
    backend = KeyedStateBackend(key=COMPOSITE, max_parallelism=128)
    state = backend.state(ValueStateDescriptor("v", pa.int64()))
    state.update_batch(keys.slice(0, 25), pa.array(range(25)))
    store = open_store(tmp_path / "store", create=True)
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]}, format=format)
        state.update_batch(keys.slice(20), pa.array(range(20, 40)))
        state.clear_batch(keys.slice(3, 2))
        snapshot = writer.checkpoint({"op": [backend]}, format=format)
    expected = [None if row in (3, 4) else row for row in range(40)]
    model = {(key["a"], key["b"]): row for row, key in enumerate(keys.to_pylist()) if row not in (3, 4)}
    forget_open_files()
    absent = colliding(12).slice(10)

    for place in (snapshot, store.savepoint("copy")):
        assert rows(place, "op.v") == model
        found = {(row["a"], row["b"]): row["v"] for row in place.lookup("op.v", keys).to_pylist()}
        assert {key: value for key, value in found.items() if value is not None} == model
        assert [row["v"] for row in place.lookup("op.v", absent).to_pylist() if row["v"] is not None] == []
        restored = place.restore("op").state(state.descriptor)
        assert restored.get_batch(keys).to_pylist() == expected
        assert restored.get_batch(absent).to_pylist() == [None, None]
        parts = [place.restore("op", parallelism=3, subtask=i, max_parallelism=96) for i in range(3)]
        assert sum(len(part.state(state.descriptor)) for part in parts) == 38


def test_the_two_halves_of_a_collision_in_different_checkpoints_stay_apart(tmp_path):
    keys = colliding(2)
    backend = KeyedStateBackend(key=COMPOSITE, max_parallelism=128)
    state = backend.state(ValueStateDescriptor("v", pa.int64()))
    store = open_store(tmp_path / "store", create=True)

    with store.writer() as writer:
        state.update_batch(keys.slice(0, 1), [1])
        writer.checkpoint({"op": [backend]})
        backend = store.latest().restore("op")
        state = backend.state(state.descriptor)
        state.update_batch(keys.slice(1), [2])
        writer.checkpoint({"op": [backend]})
        state.update_batch(keys.slice(0, 1), [3])
        writer.checkpoint({"op": [backend]})

    restored = store.latest().restore("op").state(state.descriptor)
    assert restored.get_batch(keys).to_pylist() == [3, 2]


STRUCT = pa.struct([("a", pa.int64()), ("b", pa.int64())])
NATURAL = {
    "null_fields": (STRUCT, [{"a": 1, "b": None}, {"a": None, "b": 1}]),
    "empty_lists": (pa.list_(pa.list_(pa.int64())), [[[1], []], [[], [1]], [[1]], [None, [1]]]),
    "all_null": (STRUCT, [{"a": None, "b": None}]),
    "null_elements": (pa.list_(pa.string()), [["a", None], [None, "a"], ["a"]]),
}


@pytest.mark.parametrize("name", NATURAL)
def test_nested_keys_that_collide_by_nature_are_different_keys(tmp_path, name):
    kind, values = NATURAL[name]
    keys = pa.array(values, kind)
    assert len(set(key_hash(pa.record_batch([keys], ["k"])).to_pylist())) == 1
    backend = KeyedStateBackend(key=pa.schema([("k", kind)]), max_parallelism=128)
    state = backend.state(ValueStateDescriptor("v", pa.int64()))
    store = open_store(tmp_path / "store", create=True)

    state.update_batch(keys, range(len(values)))
    state.update_batch(keys.slice(0, 1), [100])
    snapshot = commit(store, {"op": [backend]})

    expected = [100, *range(1, len(values))]
    assert state.get_batch(keys).to_pylist() == expected
    assert snapshot.restore("op").state(state.descriptor).get_batch(keys).to_pylist() == expected
    backend.current_key = values[-1]
    assert state.value() == expected[-1]
