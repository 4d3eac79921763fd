"""What the firing of timers means: when, in which order, with which key, and what callbacks may do."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import ReducingStateDescriptor
from arrowstate.state.kinds.timers import Timer
from suites.deployments import Job
from suites.suite import KeyedStateSuite

__all__ = ["TimerFiringSuite"]

HIGHEST = (1 << 63) - 1
WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])
COUNTS = ReducingStateDescriptor("counts", pa.int64(), reduce="count")
PANES = ReducingStateDescriptor("panes", pa.int64(), reduce="count", namespace=WINDOW)

Fired = list[tuple[int, int]]


class TimerFiringSuite(KeyedStateSuite):
    """The watermark is set, then timers fire in the order of time with their key set."""

    def number(self, job: Job, key: Any) -> int:
        """Return the number of a key; keys of these tests have numbers below 64."""
        return next(number for number in range(64) if job.key_values.value(number) == key)

    def fire(self, job: Job, watermark: int, on_timer: Callable[[Timer], object] | None = None) -> Fired:
        """Advance the watermark; return what fired, as (timestamp, number of the key)."""
        fired: Fired = []

        def call(timer: Timer) -> None:
            fired.append((timer.timestamp, self.number(job, timer.key)))
            if on_timer is not None:
                on_timer(timer)

        assert job.backend.timers().advance_watermark(watermark, call) == len(fired)
        return fired

    def fire_by_clock(self, job: Job) -> Fired:
        """Fire what is due by the job's clock."""
        fired: Fired = []
        job.backend.timers().advance_processing_time(
            lambda timer: fired.append((timer.timestamp, self.number(job, timer.key)))
        )
        return fired

    def test_timers_fire_once_in_the_order_of_time_up_to_the_watermark(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7, 0, 14), [30, 10, 20, 40])
        job.carry_over()

        assert self.fire(job, 30) == [(10, 7), (20, 0), (30, 0)]
        job.carry_over()
        assert self.fire(job, 39) == []
        assert self.fire(job, 40) == [(40, 14)]
        assert len(job.backend.timers()) == 0

    def test_the_watermark_is_set_before_timers_fire(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0), [3])
        seen = []

        self.fire(job, 9, lambda _: seen.append(job.backend.watermark))

        assert seen == [9]

    def test_a_timer_at_or_below_the_watermark_waits_for_the_next_one(self, job: Job) -> None:
        assert self.fire(job, 10) == []
        job.carry_over()
        job.backend.timers().register_batch(job.keys(0, 7), [10, 3])
        job.at(14)
        job.backend.timers().register_event_time_timer(5)
        job.carry_over()

        assert job.backend.timers().count() == 3
        assert self.fire(job, 11) == [(3, 7), (5, 14), (10, 0)]

    def test_a_watermark_below_the_current_one_is_passed_over(self, job: Job) -> None:
        job.backend.advance_watermark(10)
        job.carry_over()
        job.backend.timers().register_batch(job.keys(0), [3])

        assert self.fire(job, 9) == []
        assert job.backend.watermark == 10
        assert self.fire(job, 10) == [(3, 0)]

    def test_the_watermark_is_part_of_a_checkpoint(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(*range(20)), range(20))
        assert len(self.fire(job, 9)) == 10
        job.restart(parallelism=3, max_parallelism=7)

        assert [backend.watermark for backend in job.backends] == [9, 9, 9]
        # The slowest subtask decides what a subtask that takes over its key groups knows.
        for watermark, backend in zip((12, 15, 18), job.backends, strict=True):
            backend.advance_watermark(watermark)
        job.restart()
        assert job.backend.watermark == 12
        assert self.fire(job, 11) == []
        assert [time for time, _ in self.fire(job, 30)] == list(range(10, 20))

    def test_the_key_is_set_while_a_timer_fires_and_set_back_afterwards(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7, 0), [1, 2, 3])
        job.carry_over()
        counts = job.state(COUNTS)
        job.at(14)

        def count(timer: Timer) -> None:
            assert job.backend.current_key == timer.key
            counts.add(1)

        self.fire(job, 9, count)

        assert counts.get_batch(job.keys(0, 7, 14)).to_pylist() == [2, 1, None]
        assert job.backend.current_key == job.key_values.value(14)

    def test_the_namespace_is_set_while_a_timer_fires_and_set_back_afterwards(self, job: Job) -> None:
        windows = pa.record_batch([pa.array([0, 10]), pa.array([9, 19])], schema=WINDOW)
        job.backend.timers("windows", WINDOW).register_batch(job.keys(0, 0), [9, 9], namespace=windows)
        job.carry_over()
        timers, panes = job.backend.timers("windows", WINDOW), job.state(PANES)
        timers.current_namespace = (70, 79)
        seen = []

        def call(timer: Timer) -> None:
            seen.append(timer.namespace)
            assert timers.current_namespace == timer.namespace
            panes.current_namespace = timer.namespace
            panes.add(1)
            timers.register_processing_time_timer(1)

        assert timers.advance_watermark(9, call) == 2

        assert sorted(seen) == [(0, 9), (10, 19)]
        assert panes.get_batch(job.keys(0, 0), namespace=windows).to_pylist() == [1, 1]
        assert sorted(timers.pop_due(5, clock="processing_time")["start"].to_pylist()) == [0, 10]
        assert timers.current_namespace == (70, 79)

    def test_timers_that_a_callback_registers_fire_in_the_same_call_in_their_place(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7), [1, 5])
        job.carry_over()
        timers = job.backend.timers()

        def again(timer: Timer) -> None:
            if timer.key == job.key_values.value(0) and timer.timestamp < 9:
                timers.register_event_time_timer(timer.timestamp + 2)

        fired = self.fire(job, 8, again)
        job.carry_over()

        assert fired == [(1, 0), (3, 0), (5, 7), (5, 0), (7, 0)]
        assert self.fire(job, 20) == [(9, 0)]

    def test_a_timer_that_registers_itself_again_fires_again(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0), [1])
        left = [2]

        def again(timer: Timer) -> None:
            if left[0]:
                left[0] -= 1
                job.backend.timers().register_event_time_timer(timer.timestamp)

        assert self.fire(job, 8, again) == [(1, 0)] * 3
        assert job.backend.timers().count() == 0

    def test_a_callback_may_register_earlier_timers_than_its_own(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7), [5, 6])

        def earlier(timer: Timer) -> None:
            if timer.timestamp == 5:
                job.backend.timers().register_event_time_timer(2)

        assert self.fire(job, 8, earlier) == [(5, 0), (2, 0), (6, 7)]

    def test_timers_that_a_callback_registers_or_deletes_in_batches_count_too(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7, 14), [1, 5, 6])
        job.carry_over()
        timers = job.backend.timers()

        def change(timer: Timer) -> None:
            if timer.timestamp == 1:
                timers.register_batch(job.keys(21, 28), [2, 100])
                timers.delete_batch(job.keys(7), [5])

        fired = self.fire(job, 8, change)
        job.carry_over()

        assert fired == [(1, 0), (2, 21), (6, 14)]
        assert self.fire(job, 200) == [(100, 28)]

    def test_a_timer_that_a_callback_deletes_does_not_fire(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 0, 0), [1, 2, 3])

        def change(timer: Timer) -> None:
            if timer.timestamp == 1:
                timers = job.backend.timers()
                timers.delete_event_time_timer(2)
                timers.delete_event_time_timer(3)
                timers.register_event_time_timer(3)

        assert self.fire(job, 8, change) == [(1, 0), (3, 0)]

    def test_many_timers_fire_in_order_with_late_additions(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(*[n % 20 for n in range(3000)]), [n // 2 for n in range(3000)])
        job.carry_over()
        timers = job.backend.timers()
        fired = []

        def again(timer: Timer) -> None:
            fired.append((timer.timestamp, str(timer.key)))
            if timer.timestamp % 100 == 0 and timer.key != job.key_values.value(30):
                timers.register_batch(job.keys(30), [timer.timestamp + 1])

        assert timers.advance_watermark(10_000, again) == 3000 + 15

        assert [time for time, _ in fired] == sorted(time for time, _ in fired)
        assert len(set(fired)) == 3000 + 15

    def test_a_callback_that_raises_leaves_its_timer_and_the_later_ones(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7, 14), [1, 2, 3])
        job.carry_over()
        job.at(21)

        def fail(timer: Timer) -> None:
            if timer.timestamp == 2:
                raise ZeroDivisionError

        self.refused(ZeroDivisionError, job.backend.timers().advance_watermark, 9, fail)

        assert job.backend.current_key == job.key_values.value(21)
        job.carry_over()
        assert self.fire(job, 9) == [(2, 7), (3, 14)]

    def test_a_checkpoint_taken_by_a_callback_has_the_timers_that_have_not_fired(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7, 14), [1, 2, 3])
        job.carry_over()
        snapshots = []

        assert self.fire(job, 9, lambda _: snapshots.append(job.checkpoint())) == [(1, 0), (2, 7), (3, 14)]

        for snapshot, left in zip(snapshots, ([(2, 7), (3, 14)], [(3, 14)], []), strict=True):
            job.restore(snapshot)
            assert self.fire(job, 9) == left

    def test_a_callback_cannot_fire_timers(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0), [1])

        def nested(timer: Timer) -> None:
            job.backend.timers().advance_watermark(timer.timestamp + 1, print)

        self.refused(InvalidInputError, self.fire, job, 9, nested, match="firing")
        assert self.fire(job, 9) == [(1, 0)]

    def test_processing_time_timers_fire_by_the_clock_alone(self, job: Job) -> None:
        job.at(0)
        job.backend.timers().register_processing_time_timer(job.clock.now_ms + 50)
        job.backend.timers().register_batch(job.keys(7), [job.clock.now_ms], clock="processing_time")
        job.backend.timers().register_batch(job.keys(14), [job.clock.now_ms])
        job.carry_over()

        assert self.fire_by_clock(job) == [(1_000_000, 7)]
        assert self.fire_by_clock(job) == []
        job.clock.now_ms += 50
        job.carry_over()
        assert self.fire_by_clock(job) == [(1_000_050, 0)]
        assert self.fire(job, HIGHEST) == [(1_000_000, 14)]

    def test_a_processing_time_callback_may_register_timers_of_both_clocks(self, job: Job) -> None:
        now = job.clock.now_ms
        job.backend.timers().register_batch(job.keys(0), [now], clock="processing_time")
        timers = job.backend.timers()

        def again(timer: Timer) -> None:
            if timer.timestamp == now:
                timers.register_processing_time_timer(now - 5)
                timers.register_processing_time_timer(now + 5)
                timers.register_event_time_timer(now)

        assert timers.advance_processing_time(again) == 2
        job.carry_over()
        assert job.backend.timers().next_timestamp("processing_time") == now + 5
        assert self.fire(job, now) == [(now, 0)]

    def test_processing_time_timers_in_the_past_fire_at_once_after_a_restore(self, job: Job) -> None:
        now = job.clock.now_ms
        job.backend.timers().register_batch(job.keys(0, 7, 14), [now + 10, now + 20, now + 99], clock="processing_time")
        job.restart(parallelism=2)
        job.clock.now_ms += 60
        job.restart()

        assert self.fire_by_clock(job) == [(now + 10, 0), (now + 20, 7)]
        assert job.backend.timers().count("processing_time") == 1

    def test_times_far_away_saturate(self, job: Job) -> None:
        job.backend.timers().register_batch(job.keys(0, 7), [1 << 70, -(1 << 70)])
        job.carry_over()

        assert self.fire(job, -(1 << 80)) == [(-(1 << 63), 7)]
        assert self.fire(job, 1 << 90) == [(HIGHEST, 0)]
        assert job.backend.watermark == HIGHEST
