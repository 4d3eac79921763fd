"""What namespaces mean: a second dimension of the key."""

from typing import Any

import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, KeyTypeError, NullKeyError
from arrowstate.schema.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from suites.deployments import Job, Keys
from suites.suite import KeyedStateSuite

__all__ = ["NamespaceSuite"]

WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])
COUNTS = ReducingStateDescriptor("counts", pa.int64(), reduce="count", namespace=WINDOW)
FIELDS = ReducingStateDescriptor(
    "fields",
    pa.struct([("n", pa.int64()), ("last", pa.string())]),
    reduce={"n": "count", "last": "last"},
    namespace=WINDOW,
)


class NamespaceSuite(KeyedStateSuite):
    """State of one key in different namespaces is different state."""

    @pytest.fixture
    def space(self, values: Keys) -> pa.Schema:
        return pa.schema([("space", values.type)])

    @pytest.fixture
    def numbers(self, space: pa.Schema) -> ListStateDescriptor:
        return ListStateDescriptor("numbers", pa.int64(), namespace=space)

    @pytest.fixture
    def total(self, space: pa.Schema) -> ReducingStateDescriptor:
        return ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=space)

    def read(self, job: Job, state: StateDescriptor, *pairs: tuple[int, int]) -> list[Any]:
        """Read (key, namespace) pairs."""
        keys, spaces = job.keys(*[k for k, _ in pairs]), job.keys(*[n for _, n in pairs])
        values: list[Any] = job.state(state).get_batch(keys, namespace=spaces).to_pylist()
        for (key, space), value in zip(pairs, values, strict=True):
            job.at(key)
            found = job.state(state)
            found.current_namespace = job.key_values.value(space)
            assert (found.value() if isinstance(state, ValueStateDescriptor) else found.get()) == value
        return values

    def test_one_key_has_a_value_per_namespace(self, job: Job, space: pa.Schema) -> None:
        city = ValueStateDescriptor("city", pa.string(), namespace=space)
        job.state(city).update_batch(job.keys(0, 0, 7), ["Rome", "Oslo", "Bonn"], namespace=job.keys(0, 7, 0))
        job.carry_over()
        job.state(city).update_batch(job.keys(0, 7), [None, "Lima"], namespace=job.key_values.value(0))
        job.carry_over()

        assert self.read(job, city, (0, 0), (0, 7), (7, 0), (7, 7)) == [None, "Oslo", "Lima", None]
        assert len(job.state(city)) == 2

    def test_reducing_and_list_state_fold_and_append_per_namespace(
        self, job: Job, numbers: ListStateDescriptor, total: ReducingStateDescriptor
    ) -> None:
        for round in range(3):
            for state in (numbers, total):
                job.state(state).add_batch(
                    job.keys(0, 0, 7, 0), pa.array([1, 2, 3, round]), namespace=job.keys(0, 7, 0, 0)
                )
            job.carry_over()

        assert self.read(job, total, (0, 0), (0, 7), (7, 0), (7, 7)) == [6, 6, 9, None]
        assert self.read(job, numbers, (0, 0), (0, 7), (7, 0), (7, 7)) == [[1, 0, 1, 1, 1, 2], [2, 2, 2], [3, 3, 3], []]

    def test_a_map_has_entries_per_namespace(self, job: Job, space: pa.Schema, values: Keys) -> None:
        cart = MapStateDescriptor("cart", values.type, pa.int64(), namespace=space)
        job.state(cart).put_batch(
            job.keys(0, 0, 0), job.keys(0, 0, 7), pa.array([1, 2, 3]), namespace=job.keys(0, 7, 7)
        )
        job.carry_over()
        state = job.state(cart)

        entries = state.entries_batch(job.keys(0, 0, 7), namespace=job.keys(7, 0, 0)).to_pylist()
        assert [sorted(value for _, value in map) for map in entries] == [[2, 3], [1], []]
        state.clear_batch(job.keys(0), namespace=job.key_values.value(7))
        assert state.get_batch(job.keys(0, 0), job.keys(0, 0), namespace=job.keys(0, 7)).to_pylist() == [1, None]

    def test_a_clear_leaves_other_namespaces_alone(self, job: Job, numbers: ListStateDescriptor) -> None:
        job.state(numbers).add_batch(job.keys(0, 0, 7), pa.array([1, 2, 3]), namespace=job.keys(0, 7, 0))
        job.at(0)
        job.state(numbers).current_namespace = job.key_values.value(7)
        job.state(numbers).clear()
        job.carry_over()

        assert self.read(job, numbers, (0, 0), (0, 7), (7, 0)) == [[1], [], [3]]

    def test_scalar_verbs_work_in_the_current_namespace(self, job: Job, total: ReducingStateDescriptor) -> None:
        job.at(0)
        state = job.state(total)
        self.refused(InvalidInputError, state.add, 1, match="current_namespace")
        state.current_namespace = job.key_values.value(0)
        state.add(1)
        state.current_namespace = job.key_values.value(7)
        state.add(2)
        state.add(3)
        job.carry_over()

        assert self.read(job, total, (0, 0), (0, 7)) == [1, 5]

    def test_a_namespace_that_does_not_fit_is_refused(self, job: Job, numbers: ListStateDescriptor) -> None:
        state = job.state(numbers)
        null = pa.array([None], job.key_values.type)

        self.refused(InvalidInputError, state.add_batch, job.keys(0), [1], match="needs a namespace")
        self.refused(NullKeyError, state.add_batch, job.keys(0), [1], namespace=null, match="space")
        self.refused(KeyTypeError, state.add_batch, job.keys(0), [1], namespace=5)
        self.refused(InvalidInputError, state.add_batch, job.keys(0), [1], namespace=job.keys(0, 1))
        self.refused(InvalidInputError, setattr, state, "current_namespace", None)

        assert len(state) == 0

    def test_windows_have_several_columns(self, job: Job) -> None:
        state = job.state(COUNTS)
        windows = pa.record_batch({"start": [0, 0, 10], "end": [10, 20, 20]})
        state.add_batch(job.keys(0, 0, 0), pa.array([5, 5, 5]), namespace=windows)
        state.add_batch(job.keys(0, 7), pa.array([5, 5]), namespace=(0, 10))
        job.at(0)
        state.current_namespace = {"end": 20, "start": 10}
        state.add(5)
        job.carry_over()

        state = job.state(COUNTS)
        assert state.get_batch(job.keys(0, 0, 0), namespace=windows).to_pylist() == [2, 1, 2]
        assert state.get_batch(job.keys(7, 0), namespace=(0, 10)).to_pylist() == [1, 2]
        self.refused(InvalidInputError, state.get_batch, job.keys(0), namespace=5)
        self.refused(InvalidInputError, state.get_batch, job.keys(0), namespace={"start": 1})

    def test_merged_lists_have_the_targets_elements_first(self, job: Job, numbers: ListStateDescriptor) -> None:
        job.state(numbers).add_batch(
            job.keys(0, 0, 0, 0, 7), pa.array([1, 2, 3, 4, 9]), namespace=job.keys(0, 7, 14, 7, 7)
        )
        job.carry_over()
        job.at(0)
        space = job.key_values.value
        job.state(numbers).merge_namespaces(space(0), [space(14), space(21), space(7), space(0)])
        job.carry_over()

        assert self.read(job, numbers, (0, 0), (0, 7), (0, 14), (0, 21), (7, 7)) == [[1, 3, 2, 4], [], [], [], [9]]
        job.state(numbers).add_batch(job.keys(0), [5], namespace=space(0))
        assert self.read(job, numbers, (0, 0)) == [[1, 3, 2, 4, 5]]

    def test_a_missing_target_is_made_and_missing_sources_are_passed_over(
        self, job: Job, numbers: ListStateDescriptor, total: ReducingStateDescriptor
    ) -> None:
        for state in (numbers, total):
            job.state(state).add_batch(job.keys(0, 0), pa.array([1, 2]), namespace=job.keys(0, 7))
            job.carry_over()
            job.at(0)
            space = job.key_values.value
            job.state(state).merge_namespaces(space(21), [space(7), space(28), space(0)])
            job.state(state).merge_namespaces(space(1), [space(2), space(3)])
            job.state(state).merge_namespaces(space(1), [])
            job.carry_over()

        assert self.read(job, numbers, (0, 0), (0, 7), (0, 21), (0, 1)) == [[], [], [2, 1], []]
        assert self.read(job, total, (0, 0), (0, 7), (0, 21), (0, 1)) == [None, None, 3, None]
        assert len(job.state(total)) == 1

    def test_namespaces_of_many_keys_merge_in_one_batch(
        self, job: Job, numbers: ListStateDescriptor, total: ReducingStateDescriptor
    ) -> None:
        keys = [key for key in range(20) for _ in range(4)]
        spaces = [space for _ in range(20) for space in (0, 7, 14, 1)]
        for state in (numbers, total):
            job.state(state).add_batch(job.keys(*keys), pa.array(range(80)), namespace=job.keys(*spaces))
            job.carry_over()
            away = [(key, space) for key in range(20) for space in (14, 7, 2)]
            job.state(state).merge_namespaces_batch(
                job.keys(*[key for key, _ in away]), job.key_values.value(0), job.keys(*[space for _, space in away])
            )
            job.carry_over()

        pairs = [(key, 0) for key in range(20)]
        assert self.read(job, numbers, *pairs) == [[4 * key, 4 * key + 2, 4 * key + 1] for key in range(20)]
        assert self.read(job, total, *pairs) == [12 * key + 3 for key in range(20)]
        assert self.read(job, total, *[(key, 1) for key in range(20)]) == [4 * key + 3 for key in range(20)]
        assert len(job.state(total)) == 40

    def test_counts_add_up_and_fields_merge_on_their_own(self, job: Job) -> None:
        windows = pa.record_batch({"start": [0, 1, 1, 2], "end": [9, 9, 9, 9]})
        job.state(COUNTS).add_batch(job.keys(0, 0, 0, 0), pa.array([5, 5, 5, 5]), namespace=windows)
        fields = [{"n": 1, "last": "a"}, {"n": None, "last": "b"}, {"n": 1, "last": None}, {"n": 1, "last": None}]
        job.state(FIELDS).add_batch(job.keys(0, 0, 0, 0), pa.array(fields, FIELDS.type), namespace=windows)
        job.carry_over()
        job.at(0)
        job.state(COUNTS).merge_namespaces((0, 9), [(2, 9), (1, 9)])
        job.state(FIELDS).merge_namespaces((3, 9), [(0, 9), (2, 9), (1, 9)])
        job.state(FIELDS).merge_namespaces((5, 9), [(6, 9)])

        assert job.state(COUNTS).get_batch(job.keys(0), namespace=(0, 9)).to_pylist() == [4]
        assert job.state(FIELDS).get_batch(job.keys(0), namespace=(3, 9)).to_pylist() == [{"n": 3, "last": "b"}]
        assert len(job.state(COUNTS)) == len(job.state(FIELDS)) == 1

    def test_a_merge_that_makes_no_sense_is_refused(
        self, job: Job, numbers: ListStateDescriptor, space: pa.Schema
    ) -> None:
        state = job.state(numbers)
        state.add_batch(job.keys(0, 0), pa.array([1, 2]), namespace=job.keys(0, 7))

        self.refused(InvalidInputError, state.merge_namespaces_batch, job.keys(0, 0), job.keys(1, 7), job.keys(7, 2))
        self.refused(InvalidInputError, state.merge_namespaces_batch, job.keys(0, 0), job.keys(1, 2), job.keys(7, 7))
        self.refused(InvalidInputError, state.merge_namespaces_batch, job.keys(0), None, job.keys(7))
        plain = job.state(ListStateDescriptor("plain", pa.int64()))
        self.refused(InvalidInputError, plain.merge_namespaces_batch, job.keys(0), 1, 2, match="no namespaces")
        city = job.state(ValueStateDescriptor("city", pa.string(), namespace=space))
        self.refused(InvalidInputError, city.merge_namespaces_batch, job.keys(0), 1, 2, match="do not merge")

        assert self.read(job, numbers, (0, 0), (0, 7)) == [[1], [2]]
