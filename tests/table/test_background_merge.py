"""A merge of frozen runs beside a table that is written to."""

from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import KeyedStateBackend, ListStateDescriptor, ReducingStateDescriptor, StorageFullError, TimeToLive
from arrowstate.table import kernels
from arrowstate.table.merging import MergePolicy
from arrowstate.table.spill import SpillSink
from stores import KEY, TOTAL, backend_of
from suites import Clock

PATIENT = MergePolicy(fan_in=1000, max_dead_share=1.0, segment_bytes=2000)


@pytest.fixture
def state():
    """Five runs of 1000 keys each, of which some rows are dead."""
    state = KeyedStateBackend(key=KEY, max_parallelism=128, merge_policy=PATIENT).state(TOTAL)
    for start in range(0, 5000, 1000):
        state.add_batch(range(start, start + 1000), [start] * 1000)
    state.clear_batch(range(0, 5000, 7))
    return state


def values(state):
    return state.get_batch(range(5000)).to_pylist()


def merge_of(state):
    merge = state.begin_merge(state.table.runs[:4])
    merge.run()
    return merge


def test_a_merged_run_takes_the_place_of_its_sources(state):
    before = values(state)

    assert state.table.adopt(merge_of(state))

    assert len(state.table.runs) == 2
    assert all(run.dead_rows == 0 for run in state.table.runs[1:])
    assert values(state) == before


def test_rows_that_died_while_it_was_merged_stay_dead(state):
    merge = merge_of(state)
    state.add_batch(range(100, 200), [1] * 100)
    state.clear_batch(range(3000, 3500))
    before = values(state)

    assert state.table.adopt(merge)

    assert values(state) == before
    assert len(state) == sum(value is not None for value in before)


def test_what_died_altogether_leaves_no_run(state):
    merge = merge_of(state)
    state.clear_batch(range(4000))

    assert state.table.adopt(merge)

    assert sum(run.live_rows > 0 for run in state.table.runs) == 1
    assert values(state)[:4000] == [None] * 4000


def test_a_merge_is_dropped_if_the_table_has_merged_a_source(state):
    merge = merge_of(state)
    state.table._policy = MergePolicy()
    state.clear_batch([4001, *range(700)])
    state.add_batch([4001], [5])
    before, runs = values(state), state.table.runs
    assert not any(run is source.run for run in runs for source in merge.sources[:1])

    assert not state.table.adopt(merge)

    assert state.table.runs == runs
    assert values(state) == before


def test_a_merge_is_dropped_if_the_table_went_back_to_when_a_dead_row_was_alive(state):
    before = values(state)
    mark = state.table.begin()
    state.clear_batch(range(1, 500))
    merge = merge_of(state)
    state.table.go_back(mark)

    assert not state.table.adopt(merge)

    assert values(state) == before


def test_going_back_to_before_it_was_adopted_brings_the_sources_back(state):
    before, mark = values(state), state.table.begin()
    assert state.table.adopt(merge_of(state))
    state.clear_batch(range(5000))

    state.table.go_back(mark)

    assert values(state) == before


@contextmanager
def interrupts(monkeypatch):
    """Has an interrupt come right after bits were cleared."""
    clear_bits = kernels.clear_bits

    def clear_and_raise(*arguments):
        clear_bits(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "clear_bits", clear_and_raise)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_an_interrupt_while_it_is_adopted_leaves_its_sources_and_it_can_be_adopted_again(state, monkeypatch):
    merge = merge_of(state)
    state.clear_batch(range(0, 5000, 11))
    before, rows = values(state), len(state)

    with interrupts(monkeypatch):
        state.table.adopt(merge)

    assert (values(state), len(state)) == (before, rows)
    assert state.table.adopt(merge)
    assert (values(state), len(state)) == (before, rows)


def test_an_interrupt_after_rows_were_dropped_brings_them_back(state, monkeypatch):
    before, rows = values(state), len(state)

    for verb in (lambda: state.add_batch(range(5000), [1] * 5000), lambda: state.clear_batch(range(2500))):
        with interrupts(monkeypatch):
            verb()
        assert (values(state), len(state)) == (before, rows)

    state.add_batch(range(5000), [1] * 5000)
    assert values(state) == [1 if value is None else value + 1 for value in before]
    assert len(state) == 5000


def test_a_merge_that_was_not_run_is_not_adopted(state):
    assert not state.table.adopt(state.begin_merge(state.table.runs[:2]))


def test_rows_with_equal_hashes_are_told_apart():
    """A null in a list leaves the hash alone, so all these keys share one; each dies in its own place."""
    key = pa.schema([("k", pa.list_(pa.int64()))])
    state = KeyedStateBackend(key=key, max_parallelism=128, merge_policy=PATIENT).state(TOTAL)
    keys = [[None] * number for number in range(60)]
    for start in range(0, 60, 20):
        state.add_batch(pa.array(keys[start : start + 20], key.field(0).type), list(range(start, start + 20)))
    merge = state.begin_merge(state.table.runs)
    merge.run()
    state.clear_batch(pa.array(keys[::3], key.field(0).type))

    assert state.table.adopt(merge)

    found = state.get_batch(pa.array(keys, key.field(0).type)).to_pylist()
    assert found == [None if number % 3 == 0 else number for number in range(60)]


def test_lists_keep_their_order():
    backend = KeyedStateBackend(key=KEY, max_parallelism=128, merge_policy=PATIENT)
    visits = backend.state(ListStateDescriptor("visits", pa.int64()))
    for turn in range(5):
        visits.add_batch(list(range(50)) * 2, [turn * 100 + number for number in range(100)])
    merge = visits.begin_merge(visits.table.runs[1:4])
    merge.run()
    visits.add_batch([7], [-1])
    visits.clear_batch([8])
    before = visits.get_batch(range(50)).to_pylist()

    assert visits.table.adopt(merge)

    assert visits.get_batch(range(50)).to_pylist() == before


def test_what_has_expired_is_left_out_and_what_was_renewed_meanwhile_is_not():
    clock = Clock(0)
    backend = KeyedStateBackend(key=KEY, max_parallelism=128, merge_policy=PATIENT, clock_ms=clock)
    seen = backend.state(ReducingStateDescriptor("seen", pa.int64(), reduce="sum", ttl=TimeToLive(100)))
    seen.add_batch(range(10), [1] * 10)
    clock.now_ms = 60
    seen.add_batch(range(10, 20), [1] * 10)
    clock.now_ms = 120
    merge = seen.begin_merge(seen.table.runs)
    merge.run()
    seen.add_batch([5, 15], [1, 1])

    assert seen.table.adopt(merge)

    assert len(seen) == 11
    assert seen.get_batch(range(20)).to_pylist() == [None] * 5 + [1] + [None] * 4 + [1] * 5 + [2] + [1] * 4


def test_a_disk_without_room_leaves_the_table_as_it_was(state, tmp_path, monkeypatch):
    def full(self, batch):
        raise StorageFullError(str(self._path), "no room")

    backend = backend_of(merge_policy=PATIENT, memory_budget_bytes=0, spill_dir=tmp_path)
    spilled = backend.state(TOTAL)
    for start in (0, 1000):
        spilled.add_batch(range(start, start + 1000), np.arange(1000))
    before, runs = values(spilled), spilled.table.runs
    merge = spilled.begin_merge(runs)
    monkeypatch.setattr(SpillSink, "append", full)

    with pytest.raises(StorageFullError):
        merge.run()

    assert not spilled.table.adopt(merge)
    assert spilled.table.runs == runs
    assert values(spilled) == before
    assert list(tmp_path.iterdir()) == []
