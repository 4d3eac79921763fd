"""What timers mean: a set of timestamps per key and namespace, in snapshots and at any scale."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import (
    IncompatibleStateError,
    InvalidInputError,
    KeyOutOfRangeError,
    NullKeyError,
    ValueTypeError,
)
from arrowstate.schema.descriptors import TimerStateDescriptor, ValueStateDescriptor
from arrowstate.state.kinds.timer_service import TimerService
from suites.deployments import Job
from suites.suite import KeyedStateSuite

__all__ = ["TimerSuite"]

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])


class TimerSuite(KeyedStateSuite):
    """Timers are a set, each fires once, and they belong to the key group of their key."""

    @pytest.fixture(params=["event_time", "processing_time"])
    def clock(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    def popped(self, job: Job, time: int, clock: str, timers: TimerService | None = None) -> list[tuple[int, str]]:
        """Pop what is due, as (timestamp, text of the key)."""
        batch = (timers or job.backend.timers()).pop_due(time, clock=clock)
        return list(zip(batch["timestamp"].to_pylist(), map(str, batch["k"].to_pylist()), strict=True))

    def pairs(self, job: Job, *pairs: tuple[int, int]) -> list[tuple[int, str]]:
        """(timestamp, number of the key) as `popped` has them."""
        return [(time, str(job.key_values.value(key))) for time, key in pairs]

    def one(self, job: Job, verb: str, key: int, time: int, clock: str) -> None:
        """Register or delete one timer of a key."""
        job.at(key)
        getattr(job.backend.timers(), f"{verb}_{clock}_timer")(time)

    def test_timers_come_in_the_order_of_time_each_once(self, job: Job, clock: str) -> None:
        times = [n * 37 % 101 for n in range(100)]
        job.backend.timers().register_batch(job.keys(*[n % 7 for n in range(100)]), times, clock=clock)
        job.carry_over()
        found = self.popped(job, 60, clock)
        job.carry_over()
        later = self.popped(job, 60, clock) + self.popped(job, 200, clock)

        assert found == self.pairs(job, *sorted((time, n % 7) for n, time in enumerate(times) if time <= 60))
        assert later == self.pairs(job, *sorted((time, n % 7) for n, time in enumerate(times) if time > 60))
        assert job.backend.timers().count(clock) == 0

    def test_a_timestamp_up_to_the_time_is_due_and_a_later_one_is_not(self, job: Job, clock: str) -> None:
        job.backend.timers().register_batch(job.keys(0, 7, 14), [9, 10, 11], clock=clock)
        job.carry_over()

        assert self.popped(job, 10, clock) == self.pairs(job, (9, 0), (10, 7))
        assert job.backend.timers().next_timestamp(clock) == 11

    def test_registering_twice_is_one_timer(self, job: Job, clock: str) -> None:
        job.backend.timers().register_batch(job.keys(0, 0, 7), [1, 1, 1], clock=clock)
        job.carry_over()
        job.backend.timers().register_batch(job.keys(0, 7), [1, 2], clock=clock)
        self.one(job, "register", 0, 1, clock)
        job.carry_over()

        assert job.backend.timers().count(clock) == 3
        assert sorted(self.popped(job, 5, clock)) == sorted(self.pairs(job, (1, 0), (1, 7), (2, 7)))

    def test_deleting_an_absent_timer_does_nothing(self, job: Job, clock: str) -> None:
        job.backend.timers().delete_batch(job.keys(0), [1], clock=clock)
        self.one(job, "delete", 7, 1, clock)
        job.backend.timers().register_batch(job.keys(0), [1], clock=clock)
        job.carry_over()
        job.backend.timers().delete_batch(job.keys(0, 7), [2, 1], clock=clock)
        self.one(job, "delete", 0, 3, clock)
        job.carry_over()

        assert self.popped(job, 5, clock) == self.pairs(job, (1, 0))

    def test_a_deleted_timer_is_gone_and_others_of_its_key_or_time_stay(self, job: Job, clock: str) -> None:
        timers = job.backend.timers()
        for each in ("event_time", "processing_time"):
            timers.register_batch(job.keys(0, 0, 7, 7), [1, 2, 1, 2], clock=each)
        job.carry_over()
        job.backend.timers().delete_batch(job.keys(0), [1], clock=clock)
        self.one(job, "delete", 7, 2, clock)
        job.carry_over()

        other = "processing_time" if clock == "event_time" else "event_time"
        assert self.popped(job, 5, clock) == self.pairs(job, (1, 7), (2, 0))
        assert job.backend.timers().count(other) == 4

    def test_scalar_and_batch_verbs_see_each_other(self, job: Job, clock: str) -> None:
        timers = job.backend.timers()
        self.one(job, "register", 0, 5, clock)
        timers.delete_batch(job.keys(0), [5], clock=clock)
        timers.register_batch(job.keys(0), [6], clock=clock)
        self.one(job, "delete", 0, 6, clock)
        self.one(job, "register", 0, 6, clock)
        self.one(job, "register", 0, 7, clock)
        self.one(job, "delete", 0, 7, clock)
        job.carry_over()

        assert self.popped(job, 10, clock) == self.pairs(job, (6, 0))

    def test_registering_deleting_and_popping_in_any_mix_keeps_the_order(self, job: Job, clock: str) -> None:
        random = np.random.default_rng(3)
        model: set[tuple[int, int]] = set()
        for turn in range(24):
            keys, times = random.integers(0, 8, 20).tolist(), random.integers(0, 100, 20).tolist()
            given = set(zip(times, keys, strict=True))
            if turn % 3 == 2:
                job.backend.timers().delete_batch(job.keys(*keys), times, clock=clock)
                model -= given
            else:
                job.backend.timers().register_batch(job.keys(*keys), times, clock=clock)
                model |= given
            if turn % 5 == 4:
                job.carry_over()
            if turn % 4 == 3:
                end = int(random.integers(0, 60))
                found = self.popped(job, end, clock)
                assert sorted(found) == sorted(self.pairs(job, *(pair for pair in model if pair[0] <= end)))
                assert [time for time, _ in found] == sorted(time for time, _ in found)
                model = {pair for pair in model if pair[0] > end}
            assert job.backend.timers().count(clock) == len(model)
            assert job.backend.timers().next_timestamp(clock) == min((time for time, _ in model), default=None)

    def test_the_next_timestamp_is_that_of_the_earliest_timer_left(self, job: Job, clock: str) -> None:
        assert job.backend.timers().next_timestamp(clock) is None
        job.backend.timers().register_batch(job.keys(*[0] * 5), [5, 3, 9, 4, 7], clock=clock)
        self.one(job, "register", 7, 6, clock)
        job.carry_over()
        job.backend.timers().delete_batch(job.keys(0, 0), [3, 4], clock=clock)

        assert job.backend.timers().next_timestamp(clock) == 5
        job.backend.timers().pop_due(5, clock=clock)
        job.carry_over()
        assert job.backend.timers().next_timestamp(clock) == 6

    def test_the_clocks_are_told_apart(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0), [1])
        job.backend.timers().register_batch(job.keys(0, 7), [1, 2], clock="processing_time")
        job.carry_over()
        timers = job.backend.timers()

        assert (timers.count("event_time"), timers.count("processing_time"), len(timers)) == (1, 2, 3)
        assert self.popped(job, 5, "event_time") == self.pairs(job, (1, 0))
        assert timers.count("processing_time") == 2
        self.refused(InvalidInputError, timers.count, "wall", match="event_time or processing_time")

    def test_namespaces_tell_timers_apart(self, job: Job, clock: str) -> None:
        windows = pa.record_batch([pa.array([0, 10, 0]), pa.array([9, 19, 9])], schema=WINDOW)
        job.backend.timers("windows", WINDOW).register_batch(job.keys(0, 0, 7), [9] * 3, namespace=windows, clock=clock)
        job.carry_over()
        timers = job.backend.timers("windows", WINDOW)
        job.at(0)
        timers.current_namespace = (0, 9)
        getattr(timers, f"register_{clock}_timer")(9)
        timers.delete_batch(job.keys(7), [9], namespace=(10, 19), clock=clock)
        assert timers.count(clock) == 3
        getattr(timers, f"delete_{clock}_timer")(9)
        job.carry_over()

        popped = job.backend.timers("windows", WINDOW).pop_due(9, clock=clock).to_pylist()
        assert sorted(popped, key=str) == sorted(
            [
                {"timestamp": 9, "k": job.key_values.value(0), "start": 10, "end": 19},
                {"timestamp": 9, "k": job.key_values.value(7), "start": 0, "end": 9},
            ],
            key=str,
        )

    def test_timers_of_two_names_do_not_touch_each_other(self, job: Job, clock: str) -> None:
        job.backend.timers("one").register_batch(job.keys(0, 7), [1, 1], clock=clock)
        job.backend.timers("two").register_batch(job.keys(0), [1], clock=clock)
        job.carry_over()
        job.backend.timers("two").delete_batch(job.keys(0), [1], clock=clock)

        assert job.backend.timers("one").count(clock) == 2
        assert job.backend.timers("two").count(clock) == 0

    @pytest.mark.parametrize(
        ("far", "lowest"), [([1 << 70, -(1 << 70)], LOWEST), (pa.array([1 << 63, 0], pa.uint64()), 0)]
    )
    def test_timestamps_that_do_not_fit_become_the_highest_or_lowest(
        self, job: Job, clock: str, far: Any, lowest: int
    ) -> None:
        job.backend.timers().register_batch(job.keys(0, 7), far, clock=clock)
        self.one(job, "register", 0, 1 << 80, clock)
        job.carry_over()

        # Two timers of one key at the highest timestamp are one.
        assert self.popped(job, 1 << 90, clock) == self.pairs(job, (lowest, 7), (HIGHEST, 0))

    def test_what_does_not_fit_is_refused_and_no_timer_changes(self, job: Job, clock: str) -> None:
        timers = job.backend.timers()
        timers.register_batch(job.keys(0), [1], clock=clock)
        windows = job.backend.timers("windows", WINDOW)
        null = pa.concat_arrays([job.keys(0), pa.array([None], job.key_values.type)])

        for verb in (timers.register_batch, timers.delete_batch):
            self.refused(InvalidInputError, verb, job.keys(0, 1), [1, None], clock=clock, match="row 1")
            self.refused(ValueTypeError, verb, job.keys(0, 1), [1.0, 2.5], clock=clock, match="milliseconds")
            self.refused(InvalidInputError, verb, job.keys(0, 1), [1], clock=clock, match="2 timestamps, got 1")
            self.refused(NullKeyError, verb, null, [1, 2], clock=clock)
            self.refused(InvalidInputError, verb, job.keys(0), [1], namespace=5, clock=clock, match="no namespaces")
        for one in (getattr(timers, f"{verb}_{clock}_timer") for verb in ("register", "delete")):
            self.refused(InvalidInputError, one, 1, match="no current key")
        self.refused(InvalidInputError, windows.register_batch, job.keys(0), [1], clock=clock, match="namespace")
        self.refused(NullKeyError, windows.register_batch, job.keys(0), [1], namespace=(1, None), clock=clock)
        job.at(0)
        for one in (getattr(timers, f"{verb}_{clock}_timer") for verb in ("register", "delete")):
            self.refused(InvalidInputError, one, 1.5, match="whole number")
        self.refused(InvalidInputError, getattr(windows, f"register_{clock}_timer"), 1, match="current_namespace")

        job.carry_over()
        assert self.popped(job, 10, clock) == self.pairs(job, (1, 0))
        assert job.backend.timers("windows", WINDOW).count(clock) == 0

    def test_a_key_of_another_subtask_is_refused(self, job: Job, clock: str) -> None:
        job.backend.timers().register_batch(job.keys(*range(20)), range(20), clock=clock)
        job.restart(parallelism=2)
        (own, numbers), (_, foreign) = job.parts(*range(20))
        timers = own.timers()

        for verb in (timers.register_batch, timers.delete_batch):
            self.refused(
                KeyOutOfRangeError, verb, job.keys(numbers[0], foreign[0]), [0, 0], clock=clock, match="0 to 63"
            )

        assert self.popped(job, 20, clock, timers) == self.pairs(job, *((n, n) for n in numbers))

    def test_columns_of_every_layout_are_taken_as_they_are(self, job: Job, clock: str) -> None:
        keys, times = job.keys(0, 7, 0), pa.array([3, 1, 2])
        timers = job.backend.timers()

        timers.register_batch(self.sliced(keys), self.sliced(times), clock=clock)
        timers.register_batch(self.chunked(keys), self.chunked(times), clock=clock)
        timers.register_batch(job.keys(0), pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC")), clock=clock)
        timers.register_batch(job.keys(), [], clock=clock)
        timers.delete_batch(job.keys(), pa.array([], pa.int64()), clock=clock)

        assert self.popped(job, HIGHEST, clock) == self.pairs(job, (1, 7), (2, 0), (3, 0), (1_700_000_000_000, 0))
        assert self.popped(job, HIGHEST, clock) == []

    def test_timers_belong_to_the_key_group_of_their_key_and_rescale_with_it(self, job: Job, clock: str) -> None:
        numbers = range(60)
        job.backend.timers().register_batch(job.keys(*numbers), numbers, clock=clock)
        for parallelism, max_parallelism in ((3, 7), (5, 32768), (2, 2)):
            job.restart(parallelism, max_parallelism)

            for backend, own in job.parts(*numbers):
                assert backend.timers().count(clock) == len(own)
                assert backend.timers().next_timestamp(clock) == min(own, default=None)
        for backend, own in job.parts(*numbers):
            expected = self.pairs(job, *((n, n) for n in own if n < 30))
            assert self.popped(job, 29, clock, backend.timers()) == expected
        job.restart()

        assert self.popped(job, 100, clock) == self.pairs(job, *((n, n) for n in range(30, 60)))

    def test_timers_that_nobody_asks_for_survive(self, job: Job, clock: str) -> None:
        job.backend.timers("windows", WINDOW).register_batch(job.keys(0), [9], namespace=(0, 9), clock=clock)
        job.restart()
        job.restart(parallelism=2)
        job.restart()

        rows = job.checkpoint().to_arrow(f"op.windows_{clock}").to_pylist()
        assert rows == [{"k": job.key_values.value(0), "start": 0, "end": 9, "timestamp": 9}]
        assert job.backend.timers("windows", WINDOW).count(clock) == 1

    def test_each_snapshot_keeps_its_timers(self, job: Job, clock: str) -> None:
        job.backend.timers().register_batch(job.keys(0, 7), [1, 2], clock=clock)
        both = job.checkpoint()
        self.popped(job, 1, clock)
        self.one(job, "register", 14, 3, clock)
        changed = job.checkpoint()
        job.backend.timers().delete_batch(job.keys(7, 14), [2, 3], clock=clock)
        none = job.checkpoint()

        for snapshot, expected in ((none, []), (changed, [(2, 7), (3, 14)]), (both, [(1, 0), (2, 7)])):
            job.restore(snapshot)
            assert self.popped(job, 10, clock) == self.pairs(job, *expected)

    def test_a_name_has_one_namespace_at_once_and_after_a_restore(self, job: Job, clock: str) -> None:
        job.backend.timers("one")
        job.backend.timers("two", WINDOW)

        for _ in range(2):
            self.refused(IncompatibleStateError, job.backend.timers, "one", WINDOW)
            self.refused(IncompatibleStateError, job.backend.timers, "two")
            self.refused(IncompatibleStateError, job.state, ValueStateDescriptor(f"one_{clock}", pa.int64()))
            other: Any = "event_time" if clock == "processing_time" else "processing_time"
            self.refused(IncompatibleStateError, job.state, TimerStateDescriptor(f"one_{clock}", other))
            job.restart()

        assert len(job.backend.timers("one")) == 0

    def test_going_through_a_state_goes_through_timers(self, job: Job, clock: str) -> None:
        windows = pa.record_batch([pa.array([0, 0, 0, 5])] * 2, schema=WINDOW)
        timers = job.backend.timers("windows", WINDOW)
        timers.register_batch(job.keys(0, 0, 7, 0), [1, 2, 1, 1], namespace=windows, clock=clock)
        job.carry_over()
        name = f"windows_{clock}"

        assert sorted(map(str, job.backend.keys(name)["k"])) == sorted(map(str, job.keys(0, 7)))
        found = [(row["k"], row["start"]) for row in job.backend.keys_and_namespaces(name).to_pylist()]
        expected = [(job.key_values.value(key), start) for key, start in [(0, 0), (0, 5), (7, 0)]]
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert sum(job.backend.key_group_sizes(name)["rows"].to_pylist()) == 4
