"""What aggregating state means: the accumulator is stored, the result is read."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowstate.errors import IncompatibleStateError, InvalidInputError, NullKeyError, ValueTypeError
from arrowstate.schema.aggregates import Aggregate, BuiltIn, CountDistinct, Mean, Quantiles, TopK, Variance
from arrowstate.schema.descriptors import AggregatingStateDescriptor, TimeToLive
from suites.deployments import Job, Keys
from suites.suite import KeyedStateSuite

__all__ = ["AggregatingStateSuite"]


class _Spread:
    """An aggregate of a user's: largest minus smallest. It breaks its promise where `broken` says so."""

    name = "spread"
    accumulator_type = pa.struct([("low", pa.int64()), ("high", pa.int64())])
    result_type = pa.int64()

    def __init__(self) -> None:
        self.broken = ""

    def __repr__(self) -> str:
        return "Spread()"

    def create(self, count: int) -> pa.StructArray:
        return pa.array([{}] * (0 if self.broken == "create" else count), self.accumulator_type)

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        if self.broken == "raise":
            raise ZeroDivisionError("in the middle")
        numbers, places = values.to_numpy(), groups.to_numpy()
        starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
        assert places[starts].tolist() == list(range(len(accumulators)))
        columns = [pa.array(of.reduceat(numbers, starts)) for of in (np.minimum, np.maximum)]
        added = pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type))
        merged = self._merged(accumulators, added)
        return merged.slice(1) if self.broken == "add" else merged

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        merged = self._merged(left, right)
        return merged.field(0) if self.broken == "merge" else merged

    def _merged(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        (low, high), (other_low, other_high) = left.flatten(), right.flatten()
        columns = [pc.min_element_wise(low, other_low), pc.max_element_wise(high, other_high)]
        return pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type))

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        low, high = accumulators.flatten()
        difference = pc.subtract(high, low)
        return difference.cast(pa.float64()) if self.broken == "result" else difference


AGGREGATES: tuple[BuiltIn | Aggregate, ...] = (
    Mean(),
    Variance(),
    Variance(population=True),
    CountDistinct(),
    Quantiles((0.0, 0.5, 1.0)),
    TopK(3),
    TopK(2, smallest=True),
    _Spread(),
)
MEAN = AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean")


def _expected(aggregate: BuiltIn | Aggregate, values: Sequence[int]) -> Any:
    """What an aggregate returns for numbers, in plain Python."""
    if not values:
        return None
    if isinstance(aggregate, Mean):
        return pytest.approx(statistics.fmean(values))
    if isinstance(aggregate, Variance):
        if aggregate.population:
            return pytest.approx(statistics.pvariance(values))
        return pytest.approx(statistics.variance(values)) if len(values) > 1 else None
    if isinstance(aggregate, CountDistinct):
        return len(set(values))
    if isinstance(aggregate, Quantiles):
        ordered = sorted(values)
        # As in DataSketches: the smallest value whose rank is at least the one asked for.
        return [float(ordered[max(0, math.ceil(at * len(ordered)) - 1)]) for at in aggregate.at]
    if isinstance(aggregate, TopK):
        return sorted(values, reverse=not aggregate.smallest)[: aggregate.count]
    return max(values) - min(values)


class AggregatingStateSuite(KeyedStateSuite):
    """Built-in aggregates and a user's own are those of all values of a key since the last null."""

    @pytest.fixture(params=AGGREGATES, ids=repr)
    def aggregate(self, request: pytest.FixtureRequest) -> BuiltIn | Aggregate:
        given: BuiltIn | Aggregate = request.param
        return given

    @pytest.fixture
    def windows(self, aggregate: BuiltIn | Aggregate, values: Keys) -> AggregatingStateDescriptor:
        space = pa.schema([("space", values.type)])
        return AggregatingStateDescriptor("windows", pa.int64(), aggregate=aggregate, namespace=space)

    def read(self, job: Job, state: AggregatingStateDescriptor, *pairs: tuple[int, int]) -> list[Any]:
        """Read (key, namespace) pairs."""
        keys, spaces = job.keys(*[key for key, _ in pairs]), job.keys(*[space for _, space in pairs])
        results: list[Any] = job.state(state).get_batch(keys, namespace=spaces).to_pylist()
        return results

    def test_results_are_those_of_all_values_since_the_last_null(
        self, job: Job, aggregate: BuiltIn | Aggregate
    ) -> None:
        random = np.random.default_rng(1)
        descriptor = AggregatingStateDescriptor("state", pa.int64(), aggregate=aggregate)
        model: dict[int, list[int]] = {}
        for turn in range(6):
            size = int(random.integers(1, 14))
            keys = random.integers(0, 5, size).tolist()
            numbers = [None if random.random() < 0.1 else int(n) for n in random.integers(-9, 9, size)]
            state = job.state(descriptor)
            if turn % 3 == 2:
                for key, number in zip(keys, numbers, strict=True):
                    job.at(key)
                    state.add(number)
            else:
                state.add_batch(job.keys(*keys), pa.array(numbers, pa.int64()))
            for key, number in zip(keys, numbers, strict=True):
                model[key] = [] if number is None else [*model.get(key, []), number]
            if turn % 4 == 3:
                state.clear_batch(job.keys(0))
                model.pop(0, None)
            job.carry_over()

            state = job.state(descriptor)
            asked = [1, *range(7)]
            expected = [_expected(aggregate, model.get(key, [])) for key in asked]
            assert state.get_batch(job.keys(*asked)).to_pylist() == expected
            job.at(3)
            assert state.get() == _expected(aggregate, model.get(3, []))
            assert len(state) == sum(bool(numbers) for numbers in model.values())

    def test_a_null_clears_and_what_comes_after_it_begins_anew(self, job: Job) -> None:
        job.state(MEAN).add_batch(job.keys(0, 0, 0, 0, 7, 14), pa.array([1, None, 3, 5, None, 5]))
        job.at(14)
        job.state(MEAN).add(None)
        job.carry_over()

        assert job.state(MEAN).get_batch(job.keys(0, 7, 14)).to_pylist() == [4.0, None, None]
        assert len(job.state(MEAN)) == 1

    def test_the_accumulator_is_what_is_stored(self, job: Job) -> None:
        job.state(MEAN).add_batch(job.keys(0, 0, 7), pa.array([1, 4, 5]))
        job.carry_over()
        accumulators = job.state(MEAN).accumulators_batch(job.keys(0, 7, 14)).to_pylist()

        assert accumulators == [{"count": 2, "sum": 5.0}, {"count": 1, "sum": 5.0}, None]
        rows = job.checkpoint().to_arrow("op.mean").select(["count", "sum"]).to_pylist()
        assert sorted(rows, key=str) == sorted(accumulators[:2], key=str)

    def test_what_does_not_fit_is_refused_and_the_state_is_unchanged(self, job: Job) -> None:
        state = job.state(MEAN)
        state.add_batch(job.keys(0), pa.array([1]))
        job.at(0)

        self.refused(ValueTypeError, state.add, "one", match="mean")
        self.refused(ValueTypeError, state.add, 1.5, match="mean")
        self.refused(ValueTypeError, state.add_batch, job.keys(0, 0), ["a", "b"], match="mean")
        self.refused(InvalidInputError, state.add_batch, job.keys(0, 1), [2], match="2 keys need 2 values")
        self.refused(NullKeyError, state.add_batch, pa.array([None], job.key_values.type), [2])
        self.refused(InvalidInputError, state.add_batch, job.keys(0), [2], timestamps=[2], match="no time to live")
        self.refused(InvalidInputError, state.merge_namespaces, 1, [2], match="no namespaces")

        job.carry_over()
        assert job.state(MEAN).accumulators_batch(job.keys(0)).to_pylist() == [{"count": 1, "sum": 1.0}]

    @pytest.mark.parametrize("verb", ["create", "add", "merge", "result", "raise"])
    def test_an_aggregate_that_breaks_its_promise_leaves_the_state_as_it_was(self, job: Job, verb: str) -> None:
        aggregate = _Spread()
        space = pa.schema([("space", pa.int64())])
        descriptor = AggregatingStateDescriptor("spread", pa.int64(), aggregate=aggregate, namespace=space)
        job.state(descriptor).add_batch(job.keys(0, 0, 0, 0), [1, 5, 2, 9], namespace=pa.array([0, 0, 1, 1]))
        job.carry_over()
        state = job.state(descriptor)

        def use() -> None:
            if verb == "merge":
                state.merge_namespaces_batch(job.keys(0), 0, 1)
            elif verb == "result":
                state.get_batch(job.keys(0), namespace=0)
            else:
                state.add_batch(job.keys(0, 7), [90, 90], namespace=0)

        aggregate.broken = verb
        if verb == "raise":
            self.refused(ZeroDivisionError, use, match="middle")
        else:
            self.refused(ValueTypeError, use, match=f"from {verb} of aggregate 'spread'")
        aggregate.broken = ""

        found = state.get_batch(job.keys(0, 0, 7), namespace=pa.array([0, 1, 0])).to_pylist()
        assert found == [4, 7, None]

    def test_namespaces_merge_into_the_result_of_all_their_values(
        self, job: Job, aggregate: BuiltIn | Aggregate, windows: AggregatingStateDescriptor
    ) -> None:
        numbers = {0: [1, 9, 4], 7: [2, 2, 7], 14: [5], 21: [8, 1]}
        for space, added in numbers.items():
            for key in (0, 7):
                job.state(windows).add_batch(
                    job.keys(*[key] * len(added)),
                    pa.array(added),
                    namespace=job.key_values.value(space),
                )
            job.carry_over()
        job.at(0)
        space_of = job.key_values.value

        # Over three namespaces with one that is missing, into one that is missing, within one, of nothing.
        job.state(windows).merge_namespaces(space_of(0), [space_of(7), space_of(14), space_of(28)])
        job.state(windows).merge_namespaces(space_of(35), [space_of(21), space_of(42)])
        job.state(windows).merge_namespaces(space_of(35), [space_of(35)])
        job.state(windows).merge_namespaces(space_of(49), [space_of(42)])
        job.state(windows).merge_namespaces(space_of(35), [])
        job.carry_over()

        merged = [*numbers[0], *numbers[7], *numbers[14]]
        pairs = [(0, space) for space in (0, 7, 14, 21, 28, 35, 42, 49)]
        values = [merged, [], [], [], [], numbers[21], [], []]
        assert self.read(job, windows, *pairs) == [_expected(aggregate, of) for of in values]
        assert self.read(job, windows, *[(7, space) for space in numbers]) == [
            _expected(aggregate, of) for of in numbers.values()
        ]
        assert len(job.state(windows)) == 6

    def test_namespaces_of_many_keys_merge_in_one_batch(
        self, job: Job, aggregate: BuiltIn | Aggregate, windows: AggregatingStateDescriptor
    ) -> None:
        rows = [(key, space) for key in range(12) for space in (0, 7, 14)]
        job.state(windows).add_batch(
            job.keys(*[key for key, _ in rows]), pa.array(range(36)), namespace=job.keys(*[space for _, space in rows])
        )
        job.carry_over()
        away = [(key, space) for key in range(12) for space in (14, 7, 21)]
        job.state(windows).merge_namespaces_batch(
            job.keys(*[key for key, _ in away]), job.key_values.value(0), job.keys(*[space for _, space in away])
        )
        job.state(windows).add_batch(job.keys(*range(12)), pa.array(range(12)), namespace=job.key_values.value(0))
        job.carry_over()

        found = self.read(job, windows, *[(key, 0) for key in range(12)])
        assert found == [_expected(aggregate, [3 * key, 3 * key + 1, 3 * key + 2, key]) for key in range(12)]
        assert len(job.state(windows)) == 12

    def test_a_merge_that_makes_no_sense_is_refused(self, job: Job, values: Keys) -> None:
        space = pa.schema([("space", values.type)])
        windows = AggregatingStateDescriptor("windows", pa.int64(), aggregate="mean", namespace=space)
        state = job.state(windows)
        state.add_batch(job.keys(0, 0), pa.array([1, 2]), namespace=job.keys(0, 7))

        self.refused(InvalidInputError, state.merge_namespaces_batch, job.keys(0, 0), job.keys(1, 7), job.keys(7, 2))
        self.refused(InvalidInputError, state.merge_namespaces_batch, job.keys(0, 0), job.keys(1, 2), job.keys(7, 7))

        assert self.read(job, windows, (0, 0), (0, 7)) == [1.0, 2.0]

    def test_accumulators_expire_as_a_whole(self, job: Job) -> None:
        ttl = TimeToLive(100, clock="event_time")
        mean = AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean", ttl=ttl)
        job.state(mean).add_batch(job.keys(0, 7), [1, 3], timestamps=[10, 60])
        job.carry_over()
        # A value that comes late does not make the accumulator older.
        job.state(mean).add_batch(job.keys(7), [5], timestamps=[20])
        job.carry_over()
        job.backend.advance_watermark(120)

        assert job.state(mean).get_batch(job.keys(0, 7)).to_pylist() == [None, 4.0]
        job.state(mean).add_batch(job.keys(0, 7), [7, 7], timestamps=[130, 130])
        job.carry_over()
        assert job.state(mean).get_batch(job.keys(0, 7)).to_pylist() == [7.0, 5.0]

    def test_another_aggregate_or_type_is_refused_and_what_changes_the_result_alone_is_not(self, job: Job) -> None:
        quantiles = AggregatingStateDescriptor("state", pa.int64(), aggregate=Quantiles())
        job.state(quantiles).add_batch(job.keys(0, 0, 0), [1, 2, 4])
        others = [(pa.int64(), Mean()), (pa.int32(), Quantiles()), (pa.int64(), Quantiles(k=400))]

        for _ in range(2):
            for kind, aggregate in others:
                other = AggregatingStateDescriptor("state", kind, aggregate=aggregate)
                self.refused(IncompatibleStateError, job.state, other, match="state")
            job.restart()

        highest = AggregatingStateDescriptor("state", pa.int64(), aggregate=Quantiles((1.0,)))
        assert job.state(highest).get_batch(job.keys(0)).to_pylist() == [[4.0]]
        self.refused(InvalidInputError, job.state, quantiles, match="in use with")

    def test_a_users_aggregate_needs_its_descriptor_after_a_restore_only_to_be_read(self, job: Job) -> None:
        descriptor = AggregatingStateDescriptor("spread", pa.int64(), aggregate=_Spread())
        job.state(descriptor).add_batch(job.keys(0, 0), [1, 5])
        job.restart()
        job.restart(parallelism=2)
        job.restart()

        assert job.state(descriptor).get_batch(job.keys(0)).to_pylist() == [4]
