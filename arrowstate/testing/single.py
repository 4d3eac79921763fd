"""What value and reducing state mean."""

from __future__ import annotations

import pyarrow as pa

from arrowstate.errors import IncompatibleStateError, InvalidInputError, NullKeyError, ValueTypeError
from arrowstate.schema.descriptors import ListStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from arrowstate.testing.deployments import Job
from arrowstate.testing.suite import KeyedStateSuite

__all__ = ["ReducingStateSuite", "ValueStateSuite"]

CITY = ValueStateDescriptor("city", pa.string())
TAGS = ValueStateDescriptor("tags", pa.list_(pa.int64()), default=[1])
TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
FIRST = ReducingStateDescriptor("first", pa.string(), reduce="first")


class ValueStateSuite(KeyedStateSuite):
    """One value per key; a null clears it."""

    def test_the_last_value_of_a_batch_counts_and_a_null_clears(self, job: Job) -> None:
        job.state(CITY).update_batch(job.keys(0, 7, 0, 14), pa.array(["Rome", "Oslo", "Bonn", "Lima"]))
        job.carry_over()
        job.state(CITY).update_batch(job.keys(7, 14, 21), pa.array([None, "Bern", None]))
        job.carry_over()

        assert job.state(CITY).get_batch(job.keys(0, 7, 14, 0)).to_pylist() == ["Bonn", None, "Bern", "Bonn"]
        assert len(job.state(CITY)) == 2

    def test_scalar_and_batch_verbs_see_each_other(self, job: Job) -> None:
        job.at(0)
        job.state(CITY).update("Rome")
        assert job.state(CITY).get_batch(job.keys(0)).to_pylist() == ["Rome"]
        job.state(CITY).update_batch(job.keys(0, 1), pa.array(["Oslo", "Bonn"]))
        assert job.state(CITY).value() == "Oslo"
        job.state(CITY).update(None)
        job.carry_over()

        assert job.state(CITY).get_batch(job.keys(0, 1)).to_pylist() == [None, "Bonn"]
        assert len(job.state(CITY)) == 1

    def test_a_default_is_copied_at_each_read(self, job: Job) -> None:
        job.at(0)

        job.state(TAGS).value().append(2)

        assert job.state(TAGS).value() == [1]
        assert len(job.state(TAGS)) == 0

    def test_what_does_not_fit_is_refused_and_the_state_is_unchanged(self, job: Job) -> None:
        state = job.state(CITY)
        job.at(0)
        state.update("Rome")

        self.refused(ValueTypeError, state.update, 5)
        self.refused(ValueTypeError, state.update_batch, job.keys(0), [5])
        self.refused(NullKeyError, state.update_batch, pa.array([None], job.key_values.type), ["Oslo"])

        assert state.value() == "Rome"

    def test_a_name_has_one_kind_and_one_type_at_once(self, job: Job) -> None:
        job.state(CITY)

        self.refused(IncompatibleStateError, job.state, ValueStateDescriptor("city", pa.int64()))
        self.refused(IncompatibleStateError, job.state, ListStateDescriptor("city", pa.string()))
        self.refused(
            IncompatibleStateError,
            job.state,
            ValueStateDescriptor("city", pa.string(), namespace=pa.schema([("w", pa.int64())])),
        )


class ReducingStateSuite(KeyedStateSuite):
    """Values are folded as they come; a null clears, and what comes after it begins anew."""

    def test_values_are_folded_over_batches(self, job: Job) -> None:
        for number in range(5):
            job.state(TOTAL).add_batch(job.keys(0, 7, 0), pa.array([1, 10, number]))
            job.state(FIRST).add_batch(job.keys(7, 0), pa.array([f"a{number}", f"b{number}"]))
            job.carry_over()

        assert job.state(TOTAL).get_batch(job.keys(0, 7, 14)).to_pylist() == [15, 50, None]
        assert job.state(FIRST).get_batch(job.keys(0, 7)).to_pylist() == ["b0", "a0"]

    def test_a_null_clears(self, job: Job) -> None:
        job.state(TOTAL).add_batch(job.keys(0, 0, 0, 7, 14), pa.array([1, None, 3, None, 5]))
        job.at(14)
        job.state(TOTAL).add(None)
        job.carry_over()

        assert job.state(TOTAL).get_batch(job.keys(0, 7, 14)).to_pylist() == [3, None, None]
        assert len(job.state(TOTAL)) == 1

    def test_scalar_and_batch_verbs_see_each_other(self, job: Job) -> None:
        job.at(0)
        job.state(TOTAL).add(1)
        job.state(TOTAL).add_batch(job.keys(0), pa.array([2]))
        job.state(TOTAL).add(3)
        job.carry_over()
        job.at(0)

        assert job.state(TOTAL).get() == 6
        self.refused(InvalidInputError, job.state(TOTAL).add_batch, job.keys(0), [1, 2])
