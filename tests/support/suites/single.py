"""What value and reducing state mean."""

import math
from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, NullKeyError, ProcessElementError, ValueTypeError
from arrowstate.schema.descriptors import REDUCERS, ReducingStateDescriptor, ValueStateDescriptor
from suites.deployments import Job, Keys
from suites.suite import KeyedStateSuite

__all__ = ["ReducingStateSuite", "ValueStateSuite"]

CITY = ValueStateDescriptor("city", pa.string())
TAGS = ValueStateDescriptor("tags", pa.list_(pa.int64()), default=[1])
TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
FIRST = ReducingStateDescriptor("first", pa.string(), reduce="first")


def _larger(old: int, value: int) -> int:
    if value == 13:
        raise ZeroDivisionError("in the middle")
    return max(old, value)


MODELS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "count": len,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "any": any,
    "all": all,
    "product": math.prod,
    "bit_and": lambda values: reduce(and_, values),
    "bit_or": lambda values: reduce(or_, values),
}


class ValueStateSuite(KeyedStateSuite):
    """One value per key; a null clears it."""

    def test_the_last_value_of_a_batch_counts_and_a_null_clears(self, job: Job) -> None:
        job.state(CITY).update_batch(job.keys(0, 7, 0, 14), pa.array(["Rome", "Oslo", "Bonn", "Lima"]))
        job.carry_over()
        job.state(CITY).update_batch(job.keys(7, 14, 21), pa.array([None, "Bern", None]))
        job.carry_over()

        assert job.state(CITY).get_batch(job.keys(0, 7, 14, 0)).to_pylist() == ["Bonn", None, "Bern", "Bonn"]
        assert len(job.state(CITY)) == 2

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

    @pytest.mark.parametrize("reducer", REDUCERS)
    def test_each_reducer_folds_all_values_since_the_last_null(self, job: Job, values: Keys, reducer: str) -> None:
        logical = reducer in ("any", "all")
        space = pa.schema([("space", values.type)])
        kind = pa.bool_() if logical else pa.int64()
        folded = ReducingStateDescriptor("folded", kind, reduce=reducer, namespace=space)
        random = np.random.default_rng(4)
        model: dict[tuple[int, int], list[Any]] = {}
        for turn in range(6):
            keys, spaces = random.integers(0, 4, 15).tolist(), (random.integers(0, 3, 15) * 7).tolist()
            numbers = [None if n == 3 else bool(n % 2) if logical else n for n in random.integers(-2, 4, 15).tolist()]
            job.state(folded).add_batch(job.keys(*keys), pa.array(numbers, kind), namespace=job.keys(*spaces))
            for place, number in zip(zip(keys, spaces, strict=True), numbers, strict=True):
                model[place] = [] if number is None else [*model.get(place, []), number]
            job.at(turn % 4)
            job.state(folded).current_namespace = values.value(0)
            job.state(folded).add(logical or 2)
            model.setdefault((turn % 4, 0), []).append(logical or 2)
            if turn % 2:
                job.state(folded).merge_namespaces(values.value(14), [values.value(7), values.value(0)])
                for away in (7, 0):
                    model.setdefault((turn % 4, 14), []).extend(model.pop((turn % 4, away), []))
            job.carry_over()

            places = [(key, space) for key in range(5) for space in (0, 7, 14)]
            found = job.state(folded).get_batch(
                job.keys(*[key for key, _ in places]), namespace=job.keys(*[space for _, space in places])
            )
            assert found.to_pylist() == [MODELS[reducer](model[at]) if model.get(at) else None for at in places]

    def test_a_python_callable_reduces_and_one_that_raises_leaves_the_state_as_it_was(self, job: Job) -> None:
        largest = ReducingStateDescriptor("largest", pa.int64(), reduce=_larger)
        job.state(largest).add_batch(job.keys(0, 7, 0, 14), pa.array([1, 5, 3, 2]))
        job.carry_over()
        state = job.state(largest)
        job.at(0)

        self.refused(ProcessElementError, state.add_batch, job.keys(7, 0, 14), pa.array([9, 13, 9]), match="row 1")
        self.refused(ZeroDivisionError, state.add, 13, match="middle")
        assert state.get_batch(job.keys(0, 7, 14)).to_pylist() == [3, 5, 2]
        state.add(4)
        job.carry_over()
        job.state(largest).add_batch(job.keys(7, 14, 14), pa.array([4, 6, None]))
        assert job.state(largest).get_batch(job.keys(0, 7, 14)).to_pylist() == [4, 5, None]

    def test_what_does_not_fit_is_refused_and_the_state_is_unchanged(self, job: Job) -> None:
        state = job.state(TOTAL)
        state.add_batch(job.keys(0), pa.array([1]))
        job.at(0)

        self.refused(ValueTypeError, state.add, "one", match="total")
        self.refused(ValueTypeError, state.add_batch, job.keys(0, 0), [1, 1.5], match="total")
        self.refused(InvalidInputError, state.add_batch, job.keys(0), [1, 2], match="1 keys need 1 values")
        self.refused(NullKeyError, state.add_batch, pa.array([None], job.key_values.type), [1])

        assert state.get() == 1
