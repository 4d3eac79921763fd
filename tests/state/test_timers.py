"""Timers: a set of timestamps per key, fired in the order of time, part of checkpoints."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowstate
from arrowstate.cli import main
from arrowstate.errors import IncompatibleStateError, InvalidInputError, NullKeyError, ValueTypeError
from arrowstate.state import timers as timers_module
from arrowstate.table.merging import MergePolicy

KEY = pa.schema([("user", pa.string())])
WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])
HIGHEST = (1 << 63) - 1
EAGER = MergePolicy(fan_in=2, first_tier_rows=4)


def backend_of(**arguments):
    return arrowstate.KeyedStateBackend(**{"key": KEY, "max_parallelism": 16, "clock_ms": lambda: 0} | arguments)


def fired_by(timers, watermark, on_timer=None):
    fired = []

    def call(timer):
        fired.append((timer.timestamp, timer.key))
        if on_timer is not None:
            on_timer(timer)

    assert timers.advance_watermark(watermark, call) == len(fired)
    return fired


def test_timers_fire_once_in_the_order_of_time_up_to_the_watermark():
    timers = backend_of().timers()
    timers.register_batch(["a", "b", "a", "c"], [30, 10, 20, 40])

    assert fired_by(timers, 30) == [(10, "b"), (20, "a"), (30, "a")]
    assert fired_by(timers, 39) == []
    assert fired_by(timers, 40) == [(40, "c")]
    assert len(timers) == 0


def test_registering_twice_is_one_timer_and_deleting_an_absent_one_does_nothing():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a", "a"], [1, 1])
    timers.register_batch(["a"], [1])
    backend.current_key = "a"
    timers.register_event_time_timer(1)

    timers.delete_batch(["a", "b"], [2, 1])
    timers.delete_event_time_timer(7)

    assert timers.count() == 1
    assert fired_by(timers, 5) == [(1, "a")]


def test_a_deleted_timer_does_not_fire():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a", "a", "b"], [1, 2, 1])
    backend.current_key = "b"
    timers.register_event_time_timer(3)

    timers.delete_batch(["a"], [1])
    timers.delete_event_time_timer(3)

    assert fired_by(timers, 9) == [(1, "b"), (2, "a")]


def test_scalar_and_batch_verbs_see_each_other():
    backend = backend_of()
    timers = backend.timers()
    backend.current_key = "a"

    timers.register_event_time_timer(5)
    timers.delete_batch(["a"], [5])
    timers.register_batch(["a"], [6])
    timers.delete_event_time_timer(6)
    timers.register_event_time_timer(6)

    assert timers.pop_due(10).to_pylist() == [{"timestamp": 6, "user": "a"}]


def test_popping_returns_all_that_is_due_as_one_sorted_batch():
    timers = backend_of().timers()
    timers.register_batch([f"u{n % 7}" for n in range(100)], list(range(100, 0, -1)))

    popped = timers.pop_due(60)

    assert popped.schema.names == ["timestamp", "user"]
    assert popped["timestamp"].to_pylist() == list(range(1, 61))
    assert timers.count() == 40
    assert timers.pop_due(60).num_rows == 0
    assert timers.pop_due(60).schema == popped.schema


def test_the_key_is_set_while_a_timer_fires_and_set_back_afterwards():
    backend = backend_of()
    counts = backend.state(arrowstate.ReducingStateDescriptor("counts", pa.int64(), reduce="count"))
    timers = backend.timers()
    timers.register_batch(["a", "b", "a"], [1, 2, 3])
    backend.current_key = "z"

    fired_by(timers, 9, lambda timer: counts.add(1))

    assert counts.get_batch(["a", "b", "z"]).to_pylist() == [2, 1, None]
    assert backend.current_key == "z"


def test_timers_that_a_callback_registers_fire_in_the_same_call_in_their_place():
    timers = backend_of().timers()
    timers.register_batch(["a", "b"], [1, 5])

    def again(timer):
        if timer.key == "a" and timer.timestamp < 9:
            timers.register_event_time_timer(timer.timestamp + 2)

    assert fired_by(timers, 8, again) == [(1, "a"), (3, "a"), (5, "b"), (5, "a"), (7, "a")]
    assert fired_by(timers, 20) == [(9, "a")]


def test_timers_that_a_callback_registers_or_deletes_in_batches_count_too():
    timers = backend_of().timers()
    timers.register_batch(["a", "b", "c"], [1, 5, 6])

    def change(timer):
        if timer.timestamp == 1:
            timers.register_batch(["d", "e"], [2, 100])
            timers.delete_batch(["b"], [5])

    assert fired_by(timers, 8, change) == [(1, "a"), (2, "d"), (6, "c")]
    assert timers.count() == 1


def test_a_timer_that_a_callback_deletes_does_not_fire():
    timers = backend_of().timers()
    timers.register_batch(["a", "a", "a"], [1, 2, 3])

    def change(timer):
        if timer.timestamp == 1:
            timers.delete_event_time_timer(2)
            timers.delete_event_time_timer(3)
            timers.register_event_time_timer(3)

    assert fired_by(timers, 8, change) == [(1, "a"), (3, "a")]


def test_a_timer_that_registers_itself_again_fires_again():
    timers = backend_of().timers()
    timers.register_batch(["a"], [1])
    left = [2]

    def again(timer):
        if left[0]:
            left[0] -= 1
            timers.register_event_time_timer(timer.timestamp)

    assert fired_by(timers, 8, again) == [(1, "a")] * 3


def test_more_timers_than_a_chunk_fire_in_order_with_late_additions():
    timers = backend_of().timers()
    timers.register_batch([f"u{n}" for n in range(5000)], [n // 2 for n in range(5000)])

    def again(timer):
        if timer.timestamp % 100 == 0 and not timer.key.startswith("new"):
            timers.register_batch([f"new{timer.key}"], [timer.timestamp + 1])

    fired = fired_by(timers, 10_000, again)

    assert [timestamp for timestamp, _ in fired] == sorted(timestamp for timestamp, _ in fired)
    assert len(set(fired)) == len(fired) == 5050


def test_a_timer_at_or_below_the_watermark_waits_for_the_next_one():
    timers = backend_of().timers()
    assert fired_by(timers, 10) == []

    timers.register_batch(["a", "b"], [10, 3])

    assert timers.count() == 2
    assert fired_by(timers, 11) == [(3, "b"), (10, "a")]


def test_a_watermark_below_the_current_one_is_passed_over():
    backend = backend_of()
    timers = backend.timers()
    backend.advance_watermark(10)
    timers.register_batch(["a"], [3])

    assert fired_by(timers, 9) == []
    assert backend.watermark == 10


def test_the_watermark_is_set_before_timers_fire():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a"], [3])
    seen = []

    fired_by(timers, 9, lambda timer: seen.append(backend.watermark))

    assert seen == [9]


def test_a_callback_that_raises_leaves_its_timer_and_the_later_ones():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a", "b", "c"], [1, 2, 3])
    backend.current_key = "z"

    def fail(timer):
        if timer.key == "b":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        timers.advance_watermark(9, fail)

    assert backend.current_key == "z"
    assert fired_by(timers, 9) == [(2, "b"), (3, "c")]


def test_a_checkpoint_taken_by_a_callback_has_the_timers_that_have_not_fired():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a", "b", "c"], [1, 2, 3])
    counts = []

    def freeze(timer):
        counts.append(sum(state.table.live_rows for state in backend.freeze().states))

    assert fired_by(timers, 9, freeze) == [(1, "a"), (2, "b"), (3, "c")]
    assert counts == [2, 1, 0]


def test_a_callback_cannot_fire_timers():
    timers = backend_of().timers()
    timers.register_batch(["a"], [1])

    def nested(timer):
        len(timers)
        timers.advance_watermark(20, print)

    with pytest.raises(InvalidInputError, match="firing"):
        timers.advance_watermark(9, nested)


def test_processing_time_timers_fire_by_the_clock():
    clock = [100]
    backend = backend_of(clock_ms=lambda: clock[0])
    timers = backend.timers()
    backend.current_key = "a"
    timers.register_processing_time_timer(150)
    timers.register_batch(["b"], [50], clock="processing_time")
    fired = []

    timers.advance_processing_time(fired.append)
    clock[0] = 150
    timers.advance_processing_time(fired.append)

    assert [(timer.timestamp, timer.key) for timer in fired] == [(50, "b"), (150, "a")]
    assert timers.advance_watermark(1000, fired.append) == 0


def test_namespaces_tell_timers_apart_and_are_set_while_they_fire():
    backend = backend_of()
    timers = backend.timers("windows", WINDOW)
    counts = backend.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="count", namespace=WINDOW))
    windows = pa.record_batch([pa.array([0, 10]), pa.array([9, 19])], schema=WINDOW)
    timers.register_batch(["a", "a"], [9, 9], namespace=windows)
    backend.current_key = "a"
    timers.current_namespace = (0, 9)
    timers.register_event_time_timer(9)

    def call(timer):
        counts.current_namespace = timer.namespace
        counts.add(1)
        assert timers.current_namespace == timer.namespace
        timers.register_processing_time_timer(1)

    assert timers.count() == 2
    fired_by(timers, 9, call)
    popped = timers.pop_due(5, clock="processing_time")

    assert sorted(popped.to_pylist(), key=str) == [
        {"timestamp": 1, "user": "a", "start": 0, "end": 9},
        {"timestamp": 1, "user": "a", "start": 10, "end": 19},
    ]
    assert len(counts) == 2
    assert timers.current_namespace == (0, 9)


@pytest.mark.parametrize(
    ("far", "lowest"), [([1 << 70, -(1 << 70)], -(1 << 63)), (pa.array([1 << 63, 0], pa.uint64()), 0)]
)
def test_timestamps_that_do_not_fit_become_the_highest_or_lowest(far, lowest):
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a", "b"], far)
    backend.current_key = "a"
    timers.register_event_time_timer(1 << 80)

    popped = timers.pop_due(1 << 90)

    # Two timers of "a" at the highest timestamp are one.
    assert popped["timestamp"].to_pylist() == [lowest, HIGHEST]
    assert timers.advance_watermark(1 << 90, print) == 0
    assert backend.watermark == HIGHEST


@pytest.mark.parametrize(
    ("timestamps", "error"), [([1, None], InvalidInputError), ([1.5, 2.5], ValueTypeError), ([1], InvalidInputError)]
)
def test_timestamps_that_are_none_are_refused_and_nothing_is_registered(timestamps, error):
    timers = backend_of().timers()

    with pytest.raises(error):
        timers.register_batch(["a", "b"], timestamps)

    assert len(timers) == 0


def test_bad_arguments_are_refused():
    backend = backend_of()
    timers = backend.timers()

    with pytest.raises(NullKeyError):
        timers.register_batch(pa.array(["a", None]), [1, 2])
    with pytest.raises(InvalidInputError, match="no current key"):
        timers.register_event_time_timer(1)
    backend.current_key = "a"
    with pytest.raises(InvalidInputError, match="whole number"):
        timers.register_event_time_timer(1.5)
    with pytest.raises(InvalidInputError, match="event_time or processing_time"):
        timers.count("wall")
    with pytest.raises(IncompatibleStateError):
        backend.timers("timers", WINDOW)


def test_arrow_timestamps_are_taken_as_milliseconds():
    timers = backend_of().timers()

    timers.register_batch(["a"], pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC")))

    assert timers.next_timestamp() == 1_700_000_000_000


def test_the_next_timestamp_is_that_of_the_earliest_timer_left():
    timers = backend_of().timers()
    assert timers.next_timestamp() is None
    timers.register_batch(["a"] * 5, [5, 3, 9, 4, 7])
    timers.register_batch(["b"], [6])

    timers.delete_batch(["a", "a"], [3, 4])

    assert timers.next_timestamp() == 5
    timers.pop_due(5)
    assert timers.next_timestamp() == 6


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_timers_and_the_watermark_are_in_checkpoints_and_rescale(tmp_path, format):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    timers = backend.timers()
    users = [f"u{n}" for n in range(300)]
    timers.register_batch(users, list(range(300)))
    timers.register_batch(users, list(range(300)), clock="processing_time")
    assert len(fired_by(timers, 99)) == 100

    snapshot = store.writer().checkpoint({"op": [backend]}, format=format)
    store.savepoint("moved")
    found = []
    for number in range(3):
        restored = snapshot.restore("op", parallelism=3, subtask=number, max_parallelism=48)
        assert restored.watermark == 99
        found += fired_by(restored.timers(), 200)

    assert sorted(found) == [(n, f"u{n}") for n in range(100, 201)]
    assert snapshot.sql("select count(*), min(timestamp) from op.timers_event_time").fetchall() == [(200, 100)]
    assert snapshot.to_arrow("op.timers_processing_time").schema.names == ["user", "timestamp"]
    fired = []
    assert snapshot.restore("op").timers().advance_processing_time(fired.append, now_ms=50) == 51
    savepoint = arrowstate.open_store(tmp_path / "store" / "savepoints" / "moved").latest()
    assert savepoint.restore("op").timers().count() == 200


def test_timers_of_a_restored_operator_that_nobody_asks_for_are_in_the_next_checkpoint(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    backend.timers("windows", WINDOW).register_batch(["a"], [9], namespace=(0, 9))
    first = store.writer().checkpoint({"op": [backend]})

    second = store.writer().checkpoint({"op": [first.restore("op")]})

    assert second.to_arrow("op.windows_event_time").to_pylist() == [{"user": "a", "start": 0, "end": 9, "timestamp": 9}]
    with pytest.raises(IncompatibleStateError):
        second.restore("op").timers("windows")


def test_a_key_column_named_timestamp_keeps_its_name():
    backend = backend_of(key=pa.schema([("timestamp", pa.int64())]))
    timers = backend.timers()
    timers.register_batch([7], [1])

    assert timers.pop_due(5).to_pylist() == [{"timers_event_time_timestamp": 1, "timestamp": 7}]


def test_small_advances_do_not_go_over_a_run_again():
    timers = backend_of().timers()
    rng = np.random.default_rng(1)
    times = rng.permutation(50_000)
    timers.register_batch([f"u{n}" for n in range(50_000)], pa.array(times))

    popped = [timers.pop_due(time)["timestamp"].to_pylist() for time in range(0, 1000, 10)]

    assert [time for batch in popped for time in batch] == list(range(991))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["register", "delete", "register one", "delete one"]),
            st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 20)), min_size=1, max_size=8),
        ),
        st.tuples(st.sampled_from(["pop", "advance", "snapshot"]), st.integers(0, 22)),
    ),
    max_size=30,
)


@given(ACTIONS, st.booleans())
@settings(deadline=None, max_examples=100)
def test_timers_behave_as_a_set_of_pairs(actions, spills):
    storage = {"memory_budget_bytes": 0} if spills else {}
    backend = backend_of(merge_policy=EAGER, **storage)
    store = arrowstate.open_store(f"memory://timers-{id(backend)}", create=True)
    model: set[tuple[int, str]] = set()
    watermark = None

    for verb, argument in actions:
        timers = backend.timers()
        if verb in ("register", "delete", "register one", "delete one"):
            pairs = {(time, key) for key, time in argument}
            model = model | pairs if verb.startswith("register") else model - pairs
            if verb in ("register", "delete"):
                write = timers.register_batch if verb == "register" else timers.delete_batch
                write([key for key, _ in argument], [time for _, time in argument])
            else:
                for key, time in argument:
                    backend.current_key = key
                    one = timers.register_event_time_timer if verb == "register one" else timers.delete_event_time_timer
                    one(time)
            continue
        if verb == "snapshot":
            snapshot = store.writer().checkpoint({"op": [backend]})
            backend = snapshot.restore("op", max_parallelism=8, **storage)
            continue
        if verb == "pop":
            batch = timers.pop_due(argument)
            found = list(zip(batch["timestamp"].to_pylist(), batch["user"].to_pylist(), strict=True))
        elif watermark is not None and argument < watermark:
            assert fired_by(timers, argument) == []
            continue
        else:
            watermark = argument
            found = fired_by(timers, argument)
        expected = {pair for pair in model if pair[0] <= argument}
        model -= expected
        assert sorted(found) == sorted(expected)
        assert [time for time, _ in found] == sorted(time for time, _ in found)

    assert backend.timers().count() == len(model)
    assert backend.timers().next_timestamp() == min((time for time, _ in model), default=None)


def test_the_command_line_shows_and_checks_timers(tmp_path, capsys):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    backend.timers("windows", WINDOW).register_batch(["a", "a", "b"], [9, 12, 9], namespace=(0, 9))
    store.writer().checkpoint({"op": [backend]})
    place = str(tmp_path / "store")

    assert main(["show", place, "--state", "op.windows_event_time"]) == 0
    shown = capsys.readouterr().out
    assert main(["restore-check", place, "--parallelism", "3"]) == 0

    assert "event_time" in shown
    assert "timestamp" in shown


def test_what_puts_timers_in_order_counts_as_memory():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a"] * 1000, list(range(1000)))
    before = backend.memory_bytes

    timers.pop_due(0)

    assert backend.memory_bytes >= before + 16_000


def test_a_batch_without_rows_changes_nothing():
    timers = backend_of().timers()

    timers.register_batch([], [])
    timers.delete_batch(pa.array([], pa.string()), pa.array([], pa.int64()))

    assert timers.pop_due(HIGHEST).num_rows == 0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=20),
    st.lists(
        st.tuples(
            st.sampled_from(["one", "batch", "freeze"]), st.booleans(), st.sampled_from("abc"), st.integers(0, 14)
        ),
        max_size=25,
    ),
    st.integers(0, 12),
)
@settings(deadline=None, max_examples=150)
def test_whatever_callbacks_do_the_earliest_registered_timer_fires_next(start, actions, watermark):
    backend = backend_of(merge_policy=EAGER)
    timers = backend.timers()
    model = {(time, key) for key, time in start}
    timers.register_batch([key for key, _ in start], [time for _, time in start])
    left = list(actions)

    def call(timer):
        assert (timer.timestamp, timer.key) in model
        assert timer.timestamp == min(time for time, _ in model) <= watermark
        model.remove((timer.timestamp, timer.key))
        for _ in range(min(2, len(left))):
            how, registers, key, time = left.pop()
            if how == "freeze":
                assert sum(state.table.live_rows for state in backend.freeze().states) == len(model)
                continue
            if how == "one":
                key = timer.key
                (timers.register_event_time_timer if registers else timers.delete_event_time_timer)(time)
            else:
                (timers.register_batch if registers else timers.delete_batch)([key], [time])
            model.add((time, key)) if registers else model.discard((time, key))

    with mock.patch.object(timers_module, "_CHUNK_TIMERS", 2):
        timers.advance_watermark(watermark, call)

    assert all(time > watermark for time, _ in model)
    assert timers.count() == len(model)
