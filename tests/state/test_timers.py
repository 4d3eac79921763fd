"""Timers: what SQL and the command line see of them, memory, and whatever callbacks do.

What timers mean is in `arrowstate.testing`: `TimerSuite` and `TimerFiringSuite`.
"""

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowstate
from arrowstate.cli import main
from arrowstate.state.kinds import timers as timers_module
from arrowstate.table.merging import MergePolicy

KEY = pa.schema([("user", pa.string())])
WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])
EAGER = MergePolicy(fan_in=2, first_tier_rows=4)


def backend_of(**arguments):
    return arrowstate.KeyedStateBackend(**{"key": KEY, "max_parallelism": 16, "clock_ms": lambda: 0} | arguments)


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance"])
def test_sql_sees_the_timers_of_a_checkpoint(tmp_path, format):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    users = [f"u{n}" for n in range(300)]
    backend.timers().register_batch(users, list(range(300)))
    backend.timers().register_batch(users, list(range(300)), clock="processing_time")
    backend.timers().pop_due(99)

    snapshot = store.writer().checkpoint({"op": [backend]}, format=format)

    assert snapshot.sql("select count(*), min(timestamp) from op.timers_event_time").fetchall() == [(200, 100)]
    assert snapshot.to_arrow("op.timers_processing_time").schema.names == ["user", "timestamp"]
    assert snapshot.restore("op").timers().count() == 200


def test_more_timers_than_a_chunk_fire_in_order_with_late_additions():
    timers = backend_of().timers()
    timers.register_batch([f"u{n}" for n in range(5000)], [n // 2 for n in range(5000)])

    def again(timer):
        if timer.timestamp % 100 == 0 and not timer.key.startswith("new"):
            timers.register_batch([f"new{timer.key}"], [timer.timestamp + 1])

    fired = []

    def call(timer):
        fired.append((timer.timestamp, timer.key))
        again(timer)

    timers.advance_watermark(10_000, call)

    assert [timestamp for timestamp, _ in fired] == sorted(timestamp for timestamp, _ in fired)
    assert len(set(fired)) == len(fired) == 5050


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


def test_what_is_known_of_the_times_of_timers_counts_as_memory():
    backend = backend_of()
    timers = backend.timers()
    timers.register_batch(["a"] * 1000, list(range(1000)))
    before = backend.memory_bytes

    timers.advance_watermark(0, lambda timer: None)
    once = backend.memory_bytes
    for time in range(1, 80):
        timers.advance_watermark(time, lambda timer: None)

    # A bit for each at first, and what comes when all were looked at time and again.
    assert before + 125 <= once < before + 1000
    assert backend.memory_bytes >= before + 12_000


def test_after_a_restore_no_row_is_looked_at_before_its_batch_is_due(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    for first in (1000, 2000):
        backend.timers().register_batch([f"u{n}" for n in range(50)], list(range(first, first + 50)))
    store.writer().checkpoint({"op": [backend]})
    restored = store.latest().restore("op")
    timers = restored.timers()
    for run in restored.states["timers_event_time"].table.runs:
        for segment in run.segments:
            assert segment.loaded is None
            segment.load = lambda: 1 / 0

    assert timers.pop_due(999).num_rows == 0
    assert not timers.count("processing_time")
    with pytest.raises(ZeroDivisionError):
        timers.pop_due(1000)


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
