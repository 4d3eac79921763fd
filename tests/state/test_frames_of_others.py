"""Keys and values from others: series and frames of Polars and pandas, NumPy arrays, Arrow's PyCapsule protocol."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import KeyTypeError, NullKeyError, ValueTypeError
from stores import commit

USERS = ["ann", "bob", "ann"]


class Capsule:
    """Has the protocol for one array, and nothing else."""

    def __init__(self, values):
        self._array = pa.array(values)

    def __arrow_c_array__(self, requested_schema=None):
        return self._array.__arrow_c_array__(requested_schema)


SERIES = [pl.Series, pd.Series, Capsule, lambda values: pa.chunked_array([values])]


def backend_of(**columns):
    return arrowstate.KeyedStateBackend(key=pa.schema(list(columns.items())), max_parallelism=128)


@pytest.mark.parametrize("series", SERIES)
def test_series_are_keys_and_values_of_every_kind(series):
    backend = backend_of(user=pa.string())
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    count = backend.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))
    seen = backend.state(arrowstate.ListStateDescriptor("seen", pa.int64()))
    last = backend.state(arrowstate.ValueStateDescriptor("last", pa.int64()))
    by_page = backend.state(arrowstate.MapStateDescriptor("pages", pa.string(), pa.int64()))
    spaced = backend.state(
        arrowstate.ValueStateDescriptor("spaced", pa.int64(), namespace=pa.schema([("day", pa.int64())]))
    )
    timers = backend.timers()
    keys, numbers, pages = series(USERS), series([1, 2, 3]), series(["/", "/", "/cart"])

    total.add_batch(keys, numbers)
    count.add_batch(keys, pages)
    seen.add_batch(keys, numbers)
    last.update_batch(keys, numbers)
    by_page.put_batch(keys, pages, numbers)
    spaced.update_batch(keys, numbers, namespace=series([7, 7, 8]))
    timers.register_batch(keys, numbers)

    asked = series(["ann", "bob"])
    assert total.get_batch(asked).to_pylist() == [4, 2]
    assert count.get_batch(asked).to_pylist() == [2, 1]
    assert seen.get_batch(asked).to_pylist() == [[1, 3], [2]]
    assert last.get_batch(asked).to_pylist() == [3, 2]
    assert by_page.get_batch(asked, series(["/cart", "/"])).to_pylist() == [3, 2]
    assert spaced.get_batch(asked, namespace=series([8, 7])).to_pylist() == [3, 2]
    assert timers.pop_due(2).num_rows == 2


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame, pa.table])
def test_frames_are_keys_of_several_columns_and_structs(frame):
    backend = backend_of(user=pa.string(), device=pa.int64())
    kind = pa.struct([("n", pa.int64()), ("name", pa.string())])
    state = backend.state(arrowstate.ValueStateDescriptor("s", kind))
    keys = frame({"device": [1, 2, 1], "user": USERS})

    state.update_batch(keys, frame({"n": [1, 2, 3], "name": ["x", "y", "z"]}))

    assert state.get_batch(frame({"user": ["ann"], "device": [1]})).to_pylist() == [{"n": 3, "name": "z"}]
    with pytest.raises(KeyTypeError, match="user"):
        state.get_batch(frame({"user": ["ann"]}))


def test_a_snapshot_is_asked_by_series(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of(n=pa.int64())
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(np.arange(5), np.arange(5))
    snapshot = commit(store, {"op": [backend]})

    for keys in (pl.Series([3, 4]), pd.Series([3, 4]), np.array([3, 4]), Capsule([3, 4])):
        assert snapshot.lookup("op.v", keys)["v"].to_pylist() == [3, 4]


def test_what_does_not_fit_is_told_as_ever():
    backend = backend_of(user=pa.string())
    state = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))

    with pytest.raises(KeyTypeError, match="int64"):
        state.update_batch(pl.Series([1]), [1])
    with pytest.raises(NullKeyError, match="row 1"):
        state.update_batch(pl.Series(["a", None]), [1, 2])
    with pytest.raises(ValueTypeError, match="string"):
        state.update_batch(["a"], pl.Series(["x"]))
    assert len(state) == 0


def test_numpy_arrays_may_be_written_to_after_a_state_has_taken_them():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    value = backend.state(arrowstate.ValueStateDescriptor("value", pa.int64()))
    entries = backend.state(arrowstate.MapStateDescriptor("entries", pa.int64(), pa.int64()))
    elements = arrowstate.OperatorStateBackend().state(arrowstate.OperatorListStateDescriptor("elements", pa.int64()))
    given = np.array([5])

    value.update_batch(given, given)
    entries.put_batch(given, given, np.ma.masked_array(given, [True]))
    backend.timers().register_batch(given, given)
    elements.extend(given)
    given[0] = 6

    assert value.get_batch([5, 6]).to_pylist() == [5, None]
    assert entries.entries_batch([5, 6]).to_pylist() == [[(5, None)], []]
    assert backend.timers().pop_due(9).to_pylist() == [{"timestamp": 5, "k": 5}]
    assert elements.get() == [5]


@pytest.mark.parametrize("first", [0, 2])
def test_a_slice_of_structs_is_the_keys_of_its_own_rows(first):
    backend = backend_of(user=pa.string(), n=pa.int64())
    state = backend.state(arrowstate.ValueStateDescriptor("s", pa.int64()))
    keys = pa.array(
        [{"user": f"u{n}", "n": n} for n in range(6)], pa.struct([("user", pa.string()), ("n", pa.int64())])
    )

    state.update_batch(keys.slice(first, 3), range(3))

    assert len(state) == 3
    assert state.get_batch(keys.slice(first, 2)).to_pylist() == [0, 1]
