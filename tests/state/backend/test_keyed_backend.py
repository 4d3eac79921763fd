"""The keyed backend of a subtask: its arguments, its states, freezing."""

import dataclasses

import pyarrow as pa
import pytest

import arrowstate
from stores import USER, backend_of, commit

DELAYS = pa.struct([("n", pa.int64()), ("total", pa.int64())])


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_parallelism": 0},
        {"max_parallelism": 32769},
        {"max_parallelism": 128, "key_groups": arrowstate.KeyGroupRange(0, 128)},
        {"max_parallelism": 128, "memory_budget_bytes": -1},
        {"max_parallelism": 128, "key": pa.schema([])},
        {"max_parallelism": 128, "key": pa.schema([("k", pa.map_(pa.string(), pa.int64()))])},
    ],
    ids=str,
)
def test_an_argument_out_of_range_is_refused(arguments):
    with pytest.raises(arrowstate.InvalidInputError):
        arrowstate.KeyedStateBackend(**{"key": USER, **arguments})


def test_a_backend_owns_all_key_groups_unless_told_otherwise(backend):
    assert backend.key_groups == arrowstate.KeyGroupRange(0, 127)
    assert backend_of(
        USER, max_parallelism=7, key_groups=arrowstate.KeyGroupRange(6, 6)
    ).key_groups == arrowstate.KeyGroupRange(6, 6)


SAME_NAME = [
    arrowstate.ValueStateDescriptor("s", pa.int64()),
    arrowstate.ValueStateDescriptor("s", pa.string()),
    arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum"),
    arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="max"),
    arrowstate.ReducingStateDescriptor("s", DELAYS, reduce={"n": "count", "total": "sum"}),
    arrowstate.ReducingStateDescriptor("s", DELAYS, reduce={"n": "sum", "total": "sum"}),
]

WIDER = {(1, 0)}
"Stored and declared, where each stored value is one of the declared type."


@pytest.mark.parametrize("number", range(len(SAME_NAME)))
def test_a_name_used_with_another_kind_type_or_reducer_is_refused_at_once(backend, number):
    state = backend.state(SAME_NAME[number])

    for descriptor in [*SAME_NAME[:number], *SAME_NAME[number + 1 :]]:
        with pytest.raises(arrowstate.IncompatibleStateError, match="state 's'"):
            backend.state(descriptor)

    assert backend.state(SAME_NAME[number]) is state
    assert backend.state_names == ("s",)


def test_a_name_used_with_another_default_is_refused(backend):
    state = backend.state(arrowstate.ValueStateDescriptor("s", pa.int64(), default=1))

    with pytest.raises(arrowstate.InvalidInputError, match="the default 1, got the default 2"):
        backend.state(arrowstate.ValueStateDescriptor("s", pa.int64(), default=2))

    assert backend.state(arrowstate.ValueStateDescriptor("s", pa.int64(), default=1)) is state


def test_names_must_differ_in_more_than_case(backend):
    backend.state(arrowstate.ValueStateDescriptor("clicks", pa.int64()))

    with pytest.raises(arrowstate.InvalidInputError, match="'clicks' exists"):
        backend.state(arrowstate.ValueStateDescriptor("Clicks", pa.int64()))


def test_a_state_whose_columns_clash_with_the_key_is_refused_and_not_kept():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64()), ("s_n", pa.int64())]), max_parallelism=128)

    with pytest.raises(arrowstate.InvalidInputError, match="clash"):
        backend.state(arrowstate.ValueStateDescriptor("s", pa.struct([("n", pa.int64())])))

    assert backend.state_names == ()


def test_what_is_no_descriptor_is_refused(backend):
    with pytest.raises(arrowstate.InvalidInputError, match="descriptor"):
        backend.state("clicks")


def restored(store, backend):
    with store.writer() as writer:
        return writer.checkpoint({"op": [backend]}).restore("op")


@pytest.mark.parametrize("number", range(len(SAME_NAME)))
def test_a_restored_state_is_taken_up_by_its_own_descriptor_or_a_wider_one(store, backend, number):
    backend.state(SAME_NAME[number])
    again = restored(store, backend)
    refused = [other for other in range(len(SAME_NAME)) if other != number and (number, other) not in WIDER]

    for other in refused:
        with pytest.raises(arrowstate.IncompatibleStateError, match="state 's"):
            again.state(SAME_NAME[other])

    assert again.state(SAME_NAME[number]).descriptor == SAME_NAME[number]


def test_a_restored_state_gets_its_default_from_the_first_descriptor(store, backend):
    backend.state(arrowstate.ValueStateDescriptor("s", pa.int64(), default=1)).update_batch(["ann"], [5])
    again = restored(store, backend)

    state = again.state(arrowstate.ValueStateDescriptor("s", pa.int64(), default=7))

    assert state.get_batch(["ann", "bob"]).to_pylist() == [5, 7]
    with pytest.raises(arrowstate.InvalidInputError, match="default 7"):
        again.state(arrowstate.ValueStateDescriptor("s", pa.int64(), default=1))


def test_a_state_that_no_operator_touches_survives_into_the_next_snapshot(store, backend):
    used = arrowstate.ValueStateDescriptor("used", pa.int64())
    untouched = arrowstate.ReducingStateDescriptor("untouched", pa.int64(), reduce="sum")
    backend.state(used).update_batch(["ann"], [1])
    backend.state(untouched).add_batch(["ann", "bob"], [5, 6])
    with store.writer() as writer:
        for number in range(3):
            backend = writer.checkpoint({"op": [backend]}).restore("op", parallelism=1)
            assert backend.state_names == ("used", "untouched")
            backend.state(used).update_batch(["ann"], [number])

    last = store.latest().restore("op")

    assert last.state(untouched).get_batch(["ann", "bob"]).to_pylist() == [5, 6]


def contents(frozen):
    return {
        state.document.name: sorted(
            (row["user"], row[state.document.name])
            for run in state.table.runs
            for batch in run.live_batches()
            for row in batch.to_pylist()
        )
        for state in frozen.states
    }


def test_a_frozen_subtask_does_not_change_when_the_backend_does(backend):
    city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    city.update_batch(["ann", "bob"], ["Rome", "Oslo"])
    clicks.add_batch(["ann"], [1])
    backend.current_key = "eve"
    city.update("Lima")

    frozen = backend.freeze()
    city.update_batch(["ann", "bob", "zoe"], ["Bonn", None, "Kiev"])
    clicks.add_batch(["ann", "bob"], [10, 10])
    backend.state(arrowstate.ValueStateDescriptor("late", pa.int64()))
    city.clear()

    assert contents(frozen) == {
        "city": [("ann", "Rome"), ("bob", "Oslo"), ("eve", "Lima")],
        "clicks": [("ann", 1)],
    }
    assert city.get_batch(["ann", "bob", "eve"]).to_pylist() == ["Bonn", None, None]


def test_a_backend_without_states_or_rows_makes_a_checkpoint(store, backend):
    again = restored(store, backend)
    assert again.state_names == ()
    state = again.state(arrowstate.ValueStateDescriptor("s", pa.int64()))

    last = restored(store, again)

    assert len(last.state(state.descriptor)) == 0
    assert last.state(state.descriptor).get_batch(["ann"]).to_pylist() == [None]


def test_a_budget_holds_for_a_restored_backend_too(tmp_path, store, backend):
    clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    names = [f"user {number}" for number in range(5000)]
    backend.state(clicks).add_batch(names, [1] * 5000)
    snapshot = commit(store, {"op": [backend]})
    spill = tmp_path / "spill"

    again = snapshot.restore("op", memory_budget_bytes=50_000, spill_dir=spill)
    for _ in range(20):
        again.state(clicks).add_batch(names[::2], [1] * 2500)

    assert again.state(clicks).get_batch(names[:2]).to_pylist() == [21, 1]
    assert list(spill.iterdir()) == []
    unbounded = snapshot.restore("op")
    for _ in range(20):
        unbounded.state(clicks).add_batch(names[::2], [1] * 2500)
    assert again.memory_bytes < unbounded.memory_bytes


def test_the_states_of_a_backend_share_its_budget(tmp_path):
    budget = 3_000_000
    backend = backend_of(max_parallelism=8, memory_budget_bytes=budget, spill_dir=tmp_path)
    states = [backend.state(arrowstate.ValueStateDescriptor(f"s{n}", pa.int64())) for n in range(4)]
    keys = pa.array(range(50_000))

    for _ in range(3):
        for state in states:
            state.update_batch(keys, keys)

    # What was written last is spilled by the next write.
    last = 50_000 * 24
    assert backend.memory_bytes <= budget + last
    assert all(state.get_batch(keys).equals(keys) for state in states)


def test_freezing_moves_scalar_writes_into_a_run_and_merges_nothing():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    state = backend.state(arrowstate.ValueStateDescriptor("s", pa.int64()))
    for start in range(0, 80, 10):
        state.update_batch(list(range(start, start + 10)), list(range(10)))
    backend.current_key = 1000
    state.update(7)

    frozen = backend.freeze().states[0].table

    assert [run.live_rows for run in frozen.runs] == [10] * 8 + [1]


def test_rows_that_had_no_time_when_they_got_a_time_to_live_have_one_once_they_are_written_again(store, backend):
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    mean = arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean")
    for descriptor in (total, mean):
        backend.state(descriptor).add_batch(["ann", "bob"], [1, 1])
    commit(store, {"op": [backend]})
    restored = store.latest().restore("op")
    ttl = arrowstate.TimeToLive(100, clock="event_time")
    states = [restored.state(dataclasses.replace(descriptor, ttl=ttl)) for descriptor in (total, mean)]
    for state in states:
        state.add_batch(["ann"], [3], timestamps=[50])
    restored.advance_watermark(149)
    before = [state.get_batch(["ann", "bob"]).to_pylist() for state in states]

    restored.advance_watermark(150)

    assert before == [[4, 1], [2, 1]]
    assert [state.get_batch(["ann", "bob"]).to_pylist() for state in states] == [[None, 1], [None, 1]]
