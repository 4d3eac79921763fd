"""Reducing state whose reducer is a plain Python callable."""

import pyarrow as pa
import pytest

import arrowstate

USER = pa.schema([("user", pa.string())])


def longest(old, new):
    return max(old, new, key=len)


def state_of(reduce, kind=pa.string(), **options):
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
    return backend, backend.state(arrowstate.ReducingStateDescriptor("best", kind, reduce=reduce, **options))


def test_values_are_folded_in_their_order_in_batches_and_one_by_one():
    backend, state = state_of(lambda old, new: old + new)

    state.add_batch(["a", "b", "a"], ["x", "y", "z"])
    backend.current_key = "a"
    state.add("1")
    state.add("2")
    state.add_batch(["a", "b"], ["3", "4"])

    assert state.get_batch(["a", "b", "c"]).to_pylist() == ["xz123", "y4", None]
    assert state.get() == "xz123"


def test_a_null_clears_and_so_does_a_callable_that_returns_none():
    _, state = state_of(lambda old, new: None if new == "stop" else old + new)

    state.add_batch(["a", "a", "a", "b", "b", "b"], ["x", None, "y", "p", "stop", "q"])
    state.add_batch(["a"], ["stop"])

    assert state.get_batch(["a", "b"]).to_pylist() == [None, "q"]
    assert len(state) == 1


def test_an_exception_in_the_middle_of_a_batch_names_the_row_and_leaves_the_state():
    def careful(old, new):
        return old + 10 // new

    _, state = state_of(careful, pa.int64())
    state.add_batch(["a", "b"], [1, 1])

    with pytest.raises(arrowstate.ProcessElementError, match="row 2: ZeroDivisionError") as caught:
        state.add_batch(["b", "a", "a"], [5, 5, 0])

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert state.get_batch(["a", "b"]).to_pylist() == [1, 1]


@pytest.mark.parametrize("bad", ["text", 1.5, 1 << 70])
def test_a_result_that_does_not_fit_names_the_row_and_leaves_the_state(bad):
    backend, state = state_of(lambda old, new: bad if new == 7 else old + new, pa.int64())
    state.add_batch(["a", "b"], [1, 1])

    with pytest.raises(arrowstate.ProcessElementError, match="row 1: values of state 'best' must be int64"):
        state.add_batch(["b", "a"], [5, 7])
    backend.current_key = "a"
    with pytest.raises(arrowstate.ValueTypeError):
        state.add(7)

    assert state.get_batch(["a", "b"]).to_pylist() == [1, 1]


def test_namespaces_are_merged_by_the_callable():
    _, state = state_of(longest, namespace=pa.schema([("w", pa.int64())]))
    state.add_batch(["a"] * 3, ["x", "yyy", "zz"], namespace=pa.array([1, 2, 3]))

    state.merge_namespaces_batch(["a"] * 2, 1, pa.array([2, 3]))

    assert state.get_batch(["a"], namespace=1).to_pylist() == ["yyy"]


def test_a_snapshot_keeps_the_name_and_a_restored_state_needs_the_descriptor():
    backend, state = state_of(longest)
    state.add_batch(["a"], ["xx"])
    store = arrowstate.open_store("memory://callable", create=True)
    writer = store.writer()
    checkpoint = writer.checkpoint({"op": [backend]})
    document = checkpoint.entry.operators[0].states[0]
    untouched = writer.checkpoint({"op": [checkpoint.restore("op")]})
    restored = untouched.restore("op")

    with pytest.raises(arrowstate.IncompatibleStateError, match="reduced by a Python callable"):
        restored.state(arrowstate.ReducingStateDescriptor("best", pa.string(), reduce="max"))
    again = restored.state(arrowstate.ReducingStateDescriptor("best", pa.string(), reduce=longest))
    again.add_batch(["a"], ["yyy"])

    assert document.reduce is None
    assert document.reduce_callable.endswith("test_callable_reducers.longest")
    assert untouched.entry.operators[0].states[0].reduce_callable == document.reduce_callable
    assert again.get_batch(["a"]).to_pylist() == ["yyy"]
    assert store.sql("select best from op.best").fetchall() == [("xx",)]


def test_one_state_has_one_callable():
    backend, _ = state_of(longest)

    with pytest.raises(arrowstate.InvalidInputError, match="in use with"):
        backend.state(arrowstate.ReducingStateDescriptor("best", pa.string(), reduce=lambda old, new: new))
    with pytest.raises(arrowstate.InvalidInputError, match="or a callable; got 5"):
        arrowstate.ReducingStateDescriptor("best", pa.string(), reduce=5)
