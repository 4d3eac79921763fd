"""What a time to live means: which rows have expired, what renews them, and who still sees them."""

from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from suites.deployments import Job
from suites.suite import TTL, Time, TimedSuite

__all__ = ["TimeToLiveSuite"]

ON_READ = TimeToLive(100, update="on_read_and_write")
UNTIL_CLEANED = TimeToLive(100, visibility="return_until_cleaned_up")
EVENT = TimeToLive(100, clock="event_time")


class TimeToLiveSuite(TimedSuite):
    """Rows, elements and entries expire one by one, by processing time and by event time alike."""

    def test_age_99_of_100_is_visible_and_age_100_is_gone(self, job: Job, time: Time, clock: str) -> None:
        city = ValueStateDescriptor("city", pa.string(), ttl=self.on(clock))
        total = ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=self.on(clock))
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=self.on(clock))
        cart = MapStateDescriptor("cart", job.key_values.type, pa.int64(), ttl=self.on(clock))
        mean = AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean", ttl=self.on(clock))
        job.state(mean).add_batch(job.keys(0), [1])
        job.state(city).update_batch(job.keys(0), ["Rome"])
        job.state(total).add_batch(job.keys(0), [1])
        job.state(numbers).add_batch(job.keys(0), [1])
        job.state(cart).put_batch(job.keys(0), job.keys(0), [1])

        def everything() -> list[Any]:
            job.at(0)
            return [
                job.state(city).get_batch(job.keys(0)).to_pylist()[0],
                job.state(total).get_batch(job.keys(0)).to_pylist()[0],
                job.state(numbers).get_batch(job.keys(0)).to_pylist()[0],
                job.state(mean).get_batch(job.keys(0)).to_pylist()[0],
                job.state(cart).contains(job.key_values.value(0)),
                job.state(cart).is_empty(),
                job.state(cart).get_batch(job.keys(0), job.keys(0)).to_pylist()[0],
                len(job.state(cart).entries_batch(job.keys(0)).to_pylist()[0]),
                [job.backend.keys(state.name).num_rows for state in (city, total, numbers, cart, mean)],
            ]

        job.carry_over()
        time.set(99)
        assert everything() == ["Rome", 1, [1], 1.0, True, False, 1, 1, [1, 1, 1, 1, 1]]
        job.carry_over()
        time.set(100)
        assert everything() == [None, None, [], None, False, True, None, 0, [0, 0, 0, 0, 0]]
        time.set(0)
        if clock == "processing_time":
            assert job.state(city).get_batch(job.keys(0)).to_pylist() == [None]

    def test_scalar_reads_see_no_expired_rows(self, job: Job, time: Time, clock: str) -> None:
        city = ValueStateDescriptor("city", pa.string(), default="none", ttl=self.on(clock))
        total = ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=self.on(clock))
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=self.on(clock))
        cart = MapStateDescriptor("cart", job.key_values.type, pa.int64(), ttl=self.on(clock))

        def everything() -> list[Any]:
            job.at(0)
            return [
                job.state(city).value(),
                job.state(total).get(),
                job.state(numbers).get(),
                job.state(cart).get(job.key_values.value(0)),
                len(list(job.state(cart).items())),
            ]

        job.at(0)
        job.state(city).update("Rome")
        job.state(total).add(1)
        job.state(numbers).add(1)
        job.state(cart).put(job.key_values.value(0), 1)
        time.set(99)
        assert everything() == ["Rome", 1, [1], 1, 1]
        job.carry_over()
        time.set(100)
        assert everything() == ["none", None, [], None, 0]

    def test_a_write_renews_and_a_read_does_not(self, job: Job, time: Time, clock: str) -> None:
        city = ValueStateDescriptor("city", pa.string(), ttl=self.on(clock))
        job.state(city).update_batch(job.keys(0, 7), ["Rome", "Oslo"])
        time.set(60)
        job.carry_over()
        job.state(city).get_batch(job.keys(0, 7))
        job.state(city).update_batch(job.keys(0), ["Rome"])
        time.set(110)
        job.carry_over()

        assert job.state(city).get_batch(job.keys(0, 7)).to_pylist() == ["Rome", None]

    def test_a_read_renews_where_that_is_the_rule(self, job: Job, time: Time, clock: str) -> None:
        ttl = self.on(clock, ON_READ)
        city = ValueStateDescriptor("city", pa.string(), ttl=ttl)
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=ttl)
        cart = MapStateDescriptor("cart", job.key_values.type, pa.int64(), ttl=ttl)
        job.state(city).update_batch(job.keys(0, 7), ["Rome", "Oslo"])
        job.state(numbers).add_batch(job.keys(0, 0, 7), [1, 2, 3])
        job.state(cart).put_batch(job.keys(0, 0), job.keys(0, 7), [1, 2])
        time.set(60)
        job.carry_over()
        job.state(city).get_batch(job.keys(0))
        assert job.state(numbers).get_batch(job.keys(0)).to_pylist() == [[1, 2]]
        job.state(cart).get_batch(job.keys(0), job.keys(7))
        time.set(110)
        job.carry_over()

        assert job.state(city).get_batch(job.keys(0, 7)).to_pylist() == ["Rome", None]
        assert job.state(numbers).get_batch(job.keys(0, 7)).to_pylist() == [[1, 2], []]
        assert job.state(cart).get_batch(job.keys(0, 0), job.keys(0, 7)).to_pylist() == [None, 2]
        time.set(210)
        job.at(0)
        assert job.state(city).value() is None
        assert job.state(numbers).get() == []
        assert job.state(cart).is_empty()

    def test_a_read_of_several_namespaces_renews_and_keeps_the_rows_in_order(
        self, job: Job, time: Time, clock: str
    ) -> None:
        space = pa.schema([("space", job.key_values.type)])
        numbers = ListStateDescriptor("numbers", pa.int64(), namespace=space, ttl=self.on(clock, ON_READ))
        keys = [key for key in (0, 7, 14) for _ in range(12)]
        spaces = [number % 4 * 7 for number in range(36)]
        job.state(numbers).add_batch(job.keys(*keys), range(36), namespace=job.keys(*spaces))

        pairs = [(key, space) for key in (0, 7, 14) for space in (21, 14, 0, 7)]
        expected = [
            [n for n in range(36) if keys[n] == key and spaces[n] == space_number] for key, space_number in pairs
        ]
        for step in range(4):
            time.set(step * 60)
            got = job.state(numbers).get_batch(
                job.keys(*[key for key, _ in pairs]), namespace=job.keys(*[number for _, number in pairs])
            )
            assert got.to_pylist() == expected
            job.carry_over()

    def test_an_expired_row_is_seen_once_where_that_is_the_rule(self, job: Job, time: Time, clock: str) -> None:
        ttl = self.on(clock, UNTIL_CLEANED)
        city = ValueStateDescriptor("city", pa.string(), ttl=ttl)
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=ttl)
        cart = MapStateDescriptor("cart", pa.string(), pa.int64(), ttl=ttl)
        job.state(city).update_batch(job.keys(0), ["Rome"])
        job.state(numbers).add_batch(job.keys(0, 0), [1, 2])
        job.state(cart).put_batch(job.keys(0, 0), ["a", "b"], [1, 2])
        time.set(100)

        assert job.state(city).get_batch(job.keys(0)).to_pylist() == ["Rome"]
        assert job.state(numbers).get_batch(job.keys(0)).to_pylist() == [[1, 2]]
        assert job.state(cart).get_batch(job.keys(0), ["a"]).to_pylist() == [1]
        assert job.state(city).get_batch(job.keys(0)).to_pylist() == [None]
        assert job.state(numbers).get_batch(job.keys(0)).to_pylist() == [[]]
        assert job.state(cart).get_batch(job.keys(0, 0), ["a", "b"]).to_pylist() == [None, 2]
        assert job.state(cart).contains_batch(job.keys(0, 0), ["a", "b"]).to_pylist() == [False, False]
        job.at(0)
        assert list(job.state(cart).items()) == []
        assert all(row["rows"] == 0 for row in job.backend.state_sizes().to_pylist())

    def test_elements_and_entries_expire_one_by_one(self, job: Job, time: Time, clock: str) -> None:
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=self.on(clock))
        cart = MapStateDescriptor("cart", job.key_values.type, pa.int64(), ttl=self.on(clock))
        for step in range(5):
            time.set(step * 30)
            job.state(numbers).add_batch(job.keys(0), [step])
            job.state(cart).put_batch(job.keys(0), job.keys(step * 7), [step])
            job.carry_over()

        # Elements of times 0, 30, 60, 90, 120; at 140 all after 40 are there.
        time.set(140)
        assert job.state(numbers).get_batch(job.keys(0)).to_pylist() == [[2, 3, 4]]
        assert sorted(value for _, value in job.state(cart).entries_batch(job.keys(0)).to_pylist()[0]) == [2, 3, 4]
        assert len(job.state(numbers)) == len(job.state(cart)) == 3

    def test_reducing_state_starts_anew_after_an_expiry(self, job: Job, time: Time, clock: str) -> None:
        total = ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=self.on(clock))
        job.state(total).add_batch(job.keys(0, 7), [1, 10])
        time.set(50)
        job.state(total).add_batch(job.keys(0), [2])
        job.carry_over()
        time.set(120)
        job.state(total).add_batch(job.keys(0, 7), [4, 20])
        job.at(7)
        job.state(total).add(1)
        job.carry_over()

        assert job.state(total).get_batch(job.keys(0, 7)).to_pylist() == [7, 21]

    def test_clears_and_empty_batches_need_no_time(self, job: Job, clock: str) -> None:
        ttl = self.on(clock)
        city = ValueStateDescriptor("city", pa.string(), ttl=ttl)
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=ttl)
        cart = MapStateDescriptor("cart", job.key_values.type, pa.int64(), ttl=ttl)
        job.at(0)

        job.state(city).clear()
        job.state(city).update(None)
        job.state(numbers).clear()
        job.state(numbers).update([])
        job.state(cart).remove(job.key_values.value(0))
        job.state(city).update_batch(job.keys(), [])
        job.state(city).update_batch(job.keys(0), [None])
        job.state(ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=ttl)).add_batch(job.keys(0), [None])
        job.state(AggregatingStateDescriptor("a", pa.int64(), aggregate="mean", ttl=ttl)).add_batch(job.keys(0), [None])
        job.state(cart).put_batch(job.keys(0), job.keys(0), [1], removed=[True])
        job.state(cart).put_batch(job.keys(), job.keys(), [])

        assert job.state(city).value() is None
        assert job.state(numbers).get() == []
        assert job.state(cart).is_empty()

    def test_event_time_must_be_known_to_write(self, job: Job) -> None:
        city = ValueStateDescriptor("city", pa.string(), ttl=EVENT)
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=EVENT)
        job.at(0)

        self.refused(InvalidInputError, job.state(city).update_batch, job.keys(0), ["Rome"], match="event time")
        self.refused(InvalidInputError, job.state(city).update, "Rome", match="event time")
        self.refused(InvalidInputError, job.state(numbers).update, [1], match="event time")
        assert len(job.state(city)) == len(job.state(numbers)) == 0

        job.state(city).update_batch(job.keys(0), ["Rome"], timestamps=[5])
        assert job.state(city).get_batch(job.keys(0)).to_pylist() == ["Rome"]
        job.backend.advance_watermark(104)
        assert job.state(city).value() == "Rome"
        job.backend.advance_watermark(105)
        assert job.state(city).value() is None

    def test_event_time_comes_with_each_row(self, job: Job) -> None:
        total = ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=EVENT)
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=EVENT)
        times = pa.array([10, 60, 20, 5], pa.timestamp("ms", "UTC"))
        job.state(total).add_batch(job.keys(0, 0, 0, 7), [1, 2, 4, 8], timestamps=times)
        job.state(numbers).add_batch(job.keys(0, 0, 0, 7), [1, 2, 4, 8], timestamps=times)
        lists = pa.array([[16, 32], []], pa.list_(pa.int64()))
        job.state(numbers).add_all_batch(job.keys(7, 0), lists, timestamps=[60, 60])
        job.state(total).add_batch(job.keys(7, 0), [16, 0], timestamps=[3, 3])
        job.carry_over()

        job.backend.advance_watermark(110)

        # Out of order, a sum is as old as the youngest value in it.
        assert job.state(total).get_batch(job.keys(0, 7)).to_pylist() == [7, None]
        assert job.state(numbers).get_batch(job.keys(0, 7)).to_pylist() == [[2, 4], [16, 32]]
        job.backend.advance_watermark(159)
        assert job.state(total).get_batch(job.keys(0)).to_pylist() == [7]
        job.backend.advance_watermark(160)
        assert job.state(total).get_batch(job.keys(0)).to_pylist() == [None]

    def test_timestamps_that_do_not_fit_are_refused(self, job: Job) -> None:
        state = job.state(ListStateDescriptor("numbers", pa.int64(), ttl=EVENT))
        by_clock = job.state(ListStateDescriptor("others", pa.int64(), ttl=TTL))

        self.refused(InvalidInputError, state.add_batch, job.keys(0, 1), [1, 2], timestamps=[1])
        self.refused(InvalidInputError, state.add_batch, job.keys(0, 1), [1, 2], timestamps=[1, None])
        self.refused(ValueTypeError, state.add_batch, job.keys(0), [1], timestamps=[1.5])
        self.refused(ValueTypeError, state.add_batch, job.keys(0), [1], timestamps=["now"])
        self.refused(ValueTypeError, state.add_batch, job.keys(0), [1], timestamps=[2**63])
        self.refused(InvalidInputError, by_clock.add_batch, job.keys(0), [1], timestamps=[1], match="processing time")

        assert len(state) == len(by_clock) == 0

    def test_times_far_away_saturate(self, job: Job) -> None:
        least, most = -(2**63), 2**63 - 1
        forever = ListStateDescriptor("forever", pa.int64(), ttl=TimeToLive(most, clock="event_time"))
        short = ListStateDescriptor("short", pa.int64(), ttl=TimeToLive(1, clock="event_time"))
        for state in (forever, short):
            job.state(state).add_batch(job.keys(0, 0, 0), [1, 2, 3], timestamps=[least, 0, most])
        job.backend.advance_watermark(least)
        assert job.state(short).get_batch(job.keys(0)).to_pylist() == [[1, 2, 3]]
        job.carry_over()
        job.backend.advance_watermark(most)

        assert job.state(forever).get_batch(job.keys(0)).to_pylist() == [[3]]
        assert job.state(short).get_batch(job.keys(0)).to_pylist() == [[3]]

    def test_no_time_to_live_is_zero_negative_or_too_large(self) -> None:
        for milliseconds in (0, -1, 1.5, True, None, 2**63):
            self.refused(InvalidInputError, TimeToLive, milliseconds, match="whole number of milliseconds")

    def test_merged_namespaces_leave_out_what_has_expired(self, job: Job, time: Time, clock: str) -> None:
        space = pa.schema([("space", pa.int64())])
        numbers = ListStateDescriptor("numbers", pa.int64(), namespace=space, ttl=self.on(clock))
        total = ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=space, ttl=self.on(clock))
        mean = AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean", namespace=space, ttl=self.on(clock))
        for step, number in enumerate((0, 1, 2)):
            time.set(step * 60)
            for state in (numbers, total, mean):
                job.state(state).add_batch(job.keys(0), [number], namespace=number)
            job.carry_over()
        for state in (numbers, total, mean):
            job.state(state).merge_namespaces_batch(job.keys(0, 0), 3, pa.array([1, 0]))
            job.state(state).merge_namespaces_batch(job.keys(0), 3, pa.array([2]))

        assert job.state(numbers).get_batch(job.keys(0), namespace=3).to_pylist() == [[1, 2]]
        assert job.state(total).get_batch(job.keys(0), namespace=3).to_pylist() == [3]
        assert job.state(mean).get_batch(job.keys(0), namespace=3).to_pylist() == [1.5]
        time.set(160)
        assert job.state(numbers).get_batch(job.keys(0), namespace=3).to_pylist() == [[2]]
        assert job.state(total).get_batch(job.keys(0), namespace=3).to_pylist() == [3]
        assert job.state(mean).get_batch(job.keys(0), namespace=3).to_pylist() == [1.5]
        time.set(220)
        assert job.state(total).get_batch(job.keys(0), namespace=3).to_pylist() == [None]
        assert job.state(mean).get_batch(job.keys(0), namespace=3).to_pylist() == [None]
