"""What becomes of expired rows: who removes them, and what snapshots and restores do with a time to live."""

from dataclasses import replace

import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import ListStateDescriptor, TimeToLive, ValueStateDescriptor
from suites.deployments import PLAIN_KEYS, Job, Keys
from suites.kinds import KINDS, Kind
from suites.suite import Time, TimedSuite

__all__ = ["ExpiredRowsSuite"]


class ExpiredRowsSuite(TimedSuite):
    """Expired rows are removed by reads, merges and savepoints, and a time to live is part of a snapshot."""

    @pytest.fixture
    def values(self) -> Keys:
        # Which rows have expired does not depend on the keys.
        return PLAIN_KEYS

    @pytest.fixture(params=KINDS, ids=str)
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        kind: Kind = request.param
        return kind

    def test_a_read_removes_what_has_expired(self, job: Job, time: Time, clock: str, kind: Kind) -> None:
        descriptor = kind.descriptor(ttl=self.on(clock))
        kind.write(job.state(descriptor), job.keys(0, 7, 14), pa.array([1, 2, 3]))
        time.set(50)
        kind.write(job.state(descriptor), job.keys(14), pa.array([4]))
        job.carry_over()
        time.set(130)
        state = job.state(descriptor)
        job.at(0)

        assert kind.read_one(state) == kind.expected()
        assert kind.read(state, job.keys(7)) == [kind.expected()]
        rest = kind.expected(4) if kind.name == "list" else kind.expected(3, 4)
        assert kind.read(state, job.keys(14, 0)) == [rest, kind.expected()]
        assert len(state) == 1

    def test_a_row_that_a_read_renewed_is_seen_once_after_it_expired(
        self, job: Job, time: Time, clock: str, kind: Kind
    ) -> None:
        ttl = TimeToLive(100, update="on_read_and_write", visibility="return_until_cleaned_up")
        descriptor = kind.descriptor(ttl=self.on(clock, ttl))
        kind.write(job.state(descriptor), job.keys(0, 7), pa.array([1, 2]))
        time.set(50)
        job.carry_over()
        assert kind.read(job.state(descriptor), job.keys(0, 7)) == [kind.expected(1), kind.expected(2)]
        job.carry_over()
        time.set(120)
        job.at(0)
        assert kind.read_one(job.state(descriptor)) == kind.expected(1)
        time.set(230)
        state = job.state(descriptor)

        assert kind.read(state, job.keys(7, 0)) == [kind.expected(2), kind.expected(1)]
        assert kind.read(state, job.keys(7, 0)) == [kind.expected()] * 2
        assert len(state) == 0

    def test_a_write_of_nothing_hides_an_expired_row_from_everyone(
        self, job: Job, time: Time, clock: str, kind: Kind
    ) -> None:
        descriptor = kind.descriptor(ttl=self.on(clock, TimeToLive(100, visibility="return_until_cleaned_up")))
        kind.write(job.state(descriptor), job.keys(0, 7), pa.array([1, 2]))
        time.set(100)
        job.carry_over()
        job.at(0)
        kind.empty_one(job.state(descriptor))
        job.state(descriptor).clear_batch(job.keys(7))

        assert kind.read(job.state(descriptor), job.keys(0, 7)) == [kind.expected()] * 2

    def test_keys_and_namespaces_expire_on_their_own(self, job: Job, time: Time, clock: str, kind: Kind) -> None:
        spaces = pa.schema([("space", pa.int64())])
        descriptor = kind.descriptor(ttl=self.on(clock), namespace=spaces)
        for milliseconds, key, space in ((0, 0, 1), (30, 0, 2), (60, 7, 1), (90, 7, 2)):
            time.set(milliseconds)
            kind.write(job.state(descriptor), job.keys(key), pa.array([milliseconds]), namespace=space)
            job.carry_over()

        for milliseconds, left in ((99, 4), (100, 3), (130, 2), (160, 1), (190, 0)):
            time.set(milliseconds)
            found = kind.read(job.state(descriptor), job.keys(0, 0, 7, 7), namespace=pa.array([1, 2, 1, 2]))
            expected = [kind.expected(written) for written in (0, 30, 60, 90)]
            assert found == [kind.expected()] * (4 - left) + expected[4 - left :]
            assert job.backend.keys_and_namespaces(descriptor).num_rows == left
            job.carry_over()

    def test_a_restore_brings_back_the_times_of_the_snapshot(
        self, job: Job, time: Time, clock: str, kind: Kind
    ) -> None:
        descriptor = kind.descriptor(ttl=self.on(clock))
        kind.write(job.state(descriptor), job.keys(0), pa.array([1]))
        time.set(80)
        kind.write(job.state(descriptor), job.keys(7), pa.array([2]))
        job.carry_over()
        snapshot = job.checkpoint()
        time.set(90)
        kind.write(job.state(descriptor), job.keys(0, 7, 14), pa.array([3, 3, 3]))
        job.checkpoint()

        job.restore(snapshot)
        time.set(150)

        assert kind.read(job.state(descriptor), job.keys(0, 7, 14)) == [
            kind.expected(),
            kind.expected(2),
            kind.expected(),
        ]

    def test_a_snapshot_knows_the_time_to_live_of_a_state_that_nobody_asks_for(
        self, job: Job, time: Time, clock: str, kind: Kind
    ) -> None:
        descriptor = kind.descriptor(ttl=self.on(clock))
        kind.write(job.state(descriptor), job.keys(0), pa.array([1]))
        time.set(50)
        kind.write(job.state(descriptor), job.keys(7), pa.array([2]))
        job.restart()
        time.set(100)
        job.restart()
        job.checkpoint()

        (row,) = job.savepoint().to_arrow("op.state").to_pylist()

        assert row["k"] == job.key_values.value(7)
        assert job.backend.keys("state").column(0).to_pylist() == [job.key_values.value(7)]

    def test_a_time_to_live_without_end_does_not_overflow(self, job: Job, time: Time, clock: str, kind: Kind) -> None:
        forever = kind.descriptor("forever", ttl=self.on(clock, TimeToLive((1 << 63) - 1)))
        kind.write(job.state(forever), job.keys(0), pa.array([1]))
        time.set(50)
        job.carry_over()
        assert kind.read(job.state(forever), job.keys(0)) == [kind.expected(1)]
        time.set((1 << 63) - 1 - 1_000_000)
        job.carry_over()

        assert kind.read(job.state(forever), job.keys(0)) == [kind.expected(1)]

    def test_merges_drop_what_has_expired(self, job: Job, time: Time, clock: str) -> None:
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=self.on(clock))
        job.state(numbers).add_batch(job.keys(0, 7), [1, 2])
        time.set(100)
        for step in range(20):
            job.state(numbers).add_batch(job.keys(14), [step])

        assert job.state(numbers).get_batch(job.keys(14)).to_pylist() == [list(range(20))]
        if job.deployment.name == "merging":
            assert len(job.state(numbers)) == 20

    def test_a_savepoint_leaves_out_what_has_expired(self, job: Job, time: Time, clock: str) -> None:
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=self.on(clock))
        city = ValueStateDescriptor("city", pa.string(), ttl=self.on(clock))
        job.state(numbers).add_batch(job.keys(0, 7), [1, 2])
        job.state(city).update_batch(job.keys(0), ["Rome"])
        time.set(99)
        job.state(numbers).add_batch(job.keys(0), [3])
        job.checkpoint()
        assert job.savepoint().to_arrow("op.numbers").num_rows == 3
        time.set(100)
        checkpoint = job.checkpoint()

        savepoint = job.savepoint()

        assert checkpoint.to_arrow("op.numbers").num_rows == 1
        assert checkpoint.to_arrow("op.numbers", expired=True).num_rows == 3
        assert savepoint.to_arrow("op.numbers")["numbers"].to_pylist() == [3]
        assert savepoint.to_arrow("op.city").num_rows == 0
        assert savepoint.entry.operators[0].subtasks[0].live_rows == {"numbers": 1, "city": 0}
        (backend,) = job.deployment.restored(savepoint, 1, 128, job.clock)
        assert backend.state(numbers).get_batch(job.keys(0, 7)).to_pylist() == [[3], []]

    def test_a_time_to_live_may_change_on_restore(self, job: Job, time: Time, clock: str) -> None:
        numbers = ListStateDescriptor("numbers", pa.int64(), ttl=self.on(clock))
        job.state(numbers).add_batch(job.keys(0), [1])
        job.restart()
        time.set(150)
        longer = replace(numbers, ttl=self.on(clock, TimeToLive(200)))
        assert job.state(longer).get_batch(job.keys(0)).to_pylist() == [[1]]
        self.refused(InvalidInputError, job.state, numbers, match="in use with")
        job.restart()
        shorter = replace(numbers, ttl=self.on(clock, TimeToLive(150)))

        assert job.state(shorter).get_batch(job.keys(0)).to_pylist() == [[]]

    def test_a_time_to_live_may_come_and_go_on_restore(self, job: Job, time: Time, clock: str) -> None:
        plain = ListStateDescriptor("numbers", pa.int64())
        timed = replace(plain, ttl=self.on(clock))
        job.state(plain).add_batch(job.keys(0, 7, 0), [1, 2, 3])
        job.state(plain).clear_batch(job.keys(7))
        job.restart()
        job.state(timed).add_batch(job.keys(0), [4])
        job.carry_over()
        time.set(99)
        assert job.state(timed).get_batch(job.keys(0, 7)).to_pylist() == [[1, 3, 4], []]
        job.state(timed).add_batch(job.keys(0), [5])
        job.carry_over()
        time.set(100)
        assert job.state(timed).get_batch(job.keys(0)).to_pylist() == [[5]]
        job.restart()
        time.set(1000)

        assert job.state(plain).get_batch(job.keys(0)).to_pylist() == [[5]]
        job.state(plain).add_batch(job.keys(0), [6])
        job.carry_over()
        assert job.state(plain).get_batch(job.keys(0)).to_pylist() == [[5, 6]]
