"""Batches of keys: some rows of a batch that is grouped already, and one grouping for several states."""

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.table.key_batch import KeyBatch


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rows", [0, 1, 200])
def test_some_rows_of_a_batch_are_grouped_as_if_they_were_all(share, rows):
    random = np.random.default_rng(rows)
    # Few hashes, and two keys with each of them.
    keys = random.integers(0, 24, rows)
    kept = random.random(rows) < share
    whole = KeyBatch.of(keys // 2, [pa.array(keys)])

    found = whole.of_rows(kept)

    expected = KeyBatch.of(keys[kept] // 2, [pa.array(keys[kept])])
    assert found.row_count == expected.row_count
    assert sorted(zip(found.hashes, found.columns[0].to_pylist(), strict=True)) == sorted(
        zip(expected.hashes, expected.columns[0].to_pylist(), strict=True)
    )
    assert found.columns[0].take(pa.array(found.groups())).equals(pa.array(keys[kept]))
    assert all(np.all(np.diff(found.order[a:b]) > 0) for a, b in zip(found.starts, found.starts[1:], strict=False))


def test_states_of_one_backend_share_a_grouping():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    last = backend.state(arrowstate.ValueStateDescriptor("last", pa.int64()))
    mean = backend.state(arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean"))
    grouped = backend.group_keys(pa.array([3, 1, 3]))

    total.add_batch(grouped, [1, 2, 3])
    last.update_batch(grouped, [1, 2, 3])
    mean.add_batch(grouped, [1, 2, 3])

    assert [state.get_batch([3, 1]).to_pylist() for state in (total, last, mean)] == [[4, 2], [3, 2], [2.0, 2.0]]


def test_one_row_of_a_large_column_does_not_keep_the_column():
    column = pa.array(np.arange(100_000)).slice(70_000, 1)

    batch = KeyBatch.of(np.array([5]), [column])

    assert batch.columns[0].to_pylist() == [70_000]
    assert batch.columns[0].get_total_buffer_size() < 1_000
    assert batch.groups().tolist() == [0]
    assert batch.last_rows().tolist() == [0]
