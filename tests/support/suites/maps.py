"""What map state means."""

import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, KeyTypeError, NullKeyError, ValueTypeError
from arrowstate.schema.descriptors import MapStateDescriptor
from suites.deployments import Deployment, Job, Keys
from suites.suite import KeyedStateSuite

__all__ = ["MapStateSuite"]


class MapStateSuite(KeyedStateSuite):
    """One row per entry; null values are values, null user keys are refused."""

    @pytest.fixture
    def cart(self, values: Keys) -> MapStateDescriptor:
        return MapStateDescriptor("cart", values.type, pa.int64())

    @pytest.fixture
    def notes(self, values: Keys) -> MapStateDescriptor:
        return MapStateDescriptor("notes", values.type, pa.struct([("text", pa.string()), ("n", pa.int64())]))

    def entries(self, job: Job, state: MapStateDescriptor, key: int) -> dict[str, object]:
        """All entries of a key, by the text of the user key."""
        (batch,) = job.state(state).entries_batch(job.keys(key)).to_pylist()
        job.at(key)
        scalar = {str(user_key): value for user_key, value in job.state(state).items()}
        assert {str(user_key): value for user_key, value in batch} == scalar
        assert len(batch) == len(scalar)
        return scalar

    def expect(self, job: Job, entries: dict[int, object]) -> dict[str, object]:
        return {str(job.key_values.value(number)): value for number, value in entries.items()}

    def test_a_key_without_entries_is_empty(self, job: Job, cart: MapStateDescriptor) -> None:
        state = job.state(cart)
        job.at(0)

        assert state.is_empty()
        assert state.get(job.key_values.value(0)) is None
        assert not state.contains(job.key_values.value(0))
        assert list(state.items()) == list(state.keys()) == list(state.values()) == []
        assert state.entries_batch(job.keys(0, 1)).to_pylist() == [[], []]
        assert state.get_batch(job.keys(0), job.keys(0)).to_pylist() == [None]

    def test_entries_of_a_key_are_told_apart_and_the_last_write_counts(
        self, job: Job, cart: MapStateDescriptor
    ) -> None:
        job.state(cart).put_batch(job.keys(0, 0, 7, 0), job.keys(0, 7, 0, 0), pa.array([1, 2, 3, 4]))
        job.carry_over()
        job.state(cart).put_batch(job.keys(7, 0, 14), job.keys(14, 7, 0), pa.array([5, 6, 7]))
        job.carry_over()

        assert self.entries(job, cart, 0) == self.expect(job, {0: 4, 7: 6})
        assert self.entries(job, cart, 7) == self.expect(job, {0: 3, 14: 5})
        assert self.entries(job, cart, 14) == self.expect(job, {0: 7})
        state = job.state(cart)
        assert state.get_batch(job.keys(0, 7, 0, 14), job.keys(7, 7, 0, 0)).to_pylist() == [6, None, 4, 7]
        assert state.contains_batch(job.keys(0, 7, 0), job.keys(7, 7, 14)).to_pylist() == [True, False, False]
        assert len(state) == 5

    def test_a_null_value_is_an_entry(self, job: Job, cart: MapStateDescriptor) -> None:
        job.state(cart).put_batch(job.keys(0, 1), job.keys(0, 0), pa.array([None, 1]))
        job.at(1)
        job.state(cart).put(job.key_values.value(7), None)
        job.carry_over()
        state = job.state(cart)
        job.at(0)

        assert state.contains(job.key_values.value(0))
        assert state.get(job.key_values.value(0)) is None
        assert not state.is_empty()
        assert self.entries(job, cart, 0) == self.expect(job, {0: None})
        assert self.entries(job, cart, 1) == self.expect(job, {0: 1, 7: None})
        assert state.contains_batch(job.keys(0, 0), job.keys(0, 1)).to_pylist() == [True, False]

    def test_a_null_user_key_is_refused_and_the_state_is_unchanged(self, job: Job, cart: MapStateDescriptor) -> None:
        state = job.state(cart)
        state.put_batch(job.keys(0), job.keys(0), pa.array([1]))
        job.at(0)
        null = pa.array([None], job.key_values.type)
        both = pa.concat_arrays([job.keys(1), null])

        for verb, arguments in ((state.get, ()), (state.contains, ()), (state.remove, ()), (state.put, (2,))):
            self.refused(NullKeyError, verb, None, *arguments, match="cart_key")
        self.refused(NullKeyError, state.put_all, {"a": 1, None: 2} if job.key_values.name[0] == "p" else {None: 2})
        self.refused(NullKeyError, state.put_batch, job.keys(0, 0), both, pa.array([5, 6]), match="cart_key")
        for verb in (state.get_batch, state.contains_batch, state.remove_batch):
            self.refused(NullKeyError, verb, job.keys(0), null)

        job.carry_over()
        assert self.entries(job, cart, 0) == self.expect(job, {0: 1})

    def test_what_does_not_fit_is_refused_and_the_state_is_unchanged(self, job: Job, cart: MapStateDescriptor) -> None:
        state = job.state(cart)
        state.put_batch(job.keys(0), job.keys(0), pa.array([1]))
        job.at(0)
        user_key = job.key_values.value(0)

        self.refused(ValueTypeError, state.put, user_key, "two")
        self.refused(KeyTypeError, state.put, 5, 2)
        self.refused(KeyTypeError, state.get, 5)
        self.refused(ValueTypeError, state.put_batch, job.keys(0), job.keys(0), ["two"])
        self.refused(KeyTypeError, state.put_batch, job.keys(0), pa.array([1.5]), [2])
        self.refused(InvalidInputError, state.put_batch, job.keys(0, 1), job.keys(0, 1), [2])
        self.refused(InvalidInputError, state.put_batch, job.keys(0, 1), job.keys(0), [2, 3])
        self.refused(InvalidInputError, state.get_batch, job.keys(0, 1), job.keys(0))

        assert self.entries(job, cart, 0) == self.expect(job, {0: 1})

    def test_removing_the_last_entry_removes_the_key(self, job: Job, cart: MapStateDescriptor) -> None:
        job.state(cart).put_batch(job.keys(0, 0, 7), job.keys(0, 7, 0), pa.array([1, 2, 3]))
        job.carry_over()
        state = job.state(cart)
        state.remove_batch(job.keys(0, 0, 3), job.keys(7, 14, 0))
        job.at(0)
        assert not state.is_empty()

        state.remove(job.key_values.value(0))

        assert state.is_empty()
        assert job.backend.keys(cart).column(0).to_pylist() == [job.key_values.value(7)]
        job.carry_over()
        assert len(job.state(cart)) == 1

    def test_scalar_and_batch_verbs_see_each_other(self, job: Job, cart: MapStateDescriptor) -> None:
        state = job.state(cart)
        job.at(0)
        state.put(job.key_values.value(0), 1)
        state.put(job.key_values.value(7), 2)
        assert state.get_batch(job.keys(0, 0), job.keys(0, 7)).to_pylist() == [1, 2]
        state.remove(job.key_values.value(0))
        state.put_batch(job.keys(0), job.keys(14), pa.array([3]))
        assert not state.contains(job.key_values.value(0))
        state.put(job.key_values.value(0), 4)
        state.remove_batch(job.keys(0), job.keys(7))
        job.carry_over()

        assert self.entries(job, cart, 0) == self.expect(job, {0: 4, 14: 3})

    def test_a_clear_removes_the_entries_of_one_key(self, job: Job, cart: MapStateDescriptor) -> None:
        job.state(cart).put_batch(job.keys(0, 0, 7, 14), job.keys(0, 7, 0, 0), pa.array([1, 2, 3, 4]))
        job.carry_over()
        job.at(0)
        job.state(cart).put(job.key_values.value(21), 5)
        job.state(cart).clear()
        job.state(cart).clear_batch(job.keys(14, 14, 28))
        job.carry_over()

        assert [len(self.entries(job, cart, key)) for key in (0, 7, 14)] == [0, 1, 0]

    def test_entries_may_be_set_and_removed_in_an_iteration(self, job: Job, cart: MapStateDescriptor) -> None:
        job.state(cart).put_batch(job.keys(*[0] * 20), job.keys(*range(20)), pa.array(range(20)))
        job.carry_over()
        job.at(0)
        state = job.state(cart)

        for user_key, value in state.items():
            if value % 2:
                state.remove(user_key)
            else:
                state.put(user_key, value * 10)

        assert self.entries(job, cart, 0) == self.expect(job, {n: n * 10 for n in range(0, 20, 2)})

    def test_struct_values_come_back_field_by_field(self, job: Job, notes: MapStateDescriptor) -> None:
        values = [{"text": "a", "n": None}, {"text": None, "n": 2}]
        job.state(notes).put_batch(job.keys(0, 0), job.keys(0, 7), pa.array(values, notes.type))
        job.at(0)
        job.state(notes).put(job.key_values.value(14), values[0])
        job.carry_over()

        expected = self.expect(job, {0: values[0], 7: values[1], 14: values[0]})
        assert self.entries(job, notes, 0) == expected
        assert job.state(notes).get_batch(job.keys(0, 0), job.keys(7, 8)).to_pylist() == [values[1], None]

    def test_put_all_sets_all_or_nothing(self, deployment: Deployment) -> None:
        job = deployment.start()
        cart = MapStateDescriptor("cart", pa.string(), pa.int64())
        job.at(0)
        job.state(cart).put_all({"a": 1, "b": None})

        self.refused(ValueTypeError, job.state(cart).put_all, {"a": 5, "c": "no number"})
        self.refused(NullKeyError, job.state(cart).put_all, {"a": 5, None: 1})

        assert dict(job.state(cart).items()) == {"a": 1, "b": None}
        job.close()

    def test_empty_batches_change_nothing(self, job: Job, cart: MapStateDescriptor) -> None:
        state = job.state(cart)

        state.put_batch(job.keys(), job.keys(), pa.array([], pa.int64()))
        state.remove_batch(job.keys(), job.keys())
        state.clear_batch(job.keys())

        assert state.get_batch(job.keys(), job.keys()).to_pylist() == []
        assert state.contains_batch(job.keys(), job.keys()).to_pylist() == []
        assert state.entries_batch(job.keys()).to_pylist() == []

    def test_sliced_and_chunked_columns_are_taken_as_they_are(self, job: Job, cart: MapStateDescriptor) -> None:
        keys, user_keys, values = job.keys(0, 7, 0), job.keys(0, 1, 2), pa.array([1, 2, None])

        job.state(cart).put_batch(self.sliced(keys), self.sliced(user_keys), self.sliced(values))
        job.carry_over()

        state = job.state(cart)
        assert state.get_batch(self.chunked(keys), self.chunked(user_keys)).to_pylist() == [1, 2, None]
        assert state.contains_batch(self.chunked(keys), self.sliced(user_keys)).to_pylist() == [True, True, True]

    def test_many_keys_with_many_entries(self, job: Job, cart: MapStateDescriptor) -> None:
        model: dict[tuple[int, int], int] = {}
        for round in range(4):
            pairs = [(n * 7 % 30, n * 11 % 13) for n in range(round * 50, round * 50 + 100)]
            job.state(cart).put_batch(
                job.keys(*[key for key, _ in pairs]), job.keys(*[u for _, u in pairs]), pa.array(range(len(pairs)))
            )
            model.update({pair: number for number, pair in enumerate(pairs)})
            gone = [pair for pair in model if sum(pair) % 5 == round]
            job.state(cart).remove_batch(job.keys(*[key for key, _ in gone]), job.keys(*[u for _, u in gone]))
            for pair in gone:
                del model[pair]
            job.carry_over()

        everything = [(key, user_key) for key in range(30) for user_key in range(13)]
        keys, user_keys = job.keys(*[k for k, _ in everything]), job.keys(*[u for _, u in everything])
        assert job.state(cart).get_batch(keys, user_keys).to_pylist() == [model.get(pair) for pair in everything]
        assert len(job.state(cart)) == len(model)
        for key in range(0, 30, 7):
            assert self.entries(job, cart, key) == self.expect(job, {u: v for (k, u), v in model.items() if k == key})
